"""Commands that measure write CSV, figures and a page, sweep over a field, and follow a run through its steps."""

import base64
import csv
import json
import math
import os
import re
from types import SimpleNamespace

import click
import pytest

from bornbiased_jax.cli.main import run
from bornbiased_jax.cli.options import chosen_tokenizer
from bornbiased_jax.cli.outputs import write_result
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.results import Intervention, Preference, Sinks, page
from bornbiased_jax.stats.multiple import holm_log10
from bornbiased_jax.text import tokenizer_for
from tests.tiers import nightly_except

SIZES = "num_layers=2,num_heads=2,d_model=16,d_ff=32,vocab_size=300,max_seq_len=64"
MODEL = ["--model", "gpt2-tiny", *[word for size in SIZES.split(",") for word in ("--set", size)]]
SEEDS = [f"seed:{seed}@gpt2-tiny,{SIZES}" for seed in (1, 2)]
INPUTS = ["--num-inputs", "40", "--seq-len", "8"]
TEXT = ["--text", "text.txt", "--tokenizer", "bytes", "--num-sequences", "2", "--quiet"]
# A call of each command that measures, a figure that it draws, columns of its CSV and the number of its rows.
CALLS = {
    "preference": (["probe", "preference", *MODEL, *INPUTS, "--seeds", "0:2"], "preference", "seed,top1_share", 2),
    "contraction": (["probe", "contraction", *MODEL, *INPUTS], "contraction", "seed,block,inter_cosine", 2),
    "predict": (["predict", *MODEL, "--seq-len", "8"], "prediction", "block,inter_cosine,inter_cosine_std", 2),
    "sinks": (["sinks", SEEDS[0], *TEXT, "--lengths", "4,8"], "sink-map", "length,block,head,score", 8),
    "intervene": (
        ["intervene", SEEDS[0], *TEXT, "--length", "8", "--clear", "5"],
        "intervention",
        "block,before,after",
        2,
    ),
    "seedprint": (["seedprint", *SEEDS, "--test", "weights", "--quiet"], "null", "name,verdict,z", 1),
    "scan": (["scan", SEEDS[0], *SEEDS, "--quiet"], "bases", "base,verdict,z", 2),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("the bird and the river under the sun\n" * 50)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly_except(CALLS, "sinks", "seedprint", "intervene"))
