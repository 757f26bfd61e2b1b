"""Tables 4b, 4c, 5 and 8, and their like for Qwen-style models, Tables 10 to 12: births against trained models.

A family's models are trained once, for the first of its tables; the others find them trained.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bornbiased_jax.report.tables import Claim
from experiments.base import Context, Experiment, Record
from experiments.survival import persistence_pairs, persistence_tables
from experiments.survival.settings import COST, FAMILIES, PRECISION, settings, shared_cost

Pairs = Mapping[tuple[int, int], tuple[float, float]]
"""Seeds of base and suspect -> p of the t-test and of the U-test."""

TRAINERS = {"llama": "table4b", "qwen": "table10"}

# (birth, trained) -> (t-test, U-test) as printed.
OWN_LLAMA = {
    (42, 42): (2.20e-8, 6.28e-8),
    (123, 123): (7.09e-6, 1.37e-5),
    (1000, 1000): (5.58e-4, 2.81e-3),
    (2000, 2000): (4.00e-10, 1.27e-9),
}
OWN_QWEN = {
    (123, 123): (7.36e-15, 3.38e-13),
    (1000, 1000): (4.41e-13, 2.01e-11),
    (42, 42): (1.06e-24, 2.05e-19),
    (2000, 2000): (4.87e-24, 1.92e-20),
}
# The text of Section 6.1.2 lists other seeds (theory/ERRATA.md).
OTHER_LLAMA = {
    (123, 1000): (0.385, 0.486),
    (1000, 2000): (0.035, 0.096),
    (42, 123): (0.426, 0.337),
    (2000, 42): (0.388, 0.287),
}
OTHER_QWEN = {
    (123, 1000): (0.286, 0.254),
    (1000, 123): (0.036, 0.040),
    (42, 2000): (0.026, 0.043),
    (2000, 42): (0.112, 0.123),
}
# (corpus, descendant) -> t-test, U-test, Intrinsic, REEF, PCS, ICS as printed. Those on The Stack have no counterpart
# here: it is behind a licence that each user accepts.
CONTINUED_LLAMA = {
    ("stories", True): (0.0, 7.77e-89, 1.000, 0.759, 0.999, 0.996),
    ("stories", False): (0.943, 0.902, 0.950, 0.658, 0.332, 0.012),
}
CONTINUED_QWEN = {
    ("stories", True): (8.49e-214, 5.09e-71, 1.000, 0.957, 0.999, 0.996),
    ("stories", False): (0.256, 0.065, 0.913, 0.199, 0.328, 0.039),
}
# Seed -> Intrinsic, REEF, PCS, ICS as printed.
BASELINES = {
    42: (-0.021, 0.375, 0.580, 0.196),
    123: (0.149, 0.369, 0.581, 0.188),
    1000: (-0.252, 0.381, 0.581, 0.188),
    2000: (-0.337, 0.331, 0.581, 0.188),
}


def recognised(record: Record) -> Sequence[Claim]:
    """Count births found by each baseline: at 0.8, and among the scores of other seeds."""
    own_rows = record["result"]["own"]
    statements = []
    for name in persistence_pairs.BASELINES:
        at_threshold = sum(bool(row[name]["same_at_0.8"]) for row in own_rows)
        above_z = sum((row[name]["z"] or 0.0) > 5 for row in own_rows)
        words = persistence_tables.NAMES[name]
        text = f"{at_threshold} of {len(own_rows)} at 0.8; {above_z} of {len(own_rows)} with z > 5"
        statements.append(Claim(f"Initializations recognised in their trained models by {words}", text))
    return statements


def _experiment(
    name: str,
    family: str,
    title: str,
    description: str,
    run: Callable[[Context], Mapping[str, Any]],
    cost: Mapping[str, str],
    **shown: Callable[[Record], Any],
) -> Experiment:
    return Experiment(
        name=name,
        title=title,
        paper=name.replace("table", "Table "),
        description=description,
        settings=settings(family),
        cost=cost,
        precision=PRECISION,
        run=run,
        **shown,
    )


def _own(name: str, family: str, numbers: Pairs, **shown: Callable[[Record], Any]) -> Experiment:
    title = "An initialization and its own trained model"
    return _experiment(
        name,
        family,
        f"An initialization is found in the model trained from it: {FAMILIES[family]}",
        "Models of several seeds are trained at once on the same text in the same order. Each is then held against its "
        "own initialization with every test of this project, on random tokens and on the published shared vectors.\n\n"
        "Every p stands beside how far the weights moved and beside the held-out loss: a model that was not trained "
        "would of course be recognised.",
        persistence_pairs.own_and_other,
        COST,
        tables=lambda record: [persistence_tables.birth_table(record, title, numbers)],
        claims=functools.partial(persistence_tables.birth_claims, same_seed=True),
        **shown,
    )


def _other(name: str, family: str, numbers: Pairs) -> Experiment:
    title = "An initialization and another seed's trained model"
    return _experiment(
        name,
        family,
        f"The same text in the same order does not make two seeds one: {FAMILIES[family]}",
        "The models of the table before, each held against the initializations of the other seeds: all pairs, of which "
        "the paper printed four. A test that calls these one lineage sees the shared data, the shared inputs or the "
        "shared architecture, not the initialization.",
        persistence_pairs.own_and_other,
        shared_cost(TRAINERS[family]),
        tables=lambda record: [persistence_tables.birth_table(record, title, numbers)],
        claims=functools.partial(persistence_tables.birth_claims, same_seed=False),
    )


def _continued(name: str, family: str, numbers: Mapping[tuple[str, bool], tuple[float, ...]]) -> Experiment:
    return _experiment(
        name,
        family,
        f"Further training on other text: {FAMILIES[family]}",
        "A model trained on prose is trained on with stories and with code. A distractor, another seed trained on the "
        "same prose in another order, gets the same further training. Which of the two descends from the base? "
        "Baselines that follow the data cannot tell.\n\n"
        "The built-in stories come from a small grammar; --data 'stories=FILE' names others, such as TinyStories, and "
        "--data 'FILE;stories=FILE;code=FILE' all three corpora.",
        persistence_pairs.continued,
        {
            "smoke": "seconds",
            "laptop": f"2 min on two cores; the base models are those of {TRAINERS[family]}",
            "paper": "not measured: for a GPU",
        },
        tables=lambda record: [persistence_tables.continued_table(record, numbers)],
        claims=persistence_tables.continued_claims,
    )


EXPERIMENTS = {
    "table4b": _own("table4b", "llama", OWN_LLAMA, headline=persistence_tables.survival_headline),
    "table4c": _other("table4c", "llama", OTHER_LLAMA),
    "table5": _continued("table5", "llama", CONTINUED_LLAMA),
    "table8": _experiment(
        "table8",
        "llama",
        "Published fingerprints on an initialization and its trained model",
        "Four fingerprints that read weights or representations, on an initialization and its trained model. At their "
        "published threshold of 0.8 they find nothing. That is half a fault of the threshold: set against the scores "
        "of an initialization and another seed's trained model, the cosine of the weights tells every seed.",
        persistence_pairs.baselines_of_births,
        shared_cost("table4b"),
        tables=lambda record: [persistence_tables.table_8(record, BASELINES)],
        claims=recognised,
    ),
    "table10": _own("table10", "qwen", OWN_QWEN),
    "table11": _other("table11", "qwen", OTHER_QWEN),
    "table12": _continued("table12", "qwen", CONTINUED_QWEN),
}
