"""Every option of every command by the extreme values of its type, on calls that are done in a moment."""

import contextlib
import fcntl
import functools
import hashlib
import io
import json
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import click

from bornbiased_jax import progress
from bornbiased_jax.cli.main import cli, run
from bornbiased_jax.cli.options import Ranged
from bornbiased_jax.schema import ends
from tests.robustness.guard import bounds, is_one_sentence

CORPUS = Path(__file__).resolve().parent / "corpus" / "flags.jsonl"
SIZES = "num_layers=1,d_model=8,num_heads=1,d_ff=8,vocab_size=300,max_seq_len=64"
INITIAL = f"seed:1@gpt2-tiny,{SIZES}"
MODEL = ["--model", "gpt2-tiny", *[word for setting in SIZES.split(",") for word in ("--set", setting)]]
INPUTS = ["--num-inputs", "4", "--seq-len", "8"]
# A short call of each command that needs no files but its own; an option is put at the end and has the last word.
CALLS: dict[str, list[str]] = {
    "models": ["models"],
    "probe preference": ["probe", "preference", *MODEL, *INPUTS],
    "probe contraction": ["probe", "contraction", *MODEL, *INPUTS],
    "probe scaling": ["probe", "scaling", *MODEL, "--widths", "8,16", "--steps", "1", "--seeds", "0:2"],
    "predict": ["predict", *MODEL, "--seq-len", "8", "--num-inputs", "8"],
    "generate": ["generate", INITIAL, "--prompt-ids", "1,2", "--max-new-tokens", "2"],
    "parity": ["parity", "models/step0"],
    "evaluate": ["evaluate", INITIAL, "--tokenizer", "bytes", "--text", "text.txt", "--context", "16"],
    "sinks": ["sinks", INITIAL, "--tokenizer", "bytes", "--text", "text.txt", "--lengths", "8", "--num-sequences", "2"],
    "intervene": ["intervene", INITIAL, "--tokenizer", "bytes", "--text", "text.txt", "--length", "8",
                  "--num-sequences", "2"],
    "fingerprint": ["fingerprint", "--outputs", INITIAL, "--out", "a.fingerprint", *INPUTS],
    "seedprint": ["seedprint", INITIAL, INITIAL.replace("seed:1", "seed:2"), "--test", "permutation", *INPUTS],
    "whichseed": ["whichseed", INITIAL, "--seeds", "0:4", "--entries", "64"],
    "digest": ["digest", INITIAL],
    "init-scheme": ["init-scheme", INITIAL],
    "scan": ["scan", INITIAL, INITIAL.replace("seed:1", "seed:2"), "--mixture", "--base",
             INITIAL.replace("seed:1", "seed:3")],
    "runs": ["runs", "."],
    "plot": ["plot", "."],
    "export": ["export", INITIAL, "exported"],
    "pretrain": ["pretrain", *MODEL, "--tokenizer", "bytes", "--data", "missing.txt", "--out", "run", "--steps", "1"],
    "adapt": ["adapt", INITIAL, "--method", "lora", "--tokenizer", "bytes", "--data", "missing.txt", "--out", "tuned",
              "--steps", "1"],
    "derive": ["derive", INITIAL, "--change", "noise:0.1", "--out", "derived"],
    "audit": ["audit", "models"],
    "status": ["status", "."],
    "doctor": ["doctor"],
    "reproduce": ["reproduce", "table3", "--scale", "smoke", "--out", "out"],
}  # fmt: skip
WORK = ("num_inputs",)
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
    "", " ", "-", "--", "x", "/", ".", "..", "/proc/nowhere/x", "~nosuchuser/x", "a" * 300, "a/" * 3000, "\udcff",
    "é\u0301", "\n", "%s{}", "0:1", "1,2", "0:", ":", "0:99999999999999999999", "1,,2", "seed:", "seed:1@",
    "seed:1@gpt2-tiny,x", "a@b=c", "seed:99999999999@gpt2-tiny", "seed:1@gpt2-tiny,d_model=1e999", "builtin:",
    "builtin:x", "bpe:", "bpe:-1", "seed:" + "9" * 5000 + "@gpt2-tiny", "models/step0@step=" + "9" * 5000,
    "models/step0", "bpe:٣", "bpe:99999999999999999999", "hf:", "text:", "data=0", "data=99999999999999999999",
    "seed=1,seed=1", "pipe", "d_model=" + "9" * 5000, "num_layers=1000000000", "rope_theta=NaN", "rope_theta=0",
    "norm=[]", "=", "x=1", "window=-1", "d_model=" + "[" * 5000, "vocab_size=1e30", "models", "text.txt", "(",
    "(?P<step>" * 200, "w0a0",
)  # fmt: skip
# Values in the form that an option has, at its ends and beyond.
FORMS = {
    "--change": (
        "noise:0", "noise:-1", "noise:nan", "noise:1e38", "noise:1e999", "prune:1", "prune:2", "round:0", "round:1",
        "round:64", "round:" + "9" * 5000, "merge:models/step0:0.5", "merge:x:0.5", "merge::", "slerp:models/step0:1",
        "slerp:models/step0:nan", "lora:models/step0", "lora:", "drop-layers:1", "drop-layers:0", "drop-layers:1,1",
        "drop-layers:99999999999", "drop-layers:" + "9" * 5000,
        "repeat-layers:1-" + "9" * 5000, "noise:" + "9" * 5000, "repeat-layers:1-1",
        "repeat-layers:1-99999999999", "repeat-layers:2-1",
        "rotate:-1", "rotate:4294967296", "rotate:7", "renumber:7", "renumber:x", "negate:7", "negate:all", "permute:7",
        "permute:" + "9" * 5000, "rescale:7", "heads:7", "insert-layer:7", "insert-layer:1e9", "resize-vocab:0",
        "resize-vocab:1", "resize-vocab:16777216", "resize-vocab:99999999999", "unused-rows:0", "unused-rows:inf",
        "unused-rows:1e38",
    ),
    "--silence": ("blocks/1/mlp:0", "blocks/0/mlp:0", "blocks/2/mlp:0", "blocks/1/mlp:8", "blocks/1/mlp:-1",
                  "blocks/1/mlp:" + "9" * 5000, "blocks/1/attention:0", "blocks//mlp:"),
    "--write": ("blocks/1/mlp:0@1", "blocks/1/mlp:0@8", "blocks/1/mlp:0@9", "blocks/1/mlp:0@0", "blocks/1/mlp:0@",
                "blocks/1/mlp:0@99999999999", "blocks/1/mlp:0@" + "9" * 5000),
    "--clear": ("0", "7", "8", "-1", "0@1", "0@0", "0@2", "0@99999999999", "9" * 5000, "0@", "@1"),
    "--lengths": ("8,8", "1", "16777216", "8,16777216", "0", "8,-1", ",".join(["8"] * 2000)),
    "--quantise": ("w8a8", "a6,kv4", "w4a8kv4", "w1", "w0a0", "w99", "w" + "9" * 5000, ",".join(["w8a8"] * 500)),
    "--granularity": ("tensor", "channel", "tensor,token,channel", "token,token", "x,"),
    "--keep-sinks": ("0", "8", "0,0", "-1", "99999999999", "9" * 5000, ",".join(map(str, range(2000)))),
    "--prompt-ids": ("0", "299", "300", "-1", "9" * 5000, ",".join(["1"] * 5000)),
    "--sweep": ("num_layers=1,2", "num_layers=1,1", "num_layers=", "=1,2", "d_model=8," + "9" * 5000, "init=zeros,x",
                "num_layers=1,2,3", "window=None,4", "norm=[],{}"),
    "--mesh": ("seed=1", "seed=" + "9" * 5000, "data=2", "seed=0", "seed=99999999999", "x=1", "seed=-1,data=-1"),
    "--pattern": ("(?P<step>\\d+)", "(?P<step>x)", "(?P<run>.*)(?P<step>.*)", "(?P<step>"),
    "--frozen": (".*", "^embed", "["),
    "--seeds": ("0", "0:2", "4294967295", "4294967294:4294967296", "4294967296", "-1", "1:0", "0:1000001", "x:y"),
}  # fmt: skip


