"""Generic properties over one table of architectures; the last position alone; float32 in bfloat16."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax import keys
from bornbiased_jax import model as models
from bornbiased_jax.config import PRESETS, preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed, parameter_shapes
from bornbiased_jax.model import ForwardOptions, attn0, empty_cache, logits_of, mlp0_config
from bornbiased_jax.model import apply as eager_apply
from bornbiased_jax.model.layers import BlockContext
from bornbiased_jax.model.loss import loss_sum
from bornbiased_jax.model.model import CAPTURABLE, Block
from bornbiased_jax.parameters import count_parameters, flatten
from tests.model.forward import apply
from tests.tiers import nightly_except

SMALL = dict(num_layers=3, d_model=32, vocab_size=61, d_ff=40, max_seq_len=24)
CASES = {
    **{name: PRESETS[name].replace(**SMALL, num_heads=4) for name in PRESETS if name.endswith("-tiny")},
    "gpt2-learned": preset("gpt2-tiny", **SMALL, positions="learned", activation="gelu_tanh"),
    "attention-only": preset("gpt2-tiny", **SMALL, mlp=False),
    "mlp-only": preset("gpt2-tiny", **SMALL, attention=False),
    "no-residual, wide-heads": preset("llama-tiny", **SMALL, residual=False, head_dim=10),
    "no-norm, relu": preset("gpt2-tiny", **SMALL, norm="none", activation="relu"),
    "no-positions, tanh": preset("gpt2-tiny", **SMALL, positions="none", activation="tanh"),
    "window": preset("llama-tiny", **SMALL, window=4),
    "gated-output": preset("llama-tiny", **SMALL, output_gate="elementwise", head_norm=True, sink_logit="learned"),
    "local and global": PRESETS["gemma3-tiny"].replace(**SMALL, num_heads=4, window=3, attention_pattern="lg"),
    "one norm, some rotated": preset(
        "neox-tiny",
        **SMALL,
        norm_parameters="scale",
        shared_norm=True,
        rope_pattern="rn",
        residual_scale=0.7,
        logit_scale=0.5,
        attention_softcap=2.0,
    ),
    "sigmoid": preset("llama-tiny", **SMALL, attention_kernel="sigmoid", positional_scale="amplify"),
}
REPRESENTATIVES = ("neox-tiny", "olmo2-tiny", "mixtral-tiny", "gpt2-learned", "no-norm, relu")
REPRESENTATIVES += ("gated-output", "local and global", "one norm, some rotated")
# float32 sums of a few hundred terms of order one, three layers deep: 2⁻²⁴ · √(40 · 3) · 10.
ATOL = 1e-5


def drawn(cfg):
    """Weights by NumPy, ten times an initialization's in the blocks, and nothing exactly zero or one.

    Attention is far from uniform then, and mistakes show.
    """
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        scale = 0.2 if len(leaf.shape) > 2 else 0.02 if len(leaf.shape) == 2 and "blocks" not in str(path) else 0.1
        value = scale * rng.standard_normal(leaf.shape) + ("scale" in str(path[-1]))
        return jnp.asarray(value, jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, parameter_shapes(cfg))


@pytest.fixture(scope="module", params=nightly_except(CASES, *REPRESENTATIVES))
def case(request):
    cfg = CASES[request.param]
    tokens = jax.random.randint(keys.stream_key(0, "tokens"), (2, 12), 0, cfg.vocab_size)
    return cfg, drawn(cfg), tokens


def run(cfg, params, tokens, **options):
    """One program a configuration for most of the tests: what blocks leave behind is captured whether used or not."""
    has_neurons = cfg.mlp and cfg.num_experts is None
    return apply(cfg, params, tokens, capture=("residual", "mlp_hidden") if has_neurons else ("residual",), **options)


def test_the_future_does_not_change_the_past(case):
    cfg, params, tokens = case
    changed = tokens.at[:, 7:].set((tokens[:, 7:] + 1) % cfg.vocab_size)
    before, after = run(cfg, params, tokens), run(cfg, params, changed)
    np.testing.assert_allclose(before.logits_BTV[:, :7], after.logits_BTV[:, :7], atol=ATOL)
    assert np.max(np.abs(before.logits_BTV[:, 7:] - after.logits_BTV[:, 7:])) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    nightly_except(
        CASES, *("mixtral-tiny", "gpt2-learned", "gated-output", "window", "local and global", "one norm, some rotated")
    ),
    indirect=True,
)
def test_last_position_alone_equals_the_last_of_all(case):
    """What is captured too; keys and values are those of all positions."""
    cfg, params, tokens = case
    absent = {"attention_received", "router_logits"}
    absent |= {"mlp_preactivation", "mlp_up", "mlp_hidden"} if cfg.num_experts else set()
    lacking = () if cfg.mlp and cfg.attention else ("attention_", "keys", "values") if cfg.mlp else ("mlp_",)
    names = tuple(name for name in CAPTURABLE if name not in absent and not name.startswith(lacking))
    every, last = (apply(cfg, params, tokens, capture=names, positions=positions) for positions in ("all", "last"))
    np.testing.assert_allclose(every.logits_BTV[:, -1:], last.logits_BTV, atol=ATOL)
    np.testing.assert_allclose(every.final_BTD[:, -1:], last.final_BTD, atol=ATOL)
    assert np.ptp(np.asarray(every.final_BTD), axis=1).max() > 0.1
    for name in names:
        expected = np.asarray(every.layers[name])
        if name not in ("keys", "values"):
            expected = np.take(expected, [-1], axis=3 if name == "attention_weights" else 2)
        np.testing.assert_allclose(last.layers[name], expected, atol=ATOL, err_msg=name)


def test_the_scan_equals_a_loop_over_blocks(case):
    cfg, params, tokens = case
    out = run(cfg, params, tokens)
    stream, block = out.embedded_BTD, jax.jit(Block(cfg).apply)
    for layer in range(cfg.num_layers):
        weights = jax.tree.map(lambda leaf, layer=layer: leaf[layer], params["blocks"])
        stream, *_ = block({"params": weights}, stream, BlockContext(jnp.arange(12), layer=jnp.asarray(layer)))
        np.testing.assert_allclose(stream, out.layers["residual"][layer], atol=ATOL)


@pytest.mark.parametrize("case", nightly_except(CASES, *REPRESENTATIVES, "mlp-only"), indirect=True)
def test_decoding_with_a_cache_equals_one_pass(case):
    """Three tokens at a time, each chunk seeing the cache and the beginning of itself."""
    cfg, params, tokens = case
    full = run(cfg, params, tokens).logits_BTV
    parts, cache = [], empty_cache(cfg, 2, 16)
    for t in range(0, 12, 3):
        step = apply(cfg, params, tokens[:, t : t + 3], options=ForwardOptions(cache=cache))
        parts.append(step.logits_BTV)
        cache = step.cache
    np.testing.assert_allclose(full, jnp.concatenate(parts, axis=1), atol=ATOL)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    nightly_except(CASES, "neox-tiny", "mixtral-tiny", "gpt2-learned", "gated-output", "local and global"),
    indirect=True,
)
def test_every_parameter_matters(case):
    """Each leaf has a gradient, biases and logits included: nothing is dead weight."""
    cfg, params, tokens = case
    target = jax.random.normal(keys.stream_key(1, "target"), (2, 12, cfg.vocab_size))
    loss = jax.grad(lambda params: jnp.sum(eager_apply(cfg, params, tokens).logits_BTV * target))
    grads = jax.jit(loss)(params)
    for path, leaf in flatten(grads).items():
        # A bias of the keys shifts all logits of a query alike, so softmax cancels it — unless RoPE turns it.
        if path.endswith("key/bias") and cfg.positions != "rope":
            continue
        assert float(jnp.max(jnp.abs(leaf))) > 0, path


@pytest.mark.slow
def test_reduce_runs_inside_the_scan():
    cfg = CASES["llama-tiny"]
    params = init_seed(cfg, 1)
    tokens = jnp.arange(12)[None] % cfg.vocab_size

    def column_sums(captured):
        return captured["attention_weights"].sum(2)

    out = eager_apply(cfg, params, tokens, capture=("attention_weights",), reduce=column_sums)
    received = apply(cfg, params, tokens, capture=("attention_received",)).layers["attention_received"]
    np.testing.assert_allclose(out.layers, received, atol=1e-6)
    np.testing.assert_allclose(received.sum(-1), 12.0, rtol=1e-5)


@pytest.mark.slow
def test_vectors_in_place_of_tokens():
    cfg = CASES["gpt2-tiny"]
    params = init_seed(cfg, 3)
    tokens = jnp.arange(10)[None]
    vectors = params["embed"]["embedding"][tokens]
    np.testing.assert_array_equal(apply(cfg, params, tokens).logits_BTV, apply(cfg, params, vectors).logits_BTV)


def test_logits_are_the_projection_of_the_final_state(case):
    cfg, params, tokens = case
    out = run(cfg, params, tokens)
    np.testing.assert_allclose(out.logits_BTV, logits_of(cfg, params, out.final_BTD), atol=ATOL)


def test_mlp0_is_definition_1():
    cfg = mlp0_config(num_layers=2, d_model=8, d_ff=12)
    params = init_seed(cfg, 4)
    x = jax.random.normal(keys.stream_key(0, "x"), (3, 1, 8))
    expected = np.asarray(x, np.float64)
    for layer in range(2):
        up = np.asarray(params["blocks"]["mlp"]["up"]["kernel"][layer], np.float64)
        down = np.asarray(params["blocks"]["mlp"]["down"]["kernel"][layer], np.float64)
        expected = np.maximum(expected @ up, 0) @ down
    out = apply(cfg, params, x, logits=False)
    np.testing.assert_allclose(out.final_BTD, expected, rtol=1e-4, atol=1e-9)
    assert count_parameters(params) == 2 * 2 * 8 * 12 + 2 * 8


def test_attn0_is_definition_3():
    x = np.random.default_rng(0).standard_normal((2, 5, 3)).astype(np.float32)
    expected = np.stack([x[:, : t + 1].mean(1) for t in range(5)], axis=1)
    np.testing.assert_allclose(attn0(jnp.asarray(x)), expected, atol=1e-6)


def test_bfloat16_compute_stays_near_float32():
    cfg = CASES["llama-tiny"]
    params = init_seed(cfg, 5)
    tokens = jnp.arange(12)[None]
    exact = apply(cfg, params, tokens).final_BTD
    half = apply(cfg, params, tokens, options=ForwardOptions(dtype=jnp.bfloat16)).final_BTD
    assert half.dtype == jnp.bfloat16
    # bfloat16 keeps 8 bits; states are of order one after the final norm, three blocks deep.
    np.testing.assert_allclose(half.astype(jnp.float32), exact, atol=20 * 2.0**-8)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (dict(capture=("nonsense",)), "nonsense"),
        (dict(capture=("attention_received",), positions="last"), "attention_received"),
    ],
)
def test_bad_names_of_captured_activations_are_refused(call, word):
    cfg = CASES["gpt2-tiny"]
    with pytest.raises(InputError, match=word):
        eager_apply(cfg, init_seed(cfg, 0), jnp.zeros((1, 4), jnp.int32), **call)


@pytest.mark.parametrize("missing", ["attention", "mlp"])
def test_activations_that_a_model_cannot_have_are_refused(missing):
    """They are those of ``CAPTURABLE`` that the other kind of block does not have."""
    cfg = preset("gpt2-tiny", num_layers=1, d_model=8, num_heads=1, d_ff=8, vocab_size=8, **{missing: False})
    params, tokens = init_seed(cfg, 0), jnp.zeros((1, 2), jnp.int32)
    prefixes = {"attention": ("attention_", "keys", "values"), "mlp": ("mlp_", "router_")}[missing]
    refused = [name for name in CAPTURABLE if name.startswith(prefixes)]
    assert len(refused) == {"attention": 7, "mlp": 6}[missing]
    for name in refused:
        with pytest.raises(InputError, match=name):
            eager_apply(cfg, params, tokens, capture=("residual", name))
    present = tuple(name for name in CAPTURABLE if name not in (*refused, "router_logits"))
    assert set(eager_apply(cfg, params, tokens, capture=present).layers) == set(present)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [([[3, 99]], "token id 99"), ([[3, -1]], "token id -1"), ([[0.5]], "integers"), (np.zeros((1, 0), int), "shape")],
)
def test_ids_on_the_host_are_of_the_vocabulary(tokens, words):
    """A negative id would be counted from the end of the table, and one beyond it give NaN."""
    cfg = SHALLOW
    with pytest.raises(InputError, match=words):
        eager_apply(cfg, init_seed(cfg, 0), np.asarray(tokens))


@pytest.mark.parametrize(("positions", "room", "words"), [("rope", 6, "room for 6"), ("learned", 9, "8 learned")])
def test_a_pass_beyond_its_cache_or_its_positions_is_refused(positions, room, words):
    """More keys than fit would be written over others; positions that no table has are NaN."""
    cfg = SHALLOW.replace(num_layers=1, positions=positions, max_seq_len=8)
    params, tokens = init_seed(cfg, 0), np.arange(9)[None]
    cache = eager_apply(cfg, params, tokens[:, :5], options=ForwardOptions(cache=empty_cache(cfg, 1, room))).cache
    with pytest.raises(InputError, match=words):
        eager_apply(cfg, params, tokens[:, 5:], options=ForwardOptions(cache=cache))
    fits = eager_apply(cfg, params, tokens[:, 5:6], options=ForwardOptions(cache=cache))
    assert int(fits.cache.length) == 6 and np.isfinite(fits.logits_BTV).all()


def test_wrong_width_and_length_are_refused():
    cfg = CASES["gpt2-learned"]
    params = init_seed(cfg, 0)
    with pytest.raises(InputError, match="wide"):
        apply(cfg, params, jnp.zeros((1, 4, 5)))
    with pytest.raises(InputError, match="max_seq_len"):
        apply(cfg, params, jnp.zeros((1, 40), jnp.int32))


SHALLOW = preset("llama-tiny", num_layers=3, num_heads=4, num_kv_heads=2, d_model=32, d_ff=40, vocab_size=61)


def test_no_copy_of_the_blocks_is_made():
    """All blocks but the last, sliced off, would be another model in memory."""
    cfg = preset("llama-tiny", num_layers=8, d_model=64, d_ff=512, num_heads=2, vocab_size=61)
    shapes = models.parameter_shapes(cfg)
    weights = 4 * models.count_parameters(shapes["blocks"])
    run = jax.jit(lambda params, x: models.apply(cfg, params, x, positions="last", logits=False).final_BTD)
    planned = run.lower(shapes, jax.ShapeDtypeStruct((1, 8), np.int32)).compile().memory_analysis()
    # A block in the loop and the last one, two of eight; all but the last would be seven.
    assert planned.temp_size_in_bytes < weights / 2


SIZES = dict(num_layers=2, num_heads=4, d_model=32, d_ff=40, vocab_size=64, max_seq_len=48)
IDS = jax.ShapeDtypeStruct((2, 17), jnp.int32)
# exp is the softmax, rsqrt a norm, log the loss; sums and largest elements belong to one of them.
KEPT = {"exp", "exp2", "rsqrt", "sqrt", "log", "reduce_sum", "reduce_max"}


def operations(jaxpr):
    """Every operation of a program with those inside its loops and calls."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from operations(inner)


