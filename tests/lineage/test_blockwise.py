"""Logits and hidden states block by block are those of the whole model, and expected tokens cost one read."""

import dataclasses

import numpy as np
import pytest

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.lineage.blockwise import expect_logits, probe_outputs
from bornbiased_jax.model import apply
from tests.lineage.descendants import config, descend, reader

BY_BLOCK = {
    "gpt2": config("gpt2-tiny", num_layers=3, d_model=48, d_ff=64, positions="learned"),
    # What differs from block to block: windows and rotation.
    "patterns": config(num_layers=3, d_model=48, d_ff=64, window=2, attention_pattern="gl", rope_pattern="rnr"),
    # What happens at the embedding, after each sublayer and at the head.
    "scaled": config(
        num_layers=3, d_model=48, d_ff=64, embedding_scale=7.0, logit_softcap=0.5, residual_scale=0.4, logit_scale=3.0
    ),
    "one norm": config(num_layers=3, d_model=48, d_ff=64, parallel_residual=True, shared_norm=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_BLOCK)
def test_logits_block_by_block_are_those_of_the_whole_model(name):
    cfg, params = descend(BY_BLOCK[name], 5)
    ids_ST = np.arange(12, dtype=np.int32).reshape(2, 6)
    whole = apply(cfg, params, ids_ST, capture=("residual",))
    states_PD = np.asarray(whole.layers["residual"][1]).reshape(12, -1)
    whole_PV = np.asarray(whole.logits_BTV).reshape(12, -1)
    whole_PV = whole_PV - whole_PV.mean(axis=1, keepdims=True)
    for kind in ("memory", "run"):
        streamed = probe_outputs(dataclasses.replace(reader((cfg, params)), kind=kind), ids_ST)
        np.testing.assert_allclose(streamed.logits_PV, whole_PV, atol=1e-5 * whole_PV.std())
        # Hidden states after the second of three blocks.
        np.testing.assert_allclose(streamed.middle_PD, states_PD, atol=1e-5 * states_PD.std())


def test_expected_logits_come_with_others_from_one_read(monkeypatch):
    model = reader(descend(config(num_layers=2, d_model=32, vocab_size=64), 1))
    few_ST, more_ST = (np.random.default_rng(0).integers(0, 64, shape, dtype=np.int32) for shape in ((2, 4), (3, 8)))
    alone = [probe_outputs(model, ids_ST).logits_PV for ids_ST in (few_ST, more_ST)]
    expect_logits(model, more_ST)
    together = probe_outputs(model, few_ST).logits_PV
    np.testing.assert_array_equal(together, alone[0])
    # What was computed is given once, and nothing is read for it.
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "read", pytest.fail)
        np.testing.assert_array_equal(probe_outputs(model, more_ST).logits_PV, alone[1])
        with pytest.raises(pytest.fail.Exception):
            probe_outputs(model, more_ST)
    # Tokens of another shape are others, whatever their bytes.
    expect_logits(model, more_ST)
    probe_outputs(model, few_ST)
    assert probe_outputs(model, more_ST.reshape(8, 3)).logits_PV.shape == (24, 64)
    np.testing.assert_array_equal(probe_outputs(model, more_ST).logits_PV, alone[1])
