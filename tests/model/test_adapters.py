"""Adapters of a frozen model: what they compute, where they begin, and how many numbers they train."""

import jax
import numpy as np
import pytest

from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed
from bornbiased_jax.model import ForwardOptions, empty_cache
from bornbiased_jax.model.adapters import (
    MATRICES,
    Adapter,
    adapted,
    adapter_shapes,
    attach,
    count_trained,
    init_adapter,
    lora,
    merge,
    prefix,
    prefix_plus,
    within_budget,
)
from bornbiased_jax.parameters import flatten, unflatten
from tests.model.forward import apply
from tests.tiers import nightly_except

SIZES = dict(num_layers=2, num_heads=4, d_model=32, d_ff=40, vocab_size=64, max_seq_len=96)
LLAMA = preset("llama-tiny", **SIZES)
# Longer than two blocks of rows, so that attention is computed block by block.
TOKENS = np.random.default_rng(0).integers(0, 64, (2, 70)).astype(np.int32)
EVERY = {"lora": lora(3, matrices=tuple(MATRICES)), "prefix": prefix(5), "prefix-plus": prefix_plus()}


def logits(cfg, params):
    return np.asarray(apply(cfg, params, TOKENS).logits_BTV)


def moved(tree, size=0.1):
    """The tree with noise on every number."""
    draws = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: np.asarray(leaf) + size * draws.standard_normal(leaf.shape).astype("f4"), tree)


@pytest.mark.as_users
@pytest.mark.slow
@pytest.mark.parametrize("name", nightly_except(["gpt2-tiny", "qwen-tiny", "neox-tiny"], "qwen-tiny"))
def test_lora_and_a_memory_of_zeros_begin_as_the_base_bitwise(name):
    cfg = preset(name, **SIZES, **({"num_kv_heads": 2} if name == "qwen-tiny" else {}))
    base = init_seed(cfg, 3)
    expected = logits(cfg, base)
    for adapter in (lora(3), *map(prefix_plus, ("elu", "relu", "identity"))):
        start = init_adapter(cfg, adapter, 7)
        np.testing.assert_array_equal(logits(adapted(cfg, adapter), attach(adapter, base, start)), expected)
        after = logits(adapted(cfg, adapter), attach(adapter, base, moved(start)))
        assert np.abs(after - expected).max() > 0.01


@pytest.mark.slow
def test_lora_applied_is_lora_merged():
    adapter, base = EVERY["lora"], init_seed(LLAMA, 3)
    trained = moved(init_adapter(LLAMA, adapter, 7))
    apart, merged = logits(LLAMA, attach(adapter, base, trained)), logits(LLAMA, merge(adapter, base, trained))
    np.testing.assert_allclose(apart, merged, atol=1e-5 * np.abs(merged).max())
    untouched = {path for path in flatten(base) if not path.endswith("kernel") or path.startswith("head")}
    before, after = flatten(base), flatten(merge(adapter, base, trained))
    assert {path for path in before if np.array_equal(before[path], after[path])} == untouched


@pytest.mark.slow
def test_a_prefix_is_earlier_positions_that_no_query_is_computed_for():
    """Without positions, the keys and values of some tokens as a prefix are those tokens before the text."""
    cfg = LLAMA.replace(positions="none", num_kv_heads=2)
    base = init_seed(cfg, 3)
    full = apply(cfg, base, TOKENS[:1], capture=("keys", "values"))
    length = 9
    kept = {name: full.layers[name][:, 0, :length] for name in ("keys", "values")}
    trained = unflatten({"blocks/attention/prefix_key": kept["keys"], "blocks/attention/prefix_value": kept["values"]})
    adapter = prefix(length)
    params = attach(adapter, base, trained)
    out = apply(adapted(cfg, adapter), params, TOKENS[:1, length:], capture=("attention_weights", "keys"))
    # float32 sums of other lengths.
    np.testing.assert_allclose(out.logits_BTV, full.logits_BTV[:, length:], atol=2e-6)
    weights_LBHTS, rest = out.layers["attention_weights"], TOKENS.shape[1] - length
    assert weights_LBHTS.shape == (2, 1, 4, rest, rest) and out.layers["keys"].shape[2] == rest
    assert float(weights_LBHTS.sum(-1).max()) < 1, "what a row lacks to 1 is the prefix's"
    assert not np.triu(weights_LBHTS, 1).any(), "no query sees a later position"


