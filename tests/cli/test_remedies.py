"""A message that names a command is followed to the letter, and the call that failed then goes through."""

import ast
import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from bornbiased_jax.cli.main import run
from tests.cli.commands import commands
from tests.robustness.process import TINY, UNTRAINED
from tests.tiers import NIGHTLY, nightly_except

ROOT = Path(__file__).resolve().parents[2]
SIZES = ["--num-inputs", "12", "--seq-len", "4", "--quiet"]


def sentences() -> list[str]:
    """The texts of all errors of the package and its experiments, what is filled in as "…"."""
    texts = []
    for path in sorted([*(ROOT / "bornbiased_jax").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("InputError", "Overflow"):
                for part in node.args[:1]:
                    values = part.values if isinstance(part, ast.JoinedStr) else [part]
                    texts.append("".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in values))
    return texts


def test_every_command_that_an_error_names_is_tried_here():
    named = {word for text in sentences() for word in re.findall(r"bornbiased (\w+)", text)}
    assert {"fingerprint", "digest", "models", "pretrain"} <= named
    assert named <= set(TRIED), "a message names a command that no test below runs"


def test_every_option_that_an_error_names_exists():
    existing = {option for command in commands().values() for parameter in command.params for option in parameter.opts}
    existing |= {
        option for command in commands().values() for parameter in command.params for option in parameter.secondary_opts
    }
    for text in sentences():
        for option in re.findall(r"(?<![\w…-])--[a-z][a-z0-9-]*(?![\w-]*…)", text):
            assert option in existing, f"{text!r} names {option}, which no command has"


def refused(capsys, argv: list[str], words: str) -> str:
    """The sentence of a call that is refused; it holds the words."""
    assert run(argv) == 2
    error = capsys.readouterr().err
    assert words in error, error
    return error


def a_fingerprint(tmp_path, capsys):
    path = tmp_path / "a.fingerprint"
    again = ["seedprint", str(path), f"seed:1@{TINY}", "--quiet", "--json", str(tmp_path / "verdict.json")]
    make = ["fingerprint", "--outputs", f"seed:1@{TINY}", *SIZES, "--out", str(path)]
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
    assert run(["predict", *UNTRAINED, "--seq-len", "4"]) == 0


def of_a_run(tmp_path) -> list[str]:
    """The options of a short run but for its steps and place."""
    sizes = "--data builtin:code --tokenizer bytes --context 8 --batch-size 2 --warmup 0 --eval-sequences 2"
    return [*UNTRAINED, *sizes.split(), "--no-tensorboard", "--quiet", "--token-cache", str(tmp_path / "tokens")]


def a_run(tmp_path, capsys):
    error = refused(capsys, ["runs", str(tmp_path)], "holds no pretraining run: `bornbiased pretrain --out")
    words = re.search(r"`bornbiased (.*?)`", error)[1].split()
    assert run([*words, *of_a_run(tmp_path), "--steps", "1"]) == 0 and run(["runs", str(tmp_path)]) == 0


def an_export(tmp_path, capsys):
    call = ["export", f"seed:1@{TINY}", str(tmp_path / "model")]
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    refused(capsys, call, "give --overwrite")
    assert run([*call, "--overwrite"]) == 0 and run(call) == 0


def another_folder(tmp_path, capsys):
    call = ["pretrain", *of_a_run(tmp_path)]
    first, other = str(tmp_path / "a"), str(tmp_path / "b")
    assert run([*call, "--steps", "1", "--out", first]) == 0
    refused(capsys, [*call, "--steps", "2", "--out", first], "name another --out (--schedule-steps leaves room)")
    assert run([*call, "--steps", "1", "--schedule-steps", "2", "--out", other]) == 0
    assert run([*call, "--steps", "2", "--out", other]) == 0


def no_layer(tmp_path, capsys):
    paths = [str(tmp_path / f"{seed}.fingerprint") for seed in (1, 2)]

    def make(*layer: str) -> None:
        for seed, path in enumerate(paths, 1):
            assert run(["fingerprint", "--outputs", f"seed:{seed}@{TINY}", *SIZES, "--out", path, *layer]) == 0

    call = ["seedprint", *paths, "--test", "population", "--num-references", "101", "--quiet"]
    make("--layer", "1")
    refused(capsys, call, "make fingerprints without --layer")
    make()
    assert run(call) == 0


def alike(tmp_path, capsys):
    paths = [str(tmp_path / f"{name}.fingerprint") for name in "ab"]

    def make(*options: str) -> None:
        assert run(["fingerprint", f"seed:2@{TINY}", "--out", paths[1], "--quiet", *options]) == 0

    assert run(["fingerprint", f"seed:1@{TINY}", "--out", paths[0], "--quiet"]) == 0
    make("--dim", "8")
    refused(capsys, ["seedprint", *paths, "--quiet"], "make both with one --dim")
    make("--sign-key", "00ff")
    refused(capsys, ["seedprint", *paths, "--quiet"], "make both with one --sign-key")
    keyed = ["seedprint", paths[0], f"seed:2@{TINY}", "--quiet"]
    refused(capsys, [*keyed, "--sign-key", "00ff"], "leave --sign-key out")
    refused(capsys, [*keyed, "--neurons", "7"], "leave --neurons out")
    make()
    assert run(["seedprint", *paths, "--quiet"]) == run(keyed) == 0


def an_adapter(tmp_path, capsys):
    base, adapter = f"seed:1@{TINY}", str(tmp_path / "adapter")
    training = ["--data", "builtin:prose", "--tokenizer", "bytes", "--steps", "1", "--quiet"]
    assert run(["adapt", base, "--method", "lora", *training, "--out", str(tmp_path / "run")]) == 0
    assert run(["export", str(tmp_path / "run"), adapter, "--peft"]) == 0
    # An adapter of a model that is not on this machine.
    config = tmp_path / "adapter" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": "nobody/model"}))
    refused(capsys, ["fingerprint", adapter, "--out", "x"], f"`bornbiased derive BASE --change lora:{adapter}")
    assert run(["derive", base, "--change", f"lora:{adapter}", "--out", str(tmp_path / "merged")]) == 0


TRIED = {"fingerprint": a_fingerprint, "digest": a_digest, "models": a_model, "pretrain": a_run, "export": an_export}
TRIED |= {"derive": an_adapter}


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly_except(TRIED, "fingerprint", "digest", "models", "export"))
def test_remedies_help(name, tmp_path, capsys):
    TRIED[name](tmp_path, capsys)


