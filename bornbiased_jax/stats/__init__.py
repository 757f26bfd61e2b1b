"""Statistics of all packages: tails in log space, ranks, rank correlations, permutations, intervals."""

from bornbiased_jax.stats.bound import joint_bound, tail_bound
from bornbiased_jax.stats.certified import Certified, certified_p
from bornbiased_jax.stats.intervals import binomial_interval, mean_interval, model_interval, ratio_interval
from bornbiased_jax.stats.kendall import cross_kendall, tau_b
from bornbiased_jax.stats.multiple import holm, holm_log10
from bornbiased_jax.stats.ranks import rank_correlation, unit_ranks
from bornbiased_jax.stats.tails import (
    expected_top_count,
    log10_binomial_tail,
    log10_chi2_tail,
    log10_preference_p,
    log10_rayleigh_p,
    log_fisher,
    log_normal_sf,
    log_spearman,
    log_t_sf,
    normal_isf,
)

__all__ = [
    "Certified",
    "binomial_interval",
    "certified_p",
    "cross_kendall",
    "expected_top_count",
    "holm",
    "holm_log10",
    "joint_bound",
    "log10_binomial_tail",
    "log10_chi2_tail",
    "log10_preference_p",
    "log10_rayleigh_p",
    "log_fisher",
    "log_normal_sf",
    "log_spearman",
    "log_t_sf",
    "mean_interval",
    "model_interval",
    "normal_isf",
    "rank_correlation",
    "ratio_interval",
    "tail_bound",
    "tau_b",
    "unit_ranks",
]