def options_of(path: str) -> list[click.Parameter]:
    """The parameters of a command."""
    command: click.Command = cli
    for name in path.split():
        assert isinstance(command, click.Group)
        subcommand = command.get_command(click.Context(command), name)
        assert subcommand is not None
        command = subcommand
    return [parameter for parameter in command.params if not parameter.is_eager]


def extremes(parameter: click.Parameter) -> tuple[str, ...]:
    """Values at the ends of an option's type and beyond; of a flag the flag alone."""
    if getattr(parameter, "is_flag", False):
        return ("",)
    if isinstance(parameter.type, Ranged):
        limits = ends(parameter.type.kind)
        assert limits is not None
        kind, least, most = limits
        if kind is int:
            # So many inputs are a long job, which an interrupt ends.
            largest = () if parameter.name in WORK else (most,)
            return (*INTEGERS, *map(str, (least - 1, least, *largest, most + 1)))
        return (*NUMBERS, repr(float(least)), repr(float(most)))
    return (*FORMS.get(parameter.opts[0], ()), *TEXTS)


def typed(path: str, parameter: click.Parameter, value: str) -> list[str] | None:
    """A command's call with one option at this value, or with this first argument; None where it has none."""
    call = CALLS[path]
    if value == "/" and (parameter.name == "data" or path == "audit"):
        return None  # every text or folder of the machine is a long job, as a bar shows
    if isinstance(parameter, click.Option):
        return [*call, parameter.opts[0] if parameter.is_flag else f"{parameter.opts[0]}={value}"]
    return [call[0], value, *call[2:]] if len(call) > 1 and not call[1].startswith("-") else None


