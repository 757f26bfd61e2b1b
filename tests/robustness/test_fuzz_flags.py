"""What is typed on the command line is done, or refused in one sentence, within bounds of memory and time.

Every number is refused beyond its range, by option, value and range, before anything is read. `make fuzz` draws as many
values as are asked for; what goes wrong is kept in the corpus.
"""

import contextlib
import fcntl
import io
import json
import os
import shutil
import tempfile
from pathlib import Path

import click
import hypothesis
import pytest
from hypothesis import strategies as st

from bornbiased_jax import progress
from bornbiased_jax.cli.main import run
from bornbiased_jax.cli.options import Ranged
from bornbiased_jax.schema import ends
from tests.cli.commands import commands
from tests.robustness.guard import bounds, is_one_sentence
from tests.tiers import nightly_except

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
BEYOND = ("-1", "1" + "0" * 40, "9" * 5000, "x", "nan", "inf", "-inf", "1e999", "")
# Names of files among them: none may lead out of the folder in which the call is made.
WORDS = st.text(st.characters(exclude_characters="\0/~", codec="utf-8"), max_size=20)
LONG = ("predict", "probe scaling", "sinks", "scan", "models", "whichseed", "parity", "probe preference", "reproduce")
# Of each command; by hand others than in every run, where hypothesis is given a seed.
EXAMPLES, FIRST = int(os.environ.get("FUZZ_EXAMPLES", 6)), os.environ.get("FUZZ_FIRST")


def options_of(path: str) -> list[click.Parameter]:
    """The parameters of a command."""
    return [parameter for parameter in commands()[path].params if not parameter.is_eager]


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


def values(parameter: click.Parameter) -> st.SearchStrategy[str]:
    """Ends of an option's type and beyond, or anything at all."""
    others = {
        # Small ones, or none that the option takes: in between lies honest work.
        "integer": st.integers(-(10**6), 8).map(str) | st.integers(10**10).map(str),
        "float": st.floats().map(repr),
    }
    drawn = st.sampled_from(extremes(parameter))
    return drawn if getattr(parameter, "is_flag", False) else drawn | others.get(parameter.type.name, WORDS)


def typed(path: str, parameter: click.Parameter, value: str) -> list[str]:
    """A command's call with one option at this value, or with this first argument where it has one."""
    call = CALLS[path]
    if value == "/" and (parameter.name == "data" or path == "audit"):
        return call  # every text or folder of the machine is a long job, as a bar shows
    if isinstance(parameter, click.Option):
        return [*call, parameter.opts[0] if parameter.is_flag else f"{parameter.opts[0]}={value}"]
    return [call[0], value, *call[2:]] if len(call) > 1 and not call[1].startswith("-") else call


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A folder of one small model."""
    folder = tmp_path_factory.mktemp("models")
    assert run(["export", INITIAL, str(folder / "step0")]) == 0
    return folder


def fault_of(words: list[str], models: Path) -> str | None:
    """Call a command; return the fault, or None where it succeeds or is refused in one sentence with exit code 2."""
    stderr = io.StringIO()
    # A folder below, so that what lies above is nobody's either.
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary, contextlib.chdir(temporary):
        shutil.copytree(models, "a/models")
        os.chdir("a")
        os.mkfifo("pipe")
        # Who writes into a pipe waits for a reader, and for room.
        pipe = os.open("pipe", os.O_RDWR)
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 2**20)
        Path("text.txt").write_text("A text of some words. " * 40)
        try:
            with bounds(), contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(io.StringIO()):
                code = run(words)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return f"{type(error).__name__}: {str(error)[:300]}"
        finally:
            os.close(pipe)
            progress.set_quiet(False)
    last = (stderr.getvalue().strip().splitlines() or [""])[-1]
    is_refusal = code == 2 and last.startswith("bornbiased: ") and is_one_sentence(last)
    if code == 0 or (is_refusal and "Traceback" not in stderr.getvalue()):
        return None
    return f"exit code {code}: {stderr.getvalue()[-400:]}"


def test_every_command_is_tried():
    assert set(commands()) == set(CALLS)
    existing = {option for path in CALLS for parameter in options_of(path) for option in parameter.opts}
    assert set(FORMS) <= existing and {f"--{name.replace('_', '-')}" for name in WORK} <= existing


@pytest.mark.slow
@pytest.mark.parametrize("path", nightly_except(CALLS, *(path for path in CALLS if path not in LONG)))
@hypothesis.settings(max_examples=EXAMPLES, derandomize=FIRST is None, phases=[hypothesis.Phase.generate])
@hypothesis.given(data=st.data())
def test_extreme_values(path, data, models):
    drawn = data.draw(st.lists(st.sampled_from(options_of(path)), min_size=1, max_size=2))
    words, *others = (typed(path, parameter, data.draw(values(parameter))) for parameter in drawn)
    # Two at once, but with --overwrite: a path may be no place of the user's, and what is in the way goes.
    if others and others[0][-1].startswith("--") and "--overwrite" not in (words[-1], others[0][-1]):
        words = [*words, others[0][-1]]
    fault = fault_of(words, models)
    if fault is not None and FIRST is not None:
        with CORPUS.open("a") as stream:
            stream.write(json.dumps(words) + "\n")
    assert fault is None, words


@pytest.mark.parametrize("line", CORPUS.read_text().splitlines(), ids=lambda line: json.loads(line)[0])
def test_corpus_of_command_lines(line, models):
    assert fault_of(json.loads(line), models) is None


@pytest.mark.parametrize("path", CALLS)
def test_numbers_beyond_their_range(path, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for parameter in options_of(path):
        if parameter.type.name not in ("integer", "float"):
            continue
        for value in BEYOND:
            err = refused([*CALLS[path], f"{parameter.opts[0]}={value}"])
            assert err.count("\n") == 1 and len(err) < 300
            assert err.startswith(f"bornbiased: {parameter.opts[0]} ") and " from " in err
    assert not list(tmp_path.iterdir())