def test_csv_figures_and_page_show_the_result(name, folder, capsys):
    call, figure, columns, num_rows = CALLS[name]
    places = ["--csv", "a.csv", "--figures", "drawn", "--page", "a.html", "--json", "a.json"]
    assert run([*call, *places]) == 0
    rows = list(csv.DictReader((folder / "a.csv").read_text().splitlines()))
    assert len(rows) == num_rows and set(columns.split(",")) <= set(rows[0])
    assert (folder / "drawn" / f"{figure}.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "drawn" / f"{figure}.svg").stat().st_size > 1_000
    page, record = (folder / "a.html").read_text(), json.loads((folder / "a.json").read_text())
    assert "<svg" in page and "<table" in page and not re.findall(r"(?:src|href)=[\"']https?:", page)
    # The command that makes the page again, without the places of its results.
    assert record["command"].startswith(f"bornbiased {call[0]}") and "--page" not in record["command"]
    assert "drawn/" in capsys.readouterr().out
    # The record in the page is that of --json, and says what made it; when, only where the result says so itself.
    embedded = json.loads(base64.b64decode(re.search(r"data:application/json;base64,([^\"]+)", page)[1]))
    assert embedded["command"] == record["command"]
    assert embedded["provenance"].keys() | {"timestamp"} == record["provenance"].keys()
    assert embedded["provenance"].keys() >= {"git", "version", "versions"}
    assert "None ×" not in page


@pytest.mark.parametrize("option", ["--csv", "--figures", "--page", "--json"])
def test_a_place_that_cannot_be_written_is_refused_before_the_work(option, folder, capsys):
    (folder / "file").write_text("")
    assert run([*CALLS["predict"][0], option, "file/below"]) == 2
    printed = capsys.readouterr()
    assert "file" in printed.err and printed.err.count("\n") == 1 and not printed.out


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", nightly_except([["probe", "preference"], ["probe", "contraction"]], ["probe", "contraction"])
)
def test_a_sweep_probes_once_for_each_value(command, folder, capsys):
    model = [word for word in MODEL if word != "num_layers=2"]
    model.remove("--set")
    call = [*command, *model, *INPUTS, "--seeds", "3:5", "--json", "swept.json"]
    assert run([*call, "--sweep", "num_layers=1,3"]) == 0
    printed = capsys.readouterr().out
    value = json.loads((folder / "swept.json").read_text())
    assert [(row["num_layers"], row["seed"]) for row in value["records"]] == [(1, 3), (1, 4), (3, 3), (3, 4)]
    assert value["model"]["num_layers"] == 4
    assert "by num_layers" in printed and "mean" in printed and "range" in printed
    # Each value is what --set gives.
    assert run([*call[:-1], "alone.json", "--set", "num_layers=3"]) == 0
    alone = json.loads((folder / "alone.json").read_text())["records"]
    assert [{**row, "num_layers": 3} for row in alone] == value["records"][2:]


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ("d_modle=16,32", "d_modle"),
        ("rope_theta=16,x", "--sweep 'rope_theta=x'"),
        ("d_model", "is not of the form field=a,b,c"),
        ("d_model=16,,32", "is not of the form field=a,b,c"),
        ("d_model=16,16", "names a value twice"),
        ("norm_eps=0.1,1e-1", "names a value twice"),
        ("head_dim=2,5", "--sweep 'head_dim=5'"),
        ("num_heads=2,4", "--set 'num_heads=2' and --sweep 'num_heads=2,4' set one field: leave --set num_heads out"),
    ],
)
@pytest.mark.parametrize("command", [["probe", "preference", "--num-inputs", "4"], ["predict"]])
def test_a_bad_sweep_is_refused(command, sweep, words, refused):
    error = refused([*command, *MODEL, "--seq-len", "8", "--sweep", sweep])
    assert words in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "command", [["probe", "preference", "--num-inputs", "4", "--seeds", "0:1"], ["predict", "--num-inputs", "4"]]
)
def test_a_setting_that_one_value_of_a_sweep_reads_is_taken(command, folder, capsys):
    """The base of the sweep has learned positions, to which RoPE's base means nothing."""
    settings = ["--set", "positions=none", "--set", "rope_theta=500"]
    assert run([*command, *MODEL, *settings, "--seq-len", "4"]) == 2
    assert "rope_theta=500 changes nothing where positions=none" in capsys.readouterr().err
    settings = ["--model", "gpt2-small", *MODEL[2:], "--set", "rope_theta=500", "--sweep", "positions=rope,none"]
    assert run([*command, *settings, "--seq-len", "4", "--json", "swept.json"]) == 0
    records = json.loads((folder / "swept.json").read_text())["records"]
    assert {row["positions"] for row in records} == {"rope", "none"}


def test_a_sweep_of_a_checkpoint_is_refused(refused):
    for command in (["probe", "preference", *INPUTS], ["predict", "--seq-len", "8"]):
        assert "a checkpoint has its own" in refused([*command, "--checkpoint", SEEDS[0], "--sweep", "num_layers=1,2"])


def test_seeds_are_summarized_by_mean_sd_and_range():
    record = dict(seq_len=8, top1_id=7, top1_count=3, ratio_to_uniform=2.0, log10_p=-1.0, num_inputs=10)
    records = [{**record, "seed": seed, "top1_share": fraction} for seed, fraction in enumerate((0.1, 0.2, 0.6))]
    table = Preference(records).table()
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows[3:]}
    assert rows["mean"]["top-1 fraction"] == pytest.approx(0.3)
    assert rows["sd"]["top-1 fraction"] == pytest.approx(0.2645751)
    assert rows["range"]["top-1 fraction"] == "0.1 to 0.6"
    assert rows["mean"]["top-1 token"] == ""
    assert len(Preference(records[:1]).table().rows) == 1