def halves(function, *arguments):
    """Names of operations on floats narrower than float32, and whether logits are products into float32."""
    primitives = list(operations(jax.make_jaxpr(function)(*arguments).jaxpr))
    names = {row.primitive.name for row in primitives}
    narrow = {row.primitive.name for row in primitives if any(var.aval.dtype == jnp.bfloat16 for var in row.invars)}
    products = [row.outvars[0].aval for row in primitives if row.primitive.name == "dot_general"]
    logits = [aval.dtype for aval in products if 64 in aval.shape]
    return names, narrow, logits


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny", "qwen3-tiny", "olmo2-tiny"])
def test_bfloat16_forward_keeps_float32_softmax_and_norms(name):
    cfg = preset(name, **SIZES)
    forward = functools.partial(eager_apply, cfg, options=ForwardOptions(dtype=jnp.bfloat16))
    names, narrow, logits = halves(lambda p, x: forward(p, x).logits_BTV, parameter_shapes(cfg), IDS)
    assert {"exp", "rsqrt"} <= names and "dot_general" in narrow
    assert not narrow & KEPT
    assert logits == [jnp.float32]


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny"])
def test_the_loss_is_float32(name):
    cfg = preset(name, **SIZES)

    def loss(params, tokens):
        return loss_sum(cfg, params, tokens, dtype="bfloat16")[0]

    names, narrow, logits = halves(loss, parameter_shapes(cfg), IDS)
    assert {"exp", "log"} <= names and not narrow & KEPT
    assert set(logits) == {np.dtype("float32")}
