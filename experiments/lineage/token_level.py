"""The level of neurons in token space on unrelated initializations of seeds that were not looked at before.

Of the 72 checks of :mod:`.weights_calibration` one comes near a rejection: neurons in token space on untied models
without grouped heads or experts, whose p falls below 0.01 more often than once in a hundred pairs. The analysis of
``token_neurons_level``, fixed before any number: the same test on disjoint pairs of the seeds after those, which no
other record has looked at; the fractions of p below 0.01 and 0.05 against their levels, two-sided, and whether p is
uniform, three checks held together by Holm at 5%. The test is off its level if one of them rejects.

There none rejected, and p below 0.05 was the more frequent by a tenth, as in the pairs before. The analysis of
``token_neurons_further``, fixed before any number: the same three checks on 40,000 pairs of the seeds after those. If
none rejects, the excess was chance; if one does, the test is off its level by what these pairs show.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from bornbiased_jax.chunk_store import Chunk
from bornbiased_jax.experiments._shared import calibration
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record, chunked
from bornbiased_jax.experiments.lineage import settings
from bornbiased_jax.experiments.lineage.sketched import sketch
from bornbiased_jax.experiments.lineage.weights_calibration import config, level_cells, untrained_pairs
from bornbiased_jax.lineage.battery import ALPHA, Options, main_pair, single_cell
from bornbiased_jax.lineage.evidence import TOKEN_NEURONS
from bornbiased_jax.report.tables import Table, tabulate

TOKEN_TEST = "neurons in token space"
SKIPPED = {"token_neurons_level": 20_000, "token_neurons_further": 40_000}
"""Pairs before the first of each experiment, which others have taken at the largest scale."""


@chunked
def compute(settings: Entry, _sources: object, chunk: Chunk) -> list[tuple[float | None, float | None]]:
    """Compare some pairs by neurons in token space alone: p and z, as :mod:`.weights_calibration` has them."""
    cfg, start = config(settings, ""), settings["skipped"] + chunk.start
    least = 1 / (settings["num_permutations"] + 1)
    rows: list[tuple[float | None, float | None]] = []
    for index, (base, suspect) in enumerate(untrained_pairs(cfg, 2 * start, chunk.stop - chunk.start), start):
        options = Options(ALPHA, settings["num_permutations"], index, has_untrained=True)
        cell = single_cell(main_pair(sketch(base), sketch(suspect)), TOKEN_NEURONS, options)
        rows.append((None if cell.certified is None else max(cell.certified.p_value, least), cell.z))
    return rows


def run(skipped: int, context: Context) -> Entry:
    """Compare pairs of seeds not seen before and summarize the one test."""
    settings = context.settings
    names = ("model", "changes", "num_permutations")
    rows = context.rows(
        "token_neurons_level/pairs",
        compute,
        {name: settings[name] for name in names} | {"skipped": skipped},
        settings["num_pairs"],
        size=settings["chunk"],
    )
    p_values, z_values = zip(*rows, strict=True)
    summary = calibration.summarize(p_values, z_values)
    return {"summary": summary, "family": calibration.check_family({TOKEN_TEST: summary})}


def tables(record: Record) -> Sequence[Table]:
    """Tabulate rates and uniformity."""
    summary, family = record["result"]["summary"], record["result"]["family"]
    measured = level_cells(summary, [check["adjusted_p"] for check in family["checks"]])
    first, changes = 2 * SKIPPED[record["experiment"]], record["settings"]["changes"]
    note = (
        f"Disjoint pairs of initializations from seed {first:,} on, {record['settings']['model']} with "
        f"{changes['num_layers']} blocks, D = {changes['d_model']}, {changes['d_ff']} hidden units; "
        f"{record['settings']['num_permutations']:,} permutations a pair. 95% intervals (Clopper and Pearson); three "
        "checks, corrected (Holm)."
    )
    rows = [([TOKEN_TEST, summary["num_pairs"]], measured)]
    return [tabulate("Neurons in token space on other seeds", ["test", "pairs"], rows, note)]


def headline(record: Record) -> str:
    """State whether the test is off its level on other seeds."""
    summary, family = record["result"]["summary"], record["result"]["family"]
    count, total = summary["rates"][0]["count"], summary["num_pairs"] - summary["num_undefined"]
    return (
        f"On other seeds neurons in token space have p below 0.01 in {count:,} of {total:,} pairs of initializations, "
        f"where {total / 100:,.0f} are expected, and below 0.05 in {summary['rates'][1]['count']:,}, where "
        f"{total / 20:,.0f} are; of three checks, {calibration.verdict_of(family)}."
    )


EXPERIMENTS = {
    "token_neurons_level": Experiment(
        name="token_neurons_level",
        title="The level of neurons in token space on other seeds",
        description=(
            "One of the checks of the tests in the weights comes near a rejection. The same test on disjoint pairs of "
            "initializations of seeds that were not looked at before."
        ),
        settings=settings.TOKEN_NEURONS_LEVEL,
        cost={"smoke": "seconds", "laptop": "twenty minutes on two cores", "paper": "not measured: hours"},
        run=functools.partial(run, SKIPPED["token_neurons_level"]),
        tables=tables,
        headline=headline,
    ),
}
EXPERIMENTS["token_neurons_further"] = dataclasses.replace(
    EXPERIMENTS["token_neurons_level"],
    name="token_neurons_further",
    title="The level of neurons in token space on further seeds",
    description="The same test once more, on four times as many pairs that were not looked at before.",
    settings=settings.TOKEN_NEURONS_FURTHER,
    run=functools.partial(run, SKIPPED["token_neurons_further"]),
)
