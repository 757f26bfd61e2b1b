"""Changes that leave the function alone: logits before and after."""

import functools

import jax
import numpy as np
import pytest

from bornbiased_jax.config import preset
from bornbiased_jax.derive import symmetries
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed
from bornbiased_jax.model import apply
from bornbiased_jax.parameters import flatten, parameter_table, unflatten
from tests.lineage.descendants import orders
from tests.tiers import nightly_except

SIZES = dict(num_layers=2, num_heads=4, d_model=32, d_ff=24, vocab_size=50)
MODELS = {
    "llama": preset("llama-tiny", **SIZES),
    "grouped": preset("qwen-tiny", **SIZES, num_kv_heads=2, tie_embeddings=True),
    "gpt2": preset("gpt2-tiny", **SIZES),
    "qwen3": preset("qwen3-tiny", **SIZES, num_kv_heads=2),
    "neox": preset("neox-tiny", **SIZES),
    "olmo2": preset("olmo2-tiny", **SIZES, num_kv_heads=2),
    "learned": preset("gpt2-tiny", **SIZES, positions="learned", num_kv_heads=2),
    "no norm": preset("gpt2-tiny", **SIZES, norm="none"),
    "no residual": preset("llama-tiny", **SIZES, residual=False),
    "prefix": preset("llama-tiny", **SIZES, num_kv_heads=2, prefix_length=3, prefix_memory="elu"),
    "headwise": preset("llama-tiny", **SIZES, num_kv_heads=2, output_gate="headwise", sink_logit="learned"),
    "elementwise": preset("llama-tiny", **SIZES, num_kv_heads=2, output_gate="elementwise", head_norm=True),
    "gemma3": preset(
        "gemma3-tiny",
        **SIZES | {"num_layers": 3},
        num_kv_heads=2,
        window=3,
        attention_pattern="lg",
        embedding_scale=5.0,
        attention_softcap=1.5,
    ),
    "glm4": preset("llama-tiny", **SIZES, num_kv_heads=2, norm_position="both", qkv_bias=True, rotary_fraction=0.5),
    "cohere": preset(
        "llama-tiny",
        **SIZES,
        num_kv_heads=2,
        norm="layernorm",
        norm_parameters="scale",
        parallel_residual=True,
        shared_norm=True,
        logit_scale=0.5,
        tie_embeddings=True,
    ),
    "olmo": preset("llama-tiny", **SIZES, norm="layernorm", norm_parameters="none"),
    "granite": preset("llama-tiny", **SIZES, residual_scale=0.6, logit_scale=2.0, embedding_scale=3.0),
    "smollm3": preset("llama-tiny", **SIZES | {"num_layers": 3}, num_kv_heads=2, rope_pattern="rnr"),
    "mixtral": preset("mixtral-tiny", **SIZES, num_kv_heads=2),
    "qwen3_moe": preset("qwen3moe-tiny", **SIZES, num_kv_heads=2),
    "qwen2_moe": preset("qwen2moe-tiny", **SIZES, num_kv_heads=2, shared_expert_width=20),
    "value gate": preset("llama-tiny", **SIZES, num_kv_heads=2, output_gate="value", qk_norm=True),
}
# What a model does not allow, by a word of the sentence.
REFUSED = {
    ("olmo2", "fold"): "pre-norm",
    ("olmo2", "rotate"): "pre-norm",
    ("no residual", "idle block"): "residual",
    ("glm4", "fold"): "pre-norm",
    ("glm4", "rotate"): "pre-norm",
    ("gemma3", "fold"): "pre-norm",
    ("gemma3", "rotate"): "pre-norm",
}


def model(name, seed=0):
    """An initialization that is no longer one: scales and biases are not constant, and every weight is larger."""
    cfg = MODELS[name]
    draws = np.random.default_rng(seed)
    flat = {}
    for path, leaf in flatten(init_seed(cfg, seed)).items():
        noise = draws.standard_normal(leaf.shape).astype(np.float32)
        flat[path] = np.asarray(leaf) * 5 + 0.3 * noise * (leaf.ndim <= 2 and "embedding" not in path)
    return cfg, unflatten(flat)


@functools.partial(jax.jit, static_argnums=0)
def forward(cfg, params, tokens):
    return apply(cfg, params, tokens).logits_BTV


def logits(cfg, params):
    tokens = np.random.default_rng(1).integers(0, SIZES["vocab_size"], (3, 7))
    return np.asarray(forward(cfg, jax.tree.map(np.asarray, params), tokens))


def assert_same_function(before, after):
    actual, reference = logits(*before), logits(*after)
    assert np.abs(actual).max() > 0.5
    np.testing.assert_allclose(reference, actual, atol=3e-4 * np.abs(actual).max())


def signs(cfg):
    drawn = np.random.default_rng(3).choice([-1.0, 1.0], cfg.d_model)
    return drawn if cfg.norm == "rmsnorm" else -np.ones(cfg.d_model)


