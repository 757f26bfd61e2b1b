"""Interventions: what they compute; they make sinks where one is asked for, and the control makes none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed
from bornbiased_jax.model import ForwardOptions, empty_cache, streaming
from bornbiased_jax.model.interventions import (
    Neuron,
    amplify_variance,
    clear,
    combine,
    parse_neuron,
    scale_output,
    self_only,
    silence,
    write,
)
from bornbiased_jax.probes.sinks import SinkOptions, measure_sinks
from bornbiased_jax.probes.variance import ensemble_mean, position_moments
from tests.model.forward import apply

SMALL = dict(num_layers=3, d_model=32, vocab_size=61, d_ff=40, num_heads=4)
CFG = preset("llama-tiny", **SMALL)
T = 10


@pytest.fixture(scope="module")
def model():
    cfg, params = CFG, init_seed(CFG, 0)
    params = jax.tree.map(lambda leaf: leaf * 10.0 if leaf.ndim > 2 else leaf, params)
    return cfg, params, np.random.default_rng(0).integers(0, 61, (6, T))


def seen(length, positions):
    """Return the positions that each query sees under causal attention."""
    edit = self_only(length, positions, num_layers=1).seen
    return np.asarray(edit(jnp.tril(jnp.ones((length, length), bool)), layer=jnp.asarray(0)))


def test_the_mask():
    mask = seen(5, [3])
    expected = np.tril(np.ones((5, 5), bool))
    expected[2] = [False, False, True, False, False]
    np.testing.assert_array_equal(mask, expected)
    np.testing.assert_array_equal(seen(4, [1]), np.tril(np.ones((4, 4), bool)))
    np.testing.assert_array_equal(seen(4, [1, 2, 3, 4]), np.eye(4, dtype=bool))


@pytest.mark.slow
def test_a_masked_token_is_a_first_token(model):
    """With relative positions its state in every layer is that of the token alone; earlier ones stay."""
    cfg, params, tokens = model
    k = 7
    masked = apply(
        cfg,
        params,
        tokens,
        options=ForwardOptions(edit=self_only(T, [k], num_layers=3)),
        capture=("residual",),
    )
    alone = apply(cfg, params, tokens[:, k - 1 : k], capture=("residual",))
    plain = apply(cfg, params, tokens, capture=("residual",))
    # float32 sums of tens of terms through three layers, relative to the largest state.
    atol = 1e-5 * float(jnp.max(jnp.abs(plain.layers["residual"])))
    np.testing.assert_allclose(masked.layers["residual"][:, :, k - 1], alone.layers["residual"][:, :, 0], atol=atol)
    earlier = slice(None, k - 1)
    np.testing.assert_allclose(
        masked.layers["residual"][:, :, earlier], plain.layers["residual"][:, :, earlier], atol=atol
    )
    later = jnp.abs(masked.layers["residual"][:, :, k:] - plain.layers["residual"][:, :, k:])
    assert float(jnp.max(later)) > 100 * atol


@pytest.mark.slow
def test_a_mask_in_every_block_is_the_mask(model):
    cfg, params, tokens = model
    options = ForwardOptions(edit=self_only(T, [4, 7], num_layers=3))
    full = apply(cfg, params, tokens, options=options, capture=("attention_weights",))
    is_seen = np.asarray(full.layers["attention_weights"]) > 0
    np.testing.assert_array_equal(is_seen, np.broadcast_to(seen(T, [4, 7]), is_seen.shape))
    # Without the weights being asked for, the kernel that knows no mask must not be taken.
    plain = apply(cfg, params, tokens, options=options)
    np.testing.assert_allclose(plain.logits_BTV, full.logits_BTV, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_mask_in_one_block_acts_there_alone(model):
    """Nothing before it moves, the token sees itself alone there, and everything again after it."""
    cfg, params, tokens = model
    names = ("residual", "attention_weights", "attention_output", "values")
    edit = self_only(T, [7], num_layers=3, blocks=[2])
    layers = apply(cfg, params, tokens, options=ForwardOptions(edit=edit), capture=names).layers
    plain = apply(cfg, params, tokens, capture=names).layers
    np.testing.assert_array_equal(layers["residual"][0], plain["residual"][0])
    row_BHS = np.asarray(layers["attention_weights"])[1, :, :, 6]
    np.testing.assert_array_equal(row_BHS, np.broadcast_to(np.arange(T) == 6, row_BHS.shape))
    np.testing.assert_array_equal(layers["attention_output"][1, :, 6], layers["values"][1, :, 6])
    assert np.asarray(layers["attention_weights"])[2, :, :, 6, 0].min() > 0
    others = np.delete(np.arange(T), 6)
    np.testing.assert_array_equal(layers["residual"][1][:, others], plain["residual"][1][:, others])


@pytest.mark.slow
def test_a_sweep_compiles_once(model):
    cfg, params, tokens = model
    mu = ensemble_mean(cfg, params, tokens)
    for make in (
        lambda k, block: self_only(T, [k], num_layers=3, blocks=[block]),
        lambda k, block: amplify_variance([k], 2.0 + k, mean_LTHK=mu, blocks=[block]),
        lambda k, block: scale_output([k], 2.0 + k, num_layers=3, blocks=[block], length=T),
    ):
        before = None
        for k, block in ((2, 1), (5, 3), (10, 2)):
            measure_sinks(cfg, params, tokens, edit=make(k, block))
            compiled = streaming._forward._cache_size()
            assert before in (None, compiled)
            before = compiled


@pytest.mark.parametrize("blocks", [None, [1, 3], [3], []])
def test_edits_equal_their_formulas(model, blocks):
    cfg, params, tokens = model
    mu = ensemble_mean(cfg, params, tokens)
    assert mu.shape == (3, T, 4, 8)
    acted = [1, 2, 3] if blocks is None else blocks
    k, factor = [2, 5], 3.0
    for edit, formula in (
        (
            amplify_variance(k, factor, mean_LTHK=mu, blocks=blocks),
            lambda o, layer: mu[layer, [1, 4]] + factor * (o - mu[layer, [1, 4]]),
        ),
        (scale_output(k, factor, num_layers=3, blocks=blocks), lambda o, layer: factor * o),
    ):
        o_BTHK = np.random.default_rng(1).standard_normal((6, T, 4, 8)).astype(np.float32)
        for layer in range(3):
            expected = o_BTHK.copy()
            if layer + 1 in acted:
                expected[:, [1, 4]] = formula(o_BTHK[:, [1, 4]], layer)
            np.testing.assert_allclose(
                edit(jnp.asarray(o_BTHK), layer=jnp.asarray(layer)), expected, rtol=1e-5, atol=1e-5
            )


def test_amplification_multiplies_the_variance_and_keeps_the_mean(model):
    """In one layer, on the very sequences that μ was taken from, exactly λ² and 1; the control moves both."""
    cfg, params, tokens = model
    mu = ensemble_mean(cfg, params, tokens)
    names = ("attention_output",)

    def moments(edit):
        return position_moments(cfg, params, tokens, quantities=names, edit=edit)["attention_output"]

    plain = moments(None)
    amplified = moments(amplify_variance([6], 4.0, mean_LTHK=mu, blocks=[1]))
    scaled = moments(scale_output([6], 4.0, num_layers=3, blocks=[1]))
    np.testing.assert_allclose(amplified.across_LT[0, 5], 16 * plain.across_LT[0, 5], rtol=1e-4)
    np.testing.assert_allclose(amplified.mean_LTW[0, 5], plain.mean_LTW[0, 5], atol=1e-5)
    np.testing.assert_allclose(scaled.across_LT[0, 5], 16 * plain.across_LT[0, 5], rtol=1e-4)
    np.testing.assert_allclose(scaled.mean_LTW[0, 5], 4 * plain.mean_LTW[0, 5], rtol=1e-4, atol=1e-5)
    # Other positions of that layer are untouched: bit for bit by the factor, and to rounding by there being an
    # edit at all, as that is another program.
    weaker = moments(amplify_variance([6], 2.0, mean_LTHK=mu, blocks=[1]))
    others = [np.delete(moment.across_LT[0], 5) for moment in (plain, amplified, weaker)]
    np.testing.assert_array_equal(others[1], others[2])
    np.testing.assert_allclose(others[1], others[0], rtol=2e-6)


# A model in which the chain of "The Structural Origin of Attention Sink" is built by hand.
CONTENT, LENGTH, VOCAB = 64, 32, 64
CONSTANT, SINK, SHARED = 0, 1, 2 + CONTENT
WIDTH = SHARED + 1 + CONTENT


def constructed():
    """Two layers, one head. Channel 0 is 1 everywhere; channels 2… hold a token's random content.

    Layer 1 averages the context: a shared part of size √64 and the content, whose average over i tokens has
    size √(64/i), go to channels of their own and are normalized (post-norm), so the shared channel holds
    √D/√(1 + 1/i): 0.71 √D at the first token, more at others. One neuron fires where it is below 0.76 √D and
    writes to the sink channel alone. Layer 2 looks for that channel.
    """
    cfg = ModelConfig(
        num_layers=2,
        num_heads=1,
        d_model=WIDTH,
        d_ff=2,
        vocab_size=VOCAB,
        norm="rmsnorm",
        norm_position="post",
        activation="relu",
        positions="none",
        max_seq_len=LENGTH,
    )
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), init_seed(cfg, 0))
    rng = np.random.default_rng(0)
    table = params["embed"]["embedding"]
    table[:, CONSTANT] = 1.0
    table[:, 2:SHARED] = rng.choice([-1.0, 1.0], (VOCAB, CONTENT))
    blocks = params["blocks"]
    for name in ("attention_norm", "mlp_norm"):
        blocks[name]["scale"][:] = 1.0
    params["final_norm"]["scale"][:] = 1.0
    channels = np.arange(CONTENT)
    attention = blocks["attention"]
    attention["value"]["kernel"][0, CONSTANT, 0] = np.sqrt(CONTENT)
    attention["value"]["kernel"][0, 2 + channels, 1 + channels] = 1.0
    attention["output"]["kernel"][0, 0, SHARED] = 1.0
    attention["output"]["kernel"][0, 1 + channels, SHARED + 1 + channels] = 1.0
    blocks["mlp"]["up"]["kernel"][0, CONSTANT, 0] = 0.76 * np.sqrt(WIDTH)
    blocks["mlp"]["up"]["kernel"][0, SHARED, 0] = -1.0
    blocks["mlp"]["down"]["kernel"][0, 0, SINK] = 1.0
    attention["query"]["kernel"][1, CONSTANT, 0] = 12.0
    attention["key"]["kernel"][1, SINK, 0] = 1.0
    return cfg, params


@pytest.mark.slow
def test_sinks_appear_where_they_are_made_and_the_control_makes_none():
    cfg, params = constructed()
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, VOCAB, (16, LENGTH))
    random_tokens = rng.integers(0, VOCAB, (400, LENGTH))
    mu = ensemble_mean(cfg, params, random_tokens)

    def score(position, edit=None):
        options = SinkOptions(position=position, convention="rows_from_k")
        sinks = measure_sinks(cfg, params, tokens, options, edit=edit)
        return sinks["score_LH"][1, 0], sinks["sink_rate"]

    # The first token is a sink of the second layer's head, as built: half of all heads.
    first, rate = score(1)
    assert first > 0.9 and rate == 0.5
    for k in (5, 20):
        assert score(k)[0] < 0.1
        # Two equal sinks, at 1 and at k, share what later queries give.
        factor = 2 * np.sqrt(k)
        masked, rate = score(k, edit=self_only(LENGTH, [k], num_layers=2))
        assert masked > 0.45 and rate == 0.5
        amplified, rate = score(k, edit=amplify_variance([k], factor, mean_LTHK=mu, blocks=[1]))
        assert amplified > 0.45 and rate == 0.5
        scaled, rate = score(k, edit=scale_output([k], factor, num_layers=2, blocks=[1]))
        assert scaled < 0.1 and rate == 0.0
    # Several at once.
    several = self_only(LENGTH, [8, 16], num_layers=2)
    assert score(8, edit=several)[0] > 0.25 and score(16, edit=several)[0] > 0.25


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda mu: self_only(5, [0], num_layers=3), "position 0 is not between 1 and 5"),
        (lambda mu: self_only(5, [], num_layers=3), "no position"),
        (lambda mu: self_only(5, [6], num_layers=3), "position 6"),
        (lambda mu: self_only(5, [2], num_layers=3, blocks=[4]), "block 4 is not between 1 and 3"),
        (lambda mu: amplify_variance([11], 2.0, mean_LTHK=mu), "position 11"),
        (lambda mu: amplify_variance([1], float("inf"), mean_LTHK=mu), "factor inf"),
        (lambda mu: amplify_variance([1], 2.0, mean_LTHK=mu, blocks=[4]), "block 4 is not between 1 and 3"),
        (lambda mu: scale_output([1], 2.0, num_layers=3, blocks=[0]), "block 0 is not between 1 and 3"),
        (lambda mu: scale_output([0], 2.0, num_layers=3), "position 0"),
        (lambda mu: scale_output([1], float("nan"), num_layers=3), "factor nan"),
        (lambda mu: scale_output([1], 1e39, num_layers=3), "factor 1e\\+39 is not a finite number of float32"),
        (lambda mu: write(CFG, {Neuron(1, 2): float("nan")}, position=1), "blocks/1/mlp:2 nan is not a finite"),
        (lambda mu: write(CFG, {Neuron(4, 2): 1.0}, position=1), "block 4 is not between 1 and 3"),
        (lambda mu: write(CFG, {Neuron(1, 40): 1.0}, position=1), "neurons are 0 to 39"),
        (lambda mu: clear(CFG, [32], position=1), "channel 32"),
        (lambda mu: clear(CFG, [1], position=0), "position 0"),
        (lambda mu: clear(CFG, [], position=1, blocks=[4]), "block 4 is not between 1 and 3"),
        (lambda mu: write(CFG, {Neuron(1, 1): 1.0}, position=0), "position 0 is not between 1 and the length"),
        (lambda mu: silence(CFG, [Neuron(4, 0)]), "block 4 is not between 1 and 3"),
        (lambda mu: silence(CFG.replace(mlp=False), [Neuron(1, 0)]), "no MLP"),
        (lambda mu: parse_neuron("blocks/1/attention:2"), "blocks/12/mlp:1229"),
    ],
)
def test_settings_out_of_range(call, words):
    with pytest.raises(InputError, match=words):
        call(np.zeros((3, T, 4, 8)))


def test_an_edit_beyond_the_sequence_is_refused(model):
    cfg, params, tokens = model
    with pytest.raises(InputError, match="position 10 is edited, but 4 positions"):
        apply(cfg, params, tokens[:, :4], options=ForwardOptions(edit=scale_output([10], 2.0, num_layers=3)))
    for edit in (write(cfg, {Neuron(1, 2): 1.0}, position=5), clear(cfg, [3], position=5)):
        with pytest.raises(InputError, match="position 5 is edited, but 4 positions"):
            apply(cfg, params, tokens[:, :4], options=ForwardOptions(edit=edit))
    with pytest.raises(InputError, match="said for 10 positions, but 4 x 4 are computed"):
        apply(cfg, params, tokens[:, :4], options=ForwardOptions(edit=self_only(10, [2], num_layers=3)))
    # The last position alone, or those after a cache, would be taken for the first.
    first = scale_output([1], 2.0, num_layers=3)
    for positions, cache in (("last", None), ("all", empty_cache(cfg, len(tokens), T))):
        with pytest.raises(InputError, match="use positions='all' and no cache"):
            apply(cfg, params, tokens, positions=positions, options=ForwardOptions(edit=first, cache=cache))


def test_an_edit_for_another_depth_is_refused(model):
    """An index beyond an array's end is its last in JAX: block 3 would be edited as block 2."""
    cfg, params, tokens = model
    shallow = cfg.replace(num_layers=2)
    mu = np.zeros((2, T, 4, 8))
    for edit in (
        self_only(T, [2], num_layers=2),
        amplify_variance([2], 2.0, mean_LTHK=mu),
        combine(silence(shallow, [Neuron(1, 2)]), scale_output([2], 2.0, num_layers=3)),
        clear(shallow, [1], position=2),
    ):
        with pytest.raises(InputError, match="made for 2 blocks, but the model has 3"):
            apply(cfg, params, tokens, options=ForwardOptions(edit=edit))
