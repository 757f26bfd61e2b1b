"""Tables 4b and 10: a birth and the same seed's trained model."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.base import Experiment
from experiments.survival import persistence_pairs, persistence_settings, persistence_tables

# (birth, trained) -> (t-test, U-test) as printed.
PRINTED = {
    (42, 42): (2.20e-8, 6.28e-8),
    (123, 123): (7.09e-6, 1.37e-5),
    (1000, 1000): (5.58e-4, 2.81e-3),
    (2000, 2000): (4.00e-10, 1.27e-9),
}


def survival(
    name: str, paper: str, family: str, numbers: Mapping[tuple[int, int], tuple[float, float]], cost: Mapping[str, str]
) -> Experiment:
    """The experiment for one family."""
    return Experiment(
        name=name,
        title=f"A birth is found in what became of it: {persistence_settings.FAMILIES[family]}",
        paper=paper,
        description=(
            "Models of several seeds are trained at once on the same text in the same order. Each is then held "
            "against its own birth with every test of this project, on random tokens and on the published shared "
            "vectors.\n\n"
            "Every p stands beside how far the weights moved and beside the held-out loss: a model that was not "
            "trained would of course be recognised."
        ),
        settings=persistence_settings.settings(family),
        cost=cost,
        precision=persistence_settings.PRECISION,
        run=persistence_pairs.own_and_other,
        tables=lambda record: [
            persistence_tables.birth_table(record, "A birth and its own trained model", numbers),
        ],
        claims=lambda record: persistence_tables.birth_claims(record, own=True),
        headline=persistence_tables.survival_headline if name == "table4b" else (lambda record: ""),
    )


EXPERIMENT = survival("table4b", "Table 4b", "llama", PRINTED, persistence_settings.cost())
