"""From a key to the weights of a new model: the distribution of every parameter, and the draw."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from bornbiased_jax import keys
from bornbiased_jax.config import Init, ModelConfig
from bornbiased_jax.models.block import Block
from bornbiased_jax.models.norm import Norm
from bornbiased_jax.models.parameters import Params, flatten, unflatten

STD = 0.02

Exchangeable = Literal["coordinates", "units", "heads", "vocabulary"]
EXCHANGEABLE: Mapping[Init, frozenset[Exchangeable]] = {
    init: frozenset(get_args(Exchangeable)) for init in ("gpt2-scaled", "normal-0.02")
}
"""The labels that each initialisation leaves exchangeable: renumbered, a birth is as likely as it was.

Independent draws leave all. Neurons in mirrored pairs would leave pairs of units alone, and an orthogonal matrix whose
signs are not drawn, or one that resembles the identity, nothing.
"""


class Distribution(NamedTuple):
    """How one parameter is drawn: its full shape, whether its first axis is the layer, a constant or N(0, std²)."""

    shape: tuple[int, ...]
    stacked: bool
    constant: float | None
    std: float


@functools.lru_cache(maxsize=256)
def distributions(cfg: ModelConfig) -> dict[str, Distribution]:
    """The distribution of every parameter, by path.

    ================================  ==============================  ================
    parameter                         ``gpt2-scaled`` (Appendix B.1)  ``normal-0.02``
    ================================  ==============================  ================
    token and position embedding      N(0, 0.02²)                     N(0, 0.02²)
    query, key, value, up, gate       N(0, 0.02²)                     N(0, 0.02²)
    attention output, MLP down        N(0, (0.02/√(2L))²)             N(0, 0.02²)
    language-model head (untied)      N(0, 0.02²)                     N(0, 0.02²)
    attention's output, value gate    N(0, 0.02²)                     N(0, 0.02²)
    keys and values of a prefix       N(0, 0.02²)                     N(0, 0.02²)
    norm scales                       1                               1
    biases, extra attention logits    0                               0
    memory of Prefix-Tuning+          0                               0
    ================================  ==============================  ================

    L is the number of layers. ``normal-0.02`` is what ``transformers`` does for LLaMA.

    Raises:
        LookupError: a layer has a parameter that is not in this table.
    """
    x_BTD = jax.ShapeDtypeStruct((1, 2, cfg.d_model), jnp.float32)
    positions_T = jax.ShapeDtypeStruct((2,), jnp.int32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    block = jax.eval_shape(Block(cfg).init, key, x_BTD, positions_T).get("params", {})
    final = jax.eval_shape(Norm(cfg.norm, cfg.norm_eps).init, key, x_BTD).get("params", {})
    shapes = {f"blocks/{path}": (cfg.num_layers, *leaf.shape) for path, leaf in flatten(block).items()}
    shapes |= {f"final_norm/{path}": leaf.shape for path, leaf in flatten(final).items()}
    shapes["embed/embedding"] = (cfg.vocab_size, cfg.d_model)
    if cfg.positions == "learned":
        shapes["positions/embedding"] = (cfg.max_seq_len, cfg.d_model)
    if not cfg.tie_embeddings:
        shapes["head/kernel"] = (cfg.d_model, cfg.vocab_size)
    return {path: distribution(cfg, path, shape) for path, shape in sorted(shapes.items())}


# Last two names of the path of every parameter that is drawn; kernels of the blocks that write to the residual stream.
_DRAWN = frozenset(
    "embed/embedding positions/embedding head/kernel query/kernel key/kernel value/kernel output/kernel "
    "gate/kernel value_gate/kernel up/kernel down/kernel attention/prefix_key attention/prefix_value".split()
)
_WRITES = frozenset(("output/kernel", "down/kernel"))
_CONSTANT = {"scale": 1.0, "bias": 0.0, "sink_logit": 0.0, "prefix_memory": 0.0}


def distribution(cfg: ModelConfig, path: str, shape: tuple[int, ...]) -> Distribution:
    """The distribution of one parameter.

    Raises:
        LookupError: none is known: a new parameter needs a line here, and in the table of :func:`distributions`.
    """
    stacked = path.startswith("blocks/")
    *_, module, name = path.split("/")
    if name in _CONSTANT:
        return Distribution(shape, stacked, _CONSTANT[name], 0.0)
    if f"{module}/{name}" not in _DRAWN:
        raise LookupError(f"parameter {path} has no distribution: give it one in {__name__}")
    scaled = cfg.init == "gpt2-scaled" and f"{module}/{name}" in _WRITES
    return Distribution(shape, stacked, None, STD / math.sqrt(2 * cfg.num_layers) if scaled else STD)


def parameter_shapes(cfg: ModelConfig) -> Params:
    """The parameter tree as ``jax.ShapeDtypeStruct`` leaves, without drawing anything."""
    drawn = distributions(cfg).items()
    return unflatten({path: jax.ShapeDtypeStruct(row.shape, jnp.float32) for path, row in drawn})


FIXABLE = ("embed/", "positions/", "head/")


def init(cfg: ModelConfig, *, key: jax.Array, fixed_key: jax.Array | None = None) -> Params:
    """The weights of a newborn model: a pure function of the configuration and the key.

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
    for path, row in distributions(cfg).items():
        if row.constant is not None:
            flat[path] = jnp.full(row.shape, row.constant, jnp.float32)
            continue
        source = fixed_key if fixed_key is not None and path.startswith(FIXABLE) else key
        leaf = keys.leaf_key(source, path)
        if row.stacked:
            flat[path] = keys.stacked_normal(leaf, row.shape[0], row.shape[1:], row.std)
        else:
            flat[path] = keys.normal(leaf, row.shape, row.std)
    return unflatten(flat)


def init_seed(cfg: ModelConfig, seed: int | jax.Array, *, fixed_key: jax.Array | None = None) -> Params:
    """The weights that a model of this seed is born with: the one way from a seed to parameters.

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
