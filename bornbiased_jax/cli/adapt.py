"""``bornbiased adapt``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import click

from bornbiased_jax import schema
from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.cli import options, outputs
from bornbiased_jax.cli.pretrain import finish, run_fields, run_options
from bornbiased_jax.cli.sections import CHECKPOINT, Command
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.derive.tune import adapt as train
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.adapters import Adapter, count_trained, lora, prefix, prefix_plus, within_budget
from bornbiased_jax.training.initial import initial_references

# What belongs to one method: parameter -> methods.
_OF = {
    "rank": ("lora",),
    "alpha": ("lora",),
    "matrices": ("lora",),
    "prefix_length": ("prefix",),
    "feature_map": ("prefix-plus",),
    "budget": ("lora", "prefix"),
}


@click.command("adapt", cls=Command)
@click.argument("checkpoint", metavar="CHECKPOINT", help=CHECKPOINT)
@click.option(
    "--method",
    type=click.Choice(["full", "lora", "prefix", "prefix-plus"]),
    required=True,
    help="Train all weights, or an adapter on top of them: LoRA, prefix tuning, Prefix-Tuning+.",
)
@click.option(
    "--data", required=True, metavar="DATA", help="A file, a directory, builtin:prose, builtin:code or hf:NAME."
)
@click.option("--steps", type=options.Ranged(schema.Steps), required=True, help="Updates.")
@click.option("--out", required=True, metavar="DIR", help="The run's folder; the same command again resumes it.")
@click.option("--seeds", default="0", help="Seeds of the adapter's initial weights, trained at once: 0:4.")
@click.option("--data-seed", type=options.Ranged(schema.Seed), default=0, help="Seed of the order of the data.")
@click.option("--rank", type=options.Ranged(schema.Width), default=8, help="LoRA: r.")
@click.option("--alpha", type=options.Ranged(schema.LearningRate), help="LoRA: α; BA counts α/r times.  [default: 2 r]")
@click.option(
    "--matrices",
    default="query,value",
    metavar="NAMES",
    help="LoRA: which of query, key, value, output, gate, up, down, in every block.",
)
@click.option(
    "--prefix-length",
    type=options.Ranged(schema.Length),
    default=16,
    help="Prefix tuning: trained keys and values of each block.",
)
@click.option("--feature-map", type=click.Choice(["elu", "relu", "identity"]), default="elu", help="Prefix-Tuning+: φ.")
@click.option(
    "--budget",
    metavar="N|METHOD",
    help="LoRA, prefix: the largest rank or length with at most N trained parameters, or those of prefix-plus.",
)
# The steps are asked for, and the checkpoint is an argument.
@run_options("steps", "init-from")
@options.quiet_option
@outputs.result_options
def adapt(json_file: str | None, **arguments: Any) -> int:
    """Fine-tune a model, or train an adapter on top of it; run again to resume.

    DIR is a run: DIR@seed=0 opens wherever a checkpoint is asked for, and `bornbiased export` writes a fine-tuned
    model, one with LoRA merged in, or (--peft) LoRA in PEFT's layout. A prefix cannot be merged.

    \b
    Example:
      bornbiased adapt runs/a@seed=42 --method lora --rank 4 --data builtin:code \\
        --steps 200 --out runs/lora
      bornbiased adapt runs/a@seed=42 --method prefix --budget prefix-plus \\
        --data builtin:code --steps 200 --out runs/p
    """
    method, checkpoint = arguments["method"], arguments["checkpoint"]
    for name, methods in _OF.items():
        if options.is_given(name) and method not in methods:
            raise InputError(f"--{name.replace('_', '-')} goes with --method {' or '.join(methods)}, not {method}")
    seed_list = options.parse_seeds(arguments["seeds"])
    options.start(quiet=arguments["quiet"])
    # Of a run with several seeds, each of which continues from its own, the architecture is that of any.
    model = _architecture(initial_references(checkpoint, seed_list)[0] if method == "full" else checkpoint)
    summary = train(checkpoint, _adapter(arguments), seeds=tuple(seed_list), **run_fields(arguments))
    return finish(summary, model, json_file, f"{method}, ")


def _adapter(arguments: Mapping[str, Any]) -> Adapter | None:
    """Return the adapter that the arguments describe; None for the whole model."""
    method, budget = arguments["method"], arguments["budget"]
    if method == "full":
        return None
    if method == "lora":
        matrices = tuple(part.strip() for part in arguments["matrices"].split(","))
        adapter = lora(arguments["rank"], arguments["alpha"], matrices)
    elif method == "prefix":
        adapter = prefix(arguments["prefix_length"])
    else:
        adapter = prefix_plus(arguments["feature_map"])
    if budget is None:
        return adapter
    # A budget of parameters sets the rank or the length.
    if options.is_given("rank") or options.is_given("prefix_length"):
        raise InputError("--budget chooses the rank or the length of the prefix: leave those out")
    fitted = _within(adapter, budget, _architecture(arguments["checkpoint"]))
    # An α that was given is not to follow the rank.
    return fitted if arguments["alpha"] is None else dataclasses.replace(fitted, alpha=adapter.alpha)


def _architecture(checkpoint: str) -> ModelConfig:
    return open_checkpoint(checkpoint).cfg


def _within(adapter: Adapter, budget: str, cfg: ModelConfig) -> Adapter:
    """Return the adapter with as many parameters as the budget allows."""
    if budget == "prefix-plus":
        return within_budget(cfg, adapter, count_trained(cfg, prefix_plus()))
    try:
        number = schema.within(schema.Count, int(budget), "--budget")
    except ValueError as error:
        raise InputError(
            f"--budget {budget} is neither {schema.in_words(schema.Count)} nor prefix-plus: give one of them"
        ) from error
    return within_budget(cfg, adapter, number)
