"""What a model computes on a few tokens, its weights read once and block by block."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import hardware
from bornbiased_jax import model as models
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.buffers import reused_memory
from bornbiased_jax.checkpoints.tensors import load_params, read_block
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.model.model import BlockProgram, enter, final_norm, head_path, logits_of
from bornbiased_jax.parameters import Params, parameter_table, unflatten

# Random sequences that two models are run on, and their length: logits of unrelated models agree nowhere.
_SEQUENCES, _LENGTH = 8, 16
# Bytes a number takes at worst: as it is read, and a copy of it.
_BYTES = 8


class ProbeOutputs(NamedTuple):
    """The values that a model computes on tokens, at every position.

    Attributes:
        logits_PV: less their mean over the vocabulary, [S · T, V].
        middle_PD: the residual stream after the block of :func:`middle_block`, [S · T, D].
    """

    logits_PV: np.ndarray
    middle_PD: np.ndarray


# By model, the tokens of its latest pass and what that computed: most of the time is reading, and a page asks again.
_LATEST: WeakKeyDictionary[Checkpoint, tuple[np.ndarray, ProbeOutputs]] = WeakKeyDictionary()


def probe_ids(first: Checkpoint, second: Checkpoint) -> np.ndarray | None:
    """Draw random tokens for two models, [S, T]; None where vocabularies differ in size or memory is small."""
    free = hardware.available_memory()
    if first.cfg.vocab_size != second.cfg.vocab_size:
        return None
    if free is not None and max(logits_memory(first), logits_memory(second)) > free:
        return None
    length = min(_LENGTH, first.cfg.max_seq_len, second.cfg.max_seq_len)
    return np.random.default_rng(0).integers(0, first.cfg.vocab_size, (_SEQUENCES, length), dtype=np.int32)


def probe_outputs(
    checkpoint: Checkpoint, ids_ST: np.ndarray, advance: Callable[[], None] = lambda: None
) -> ProbeOutputs:
    """Compute the logits and the hidden states of a model at every position; asked again, return what was computed.

    One block is in memory at a time, and the embedding or the head; of a run, which stores all blocks together, all.
    ``advance`` is called after each block that is read by itself.
    """
    latest = _LATEST.get(checkpoint)
    if latest is not None and np.array_equal(latest[0], ids_ST):
        return latest[1]
    cfg = checkpoint.cfg
    logits_STV: jax.Array | None
    middle_STD: jax.Array | np.ndarray
    if checkpoint.kind == "run":
        output = models.apply(cfg, load_params(checkpoint), jnp.asarray(ids_ST), capture=("residual",))
        logits_STV, middle_STD = output.logits_BTV, output.layers["residual"][middle_block(cfg) - 1]
    else:
        logits_STV, middle_STD = _streamed(cfg, checkpoint.read, ids_ST, advance)
    logits_PV = np.asarray(logits_STV).reshape(-1, cfg.vocab_size)
    centered_PV = logits_PV - logits_PV.mean(axis=1, keepdims=True)
    outputs = ProbeOutputs(centered_PV, np.asarray(middle_STD).reshape(-1, cfg.d_model))
    _LATEST[checkpoint] = ids_ST, outputs
    return outputs


def middle_block(cfg: ModelConfig) -> int:
    """Return the number, from 1, of the block whose output lies in the middle of the depth.

    >>> from bornbiased_jax.config import preset
    >>> [middle_block(preset("llama-tiny", num_layers=count)) for count in (1, 2, 5, 32)]
    [1, 1, 3, 16]
    """
    return (cfg.num_layers + 1) // 2


def _streamed(
    cfg: ModelConfig, read: Callable[..., np.ndarray], ids_ST: np.ndarray, advance: Callable[[], None]
) -> tuple[jax.Array, np.ndarray]:
    """Compute the logits and the residual stream in the middle of the depth, block by block."""
    # Embed, then block by block, each read when its turn comes.
    positions_TD = read("positions/embedding")[: ids_ST.shape[1]] if cfg.positions == "learned" else None
    states_STD = enter(cfg, read("embed/embedding")[ids_ST], positions_TD)
    middle_STD = np.empty(0)
    # Blocks are of one size, and take each other's memory; the next is read once this one is done.
    with reused_memory():
        for layer in range(cfg.num_layers):
            weights = read_block(cfg, read, layer)
            states_STD = jax.block_until_ready(_apply_block(cfg, weights, states_STD, np.int32(layer)))
            del weights
            if layer + 1 == middle_block(cfg):
                middle_STD = np.array(states_STD)
            advance()
    outside = [path for path in parameter_table(cfg) if path.startswith("final_norm/")] + [head_path(cfg)]
    return _apply_head(cfg, unflatten({path: read(path) for path in outside}), states_STD), middle_STD


@functools.partial(jax.jit, static_argnums=0)
def _apply_block(cfg: ModelConfig, weights: Params, states_STD: jax.Array, layer: jax.Array) -> jax.Array:
    positions_T = jnp.arange(states_STD.shape[1], dtype=jnp.int32)
    return BlockProgram(cfg)(weights, states_STD, positions_T, layer)[0]


@functools.partial(jax.jit, static_argnums=0)
def _apply_head(cfg: ModelConfig, params: Params, states_STD: jax.Array) -> jax.Array:
    return logits_of(cfg, params, final_norm(cfg, params, states_STD))


def logits_memory(checkpoint: Checkpoint) -> int:
    """Estimate the bytes that the logits of a model take at most."""
    table = parameter_table(checkpoint.cfg)
    blocks = sum(math.prod(row.shape) for row in table.values() if row.is_stacked)
    outside = max(math.prod(row.shape) for row in table.values() if not row.is_stacked)
    return _BYTES * (outside + (blocks if checkpoint.kind == "run" else blocks // checkpoint.cfg.num_layers))
