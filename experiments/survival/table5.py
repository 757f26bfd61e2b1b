"""Tables 5 and 12: after further training on another corpus, against a distractor of another seed."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.base import Experiment
from experiments.survival import persistence_pairs, persistence_settings, persistence_tables

# (corpus, descendant) -> t-test, U-test, Intrinsic, REEF, PCS, ICS as printed. Those on The Stack have no counterpart
# here: it is behind a licence that each user accepts.
PRINTED = {
    ("stories", True): (0.0, 7.77e-89, 1.000, 0.759, 0.999, 0.996),
    ("stories", False): (0.943, 0.902, 0.950, 0.658, 0.332, 0.012),
}


def continual(name: str, paper: str, family: str, numbers: Mapping[tuple[str, bool], tuple[float, ...]]) -> Experiment:
    """The experiment for one family."""
    return Experiment(
        name=name,
        title=f"Further training on other text: {persistence_settings.FAMILIES[family]}",
        paper=paper,
        description=(
            "A model trained on prose is trained on with stories and with code. A distractor, another seed trained on "
            "the same prose in another order, gets the same further training. Which of the two descends from the "
            "base? Baselines that follow the data cannot tell.\n\n"
            "The built-in stories come from a small grammar; --data 'stories=FILE' names others, such as TinyStories, "
            "and --data 'FILE;stories=FILE;code=FILE' all three corpora."
        ),
        settings=persistence_settings.settings(family),
        cost=persistence_settings.continued_cost(family),
        precision=persistence_settings.PRECISION,
        run=persistence_pairs.continued,
        tables=lambda record: [persistence_tables.continued_table(record, numbers)],
        claims=persistence_tables.continued_claims,
    )


EXPERIMENT = continual("table5", "Table 5", "llama", PRINTED)
