"""Interventions: activations replaced at inference, at named sites of a block.

:class:`Edits` names the sites; fake quantization acts there too. An edit carries its numbers as arrays, so that one
compiled pass serves a sweep over neurons, blocks, positions and factors. Edits act in passes over all positions
(``positions="all"``, no cache). Blocks and positions count from 1, neurons and channels from 0.

*Neurons and channels* (:func:`silence`, :func:`write`, :func:`clear`) are cut and restored to find what makes a sink.
Neurons are of an MLP's hidden layer, what W_down reads.

The other edits make any position an attention sink ("The Structural Origin of Attention Sink"):

*Mask* (:func:`self_only`): token k attends only to itself, so its attention output is its own value and keeps the full
variance σ² instead of σ²/k. With relative positions (RoPE or none) its representation in every layer is exactly that
of the same token standing first.

*Variance amplification* (:func:`amplify_variance`): o'_k = μ_k + λ(o_k − μ_k). The abstract defines variance over
random-token sequences, so μ_k here is the mean over random-token sequences of the aggregated value at position k, for
each layer, head and channel (:func:`bornbiased_jax.probes.variance.ensemble_mean`): the variance over sequences grows
λ²-fold and the mean stays. Other centers are other interventions: the mean over a vector's coordinates is close to 0,
which makes the formula the control; the mean over the other positions of the sequence removes context.

*Control* (:func:`scale_output`): λ·o_k, which enlarges the vector and its shared part alike.

The last two act on "o" before W_O, after the sink mitigations of the config.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError

Edit = Callable[..., jax.Array]
"""``edit(x, layer=index)``: what takes the place of an activation of one block; blocks count from 0 here."""


class Edits(NamedTuple):
    """Replacements of activations, by site; None leaves one as it is.

    A pytree: an edit made by ``jax.tree_util.Partial`` carries its arrays as leaves, so that a compiled pass serves
    every value of them.
    """

    attention_input: Edit | None = None
    """[B, T, D]: what query, key, value and output gate read."""
    keys: Edit | None = None
    """[B, T, G, K]: after the rotation of positions, as a cache keeps them."""
    values: Edit | None = None
    """[B, T, G, K]."""
    seen: Edit | None = None
    """[T, S] boolean: which keys each query sees. It can only take some away."""
    attention_output: Edit | None = None
    """[B, T, H, K]: aggregated values after the sink mitigations, before W_O."""
    mlp_input: Edit | None = None
    """[B, T, D]: what up and gate read."""
    mlp_hidden: Edit | None = None
    """[B, T, F]: what W_down reads."""
    residual: Edit | None = None
    """[B, T, D]: the stream after the block."""


NO_EDITS = Edits()


def as_edits(edit: Edit | Edits | None) -> Edits:
    """Return the edits by site, each a pytree; a function alone acts on the attention output.

    >>> as_edits(lambda o, layer: 2 * o).attention_output is not None
    True
    """
    if edit is None:
        return NO_EDITS
    by_site = edit if isinstance(edit, Edits) else Edits(attention_output=edit)
    # Each a pytree, whose arrays are its leaves.
    return Edits(*(site if site is None or isinstance(site, Partial) else Partial(site) for site in by_site))


def combine(*several: Edit | Edits | None) -> Edits:
    """Combine edits: one after the other at every site, in the order of the arguments."""
    # Site by site, as each site takes one function.
    columns = zip(*map(as_edits, several), strict=True)
    return Edits(*(_chain([edit for edit in column if edit is not None]) for column in columns))


def of_layer(edits: Edits, layer: jax.Array, num_layers: int) -> Edits:
    """Return the edits of one block of a model of this depth: functions of the activation alone.

    Raises:
        InputError: edits of this module that were made for another depth.
    """
    # An index beyond the blocks that an edit knows would be taken for its last.
    for edit in jax.tree.leaves(edits, is_leaf=_is_by_block):
        if _is_by_block(edit) and (depth := len(edit.args[1])) != num_layers:
            raise InputError(f"an edit is made for {depth} blocks, but the model has {num_layers}: make it for those")
    return Edits(*(None if edit is None else functools.partial(edit, layer=layer) for edit in edits))


def apply_edit(edit: Edit | None, x: jax.Array) -> jax.Array:
    """Apply an edit, if there is one, to an activation; the dtype stays."""
    return x if edit is None else edit(x).astype(x.dtype)


def _chain(edits: list[Edit]) -> Edit | None:
    if len(edits) < 2:
        return edits[0] if edits else None
    return Partial(_apply_in_turn, edits)


def _apply_in_turn(edits: list[Edit], x: jax.Array, layer: jax.Array) -> jax.Array:
    for edit in edits:
        x = edit(x, layer=layer)
    return x


UNEDITED = "neurons of a mixture of experts are not edited: leave the MLP's hidden layer alone"
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
    # The form in which reports name neurons.
    match = _NEURON.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{text!r} is not a neuron: write blocks/12/mlp:1229, blocks from 1 and neurons from 0")
    return Neuron(int(match[1]), int(match[2]))


def check_neuron(cfg: ModelConfig, neuron: Neuron) -> None:
    """Refuse a neuron that the model does not have.

    Raises:
        InputError: it does not.
    """
    _check_block(cfg.num_layers, neuron.block)
    if not cfg.mlp:
        raise InputError(f"{neuron}: the model has no MLP (mlp=false)")
    if cfg.num_experts is not None:
        raise InputError(f"{neuron}: {UNEDITED}")
    if not 0 <= neuron.unit < cfg.d_ff:
        raise InputError(f"{neuron}: the MLP's neurons are 0 to {cfg.d_ff - 1}")


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

    Args:
        cfg: the architecture.
        values: the activation of each neuron.
        position: from 1; shorter sequences are refused.

    Raises:
        InputError: a neuron that the model does not have, a value that float32 does not have, a position out of range.
    """
    # Activations of the named neurons are multiplied with 0 everywhere, and their value is added at one position.
    keep_LF = np.ones((cfg.num_layers, max(cfg.d_ff, 1)), np.float32)
    value_LF = np.zeros_like(keep_LF)
    for neuron, value in values.items():
        check_neuron(cfg, neuron)
        _check_number(value, str(neuron))
        keep_LF[neuron.block - 1, neuron.unit] = 0.0
        value_LF[neuron.block - 1, neuron.unit] = value
    at_P, _ = _sites(None, [position], cfg.num_layers, None)
    return Edits(mlp_hidden=Partial(_write_neurons, at_P, jnp.asarray(keep_LF), jnp.asarray(value_LF)))


