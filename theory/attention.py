"""Stacks with the simplified attention Attn₀ (Definition 3, the causal running mean): Propositions 4 and 5.

Proposition 4 concerns two sequences (inter-sequence cosine at the last position), Proposition 5 the tokens of
one (the mean over all T² ordered pairs, a token with itself included). For Proposition 5 the names say which
statement is meant:

- ``prop5_printed``: the formula of the proposition, with the paper's L;
- ``prop5_printed_closed_form``: the closed form at the end of Appendix A.3, with the paper's L;
- ``prop5_closed_form``: the same limit T → ∞ counted in averaging layers n = L − 1, derived with the right
  density;
- ``prop5_exact``: any finite T and number n of averaging layers;
- ``prop5_depth_asymptote``, ``prop5_finite_asymptote_gap``: the two tails, 1/(8n) and 4^(−n)(T² − 1)/12.

Functions ending in ``_gap`` return 1 − ρ to relative precision.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import special

from bornbiased_jax.theory import checks, mlp
from bornbiased_jax.theory.activations import Array

_BLOCK = 32
# A column is dropped once it can no longer change a squared row norm by more than this, relatively.
_NEGLIGIBLE = 1e-20


# Proposition 4.


def averaged_cosine(T: npt.ArrayLike, rho_cross: npt.ArrayLike, rho_within: npt.ArrayLike | None = None) -> Array:
    """Compute the cosine of the means of two sequences of T unit vectors: ρ_cross/(ρ_within + (1 − ρ_within)/T).

    Elementwise. The law of large numbers on the within-sequence part: the mean keeps what all tokens share and
    divides the rest by T.

    Args:
        T: sequence length.
        rho_cross: correlation of any token of one sequence with any of the other.
        rho_within: correlation of two tokens of the same sequence (default: rho_cross, as for random tokens).

    Raises:
        ValueError: T < 1, |rho| > 1, or a pair of values that no covariance has (the result would exceed 1).
    """
    length = checks.from_least(T, "T", 1)
    cross = checks.rho(rho_cross, "rho_cross")
    within = cross if rho_within is None else checks.rho(rho_within, "rho_within")
    power = within + (1 - within) / length
    if not np.all(power > 0) or not np.all(np.abs(cross) <= power * (1 + 1e-12)):
        raise ValueError("rho_cross: no covariance has this rho_cross with this rho_within and T")
    return np.clip(cross / power, -1.0, 1.0)


def prop4(T: npt.ArrayLike, rho_1: npt.ArrayLike = 1 / np.pi) -> Array:
    """Compute Tρ_1/(Tρ_1 + 1 − ρ_1) = T/(T + π − 1): inter-sequence cosine of Attn₀ ∘ MLP₀ at the last position.

    Args:
        T: sequence length.
        rho_1: cosine of any two tokens after the MLP₀ part, 1/π for one ReLU layer.

    Raises:
        ValueError: T < 1 or rho_1 outside [0, 1].

    >>> float(prop4(64).round(4))
    0.9676
    """
    return 1 - prop4_gap(T, rho_1)


def prop4_gap(T: npt.ArrayLike, rho_1: npt.ArrayLike = 1 / np.pi) -> Array:
    """Return 1 − prop4, = (1 − ρ_1)/(1 + (T − 1)ρ_1), without cancellation. Raises as :func:`prop4`."""
    length, rho = checks.from_least(T, "T", 1), checks.within(rho_1, "rho_1", 0, 1)
    return (1 - rho) / (1 + (length - 1) * rho)


def prop4_after_mlp(T: npt.ArrayLike, layers: int) -> Array:
    """Compute Proposition 4 after any number of ReLU MLP₀ layers: Proposition 2's ρ_layers for ρ_1; 0 layers give 0."""
    rho = mlp.prop2(checks.whole(layers, "layers", 0))[-1] if layers else 0.0
    return prop4(T, rho)


# Proposition 5 as printed.


def prop5_printed(T: npt.ArrayLike, L: npt.ArrayLike) -> Array:
    """Compute 1 − (1 − 1/T)/L², the formula of Proposition 5 with its own L (one more than the averaging layers).

    Elementwise. See ERRATA.md for where it holds: it counts the input as a layer, and its gap decays as 1/L², where the
    true one goes as 1/(8L) and then as 4^(−L).

    Raises:
        ValueError: T < 1 or L < 1.

    >>> float(prop5_printed(512, 3).round(4))
    0.8891
    """
    length, depth = checks.from_least(T, "T", 1), checks.from_least(L, "L", 1)
    return 1 - (1 - 1 / length) / depth**2


