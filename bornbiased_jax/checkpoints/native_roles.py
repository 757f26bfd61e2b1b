"""Roles of checkpoints whose configuration this package runs, by the table of parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bornbiased_jax.checkpoints import Checkpoint, open_checkpoint
from bornbiased_jax.checkpoints.roles import Role, Shape, canonical_key, token_labels
from bornbiased_jax.parameters import Parameter, parameter_table

LANGUAGE = "language"
_ODD_ACTIVATIONS = ("tanh",)


def open_roles(ref: str | Path, *, file: str | None = None, ignore_fields: Sequence[str] = ()) -> NativeRoles:
    """Open a checkpoint for reading by role.

    Args:
        ref: what :func:`bornbiased_jax.checkpoints.open_checkpoint` takes.
        file: which set of weights, where a folder holds several.
        ignore_fields: fields of ``config.json`` to leave out.

    Raises:
        InputError: nothing is there, or what is there is corrupted, of another kind or not understood.
    """
    return NativeRoles(open_checkpoint(ref, file=file, ignore_fields=ignore_fields))


class NativeRoles:
    """A :class:`.roles.RoleSource` over a checkpoint with a configuration: one component, "language".

    Args:
        reader: the checkpoint.
        observe: called with name and numbers of each tensor that is read for a role; experts come as one tensor.

    Example:
        >>> from bornbiased_jax.checkpoints.native_roles import open_roles
        >>> source = open_roles("seed:42@llama-tiny,num_layers=1")
        >>> [role.path for role in source.roles][:3]
        ['language/embedding/embedding', 'language/head/kernel', 'language/final_norm/scale']
    """

    naming = "native"

    def __init__(self, reader: Checkpoint, observe: Callable[[str, np.ndarray], None] | None = None) -> None:
        self._reader = reader
        self._observe = observe
        self._table = parameter_table(reader.cfg)
        self._places = {role: place for role, place in self._pairs()}
        # The last parameter that holds the experts of a block together: they are asked for one after the other.
        self._experts: tuple[tuple[str, int | None], np.ndarray] | None = None

    def _pairs(self) -> list[tuple[Role, tuple[Parameter, int | None, int | None]]]:
        """Pair every role with its parameter, layer and expert (counted from 0), in canonical order."""
        pairs = []
        cfg = self._reader.cfg
        for row in self._table.values():
            module = row.module.rpartition("/")[2] if row.group in ("norm", "bias") else ""
            axes = row.block_axes[1:] if row.in_expert else row.block_axes
            for layer in range(cfg.num_layers) if row.is_stacked else (None,):
                name = row.path if layer is None else f"{row.path}/{layer}"
                block = None if layer is None else layer + 1
                for expert in range(cfg.num_experts or 0) if row.in_expert else (None,):
                    number = None if expert is None else expert + 1
                    role = Role(LANGUAGE, row.group, row.leaf, block, number, axes, name=name, module=module)
                    pairs.append((role, (row, layer, expert)))
        return sorted(pairs, key=lambda pair: canonical_key(pair[0]))

    @property
    def roles(self) -> tuple[Role, ...]:
        """Every tensor in canonical order: tables and final norm first, then blocks."""
        return tuple(self._places)

    @property
    def unread(self) -> tuple[str, ...]:
        """No tensors: a checkpoint with one that its configuration does not ask for is refused when opened."""
        return ()

    @property
    def description(self) -> str:
        """One line on where the model came from."""
        return self._reader.description

    def shape(self, component: str) -> Shape:
        """Return the sizes of the component."""
        cfg = self._reader.cfg
        if component != LANGUAGE:
            raise KeyError(component)
        return Shape(
            num_heads=cfg.num_heads if cfg.attention else None,
            num_kv_heads=cfg.kv_heads if cfg.attention else None,
            head_dim=cfg.key_dim if cfg.attention else None,
            is_centered=cfg.norm == "layernorm",
            has_gate=cfg.mlp and cfg.gated_mlp,
            has_odd_activation=cfg.activation in _ODD_ACTIVATIONS,
            is_tied=cfg.tie_embeddings,
        )

    def array_shape(self, role: Role) -> tuple[int, ...]:
        """Return the sizes of a tensor without reading it."""
        row, _, expert = self._places[role]
        return row.block_shape if expert is None else row.block_shape[1:]

    def digest_name(self, role: Role) -> str:
        """Return path and layer: experts of a block share the name of the parameter that holds them."""
        return role.name

    def read(self, role: Role) -> np.ndarray:
        """Read one tensor as float32."""
        row, layer, expert = self._places[role]
        place = (row.path, layer)
        if self._experts is not None and self._experts[0] == place:
            return self._experts[1] if expert is None else self._experts[1][expert]
        self._experts = None
        tensor = self._reader.read(*place)
        if self._observe is not None:
            self._observe(role.name, tensor)
        if expert is None:
            return tensor
        self._experts = place, tensor
        matrix: np.ndarray = tensor[expert]
        return matrix

    def norm_scale(self, role: Role) -> np.ndarray | None:
        """Read the scale of the norm between a matrix and the residual stream."""
        row, layer, _ = self._places[role]
        path = f"{row.norm}/scale"
        return self._reader.read(path, layer) if row.norm is not None and path in self._table else None

    def output_norm_scale(self, component: str) -> np.ndarray | None:
        """Read the scale of the norm before the head, which a tied head reads through too."""
        return self._reader.read("final_norm/scale") if "final_norm/scale" in self._table else None

    def token_labels(self) -> tuple[bytes | None, ...] | None:
        """Return the bytes of every token, None where no tokenizer is there.

        Raises:
            InputError: the tokenizer is corrupted.
        """
        return token_labels(self._reader.tokenizer_files, self._reader.cfg.vocab_size)

    def stored_as(self, role: Role) -> str:
        """Return the storage types of the file, joined: a configuration's file is of one type but for its norms."""
        return self._reader.stored.storage
