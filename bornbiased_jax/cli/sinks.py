"""``bornbiased sinks``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from bornbiased_jax.cli import options


@click.command("sinks")
@click.argument("checkpoint", metavar="C")
@click.option("--text", metavar="FILE", help="A text file, or builtin:prose.", required=True)
@click.option("--epsilon", type=float, default=0.25, show_default=True, help="A head above this is a sink.")
@click.option("--lengths", default="32,64,128,256,512", show_default=True, metavar="T,…")
@click.option("--num-sequences", type=int, default=100, show_default=True)
@click.option("--position", type=int, default=1, show_default=True, help="The position looked at, from 1.")
@click.option(
    "--convention",
    type=click.Choice(["all_rows", "rows_from_k"]),
    default="all_rows",
    show_default=True,
    help="Divide a column's sum by all rows, or by the rows that can see the position.",
)
@click.option(
    "--threshold",
    type=click.Choice(["per_sequence", "average"]),
    default="per_sequence",
    show_default=True,
    help="Call a head a sink in each sequence and average, or by its average score.",
)
@click.option("--normalise", is_flag=True, help="Divide each row of weights by its sum first (sigmoid, extra logits).")
@click.option("--tokenizer", metavar="NAME|FILE", help="The checkpoint's own unless given.")
@click.option(
    "--details/--no-details", default=True, show_default=True, help="Also what the positions look like inside."
)
@click.option("--figures", metavar="DIR", help="Draw the sink map, variances and top channels into this folder.")
@click.option("--quiet", is_flag=True, help="No progress display.")
@options.json_option
def sinks(
    checkpoint: str,
    text: str,
    lengths: str,
    tokenizer: str | None,
    figures: str | None,
    json_file: str | None,
    quiet: bool,
    **arguments: Any,
) -> None:
    """Which heads are attention sinks on real text, and what the first position looks like inside.

    \b
    Example:
      bornbiased sinks model.gguf --text wiki.txt --lengths 32,64,128 --json sinks.json --figures sinks
    """
    from pathlib import Path

    from bornbiased_jax import files
    from bornbiased_jax.checkpoints import open_checkpoint
    from bornbiased_jax.evaluation.sink_report import sinks_report
    from bornbiased_jax.report.sink_figures import draw_report
    from bornbiased_jax.text import tokenizer_for

    options.prepare_json(json_file)
    if figures is not None:
        files.check_writable(Path(figures) / "sink-map.png")
    options.start(quiet=quiet)
    opened = open_checkpoint(checkpoint)
    found = sinks_report(
        opened,
        text,
        tokenizer=None if tokenizer is None else tokenizer_for(tokenizer, opened.cfg.vocab_size),
        lengths=options.parse_integers(lengths, "--lengths"),
        quiet=quiet,
        **arguments,
    )
    options.write_result(json_file, found)
    drawn = [] if figures is None else draw_report(found, figures)
    if json_file != "-":
        _print(found)
        for path in drawn:
            click.echo(str(path))


def _print(found: Mapping[str, Any]) -> None:
    columns = ["length", "sink rate", "of averages", "strongest head"]
    rows = [
        [length, rate, found["sink_rate_of_average"][length], _strongest(found["score_by_layer_head"][length])]
        for length, rate in found["sink_rate"].items()
    ]
    options.print_table(f"Sinks at position {found['position']}, epsilon {found['epsilon']:g}", columns, rows)
    if "outliers" not in found:
        return
    largest = max(found["outliers"]["layers"], key=lambda layer: layer["largest"])
    options.print_table(
        "Where the residual stream is largest",
        ["block", "position", "channel", "largest |h|", "DomRatio first", "DomRatio others", "effective rank"],
        [
            [
                largest["layer"] + 1,
                largest["position"],
                largest["channel"],
                largest["largest"],
                largest["dom_ratio_first"],
                largest["dom_ratio_rest"],
                largest["effective_rank"],
            ]
        ],
    )
    neurons = [one for one in found.get("super_neurons", ()) if one["super"]]
    if neurons:
        options.print_table(
            "Super neurons: they fire at the first token",
            ["block", "neuron", "to channel", "writes", "share of its row", "first over rest"],
            [
                [
                    one["layer"] + 1,
                    one["neuron"],
                    one["channel"],
                    one["write"],
                    one["channel_share"],
                    "only the first" if one["firing_ratio"] is None else one["firing_ratio"],
                ]
                for one in neurons
            ],
        )


def _strongest(score_LH: list[list[float]]) -> str:
    score, layer, head = max(
        (score, layer, head) for layer, row in enumerate(score_LH) for head, score in enumerate(row)
    )
    return f"{score:.3f} (block {layer + 1}, head {head + 1})"
