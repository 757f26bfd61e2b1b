"""Check what must hold on any device: key bits, normals within their bound, fused attention as the plain formula."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from benchmarks.recorded import Findings, command
from benchmarks.tables import facts
from bornbiased_jax import keys
from bornbiased_jax.model.attention import fused_attention

KEY_BITS = "1d6d7a7a34bfd7986c8eaa21c16d6c203c411fa8ef506a596752894b958ff214"
ATTENTION_BOUND = 4 * 2.0**-8  # four units of bfloat16's last place, of which rounding the operands takes half a unit


def key_bits() -> Findings:
    """Draw integers and compare them bit for bit."""
    leaf = keys.leaf_key(keys.init_key(42), "blocks/mlp/up/kernel")
    bits = jax.random.bits(jax.random.fold_in(leaf, 3), (1000,), "uint32")
    return {"passed": hashlib.sha256(np.asarray(bits).astype("<u4").tobytes()).hexdigest() == KEY_BITS}


def normals(draws: int) -> Findings:
    """Compare normal draws with the inverse error function in float64, in units of their bound."""
    lowest = np.nextafter(np.float32(-1), np.float32(0))
    samples = np.asarray(jax.random.normal(keys.init_key(7), (draws,), jnp.float32), np.float64)
    uniform = np.asarray(jax.random.uniform(keys.init_key(7), (draws,), jnp.float32, lowest, 1.0), np.float64)
    exact = np.sqrt(2.0) * special.erfinv(uniform)
    worst = float(np.max(np.abs(samples - exact) / keys.normal_error_bound(exact)))
    return {"passed": worst <= 1.0, "largest_error_over_bound": worst}


def attention(length: int) -> Findings:
    """Compare the fused kernel in bfloat16, output and gradients, with the plain formula in float32."""
    rng = np.random.default_rng(0)
    shapes = [(2, length, heads, 64) for heads in (12, 4, 4, 12)]
    arrays = [jnp.asarray(rng.standard_normal(shape, np.float32), jnp.bfloat16) for shape in shapes]
    q_BTHK, k_BTGK, v_BTGK, _ = arrays
    if fused_attention(q_BTHK, k_BTGK, v_BTGK) is None:
        return {"passed": None, "why": "no fused kernel takes these arrays here"}

    def plain(*operands: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(*operands, is_causal=True, implementation="xla")

    with jax.default_matmul_precision("highest"):
        exact = output_and_gradients(plain, *(array.astype(jnp.float32) for array in arrays))
    pairs = zip(output_and_gradients(fused_attention, *arrays), exact, strict=True)
    errors = [float(np.linalg.norm(computed - true) / np.linalg.norm(true)) for computed, true in pairs]
    relative = dict(zip(("output", "dq", "dk", "dv"), errors, strict=True))
    return {"passed": max(errors) <= ATTENTION_BOUND, "bound": ATTENTION_BOUND, "relative_errors": relative}


def output_and_gradients(attend: Callable[..., Any], *arrays: jax.Array) -> list[np.ndarray]:
    """Return attention's output, and the gradients of its product with the last array, in float64."""
    output, backward = jax.vjp(jax.jit(attend), *arrays[:-1])
    return [np.asarray(array, np.float64) for array in (output, *backward(arrays[-1]))]


def measure(draws: int = 3_000_000) -> Findings:
    """Check key bits, normals within their bound, and fused attention as the plain formula.

    Args:
        draws: Normal numbers that are compared.
    """
    checks = {"key_bits": key_bits(), "normals": normals(draws), "attention": attention(2048)}
    passed = all(check["passed"] is not False for check in checks.values())
    return {"passed": passed, "checks": checks, "platform_version": jax.devices()[0].client.platform_version}


tables = functools.partial(
    facts,
    title="Self-test, {provenance[device][kind]}",
    rows={
        "key bits as on a CPU, bit for bit": "{checks[key_bits][passed]}",
        "largest error of a normal, over its bound": "{checks[normals][largest_error_over_bound]:fixed:2}",
        "relative error of fused attention in bfloat16, output and gradients": (
            "{checks[attention][relative_errors]:significant:2} (bound {checks[attention][bound]:significant:2})"
        ),
    },
    note="Errors of attention are against the plain formula in float32.",
)

main = functools.partial(command, measure, precision="float32 and bfloat16")
