"""The top-1 token's fraction over seeds that share one head: the rows w_v are those of a given table.

Model. As in ``preference``: a seed's final states lie around a direction m, and the logit of token v is √ρ w_v·m +
√(1 − ρ) w_v·ĝ for an input's own part ĝ. There the rows are drawn anew for each seed; here they are given, and m is
drawn: what all inputs of every seed have in common keeps its part of m, and the rest is uniform. Of ĝ the scale of each
token's noise is known up to the anisotropy of the states (``logits``). Directions, inputs and nothing else are sampled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from bornbiased_jax.theory import checks
from bornbiased_jax.theory.activations import Array
from bornbiased_jax.theory.logits import ROOT_2PI, Scatter

DIRECTIONS = 96
"""Drawn directions, a seed's worth each: the 10th and 90th percentile are then known to 3 percentiles."""
NODES = 64
"""Of the integral over the largest logit, at first; twice and four times as many where noises differ much."""
TOLERANCE = 1e-3
"""How far the probabilities of all tokens may be from 1 together."""
TAIL = 1e-8
"""Probability that is left out at either end of that integral."""


class Direction(NamedTuple):
    """The part that the final states of every seed have in common."""

    common_D: Array
    """A direction, of any length; zeros where there is nothing."""
    part: float
    """Its cosine with a seed's direction m, from 0 to 1."""


def fractions_given_head(
    head_VD: npt.NDArray[np.floating],
    common: Direction,
    rho: float,
    rho_std: float,
    states: Scatter,
    num_inputs: int,
    own_fraction: float = 0.0,
    seed: int = 0,
) -> Array:
    """Simulate the most predicted token's fraction of N inputs, for ``DIRECTIONS`` seeds.

    Args:
        head_VD: the rows w_v, of mean square 1.
        common: what the final states of every seed have in common.
        rho: cosine of two inputs' final states, mean over seeds.
        rho_std: its standard deviation over seeds.
        states: how an input's own part differs from an isotropic one.
        num_inputs: N.
        own_fraction: of the inputs that predict their own last token, which differs from input to input.
        seed: of the drawn directions and inputs.

    Raises:
        ValueError: an argument out of range.

    Example:
        >>> head_VD = np.random.default_rng(0).standard_normal((50, 32))
        >>> fractions = fractions_given_head(head_VD, Direction(head_VD[7], 1.0), 0.9, 0.0, Scatter(32), 100)
        >>> bool(fractions.min() > 0.9)  # nothing but row 7 is common to the inputs
        True
    """
    common_D, part = common
    checks.probability(rho, "rho"), checks.probability(part, "part"), checks.probability(own_fraction, "own_fraction")
    V, D = head_VD.shape
    generator = np.random.default_rng(seed)
    length = np.linalg.norm(common_D)
    along_D = common_D / (length if length > 0 else 1.0)
    square_V = np.einsum("vd,vd->v", head_VD, head_VD, dtype=np.float64) / D
    extra = math.sqrt(2 * max(states.anisotropy - 1, 0.0) / D)
    fractions = []
    for _ in range(DIRECTIONS):
        cosine = float(np.clip(rho + rho_std * generator.standard_normal(), 0.0, 1.0 - 1e-9))
        # A seed's direction: the common part, and one of its own.
        free_D = generator.standard_normal((D,))
        free_D -= (free_D @ along_D) * along_D
        m_D = part * along_D + math.sqrt(1 - part**2) * free_D / np.linalg.norm(free_D)
        a_V = (head_VD @ m_D.astype(head_VD.dtype)).astype(np.float64)
        # Logits' means and standard deviations, and the probability of each token to lead.
        lean = min(states.lean, (1 - cosine) / 2)
        scale_V = square_V * np.maximum(1 + extra * generator.standard_normal((V,)), 1e-3)
        noise_V = np.sqrt((1 - cosine - lean) * scale_V + lean * a_V**2)
        p_V = largest_logit(math.sqrt(cosine) * a_V, noise_V, D / states.anisotropy)
        p_V = (1 - own_fraction) * p_V / p_V.sum() + own_fraction / V
        fractions.append(generator.multinomial(num_inputs, p_V / p_V.sum()).max() / num_inputs)
    return np.array(fractions)


def largest_logit(mean_V: Array, noise_V: Array, dimensions: float = math.inf) -> Array:
    """Compute each token's probability of the largest logit, ∫ φ_v Π_{u≠v} Φ_u; logits independent.

    An input's own part has a fixed length, so that its projection on a row has lighter tails than a normal one: of a
    sphere in n dimensions, e is as far out as a normal z = e (1 + (e² − 3)/4n), to first order in 1/n.

    Right to ``TOLERANCE`` in sum for standard deviations within a factor of 10 of each other; refused where the sum
    says otherwise.

    Args:
        mean_V: of each logit.
        noise_V: its standard deviation, above 0.
        dimensions: n, at least 4.

    Raises:
        ValueError: an argument out of range, or noises that differ too much.

    Example:
        >>> [round(float(p), 3) for p in largest_logit(np.zeros(4), np.ones(4))]
        [0.25, 0.25, 0.25, 0.25]
    """
    checks.from_least(dimensions, "dimensions", 4.0)
    if not (np.all(np.isfinite(mean_V)) and np.all(np.isfinite(noise_V)) and np.all(noise_V > 0)):
        raise ValueError("noise_V: means must be finite, and standard deviations above 0")
    start, end = _ends(mean_V, noise_V, dimensions)
    for nodes in (NODES, 2 * NODES, 4 * NODES):
        x_X = np.linspace(start, end, nodes)
        z_VX, slope_VX = _normal_score((x_X - mean_V[:, None]) / noise_V[:, None], dimensions)
        log_below_VX = special.log_ndtr(z_VX)
        density_VX = slope_VX * np.exp(-(z_VX**2) / 2 - log_below_VX) / (ROOT_2PI * noise_V[:, None])
        probability_V = np.asarray(density_VX @ np.exp(log_below_VX.sum(axis=0)) * (x_X[1] - x_X[0]))
        if abs(probability_V.sum() - 1) < TOLERANCE:
            return probability_V
    raise ValueError(
        f"noise_V: the largest of its standard deviations is {noise_V.max() / noise_V.min():.3g} times the smallest, "
        "more than is integrated accurately"
    )


def _normal_score(e: Array, dimensions: float) -> tuple[Array, Array]:
    """Return the normal score that is as far out as e on the sphere, and its slope; linear beyond √n."""
    square = np.minimum(e**2, dimensions)
    bent = np.where(e**2 < dimensions, 3.0, 1.0)
    return e * (1 + (square - 3) / (4 * dimensions)), 1 + (bent * square - 3) / (4 * dimensions)


def _ends(mean_V: Array, noise_V: Array, dimensions: float) -> tuple[float, float]:
    """Find by bisection two values between which the largest logit lies but for ``TAIL`` at either end."""

    def scores(x: float) -> Array:
        return _normal_score((x - mean_V) / noise_V, dimensions)[0]

    reach = 12 * float(noise_V.max())
    least, most = float(mean_V.max()) - reach, float(mean_V.max()) + reach
    ends = []
    are_beyond: tuple[Callable[[float], bool], ...] = (
        lambda x: special.log_ndtr(scores(x)).sum() > math.log(TAIL),
        lambda x: special.ndtr(-scores(x)).sum() < TAIL,
    )
    for beyond in are_beyond:
        low, high = least, most
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (low, middle) if beyond(middle) else (middle, high)
        ends.append((low + high) / 2)
    return ends[0], ends[1]
