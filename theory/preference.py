"""From contraction to token preference: the distribution over seeds of the top-1 token's fraction and p-value.

Model. With h = √ρ û + √(1 − ρ) ĝ and i.i.d. Gaussian unembedding rows, the logit of token v is, up to scale,
√ρ a_v + √(1 − ρ) b_v: a_v is drawn once per seed, b_v once per input. Given the a's, token v is predicted
with probability p_v = ∫ φ_v(x) Π_{u≠v} Φ_u(x) dx, φ_v and Φ_u the density and distribution function of the
logits. The top-1 token's fraction is max_v p_v, its count in N inputs the largest entry of a multinomial. Nothing
here is sampled.

Method. Condition on m, the largest of the a's (distribution Φ^V). The other a's are then independent and below m, so
every moment of the p's over them is a power V − 1 of a one-dimensional integral: the mean and variance of the
leader's p, and both its mean and the rival's given that a rival sits at some a < m. Three steps are
approximate: the leader's p gets a Beta distribution with its exact mean and variance; a rival keeps its mean ratio to
the leader and is likelier where the leader is low, by linear regression; counts are binomial, and independent
given m and the leader's p. Simulation of the model agrees with the result to its own error
(test_preference_theory.py).

How the logits compete, also at finite width, is in ``logits``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

from bornbiased_jax.theory import checks
from bornbiased_jax.theory.activations import Array
from bornbiased_jax.theory.logits import NOISE, ROOT_2PI, Field, LeaderMoments, Scatter, leaders
from bornbiased_jax.theory.quadrature import normal_nodes

MANY = 10**7
_RATE_STEP = 0.02
LARGEST_VOCABULARY = 10**7
"""Up to which the integrals over the field of logits are tested."""


# The test of Appendix B.2.


def log10_p_values(num_inputs: int, vocab_size: int) -> Array:
    """Compute log10 of min(1, V·P(Binomial(N, 1/V) ≥ k)) for k = 0 … N (Appendix B.2). Shape [N + 1].

    Summed in log space from the far end, so it neither underflows nor cancels: each tail is a sum of positive
    terms.

    Raises:
        ValueError: num_inputs or vocab_size below 1.
    """
    n, v = checks.whole(num_inputs, "num_inputs"), checks.whole(vocab_size, "vocab_size")
    k = np.arange(n + 1)
    # The leading product is summed exactly in logs; differences of log-gammas of N would cost digits for
    # large N.
    steps = np.concatenate([[0.0], np.log((n - k[:-1]) / (k[:-1] + 1.0))])
    log_term = np.cumsum(steps) - k * np.log(v)
    log_term = log_term + (n - k) * (np.log1p(-1 / v) if v > 1 else np.where(k < n, -np.inf, 0.0))
    tail = np.logaddexp.accumulate(log_term[::-1])[::-1]
    tail[0] = 0.0
    return np.minimum(0.0, (tail + np.log(v)) / np.log(10))


def log10_p_value(count: int, num_inputs: int, vocab_size: int) -> float:
    """Return one entry of :func:`log10_p_values`: log10 p of a top-1 count. ValueError if outside 0..N.

    >>> round(log10_p_value(52, 2_000, 50_304), 2)
    -136.34
    """
    if not 0 <= count <= num_inputs:
        raise ValueError(f"count: {count} lies outside 0..{num_inputs}")
    return float(log10_p_values(num_inputs, vocab_size)[count])


def uniform_top_count_tail(count: int, num_inputs: int, vocab_size: int) -> float:
    """Compute P(largest count ≥ ``count``) when all tokens are equally likely, to 0.1% of itself for Table 1's N and V.

    Counts are treated as independent binomials; they are negatively associated, so this is, if anything, too small:
    by up to 2% of itself for 200 draws over 300 tokens.

    Raises:
        ValueError: as :func:`log10_p_value`.
    """
    if not 0 <= count <= num_inputs:
        raise ValueError(f"count: {count} lies outside 0..{num_inputs}")
    v = checks.whole(vocab_size, "vocab_size")
    if count <= 1 or v == 1:
        return 1.0
    return float(-np.expm1(v * np.log1p(-special.bdtrc(count - 1, num_inputs, 1 / v))))


# The infinite-sample, infinite-width mean: exact.


def expected_fraction(rho: float, vocab_size: int) -> float:
    """Compute E over seeds of max_v p_v, for infinitely many inputs and infinite width.

    Two nested quadratures: relative error below 1e-6 for every rho and vocabularies up to 10 million.

    Equals P(argmax a = argmax(√ρ a + √(1 − ρ) b)) = V ∫∫ φ₂(a, x) Φ₂(a, x)^(V−1), a bivariate normal of
    correlation √ρ.

    Raises:
        ValueError: rho outside [0, 1], vocab_size < 1.

    >>> round(expected_fraction(0.5, 2), 6)  # 1/2 + arcsin(√ρ)/π
    0.75
    """
    r, v = checks.probability(rho, "rho"), _vocabulary(vocab_size)
    if v == 1 or r == 1:
        return 1.0
    field = Field(r, v, Scatter())
    nodes, weights = leaders(v, 61, 7.5)
    return float(sum(w * field.given(m).mean[0] for m, w in zip(nodes, weights, strict=True)))


def _vocabulary(size: int) -> int:
    if checks.whole(size, "vocab_size") > LARGEST_VOCABULARY:
        raise ValueError(f"vocab_size: {size:,} is above {LARGEST_VOCABULARY:,}, the largest that is integrated")
    return int(size)


class TopFraction(NamedTuple):
    """The top-1 token's count over seeds: its distribution function on ``counts``, and summaries.

    counts [k]: increasing; cdf [k]: P(count ≤ counts). fraction_*: count/N. overlap: Finding 2.2. log10_p_*: the
    p-value of Appendix B.2 at the mean over seeds and at its deciles (p10 is the weaker end); None for
    infinitely many inputs.
    """

    counts: Array
    cdf: Array
    num_inputs: int
    fraction_mean: float
    fraction_std: float
    fraction_p10: float
    fraction_p50: float
    fraction_p90: float
    overlap: float
    log10_p_mean: float | None
    log10_p_p10: float | None
    log10_p_p90: float | None


def top1_distribution(
    rho: float,
    vocab_size: int,
    num_inputs: int | None = None,
    width: int | None = None,
    *,
    rho_std: float = 0.0,
    last_token_fraction: float = 0.0,
    anisotropy: float = 1.0,
    lean: float = 0.0,
) -> TopFraction:
    """Compute the distribution over seeds of the top-1 token's fraction, of its p-value, and the expected overlap.

    Args:
        rho: expected inter-sequence cosine of the final normalized representations.
        vocab_size: V.
        num_inputs: N; None for infinitely many (the fraction is then max_v p_v itself).
        width: d; None for infinite (rows of exactly equal length).
        rho_std: seed-to-seed standard deviation of rho (mixed over with three nodes).
        last_token_fraction: fraction of inputs that predict their own last token (:func:`tied_last_token_fraction`):
            random tokens, evenly over the vocabulary.
        anisotropy: d tr Σ²/(tr Σ)² of the covariance over inputs, at least 1; needs ``width``.
        lean: variance over inputs of their cosine with the contraction direction (at most (1 − rho)/2 is used).

    Raises:
        ValueError: an argument out of range.

    >>> round(top1_distribution(0.446, 50_257, 2_000, 768).fraction_mean, 3)
    0.044
    """
    r, v = checks.probability(rho, "rho"), _vocabulary(vocab_size)
    n = MANY if num_inputs is None else checks.whole(num_inputs, "num_inputs")
    own_fraction = checks.probability(last_token_fraction, "last_token_fraction")
    if width is not None:
        checks.whole(width, "width", 2)
    checks.finite(rho_std, "rho_std")
    scatter = Scatter(width, checks.finite(anisotropy, "anisotropy", 1.0), checks.finite(lean, "lean", 0.0))
    counts = _count_grid(n)
    if rho_std == 0:
        cdf, overlap = _counted(r, v, n, scatter, own_fraction, counts)
    else:
        z, w = normal_nodes(3)
        mixed = [_counted(float(np.clip(r + rho_std * x, 0, 1)), v, n, scatter, own_fraction, counts) for x in z]
        cdf = np.sum(w[:, None] * np.array([part[0] for part in mixed]), axis=0)
        overlap = float(np.sum(w * np.array([part[1] for part in mixed])))
    if num_inputs is None and width is None and lean == 0:
        overlap = 1.0  # p_v grows with a_v; the table of counts would resolve this to 1% only.
    return _summary(counts, cdf, n, v, overlap, with_p=num_inputs is not None)


def recounted(top1: TopFraction, num_inputs: int | None, vocab_size: int) -> TopFraction:
    """Restate a distribution of the fraction as that of ``num_inputs`` inputs, some of which repeat each other.

    Raises:
        ValueError: num_inputs or vocab_size below 1.
    """
    if num_inputs is None:
        return top1._replace(log10_p_mean=None, log10_p_p10=None, log10_p_p90=None)
    table, factor = log10_p_values(num_inputs, vocab_size), num_inputs / top1.num_inputs

    def log10_p(fraction: Array) -> Array:
        return np.asarray(table[np.round(fraction * num_inputs).astype(int)])

    # Quantiles of a count are counts.
    low, middle, high = np.round(
        np.array([top1.fraction_p10, top1.fraction_p50, top1.fraction_p90]) * num_inputs
    ).tolist()
    return top1._replace(
        counts=np.round(top1.counts * factor),
        num_inputs=num_inputs,
        fraction_p10=low / num_inputs,
        fraction_p50=middle / num_inputs,
        fraction_p90=high / num_inputs,
        log10_p_mean=float(np.diff(top1.cdf, prepend=0.0) @ log10_p(_middle(top1.counts) / top1.num_inputs)),
        log10_p_p10=float(log10_p(np.array(top1.fraction_p10))),
        log10_p_p90=float(log10_p(np.array(top1.fraction_p90))),
    )


def expected_overlap(
    rho: float,
    vocab_size: int,
    num_inputs: int | None = None,
    width: int | None = None,
    *,
    anisotropy: float = 1.0,
    lean: float = 0.0,
) -> float:
    """Compute the probability that argmax a_v, best aligned with the contraction, is most predicted (Finding 2.2).

    Arguments as :func:`top1_distribution`. 1 for infinitely many inputs and infinite width.
    """
    return top1_distribution(rho, vocab_size, num_inputs, width, anisotropy=anisotropy, lean=lean).overlap


def tied_last_token_fraction(rho: float, vocab_size: int, width: int, alignment: float) -> float:
    """Compute the fraction of inputs that predict their own last token, when the embedding is also the head.

    The stream still carries the last token's embedding: with cosine c = ``alignment`` between the final
    representation and that embedding, its logit is c√d above the others, which reach a maximum of distribution Φ^V
    (rho only correlates them between inputs and drops out of the mean). So the fraction is ∫ φ((x − c√d)/√(1 −
    c²)) Φ(x)^(V−1) dx/√(1 − c²).

    Args:
        rho: expected inter-sequence cosine of the final normalized representations.
        vocab_size: V.
        width: d.
        alignment: c; for a pre-norm stack, the square root of the embedding's fraction of the final stream's
            variance.

    Raises:
        ValueError: an argument out of range.
    """
    checks.probability(rho, "rho")
    c, v, d = (
        checks.probability(alignment, "alignment"),
        checks.whole(vocab_size, "vocab_size"),
        checks.whole(width, "width"),
    )
    std = np.sqrt(max(1 - c * c, 1e-12))
    z = np.linspace(-10, 10, 2001)
    weight = np.exp(-z * z / 2) / ROOT_2PI * (z[1] - z[0])
    return float(np.sum(weight * np.exp((v - 1) * special.log_ndtr(c * np.sqrt(d) + std * z))))


# The machinery.


def _count_grid(n: int) -> Array:
    """Return counts for the table of a distribution: integers to 200, then steps of 1%, and likewise down from N."""
    far = 200 * 1.01 ** np.arange(1, max(int(np.ceil(np.log(max(n, 200) / 200) / np.log(1.01))), 0) + 1)
    steps = np.concatenate([np.arange(201), np.round(far)])
    return np.unique(np.clip(np.concatenate([steps[steps <= n / 2], n - steps[steps <= n / 2]]), 0, n))


def _counted(rho: float, v: int, n: int, scatter: Scatter, own_fraction: float, counts: Array) -> tuple[Array, float]:
    """Compute P(top count ≤ counts) and P(the leader in a wins), ties shared."""
    if v == 1 or rho == 1:
        probability = 1 - own_fraction + own_fraction / v
        return np.asarray(special.bdtr(counts, n, probability)), 1.0
    field = Field(rho, v, scatter)
    z, z_weight = normal_nodes(9)
    nodes, node_weight = leaders(v)
    # Beyond the largest fraction that any node gives the leader, counts have no probability worth a table.
    top = field.given(nodes[-1])
    most = n * max(float(_beta_nodes(m, s, np.array([6.5]))[0]) for m, s in zip(*top[:2], strict=True))
    all_counts, counts = counts, counts[counts <= most + 8 * np.sqrt(most) + 30]
    cdf, overlap = np.zeros(counts.size), 0.0
    # An expected count below e^-12 is lumped there: two inputs then agree on such a token once in 1e10.
    log_rate = np.arange(-12.0, np.log(n) + _RATE_STEP, _RATE_STEP)
    # Inputs that predict their own last token fall evenly on all: they add lost/V to every token's probability.
    evenly = own_fraction / v
    # exceed[i, k] = P(Binomial(N, e^log_rate_i/N + lost/V) > counts_k).
    exceed = 1.0 - _binomial_cdf(counts, n, np.minimum(np.exp(log_rate) / n + evenly, 1.0))
    scales = range(field.scale.size)
    for m, outer in zip(nodes, node_weight, strict=True):
        g = field.given(m)
        p = np.array([_beta_nodes(g.mean[i], g.variance[i], z) for i in scales])
        weight = (outer * field.scale_weight[:, None] * z_weight).ravel()
        rates = np.concatenate([_rival_rates(g, i, p[i], n * (1 - own_fraction), log_rate) for i in scales])
        rivals = np.exp((v - 1) * np.log1p(-np.minimum(rates @ exceed, 1 - 1e-16)))
        leader_cdf = _binomial_cdf(counts, n, np.minimum(p.ravel() * (1 - own_fraction) + evenly, 1.0))
        cdf += weight @ (leader_cdf * rivals)
        # The leader at count k wins against rivals ≤ k − 1, and half of the ties.
        step = np.diff(leader_cdf, axis=1)
        overlap += float(weight @ np.sum(step * (rivals[:, 1:] + rivals[:, :-1]), axis=1)) / 2
    full = np.ones(all_counts.size)
    full[: counts.size] = np.clip(cdf, 0.0, 1.0)
    return full, overlap


def _binomial_cdf(counts: Array, n: int, p: Array) -> Array:
    """Compute P(Binomial(n, p_i) ≤ counts_k), [i, k]; beyond 8.5 standard deviations and 40 it is 0 or 1 to 1e-16."""
    mean = n * p[:, None]
    result = (counts[None, :] >= mean).astype(np.float64)
    near = np.abs(counts[None, :] - mean) <= NOISE * np.sqrt(mean * (1 - p[:, None])) + 40
    i, k = np.nonzero(near)
    result[i, k] = special.bdtr(counts[k], n, p[i])
    return result


def _beta_nodes(mean: float, variance: float, z: Array) -> Array:
    """Compute quantiles at normal scores z of the Beta distribution with this mean and variance."""
    total = mean * (1 - mean) / variance - 1 if variance > 1e-12 * mean**2 else np.inf
    if not 0 < total < 1e15:
        return np.full(z.shape, mean)
    nodes = special.betaincinv(mean * total, (1 - mean) * total, special.ndtr(z))
    return np.asarray(nodes)


def _rival_rates(g: LeaderMoments, scale: int, p: Array, n: float, log_rate: Array) -> Array:
    """Distribute one rival's expected count [p, rates] on the lattice log_rate, given each of the leader's p.

    A rival keeps its ratio to the leader (both feel the same field of other tokens, and at a = m the ratio is
    1). A low leader makes a close rival more likely: the distribution of the rival's type is tilted by the linear
    regression of its presence on the leader's p.
    """
    mean, variance = g.mean[scale], g.variance[scale]
    varies = variance > 1e-12 * mean**2
    lean = (g.with_rival[scale] - mean) / variance if varies else np.zeros(g.rival_weight.size)
    with np.errstate(divide="ignore"):
        log_p = np.log(g.ratio[scale]) + np.log(max(n, 1e-300))
    result = np.empty((p.size, log_rate.size))
    for i, fraction in enumerate(p):
        w = g.rival_weight * np.maximum(1 + lean * (fraction - mean), 0.0)
        position = (log_p + np.log(max(fraction, 1e-300)) - log_rate[0]) / _RATE_STEP
        position = np.clip(position, 0.0, log_rate.size - 1.000001)
        cell = position.astype(int)
        part, size = position - cell, log_rate.size
        result[i] = np.bincount(cell, w * (1 - part), size) + np.bincount(cell + 1, w * part, size)
    return result


def _middle(counts: Array) -> Array:
    """Return the counts by which cells of several are represented."""
    middle = (counts + np.concatenate([[0.0], counts[:-1] + 1])) / 2
    middle[0] = counts[0]
    return np.asarray(middle)


def _summary(counts: Array, cdf: Array, n: int, v: int, overlap: float, with_p: bool) -> TopFraction:
    mass, middle = np.diff(cdf, prepend=0.0), _middle(counts)
    mean = float(np.sum(mass * middle))
    std = float(np.sqrt(max(np.sum(mass * middle**2) - mean**2, 0.0)))
    p10, p50, p90 = (float(counts[np.searchsorted(cdf, q * cdf[-1])]) for q in (0.1, 0.5, 0.9))
    log_p: list[float | None] = [None, None, None]
    if with_p:
        table = log10_p_values(n, v)
        log_p = [float(np.sum(mass * table[np.round(middle).astype(int)]))]
        log_p += [float(table[int(p10)]), float(table[int(p90)])]
    return TopFraction(counts, cdf, n, mean / n, std / n, p10 / n, p50 / n, p90 / n, overlap, *log_p)
