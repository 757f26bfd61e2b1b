"""Entry point: find the command, run it, turn what goes wrong into an exit code and one sentence."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from bornbiased_jax import __version__
from bornbiased_jax.errors import InputError

# name -> (module, object, line of help): modules are imported when their command is called, so that
# --help and --version do not wait for jax.
COMMANDS: dict[str, tuple[str, str]] = {
    "models": ("models", "list_models"),
    "probe": ("probe", "probe"),
    "predict": ("predict", "predict"),
    "generate": ("checkpoint", "generate"),
    "parity": ("checkpoint", "parity"),
    "evaluate": ("checkpoint", "evaluate"),
    "sinks": ("sinks", "sinks"),
    "fingerprint": ("lineage", "fingerprint"),
    "seedprint": ("lineage", "seedprint"),
    "whichseed": ("whichseed", "whichseed"),
    "digest": ("digest", "digest"),
    "pretrain": ("pretrain", "pretrain"),
    "runs": ("pretrain", "runs"),
    "plot": ("pretrain", "plot"),
    "export": ("pretrain", "export"),
    "reproduce": ("reproduce", "reproduce"),
}


class LazyGroup(click.Group):
    """A group whose commands live in modules that are imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All command names, in the order of the help page."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import the module of one command."""
        if name not in COMMANDS:
            return None
        module, attribute = COMMANDS[name]
        command: click.Command = getattr(importlib.import_module(f"bornbiased_jax.cli.{module}"), attribute)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="bornbiased")
def cli() -> None:
    """Transformers are born biased: measure it, predict it, trace it, control it.

    \b
    Start here:
      bornbiased reproduce demo --scale laptop --out out/demo
      bornbiased probe preference --model gpt2-tiny --set init=normal-0.02 --seeds 0:8 --seq-len 64 --num-inputs 1000
    """


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 2 bad call or input, 130 interrupted, 143 terminated, 1 anything else."""
    try:
        code = run(sys.argv[1:] if argv is None else argv)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    if code:
        leave(code)
    sys.exit(0)


def leave(code: int) -> NoReturn:
    """End the process at once.

    What an interrupt or a full disk left half done in native threads can bring down the interpreter's own way out, or
    fill the screen on it after our sentence.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def run(argv: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    try:
        result = cli.main(args=list(argv), prog_name="bornbiased", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except InputError as error:
        return _complain(str(error))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        where = f" (see {error.ctx.command_path} --help)" if error.ctx is not None else ""
        return _complain(f"{error.format_message().rstrip('.')}{where}")
    except click.ClickException as error:
        return _complain(error.format_message())
    except (KeyboardInterrupt, click.Abort):
        print("bornbiased: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has left; there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
            return _complain(
                "there is not enough memory for this: use shorter sequences, a smaller batch or fewer seeds"
            )
        traceback.print_exc()
        return 1


def _complain(sentence: str) -> int:
    print(f"bornbiased: {' '.join(sentence.split())}", file=sys.stderr)
    return 2