class Help(NamedTuple):
    """A call that is refused with these words, and the options that they name, given in place of its last ones."""

    words: str
    refused: list[str]
    instead: int
    given: list[str]


SEEDS = [f"seed:{seed}@{TINY}" for seed in (1, 2)]
TEXT = ["--text", "text.txt", "--tokenizer", "bytes", "--num-sequences", "2"]
EDIT = ["intervene", SEEDS[0], *TEXT, "--length", "8", "--quiet"]
OUTPUTS = ["fingerprint", SEEDS[0], "--outputs", *SIZES, "--out", "a"]
PREFERENCE = ["probe", "preference", *UNTRAINED, *SIZES]
PREDICT = ["predict", *UNTRAINED, "--seq-len", "4"]
SCALING = ["probe", "scaling", *UNTRAINED, "--widths", "8,16", "--steps", "1", "--seeds", "0:2"]
SINKS = ["sinks", SEEDS[0], *TEXT, "--lengths", "16", "--no-details", "--quiet"]
DERIVE = ["derive", f"seed:1@{TINY.replace('257', '256')}", "--out", "derived", "--change"]
ELSEWHERE = ["--engine", "processes"]
SEARCH = ["whichseed", SEEDS[0], "--quiet", "--seeds", "0:2"]
NOTHING = "nothing to intervene with: give --silence, --write, --clear or --first-token"
HELPS = (
    Help("give either --prompt TEXT or --prompt-ids 5,17,3", ["generate", SEEDS[0], "--max-new-tokens", "2"], 0,
         ["--prompt-ids", "5,17,3"]),
    Help("give token ids in place of text", ["generate", SEEDS[0], "--max-new-tokens", "2", "--prompt", "a"], 2,
         ["--prompt-ids", "5,17,3"]),
    Help("give either --text FILE or --data", ["evaluate", SEEDS[0], "--context", "8"], 0, TEXT),
    Help("has no tokenizer: name one with --tokenizer", ["evaluate", SEEDS[0], "--context", "8", *TEXT[:2]], 0,
         ["--tokenizer", "bytes"]),
    Help(NOTHING, EDIT, 0, ["--silence", "blocks/1/mlp:12"]),
    Help(NOTHING, EDIT, 0, ["--write", "blocks/1/mlp:12@8"]),
    Help(NOTHING, EDIT, 0, ["--clear", "5"]),
    Help(NOTHING, EDIT, 0, ["--first-token", "1"]),
    Help("is not of the form blocks/12/mlp:1229@8", [*EDIT, "--write", "x"], 1, ["blocks/1/mlp:12@8"]),
    Help("is not of the form 507 or 507@12", [*EDIT, "--clear", "x"], 1, ["5@1"]),
    Help("no seeds: give at least one, as in --seeds", [*PREFERENCE, "--seeds", ","], 1, ["42,43"]),
    Help("is not of the form 0:64 or 42,43", [*PREFERENCE, "--seeds", "x"], 1, ["0:2"]),
    Help("--checkpoint and --model exclude each other: give one of them",
         ["probe", "contraction", *SIZES, "--checkpoint", SEEDS[0], *UNTRAINED], len(UNTRAINED), []),
    Help("set one field: leave --set",
         ["predict", "--seq-len", "4", "--sweep", "vocab_size=257,300", *UNTRAINED], 2, []),
    Help("leave --sweep and --gradients out", [*PREDICT, "--page", "d.html", "--diagram", "--gradients"], 1, []),
    Help("say where with --page FILE", [*PREDICT, "--diagram"], 0, ["--page", "d.html"]),
    Help("choose widths that are multiples of 2", [*SCALING, "--widths", "8,9"], 1, ["8,16"]),
    Help("a slope needs at least two widths, as in --widths", [*SCALING, "--widths", "8"], 1, ["8,16"]),
    Help("an interval needs at least two seeds, as in --seeds", [*SCALING, "--seeds", "0"], 1, ["0:2"]),
    Help("need a store to keep them in: give --resume DIR", [*PREFERENCE, "--range", "6"], 0, ["--resume", "kept"]),
    Help("has no workers: name another --engine, or leave --workers out",
         [*PREFERENCE, "--resume", "kept", "--workers", "2"], 2, []),
    Help("submits nothing: leave --submit out",
         [*PREFERENCE, "--resume", "kept", "--submit", "timeout_min=1"], 2, []),
    Help("leave --mesh or --engine out", [*PREFERENCE, "--resume", "kept", "--mesh", "data=1", *ELSEWHERE], 2, []),
    Help("has no address: leave --ray-address out",
         [*PREFERENCE, "--resume", "kept", "--ray-address", "h:1"], 2, []),
    Help("is not a range such as 0:1000000", [*SEARCH[:-1], "x"], 1, ["0:2"]),
    Help("--set changes the model of --model: name that too", [*SEARCH, *UNTRAINED[2:]], 0, UNTRAINED[:2]),
    Help("give the suspect's own sizes by --model and --set", [*SEARCH, "--model", "llama-tiny"], 2, UNTRAINED),
    Help("give the suspect's own architecture by --model and --set",
         [*SEARCH, *UNTRAINED, "--set", "positions=learned"], 2, []),
    Help("add --outputs", ["fingerprint", SEEDS[0], *SIZES, "--out", "a"], 0, ["--outputs"]),
    Help("raise --max-bytes", ["fingerprint", SEEDS[0], "--out", "a", "--max-bytes", "2000"], 1, ["200000"]),
    Help("give --stream too", [*OUTPUTS, "--scratch", "s"], 0, ["--stream"]),
    Help("leave out --resume and --mesh", [*OUTPUTS, "--stream", "--scratch", "s", "--resume", "kept"], 2, []),
    Help("leave --engine out", ["fingerprint", "models/seed1-step3", *OUTPUTS[2:], "--file", "model.safetensors",
                                "--resume", "kept", *ELSEWHERE], 2, []),
    Help("leave --storage out", [*OUTPUTS, "--stream", "--scratch", "s", "--storage", "bfloat16"], 2, []),
    Help("give --steps", ["pretrain", *UNTRAINED, "--data", "text.txt", "--out", "b", "--schedule", "seedprint",
                          "--dry-run"], 0, ["--steps", "3"]),
    Help("Missing option '--change'", ["derive", SEEDS[0], "--out", "derived"], 0, ["--change", "rotate:7"]),
    Help("leave --tokenizer out", [*PREFERENCE, "--tokenizer", "bytes"], 2, []),
    Help("leave --no-fix-embeddings out", [*PREFERENCE, "--embedding-seed", "3", "--no-fix-embeddings"], 1, []),
    Help("leave --inputs out", [*PREDICT, "--gradients", "--inputs", "gaussian"], 2, []),
    Help("add --quantise w8a8", [*SINKS, "--granularity", "token"], 0, ["--quantise", "w8a8"]),
    Help("add --quantise w8a8 or --streaming 8", [*SINKS, "--keep-sinks", "2"], 0, ["--streaming", "8"]),
    Help("add --change unused-rows:SCALE", [*DERIVE, "noise:0.1", "--text", "text.txt"], 0,
         ["--change", "unused-rows:2"]),
    Help("leave --seed out", [*DERIVE, "permute:3", "--seed", "3"], 2, []),
    Help("add --temperature 0.8", ["generate", SEEDS[0], "--prompt-ids", "5", "--seed", "3"], 0,
         ["--temperature", "0.8"]),
    Help("write one, as in '(?P<run>seed\\d+)-step(?P<step>\\d+)'", ["audit", "models", "--pattern", "x"], 1,
         ["(?P<run>seed\\d+)-step(?P<step>\\d+)"]),
)  # fmt: skip
# Predictions and sweeps compute for longer; one edit of four stands for all.
HELP_ROWS = [
    pytest.param(case, marks=NIGHTLY if case.refused[0] in ("predict", "probe") or case in HELPS[4:7] else ())
    for case in HELPS
]
# What the sentences say, and who follows it.
FOLLOWED = {
    "another --out": another_folder,
    "without --layer": no_layer,
    "has no float32 products by": "tests/model/test_precision.py::test_a_device_without_such_products_is_named",
    "is defined for precision": "tests/model/test_precision.py::"
    "test_an_experiment_that_is_defined_for_exact_products_refuses_others",
    "make both with one --dim": alike,
    "make both with one --sign-key": alike,
    "leave --sign-key out": alike,
    "leave --neurons out": alike,
    "choose one with --file NAME": "tests/lineage/test_disputes.py::test_commands_choose_a_set_of_weights",
    "choose it with --file": "tests/checkpoints/test_huggingface.py::test_files_of_torch_are_the_same_model",
    "a file of roles (--roles FILE)": "tests/checkpoints/test_naming.py::"
    "test_names_that_no_convention_fits_are_refused_until_a_file_of_roles_describes_them",
    "no change: give at least one": "tests/cli/test_remedies.py::test_options_that_a_message_names_help",
    "prefix-plus begins at zero": "tests/derive/test_tune.py::test_a_prefix_opens_everywhere_and_cannot_be_exported",
    "name the folder that reproduce --out was given": "tests/experiments/test_results.py::"
    "test_a_rerun_at_its_scale_verifies_a_record_and_leaves_all_else",
    "describe them in a file of roles": "tests/checkpoints/test_naming.py::"
    "test_names_that_no_convention_fits_are_refused_until_a_file_of_roles_describes_them",
    "draws whole models in this process": "tests/lineage/test_torch_seeds.py::test_the_command_records_what_drew",
    "no run is named": "tests/experiments/test_anatomy.py::test_the_decay_of_a_run_that_is_named",
    "holds no finished record": "tests/experiments/test_results.py::test_finished_records_are_collected_by_scale",
    "on its own with the same --out": "tests/experiments/test_runner.py::test_again_resumes",
    "a running Ray cluster has processors of its own": "tests/test_store.py::test_missing_engine_or_option_named",
    "no Ray cluster answers": "tests/test_executors.py::test_every_engine_writes_what_one_process_does",
    "if it is a llama2.c tokenizer": "tests/docs/test_convert_llama2c.py::test_the_tokenizer_begins_and_ends_texts",
    "that was given to --resume": "tests/test_store.py::test_status_tells_progress_rate_and_failures",
}


