"""From a key to the initial weights of a model: a distribution for each group of parameters, and the draw."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from bornbiased_jax import keys
from bornbiased_jax.config import Init, ModelConfig
from bornbiased_jax.parameters import Group, Parameter, Params, parameter_table, unflatten

STD = 0.02

Exchangeable = Literal["coordinates", "units", "heads", "vocabulary"]
EXCHANGEABLE: Mapping[Init, frozenset[Exchangeable]] = {
    init: frozenset(get_args(Exchangeable)) for init in ("gpt2-scaled", "normal-0.02")
}
"""The labels that each scheme leaves exchangeable: permuted, initial weights are as likely as they were.

Independent draws leave all. Neurons in mirrored pairs would leave pairs of neurons alone, and an orthogonal matrix
whose signs are not drawn, or one that resembles the identity, nothing.
"""


class Distribution(NamedTuple):
    """How the entries of a parameter are drawn: all equal to a constant, or N(0, std²)."""

    constant: float | None
    std: float


# Norm scales start at 1; biases, extra logits and the memory of Prefix-Tuning+ at 0.
_CONSTANT: Mapping[Group, float] = {"norm": 1.0, "bias": 0.0, "sink_logit": 0.0, "prefix_memory": 0.0}
# Matrices that write to the residual stream.
_WRITERS: frozenset[Group] = frozenset(("output", "down"))


def distribution(cfg: ModelConfig, parameter: Parameter) -> Distribution:
    """Return the distribution of a parameter at initialization.

    ================================  ==============================  ================
    group                             ``gpt2-scaled`` (Appendix B.1)  ``normal-0.02``
    ================================  ==============================  ================
    embedding, positions              N(0, 0.02²)                     N(0, 0.02²)
    query, key, value, up, gate       N(0, 0.02²)                     N(0, 0.02²)
    output, down                      N(0, (0.02/√(2L))²)             N(0, 0.02²)
    head                              N(0, 0.02²)                     N(0, 0.02²)
    output_gate, value_gate, prefix   N(0, 0.02²)                     N(0, 0.02²)
    norm                              1                               1
    bias, sink_logit, prefix_memory   0                               0
    ================================  ==============================  ================

    L is the number of layers. ``normal-0.02`` is what ``transformers`` does for LLaMA.
    """
    if parameter.group in _CONSTANT:
        return Distribution(_CONSTANT[parameter.group], 0.0)
    is_scaled = cfg.init == "gpt2-scaled" and parameter.group in _WRITERS
    return Distribution(None, STD / math.sqrt(2 * cfg.num_layers) if is_scaled else STD)


def parameter_shapes(cfg: ModelConfig) -> Params:
    """Return the parameter tree as ``jax.ShapeDtypeStruct`` leaves, without drawing anything."""
    table = parameter_table(cfg).items()
    return unflatten({path: jax.ShapeDtypeStruct(row.shape, jnp.float32) for path, row in table})


FIXABLE = ("embed/", "positions/", "head/")


def init(cfg: ModelConfig, *, key: jax.Array, fixed_key: jax.Array | None = None) -> Params:
    """Draw the initial weights of a model: a pure function of the configuration and the key.

    Args:
        cfg: the architecture.
        key: typed threefry2x32; of a seed, :func:`init_seed` makes it.
        fixed_key: when given, the embeddings and the head come from this key, so that models of
            different seeds share them (Appendix B.2).

    Returns:
        A nested dict of float32 arrays; parameters of the blocks are stacked over layers [L, …]. Equal
        keys give bitwise equal weights under eager, jit, vmap, scan and any number of devices.

    >>> from bornbiased_jax import keys
    >>> from bornbiased_jax.config import preset
    >>> cfg = preset("gpt2-tiny", num_layers=2, d_model=16, d_ff=32, vocab_size=64)
    >>> params = init(cfg, key=keys.init_key(42))
    >>> params["blocks"]["mlp"]["up"]["kernel"].shape
    (2, 16, 32)
    """
    flat = {}
    for path, parameter in parameter_table(cfg).items():
        constant, std = distribution(cfg, parameter)
        if constant is not None:
            flat[path] = jnp.full(parameter.shape, constant, jnp.float32)
            continue
        source = fixed_key if fixed_key is not None and path.startswith(FIXABLE) else key
        leaf_key = keys.leaf_key(source, path)
        if parameter.is_stacked:
            flat[path] = keys.stacked_normal(leaf_key, cfg.num_layers, parameter.block_shape, std)
        else:
            flat[path] = keys.normal(leaf_key, parameter.shape, std)
    return unflatten(flat)


def init_seed(cfg: ModelConfig, seed: int | jax.Array, *, fixed_key: jax.Array | None = None) -> Params:
    """Draw the initial weights of a seed: the one way from a seed to parameters.

    Args:
        cfg: the architecture.
        seed: 0 to 2³² − 1; may be traced (uint32), so that hundreds of seeds can be vmapped.
        fixed_key: as in :func:`init`.

    Returns:
        What :func:`init` returns.

    Raises:
        InputError: the seed is out of range.

    >>> import jax, numpy as np
    >>> from bornbiased_jax.config import preset
    >>> cfg = preset("gpt2-tiny", num_layers=2, d_model=16, d_ff=32, vocab_size=64)
    >>> init_seed(cfg, 42)["embed"]["embedding"].shape
    (64, 16)
    >>> many = jax.vmap(lambda seed: init_seed(cfg, seed))(np.arange(8, dtype=np.uint32))
    >>> many["embed"]["embedding"].shape
    (8, 64, 16)
    """
    return init(cfg, key=keys.init_key(seed), fixed_key=fixed_key)
