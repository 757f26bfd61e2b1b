"""What one attention or MLP sublayer does to the second moments of the residual stream."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from bornbiased_jax.theory import attention_weights, finite_width, kernels
from bornbiased_jax.theory.activations import Array
from bornbiased_jax.theory.attention_weights import WeightMoments
from bornbiased_jax.theory.positions import Grid
from bornbiased_jax.theory.stack import Stack

MEAN, OWN, SHARED, CARRIED = range(4)
ROUNDING = 1e-14
"""Of a variance: less is what rounding leaves of a part that is absent."""
PARTS = ((MEAN, OWN), (MEAN, SHARED), (OWN, OWN), (OWN, SHARED), (SHARED, SHARED), (CARRIED, CARRIED))


class SecondMoments(NamedTuple):
    """Second moments at the grid's nodes, per dimension of the residual stream."""

    variance_n: Array
    """(1/D) E‖x_t‖²"""
    within_nn: Array
    """(1/D) E[x_t·x_s] for t ≠ s of one sequence; its diagonal is the limit s → t, not the variance."""
    cross_nn: Array
    """(1/D) E[x_t·x'_s] of two sequences, t ≠ s (likewise on its diagonal)."""
    cross_n: Array
    """(1/D) E[x_t·x'_t]: differs from the diagonal of ``cross_nn`` when position vectors are learned."""
    alike_n: Array
    """The same where the two sequences have one token in common, at t."""
    pair_cnn: Array
    """Variances, from pair to pair of sequences, of (1/D) a_t·b'_s for each of PARTS: order 1/D.

    A token's x is the mean m over inputs, plus a part of its own, plus a part that the sequence's tokens
    share: averaging over positions keeps the shared part and thins the own. What a token holds of its own it
    finds again, projected, in the averages of every later position; those products (CARRIED) have a mean of 0
    over the weights, and averaging thins them in a way of their own.
    """
    skew_n: Array
    """Covariance over tokens of (1/D) m·x̃ and (1/D)‖x̃‖²: tokens that lean toward the mean are longer."""
    length_n: Array
    """Variance over tokens of (1/D)‖x̃‖²."""

    @property
    def kinds_n(self) -> tuple[Array, Array, Array, Array]:
        """(1/D) E‖·‖² of the mean, own and shared parts at each node, and 0 for what is carried.

        What rounding leaves of a part that is absent counts as 0: others are divided by it.
        """
        least = ROUNDING * self.variance_n
        mean, shared = (
            np.where(part > least, part, 0.0) for part in (self.cross_n, np.diag(self.within_nn - self.cross_nn))
        )
        return mean, np.maximum(self.variance_n - mean - shared, 0.0), shared, 0.0 * shared

    def overlap(self) -> finite_width.Overlap:
        """Return how cosines vary over pairs, relative to the variances, [n, n]."""
        to_own, to_shared, own_nn, mixed, shared, carried = self.pair_cnn
        size = np.outer(self.variance_n, self.variance_n)
        own_nn, lean = over(own_nn + mixed + mixed.T + shared + carried, size), over(to_own + to_shared, size)
        skew, length = (np.broadcast_to(over(a, self.variance_n**2), size.shape) for a in (self.skew_n, self.length_n))
        return finite_width.Overlap(own_nn, lean, skew, length)

    def scaled(self, scale_n: Array) -> SecondMoments:
        """Return the fields of scale_t·x_t."""
        scale_nn = np.outer(scale_n, scale_n)
        return SecondMoments(
            self.variance_n * scale_n**2,
            self.within_nn * scale_nn,
            self.cross_nn * scale_nn,
            self.cross_n * scale_n**2,
            self.alike_n * scale_n**2,
            self.pair_cnn * scale_nn**2,
            self.skew_n * scale_n**4,
            self.length_n * scale_n**4,
        )