def test_no_sinks_are_called_none():
    report = {"sink_rate": {"8": 0.0}, "num_sequences": 4, "position": 1, "epsilon": 0.25}
    told = Sinks(report).summary()[0]
    assert told == "No head puts more than 0.25 of its attention on position 1 at T = 8: there are no sinks."


def test_tables_are_titled_with_what_was_changed():
    record = dict(seed=0, seq_len=8, top1_id=5, top1_count=1, top1_share=0.1, ratio_to_uniform=1.0, log10_p=0.0)
    changed = preset("gpt2-tiny", num_layers=2, init="normal-0.02").to_dict()
    assert (
        Preference([record], changed).tables()[0].title == "Top-1 tokens: gpt2-tiny, num_layers = 2, init = normal-0.02"
    )
    assert Preference([record]).tables()[0].title == "Top-1 tokens"
    effect = {"sink_rate": 0.0, "by_block": [0.0], "loss": 2.0}
    edits = {"silence": ["blocks/1/mlp:3", "blocks/2/mlp:4"], "write": [], "clear": ["7"], "first_token": 0}
    report = effect | {"before": effect, "interventions": edits, "position": 1, "epsilon": 0.25}
    title = Intervention(report).tables()[0].title
    assert title.endswith(": silence blocks/1/mlp:3, blocks/2/mlp:4; clear 7; first token 0")


def test_no_advice_for_options_already_set():
    record = dict(seed=0, seq_len=8, top1_count=1, num_inputs=10, vocab_size=64, top1_share=0.1, log10_p=0.0)
    assert "init=normal-0.02" in " ".join(Preference([record], {"init": "gpt2-scaled"}).summary())
    assert "init=normal-0.02" not in " ".join(Preference([record], {"init": "normal-0.02"}).summary())


@pytest.mark.slow
@pytest.mark.parametrize(("words", "is_said"), nightly_except([([], True), (["--set", "d_ff=40"], False)], ([], True)))
def test_warning_that_d_model_leaves_d_ff(words, is_said, capsys):
    assert run(["predict", "--model", "llama-tiny", "--set", "d_model=32", *words, "--seq-len", "8"]) == 0
    assert ("d_ff stays" in capsys.readouterr().err) is is_said


@pytest.mark.parametrize("is_foreign", [False, True])
def test_a_tokenizer_that_is_not_the_models_is_warned_of(is_foreign, capsys):
    digest = "another" if is_foreign else tokenizer_for("bytes", 300).digest
    opened = SimpleNamespace(
        cfg=SimpleNamespace(vocab_size=300), reference="runs/a", tokenizer=SimpleNamespace(digest=digest)
    )
    assert chosen_tokenizer("bytes", opened).name == "bytes" and chosen_tokenizer(None, opened) is None
    assert ("runs/a has a tokenizer of its own" in capsys.readouterr().err) is is_foreign


