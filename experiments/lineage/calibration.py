"""Calibration: the false-positive rate of each lineage test on unrelated models, alongside its power."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bornbiased_jax.chunk_store import Chunk
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.experiments._shared import calibration
from bornbiased_jax.experiments._shared.calibration import summarize, summarize_verdicts
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record, chunked
from bornbiased_jax.experiments.lineage import settings
from bornbiased_jax.lineage.paper import iclr_test, paper_test
from bornbiased_jax.lineage.population import population_test
from bornbiased_jax.lineage.untrained_outputs import final_outputs
from bornbiased_jax.lineage.verdict import Verdict
from bornbiased_jax.probes.inputs import random_inputs
from bornbiased_jax.report.numbers import fixed, p_value, percent, rate_interval
from bornbiased_jax.report.tables import Cells, Claim, Table, tabulate

INPUTS = {"tokens": "random tokens", "gaussian": "shared Gaussian vectors"}
SHORT = {"tokens": "tokens", "gaussian": "vectors"}
NAMES = {
    "permutation": "permutation",
    "population": "population",
    "paper t": "paper, t-test",
    "paper U": "paper, U-test",
    "iclr": "iclr, analytic",
}
"""Every test by its name in records, and as a table has it."""

# Seeds of one case; a case takes far fewer.
_SEEDS_A_CASE = 10_000_000

VerdictColumns = Mapping[str, Sequence[float | None]]
"""p, log10 p and z of each verdict of one test."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One architecture, initialization and kind of inputs; the number sets its seeds and its inputs apart."""

    model: str
    init: str
    inputs: str
    number: int


def cases(settings: Entry) -> list[Case]:
    """Combine every architecture with both initializations and both kinds of inputs."""
    combinations = itertools.product(settings["models"], settings["inits"], INPUTS)
    return [Case(*combination, number) for number, combination in enumerate(combinations)]


def config(settings: Entry, model: str, init: str, **changes: int) -> ModelConfig:
    """Return an architecture, with embeddings of each seed's own."""
    return preset(model, **{**settings["changes"], "init": init, **changes})


@chunked
def compute(settings: Entry, _sources: object, chunk: Chunk) -> list[Entry]:
    """Run all tests under both hypotheses, in the case that a chunk names by its number."""
    case = cases(settings)[chunk.start]
    return [{"unrelated": unrelated(settings, case), "related": related(settings, case)}]


def published(base_ND: np.ndarray, suspect_ND: np.ndarray) -> dict[str, Verdict]:
    """Run the published tests on one pair; the two p of Algorithm 1 share one computation of its taus."""
    t = paper_test(base_ND, suspect_ND)
    return {"paper t": t, "paper U": by_u(t), "iclr": iclr_test(base_ND, suspect_ND)}


def by_u(verdict: Verdict) -> Verdict:
    """Decide a verdict of Algorithm 1 by its U-test in place of its t-test."""
    if verdict.p_value is None:
        return verdict
    detail: Entry = verdict.detail
    p, log10_p = detail["p_u"], detail["log10_p_u"]
    decision: Any = "same-lineage" if p < verdict.alpha else "unrelated"
    return Verdict(decision, "", p, log10_p, None, verdict.test, verdict.num_inputs, verdict.alpha, verdict.detail)


def unrelated(settings: Entry, case: Case) -> dict[str, VerdictColumns]:
    """Run all tests on disjoint pairs of initializations; each test has its own number of pairs."""
    cfg = config(settings, case.model, case.init)
    inputs = random_inputs(case.inputs, settings["num_inputs"], settings["seq_len"], cfg, seed=case.number)
    pairs = settings["pairs"]
    num_permutation = pairs["permutation"][case.inputs]
    first = case.number * _SEEDS_A_CASE
    verdicts_by_test: dict[str, list[Verdict]] = {name: [] for name in NAMES}
    count = max(num_permutation, pairs["published"])
    initializations = calibration.unrelated_pairs(cfg, inputs, count, first_seed=first)
    for index, (base_ND, suspect_ND) in enumerate(initializations):
        if index < num_permutation:
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
    return {
        name: {field: [getattr(verdict, field) for verdict in verdicts] for field in ("p_value", "log10_p", "z")}
        for name, verdicts in verdicts_by_test.items()
    }


