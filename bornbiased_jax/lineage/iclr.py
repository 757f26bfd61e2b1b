"""The analytic test of the SeedPrints code (ICLR 2026), from its description in methods, section 1.

Coordinates with the smallest mean outputs of both models, a softmax of x/10 over them in each row, the
mean of their tau-b, and a z from the variance of Kendall's tau as if the coordinates were independent.
They are not: on vectors that both models shared every unrelated pair is rejected, on random tokens about as
many as alpha says, with a tail that is too heavy (see the calibration experiment).
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.paper import MIN_INPUTS, unfit_dims
from bornbiased_jax.lineage.permutation import INVARIANT_TO, bottom_mean, check_alpha
from bornbiased_jax.lineage.verdict import Verdict, decide, undefined, unfit
from bornbiased_jax.stats import tails
from bornbiased_jax.stats.kendall import tau_b

DEFAULT_NUM_DIMS = 400
_TEMPERATURE = 10.0


def row_softmax(outputs_NM: np.ndarray) -> np.ndarray:
    """Compute the softmax of x/10 over the given columns, row by row, in float64."""
    return special.softmax(np.asarray(outputs_NM, np.float64) / _TEMPERATURE, axis=1)


def analytic_z(mean_tau: float, num_dims: int, num_inputs: int) -> float:
    """Compute z = mean tau · √k / √(2(2n + 5) / (9n(n − 1))), k taus over n inputs."""
    variance = 2 * (2 * num_inputs + 5) / (9 * num_inputs * (num_inputs - 1))
    return mean_tau * math.sqrt(num_dims / variance)


def iclr_test(
    base_ND: np.ndarray, suspect_ND: np.ndarray, *, alpha: float = 0.01, num_dims: int = DEFAULT_NUM_DIMS
) -> Verdict:
    """Run the authors' analytic test: p = 2(1 − Φ(z)), capped at 1.

    Args:
        base_ND: [N, D] outputs of the final norm at the last position.
        suspect_ND: [N, D], for the same inputs in the same order.
        alpha: level of the decision.
        num_dims: coordinates taken from each model: 400 whatever D, as published (all of them if D is
            smaller); the published readme says 10% of D.

    Returns:
        A verdict. Undefined for unequal widths, fewer than 10 inputs, or fewer than 3 shared coordinates
        (the softmax makes 2 of them mirror images), or a constant coordinate among them.

    Raises:
        InputError: unequal numbers of inputs, numbers that are not finite, or a bad option.
    """
    name = "iclr"
    check_alpha(alpha)
    if num_dims < 1:
        raise InputError(f"num_dims={num_dims} is not at least 1")
    base_ND, suspect_ND = np.asarray(base_ND), np.asarray(suspect_ND)
    reason = unfit(base_ND, suspect_ND, min_inputs=MIN_INPUTS)
    num_inputs, width = base_ND.shape
    if reason is not None:
        return undefined(name, reason, num_inputs=num_inputs, alpha=alpha, width=width)
    # Coordinates with the smallest mean output in both models.
    rule = bottom_mean(num_dims)
    dims = np.intersect1d(rule(base_ND), rule(suspect_ND), assume_unique=True)
    facts = {"width": width, "num_dims_each": min(num_dims, width), "num_dims": len(dims)}
    reason = unfit_dims(base_ND, suspect_ND, dims)
    if reason is not None:
        return undefined(name, reason, num_inputs=num_inputs, alpha=alpha, **facts)
    # Mean tau against its variance under independence, two-sided.
    taus = tau_b(row_softmax(base_ND[:, dims]), row_softmax(suspect_ND[:, dims]))
    z = analytic_z(float(taus.mean()), len(dims), num_inputs)
    log_p = min(0.0, math.log(2.0) + tails.log_normal_sf(z)) if math.isfinite(z) else math.nan
    return decide(
        name,
        p_value=math.exp(log_p),
        log10_p=log_p / tails.LN10,
        z=z,
        num_inputs=num_inputs,
        alpha=alpha,
        **facts,
        null="approximate",
        labels="coordinates",
        align="none",
        invariant_to=list(INVARIANT_TO),
        mean_tau=float(taus.mean()),
        std_tau=float(taus.std(ddof=1)),
        notes=["The published analytic null takes coordinates as independent; the permutation test does not."],
    )
