"""Fake quantization against a second implementation in NumPy, its limits, and the price against its definition."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed
from bornbiased_jax.model import ForwardOptions
from bornbiased_jax.model.interventions import NO_EDITS
from bornbiased_jax.quantization import (
    FakeQuantizer,
    Scheme,
    parse_scheme,
    parse_schemes,
    price,
    prices,
    quantize_kernel,
    quantized_edits,
    quantized_params,
)
from bornbiased_jax.quantization.price import DESTROYED
from tests.model.forward import apply

CFG = preset("llama-tiny", num_layers=2, d_model=16, vocab_size=41, d_ff=24, num_heads=4, num_kv_heads=2)
TOKENS = np.random.default_rng(0).integers(0, 41, (4, 9))


@pytest.fixture(scope="module")
def params():
    return jax.tree.map(lambda leaf: leaf * 6.0 if leaf.ndim > 1 else leaf, init_seed(CFG, 1))


def by_hand(x, bits, granularity, keep):
    """Loops over what shares a scale, float64."""
    x = np.asarray(x, np.float64)
    out = x.copy()
    steps = 2 ** (bits - 1) - 1
    flat = x.reshape(*x.shape[:2], -1)
    result = out.reshape(flat.shape)
    for b in range(len(flat)):
        rows = flat[b, keep:]
        if granularity == "tensor":
            groups = [(slice(keep, None), slice(None))]
        elif granularity == "token":
            groups = [(keep + row, slice(None)) for row in range(len(rows))]
        else:
            groups = [(slice(keep, None), channel) for channel in range(flat.shape[2])]
        for group in groups:
            values = flat[b][group]
            scale = np.abs(values).max() / steps
            result[b][group] = np.rint(values / scale) * scale if scale else values
    return result.reshape(x.shape)


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
@pytest.mark.parametrize("granularity", ["tensor", "token", "channel"])
@pytest.mark.parametrize(("shape", "keep"), [((3, 5, 7), 0), ((3, 5, 7), 2), ((2, 6, 2, 4), 1)])
def test_against_a_second_implementation(bits, granularity, shape, keep):
    x = np.random.default_rng(bits).standard_normal(shape).astype(np.float32)
    x[:, 0] *= 100  # a sink token
    x[0, -1] = 0.0
    rounded = FakeQuantizer(bits, granularity, keep)(jnp.asarray(x))
    expected = by_hand(x, bits, granularity, keep)
    # Float32 may round x/s to the other side of a half: such values differ by one step and are rare.
    close = np.isclose(rounded, expected, rtol=1e-6, atol=1e-6 * np.abs(x).max())
    step = np.abs(x).max() / (2 ** (bits - 1) - 1)
    assert np.abs(np.asarray(rounded) - expected).max() <= 1.001 * step
    assert close.mean() > (1 - 2e-2 if bits == 16 else 1 - 1e-12)


def test_kernels_have_a_scale_a_matrix_or_an_output_channel():
    kernel = np.random.default_rng(3).standard_normal((2, 5, 6)).astype(np.float32)
    full, columns = (np.asarray(quantize_kernel(jnp.asarray(kernel), 4, name)) for name in ("tensor", "token"))
    for layer in range(2):
        scale = np.abs(kernel[layer]).max() / 7
        np.testing.assert_allclose(full[layer], np.rint(kernel[layer] / scale) * scale, rtol=1e-6, atol=1e-6)
        for column in range(6):
            scale = np.abs(kernel[layer, :, column]).max() / 7
            expected = np.rint(kernel[layer, :, column] / scale) * scale
            np.testing.assert_allclose(columns[layer, :, column], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("granularity", ["tensor", "token", "channel"])
def test_experts_are_rounded_as_matrices_of_their_own(granularity):
    kernel_LEIO = jnp.asarray(
        np.random.default_rng(3).standard_normal((2, 3, 5, 6)) * np.array([1, 10, 100])[:, None, None]
    )
    rounded = quantize_kernel(kernel_LEIO, 4, granularity)
    for expert in range(3):
        np.testing.assert_array_equal(rounded[:, expert], quantize_kernel(kernel_LEIO[:, expert], 4, granularity))


@pytest.mark.slow
def test_only_the_kernels_of_blocks_are_rounded(params):
    rounded = quantized_params(params, 4, "token")
    changed = {
        jax.tree_util.keystr(path)
        for (path, old), new in zip(
            jax.tree_util.tree_leaves_with_path(params), jax.tree_util.tree_leaves(rounded), strict=True
        )
        if not np.array_equal(old, new)
    }
    assert changed and all("blocks" in path and "kernel" in path for path in changed)
    assert len(changed) == 7
    assert quantized_params(params, None, "token") is params and quantized_edits(Scheme(), "token") == NO_EDITS


@pytest.mark.parametrize("site", ["attention_output", "mlp_hidden", "keys", "values"])
def test_what_linear_maps_and_the_cache_read_lies_on_the_grid(params, site):
    scheme = Scheme(cache=4) if site in ("keys", "values") else Scheme(activations=4)
    captured = apply(
        CFG, params, TOKENS, options=ForwardOptions(edit=quantized_edits(scheme, "token")), capture=(site,)
    ).layers[site]
    rows = np.asarray(captured).reshape(2 * 4 * 9, -1)
    steps = rows / (np.abs(rows).max(axis=1, keepdims=True) / 7)
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-4)
    assert len(np.unique(np.rint(steps))) == 15


@pytest.mark.slow
def test_prices_are_their_definitions(params, monkeypatch):
    monkeypatch.setattr(price, "LOGIT_BYTES", 3 * 4 * TOKENS.shape[1] * CFG.vocab_size)
    cells = prices(CFG, params, TOKENS, [parse_scheme("w4a4kv4")], granularities=["token"], keep=[1, 0])
    assert [cell["keep_sinks"] for cell in cells] == [0, 1]
    full = np.asarray(jax.nn.log_softmax(apply(CFG, params, TOKENS).logits_BTV[:, :-1]), np.float64)
    weights = quantized_params(params, 4, "token")
    for cell in cells:
        edits = quantized_edits(Scheme(4, 4, 4), "token", keep=cell["keep_sinks"])
        log = np.asarray(
            jax.nn.log_softmax(apply(CFG, weights, TOKENS, options=ForwardOptions(edit=edits)).logits_BTV[:, :-1]),
            np.float64,
        )
        nll, nll_full = (-np.take_along_axis(p, TOKENS[:, 1:, None], -1)[..., 0].mean(axis=1) for p in (log, full))
        assert cell["loss"] == pytest.approx(nll.mean(), rel=1e-5)
        assert cell["delta_nats"] == pytest.approx((nll - nll_full).mean(), abs=1e-5)
        kl = (np.exp(full) * (full - log)).sum(-1)
        assert cell["kl_median"] == pytest.approx(np.median(kl), rel=1e-3)
        assert cell["same_top1"] == (full.argmax(-1) == log.argmax(-1)).mean()
        low, high = cell["delta_interval"]
        assert low < cell["delta_nats"] < high and not cell["destroyed"]
    assert cells[0]["d_sink"] is None
    assert cells[1]["d_sink"] == pytest.approx(cells[0]["delta_nats"] - cells[1]["delta_nats"])


@pytest.mark.slow
def test_what_keeping_saves_is_told_without_a_cell_that_keeps_nothing(params):
    measure = functools.partial(prices, CFG, params, TOKENS[:2], [parse_scheme("a4")], granularities=["tensor"])
    done = []
    (alone,) = measure(keep=[1], advance=done.append)
    assert alone["d_sink"] is not None and alone == measure(keep=[0, 1])[1]
    assert sum(done) == 2 * len(TOKENS[:2])


@pytest.mark.parametrize("name", ["w16", "w2"])
def test_divergences_are_those_of_float64_however_small(params, name):
    (cell,) = prices(CFG, params, TOKENS, [parse_scheme(name)], granularities=["token"], keep=[0])
    logs = []
    for weights in (params, quantized_params(params, parse_scheme(name).weights, "token")):
        logits = np.asarray(apply(CFG, weights, TOKENS).logits_BTV[:, :-1], np.float64)
        logs.append(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))
    full, log = logs
    expected = np.median((np.exp(full) * (full - log)).sum(-1))
    # Logits are rounded to float32, by about 1e-6, where 16 bits move them by about 1e-4.
    assert cell["kl_median"] == pytest.approx(expected, rel=0.1)


def test_a_cache_of_a_model_without_attention_has_no_price():
    cfg = dataclasses.replace(CFG, attention=False)
    for scheme in (Scheme(cache=4), Scheme(weights=8, cache=4)):
        with pytest.raises(InputError, match=f"{scheme} quantizes keys and values, and the model has no attention"):
            prices(cfg, init_seed(cfg, 0), TOKENS, [scheme])


@pytest.mark.slow
def test_a_destroyed_model_says_so(params):
    sharp = jax.tree.map(lambda leaf: leaf, params)
    sharp["head"] = {"kernel": params["head"]["kernel"] * 0.0}
    cell = prices(CFG, sharp, TOKENS, [Scheme(activations=8)], granularities=["token"], keep=[0])[0]
    assert not cell["destroyed"] and cell["loss"] == pytest.approx(np.log(41)) and DESTROYED == 10.0
    broken = jax.tree.map(lambda leaf: leaf, params)
    broken["blocks"] = {**params["blocks"], "mlp_norm": {"scale": params["blocks"]["mlp_norm"]["scale"] * jnp.inf}}
    cell = prices(CFG, broken, TOKENS, [Scheme(activations=8)], granularities=["token"], keep=[0, 1])[1]
    assert cell["destroyed"] and cell["d_sink"] is None and cell["loss"] is None
    json.dumps(cell, allow_nan=False)


@pytest.mark.parametrize("text", ["w1", "a17", "x8", "", "w8a8,", "w8,w8", "kv"])
def test_other_names_and_bits_are_refused(text):
    with pytest.raises(InputError):
        parse_schemes(text)


@pytest.mark.parametrize(
    "call",
    [
        lambda params: FakeQuantizer(8, "row"),
        lambda params: FakeQuantizer(8, "token", -1),
        lambda params: prices(CFG, params, TOKENS, [Scheme(activations=8)], keep=[9]),
        lambda params: prices(CFG, params, TOKENS[:, :1], [Scheme(activations=8)]),
    ],
)
def test_settings_out_of_range_are_refused(params, call):
    with pytest.raises(InputError):
        call(params)
