"""Interventions on a checkpoint by name: a planted sink goes with its neuron, comes back with it, and moves."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.cli.main import run
from bornbiased_jax.errors import InputError
from bornbiased_jax.evaluation import intervention
from bornbiased_jax.evaluation.intervention import effect, first_activations, mean_loss
from bornbiased_jax.model.interventions import Neuron, silence, write
from bornbiased_jax.probes import batching
from tests.model.forward import apply

REF = "seed:3@gpt2-tiny,num_layers=2,d_model=16,d_ff=32,num_heads=2,vocab_size=260"
CALL = ["intervene", REF, "--text", "builtin:prose", "--tokenizer", "bytes", "--length", "8", "--num-sequences", "3"]


@pytest.fixture(scope="module")
def model():
    opened = open_checkpoint(REF)
    return opened.cfg, opened.params(), np.random.default_rng(0).integers(0, 260, (5, 8))


@pytest.mark.slow
def test_loss_and_first_activations_are_those_of_the_plain_pass(model, monkeypatch):
    cfg, params, tokens = model
    out = apply(cfg, params, tokens, capture=("mlp_hidden",))
    logits = np.asarray(out.logits_BTV, np.float64)[:, :-1]
    picked = np.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
    expected = np.mean(np.log(np.exp(logits).sum(-1)) - picked)
    monkeypatch.setattr(batching, "batch_size_for", lambda *sizes: 2)
    assert mean_loss(cfg, params, tokens) == pytest.approx(expected, rel=1e-5)
    means_LF = np.asarray(out.layers["mlp_hidden"][:, :, 0]).mean(axis=1)
    np.testing.assert_allclose(first_activations(cfg, params, tokens), means_LF, rtol=1e-4, atol=1e-7)


def test_first_activations_need_an_mlp(model):
    cfg, params, tokens = model
    with pytest.raises(InputError, match="the model has no MLP"):
        first_activations(cfg.replace(mlp=False), params, tokens)


@pytest.mark.slow
def test_effect_is_that_of_the_edited_model(model):
    cfg, params, tokens = model
    strong = {name: leaf for name, leaf in params.items()}
    mlp = strong["blocks"]["mlp"]
    down = np.array(mlp["down"]["kernel"])
    down[0, 7] = 5.0
    strong["blocks"] = {**strong["blocks"], "mlp": {**mlp, "down": {**mlp["down"], "kernel": jnp.asarray(down)}}}
    silent = effect(cfg, strong, tokens, silence(cfg, [Neuron(1, 7)]))
    down[0, 7] = 0.0
    strong["blocks"]["mlp"] = {**mlp, "down": {**mlp["down"], "kernel": jnp.asarray(down)}}
    cut = effect(cfg, strong, tokens)
    assert silent["loss"] == pytest.approx(cut["loss"], rel=1e-6)
    assert silent["by_block"] == cut["by_block"] and len(cut["by_block"]) == 2
    elsewhere = effect(cfg, strong, tokens, write(cfg, {Neuron(1, 7): 0.0}, position=3), position=3, epsilon=0.1)
    assert elsewhere["loss"] == pytest.approx(cut["loss"], rel=1e-6)


@pytest.mark.slow
def test_the_command_writes_before_and_after(tmp_path, capsys):
    target = tmp_path / "effect.json"
    call = [*CALL, "--silence", "blocks/1/mlp:3", "--write", "blocks/2/mlp:4@2", "--clear", "5@1", "--first-token", "7"]
    assert run([*call, "--quiet", "--json", str(target)]) == 0
    report = json.loads(target.read_text())
    assert len(report["by_block"]) == len(report["before"]["by_block"]) == 2
    assert report["loss"] != report["before"]["loss"]
    assert report["interventions"]["silence"] == ["blocks/1/mlp:3"] and report["num_sequences"] == 3
    assert "All blocks" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--silence, --write"),
        (["--silence", "blocks/3/mlp:0"], "block 3"),
        (["--write", "blocks/1/mlp:0"], "blocks/12/mlp:1229@8"),
        (["--write", "blocks/1/mlp:0@9"], "between 1 and the length 8"),
        (["--clear", "5@x"], "507@12"),
        (["--clear", "5@"], "507@12"),
        (["--first-token", "260"], "vocabulary of 260"),
        (["--silence", "blocks/1/mlp:0", "--write", "blocks/1/mlp:0@2"], "named twice"),
        (["--silence", "blocks/1/mlp:0", "--position", "9"], "position 9"),
        (["--silence", "blocks/1/mlp:0", "--length", "1"], "a sequence of one token predicts nothing"),
    ],
)
def test_impossible_interventions_refused_in_one_sentence(options, words, capsys, monkeypatch):
    # Before anything is measured.
    monkeypatch.setattr(intervention, "mean_loss", None)
    assert run([*CALL, *options, "--quiet"]) == 2
    message = capsys.readouterr().err.strip()
    assert words in message and "\n" not in message


def test_neurons_of_a_model_without_any_are_refused_before_it_runs(monkeypatch, capsys):
    monkeypatch.setattr("bornbiased_jax.evaluation.intervention.measure_sinks", None)
    assert run(["intervene", f"{REF},mlp=false", *CALL[2:], "--write", "blocks/1/mlp:0@2", "--quiet"]) == 2
    assert "the model has no MLP" in capsys.readouterr().err
    for edit in (["--write", "blocks/1/mlp:0@2"], ["--silence", "blocks/1/mlp:0"]):
        assert run(["intervene", f"{REF},num_experts=2", *CALL[2:], *edit, "--quiet"]) == 2
        assert "neurons of a mixture of experts are not edited" in capsys.readouterr().err
