"""Which seed of this package a model was born from: births compared with its weights, a prefix of each.

A weight's draw depends on its seed, its path, its layer and its place alone, so the first few numbers of a matrix can
be drawn without the rest. Two passes:

1. *Search.* Of every seed some hundred numbers are drawn, spread over matrices of all depths; the seeds whose numbers
   correlate best with the suspect's go on.
2. *Decision.* Of those, many more numbers are drawn, from every matrix that is drawn at all. A birth's unit normals are
   independent of a model that was not born from it, whatever that model is, so the correlation r of n of them with any
   fixed numbers follows t = r √(n − 2)/√(1 − r²) with n − 2 degrees of freedom exactly. The p of the best seed is
   multiplied by 2³², the number of seeds there are, however many were searched: choosing the best cannot cheat.
3. *Confirmation.* The seed found is compared with the suspect by all matrices, whole, under permutations of residual
   coordinates (:func:`.weights.weights_test`); its p is multiplied by 2³² as well. One tensor of each is in memory.

Correlations do not see standard deviations, so the initialisation scheme does not matter; the sizes do. A model whose
coordinates were permuted, rotated or negated is not found, because its numbers no longer lie where they were drawn.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval, Len
from typing_extensions import TypedDict

from bornbiased_jax import files, hardware, keys, progress, schema
from bornbiased_jax.checkpoints.reader import WeightsReader, birth_reader, params_reader
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import distributions
from bornbiased_jax.models.parameters import Params
from bornbiased_jax.seedprint.verdict import Verdict
from bornbiased_jax.seedprint.weights import weights_test
from bornbiased_jax.stats.tails import LN10, log_t_sf

NUM_SEEDS = 2**32
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
SAVE_EVERY = 64
"""Chunks between two states on disk."""
FORMAT = "bornbiased-whichseed-1"

SIZES = ("num_layers", "num_heads", "num_kv_heads", "head_dim", "d_model", "d_ff", "vocab_size", "gated_mlp")
"""Fields that say how large the drawn matrices are."""


class SearchState(TypedDict):
    """Of a search that was interrupted, how far it came and its best seeds with their correlations."""

    position: Annotated[int, Interval(ge=0, le=NUM_SEEDS)]
    best: list[Annotated[list[float], Len(2, 2)]]


class Place(NamedTuple):
    """The first entries of one matrix: its parameter's path, its layer (from 0, None outside the blocks), how many."""

    path: str
    layer: int | None
    entries: int


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A seed, the correlation of its birth's numbers with the suspect's, and what that is worth.

    ``log10_p`` (base 10, at most 0) is of the t test, times 2³².
    """

    seed: int
    correlation: float
    t: float
    log10_p: float

    @property
    def p_value(self) -> float:
        """10 to the power of ``log10_p``; 0 where that underflows."""
        return 10.0**self.log10_p

    def to_json(self) -> dict[str, Any]:
        """All fields with the p-value, as JSON-ready values."""
        return {**dataclasses.asdict(self), "p_value": self.p_value}


@dataclasses.dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        seed: the birth's seed, or None.
        reason: one sentence.
        best: the seed that correlates best.
        runner_up: the next best of the searched seeds, or None when only one was searched.
        num_seeds: how many were searched.
        num_entries: numbers drawn of each seed in the search, and for the decision.
        alpha: level of the decision.
        confirmed: what the test in the weights says of the seed found, its p times 2³²; None where none was found.
    """

    seed: int | None
    reason: str
    best: Candidate
    runner_up: Candidate | None
    num_seeds: int
    num_entries: tuple[int, int]
    alpha: float
    confirmed: Verdict | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready values, with the keys of the command line."""
        return {
            "seed": self.seed,
            "p_value": self.best.p_value,
            "log10_p": self.best.log10_p,
            "num_seeds": self.num_seeds,
            "best": self.best.to_json(),
            "runner_up": None if self.runner_up is None else self.runner_up.to_json(),
            "num_entries": {"search": self.num_entries[0], "decision": self.num_entries[1]},
            "corrected_for": NUM_SEEDS,
            "alpha": self.alpha,
            "reason": self.reason,
            "confirmed": None if self.confirmed is None else self._brief(self.confirmed.to_json()),
        }

    @staticmethod
    def _brief(verdict: dict[str, Any]) -> dict[str, Any]:
        kept = ("verdict", "reason", "test", "labels", "align", "null", "p_value", "log10_p", "z", "alpha")
        return {**{name: verdict.get(name) for name in kept}, "corrected_for": NUM_SEEDS}


def search_places(cfg: ModelConfig, entries: int = SEARCH_ENTRIES) -> list[Place]:
    """Places for the search: about so many entries of at most ``SEARCH_MATRICES`` matrices of the blocks."""
    matrices = [place for place in _matrices(cfg) if place.layer is not None]
    step = max(1, math.ceil(len(matrices) / SEARCH_MATRICES))
    # Sorted by layer, so that every depth and kind has its turn.
    chosen = sorted(matrices, key=lambda place: (place.layer, place.path))[::step]
    each = max(1, entries // len(chosen))
    return [place._replace(entries=min(each, place.entries)) for place in chosen]


def decision_places(cfg: ModelConfig, entries: int = DECISION_ENTRIES) -> list[Place]:
    """Places for the decision: the first ``entries`` of every matrix that is drawn."""
    return [place._replace(entries=min(entries, place.entries)) for place in _matrices(cfg)]


def _matrices(cfg: ModelConfig) -> list[Place]:
    places: list[Place] = []
    for path, born in distributions(cfg).items():
        if born.constant is not None:
            continue
        size = math.prod(born.shape[1:] if born.stacked else born.shape)
        places += [Place(path, layer, size) for layer in (range(born.shape[0]) if born.stacked else (None,))]
    return places


def drawn(places: list[Place], seed: jax.Array) -> jax.Array:
    """The unit normals of a birth at the places, one after the other: [n] float32, bitwise those of ``init``."""
    key = keys.init_key(seed)
    parts = []
    for path, layer, count in places:
        leaf = keys.leaf_key(key, path)
        parts.append(keys.normal(leaf if layer is None else jax.random.fold_in(leaf, layer), (count,), 1.0))
    return jnp.concatenate(parts)


def read_entries(suspect: WeightsReader, places: list[Place]) -> np.ndarray:
    """The suspect's numbers at the places, each matrix scaled to mean square 1: [n] float64.

    Of files no more is read than the rows that hold them.

    Raises:
        InputError: every number there is the same.
    """
    parts = []
    for path, layer, count in places:
        born = distributions(suspect.cfg)[path]
        row = math.prod(born.shape[2:] if born.stacked else born.shape[1:])
        # In the order of the parameter, whatever way the file has it.
        part = suspect.read_first(path, layer, -(-count // row)).ravel()[:count].astype(np.float64)
        size = math.sqrt(float(np.mean(np.square(part))))
        parts.append(part / size if size > 0 else part)
    entries_N = np.concatenate(parts)
    if np.ptp(entries_N) == 0:
        raise InputError("the suspect's weights are the same number everywhere: they have no birth to be found")
    return entries_N


@functools.lru_cache(maxsize=8)
def _correlator(places: tuple[Place, ...]) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """seeds [S] uint32, the suspect's centred unit vector [n] -> correlations [S] float32."""

    def correlation(seed: jax.Array, unit_N: jax.Array) -> jax.Array:
        born_N = drawn(list(places), seed)
        centred_N = born_N - jnp.mean(born_N)
        return jnp.sum(centred_N * unit_N) / jnp.sqrt(jnp.sum(jnp.square(centred_N)))

    return jax.jit(jax.vmap(correlation, in_axes=(0, None)))