@functools.cache
def extreme_calls(path: str) -> list[list[str]]:
    """List a command's calls, one for each option with each of its values; arguments in place of the call's own."""
    pairs = [(parameter, value) for parameter in options_of(path) for value in extremes(parameter)]
    return [call for parameter, value in pairs if (call := typed(path, parameter, value)) is not None]


def line(seed: int, path: str | None = None) -> list[str]:
    """Draw one of a command's calls, or two options at once; of any command where none is named."""
    rng = random.Random(f"{path} {seed}")
    calls = extreme_calls(path or rng.choice(list(CALLS)))
    words, other = rng.choice(calls), rng.choice(calls)
    # With --overwrite a path may be no place of the user's: what is in the way goes.
    is_apart = other[-1].startswith("--") and "--overwrite" not in (words[-1], other[-1])
    return [*words, other[-1]] if is_apart and len(other) == len(words) and rng.random() < 0.3 else words


@functools.cache
def _models() -> Path:
    """A folder of one small model; it stays while the process lives."""
    keep = tempfile.TemporaryDirectory(prefix="fuzz-")
    _KEPT.append(keep)
    assert run(["export", INITIAL, f"{keep.name}/step0"]) == 0
    return Path(keep.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def fault_of(words: list[str]) -> str | None:
    """Call a command; return the fault, or None where it succeeds or is refused in one sentence with exit code 2."""
    stderr, stdout = io.StringIO(), io.StringIO()
    before = os.getcwd()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        models = _models()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        # So that what lies above is nobody's either.
        folder = Path(temporary) / "a"
        folder.mkdir()
        os.chdir(folder)
        os.mkfifo("pipe")
        # Who writes into a pipe waits for a reader, and for room.
        pipe = os.open("pipe", os.O_RDWR)
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 2**20)
        shutil.copytree(models, "models")
        Path("text.txt").write_text("A text of some words. " * 40)
        try:
            with bounds(), contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(stdout):
                code: Any = run(words)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return f"{type(error).__name__}: {str(error)[:300]}"
        finally:
            os.close(pipe)
            os.chdir(before)
            progress.set_quiet(False)
    last = (stderr.getvalue().strip().splitlines() or [""])[-1]
    if code == 0:
        return None
    is_refusal = (
        code == 2 and last.startswith("bornbiased: ") and is_one_sentence(last) and "Traceback" not in stderr.getvalue()
    )
    return None if is_refusal else f"exit code {code}: {stderr.getvalue()[-400:]}"


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
