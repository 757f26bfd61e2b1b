"""Measure the false-positive rate and the power of tests of outputs.

Unrelated pairs are disjoint initializations (no model in two pairs), so that their p-values are independent given
the inputs and a binomial interval holds for the false-positive rate. Pairs that share models need
:func:`.stats.intervals.model_interval`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage.outputs import OutputOptions, last_outputs
from bornbiased_jax.lineage.permutation import permutation_test
from bornbiased_jax.lineage.population import population_test
from bornbiased_jax.lineage.untrained_outputs import final_outputs
from bornbiased_jax.lineage.verdict import Verdict
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes.inputs import Inputs
from bornbiased_jax.stats.intervals import binomial_interval
from bornbiased_jax.stats.multiple import holm

LEVELS = (0.01, 0.05)
Pair = tuple[np.ndarray, np.ndarray]
NUM_PERMUTATIONS = 1999
"""Permutations a pair: p < 0.01 has probability 0.0095 then, and thousands of pairs take minutes."""
_QQ_POINTS = 200


def permutation_verdict(
    base_ND: np.ndarray, suspect_ND: np.ndarray, pair: int, *, num_permutations: int = NUM_PERMUTATIONS
) -> Verdict:
    """Run the permutation test on one pair of outputs; the pair's number seeds its permutations."""
    return permutation_test(base_ND, suspect_ND, seed=pair, num_permutations=num_permutations)


def unrelated_pairs(cfg: ModelConfig, inputs: Inputs, num_pairs: int, *, first_seed: int = 0) -> Iterator[Pair]:
    """Return outputs of disjoint pairs of untrained models: seeds ``first_seed`` + 2i and + 2i + 1, [N, D] each."""
    seeds = range(first_seed, first_seed + 2 * num_pairs)
    outputs = itertools.chain.from_iterable(final_outputs(cfg, seeds, inputs))
    return zip(outputs, outputs, strict=True)


def related_pairs(
    cfg: ModelConfig, inputs: Inputs, num_pairs: int, *, drift: float, first_seed: int = 0
) -> Iterator[Pair]:
    """Yield outputs of untrained models and of themselves drifted toward another one (:func:`drifted`)."""
    # Each base drifts toward a seed that no pair uses.
    seeds = range(first_seed, first_seed + num_pairs)
    bases = itertools.chain.from_iterable(final_outputs(cfg, seeds, inputs))
    for seed, base_ND in zip(seeds, bases, strict=True):
        descendant = drifted_seed(cfg, np.uint32(seed), np.uint32(seed + num_pairs), drift)
        yield base_ND, last_outputs(cfg, descendant, inputs, OutputOptions((0.0, cfg.embedding_std)))


def drifted(params: Params, other: Params, drift: jax.Array | float) -> Params:
    """Mix √(1 − s²)·W + s·W′: a stand-in for a descendant with every standard deviation of its initial weights.

    At s = 0 it is the first initialization, at s = 1 the other, unrelated one. Entries that are equal in both (norm
    scales, zero biases) stay.
    """
    base_factor = jnp.sqrt(1.0 - jnp.square(jnp.asarray(drift)))
    return jax.tree.map(lambda a, b: jnp.where(a == b, a, base_factor * a + drift * b), params, other)


@functools.partial(jax.jit, static_argnums=0)
def drifted_seed(cfg: ModelConfig, seed: jax.Array, other: jax.Array, drift: jax.Array) -> Params:
    """Draw the initial weights of a seed, drifted toward those of another."""
    return drifted(init_seed(cfg, seed), init_seed(cfg, other), drift)


def population_pairs(
    cfg: ModelConfig,
    inputs: Inputs,
    num_pairs: int,
    *,
    num_references: int = 100,
    first_seed: int = 0,
) -> Iterator[Verdict]:
    """Yield verdicts of the population test on unrelated pairs, each with references of its own."""
    num_seeds = num_references + 2
    for pair in range(num_pairs):
        seeds = range(first_seed + pair * num_seeds, first_seed + (pair + 1) * num_seeds)
        base_ND, suspect_ND, *references = np.concatenate(list(final_outputs(cfg, seeds, inputs)))
        yield population_test(base_ND, suspect_ND, references)