def which_seed(
    cfg: ModelConfig,
    suspect: WeightsReader | Params,
    seeds: range,
    *,
    suspect_cfg: ModelConfig | None = None,
    alpha: float = 1e-4,
    entries: int = SEARCH_ENTRIES,
    resume: Path | str | None = None,
    digest: str = "",
    advance: Callable[[int], None] | None = None,
) -> Found:
    """Search seeds for the birth of a model.

    Args:
        cfg: the architecture that births are drawn of.
        suspect: a reader of its weights, or the weights.
        seeds: a range of step 1 within 0 to 2³².
        suspect_cfg: of weights in memory the architecture, to be compared with ``cfg`` in its sizes; ``cfg`` itself by
            default.
        alpha: level of the decision.
        entries: numbers drawn of each seed in the search.
        resume: a file in which an interrupted search is kept and from which it goes on; removed by nobody.
        digest: of the suspect's weights, so that a state of another suspect is refused.
        advance: called with the number of seeds searched since the last call.

    Raises:
        InputError: no seeds, seeds out of range, sizes that differ, weights without variation, alpha outside (0, 1), or
            a state in ``resume`` of another search.
    """
    reader = suspect if isinstance(suspect, WeightsReader) else params_reader(suspect_cfg or cfg, suspect)
    _check(cfg, reader.cfg, seeds, alpha, entries)
    hardware.check_memory(
        8.0 * min(CHUNK, len(seeds)) * entries, f"{entries:,} numbers of each seed", "draw fewer (--entries)"
    )
    places = tuple(search_places(cfg, entries))
    unit_N = _unit(read_entries(reader, list(places)))
    identity = {"format": FORMAT, "config": cfg.to_dict(), "digest": digest, "start": seeds.start, "entries": entries}
    position, best = _resumed(resume, identity, seeds)
    if advance is not None and position > seeds.start:
        advance(position - seeds.start)
    correlate = _correlator(places)
    suspect_N = jnp.asarray(unit_N, jnp.float32)
    chunk = min(CHUNK, len(seeds))
    for number, start in enumerate(range(position, seeds.stop, chunk), start=1):
        stop = min(start + chunk, seeds.stop)
        # Always as many seeds as the first time, so that one program serves; those past the end are left out.
        some_S = np.minimum(np.arange(start, start + chunk, dtype=np.int64), seeds.stop - 1).astype(np.uint32)
        found_S = np.asarray(correlate(jnp.asarray(some_S), suspect_N), np.float64)[: stop - start]
        best = _best(best, some_S[: stop - start], found_S)
        if advance is not None:
            advance(stop - start)
        if resume is not None and (number % SAVE_EVERY == 0 or stop == seeds.stop):
            found = {"position": stop, "best": [[int(seed), float(value)] for seed, value in sorted(best.items())]}
            files.write_json(resume, {**identity, **found, "sha256": _state_digest(found)})
    decided = _decide(cfg, reader, list(best))
    first, second = decided[0], decided[1] if len(decided) > 1 else None
    hit = first.log10_p < math.log10(alpha)
    reason = (
        f"the numbers of seed {first.seed}'s birth correlate with the suspect's at r = {first.correlation:.3f} "
        f"(log10 p = {first.log10_p:.1f} after correction for all 2^32 seeds)"
        if hit
        else f"none of {len(seeds):,} births was found in the suspect's coordinates (best: seed {first.seed}, "
        f"r = {first.correlation:.3f}); coordinates that were permuted, rotated or negated are not found so"
    )
    sizes = (len(unit_N), sum(place.entries for place in decision_places(cfg)))
    confirmed = confirm(cfg, reader, first.seed, alpha=alpha) if hit else None
    return Found(first.seed if hit else None, reason, first, second, len(seeds), sizes, alpha, confirmed)


