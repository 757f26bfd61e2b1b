"""What a record says of the text that ``--data`` names: the file's name, never the way to it."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from bornbiased_jax.experiments import results
from bornbiased_jax.experiments.sinks import figure12, sink_interventions, sink_training
from bornbiased_jax.experiments.survival import by_step, persistence
from tests.experiments.smoke import context_of

TEXT = "/home/me/texts/wiki.txt"
DATA = SimpleNamespace(
    tokenizer=SimpleNamespace(name="bytes", encode=lambda _text: np.zeros(64, np.int32)),
    dataset=SimpleNamespace(train=[0], validation=[0]),
    validation=None,
)


def by_step_result(tmp_path, monkeypatch):
    run = (SimpleNamespace(data=TEXT, tokens_per_step=1), DATA, [])
    for name, value in {"watch": run, "init_seed": None, "_fingerprints": []}.items():
        monkeypatch.setattr(by_step, name, lambda *_words, value=value, **_options: value)
    return by_step.run(context_of(by_step.EXPERIMENT, tmp_path, TEXT))


def mitigation_result(tmp_path, monkeypatch):
    context = context_of(figure12.EXPERIMENT, tmp_path, TEXT)
    weights = [None] * len(context.settings["seeds"])
    for name, value in {"load_data": DATA, "_small": (weights, {}), "_measure": {}}.items():
        monkeypatch.setattr(sink_training, name, lambda *_words, value=value: value)
    return sink_training._trained(context, "baseline")


def persistence_result(tmp_path, monkeypatch):
    model = SimpleNamespace(to_dict=dict, vocab_size=8)
    config = SimpleNamespace(model=model, data_seed=0, eval_sequences=1)
    for name, value in {"load_data": DATA, "baselines": {}, "held_out_rows": np.zeros((1, 2))}.items():
        monkeypatch.setattr(persistence, name, lambda *_words, value=value: value)
    return persistence._facts(tmp_path, config, {"seeds": [1], "steps": 1, "tokens": 1}, TEXT)


def interventions_result(tmp_path, monkeypatch):
    opened = SimpleNamespace(
        cfg=SimpleNamespace(num_layers=1, vocab_size=8), params=dict, tokenizer=DATA.tokenizer, digest=str
    )
    values = {
        "find_smollm2": tmp_path / "model.gguf",
        "open_checkpoint": opened,
        "read_text": "",
        "measure_sinks": {"by_length": {16: {"sink_rate": 0.0}}},
        "super_neurons": [],
        "ensemble_mean": None,
    }
    for name, value in values.items():
        monkeypatch.setattr(sink_interventions, name, lambda *_words, value=value: value)
    return sink_interventions.run(context_of(sink_interventions.EXPERIMENT, tmp_path, TEXT, positions=[]))


@pytest.mark.parametrize(
    ("result_of", "field"),
    [
        (by_step_result, "data"),
        (mitigation_result, "data"),
        (persistence_result, "source"),
        (interventions_result, "source"),
    ],
)
def test_results_name_the_text_without_its_folder(tmp_path, monkeypatch, result_of, field):
    result = result_of(tmp_path, monkeypatch)
    assert result[field] == "wiki.txt"
    # Otherwise `collect` refuses the record.
    assert not [value for _, value in results.leaves(json.loads(json.dumps(result))) if str(value).startswith("/")]
