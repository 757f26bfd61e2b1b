"""``bornbiased predict``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from bornbiased_jax.cli import options
from bornbiased_jax.errors import InputError
from bornbiased_jax.ranges import Count, SeqLen

if TYPE_CHECKING:
    from bornbiased_jax.config import ModelConfig
    from bornbiased_jax.prediction import GradientPrediction
    from bornbiased_jax.results import Listing


@click.command("predict")
@options.model_options
@click.option("--checkpoint", metavar="C", help="Predict the birth of this checkpoint's architecture.")
@click.option("--seq-len", type=options.Ranged(SeqLen), required=True, metavar="T", help="Length of the sequences.")
@click.option(
    "--num-inputs", type=options.Ranged(Count), default=2_000, show_default=True, metavar="N", help="Sequences a seed."
)
@click.option(
    "--inputs",
    type=click.Choice(options.PREDICTED_INPUTS),
    default="tokens",
    show_default=True,
    help="Uniform random ids, or Gaussian vectors.",
)
@click.option(
    "--gradients", is_flag=True, help="Also norms of gradients by block and group, for a batch of N sequences."
)
@click.option("--diagram", is_flag=True, help="A trainability diagram in place of one prediction; needs --page.")
@click.option("--page", metavar="FILE", help="Write the diagram as one HTML page here.")
@options.result_options
def predict(**arguments: Any) -> None:
    """What mean-field theory says of a configuration: no model is built and nothing is sampled.

    \b
    Example:
      bornbiased predict --model gpt2-nano --seq-len 1024
      bornbiased predict --model llama-nano --set num_layers=24 --seq-len 64 --json -
      bornbiased predict --checkpoint path/to/model --seq-len 64
      bornbiased predict --model gpt2-tiny --seq-len 64 --num-inputs 16 --gradients
      bornbiased predict --model gpt2-tiny --seq-len 32 --diagram --page diagram.html
    """
    # Theory's matrices are small: a second BLAS thread gains nothing, and on a busy machine its waiting costs fourfold.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from bornbiased_jax.prediction import predict as predict_config
    from bornbiased_jax.prediction import predict_gradients
    from bornbiased_jax.probes.inputs import KINDS
    from bornbiased_jax.results import Listing, sentences
    from bornbiased_jax.results.terms import explain

    json_file, seq_len, num_inputs = (arguments[name] for name in ("json_file", "seq_len", "num_inputs"))
    options.prepare_json(json_file)
    cfg, name = _architecture(arguments["checkpoint"], arguments["model"], arguments["settings"])
    if arguments["diagram"]:
        _diagram(cfg, name, arguments)
        return
    if arguments["page"] is not None:
        raise InputError("--page is of a diagram: give --diagram too")
    tokens = not KINDS[arguments["inputs"]].vectors
    prediction = predict_config(cfg, seq_len, num_inputs=num_inputs, tokens=tokens)
    # One row for each block.
    rows = [
        [layer + 1, mean, std, intra]
        for layer, (mean, std, intra) in enumerate(
            zip(
                prediction["inter_cosine_by_layer"],
                prediction["inter_cosine_by_layer_std"],
                prediction["intra_cosine_by_layer"],
                strict=True,
            )
        )
    ]
    columns = ["after block", "cosine between sequences", "std across seeds", "cosine within a sequence"]
    fraction = [prediction[key] for key in ("top1_share_mean", "top1_share_p10", "top1_share_p90")]
    note = (
        f"Fraction of the top-1 token: {fraction[0]:.3%} "
        f"(80% of seeds with fresh embeddings: {fraction[1]:.3%}–{fraction[2]:.3%})\n"
        f"{explain('top-1 token', 'top-1 fraction')}"
    )
    table = Listing(f"Theory for {name}, T = {seq_len}", columns, rows, note)
    tables = [table]
    if arguments["gradients"]:
        norms = predict_gradients(cfg, seq_len, num_inputs)
        prediction |= norms
        tables.append(_gradients(norms, num_inputs * seq_len))
    options.print_result(prediction, tables, sentences.prediction(prediction), json_file)


def _architecture(checkpoint: str | None, model: str | None, settings: tuple[str, ...]) -> tuple[ModelConfig, str]:
    """Return the architecture and its name, from a preset or from a checkpoint's configuration."""
    if checkpoint is None:
        return options.model_config(model, settings), str(model)
    if model is not None or settings:
        raise InputError("--checkpoint and --model exclude each other: give one of them")
    from bornbiased_jax.checkpoints import open_checkpoint

    return open_checkpoint(checkpoint).cfg, checkpoint


def _diagram(cfg: ModelConfig, name: str, arguments: Mapping[str, Any]) -> None:
    """Write the trainability diagram as a page, and its numbers where --json says."""
    from bornbiased_jax import io, trainability
    from bornbiased_jax.report.trainability_page import draw_diagram
    from bornbiased_jax.results import sentences

    page = arguments["page"]
    if page is None:
        raise InputError("a diagram is a page: say where with --page FILE")
    io.check_writable(page)
    report = trainability.diagram(cfg, arguments["seq_len"], arguments["num_inputs"])
    io.write_text(page, draw_diagram(report, name, command=options.command_line("page", "json_file")))
    options.print_result(report, [], sentences.diagram(report, page), arguments["json_file"])


def _gradients(norms: GradientPrediction, num_tokens: int) -> Listing:
    """Tabulate gradient norms, one row for each block."""
    from bornbiased_jax.results import Listing

    groups = norms["gradient_norm_by_group"]
    columns = ["block", "all", *groups]
    rows: list[list[object]] = [
        [layer + 1, total, *(values[layer] for values in groups.values())]
        for layer, total in enumerate(norms["gradient_norm_by_block"])
    ]
    return Listing(f"Norm of the gradient of the mean loss over {num_tokens:,} random tokens", columns, rows)
