"""The covariance of the contraction across seeds, without drawing a seed.

For one seed, the covariance between independent sequences is the Gram matrix (1/D) m_t·m_s of the mean states
m_t = E over inputs of x_t. Its fluctuations follow the same recursion as its mean, to first order, and every
sublayer
adds fresh ones from its own random weights:

* a Gaussian projection to D dimensions: Wishart. (m_t + u_t)·(m_s + u_s) with u fresh of covariance F has
  covariance [S(P + F) − S(P)]/D, where S(A)[ts, t's'] = A_tt' A_ss' + A_ts' A_st'; and S(F)/(GK) more from
  W_V;
* a hidden layer of F neurons, each with its own bias b = w·m ~ N(0, σ²ρ): Cov over neurons of ψ_t ψ_s and
  ψ_t' ψ_s', divided by F, with ψ_t(b) = E φ(b + σ√(1 − ρ) z) the neuron's mean output. For a gated MLP ψ is
  itself a sum over many small overlaps, nearly Gaussian, and the neurons count as F more dimensions of a
  Wishart matrix.

The state is δP on a few positions and δq, the variance's own fluctuation; the mean states of different
positions are taken as collinear inside ψ. Second-order terms give the shift of the mean.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bornbiased_jax.theory import finite_width, positions
from bornbiased_jax.theory.activations import Array
from bornbiased_jax.theory.mean_field import MeanFieldProfile
from bornbiased_jax.theory.positions import Index
from bornbiased_jax.theory.stack import Stack
from bornbiased_jax.theory.sublayers import SecondMoments, Sublayer, input_scale, output_scale, over

NODES = 9


class Fluctuations(NamedTuple):
    """Of the inter-sequence cosine at the last position over seeds, after the embedding and each block, [L + 1]."""

    std: Array
    shift: Array
    """What fluctuations add to the mean."""


class _State(NamedTuple):
    """Over (δP_ts for all pairs of coarse nodes, δq_t)."""

    covariance_kk: Array
    mean_k: Array


class _Coarse(NamedTuple):
    """The fields at the coarse nodes; P with its true diagonal."""

    variance_m: Array
    cross_mm: Array

    @property
    def rho_mm(self) -> Array:
        v = self.variance_m
        return np.clip(over(self.cross_mm, np.sqrt(np.outer(v, v))), -1.0, 1.0)


def fluctuations(profile: MeanFieldProfile) -> Fluctuations:
    """Compute the std over seeds of the inter-sequence cosine over very many inputs, and its mean shift.

    To leading order in 1/D; valid while the standard deviation is small against the cosine's distance to 1.
    """
    stack = profile.stack
    index, average_mm = positions.coarse(profile.grid, NODES)
    m = index.size
    widen = np.concatenate([np.eye(m * m), np.eye(m * m)[:: m + 1]])
    start = _coarse(profile.layers[0], index)
    # Learned positions are drawn once per seed; token vectors differ between sequences and average out.
    noise = widen @ _wishart(start.cross_mm) @ widen.T / stack.width
    state = _State(noise if stack.position_std > 0 else 0 * noise, np.zeros(m * m + m))
    results = [_cosine(start, state)]
    steps = list(profile.sublayers)
    for layer in range(stack.num_layers):
        layer_steps = [s for s in steps if s.layer == layer]
        groups = [layer_steps] if stack.parallel_residual else [[s] for s in layer_steps]
        for group in groups:
            state = _through(stack, group, state, index, average_mm, profile.grid.reach[index], widen)
        results.append(_cosine(_coarse(profile.layers[layer + 1], index), state))
    variances, shifts = np.array(results).T
    return Fluctuations(np.sqrt(np.maximum(variances, 0.0)), shifts)


def _coarse(fields: SecondMoments, index: Index) -> _Coarse:
    cross = fields.cross_nn[np.ix_(index, index)].copy()
    np.fill_diagonal(cross, fields.cross_n[index])
    return _Coarse(fields.variance_n[index], cross)


def _wishart(a_mm: Array) -> Array:
    """Compute S(A)[ts, t's'] = A_tt' A_ss' + A_ts' A_st'."""
    m = a_mm.shape[0]
    first = np.einsum("ac,bd->abcd", a_mm, a_mm)
    return (first + first.transpose(0, 1, 3, 2)).reshape(m * m, m * m)


def _normalize(c: _Coarse) -> Array:
    """Return δρ as a linear map of (δP, δq), [m², m² + m]."""
    m = c.variance_m.size
    per_std = over(np.ones_like(c.cross_mm), np.sqrt(np.outer(c.variance_m, c.variance_m)))
    left, right = _left_and_right(0.5 * c.rho_mm, over(np.ones(m), c.variance_m))
    return np.concatenate([np.diag(per_std.ravel()), -(left + right)], axis=1)


def _left_and_right(field_mm: Array, factor_m: Array) -> tuple[Array, Array]:
    """Return maps of y_t to field_ts factor_t y_t and to field_ts factor_s y_s, each [m², m]."""
    m = factor_m.size
    left = np.einsum("ts,tu->tsu", field_mm, np.diag(factor_m)).reshape(m * m, m)
    right = np.einsum("ts,su->tsu", field_mm, np.diag(factor_m)).reshape(m * m, m)
    return left, right


def _second_order(c: _Coarse, state: _State) -> Array:
    """Compute E of the second-order terms of ρ = P/√(q q'), [m²]."""
    m = c.variance_m.size
    inverse = over(np.ones(m), c.variance_m)
    cov = state.covariance_kk
    relative = cov[m * m :, m * m :] * np.outer(inverse, inverse)
    mixed = (cov[: m * m, m * m :] * inverse).reshape(m, m, m)
    diagonal = np.einsum("tst->ts", mixed) + np.einsum("tss->ts", mixed)
    variances_m = np.diag(relative)
    squares = 0.375 * (variances_m[:, None] + variances_m[None, :]) + 0.25 * relative
    per_std = np.sqrt(np.outer(inverse, inverse))
    return (c.rho_mm * squares - 0.5 * diagonal * per_std).ravel()


def _cosine(c: _Coarse, state: _State) -> tuple[float, float]:
    """Compute variance and mean shift of the cosine at the last position."""
    row = _normalize(c)[-1]
    return float(row @ state.covariance_kk @ row), float(row @ state.mean_k + _second_order(c, state)[-1])


def _through(
    stack: Stack,
    group: list[Sublayer],
    state: _State,
    index: Index,
    average_mm: Array,
    count_m: Array,
    widen: Array,
) -> _State:
    """Follow the state through one sublayer, or the two of a parallel block, which read the same residual stream."""
    size = state.mean_k.size
    linear, noise, extra = np.zeros((size, size)), np.zeros((size, size)), np.zeros(size)
    if stack.residual:
        linear += np.eye(size)
    for s in group:
        source, stream, update = _coarse(s.source, index), _coarse(s.stream, index), _coarse(s.update, index)
        if s.kind == "mlp":
            raw, shift, fresh = _mlp(stack, s, source, state, index, widen)
        else:
            raw, shift, fresh = _attention(stack, s, source, state, index, average_mm, count_m, widen)
        fresh = fresh + widen @ _wishart(update.cross_mm) @ widen.T / stack.width
        scale = output_scale(stack, s.update)[index]
        # Through the post-norm, and added to the residual stream.
        post = _post_norm(stack, update, scale)
        linear += post @ raw
        extra += post @ shift
        noise += post @ fresh @ post.T
        if stack.residual:
            added = update.cross_mm * np.outer(scale, scale)
            mixed = _wishart(stream.cross_mm + added) - _wishart(stream.cross_mm) - _wishart(added)
            noise += widen @ mixed @ widen.T / stack.width
    return _State(linear @ state.covariance_kk @ linear.T + noise, linear @ state.mean_k + extra)


def _post_norm(stack: Stack, update: _Coarse, scale_m: Array) -> Array:
    """Return the linear map of (δF, δq_f) through a norm on the sublayer's output."""
    m = scale_m.size
    scale_mm = np.outer(scale_m, scale_m)
    matrix = np.diag(np.concatenate([scale_mm.ravel(), scale_m**2]))
    if stack.norm_position == "post" and stack.norm != "none":
        left, right = _left_and_right(0.5 * update.cross_mm * scale_mm, scale_m**2)
        matrix[: m * m, m * m :] = -(left + right)
        matrix[m * m :, m * m :] *= 1.0 - update.variance_m[:, None] * scale_m[:, None] ** 2
    return matrix


def _sensitivity(stack: Stack, c: _Coarse) -> Array:
    """Compute d ln(variance after the pre-norm)/d ln(variance before it): eps/(variance + eps), or 1 without a norm."""
    if stack.norm == "none" or stack.norm_position == "post":
        return np.ones_like(c.variance_m)
    return over(np.full_like(c.variance_m, stack.norm_eps), c.variance_m + stack.norm_eps)


def _mlp(
    stack: Stack, s: Sublayer, source: _Coarse, state: _State, index: Index, widen: Array
) -> tuple[Array, Array, Array]:
    """Return the linear map, mean shift and the neurons' fresh covariance of (δF, δq_f)."""
    m = index.size
    scale = input_scale(stack, s.source)[index]
    std = stack.inner_std(s.layer) * np.sqrt(stack.width * source.variance_m) * scale
    kernel = finite_width.kernel(stack.activation, stack.gated_mlp, std, centered=stack.balanced_mlp)
    out = stack.mlp_gain(s.layer)
    pick = np.ix_(index, index)
    gain, bend = s.gain_nn[pick].ravel(), s.bend_nn[pick].ravel()
    to_rho = _normalize(source)
    half = 0.5 * _sensitivity(stack, source) * over(np.ones(m), source.variance_m)
    left, right = _left_and_right(out * kernel.stretch(source.rho_mm), half)
    # Cross terms move with ρ and with both lengths, lengths with themselves.
    linear = np.zeros((m * m + m, m * m + m))
    linear[: m * m] = gain[:, None] * to_rho
    linear[: m * m, m * m :] += left + right
    linear[m * m :, m * m :] = np.diag(2 * out * kernel.stretch(np.ones(m)) * half)
    shift = np.zeros(m * m + m)
    variance_rho = np.einsum("ij,jk,ik->i", to_rho, state.covariance_kk, to_rho, optimize=True)
    shift[: m * m] = gain * _second_order(source, state) + 0.5 * bend * variance_rho
    if stack.gated_mlp:
        update = _coarse(s.update, index).cross_mm
        return linear, shift, widen @ _wishart(update) @ widen.T / stack.mlp_width
    return linear, shift, out**2 / stack.mlp_width * _neurons(kernel, np.diag(source.rho_mm))


def _neurons(kernel: finite_width.KernelMoments, rho_m: Array) -> Array:
    """Compute covariance over neurons of (ψ_t ψ_s, E φ_t²), [m² + m, m² + m]."""
    (mean_mb, square_mb), w = finite_width.neuron_moments(kernel.activation, kernel.std_n, rho_m, 2)
    # Balanced weights take the mean over neurons out of every activation.
    offset = kernel.offset_n[:, None]
    mean_mb, square_mb = mean_mb - offset, square_mb - 2 * offset * mean_mb + offset**2
    m = rho_m.size
    features = np.concatenate([(mean_mb[:, None] * mean_mb[None, :]).reshape(m * m, -1), square_mb])
    centered = features - (features @ w)[:, None]
    return (centered * w) @ centered.T


def _attention(
    stack: Stack,
    s: Sublayer,
    source: _Coarse,
    state: _State,
    index: Index,
    average_mm: Array,
    count_m: Array,
    widen: Array,
) -> tuple[Array, Array, Array]:
    """Return the linear map, mean shift and W_V's fresh covariance of (δF, δq_f)."""
    m = index.size
    scale = input_scale(stack, s.source)[index]
    size = source.variance_m * scale**2
    per_rho = np.sqrt(np.outer(size, size)).ravel()
    total = average_mm * (s.weight_n[index] * count_m)[:, None]
    total_kk = np.kron(total, total)
    half = 0.5 * _sensitivity(stack, source) * over(np.ones(m), source.variance_m)
    left, right = _left_and_right(source.cross_mm * np.outer(scale, scale), half)
    normed = per_rho[:, None] * _normalize(source)
    normed[:, m * m :] += left + right
    linear = widen @ total_kk @ normed
    shift = widen @ total_kk @ (per_rho * _second_order(source, state))
    fresh = widen @ _wishart(_coarse(s.update, index).cross_mm) @ widen.T / s.fan_in
    return linear, shift, fresh
