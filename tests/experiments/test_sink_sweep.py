"""Layer sweeps of sinks: on a model small enough to do each run by itself, and on models trained for the purpose."""

import jax
import numpy as np
import pytest

from bornbiased_jax.config import preset
from bornbiased_jax.experiments.sinks import sink_own, sink_sweep
from bornbiased_jax.experiments.sinks.sink_sweep import AMPLIFICATION, CONTROL, MASK
from bornbiased_jax.init import init_seed
from bornbiased_jax.model.interventions import amplify_variance, scale_output, self_only
from bornbiased_jax.probes.sinks import SinkOptions, measure_sinks
from bornbiased_jax.probes.variance import ensemble_mean
from tests.experiments.smoke import record_of
from tests.fixtures.llama2c_files import write_pair

pytestmark = pytest.mark.slow

CFG = preset("llama-tiny", num_layers=3, d_model=16, vocab_size=64, d_ff=24, num_heads=4)
TOKENS = np.random.default_rng(0).integers(0, 64, (3, 9))
RANDOM = np.random.default_rng(1).integers(0, 64, (8, 9))
SETTINGS = {"factor": 30.0, "blocks_every": 1, "positions_every": 1}


@pytest.fixture(scope="module")
def params():
    return jax.tree.map(lambda leaf: leaf * 12.0 if leaf.ndim > 2 else leaf, init_seed(CFG, 5))


@pytest.fixture(scope="module")
def swept(params):
    return sink_sweep.sweep(CFG, params, TOKENS, RANDOM, SETTINGS)


def test_sweep_runs_match_their_settings(params, swept):
    assert swept["blocks"] == [1, 2, 3, None] and swept["positions"] == [2, 3, 4]
    mu = ensemble_mean(CFG, params, RANDOM)
    makers = {
        MASK: lambda k, blocks: self_only(9, [k], num_layers=3, blocks=blocks),
        AMPLIFICATION: lambda k, blocks: amplify_variance([k], 30.0, mean_LTHK=mu, blocks=blocks),
        CONTROL: lambda k, blocks: scale_output([k], 30.0, num_layers=3, blocks=blocks),
    }
    plain = measure_sinks(CFG, params, TOKENS, SinkOptions(convention="rows_from_k"))["profile_LHT"] > 0.25
    moved = 0
    for kind, make in makers.items():
        for row, block in enumerate(swept["blocks"]):
            for column, k in enumerate(swept["positions"]):
                edit = make(k, None if block is None else [block])
                sinks = measure_sinks(CFG, params, TOKENS, SinkOptions(position=k, convention="rows_from_k"), edit=edit)
                heads = (sinks["score_LH"] > 0.25)[0 if block is None else block :]
                result = swept["kinds"][kind]["made"][row][column]
                assert result == (None if block == 3 else pytest.approx(heads.mean()))
                assert swept["kinds"][kind]["first"][row][column] == (sinks["profile_LHT"][..., 0] > 0.25).mean()
                before = plain[0 if block is None else block :, :, k - 1]
                assert swept["plain"][row][column] == (None if block == 3 else pytest.approx(before.mean()))
                moved += bool(before.size and result != before.mean())
    assert moved > 3


def test_the_summary_of_hand_made_numbers():
    result = [[0.5, 0.0, 0.3], [0.2, 0.05, 1.0], [None, None, None], [0.6, 0.6, 0.6]]
    plain = [[0.0, 0.0, 0.3], [0.0, 0.0, 0.25], [None, None, None], [0.0, 0.0, 0.3]]
    swept = {"blocks": [1, 2, 3, None], "positions": [2, 3, 4], "plain": plain, "first": 0.9}
    swept["kinds"] = {MASK: {"made": result, "first": [[0.9, 0.4, 0.9], [0.9] * 3, [0.9] * 3, [0.1] * 3]}}
    summary = sink_sweep.summary(swept, MASK)
    assert (summary["largest"], summary["block"], summary["position"]) == (0.75, 2, 4)
    # Position 3 gets 5% at most; block 1 adds (50 + 0 + 0)/3 %, block 2 (20 + 5 + 75)/3 %, block 3 reaches nothing.
    assert summary["positions"] == pytest.approx(2 / 3) and summary["blocks"] == [1, 2]
    assert summary["everywhere"] == pytest.approx(0.5) and summary["least first"] == 0.4


def test_a_model_that_is_named_is_swept(tmp_path):
    path = write_pair(tmp_path, layers=3)
    text = tmp_path / "text.txt"
    text.write_text("A text of its own, long enough for twelve tokens. " * 20)
    record = record_of(sink_sweep.EXPERIMENT, tmp_path, data=f"model={path};{text}")
    assert record["result"]["blocks"] == [1, None] and record["result"]["positions"] == [2, 4, 6]
    assert sink_sweep.EXPERIMENT.headline(record).startswith("In some block, the mask makes a sink at ")


@pytest.mark.nightly
def test_our_own_models_are_cut_joined_and_swept(tmp_path):
    record = record_of(sink_own.EXPERIMENT, tmp_path)
    (models,) = record["result"]["variants"].values()
    assert [model["seed"] for model in models] == [42, 123]
    first, second = (model["sweep"]["kinds"][MASK]["made"] for model in models)
    assert len(first) == 3 and len(first[0]) == len(second[0]) == 3
    losses = [model["knockout"]["rows"][0]["loss"] for model in models]
    assert losses[0] != losses[1]


def test_the_links_of_hand_made_rows():
    def row(kind, what, position, *by_block):
        return {"kind": kind, "what": what, "position": position, "by_block": by_block,
                "sink_rate": float(np.mean(by_block)), "loss": 1.0}  # fmt: skip

    rows = [
        row("as it is", "", 1, 0.5, 0.7), row("as it is", "", 8, 0.0, 0.0), row("silenced", "a", 1, 0.5, 0.1),
        row("silenced", "a + b", 1, 0.1, 0.1), row("restored", "a", 1, 0.5, 0.695), row("control pair silenced", "c", 1,
        0.4, 0.9), row("written elsewhere", "a + b at 8", 1, 0.2, 0.2), row("written elsewhere", "a + b at 8", 8, 0.3,
        0.5), row("channel cleared", "channel 3 after block 1", 1, 0.9, 0.9), row("channel cleared",
        "channel 3 after every block", 1, 0.0, 0.2), row("another first token", "token 3", 1, 0.0, 0.0),
        row("another first token", "token 4", 1, 0.2, 0.2),
    ]  # fmt: skip
    model = {"knockout": {"rows": rows, "neurons": [{"super": True}, {"super": False}]}}
    expected = {
        "as it is": 0.6, "super neurons": 1.0, "without the neuron or pair": 0.1, "random pair, largest change": 0.2,
        "restored, largest change": 0.005, "sink at k": 0.4, "first, written at k": 0.2, "channel cleared": 0.1,
        "another first token": 0.1,
    }  # fmt: skip
    assert sink_own.links(model, 8) == pytest.approx(expected)