def prop5_printed_closed_form(L: int) -> float:
    """Compute the closed form that ends Appendix A.3, with its own L ≥ 2.

    (L−2)!/(2L−4)! Σ_k (L−2+k)!/k! (2/3)^(L−1−k). Raises ValueError for L < 2.
    """
    k = np.arange(checks.whole(L, "L", 2) - 1)
    logs = special.gammaln(L - 1 + k) - special.gammaln(k + 1) + (L - 1 - k) * np.log(2 / 3)
    return float(np.sum(np.exp(logs + special.gammaln(L - 1) - special.gammaln(2 * L - 3))))


# Proposition 5 as it follows from Definition 3.


def pair_correlation_limit(ratio: npt.ArrayLike, layers: int) -> Array:
    """Compute the correlation of positions s ≤ t after n averaging layers as T → ∞, ratio = s/t fixed. Elementwise.

    n averages of white noise put the weight (ln(t/x))^(n−1)/(t (n−1)!) on the noise at x < t. With x = s
    e^(−v), u = ln(t/s): ρ_n = e^(−u/2) ∫ e^(−v) (v(v+u))^(n−1) dv/(2n−2)! = √r Σ_k binom(n−1, k)
    (2n−2−k)!/(2n−2)! (ln 1/r)^k.

    Raises:
        ValueError: ratio outside (0, 1] or layers < 1.
    """
    r, n = np.asarray(ratio, dtype=np.float64), checks.whole(layers, "layers")
    if not np.all((r > 0) & (r <= 1)):
        raise ValueError("ratio: s/t must lie in (0, 1]")
    u = -np.log(r)
    term = np.exp(-u / 2)
    value = term.copy()
    for k, c in enumerate(_falling(n)[:-1], start=1):
        term = term * u * (c / k)
        value += term
    return value


def _falling(n: int) -> Array:
    """Return ratios of binom(n−1, k) k! (2n−2−k)!/(2n−2)! at k + 1 and k, k = 0 … n − 1: at most 1/2, the last 0."""
    k = np.arange(n)
    return (n - 1.0 - k) / np.maximum(2 * n - 2.0 - k, 1.0)


def _limit_sum(n: int, base: float) -> float:
    """Compute Σ_k binom(n−1, k) k! (2n−2−k)!/(2n−2)! base^(k+1): positive terms, each below base/2 of the previous."""
    return float(base * np.sum(np.cumprod(np.concatenate([[1.0], base * _falling(n)[:-1]]))))


def prop5_closed_form(layers: int) -> float:
    """Compute mean intra-sequence cosine after n averaging layers as T → ∞ (0 for n = 0).

    A uniform pair s < t has a ratio r = s/t of density 1, not 2r, so the mean is ∫ ρ_n(r) dr
    = Σ_k binom(n−1, k) k! (2n−2−k)!/(2n−2)! (2/3)^(k+1): the printed closed form at L = n + 1.

    Raises:
        ValueError: layers < 0.

    >>> round(prop5_closed_form(2), 6)  # 8/9
    0.888889
    """
    return 1 - prop5_closed_form_gap(layers)


def prop5_closed_form_gap(layers: int) -> float:
    """Return 1 − prop5_closed_form(layers): 1/3, 1/9, 5/81, … ~ 1/(8n), to 1e-15 absolutely for every n.

    Raises ValueError for layers < 0.
    """
    n = checks.whole(layers, "layers", 0)
    if n == 0:
        return 1.0
    return 1 - _limit_sum(n, 2 / 3)


def prop5_printed_density(layers: int) -> float:
    """Compute what the printed density f(r) = 2r would give for n averaging layers: 4/5, not 2/3, at n = 1."""
    n = checks.whole(layers, "layers")
    return 2 * _limit_sum(n, 2 / 5)


def averaging_matrix(T: int, layers: int = 1) -> Array:
    """Return C^layers [T, T], C[t, s] = 1/t for s ≤ t: what ``layers`` Attn₀ blocks do to the positions."""
    power = np.eye(checks.whole(T, "T"))
    for _ in range(checks.whole(layers, "layers", 0)):
        power = np.cumsum(power, axis=0) / np.arange(1, T + 1)[:, None]
    return power


def prop5_correlations(T: int, layers: int) -> Array:
    """Compute the correlation matrix [T, T] of positions after n averaging layers of i.i.d. inputs, from Cⁿ(Cⁿ)ᵀ."""
    rows = averaging_matrix(T, layers)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return np.clip(rows @ rows.T, -1.0, 1.0)


def prop5_exact(T: int, layers: int) -> Array:
    """Compute mean intra-sequence cosine [layers] after 1 … layers averaging layers, any finite T, infinite width.

    The mean runs over all T² ordered pairs, as in the paper. Raises ValueError for T < 1 or layers < 0.

    >>> prop5_exact(512, 3).round(4).tolist()
    [0.6679, 0.8916, 0.9447]
    """
    return 1 - prop5_exact_gap(T, layers)