def clear(cfg: ModelConfig, channels: Sequence[int], *, position: int, blocks: Sequence[int] | None = None) -> Edits:
    """Set channels of the residual stream to 0 at one position, after each of the blocks (by default all).

    Args:
        cfg: the architecture.
        channels: from 0.
        position: from 1; shorter sequences are refused.
        blocks: where to act, counted from 1; everywhere unless given.

    Raises:
        InputError: a channel, position or block that the model does not have.
    """
    # Which channels stay after each block: 0 where one is cleared.
    at_P, active_L = _sites(None, [position], cfg.num_layers, blocks)
    keep_LD = np.ones((cfg.num_layers, cfg.d_model), np.float32)
    for channel in channels:
        if not 0 <= channel < cfg.d_model:
            raise InputError(f"channel {channel} is not between 0 and {cfg.d_model - 1}, the last of this model")
        keep_LD[np.asarray(active_L), channel] = 0.0
    return Edits(residual=Partial(_clear_channels, at_P, jnp.asarray(keep_LD)))


def _write_neurons(
    at_P: jax.Array, keep_LF: jax.Array, value_LF: jax.Array, x_BTF: jax.Array, layer: jax.Array
) -> jax.Array:
    at_T1 = _over_sequence(at_P, x_BTF.shape[1]).astype(x_BTF.dtype)[:, None]
    added_TF = at_T1 * value_LF[layer].astype(x_BTF.dtype)[None]
    return x_BTF * keep_LF[layer].astype(x_BTF.dtype)[None, None] + added_TF[None]


def _clear_channels(at_P: jax.Array, keep_LD: jax.Array, x_BTD: jax.Array, layer: jax.Array) -> jax.Array:
    here_T1 = _over_sequence(at_P, x_BTD.shape[1])[:, None]
    kept_TD = jnp.where(here_T1, keep_LD[layer][None], 1.0).astype(x_BTD.dtype)
    return x_BTD * kept_TD[None]


def _over_sequence(at_P: jax.Array, length: int) -> jax.Array:
    """Return boolean [T]: where an edit acts, which later positions than the first P are not."""
    _check_reach(len(at_P), length)
    return jnp.pad(at_P, (0, length - len(at_P)))


def _check_reach(P: int, length: int) -> None:
    if length < P:
        raise InputError(
            f"position {P} is edited, but {length} positions are computed: use longer sequences and positions='all'"
        )


def _check_block(num_layers: int, block: int) -> None:
    if not 1 <= block <= num_layers:
        raise InputError(f"block {block} is not between 1 and {num_layers}")


def self_only(length: int, positions: Sequence[int], *, num_layers: int, blocks: Sequence[int] | None = None) -> Edits:
    """Let tokens at ``positions`` see only themselves; others still see them. Pass the result as ``edit``.

    Args:
        length: T of the sequences.
        positions: which tokens, from 1.
        num_layers: depth of the model.
        blocks: where to act, counted from 1; everywhere unless given.

    Raises:
        InputError: a position or block out of range.
    """
    return Edits(seen=Partial(_mask_alone, *_sites(length, positions, num_layers, blocks)))


