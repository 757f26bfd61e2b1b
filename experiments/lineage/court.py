"""Which test of lineage keeps its level on models that are not related: published tests and ours on the same pairs.

The analysis, fixed before any number. Models: trained seeds (two widths × two corpora, half of each with another order
of the data) and as many initializations, no seed twice. Kinds of pairs: trained on the same text in the same order, all
pairs; on the same text in another order, all; on other texts, two of each model; initializations, two of each; an
initialization against a trained model, two of each. Levels: p ≤ 0.01 and p ≤ 0.05; with 1,000 permutations these have
probability 10/1,001 and 50/1,001 where a test is exact. Scores without a p are read at their published 0.8; AWM's z,
for which its code names no level, as normal and two-sided. Intervals: models resampled (pairs share them), 95%. KS
against uniform: on the pairs of a greedy choice in which no model occurs twice, two-sided.

A test keeps its level if on no kind of pair at neither level the resampled interval lies above the level, every
interval at 95% for all of the test's together (Bonferroni); a score, if the interval of the fraction above 0.8 does not
lie above 5%. This finds only what so few models show: keeping it here is no proof, missing it is one.
Matchings: units of each block that two independent matchings pair alike, 1 by chance, whatever the number of units.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from scipy import stats

from bornbiased_jax.chunk_store import Chunk
from bornbiased_jax.experiments._shared.baselines import phi_match
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record, chunked, once_a_process
from bornbiased_jax.experiments.lineage import descendants_readings, settings
from bornbiased_jax.experiments.lineage.descendants_readings import (
    EVIDENCE,
    FamilyReading,
    Reads,
    output_verdicts,
    read_published,
)
from bornbiased_jax.experiments.lineage.sketched import matched
from bornbiased_jax.experiments.lineage.unrelated_models import initializations, trained
from bornbiased_jax.lineage.baselines import LEVEL, THRESHOLD
from bornbiased_jax.lineage.battery import Options
from bornbiased_jax.lineage.evidence import MATCHED
from bornbiased_jax.lineage.verdict import Verdict
from bornbiased_jax.lineage.weights_verdict import single_verdict
from bornbiased_jax.report.numbers import fixed, integer, p_value, percent, rate_interval
from bornbiased_jax.report.tables import Cells, Claim, Table, tabulate
from bornbiased_jax.stats.intervals import disjoint_pairs, model_interval

MATCHED_UNITS = "weights, matched units"
"""The test that claims something only where one model of a pair is an initialization."""

TESTS: dict[str, Reads] = {
    **{name: test for name, test in descendants_readings.TESTS.items() if test.published},
    **dict.fromkeys(
        ("outputs, permutation", "outputs, signs free", "outputs, Kendall", *EVIDENCE), Reads(False, LEVEL)
    ),
    MATCHED_UNITS: Reads(False, LEVEL, base="birth"),
}


def package_verdicts(
    base: FamilyReading, suspect: FamilyReading, num_permutations: int, seed: int
) -> dict[str, Verdict]:
    """Run every test of this package that claims anything of such a pair."""
    pair, options = (base.sketches, suspect.sketches), Options(num_permutations=num_permutations, seed=seed)
    verdicts = output_verdicts(base, suspect, num_permutations, seed)
    verdicts |= {name: single_verdict(*pair, evidence, options) for name, evidence in EVIDENCE.items()}
    if base.is_initial or suspect.is_initial:
        options = dataclasses.replace(options, has_untrained=True)
        verdicts[MATCHED_UNITS] = single_verdict(*pair, MATCHED, options)
    return verdicts


def examine(base: FamilyReading, suspect: FamilyReading, num_permutations: int, seed: int) -> dict[str, float | None]:
    """Run every test that claims anything of such a pair: its p, or its score."""
    values = {
        name: verdict.p_value for name, verdict in package_verdicts(base, suspect, num_permutations, seed).items()
    }
    for name, (score, log10_p) in read_published(base, suspect).items():
        values[name] = score if not TESTS[name].by_p else None if log10_p is None else 10.0**log10_p
    return {name: None if value is None else float(f"{value:.6g}") for name, value in values.items()}


def matchings(base: FamilyReading, suspect: FamilyReading) -> Entry:
    """Measure how often independent matchings of hidden units agree, block by block.

    Returns:
        ``agreement``: of the gate's matching with that of up and down in token space, as verdicts have it between
        trained models: the fraction of units in each block. ``activations``: units that φ_MATCH's two matchings pair
        alike, in numbers.
    """
    matching = matched(base.sketches, suspect.sketches)
    assert matching is not None
    activations = phi_match(base.activations, suspect.activations).detail["coincidences"]
    return {"agreement": [round(value, 6) for value in matching.by_block.values()], "activations": activations}


SAME_ORDER, OTHER_ORDER, OTHER_TEXT = "trained, same order", "trained, another order", "trained, other text"
INITIALIZATIONS, MIXED = "births", "a birth and a trained model"
KINDS = (SAME_ORDER, OTHER_ORDER, OTHER_TEXT, INITIALIZATIONS, MIXED)
LEVELS = (0.01, 0.05)
SCORE_LEVEL = 0.05
"""The fraction of unrelated pairs above a score's threshold that counts as too many: scores state none themselves."""
# Pairs that are computed between two looks at the disk.
_CHUNK = 32

