"""The one table of parameters: path, named axes, group and norm of every weight that a configuration has.

Whatever must know a parameter reads this table: initialization, sharding, memory and operation counts, adapters,
changes of the weights, import and export, lineage. A parameter that a layer has and the table lacks, or the reverse, is
an error: ``tests/test_parameters.py`` compares them for every preset and for random configurations.

An axis of an array is one or several named axes, the outer first: ``"head*head_dim"`` holds heads, each with its
channels, one after the other. Sizes follow from the names, so that no shape is written by hand.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Iterator
from typing import Any, Literal, get_args

from flax import traverse_util

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import unread_fields
from bornbiased_jax.schemes import Group, parse_groups

Params = dict[str, Any]
Axis = Literal[
    "layer", "vocab", "position", "residual", "hidden", "head", "kv_head", "head_dim", "expert", "shared_hidden",
    "shared_expert", "prefix", "channel",
]  # fmt: skip
"""Of files read by names, "channel" is an axis that has no symmetry of ours: pixels, state-space channels."""
AXES: tuple[Axis, ...] = get_args(Axis)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One parameter of a model, of all blocks together.

    Attributes:
        path: names joined by "/", as in "blocks/mlp/up/kernel".
        axes: named axes of each axis of the array.
        shape: sizes of the axes.
        group: what it is; initialization has a distribution for each group.
        norm: path of the norm that stands between it and the residual stream, None where none does. Matrices that read
            the stream read it through this norm; matrices that write to it write through it.
    """

    path: str
    axes: tuple[tuple[Axis, ...], ...]
    shape: tuple[int, ...]
    group: Group
    norm: str | None = None

    @property
    def module(self) -> str:
        """The path without its last name, as in "blocks/mlp/up"."""
        return self.path.rpartition("/")[0]

    @property
    def leaf(self) -> str:
        """The last name of the path: "kernel", "bias", "scale", "embedding" …."""
        return self.path.rpartition("/")[2]

    @property
    def is_stacked(self) -> bool:
        """True if the first axis counts blocks."""
        return self.axes[0] == ("layer",)

    @property
    def block_axes(self) -> tuple[tuple[Axis, ...], ...]:
        """Axes without that of blocks."""
        return self.axes[1:] if self.is_stacked else self.axes

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Shape without the axis of blocks."""
        return self.shape[1:] if self.is_stacked else self.shape

    @property
    def is_matrix(self) -> bool:
        """True if it has two axes or more besides that of blocks."""
        return len(self.block_axes) >= 2

    @property
    def reads_residual(self) -> bool:
        """True if it is a matrix [in, out] whose input is the residual stream."""
        return self.is_matrix and self.axes[-2] == ("residual",)

    @property
    def in_expert(self) -> bool:
        """True if it is one of the matrices of each expert."""
        return self.is_matrix and self.block_axes[0] == ("expert",)

    @property
    def neuron_axis(self) -> int | None:
        """The axis of hidden units, of an expert's too, counted from the end; None where there is none."""
        axis = self.position_of("hidden")
        return self.position_of("shared_hidden") if axis is None else axis

    @property
    def writes_residual(self) -> bool:
        """True if its last axis holds residual coordinates that are added up: of a table, a writing matrix, a bias."""
        return self.axes[-1] == ("residual",) and self.group != "norm"

    def position_of(self, axis: Axis) -> int | None:
        """Return the first axis of the array that holds a named axis, counted from the end; None if there is none."""
        for index, names in enumerate(self.axes):
            if axis in names:
                return index - len(self.axes)
        return None


@functools.lru_cache(maxsize=256)
def parameter_table(cfg: ModelConfig) -> dict[str, Parameter]:
    """Return every parameter of a configuration by path, in the order of paths.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> table = parameter_table(preset("llama-tiny"))
        >>> table["blocks/mlp/up/kernel"].shape, table["blocks/mlp/up/kernel"].norm
        ((4, 128, 352), 'blocks/mlp_norm')
    """
    sizes = axis_sizes(cfg)
    rows = {}
    for path, axes, group, norm in _declarations(cfg):
        names: Any = tuple(tuple(axis.split("*")) for axis in axes.split())
        shape = tuple(math.prod(sizes[name] for name in axis) for axis in names)
        rows[path] = Parameter(path, names, shape, group, norm)
    return dict(sorted(rows.items()))


