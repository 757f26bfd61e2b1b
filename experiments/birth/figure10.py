"""Figure 10: hidden dimensions have preferences too, in every layer."""

from __future__ import annotations

from collections.abc import Sequence

from bornbiased_jax.config import preset
from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.base import Experiment, Record
from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import from_log10, identifier, integer
from bornbiased_jax.report.tables import Panel, Table, tabulate


def tables(record: Record) -> Sequence[Table]:
    """Show the top dimension after every block and after the final norm."""
    page_tables = []
    for probed in probing.probed_groups(record):
        group, first = probed["group"], probed["records"][0]
        preference = first["preference"]
        columns = zip(
            preference["top_dimension_by_layer"],
            preference["top_dimension_count_by_layer"],
            preference["top_dimension_log10_p_by_layer"],
            strict=True,
        )
        names = [str(i + 1) for i in range(len(preference["top_dimension_by_layer"]) - 1)] + ["final norm"]
        rows = [
            ([name], {"dimension": (identifier, d), "count": (integer, c), "p": (from_log10(3), p)})
            for name, (d, c, p) in zip(names, columns, strict=True)
        ]
        page_tables.append(
            tabulate(
                f"{probing.name_of(group)}, seed {first['seed']}, N = {group['num_inputs']:,}, T = {group['seq_len']}",
                ["after block"],
                rows,
                note="The dimension that is most often the largest of all D, and the corrected p of its count.",
            )
        )
    return page_tables


def panels(record: Record) -> Sequence[Panel]:
    """Draw tokens above, dimensions below, ranked."""
    drawn = []
    for probed in probing.probed_groups(record):
        group, preference = probed["group"], probed["records"][0]["preference"]
        cfg = preset(group["model"], **group["changes"])
        figure, (top, bottom) = figures.new(rows=2, height=5.2)
        # Tokens by count.
        figures.ranked_bars(
            top,
            preference["ranked_counts"][:30],
            baseline=preference["num_inputs"] / cfg.vocab_size,
            baseline_name="N / V",
        )
        figures.label(top, "rank", "times predicted", "tokens")
        # Dimensions by count.
        figures.ranked_bars(
            bottom,
            preference["final_dimension_counts"][:30],
            baseline=preference["num_inputs"] / cfg.d_model,
            baseline_name="N / D",
        )
        figures.label(bottom, "rank", "times the largest", "dimensions of the final norm's output")
        drawn.append(
            Panel(
                figure,
                f"{probing.name_of(group)}, seed {probed['records'][0]['seed']}, T = {group['seq_len']}, "
                f"N = {group['num_inputs']:,}: how often each token "
                "has the largest logit (top) and each hidden dimension the largest value (bottom); dashed: the mean "
                "over all, close to the axis where tokens are many.",
            )
        )
    return drawn


EXPERIMENT = Experiment(
    name="figure10",
    title="Hidden dimensions have preferences in every layer",
    paper="Figure 10, Finding 1 (extended)",
    description=(
        "The same preference one step before the logits: which hidden dimension of the last-token state is the "
        "largest, after every block and after the final norm."
    ),
    settings={
        "smoke": {"seeds": [42, 43], "groups": [probing.GPT2_SMOKE]},
        "laptop": {"seeds": [42, 43], "groups": [probing.GPT2_LAPTOP, probing.LLAMA_LAPTOP]},
        "paper": {"seeds": [42], "groups": [probing.group("gpt2-nano", [42], 1024, 10_000)]},
    },
    cost={"smoke": "seconds", "laptop": "shared with table1", "paper": "needs a GPU"},
    run=probing.run_groups,
    tables=tables,
    figures=panels,
)
