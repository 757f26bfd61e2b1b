"""The places in a block where a forward pass may be edited: interventions and fake quantisation act there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax

Edit = Callable[..., jax.Array]
"""``edit(x, layer=index)``: what takes the place of an activation of one block; blocks count from 0 here."""


class Edits(NamedTuple):
    """What to put in place of activations, by site; None leaves one as it is.

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
    return Edits(*(_partial(function) for function in by_site))


def combine(*several: Edit | Edits | None) -> Edits:
    """Combine edits: one after the other at every site, in the order of the arguments."""
    columns = zip(*map(as_edits, several), strict=True)
    return Edits(*(_chained([edit for edit in column if edit is not None]) for column in columns))


def of_layer(edits: Edits, layer: jax.Array) -> Edits:
    """Return the edits of one block: functions of the activation alone."""
    return Edits(*(None if edit is None else functools.partial(edit, layer=layer) for edit in edits))


def edited(edit: Edit | None, x: jax.Array) -> jax.Array:
    """Apply an edit, if there is one, to an activation; the dtype stays."""
    return x if edit is None else edit(x).astype(x.dtype)


def _partial(edit: Edit | None) -> Edit | None:
    if edit is None or isinstance(edit, jax.tree_util.Partial):
        return edit
    return jax.tree_util.Partial(edit)


def _chained(edits: list[Edit]) -> Edit | None:
    if len(edits) < 2:
        return edits[0] if edits else None
    return jax.tree_util.Partial(_one_after_the_other, edits)


def _one_after_the_other(edits: list[Edit], x: jax.Array, layer: jax.Array) -> jax.Array:
    for edit in edits:
        x = edit(x, layer=layer)
    return x
