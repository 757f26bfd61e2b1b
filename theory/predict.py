"""The prediction for one architecture and length: cosines with intervals, and the top-1 token's fraction."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from bornbiased_jax.theory import checks, finite_width, preference, seeds, sublayers
from bornbiased_jax.theory.activations import Array
from bornbiased_jax.theory.logits import Scatter
from bornbiased_jax.theory.mean_field import MeanFieldProfile, profile
from bornbiased_jax.theory.preference import TopFraction
from bornbiased_jax.theory.stack import Stack

SECOND_ORDER = 1.5
"""A chosen constant, not derived: the interval allows for terms beyond first order in 1/D as large as this times the
cosine times the variance of the overlap of two inputs. Their coefficients are not known; the tests' seeds bear the
choice out, for widths of 48 and more."""
ROUNDING = 1e-10
"""A cosine below this is none: there is no mean to lean toward."""


class CosineProfile(NamedTuple):
    """The inter-sequence cosine at the last position, after the embedding and after each block, [L + 1]."""

    mean: Array
    seed_std: Array
    """Over seeds, averaged over infinitely many inputs."""
    sampling_std: Array
    """What N inputs, and tokens of V kinds, add; 0 for infinitely many."""
    theory_std: Array
    """Allowance for the neglected terms of second order in 1/D (``SECOND_ORDER``)."""
    low: Array
    high: Array
    coverage: float

    @property
    def std(self) -> Array:
        """Over seeds, of the cosine measured with N inputs."""
        return np.hypot(self.seed_std, self.sampling_std)


class StackPrediction(NamedTuple):
    """All that theory says of a stack at one length."""

    profile: MeanFieldProfile
    contraction: CosineProfile
    top1: TopFraction


def contraction(profiled: MeanFieldProfile, num_inputs: int | None = None, coverage: float = 0.99) -> CosineProfile:
    """Compute mean, std and interval of the cosine, for one seed measured with ``num_inputs`` sequences.

    The measured value is (‖Σĥ‖² − N)/(N(N − 1)). Its variance given the seed is that of a U-statistic, 4 ζ/N
    + 2 v/(N(N − 1)), with v the variance of a pair's cosine and ζ the part of it that one member explains. Of random
    tokens the fraction κ of an input's own part that its last token decides averages over V kinds: 1/N is 1/N + κ/V.
    Over seeds the cosine is ‖m‖²/(‖m‖² + rest) with ‖m‖² close to a Gamma distribution, hence the skewness (2 − 6ρ)
    std/(ρ(1 − ρ)); the interval takes quantiles of the Pearson III distribution with these three moments.

    Raises:
        ValueError: num_inputs below 2, coverage outside (0, 1).

    >>> from bornbiased_jax.theory.stack import Stack
    >>> stack = Stack(num_layers=2, width=64, mlp_width=256, query_width=64, value_width=64, output_std=0.01)
    >>> cosines = contraction(profile(stack, 16), num_inputs=100)
    >>> bool(cosines.low[-1] < cosines.mean[-1] < cosines.high[-1])
    True
    """
    if num_inputs is not None:
        checks.whole(num_inputs, "num_inputs", 2)
    if not 0 < coverage < 1:
        raise ValueError(f"coverage: {coverage} lies outside (0, 1)")
    rho, overlap = profiled.inter_cosine, _last_overlap(profiled)
    over_seeds = seeds.fluctuations(profiled)
    bias = 0.0 if profiled.stack.gated_mlp else overlap.cosine_bias(rho)
    mean = np.clip(rho + bias + over_seeds.shift, -1.0, 1.0)
    once, twice = (0.0, 0.0) if num_inputs is None else (1 / num_inputs, 1 / (num_inputs * (num_inputs - 1)))
    again = _decided(profiled) / (profiled.stack.vocabulary or np.inf)
    single, pairs = overlap.lengths(rho).variance, overlap.cosine_variance(rho)
    sampling = np.sqrt(4 * single * (once + again) + 2 * pairs * (twice + again * (2 * once + again)))
    beyond = SECOND_ORDER * np.abs(rho) * overlap.own
    total = np.sqrt(over_seeds.std**2 + sampling**2 + beyond**2)
    edge = rho * (1 - rho)
    lean = np.divide((2 - 6 * rho) * over_seeds.std, edge, out=np.zeros_like(rho), where=edge > 1e-12)
    part = np.divide(over_seeds.std, total, out=np.zeros_like(rho), where=total > 0)
    skew = np.clip(lean, -1.0, 1.0) * part**3
    tails = np.array([(1 - coverage) / 2, (1 + coverage) / 2])
    low, high = (mean + total * scipy.stats.pearson3.ppf(tail, skew) for tail in tails)
    return CosineProfile(
        mean, over_seeds.std, sampling, beyond, np.clip(low, -1.0, 1.0), np.clip(high, -1.0, 1.0), coverage
    )


def _decided(profiled: MeanFieldProfile) -> Array:
    """Return the fraction of an input's own part that its last token decides, [L + 1]."""
    last = [(f.alike_n[-1] - f.cross_n[-1], f.variance_n[-1] - f.cross_n[-1]) for f in profiled.layers]
    return np.clip(sublayers.over(*np.array(last).T), 0.0, 1.0)


