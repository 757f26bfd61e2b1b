"""Sizes of the parts of a model, from the shapes of its tensors and a few fields of any ``config.json``.

Also what follows from sizes alone: how a tensor of a file is laid out, and where the matrices fused in it lie.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from bornbiased_jax.checkpoints.conventions import HEAD_DIM, HEADS, KV_HEADS, Split
from bornbiased_jax.checkpoints.names import NamedTensor
from bornbiased_jax.checkpoints.roles import Axes

Json = Mapping[str, object]
"""A ``config.json``, of which nothing is taken for granted."""
Shapes = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a component.

    Attributes:
        residual: width of the residual stream.
        num_heads, num_kv_heads, head_dim: of attention; None where nothing tells.
        nope_dim, rope_dim: of latent attention, the widths of a head without and with RoPE.
        is_conv1d: whether matrices named "c_…" lie as [in, out].
        are_experts_in_out: whether stacked experts lie as [expert, in, out].
    """

    residual: int
    num_heads: int | None
    num_kv_heads: int | None
    head_dim: int | None
    nope_dim: int | None
    rope_dim: int | None
    is_conv1d: bool
    are_experts_in_out: bool

    @property
    def query_size(self) -> int | None:
        """Rows of the queries of all heads."""
        return self.num_heads * self.head_dim if self.num_heads and self.head_dim else None

    @property
    def key_size(self) -> int | None:
        """Rows of the keys of all heads."""
        return self.num_kv_heads * self.head_dim if self.num_kv_heads and self.head_dim else None

    def is_in_out(self, tensor: NamedTensor, is_stacked: bool) -> bool:
        """Tell whether a matrix of the files lies as [in, out] and not as PyTorch's linear maps."""
        if tensor.group in ("embedding", "positions"):
            return True
        return self.are_experts_in_out if is_stacked else self.is_conv1d and _last(tensor).startswith("c_")

    def oriented(self, tensor: NamedTensor, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a matrix as [expert, in, out]."""
        if tensor.is_bias or len(shape) < 2 or self.is_in_out(tensor, len(shape) == 3):
            return shape
        return (*shape[:-2], shape[-1], shape[-2])

    def part_sizes(self, split: Split, size: int) -> list[int] | None:
        """Return the sizes of the matrices that are fused along an axis; None where they do not add up to it."""
        if split == "":
            return [size]
        if split in ("halves", "interleaved"):
            return [size // 2] * 2 if size % 2 == 0 else None
        if self.query_size is None or self.key_size is None:
            return None
        parts = [self.query_size] * 2 if split == "gated" else [self.query_size, self.key_size, self.key_size]
        return parts if sum(parts) == size else None

    def part(self, split: Split, array: np.ndarray, index: int) -> np.ndarray:
        """Return one of the matrices that are fused along the last axis."""
        if split == "":
            return array
        if split == "interleaved":
            return array[..., index::2]
        lead, size = array.shape[:-1], array.shape[-1]
        if split == "halves":
            return array[..., index * size // 2 : (index + 1) * size // 2]
        heads, groups, head_dim = self.num_heads or 1, self.num_kv_heads or 1, self.head_dim or 1
        if split == "gated":
            return array.reshape(*lead, heads, 2, head_dim)[..., index, :].reshape(*lead, -1)
        if split == "joined":
            ends = np.cumsum([0, heads * head_dim, groups * head_dim, groups * head_dim])
            return array[..., ends[index] : ends[index + 1]]
        # A group's queries, then its key and its value: one group is multi-query attention, as many as heads GPT-NeoX.
        per_group = array.reshape(*lead, groups, heads // groups + 2, head_dim)
        part = per_group[..., : heads // groups, :] if index == 0 else per_group[..., heads // groups + index - 1, :]
        return part.reshape(*lead, -1)

    def fit(self, group: str, axes: Axes, shape: tuple[int, ...]) -> bool:
        """Tell whether a shape agrees with the sizes, as far as those are known."""
        values = {
            ("residual",): self.residual,
            ("head", "head_dim"): self.query_size,
            ("kv_head", "head_dim"): self.key_size,
            ("head",): self.num_heads,
            ("kv_head",): self.num_kv_heads,
        }
        if len(axes) != len(shape):
            return False
        for names, size in zip(axes, shape, strict=True):
            if group == "output" and names == ("head", "head_dim"):
                # Values may be narrower than keys.
                if self.num_heads and size % self.num_heads:
                    return False
            elif values.get(names) not in (None, size):
                return False
        return True


def measure(config: Json, tensors: Sequence[NamedTensor], shapes: Shapes) -> Sizes:
    """Measure a component: from norms and tables the width, from the configuration the heads.

    Args:
        config: of the component (:func:`config_of`).
        tensors: its tensors.
        shapes: of the files' tensors by name.
    """

    def rows_of(*groups: str) -> int | None:
        names = (tensor.name for tensor in tensors if tensor.row.groups in groups and not tensor.is_bias)
        return next((shapes[name][0] for name in names), None)

    residual = rows_of("norm:attention_norm") or rows_of("norm:mlp_norm")
    if residual is None:
        tables = ("embedding", "head", "positions", "down")
        table = next((tensor for group in tables for tensor in tensors if tensor.row.groups == group), None)
        shape = (0,) if table is None else shapes[table.name]
        # The second layer of a projector is [out, in].
        writes = table is not None and table.component == "projector" and table.name.endswith("2.weight")
        residual = shape[0 if writes else -1]
    heads, kv_heads, head_dim = (first_size(config, *names) for names in (HEADS, KV_HEADS, HEAD_DIM))
    nope, rope = first_size(config, "qk_nope_head_dim"), first_size(config, "qk_rope_head_dim")
    if nope and rope:
        head_dim, kv_heads = nope + rope, heads
    # The norm of a head and the rows of queries and keys tell what a configuration leaves out.
    if head_dim is None and heads and residual % heads == 0:
        head_dim = residual // heads
    head_dim = head_dim or rows_of("norm:query_norm")
    queries, keys = rows_of("query"), rows_of("key")
    if head_dim and not heads and queries and queries % head_dim == 0:
        heads = queries // head_dim
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        kv_heads = 1
    if head_dim and not nope and keys and keys % head_dim == 0:
        kv_heads = keys // head_dim
    fused = [shapes[tensor.name] for tensor in tensors if _last(tensor) == "c_attn" and not tensor.is_bias]
    is_conv1d = any(shape[0] == residual != shape[1] for shape in fused)
    experts_in_out = _are_experts_in_out(tensors, shapes, residual)
    return Sizes(residual, heads, kv_heads or heads, head_dim, nope, rope, is_conv1d, experts_in_out)


def settle(tensors: Sequence[NamedTensor], sizes: Mapping[str, Sizes], shapes: Shapes) -> list[NamedTensor]:
    """Settle by sizes what a name leaves open: gate and up or up alone, the norm of heads or of latent queries.

    Args:
        tensors: of the files.
        sizes: by component.
        shapes: of the files' tensors by name.
    """

    def mlp_of(tensor: NamedTensor) -> tuple[str, int | None, int | None, bool]:
        return tensor.component, tensor.block, tensor.expert, tensor.is_shared

    # Neurons of each MLP, and ranks of latent queries in each block.
    matrices = [tensor for tensor in tensors if not tensor.is_bias and len(shapes[tensor.name]) >= 2]
    hidden_sizes = {
        mlp_of(tensor): sizes[tensor.component].oriented(tensor, shapes[tensor.name])[-2]
        for tensor in matrices
        if tensor.group == "down"
    }
    ranks = {
        (tensor.component, tensor.block): shapes[tensor.name][0]
        for tensor in matrices
        if tensor.row.groups == "latent:q_a"
    }

    def settled(tensor: NamedTensor) -> NamedTensor:
        shape, row = shapes[tensor.name], tensor.row
        if row.groups == "gate+up" and row.split == "halves":
            out_size = sizes[tensor.component].oriented(tensor, shape)[-1:]
            if out_size == (hidden_sizes.get(mlp_of(tensor)),):
                return tensor._replace(row=row._replace(groups="up", split=""))
        if tensor.module == "query_norm" and shape == (ranks.get((tensor.component, tensor.block)),):
            return tensor._replace(row=row._replace(groups="latent:q_a_norm"))
        return tensor

    return [settled(tensor) for tensor in tensors]


def _are_experts_in_out(tensors: Sequence[NamedTensor], shapes: Shapes, residual: int) -> bool:
    """Tell whether stacked experts lie as [expert, in, out]: the matrix that is not square decides."""
    for tensor in tensors:
        shape = shapes[tensor.name]
        if len(shape) == 3 and not tensor.is_bias and shape[1] != shape[2] and residual in shape[1:]:
            reads = tensor.group != "down"
            return (shape[1] == residual) == reads
    return False


def _last(tensor: NamedTensor) -> str:
    return tensor.tail.split(".")[-1]


def config_of(config: Json, component: str) -> Json:
    """Return the part of a configuration that describes a component."""
    names = {
        "language": ("text_config", "llm_config", "thinker_config"),
        "vision": ("vision_config", "visual"),
    }.get(component, (f"{component}_config",))
    for name in names:
        nested = config.get(name)
        if isinstance(nested, dict):
            return config_of(nested, component)
    return config if component == "language" or "model_type" not in config or "text_config" not in config else {}


def first_size(config: Json, *names: str) -> int | None:
    """Return the first of the named fields that is a positive integer."""
    values = (config.get(name) for name in names)
    return next((value for value in values if type(value) is int and value > 0), None)
