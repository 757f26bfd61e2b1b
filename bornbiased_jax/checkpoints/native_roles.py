"""Roles of checkpoints whose configuration this package runs, by the table of parameters."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from typing_extensions import override

from bornbiased_jax.checkpoints import conventions
from bornbiased_jax.checkpoints.roles import Role, RoleSource, RoleTensor, Shape
from bornbiased_jax.checkpoints.tensors import Piece, StoredModel, as_float32, read_parameter
from bornbiased_jax.parameters import Axis, parameter_table

LANGUAGE = "language"
# Axes of a shared expert, as files that are read by names have them.
_SHARED_AXES: dict[Axis, Axis] = {"shared_hidden": "hidden", "shared_expert": "channel"}


class NativeRoles(RoleSource):
    """Roles of a checkpoint with a configuration: one component, "language".

    Args:
        model: the checkpoint, or what its format stores of it.

    Example:
        >>> from bornbiased_jax.checkpoints import open_checkpoint
        >>> source = NativeRoles(open_checkpoint("seed:42@llama-tiny,num_layers=1"))
        >>> [role.path for role in source.roles][:3]
        ['language/embedding/embedding', 'language/head/kernel', 'language/final_norm/scale']
    """

    naming = "native"

    def __init__(self, model: StoredModel) -> None:
        super().__init__(model.description, model.tokenizer_files, model.files, model.notes)
        self.config = model.config
        self._model = model
        self._table = parameter_table(model.config)
        # The last parameter that holds the experts of a block together: they are asked for one after the other.
        self._experts: tuple[str, np.ndarray] | None = None
        for row in self._table.values():
            # The one column of a shared expert's gate is no expert that others correspond to.
            group = row.group if row.position_of("shared_expert") is None else "other"
            module = row.module.rpartition("/")[2] if group in ("norm", "bias", "other") else ""
            cut = 1 if row.in_expert else 0
            axes = tuple(tuple(_SHARED_AXES.get(name, name) for name in names) for names in row.block_axes[cut:])
            is_shared = row.position_of("shared_hidden") is not None
            for layer in range(model.config.num_layers) if row.is_stacked else (None,):
                name = row.path if layer is None else f"{row.path}/{layer}"
                block = None if layer is None else layer + 1
                for expert in range(model.config.num_experts or 0) if row.in_expert else (None,):
                    number = None if expert is None else expert + 1
                    role = Role(LANGUAGE, group, row.leaf, block, number, axes, is_shared, name=name, module=module)
                    read = functools.partial(self._read, name, row.path, layer, expert)
                    self._parts[role] = RoleTensor(row.block_shape[cut:], read)

    def shape(self, component: str) -> Shape:
        """Return the sizes of the component."""
        cfg = self._model.config
        if component != LANGUAGE:
            raise KeyError(component)
        return Shape(
            num_heads=cfg.num_heads if cfg.attention else None,
            num_kv_heads=cfg.kv_heads if cfg.attention else None,
            head_dim=cfg.key_dim if cfg.attention else None,
            is_centered=cfg.norm == "layernorm",
            has_gate=cfg.mlp and cfg.gated_mlp,
            has_odd_activation=cfg.activation in conventions.ODD_ACTIVATIONS,
            is_tied=cfg.tie_embeddings,
        )

    def digest_name(self, role: Role) -> str:
        """Return path and layer: experts of a block share the name of the parameter that holds them."""
        return role.name

    def _read(self, name: str, path: str, layer: int | None, expert: int | None) -> np.ndarray:
        if self._experts is not None and self._experts[0] == name:
            return self._experts[1] if expert is None else self._experts[1][expert]
        if expert is not None:
            self._experts = None
        tensor = read_parameter(self._model.pieces(path), self._table[path].block_shape, layer)
        if expert is None:
            return tensor
        self._experts = name, tensor
        matrix: np.ndarray = tensor[expert]
        return matrix

    def stored_in(self, role: Role) -> tuple[str, ...]:
        """Return the tensor of the file that a role is fused in with others."""
        return (self._fused[role.name].tensor,) if role.name in self._fused else ()

    def read_stored(self, name: str) -> np.ndarray:
        """Read a tensor with fused roles as float32, its axes as the file has them."""
        piece = next(piece for piece in self._fused.values() if piece.tensor == name)
        assert piece.read_fused is not None
        return as_float32(piece.read_fused())

    @cached_property
    def _fused(self) -> dict[str, Piece]:
        """Pieces that lie in one tensor with others, by the names of their roles."""
        pieces = ((path, piece) for path in self._table for piece in self._model.pieces(path))
        return {f"{path}/{piece.place[0]}": piece for path, piece in pieces if piece.read_fused}

    def _norm_names(self, role: Role) -> Sequence[str]:
        norm = self._table[role.name if role.block is None else role.name.rpartition("/")[0]].norm
        return () if norm is None else (norm.rpartition("/")[2],)

    @override
    def stored_as(self, role: Role) -> str:
        """Return the storage types of the file, joined: a configuration's file is of one type but for its norms."""
        return self._model.storage
