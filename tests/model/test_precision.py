"""Float32 products by name: three shorter products change little, and a device that has none is named."""

import jax
import numpy as np
import pytest

from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments import runner
from bornbiased_jax.experiments.runner import Computing, reproduce
from bornbiased_jax.init import init_seed, parameter_shapes
from bornbiased_jax.io import read_json
from bornbiased_jax.lineage.outputs import OutputOptions, last_outputs
from bornbiased_jax.model.layers import PRECISIONS, precision_named
from bornbiased_jax.probes import observe
from bornbiased_jax.probes.inputs import random_tokens
from bornbiased_jax.probes.run import ProbeOptions, probe
from bornbiased_jax.probes.subject import untrained
from tests.tiers import nightly_except

CFG = preset("gpt2-tiny", num_layers=2, d_model=32, num_heads=2, d_ff=64, vocab_size=64)


def test_every_product_of_a_probe_is_made_by_the_algorithm_of_that_name():
    params, tokens_BT = parameter_shapes(CFG), random_tokens(2, 4, CFG.vocab_size).batch(0, 2)

    def text(precision):
        step = lambda params, x: observe.observe(CFG, params, x, precision=precision)  # noqa: E731
        return str(jax.make_jaxpr(step)(params, tokens_BT))

    by_three, plain = text(precision_named("bf16x3")), text(precision_named("highest"))
    num_products = plain.count("dot_general[")
    assert num_products > 4 and by_three.count("dot_general[") == num_products
    assert by_three.count("precision=BF16_BF16_F32_X3") == num_products
    assert "BF16_BF16_F32_X3" not in plain


@pytest.fixture
def half(monkeypatch):
    """The one algorithm that a CPU computes otherwise: products of 11 bits."""
    monkeypatch.setitem(PRECISIONS, "half", jax.lax.DotAlgorithmPreset.F16_F16_F16)


@pytest.mark.slow
def test_the_precision_of_a_probe_reaches_its_products_and_its_store(half, tmp_path):
    inputs = random_tokens(64, 8, CFG.vocab_size)
    exact, *others = (
        next(probe(untrained(CFG), [42], inputs, ProbeOptions(precision=name), resume=resume))
        for name, resume in (("highest", tmp_path), ("half", None), ("half", tmp_path))
    )
    for other in others:
        curves = [np.asarray(row["contraction"]["inter_cosine_by_layer"]) for row in (exact, other)]
        assert 1e-6 < np.abs(curves[0] - curves[1]).max() < 1e-2
    assert len(list(tmp_path.rglob("seed42-*.npz"))) == 2


@pytest.mark.slow
def test_the_precision_of_outputs_reaches_their_products(half):
    params, inputs = init_seed(CFG, 42), random_tokens(16, 8, CFG.vocab_size)
    exact_ND, half_ND = (
        last_outputs(CFG, params, inputs, OutputOptions(precision=name)) for name in ("highest", "half")
    )
    assert 1e-5 < np.abs(exact_ND - half_ND).max() < 1e-1


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly_except(["finding2", "table4a_llama_16"], "finding2"))
def test_the_precision_of_an_experiment_reaches_its_products_and_its_record(half, name, tmp_path):
    """The record says it, and is made again for another."""
    results = []
    for precision, ran in (("half", True), ("half", False), ("highest", True)):
        outcome = reproduce([name], "smoke", tmp_path, quiet=True, computing=Computing(precision=precision))
        assert bool(outcome.done) is ran
        record = read_json(runner.record_path(tmp_path, name))
        assert record["provenance"]["precision"] == f"float32 {precision}"
        group = record["result"]["groups"][0]
        results.append(group["records"] if name == "finding2" else group["pairs"])
    assert results[0] == results[1] != results[2]


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a GPU has them")
def test_a_device_without_such_products_is_named():
    with pytest.raises(InputError, match="cpu has no float32 products by tf32x3: leave --precision out"):
        precision_named("tf32x3")
    with pytest.raises(InputError, match="unknown precision 'double': choose highest, tf32x3, bf16x3"):
        precision_named("double")
    assert precision_named("highest") == PRECISIONS["highest"] == "highest"


def test_an_experiment_that_is_defined_for_exact_products_refuses_others(tmp_path):
    with pytest.raises(InputError, match="figure2 is defined for precision highest: leave --precision out"):
        reproduce(["figure2"], "smoke", tmp_path, quiet=True, computing=Computing(precision="bf16x3"))
