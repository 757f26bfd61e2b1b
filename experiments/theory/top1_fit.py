"""The test of fit of the top-1 token's count over seeds: its distribution in theory against that of measured models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from bornbiased_jax.config import preset
from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.base import Entry
from bornbiased_jax.prediction import stack_of
from bornbiased_jax.theory.logits import Scatter
from bornbiased_jax.theory.mean_field import profile
from bornbiased_jax.theory.predict import contraction, scatter
from bornbiased_jax.theory.preference import TopFraction, top1_distribution

WRONG = 1.25
"""A negative control: the same test of fit, of theory with its cosine multiplied by this."""


def distribution_function(fraction: TopFraction, counts: np.ndarray) -> np.ndarray:
    """Return P(top count ≤ counts) over seeds, interpolated between the tabulated counts, 0 below 0."""
    return np.where(counts < 0, 0.0, np.interp(counts, fraction.counts, fraction.cdf / fraction.cdf[-1]))


def ranks(fraction: TopFraction, counts: np.ndarray) -> np.ndarray:
    """Compute the probability integral transform of measured top counts [S]: uniform on (0, 1) if theory is right.

    A count stands for the interval between the values of the distribution function below and at it; where in
    the interval is drawn, always with the same generator, so that equal counts fall as they should.
    """
    counts = np.asarray(counts, float)
    low, high = distribution_function(fraction, counts - 1), distribution_function(fraction, counts)
    return low + (high - low) * np.random.default_rng(0).uniform(size=counts.shape)


def expected_fraction(group: probing.Group, factor: float = 1.0, isotropic: bool = False) -> TopFraction:
    """Return theory's distribution of the top count over seeds, with the cosine multiplied by ``factor``.

    With ``isotropic``, inputs scatter evenly around their mean, which real ones do not. The group's inputs are
    Gaussian, so that no input's own last token is favored by a tied head.
    """
    cfg = preset(group["model"], **group["changes"])
    prediction = profile(stack_of(cfg, tokens=False), group["seq_len"])
    cosine = contraction(prediction, group["num_inputs"])
    rho = float(np.clip(factor * cosine.mean[-1], 0.0, 1.0))
    std = factor * float(cosine.seed_std[-1])
    scattered = Scatter(cfg.d_model) if isotropic else scatter(prediction)
    return top1_distribution(rho, cfg.vocab_size, group["num_inputs"], rho_std=std, **scattered._asdict())


def fit_of(group: probing.Group, counts: Sequence[int]) -> Entry:
    """Test the fit of the top counts over seeds: Kolmogorov and Smirnov's, of their ranks under theory.

    Controls are the same test of a theory whose cosine is ``WRONG`` times as large, and of one whose inputs scatter
    evenly. All seeds see the same inputs; what those have in common is small against the standard
    deviation across seeds when the inputs are many.
    """
    expected = expected_fraction(group)
    rank_values = ranks(expected, np.asarray(counts))
    grid = np.linspace(0, 1.2 * max(counts), 200)
    controls = {
        "control_p": expected_fraction(group, WRONG),
        "isotropic_p": expected_fraction(group, isotropic=True),
    }
    return {
        "curve": {"share": grid / group["num_inputs"], "cdf": distribution_function(expected, grid)},
        "ranks": np.sort(rank_values),
        "p": float(stats.kstest(rank_values, "uniform").pvalue),
        "share_mean": expected.fraction_mean,
        "share_std": expected.fraction_std,
        "share_p10": expected.fraction_p10,
        "share_p90": expected.fraction_p90,
        **{
            name: float(stats.kstest(ranks(wrong, np.asarray(counts)), "uniform").pvalue)
            for name, wrong in controls.items()
        },
    }
