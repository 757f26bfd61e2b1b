"""The activations of MLPs: one entry each, from which models, theory, import and export take what they need."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax

from bornbiased_jax.config import Activation


class Entry(NamedTuple):
    """One activation."""

    function: Callable[[jax.Array], jax.Array]
    theory: str
    """Its name in ``theory.activations``, where its dual kernel is found."""
    hugging_face: str
    """Its name in an exported ``config.json``."""
    aliases: tuple[str, ...] = ()
    """Further names in a ``config.json`` that is read."""


ACTIVATIONS: dict[Activation, Entry] = {
    "gelu": Entry(partial(jax.nn.gelu, approximate=False), "gelu", "gelu", ("gelu_python",)),
    "gelu_tanh": Entry(
        partial(jax.nn.gelu, approximate=True), "gelu_tanh", "gelu_pytorch_tanh", ("gelu_new", "gelu_fast")
    ),
    "relu": Entry(jax.nn.relu, "relu", "relu"),
    "tanh": Entry(jax.numpy.tanh, "tanh", "tanh"),
    "relu_squared": Entry(lambda x: jax.numpy.square(jax.nn.relu(x)), "relu_squared", "relu2"),
    "leaky_relu": Entry(jax.nn.leaky_relu, "leaky_relu", "leaky_relu"),
    "shifted_relu": Entry(lambda x: jax.numpy.maximum(x, -1.0), "shifted_relu", "shifted_relu"),
    "silu": Entry(jax.nn.silu, "silu", "silu", ("swish",)),
}
HUGGING_FACE: dict[str, Activation] = {
    name: activation for activation, entry in ACTIVATIONS.items() for name in (entry.hugging_face, *entry.aliases)
}
"""Every name that ``config.json`` may give an activation."""
