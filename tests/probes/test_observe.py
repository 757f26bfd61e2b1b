"""One forward pass for every probe: its products are of the precision that was asked for."""

import re

import jax
import jax.numpy as jnp

from bornbiased_jax.config import preset
from bornbiased_jax.init import parameter_shapes
from bornbiased_jax.probes.observe import observe


def test_every_product_of_a_probe_is_of_the_algorithm():
    """Of the lowered program: those of the blocks, in a loop, and the head's."""
    cfg = preset("llama-tiny", num_layers=2, d_model=32, d_ff=48, num_heads=2, vocab_size=64)
    ids = jax.ShapeDtypeStruct((3, 8), jnp.int32)

    def program(precision):
        return jax.jit(lambda params, x: observe(cfg, params, x, precision=precision)).lower(parameter_shapes(cfg), ids)

    products_of = re.findall(r"dot_general.*", program(jax.lax.DotAlgorithmPreset.F16_F16_F16).as_text())
    assert len(products_of) > 8 and all("accumulation_type = f16" in line for line in products_of)
    assert all("HIGHEST" in line for line in re.findall(r"dot_general.*", program("highest").as_text()))
