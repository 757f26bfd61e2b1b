"""Products by algorithm, and the self-test: each check fails where it must."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import matmul, products, self_test
from bornbiased_jax.config import preset
from bornbiased_jax.init import init_seed
from bornbiased_jax.model import apply
from bornbiased_jax.probes.inputs import random_tokens

CFG = preset("gpt2-tiny", num_layers=1, d_model=32, d_ff=48, num_heads=2, vocab_size=64)
HALF = jax.lax.DotAlgorithmPreset.F16_F16_F16  # the one algorithm that differs on a CPU


def test_draws_hold_on_this_device_and_others_do_not(monkeypatch):
    assert self_test.key_bits()["passed"]
    # A bound that draws come nowhere near would say nothing.
    assert 0.02 < self_test.normals(300_000)["largest_error_over_bound"] <= 1
    bits, normal = jax.random.bits, jax.random.normal
    monkeypatch.setattr(jax.random, "bits", lambda *given: bits(*given) ^ jnp.uint32(1))
    monkeypatch.setattr(jax.random, "normal", lambda *given: normal(*given) * jnp.float32(1 + 1e-5))
    assert not self_test.key_bits()["passed"] and not self_test.normals(20_000)["passed"]


@pytest.mark.slow
def test_fused_attention_is_compared_with_the_plain_formula(monkeypatch):
    """JAX's plain version in place of the kernel, then one that is not causal."""
    assert self_test.attention(32)["passed"] is None
    for causal in (True, False):

        def kernel(q, k, v, causal=causal):
            return jax.nn.dot_product_attention(q, k, v, is_causal=causal)

        monkeypatch.setattr(self_test, "fused_attention", kernel)
        result = self_test.attention(32)
        assert result["passed"] is causal and set(result["relative_errors"]) == {"output", "dq", "dk", "dv"}


def test_errors_are_those_of_the_algorithm():
    # Rounding to 24 and to 11 bits, and sums of at most 48 terms.
    assert matmul.product_error(CFG, "highest") < 1e-6 < 1e-4 < matmul.product_error(CFG, HALF) < 1e-2


@pytest.mark.nightly
def test_algorithms_are_compared_by_what_they_change_in_a_probe(monkeypatch):
    tokens_NT = np.asarray(random_tokens(16, 4, CFG.vocab_size).batch(0, 16))
    top1_N, (cosine,) = products.probe(CFG, tokens_NT, "highest")
    out = apply(CFG, init_seed(CFG, 42), tokens_NT, capture=("residual",))
    assert top1_N.tolist() == np.argmax(out.logits_BTV[:, -1], -1).tolist()
    last_ND = np.asarray(out.layers["residual"][0, :, -1], np.float64)
    unit_ND = last_ND / np.linalg.norm(last_ND, axis=1, keepdims=True)
    assert cosine == pytest.approx(((unit_ND @ unit_ND.T).sum() - 16) / (16 * 15), abs=1e-6)
    tf32 = products.PRECISIONS["tf32x3"]
    monkeypatch.setattr(products, "PRECISIONS", {"highest": "highest", "half": HALF, "tf32x3": tf32})
    monkeypatch.setattr(products, "COSINE", 1e-6)
    monkeypatch.setattr(products, "preset", lambda name: CFG)
    result = products.measure(num_inputs=16, seq_len=4)["algorithms"]
    assert result["highest"]["keeps"] and result["highest"]["tflops"] > 0
    # As rounding to eleven bits does, beyond a bound below that.
    assert 1e-6 < result["half"]["cosine"] < 1e-2 and not result["half"]["keeps"]
    assert "not supported" in result["tf32x3"]["refused"]


def test_algorithms_are_known_to_cuda():
    for precision in products.PRECISIONS.values():
        multiply = jax.jit(lambda a, b, precision=precision: jnp.matmul(a, b, precision=precision))
        lowered = jax.export.export(multiply, platforms=["cuda"])(*[jax.ShapeDtypeStruct((8, 8), jnp.float32)] * 2)
        assert "dot_general" in lowered.mlir_module()
