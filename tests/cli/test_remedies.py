"""A message that names a command is followed to the letter, and the call that failed then goes through."""

import ast
import json
import re
from pathlib import Path

import pytest

from bornbiased_jax.cli.main import run
from tests.cli.commands import commands

ROOT = Path(__file__).resolve().parents[2]
TINY = "llama-tiny,num_layers=1,num_heads=2,num_kv_heads=2,d_model=16,d_ff=16,vocab_size=257"
BORN = ["--model", "llama-tiny", *(word for pair in TINY.split(",")[1:] for word in ("--set", pair))]
SIZES = ["--num-inputs", "12", "--seq-len", "4", "--quiet"]


def sentences() -> list[str]:
    """The texts of all errors of the package and its experiments, what is filled in as "…"."""
    found = []
    for path in sorted([*(ROOT / "bornbiased_jax").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("InputError", "Overflow"):
                for part in node.args[:1]:
                    values = part.values if isinstance(part, ast.JoinedStr) else [part]
                    found.append("".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in values))
    return found


def test_every_command_that_an_error_names_is_tried_here():
    named = {word for text in sentences() for word in re.findall(r"bornbiased (\w+)", text)}
    assert {"fingerprint", "digest", "models", "pretrain"} <= named
    assert named <= set(TRIED), "a message names a command that no test below runs"


def test_every_option_that_an_error_names_exists():
    known = {option for command in commands().values() for parameter in command.params for option in parameter.opts}
    known |= {
        option for command in commands().values() for parameter in command.params for option in parameter.secondary_opts
    }
    for text in sentences():
        if "llama2.c" in text:  # its own program is meant
            continue
        for option in re.findall(r"(?<![\w…-])--[a-z][a-z0-9-]*(?![\w-]*…)", text):
            assert option in known, f"{text!r} names {option}, which no command has"


def refused(capsys, argv: list[str], words: str) -> str:
    """The sentence of a call that is refused; it holds the words."""
    assert run(argv) == 2
    error = capsys.readouterr().err
    assert words in error, error
    return error


def a_fingerprint(tmp_path, capsys):
    path = tmp_path / "a.fingerprint"
    again = ["seedprint", str(path), f"seed:1@{TINY}", "--quiet", "--json", str(tmp_path / "verdict.json")]
    make = ["fingerprint", f"seed:1@{TINY}", *SIZES, "--out", str(path)]
    assert run(make) == 0
    path.write_bytes(path.read_bytes()[:-3] + b"abc")
    refused(capsys, again, "make it again")
    assert run(make) == 0 and run(again) == 0
    assert json.loads((tmp_path / "verdict.json").read_text())["verdict"] == "same-lineage"


def a_digest(tmp_path, capsys):
    call = ["seedprint", f"seed:1@{TINY}", f"seed:2@{TINY}", "--test", "weights", "--quiet", "--base-digest"]
    refused(capsys, [*call, "abc"], "what bornbiased digest printed")
    assert run(["digest", f"seed:1@{TINY}"]) == 0
    printed = capsys.readouterr().out.strip()
    assert run([*call, printed]) == 0


def a_model(tmp_path, capsys):
    refused(capsys, ["predict", "--seq-len", "4"], "bornbiased models lists them")
    assert run(["models"]) == 0
    listed = capsys.readouterr().out
    assert "llama-tiny" in listed
    assert run(["predict", *BORN, "--seq-len", "4"]) == 0


def a_run(tmp_path, capsys):
    error = refused(capsys, ["runs", str(tmp_path)], "holds no pretraining run: `bornbiased pretrain --out")
    words = re.search(r"`bornbiased (.*?)`", error)[1].split()
    sizes = "--data builtin:code --tokenizer bytes --steps 1 --context 8 --batch-size 2 --warmup 0 --eval-sequences 2"
    more = [*BORN, *sizes.split(), "--no-tensorboard", "--quiet", "--token-cache", str(tmp_path / "tokens")]
    assert run([*words, *more]) == 0 and run(["runs", str(tmp_path)]) == 0


def an_export(tmp_path, capsys):
    call = ["export", f"seed:1@{TINY}", str(tmp_path / "model")]
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    refused(capsys, call, "give --overwrite")
    assert run([*call, "--overwrite"]) == 0 and run(call) == 0


TRIED = {"fingerprint": a_fingerprint, "digest": a_digest, "models": a_model, "pretrain": a_run, "export": an_export}


@pytest.mark.parametrize("name", TRIED)
def test_remedies_help(name, tmp_path, capsys):
    TRIED[name](tmp_path, capsys)


def test_baselines_print_their_table(tmp_path, capsys):
    call = ["seedprint", f"seed:1@{TINY}", f"seed:2@{TINY}", "--test", "weights", "--baselines", "--quiet"]
    assert run(call) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("Published scores"))
    assert {"intrinsic", "pcs", "ics"} <= {line.split()[0] for line in lines[start + 1 :]}
