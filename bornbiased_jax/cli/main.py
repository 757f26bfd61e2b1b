"""Entry point: find the command, run it, turn what goes wrong into an exit code and one sentence."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

import click

from bornbiased_jax import __version__
from bornbiased_jax.cli.catalogue import COMMANDS, LazyGroup
from bornbiased_jax.errors import InputError, is_out_of_memory

__all__ = ["COMMANDS", "cli", "main", "run"]

INTERRUPTED = 130
LONGEST_WORD = 400
"""Characters of a value that an error repeats: what was typed may be a file by mistake."""
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")
_interrupted_before = threading.Event()
"""Whether Ctrl-C raised an exception in the command that runs."""
# Names that other programs give to options.
_SYNONYMS = {
    "--csv": "--metrics-csv",
    "--lr": "--learning-rate",
    "--max-steps": "--steps",
    "--optim": "--optimizer",
    "--output": "--out",
    "--seed": "--seeds",
    "--wd": "--weight-decay",
}
NO_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO})


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True},
)
@click.version_option(__version__, prog_name="bornbiased")
def cli() -> None:
    """Measure untrained transformers, trace models to their initialization, and test causes of attention sinks.

    \b
    Start here:
      bornbiased reproduce demo --scale laptop --out out/demo
      bornbiased probe contraction --model gpt2-tiny --seq-len 64 --num-inputs 500
      bornbiased seedprint BASE SUSPECT --page verdict.html
    """


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 2 bad call or input, 130 interrupted, 143 terminated, 1 anything else."""
    # Streams that the caller has closed are None, and a file that is opened later would take their place.
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # in the background of a shell it stays ignored
        _listen(_interrupted)
    sys.unraisablehook, before = _unraisable, sys.unraisablehook
    try:
        code = run(sys.argv[1:] if argv is None else argv)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except KeyboardInterrupt:
        # A second one while the sentence about the first was being written.
        code = INTERRUPTED
    finally:
        sys.unraisablehook = before
    # Here, and not by the interpreter, which has no sentence for a disk that is full.
    code = _flush() or code
    if code:
        leave(code)
    # All is done: an interrupt while the interpreter packs up would only hide that.
    _listen(signal.SIG_IGN)
    sys.exit(0)


def _listen(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    with contextlib.suppress(ValueError):  # only the main thread may
        signal.signal(signal.SIGINT, handler)


def _interrupted(_number: int, frame: FrameType | None) -> None:
    """Answer Ctrl-C: at once while modules are being imported, else as Python does.

    A library that is interrupted half imported may bring the process down later, or take the exception for a missing
    module and continue.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _say("interrupted")
            leave(INTERRUPTED)
        frame = frame.f_back
    _interrupted_before.set()
    raise KeyboardInterrupt


def _unraisable(event: sys.UnraisableHookArgs) -> None:
    """Answer an interrupt where no exception can be raised, in a callback of the garbage collector.

    Python would print it and continue.
    """
    if issubclass(event.exc_type, KeyboardInterrupt):
        _say("interrupted")
        leave(INTERRUPTED)
    sys.__unraisablehook__(event)


def _flush() -> int:
    """Write out what standard output still holds; return the exit code where that fails."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        return _lost_output(error)
    return 0


def _lost_output(error: Exception) -> int:
    """Answer a standard output that takes no more; there is nobody to tell where its reader has left."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(error, OSError) or error.errno == errno.EPIPE:
        return 1
    return _complain(f"cannot write the output: {error.strerror}; free some room or write elsewhere")


def leave(code: int) -> NoReturn:
    """End the process at once.

    What an interrupt or a full disk left half done in native threads can bring down the interpreter's own way out, or
    fill the screen on it after our sentence.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def run(argv: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    try:
        result = _call(argv)
        return result if isinstance(result, int) else 0
    except InputError as error:
        return _complain(str(error))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        where = f" (see {error.ctx.command_path} --help)" if error.ctx is not None else ""
        return _complain(f"{_usage(error)}{where}")
    except click.ClickException as error:
        return _complain(error.format_message())
    except (KeyboardInterrupt, click.Abort):
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError as error:
        return _lost_output(error)
    except Exception as error:
        if is_out_of_memory(error):
            return _complain(
                "there is not enough memory for this: use shorter sequences, a smaller batch or --chunk, or fewer seeds"
            )
        if "jax" in sys.modules and _lost_process(error):
            return 1
        if isinstance(error, OSError) and error.errno in NO_ROOM and error.filename is None:
            return _lost_output(error)
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG and error.filename is not None:
            return _complain(f"{os.fsdecode(error.filename)} is no path: {error.strerror}; name a shorter one")
        if isinstance(error, PermissionError) and error.filename is not None:
            path = os.fsdecode(error.filename)
            return _complain(f"{path} cannot be opened: {error.strerror}; fix its permissions, or name another place")
        with contextlib.suppress(OSError):
            traceback.print_exc()
        return 1


def _usage(error: click.UsageError) -> str:
    """Write what is wrong with a call; an option that has another name here is suggested by it."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        synonym = _SYNONYMS.get(error.option_name)
        if any(synonym in parameter.opts for parameter in error.ctx.command.params):
            return f"{error.message} Did you mean {synonym!r}?"
    return error.format_message().rstrip(".")


def _call(argv: Sequence[str]) -> object:
    """Return the command's value.

    An error after an interrupt is that interrupt: a library caught it, and continued without its interrupted work.
    """
    _interrupted_before.clear()
    try:
        return cli.main(args=list(argv), prog_name="bornbiased", standalone_mode=False)
    except Exception as error:
        if _interrupted_before.is_set():
            raise KeyboardInterrupt from error
        raise


def _lost_process(error: Exception) -> bool:
    """Answer an error that another process's end has brought about."""
    from bornbiased_jax.parallel import lost_process  # noqa: PLC0415 (the list of commands waits for no JAX)

    if not lost_process(error):
        return False
    reason = str(error).strip().splitlines()[0]
    _say(f"another process of this computation has ended ({reason}): start all again; what is kept resumes")
    return True


def _complain(sentence: str) -> int:
    _say(_LONG_WORD.sub(lambda word: f"{word[0][: LONGEST_WORD - 1]}…", sentence))
    return 2


def _say(sentence: str) -> None:
    """Write one line on standard error, where that still takes one."""
    with contextlib.suppress(OSError, ValueError):
        print(f"bornbiased: {' '.join(sentence.split())}", file=sys.stderr, flush=True)
