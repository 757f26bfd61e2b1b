"""A linear map whose kernel is [in, out]."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp


class Linear(nn.Module):
    """y = x W + b with W [in, out]; computed in the input's dtype at the given precision.

    Where the parameters hold the factors of a low-rank adapter, ``lora_in`` [in, r] and ``lora_out`` [r, out] (see
    :mod:`bornbiased_jax.model.adapters`), y also has (x ``lora_in``) ``lora_out``. No model is born with them.
    """

    features: int
    use_bias: bool = False
    precision: Any = "highest"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel_IO = self.param("kernel", nn.initializers.zeros, (x.shape[-1], self.features))
        # Rows in one axis: the kernel's gradient then contracts one axis, which needs no transposed copy of x.
        rows_NI = x.reshape(-1, x.shape[-1])
        y_NO = jax.lax.dot_general(
            rows_NI, kernel_IO.astype(x.dtype), (((1,), (0,)), ((), ())), precision=self.precision
        )
        if self.has_variable("params", "lora_in"):
            lora_in: Any = self.get_variable("params", "lora_in")
            lora_out: Any = self.get_variable("params", "lora_out")
            low_NR = jnp.matmul(rows_NI, lora_in.astype(x.dtype), precision=self.precision)
            y_NO = y_NO + jnp.matmul(low_NR, lora_out.astype(x.dtype), precision=self.precision)
        y = y_NO.reshape(*x.shape[:-1], self.features)
        if self.use_bias:
            bias_O = self.param("bias", nn.initializers.zeros, (self.features,))
            y = y + jnp.broadcast_to(bias_O.astype(y.dtype), y.shape)
        return y