def related(settings: Entry, case: Case) -> Sequence[Entry]:
    """Run all tests on initializations and their descendants at several drifts: how often each finds the seed."""
    cfg, power = config(settings, case.model, case.init), settings["power"]
    inputs = random_inputs(case.inputs, settings["num_inputs"], settings["seq_len"], cfg, seed=case.number)
    # Seeds that the unrelated pairs do not use. Power needs no independent references: they are shared.
    first = case.number * _SEEDS_A_CASE + _SEEDS_A_CASE // 2
    seeds = range(first + 2 * power["num_pairs"], first + 2 * power["num_pairs"] + settings["num_references"])
    references = list(final_outputs(cfg, seeds, inputs))
    by_drift = []
    for drift in power["drifts"]:
        verdicts_by_test: dict[str, list[Verdict]] = {name: [] for name in NAMES}
        pairs = calibration.related_pairs(cfg, inputs, power["num_pairs"], drift=drift, first_seed=first)
        for index, (base_ND, suspect_ND) in enumerate(pairs):
            verdicts_by_test["permutation"].append(calibration.permutation_verdict(base_ND, suspect_ND, index))
            verdicts_by_test["population"].append(population_test(base_ND, suspect_ND, references))
            for name, verdict in published(base_ND, suspect_ND).items():
                verdicts_by_test[name].append(verdict)
        by_drift.append({"drift": drift, "tests": {name: _power_of(row) for name, row in verdicts_by_test.items()}})
    return by_drift


def _power_of(verdicts: Sequence[Verdict]) -> Entry:
    summary = dataclasses.asdict(summarize_verdicts(verdicts))
    return {name: summary[name] for name in ("num_pairs", "num_undefined", "rates", "z_mean", "z_std")}


def by_size(settings: Entry) -> Iterator[Entry]:
    """Measure the permutation test's power on tokens against n, length and width, all else as in the settings."""
    power = settings["power"]
    base = {"num_inputs": settings["num_inputs"], "seq_len": settings["seq_len"], "d_model": None}
    variations = [(axis, value) for axis, values in power["sizes"].items() for value in values]
    for number, (axis, value) in enumerate(variations):
        sizes = {**base, axis: value}
        width = {"d_model": sizes["d_model"], "d_ff": 2 * sizes["d_model"]} if sizes["d_model"] else {}
        cfg = config(settings, power["model"], power["init"], **width)
        inputs = random_inputs("tokens", sizes["num_inputs"], sizes["seq_len"], cfg, seed=number)
        pairs = calibration.related_pairs(
            cfg, inputs, power["num_pairs"], drift=power["drift"], first_seed=number * 100_000
        )
        verdicts = [calibration.permutation_verdict(*pair, index) for index, pair in enumerate(pairs)]
        summary = summarize_verdicts(verdicts)
        yield {
            "what": axis, "value": value, "rates": summary.rates, "z_mean": summary.z_mean, "z_std": summary.z_std
        }  # fmt: skip


