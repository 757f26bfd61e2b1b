"""The forward pass, compiled once for a configuration and shapes: a bare call compiles each of its operations."""

import jax

from bornbiased_jax import model

apply = jax.jit(model.apply, static_argnums=0, static_argnames=("positions", "logits", "capture"))
