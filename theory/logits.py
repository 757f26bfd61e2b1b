"""Probabilities that the leading token at initialization wins an input, and that a rival does.

The model is that of ``preference``: the logit of token v is √ρ a_v + √(1 − ρ) b_v, a_v drawn once per seed and b_v once
per input.

Finite width d: the noise of token v has variance w_v·Σw_v, Σ the covariance of the inputs' own parts ĝ, which
differs from token to token: relatively by 2/d if Σ is isotropic, by 2/d times the ``anisotropy`` d tr Σ²/(tr Σ)²
if it is not, and it never is. Near the maximum, at 4 standard deviations, a scale that is 2% larger is worth as
much as a sizeable part of a_v. The scale's third moment is closed by that of a product of Gaussian matrices with
the same anisotropy r, d² tr Σ³/(tr Σ)³ = r(3r − 1)/2, and its distribution is Pearson III (a χ² where Σ is isotropic).
It widens the distribution of a token's p and leaves its mean over rows as it is at infinite width: an input of given
length gives every token a logit of one and the same distribution. Inputs differ in how far they lean toward û, too,
with variance ``lean``; that adds lean·a_v² to the noise of a token. What is left out is of relative order
(2 ln V)²·anisotropy/d, squared.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

from bornbiased_jax.theory.activations import Array
from bornbiased_jax.theory.quadrature import normal_nodes

SCALES = 9
"""Nodes over the tokens' scales of noise."""
NOISE = 8.5
"""Standard deviations of one logit beyond which nothing is kept: probability 1e-17."""
ROOT_2PI = np.sqrt(2 * np.pi)


class Scatter(NamedTuple):
    """The differences in noise from one token's logit to another's: see ``top1_distribution``."""

    width: int | None = None
    anisotropy: float = 1.0
    lean: float = 0.0

    def scales(self) -> tuple[Array, Array]:
        """Return nodes and weights of √(w·Σw) over rows w, in units of its root mean square."""
        if self.width is None:
            return np.ones(1), np.ones(1)
        z, w = normal_nodes(SCALES)
        df, r = self.width - 1, self.anisotropy
        std = np.sqrt(2 * r / df)
        skew = 4 * r * (3 * r - 1) / df**2 / std**3
        # A gamma variable of shape 4/skew², shifted and scaled; its quantiles at normal scores z.
        shape = 4 / skew**2
        upper = special.gammainccinv(shape, special.ndtr(-z))
        quantile = np.where(z > 0, upper, special.gammaincinv(shape, special.ndtr(z)))
        square = 1 + std * (quantile - shape) / np.sqrt(shape)
        return np.sqrt(np.maximum(square, 1e-3)), w


def leaders(v: int, nodes: int = 33, reach: float = 6.0) -> tuple[Array, Array]:
    """Return nodes and weights of Φ(m)^V, the distribution of the largest of V normals, trapezoidal in its score."""
    t = np.linspace(-reach, reach, nodes)
    weights = np.exp(-t * t / 2)
    return -special.ndtri(-np.expm1(special.log_ndtr(t) / v)), weights / weights.sum()


class LeaderMoments(NamedTuple):
    """Given the leader's a = m: its p, and that of one rival at each node.

    Axes: leader's scale R, rival's type J.

    mean, variance [R]: of the leader's p over the rivals. with_rival [R, J]: its mean if one rival is of type
    j. ratio [R, J]: mean p of that rival over with_rival. rival_weight [J]: probability of type j, summing to
    1.
    """

    mean: Array
    variance: Array
    with_rival: Array
    ratio: Array
    rival_weight: Array


def _normal(x: Array, sd: Array) -> Array:
    """Compute the density of N(0, sd²) at x, for a vector of sd a row each, else broadcasting."""
    scale = sd[:, None] if sd.ndim == 1 else sd
    return np.asarray(np.exp(-((x / scale) ** 2) / 2) / (ROOT_2PI * scale))


def _ratio(a: Array, b: Array) -> Array:
    return np.asarray(a / np.maximum(b, 1e-300))