@pytest.mark.nightly
def test_a_verdict_follows_a_run_step_by_step(folder, capsys, refused):
    train = ["--data", "text.txt", "--tokenizer", "bytes", "--context", "8", "--batch-size", "2", "--steps", "4"]
    train += ["--checkpoint-every", "2", "--no-tensorboard", "--quiet"]
    assert run(["pretrain", *MODEL, *train, "--seeds", "1,2", "--out", "run"]) == 0
    places = ["--json", "a.json", "--csv", "a.csv", "--figures", "drawn", "--quiet", "--by-step"]
    assert run(["seedprint", "run@seed=1", SEEDS[0], *places]) == 0
    steps = json.loads((folder / "a.json").read_text())["by_step"]
    assert [step["step"] for step in steps] == [0, 2, 4]
    assert all(step["verdict"] == "same-lineage" for step in steps)
    rows = list(csv.DictReader((folder / "a.csv").read_text().splitlines()))
    assert {row["step"] for row in rows} == {"0", "2", "4"} and {"component", "z", "log10_p"} <= set(rows[0])
    assert (folder / "drawn" / "steps.png").is_file()
    # p is corrected over all steps and components at once.
    family = [row for step in steps for row in step["components"] if row["log10_p"] is not None]
    adjusted = [row["log10_p_adjusted"] for row in family]
    assert adjusted == holm_log10([row["log10_p"] for row in family]).tolist()
    assert min(adjusted) >= min(row["log10_p"] for row in family) + math.log10(len(family)) - 1e-9
    printed = " ".join(capsys.readouterr().out.split())
    assert "By step" in printed and f"Holm's method for all {len(family)} p-values of these steps" in printed
    # The run's step 0 is the suspect: a fact, which has no p in the table.
    assert [bool(step["identity"]) for step in steps] == [True, False, False]
    assert "At step 0 the numbers are equal: a fact without a probability" in printed
    # What has no steps, or several seeds and none of them named.
    assert "name one as in RUN@seed=42" in refused(["seedprint", SEEDS[0], SEEDS[1], "--by-step"])
    assert "run@seed=1" in refused(["seedprint", "run", SEEDS[0], "--by-step"])


@pytest.mark.parametrize(
    "words", [["--json", "x", "--csv", "x"], ["--csv", "x", "--page", "./x"], ["--figures", "x", "--page", "x"]]
)
def test_one_place_for_two_results_is_refused(words, tmp_path, capsys):
    call = ["predict", "--model", "gpt2-tiny", "--seq-len", "4", "--num-inputs", "8"]
    assert run([*call, *words]) == 2
    assert f"{words[0]} and {words[2]} are one place" in capsys.readouterr().err
    fingerprint = ["fingerprint", "seed:1@gpt2-tiny,num_layers=1,d_model=8,num_heads=1,d_ff=8,vocab_size=64"]
    assert run([*fingerprint, "--out", "x", "--json", str(tmp_path / "x")]) == 2
    assert not (tmp_path / "x").exists()
    assert run([*call, "--json", os.devnull, "--csv", os.devnull]) == 0


def test_a_value_that_is_no_json_leaves_standard_output_empty(capsys):
    with click.Context(click.Command("predict")), pytest.raises(ValueError, match="JSON"):
        write_result("-", {"loss": 1.0, "std": math.nan})
    assert not capsys.readouterr().out


@pytest.mark.slow
def test_results_are_written_to_the_home_folder_that_is_named(tmp_path, monkeypatch):
    """Shells leave the "~" of --json=~/a.json to the program."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    places = ["--json=~/a.json", "--csv=~/a.csv", "--page=~/new/a.html"]
    assert run(["predict", "--model", "gpt2-tiny", "--seq-len", "4", "--num-inputs", "8", *places]) == 0
    fingerprint = ["fingerprint", "seed:1@gpt2-tiny,num_layers=1,d_model=8,num_heads=1,d_ff=8,vocab_size=64"]
    assert run([*fingerprint, "--out=~/a.fingerprint"]) == 0
    assert sorted(path.name for path in home.iterdir()) == ["a.csv", "a.fingerprint", "a.json", "new"]
    assert not (tmp_path / "~").exists()


def test_an_audit_keeps_its_json_where_the_page_cannot_be_drawn(folder, monkeypatch, capsys):
    def fail(*_words, **_options):
        raise InputError("cannot write a.html: no room")

    weights = [{"path": "model.safetensors", "size": 10, "lfs": {"oid": "ab" * 32, "size": 10}}]
    listing = {"revisions": {f"seed{seed}-step1": weights for seed in (1, 2)}}
    (folder / "listing.json").write_text(json.dumps(listing))
    monkeypatch.setattr(page, "draw", fail)
    assert run(["audit", "listing.json", "--page", "a.html", "--json", "a.json", "--quiet"]) == 2
    assert "no room" in capsys.readouterr().err and not (folder / "a.html").exists()
    assert json.loads((folder / "a.json").read_text())["findings"]
