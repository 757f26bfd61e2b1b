"""Neurons and channels that are cut, held to weights with the neuron taken out, or to the formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.config import preset
from bornbiased_jax.init import init_seed
from bornbiased_jax.model import ForwardOptions
from bornbiased_jax.model.interventions import (
    Edits,
    Neuron,
    as_edits,
    clear,
    combine,
    silence,
    write,
)
from tests.model.forward import apply

CFG = preset("llama-tiny", num_layers=3, d_model=16, vocab_size=41, d_ff=12, num_heads=2)
TOKENS = np.random.default_rng(0).integers(0, 41, (3, 7))


@pytest.fixture(scope="module")
def params():
    return jax.tree.map(lambda leaf: leaf * 8.0 if leaf.ndim > 2 else leaf, init_seed(CFG, 1))


def run(params, edit=None, tokens=TOKENS):
    return apply(CFG, params, tokens, options=ForwardOptions(edit=edit), capture=("mlp_hidden", "residual"))


@pytest.mark.slow
def test_a_silent_neuron_is_one_without_output_weights(params):
    neurons = [Neuron(2, 5), Neuron(3, 0)]
    cut = jax.tree.map(lambda leaf: leaf, params)
    down = np.array(cut["blocks"]["mlp"]["down"]["kernel"])
    for block, unit in neurons:
        down[block - 1, unit] = 0.0
    cut["blocks"]["mlp"]["down"]["kernel"] = jnp.asarray(down)
    expected = run(cut).logits_BTV
    np.testing.assert_allclose(run(params, silence(CFG, neurons)).logits_BTV, expected, rtol=1e-5, atol=1e-6)
    assert float(jnp.max(jnp.abs(run(params).logits_BTV - expected))) > 1e-3


@pytest.mark.slow
def test_a_written_neuron_is_active_at_its_position_alone(params):
    hidden = run(params, write(CFG, {Neuron(2, 5): 3.5}, position=4)).layers["mlp_hidden"]
    np.testing.assert_array_equal(hidden[1, ..., 5], np.tile(np.eye(7)[3] * 3.5, (3, 1)))
    residual = run(params, write(CFG, {Neuron(2, 5): 3.5}, position=4)).layers["residual"]
    silent = run(params, silence(CFG, [Neuron(2, 5)])).layers["residual"]
    row_D = np.asarray(params["blocks"]["mlp"]["down"]["kernel"])[1, 5]
    np.testing.assert_allclose(residual[1, :, 3] - silent[1, :, 3], np.tile(3.5 * row_D, (3, 1)), atol=1e-4)
    np.testing.assert_array_equal(residual[1, :, 4:], silent[1, :, 4:])


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [None, [2]])
def test_a_cleared_channel_is_zero_there_and_as_it_was_before(params, blocks):
    residual = np.asarray(run(params, clear(CFG, [3], position=2, blocks=blocks)).layers["residual"])
    plain = np.asarray(run(params).layers["residual"])
    acted = range(3) if blocks is None else [block - 1 for block in blocks]
    assert all((residual[layer, :, 1, 3] == 0).all() for layer in acted)
    first = min(acted)
    np.testing.assert_array_equal(residual[:first], plain[:first])
    np.testing.assert_array_equal(residual[first, :, 1, 4:], plain[first, :, 1, 4:])
    assert np.abs(residual[first:, :, 2:, 3]).min() > 0


@pytest.mark.slow
def test_several_edits_act_one_after_the_other_and_compile_once(params):
    doubled = Edits(residual=jax.tree_util.Partial(lambda x, layer: 2.0 * x))
    both = combine(doubled, clear(CFG, [3], position=1, blocks=[3]), None)
    residual = np.asarray(run(params, both).layers["residual"])
    alone = np.asarray(run(params, doubled).layers["residual"])
    assert (residual[2, :, 0, 3] == 0).all()
    np.testing.assert_array_equal(np.delete(residual[2, :, 0], 3, axis=-1), np.delete(alone[2, :, 0], 3, axis=-1))
    traced = []

    @jax.jit
    def pass_of(edits):
        traced.append(1)
        return apply(CFG, params, TOKENS, options=ForwardOptions(edit=edits)).logits_BTV

    outputs = [pass_of(silence(CFG, [Neuron(1, unit)])) for unit in range(3)]
    assert len(traced) == 1 and not np.array_equal(outputs[0], outputs[1])


def test_no_edits_and_none_are_the_same():
    function = lambda o, layer: o  # noqa: E731
    assert as_edits(function).attention_output is not None and as_edits(None) == Edits()
