"""The published tests of outputs, which take coordinates as independent; the permutation test does not.

Algorithm 1 of "Transformers Are Born Biased" (Section 6.1.1): coordinates chosen in both models by their mean output,
one Kendall tau a coordinate, and a t-test and a Mann–Whitney test of those taus against the taus of two independent
Gaussian matrices. On vectors that both models shared its p is far too small between unrelated models; on random tokens
it is too large between initializations (its mean over ten nulls is no p-value), and too small for some tails.

The analytic test of the SeedPrints code (ICLR 2026), from its description in methods, section 1: coordinates with the
smallest mean outputs of both models, a softmax of x/10 over them in each row, the mean of their tau-b, and a z from the
variance of Kendall's tau. On vectors that both models shared every unrelated pair is rejected, on random tokens about
as many as alpha says, with a tail that is too heavy (see the calibration experiment).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from scipy import special

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.permutation import INVARIANT_TO, check_alpha
from bornbiased_jax.lineage.verdict import Verdict, decide, undefined, unfit, varying
from bornbiased_jax.stats import tails
from bornbiased_jax.stats.kendall import tau_b

# Below this the normal approximations inside the published tests mean nothing.
MIN_INPUTS = 10
NULL_DRAWS = 10
"""Pairs of Gaussian matrices that Algorithm 1 averages its p over."""
CoordinateRule = Callable[[np.ndarray, int], np.ndarray]


def top_mean(outputs_ND: np.ndarray, num_dims: int) -> np.ndarray:
    """Return the ``num_dims`` coordinates with the largest mean output (M_g of Section 6.1.1)."""
    return bottom_mean(-outputs_ND, num_dims)


def bottom_mean(outputs_ND: np.ndarray, num_dims: int) -> np.ndarray:
    """Return the ``num_dims`` coordinates with the smallest mean output."""
    if num_dims < 1:
        raise InputError(f"num_dims={num_dims} is not at least 1")
    return np.sort(np.argsort(outputs_ND.mean(axis=0, dtype=np.float64), kind="stable")[:num_dims])


def default_num_dims(width: int) -> int:
    """Return m: 400 at D = 768, in proportion elsewhere (the tables need about 400; Section 5 says 50)."""
    return max(1, round(width * 400 / 768))


class TestStatistic(NamedTuple):
    """The statistic of a published test: ln p, z, taus of the pair, and the test's own facts."""

    log_p: float
    z: float
    taus: np.ndarray
    detail: Mapping[str, object] = {}


def published_test(
    test: str,
    outputs: tuple[np.ndarray, np.ndarray],
    num_dims: int,
    rule: CoordinateRule,
    measure: Callable[[np.ndarray, np.ndarray], TestStatistic | str],
    *,
    alpha: float,
    null: str,
) -> Verdict:
    """Run a test on the coordinates that both models chose by their own mean outputs, [N, D] of base and suspect.

    ``rule`` chooses coordinates from the outputs of one model; ``measure`` takes the statistic, or says why it is
    undefined, from those of both at the shared ones; ``null`` says in a word how coordinates are taken as independent.
    """
    # Refuse outputs that cannot be compared coordinate by coordinate.
    check_alpha(alpha)
    base_ND, suspect_ND = map(np.asarray, outputs)
    reason = unfit(base_ND, suspect_ND, min_inputs=MIN_INPUTS)
    num_inputs, width = base_ND.shape
    if reason is not None:
        return undefined(test, reason, num_inputs=num_inputs, alpha=alpha, width=width)
    # Coordinates that both models' rules take.
    dims = _shared(rule, num_dims, base_ND, suspect_ND)
    facts = {"width": width, "num_dims_each": num_dims, "num_dims": len(dims)}
    # Rank correlations over inputs, and the published test of them.
    measured = _unfit_dims(base_ND, suspect_ND, dims) or measure(base_ND[:, dims], suspect_ND[:, dims])
    if isinstance(measured, str):
        return undefined(test, measured, num_inputs=num_inputs, alpha=alpha, **facts)
    return decide(
        test,
        p_value=math.exp(measured.log_p),
        log10_p=measured.log_p / tails.LN10,
        z=measured.z,
        num_inputs=num_inputs,
        alpha=alpha,
        **facts,
        null="approximate",
        labels="coordinates",
        align="none",
        invariant_to=list(INVARIANT_TO),
        mean_tau=float(measured.taus.mean()),
        std_tau=float(measured.taus.std(ddof=1)),
        notes=[f"The published {null} null takes coordinates as independent; the permutation test does not."],
        **measured.detail,
    )


def _shared(rule: CoordinateRule, num_dims: int, base_ND: np.ndarray, suspect_ND: np.ndarray) -> np.ndarray:
    return np.intersect1d(rule(base_ND, num_dims), rule(suspect_ND, num_dims), assume_unique=True)