class Field:
    """Everything that does not depend on m: the scales of the rows and the reach of one logit's noise.

    Logits are followed by their distance from the leader's mean r·m, and rivals by their distance below m, so
    that work and memory stay bounded however small the noise s = √(1 − ρ) is, and no digit is lost.
    """

    def __init__(self, rho: float, vocab: int, scatter: Scatter) -> None:
        self.lean = min(scatter.lean, (1 - rho) / 2)
        self.r, self.s, self.vocab = np.sqrt(rho), np.sqrt(1 - rho - self.lean), vocab
        self.scale, self.scale_weight = scatter.scales()
        # Below `low` the maximum of the field has no probability, whoever leads.
        low = special.ndtri(np.exp(-400.0 / vocab)) if vocab > 50 else -9.0
        self.low = max(low, -9.0) - 1.0
        self.step = min(0.1, 0.35 * self.s * max(float(self.scale.min()), 0.1))

    def _noise(self, a: Array) -> Array:
        """Compute the noise's standard deviation for tokens of every scale at each alignment a, [scales, a]."""
        return np.hypot(self.s * self.scale[:, None], np.sqrt(self.lean) * a)

    def given(self, m: float) -> LeaderMoments:
        """Compute what is expected when the largest of the a's is m."""
        r, vocab, s_weight = self.r, self.vocab, self.scale_weight
        plain_sd = float(np.hypot(self.s, np.sqrt(self.lean) * m))
        sd = self._noise(np.array([m]))[:, 0]
        # The leader's logit, and so whatever beats it or loses to it, lies within this of its mean.
        reach = NOISE * max(float(sd.max()), plain_sd)
        below, a_weight = self._below(m, reach)
        a_weight = a_weight / special.ndtr(m)
        start = min(max(-reach, self.low - r * m), reach - self.step)
        x = np.arange(start, reach + self.step, self.step)
        apart = x + r * below[:, None]
        rival_sd = np.hypot(self.s, np.sqrt(self.lean) * (m - below))[:, None]
        miss = special.ndtr(-apart / rival_sd)  # P(a rival's logit exceeds x), [J, X]
        over = a_weight @ miss
        pair_miss = (miss * a_weight[:, None]).T @ miss
        # ln P(one rival below x; and, for a second input, below y), the rival integrated over its a.
        log_one = np.log1p(-np.minimum(over, 1 - 1e-16))
        log_pair = np.log1p(-np.minimum(over[:, None] + over - pair_miss, 1 - 1e-16))
        field, rest = np.exp((vocab - 1) * log_one), np.exp((vocab - 2) * log_one)
        lead = _normal(x, sd) * self.step
        mean = lead @ field
        # Averaged over rows of weights, a token's p is that of an infinite width: its scale only adds variance.
        even = float(_normal(x, np.array([plain_sd]))[0] @ field) * self.step / float(s_weight @ mean)
        lead, mean = lead * even, mean * even
        square = np.einsum("rx,xy,ry->r", lead, np.exp((vocab - 1) * log_pair), lead, optimize=True)
        with_rival = (lead * rest) @ (1 - miss).T
        behind = special.ndtr(x / sd[:, None]) * rest * self.step
        scaled = self._noise(m - below)[:, :, None]
        rival = np.einsum("rx,sjx->rsj", behind, _normal(apart, scaled), optimize=True)
        average = np.einsum("s,rsj->rj", s_weight, rival)
        rival *= (_ratio(behind @ _normal(apart, rival_sd).T, average))[:, None, :]
        ratio = _ratio(rival, with_rival[:, None, :]).reshape(sd.size, -1)
        weight = (s_weight[:, None] * a_weight).ravel()
        presence = np.tile(with_rival, (1, sd.size))
        return LeaderMoments(np.minimum(mean, 1.0), np.maximum(square - mean**2, 0.0), presence, ratio, weight)

    def _below(self, m: float, reach: float) -> tuple[Array, Array]:
        """Return nodes m − a and weights of ∫_{−∞}^m φ(a) … da, on Gauss-Legendre panels.

        Panels are fine as far down as a rival can win, and then as wide as φ allows.
        """
        end = m + 8.0 if m > -7.5 else 1.0
        near = min(2 * reach / self.r, end) if self.r > 0 else end
        width = min(0.5, 2 * self.s / self.r) if self.r > 0 else 0.5
        edges = np.linspace(0.0, near, int(np.ceil(near / width)) + 1)
        if near < end:
            edges = np.concatenate([edges, np.linspace(near, end, int(np.ceil((end - near) / 0.5)) + 1)[1:]])
        z, w = np.polynomial.legendre.leggauss(10)
        half = np.diff(edges) / 2
        below = (edges[:-1, None] + half[:, None] * (1 + z)).ravel()
        a = m - below
        return below, (half[:, None] * w).ravel() * np.exp(-a * a / 2) / ROOT_2PI