class Sublayer(NamedTuple):
    """One sublayer's update, with what ``seeds`` needs to follow fluctuations through it."""

    kind: Literal["attention", "mlp"]
    layer: int
    source: SecondMoments
    """The stream that it reads, before any norm."""
    stream: SecondMoments
    """The stream that its update is added to."""
    update: SecondMoments
    """Its output, before a post-norm."""
    aligned_cnn: Array
    """Covariances of the source's products and the update's, before a post-norm; parts as in Fields."""
    aligned_skew_n: Array
    """What products of the source's and the update's m·x̃ and ‖x̃‖² add to ``skew_n``, before a post-norm."""
    aligned_length_n: Array
    """Covariance of the source's ‖x̃‖² and the update's, before a post-norm."""
    fan_in: int
    """Inner width whose finite sum fluctuates: F, or G·K."""
    gain_nn: Array
    """MLP: derivative of the update's cross covariance by the input's cosine. Attention: zeros."""
    bend_nn: Array
    """MLP: its second derivative. Attention: zeros."""
    aggregated_n: Array
    """Attention: variance of the aggregated values, as they enter W_O (Figure 9). MLP: zeros."""
    weight_n: Array
    """Attention: the update's cross covariance is weight_t weight_s ΣΣ of the normed input's. MLP: zeros."""


def over(a: Array, b: Array) -> Array:
    """Compute a/b, and 0 where b is 0."""
    return np.divide(a, b, out=np.zeros(np.broadcast_shapes(a.shape, b.shape)), where=b > 0)


def correlation(covariance: Array, fields: SecondMoments) -> Array:
    """Turn a covariance of the fields, [n, n] or [n], into cosines, clipped to [-1, 1]."""
    v = fields.variance_n
    return np.clip(over(covariance, v if covariance.ndim == 1 else np.sqrt(np.outer(v, v))), -1.0, 1.0)


def norm_scale(stack: Stack, variance_n: Array) -> Array:
    """Compute a norm's factor at each position: 1/√(variance + eps), or 1 without norms."""
    if stack.norm == "none":
        return np.ones_like(variance_n)
    return 1.0 / np.sqrt(np.maximum(variance_n + stack.norm_eps, np.finfo(float).tiny))


def input_scale(stack: Stack, source: SecondMoments) -> Array:
    """Return the factor of a pre-norm; ones without one."""
    return norm_scale(stack, source.variance_n) if stack.norm_position == "pre" else np.ones_like(source.variance_n)


def output_scale(stack: Stack, update: SecondMoments) -> Array:
    """Return the factor of a post-norm; ones without one."""
    return norm_scale(stack, update.variance_n) if stack.norm_position == "post" else np.ones_like(update.variance_n)


def feed_forward(
    stack: Stack,
    layer: int,
    source: SecondMoments,
    stream: SecondMoments,
    finite: bool,
    attention: Sublayer | None = None,
) -> Sublayer:
    """Compute W_down φ(W_up n), or W_down(φ(W_gate n) ∘ W_up n): each moment through the dual kernel of φ.

    With ``finite``, kernels are averaged over the cosines' variance from pair to pair, to second order. ``attention``
    is that of a parallel block, whose update of the same source is in the stream already.
    """
    n = source.scaled(input_scale(stack, source))
    std_n = stack.inner_std(layer) * np.sqrt(stack.width * n.variance_n)
    out = stack.mlp_gain(layer)
    kernel = finite_width.kernel(stack.activation, stack.gated_mlp, std_n, centered=stack.balanced_mlp)
    cosine = correlation(n.cross_nn, n)
    overlap = n.overlap()
    normed = stack.norm != "none" and stack.norm_position == "pre"
    # A gated kernel that starts from 0 is already of order 1/D; the bias would be of the next.
    biased = finite and normed and not stack.gated_mlp

    def mapped(covariance: Array, overlap: finite_width.Overlap) -> tuple[Array, Array, Array]:
        rho = correlation(covariance, n)
        value, slope, curvature = kernel.expand(rho)
        if finite:
            bias = overlap.cosine_bias(rho) if biased else 0.0
            value = value + slope * bias + 0.5 * curvature * overlap.cosine_variance(rho)
        return out * value, out * slope, out * curvature

    closer = over(1.0 - correlation(n.within_nn, n), 1.0 - cosine) ** 2
    within, _, _ = mapped(n.within_nn, finite_width.Overlap(*(closer * a for a in overlap)))
    cross, gain, bend = mapped(n.cross_nn, overlap)
    value_n, slope_n, bend_n = mapped(n.cross_n, overlap.diagonal())
    for field, value in ((cosine, correlation(n.cross_n, n)), (gain, slope_n), (bend, bend_n)):
        np.fill_diagonal(field, value)
    # A norm takes out of m·x̃ what is due to the token's length.
    to_mean = gain * (1.0 - cosine) if normed else gain
    gains = np.stack([to_mean if MEAN in part else gain for part in PARTS])
    size = np.outer(source.variance_n, source.variance_n)
    pair = over(gains**2 * source.pair_cnn, size)
    # Products of the stream move with the source's: with what it holds of them, and with what attention made of them.
    with_stream = source.pair_cnn
    if attention is not None:
        post = output_scale(stack, attention.update)
        with_stream = with_stream + attention.aligned_cnn * np.outer(post, post)
    aligned = over(gains * with_stream, np.sqrt(size))
    zero_n = np.zeros_like(std_n)
    skew, longer = (zero_n, zero_n), (2 * _diagonal(pair), 2 * _diagonal(aligned))
    if normed and not stack.gated_mlp:
        skew, longer = _lengths(kernel, n, source, slope_n, out**2 / stack.mlp_width)
    alike_n = out * kernel.expand(correlation(n.alike_n, n))[0]
    update = SecondMoments(out * kernel.variance(), within, cross, value_n, alike_n, pair, skew[0], longer[0])
    return Sublayer(
        kind="mlp",
        layer=layer,
        source=source,
        stream=stream,
        update=update,
        aligned_cnn=aligned,
        aligned_skew_n=skew[1],
        aligned_length_n=longer[1],
        fan_in=stack.mlp_width,
        gain_nn=gain,
        bend_nn=bend,
        aggregated_n=zero_n,
        weight_n=zero_n,
    )