def amplify_variance(
    positions: Sequence[int], factor: float, *, mean_LTHK: np.ndarray, blocks: Sequence[int] | None = None
) -> Edit:
    """Amplify variance, o'_k = μ_k + λ(o_k − μ_k), at ``positions``; pass the result as ``edit``.

    Args:
        positions: which positions, from 1.
        factor: λ; 1 changes nothing.
        mean_LTHK: μ for every layer and position, from :func:`bornbiased_jax.probes.variance.ensemble_mean`; sequences
            must be at least as long.
        blocks: where to act, counted from 1; everywhere unless given.

    Raises:
        InputError: a position, block or factor out of range.
    """
    L, T = mean_LTHK.shape[:2]
    at_T, active_L = _sites(T, positions, L, blocks)
    _check_number(factor, "factor")
    mean = jnp.asarray(mean_LTHK, jnp.float32)
    return Partial(_scale_around, at_T, active_L, jnp.float32(factor), mean)


def scale_output(
    positions: Sequence[int],
    factor: float,
    *,
    num_layers: int,
    blocks: Sequence[int] | None = None,
    length: int | None = None,
) -> Edit:
    """Scale the output to λ·o_k at ``positions``, the control; pass the result as ``edit``.

    Args:
        positions: which positions, from 1.
        factor: λ; 1 changes nothing.
        num_layers: depth of the model.
        blocks: where to act, counted from 1; everywhere unless given.
        length: T of the sequences at least: edits of the same length share a compiled program. The last of
            ``positions`` unless given.

    Raises:
        InputError: a position, block or factor out of range.
    """
    at_T, active_L = _sites(length, positions, num_layers, blocks)
    _check_number(factor, "factor")
    return Partial(_scale_around, at_T, active_L, jnp.float32(factor), None)


def _mask_alone(at_T: jax.Array, active_L: jax.Array, seen_TS: jax.Array, layer: jax.Array) -> jax.Array:
    if seen_TS.shape != (len(at_T), len(at_T)):
        raise InputError(
            f"which tokens see only themselves is said for {len(at_T)} positions, but "
            f"{' x '.join(map(str, seen_TS.shape))} are computed: use sequences of that length and positions='all'"
        )
    # Rows of the named tokens hold their own column alone; the others stay.
    alone_T1 = (at_T & active_L[layer])[:, None]
    return jnp.where(alone_T1, jnp.eye(len(at_T), dtype=bool), seen_TS)


def _scale_around(
    at_P: jax.Array,
    active_L: jax.Array,
    factor: jax.Array,
    mean_LPHK: jax.Array | None,
    o_BTHK: jax.Array,
    layer: jax.Array,
) -> jax.Array:
    """Scale by λ around μ, or around 0 without one, where ``at_P`` is true; later positions than the first P stay."""
    P = len(at_P)
    _check_reach(P, o_BTHK.shape[1])
    # The first P positions, scaled around μ or around 0.
    old_BPHK = o_BTHK[:, :P]
    if mean_LPHK is None:
        new_BPHK = factor.astype(old_BPHK.dtype) * old_BPHK
    else:
        mu = mean_LPHK[layer].astype(o_BTHK.dtype)[None]
        new_BPHK = mu + factor.astype(old_BPHK.dtype) * (old_BPHK - mu)
    # Only at the named positions of the named blocks.
    here_P = at_P & active_L[layer]
    new_BPHK = jnp.where(here_P[None, :, None, None], new_BPHK, old_BPHK)
    return jnp.concatenate([new_BPHK, o_BTHK[:, P:]], axis=1) if P < o_BTHK.shape[1] else new_BPHK


def _sites(
    length: int | None, positions: Sequence[int], num_layers: int, blocks: Sequence[int] | None
) -> tuple[jax.Array, jax.Array]:
    """Return boolean [T] and [L]: the positions and the blocks where an edit acts, both given from 1."""
    # Positions count from 1 for users, rows of arrays from 0.
    rows = np.unique(np.asarray(positions, int)) - 1
    if not rows.size:
        raise InputError("no position is named: give at least one, counted from 1")
    if rows[0] < 0 or (length is not None and rows[-1] >= length):
        bad = rows[0] if rows[0] < 0 else rows[-1]
        end = "the length" if length is None else length
        raise InputError(f"position {bad + 1} is not between 1 and {end}")
    at_T = np.zeros(rows[-1] + 1 if length is None else length, bool)
    at_T[rows] = True
    # Every block, unless some are named.
    active_L = np.full(num_layers, blocks is None)
    for block in blocks or ():
        _check_block(num_layers, block)
        active_L[block - 1] = True
    return jnp.asarray(at_T), jnp.asarray(active_L)


def _is_by_block(node: object) -> bool:
    """Return whether a node of a tree is an edit of this module, whose second array has a row for each block."""
    functions = (_mask_alone, _scale_around, _write_neurons, _clear_channels)
    return isinstance(node, Partial) and node.func in functions


def _check_number(value: float, name: str) -> None:
    # Beyond float32 it would be infinite, and 0 times it no number.
    if not abs(value) <= float(np.finfo(np.float32).max):
        raise InputError(f"{name} {value} is not a finite number of float32")
