"""The benchmark of training as a share of the matmul rate runs and counts what a step multiplies."""

import json

import jax
import jax.numpy as jnp
import pytest

from benchmarks import training_rate
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import parameter_shapes
from bornbiased_jax.model.loss import loss_sum
from bornbiased_jax.training.throughput import flops_per_token


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-tiny", "gpt2-tiny", "qwen-tiny"])
def test_products_are_those_of_the_step(name):
    """Against XLA's own count of a step's operations, in which attention's are few and element-wise ones fewer."""
    B, T = 8, 16
    cfg = preset(name, num_layers=1, max_seq_len=T)
    counted = sum(2.0 * m * k * n * times for (m, k, n), times in training_rate.products(cfg, B * T).items())

    def loss(params, tokens):
        return loss_sum(cfg, params, tokens)[0]

    arguments = (parameter_shapes(cfg), jax.ShapeDtypeStruct((B, T + 1), jnp.int32))
    flops = jax.jit(jax.grad(loss)).lower(*arguments).cost_analysis()["flops"]
    assert counted == pytest.approx(flops, rel=0.05)
    # And the operations that a step needs are these and attention's.
    attention = 12 * cfg.num_heads * cfg.key_dim * (T + 1) / 2
    assert counted == pytest.approx((flops_per_token(cfg, T) - attention) * B * T, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra",
    [
        pytest.param([], marks=pytest.mark.nightly),
        ["--dtype", "bfloat16", "--seeds", "2"],
    ],
)
def test_fractions_are_of_the_rates_reported(tmp_path, monkeypatch, capsys, extra):
    cfg = preset("llama-tiny", num_layers=1, d_model=16, d_ff=24, num_heads=2, vocab_size=64)
    monkeypatch.setattr(training_rate, "preset", lambda name: cfg)
    sizes = ["--context", "8", "--batch-size", "4", "--turns", "1", "--steps", "2"]
    record = training_rate.main([*sizes, *extra, "--goal", "0.45", "--json", str(tmp_path / "a.json")])
    assert record == json.loads((tmp_path / "a.json").read_text())
    assert record["goal"] == 0.45 and record["seeds"] == (2 if extra else 1)
    needed = record["tokens_per_second"] * flops_per_token(cfg, 8) / 1e12
    assert record["needed_tflops"] == pytest.approx(needed)
    assert 0 < record["share_of_products_rate_median"] < 10
    assert record["provenance"]["wall_time_s"] > 0 and record["provenance"]["peak_memory_bytes"] > 0
    shown = capsys.readouterr().out
    assert "share_of_products_rate_median" in shown and "provenance" not in shown


def test_an_unwritable_record_is_refused_before_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        training_rate.main(["--json", str(tmp_path / "file" / "a.json")])