ReadingPair = tuple[str, FamilyReading, FamilyReading]


def run(context: Context) -> Entry:
    """Run every test on every pair, then summarize each test on each kind of pair."""
    settings = context.settings
    rows: list[Entry] = []
    # Readings of every pair, width by width.
    for width in settings["widths"]:
        of_width = {**settings, "width": width}
        total = len(_pairs(of_width, context.sources))
        rows += context.rows("court/pairs", compute, of_width, total, size=_CHUNK)
    # Each test on each kind of pair.
    summaries = [
        summary
        for name, kind in itertools.product(TESTS, KINDS)
        if (summary := summarize(rows, name, kind)) is not None
    ]
    return {
        "num_pairs": {kind: sum(row["kind"] == kind for row in rows) for kind in KINDS},
        "tests": summaries,
        "promises": [promise(name, summaries) for name in TESTS],
        "matchings": [agreed(rows, kind) for kind in KINDS],
    }


def pairs_of(models: Sequence[FamilyReading], untrained: Sequence[FamilyReading]) -> Iterator[ReadingPair]:
    """Yield the pairs of one width: kind, base, suspect. The base of a mixed pair is the initialization."""
    for base, suspect in itertools.combinations(models, 2):
        if base.origin.corpus == suspect.origin.corpus:
            yield SAME_ORDER if base.origin.order == suspect.origin.order else OTHER_ORDER, base, suspect
    corpora = list(dict.fromkeys(model.origin.corpus for model in models))
    first, second = ([model for model in models if model.origin.corpus == corpus] for corpus in corpora)
    for at, step in itertools.product(range(len(first)), range(2)):
        yield OTHER_TEXT, first[at], second[(at + step) % len(second)]
    for at, step in itertools.product(range(len(untrained)), (1, 2)):
        yield INITIALIZATIONS, untrained[at], untrained[(at + step) % len(untrained)]
    for at, step in itertools.product(range(len(untrained)), range(2)):
        yield MIXED, untrained[at], models[(at + step) % len(models)]


@chunked
def compute(settings: Entry, sources: Entry, chunk: Chunk) -> Sequence[Entry]:
    """Run every test on some pairs of one width; trained models are read from where the first process kept them."""
    rows = []
    pairs = _pairs(settings, sources)[chunk.start : chunk.stop]
    for index, (kind, base, suspect) in enumerate(pairs, chunk.start):
        names = [_name(model) for model in (base, suspect)]
        values = examine(base, suspect, settings["num_permutations"], index)
        rows.append({"kind": kind, "models": names, "values": values, **matchings(base, suspect)})
    return rows


