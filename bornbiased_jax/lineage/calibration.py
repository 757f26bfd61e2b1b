"""The false-positive rate of each test, and its power.

Unrelated pairs are disjoint births (no model in two pairs), so that their p-values are independent given
the inputs and a binomial interval holds for the false-positive rate. Pairs that share models need
:func:`.stats.intervals.model_interval`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
from scipy import stats

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.births import final_outputs, shared_inputs
from bornbiased_jax.lineage.iclr import iclr_test
from bornbiased_jax.lineage.paper import paper_test
from bornbiased_jax.lineage.permutation import permutation_test
from bornbiased_jax.lineage.population import population_test
from bornbiased_jax.lineage.verdict import Verdict
from bornbiased_jax.probes.inputs import Inputs
from bornbiased_jax.stats.intervals import binomial_interval
from bornbiased_jax.stats.multiple import holm

LEVELS = (0.01, 0.05)
Pair = tuple[np.ndarray, np.ndarray]
PairTest = Callable[[np.ndarray, np.ndarray, int], Verdict]

# Permutations a pair: p < 0.01 has probability 0.0095 then, and thousands of pairs take minutes.
_PERMUTATIONS = 1999
_QQ_POINTS = 200


def pair_test(name: Literal["permutation", "paper", "iclr"], **options: Any) -> PairTest:
    """Return a test as a function of the base's outputs, the suspect's outputs and the number of the pair.

    Every pair gets permutations of its own. The Gaussian nulls of ``paper`` are the same for all pairs,
    as they are for a user.

    Args:
        name: the test.
        options: passed on to the test.

    Raises:
        InputError: no such test.
    """
    if name == "permutation":
        options = {"num_permutations": _PERMUTATIONS, **options}
        return lambda base, suspect, pair: permutation_test(base, suspect, seed=pair, **options)
    if name == "paper":
        return lambda base, suspect, pair: paper_test(base, suspect, **options)
    if name == "iclr":
        return lambda base, suspect, pair: iclr_test(base, suspect, **options)
    raise InputError(f"unknown test {name!r}: choose from permutation, paper, iclr")


def unrelated_pairs(cfg: ModelConfig, inputs: Inputs, num_pairs: int, *, first_seed: int = 0) -> Iterator[Pair]:
    """Yield outputs of disjoint pairs of untrained models: seeds ``first_seed`` + 2i and + 2i + 1, [N, D] each."""
    seeds = range(first_seed, first_seed + 2 * num_pairs)
    waiting = None
    for outputs_SND in final_outputs(cfg, seeds, shared_inputs(cfg, inputs)):
        for outputs_ND in outputs_SND:
            if waiting is None:
                waiting = outputs_ND
            else:
                yield waiting, outputs_ND
                waiting = None


def related_pairs(
    cfg: ModelConfig, inputs: Inputs, num_pairs: int, *, drift: float, first_seed: int = 0
) -> Iterator[Pair]:
    """Yield outputs of untrained models and of themselves drifted towards another one (:func:`.births.drifted`)."""
    x = shared_inputs(cfg, inputs)
    seeds = range(first_seed, first_seed + num_pairs)
    partner_seeds = range(first_seed + num_pairs, first_seed + 2 * num_pairs)
    births = final_outputs(cfg, seeds, x)
    descendants = final_outputs(cfg, seeds, x, drift=drift, drift_seeds=partner_seeds)
    for base_SND, descendant_SND in zip(births, descendants, strict=True):
        yield from zip(base_SND, descendant_SND, strict=True)


def population_pairs(
    cfg: ModelConfig,
    inputs: Inputs,
    num_pairs: int,
    *,
    num_references: int = 100,
    first_seed: int = 0,
) -> Iterator[Verdict]:
    """Yield verdicts of the population test on unrelated pairs, each with references of its own."""
    x = shared_inputs(cfg, inputs)
    each = num_references + 2
    for pair in range(num_pairs):
        seeds = range(first_seed + pair * each, first_seed + (pair + 1) * each)
        base_ND, suspect_ND, *references = np.concatenate(list(final_outputs(cfg, seeds, x)))
        yield population_test(base_ND, suspect_ND, references)


def run_tests(pairs: Iterable[Pair], tests: dict[str, PairTest]) -> dict[str, list[Verdict]]:
    """Run every test on every pair; verdicts in the order of the pairs."""
    verdicts: dict[str, list[Verdict]] = {name: [] for name in tests}
    for index, (base_ND, suspect_ND) in enumerate(pairs):
        for name, test in tests.items():
            verdicts[name].append(test(base_ND, suspect_ND, index))
    return verdicts


def summarise(verdicts: Sequence[Verdict], *, confidence: float = 0.95) -> dict[str, Any]:
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


def power(
    cfg: ModelConfig,
    inputs: Inputs,
    tests: dict[str, PairTest],
    *,
    drift: float,
    num_pairs: int,
    first_seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Run tests on untrained models and their drifted descendants: one summary a test, its rates being the power."""
    pairs = related_pairs(cfg, inputs, num_pairs, drift=drift, first_seed=first_seed)
    return {name: summarise(verdicts) for name, verdicts in run_tests(pairs, tests).items()}


def bonferroni_confidence(num_checks: int, family_error: float = 0.05) -> float:
    """Return the confidence of each of ``num_checks`` intervals for all to hold with 1 − ``family_error``."""
    return 1.0 - family_error / max(1, num_checks)


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