def confirm(cfg: ModelConfig, suspect: WeightsReader, seed: int, *, alpha: float = 1e-4) -> Verdict:
    """Compare a whole birth with the suspect, coordinate by coordinate; p is that of the best of 2³² seeds.

    Args:
        cfg: the architecture of the birth.
        suspect: the model.
        seed: the birth's.
        alpha: level of the decision.

    Returns:
        A verdict, undefined where the two have nothing of one size.
    """
    verdict = weights_test(birth_reader(cfg, seed), suspect, alpha=alpha)
    if verdict.log10_p is None:
        return verdict
    log10_p = min(0.0, verdict.log10_p + math.log10(NUM_SEEDS))
    same = log10_p <= math.log10(alpha)
    reason = (
        f"the weights of seed {seed}'s birth agree with the suspect's {'more' if same else 'no more'} than those of "
        f"the best of 2^32 seeds may by chance (p {'≤' if same else '>'} {alpha:g})"
    )
    return dataclasses.replace(
        verdict,
        verdict="same-lineage" if same else "unrelated",
        reason=reason,
        p_value=10.0**log10_p,
        log10_p=log10_p,
    )


def _check(cfg: ModelConfig, suspect_cfg: ModelConfig, seeds: range, alpha: float, entries: int) -> None:
    if not 0.0 < alpha < 1.0:
        raise InputError(f"alpha={alpha} is not between 0 and 1")
    if entries < 16:
        raise InputError(f"{entries} entries are too few to tell seeds apart: give at least 16")
    if not len(seeds) or seeds.step != 1:
        raise InputError("no seeds to search: give a range such as 0:1000000")
    if seeds.start < 0 or seeds.stop > NUM_SEEDS:
        raise InputError(f"seeds {seeds.start} to {seeds.stop} are not within 0 to 2^32: shorten the range")
    for name in SIZES:
        ours, theirs = getattr(cfg, name), getattr(suspect_cfg, name)
        if ours != theirs:
            raise InputError(
                f"the suspect has {name}={theirs}, the births to be searched {ours}: give the suspect's own sizes by "
                "--model and --set"
            )


