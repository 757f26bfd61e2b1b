"""One model against many: screened by moments, tested where the screen lets through, corrected over all.

A store is a folder of fingerprints of weights. An ``index.json`` in it may name them:
``{"fingerprints": [{"file", "name", "payload_digest"}]}``; a digest that it gives is held against the file, and other
fields are for readers. The store that ships with the package goes by the name ``builtin``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from scipy import special
from threadpoolctl import threadpool_limits

from bornbiased_jax import io, progress
from bornbiased_jax.errors import InputError
from bornbiased_jax.hardware import cores
from bornbiased_jax.lineage.battery import ALPHA, Options, WeightsComparison, compare_weights, screening_z
from bornbiased_jax.lineage.fingerprint_file import is_fingerprint, load_fingerprint, payload_digest
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.lineage.fingerprints import Fingerprint
from bornbiased_jax.lineage.verdict import Decision, probability
from bornbiased_jax.lineage.weights_report import ComponentRow, component_rows
from bornbiased_jax.lineage.weights_verdict import is_without_seed
from bornbiased_jax.stats.multiple import holm_log10
from bornbiased_jax.stats.permutations import NUM_PERMUTATIONS
from bornbiased_jax.stats.terms import SCREEN

INDEX = "index.json"
BUILTIN = "builtin"
"""Name of the store of public models that ships with the package, made by ``docs/guides/make_store.py``."""
_SHOWN = 6
_BUILTIN_STORE = Path(__file__).with_name("store")


@dataclasses.dataclass(frozen=True)
class Base:
    """A model that a suspect is compared with: a stored fingerprint, or a checkpoint whose fingerprint is made.

    Attributes:
        name: what a reader knows it by.
        place: the file or the reference.
        payload_digest: what an index says of the file; None where none does.
    """

    name: str
    place: str
    payload_digest: str | None = None


@dataclasses.dataclass(frozen=True)
class Match:
    """The result for one base.

    Attributes:
        base: its name.
        digest: of its weights.
        verdict: the decision; "undefined" where no evidence is, or all that agrees may have come without a seed.
        log10_p: after both corrections, over the cells of evidence and over the bases; None where undefined.
        z: the largest of the evidence over the whole model, as estimated for the screen: description.
        evidence: which evidence that is.
        is_identical: whether all tensors are equal.
        components: rows as a verdict has them; empty below the screen.
    """

    base: str
    digest: str
    verdict: Decision
    log10_p: float | None
    z: float | None
    evidence: str
    is_identical: bool = False
    components: tuple[ComponentRow, ...] = ()

    @property
    def p_value(self) -> float | None:
        """The p as a number, 1e-300 where it is smaller."""
        return None if self.log10_p is None else probability(self.log10_p)


@dataclasses.dataclass(frozen=True)
class ScanResult:
    """A suspect against all bases, those that agree most first.

    Attributes:
        suspect: its name.
        suspect_digest: of its weights.
        alpha: level of every decision together.
        matches: one for each base.
        num_tested: bases that passed the screen.
    """

    suspect: str
    suspect_digest: str
    alpha: float
    matches: tuple[Match, ...]
    num_tested: int


def find_bases(places: Sequence[str]) -> list[Base]:
    """List the bases that some places name: stores (:data:`BUILTIN` among them), files of fingerprints, checkpoints.

    Raises:
        InputError: an index that cannot be read, an empty folder, or no base at all.
    """
    bases: list[Base] = []
    # A folder with an index or with fingerprints is a store; anything else is a base by itself.
    for place in places:
        folder = _BUILTIN_STORE if place == BUILTIN else io.user_path(place)
        if folder.is_dir() and ((folder / INDEX).is_file() or any(map(is_fingerprint, folder.iterdir()))):
            bases += _of_store(folder)
        elif folder.is_dir() and not any(folder.iterdir()):
            raise InputError(f"{folder} is an empty folder: put fingerprints of weights there, or name a checkpoint")
        else:
            bases.append(Base(place, place))
    if not bases:
        raise InputError("no bases to compare with: name checkpoints, fingerprints or a folder of fingerprints")
    return bases


def _of_store(folder: Path) -> list[Base]:
    index = folder / INDEX
    if not index.is_file():
        paths = sorted(folder.iterdir())
        stored = [path for path in paths if is_fingerprint(path)]
        foreign = [path.name for path in paths if path not in stored]
        if foreign:
            more = f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else ""
            progress.note(f"{folder}: left out, as no fingerprints of weights: {', '.join(foreign[:_SHOWN])}{more}")
        return [Base(path.stem, str(path)) for path in stored]
    # An index names files, and may name digests.
    try:
        rows = io.read_json(index)["fingerprints"]
        return [
            Base(str(row.get("name", row["file"])), str(folder / row["file"]), row.get("payload_digest"))
            for row in rows
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f'{index} is no index: write {{"fingerprints": [{{"file": NAME, "name": …}}]}}') from error


def scan(
    suspect: str,
    bases: Sequence[Base],
    *,
    alpha: float = ALPHA,
    num_permutations: int = NUM_PERMUTATIONS,
    advance: Callable[[int], object] = lambda _count: None,
) -> ScanResult:
    """Compare one model with many.

    A base none of whose evidence reaches a z (:func:`screening_threshold`), estimated from few pairs of labels, counts
    as p = 1, which is valid and conservative; the others are tested, by permutations and close bounds where quick
    bounds do not decide. Neurons in another order are not matched here: that needs two checkpoints.

    Args:
        suspect: a checkpoint or a file of a fingerprint.
        bases: see :func:`find_bases`.
        alpha: level of all decisions together: Holm's correction counts every base.
        num_permutations: of the tests that quick bounds do not decide.
        advance: called with the number of bases done since the last call.

    Raises:
        InputError: a model that cannot be read, or fingerprints made with different settings.
    """
    # A stored suspect as it is; of a checkpoint one fingerprint for all bases that were made alike.
    path = io.user_path(suspect)
    stored_suspect = load_fingerprint(path) if is_fingerprint(path) else None
    suspect_as = functools.cache(lambda settings: stored_suspect or fingerprint(suspect, settings))
    options = Options(alpha / len(bases), num_permutations, matches_neurons=False)
    threshold = screening_threshold(alpha, len(bases))

    def compared(base: Base, stored: Fingerprint, of_suspect: Fingerprint) -> tuple[Match, WeightsComparison | None]:
        # Test where the screen lets through. Its strongest evidence is shown, whether or not it was tested.
        z_by_evidence = screening_z(stored, of_suspect)
        best = max(z_by_evidence, key=z_by_evidence.__getitem__, default="")
        z = z_by_evidence.get(best)
        is_same = stored.weights_digest == of_suspect.weights_digest
        passes = is_same or (z is not None and z >= threshold)
        comparison = _tested(stored, of_suspect, options) if passes else None
        return Match(base.name, stored.weights_digest, "undefined", None, z, best), comparison

    # A base for each core at once; files are read by this thread, and so many are in memory.
    results: list[tuple[Match, WeightsComparison | None]] = []
    pending: deque[Future[tuple[Match, WeightsComparison | None]]] = deque()
    # Threads of BLAS that wait for one another would take the cores from the other bases.
    blas_threads = max(1, cores() // len(bases))
    with threadpool_limits(blas_threads, user_api="blas"), ThreadPoolExecutor(cores()) as pool:
        for base in bases:
            stored = _load(base)
            of_suspect = suspect_as(stored.made_as)
            # Where the suspect has no strings of tokens, a base that can be made again is made by their numbers too.
            is_by_ids = [model.made_as.token_labels == "ids" for model in (stored, of_suspect)]
            if is_by_ids == [False, True] and not is_fingerprint(io.user_path(base.place)):
                stored = fingerprint(base.place, dataclasses.replace(stored.settings, token_labels="ids"))
            pending.append(pool.submit(compared, base, stored, of_suspect))
            if len(pending) > cores():
                results.append(pending.popleft().result())
                advance(1)
        for future in pending:
            results.append(future.result())
            advance(1)
    # Holm over all bases, each with the least p of its own corrected cells.
    log10_p_values = [0.0 if comparison is None else comparison.adjusted() for _, comparison in results]
    adjusted = holm_log10(log10_p_values)
    matches = [_decided(*result, float(log10_p), alpha) for result, log10_p in zip(results, adjusted, strict=True)]
    order = sorted(matches, key=lambda match: (not match.is_identical, match.log10_p or 0.0, -(match.z or 0.0)))
    num_tested = sum(comparison is not None for _, comparison in results)
    return ScanResult(suspect, of_suspect.weights_digest, alpha, tuple(order), num_tested)


def screening_threshold(alpha: float, num_bases: int) -> float:
    """Return the estimated z from which on a base is tested.

    Corrected for so many bases, a z that is smaller by one standard deviation or more is not found: the proven bound on
    p is no less than the normal tail, but for exact copies in fewer than twenty labels.

    >>> screening_threshold(1e-4, 1), round(screening_threshold(1e-4, 1000), 2)
    (3.0, 4.2)
    """
    return max(SCREEN, -float(special.ndtri(alpha / max(1, num_bases))) - 1.0)


def _tested(base: Fingerprint, suspect: Fingerprint, options: Options) -> WeightsComparison:
    """Test a base by quick bounds, and where these do not decide by close ones and permutations."""
    # Every bound is above the p of all permutations, so that the smaller of two is valid; a count of some is not. Where
    # a count alone could reach the level, it is what decides.
    if options.alpha * (options.num_permutations + 1) <= 1:
        comparison = compare_weights(base, suspect, dataclasses.replace(options, is_quick=True))
        if comparison.is_identical or comparison.is_significant(comparison.adjusted()):
            return comparison
    return compare_weights(base, suspect, options)


def _decided(match: Match, comparison: WeightsComparison | None, log10_p: float, alpha: float) -> Match:
    """Return what was screened with its decision, by the p that is corrected over all bases."""
    is_identical = comparison is not None and comparison.is_identical
    if match.z is None and not is_identical:
        return match
    verdict: Decision = "same-lineage" if is_identical or log10_p <= math.log10(alpha) else "unrelated"
    if comparison is not None and verdict == "same-lineage" and not is_identical and is_without_seed(comparison):
        verdict = "undefined"
    rows = () if comparison is None else tuple(component_rows(comparison))
    return dataclasses.replace(match, verdict=verdict, log10_p=log10_p, is_identical=is_identical, components=rows)


def _load(base: Base) -> Fingerprint:
    """Read a stored fingerprint, or make that of a checkpoint with public signs.

    Raises:
        InputError: it cannot be read, or is not what an index says.
    """
    path = io.user_path(base.place)
    stored = load_fingerprint(path) if is_fingerprint(path) else fingerprint(base.place)
    # An index may bind a file, or the checkpoint that it names, to a digest.
    if base.payload_digest is not None and payload_digest(stored) != base.payload_digest:
        raise InputError(f"{path} is not the fingerprint that {INDEX} lists: take the store anew, or correct its index")
    return stored
