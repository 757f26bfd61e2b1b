"""``--json``: one object of what a command did or found, in a file or alone on standard output."""

import json
import shlex

import pytest

from bornbiased_jax.cli.main import run
from bornbiased_jax.cli.outputs import print_tables
from bornbiased_jax.results import Sinks
from bornbiased_jax.training.scaling import Scaling
from tests.cli.commands import replace
from tests.robustness.test_fuzz_flags import CALLS

# The keys of other commands are golden values.
KEYS = {
    "models": {"models", "fields"},
    "probe scaling": {"rows", "widths", "num_seeds", "optimizer", "base_width", "mup_holds", "model"},
    "init-scheme": {"groups", "nearest_scheme", "runner_up", "fits", "repeats", "model"},
}


@pytest.mark.parametrize("path", KEYS)
def test_a_command_writes_one_object(path, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    trained = Scaling((64, 128), 2, "adamw", ())
    replace(monkeypatch, "bornbiased_jax.training.scaling:scaling", lambda *_, **__: trained)
    assert run([*CALLS[path], "--json", "-"]) == 0
    spoken = json.loads(capsys.readouterr().out)
    assert KEYS[path] | {"command", "provenance"} <= set(spoken)
    assert sorted(shlex.split(spoken["command"])) == sorted(["bornbiased", *CALLS[path]])
    assert spoken["provenance"]["version"]
    assert run([*CALLS[path], "--json", "kept.json"]) == 0
    assert set(json.loads((tmp_path / "kept.json").read_text())) == set(spoken)
    assert capsys.readouterr().out


def test_the_list_is_of_the_experiments_that_are_named(capsys):
    assert run(["reproduce", "table1", "demo", "--list", "--json", "-"]) == 0
    listed = json.loads(capsys.readouterr().out)
    names = [row["name"] for row in listed["experiments"]]
    assert listed["scale"] == "laptop" and {"name", "paper", "title", "cost"} == set(listed["experiments"][0])
    assert names[0] == "table1" and len(names) == 5 and all(name.startswith("demo_") for name in names[1:])


SINKS = {"sink_rate": {"8": 0.5}, "num_sequences": 4, "position": 1, "epsilon": 0.25}
SINKS |= {"sink_rate_of_average": {"8": 0.0}, "score_by_layer_head": {"8": [[0.125, 0.25], [0.375, 0.0]]}}
SINKS["outliers"] = {"layers": [{"block": 1, "largest": 2.0}, {"block": 2, "largest": 7.0}]}
for entry in SINKS["outliers"]["layers"]:
    entry |= {"position": 3, "channel": 0, "dom_ratio_first": 1.0, "dom_ratio_rest": 1.0, "effective_rank": 2.0}
SINKS["super_neurons"] = [{"super": True, "block": 2, "neuron": 0, "channel": 0, "write": 9.0, "channel_share": 0.5}]
SINKS["super_neurons"][0]["firing_ratio"] = None


def test_sink_tables_number_blocks_from_one(capsys):
    """The strongest head, the block where the stream is largest, and a super neuron's; neurons count from 0."""
    print_tables(Sinks(SINKS).tables())
    lines = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    assert ["8", "0.5", "0", "0.375", "(block", "2,", "head", "1)"] in lines
    assert ["2", "3", "0", "7", "1", "1", "2"] in lines
    assert ["2", "0", "0", "9", "0.5", "only", "the", "first"] in lines


def test_runs_list_preset_loss_and_tokens(monkeypatch, capsys):
    told = {"path": "runs/a", "model": "4 layers", "preset": "gpt2-tiny", "data": "builtin:prose", "seeds": [1, 2]}
    told |= {"step": 2, "steps": 9, "loss": [4.25, 4.5], "tokens": 12_345, "checkpoints": [0], "finished": False}
    rows = [told, {**told, "preset": None, "loss": None}]
    replace(monkeypatch, "bornbiased_jax.training:list_runs", lambda folder: rows)
    assert run(["runs", "runs"]) == 0
    first, second = (line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()[3:5])
    assert first == ["runs/a", "gpt2-tiny", "builtin:prose", "1,2", "2", "of", "9", "4.250,", "4.500", "12,345", "0"]
    assert second[1:3] == ["4", "layers"] and "–" in second
