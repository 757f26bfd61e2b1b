"""The search of :mod:`.whichseed`: which numbers of an initialization are drawn, and the best seeds of ranges."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import keys
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.chunk_store import Chunk, Results, TaskSettings
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import distribution, draw_unit
from bornbiased_jax.parameters import parameter_table
from bornbiased_jax.schemes import DistributionKind
from bornbiased_jax.store import Request

SEARCH_ENTRIES = 256
"""Numbers drawn of each seed in the search."""
SEARCH_MATRICES = 16
"""Over how many matrices they are spread: each costs two more keys."""
DECISION_ENTRIES = 1024
"""Numbers drawn of each matrix for the decision."""
CANDIDATES = 256
"""Seeds that the search hands on."""
CHUNK = 1 << 14
"""Seeds drawn at once."""
RANGE = 1 << 20
"""Seeds in a chunk of a store: ten to thirty seconds of two cores."""
MOST_RANGES = 1 << 20
FUNCTION = "bornbiased_jax.lineage.seed_search:compute"


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """Options that divide a search.

    Attributes:
        entries: numbers drawn of each seed.
        range_size: seeds in a chunk of the store.
    """

    entries: int = SEARCH_ENTRIES
    range_size: int = RANGE


class MatrixEntries(NamedTuple):
    """The first entries of one matrix: its parameter's path, its layer (from 0, None outside the blocks), how many.

    ``kind`` is the distribution of an entry.
    """

    path: str
    layer: int | None
    entries: int
    kind: DistributionKind = "normal"


def search_places(cfg: ModelConfig, entries: int = SEARCH_ENTRIES) -> list[MatrixEntries]:
    """List places for the search: about so many entries of at most ``SEARCH_MATRICES`` matrices of the blocks."""
    matrices = [place for place in _matrices(cfg) if place.layer is not None]
    if not matrices:
        raise InputError(f"init={cfg.init} draws no matrix of the blocks entry by entry: its seeds cannot be searched")
    step = max(1, math.ceil(len(matrices) / SEARCH_MATRICES))
    # Sorted by layer, so that every depth and kind has its turn.
    selection = sorted(matrices, key=lambda place: (place.layer, place.path))[::step]
    count = max(1, entries // len(selection))
    return [place._replace(entries=min(count, place.entries)) for place in selection]


def decision_places(cfg: ModelConfig) -> list[MatrixEntries]:
    """List places for the decision: the first :data:`DECISION_ENTRIES` of every matrix that is drawn."""
    return [place._replace(entries=min(DECISION_ENTRIES, place.entries)) for place in _matrices(cfg)]


def _matrices(cfg: ModelConfig) -> list[MatrixEntries]:
    places: list[MatrixEntries] = []
    for path, parameter in parameter_table(cfg).items():
        entry = distribution(cfg, parameter)
        # Entries are drawn in their order only where they are independent.
        if entry.constant is not None or not entry.is_independent:
            continue
        size = math.prod(parameter.block_shape)
        layers = range(parameter.shape[0]) if parameter.is_stacked else (None,)
        places += [MatrixEntries(path, layer, size, entry.kind) for layer in layers]
    return places


def draw_entries(places: list[MatrixEntries], seed: jax.Array) -> jax.Array:
    """Draw initial weights at the places before they are scaled, in order: [n] float32, bitwise those of ``init``."""
    key = keys.init_key(seed)
    parts = []
    for path, layer, count, kind in places:
        leaf = keys.leaf_key(key, path)
        parts.append(draw_unit(leaf if layer is None else jax.random.fold_in(leaf, layer), (count,), kind))
    return jnp.concatenate(parts)


def read_entries(suspect: Checkpoint, places: list[MatrixEntries]) -> np.ndarray:
    """Read the suspect's numbers at the places, each matrix scaled to mean square 1: [n] float64.

    Raises:
        InputError: every number there is the same.
    """
    parts = []
    for path, layer, count, _ in places:
        # In the order of the parameter, whatever way the file has it.
        part = suspect.read(path, layer).ravel()[:count].astype(np.float64)
        size = math.sqrt(float(np.mean(np.square(part))))
        parts.append(part / size if size > 0 else part)
    entries_N = np.concatenate(parts)
    if np.ptp(entries_N) == 0:
        raise InputError(
            "the suspect's weights are the same number everywhere: they have no initialization to be found"
        )
    return entries_N


@functools.lru_cache(maxsize=8)
def correlator(places: tuple[MatrixEntries, ...]) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Compile the map from seeds [S] uint32 and the suspect's centered unit vector [n] to correlations [S] float32."""

    def correlation(seed: jax.Array, unit_N: jax.Array) -> jax.Array:
        initial_N = draw_entries(list(places), seed)
        centered_N = initial_N - jnp.mean(initial_N)
        return jnp.sum(centered_N * unit_N) / jnp.sqrt(jnp.sum(jnp.square(centered_N)))

    return jax.jit(jax.vmap(correlation, in_axes=(0, None)))