def axis_sizes(cfg: ModelConfig) -> dict[Axis, int]:
    """Return the size of every named axis."""
    return {
        "layer": cfg.num_layers,
        "vocab": cfg.vocab_size,
        "position": cfg.max_seq_len,
        "residual": cfg.d_model,
        "hidden": cfg.d_ff,
        "head": cfg.num_heads,
        "kv_head": cfg.kv_heads,
        "head_dim": cfg.key_dim,
        "expert": cfg.num_experts or 0,
        "shared_hidden": cfg.shared_expert_width or 0,
        "shared_expert": 0 if cfg.shared_expert_width is None else 1,
        "prefix": cfg.prefix_length or 0,
        "channel": 0,
    }


_Declaration = tuple[str, str, Group, str | None]


def _declarations(cfg: ModelConfig) -> Iterator[_Declaration]:
    """Yield path, axes, group and norm of every parameter."""
    yield "embed/embedding", "vocab residual", "embedding", None
    if cfg.positions == "learned":
        yield "positions/embedding", "position residual", "positions", None
    for sublayer, has_sublayer, rows in (("attention", cfg.attention, _attention), ("mlp", cfg.mlp, _mlp)):
        if has_sublayer:
            if sublayer == "attention" or not cfg.shared_norm:
                yield from _norm(cfg, f"blocks/{sublayer}_norm", "layer residual")
            if cfg.norm_position == "both":
                yield from _norm(cfg, f"blocks/{sublayer}_post_norm", "layer residual")
            yield from rows(cfg)
    yield from _norm(cfg, "final_norm", "residual")
    if not cfg.tie_embeddings:
        yield "head/kernel", "residual vocab", "head", "final_norm" if cfg.norm != "none" else None


def _norm(cfg: ModelConfig, module: str, axes: str) -> Iterator[_Declaration]:
    """Yield the scale of a norm, and the bias that LayerNorm has, if the configuration has them."""
    if cfg.norm != "none" and cfg.norm_parameters != "none":
        yield f"{module}/scale", axes, "norm", None
    if cfg.norm == "layernorm" and cfg.norm_parameters == "all":
        yield f"{module}/bias", axes, "bias", None


def _linear(
    module: str, axes: str, group: Group, norm: str | None = None, *, has_bias: bool = False
) -> Iterator[_Declaration]:
    """Yield a kernel [in, out] of every block (and of every expert), and its bias [out]."""
    yield f"{module}/kernel", f"layer {axes}", group, norm
    if has_bias:
        yield f"{module}/bias", f"layer {axes.split()[-1]}", "bias", None


def _attention(cfg: ModelConfig) -> Iterator[_Declaration]:
    before, after = _norm_sites(cfg, "blocks/attention")
    module = "blocks/attention"
    qkv_bias = cfg.bias or cfg.qkv_bias
    for name, axis in (("query", "head*head_dim"), ("key", "kv_head*head_dim"), ("value", "kv_head*head_dim")):
        group: Any = name
        yield from _linear(f"{module}/{name}", f"residual {axis}", group, before, has_bias=qkv_bias)
        if cfg.qk_norm and name != "value":
            scope = axis if cfg.qk_norm_scope == "projection" else "head_dim"
            yield f"{module}/{name}_norm/scale", f"layer {scope}", "norm", None
    yield from _linear(f"{module}/output", "head*head_dim residual", "output", after, has_bias=cfg.bias)
    if cfg.output_gate in ("headwise", "elementwise"):
        axis = "head" if cfg.output_gate == "headwise" else "head*head_dim"
        yield from _linear(f"{module}/gate", f"residual {axis}", "output_gate", before)
    if cfg.output_gate == "value":
        yield from _linear(f"{module}/value_gate", "head_dim head_dim", "value_gate", has_bias=True)
    if cfg.head_norm:
        yield f"{module}/head_norm/scale", "layer head_dim", "norm", None
    if cfg.sink_logit == "learned":
        yield f"{module}/sink_logit", "layer head", "sink_logit", None
    if cfg.prefix_length is not None:
        for name in ("prefix_key", "prefix_value"):
            yield f"{module}/{name}", "layer prefix kv_head head_dim", "prefix", None
    if cfg.prefix_memory != "none":
        yield f"{module}/prefix_memory", "layer head head_dim head_dim", "prefix_memory", None


