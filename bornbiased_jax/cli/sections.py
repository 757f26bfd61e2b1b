"""Help pages: everyday options first, then the others by section."""

from __future__ import annotations

import os
from typing import Any

import click

from bornbiased_jax.cli import outputs
from bornbiased_jax.cli.options import TEXT

CHECKPOINT = "A run, a Hugging Face directory, a .gguf file, hf:NAME, or untrained weights such as seed:42@llama-tiny."
"""Help of an argument that names a model."""
# Options that are listed after the everyday ones, by their parameters' names.
SECTIONS = {
    "Results": outputs.RESULTS,
    "Details": (
        # Of lineage tests and fingerprints
        *("num_permutations", "labels", "neurons", "dim", "max_bytes", "sign_key", "signs", "token_labels"),
        *("num_references", "vocab_size", "file", "files", "roles", "ignore_fields", "pattern", "frozen", "entries"),
        # Of sinks
        *("epsilon", "convention", "threshold", "normalize", "granularity", "keep_sinks"),
        # Of probes
        *("fix_embeddings", "embedding_seed", "input_seed"),
        # Of training
        *("data_seed", "schedule_steps", "accumulation", "min_learning_rate", "warmup", "weight_decay", "clip"),
        *("beta1", "beta2", "dtype", "validation_fraction"),
    ),
    "Checkpoints and logs": (
        *("checkpoint_every", "checkpoint_log_spaced", "keep_latest", "eval_every", "eval_sequences", "log_every"),
        *("no_tensorboard", "metrics_csv", "wandb"),
    ),
    "Memory and speed": (
        *("dry_run", "batch_size", "mode", "chunk", "stream", "scratch", "storage", "remat", "seeds_mode"),
        *("precision", "processes", "token_cache"),
    ),
    "Stores and clusters": (
        *("resume", "range_size", "engine", "workers", "submit", "ray_address"),
        *("mesh", "coordinator", "num_processes", "process_id"),
    ),
}
_SECTION_OF = {name: title for title, names in SECTIONS.items() for name in names}


class Command(click.Command):
    """A command whose help lists everyday options first, and which looks at the place of --json before the work."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        """Make the command; no text among its parameters may be empty."""
        super().__init__(*arguments, **settings)
        for parameter in self.params:
            if parameter.type is click.STRING:
                parameter.type = TEXT

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        Raises:
            InputError: --json cannot be written, or two options name one file.
        """
        # No shell expands the "~" of --json=~/a.json.
        for name in outputs.PLACES:
            if isinstance(value := ctx.params.get(name), str):
                ctx.params[name] = os.path.expanduser(value)
        outputs.check_distinct(ctx)
        outputs.prepare_json(ctx.params["json_file"])
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by section."""
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Options", *SECTIONS)}
        for parameter in self.get_params(ctx):
            line = None if isinstance(parameter, click.Argument) else parameter.get_help_record(ctx)
            if line is not None:
                sections[_SECTION_OF.get(parameter.name or "", "Options")].append(line)
        for title, lines in sections.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)
