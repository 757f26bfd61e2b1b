"""``bornbiased predict``."""

from __future__ import annotations

from typing import Any

import click

from bornbiased_jax import trainability
from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.cli import options, outputs
from bornbiased_jax.cli.sections import Command
from bornbiased_jax.errors import InputError
from bornbiased_jax.prediction import predict as predict_config
from bornbiased_jax.prediction import predict_gradients
from bornbiased_jax.probes.inputs import KINDS
from bornbiased_jax.results import Prediction
from bornbiased_jax.results.initialization import Trainability
from bornbiased_jax.schema import Count, SeqLen


@click.command("predict", cls=Command)
@options.model_options
@click.option("--seq-len", type=options.Ranged(SeqLen), required=True, metavar="T", help="Length of the sequences.")
@click.option("--num-inputs", type=options.Ranged(Count), default=2_000, metavar="N", help="Sequences per seed.")
@click.option("--checkpoint", metavar="C", help="Predict initial weights of this checkpoint's architecture.")
@options.sweep_option
@click.option(
    "--inputs",
    type=click.Choice([name for name, kind in KINDS.items() if kind.predicted]),
    default="tokens",
    help="Uniform random ids, or Gaussian vectors.",
)
@click.option(
    "--gradients", is_flag=True, help="Also predict norms of gradients by block and group, for a batch of N sequences."
)
@click.option("--diagram", is_flag=True, help="Make a trainability diagram; give --page, --figures, --csv or --json.")
@outputs.output_options
def predict(
    model: str | None, settings: tuple[str, ...], checkpoint: str | None, sweep: str | None, **arguments: Any
) -> None:
    """Predict a configuration by mean-field theory: no model is built and nothing is sampled.

    \b
    Example:
      bornbiased predict --model gpt2-nano --seq-len 1024
      bornbiased predict --model llama-nano --set num_layers=24 --seq-len 64 \\
        --json -
      bornbiased predict --model llama-nano --sweep num_layers=6,12,24 \\
        --seq-len 64
      bornbiased predict --checkpoint path/to/model --seq-len 64 \\
        --page theory.html
      bornbiased predict --model gpt2-tiny --seq-len 64 --num-inputs 16 \\
        --gradients
      bornbiased predict --model gpt2-tiny --seq-len 32 --diagram \\
        --page diagram.html
    """
    places = outputs.OutputFiles.take(arguments)
    seq_len, num_inputs = arguments["seq_len"], arguments["num_inputs"]
    # The architecture, from a preset or from a checkpoint's configuration.
    if checkpoint is None:
        configs = options.swept_configs(model, settings, sweep)
        options.note_width(model, settings, sweep)
        cfg = options.model_config(model, settings, next(iter(configs[0][1]), ""))
    else:
        options.refuse_model(model, settings, sweep)
        cfg = open_checkpoint(checkpoint).cfg
        configs = [(cfg, {})]
    name = str(checkpoint or model)
    tokens = not KINDS[arguments["inputs"]].vectors
    if not tokens and (arguments["diagram"] or arguments["gradients"]):
        raise InputError("--gradients and --diagram are of uniform random tokens: leave --inputs out")
    # The diagram moves scale, depth and attention by itself.
    if arguments["diagram"]:
        if sweep is not None or arguments["gradients"]:
            raise InputError("--diagram stands alone: leave --sweep and --gradients out")
        if not places.has_any():
            raise InputError("a diagram is a page: say where with --page FILE")
        report = trainability.diagram(cfg, seq_len, num_inputs)
        places.show(Trainability(name, report, cfg.to_dict()), name)
        return
    # One prediction for each value of a sweep.
    records: list[dict[str, Any]] = []
    for field, value in configs:
        record = {**value, **predict_config(field, seq_len, num_inputs=num_inputs, tokens=tokens)}
        if arguments["gradients"]:
            record |= {**predict_gradients(field, seq_len, num_inputs), "num_tokens": num_inputs * seq_len}
        records.append(record)
    places.show(Prediction(name, cfg.to_dict(), records, next(iter(configs[0][1]), "")), name)
