"""Table 8: the baselines on a birth and what became of it."""

from __future__ import annotations

from collections.abc import Sequence

from bornbiased_jax.report.tables import Claim
from experiments.base import Experiment, Record
from experiments.survival import persistence_pairs, persistence_settings, persistence_tables

# Seed -> Intrinsic, REEF, PCS, ICS as printed.
PRINTED = {
    42: (-0.021, 0.375, 0.580, 0.196),
    123: (0.149, 0.369, 0.581, 0.188),
    1000: (-0.252, 0.381, 0.581, 0.188),
    2000: (-0.337, 0.331, 0.581, 0.188),
}


def claims(record: Record) -> Sequence[Claim]:
    """Births found by each baseline: at 0.8, and among the scores of other seeds."""
    own = record["result"]["own"]
    made = []
    for name in persistence_pairs.BASELINES:
        at_threshold = sum(bool(row[name]["same_at_0.8"]) for row in own)
        told = sum((row[name]["z"] or 0.0) > 5 for row in own)
        words = persistence_tables.NAMES[name]
        text = f"{at_threshold} of {len(own)} at 0.8; {told} of {len(own)} with z > 5"
        made.append(Claim(f"Births recognised in their trained models by {words}", text))
    return made


EXPERIMENT = Experiment(
    name="table8",
    title="Published fingerprints on a birth and its trained model",
    paper="Table 8",
    description=(
        "Four fingerprints that read weights or representations, on a birth and its trained model. At their published "
        "threshold of 0.8 they find nothing. That is half a fault of the threshold: set against the scores of a birth "
        "and another seed's trained model, the cosine of the weights tells every seed."
    ),
    settings=persistence_settings.settings("llama"),
    cost=persistence_settings.shared_cost("llama"),
    precision=persistence_settings.PRECISION,
    run=persistence_pairs.baselines_of_births,
    tables=lambda record: [persistence_tables.table_8(record, PRINTED)],
    claims=claims,
)
