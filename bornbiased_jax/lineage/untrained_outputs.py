"""Compute outputs of hundreds of untrained models: the population of calibrations and reference nulls."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import keys
from bornbiased_jax import model as models
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.model.memory import check_forward, weights_bytes
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes.inputs import Inputs

# Tokens that one step of the loop over inputs takes of each model, and bytes of outputs in a chunk.
_BATCH_TOKENS = 2048
_CHUNK_BYTES = 128 * 2**20
_MAX_CHUNK = 256


def final_outputs(
    cfg: ModelConfig, seeds: Sequence[int], inputs: Inputs, moments: tuple[float, float] | None = None
) -> Iterator[np.ndarray]:
    """Compute last-position outputs of the final norm of freshly initialized models, in chunks of seeds.

    Each model has its own embedding: independent initializations share nothing but the inputs.

    Args:
        cfg: the architecture.
        seeds: of the initializations.
        inputs: N sequences; vectors are fed to every model in place of its embeddings.
        moments: mean and standard deviation of vectors; those of the initial embedding unless given.

    Yields:
        [S, N, D] float32, in the order of ``seeds``: as many as fit 128 MiB, at most 256.

    Raises:
        InputError: inputs that do not fit the architecture, or a bad seed.
    """
    inputs.check_fits(cfg)
    x = inputs.scaled(inputs.batch(0, inputs.num_inputs), *(moments or (0.0, cfg.embedding_std)))
    seeds_S = np.array([keys.check_seed(seed) for seed in seeds], np.uint32)
    # As many models as fit in a chunk, as many inputs as fit in a batch.
    check_forward(cfg, 1, x.shape[1], also=weights_bytes(cfg) + 2.0 * x.nbytes)
    fitting = int(np.clip(_CHUNK_BYTES // (4 * len(x) * cfg.d_model), 1, _MAX_CHUNK))
    chunk = min(fitting, max(1, len(seeds_S)))
    batch = max(1, min(len(x), _BATCH_TOKENS // x.shape[1]))
    # Equal batches; the padding repeats the first inputs and is cut off again.
    num_batches = -(-len(x) // batch)
    x_CB = jnp.asarray(np.resize(x, (num_batches * batch, *x.shape[1:])).reshape(-1, batch, *x.shape[1:]))
    # One model fills a CPU's cores, and compiles in a third of the time that a vmapped one takes.
    one_by_one = jax.default_backend() == "cpu"
    for start in range(0, len(seeds_S), chunk):
        chunk_S = seeds_S[start : start + chunk]
        if one_by_one:
            out = np.stack([np.asarray(_seed_outputs(cfg, seed, x_CB)) for seed in chunk_S])
        else:
            out = np.asarray(_vmapped_outputs(cfg, jnp.asarray(np.resize(chunk_S, chunk)), x_CB))
        yield out[: len(chunk_S), : len(x)]


@functools.partial(jax.jit, static_argnums=0)
def _seed_outputs(cfg: ModelConfig, seed: jax.Array, x_CB: jax.Array) -> jax.Array:
    params = models.init_seed(cfg, seed)
    outputs_CBD: jax.Array = jax.lax.map(functools.partial(_last_outputs, cfg, params), x_CB)
    return outputs_CBD.reshape(-1, cfg.d_model)


@functools.partial(jax.jit, static_argnums=0)
def _vmapped_outputs(cfg: ModelConfig, seeds_S: jax.Array, x_CB: jax.Array) -> jax.Array:
    outputs_SnD: jax.Array = jax.vmap(lambda seed: _seed_outputs(cfg, seed, x_CB))(seeds_S)
    return outputs_SnD


def _last_outputs(cfg: ModelConfig, params: Params, x: jax.Array) -> jax.Array:
    return models.apply(cfg, params, x, positions="last", logits=False).final_BTD[:, 0]
