"""Find structure that a formula decided, in each model by itself, and repeats that both models have.

Two models whose value matrices both start at the identity agree there without a shared initialization: their labels
are not exchangeable. What they have in common each of them has in common with the formula, and that with a larger z.
So a kind of matrix that agrees with a formula in *both* models is no evidence.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy import fft

from bornbiased_jax.lineage.fingerprints import Fingerprint, RepeatLabels, Repeats
from bornbiased_jax.lineage.pairing import unit_rows
from bornbiased_jax.lineage.sketches import axis_signs
from bornbiased_jax.memoized import memoized
from bornbiased_jax.schemes import GROUPS

STRUCTURED = 6.0
"""A kind of matrix agrees with a formula from this z on: by chance the largest of thousands of shifts is below it."""
REPEATING = 5.0
"""Labels repeat at a period from this z on; few labels, whose z rests on few scores, from a larger one."""
# So many labels or more.
_MANY_LABELS = 24
# Fewer labels at a shift than this give no z.
_MIN_OVERLAP = 16
# Fraction of labels equal to earlier ones from which an irregular repetition matters.
_EQUAL = 0.01


@memoized
def formulas(fingerprint: Fingerprint, name: str) -> dict[str, str]:
    """Name the kinds of matrices of a component that agree with a formula, and the formula: {"value": "the identity"}.

    Diagonals of whole matrices are in the records of tensors, and so are digests: all blocks have one where they have
    one table (Mamba's ``A_log``), whereas a seed draws for each block its own. Shifted and reversed diagonals and fixed
    orthogonal bases are looked for in the sketches of coordinates, whose signs are known.
    """
    component = fingerprint.components[name]
    # Main diagonals, from the records of matrices.
    shapes: dict[str, tuple[int, ...]] = {}
    diagonal: dict[str, list[float]] = {}
    digests: dict[str, list[str]] = {}
    for record in fingerprint.tensors:
        if not record.path.startswith(f"{name}/"):
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
        axis = _Axis(f"{name}/{kind}/{leaf}", size, fingerprint.settings.sign_key, component.shape.is_centered)
        formula = _formula(sketches[kind], axis)
        if formula is not None:
            named[kind] = formula
    return named


class _Axis(NamedTuple):
    """The axis of a matrix that is no residual axis.

    Attributes:
        matrix: as its labels name it.
        size: of the axis.
        sign_key: of the signs.
        is_centered: whether sketches along it have the mean over residual coordinates taken out.
    """

    matrix: str
    size: int
    sign_key: bytes
    is_centered: bool


# Many models have the same axes.
@functools.lru_cache(maxsize=64)
def _signs(axis: _Axis) -> np.ndarray:
    """Return the first two signs of the entries of an axis, [size, 2]."""
    return axis_signs(axis.matrix, axis.size, 2, axis.sign_key)


def _is_structured(z_values: Sequence[float]) -> bool:
    """Return whether matrices of one kind agree with a formula, one of them or all together."""
    together = abs(sum(z_values)) >= STRUCTURED * math.sqrt(len(z_values))
    return max(map(abs, z_values)) >= STRUCTURED or together


def _formula(sketches: Sequence[np.ndarray], axis: _Axis) -> str | None:
    """Return the formula that the sketches of a kind agree with, each or all together."""
    sketches_MD2 = np.stack(sketches)
    width = sketches_MD2.shape[1]
    # Diagonals at any shift: each matrix by itself, or all of the kind together. One resembles its mirror image a bit.
    largest = [
        max(float(np.abs(z_MS).max()), float(np.abs(z_MS.sum(axis=0)).max()) / math.sqrt(len(z_MS)))
        for z_MS in _shifted_z(sketches_MD2, axis)
    ]
    if max(largest) >= STRUCTURED:
        return ("the identity", "the reversed identity")[largest.index(max(largest))]
    # Fixed bases, whose sketch is known.
    for name, expected_D2 in _bases(axis, width):
        agreement = np.einsum("dx,mdx->m", expected_D2, sketches_MD2[:, : len(expected_D2)]) / math.sqrt(width / 2)
        if _is_structured(agreement.tolist()):
            return name
    return None


def _shifted_z(sketches_MD2: np.ndarray, axis: _Axis) -> Iterator[np.ndarray]:
    """Yield z of Σ_j ⟨sketch j, expected j + shift⟩ for every shift, [M, shifts]: of signs, then of reversed signs."""
    signs_n2 = _signs(axis)
    num, width = len(signs_n2), sketches_MD2.shape[1]
    num_shifts = num + width - 1
    # A correlation is a product of spectra; both columns are added before one transform back.
    length = fft.next_fast_len(num_shifts, real=True)
    spectra_M2F = fft.rfft(np.ascontiguousarray(sketches_MD2[:, ::-1].transpose(0, 2, 1)), length)
    # So many rows of the sketch meet an expected row; those of a few have no z.
    place_S = np.arange(num_shifts)
    overlap_S = np.minimum(np.minimum(place_S + 1, num_shifts - place_S), min(num, width))
    # Sketches and signs have unit rows: a product of two random ones has the variance 1/2.
    scale_S = np.where(overlap_S >= _MIN_OVERLAP, 1 / np.sqrt(overlap_S / 2), 0.0)
    for expected_n2 in (signs_n2, signs_n2[::-1]):
        product_MF = np.einsum("mxf,xf->mf", spectra_M2F, fft.rfft(expected_n2.T, length))
        yield fft.irfft(product_MF, length)[:, :num_shifts] * scale_S


@functools.lru_cache(maxsize=64)
def _bases(axis: _Axis, width: int) -> list[tuple[str, np.ndarray]]:
    """Return the sketch [D, 2] that rows of fixed orthogonal bases would have, at unit norm."""
    signs_n2, size = _signs(axis), axis.size
    bases: list[tuple[str, np.ndarray]] = []
    if size >= width:
        bases.append(("a cosine basis", fft.dct(signs_n2, axis=0, norm="ortho")[:width]))
        if size & (size - 1) == 0 and size <= 1 << 14:
            bases.append(("a Hadamard matrix", _walsh(signs_n2)[:width]))
    # Sinusoids over this axis: columns of sines and cosines interleaved, or in two halves; cosines may come first.
    sums_P2 = _waves(signs_n2, 10_000.0 ** (-2 * np.arange(width // 2) / width))
    for halves in ((sums_P2.imag, sums_P2.real), (sums_P2.real, sums_P2.imag)):
        bases.append(("sinusoids", np.stack(halves, axis=1).reshape(-1, 2)))
        bases.append(("sinusoids", np.concatenate(halves)))
    if axis.matrix.endswith("/positions/embedding"):
        bases += [("sinusoids over a grid", rows_D2) for rows_D2 in _grid_waves(signs_n2, width)]
    if axis.is_centered:
        bases = [(name, rows_D2 - rows_D2.mean(axis=0)) for name, rows_D2 in bases]
    return [(name, unit_rows(rows_D2)) for name, rows_D2 in bases]


def _grid_waves(signs_n2: np.ndarray, width: int) -> list[np.ndarray]:
    """Return the sketches of sinusoids of both places in a square grid of patches, as towers of images have them.

    Each place has half of the columns, sines before cosines; either may come first. A class token stands before the
    patches, or does not.
    """
    side = math.isqrt(len(signs_n2))
    if width % 4 or len(signs_n2) - side**2 > 1:
        return []
    grid_yx2 = signs_n2[-(side**2) :].reshape(side, side, 2)
    along_x_P2, along_y_P2 = (
        _waves(grid_yx2.sum(axis=axis), 10_000.0 ** (-4 * np.arange(width // 4) / width)) for axis in (0, 1)
    )
    pieces = [along_x_P2.imag, along_x_P2.real, along_y_P2.imag, along_y_P2.real]
    return [np.concatenate(pieces), np.concatenate(pieces[2:] + pieces[:2])]


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
    """Repeats among the labels of two models.

    Attributes:
        parts: how many repeats both models have of their labels, at one period; 0 where they have no such period.
        reason: why the label set is undefined; empty where it is not.
    """

    parts: int = 0
    reason: str = ""

    def period(self, num_labels: int) -> int | None:
        """Return how many of so many labels are in one repeat; None where these do not repeat."""
        return num_labels // self.parts if self.parts and num_labels % self.parts == 0 else None


def shared_repeats(base: Fingerprint, suspect: Fingerprint, component: str, labels: RepeatLabels) -> SharedRepeats:
    """Compare the repeats of two models along one axis. If one alone repeats itself, the other's labels are exact."""
    first, second = (
        next((report for report in model.repeats if (report.component, report.labels) == (component, labels)), None)
        for model in (base, suspect)
    )
    if first is None or second is None:
        return SharedRepeats()
    # Both at one period are permuted jointly, both at none are exact.
    parts = repeated_parts(first), repeated_parts(second)
    if all(parts):
        # A block of fewer labels than parts has no period.
        if parts[0] == parts[1] <= first.num_labels == second.num_labels:
            return SharedRepeats(parts[0])
        return SharedRepeats(reason=f"both models repeat their {labels}, at different periods")
    if not any(parts) and equal_labels(first) and equal_labels(second):
        return SharedRepeats(reason=f"both models have equal {labels}, at no period")
    return SharedRepeats()


def repeated_parts(report: Repeats) -> int:
    """Return the largest number of parts that are alike, or of neurons that mirror each other; 0 where nothing repeats.

    Where labels repeat, scores at other periods repeat too and their z is inflated: a period counts only if its z is
    at least half of the largest. Of a dozen heads, scores at other shifts are too few to tell their variance.
    """
    can_mirror = report.labels == "neurons"
    sizes = {parts: abs(z) if can_mirror else z for parts, z in report.z_by_period.items()}
    reached = REPEATING * math.sqrt(max(1.0, _MANY_LABELS / max(1, report.num_labels)))
    least = max(reached, 0.5 * max(sizes.values(), default=0.0))
    return max((parts for parts, size in sizes.items() if size >= least), default=0)


def equal_labels(report: Repeats) -> bool:
    """Return whether labels that equal earlier ones are so many that it matters, at whatever period.

    Those of all blocks may stand in one of them, whose labels they are held against.
    """
    return report.num_equal > _EQUAL * report.num_labels
