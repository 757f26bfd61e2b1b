"""Neurons and channels cut and joined at inference: where a sink is made, found by taking its maker away.

Neurons are of an MLP's hidden layer, what W_down reads. An edit carries its numbers as arrays, so that one compiled
pass serves a sweep over neurons, values and positions. They act in passes over all positions (``positions="all"``, no
cache). Blocks and positions count from 1, neurons and channels from 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.sites import Edits

_NEURON = re.compile(r"blocks/(\d{1,9})/mlp:(\d{1,9})")


class Neuron(NamedTuple):
    """A hidden unit of an MLP: its block from 1, its number from 0."""

    block: int
    unit: int

    def __str__(self) -> str:
        return f"blocks/{self.block}/mlp:{self.unit}"


def parse_neuron(text: str) -> Neuron:
    """Parse the name of a neuron.

    Raises:
        InputError: another form.

    >>> parse_neuron("blocks/12/mlp:1229")
    Neuron(block=12, unit=1229)
    """
    match = _NEURON.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{text!r} is not a neuron: write blocks/12/mlp:1229, blocks from 1 and neurons from 0")
    return Neuron(int(match[1]), int(match[2]))


def silence(cfg: ModelConfig, neurons: Sequence[Neuron]) -> Edits:
    """Silence neurons at all positions: their activations become 0.

    Raises:
        InputError: a neuron that the model does not have.
    """
    return write(cfg, dict.fromkeys(neurons, 0.0), position=1)


def write(cfg: ModelConfig, values: Mapping[Neuron, float], *, position: int) -> Edits:
    """Set the activation of each neuron at one position, and 0 elsewhere.

    With the activation that it has at the first token, ``position`` 1 restores what :func:`silence` took, and another
    position moves it there.

    Raises:
        InputError: a neuron that the model does not have, a position below 1.
    """
    keep_LF = np.ones((cfg.num_layers, max(cfg.d_ff, 1)), np.float32)
    value_LF = np.zeros_like(keep_LF)
    for neuron, value in values.items():
        check_neuron(cfg, neuron)
        keep_LF[neuron.block - 1, neuron.unit] = 0.0
        value_LF[neuron.block - 1, neuron.unit] = value
    row = _row(position)
    return Edits(mlp_hidden=jax.tree_util.Partial(_written, jnp.asarray(keep_LF), jnp.asarray(value_LF), row))


def clear(cfg: ModelConfig, channels: Sequence[int], *, position: int, blocks: Sequence[int] | None = None) -> Edits:
    """Set channels of the residual stream to 0 at one position, after each of the blocks (by default all).

    Raises:
        InputError: a channel, position or block that the model does not have.
    """
    keep_LD = np.ones((cfg.num_layers, cfg.d_model), np.float32)
    for channel in channels:
        if not 0 <= channel < cfg.d_model:
            raise InputError(f"channel {channel} is not between 0 and {cfg.d_model - 1}, the last of this model")
        for block in range(1, cfg.num_layers + 1) if blocks is None else blocks:
            _check_block(cfg, block)
            keep_LD[block - 1, channel] = 0.0
    return Edits(residual=jax.tree_util.Partial(_cleared, jnp.asarray(keep_LD), _row(position)))


def _written(keep_LF: jax.Array, value_LF: jax.Array, row: jax.Array, x_BTF: jax.Array, layer: jax.Array) -> jax.Array:
    at_T1 = (jnp.arange(x_BTF.shape[1]) == row).astype(x_BTF.dtype)[:, None]
    added_TF = at_T1 * value_LF[layer].astype(x_BTF.dtype)[None]
    return x_BTF * keep_LF[layer].astype(x_BTF.dtype)[None, None] + added_TF[None]


def _cleared(keep_LD: jax.Array, row: jax.Array, x_BTD: jax.Array, layer: jax.Array) -> jax.Array:
    here_T1 = (jnp.arange(x_BTD.shape[1]) == row)[:, None]
    kept_TD = jnp.where(here_T1, keep_LD[layer][None], 1.0).astype(x_BTD.dtype)
    return x_BTD * kept_TD[None]


def _row(position: int) -> jax.Array:
    if position < 1:
        raise InputError(f"position {position} is below 1, the first")
    return jnp.asarray(position - 1, jnp.int32)


def _check_block(cfg: ModelConfig, block: int) -> None:
    if not 1 <= block <= cfg.num_layers:
        raise InputError(f"block {block} is not between 1 and {cfg.num_layers}")


def check_neuron(cfg: ModelConfig, neuron: Neuron) -> None:
    """Refuse a neuron that the model does not have.

    Raises:
        InputError: it does not.
    """
    _check_block(cfg, neuron.block)
    if not cfg.mlp:
        raise InputError(f"{neuron}: the model has no MLP (mlp=false)")
    if not 0 <= neuron.unit < cfg.d_ff:
        raise InputError(f"{neuron}: the MLP's neurons are 0 to {cfg.d_ff - 1}")
