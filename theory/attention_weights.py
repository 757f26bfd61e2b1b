"""Moments of the attention weights at initialization, which are uniform but for the logits' small variance.

A logit q·k/√K is, over heads, a Gaussian of variance Ω = (std²·D)², 0.094 at D = 768 but 0.67 at D = 2,048,
and 1 under qk-norm. A part common to all keys cancels in a softmax without a sink; what differs between keys, Ω(1 − ρ)
for keys of mean cosine ρ, concentrates the weights: a sum of independent values has variance Σ a², not 1/t.
Rotary positions are left out: they change which keys are favored, hardly by how much.

Weights of sigmoid attention do not compete, so that what a query's logits have in common counts as well. Theirs is the
limit of many wide heads: with logits of variance near 1, tails heavier than a normal's and the few heads of a model
leave variances up to a quarter too low for 4 to 8 heads of 16 dimensions; rotations of keys are left out here too.

Keys count as equally alike. Where logits are large although most of them cancels, they are not: the test of decoders
with norms of outputs and logits of variance 29, 5 of it between keys, allows 0.04 of a cosine for that.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from scipy import special

from bornbiased_jax.theory import checks, kernels, positions, quadrature, softmax_rows
from bornbiased_jax.theory.activations import Array
from bornbiased_jax.theory.positions import Grid
from bornbiased_jax.theory.softmax_rows import LARGEST_VARIANCE, participation
from bornbiased_jax.theory.stack import Stack

CONCENTRATED = 2.0
"""Variance of logits between keys from which overlaps of two rows are integrated; below, a closed form serves."""
OVERLAP_NODES = 5
"""Positions between which they are interpolated."""
MOST_TERMS, TAIL = 48, 1e-7
"""Of the series of a sigmoid's weights: its length, and the energy that it may leave out."""


class WeightMoments(NamedTuple):
    """First and second moments of the weights over heads."""

    mean_n: Array
    """Mean weight of one key."""
    boost_n: Array
    """E[a²]/E[a]² of the weight of one key."""
    boost_nn: Array
    """E[a_t a_s]/(E[a_t]E[a_s]) of the weights that positions t ≠ s of one sequence give to one key."""
    apart_n: Array
    """Variance of a query's logits between the keys that it sees; of sigmoid attention, of all of a logit."""
    total_n: Array
    """E[A²]/E[A]² of the sum A of a query's weights: 1 but for a sink."""
    is_concentrated: bool = False
    """Whether a few keys have most of the weight."""
    series_kn: Array | None = None
    """Sigmoid attention: Hermite coefficients of a weight over its mean, as a function of its logit."""


@functools.lru_cache(maxsize=4096)
def normal_participation(count: int) -> float:
    """Compute E Σ s²/(Σ |s|)² over ``count`` independent standard normals: 1 at count 1, π/(2 count) if large.

    Half of it is E Σ a² of softpick's weights where logits are small, whatever their scale. With 1/Z² = ∫ t e^(−tZ) dt
    it is count·∫ t g₂(t) g(t)^(count−1) dt, g(t) = E e^(−t|s|) = erfcx(t/√2) and g₂ = E s² e^(−t|s|) = g''(t): the
    trapezoidal rule in ln t, relative error below 1e-8.

    Raises:
        ValueError: count below 1.

    >>> normal_participation(1), round(10_000 * normal_participation(10_000), 3)
    (1.0, 1.571)
    """
    count = checks.whole(count, "count")
    if count == 1:
        return 1.0
    log_t = np.arange(-20 - np.log(count), 20.0, 0.05)
    t = np.exp(log_t)
    g = special.erfcx(t / np.sqrt(2))
    # Beyond 30 the two parts of g'' cancel; its asymptotic series is right to 1e-11 there.
    near = np.minimum(t, 30.0)
    second = (1 + near**2) * special.erfcx(near / np.sqrt(2)) - near * np.sqrt(2 / np.pi)
    far = np.sqrt(2 / np.pi) * (2 - 12 / t**2 + 90 / t**4 - 840 / t**6) / t**3
    second = np.where(t < 30.0, second, far)
    return float(count * np.sum(t**2 * second * g ** (count - 1)) * 0.05)


