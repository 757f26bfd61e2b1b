"""Every test on unrelated initializations and on drifted descendants: the numbers behind the calibration table."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from bornbiased_jax import progress
from bornbiased_jax.chunk_store import Chunk
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.experiments._shared import calibration
from bornbiased_jax.experiments.base import Context, chunked, spans
from bornbiased_jax.lineage.iclr import iclr_test
from bornbiased_jax.lineage.paper import paper_test
from bornbiased_jax.lineage.population import population_test
from bornbiased_jax.lineage.untrained_outputs import final_outputs, shared_inputs
from bornbiased_jax.lineage.verdict import Verdict
from bornbiased_jax.probes.inputs import random_inputs

KINDS = ("tokens", "gaussian")
TESTS = ("permutation", "population", "paper t", "paper U", "iclr")
# Seeds of one case; a case takes far fewer.
_SEEDS_A_CASE = 10_000_000

Case = Mapping[str, Any]
"""model, init, inputs ("tokens" or "gaussian") and its number, which sets its seeds and its inputs apart."""

Work = Callable[[Mapping[str, Any], Case], dict[str, Any]]
"""The experiment's settings and a case -> what a record keeps of it."""


def cases(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Combine every architecture with both initializations and both kinds of inputs."""
    combinations = itertools.product(settings["models"], settings["inits"], KINDS)
    return [
        {"model": model, "init": init, "inputs": kind, "number": number}
        for number, (model, init, kind) in enumerate(combinations)
    ]


def config(settings: Mapping[str, Any], case: Case, **changes: int) -> ModelConfig:
    """Return the case's architecture, with embeddings of each seed's own."""
    return preset(case["model"], **{**settings["changes"], "init": case["init"], **changes})


def results(context: Context, part: str) -> list[dict[str, Any]]:
    """Compute what :data:`PARTS` has under a name for every case; a killed run resumes from the store."""
    all_cases = cases(context.settings)
    # What only by_size and the page read does not change a case.
    power = {name: context.settings["power"][name] for name in ("drifts", "num_pairs")}
    settings = {"part": part, "settings": {**context.settings, "power": power}}
    with progress.bar(len(all_cases), f"calibration, {part}", unit="cases", quiet=context.quiet) as advance:
        outcomes = context.parts(f"calibration/{part}", compute, settings, spans(len(all_cases)), advance=advance)
    return [{"case": case, **outcome} for case, outcome in zip(all_cases, outcomes, strict=True)]


@chunked
def compute(settings: Mapping[str, Any], _sources: object, chunk: Chunk) -> dict[str, Any]:
    """Compute the outcome of the case that a chunk names by its number."""
    case_settings = settings["settings"]
    return PARTS[settings["part"]](case_settings, cases(case_settings)[chunk.start])


def published(base_ND: np.ndarray, suspect_ND: np.ndarray) -> dict[str, Verdict]:
    """Run the published tests on one pair; the two p of Algorithm 1 share one computation of its taus."""
    t = paper_test(base_ND, suspect_ND)
    return {"paper t": t, "paper U": by_u(t), "iclr": iclr_test(base_ND, suspect_ND)}


def by_u(verdict: Verdict) -> Verdict:
    """Decide a verdict of Algorithm 1 by its U-test in place of its t-test."""
    if verdict.p_value is None:
        return verdict
    p, log10_p = verdict.detail["p_u"], verdict.detail["log10_p_u"]
    decision: Any = "same-lineage" if p < verdict.alpha else "unrelated"
    return Verdict(decision, "", p, log10_p, None, verdict.test, verdict.num_inputs, verdict.alpha, verdict.detail)


def compact(verdicts: list[Verdict]) -> dict[str, list[float | None]]:
    """Collect p, log10 p and z of each verdict."""
    return {name: [getattr(verdict, name) for verdict in verdicts] for name in ("p_value", "log10_p", "z")}


def expanded(columns: Mapping[str, Any]) -> list[Verdict]:
    """Rebuild the verdicts, as far as a summary needs them."""
    rows = zip(columns["p_value"], columns["log10_p"], columns["z"], strict=True)
    return [Verdict("unrelated", "", p, log10_p, z, "", 0, 0.01) for p, log10_p, z in rows]


def unrelated(settings: Mapping[str, Any], case: Case) -> dict[str, Any]:
    """Run all tests on disjoint pairs of initializations; each test has its own number of pairs."""
    cfg = config(settings, case)
    inputs = random_inputs(case["inputs"], settings["num_inputs"], settings["seq_len"], cfg, seed=case["number"])
    pairs = settings["pairs"]
    permutation = pairs["permutation"][case["inputs"]]
    first = case["number"] * _SEEDS_A_CASE
    verdicts_by_test: dict[str, list[Verdict]] = {name: [] for name in TESTS}
    count = max(permutation, pairs["published"])
    initializations = calibration.unrelated_pairs(cfg, inputs, count, first_seed=first)
    for index, (base_ND, suspect_ND) in enumerate(initializations):
        if index < permutation:
            verdicts_by_test["permutation"].append(calibration.permutation_verdict(base_ND, suspect_ND, index))
        if index < pairs["published"]:
            for name, verdict in published(base_ND, suspect_ND).items():
                verdicts_by_test[name].append(verdict)
    verdicts_by_test["population"] = list(
        calibration.population_pairs(
            cfg,
            inputs,
            pairs["population"],
            num_references=settings["num_references"],
            first_seed=first + 2 * count,
        )
    )
    return {"verdicts": {name: compact(verdicts) for name, verdicts in verdicts_by_test.items()}}


def related(settings: Mapping[str, Any], case: Case) -> dict[str, Any]:
    """Run all tests on initializations and their descendants at several drifts: how often each finds the seed."""
    cfg, power = config(settings, case), settings["power"]
    inputs = random_inputs(case["inputs"], settings["num_inputs"], settings["seq_len"], cfg, seed=case["number"])
    # Seeds that the unrelated pairs do not use. Power needs no independent references: they are shared.
    first = case["number"] * _SEEDS_A_CASE + _SEEDS_A_CASE // 2
    seeds = range(first + 2 * power["num_pairs"], first + 2 * power["num_pairs"] + settings["num_references"])
    references = np.concatenate(list(final_outputs(cfg, seeds, shared_inputs(cfg, inputs))))
    by_drift = []
    for drift in power["drifts"]:
        verdicts_by_test: dict[str, list[Verdict]] = {name: [] for name in TESTS}
        pairs = calibration.related_pairs(cfg, inputs, power["num_pairs"], drift=drift, first_seed=first)
        for index, (base_ND, suspect_ND) in enumerate(pairs):
            verdicts_by_test["permutation"].append(calibration.permutation_verdict(base_ND, suspect_ND, index))
            verdicts_by_test["population"].append(population_test(base_ND, suspect_ND, references))
            for name, verdict in published(base_ND, suspect_ND).items():
                verdicts_by_test[name].append(verdict)
        by_drift.append(
            {"drift": drift, "tests": {name: _power(verdicts) for name, verdicts in verdicts_by_test.items()}}
        )
    return {"by_drift": by_drift}


def _power(verdicts: list[Verdict]) -> dict[str, Any]:
    summary = calibration.summarize(verdicts)
    return {name: summary[name] for name in ("num_pairs", "num_undefined", "rates", "z_mean", "z_std")}


PARTS: dict[str, Work] = {"unrelated": unrelated, "related": related}


def by_size(context: Context) -> list[dict[str, Any]]:
    """Measure the permutation test's power on tokens against n, length and width, all else as in the settings."""
    settings, rows = context.settings, []
    power = settings["power"]
    base = {"num_inputs": settings["num_inputs"], "seq_len": settings["seq_len"], "d_model": None}
    for number, (axis, value) in enumerate(_variations(power["sizes"])):
        sizes = {**base, axis: value}
        width = {"d_model": sizes["d_model"], "d_ff": 2 * sizes["d_model"]} if sizes["d_model"] else {}
        case = {"model": power["model"], "init": power["init"]}
        cfg = config(settings, case, **width)
        inputs = random_inputs("tokens", sizes["num_inputs"], sizes["seq_len"], cfg, seed=number)
        pairs = calibration.related_pairs(
            cfg, inputs, power["num_pairs"], drift=power["drift"], first_seed=number * 100_000
        )
        verdicts = [calibration.permutation_verdict(*pair, index) for index, pair in enumerate(pairs)]
        summary = calibration.summarize(verdicts)
        rows.append({"what": axis, "value": value, **{key: summary[key] for key in ("rates", "z_mean", "z_std")}})
    return rows


def _variations(sizes: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for axis, values in sizes.items():
        for value in values:
            yield axis, value


def run(context: Context) -> dict[str, Any]:
    """Summarize every test in every case, pool over cases, measure power, and check calibration.

    The family holds the tests that claim to be calibrated: the permutation test on tokens, and the
    population test on both kinds of inputs, three checks each (rates at 1% and 5%, uniformity). Each is
    checked at 0.05 divided by their number (Bonferroni).
    """
    # Outcomes of all cases under both hypotheses.
    null = results(context, "unrelated")
    alternative = results(context, "related")
    # Checks of the tests that claim calibration share one family-wise level.
    claimed = [
        (outcome, test) for outcome in null for test in TESTS if claims_calibration(test, outcome["case"]["inputs"])
    ]
    confidence = 1.0 - 0.05 / max(1, 3 * len(claimed))
    # A row for every case and test.
    table, family = [], {}
    for outcome, power in zip(null, alternative, strict=True):
        for test in TESTS:
            verdicts = expanded(outcome["verdicts"][test])
            summary = calibration.summarize(verdicts, confidence=confidence)
            summary.pop("qq")
            claim = claims_calibration(test, outcome["case"]["inputs"])
            row = {**outcome["case"], "test": test, "claims_calibration": claim, **summary}
            row["power"] = [{"drift": entry["drift"], **entry["tests"][test]} for entry in power["by_drift"]]
            table.append(row)
            if claim:
                family[
                    f"{outcome['case']['model']}, {outcome['case']['init']}, {outcome['case']['inputs']}, {test}"
                ] = summary
    # The same tests, pooled over architectures and initializations.
    pooled = []
    for kind, test in itertools.product(KINDS, TESTS):
        verdicts = [
            verdict
            for outcome in null
            if outcome["case"]["inputs"] == kind
            for verdict in expanded(outcome["verdicts"][test])
        ]
        summary = calibration.summarize(verdicts)
        summary.pop("qq")
        logs = [round(verdict.log10_p, 4) for verdict in verdicts if verdict.log10_p is not None]
        ranks = [round(float(np.log10(verdict.p_value)), 4) for verdict in verdicts if verdict.p_value]
        exact = test in ("permutation", "population")
        pooled.append({"inputs": kind, "test": test, "log10_p": ranks if exact else logs, **summary})
    return {
        "cases": table,
        "pooled": pooled,
        "by_size": by_size(context),
        "confidence": confidence,
        "family": calibration.check_family(family),
    }


def claims_calibration(test: str, kind: str) -> bool:
    """Return whether a test says that its false-positive rate is alpha on such inputs."""
    return test == "population" or (test == "permutation" and kind == "tokens")
