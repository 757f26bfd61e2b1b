"""Every option of every command by the extreme values of its type, on calls that are done in a moment."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import click

from bornbiased_jax import progress
from bornbiased_jax.cli.main import cli, run
from tests.fuzz.guard import bounds, is_one_sentence

CORPUS = Path(__file__).resolve().parent / "corpus" / "flags.jsonl"
SIZES = "num_layers=1,d_model=8,num_heads=1,d_ff=8,vocab_size=300,max_seq_len=64"
BIRTH = f"seed:1@gpt2-tiny,{SIZES}"
MODEL = ["--model", "gpt2-tiny", *[word for setting in SIZES.split(",") for word in ("--set", setting)]]
INPUTS = ["--num-inputs", "4", "--seq-len", "8"]
# A short call of each command that needs no files but its own; an option is put at the end and has the last word.
CALLS: dict[str, list[str]] = {
    "models": ["models"],
    "probe preference": ["probe", "preference", *MODEL, *INPUTS],
    "probe contraction": ["probe", "contraction", *MODEL, *INPUTS],
    "predict": ["predict", *MODEL, "--seq-len", "8"],
    "generate": ["generate", BIRTH, "--prompt-ids", "1,2", "--max-new-tokens", "2"],
    "evaluate": ["evaluate", BIRTH, "--tokenizer", "bytes", "--text", "text.txt", "--context", "16"],
    "sinks": ["sinks", BIRTH, "--tokenizer", "bytes", "--text", "text.txt", "--lengths", "8", "--num-sequences", "2"],
    "fingerprint": ["fingerprint", BIRTH, "--out", "a.fingerprint", *INPUTS],
    "seedprint": ["seedprint", BIRTH, BIRTH.replace("seed:1", "seed:2"), "--test", "permutation", *INPUTS],
    "whichseed": ["whichseed", BIRTH, "--seeds", "0:4", "--entries", "64"],
    "digest": ["digest", BIRTH],
    "runs": ["runs", "."],
    "plot": ["plot", "."],
    "export": ["export", BIRTH, "exported"],
    "pretrain": ["pretrain", *MODEL, "--tokenizer", "bytes", "--data", "missing.txt", "--out", "run", "--steps", "1"],
}
INTEGERS = (
    "0",
    "-1",
    "1",
    "2147483647",
    "4294967296",
    "9223372036854775808",
    "1" + "0" * 30,
    "9" * 5000,
    "1.5",
    "x",
    "",
)
NUMBERS = (*INTEGERS, "nan", "inf", "-inf", "1e999", "1e-999", "-0.0", "1e308", "0.5")
# No device among them: what writes to one is another matter (tests of files).
TEXTS = (
    "", " ", "-", "--", "x", "/", ".", "..", "/nowhere/x", "~nobody/x", "a" * 300, "a/" * 3000, "\udcff", "é\u0301",
    "\n", "%s{}", "0:1", "1,2", "0:", ":", "0:99999999999999999999", "1,,2", "seed:", "seed:1@", "seed:1@gpt2-tiny,x",
    "a@b=c", "seed:99999999999@gpt2-tiny", "seed:1@gpt2-tiny,d_model=1e999", "builtin:", "builtin:x", "bpe:", "bpe:-1",
    "bpe:٣", "bpe:99999999999999999999", "hf:", "text:", "data=0", "data=99999999999999999999", "seed=1,seed=1", "pipe",
    "d_model=" + "9" * 5000, "num_layers=1000000000", "rope_theta=NaN", "rope_theta=0", "norm=[]", "=", "x=1",
    "window=-1", "d_model=" + "[" * 5000, "vocab_size=1e30",
)  # fmt: skip


def options_of(path: str) -> list[click.Parameter]:
    """The parameters of a command."""
    command: click.Command = cli
    for name in path.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    return [parameter for parameter in command.params if not parameter.is_eager]


def extremes(parameter: click.Parameter) -> tuple[str, ...]:
    """Values at the ends of an option's type and beyond; of a flag the flag alone."""
    if getattr(parameter, "is_flag", False):
        return ("",)
    return {"integer": INTEGERS, "float": NUMBERS}.get(parameter.type.name, TEXTS)


def every() -> list[list[str]]:
    """Each option with each of its values; arguments in place of the call's own."""
    found = []
    for path, call in CALLS.items():
        for parameter in options_of(path):
            for value in extremes(parameter):
                if isinstance(parameter, click.Option):
                    flag = bool(parameter.is_flag)
                    found.append([*call, parameter.opts[0]] if flag else [*call, f"{parameter.opts[0]}={value}"])
                elif len(call) > 1 and not call[1].startswith("-"):
                    found.append([call[0], value, *call[2:]])
    return found


_EVERY: list[list[str]] = []


def line(seed: int) -> list[str]:
    """One of them, or two options at once."""
    if not _EVERY:
        _EVERY.extend(every())
    rng = random.Random(seed)
    chosen = rng.choice(_EVERY)
    same = [other for other in rng.sample(_EVERY, 40) if other[:2] == chosen[:2] and len(other) == len(chosen)]
    return [*chosen, other] if same and rng.random() < 0.3 and (other := same[0][-1]).startswith("--") else chosen


def fault_of(words: list[str]) -> str | None:
    """What is wrong with the outcome of a call, or None: it is done, or refused in one sentence with exit code 2."""
    said, told = io.StringIO(), io.StringIO()
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        os.chdir(folder)
        os.mkfifo("pipe")
        Path("text.txt").write_text("A text of some words. " * 40)
        try:
            with bounds(), contextlib.redirect_stderr(said), contextlib.redirect_stdout(told):
                code: Any = run(words)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return f"{type(error).__name__}: {str(error)[:300]}"
        finally:
            os.chdir(before)
            progress.set_quiet(False)
    last = (said.getvalue().strip().splitlines() or [""])[-1]
    if code == 0:
        return None
    fine = (
        code == 2 and last.startswith("bornbiased: ") and is_one_sentence(last) and "Traceback" not in said.getvalue()
    )
    return None if fine else f"exit code {code}: {said.getvalue()[-400:]}"


def keep(words: list[str]) -> Path:
    """Put a case into the corpus."""
    CORPUS.parent.mkdir(parents=True, exist_ok=True)
    with CORPUS.open("a") as stream:
        stream.write(json.dumps(words) + "\n")
    return CORPUS


def kept() -> list[list[str]]:
    """The corpus."""
    return [json.loads(row) for row in CORPUS.read_text().splitlines()] if CORPUS.exists() else []


def name_of(words: list[str]) -> str:
    """A short name of a call, the same for the same words."""
    return f"{words[0]}-{hashlib.sha256(json.dumps(words).encode()).hexdigest()[:8]}"