def _lengths(
    kernel: finite_width.KernelMoments, n: SecondMoments, source: SecondMoments, slope_n: Array, per_neuron: float
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Compute skew and length of the update of a plain MLP on normed tokens, each with its alignment to the source.

    A norm hides the token's length, so it reaches the hidden layer only by way of its cosine with the mean:
    h̄·h̃ moves by slope·δ and, ‖h‖² being fixed, ‖h̃‖² by −2 slope·δ. Neurons add their own.
    """
    rho = correlation(n.cross_n, n)
    moments = n.overlap().diagonal().lengths(rho)
    fresh_skew, fresh_length = kernel.neurons(rho)
    skew = per_neuron * fresh_skew - 2 * slope_n**2 * moments.variance
    length = per_neuron * fresh_length + 4 * slope_n**2 * moments.variance
    aligned_skew = slope_n * source.variance_n * (moments.with_length - 2 * moments.with_mean)
    aligned_length = -2 * slope_n * source.variance_n * moments.with_length
    return (skew, aligned_skew), (length, aligned_length)


def _diagonal(pair_cnn: Array) -> Array:
    """Compute variance of x̃_t·x̃'_t of two tokens at one node; for Gaussian tokens half that of ‖x̃_t‖²."""
    _, _, own_n, mixed, shared, carried = np.einsum("cnn->cn", pair_cnn)
    return np.asarray(own_n + 2 * mixed + shared + carried)


def attend(
    stack: Stack, layer: int, source: SecondMoments, stream: SecondMoments, grid: Grid, uniform: bool = False
) -> Sublayer:
    """Compute W_O Σ_i a_ti W_V n_i: sums over the positions seen, with the weights of ``attention_weights``."""
    scale = input_scale(stack, source)
    n = source.scaled(scale)
    rho_within, rho_cross = correlation(n.within_nn, n), correlation(n.cross_nn, n)
    weights = attention_weights.weights(stack, layer, n.variance_n, rho_within, grid, uniform)
    excess = n.variance_n - np.diag(n.within_nn)
    excess_nn = attention_weights.common(excess, grid)
    shared = attention_weights.common(n.cross_n - np.diag(n.cross_nn), grid)
    values = _gated_values(stack, layer, n) if stack.value_gate else n
    variance, within, cross = _aggregated(stack, n, values, weights, grid)
    is_centered = stack.attention_kernel == "centred"
    alike = np.diag(cross) + (0.0 if is_centered else weights.mean_n**2) * (values.alike_n - values.cross_n)

    # Through W_V, what follows the aggregation, the gate and W_O.
    value_variance = stack.std("value", layer) ** 2 * stack.width
    after = attention_weights.after_aggregation(stack, value_variance * variance, grid)
    halved = 0.5 if stack.output_gate or stack.value_gate else 1.0
    if stack.output_gate:
        std = stack.std("output_gate", layer) * np.sqrt(stack.width * n.variance_n)
        within = within * attention_weights.gate_dual(rho_within, std[:, None], std[None, :])
        cross = cross * attention_weights.gate_dual(rho_cross, std[:, None], std[None, :])
        variance = variance * attention_weights.gate_dual(np.ones_like(std), std, std)
        alike = alike * attention_weights.gate_dual(correlation(n.alike_n, n), std, std)
    factor = np.sqrt(value_variance * stack.query_width) * stack.std("output", layer) * after
    zero_parts, zeros = np.zeros((len(PARTS), *within.shape)), np.zeros_like(variance)
    raw = SecondMoments(variance, within, cross, np.diag(cross).copy(), alike, zero_parts, zeros, zeros).scaled(factor)

    # Products of one pair of sequences have, over positions, covariance τ R[t, t'] R[s, s'], R the covariance
    # within a sequence, for each kind of part: so those of averages follow from R alone.
    weight = weights.mean_n * factor * halved * (not is_centered)
    # Heads choose among keys each for itself: the square of a product's mean over heads has a boost for one head in H.
    boost_n = np.sqrt(1.0 + (weights.boost_n**2 - 1.0) / stack.num_heads)
    seen_by_own = np.diag(excess_nn - shared) * boost_n
    shared_nn = n.within_nn - n.cross_nn
    seen_by_shared = np.einsum("ti,ij,tj->t", grid.seen_nn, shared_nn, grid.seen_nn, optimize=True)
    # What is carried is not of that form: x̃_i meets its average at every t ≥ i, with a weight k_t that does not
    # depend on i, so a sum over pairs of positions is a sum of t k_t.
    carried_n = np.sqrt(np.diag(n.pair_cnn[PARTS.index((CARRIED, CARRIED))]))
    seen_by_carried = over(grid.seen_nn @ (grid.reach * carried_n), carried_n)
    amounts = (seen_by_own, seen_by_shared, seen_by_carried)
    pair = _averaged(n, (raw.cross_n, *(weight**2 * amount for amount in amounts)))
    pair[PARTS.index((SHARED, SHARED))] += pair[PARTS.index((CARRIED, CARRIED))]
    pair[PARTS.index((CARRIED, CARRIED))] = 0.0
    to_mean = np.einsum("ti,it->t", grid.seen_nn, n.cross_nn)
    to_shared = np.einsum("ti,it->t", grid.seen_nn, shared_nn)
    gain = weight / scale
    # Of W k_t at t and Wᵀ k_t at each of the positions before: tr over both, next to tr (W + Wᵀ)².
    to_carried = np.sqrt((grid.reach**2 + 1) / 2)
    aligned = _averaged(n, (gain * to_mean, gain * n.kinds_n[OWN], gain * to_shared, gain * to_carried))
    return Sublayer(
        kind="attention",
        layer=layer,
        source=source,
        stream=stream,
        update=raw._replace(pair_cnn=pair, length_n=2 * _diagonal(pair)),
        aligned_cnn=aligned,
        aligned_skew_n=zeros,
        aligned_length_n=2 * _diagonal(aligned),
        fan_in=stack.value_width,
        gain_nn=zero_parts[0],
        bend_nn=zero_parts[0],
        aggregated_n=value_variance * variance * after**2,
        weight_n=weight,
    )


def _aggregated(
    stack: Stack, n: SecondMoments, values: SecondMoments, weights: WeightMoments, grid: Grid
) -> tuple[Array, Array, Array]:
    """Compute variance [n], and covariances [n, n] within a sequence and between two, of the weighted sums of values.

    Of two sequences weights are alike for the positions that their keys have in common: learned ones.
    """
    rho_within, rho_cross, cross_n = correlation(n.within_nn, n), correlation(n.cross_nn, n), correlation(n.cross_n, n)
    # Cosines of the queries of two sequences.
    queries = rho_cross - np.diag(np.diag(rho_cross) - cross_n)
    mean_nn = np.outer(weights.mean_n, weights.mean_n)
    # Two sequences have one token in common at a position before the last with probability 1/V, at the last never.
    repeated_n = (values.alike_n - values.cross_n) / (stack.vocabulary or np.inf)
    repeated_nn = attention_weights.common(repeated_n, grid) - np.diag(repeated_n)
    if weights.series_kn is not None:
        ones = np.ones_like(rho_within)
        sums = (
            attention_weights.sigmoid_sum(weights.series_kn, q, apart, same, grid)
            for q, apart, same in (
                (ones, (values.within_nn, rho_within), (values.variance_n, ones[0])),
                (rho_within, (values.within_nn, rho_within), (values.variance_n, ones[0])),
                (queries, (values.cross_nn, rho_cross), (values.cross_n, cross_n)),
            )
        )
        alone, within, cross = (mean_nn * total for total in sums)
        return np.diag(alone), within, cross + mean_nn * repeated_nn
    # Centered rows sum to 0: what their keys have in common goes, and of the rest what uniform weights would add.
    common, centered = (0.0, 1.0) if stack.attention_kernel == "centred" else (1.0, 0.0)
    apart_nn = attention_weights.common(values.variance_n - np.diag(values.within_nn), grid)
    summed = common * (grid.seen_nn @ values.within_nn @ grid.seen_nn.T)
    more_nn = _clustered(values, rho_within, grid) if weights.is_concentrated else apart_nn
    within = mean_nn * (summed + apart_nn * (1.0 - centered) + more_nn * (weights.boost_nn - 1.0))
    more_nn = more_nn * (weights.boost_n[:, None] - 1.0)
    variance = np.diag(mean_nn * (weights.total_n * summed + apart_nn * (1.0 - centered) + more_nn))
    at_same = attention_weights.common(values.cross_n - np.diag(values.cross_nn), grid) + repeated_nn
    cross = mean_nn * common * (grid.seen_nn @ values.cross_nn @ grid.seen_nn.T + at_same)
    if stack.position_std > 0:
        # What two keys of one position share beyond two others, of what two keys of one sequence do not.
        average_nn = grid.seen_nn / grid.reach[:, None]
        shared = average_nn @ cross_n - np.einsum("ti,ij,tj->t", average_nn, rho_cross, average_nn, optimize=True)
        unlike = 1.0 - np.einsum("ti,ij,tj->t", average_nn, rho_within, average_nn, optimize=True)
        alike = np.clip(over(shared, unlike), 0.0, 1.0)
        boost = attention_weights.boost(weights, queries * np.sqrt(np.outer(alike, alike)), grid)
        cross = cross + mean_nn * at_same * (boost - 1.0)
    # The first position of centered attention sees one key: zero, up to rounding on either side.
    return np.maximum(variance, 0.0), within, cross


def _gated_values(stack: Stack, layer: int, n: SecondMoments) -> SecondMoments:
    """Multiply each value by a sigmoid of its own: pairs of different positions keep less of it than a value alone.

    Channel j of a value and its gate g_j = Σ_k W_jk v_k hold parts of their own that covary over inputs by a_j v̂ ĝ, v̂
    and ĝ their standard deviations, with E a² = (1 + (K − 1)/D')/K, 1/D' being the variance of a cosine of two own
    parts. So a gated value has a mean, a_j v̂ ĝ E[σ'(g)] by Stein's lemma, whose square is of order 1/K and does not
    average out over keys: to two sequences it adds E a² v̂² ĝ² E[σ'(g)σ'(g')]. Heads share the gate's matrix, so that
    over seeds this varies more than ``seeds`` says: by a third for 4 heads of 16 dimensions and large gates.
    """
    std = stack.std("output_gate", layer) * np.sqrt(stack.width * n.variance_n)
    K = stack.query_width // stack.num_heads
    part_n = over(np.maximum(n.variance_n - n.cross_n, 0.0), n.variance_n)
    variance_n = over(n.overlap().diagonal().own, part_n**2)
    mean_n = np.sqrt(n.variance_n * (1 + (K - 1) * np.minimum(variance_n, 1.0)) / K) * part_n * std

    def gated(covariance: Array) -> Array:
        rho = correlation(covariance, n)
        left, right = (std, std) if rho.ndim == 1 else (std[:, None], std)
        square = mean_n**2 if rho.ndim == 1 else np.outer(mean_n, mean_n)
        mean = square * kernels.dual_derivative("tanh", rho, left / 2, right / 2) / 16
        return covariance * attention_weights.gate_dual(rho, left, right) + mean

    return n._replace(
        variance_n=n.variance_n * attention_weights.gate_dual(np.ones_like(std), std, std),
        within_nn=gated(n.within_nn),
        cross_nn=gated(n.cross_nn),
        cross_n=gated(n.cross_n),
        alike_n=gated(n.alike_n),
    )


def _clustered(n: SecondMoments, rho_nn: Array, grid: Grid) -> Array:
    """Compute what concentrated weights add to an average, by unit of their boost less 1, [n, n].

    Keys that are alike have logits that are alike, so that pairs of weights exceed those of independent keys in
    proportion to the pair's cosine less the mean cosine; with one cosine for all pairs that is the excess itself.
    """

    def pairs(off_nn: Array, own_n: Array) -> Array:
        """Sum over pairs of positions that two nodes see, a position with itself counted as it is."""
        off = grid.seen_nn @ off_nn @ grid.seen_nn.T
        return np.asarray(off + attention_weights.common(own_n - np.diag(off_nn), grid))

    ones = np.ones_like(n.variance_n)
    count = np.outer(grid.reach, grid.reach)
    total = pairs(n.within_nn, n.variance_n)
    mean = pairs(rho_nn, ones) / count
    tilt = pairs(n.within_nn * rho_nn, n.variance_n) - mean * total
    # One key is chosen against a sink alone, if at all.
    return np.where(count > 1, over(tilt, 1.0 - mean), pairs(0 * rho_nn, n.variance_n - np.diag(n.within_nn)))


def _averaged(n: SecondMoments, amounts: tuple[Array, Array, Array, Array]) -> Array:
    """Compute pair variances of an average that holds these amounts of each kind.

    What was own is shared now. Products of own parts alone come out as CARRIED: that is what they are between a
    token and its own average, and ``attend`` counts them as shared between two averages.
    """
    kinds = n.kinds_n[:CARRIED]
    to = dict(zip(PARTS, n.pair_cnn, strict=True))

    def of(left: int, right: int) -> Array:
        return over(to[left, right], np.outer(kinds[left], kinds[right])) * np.outer(amounts[left], amounts[right])

    mixed = of(OWN, SHARED)
    again = to[CARRIED, CARRIED] * np.outer(amounts[CARRIED], amounts[CARRIED])
    result = np.zeros_like(n.pair_cnn)
    result[PARTS.index((MEAN, SHARED))] = of(MEAN, OWN) + of(MEAN, SHARED)
    result[PARTS.index((SHARED, SHARED))] = mixed + mixed.T + of(SHARED, SHARED) + again
    result[PARTS.index((CARRIED, CARRIED))] = of(OWN, OWN)
    return result


def add(stack: Stack, sublayer: Sublayer) -> SecondMoments:
    """Add a sublayer's update to the residual stream; without a residual, return the update.

    Fresh weights add variance from pair to pair: (1/D + 1/fan-in) of the product of the update's second
    moments, and 1/D of their products with the stream's.
    """
    post = output_scale(stack, sublayer.update)
    update = sublayer.update.scaled(post)
    old = sublayer.stream if stack.residual else update.scaled(np.zeros_like(post))
    fan = 1 / stack.width + 1 / sublayer.fan_in
    was, new = old.kinds_n, update.kinds_n
    crossed = [(np.outer(new[a], was[b]) + np.outer(was[a], new[b])) / stack.width for a, b in PARTS]
    projected = [np.outer(new[a], new[b]) for a, b in PARTS]
    pair = update.pair_cnn + fan * np.stack(projected)
    # An MLP's neurons have given their part of ‖x̃‖² already.
    gaussian = 1 / stack.width if sublayer.kind == "mlp" else fan
    length = update.length_n + 2 * gaussian * (new[OWN] + new[SHARED]) ** 2
    if not stack.residual:
        return update._replace(pair_cnn=pair, length_n=length)
    post_nn = np.outer(post, post)
    return SecondMoments(
        variance_n=old.variance_n + update.variance_n,
        within_nn=old.within_nn + update.within_nn,
        cross_nn=old.cross_nn + update.cross_nn,
        cross_n=old.cross_n + update.cross_n,
        alike_n=old.alike_n + update.alike_n,
        pair_cnn=pair + old.pair_cnn + np.stack(crossed) + 2 * sublayer.aligned_cnn * post_nn,
        skew_n=old.skew_n + update.skew_n + sublayer.aligned_skew_n * post**2,
        length_n=old.length_n + length + 2 * _diagonal(np.stack(crossed)) + 2 * sublayer.aligned_length_n * post**2,
    )