def spans(seeds: range, size: int) -> list[Chunk]:
    """Return the chunks of a search: ranges that end at multiples of their size, which other searches share.

    Raises:
        InputError: they are more than :data:`MOST_RANGES`.
    """
    if len(seeds) > MOST_RANGES * size:
        raise InputError(f"{len(seeds):,} seeds in ranges of {size:,} are too many ranges: take larger ones")
    cuts = range((seeds.start // size + 1) * size, seeds.stop, size)
    return [Chunk(0, start, stop) for start, stop in itertools.pairwise([seeds.start, *cuts, seeds.stop])]


def search(
    places: tuple[MatrixEntries, ...],
    suspect_N: np.ndarray,
    chunk: Chunk,
    advance: Callable[[int], None] | None = None,
) -> dict[str, np.ndarray]:
    """Find the best seeds of a range: ``seeds`` uint32 and ``correlations`` float64, ``CANDIDATES`` at most.

    The suspect's numbers are centered, of length 1, float32.
    """
    correlate = correlator(places)
    unit_N = jnp.asarray(suspect_N, jnp.float32)
    best: dict[int, float] = {}
    size = min(CHUNK, chunk.stop - chunk.start)
    # Correlate a chunk of seeds at a time, and keep the best.
    for start in range(chunk.start, chunk.stop, size):
        stop = min(start + size, chunk.stop)
        # Always as many seeds as the first time, so that one program serves; those past the end are left out.
        seeds_S = np.minimum(np.arange(start, start + size, dtype=np.int64), chunk.stop - 1).astype(np.uint32)
        correlations_S = np.asarray(correlate(jnp.asarray(seeds_S), unit_N), np.float64)[: stop - start]
        best = best_of(best, seeds_S[: stop - start], correlations_S)
        if advance is not None:
            advance(stop - start)
    return {"seeds": np.array(list(best), np.uint32), "correlations": np.array(list(best.values()), np.float64)}


def compute(settings: TaskSettings, sources: TaskSettings, chunks: list[Chunk]) -> Iterator[Results]:
    """Compute the chunks of a job, from JSON and the file of the suspect's numbers.

    Raises:
        InputError: those numbers are not those of the settings.
    """
    cfg = ModelConfig.from_dict(settings["model"])
    suspect_N = np.load(sources["suspect"], allow_pickle=False)
    if _digest(suspect_N) != settings["suspect"]:
        raise InputError(f"{sources['suspect']} does not hold this search's numbers of the suspect: remove it")
    places = tuple(search_places(cfg, settings["entries"]))
    yield from (search(places, suspect_N, chunk) for chunk in chunks)


def request(
    cfg: ModelConfig,
    suspect: Checkpoint,
    seeds: range,
    options: SearchOptions,
    advance: Callable[[int], None] | None = None,
) -> Request:
    """Describe a search as a request to a store; arguments as of :func:`.whichseed.which_seed`."""
    places = tuple(search_places(cfg, options.entries))
    suspect_N = unit(read_entries(suspect, list(places))).astype(np.float32)
    return Request(
        FUNCTION,
        {"model": cfg.to_dict(), "entries": options.entries, "suspect": _digest(suspect_N)},
        spans(seeds, options.range_size),
        compute=lambda _, __, chunks: (search(places, suspect_N, chunk, advance) for chunk in chunks),
        arrays={"suspect": suspect_N},
    )


def _digest(suspect_N: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(suspect_N, "<f4").tobytes()).hexdigest()


def unit(entries_N: np.ndarray) -> np.ndarray:
    """Center a vector [n] and scale it to length 1: products of two are correlations."""
    centered_N = entries_N - entries_N.mean()
    unit_N: np.ndarray = centered_N / np.linalg.norm(centered_N)
    return unit_N


def best_of(best: Mapping[int, float], seeds_S: np.ndarray, correlations_S: np.ndarray) -> dict[int, float]:
    """Keep the ``CANDIDATES`` best seeds of those so far and a chunk's."""
    top = np.argpartition(-correlations_S, min(CANDIDATES, len(correlations_S)) - 1)[:CANDIDATES]
    merged = {**best, **{int(seeds_S[index]): float(correlations_S[index]) for index in top}}
    # Equal correlations in the order of the seeds, so that the search does not depend on its chunks.
    ordered = sorted(merged.items(), key=lambda item: (-item[1], item[0]))[:CANDIDATES]
    return dict(ordered)
