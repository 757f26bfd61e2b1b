"""Sketches: sign vectors from hashes, products of large matrices with them, and statistics on the way.

Everything here is NumPy: float32 products of chunks, added up in float64 in a fixed order, so that the same numbers
give the same sketch whatever file they came from. Matrices are taken in one memory layout, [out, in], as most files
have them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from bornbiased_jax.checkpoints import buffers

PERIODS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Numbers of equal parts of an axis that may repeat each other: sizes of shards."""
_CHUNK = 1 << 18
# Terms that one float32 product adds up.
_TERMS = 4096
# Rows of a matrix that are put in order at once.
_STRIP = 256
# Rows of a matrix of signs that are looked at, and mean overlap of two beyond which they follow a pattern.
_SIGN_ROWS, _ALIKE = 64, 0.25
# Numbers of a row that are compared first to find equal rows.
_BEGINNING = 64
# Other shifts than those of periods that give a null to the score of a shift.
_NULL_SHIFTS = 16
# Numbers above this are scaled down before they are squared or multiplied, so that float32 holds the results.
LARGEST = 2.0**30
# Squared norms below this fraction of what was there before centering are rounding.
_ROUNDING = 1e-10


def sign_rows(labels: Iterable[bytes], dim: int, key: bytes = b"") -> np.ndarray:
    """Return the sign vectors of labels, float32 [n, dim] of ±1/√dim.

    Signs are the bits of BLAKE2b (64 bytes, keyed), the least significant bit of byte 0 first; a set bit is +1.

    Example:
        >>> sign_rows([b"token: the"], 4).tolist()
        [[0.5, -0.5, -0.5, 0.5]]
    """
    digests = b"".join([hashlib.blake2b(label, digest_size=64, key=key).digest() for label in labels])
    bytes_nB = np.frombuffer(digests, np.uint8).reshape(-1, 64)[:, : -(-dim // 8)]
    bits_nB = np.unpackbits(bytes_nB, axis=1, bitorder="little")
    return (bits_nB[:, :dim].astype(np.float32) * 2 - 1) / np.float32(math.sqrt(dim))


def axis_signs(matrix_name: str, size: int, dim: int, key: bytes = b"") -> np.ndarray:
    """Return the sign vectors of the entries of an axis of a matrix, [size, dim]."""
    return sign_rows((b"%s:%d" % (matrix_name.encode(), index) for index in range(size)), dim, key)


def token_signs(labels: Sequence[bytes | None] | None, size: int, dim: int, key: bytes = b"") -> np.ndarray:
    """Return the sign vectors of tokens, [size, dim]: by their bytes, by their numbers where they have none.

    A head may have other rows than the embedding, whose tokens ``labels`` are of.
    """
    texts = [*(labels or ()), *[None] * size][:size]
    return sign_rows((b"id:%d" % i if text is None else b"token:" + text for i, text in enumerate(texts)), dim, key)


def quantize(vectors_nK: np.ndarray) -> np.ndarray:
    """Scale vectors to norm 127 and round them to int8; vectors of zeros stay."""
    norms_n = np.sqrt(np.einsum("nk,nk->n", vectors_nK, vectors_nK))
    scale_n = 127.0 / np.where(norms_n > 0, norms_n, np.inf)
    rounded_nK: np.ndarray = np.rint(vectors_nK * scale_n[:, None]).astype(np.int8)
    return rounded_nK


def unit(vectors_nK: np.ndarray) -> np.ndarray:
    """Scale vectors to norm 1 in float64; vectors of zeros stay."""
    vectors_nK = np.asarray(vectors_nK, np.float64)
    norms_n = np.sqrt(np.einsum("nk,nk->n", vectors_nK, vectors_nK))
    units_nK: np.ndarray = vectors_nK / np.where(norms_n > 0, norms_n, np.inf)[:, None]
    return units_nK


def transposed(matrix_IO: np.ndarray) -> np.ndarray:
    """Return a matrix [out, in] in C order, without a copy where memory has it so already."""
    matrix_OI = matrix_IO.T
    if matrix_OI.flags.c_contiguous:
        return matrix_OI
    copy_OI = np.empty(matrix_OI.shape, matrix_IO.dtype)
    # Strip by strip, so that memory is read in order.
    filled = 0
    for strip in rows_in_order(matrix_OI):
        copy_OI[filled : filled + len(strip)] = strip
        filled += len(strip)
    return copy_OI


def rows_in_order(matrix: np.ndarray) -> Iterable[np.ndarray]:
    """Yield strips of rows in C order, one after the other the whole array, without a second copy of it.

    A strip is valid until the next one: they lie in the same place, as new memory costs more than copying does.
    """
    if matrix.ndim < 2 or matrix.flags.c_contiguous:
        yield np.ascontiguousarray(matrix)
        return
    strip = np.empty((min(_STRIP, len(matrix)), *matrix.shape[1:]), matrix.dtype)
    for start in range(0, len(matrix), _STRIP):
        rows = strip[: len(matrix) - start]
        buffers.copy_to(rows, matrix[start : start + _STRIP])
        yield rows


def product(left_nm: np.ndarray, right_mK: np.ndarray) -> np.ndarray:
    """Multiply matrices: float32 products of chunks of the shared axis, added up in float64."""
    result_nK = np.zeros((left_nm.shape[0], right_mK.shape[1]))
    right_mK = np.ascontiguousarray(right_mK, np.float32)
    for start in range(0, left_nm.shape[1], _TERMS):
        result_nK += left_nm[:, start : start + _TERMS] @ right_mK[start : start + _TERMS]
    return result_nK


@dataclasses.dataclass(frozen=True, eq=False)
class Moments:
    """Statistics of a tensor, and sums of squares along both axes of a matrix.

    Attributes:
        mean, std, kurtosis, minimum, maximum: of all numbers; kurtosis 0 of a constant tensor.
        squares_row, squares_column: float64 sums of squares of each row and column; empty for vectors.
        is_two_valued: whether it holds one number, or two, throughout; not so a matrix of signs that a seed may have
            drawn, as of one-bit weights.
    """

    mean: float
    std: float
    kurtosis: float
    minimum: float
    maximum: float
    squares_row: np.ndarray
    squares_column: np.ndarray
    is_two_valued: bool

    @property
    def largest(self) -> float:
        """The largest absolute number."""
        return max(-self.minimum, self.maximum)


def scaled_down(tensor: np.ndarray, limit: float = LARGEST) -> np.ndarray:
    """Return a tensor whose numbers can be squared and multiplied in float32: itself, but for very large numbers.

    Sketches are of unit norm, so that they do not change where a whole tensor is multiplied by a number; by a power of
    two no digit does.

    Args:
        tensor: of finite numbers; others are left as they are.
        limit: numbers up to this are left as they are.
    """
    largest = max(-float(tensor.min()), float(tensor.max()))
    if not limit < largest < math.inf:
        return tensor
    scaled: np.ndarray = np.ldexp(tensor, -math.frexp(largest)[1])
    return scaled


@np.errstate(over="ignore", invalid="ignore")
def moments(tensor: np.ndarray) -> Moments:
    """Compute the statistics of a tensor in one pass over chunks that fit in the cache.

    Sums of squares are infinite where float32 does not hold them; those of :func:`scaled_down` are not.
    """
    matrix_nm = tensor if tensor.ndim == 2 else tensor.reshape(1, -1)
    n, m = matrix_nm.shape
    squares_row, squares_column = np.zeros(n), np.zeros(m)
    ones_m = np.ones(m, np.float32)
    power_sums = np.zeros(4)
    minimum, maximum = math.inf, -math.inf
    step = max(1, _CHUNK // m)
    for start in range(0, n, step):
        chunk = np.ascontiguousarray(matrix_nm[start : start + step])
        # Squares by row and column, and sums of powers, in one pass over the chunk.
        square = chunk * chunk
        squares_row[start : start + step] = square @ ones_m
        squares_column += ones_m[: len(chunk)] @ square if len(chunk) <= m else np.ones(len(chunk), np.float32) @ square
        flat, flat_square = chunk.ravel(), square.ravel()
        power_sums += (
            float((chunk @ ones_m).sum(dtype=np.float64)),
            float(squares_row[start : start + step].sum()),
            float(flat_square @ flat),
            float(flat_square @ flat_square),
        )
        minimum, maximum = min(minimum, float(chunk.min())), max(maximum, float(chunk.max()))
    mean, std, kurtosis = _central(power_sums / tensor.size)
    # Sums of powers lose their digits where the mean is far from zero, as in norm scales, and overflow in float32.
    if tensor.size <= _CHUNK or abs(mean) > std or not math.isfinite(kurtosis):
        mean, std, kurtosis = _central_directly(matrix_nm)
    if minimum == maximum:
        std = kurtosis = 0.0
    is_vector = tensor.ndim < 2
    return Moments(
        mean,
        std,
        kurtosis,
        minimum,
        maximum,
        squares_row[:0] if is_vector else squares_row,
        squares_column[:0] if is_vector else squares_column,
        _is_two_valued(matrix_nm, minimum, maximum),
    )


def _central(raw_moments: np.ndarray) -> tuple[float, float, float]:
    """Return mean, standard deviation and kurtosis from the first four raw moments."""
    mean, second, third, fourth = (float(value) for value in raw_moments)
    variance = max(second - mean**2, 0.0)
    central = fourth - 4 * mean * third + 6 * mean**2 * second - 3 * mean**4
    return mean, math.sqrt(variance), central / variance**2 if variance > 0 else 0.0


def _central_directly(matrix_nm: np.ndarray) -> tuple[float, float, float]:
    """Return mean, standard deviation and kurtosis from differences to the mean, in float64."""
    size = matrix_nm.size
    # The mean first, then powers of the differences.
    mean = sum(float(row_m.sum(dtype=np.float64)) for row_m in matrix_nm) / size
    second = fourth = 0.0
    for row_m in matrix_nm:
        square_m = (row_m.astype(np.float64) - mean) ** 2
        second += float(square_m.sum())
        fourth += float(square_m @ square_m)
    variance = second / size
    return mean, math.sqrt(variance), fourth / size / variance**2 if variance > 0 else 0.0


def _is_two_valued(matrix_nm: np.ndarray, minimum: float, maximum: float) -> bool:
    """Tell whether every number is the smallest or the largest; a vector of two numbers says nothing.

    A matrix of one number and its negative does, where a seed may have drawn it.
    """
    beginning = matrix_nm.ravel()[:_BEGINNING] if matrix_nm.flags.c_contiguous else matrix_nm[0]
    if not np.isin(beginning, (minimum, maximum)).all():
        return False
    if not all(bool(np.isin(row_m, (minimum, maximum)).all()) for row_m in matrix_nm):
        return False
    return not 0 < maximum == -minimum or _follows_pattern(matrix_nm)


def _follows_pattern(matrix_nm: np.ndarray) -> bool:
    """Tell of a matrix of one number and its negative whether its rows look like a formula's.

    Rows of the bits of their numbers depend on one another, those of a Hadamard matrix are orthogonal; rows that a seed
    drew do neither, whether or not they were trained.
    """
    count, width = min(len(matrix_nm), matrix_nm.shape[1] // 2, _SIGN_ROWS), matrix_nm.shape[1]
    if count < 2:
        return True
    signs_rm = np.sign(matrix_nm[np.linspace(0, len(matrix_nm) - 1, count).astype(int)], dtype=np.float32)
    overlaps = (signs_rm @ signs_rm.T)[~np.eye(count, dtype=bool)] / width
    # Of independent signs the square of an overlap is 1/width on average.
    is_orthogonal = float(np.mean(overlaps**2)) * width < _ALIKE
    is_alike = float(np.mean(np.abs(overlaps))) > _ALIKE
    return is_orthogonal or is_alike or bool(np.linalg.matrix_rank(signs_rm) < count)


def diagonal_z(matrix_nm: np.ndarray, mean: float, std: float) -> float:
    """Return the z of the sum of the main diagonal, against independent entries of a mean and standard deviation."""
    if matrix_nm.ndim != 2 or std == 0:
        return 0.0
    diagonal = np.diagonal(matrix_nm).astype(np.float64)
    return float((diagonal.sum() - len(diagonal) * mean) / (std * math.sqrt(len(diagonal))))


def equal_rows(rows_nm: np.ndarray) -> np.ndarray:
    """Return which rows equal an earlier row: bool [n]; rows of zeros do not count."""
    beginning = np.ascontiguousarray(rows_nm[:, :_BEGINNING])
    keys_n = beginning.view(np.dtype((np.void, beginning.itemsize * beginning.shape[1]))).ravel()
    _, first_n, place_n, counts = np.unique(keys_n, return_index=True, return_inverse=True, return_counts=True)
    is_equal_n = np.zeros(len(rows_nm), bool)
    # Rows that begin alike are compared whole.
    earlier: dict[bytes, int] = {}
    for index in np.flatnonzero(counts[place_n] > 1).tolist():
        row = np.ascontiguousarray(rows_nm[index])
        if row.any():
            digest = hashlib.blake2b(row.tobytes(), digest_size=16).digest()
            is_equal_n[index] = earlier.setdefault(digest, index) != index
    return is_equal_n


def coordinate_rows(
    rows_Dn: np.ndarray, signs_nK: np.ndarray, squares_D: np.ndarray, scale_D: np.ndarray | None, is_centered: bool
) -> np.ndarray:
    """Sketch one matrix along residual coordinates: row j at unit norm times signs of the other axis, float64 [D, k].

    Args:
        rows_Dn: rows over the other axis, by coordinate; any memory layout.
        signs_nK: sign vectors of the other axis.
        squares_D: sum of squares of each row.
        scale_D: scale of the norm on the residual side. At unit norm it matters where the norm is centered alone.
        is_centered: whether the norm takes out the mean over coordinates.
    """
    if not is_centered:
        return _unit_by(product(rows_Dn, signs_nK), squares_D, squares_D)
    # Rows less their mean m: ⟨row − m, signs⟩, and ‖row − m‖² from sums already there.
    gain_D = np.ones(len(rows_Dn)) if scale_D is None else scale_D.astype(np.float64)
    mean_n = product(rows_Dn.T, (gain_D / len(gain_D))[:, None])
    sketch_DK = product(rows_Dn, np.concatenate([signs_nK, mean_n.astype(np.float32)], axis=1))
    overlap_D = gain_D * sketch_DK[:, -1]
    raw_D = gain_D**2 * squares_D
    centered_DK = gain_D[:, None] * sketch_DK[:, :-1] - product(mean_n.T, signs_nK)
    return _unit_by(centered_DK, raw_D - 2 * overlap_D + float(mean_n[:, 0] @ mean_n[:, 0]), raw_D)


def _unit_by(vectors_DK: np.ndarray, squares_D: np.ndarray, raw_D: np.ndarray) -> np.ndarray:
    """Divide vectors by the norms of the rows behind them; those of zero rows are zero."""
    is_there_D = (raw_D > 0) & (squares_D > _ROUNDING * raw_D)
    scale_D = np.where(is_there_D, 1.0 / np.sqrt(np.where(is_there_D, squares_D, 1.0)), 0.0)
    return vectors_DK * scale_D[:, None]


LabelScore = Callable[[np.ndarray], np.ndarray]
"""From a permutation of labels [n] to the score of each label with its image [n]."""


def inner(vectors_nK: np.ndarray) -> LabelScore:
    """Return the score ⟨v_f, v_π(f)⟩."""
    return lambda order_n: np.einsum("nk,nk->n", vectors_nK, vectors_nK[order_n])


@dataclasses.dataclass
class RepeatCounter:
    """Scores between labels a period apart, summed over the blocks of one component.

    Attributes:
        num_labels: of the first block.
        num_equal: labels that equal an earlier one.
        excess, variance: of the score at each period, by the number of parts.
    """

    num_labels: int = 0
    num_equal: int = 0
    excess: dict[int, float] = dataclasses.field(default_factory=dict)
    variance: dict[int, float] = dataclasses.field(default_factory=dict)

    def add(self, num_labels: int, score: LabelScore, num_equal: int = 0) -> None:
        """Add the labels of one block."""
        self.num_labels = self.num_labels or num_labels
        self.num_equal += num_equal
        labels_n = np.arange(num_labels)
        shifts = {parts: num_labels // parts for parts in PERIODS if num_labels % parts == 0 and num_labels > parts}
        shifts |= {parts: 1 for parts in PERIODS if parts == num_labels}
        if not shifts:
            return
        # The null: scores at shifts that are no period, or at all other shifts where labels are few.
        aperiodic = np.arange(1, num_labels)
        for shift in shifts.values():
            aperiodic = aperiodic[aperiodic % shift != 0] if shift > 1 else aperiodic
        aperiodic = aperiodic if len(aperiodic) else np.arange(1, num_labels)
        candidates = aperiodic[:: max(1, len(aperiodic) // _NULL_SHIFTS)][:_NULL_SHIFTS].tolist()
        # Labels without numbers score exactly 0 and are left out: padding is no repetition.
        scores = {shift: _nonzero(score((labels_n + shift) % num_labels)) for shift in candidates}
        for parts, shift in shifts.items():
            null = [values for offset, values in scores.items() if offset not in (shift, num_labels - shift)]
            at_shift = _nonzero(score((labels_n + shift) % num_labels))
            if sum(map(len, null)):
                mean, variance = float(np.mean(np.concatenate(null))), float(np.var(np.concatenate(null)))
                self.excess[parts] = self.excess.get(parts, 0.0) + float(at_shift.sum()) - len(at_shift) * mean
                # Halves pair each label with its partner twice.
                twice = 2 if parts == 2 else 1
                self.variance[parts] = self.variance.get(parts, 0.0) + twice * len(at_shift) * variance

    def z_by_period(self) -> dict[int, float]:
        """Return the z at each period, rounded to what is said of it."""
        return {
            parts: float(f"{excess / math.sqrt(self.variance[parts]):.4g}")
            for parts, excess in sorted(self.excess.items())
            if self.variance[parts] > 0
        }


def _nonzero(values_n: np.ndarray) -> np.ndarray:
    nonzero_n: np.ndarray = values_n[values_n != 0]
    return nonzero_n