def _unfit_dims(base_ND: np.ndarray, suspect_ND: np.ndarray, dims: np.ndarray) -> str | None:
    """Return why a set of shared coordinates carries no distribution of taus, or None if it does."""
    if len(dims) < 3:
        return f"the two models share {len(dims)} chosen coordinates, 3 are needed: choose more in each"
    for name, outputs_ND in (("base", base_ND), ("suspect", suspect_ND)):
        constant = len(dims) - len(varying(outputs_ND[:, dims]))
        if constant:
            return f"{constant} chosen coordinates of the {name} are constant outputs, which have no tau"
    return None


@functools.lru_cache(maxsize=64)
def null_taus(num_inputs: int, width: int, num_dims: int, draw: int) -> np.ndarray:
    """Compute taus of the same pipeline on two independent N(0, I) matrices [N, D] (step 3, line 8).

    Returns:
        [|S_null|] float64, read-only: a draw depends on its arguments alone and is kept.
    """
    rng = np.random.default_rng([0x9A9E4, 0, draw])
    first_ND = rng.standard_normal((num_inputs, width), dtype=np.float32)
    second_ND = rng.standard_normal((num_inputs, width), dtype=np.float32)
    dims = _shared(top_mean, num_dims, first_ND, second_ND)
    taus = tau_b(first_ND[:, dims], second_ND[:, dims])
    taus.setflags(write=False)
    return taus


def paper_test(
    base_ND: np.ndarray, suspect_ND: np.ndarray, *, alpha: float = 0.01, num_dims: int | None = None
) -> Verdict:
    """Run Algorithm 1, with p the mean over :data:`NULL_DRAWS` Gaussian nulls.

    Args:
        base_ND: [N, D] outputs of the final norm at the last position.
        suspect_ND: [N, D], for the same inputs in the same order.
        alpha: level of the decision.
        num_dims: m, the coordinates taken from each model; :func:`default_num_dims` by default.

    Returns:
        A verdict by the t test (one-sided, equal variances), with the p of Mann and Whitney's U test (one-sided,
        normal approximation) alongside; z is the normal quantile of p. Undefined for unequal widths, fewer than 10
        inputs, fewer than 3 shared coordinates, or a constant coordinate among them.

    Raises:
        InputError: unequal numbers of inputs, numbers that are not finite, or a bad option.
    """
    width = np.atleast_1d(base_ND).shape[-1]
    num_dims = default_num_dims(width) if num_dims is None else num_dims

    def measure(base_NM: np.ndarray, suspect_NM: np.ndarray) -> TestStatistic | str:
        # Steps 2 and 3: taus of the pair and of Gaussian nulls.
        taus = tau_b(base_NM, suspect_NM)
        nulls = [null_taus(len(base_NM), width, num_dims, draw) for draw in range(NULL_DRAWS)]
        if min(len(null) for null in nulls) < 3:
            return f"the Gaussian null shares fewer than 3 coordinates at m = {num_dims}: choose a larger m"
        # Mean p over the nulls, in log space.
        log_t = tails.log_mean(np.array([tails.log_student_greater(taus, null) for null in nulls]))
        log_u = tails.log_mean(np.array([tails.log_mann_whitney_greater(taus, null) for null in nulls]))
        detail = {
            "decided_by": "t",
            "p_t": math.exp(log_t),
            "log10_p_t": log_t / tails.LN10,
            "p_u": math.exp(log_u),
            "log10_p_u": log_u / tails.LN10,
            "null_std_tau": float(np.mean([null.std(ddof=1) for null in nulls])),
            "num_null_draws": NULL_DRAWS,
        }
        return TestStatistic(log_t, tails.normal_isf(log_t), taus, detail)

    # Step 1: coordinates with the largest mean output in both models.
    outputs = base_ND, suspect_ND
    return published_test("paper", outputs, num_dims, top_mean, measure, alpha=alpha, null="Gaussian")


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

    def measure(base_NM: np.ndarray, suspect_NM: np.ndarray) -> TestStatistic:
        taus = tau_b(*(special.softmax(x.astype(np.float64) / 10.0, axis=1) for x in (base_NM, suspect_NM)))
        # Mean of k taus over n inputs against its variance 2(2n + 5)/(9n(n − 1))/k under independence, two-sided.
        num_inputs = len(base_NM)
        variance = 2 * (2 * num_inputs + 5) / (9 * num_inputs * (num_inputs - 1))
        z = float(taus.mean()) * math.sqrt(len(taus) / variance)
        log_p = min(0.0, math.log(2.0) + tails.log_normal_sf(z)) if math.isfinite(z) else math.nan
        return TestStatistic(log_p, z, taus)

    # Coordinates with the smallest mean output in both models.
    num_dims = min(num_dims, np.atleast_1d(base_ND).shape[-1])
    outputs = base_ND, suspect_ND
    return published_test("iclr", outputs, num_dims, bottom_mean, measure, alpha=alpha, null="analytic")
