"""``bornbiased sinks`` and ``intervene``."""

from __future__ import annotations

from typing import Any, get_args

import click

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.cli import options, outputs
from bornbiased_jax.cli.sections import CHECKPOINT, Command
from bornbiased_jax.errors import InputError
from bornbiased_jax.evaluation.intervention import InterventionOptions, intervene_checkpoint
from bornbiased_jax.evaluation.sink_report import ReportOptions, sinks_report
from bornbiased_jax.probes.sinks import ScoreConvention, Threshold
from bornbiased_jax.quantization import parse_granularities, parse_kept, parse_schemes
from bornbiased_jax.results import Intervention, Sinks
from bornbiased_jax.schema import Count, Fraction, SeqLen, TokenId


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
    type=click.Choice(get_args(ScoreConvention)),
    default="all_rows",
    help="Average attention to the position over all queries, or over those that can see it.",
)
@click.option(
    "--threshold",
    type=click.Choice(get_args(Threshold)),
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
    help="For --quantise: one scale for each tensor, token or channel.",
)
@click.option(
    "--keep-sinks",
    default="0,1,4",
    metavar="K,…",
    help="First positions that stay in full precision (--quantise) or in the cache (--streaming).",
)
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
    """Find attention sinks on a text, and measure how the first position differs inside the model.

    \b
    Example:
      bornbiased sinks model.gguf --text wiki.txt --lengths 32,64,128 \\
        --json sinks.json --figures sinks
    """
    places = outputs.OutputFiles.take(arguments)
    options.start(quiet=quiet)
    # Refuse what nothing here would heed.
    if arguments["quantise"] is None and options.is_given("granularity"):
        raise InputError("--granularity is of rounding, and none is asked for: add --quantise w8a8")
    if arguments["quantise"] is None and arguments["streaming"] is None and options.is_given("keep_sinks"):
        raise InputError("--keep-sinks is of rounding and of a rolling cache: add --quantise w8a8 or --streaming 8")
    # Measure.
    names = ("quantise", "granularity", "keep_sinks", "stream", "scratch", "ignore_fields", "lengths", "tokenizer")
    choices = {name: arguments.pop(name) for name in names}
    schemes = [] if choices["quantise"] is None else parse_schemes(choices["quantise"])
    granularities, keep = parse_granularities(choices["granularity"]), parse_kept(choices["keep_sinks"])
    scratch = options.scratch_folder(choices["stream"], choices["scratch"])
    opened = open_checkpoint(checkpoint, scratch=scratch, ignore_fields=choices["ignore_fields"])
    measured = ReportOptions(
        lengths=options.parse_lengths(choices["lengths"], "--lengths"),
        schemes=schemes,
        granularities=granularities,
        keep_sinks=keep,
        **arguments,
    )
    words = options.chosen_tokenizer(choices["tokenizer"], opened)
    report = sinks_report(opened, text, measured, tokenizer=words, by_step=by_step, quiet=quiet)
    opened.close()
    places.show(Sinks(report, opened.cfg.to_dict()), opened.description)


@click.command("intervene", cls=Command)
@click.argument("checkpoint", metavar="C", help=CHECKPOINT)
@click.option("--text", metavar="FILE", help="A text file, or builtin:prose.", required=True)
@click.option(
    "--silence", multiple=True, metavar="NEURON", help="Let a neuron, as in blocks/12/mlp:1229, write nothing. Repeat."
)
@click.option(
    "--write",
    multiple=True,
    metavar="NEURON@K",
    help="Give a neuron its mean activation of the first token at position K and none elsewhere; K = 1 restores it. "
    "Repeat.",
)
@click.option(
    "--clear",
    multiple=True,
    metavar="CHANNEL[@B]",
    help="Set a channel of the residual stream to 0 at --position after block B, or after every block. Repeat.",
)
@click.option(
    "--first-token", type=options.Ranged(TokenId), metavar="ID", help="Put this token first in every sequence."
)
@click.option("--position", type=options.Ranged(SeqLen), default=1, help="The position to measure, from 1.")
@click.option("--epsilon", type=options.Ranged(Fraction), default=0.25, help="A head above this is a sink.")
@click.option("--length", type=options.Ranged(SeqLen), default=64, help="Tokens in a sequence.")
@click.option("--num-sequences", type=options.Ranged(Count), default=20, help="Windows drawn from the text.")
@click.option("--tokenizer", metavar="NAME|FILE", help="The checkpoint's own unless given.")
@options.quiet_option
@outputs.output_options
def intervene(checkpoint: str, text: str, tokenizer: str | None, quiet: bool, **arguments: Any) -> None:
    """Silence or move what makes a sink, and see block by block which sinks are left.

    Blocks and positions count from 1, neurons, channels and token ids from 0. `bornbiased sinks` names the neurons and
    channels that write most at the first token.

    \b
    Example:
      bornbiased intervene model.gguf --text wiki.txt \\
        --silence blocks/12/mlp:1229 --silence blocks/12/mlp:1487
      bornbiased intervene model.gguf --text wiki.txt \\
        --write blocks/12/mlp:1229@8 --position 8 --json moved.json
    """
    places = outputs.OutputFiles.take(arguments)
    options.start(quiet=quiet)
    opened = open_checkpoint(checkpoint)
    words = options.chosen_tokenizer(tokenizer, opened)
    report = intervene_checkpoint(opened, text, InterventionOptions(**arguments), tokenizer=words, quiet=quiet)
    places.show(Intervention(report, opened.cfg.to_dict()), opened.description)