def run(context: Context) -> Entry:
    """Summarize every test in every case, pool over cases, measure power, and check calibration.

    The family holds the tests that claim to be calibrated: the permutation test on tokens, and the
    population test on both kinds of inputs, three checks each (rates at 1% and 5%, uniformity). Each is
    checked at 0.05 divided by their number (Bonferroni).
    """
    settings = context.settings
    all_cases = cases(settings)
    # What only by_size and the page read does not change a case.
    of_cases = {**settings, "power": {name: settings["power"][name] for name in ("drifts", "num_pairs")}}
    outcomes = context.rows("calibration/cases", compute, of_cases, len(all_cases), unit="cases")
    null, alternative = ([outcome[name] for outcome in outcomes] for name in ("unrelated", "related"))
    # Checks of the tests that claim calibration share one family-wise level.
    claimed = [(case, test) for case in all_cases for test in NAMES if claims_calibration(test, case.inputs)]
    confidence = 1.0 - 0.05 / max(1, 3 * len(claimed))
    # A row for every case and test.
    table, family = [], {}
    for case, columns_by_test, powers in zip(all_cases, null, alternative, strict=True):
        for test in NAMES:
            columns = columns_by_test[test]
            summary = summarize(columns["p_value"], columns["z"], confidence=confidence)
            row = {**dataclasses.asdict(case), "test": test, "claims_calibration": (case, test) in claimed}
            power = [{"drift": entry["drift"], **entry["tests"][test]} for entry in powers]
            table.append(row | dataclasses.asdict(summary) | {"power": power})
            if (case, test) in claimed:
                family[f"{case.model}, {case.init}, {case.inputs}, {test}"] = summary
    # The same tests, pooled over architectures and initializations.
    pooled = []
    for kind, test in itertools.product(INPUTS, NAMES):
        of_kind = [columns[test] for case, columns in zip(all_cases, null, strict=True) if case.inputs == kind]
        p, log10_p, z = ([x for columns in of_kind for x in columns[name]] for name in ("p_value", "log10_p", "z"))
        if test in ("permutation", "population"):
            # Ranks, and not the normal approximation.
            log10_p = [np.log10(value) for value in p if value]
        logs = [round(float(value), 4) for value in log10_p if value is not None]
        pooled.append({"inputs": kind, "test": test, "log10_p": logs, **dataclasses.asdict(summarize(p, z))})
    return {
        "cases": table,
        "pooled": pooled,
        "by_size": list(by_size(settings)),
        "confidence": confidence,
        "family": calibration.check_family(family),
    }


def claims_calibration(test: str, kind: str) -> bool:
    """Return whether a test says that its false-positive rate is alpha on such inputs."""
    return test == "population" or (test == "permutation" and kind == "tokens")


def _rate(summary: Entry, level: float) -> Entry | None:
    return next((rate for rate in summary["rates"] if rate["level"] == level), None)


def _interval(summary: Entry, level: float) -> str | None:
    rate = _rate(summary, level)
    return None if rate is None else rate_interval(rate, percent_digits=2)


def _rates(summary: Entry) -> Cells:
    p = summary["ks_p"]
    return {
        "below 0.01": _interval(summary, 0.01),
        "below 0.05": _interval(summary, 0.05),
        # Where it is beyond doubt, no more than that.
        "KS p": "< 10⁻¹²" if p is not None and p < 1e-12 else (p_value(2), p),
    }


def _power(row: Entry, drift: float) -> float | None:
    rates = [_rate(entry, 0.01) for entry in row["power"] if entry["drift"] == drift]
    return rates[0]["rate"] if rates and rates[0] else None