@pytest.mark.slow
def test_a_memory_adds_what_its_formula_says():
    """One block without norms and positions: q = x W_q."""
    cfg = LLAMA.replace(num_layers=1, norm="none", positions="none")
    base, adapter = init_seed(cfg, 3), prefix_plus()
    params = attach(adapter, base, moved(init_adapter(cfg, adapter, 7), 1.0))
    outputs = [
        apply(c, p, TOKENS, capture=("attention_output",)).layers["attention_output"][0]
        for c, p in ((cfg, base), (adapted(cfg, adapter), params))
    ]
    flat = {path: np.asarray(leaf, np.float64) for path, leaf in flatten(params).items()}
    x_BTD = flat["embed/embedding"][TOKENS]
    q_BTHK = (x_BTD @ flat["blocks/attention/query/kernel"][0]).reshape(*TOKENS.shape, 4, 8)
    phi_BTHK = np.where(q_BTHK > 0, q_BTHK, np.expm1(q_BTHK))
    added = np.einsum("bthk,hkj->bthj", phi_BTHK, flat["blocks/attention/prefix_memory"][0])
    # A few float32 roundings of values of this size.
    np.testing.assert_allclose(outputs[1] - outputs[0], added, atol=1e-6 * np.abs(added).max())


@pytest.mark.slow
@pytest.mark.parametrize("method", nightly_except(["prefix", "prefix-plus"], "prefix-plus"))
def test_decoding_with_a_cache_and_the_last_position_alone_agree(method):
    adapter, base = EVERY[method], init_seed(LLAMA, 3)
    cfg, params = adapted(LLAMA, adapter), merge(adapter, base, moved(init_adapter(LLAMA, adapter, 7)))
    full = apply(cfg, params, TOKENS).logits_BTV
    cache = apply(cfg, params, TOKENS[:, :30], options=ForwardOptions(cache=empty_cache(cfg, 2, 70))).cache
    rest = apply(cfg, params, TOKENS[:, 30:], options=ForwardOptions(cache=cache)).logits_BTV
    last = apply(cfg, params, TOKENS, positions="last").logits_BTV
    np.testing.assert_allclose(rest, full[:, 30:], atol=2e-6)
    np.testing.assert_allclose(last[:, 0], full[:, -1], atol=2e-6)


@pytest.mark.parametrize("method", EVERY)
def test_an_adapter_begins_as_its_seed_says(method):
    adapter = EVERY[method]
    ones, others, again = (flatten(init_adapter(LLAMA, adapter, seed)) for seed in (1, 2, 1))
    shapes = flatten(adapter_shapes(LLAMA, adapter))
    assert {path: leaf.shape for path, leaf in ones.items()} == {path: leaf.shape for path, leaf in shapes.items()}
    assert sum(leaf.size for leaf in ones.values()) == count_trained(LLAMA, adapter)
    for path, leaf in ones.items():
        np.testing.assert_array_equal(leaf, again[path])
        if path.endswith(("lora_out", "memory")):
            assert not leaf.any()
        else:
            assert not np.array_equal(leaf, others[path])
            std = 0.02 if method == "prefix" else (3 * leaf.shape[1]) ** -0.5
            # Five standard errors of a standard deviation.
            assert abs(leaf.std() / std - 1) < 5 / np.sqrt(2 * leaf.size)
    assert Adapter.from_dict(adapter.to_dict()) == adapter


def test_budgets():
    memory = count_trained(LLAMA, prefix_plus())
    assert memory == 2 * 4 * 8 * 8
    assert within_budget(LLAMA, prefix(1), memory).prefix_length == 4
    assert within_budget(LLAMA.replace(num_kv_heads=1), prefix(1), memory).prefix_length == 16
    # Query and value, 32 by 32, in two blocks: 256 numbers for each rank.
    wider = within_budget(LLAMA, lora(4, 2.0), memory + 255)
    assert (wider.rank, wider.alpha, count_trained(LLAMA, wider)) == (2, 1.0, memory)
    assert within_budget(LLAMA, prefix_plus(), memory) == prefix_plus()
    # No rank is above a matrix's narrower side, whatever may be spent.
    everything = within_budget(LLAMA.replace(num_kv_heads=1), lora(4, 2.0), 10**6)
    assert (everything.rank, everything.alpha) == (8, 4.0)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: adapter_shapes(LLAMA, lora(33)), "rank=33 is above the width of query"),
        (lambda: lora(4, matrices=("query", "wings")), "unknown matrix 'wings': choose from query"),
        (lambda: lora(4, matrices=()), "name at least one"),
        (lambda: lora(4, matrices=("query", "query")), "each once"),
        (lambda: adapter_shapes(preset("gpt2-tiny"), lora(4, matrices=("gate",))), "no matrix gate: choose from query"),
        (lambda: adapted(LLAMA.replace(prefix_length=3), prefix(2)), "prefix_length=3 already"),
        (lambda: adapted(LLAMA.replace(attention=False), prefix(2)), "parts of attention"),
        (lambda: within_budget(LLAMA, prefix_plus(), 511), "at least 512 parameters of this model, more than 511"),
        (lambda: Adapter.from_dict({"method": "magic"}), "unknown adapter 'magic'"),
        (lambda: Adapter.from_dict({"method": "lora", "spell": 1}), "unknown field 'spell'"),
    ],
)
def test_adapter_shape_mismatch_refused(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()