@once_a_process
def _pairs(context: Context) -> list[ReadingPair]:
    width = context.settings["width"]
    return list(pairs_of(trained(context, width), initializations(context.settings, width)))


def _name(model: FamilyReading) -> str:
    origin = model.origin
    return f"{origin.width}/{origin.corpus or 'birth'}/{origin.order}/{origin.seed}"


def summarize(rows: Sequence[Entry], name: str, kind: str) -> Entry | None:
    """Summarize one test on one kind of pair; None where it claims nothing of it."""
    test_rows = [row for row in rows if row["kind"] == kind and name in row["values"]]
    if not test_rows:
        return None
    defined = [row for row in test_rows if row["values"][name] is not None]
    values = np.array([row["values"][name] for row in defined])
    names = [tuple(row["models"]) for row in defined]
    # Marks by level; uniformity on disjoint pairs alone.
    by_p = TESTS[name].by_p
    disjoint = disjoint_pairs(names) if by_p else []
    marks = {level: values <= level for level in LEVELS} if by_p else {THRESHOLD: values > THRESHOLD}
    # Rates with intervals, for this test alone and for all together.
    rates = []
    for level, hits in marks.items() if defined else ():
        low, high = model_interval(hits, names)
        least, _ = model_interval(hits, names, 1 - 0.05 / (len(marks) * len(KINDS)))
        rates.append({"level": level, "rate": float(hits.mean()), "low": low, "high": high, "low_together": least})
    quantiles = np.quantile(values, [0.0, 0.5, 1.0]) if defined else ()
    return {
        "test": name,
        "kind": kind,
        "num_pairs": len(test_rows),
        "num_undefined": len(test_rows) - len(defined),
        "rates": rates,
        "ks_p": float(stats.kstest(values[disjoint], "uniform").pvalue) if disjoint else None,
        "ks_pairs": len(disjoint),
        **dict(zip(("least", "median", "largest"), quantiles, strict=False)),
    }


def promise(name: str, summaries: Sequence[Entry]) -> Entry:
    """Check whether a test is calibrated on these pairs, and where not."""
    violations = []
    for summary in summaries:
        for rate in summary["rates"] if summary["test"] == name else ():
            level = rate["level"] if TESTS[name].by_p else SCORE_LEVEL
            if rate["low_together"] > level:
                violations.append({"kind": summary["kind"], **rate})
    is_tested = any(summary["test"] == name and summary["rates"] for summary in summaries)
    return {
        "test": name,
        "published": TESTS[name].published,
        "kept": not violations if is_tested else None,
        "broken": violations,
    }


def agreed(rows: Sequence[Entry], kind: str) -> Entry:
    """Summarize coincidences of matchings on one kind of pair, by block, and agreement over the blocks of a pair."""
    kind_rows = [row for row in rows if row["kind"] == kind]
    agreement_PL = np.array([row["agreement"] for row in kind_rows])
    means = np.sort(agreement_PL.mean(axis=1))
    return {
        "kind": kind,
        "num_pairs": len(kind_rows),
        "activations": np.mean([row["activations"] for row in kind_rows], axis=0),
        "agreement_quantiles": np.quantile(means, [0.5, 0.9, 0.99]),
        "agreement_largest": float(means[-1]),
        "agreement_largest_block": float(agreement_PL.max()),
    }


# ---------------------------------------------------------------------------------------------------------------------
# Display


_WORDS = {True: "kept", False: "EXCEEDED", None: "not tried"}


def _of(record: Record, name: str) -> Sequence[Entry]:
    return [summary for summary in record["result"]["tests"] if summary["test"] == name]


def _is_score(summaries: Sequence[Entry]) -> bool:
    return any(len(summary["rates"]) == 1 for summary in summaries)


def tables(record: Record) -> Sequence[Table]:
    """Tabulate calibration; size by kind of pair, for p and for scores; matchings."""
    return [_promises(record), _sizes(record), _scores(record), _matchings(record)]


