"""Tensors of a checkpoint by role: all that comparison, fingerprints and audit need, without a forward pass.

A role says what a tensor is (its group in :data:`bornbiased_jax.parameters.GROUPS`), where it stands (component, block,
expert) and what its axes are. Two sources have roles: checkpoints whose configuration this package runs, by the table
of parameters, and files of any other model, by the naming conventions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bornbiased_jax import progress
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.parameters import Axis
from bornbiased_jax.schemes import GROUPS, Group
from bornbiased_jax.text import load_tokenizer
from bornbiased_jax.text.protocol import UnknownTokenizerError

Axes = tuple[tuple[Axis, ...], ...]
"""The named axes of each axis of an array."""


@dataclasses.dataclass(frozen=True, order=True)
class Role:
    """The meaning of one tensor and its place in the model.

    Attributes:
        component: the part of the model: "language", "vision", "projector", or a prefix of the file.
        group: what the tensor is.
        leaf: "kernel", "bias", "scale" or "embedding".
        block: the number of the block, counted from 1; None outside blocks.
        expert: the number of the expert in its block, counted from 1; None outside experts. Shared experts have a
            component of their own name space: see ``is_shared``.
        axes: the named axes of each axis of the array, the outer first; matrices stand as [in, out], tables as
            [vocab, residual].
        is_shared: whether it belongs to an expert that every token visits.
        name: the name of its parts in the file, for messages and digests.
        module: of norms and biases the layer that they belong to, where the group cannot tell: "attention_norm",
            "query_norm", "final_norm", "query" ….
    """

    component: str
    group: Group
    leaf: str
    block: int | None
    expert: int | None
    axes: Axes
    is_shared: bool = False
    name: str = ""
    module: str = ""

    @property
    def matrix(self) -> str:
        """Its name inside its block, as in "up", "shared_up" or "mlp_norm"."""
        return ("shared_" if self.is_shared else "") + (self.module or self.group)

    @property
    def matrix_name(self) -> str:
        """The canonical name without block and expert numbers, as in "language/up/kernel": a label of sign vectors."""
        return f"{self.component}/{self.matrix}/{self.leaf}"

    @property
    def path(self) -> str:
        """The canonical name with block and expert, as in "language/blocks/3/experts/2/up/kernel"."""
        block = "" if self.block is None else f"blocks/{self.block}/"
        expert = "" if self.expert is None else f"experts/{self.expert}/"
        return f"{self.component}/{block}{expert}{self.matrix}/{self.leaf}"


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of a component that roles cannot show.

    Attributes:
        num_heads, num_kv_heads, head_dim: of its attention; None where it has none.
        is_centered: whether its norms take out the mean (LayerNorm).
        has_gate: whether its MLP has a gate.
        has_odd_activation: whether the activation between up and down is odd, so that signs of neurons are free.
        is_tied: whether the head is the embedding.
    """

    num_heads: int | None
    num_kv_heads: int | None
    head_dim: int | None
    is_centered: bool
    has_gate: bool
    has_odd_activation: bool
    is_tied: bool


