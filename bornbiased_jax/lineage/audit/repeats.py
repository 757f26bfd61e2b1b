"""Initial weights that repeat themselves, as where every shard of a tensor was given the same draw."""

from __future__ import annotations

from collections.abc import Sequence

from bornbiased_jax.init import distribution
from bornbiased_jax.lineage.audit.finding import Finding, listed
from bornbiased_jax.lineage.audit.summary import Summary
from bornbiased_jax.lineage.fingerprints import Repeats
from bornbiased_jax.lineage.structure import equal_labels, repeated_parts
from bornbiased_jax.parameters import parameter_table

_PAIRED = ("mirrored", "repeated")


def find_repeats(births: Sequence[Summary]) -> list[Finding]:
    """Find births with fewer random numbers than entries; pairs of neurons that the configuration asks for are none."""
    findings = []
    for birth in births:
        reports = [report for report in repeats_of(birth) if repeated_parts(report) or equal_labels(report)]
        if reports:
            text = (
                f"{birth.name} repeats itself: {listed(map(_words, reports))}. It has fewer random numbers than "
                "entries, as where every shard of a tensor was given the same draw, so that its standard deviations "
                "are held against no configuration. Draw every shard from a key of its own."
            )
            findings.append(Finding("repeats", (birth.name,), text))
    return findings


def repeats_of(birth: Summary) -> list[Repeats]:
    """List the axes along which repetition speaks of shards: not of neurons that were drawn in pairs on purpose."""
    if birth.fingerprint is None or birth.reader is None:
        return []
    cfg = birth.reader.cfg
    drawn = {distribution(cfg, row).structure for row in parameter_table(cfg).values() if row.is_matrix}
    return [
        report
        for report in birth.fingerprint.repeats
        if not (report.labels == "neurons" and drawn & set(_PAIRED) and repeated_parts(report) == 2)
    ]


def _words(report: Repeats) -> str:
    """Write what repeats: "the neurons of each block in 8 equal parts"."""
    axis = {"coordinates": "the residual coordinates", "tokens": "the rows of the embedding"}.get(
        report.labels, f"the {report.labels} of each block"
    )
    parts = repeated_parts(report)
    return f"{axis} in {parts} parts that are alike" if parts else f"{axis}, {report.num_equal} of which are equal"
