"""What a model computes on a few tokens, its weights read once and block by block.

Most of the time is reading: a pass also takes tokens that are expected to be asked for, and keeps their outputs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import model as models
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.buffers import reused_memory
from bornbiased_jax.checkpoints.tensors import load_params, read_block
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.model.model import BlockProgram, enter, final_norm, head_path, logits_of
from bornbiased_jax.parameters import Params, parameter_table, unflatten

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


# By model, tokens that the next pass over it takes too, or what such a pass left: most of its time is reading.
_Tokens = tuple[tuple[int, ...], bytes]
_EXPECTED: WeakKeyDictionary[Checkpoint, dict[_Tokens, np.ndarray | ProbeOutputs]] = WeakKeyDictionary()


def expect_logits(checkpoint: Checkpoint, ids_ST: np.ndarray) -> None:
    """Say that outputs on these tokens will be asked for: the next pass over the model computes them too."""
    _EXPECTED.setdefault(checkpoint, {})[_tokens(ids_ST)] = ids_ST


def probe_outputs(
    checkpoint: Checkpoint, ids_ST: np.ndarray, advance: Callable[[], None] = lambda: None
) -> ProbeOutputs:
    """Compute the logits and the hidden states of a model at every position.

    One block is in memory at a time, and the embedding or the head; of a run, which stores all blocks together, all.
    ``advance`` is called after each block that is read by itself.
    """
    expected = _EXPECTED.setdefault(checkpoint, {})
    computed = expected.pop(_tokens(ids_ST), None)
    if isinstance(computed, ProbeOutputs):
        return computed
    # One pass for these tokens and for others that are expected.
    others = {tokens: ids for tokens, ids in list(expected.items()) if isinstance(ids, np.ndarray)}
    asked, *outputs = _all_outputs(checkpoint, [ids_ST, *others.values()], advance)
    expected.update(zip(others, outputs, strict=True))
    return asked


def middle_block(cfg: ModelConfig) -> int:
    """Return the number, from 1, of the block whose output lies in the middle of the depth.

    >>> from bornbiased_jax.config import preset
    >>> [middle_block(preset("llama-tiny", num_layers=count)) for count in (1, 2, 5, 32)]
    [1, 1, 3, 16]
    """
    return (cfg.num_layers + 1) // 2


def _tokens(ids_ST: np.ndarray) -> _Tokens:
    return ids_ST.shape, ids_ST.tobytes()


def _all_outputs(
    checkpoint: Checkpoint, batches: Sequence[np.ndarray], advance: Callable[[], None]
) -> list[ProbeOutputs]:
    """Compute what a model makes of several batches of tokens, every parameter read once."""
    cfg = checkpoint.cfg
    pairs: Sequence[tuple[jax.Array | None, jax.Array | np.ndarray]]
    if checkpoint.kind == "run":
        params = load_params(checkpoint)
        passes = [models.apply(cfg, params, jnp.asarray(ids_ST), capture=("residual",)) for ids_ST in batches]
        pairs = [(one_pass.logits_BTV, one_pass.layers["residual"][middle_block(cfg) - 1]) for one_pass in passes]
    else:
        pairs = _streamed(cfg, checkpoint.read, batches, advance)
    outputs = []
    for logits_STV, middle_STD in pairs:
        logits_PV = np.asarray(logits_STV).reshape(-1, cfg.vocab_size)
        centered_PV = logits_PV - logits_PV.mean(axis=1, keepdims=True)
        outputs.append(ProbeOutputs(centered_PV, np.asarray(middle_STD).reshape(-1, cfg.d_model)))
    return outputs


def _streamed(
    cfg: ModelConfig, read: Callable[..., np.ndarray], batches: Sequence[np.ndarray], advance: Callable[[], None]
) -> list[tuple[jax.Array, np.ndarray]]:
    """Compute the logits of each batch and the residual stream in the middle of the depth, block by block."""
    # Embed, then block by block, each read when its turn comes.
    positions_TD = read("positions/embedding") if cfg.positions == "learned" else None
    embedding_VD = read("embed/embedding")
    states: list[np.ndarray | jax.Array] = [
        enter(cfg, embedding_VD[ids_ST], None if positions_TD is None else positions_TD[: ids_ST.shape[1]])
        for ids_ST in batches
    ]
    del embedding_VD
    middle: list[np.ndarray] = []
    # Blocks are of one size, and take each other's memory; the next is read once this one is done.
    with reused_memory():
        for layer in range(cfg.num_layers):
            weights = read_block(cfg, read, layer)
            states = [_apply_block(cfg, weights, states_STD, np.int32(layer)) for states_STD in states]
            jax.block_until_ready(states)
            del weights
            if layer + 1 == middle_block(cfg):
                middle = [np.array(states_STD) for states_STD in states]
            advance()
    outside = [path for path in parameter_table(cfg) if path.startswith("final_norm/")] + [head_path(cfg)]
    head = unflatten({path: read(path) for path in outside})
    logits = [_apply_head(cfg, head, states_STD) for states_STD in states]
    return list(zip(logits, middle, strict=True))


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
