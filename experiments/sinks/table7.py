"""Table 7: perplexity under the two positional calibrations."""

from __future__ import annotations

from collections.abc import Sequence

from bornbiased_jax.report.numbers import fixed, integer
from bornbiased_jax.report.tables import Quantity, Row, Table
from experiments.base import Experiment, Record
from experiments.sinks import sink_training
from experiments.sinks.mitigations import FIGURE_12

PRINTED = {
    "baseline": {"WikiText-2": 21.33, "C4": 30.36},
    "positional amplification": {"WikiText-2": 21.95, "C4": 28.70},
    "positional attenuation": {"WikiText-2": 21.02, "C4": 30.48},
}


def tables(record: Record) -> Sequence[Table]:
    """Perplexity on every text, beside what is printed where the run is the paper's."""
    is_paper = record["scale"] == "paper" and record["data"] is None
    texts, evaluation = list(record["settings"]["texts"]), record["settings"]["evaluation"]
    rows = []
    for name, run in record["result"]["cures"].items():
        rows.append(
            Row(
                [name, run["tokens"]],
                {
                    text: sink_training.over_seeds(run, lambda seed, text=text: seed["perplexity"][text])
                    for text in texts
                },
                paper={text: PRINTED[name][text] for text in texts} if is_paper else {},
                configuration="paper" if is_paper else "other",
            )
        )
    return [
        Table(
            "Perplexity with and without positional calibration",
            ["attention", "training tokens"],
            [Quantity(text, fixed(2)) for text in texts],
            [
                Row([row.settings[0], integer(row.settings[1])], row.measured, row.paper, {}, row.configuration)
                for row in rows
            ],
            note=(
                f"{evaluation['num_sequences']} sequences of {evaluation['context']} tokens, each scored on "
                "its own; ± across seeds. Perplexities of different tokenizers do not compare."
            ),
        )
    ]


EXPERIMENT = Experiment(
    name="table7",
    title="What positional calibration costs in perplexity",
    paper="Table 7",
    description="The models of Figure 12, scored on held-out text.",
    settings={
        "smoke": sink_training.smoke(FIGURE_12, bos_token=True),
        "laptop": sink_training.laptop(FIGURE_12),
        "paper": sink_training.paper(FIGURE_12),
    },
    cost={"smoke": "shared with figure12", "laptop": "shared with figure12", "paper": "shared with figure12"},
    precision="float32 highest; bfloat16 training at paper scale",
    run=sink_training.run_mitigations,
    tables=tables,
)