def _last_overlap(profiled: MeanFieldProfile) -> finite_width.Overlap:
    """Return how cosines vary from pair to pair at the last position, [L + 1] each."""
    last = [[part[-1] for part in fields.overlap().diagonal()] for fields in profiled.layers]
    return finite_width.Overlap(*np.array(last).T)


def scatter(profiled: MeanFieldProfile) -> Scatter:
    """Describe how the final states of one seed lie around their mean, for ``top1_distribution``.

    That is D tr Σ²/(tr Σ)² of their covariance Σ over inputs, and the variance of their cosine with the mean.
    Both follow from how cosines vary from pair to pair: a pair's own parts have the variance tr Σ²/D², and a cosine
    ρ + δ + δ' + … of two states means a cosine √ρ + δ/√ρ with the mean.
    """
    overlap = _last_overlap(profiled)
    rho = np.clip(profiled.inter_cosine, 0.0, 1.0)
    width, cosine, pair, single = profiled.stack.width, rho[-1], overlap.own[-1], overlap.lengths(rho).variance[-1]
    even = (1 - cosine) ** 2
    # Of the pairs one in V has the last token in common, and what that decides.
    repeats = _decided(profiled)[-1] ** 2 / (profiled.stack.vocabulary or np.inf)
    anisotropy = max(float(width * (pair / even + repeats)), 1.0) if even > 0 else 1.0
    return Scatter(width if width > 1 else None, anisotropy, float(single / cosine) if cosine > ROUNDING else 0.0)


def last_token_fraction(profiled: MeanFieldProfile, rho: float, vocabulary: int) -> float:
    """Compute the fraction of inputs that predict their own last token, where the head is the embedding.

    Args:
        profiled: the stack.
        rho: cosine of two inputs' final states.
        vocabulary: V.
    """
    stack, last = profiled.stack, profiled.layers[-1].variance_n[-1]
    # Without a residual nothing of the embedding is left.
    if not stack.residual:
        return 0.0
    alignment = np.sqrt(min(stack.embedding_std**2 / last, 1.0)) if last > 0 else 0.0
    return preference.tied_last_token_fraction(rho, vocabulary, stack.width, float(alignment))


def independent_inputs(
    profiled: MeanFieldProfile, rho: float, num_inputs: int | None, own_fraction: float = 0.0
) -> int | None:
    """Count the independent inputs whose predictions vary as much as those of N with V last tokens.

    Logits of two inputs correlate over tokens by their states' cosine, and two such fields have their largest entry in
    common with the probability of ``expected_fraction`` at its square. Inputs that predict their own last token fall
    on all tokens, however many have it: they count by their fraction of the leading token's inputs.

    Args:
        profiled: the stack.
        rho: cosine of two inputs' final states.
        num_inputs: N; None for infinitely many.
        own_fraction: of the inputs that predict their own last token.

    Returns:
        N/(1 + (N − 1) a/V), a the probability that one last token decides what is predicted; None for infinitely many.
    """
    vocabulary, last = profiled.stack.vocabulary, profiled.layers[-1]
    if vocabulary in (None, 1) or rho == 1 or not last.variance_n[-1] > 0:
        return num_inputs
    cosine = min(float(last.alike_n[-1] / last.variance_n[-1]), 1.0)
    same, other, leading = (preference.expected_fraction(r, vocabulary) for r in (cosine**2, rho**2, rho))
    leading = (1 - own_fraction) * leading / ((1 - own_fraction) * leading + own_fraction / vocabulary)
    once = 0.0 if num_inputs is None else 1 / num_inputs
    again = leading * max(same - other, 0.0) / ((1 - other) * vocabulary)
    independent = 1 / (once + (1 - once) * again) if once + again > 0 else np.inf
    # Infinitely many are computed as so many.
    return None if num_inputs is None and independent > preference.MANY else round(independent)


def predict(
    stack: Stack,
    length: int,
    vocabulary: int,
    *,
    num_inputs: int | None = None,
    tied: bool = False,
    coverage: float = 0.99,
) -> StackPrediction:
    """Predict everything at once, without sampling.

    Args:
        stack: the decoder.
        length: T, tokens per sequence.
        vocabulary: V, the number of tokens to choose from.
        num_inputs: N, sequences per seed; None for infinitely many.
        tied: the head is the embedding, so that an input's last token is favored a little.
        coverage: of the intervals, over seeds.

    Raises:
        ValueError: an argument out of range.

    >>> from bornbiased_jax.theory.stack import Stack
    >>> stack = Stack(num_layers=2, width=64, mlp_width=256, query_width=64, value_width=64, output_std=0.01)
    >>> round(predict(stack, 16, vocabulary=100, num_inputs=200).top1.fraction_mean, 3)
    0.047
    """
    checks.whole(vocabulary, "vocabulary")
    profiled = profile(stack, length)
    cosine = contraction(profiled, num_inputs, coverage)
    rho = float(np.clip(cosine.mean[-1], 0.0, 1.0))
    own_fraction = last_token_fraction(profiled, rho, vocabulary) if tied else 0.0
    top1 = preference.top1_distribution(
        rho,
        vocabulary,
        independent_inputs(profiled, rho, num_inputs, own_fraction),
        rho_std=float(cosine.seed_std[-1]),
        last_token_fraction=own_fraction,
        **scatter(profiled)._asdict(),
    )
    return StackPrediction(profiled, cosine, preference.recounted(top1, num_inputs, vocabulary))
