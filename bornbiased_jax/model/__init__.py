"""Transformers as a pair of pure functions: ``init_seed(cfg, seed)`` and ``apply(cfg, params, x)``.

A Linen module here is one layer; the stack, initialization and the probes are plain functions over a plain dict of
arrays, whose paths and shapes :mod:`bornbiased_jax.parameters` declares.
"""

from bornbiased_jax.init import init, init_seed, parameter_shapes
from bornbiased_jax.model.layers import Cache, empty_cache
from bornbiased_jax.model.limits import check_length, check_sequences, check_tokens
from bornbiased_jax.model.model import ForwardOptions, Outputs, apply, attn0, logits_of, mlp0_config
from bornbiased_jax.parameters import Params, count_parameters, flatten, unflatten

__all__ = [
    "Cache",
    "ForwardOptions",
    "Outputs",
    "Params",
    "apply",
    "attn0",
    "check_length",
    "check_sequences",
    "check_tokens",
    "count_parameters",
    "empty_cache",
    "flatten",
    "init",
    "init_seed",
    "logits_of",
    "mlp0_config",
    "parameter_shapes",
    "unflatten",
]