def _promises(record: Record) -> Table:
    rows = []
    for promise in record["result"]["promises"]:
        summaries = [summary for summary in _of(record, promise["test"]) if summary["rates"]]
        if not summaries:
            continue
        worst = max(summaries, key=lambda summary: summary["rates"][0]["rate"])
        where = list(dict.fromkeys(entry["kind"] for entry in promise["broken"]))
        measured: Cells = {
            "pairs": (integer, sum(summary["num_pairs"] - summary["num_undefined"] for summary in summaries)),
            "level": _WORDS[promise["kept"]],
            "called the same, worst kind": rate_interval(worst["rates"][0]),
            "worst kind": worst["kind"],
            "exceeded on": "; ".join(where) or None,
        }
        source = "published" if promise["published"] else "this package"
        reads = "score > 0.8" if _is_score(summaries) else "p ≤ 0.01"
        rows.append(([promise["test"], source, reads], measured))
    note = (
        f"All pairs are unrelated. {_about(record)} Of a test with a p at most 1% of the pairs should have p ≤ 0.01, "
        f"and 5% p ≤ 0.05. A score states no rate: that at most {percent(0)(SCORE_LEVEL)} of the pairs should exceed "
        "its published threshold is this project's reading. The level is exceeded if on some kind of pair the whole "
        "interval of that fraction lies above it (95% for all intervals of a test together), and kept otherwise. "
        "Keeping it on so few models is no proof, and says nothing of power: a test that calls nothing the same "
        "keeps it too."
    )
    if any(row["test"].startswith("AWM") and row["kept"] is False for row in record["result"]["promises"]):
        note += " The constants behind AWM's z belong to published models of 7 billion parameters."
    title = "Which test keeps its level"
    return tabulate(title, ["test", "source", "read at"], rows, note, first_screen=True)


def _about(record: Record) -> str:
    settings, counts = record["settings"], record["result"]["num_pairs"]
    schedule = settings["schedule"]
    seeds = settings["seeds_an_order"] * 2
    models = seeds * len(settings["widths"]) * len(settings["corpora"])
    widths = " and ".join(map(str, settings["widths"]))
    numbers = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    return (
        f"{models} trained models ({settings['changes']['num_layers']} blocks, D = {widths}, bytes, "
        f"{schedule['steps']} steps of {schedule['batch_size']} × {schedule['context']} tokens; {seeds} seeds for each "
        f"width and text, half with another order of the data) and {models} initializations. Pairs: {numbers}."
    )


def _sizes(record: Record) -> Table:
    rows = []
    for summary in record["result"]["tests"]:
        if len(summary["rates"]) != 2:
            continue
        measured: Cells = {
            "p ≤ 0.01": rate_interval(summary["rates"][0]),
            "p ≤ 0.05": rate_interval(summary["rates"][1]),
            "KS p": (p_value(2), summary["ks_p"]),
            "disjoint pairs": (integer, summary["ks_pairs"]),
            "smallest p": (p_value(2), summary["least"]),
            "undefined": (integer, summary["num_undefined"]),
        }
        rows.append(([summary["test"], summary["kind"], summary["num_pairs"]], measured))
    note = (
        "Fractions of unrelated pairs at or below each p, with 95% intervals (models resampled). KS: Kolmogorov and "
        "Smirnov's test of p against uniform, on pairs that share no model. Algorithm 1 and iclr read random tokens "
        "(tokens), or Gaussian vectors that both models share (vectors), as published."
    )
    return tabulate("Sizes on unrelated pairs", ["test", "pairs of", "number"], rows, note)


def _scores(record: Record) -> Table:
    rows = []
    for summary in record["result"]["tests"]:
        if len(summary["rates"]) != 1:
            continue
        numbers = {name: (fixed(3), summary[name]) for name in ("least", "median", "largest")}
        measured = {"above 0.8": rate_interval(summary["rates"][0]), **numbers}
        rows.append(([summary["test"], summary["kind"], summary["num_pairs"]], measured))
    note = "Fraction of pairs above the published threshold, with its 95% interval (models resampled)."
    return tabulate("Scores of unrelated pairs", ["score", "pairs of", "number"], rows, note)


