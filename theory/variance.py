"""Variance of the attention output by position at initialization: the decay σ²/i of equation (2), and its mitigations.

At initialization the logits are zero (their standard deviation is O(std²·D), neglected here), so the weights depend on
the position alone. Two kernels weigh nothing then but for what the logits differ by, and their weights are random:
softpick, whose distribution does not depend on the logits' scale while that is small, and centered attention, which
needs their variance. Options carry the names and meanings of ``ModelConfig``, and are applied in the same order:
weights (window, kernel, extra logit), then √i or √(i/max_seq_len), then per-head RMSNorm, then the sigmoid output gate.
Positions count from 1.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from bornbiased_jax.theory import attention_weights, checks, kernels, softmax_rows
from bornbiased_jax.theory.activations import Array

POSITIONAL_SCALES = ("none", "amplify", "attenuate")
ATTENTION_KERNELS = ("softmax", "sigmoid", "softpick", "clipped", "centred")
SINK_LOGITS = ("none", "zero", "learned")
OUTPUT_GATES = ("none", "headwise", "elementwise", "value")
CLIP_ALPHA = 4.0
"""α of clipped softmax: γ = −α/max_seq_len."""


def initial_weights(
    T: int,
    *,
    window: int | None = None,
    attention_kernel: str = "softmax",
    sink_logit: str = "none",
    max_seq_len: int | None = None,
) -> tuple[Array, Array]:
    """Count the positions that each query sees, min(i, window), and return the mean weight it gives to each.

    Two arrays [T]. softmax: 1/count; with an extra zero logit (or a learned one, initialized to 0): 1/(count + 1), so
    the weights sum to i/(i + 1); sigmoid(0 − ln n), n = max_seq_len: 1/(n + 1), never normalized, so they sum to i/(n +
    1).

    Raises:
        ValueError: T, window or max_seq_len below 1 (max_seq_len also below T), an unknown option.
    """
    checks.choice(attention_kernel, "attention_kernel", ATTENTION_KERNELS)
    checks.choice(sink_logit, "sink_logit", SINK_LOGITS)
    index = np.arange(1, checks.whole(T, "T") + 1, dtype=np.float64)
    count = index if window is None else np.minimum(index, checks.whole(window, "window"))
    if attention_kernel != "softmax" and sink_logit != "none":
        raise ValueError(f"sink_logit: an extra logit belongs to the softmax, not to the {attention_kernel} kernel")
    if attention_kernel == "sigmoid":
        return count, np.full(T, 1.0 / (1.0 + _longest(T, max_seq_len)))
    if attention_kernel == "clipped":
        gamma = -CLIP_ALPHA / _longest(T, max_seq_len)
        return count, np.clip((1 - gamma) / count + gamma, 0.0, 1.0)
    if attention_kernel == "softpick":
        return count, 0.5 / count
    if attention_kernel == "centred":
        return count, np.zeros(T)
    return count, 1 / (count + (sink_logit != "none"))


def _scatter(attention_kernel: str, count_T: Array, logit_variance: float) -> tuple[Array, Array]:
    """Compute the variance of a weight, and the covariance of weights of two keys, of one query; two arrays [T].

    Centered: E Σ a² − 1/n, right to 1e-4 of itself; below a variance of 1e-6, where the two cancel, its first order.
    """
    pairs = np.maximum(count_T - 1, 1)
    if attention_kernel == "softpick":
        squares = np.array([attention_weights.normal_participation(int(count)) for count in count_T])
        var_T, cov_T = squares / (2 * count_T), np.where(count_T > 1, (1 - squares) / (4 * count_T * pairs), 0.0)
        return var_T - 0.25 / count_T**2, np.where(count_T > 1, cov_T - 0.25 / count_T**2, 0.0)
    if attention_kernel == "centred":
        excess = logit_variance * (count_T - 1) / count_T**2
        if logit_variance > 1e-6:
            squares = np.array([softmax_rows.participation(int(count), logit_variance) for count in count_T])
            excess = np.where(count_T > 1, squares - 1 / count_T, 0.0)
        var_T = excess / count_T
        return var_T, np.where(count_T > 1, -var_T / pairs, 0.0)
    return np.zeros_like(count_T), np.zeros_like(count_T)


def _longest(T: int, max_seq_len: int | None) -> int:
    longest = T if max_seq_len is None else checks.whole(max_seq_len, "max_seq_len")
    if longest < T:
        raise ValueError(f"max_seq_len: {longest} is below T = {T}")
    return longest


def output_variance_uniform(position: npt.ArrayLike, variance: float = 1.0, correlation: npt.ArrayLike = 0.0) -> Array:
    """Compute σ²(c + (1 − c)/i), the mean of i values of variance σ² and correlation c. Equation (2) is c = 0.

    Elementwise. With c > 0 the decay stops at cσ², at about position (1 − c)/c.

    Raises:
        ValueError: position < 1, negative variance, a correlation outside [−1/(i − 1), 1].
    """
    index, c = checks.from_least(position, "position", 1), checks.rho(correlation, "correlation")
    checks.finite(variance, "variance")
    part = c + (1 - c) / index
    if not np.all(part >= -1e-12):
        raise ValueError("correlation: that many values cannot all be so negatively correlated")
    return variance * np.maximum(part, 0.0)


@dataclasses.dataclass(frozen=True)
class Mitigations:
    """The changes to how attention aggregates values.

    Attributes:
        window, attention_kernel, sink_logit, positional_scale, head_norm, output_gate: as in ``ModelConfig``.
        max_seq_len: what √(i/max_seq_len) and the sigmoid's shift use (default: T).
        gate_std: standard deviation of the gate's logits; 0 gives the factor ½ exactly (¼ in variance). Gate
            logits of two positions are taken as independent, of each other and of what they scale.
        norm_eps: epsilon of the per-head RMSNorm, whose head is taken as wide.
        logit_variance: of the attention's logits around the mean of what a query sees, Gaussian and independent;
            centered attention has no other source of weights, and the other kernels leave it out.
    """

    window: int | None = None
    attention_kernel: str = "softmax"
    sink_logit: str = "none"
    max_seq_len: int | None = None
    positional_scale: str = "none"
    head_norm: bool = False
    output_gate: str = "none"
    gate_std: float = 0.0
    norm_eps: float = 0.0
    logit_variance: float = 0.0


def output_covariance(values: Array, mitigations: Mitigations = Mitigations()) -> Array:
    """Compute the covariance [T, T] between positions of one coordinate of attention output (what enters W_O).

    Args:
        values: covariance [T, T] between positions of one coordinate of the value vectors.
        mitigations: of the attention.

    Raises:
        ValueError: a non-square or non-covariance input, an argument out of range, an unknown option.
    """
    window, output_gate, positional_scale = mitigations.window, mitigations.output_gate, mitigations.positional_scale
    checks.choice(positional_scale, "positional_scale", POSITIONAL_SCALES)
    checks.choice(output_gate, "output_gate", OUTPUT_GATES)
    k = np.asarray(values, dtype=np.float64)
    if k.ndim != 2 or k.shape[0] != k.shape[1] or not k.shape[0]:
        raise ValueError("values: the covariance must be a square matrix, positions by positions")
    if not np.all(np.diagonal(k) >= 0):
        raise ValueError("values: a variance is negative")
    gate_std = checks.finite(mitigations.gate_std, "gate_std")
    norm_eps = checks.finite(mitigations.norm_eps, "norm_eps")
    T = k.shape[0]
    count, weight = initial_weights(
        T,
        window=window,
        attention_kernel=mitigations.attention_kernel,
        sink_logit=mitigations.sink_logit,
        max_seq_len=mitigations.max_seq_len,
    )
    if output_gate == "value":
        k = k * _gate_factor(T, gate_std)
    summed = _window_sum(_window_sum(k, window).T, window)
    out = summed * weight[:, None] * weight
    logit_variance = checks.finite(mitigations.logit_variance, "logit_variance")
    var_T, cov_T = _scatter(mitigations.attention_kernel, count, logit_variance)
    out = out + np.diag((var_T - cov_T) * _window_sum(np.diagonal(k), window) + cov_T * np.diagonal(summed))
    if positional_scale != "none":
        longest = _longest(T, mitigations.max_seq_len) if positional_scale == "attenuate" else 1
        scale = np.sqrt(np.arange(1, T + 1) / longest)
        out = out * scale[:, None] * scale
    # A per-head RMSNorm of a wide head divides by the root of its variance.
    if mitigations.head_norm:
        power = np.diagonal(out) + norm_eps
        if not np.all(power > 0):
            raise ValueError("values: a zero vector cannot be normalized by head_norm")
        out = out / np.sqrt(power)[:, None] / np.sqrt(power)
    return out * _gate_factor(T, gate_std) if output_gate in ("headwise", "elementwise") else out


def _window_sum(k: Array, window: int | None) -> Array:
    """Sum the rows that each position sees. O(T²), no matrix product."""
    total = np.cumsum(k, axis=0)
    if window is not None and window < k.shape[0]:
        total[window:] -= total[:-window].copy()
    return total


def _gate_factor(T: int, gate_std: float) -> Array:
    """Compute E[σ(g_i)σ(g_j)]: ¼ off the diagonal (the sigmoid minus ½ is odd), E[σ(g)²] on it."""
    factor = np.full((T, T), 0.25)
    square = kernels._mean_square(lambda u: special.expit(u), np.asarray(float(gate_std)))
    np.fill_diagonal(factor, float(square))
    return factor


def output_variance(T: int, variance: float = 1.0, correlation: float | Array = 0.0, **options: object) -> Array:
    """Compute the variance [T] of the attention output at each position of one layer.

    Args:
        T: sequence length.
        variance: σ² of the value vectors' coordinates.
        correlation: one correlation for all pairs of positions, or a matrix [T, T].
        options: fields of :class:`Mitigations`.

    Independent values give σ²/i; with √i: σ²; with √(i/n): σ²/n; with per-head RMSNorm: 1; with a gate:
    σ²/(4i); with an extra zero logit: σ² i/(i + 1)², which peaks at i = 1 still but at a quarter; sigmoid
    kernel: σ² i/(n + 1)², which grows; window w: σ²/min(i, w); clipped softmax: σ² i ((1 + α/n)/i − α/n)², 0 from
    i = 1 + n/α on; softpick: σ²/2 at position 1, σ² π/(4i) far from it; centered: nothing at position 1, and about
    σ² Ω(i − 1)/i² for logits of a small variance Ω, largest at i = 2.

    Raises:
        ValueError: as :func:`output_covariance`; negative variance.

    >>> output_variance(4).round(3).tolist()
    [1.0, 0.5, 0.333, 0.25]
    >>> output_variance(4, positional_scale="amplify").round(3).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    mitigations = Mitigations(**options)  # type: ignore[arg-type]  # checked there
    return np.diagonal(output_covariance(value_covariance(T, variance, correlation), mitigations)).copy()


