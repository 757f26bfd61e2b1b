"""Find structure that a formula decided, in each model by itself, and repeats that both models have.

Two models whose value matrices both start at the identity agree there without a shared initialization: their labels
are not exchangeable. What they have in common each of them has in common with the formula, and that with a larger z.
So a kind of matrix that agrees with a formula in *both* models is no evidence.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from weakref import WeakKeyDictionary

import numpy as np
from scipy import fft, signal

from bornbiased_jax.lineage.fingerprints import Component, Fingerprint, RepeatLabels, Repeats
from bornbiased_jax.lineage.pairing import unit_rows
from bornbiased_jax.lineage.sketches import axis_signs
from bornbiased_jax.parameters import GROUPS

STRUCTURED = 6.0
"""A kind of matrix agrees with a formula from this z on: by chance the largest of thousands of shifts is below it."""
REPEATING = 5.0
"""Labels repeat at a period from this z on."""
# Fewer labels at a shift than this give no z.
_MIN_OVERLAP = 16
# Fraction of labels equal to earlier ones from which an irregular repetition matters.
_EQUAL = 0.01


# A model is often compared with many others.
_FORMULAS: WeakKeyDictionary[Component, dict[str, str]] = WeakKeyDictionary()


def formulas(component: Component, fingerprint: Fingerprint) -> dict[str, str]:
    """Name the kinds of matrices that agree with a formula, and the formula: {"value": "the identity"}."""
    if component not in _FORMULAS:
        _FORMULAS[component] = _find_formulas(component, fingerprint)
    return _FORMULAS[component]


def _find_formulas(component: Component, fingerprint: Fingerprint) -> dict[str, str]:
    """Look for formulas in every kind of matrix.

    Diagonals of whole matrices are in the records of tensors, and so are digests: all blocks have one where they have
    one table (Mamba's ``A_log``), whereas a seed draws for each block its own. Shifted and reversed diagonals and fixed
    orthogonal bases are looked for in the sketches of coordinates, whose signs are known.
    """
    # Main diagonals, from the records of matrices.
    shapes: dict[str, tuple[int, ...]] = {}
    diagonal: dict[str, list[float]] = {}
    digests: dict[str, list[str]] = {}
    for record in fingerprint.tensors:
        if not record.path.startswith(f"{component.name}/"):
            continue
        kind = record.path.split("/")[-2]
        # Matrices of attention and MLPs may be shared by blocks, and are drawn all the same.
        if record.is_evidence and "/blocks/" in record.path and kind not in GROUPS:
            digests.setdefault(kind, []).append(record.digest)
        if len(record.array_shape) != 2:
            continue
        shapes[kind] = record.array_shape
        diagonal.setdefault(kind, []).append(record.diagonal_z)
    named = {kind: "the identity" for kind, z_values in diagonal.items() if _is_structured(z_values)}
    one_table = [kind for kind, values in digests.items() if len(values) > 1 and len(set(values)) == 1]
    named |= dict.fromkeys(one_table, "a table that all blocks share")
    # Other formulas, from the sketches of each kind of matrix.
    sketches: dict[str, list[np.ndarray]] = {}
    for (_, kind), coordinates_D2 in component.heat_map.items():
        sketches.setdefault(kind, []).append(unit_rows(coordinates_D2))
    for kind in sketches:
        # Tables of the vocabulary have signs by token: no formula of their ids is looked for.
        if kind in named or kind not in shapes or kind in ("embedding", "head"):
            continue
        size = next((size for size in shapes[kind] if size != component.width), component.width)
        leaf = "embedding" if kind == "positions" else "kernel"
        signs_n2 = axis_signs(f"{component.name}/{kind}/{leaf}", size, 2, fingerprint.settings.sign_key)
        formula = _formula(sketches[kind], signs_n2)
        if formula is not None:
            named[kind] = formula
    return named


def _is_structured(z_values: Sequence[float]) -> bool:
    """Return whether matrices of one kind agree with a formula, one of them or all together."""
    together = abs(sum(z_values)) >= STRUCTURED * math.sqrt(len(z_values))
    return max(map(abs, z_values)) >= STRUCTURED or together


def _formula(sketches: Sequence[np.ndarray], signs_n2: np.ndarray) -> str | None:
    """Return the formula that the sketches of a kind agree with, each or all together."""
    width = len(sketches[0])
    # Diagonals at any shift: each matrix by itself, or all of the kind together.
    for name, expected_n2 in (("the identity", signs_n2), ("the reversed identity", signs_n2[::-1])):
        z_by_shift = [_shifted_z(sketch_D2, expected_n2) for sketch_D2 in sketches]
        largest = max(float(np.abs(z).max(initial=0.0)) for z in z_by_shift)
        together = np.abs(np.sum(z_by_shift, axis=0)).max(initial=0.0) / math.sqrt(len(z_by_shift))
        if max(largest, float(together)) >= STRUCTURED:
            return name
    # Fixed bases, whose sketch is known.
    for name, expected_D2 in _bases(signs_n2, width):
        expected_D2 = unit_rows(expected_D2)
        agreement = [float((expected_D2 * sketch_D2[: len(expected_D2)]).sum()) for sketch_D2 in sketches]
        if _is_structured([value / math.sqrt(width / 2) for value in agreement]):
            return name
    return None


def _shifted_z(sketch_D2: np.ndarray, expected_n2: np.ndarray) -> np.ndarray:
    """Compute z of Σ_j ⟨sketch j, expected j + shift⟩ for every shift."""
    total = signal.fftconvolve(expected_n2, sketch_D2[::-1], axes=0).sum(axis=1)
    overlap = np.rint(signal.correlate(np.ones(len(expected_n2)), np.ones(len(sketch_D2)), mode="full", method="fft"))
    # Sketches and signs have unit rows: a product of two random ones has the variance 1/2.
    return np.where(overlap >= _MIN_OVERLAP, total / np.sqrt(np.maximum(overlap, 1.0) / 2), 0.0)


def _bases(signs_n2: np.ndarray, width: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the sketch [D, 2] that rows of fixed orthogonal bases would have."""
    size = len(signs_n2)
    if size >= width:
        yield "a cosine basis", fft.dct(signs_n2, axis=0, norm="ortho")[:width]
        if size & (size - 1) == 0 and size <= 1 << 14:
            yield "a Hadamard matrix", _walsh(signs_n2)[:width]
    # Sinusoids over this axis: columns of sines and cosines interleaved, or in two halves.
    sums_P2 = _waves(signs_n2, 10_000.0 ** (-2 * np.arange(width // 2) / width))
    yield "sinusoids", np.stack([sums_P2.imag, sums_P2.real], axis=1).reshape(-1, 2)
    yield "sinusoids", np.concatenate([sums_P2.imag, sums_P2.real])


def _waves(vectors_n2: np.ndarray, frequency_P: np.ndarray) -> np.ndarray:
    """Return Σ_n exp(i·frequency·n)·vector n for each frequency: complex [P, 2].

    A place is n = coarse·step + fine: the waves at √n places of either kind make those at all places.
    """
    step = math.isqrt(len(vectors_n2)) + 1
    padded_CF2 = np.zeros((step, step, 2))
    padded_CF2.reshape(-1, 2)[: len(vectors_n2)] = vectors_n2
    fine_PF, coarse_PC = (np.exp(1j * np.outer(frequency_P, size * np.arange(step))) for size in (1, step))
    inner_PC2 = (fine_PF @ padded_CF2.transpose(1, 0, 2).reshape(step, -1)).reshape(-1, step, 2)
    sums_P2: np.ndarray = np.einsum("pc,pcx->px", coarse_PC, inner_PC2)
    return sums_P2


def _walsh(vectors_n2: np.ndarray) -> np.ndarray:
    """Multiply by Hadamard's matrix of a power of two, by its butterflies."""
    result_n2 = vectors_n2.astype(np.float64)
    half = 1
    while half < len(result_n2):
        pairs = result_n2.reshape(-1, 2, half, result_n2.shape[1])
        result_n2 = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(result_n2.shape)
        half *= 2
    return result_n2


@dataclasses.dataclass(frozen=True)
class SharedRepeats:
    """How the labels of two models repeat themselves.

    Attributes:
        periods: labels in one repeat by number of labels, where both models have one period.
        reason: why the label set is undefined; empty where it is not.
    """

    periods: Mapping[int, int]
    reason: str = ""

    @property
    def is_shared(self) -> bool:
        """Whether both models repeat themselves at one period."""
        return bool(self.periods)


def shared_repeats(base: Fingerprint, suspect: Fingerprint, component: str, labels: RepeatLabels) -> SharedRepeats:
    """Compare the repeats of two models along one axis. If one alone repeats itself, the other's labels are exact."""
    first, second = (
        next((report for report in model.repeats if (report.component, report.labels) == (component, labels)), None)
        for model in (base, suspect)
    )
    if first is None or second is None:
        return SharedRepeats({})
    # Both at one period are permuted jointly, both at none are exact.
    parts = repeated_parts(first), repeated_parts(second)
    if all(parts):
        if parts[0] == parts[1] and first.num_labels == second.num_labels:
            return SharedRepeats({first.num_labels: first.num_labels // parts[0]})
        return SharedRepeats({}, f"both models repeat their {labels}, at different periods")
    if not any(parts) and equal_labels(first) and equal_labels(second):
        return SharedRepeats({}, f"both models have equal {labels}, at no period")
    return SharedRepeats({})


def repeated_parts(report: Repeats) -> int:
    """Return the largest number of parts that are alike; 0 where nothing repeats.

    Where labels repeat, scores at other periods repeat too and their z is inflated: a period counts only if its z is
    at least half of the largest.
    """
    least = max(REPEATING, 0.5 * max(report.z_by_period.values(), default=0.0))
    return max((parts for parts, z in report.z_by_period.items() if z >= least), default=0)


def equal_labels(report: Repeats) -> bool:
    """Return whether labels that equal earlier ones are so many that it matters, at whatever period."""
    return report.num_equal > _EQUAL * report.num_labels