def _logit_variances(
    stack: Stack, layer: int, variance_n: Array, rho_within_nn: Array, grid: Grid, uniform: bool
) -> tuple[Array, Array]:
    """Compute the variance of each query's logits, and its part between the keys that the query sees."""
    query, key = (stack.std(group, layer) ** 2 * stack.width * variance_n for group in ("query", "key"))
    if stack.qk_norm:
        query, key = (
            np.divide(size, size + stack.norm_eps, out=np.ones_like(size), where=size + stack.norm_eps > 0)
            for size in (query, key)
        )
    scale = 0.0 if uniform else stack.logit_scale**2
    logits = query * (grid.seen_nn @ key) / grid.reach * scale
    alike = np.einsum("ti,ij,tj->t", grid.seen_nn, rho_within_nn, grid.seen_nn, optimize=True) / grid.reach**2
    return logits, logits * np.clip(1.0 - alike, 0.0, 1.0)


def entropy(stack: Stack, layer: int, variance_n: Array, rho_within_nn: Array, grid: Grid) -> float:
    """Compute the entropy of the last query's weights over the logarithm of the keys that it sees; 1 for one key."""
    _, apart = _logit_variances(stack, layer, variance_n, rho_within_nn, grid, False)
    count = int(grid.reach[-1])
    return softmax_rows.row_entropy(count, float(np.round(apart[-1], 6))) / np.log(count) if count > 1 else 1.0


def weights(
    stack: Stack, layer: int, variance_n: Array, rho_within_nn: Array, grid: Grid, uniform: bool = False
) -> WeightMoments:
    """Compute the weights' moments, given the variance of the attention's input and its cosines within a sequence.

    With ``uniform`` every logit is taken as 0.
    """
    logits, apart = _logit_variances(stack, layer, variance_n, rho_within_nn, grid, uniform)
    if stack.attention_kernel == "sigmoid":
        return _sigmoid(stack, logits)
    counts, apart_n = grid.reach.astype(int).tolist(), np.round(apart, 6).tolist()
    if stack.sink_logit:
        common_n = np.round(logits - apart, 6).tolist()
        moments = map(softmax_rows.with_sink, counts, apart_n, common_n)
        total, square, squares = np.array(list(moments)).T
        mean, together, total_n = total / grid.reach, grid.reach * squares / total**2, square / total**2
    else:
        mean, total_n = 1.0 / grid.reach, np.ones_like(apart)
        together = grid.reach * list(map(participation, counts, apart_n))
    is_concentrated = bool(np.max(apart) > CONCENTRATED)
    alone = WeightMoments(mean, together, np.ones_like(rho_within_nn), apart, total_n, is_concentrated)
    return alone._replace(boost_nn=boost(alone, rho_within_nn, grid))


def boost(weights: WeightMoments, rho_nn: Array, grid: Grid) -> Array:
    """Compute E[a_t a_s]/(E[a_t]E[a_s]) of the weights of one key in two rows whose logits for it correlate by ρ.

    Of log-normal weights it is e^(Ωρ), that of one row to the power ρ, and nearly so for weights of few keys: within a
    tenth of what it exceeds 1 by against ``row_overlap``, for Ω up to 1 and rows over equally many keys.
    """
    if weights.is_concentrated:
        return _overlaps(weights.apart_n, rho_nn, grid)
    order = np.arange(grid.nodes.size)
    return np.asarray(weights.boost_n[np.minimum.outer(order, order)] ** rho_nn)


def _overlaps(logit_variance_n: Array, rho_nn: Array, grid: Grid) -> Array:
    """Integrate E[a_t a_s]/(E[a_t]E[a_s]) at a few positions, and interpolate it in their logarithms."""
    index, _ = positions.coarse(grid, OVERLAP_NODES)
    boost_mm = np.ones((index.size, index.size))
    for i, early in enumerate(index):
        for j, late in enumerate(index[i:], start=i):
            few, many = int(grid.reach[early]), int(grid.reach[late])
            rho = float(np.clip(np.round(rho_nn[early, late], 6), 0.0, 1.0))
            variance = float(np.round(logit_variance_n[early], 6))
            boost_mm[i, j] = boost_mm[j, i] = many * softmax_rows.row_overlap(few, many, variance, rho)
    log_nodes = np.log(grid.nodes)
    hats_nm = np.stack([np.interp(log_nodes, log_nodes[index], row) for row in np.eye(index.size)], axis=1)
    return np.asarray(np.exp(hats_nm @ np.log(boost_mm) @ hats_nm.T))