class RoleTensor(NamedTuple):
    """A tensor by role: its shape as the role has it, and what reads it."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


_TITLES = {"language": "language model", "vision": "vision tower"}


def component_title(component: str) -> str:
    """Name a component of a model for a reader: "language model", "vision tower", "projector"."""
    return _TITLES.get(component, component.replace("_", " "))


def path_in_words(path: str) -> str:
    """Name a tensor by its path for a reader; what is of no other component is of the language model.

    Names of tensors in files stay as they are.

    >>> path_in_words("language/blocks/3/experts/2/up/kernel"), path_in_words("vision/final_norm/scale")
    ('the up kernel of expert 2 in block 3', 'the final norm scale of the vision tower')
    >>> path_in_words("model.layers.0.self_attn.qkv_proj.weight")
    'model.layers.0.self_attn.qkv_proj.weight'
    """
    if "/" not in path:
        return path
    component, *places, matrix, leaf = path.split("/")
    name = f"the {matrix.replace('_', ' ')} {leaf}" if matrix != leaf else f"the {matrix}"
    numbers = dict(zip(places[::2], places[1::2], strict=True))
    inside = [f"{group.removesuffix('s')} {numbers[group]}" for group in ("experts", "blocks") if group in numbers]
    owner = [] if component == "language" else [f"the {component_title(component)}"]
    return " of ".join([name, *([" in ".join(inside)] if inside else []), *owner])


LEFT_OUT = "left out, as no part of a language model"
"""How notes begin that name tensors which are not read."""


class RoleSource:
    """Tensors by role, read one at a time.

    Attributes:
        naming: the convention of names that was applied; "native" where this package runs the model.
        config: its configuration; None of a model that this package does not run.
        description: one line on where the model came from.
        files: the files that hold the weights; none of initial weights, or of a run.
        unread: names of tensors that no convention understands.
        notes: what is not plain in the files, one clause each, without the name of the files: tensors left out,
            prefixes taken away, a stale index, a merged adapter, a tied or a missing table. Printed when the files
            are opened.
        observe: called with each role that is read and its numbers; None where nobody asks.
    """

    naming = ""
    config: ModelConfig | None = None
    observe: Callable[[Role, np.ndarray], None] | None = None

    def __init__(
        self,
        description: str,
        tokenizer_files: Sequence[Path],
        files: Sequence[Path] = (),
        notes: Sequence[str] = (),
    ) -> None:
        self.description = description
        self.files = tuple(files)
        self.notes = tuple(notes)
        self.unread: tuple[str, ...] = ()
        self._tokenizer_files = tokenizer_files
        self._parts: dict[Role, RoleTensor] = {}

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """Every tensor that is understood, in canonical order."""
        return tuple(sorted(self._parts, key=canonical_key))

    def shape(self, component: str) -> Shape:
        """Return the sizes of a component."""
        raise NotImplementedError

    def array_shape(self, role: Role) -> tuple[int, ...]:
        """Return the sizes of a tensor without reading it."""
        return self._parts[role].shape

    def digest_name(self, role: Role) -> str:
        """Return the name under which a tensor enters the digest of all weights.

        Experts that share a name are slices of one tensor along its first axis.
        """
        return role.path

    def read(self, role: Role) -> np.ndarray:
        """Read one tensor as float32, its axes as the role says.

        Raises:
            InputError: it holds NaN or infinite values, or its file is corrupted.
        """
        array = self._parts[role].read()
        if self.observe is not None:
            self.observe(role, array)
        return array

    def stored_in(self, role: Role) -> tuple[str, ...]:  # noqa: ARG002 (sources of files have some)
        """Return the names of the stored tensors that a role's array is a product or a part of; none of a whole one."""
        return ()

    def read_stored(self, name: str) -> np.ndarray:
        """Read one of the tensors that roles are :meth:`stored_in` as float32, its axes as the file has them."""
        raise NotImplementedError

    def norm_scale(self, role: Role) -> np.ndarray | None:
        """Read the scale of the norm between a matrix and the residual stream, 1 + g where a family stores g."""
        norms = (self._norms.get((role.component, role.block, name)) for name in self._norm_names(role))
        norm = next((norm for norm in norms if norm is not None), None)
        return None if norm is None else self.read(norm)

    def output_norm_scale(self, component: str) -> np.ndarray | None:
        """Read the scale of the norm before the head, which a tied head reads through too."""
        norm = self._norms.get((component, None, "final_norm"))
        return None if norm is None else self.read(norm)

    @cached_property
    def _norms(self) -> dict[tuple[str, int | None, str], Role]:
        scales = [role for role in self._parts if role.group == "norm" and role.leaf == "scale"]
        return {(role.component, role.block, role.module): role for role in scales}

    def _norm_names(self, role: Role) -> Sequence[str]:
        """Return the norms that may stand between a matrix and the residual stream, the likeliest first."""
        raise NotImplementedError

    def token_labels(self) -> tuple[bytes | None, ...] | None:
        """Return the bytes of every token, None for one without any; None where no tokenizer of a known kind is there.

        Raises:
            InputError: the tokenizer is corrupted.
        """
        table = next((role for role in self._parts if role.group == "embedding"), None)
        if table is None or not self._tokenizer_files:
            return None
        vocab_size = self.array_shape(table)[0]
        try:
            labels = load_tokenizer(self._tokenizer_files[0]).token_bytes()
        except UnknownTokenizerError as error:
            progress.once(progress.warn, f"{error}; until then tokens of this model are compared by their numbers")
            return None
        return tuple([*labels, *[None] * (vocab_size - len(labels))][:vocab_size])

    def stored_as(self, role: Role) -> str:
        """Return the storage type: "float32", "bfloat16", "Q4_K" …."""
        raise NotImplementedError


def canonical_key(role: Role) -> tuple[str, int, int, bool, str, str, int]:
    """Return the place of a role in canonical order: tables first, then blocks, a matrix's experts in a row."""
    group = GROUPS.index(role.group)
    return role.component, role.block or 0, group, role.is_shared, role.module, role.leaf, role.expert or 0
