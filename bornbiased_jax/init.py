"""From a key to the initial weights of a model: a distribution for each group of parameters, and the draw."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from bornbiased_jax import keys
from bornbiased_jax.config import ModelConfig, check_config
from bornbiased_jax.errors import InputError
from bornbiased_jax.parameters import Parameter, Params, parameter_table, unflatten
from bornbiased_jax.schemes import CUTS, Dimensions, Distribution, DistributionKind, rules_of, scaled


def distribution(cfg: ModelConfig, parameter: Parameter) -> Distribution:
    """Return the distribution of a parameter at initialization, with the scale of each layer.

    Of ``gpt2-scaled`` (Appendix B.1) and ``normal-0.02`` (what ``transformers`` does for LLaMA):

    ================================  ==============================  ================
    group                             ``gpt2-scaled``                 ``normal-0.02``
    ================================  ==============================  ================
    embedding, positions              N(0, 0.02²)                     N(0, 0.02²)
    query, key, value, up, gate       N(0, 0.02²)                     N(0, 0.02²)
    output, down                      N(0, (0.02/√(2L))²)             N(0, 0.02²)
    head                              N(0, 0.02²)                     N(0, 0.02²)
    output_gate, value_gate, prefix   N(0, 0.02²)                     N(0, 0.02²)
    norm                              1                               1
    bias, sink_logit, prefix_memory   0                               0
    ================================  ==============================  ================

    Raises:
        InputError: neurons in pairs, of an odd number of them.
    """
    rule = rules_of(cfg.init, cfg.init_groups)[parameter.group]
    neuron_axis = parameter.neuron_axis
    if rule.structure == "mirrored" and neuron_axis is not None:
        width = parameter.shape[neuron_axis]
        if width % 2:
            name = "shared_expert_width" if parameter.position_of("hidden") is None else "d_ff"
            raise InputError(f"mirrored neurons come in pairs, but {name}={width} is odd: make it even")
        # Opposite arguments of φ with opposite weights behind it leave φ's odd part; next to a gate "up" is linear.
        if parameter.group == "up" and cfg.gated_mlp:
            rule = rule._replace(structure="repeated")
    # Fan-in and fan-out of a matrix [in, out] are its last two axes; those of a table are V and D.
    fan_in, fan_out = (1, *parameter.block_shape)[-2:]
    layers = range(1, cfg.num_layers + 1) if parameter.is_stacked else (cfg.num_layers,)
    dist = scaled(rule, [Dimensions(fan_in, fan_out, cfg.d_model, cfg.num_layers, layer) for layer in layers])
    in_pairs = dist.structure in ("mirrored", "repeated")
    return dist._replace(neuron_axis=neuron_axis) if in_pairs else dist


def parameter_shapes(cfg: ModelConfig) -> Params:
    """Return the parameter tree as ``jax.ShapeDtypeStruct`` leaves, without drawing anything."""
    table = parameter_table(cfg).items()
    return unflatten({path: jax.ShapeDtypeStruct(row.shape, jnp.float32) for path, row in table})


FIXABLE = ("embed/", "positions/", "head/")


def draw_unit(key: jax.Array, shape: tuple[int, ...], kind: DistributionKind) -> jax.Array:
    """Draw the entries of one layer before they are scaled, without a structure."""
    if kind == "normal":
        return keys.normal(key, shape, 1.0)
    if kind == "uniform":
        return keys.uniform(key, shape)
    if kind == "orthogonal":
        return _orthogonal(key, shape)
    return keys.truncated_normal(key, shape, CUTS[kind])


def _orthogonal(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draw Haar-distributed orthonormal rows or columns, scaled so that entries have variance 1; experts apart."""
    *outer, rows, columns = shape
    tall = (*outer, max(rows, columns), min(rows, columns))
    # QR of a Gaussian matrix is Haar's once the diagonal of R is made positive.
    factor = jax.custom_batching.sequential_vmap(_haar_basis)
    for _ in outer:
        factor = jax.vmap(factor)
    basis = factor(keys.normal(key, tall, 1.0))
    # The barriers keep XLA from joining this factor, or a mean's, with the scale: eager and jitted bits are equal.
    scaled = jax.lax.optimization_barrier(basis * jnp.sqrt(jnp.float32(max(rows, columns))))
    return scaled if rows >= columns else jnp.swapaxes(scaled, -1, -2)