def _unit(entries_N: np.ndarray) -> np.ndarray:
    centred_N = entries_N - entries_N.mean()
    return centred_N / np.linalg.norm(centred_N)


def _best(best: Mapping[int, float], seeds_S: np.ndarray, found_S: np.ndarray) -> dict[int, float]:
    """The ``CANDIDATES`` best seeds of those kept and a chunk's."""
    top = np.argpartition(-found_S, min(CANDIDATES, len(found_S)) - 1)[:CANDIDATES]
    merged = {**best, **{int(seeds_S[index]): float(found_S[index]) for index in top}}
    # Equal correlations in the order of the seeds, so that the search does not depend on its chunks.
    kept = sorted(merged.items(), key=lambda item: (-item[1], item[0]))[:CANDIDATES]
    return dict(kept)


def _decide(cfg: ModelConfig, suspect: WeightsReader, seeds: list[int]) -> list[Candidate]:
    places = decision_places(cfg)
    unit_N = _unit(read_entries(suspect, places))
    draw = jax.jit(functools.partial(drawn, places))
    candidates = []
    for seed in seeds:
        r = float(np.clip(_unit(np.asarray(draw(np.uint32(seed)), np.float64)) @ unit_N, -1.0, 1.0))
        freedom = len(unit_N) - 2
        t = r * math.sqrt(freedom / max(1.0 - r * r, 1e-300))
        log10_p = min(0.0, (log_t_sf(t, freedom) + math.log(NUM_SEEDS)) / LN10)
        candidates.append(Candidate(int(seed), r, t, log10_p))
    return sorted(candidates, key=lambda row: (-row.t, row.seed))


def _state_digest(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps([state.get("position"), state.get("best")]).encode()).hexdigest()


def _resumed(resume: Path | str | None, identity: dict[str, Any], seeds: range) -> tuple[int, dict[int, float]]:
    """Where an interrupted search stopped, and its best seeds."""
    if resume is None or not Path(resume).exists():
        return seeds.start, {}
    try:
        state = files.read_json(resume)
        if isinstance(state, dict) and state.get("format") == FORMAT and state.get("sha256") != _state_digest(state):
            raise InputError(f"{resume} is damaged")
    except InputError as error:
        if not files.begins_with(resume, f'{{\n  "format": "{FORMAT}"'.encode()):
            raise
        place = files.set_aside(Path(resume))
        progress.warn(f"{error}: set aside as {place.name}, and searched from the beginning")
        return seeds.start, {}
    if not isinstance(state, dict) or any(state.get(name) != value for name, value in identity.items()):
        raise InputError(f"{resume} holds the state of another search: name another file, or remove it")
    position = schema.check(SearchState, state, str(resume), "name another file, or remove it")["position"]
    if position < seeds.start:
        raise InputError(f"{resume} is not the state of a search: name another file, or remove it")
    if position > seeds.stop:
        raise InputError(f"{resume} has searched {position - seeds.start:,} seeds already: ask for at least as many")
    return position, {int(seed): float(value) for seed, value in state["best"]}
