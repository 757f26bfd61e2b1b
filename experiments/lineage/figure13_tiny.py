"""Figure 13 with the paper's number of pairs, of models that two cores can afford."""

from __future__ import annotations

from experiments.base import Experiment
from experiments.lineage import figure13

EXPERIMENT = Experiment(
    name="figure13_tiny",
    title="Correlations of unrelated models, in as many pairs as the paper has",
    paper="Figure 13",
    description=(
        "As figure13, with 72 births and their 2,556 pairs for each initialisation and kind of input. Models, N and T "
        "are those of figure13's laptop scale."
    ),
    settings={
        "smoke": figure13.EXPERIMENT.settings["smoke"],
        "paper": {
            "groups": [{**group, "num_births": 72} for group in figure13.EXPERIMENT.settings["laptop"]["groups"]]
        },
    },
    cost={"smoke": "seconds", "paper": "8 minutes on two cores"},
    run=figure13.run,
    claims=figure13.claims,
    tables=figure13.tables,
    figures=figure13.plots,
)
