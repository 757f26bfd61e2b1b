"""The level of neurons in token space, on seeds that no other record has looked at.

Of the 72 checks of ``weights_calibration`` one comes near a rejection: neurons in token space on untied models without
grouped heads or experts, whose p falls below 0.01 more often than once in a hundred pairs. The analysis, fixed before
any number: the same test on disjoint pairs of the seeds after those; the fractions of p below 0.01 and 0.05 against
their levels, two-sided, and whether p is uniform, three checks held together by Holm at 5%. The test is off its level
if one of them rejects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bornbiased_jax.chunk_store import Chunk
from bornbiased_jax.experiments._shared import calibration
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record
from bornbiased_jax.experiments.lineage import settings, weights_calibration
from bornbiased_jax.lineage.evidence import TOKEN_NEURONS
from bornbiased_jax.report.tables import Table, tabulate

TEST = "neurons in token space"
SKIPPED = 20_000
"""Pairs that ``weights_calibration`` takes at its largest scale: the next ones are new."""


def run(context: Context) -> Entry:
    """Compare the pairs and summarize the one test."""
    settings = context.settings
    names = ("model", "changes", "num_permutations")
    rows = context.rows(
        "token_neurons_level/pairs",
        compute,
        {name: settings[name] for name in names} | {"number": 0},
        settings["num_pairs"],
        size=settings["chunk"],
    )
    p_values, z_values, _ = zip(*(row.get(TOKEN_NEURONS, (None, None, False)) for row in rows), strict=True)
    summary = calibration.summarize(p_values, z_values)
    return {"summary": summary, "family": calibration.check_family({TEST: summary})}


def compute(
    settings: Mapping[str, Any], sources: Mapping[str, Any], chunks: list[Chunk]
) -> Iterator[Mapping[str, np.ndarray]]:
    """Compare the pairs after those of ``weights_calibration``, of its first architecture, as it does."""
    later = [chunk._replace(start=chunk.start + SKIPPED, stop=chunk.stop + SKIPPED) for chunk in chunks]
    yield from weights_calibration.compute(settings, sources, later)


def tables(record: Record) -> Sequence[Table]:
    """Tabulate rates and uniformity."""
    summary, family = record["result"]["summary"], record["result"]["family"]
    measured = weights_calibration.level_cells(summary, [check["adjusted_p"] for check in family["checks"]])
    first, changes = 2 * SKIPPED, record["settings"]["changes"]
    note = (
        f"Disjoint pairs of initializations from seed {first:,} on, {record['settings']['model']} with "
        f"{changes['num_layers']} blocks, D = {changes['d_model']}, {changes['d_ff']} hidden units; "
        f"{record['settings']['num_permutations']:,} permutations a pair. 95% intervals (Clopper and Pearson); three "
        "checks, corrected (Holm)."
    )
    rows = [([TEST, summary["num_pairs"]], measured)]
    return [tabulate("Neurons in token space on other seeds", ["test", "pairs"], rows, note)]


def headline(record: Record) -> str:
    """State whether the test is off its level on other seeds."""
    summary, family = record["result"]["summary"], record["result"]["family"]
    count, total = summary["rates"][0]["count"], summary["num_pairs"] - summary["num_undefined"]
    least = weights_calibration.least_p(family)
    verdict = "none rejects" if family["calibrated"] else "at least one REJECTS"
    return (
        f"On other seeds neurons in token space have p below 0.01 in {count:,} of {total:,} pairs of initializations, "
        f"where {total / 100:,.0f} are expected; of three checks, {verdict} (smallest adjusted p {least:.2g})."
    )


EXPERIMENT = Experiment(
    name="token_neurons_level",
    title="The level of neurons in token space on other seeds",
    description=(
        "One of the checks of the tests in the weights comes near a rejection. The same test on disjoint pairs of "
        "initializations of seeds that were not looked at before."
    ),
    settings=settings.TOKEN_NEURONS_LEVEL,
    cost={"smoke": "seconds", "laptop": "twenty minutes on two cores", "paper": "not measured: hours"},
    run=run,
    tables=tables,
    headline=headline,
)
