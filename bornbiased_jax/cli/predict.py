"""``bornbiased predict``."""

from __future__ import annotations

import os
from typing import Any

import click

from bornbiased_jax.cli import options, outputs
from bornbiased_jax.ranges import Count, SeqLen


@click.command("predict", cls=options.Command)
@options.model_options
@click.option("--seq-len", type=options.Ranged(SeqLen), required=True, metavar="T", help="Length of the sequences.")
@click.option(
    "--num-inputs", type=options.Ranged(Count), default=2_000, show_default=True, metavar="N", help="Sequences a seed."
)
@click.option("--checkpoint", metavar="C", help="Predict initial weights of this checkpoint's architecture.")
@options.sweep_option
@click.option(
    "--inputs",
    type=click.Choice(options.PREDICTED_INPUTS),
    default="tokens",
    show_default=True,
    help="Uniform random ids, or Gaussian vectors.",
)
@outputs.output_options
def predict(
    model: str | None,
    settings: tuple[str, ...],
    checkpoint: str | None,
    sweep: str | None,
    seq_len: int,
    num_inputs: int,
    inputs: str,
    **arguments: Any,
) -> None:
    """What mean-field theory says of a configuration: no model is built and nothing is sampled.

    \b
    Example:
      bornbiased predict --model gpt2-nano --seq-len 1024
      bornbiased predict --model llama-nano --set num_layers=24 --seq-len 64 \\
        --json -
      bornbiased predict --model llama-nano --sweep num_layers=6,12,24 \\
        --seq-len 64
      bornbiased predict --checkpoint path/to/model --seq-len 64 \\
        --page theory.html
    """
    # Theory's matrices are small: a second BLAS thread gains nothing, and on a busy machine its waiting costs fourfold.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from bornbiased_jax.prediction import predict as predict_config
    from bornbiased_jax.probes.inputs import KINDS
    from bornbiased_jax.results import Prediction

    places = outputs.Outputs.take(arguments)
    # The architecture, from a preset or from a checkpoint's configuration.
    if checkpoint is None:
        configs = options.swept_configs(model, settings, sweep)
        options.note_width(model, settings, sweep)
        cfg = options.model_config(model, settings)
    else:
        from bornbiased_jax.checkpoints import open_checkpoint

        options.refuse_model(model, settings, sweep)
        cfg = open_checkpoint(checkpoint).cfg
        configs = [options.Swept(cfg, {})]
    tokens = not KINDS[inputs].vectors
    records = [
        {**value, **predict_config(swept, seq_len, num_inputs=num_inputs, tokens=tokens)} for swept, value in configs
    ]
    name = str(checkpoint or model)
    places.show(Prediction(name, cfg.to_dict(), records, next(iter(configs[0].value), "")), name)