@pytest.mark.slow
@pytest.mark.parametrize("case", HELP_ROWS, ids=lambda case: case.given[0] if case.given else case.words.split()[0])
def test_options_that_a_message_names_help(case, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("the bird and the river under the sun\n" * 50)
    if any(word.startswith("models") for word in case.refused):
        assert run(["export", SEEDS[0], "models/seed1-step3"]) == 0
    refused(capsys, case.refused, case.words)
    assert run([*case.refused[: len(case.refused) - case.instead], *case.given]) == 0


def test_every_option_that_a_remedy_names_is_followed():
    for text in sentences():
        _, colon, remedy = text.partition(": ")
        if not colon or re.search(r"(?<![\w…-])--[a-z]", remedy) is None or "bornbiased " in remedy:
            continue
        # What is filled in, in a case, is … in the sentence.
        existing = [*FOLLOWED, *(case.words for case in HELPS)]
        assert any(words in text for words in existing), f"{text!r} names an option that no test gives"
    for place in FOLLOWED.values():
        if isinstance(place, str):
            file, _, name = place.partition("::")
            assert f"def {name}(" in (ROOT / file).read_text(), place


@pytest.mark.slow
@pytest.mark.parametrize("follow", nightly_except([another_folder, no_layer, alike], alike))
def test_remedies_of_several_calls_help(follow, tmp_path, capsys):
    follow(tmp_path, capsys)
