"""Do two models compute the same? Logits on a few probe ids, one model after the other, block by block."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import hardware
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.model.model import BlockProgram, enter, final_norm, head_path, logits_of
from bornbiased_jax.parameters import Params, parameter_table, unflatten

# Few ids suffice: logits of unrelated models agree nowhere.
_SEQUENCES, _LENGTH = 4, 8
SAME_LOGITS = 1e-3
"""Logits agree up to this part of their standard deviation: what float32 leaves of a rotated copy."""
# Logits that vary less than this part of their size do not depend on the ids.
_CONSTANT = 1e-5
# Bytes a number takes at worst: as it is read, and a copy of it.
_BYTES = 8


def same_logits(base: Checkpoint, suspect: Checkpoint) -> bool | None:
    """Return whether two models give the same logits on random ids, up to a constant at each position.

    Returns:
        None where that says nothing: other vocabularies, two births (their seeds tell), logits that do not vary over
        ids (as with a head of zeros), or a model that does not fit in memory.
    """
    if base.cfg.vocab_size != suspect.cfg.vocab_size or (base.is_initial and suspect.is_initial):
        return None
    free = hardware.available_memory()
    if free is not None and max(_memory(reader) for reader in (base, suspect)) > free:
        return None
    apart = logits_apart(base, suspect)
    return None if apart is None else apart <= SAME_LOGITS


def logits_apart(base: Checkpoint, suspect: Checkpoint) -> float | None:
    """Return the largest difference of two models' logits on random ids, in standard deviations of the base's.

    Args:
        base, suspect: the models, of one vocabulary.

    Returns:
        Infinity where the logits of one model alone vary over ids; NaN where some overflow float32; None where
        neither's vary, so that they say nothing.
    """
    length = min(_LENGTH, base.cfg.max_seq_len, suspect.cfg.max_seq_len)
    ids_ST = np.random.default_rng(0).integers(0, base.cfg.vocab_size, (_SEQUENCES, length), dtype=np.int32)
    base_PV, suspect_PV = probe_logits(base, ids_ST), probe_logits(suspect, ids_ST)
    if not (np.isfinite(base_PV).all() and np.isfinite(suspect_PV).all()):
        return math.nan
    varying = _vary(base_PV), _vary(suspect_PV)
    if not all(varying):
        return math.inf if any(varying) else None
    return float(np.abs(base_PV - suspect_PV).max() / base_PV.std())


def probe_logits(reader: Checkpoint, ids_ST: np.ndarray) -> np.ndarray:
    """Compute logits less their mean over the vocabulary, of every position: [S · T, V].

    One block is in memory at a time, and the embedding or the head; of a run all blocks.
    """
    cfg = reader.cfg
    table = parameter_table(cfg)
    positions_TD = reader.read("positions/embedding")[: ids_ST.shape[1]] if cfg.positions == "learned" else None
    stream_STD: np.ndarray | jax.Array = enter(cfg, reader.read("embed/embedding")[ids_ST], positions_TD)
    stacked = [path for path, row in table.items() if row.is_stacked]
    # A run keeps one parameter of all blocks together: read block by block it would be read once for each.
    held = {path: [reader.read(path, layer) for layer in range(cfg.num_layers)] for path in stacked if _is_run(reader)}
    for layer in range(cfg.num_layers):
        block = {path: held[path][layer] if path in held else reader.read(path, layer) for path in stacked}
        weights = unflatten({path.removeprefix("blocks/"): leaf for path, leaf in block.items()})
        stream_STD = _next_stream(cfg, weights, stream_STD, np.int32(layer))
    outside = [path for path in table if path.startswith("final_norm/")] + [head_path(cfg)]
    logits_STV = _logits(cfg, unflatten({path: reader.read(path) for path in outside}), stream_STD)
    logits_PV: np.ndarray = np.asarray(logits_STV).reshape(-1, cfg.vocab_size)
    return logits_PV - logits_PV.mean(axis=1, keepdims=True)


@functools.partial(jax.jit, static_argnums=0)
def _next_stream(cfg: ModelConfig, weights: Params, stream_STD: jax.Array, layer: jax.Array) -> jax.Array:
    """Apply one block to the residual stream."""
    positions_T = jnp.arange(stream_STD.shape[1], dtype=jnp.int32)
    return BlockProgram(cfg)(weights, stream_STD, positions_T, layer)[0]


@functools.partial(jax.jit, static_argnums=0)
def _logits(cfg: ModelConfig, outside: Params, stream_STD: jax.Array) -> jax.Array:
    """Apply the final norm and the head."""
    return logits_of(cfg, outside, final_norm(cfg, outside, stream_STD))


def _memory(reader: Checkpoint) -> int:
    """Estimate the bytes that the logits of a model take at most."""
    table = parameter_table(reader.cfg)
    blocks = sum(math.prod(row.shape) for row in table.values() if row.is_stacked)
    outside = max(math.prod(row.shape) for row in table.values() if not row.is_stacked)
    return _BYTES * (outside + (blocks if _is_run(reader) else blocks // reader.cfg.num_layers))


def _is_run(reader: Checkpoint) -> bool:
    return reader.kind == "run"


def _vary(logits_PV: np.ndarray) -> bool:
    return bool(logits_PV.std(axis=0).max() > _CONSTANT * max(float(np.abs(logits_PV).max()), 1e-30))
