"""Latent attention: query, key and value are products of two matrices, with a norm between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import numpy as np

from bornbiased_jax.checkpoints.names import NamedTensor
from bornbiased_jax.checkpoints.roles import Axes, Role, RoleTensor
from bornbiased_jax.checkpoints.sizes import Sizes
from bornbiased_jax.checkpoints.tensors import NamedTensors, check_finite
from bornbiased_jax.schemes import Group


def parse_axes(text: str) -> Axes:
    """Parse named axes, as in "residual head*head_dim"."""
    return cast(Axes, tuple(tuple(axis.split("*")) for axis in text.split()))


def role_of(tensor: NamedTensor, group: str, leaf: str, axes: Axes, module: str = "") -> Role:
    """Return the role of a tensor at its place."""
    place = (tensor.block, tensor.expert)
    return Role(
        tensor.component, cast(Group, group), leaf, *place, axes, tensor.is_shared, name=tensor.name, module=module
    )


def latent_parts(parts: Mapping[str, NamedTensor], tensors: NamedTensors, sizes: Sizes) -> dict[Role, RoleTensor]:
    """Return query, key and value of one block; nothing where the shapes are not those of latent attention.

    Its parts are by what the convention calls them: "q_a", "q_a_norm", "q_b", "kv_a", "kv_a_norm", "kv_b".
    """
    if not {"kv_a", "kv_b"} <= parts.keys() or not sizes.nope_dim or not sizes.rope_dim or not sizes.num_heads:
        return {}
    nope, rope, heads = sizes.nope_dim, sizes.rope_dim, sizes.num_heads
    if len(tensors.shapes[parts["kv_b"].name]) != 2:
        return {}
    rows, rank = tensors.shapes[parts["kv_b"].name]
    value_dim = rows // heads - nope
    if value_dim < 1 or rows % heads:
        return {}
    # All that is multiplied must fit; what has more axes or fewer is something else.
    expected = {"kv_a": (rank + rope, sizes.residual), "kv_a_norm": (rank,)}
    if {"q_a", "q_b"} <= parts.keys():
        q_rank = tensors.shapes[parts["q_a"].name][0]
        expected |= {"q_a": (q_rank, sizes.residual), "q_a_norm": (q_rank,), "q_b": (heads * (nope + rope), q_rank)}
    if any(tensors.shapes[parts[kind].name] != shape for kind, shape in expected.items() if kind in parts):
        return {}

    def load(kind: str) -> np.ndarray:
        name = parts[kind].name
        return check_finite(tensors.read(name), name, tensors.where).astype(np.float64)

    def folded(kind: str) -> np.ndarray:
        """Return a first matrix [rank, D] with the norm's scale folded in, in float64."""
        matrix_RD = load(kind)
        if f"{kind}_norm" in parts:
            scale_R = load(f"{kind}_norm")
            matrix_RD[: len(scale_R)] *= scale_R[:, None]
        return matrix_RD

    def second() -> np.ndarray:
        """Return the second matrix of keys and values by head, [H, nope + value, rank]."""
        return load("kv_b").reshape(heads, -1, rank)

    def query() -> np.ndarray:
        return np.asarray(load("q_b") @ folded("q_a"))

    def key() -> np.ndarray:
        # Below the rank lie rows with RoPE, which all heads share.
        matrix_RD = folded("kv_a")
        turned = np.broadcast_to(matrix_RD[rank:], (heads, rope, sizes.residual))
        return np.concatenate([second()[:, :nope] @ matrix_RD[:rank], turned], axis=1)

    def value() -> np.ndarray:
        return np.asarray(second()[:, nope:] @ folded("kv_a")[:rank])

    roles: dict[Role, RoleTensor] = {}

    def add(group: Group, prefix: str, size: int, product: Callable[[], np.ndarray]) -> None:
        names = [parts[kind].name for kind in (f"{prefix}_a", f"{prefix}_a_norm", f"{prefix}_b") if kind in parts]
        tensor = parts["kv_a"]._replace(name="+".join(names), is_shared=False)
        axes = parse_axes(f"residual {'head' if group == 'query' else 'kv_head'}*head_dim")

        def read() -> np.ndarray:
            return product().reshape(-1, sizes.residual).T.astype(np.float32)

        roles[role_of(tensor, group, "kernel", axes)] = RoleTensor((sizes.residual, size), read)

    if {"q_a", "q_b"} <= parts.keys():
        add("query", "q", heads * (nope + rope), query)
    add("key", "kv", heads * (nope + rope), key)
    add("value", "kv", heads * value_dim, value)
    return roles
