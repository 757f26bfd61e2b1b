"""The command line: exact forms, exit codes, one sentence for bad input."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bornbiased_jax import results
from bornbiased_jax.cli.main import _SYNONYMS, cli, run
from bornbiased_jax.cli.options import parse_lengths, parse_seeds
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import output_fingerprint as prints
from tests.cli.commands import commands

SMALL = ["--model", "gpt2-tiny", "--set", "num_layers=2", "--set", "d_model=32", "--set", "d_ff=64"]
SMALL += ["--set", "vocab_size=64", "--set", "num_heads=2"]
INITIAL = "seed:1@llama-tiny,num_layers=1"
LLAMA = str(Path(__file__).resolve().parent.parent / "fixtures" / "hf" / "llama")
PROBE = [*SMALL, "--num-inputs", "40", "--seq-len", "8", "--quiet"]


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("0:4", [0, 1, 2, 3]), ("42,43", [42, 43]), ("7", [7]), ("0:2,42", [0, 1, 42]), (" 1 , 2 ", [1, 2])],
)
def test_seeds_parse(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "3:3", "4:2", "1:2:3", "0:99999999"])
def test_bad_seeds_are_refused(text):
    with pytest.raises(InputError, match="seeds"):
        parse_seeds(text)


def test_a_seed_or_a_length_that_is_named_twice_is_probed_once(monkeypatch):
    probed = []

    def probe(_subject, seeds, inputs, *_options, **_places):
        probed.append((seeds, inputs.seq_len))
        return []

    monkeypatch.setattr("bornbiased_jax.probes.run.probe", probe)
    monkeypatch.setattr("bornbiased_jax.cli.outputs.OutputFiles.show", lambda *_arguments: None)
    assert run(["probe", "preference", *PROBE, "--seq-len", "8,4,8", "--seeds", "0:3,2,1"]) == 0
    assert probed == [([0, 1, 2], 8), ([0, 1, 2], 4)]
    results.preference(preset("gpt2-tiny"), seeds=[2, 1, 2], seq_len=16, num_inputs=4)
    assert probed[2:] == [([2, 1], 16)]


@pytest.mark.parametrize(
    ("seeds", "sentence"),
    [
        ("64", "--seeds 64 is the one seed 64: for 64 seeds write --seeds 0:64"),
        ("0:64", None),
        ("42,43", None),
        ("0", None),
    ],
)
def test_seeds_64_noted_as_one_seed(seeds, sentence, capsys):
    sizes = ["--num-inputs", "40", "--seq-len", "8", "--dry-run"]
    assert run(["probe", "preference", *SMALL, *sizes, "--seeds", seeds]) == 0
    error = capsys.readouterr().err
    assert sentence in error if sentence else "one seed" not in error


@pytest.mark.parametrize(
    ("words", "suggested"),
    [
        (["pretrain", "--lr", "1e-3"], "'--learning-rate'"),
        (["pretrain", "--csv", "x.csv"], "'--metrics-csv'"),
        (["digest", "llama-tiny"], "seed:42@llama-tiny"),
        (["digest", "EleutherAI/pythia-160m"], "hf:EleutherAI/pythia-160m"),
    ],
)
def test_other_names_of_options_and_models_are_suggested(words, suggested, refused):
    assert suggested in refused(words)


def test_names_of_options_elsewhere_lead_to_options_that_exist():
    existing = {option for command in commands().values() for parameter in command.params for option in parameter.opts}
    assert set(_SYNONYMS.values()) <= existing


@pytest.mark.parametrize("text", ["", "a", "0", "64,-1"])
def test_bad_lengths_are_refused(text):
    with pytest.raises(InputError, match="--seq-len"):
        parse_lengths(text, "--seq-len")


def test_models_lists_presets_and_fields(tmp_path, capsys):
    target = tmp_path / "models.json"
    assert run(["models", "--json", str(target)]) == 0
    listed = json.loads(target.read_text())
    for name in ("gpt2-nano", "llama-nano", "qwen-nano", "gpt2-1.2b", "gpt2-tiny", "llama-tiny", "qwen-tiny"):
        assert listed["models"][name]["num_parameters"] > 0
    assert "rotary_fraction" in listed["fields"]
    assert "gpt2-nano" in capsys.readouterr().out


def test_the_module_runs_and_interrupts_with_130(monkeypatch, capsys):
    process = subprocess.run(
        [sys.executable, "-m", "bornbiased_jax", "--version"], capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0
    assert "bornbiased" in process.stdout

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    # The package's attribute ``main`` is the function, so the module is found by its name.
    monkeypatch.setattr(sys.modules["bornbiased_jax.cli.main"].cli, "main", interrupt)
    assert run(["models"]) == 130


def test_help_without_arguments_keeps_its_lines(capsys):
    for argv in ([], ["probe"]):
        assert run(argv) == 2
        assert len(capsys.readouterr().err.splitlines()) > 8


def test_one_input_cannot_be_compared(refused):
    small = ["--model", "gpt2-tiny", "--set", "num_layers=1", "--seq-len", "8", "--num-inputs", "1", "--quiet"]
    assert "nothing to compare" in refused(["probe", "contraction", *small])


@pytest.mark.slow
def test_a_checkpoint_has_no_seeds_to_choose_and_is_an_initialization_or_not(tmp_path, capsys):
    sizes = ["--seq-len", "8", "--num-inputs", "4", "--quiet", "--json", str(tmp_path / "a.json")]
    for checkpoint, seeds, is_initial in ((INITIAL, [], True), (LLAMA, ["--seeds", "0:4"], False)):
        assert run(["probe", "preference", "--checkpoint", checkpoint, *sizes, *seeds]) == 0
        assert ("--seeds has no meaning here" in capsys.readouterr().err) is bool(seeds)
        value = json.loads((tmp_path / "a.json").read_text())
        (record,) = value["records"]
        assert record["seed"] is None and record["is_initial"] is is_initial and value["provenance"]["seeds"] == []


@pytest.mark.slow
def test_options_cannot_override_stored_fingerprint_settings(tmp_path, refused):
    sizes = ["--num-inputs", "12", "--seq-len", "8", "--quiet"]
    assert run(["fingerprint", "--outputs", INITIAL, "--out", str(tmp_path / "a.fp"), *sizes]) == 0
    again = ["seedprint", str(tmp_path / "a.fp"), INITIAL, "--quiet"]
    assert "was made with --num-inputs 12, not 13" in refused([*again, "--num-inputs", "13"])
    assert run([*again, "--num-inputs", "12"]) == 0


@pytest.mark.parametrize(
    ("options", "word"),
    [(["--num-permutations", "10"], "10 permutations"), (["--test", "population", "--num-references", "20"], "101")],
)
def test_unreachable_alpha_refused_before_computing(options, word, refused, monkeypatch):
    monkeypatch.setattr(
        prints, "fingerprint_outputs", lambda *a, **options: pytest.fail("fingerprints were made first")
    )
    assert word in refused(["seedprint", INITIAL, INITIAL, *options, "--quiet"])


@pytest.mark.parametrize(
    "message",
    [
        "RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes",
        "INTERNAL: Error dispatching computation: Out of memory allocating 80530636800 bytes.",
    ],
)
def test_too_little_memory_is_one_sentence(message, refused, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError(message)

    monkeypatch.setattr(cli, "main", fail)
    assert "not enough memory" in refused(["models"])


def test_missing_text_refused_before_any_experiment(tmp_path, refused):
    out = tmp_path / "out"
    command = ["reproduce", "table1", "--scale", "smoke", "--out", str(out), "--data", str(tmp_path / "none.txt")]
    assert "none.txt does not exist" in refused([*command, "--quiet"])
    assert not out.exists()


def test_a_mistyped_command_is_answered_with_the_nearest(capsys):
    assert run(["seedprnt", "a", "b"]) == 2
    assert "Did you mean 'seedprint'?" in capsys.readouterr().err


def test_plot_of_one_seed_is_sent_to_the_run(tmp_path, capsys):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "run.json").write_text("{}")
    assert run(["plot", str(tmp_path / "a@seed=0")]) == 2
    assert f"it has no run.json: name {tmp_path / 'a'}\n" in capsys.readouterr().err