def _matchings(record: Record) -> Table:
    rows = []
    for matching in record["result"]["matchings"]:
        middle, high, highest = matching["agreement_quantiles"]
        measured = {
            "φ_MATCH, by block": ", ".join(map(fixed(1), matching["activations"])),
            "agreement, median": (percent(2), middle),
            "90%": (percent(2), high),
            "99%": (percent(2), highest),
            "largest": (percent(2), matching["agreement_largest"]),
            "largest in a block": (percent(2), matching["agreement_largest_block"]),
        }
        rows.append(([matching["kind"], matching["num_pairs"]], measured))
    units = " and ".join(str(2 * width) for width in record["settings"]["widths"])
    note = (
        f"Hidden units ({units} a block) are matched twice, by independent evidence, and counted where both "
        "matchings pair them alike. φ_MATCH, which reads activations: their mean number, block by block; by chance "
        "it is 1. Agreement, of this package, which reads weights: their fraction over all blocks of a pair, with "
        "its quantiles over pairs. A verdict requires four times the largest agreement of unrelated models with as "
        "many units."
    )
    return tabulate("Independent matchings of unrelated models", ["pairs of", "number"], rows, note)


def largest_unrelated_agreement(record: Record) -> float:
    """Find the largest agreement of matchings over the blocks of a pair of models that were trained apart."""
    kinds = [matching for matching in record["result"]["matchings"] if matching["kind"].startswith("trained")]
    return float(max(matching["agreement_largest"] for matching in kinds))


def claims(record: Record) -> Sequence[Claim]:
    """State how many tests are calibrated, how many scores stay below their thresholds, and the largest agreement."""
    widths = " and ".join(map(str, record["settings"]["widths"]))
    groups = (
        (True, False, "Published tests that keep the level of their p on unrelated pairs"),
        (True, True, f"Published scores above their threshold on at most {percent(0)(SCORE_LEVEL)} of unrelated pairs"),
        (False, False, "Tests of this package that keep the level of their p on unrelated pairs"),
    )
    statements = []
    for published, is_score, words in groups:
        tried = [row["kept"] for row in _tried(record, is_score) if row["published"] is published]
        statements.append(
            Claim(
                f"{words}, D = {widths}, of {len(tried)}",
                float(sum(tried)),
                theory=None if is_score else float(len(tried)),
                format=integer,
            )
        )
    largest = Claim(
        "Largest agreement of two independent matchings of hidden units between models trained apart",
        largest_unrelated_agreement(record),
        format=percent(1),
    )
    return [*statements, largest]


def headline(record: Record) -> str:
    """Name the tests that are not calibrated, and apart from them the scores, which state no rate."""
    names = {}
    for is_score in (False, True):
        exceeded = [row["test"] for row in _tried(record, is_score) if not row["kept"]]
        names[is_score] = "; ".join(exceeded) if exceeded else "none"
    widths = " and ".join(map(str, record["settings"]["widths"]))
    return (
        f"Of {len(_tried(record, False))} tests with a p these reject unrelated models of width {widths} more often "
        f"than at their level: {names[False]}. Of {len(_tried(record, True))} scores, which state no rate, these "
        f"exceed their published threshold on more than {percent(0)(SCORE_LEVEL)} of some kind of unrelated pair: "
        f"{names[True]}."
    )


def _tried(record: Record, is_score: bool) -> Sequence[Entry]:
    return [
        row
        for row in record["result"]["promises"]
        if row["kept"] is not None and _is_score(_of(record, row["test"])) is is_score
    ]


EXPERIMENT = Experiment(
    name="court",
    title="Which test of lineage keeps its level",
    description=(
        "Published tests of lineage and those of this package on the same unrelated pairs: models trained apart on the "
        "same text in one order or another, or on other text, initializations, and initializations against trained "
        "models. Power is another question."
    ),
    settings=settings.COURT,
    cost={"laptop": "see the record", "paper": "not measured: for a GPU"},
    run=run,
    claims=claims,
    tables=tables,
    headline=headline,
)
