"""The former name of :mod:`bornbiased_jax.model`, kept for code that imports it."""

from bornbiased_jax.model import apply, init_seed

__all__ = ["apply", "init_seed"]
