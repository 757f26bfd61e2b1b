"""Finding 2.2 with the paper's model and its hundred seeds, at a length that two cores can afford."""

from __future__ import annotations

from experiments._shared import births
from experiments.base import Experiment
from experiments.birth import finding2

EXPERIMENT = Experiment(
    name="finding2_nano",
    title="The direction of contraction is the preference, in a hundred seeds of the paper's model",
    paper="Finding 2.2",
    description=(
        "As finding2, with GPT-2 nano and a hundred seeds. The length is 16 in place of 1,024: theory gives the "
        "overlap for either, and the measurement stands beside theory's value for its own length."
    ),
    settings={
        "smoke": finding2.EXPERIMENT.settings["smoke"],
        "paper": {"seeds": list(range(100)), "groups": [births.group("gpt2-nano", range(100), 16, 2_000)]},
    },
    cost={"smoke": "seconds", "paper": "about an hour and a quarter on two cores"},
    run=births.run_groups,
    tables=finding2.tables,
    claims=finding2.claims,
    headline=finding2.headline,
)