def prop5_exact_gap(T: int, layers: int) -> Array:
    """Return 1 − prop5_exact [layers] to relative precision (about 1e-12), down to 1e-300.

    T = 4096, 96 layers: about a second.

    The mean of cosines is the squared norm of the mean unit row of Cⁿ, so the gap is a variance, mean |â|² −
    |mean â|². Split a row into its first entry a, which tends to 1, and the rest b = 2^(−n) b̃, which is
    iterated with the factor 2 per layer so that it neither underflows nor meets a subtraction: every step
    adds positive numbers. With N = √(a² + |b|²) and ψ = |b̃|²/(N(N + a)), so that a/N = 1 − 4^(−n) ψ,

        gap = 4^(−n) [mean |b̃|²/N² − |mean b̃/N|² + 4^(−n) (mean ψ² − (mean ψ)²)],

    where the two differences lose at most a digit. The mean vector is (2C)ᵀ applied n times to 1/N.
    """
    length, depth = checks.whole(T, "T"), checks.whole(layers, "layers", 0)
    if length == 1 or depth == 0:
        return np.zeros(depth) if length == 1 else np.empty(0)
    first, square = _row_parts(length, depth)
    shrink = 0.25 ** np.arange(1, depth + 1)
    norm = np.sqrt(first**2 + shrink[:, None] * square)
    psi = square / (norm * (norm + first))
    excess = np.mean(square / norm**2, axis=1) - _mean_vector_square(1 / norm)
    return shrink * (excess + shrink * np.var(psi, axis=1))


def _row_parts(T: int, layers: int) -> tuple[Array, Array]:
    """Return the first column of Cⁿ, and 4ⁿ times each row's squared norm without it; n = 1 … layers, [n, T]."""
    first = np.empty((layers, T))
    column = np.zeros(T)
    column[0] = 1.0
    for n in range(layers):
        column = np.cumsum(column) / np.arange(1, T + 1)
        first[n] = column
    square = np.zeros((layers, T))
    for start in range(1, T, _BLOCK):
        width = min(_BLOCK, T - start)
        # Columns start … start + width of the power, transposed; their rows above `start` are zero.
        block = np.zeros((width, T - start))
        block[np.arange(width), np.arange(width)] = 1.0
        factor = 2.0 / np.arange(start + 1, T + 1)
        for n in range(layers):
            np.cumsum(block, axis=1, out=block)
            block *= factor
            square[n, start:] += np.einsum("js,js->s", block, block)
            # An entry's fraction of its row falls with n (the weight (ln 1/x)^(n−1) moves to small x, and a
            # column further right has more of the factor x/(1 − x)), so what is negligible now stays so, here
            # and further right.
            if n % 4 == 3 and np.all(block[0] ** 2 * T <= _NEGLIGIBLE * square[n, start:]):
                break
    return first, square


def _mean_vector_square(weights: Array) -> Array:
    """Compute |mean_s w_s b̃_s|² for each n, b̃_s being row s of (2C)ⁿ without its first entry; weights [n, T]."""
    layers, T = weights.shape
    vectors = weights / T
    positions = np.arange(1, T + 1)
    for n in range(layers):
        # Entry j of Cᵀv needs only entries from j on, so the first column never enters the others.
        vectors[n:] = 2 * np.cumsum((vectors[n:] / positions)[:, ::-1], axis=1)[:, ::-1]
    return np.sum(vectors[:, 1:] ** 2, axis=1)


def prop5_depth_asymptote(layers: npt.ArrayLike) -> Array:
    """Return 1 − 1/(8n): the closed form (T → ∞ first) for many averaging layers n. Elementwise.

    Range: |8n(1 − ρ) − 1| ≤ 1.7/n for n ≥ 1 against ``prop5_closed_form``. At finite T while n ≪ (ln T)/2.

    Raises:
        ValueError: layers < 1.
    """
    return 1 - 1 / (8 * checks.from_least(layers, "layers", 1))


def prop5_finite_asymptote_gap(T: npt.ArrayLike, layers: npt.ArrayLike) -> Array:
    """Return 4^(−n)(T² − 1)/12: 1 − ρ at fixed T for many averaging layers n. Elementwise.

    C has eigenvalues 1, 1/2, …, 1/T. Those of 1/2 are (t − 1) on the right and (−1, 1, 0, …) on the left, so
    Cⁿ leaves the angle 2^(−n)|t − s| between positions. The eigenvalue 1/3 corrects by −2T(2/3)ⁿ relatively:
    range |error| ≤ 2T(2/3)ⁿ,
    for n with 2T(2/3)ⁿ ≤ 1, that is n ≥ ln(2T)/ln(3/2).

    Raises:
        ValueError: T < 1 or layers < 1.
    """
    length, n = checks.from_least(T, "T", 1), checks.from_least(layers, "layers", 1)
    return 0.25**n * (length - 1) * (length + 1) / 12