def summarize(verdicts: Sequence[Verdict], *, confidence: float = 0.95) -> dict[str, Any]:
    """Summarize the distribution of p over pairs, JSON-ready.

    Undefined verdicts are counted and left out. For unrelated pairs a calibrated test has rates that its
    intervals cover (``binomial_p`` is the two-sided exact test of that) and a p that is uniform (``ks_p``);
    for related ones the rates are its power.

    Args:
        verdicts: of one test.
        confidence: of the intervals (Clopper and Pearson).

    Returns:
        ``num_pairs``, ``num_undefined``, ``rates`` (a list, one of ``LEVELS`` each), ``ks_statistic``, ``ks_p``,
        ``z_mean``, ``z_std`` and ``qq`` (``expected`` and ``observed`` quantiles of p, 200 at most).
    """
    defined = [verdict for verdict in verdicts if verdict.p_value is not None]
    p_values = np.sort(np.array([verdict.p_value for verdict in defined], np.float64))
    z_values = np.array([verdict.z for verdict in defined if verdict.z is not None], np.float64)
    count = len(p_values)
    summary: dict[str, Any] = {
        "num_pairs": len(verdicts),
        "num_undefined": len(verdicts) - count,
        "rates": [],
        "ks_statistic": None,
        "ks_p": None,
        "z_mean": float(z_values.mean()) if len(z_values) else None,
        "z_std": float(z_values.std(ddof=1)) if len(z_values) > 1 else None,
        "qq": {"expected": [], "observed": []},
    }
    if count == 0:
        return summary
    # Rejection rates with their intervals and the exact test of each.
    for level in LEVELS:
        below = int((p_values < level).sum())
        low, high = binomial_interval(below, count, confidence)
        summary["rates"].append(
            {
                "level": level,
                "count": below,
                "rate": below / count,
                "low": low,
                "high": high,
                "confidence": confidence,
                "binomial_p": float(stats.binomtest(below, count, level).pvalue),
            }
        )
    # Uniformity over all levels, and quantiles for a plot.
    ks = stats.kstest(p_values, "uniform")
    quantile_ranks = np.unique(np.linspace(0, count - 1, min(count, _QQ_POINTS)).round().astype(int))
    return summary | {
        "ks_statistic": float(ks.statistic),
        "ks_p": float(ks.pvalue),
        "qq": {"expected": ((quantile_ranks + 0.5) / count).tolist(), "observed": p_values[quantile_ranks].tolist()},
    }


def check_family(summaries: dict[str, dict[str, Any]], *, family_error: float = 0.05) -> dict[str, Any]:
    """Test whether a family of summaries of unrelated pairs is calibrated, corrected for the number of checks.

    Each summary brings one binomial check a level and one Kolmogorov–Smirnov check, all held together by
    Holm's correction.

    Args:
        summaries: by the name of the case.
        family_error: probability of rejecting anything when all are calibrated.

    Returns:
        ``calibrated``, ``num_checks`` and ``checks``: a list of ``case``, ``check``, ``p``, ``adjusted_p``.
    """
    checks: list[dict[str, Any]] = []
    for case, summary in summaries.items():
        for rate in summary["rates"]:
            checks.append({"case": case, "check": f"rate below {rate['level']:g}", "p": rate["binomial_p"]})
        if summary["ks_p"] is not None:
            checks.append({"case": case, "check": "uniform", "p": summary["ks_p"]})
    adjusted = holm([check["p"] for check in checks])
    for check, value in zip(checks, adjusted, strict=True):
        check["adjusted_p"] = float(value)
    least = min((check["adjusted_p"] for check in checks), default=math.nan)
    return {"calibrated": bool(least >= family_error), "num_checks": len(checks), "checks": checks}