def _sigmoid(stack: Stack, logits_n: Array) -> WeightMoments:
    """Compute the moments of sigmoid(logit − ln max_seq_len): weights do not compete, so their mean moves too."""
    largest = float(np.max(logits_n))
    if largest > LARGEST_VARIANCE:
        raise ValueError(f"variance: {largest:.4g} of the sigmoid attention's logits is above {LARGEST_VARIANCE:g}")
    reach = np.sqrt(2 * (np.log(stack.max_seq_len) + 40))
    z, w = quadrature.normal_lattice(np.sqrt(largest), reach)
    value = special.expit(np.sqrt(logits_n)[:, None] * z - np.log(stack.max_seq_len))
    mean = value @ w
    square = (value**2 @ w) / mean**2
    # Hermite coefficients, until what they leave out is small beside the mean; it counts as of the next degree.
    series, rest = [np.ones_like(mean)], square - 1.0
    before, row = np.zeros_like(z), np.ones_like(z)
    while len(series) <= MOST_TERMS and np.max(rest) > TAIL:
        degree = len(series)
        before, row = row, (z * row - np.sqrt(degree - 1) * before) / np.sqrt(degree)
        series.append(value @ (w * row) / mean)
        rest = rest - series[-1] ** 2
    series.append(np.sqrt(np.maximum(rest, 0.0)))
    ones = np.ones_like(mean)
    return WeightMoments(mean, square, np.outer(ones, ones), logits_n, ones, series_kn=np.array(series))


def sigmoid_sum(
    series_kn: Array, queries_nn: Array, apart: tuple[Array, Array], same: tuple[Array, Array], grid: Grid
) -> Array:
    """Sum E[a_ti a_sj] v_ij/(E[a_t]E[a_s]) over the keys i, j that two queries see, weights of sigmoid attention.

    Logits of two queries of cosine q for two keys of cosine κ correlate by qκ, and functions of correlated normals have
    the mean product Σ c_k c'_k (qκ)^k of their Hermite coefficients (Mehler).

    Args:
        series_kn: coefficients of a weight over its mean.
        queries_nn: cosines q of the queries.
        apart: v and κ of different positions, [n, n] each.
        same: v and κ of a position with itself, [n] each.
        grid: of positions.
    """
    total = np.zeros_like(queries_nn)
    for degree, c_n in enumerate(series_kn):
        v_nn, v_n = apart[0] * apart[1] ** degree, same[0] * same[1] ** degree
        pairs = grid.seen_nn @ v_nn @ grid.seen_nn.T + common(v_n - np.diag(v_nn), grid)
        total += np.outer(c_n, c_n) * queries_nn**degree * pairs
    return total


def common(excess_n: Array, grid: Grid) -> Array:
    """Sum a function of position over the positions that both of two nodes see, [n, n]."""
    order = np.arange(grid.nodes.size)
    first, last = np.minimum.outer(order, order), np.maximum.outer(order, order)
    if np.array_equal(grid.reach, grid.nodes):
        return (grid.seen_nn @ excess_n)[first]
    # A window: every position is a node.
    sums = np.concatenate([[0.0], np.cumsum(excess_n)])
    begin = (grid.nodes - grid.reach).astype(int)[last]
    return np.where(first + 1 > begin, sums[first + 1] - sums[begin], 0.0)


def after_aggregation(stack: Stack, variance_n: Array, grid: Grid) -> Array:
    """Compute positional scale and per-head RMSNorm, as a factor on aggregated values of the given variance."""
    scale = np.ones_like(variance_n)
    if stack.positional_scale == "amplify":
        scale = np.sqrt(grid.nodes)
    elif stack.positional_scale == "attenuate":
        scale = np.sqrt(grid.nodes / stack.max_seq_len)
    if stack.head_norm:
        scale = scale / np.sqrt(np.maximum(scale**2 * variance_n + stack.norm_eps, np.finfo(float).tiny))
    return scale


def gate_dual(rho: Array, left: Array, right: Array) -> Array:
    """Compute E[sigmoid(g) sigmoid(g')], from sigmoid(g) = (1 + tanh(g/2))/2."""
    return 0.25 * (1.0 + kernels.dual("tanh", rho, left / 2, right / 2))
