"""Tables 4c and 11: a birth and another seed's model, trained on the same text in the same order."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.base import Experiment
from experiments.survival import persistence_pairs, persistence_settings, persistence_tables

# (birth, trained) -> (t-test, U-test) as printed. The text of Section 6.1.2 lists other seeds (theory/ERRATA.md).
PRINTED = {
    (123, 1000): (0.385, 0.486),
    (1000, 2000): (0.035, 0.096),
    (42, 123): (0.426, 0.337),
    (2000, 42): (0.388, 0.287),
}


def specificity(
    name: str, paper: str, family: str, numbers: Mapping[tuple[int, int], tuple[float, float]]
) -> Experiment:
    """The experiment for one family."""
    return Experiment(
        name=name,
        title=f"The same text in the same order does not make two seeds one: {persistence_settings.FAMILIES[family]}",
        paper=paper,
        description=(
            "The models of the table before, each held against the births of the other seeds: all pairs, of which "
            "the paper printed four. A test that calls these one lineage sees the shared data, the shared inputs or "
            "the shared architecture, not the birth."
        ),
        settings=persistence_settings.settings(family),
        cost=persistence_settings.shared_cost(family),
        precision=persistence_settings.PRECISION,
        run=persistence_pairs.own_and_other,
        tables=lambda record: [
            persistence_tables.birth_table(record, "A birth and another seed's trained model", numbers),
        ],
        claims=lambda record: persistence_tables.birth_claims(record, own=False),
    )


EXPERIMENT = specificity("table4c", "Table 4c", "llama", PRINTED)