def value_covariance(T: int, variance: float = 1.0, correlation: float | Array = 0.0) -> Array:
    """Return the covariance [T, T] of values of one variance and one correlation, or a given correlation matrix."""
    checks.finite(variance, "variance")
    c = checks.rho(correlation, "correlation")
    if c.ndim == 0:
        if T > 1 and c < -1 / (T - 1) - 1e-12:
            raise ValueError("correlation: that many values cannot all be so negatively correlated")
        c = c + (1 - c) * np.eye(checks.whole(T, "T"))
    if c.shape != (T, T):
        raise ValueError(f"correlation: expected a number or a matrix [{T}, {T}], not shape {c.shape}")
    return variance * c


class StackVariance(NamedTuple):
    """Variances by layer and position.

    ``stream`` [layers + 1, T] between the layers, ``output`` [layers, T] before W_O.
    """

    stream: Array
    output: Array


def stack_variance(
    T: int,
    layers: int,
    *,
    covariance: Array | None = None,
    value_gain: float = 1.0,
    output_gain: float = 1.0,
    residual: bool = False,
    norm: bool = False,
    **options: object,
) -> StackVariance:
    """Compute the positional decay through an attention-only stack, infinitely wide.

    Args:
        T: sequence length.
        layers: number of attention blocks.
        covariance: input covariance [T, T] between positions of one coordinate (default: identity).
        value_gain: D·Var(W_V).
        output_gain: H·K·Var(W_O).
        residual: x + attention instead of attention.
        norm: divide each position by its standard deviation before the values (LayerNorm or RMSNorm, wide).
        options: fields of :class:`Mitigations`.

    Without residual and norm the stream's variance is the squared row norm of Cⁿ: position 1 keeps its
    variance, position t first falls to binom(2n−2, n−1)/t (:func:`stack_decay_limit`) and then, for n beyond
    (ln t)/2, climbs back to 1, for everything becomes a copy of position 1.

    Raises:
        ValueError: negative layers, gains not positive, and as :func:`output_covariance`.
    """
    checks.whole(layers, "layers", 0)
    checks.positive(value_gain, "value_gain")
    checks.positive(output_gain, "output_gain")
    k = np.eye(checks.whole(T, "T")) if covariance is None else np.array(covariance, dtype=np.float64)
    if k.shape != (T, T):
        raise ValueError(f"covariance: expected shape [{T}, {T}], not {k.shape}")
    if not np.all(np.diagonal(k) >= 0):
        raise ValueError("covariance: a variance is negative")
    mitigations = Mitigations(**options)  # type: ignore[arg-type]  # checked there
    stream, output = [np.diagonal(k).copy()], []
    for _ in range(layers):
        values = k
        if norm:
            if not np.all(np.diagonal(k) > 0):
                raise ValueError("covariance: a zero vector cannot be normalized")
            values = k / np.sqrt(np.diagonal(k))[:, None] / np.sqrt(np.diagonal(k))
        aggregated = output_covariance(value_gain * values, mitigations)
        k = output_gain * aggregated + (k if residual else 0.0)
        output.append(np.diagonal(aggregated).copy())
        stream.append(np.diagonal(k).copy())
    return StackVariance(np.array(stream), np.array(output).reshape(layers, T))


def stack_decay_limit(position: npt.ArrayLike, layers: int) -> Array:
    """Compute binom(2n − 2, n − 1)/i: variance at position i after n running averages of unit white noise.

    For i → ∞ at fixed n. The continuous kernel (ln(t/x))^(n−1)/(t (n−1)!) squared and integrated. Relative error of
    order (ln i)^(2n−2)/i: exact at n = 1, and useful for n well below (ln i)/2 only.

    Raises:
        ValueError: position < 1 or layers < 1.
    """
    index, layers = checks.from_least(position, "position", 1), checks.whole(layers, "layers")
    return special.binom(2 * layers - 2, layers - 1) / index
