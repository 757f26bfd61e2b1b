"""Transformers as a pair of pure functions: ``init_seed(cfg, seed)`` and ``apply(cfg, params, x)``.

This folder is the only place that imports flax. A Linen module here is one layer; the stack, the
initialisation and the probes are plain functions over a plain dict of arrays.
"""

from bornbiased_jax.models.cache import Cache, empty_cache
from bornbiased_jax.models.initialise import distributions, init, init_seed, parameter_shapes
from bornbiased_jax.models.limits import check_length, check_sequences, check_tokens
from bornbiased_jax.models.parameters import Params, count_parameters, flatten, unflatten
from bornbiased_jax.models.simplified import attn0, mlp0_config
from bornbiased_jax.models.transformer import Outputs, apply, logits_of

__all__ = [
    "Cache",
    "Outputs",
    "Params",
    "apply",
    "attn0",
    "check_length",
    "check_sequences",
    "check_tokens",
    "count_parameters",
    "distributions",
    "empty_cache",
    "flatten",
    "init",
    "init_seed",
    "logits_of",
    "mlp0_config",
    "parameter_shapes",
    "unflatten",
]
