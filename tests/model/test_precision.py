"""bfloat16: softmax, norms and logits stay float32, read from the program itself, where no tolerance hides it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.config import preset
from bornbiased_jax.init import parameter_shapes
from bornbiased_jax.model import ForwardOptions, apply
from bornbiased_jax.model.loss import loss_sum

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
    found = list(operations(jax.make_jaxpr(function)(*arguments).jaxpr))
    names = {row.primitive.name for row in found}
    narrow = {row.primitive.name for row in found if any(var.aval.dtype == jnp.bfloat16 for var in row.invars)}
    products = [row.outvars[0].aval for row in found if row.primitive.name == "dot_general"]
    logits = [aval.dtype for aval in products if 64 in aval.shape]
    return names, narrow, logits


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny", "qwen3-tiny", "olmo2-tiny"])
def test_forward_keeps_float32_where_it_matters(name):
    cfg = preset(name, **SIZES)
    forward = functools.partial(apply, cfg, options=ForwardOptions(dtype=jnp.bfloat16))
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
