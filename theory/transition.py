"""An encoder through the entropy transition of attention: the cosine of tokens after each block.

Logits of variance β² ln T make attention uniform below a critical β and concentrated above it. With p the cosine of any
two tokens, a query's logits vary between keys by Ω = β² ln T (1 − p), and those of two queries correlate by p, so

    q_att = p + (1 − p) E Σ a²,    p_att = p + (1 − p) E Σ a a'

are variance and covariance of the aggregated tokens, at any finite T (``softmax_rows``); ``limit`` has them for T → ∞.
Settings and the recursion for T → ∞: "Transformers in the entropy-transition regime", arXiv 2505.24333. The decoder,
whose positions see different numbers of keys, is in ``mean_field``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from bornbiased_jax.theory import checks, kernels
from bornbiased_jax.theory.activations import ACTIVATIONS, Array
from bornbiased_jax.theory.softmax_rows import participation, row_entropy, row_overlap

DIGITS = 9
"""To which cosines and variances are rounded before integrals over rows, which are stored."""


@dataclasses.dataclass(frozen=True)
class Encoder:
    """Blocks of one-head self-attention over all positions and an MLP of the width of the residual stream.

    Variances are those of an output entry for inputs of unit variance, as in Var(W) times the fan-in.

    Raises:
        ValueError: a length below 1, a negative variance, an unknown name; it names the field.
    """

    length: int
    """T, tokens that each query sees."""
    beta: float
    """Logits of unrelated tokens have variance β² ln T."""
    value_variance: float = 0.2
    """Of values and output projection together."""
    mlp_variance: float = 0.2
    """Of either matrix of the MLP."""
    bias_variance: float = 4e-4
    """Of the biases of values and of both matrices of the MLP."""
    attention_residual: float = 1.0
    """What the residual stream is multiplied with where attention is added."""
    mlp_residual: float = 1.0
    activation: str = "relu"
    norm_position: Literal["pre", "post"] = "post"
    centered: bool = False
    """Every weight has 1/T subtracted: uniform attention adds nothing."""

    def __post_init__(self) -> None:
        checks.whole(self.length, "length")
        for field in dataclasses.fields(self):
            if field.type == "float":
                checks.finite(getattr(self, field.name), field.name)
        checks.choice(self.activation, "activation", ACTIVATIONS)
        checks.choice(self.norm_position, "norm_position", ("pre", "post"))


class Aggregated(NamedTuple):
    """Second moments of a weighted mean of tokens of unit variance."""

    variance: float
    covariance: float
    """Of the means of two queries."""


def finite(encoder: Encoder, cosine: float) -> Aggregated:
    """Compute what attention makes of tokens of one cosine, exact in T for wide layers."""
    p = round(max(cosine, 0.0), DIGITS)
    variance = logit_variance(encoder, p)
    length_gain = participation(encoder.length, variance)
    shared = row_overlap(encoder.length, encoder.length, variance, p)
    # Centered rows sum to 0: what tokens have in common and what is uniform go.
    common, uniform = (0.0, 1.0 / encoder.length) if encoder.centered else (p, 0.0)
    return Aggregated(common + (1 - p) * (length_gain - uniform), common + (1 - p) * (shared - uniform))


def limit(encoder: Encoder, cosine: float) -> Aggregated:
    """Compute it for T → ∞: beyond β_c = √(2/(1 − p)) a fraction 1 − β_c/β of the weights is on few keys."""
    p = max(cosine, 0.0)
    length_gain = max(1 - critical_beta(p) / encoder.beta, 0.0) if encoder.beta > 0 else 0.0
    common = 0.0 if encoder.centered else p
    return Aggregated(common + (1 - p) * length_gain, common)


def own_alone(encoder: Encoder, cosine: float) -> Aggregated:
    """Compute it with the participation at finite T, and two queries' weights taken as independent."""
    exact = finite(encoder, cosine)
    return exact._replace(covariance=limit(encoder, cosine).covariance)


def critical_beta(cosine: float) -> float:
    """Compute the β at which attention over very many tokens of one cosine begins to concentrate; inf at cosine 1.

    >>> round(critical_beta(0.5), 3)
    2.0
    """
    return float(np.sqrt(2 / (1 - cosine))) if cosine < 1 else np.inf


def logit_variance(encoder: Encoder, cosine: float) -> float:
    """Compute by how much a query's logits vary between keys of one cosine."""
    return round(encoder.beta**2 * float(np.log(encoder.length)) * (1 - cosine), DIGITS)


class Profile(NamedTuple):
    """An encoder's statistics after its input and after each of its blocks, [L + 1]."""

    cosine: Array
    variance: Array
    entropy: Array
    """Of the weights of a query, over ln T: of the block that reads this input; 1 is uniform."""


def profile(
    encoder: Encoder,
    num_layers: int,
    cosine: float = 0.1,
    aggregate: Callable[[Encoder, float], Aggregated] = finite,
) -> Profile:
    """Follow tokens of unit variance and one cosine through blocks.

    Args:
        encoder: its settings.
        num_layers: L.
        cosine: of any two tokens of the input, in [0, 1].
        aggregate: what attention does: :func:`finite`, :func:`limit` or :func:`own_alone`.

    Raises:
        ValueError: a negative depth, a cosine outside [0, 1], logits whose variance is too large to be integrated.

    >>> profile(Encoder(length=64, beta=1.0), 2).cosine.round(3).tolist()
    [0.1, 0.124, 0.151]
    """
    variances, covariances = [1.0], [checks.probability(cosine, "cosine")]
    for _ in range(checks.whole(num_layers, "num_layers", 0)):
        q, c = _block(encoder, variances[-1], covariances[-1], aggregate)
        variances.append(q)
        covariances.append(c)
    cosines = np.array(covariances) / variances
    longest = np.log(encoder.length) or 1.0
    entropy = [
        row_entropy(encoder.length, logit_variance(encoder, round(max(p, 0.0), DIGITS))) / longest for p in cosines
    ]
    return Profile(cosines, np.array(variances), np.array(entropy))


def _block(
    encoder: Encoder, q: float, c: float, aggregate: Callable[[Encoder, float], Aggregated]
) -> tuple[float, float]:
    """Return variance and covariance of tokens after a block."""
    is_pre = encoder.norm_position == "pre"
    bias = encoder.bias_variance
    mixed = aggregate(encoder, c / q)
    # Attention, added to the stream; a post-norm follows.
    residual_square = encoder.attention_residual**2
    q, c = (
        residual_square * q + encoder.value_variance * mixed.variance + bias,
        residual_square * c + encoder.value_variance * mixed.covariance + bias,
    )
    if not is_pre:
        q, c = 1.0, c / q
    # The MLP on normed tokens: two linear maps with biases, the activation between.
    gain = encoder.mlp_variance
    inner = gain + bias
    correlation = float(np.clip((gain * c / q + bias) / inner, -1.0, 1.0))
    square, product = kernels.dual(encoder.activation, [1.0, correlation], np.sqrt(inner))
    residual_square = encoder.mlp_residual**2
    q, c = residual_square * q + gain * float(square) + bias, residual_square * c + gain * float(product) + bias
    return (q, c) if is_pre else (1.0, c / q)