def _mlp(cfg: ModelConfig) -> Iterator[_Declaration]:
    before, after = _norm_sites(cfg, "blocks/mlp")
    # In a mixture of experts neurons lie in an expert, and an expert in a block.
    expert = "" if cfg.num_experts is None else "expert "
    has_bias = cfg.bias and cfg.num_experts is None
    if cfg.gated_mlp:
        yield from _linear("blocks/mlp/gate", f"{expert}residual hidden", "gate", before, has_bias=has_bias)
    yield from _linear("blocks/mlp/up", f"{expert}residual hidden", "up", before, has_bias=has_bias)
    yield from _linear("blocks/mlp/down", f"{expert}hidden residual", "down", after, has_bias=has_bias)
    if cfg.num_experts is not None:
        yield from _linear("blocks/mlp/router", "residual expert", "router", before)
    if cfg.shared_expert_width is not None:
        # An expert that every token visits, and the gate that weights it.
        shared = "blocks/mlp/shared_expert"
        if cfg.gated_mlp:
            yield from _linear(f"{shared}/gate", "residual shared_hidden", "gate", before)
        yield from _linear(f"{shared}/up", "residual shared_hidden", "up", before)
        yield from _linear(f"{shared}/down", "shared_hidden residual", "down", after)
        yield from _linear("blocks/mlp/shared_expert_gate", "residual shared_expert", "router", before)


def _norm_sites(cfg: ModelConfig, sublayer: str) -> tuple[str | None, str | None]:
    """Return the norm before a sublayer and the one after it, None where there is none."""
    if cfg.norm == "none":
        return None, None
    alone = "blocks/attention_norm" if cfg.shared_norm else f"{sublayer}_norm"
    return {"pre": (alone, None), "post": (None, alone), "both": (alone, f"{sublayer}_post_norm")}[cfg.norm_position]


def flatten(params: Params) -> dict[str, Any]:
    """Return {"blocks/attention/query/kernel": array, …}, sorted by path."""
    return dict(sorted(traverse_util.flatten_dict(params, sep="/").items()))


def unflatten(flat: dict[str, Any]) -> Params:
    """Invert :func:`flatten`."""
    params: Params = traverse_util.unflatten_dict(flat, sep="/")
    return params


def count_parameters(params: Params) -> int:
    """Count the scalars in a tree of arrays or of shape descriptions."""
    return sum(math.prod(leaf.shape) for leaf in flatten(params).values())


def check_read(cfg: ModelConfig, field: str, value: object, text: str, swept: str = "") -> None:
    """Refuse a setting that the model has no use for.

    Args:
        cfg: the model with the setting.
        field: the field that was set, or ``init.GROUP``.
        value: its value.
        text: the setting as it was written.
        swept: a field that a sweep changes, at some values of which the model may read others.

    Raises:
        InputError: another field switches this one off, or the model has no parameters of the group.
    """
    switch = unread_fields(cfg).get(field, swept)
    if switch != swept:
        state = json.dumps(getattr(cfg, switch)).strip('"')
        raise InputError(f"{text} changes nothing where {switch}={state}: set {switch} too, or leave it out")
    groups = {field.removeprefix("init.")} if field.startswith("init.") else set()
    if field == "init_groups":
        groups = set(parse_groups(str(value or "")))
    for group in groups - {row.group for row in parameter_table(cfg).values()}:
        reason = "its head is the embedding" if group == "head" else f"it has no parameters of the group {group}"
        raise InputError(f"{text} draws no weights of this model, for {reason}: leave it out")
