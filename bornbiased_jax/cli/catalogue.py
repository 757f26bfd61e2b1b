"""The commands by the question that they answer, and the group that imports each when it is called."""

from __future__ import annotations

import importlib
from typing import NamedTuple

import click
import click.shell_completion
from typing_extensions import override


class CommandEntry(NamedTuple):
    """The module of a command, below ``bornbiased_jax.cli``, and its line in the list of commands."""

    module: str
    attribute: str
    line: str


# Lines stand here and not in the commands, so that the list waits for none of their modules.
SECTIONS: dict[str, dict[str, CommandEntry]] = {
    "Initialization: what does a model prefer before training?": {
        "models": CommandEntry("models", "list_models", "presets, their fields and parameter counts"),
        "probe": CommandEntry("probe", "probe", "measure untrained models: preference, contraction, scaling"),
        "predict": CommandEntry("predict", "predict", "the same from theory; nothing is built"),
        "init-scheme": CommandEntry("checkpoint", "init_scheme", "which scheme drew these initial weights?"),
    },
    "Lineage: where does this model come from?": {
        "seedprint": CommandEntry("seedprint", "seedprint", "do two models share an initialization?"),
        "scan": CommandEntry("scan", "scan", "which of many models is this one related to?"),
        "whichseed": CommandEntry("scan", "whichseed", "from which seed was this model initialized?"),
        "audit": CommandEntry("audit", "audit", "is a folder of checkpoints what its labels say?"),
        "fingerprint": CommandEntry(
            "fingerprint", "fingerprint", "store sketches of a model's weights, to compare later"
        ),
        "digest": CommandEntry("fingerprint", "digest", "one hash of all weights, to publish before a dispute"),
        "derive": CommandEntry("derive", "derive", "make a descendant of known origin"),
    },
    "Training: from an initialization to a model": {
        "pretrain": CommandEntry("pretrain", "pretrain", "train one seed or many at once; resumes"),
        "adapt": CommandEntry("adapt", "adapt", "fine-tune, or train an adapter on top of a model"),
        "runs": CommandEntry("pretrain", "runs", "the runs in a folder and how far they are"),
        "plot": CommandEntry("pretrain", "plot", "draw a run's curves"),
        "export": CommandEntry("pretrain", "export", "write a checkpoint as a Hugging Face directory"),
        "evaluate": CommandEntry("checkpoint", "evaluate", "perplexity and bits per byte of a text"),
        "generate": CommandEntry("checkpoint", "generate", "continue a prompt"),
        "parity": CommandEntry("checkpoint", "parity", "compare logits with those of transformers"),
    },
    "Sinks: which heads attend to the first token, whatever the text?": {
        "sinks": CommandEntry("sinks", "sinks", "sinks on a text, and what they cost"),
        "intervene": CommandEntry("sinks", "intervene", "silence or move neurons, and see which sinks are left"),
    },
    "Records: the papers' tables, and this machine": {
        "reproduce": CommandEntry("reproduce", "reproduce", "tables and figures, each a record and a page"),
        "status": CommandEntry("reproduce", "status", "progress of the work in a store"),
        "doctor": CommandEntry("reproduce", "doctor", "versions, devices, memory, cache, missing extras"),
    },
}
COMMANDS: dict[str, CommandEntry] = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


class LazyGroup(click.Group):
    """A group whose commands live in modules that are imported on demand."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        """List all command names, in the order of the help page."""
        return list(COMMANDS)

    @override
    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import the module of one command."""
        if name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[name]
        command: click.Command = getattr(importlib.import_module(f"bornbiased_jax.cli.{module}"), attribute)
        return command

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command; the error about one that does not exist suggests the nearest names."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands under the question of each; no line is cut."""
        width = max(map(len, COMMANDS))
        for question, entries in SECTIONS.items():
            formatter.write(f"\n{question}\n")
            with formatter.indentation():
                formatter.write_dl([(name.ljust(width), entry.line) for name, entry in entries.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[click.shell_completion.CompletionItem]:
        """Complete names of commands with their lines, and options; no command is imported for it."""
        named = [
            click.shell_completion.CompletionItem(name, help=entry.line)
            for name, entry in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        # click's own way would import every command to ask whether it is hidden.
        return named + click.Command.shell_complete(self, ctx, incomplete)
