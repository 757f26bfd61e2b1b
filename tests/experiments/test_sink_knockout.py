"""The knock-out of sinks on a model small enough to know: every run against the same cut made in the weights."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.config import preset
from bornbiased_jax.evaluation.intervention import effect
from bornbiased_jax.experiments.sinks import sink_knockout
from bornbiased_jax.init import init_seed
from bornbiased_jax.model.interventions import parse_neuron
from bornbiased_jax.record import jsonable

pytestmark = pytest.mark.slow

CFG = preset("llama-tiny", num_layers=3, d_model=16, vocab_size=64, d_ff=24, num_heads=4)
TOKENS = np.random.default_rng(0).integers(0, 64, (3, 12))
SETTINGS = sink_knockout.EXPERIMENT.settings["smoke"] | {"controls": 3, "cleared_every": 1}


@pytest.fixture(scope="module")
def params():
    return jax.tree.map(lambda leaf: leaf * 12.0 if leaf.ndim > 2 else leaf, init_seed(CFG, 5))


@pytest.fixture(scope="module")
def record(params):
    result = sink_knockout.knock_out(CFG, params, TOKENS, SETTINGS)
    result |= {"attempted": True, "checkpoint": "tiny"}
    return json.loads(json.dumps(jsonable({"result": result, "settings": SETTINGS}), allow_nan=False))


def rows(record, kind):
    return [row for row in record["result"]["rows"] if row["kind"] == kind]


def without(params, neurons):
    mlp = params["blocks"]["mlp"]
    down = np.array(mlp["down"]["kernel"])
    for neuron in neurons:
        down[neuron.block - 1, neuron.unit] = 0.0
    blocks = {**params["blocks"], "mlp": {**mlp, "down": {"kernel": jnp.asarray(down)}}}
    return {**params, "blocks": blocks}


def test_silenced_neuron_equals_zeroed_weights(record, params):
    for kind in (sink_knockout.SILENCED, sink_knockout.CONTROL):
        for row in rows(record, kind):
            cut = effect(CFG, without(params, map(parse_neuron, row["what"].split(" + "))), TOKENS)
            assert row["loss"] == pytest.approx(cut["loss"], rel=1e-5)
            assert row["by_block"] == pytest.approx(cut["by_block"])


def test_every_kind_of_run_is_there(record):
    named = record["result"]["named"]
    assert len(named) == 2
    counts = {kind: len(rows(record, kind)) for kind in {row["kind"] for row in record["result"]["rows"]}}
    assert counts == {
        sink_knockout.AS_IT_IS: 2,
        sink_knockout.SILENCED: 3,
        sink_knockout.RESTORED: 3,
        sink_knockout.CONTROL: 3,
        sink_knockout.ELSEWHERE: 2,
        sink_knockout.CLEARED: 4,
        sink_knockout.FIRST_TOKEN: 1,
    }
    here, there = rows(record, sink_knockout.ELSEWHERE)
    assert (here["position"], there["position"]) == (1, SETTINGS["position"]) and here["loss"] == there["loss"]


def test_controls_stand_in_the_same_blocks_with_rows_of_nearly_the_same_norm(params, record):
    named = [parse_neuron(text) for text in record["result"]["named"]]
    norm_LF = np.linalg.norm(np.asarray(params["blocks"]["mlp"]["down"]["kernel"]), axis=-1)
    pairs = sink_knockout.controls(params, named, named, 50)
    assert len(set(pairs)) > 10
    for pair in pairs:
        for neuron, other in zip(named, pair, strict=True):
            assert other.block == neuron.block and other not in named
            nearer = np.sort(np.abs(norm_LF[neuron.block - 1] - norm_LF[neuron.block - 1, neuron.unit]))
            distance = abs(norm_LF[other.block - 1, other.unit] - norm_LF[neuron.block - 1, neuron.unit])
            assert distance <= nearer[sink_knockout.NEAREST + len(named)]


def test_sink_knockout_tables(record):
    experiment = sink_knockout.EXPERIMENT
    (table,) = experiment.tables(record)
    assert len(table.rows) == 2 + 3 + 3 + 2 + 1 + 1 + 1
    assert len(experiment.claims(record)) == 5
    worst = min(row["sink_rate"] for row in rows(record, sink_knockout.SILENCED) if " + " in row["what"])
    assert f"{worst:.0%}" in experiment.headline(record)


@pytest.mark.parametrize(("cut", "told"), [(0.02, "falls from 50% to 2%"), (0.5, "goes from 50% to 50%")])
def test_sinks_that_stay_are_not_said_to_fall(cut, told):
    base = {"kind": sink_knockout.AS_IT_IS, "what": "", "position": 1, "sink_rate": 0.5, "by_block": [0.5]}
    pair = {"kind": sink_knockout.SILENCED, "what": "0 + 1", "position": 1, "sink_rate": cut, "by_block": [cut]}
    assert told in sink_knockout.headline({"result": {"attempted": True, "named": ["0", "1"], "rows": [base, pair]}})


def test_controls_of_a_single_neuron_are_not_called_pairs(record):
    alone = [
        row for row in record["result"]["rows"] if row["kind"] != sink_knockout.SILENCED or " + " not in row["what"]
    ]
    alone = [{**row, "what": row["what"].split(" + ")[0]} for row in alone]
    shown = {**record, "result": {**record["result"], "rows": alone}}
    (table,), claims = sink_knockout.tables(shown), sink_knockout.claims(shown)
    said = [
        sink_knockout.headline(shown),
        *(claim.statement for claim in claims),
        *(row.settings[0] for row in table.rows),
    ]
    assert not [words for words in said if "pair" in words]
    assert "3 random neurons with rows of nearly the norms of" in said[0] and "control neuron silenced" in said
    assert f"3 random pairs with rows of nearly the norms of {' + '.join(record['result']['named'][:2])} " in (
        sink_knockout.headline(record)
    )