def _haar_basis(matrix: jax.Array) -> jax.Array:
    """Return the Q of a matrix's QR with positive diagonal of R, of a batch of matrices one after the other.

    In float64: a square Gaussian matrix is so badly conditioned that float32's Q of 768 columns is wrong by 1e-4 of
    an entry, and differently on every machine.

    On a CPU a batch of QRs waits for threads of the pool that it runs on itself; as many of them at once as the pool
    has threads wait forever (jaxlib 0.10.2).
    """
    with jax.enable_x64(True):
        basis, triangle = jnp.linalg.qr(matrix.astype(jnp.float64))
        signs = jnp.where(jnp.diagonal(triangle) < 0, -1.0, 1.0)
        return (basis * signs[None, :]).astype(jnp.float32)


def _mean(unit: jax.Array, axis: int) -> jax.Array:
    """Compute the mean over an axis, which stays, to 2⁻²⁰, with the same bits in every program.

    Halves are added, in an order that no compiler chooses, and the mean is rounded to a multiple of 2⁻²⁰: what
    subtracts it then gives the same bits with a fused multiply-add as without.
    """
    total = jnp.moveaxis(unit, axis, 0)
    count = total.shape[0]
    while total.shape[0] > 1:
        half = total.shape[0] // 2
        total = jnp.concatenate([total[:half] + total[half : 2 * half], total[2 * half :]])
    steps = jnp.round(jnp.moveaxis(total, 0, axis) * jnp.float32(2.0**20 / count))
    mean: jax.Array = steps * jnp.float32(2.0**-20)
    return mean


def _structured(unit: jax.Array, dist: Distribution) -> jax.Array:
    """Impose a structure on a drawn matrix [..., in, out]."""
    # With one bit less no compiler can join the draw's last product with a sum: all programs give the same bits.
    if dist.structure in ("balanced", "centered"):
        unit = jax.lax.reduce_precision(unit, exponent_bits=8, mantissa_bits=22)
    if dist.structure == "balanced":
        return unit - _mean(unit, -2)
    if dist.structure == "centered":
        return unit - _mean(unit, -1)
    if dist.neuron_axis is None:
        return unit
    # The second half of the neurons is the first, with the other sign or the same.
    first, _ = jnp.split(unit, 2, axis=dist.neuron_axis)
    return jnp.concatenate([first, -first if dist.structure == "mirrored" else first], axis=dist.neuron_axis)


def draw(key: jax.Array, shape: tuple[int, ...], dist: Distribution, layer: jax.Array | int | None = None) -> jax.Array:
    """Draw a parameter of one block, or one outside blocks; bitwise that of :func:`init`.

    Args:
        key: of the parameter's path, see :func:`bornbiased_jax.keys.leaf_key`.
        shape: without the axis of blocks.
        dist: its distribution.
        layer: the block, counted from 0; None for a parameter outside blocks.
    """
    if dist.constant is not None:
        return jnp.full(shape, dist.constant, jnp.float32)
    if layer is not None:
        key = jax.random.fold_in(key, layer)
    if dist.is_plain_normal and len(dist.stds) == 1:
        return keys.normal(key, shape, dist.std)
    unit: jax.Array = jax.lax.optimization_barrier(_structured(draw_unit(key, shape, dist.kind), dist))
    stds = jnp.asarray(dist.stds, jnp.float32)
    return unit * (stds[0] if layer is None or len(dist.stds) == 1 else stds[layer])


@functools.partial(jax.jit, static_argnames=("shape", "dist", "num_layers"))
def draw_blocks(key: jax.Array, shape: tuple[int, ...], dist: Distribution, num_layers: int) -> jax.Array:
    """Draw a parameter of all blocks; layer l depends on (key, l) alone, so depth changes no earlier layer.

    Of normals one layer follows the other, so that the random bits of one alone lie next to the weights; other kinds
    are drawn together, since their last bits depend on the program that they are drawn in.

    Args:
        key: of the parameter's path.
        shape: without the axis of blocks.
        dist: its distribution.
        num_layers: the size of that axis.
    """
    of_layer, layers_L = functools.partial(draw, key, shape, dist), jnp.arange(num_layers, dtype=jnp.uint32)
    is_safe = dist.is_plain_normal and len(dist.stds) == 1
    drawn: jax.Array = jax.lax.map(of_layer, layers_L) if is_safe else jax.vmap(of_layer)(layers_L)
    return drawn


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
        dist = distribution(cfg, parameter)
        if dist.constant is not None:
            flat[path] = jnp.full(parameter.shape, dist.constant, jnp.float32)
            continue
        source = fixed_key if fixed_key is not None and path.startswith(FIXABLE) else key
        leaf_key = keys.leaf_key(source, path)
        if parameter.is_stacked:
            flat[path] = draw_blocks(leaf_key, parameter.block_shape, dist, cfg.num_layers)
        else:
            flat[path] = draw(leaf_key, parameter.shape, dist)
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
    return init(check_config(cfg), key=keys.init_key(seed), fixed_key=fixed_key)
