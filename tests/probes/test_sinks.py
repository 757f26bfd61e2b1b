"""Sink scores: the definitions against each other, memory, and refusals."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.evaluation.sink_report import ReportOptions, count_sequences, cut_sequences, report_on_ids
from bornbiased_jax.init import init_seed
from bornbiased_jax.model import ForwardOptions, streaming
from bornbiased_jax.probes import batching, sinks
from bornbiased_jax.probes.sinks import SinkOptions, measure_sinks
from tests.model.forward import apply

N, T = 5, 12
SMALL = dict(num_layers=3, d_model=32, vocab_size=61, d_ff=40, max_seq_len=24, num_heads=4)


def sharp(cfg, seed=0):
    """Initial weights enlarged until attention is far from uniform."""
    params = init_seed(cfg, seed)
    return jax.tree.map(lambda leaf: leaf * 12.0 if leaf.ndim > 2 else leaf, params)


@pytest.fixture(scope="module")
def model():
    cfg = preset("llama-tiny", **SMALL, num_kv_heads=2)
    tokens = np.random.default_rng(0).integers(0, cfg.vocab_size, (N, T))
    return cfg, sharp(cfg), tokens


def test_prefixes_of_one_pass_equal_passes_over_prefixes(model):
    cfg, params, tokens = model
    result = measure_sinks(cfg, params, tokens, SinkOptions(lengths=(4, 9), position=2, epsilon=0.2))
    assert sorted(result["by_length"]) == [4, 9, T]
    for length in (4, 9, T):
        alone = measure_sinks(cfg, params, tokens[:, :length], SinkOptions(position=2, epsilon=0.2))
        # Softmax weights are at most 1; sums of twelve of them in float32.
        np.testing.assert_allclose(result["by_length"][length]["score_LH"], alone["score_LH"], atol=1e-6)
        assert result["by_length"][length]["sink_rate"] == alone["sink_rate"]
    assert result["sink_rate"] == result["by_length"][T]["sink_rate"]


def test_batches_change_nothing_and_are_counted(model, monkeypatch):
    first = measure_sinks(*model)
    observed = []
    monkeypatch.setattr(batching, "batch_size_for", lambda *sizes: 2)
    two = measure_sinks(*model, advance=observed.append)
    assert observed == [2, 2, 1]
    np.testing.assert_allclose(first["profile_LHT"], two["profile_LHT"], atol=1e-6)
    assert first["sink_rate"] == two["sink_rate"]


def test_the_two_thresholds(model):
    average = measure_sinks(*model, SinkOptions(threshold="average"))
    each = measure_sinks(*model, SinkOptions(threshold="per_sequence"))
    assert average["sink_rate"] == each["sink_rate_of_average"] == (each["score_LH"] > 0.25).mean()
    assert each["sink_rate"] == average["sink_rate_per_sequence"] == pytest.approx(each["rate_LH"].mean())
    # A higher ε never finds more sinks.
    rates = [measure_sinks(*model, SinkOptions(epsilon=epsilon))["sink_rate"] for epsilon in (0.1, 0.25, 0.5, 0.9)]
    assert rates == sorted(rates, reverse=True) and rates[0] > rates[-1]


def test_rows_that_do_not_sum_to_one(model):
    _, params, tokens = model
    cfg = preset("llama-tiny", **SMALL, num_kv_heads=2, attention_kernel="sigmoid")
    raw = measure_sinks(cfg, params, tokens)
    weights = np.asarray(
        apply(cfg, params, tokens, capture=("attention_weights",)).layers["attention_weights"], np.float64
    )
    np.testing.assert_allclose(raw["row_mass_LH"], weights.sum(-1).mean((1, 3)), rtol=1e-5)
    shared = measure_sinks(cfg, params, tokens, SinkOptions(normalize=True))
    np.testing.assert_allclose(shared["row_mass_LH"], 1.0, rtol=1e-5)
    expected = (weights / weights.sum(-1, keepdims=True))[..., 0].mean((1, 3))
    np.testing.assert_allclose(shared["score_LH"], expected, atol=1e-6)


@pytest.mark.slow
def test_memory_holds_one_layer_of_one_batch(model):
    """The compiled pass needs no more scratch memory for six layers than for two, give or take one map."""
    scratch = []
    long = 256
    for layers in (2, 6):
        cfg = preset("llama-tiny", **{**SMALL, "num_layers": layers})
        shapes = jax.eval_shape(lambda cfg=cfg: init_seed(cfg, 0))
        x = jax.ShapeDtypeStruct((1, long), jnp.int32)
        reading = streaming.Reading(("attention_weights",), sinks.AttentionSums(1))
        compiled = streaming._forward.lower(cfg, shapes, x, x, reading, ForwardOptions()).compile()
        scratch.append(compiled.memory_analysis().temp_size_in_bytes)
    one_layer = cfg.num_heads * long * long * 4
    assert scratch[1] - scratch[0] < one_layer
    assert scratch[0] < 8 * one_layer


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(epsilon=0.0), "epsilon=0.0 is not between 0 and 1"),
        (dict(epsilon=1.0), "epsilon=1.0"),
        (dict(epsilon=float("nan")), "epsilon=nan"),
        (dict(position=0), "position 0"),
        (dict(position=T + 1), "position 13"),
        (dict(position=5, lengths=(4,)), "position 5 is not between 1 and the shortest length, 4"),
        (dict(lengths=(T + 1,)), "length 13"),
        (dict(lengths=(0, 4)), "length 0 is not between 1 and the 12 positions"),
        (dict(convention="rows"), "convention 'rows'"),
        (dict(threshold="mean"), "threshold 'mean'"),
    ],
)
def test_settings_out_of_range(model, changes, words):
    with pytest.raises(InputError, match=words):
        measure_sinks(*model, SinkOptions(**changes))


def test_inputs_that_do_not_fit(model):
    cfg, params, tokens = model
    with pytest.raises(InputError, match="token id 61 is outside the model's vocabulary of 61"):
        measure_sinks(cfg, params, np.where(tokens == tokens[0, 0], 61, tokens))
    with pytest.raises(InputError, match="no attention"):
        measure_sinks(cfg.replace(attention=False), params, tokens)


def test_windows_of_a_text():
    ids = np.arange(100)
    cut = cut_sequences(ids, 10, 20, seed=3)
    assert cut.shape == (20, 10)
    assert np.all(np.diff(cut, axis=1) == 1)
    assert len(np.unique(cut[:, 0])) == 20
    np.testing.assert_array_equal(cut, cut_sequences(ids, 10, 20, seed=3))
    assert np.any(cut != cut_sequences(ids, 10, 20, seed=4))
    # As many as there are: starts 0 … 90 only.
    np.testing.assert_array_equal(cut_sequences(ids, 10, 500)[:, 0], np.arange(91))
    np.testing.assert_array_equal(cut_sequences(ids, 100, 5), ids[None])
    with pytest.raises(InputError, match="100 tokens, fewer than the length 101"):
        cut_sequences(ids, 101, 5)
    with pytest.raises(InputError, match="at least 1"):
        cut_sequences(ids, 10, 0)


@pytest.mark.slow
def test_report(model):
    cfg, params, _ = model
    ids = np.random.default_rng(1).integers(0, cfg.vocab_size, 400)
    observed = []
    options = ReportOptions(lengths=(8, 4), num_sequences=6)
    report = report_on_ids(cfg, params, ids, options, advance=observed.append)
    assert list(report["sink_rate"]) == ["4", "8"]
    assert sum(observed) == count_sequences(cfg, options)
    observed.clear()
    single = dataclasses.replace(options, num_sequences=1)
    report_on_ids(cfg, params, ids, single, advance=observed.append)
    assert sum(observed) == count_sequences(cfg, single)
    windows = cut_sequences(ids, 8, 6)
    for length in (4, 8):
        expected = measure_sinks(cfg, params, windows[:, :length])
        assert report["sink_rate"][str(length)] == expected["sink_rate"]
        np.testing.assert_allclose(report["score_by_layer_head"][str(length)], expected["score_LH"], atol=1e-6)
    import json

    again = json.loads(json.dumps(report, allow_nan=False))
    assert again == report
    assert np.shape(report["variance"]["residual"]["pooled"]) == (3, 8)
    assert len(report["outliers"]["layers"]) == 3 and report["super_neurons"]
    brief = report_on_ids(cfg, params, ids, ReportOptions(lengths=(8,), num_sequences=6, details=False))
    assert brief["sink_rate"] == {"8": report["sink_rate"]["8"]} and "outliers" not in brief
    for changes, words in (
        (dict(lengths=(401,)), "fewer than the length 401"),
        (dict(epsilon=1.5), "epsilon=1.5"),
        (dict(lengths=()), "no length"),
    ):
        with pytest.raises(InputError, match=words):
            report_on_ids(cfg, params, ids, ReportOptions(num_sequences=6, **{"lengths": (8,), **changes}))
    with pytest.raises(InputError, match="learned positions"):
        report_on_ids(cfg.replace(positions="learned"), params, ids, ReportOptions(lengths=(8, 25), num_sequences=6))
    with pytest.raises(InputError, match="use the tokenizer that the model was trained with"):
        report_on_ids(cfg, params, ids + 40, ReportOptions(lengths=(8,), num_sequences=50))


@pytest.mark.parametrize("kernel", ["softpick", "centred", "clipped"])
def test_rows_that_add_up_to_nothing_have_no_fractions(kernel):
    """At position 1 softpick gives nothing where the logit is negative, centered attention gives nothing at all."""
    cfg = preset("llama-tiny", num_layers=2, d_model=16, num_heads=4, d_ff=24, vocab_size=41, attention_kernel=kernel)
    params = jax.tree.map(lambda leaf: leaf * 20.0 if leaf.ndim > 1 else leaf, init_seed(cfg, 1))
    tokens = np.random.default_rng(0).integers(0, 41, (3, 9))
    fractions = measure_sinks(cfg, params, tokens, SinkOptions(normalize=True))
    assert np.isfinite(fractions["score_LH"]).all() and np.isfinite(fractions["profile_LHT"]).all()
    # Every row adds up to one, or to nothing.
    assert (np.abs(fractions["row_mass_LH"]) <= 1 + 1e-5).all()