CHANGES = {
    "rotate": lambda cfg, p: symmetries.rotate(cfg, p, symmetries.random_rotation(cfg, 4)),
    "negate": lambda cfg, p: symmetries.negate(cfg, p, signs(cfg)),
    "renumber": lambda cfg, p: symmetries.permute_coordinates(cfg, p, orders(1, cfg.d_model)[0]),
    "units": lambda cfg, p: symmetries.permute_units(cfg, p, orders(cfg.num_layers, cfg.d_ff)),
    "heads": lambda cfg, p: symmetries.permute_heads(cfg, p, orders(cfg.num_layers, cfg.kv_heads)),
    "idle block": lambda cfg, p: symmetries.insert_idle_block(cfg, p, 5),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", nightly_except(MODELS, "grouped", "qwen3", "olmo2", "learned", "prefix", "elementwise")
)
@pytest.mark.parametrize("change", CHANGES)
def test_logits_stay(name, change):
    before = model(name)
    if (name, change) in REFUSED:
        with pytest.raises(InputError, match=REFUSED[name, change]):
            CHANGES[change](*before)
        return
    after = CHANGES[change](*before)
    assert_same_function(before, after)
    flat = flatten(after[1])
    moved = [path for path, leaf in flatten(before[1]).items() if not np.array_equal(flat.get(path), leaf)]
    # Without norms there is nothing to fold but the tied table, which gets a head of its own.
    assert moved or flat.keys() != flatten(before[1]).keys(), "nothing was changed"


def test_a_parameter_that_nobody_declared_is_an_error():
    cfg, params = model("llama")
    params["blocks"]["mlp"]["up"]["decay"] = np.ones((2, 24), np.float32)
    with pytest.raises(LookupError, match="blocks/mlp/up/decay"):
        symmetries.permute_units(cfg, params, orders(2, 24))


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly_except(["mixtral", "qwen3_moe", "qwen2_moe"], "mixtral"))
def test_experts_and_neurons_within_experts_are_exchangeable(name):
    before = model(name)
    cfg, (L, E, F) = before[0], (before[0].num_layers, before[0].num_experts, before[0].d_ff)
    assert_same_function(before, symmetries.permute_experts(*before, orders(L, E)))
    within_LEF = orders(L * E, F).reshape(L, E, F)
    assert_same_function(before, symmetries.permute_units(*before, within_LEF))
    factors_LF = np.random.default_rng(6).normal(size=(L, F)) ** 3 + 0.1
    assert_same_function(before, symmetries.rescale_units(*before, factors_LF.astype(np.float32)))
    with pytest.raises(InputError, match="no experts"):
        symmetries.permute_experts(*model("llama"), orders(2, 4))
    # Neurons do not leave their expert: experts are chosen by a router that knows them as wholes.
    flat = flatten(before[1])
    moved = {path: leaf for path, leaf in flat.items() if parameter_table(cfg)[path].in_expert}
    swapped = unflatten({**flat, **{path: np.roll(leaf, 1, axis=1) for path, leaf in moved.items()}})
    assert np.abs(logits(cfg, swapped) - logits(*before)).max() > 0.1


@pytest.mark.slow
def test_neurons_of_a_shared_expert_are_exchangeable_among_themselves():
    before = model("qwen2_moe")
    cfg = before[0]
    L, F, W = cfg.num_layers, cfg.d_ff, cfg.shared_expert_width
    kept_LF = np.tile(np.arange(F), (L, 1))
    assert_same_function(before, symmetries.permute_units(*before, kept_LF, orders(L, W)))
    factors_LW = (np.random.default_rng(6).normal(size=(L, W)) ** 3 + 0.1).astype(np.float32)
    assert_same_function(before, symmetries.rescale_units(*before, np.ones((L, F), np.float32), factors_LW))
    # Its gate is a column of its own that no order of experts moves, and without it the logits are others.
    permuted = flatten(symmetries.permute_experts(*before, orders(L, cfg.num_experts))[1])
    flat = flatten(before[1])
    for path in flat:
        assert ("shared_expert" not in path) or np.array_equal(permuted[path], flat[path]), path
    gate = "blocks/mlp/shared_expert_gate/kernel"
    without = unflatten({**flat, gate: np.zeros_like(flat[gate])})
    assert np.abs(logits(cfg, without) - logits(*before)).max() > 0.05


def test_symmetries_refused_by_architecture():
    cfg, params = model("llama")
    factors = np.random.default_rng(6).normal(size=(cfg.num_layers, cfg.d_ff)) ** 3 + 0.1
    assert_same_function((cfg, params), symmetries.rescale_units(cfg, params, factors.astype(np.float32)))
    assert_same_function((cfg, params), symmetries.widen(cfg, params, 8))
    for change, needs in (
        (lambda: symmetries.rescale_units(*model("gpt2"), np.ones((2, 24))), "gated"),
        (lambda: symmetries.widen(*model("gpt2"), 8), "RMSNorm"),
        (lambda: symmetries.negate(*model("gpt2"), np.array([-1.0] + [1.0] * 31)), "all of them or none"),
    ):
        with pytest.raises(InputError, match=needs):
            change()


def test_a_rotation_is_orthogonal_and_spares_the_mean():
    for name in ("llama", "gpt2"):
        turn = symmetries.random_rotation(MODELS[name], 8)
        np.testing.assert_allclose(turn @ turn.T, np.eye(32), atol=1e-12)
    np.testing.assert_allclose(np.ones(32) @ turn, np.ones(32), atol=1e-12)
