"""``bornbiased sinks``."""

from __future__ import annotations

from typing import Any

import click

from bornbiased_jax.cli import options, outputs
from bornbiased_jax.cli.sections import CHECKPOINT, Command
from bornbiased_jax.ranges import Count, Fraction, SeqLen


@click.command("sinks", cls=Command)
@click.argument("checkpoint", metavar="C", help=CHECKPOINT)
@click.option(
    "--text",
    metavar="FILE",
    help="A text file, or builtin:prose; of a long text the first 4 million characters.",
    required=True,
)
@click.option("--epsilon", type=options.Ranged(Fraction), default=0.25, help="A head above this is a sink.")
@click.option("--lengths", default="32,64,128,256,512", metavar="T,…", help="Sequence lengths in tokens.")
@click.option("--num-sequences", type=options.Ranged(Count), default=100, help="Windows drawn from the text.")
@click.option("--position", type=options.Ranged(SeqLen), default=1, help="The position to measure, from 1.")
@click.option(
    "--convention",
    type=click.Choice(["all_rows", "rows_from_k"]),
    default="all_rows",
    help="Divide a column's sum by all rows, or by the rows that can see the position.",
)
@click.option(
    "--threshold",
    type=click.Choice(["per_sequence", "average"]),
    default="per_sequence",
    help="Call a head a sink in each sequence and average, or by its average score.",
)
@click.option(
    "--normalise",
    "normalize",
    is_flag=True,
    help="Divide each row of weights by its sum first (sigmoid, extra logits).",
)
@click.option("--tokenizer", metavar="NAME|FILE", help="The checkpoint's own unless given.")
@click.option("--details/--no-details", default=True, help="Also measure variances, channels and neurons by position.")
@click.option("--quantise", metavar="NAME,…", help="Also measure what rounding costs: w8a8, a6, kv4, w4a8kv4.")
@click.option(
    "--granularity",
    default="tensor,token",
    metavar="NAME,…",
    help="Whose largest value sets a scale: tensor, token, channel.",
)
@click.option("--keep-sinks", default="0,1,4", metavar="K,…", help="First positions left in full precision.")
@click.option(
    "--streaming",
    type=options.Ranged(SeqLen),
    metavar="WINDOW",
    help="Also measure the loss with a rolling cache of this many tokens after the first --keep-sinks.",
)
@click.option(
    "--by-step", is_flag=True, help="For a run: also measure every seed at initialization and at every checkpoint."
)
@options.ignore_option
@options.stream_options
@options.quiet_option
@outputs.output_options
def sinks(checkpoint: str, text: str, by_step: bool, quiet: bool, **arguments: Any) -> None:
    """Which heads are attention sinks on a text, and how the first position differs inside the model.

    \b
    Example:
      bornbiased sinks model.gguf --text wiki.txt --lengths 32,64,128 \\
        --json sinks.json --figures sinks
    """
    from bornbiased_jax.evaluation.sink_report import ReportOptions, sinks_report
    from bornbiased_jax.quantization import parse_granularities, parse_kept, parse_schemes
    from bornbiased_jax.results import Sinks

    places = outputs.Outputs.take(arguments)
    options.start(quiet=quiet)
    # Measure.
    taken = ("quantise", "granularity", "keep_sinks", "stream", "scratch", "ignore_fields", "lengths", "tokenizer")
    chosen = {name: arguments.pop(name) for name in taken}
    schemes = [] if chosen["quantise"] is None else parse_schemes(chosen["quantise"])
    granularities, keep = parse_granularities(chosen["granularity"]), parse_kept(chosen["keep_sinks"])
    scratch = options.scratch_folder(chosen["stream"], chosen["scratch"])
    opened = options.open_model(checkpoint, scratch, ignore_fields=chosen["ignore_fields"])
    measured = ReportOptions(
        lengths=options.parse_lengths(chosen["lengths"], "--lengths"),
        schemes=schemes,
        granularities=granularities,
        keep_sinks=keep,
        **arguments,
    )
    words = options.chosen_tokenizer(chosen["tokenizer"], opened)
    report = sinks_report(opened, text, measured, tokenizer=words, by_step=by_step, quiet=quiet)
    opened.close()
    places.show(Sinks({**report, "model": opened.cfg.to_dict()}), opened.description)
