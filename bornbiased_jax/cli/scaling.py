"""``bornbiased probe scaling``: the coordinate check."""

from __future__ import annotations

from typing import Any

import click

from bornbiased_jax.cli import options, outputs
from bornbiased_jax.cli.sections import Command
from bornbiased_jax.ranges import Batch, LearningRate, Seed, SeqLen, Steps


@click.command("scaling", cls=Command)
@options.model_options
@click.option("--widths", default="64,128,256", metavar="D[,D…]", help="Widths of the model.")
@click.option("--steps", type=options.Ranged(Steps), default=10, help="Updates after the first.")
@click.option("--seeds", default="0:4", help="As in 0:8 or 42,43; at least two.")
@click.option("--optimizer", type=click.Choice(["adamw", "muon"]), default="adamw", help="As in pretrain.")
@click.option(
    "--learning-rate",
    type=options.Ranged(LearningRate),
    default=1e-3,
    help="At every width; with init=mup at the width of --model, and falling with the width for matrices.",
)
@click.option("--batch-size", type=options.Ranged(Batch), default=8, help="Sequences of the batch.")
@click.option("--seq-len", type=options.Ranged(SeqLen), default=32, help="Length of the sequences.")
@click.option("--input-seed", type=options.Ranged(Seed), default=0, help="Seed of the tokens.")
@outputs.output_options
def scaling_command(**arguments: Any) -> None:
    """Do activations keep their size with width (coordinate check)?

    \b
    Example:
      bornbiased probe scaling --model gpt2-tiny --set init=mup \\
        --set attention_scale=0.03125 --set tie_embeddings=false \\
        --widths 64,128,256 --steps 10

    muP is more than an initialization: with init=mup the learning rates of
    hidden matrices and of the head fall as the width of --model over the width.
    It also needs attention logits scaled by 1/head_dim (attention_scale, here
    1/32) and an untied head.
    """
    from bornbiased_jax import progress
    from bornbiased_jax.results.initialization import WidthCheck
    from bornbiased_jax.training.config import PretrainConfig
    from bornbiased_jax.training.scaling import scaling

    places = outputs.Outputs.take(arguments)
    widths = options.parse_lengths(arguments["widths"], "--widths")
    cfg = options.model_config(arguments["model"], arguments["settings"])
    config = PretrainConfig(
        model=cfg,
        data="random tokens",
        out=".",
        seeds=tuple(options.parse_seeds(arguments["seeds"])),
        data_seed=arguments["input_seed"],
        context=arguments["seq_len"],
        min_learning_rate=0.0,
        warmup=0,
        schedule="constant",
        **{name: arguments[name] for name in ("steps", "batch_size", "learning_rate", "optimizer")},
    )
    with progress.bar(len(widths), "coordinate check", unit="widths") as advance:
        checked = scaling(config, widths, advance=advance)
    places.show(WidthCheck({**checked.to_json(), "model": cfg.to_dict()}), str(arguments["model"]))
