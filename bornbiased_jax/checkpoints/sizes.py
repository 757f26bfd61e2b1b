"""Sizes of the parts of a model, from the shapes of its tensors and a few fields of any ``config.json``.

Also what follows from sizes alone: how a tensor of a file is laid out, and where the matrices fused in it lie.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from bornbiased_jax.checkpoints.conventions import HEAD_DIM, HEADS, KV_HEADS, Convention
from bornbiased_jax.checkpoints.names import NamedTensor
from bornbiased_jax.checkpoints.roles import Axes

Json = Mapping[str, object]
"""A ``config.json``, of which nothing is taken for granted."""
NamedShapes = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a component.

    Attributes:
        residual: width of the residual stream.
        num_heads, num_kv_heads, head_dim: of attention; None where nothing tells.
        num_experts: of its mixtures of experts; None where it has none.
        nope_dim, rope_dim: of latent attention, the widths of a head without and with RoPE.
        is_conv1d: whether matrices named "c_…" lie as [in, out].
        are_experts_in_out: whether stacked experts lie as [expert, in, out].
    """

    residual: int
    num_heads: int | None
    num_kv_heads: int | None
    head_dim: int | None
    num_experts: int | None
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
        if tensor.row.split in ("experts", "experts_in_out"):
            return tensor.row.split == "experts_in_out"
        return self.are_experts_in_out if is_stacked else self.is_conv1d and _last(tensor).startswith("c_")

    def stacked(self, tensor: NamedTensor, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a tensor of the files, of experts one after the other with an axis of their own."""
        if tensor.row.split in ("experts", "experts_in_out") and len(shape) == 2 and not tensor.is_bias:
            count = self.num_experts or 1
            return (count, shape[0] // count, shape[1]) if shape[0] % count == 0 else ()
        return shape

    def oriented(self, tensor: NamedTensor, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a matrix as [expert, in, out]."""
        shape = self.stacked(tensor, shape)
        if tensor.is_bias or len(shape) < 2 or self.is_in_out(tensor, len(shape) == 3):
            return shape
        return (*shape[:-2], shape[-1], shape[-2])

    def part_sizes(self, tensor: NamedTensor, size: int) -> list[int] | None:
        """Return the sizes of the matrices that are fused along an axis; None where they do not add up to it."""
        split, groups = tensor.row.split, tensor.group.split("+")
        if len(groups) == 1:
            return [size]
        if split in ("halves", "interleaved"):
            return [size // 2] * 2 if size % 2 == 0 else None
        if self.query_size is None or self.key_size is None:
            return None
        parts = [self.key_size if group in ("key", "value") else self.query_size for group in groups]
        return parts if sum(parts) == size else None

    def part(self, tensor: NamedTensor, array: np.ndarray, index: int) -> np.ndarray:
        """Return one of the matrices that are fused along the last axis."""
        split, groups = tensor.row.split, tensor.group.split("+")
        if len(groups) == 1:
            return array
        if split == "interleaved":
            return array[..., index::2]
        lead, size = array.shape[:-1], array.shape[-1]
        if split == "halves":
            return array[..., index * size // 2 : (index + 1) * size // 2]
        heads, kv_heads, head_dim = self.num_heads or 1, self.num_kv_heads or 1, self.head_dim or 1
        if split == "gated":
            return array.reshape(*lead, heads, 2, head_dim)[..., index, :].reshape(*lead, -1)
        if split == "quarters":
            return array.reshape(*lead, 4, len(groups), -1)[..., index, :].reshape(*lead, -1)
        # One matrix after the other, or those of a group of heads: its queries, then its key and its value. One group
        # is multi-query attention, as many as heads GPT-NeoX.
        num_groups = kv_heads if split == "grouped" else 1
        in_group = [(kv_heads if group in ("key", "value") else heads) // num_groups for group in groups]
        ends = np.cumsum([0, *in_group])
        per_group = array.reshape(*lead, num_groups, ends[-1], head_dim)
        return per_group[..., ends[index] : ends[index + 1], :].reshape(*lead, -1)

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
            # Values may be narrower than keys.
            heads = {"output": self.num_heads, "value": self.num_kv_heads}.get(group)
            if heads and names[-1] == "head_dim":
                if size % heads:
                    return False
            elif values.get(names) not in (None, size):
                return False
        return True


def measure(config: Json, tensors: Sequence[NamedTensor], shapes: NamedShapes) -> Sizes:
    """Measure a component: from norms and tables the width, from its configuration (:func:`config_of`) the heads."""

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
    # llm-foundry and DBRX describe attention in a part of its own.
    attention = config.get("attn_config")
    if isinstance(attention, dict):
        kv_heads = 1 if attention.get("attn_type") == "multiquery_attention" else first_size(attention, *KV_HEADS)
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        kv_heads = 1
    if head_dim and not nope and keys and keys % head_dim == 0:
        kv_heads = keys // head_dim
    fused = [shapes[tensor.name] for tensor in tensors if _last(tensor) == "c_attn" and not tensor.is_bias]
    is_conv1d = any(shape[0] == residual != shape[1] for shape in fused)
    experts_in_out = _are_experts_in_out(tensors, shapes, residual)
    num_experts = rows_of("router")
    return Sizes(residual, heads, kv_heads or heads, head_dim, num_experts, nope, rope, is_conv1d, experts_in_out)


def settle(tensors: Sequence[NamedTensor], sizes: Mapping[str, Sizes], shapes: NamedShapes) -> list[NamedTensor]:
    """Settle what a name leaves open: by sizes and by the other tensors of the block.

    Sizes tell gate and up from up alone, queries with an output gate from those without, and the norm of heads from
    that of latent queries; a block's other norms tell whether one stands before or after its sublayer.
    """

    def mlp_of(tensor: NamedTensor) -> tuple[str, int | None, int | None, bool]:
        return tensor.component, tensor.block, tensor.expert, tensor.is_shared

    # Neurons of each MLP, and ranks of latent queries in each block.
    matrices = [tensor for tensor in tensors if not tensor.is_bias and len(shapes[tensor.name]) >= 2]
    hidden_sizes = {
        mlp_of(tensor): sizes[tensor.component].oriented(tensor, shapes[tensor.name])[-2:-1]
        for tensor in matrices
        if tensor.group == "down"
    }
    blocks: dict[tuple[str, int | None], dict[str, str]] = {}
    for tensor in tensors:
        blocks.setdefault((tensor.component, tensor.block), {})[tensor.tail] = tensor.row.groups
    ranks = {
        (tensor.component, tensor.block): shapes[tensor.name][0]
        for tensor in matrices
        if tensor.row.groups == "latent:q_a"
    }

    def settled(tensor: NamedTensor) -> NamedTensor:
        shape, row, size = shapes[tensor.name], tensor.row, sizes[tensor.component]
        in_block = blocks[tensor.component, tensor.block]
        if row.split == "halves" and size.oriented(tensor, shape)[-1:] == hidden_sizes.get(mlp_of(tensor)):
            is_gate = row.groups == "up+gate" and "up_proj" in in_block
            return tensor._replace(row=row._replace(groups="gate" if is_gate else "up", split=""))
        if row.groups == "output_gate" and shape[0] == size.num_heads != size.query_size:
            return tensor._replace(row=row._replace(groups="other:head_gate", axes="residual head"))
        if (linear := _in_linear_attention(tensor, shape, size.residual, in_block)) is not None:
            return tensor._replace(row=linear)
        # Megatron-LM core/transformer/attention.py: a group's queries, their gates, its key and its value.
        gated_size = 2 * ((size.query_size or 0) + (size.key_size or 0))
        if row.groups == "query+key+value" and row.split == "grouped" and shape[0] == gated_size:
            return tensor._replace(row=row._replace(groups="query+output_gate+key+value"))
        # MoonViT counts from 0.
        if tensor.tail == "mlp.fc1" and "mlp.fc0" in in_block:
            return tensor._replace(row=row._replace(groups="down"))
        if tensor.module == "query_norm" and shape == (ranks.get((tensor.component, tensor.block)),):
            return tensor._replace(row=row._replace(groups="latent:q_a_norm"))
        if tensor.group == "norm":
            return tensor._replace(row=row._replace(groups=_settled_norm(tensor, in_block)))
        return tensor

    return [settled(tensor) for tensor in tensors]


def _in_linear_attention(
    tensor: NamedTensor, shape: tuple[int, ...], residual: int, in_block: Mapping[str, str]
) -> Convention | None:
    """Return what a tensor is of an attention module with a state, as Kimi's, which has rates of decay; else None.

    Only the axis of the residual stream is named there.
    """
    module = tensor.tail.rpartition(".")[0]
    if module not in ("self_attn", "attention") or f"{module}.A_log" not in in_block:
        return None
    if len(shape) != 2 or tensor.is_bias:
        return None
    if tensor.group == "output":
        axes = "channel residual"
    else:
        axes = "residual channel" if shape[1] == residual else "channel channel"
    return Convention(tensor.row.match, "other:*", axes=axes)


def _settled_norm(tensor: NamedTensor, in_block: Mapping[str, str]) -> str:
    """Return what a norm is, by the groups of all tensors of its block by their names."""
    groups = tensor.row.groups
    has_first = "norm:attention_norm" in in_block.values()
    if tensor.tail in ("post_attention_layernorm", "post_attention_norm"):
        if any(group == "norm:mlp_norm" and tail != tensor.tail for tail, group in in_block.items()):
            return "norm:attention_post_norm"
        if not has_first and "norm:mlp_post_norm" in in_block.values():
            return "norm:attention_norm"
    if tensor.tail == "post_feedforward_layernorm" and not has_first:
        return "norm:mlp_norm"
    if tensor.tail == "norm1" and "norm0" in in_block:
        return "norm:mlp_norm"
    return groups


def _are_experts_in_out(tensors: Sequence[NamedTensor], shapes: NamedShapes, residual: int) -> bool:
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
