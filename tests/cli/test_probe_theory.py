"""Theory and measurement: what `probe --theory` adds to records and tables."""

import json
import re

import pytest

from bornbiased_jax.cli.main import run
from bornbiased_jax.given_table import top1_given_table
from bornbiased_jax.prediction import predict
from tests.tiers import nightly_except

CHANGES = {"num_layers": 2, "d_model": 32, "d_ff": 64, "vocab_size": 64, "num_heads": 2}
SMALL = ["--model", "gpt2-tiny", *(word for name, value in CHANGES.items() for word in ("--set", f"{name}={value}"))]
PROBE = [*SMALL, "--num-inputs", "60", "--seq-len", "8", "--seeds", "0:3", "--theory", "--quiet"]


def probed(tmp_path, *words):
    target = tmp_path / "out.json"
    assert run(["probe", *words, *PROBE, "--json", str(target)]) == 0
    return json.loads(target.read_text())["records"]


def small():
    from bornbiased_jax.config import preset

    return preset("gpt2-tiny", **CHANGES)


@pytest.mark.slow
def test_cosines_stand_next_to_their_interval(tmp_path, capsys):
    records = probed(tmp_path, "contraction")
    told = predict(small(), 8, num_inputs=60)
    for record in records:
        theory = record["theory"]
        assert theory["inter_cosine_by_layer_low"] == told["inter_cosine_by_layer_low"]
        low, high = (theory[f"inter_cosine_by_layer_{end}"][-1] for end in ("low", "high"))
        assert theory["inside"] == (low <= record["inter_cosine_by_layer"][-1] <= high)
        assert theory["given_table"] is False
    inside = sum(record["theory"]["inside"] for record in records)
    printed = capsys.readouterr().out
    assert "99% interval" in printed and f"{inside} of 3 measurements lie inside" in printed


@pytest.mark.slow
@pytest.mark.parametrize("shared", nightly_except([True, False], True))
def test_fractions_are_conditioned_on_the_table_where_there_is_one(shared, tmp_path, capsys):
    records = probed(tmp_path, "preference", "--embedding-seed" if shared else "--no-fix-embeddings", *["4"] * shared)
    if shared:
        mean, low, high = top1_given_table(small(), 8, 60, 4)
    else:
        told = predict(small(), 8, num_inputs=60)
        mean, low, high = (told[f"top1_share_{name}"] for name in ("mean", "p10", "p90"))
    for record in records:
        theory = record["theory"]
        assert (theory["top1_share_mean"], theory["top1_share_low"], theory["top1_share_high"]) == (mean, low, high)
        assert theory["inside"] == (low <= record["top1_share"] <= high) and theory["given_table"] is shared
    assert ("given the one table" if shared else "with fresh embeddings") in capsys.readouterr().out


def test_theory_of_a_text_is_refused_before_anything_is_read(refused):
    assert "--theory predicts random inputs" in refused(["probe", "preference", *PROBE, "--inputs", "text:missing.txt"])


@pytest.mark.parametrize("model", [[*SMALL, "--set", "num_experts=2"], ["--checkpoint", "seed:0@mixtral-tiny"]])
def test_an_architecture_without_theory_is_refused_before_anything_is_measured(model, capsys, monkeypatch):
    monkeypatch.setattr("bornbiased_jax.probes.run.probe", lambda *_, **__: pytest.fail("it was measured"))
    assert run(["probe", "preference", *model, "--num-inputs", "60", "--seq-len", "8", "--theory", "--quiet"]) == 2
    # A preset's field cannot be left out, but it can be set.
    assert re.search(
        "theory does not cover num_experts=[24]: set num_experts=None, or take another model", capsys.readouterr().err
    )
