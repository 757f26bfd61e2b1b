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
from bornbiased_jax.lineage.paper import Measured, bottom_mean, published_test
from bornbiased_jax.lineage.verdict import Verdict
from bornbiased_jax.stats import tails
from bornbiased_jax.stats.kendall import tau_b


def iclr_test(base_ND: np.ndarray, suspect_ND: np.ndarray, *, alpha: float = 0.01, num_dims: int = 400) -> Verdict:
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
    if num_dims < 1:
        raise InputError(f"num_dims={num_dims} is not at least 1")

    def measure(base_NM: np.ndarray, suspect_NM: np.ndarray) -> Measured:
        taus = tau_b(*(special.softmax(x.astype(np.float64) / 10.0, axis=1) for x in (base_NM, suspect_NM)))
        # Mean of k taus over n inputs against its variance 2(2n + 5)/(9n(n − 1))/k under independence, two-sided.
        num_inputs = len(base_NM)
        variance = 2 * (2 * num_inputs + 5) / (9 * num_inputs * (num_inputs - 1))
        z = float(taus.mean()) * math.sqrt(len(taus) / variance)
        log_p = min(0.0, math.log(2.0) + tails.log_normal_sf(z)) if math.isfinite(z) else math.nan
        return Measured(log_p, z, taus)

    # Coordinates with the smallest mean output in both models.
    num_dims = min(num_dims, np.atleast_1d(base_ND).shape[-1])
    outputs = base_ND, suspect_ND
    return published_test("iclr", outputs, num_dims, bottom_mean, measure, alpha=alpha, null="analytic")
