"""``bornbiased intervene``."""

from __future__ import annotations

from typing import Any

import click

from bornbiased_jax.cli import options, outputs
from bornbiased_jax.cli.sections import CHECKPOINT, Command
from bornbiased_jax.ranges import Count, Fraction, SeqLen, TokenId


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
    from bornbiased_jax.checkpoints import open_checkpoint
    from bornbiased_jax.evaluation.intervention import InterventionOptions, intervene_checkpoint
    from bornbiased_jax.results import Intervention

    places = outputs.Outputs.take(arguments)
    options.start(quiet=quiet)
    opened = open_checkpoint(checkpoint)
    words = options.chosen_tokenizer(tokenizer, opened)
    report = intervene_checkpoint(opened, text, InterventionOptions(**arguments), tokenizer=words, quiet=quiet)
    places.show(Intervention({**report, "model": opened.cfg.to_dict()}), opened.description)
