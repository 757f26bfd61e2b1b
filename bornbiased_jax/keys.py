"""The seed is the identity: from a seed to the key of every weight, and to the weight itself.

A weight's key depends on the seed, the weight's path in the parameter tree and its layer index, and
on nothing else: reordering or adding parameters changes no other weight. Seeds for initialization,
inputs, data order and dropout are separate streams of separate integers.
"""

from __future__ import annotations

import hashlib
import math

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.schema import Seed, within

PRNG_IMPL = "threefry2x32"
MAX_SEED = 2**32 - 1
SMALL = 1 << 18
"""Entries of a matrix that no mesh needs to cut while it is drawn."""


def stable_hash(text: str) -> int:
    """Compute a 32-bit hash of a text that never changes between processes, versions or machines."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def check_seed(seed: int | jax.Array | np.ndarray) -> int:
    """Return the seed, if it is an integer from 0 to 2³² − 1, or an array of one such.

    Raises:
        InputError: it is not.
    """
    if isinstance(seed, jax.Array | np.ndarray) and seed.ndim == 0:
        seed = seed.item()
    return int(within(Seed, seed, "seed"))


def stream_key(seed: int | jax.Array, stream: str) -> jax.Array:
    """Return the key of one stream of randomness ("init", "inputs", "data", "dropout") of one seed.

    ``seed`` may be traced (uint32), so that hundreds of seeds can be vmapped; no check sees such a one.

    Raises:
        InputError: the seed is out of range.
    """
    number = seed if isinstance(seed, jax.core.Tracer) else np.uint32(check_seed(seed))
    # Not jax.random.key, which adds jax_random_seed_offset to the seed; the two words are those that it makes of one.
    words = jnp.stack([jnp.zeros((), jnp.uint32), jnp.asarray(number).astype(jnp.uint32)])
    return jax.random.fold_in(jax.random.wrap_key_data(words, impl=PRNG_IMPL), stable_hash(stream))


def init_key(seed: int | jax.Array) -> jax.Array:
    """Return the key from which the initial weights of this seed are drawn."""
    return stream_key(seed, "init")


def leaf_key(key: jax.Array, path: str) -> jax.Array:
    """Return the key of the parameter at ``path`` (names joined by "/")."""
    return jax.random.fold_in(key, stable_hash(path))


def bits(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draw uniform 32-bit words (uint32)."""
    with jax.threefry_partitionable(True):
        return jax.random.bits(key, shape, jnp.uint32)


def integers(key: jax.Array, shape: tuple[int, ...], stop: int) -> jax.Array:
    """Draw uniform integers from 0 to ``stop`` − 1 (int32)."""
    with jax.threefry_partitionable(True):
        return jax.random.randint(key, shape, 0, stop, jnp.int32)


def normal(key: jax.Array, shape: tuple[int, ...], std: float) -> jax.Array:
    """Draw float32 normals with mean 0 and the given standard deviation.

    The barrier keeps XLA from folding ``std`` into the constants of the inverse error function,
    which would change the last bit between eager and jitted initialization. A small matrix is drawn as a
    vector: the same bits, in half the compilation. A large one is not, because a vector that becomes a matrix
    cannot be drawn shard by shard.
    """
    size = math.prod(shape)
    draw_shape = (size,) if size <= SMALL else shape
    with jax.threefry_partitionable(True):
        unit = jax.lax.optimization_barrier(jax.random.normal(key, draw_shape, jnp.float32))
    scaled: jax.Array = unit.reshape(shape) * jnp.float32(std)
    return scaled


def uniform(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draw float32 uniforms of mean 0 and variance 1, on (−√3, √3)."""
    with jax.threefry_partitionable(True):
        unit = jax.lax.optimization_barrier(jax.random.uniform(key, shape, jnp.float32, -1.0, 1.0))
    scaled: jax.Array = unit * jnp.float32(math.sqrt(3.0))
    return scaled


def truncated_normal(key: jax.Array, shape: tuple[int, ...], cut: float) -> jax.Array:
    """Draw float32 normals of mean 0 and variance 1 before they are truncated at ±cut.

    As one program, also where the user disables jit: its operations one by one round otherwise.
    """
    with jax.threefry_partitionable(True), jax.disable_jit(False):
        unit: jax.Array = jax.lax.optimization_barrier(jax.random.truncated_normal(key, -cut, cut, shape, jnp.float32))
        return unit


def normal_error_bound(z: np.ndarray) -> np.ndarray:
    """Bound the distance of a float32 unit normal draw from √2·erfinv of its uniform, on any backend or version.

    8 ulp of the value for the inverse error function's polynomial, plus what half a step of the uniform's
    2⁻²³ grid is worth at z, √(π/2)·exp(z²/2)·2⁻²⁴: the rounding of u² inside the function costs that much.
    Two backends therefore agree within twice this bound. On one backend and library version weights
    are bitwise equal.
    """
    z = np.abs(np.asarray(z, np.float64))
    ulp = np.spacing(np.maximum(z, 2.0**-20).astype(np.float32)).astype(np.float64)
    bound: np.ndarray = 8 * ulp + np.sqrt(np.pi / 2) * np.exp(z**2 / 2) * 2.0**-24
    return bound
