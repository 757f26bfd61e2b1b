"""Float32 matrix products by name: how an accelerator multiplies float32 numbers."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.lax import DotAlgorithmPreset, PrecisionLike

from bornbiased_jax.errors import InputError

HIGHEST = "highest"

PRECISIONS: dict[str, PrecisionLike] = {
    HIGHEST: "highest",
    "tf32x3": DotAlgorithmPreset.TF32_TF32_F32_X3,
    "bf16x3": DotAlgorithmPreset.BF16_BF16_F32_X3,
}
"""Name -> the products' algorithm. Those by three products split each number into two shorter ones and leave out the
product of the two small parts: ``python -m benchmarks products`` measures what that changes in a probe."""


@functools.cache
def precision_named(name: str) -> PrecisionLike:
    """Return the algorithm of float32 products of this name.

    Raises:
        InputError: no such name, or the device does not multiply so.

    Example:
        >>> precision_named("highest")
        'highest'
    """
    if name not in PRECISIONS:
        raise InputError(f"unknown precision {name!r}: choose {', '.join(PRECISIONS)}")
    if name == HIGHEST:
        return PRECISIONS[name]
    square = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    try:
        jax.jit(functools.partial(jnp.matmul, precision=PRECISIONS[name])).lower(square, square).compile()
    except (ValueError, NotImplementedError, jax.errors.JaxRuntimeError) as refusal:
        device = jax.local_devices()[0].device_kind
        raise InputError(f"{device} has no float32 products by {name}: leave --precision out") from refusal
    return PRECISIONS[name]