def tables(record: Record) -> Sequence[Table]:
    """Tabulate rates pooled over architectures, then every case, then power against sizes."""
    result, settings = record["result"], record["settings"]
    drift, size = settings["power"]["drift"], _size(settings)
    # Rates pooled over architectures, with the mean power.
    pooled = []
    for entry in result["pooled"]:
        powers = [
            _power(row, drift)
            for row in result["cases"]
            if row["test"] == entry["test"] and row["inputs"] == entry["inputs"]
        ]
        defined = [power for power in powers if power is not None]
        measured = _rates(entry) | {"power": (percent(0), float(np.mean(defined)) if defined else None)}
        pooled.append(([NAMES[entry["test"]], SHORT[entry["inputs"]], entry["num_pairs"]], measured))
    checks = result["family"]["num_checks"]
    about = (
        f"{size} Embeddings are each seed's own; no model is in two pairs. A calibrated test has 1% and 5%. Power: "
        "the fraction found at 0.01 where the suspect is the base itself, moved toward another initialization W′: "
        f"√(1 − s²)·W + s·W′ with s = {drift:g}."
    )
    sections = [
        tabulate(
            "False-positive rates on unrelated models",
            ["test", "inputs", "pairs"],
            pooled,
            "All architectures and initializations together, with 95% intervals (Clopper and Pearson). Inputs are "
            f"random tokens, or Gaussian vectors that both models share. {about}",
            first_screen=True,
        )
    ]
    # A row for every case.
    rows = []
    for row in result["cases"]:
        measured = _rates(row) | {
            "z": (fixed(2), None if row["z_std"] is None else (row["z_mean"], row["z_std"])),
            "undefined": (fixed(0), float(row["num_undefined"])),
            "power": (percent(0), _power(row, drift)),
        }
        rows.append(([row["model"], row["init"], SHORT[row["inputs"]], NAMES[row["test"]], row["num_pairs"]], measured))
    note = (
        f"Intervals hold with {100 * result['confidence']:.2f}% each, so that all {checks} checks of the tests that "
        "claim to be calibrated hold together with 95% (Bonferroni). z: mean ± standard deviation over pairs. "
        f"{about}"
    )
    sections.append(tabulate("Every case", ["model", "initialization", "inputs", "test", "pairs"], rows, note))
    # Power against one size at a time.
    sizes = [
        (
            [{"num_inputs": "N", "seq_len": "T", "d_model": "D"}[entry["what"]], entry["value"]],
            {"power": _interval(entry, 0.01), "z": (fixed(2), (entry["z_mean"], entry["z_std"]))},
        )
        for entry in result["by_size"]
    ]
    chosen = settings["power"]
    note = (
        f"Power: fraction of {chosen['num_pairs']} suspects, each the base moved by s = {drift:g} toward another "
        "initialization, that the permutation test on tokens finds at 0.01; z: mean ± standard deviation. "
        f"{chosen['model']}, {chosen['init']}; all sizes but the one of a row: {size} Power after training: see "
        "`birth_to_life`."
    )
    return [*sections, tabulate("Power against inputs, length and width", ["size", "value"], sizes, note)]


def _size(settings: Entry) -> str:
    changes = settings["changes"]
    width = f"D = {changes['d_model']}, {changes['num_layers']} layers, " if "d_model" in changes else ""
    return f"{width}N = {settings['num_inputs']:,}, T = {settings['seq_len']}."


def claims(record: Record) -> Sequence[Claim]:
    """State the rates on the page's first screen."""
    result, size = record["result"], _size(record["settings"]).rstrip(".")
    statements = []
    for test, kind, key in (
        ("permutation", "tokens", "unrelated models with p < 0.01"),
        ("paper t", "gaussian", ""),
        ("iclr", "gaussian", ""),
        ("iclr", "tokens", ""),
        ("permutation", "gaussian", ""),
        ("population", "gaussian", ""),
    ):
        entry = next(entry for entry in result["pooled"] if (entry["test"], entry["inputs"]) == (test, kind))
        rate = _rate(entry, 0.01)
        if rate is None:
            continue
        statement = (
            f"Unrelated pairs with p < 0.01 by the test “{NAMES[test]}” on {INPUTS[kind]} "
            f"({entry['num_pairs']:,} pairs, {size}; 95% interval "
            f"{percent(2)(rate['low'])} to {percent(2)(rate['high'])})"
        )
        statements.append(Claim(statement, rate["rate"], theory=0.01, format=percent(2), key=key))
    return statements


def headline(record: Record) -> str:
    """State what the family of checks says."""
    family = record["result"]["family"]
    verdict = calibration.verdict_of(family)
    return f"Calibration of the tests that claim it: of {family['num_checks']} checks corrected for, {verdict}."


EXPERIMENT = Experiment(
    name="calibration",
    title="False-positive rate and power of each lineage test",
    paper="Section 6.1, Algorithm 1",
    description=(
        "Disjoint pairs of unrelated initializations, every test, both kinds of inputs: a test at level 0.01 should "
        "reject for 1% of them. The permutation test on tokens and the population test claim so and are checked "
        "together. Power stands next to each rate; that of a miscalibrated test is not comparable."
    ),
    settings=settings.CALIBRATION,
    cost={
        "laptop": "eight minutes on two cores of an x86-64 virtual machine that did other work as well",
        "paper": "not measured: about 5e17 floating-point operations, for a GPU",
    },
    run=run,
    claims=claims,
    tables=tables,
    headline=headline,
)
