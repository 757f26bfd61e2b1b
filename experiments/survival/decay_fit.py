"""How far z of an initialization falls with training: one form, fitted to the first decades and held against the last.

Stated before any number was seen:

- **Form.** The mean cosine of a coordinate of the initialization with its own after training falls as
  c(x) = (1 + x/τ)^(−β): one while x ≪ τ, a power law beyond. z is not proportional to c: the trace's own diagonal adds
  to the variance over permutations, so z(x) = (D − 1)·c/√(c² + s²), where s² = ((D − 1)/z₀)² − 1 is known from z₀, what
  the initialization itself reaches (n rows: s² ≈ D/n). τ and β are fitted, nothing else.
- **Clock.** x is the number of training tokens; and once more the learning rate summed over updates, which slows
  down as the schedule does. The second is not chosen where the first fails: both are reported.
- **Window.** With E the last checkpoint, checkpoints with 0 < tokens ≤ E/10 are fitted (means over seeds, weight
  1/(1 + (z/20)²)); those beyond are held out.
- **Check.** The form holds for a matrix if every held-out mean over seeds is within 20% of its prediction, or within 2
  where that is more. A form is worth its check only where it tells more than no change: next to it stands by how much
  carrying the last fitted z forward would have missed.
- **Extrapolation.** Only where the check holds: fitted again on all checkpoints, and read at 10·E tokens at most.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import least_squares

from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments.base import Entry

TENFOLD = 10.0
"""The last checkpoint's tokens over the end of the fitted window, and the farthest extrapolation over the last ones."""
RELATIVE, ABSOLUTE = 0.2, 2.0
"""How far from a prediction a held-out z may lie: the larger of 20% of it and 2."""
MIN_POINTS = 3

_EXPONENTS = (1e-2, 10.0)
_STARTS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0)


@dataclasses.dataclass(frozen=True)
class DecayFit:
    """A fitted decay of z.

    Attributes:
        ceiling: z₀ of the initialization with itself.
        width: D, the number of coordinates.
        scale: τ, in units of the clock.
        exponent: β.
        farthest: the last point of the clock that it may be asked for.
        determined: neither parameter lies at its bound.
    """

    ceiling: float
    width: int
    scale: float
    exponent: float
    farthest: float
    determined: bool = True

    def cosine(self, x: ArrayLike) -> np.ndarray:
        """Compute (1 + x/τ)^(−β)."""
        return (1.0 + np.asarray(x, float) / self.scale) ** -self.exponent

    def z(self, x: ArrayLike) -> np.ndarray:
        """Compute z at points of the clock.

        Raises:
            InputError: a point lies beyond the farthest.
        """
        farthest = float(np.max(np.asarray(x, float), initial=0.0))
        if farthest > self.farthest * (1 + 1e-9):
            raise InputError(f"{farthest:.3g} lies beyond what was fitted allows: ask for at most {self.farthest:.3g}")
        return z_of_cosine(self.cosine(x), self.width, self.ceiling)


def z_of_cosine(cosine: ArrayLike, width: int, ceiling: float) -> np.ndarray:
    """Compute z of the trace where every coordinate has this cosine, and ``ceiling`` where that is one.

    Example:
        >>> z_of_cosine([1.0, 0.5, 0.0], width=101, ceiling=50.0).round(1).tolist()
        [50.0, 27.7, 0.0]
    """
    c = np.asarray(cosine, float)
    noise = max((width - 1) ** 2 / ceiling**2 - 1.0, 0.0)
    return (width - 1) * c / np.sqrt(np.maximum(c**2 + noise, 1e-300))


def fit(x: ArrayLike, z: ArrayLike, *, ceiling: float, width: int, farthest: float) -> DecayFit:
    """Fit τ and β by least squares.

    Args:
        x: points of the clock, positive and ascending.
        z: what was measured there.
        ceiling: as of :class:`DecayFit`, as the next two.
        width: see there.
        farthest: see there.

    Raises:
        InputError: fewer than three points, or a ceiling that is not positive.
    """
    x, z = np.asarray(x, float), np.asarray(z, float)
    if len(x) < MIN_POINTS or not np.all(x > 0):
        raise InputError(
            f"{len(x)} checkpoints after the initialization are too few for two parameters: train longer, with "
            "log-spaced ones"
        )
    if not ceiling > 0:
        raise InputError(
            f"an initialization that reaches z = {ceiling:.3g} with itself has nothing to lose: leave it out"
        )
    weight = 1.0 / np.sqrt(1.0 + (z / 20.0) ** 2)
    low = [np.log(x[0] / 10.0), np.log(_EXPONENTS[0])]
    high = [np.log(x[-1] * TENFOLD**2), np.log(_EXPONENTS[1])]

    def decay_of(parameters: np.ndarray) -> DecayFit:
        return DecayFit(ceiling, width, float(np.exp(parameters[0])), float(np.exp(parameters[1])), farthest)

    def misses(parameters: np.ndarray) -> np.ndarray:
        return (decay_of(parameters).z(x) - z) * weight

    # From the best place of a grid: the sum of squares may have several hollows.
    starts_P2 = np.array([(a, b) for a in np.linspace(low[0], high[0], 25)[1:-1] for b in np.log(_STARTS)])
    cosines_Px = (1.0 + x / np.exp(starts_P2[:, :1])) ** -np.exp(starts_P2[:, 1:])
    costs_P = np.square((z_of_cosine(cosines_Px, width, ceiling) - z) * weight).sum(axis=1)
    best = least_squares(misses, starts_P2[np.argmin(costs_P)], bounds=(low, high))
    inside = np.all((best.x > np.add(low, 1e-3)) & (best.x < np.subtract(high, 1e-3)))
    return dataclasses.replace(decay_of(best.x), determined=bool(inside))


def check(decay: DecayFit, x: ArrayLike, z: ArrayLike, *, carried: float) -> Entry:
    """Compare predictions of held-out points with what was measured.

    Args:
        decay: fitted to earlier points.
        x: held-out points of the clock.
        z: what was measured there.
        carried: the last z that was fitted, the prediction of one who expects no change.

    Returns:
        JSON-ready: ``holds``, ``predicted``, ``measured``, ``worst`` (the largest miss over what is allowed: up to 1
        the form holds), ``carried_worst`` (the same of carrying forward).
    """
    measured = np.asarray(z, float)
    predicted = decay.z(x)
    worst, carried_worst = (
        float(np.max(np.abs(guess - measured) / np.maximum(ABSOLUTE, RELATIVE * np.abs(guess)), initial=0.0))
        for guess in (predicted, np.full_like(measured, carried))
    )
    return {
        "holds": bool(len(measured)) and worst <= 1.0,
        "predicted": predicted.tolist(),
        "measured": measured.tolist(),
        "worst": worst,
        "carried_worst": carried_worst,
    }
