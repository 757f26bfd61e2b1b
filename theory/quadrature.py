"""Expectations over a standard normal variable, by three rules, each with the range that it is right in.

- ``normal_nodes``: Gauss-Hermite, for polynomials and for functions smooth on the scale of its nodes;
- ``normal_lattice``: equally spaced, for functions of ``scale·z`` that are analytic within π/2 of the real axis, as
  every activation here but ReLU is, and e^(−e^u);
- ``normal_panels``: Gauss-Legendre panels that shrink toward 0, for functions with a kink there.
"""

from __future__ import annotations

import functools

import numpy as np

from bornbiased_jax.theory.activations import Array

REACH = 9.0
"""Standard deviations within which a normal variable is followed: 1e-19 lies outside."""
LARGEST_PANEL_SCALE = 1_000.0
"""The largest ``scale`` for which ``normal_panels`` resolves a function of scale·z that is 1 wide."""
LARGEST_LATTICE_SCALE = 1_000.0
"""For the sake of memory: the lattice then has 70,000 nodes."""
COARSEST_STEP = 0.25


@functools.lru_cache(maxsize=8)
def normal_nodes(count: int) -> tuple[Array, Array]:
    """Return nodes and weights of E f(z), z ~ N(0, 1), Gauss-Hermite: exact for polynomials to 2·count − 1.

    Raises:
        ValueError: count below 1 or above 256, where the weights of the outer nodes leave float64.
    """
    if not 1 <= count <= 256:
        raise ValueError(f"count: {count} lies outside 1..256")
    z, w = np.polynomial.hermite_e.hermegauss(count)
    return z, w / w.sum()


def normal_lattice(scale: float, reach: float = REACH) -> tuple[Array, Array]:
    """Return nodes and weights of E f(scale·z), z ~ N(0, 1), by the trapezoidal rule on |z| ≤ reach.

    For f analytic within π/2 of the real axis, and there no larger than a power of 1/cos of the distance, a step h
    leaves a relative error of e^(−π²/(h·scale)); h makes that e^(−38). Up to scale 0.7 the density sets the step:
    0.25 leaves e^(−2π²/h²), less than 1e−130. Nodes: about 72·max(1, scale/1.04).

    Raises:
        ValueError: a scale outside 0 to ``LARGEST_LATTICE_SCALE``, a reach that is negative or not finite.
    """
    if not 0 <= scale <= LARGEST_LATTICE_SCALE:
        raise ValueError(f"scale: {scale} lies outside 0 to {LARGEST_LATTICE_SCALE:g}")
    if not 0 <= reach < np.inf:
        raise ValueError(f"reach: {reach} is negative or not finite")
    step = COARSEST_STEP if scale == 0 else min(COARSEST_STEP, np.pi**2 / (38.0 * scale))
    count = int(np.ceil(reach / step))
    z = np.arange(-count, count + 1, dtype=np.float64) * float(step)
    w: Array = np.exp(-z * z / 2)
    return z, w / w.sum()


@functools.lru_cache(maxsize=1)
def normal_panels() -> tuple[Array, Array]:
    """Return nodes and weights of E f(z), z ~ N(0, 1), for f analytic on either side of 0: exact to rounding.

    Features of f may be as fine as 1e-3 (``LARGEST_PANEL_SCALE``) near 0; f may still be a Hermite polynomial of
    degree 512 times such a function.
    """
    fine = 0.001 * 2.0 ** np.arange(9)
    edges = np.concatenate([[0.0], fine, np.arange(fine[-1], 14.0, 0.25)[1:]])
    nodes, weights = np.polynomial.legendre.leggauss(20)
    half = np.diff(edges) / 2
    z = (edges[:-1] + half)[:, None] + half[:, None] * nodes
    w = half[:, None] * weights * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    return np.concatenate([-z.ravel()[::-1], z.ravel()]), np.concatenate([w.ravel()[::-1], w.ravel()])
