"""Sizes of fingerprints: how many neurons are stored, and how many bytes a file will have, no tensor read."""

from __future__ import annotations

import bisect
import dataclasses

from bornbiased_jax.checkpoints.roles import Role, RoleSource
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.fingerprints import Settings

# Neurons of an expert are not lowered below this by default; nor those of any MLP below the least by a limit of bytes.
_LEAST_OF_EXPERT = 64
_LEAST = 8


def residual_axis(role: Role) -> int | None:
    """Return the residual axis of a matrix; None of vectors, and of arrays that have none."""
    is_matrix = len(role.axes) == 2 and role.leaf in ("kernel", "embedding")
    return role.axes.index(("residual",)) if is_matrix and ("residual",) in role.axes else None


def stored_neurons(total: int, num_experts: int, settings: Settings) -> int:
    """Return how many neurons of an MLP are stored, or of each of several experts.

    Example:
        >>> stored_neurons(11_008, 1, Settings()), stored_neurons(1_408, 64, Settings())
        (1024, 64)
    """
    if settings.neurons is None:
        return total
    if num_experts == 1:
        return min(total, settings.neurons)
    return min(total, max(settings.neurons // num_experts, min(settings.neurons, _LEAST_OF_EXPERT)))


def predicted_bytes(source: RoleSource, settings: Settings) -> int:
    """Predict the size of a fingerprint's file from the sizes of tensors, none read.

    The prediction is above the size, by a percent of large files, of small ones by some 40 bytes a tensor.
    """
    dim = settings.dim
    # Tensors by component; the header has a row for each.
    components: dict[str, list[Role]] = {}
    for role in source.roles:
        components.setdefault(role.component, []).append(role)
    total = 2_000 + sum(len(role.path) + 90 for role in source.roles)
    for name, roles in components.items():
        shape = source.shape(name)
        has_vocabulary = any(role.group == "embedding" and role.block is None for role in roles)
        spaces = 2 if has_vocabulary else 1
        num_experts = max((role.expert or 0 for role in roles if not role.is_shared), default=0)
        cells, parts, width, heads = set(), set(), 0, {role.block for role in roles if role.group == "query"}
        for role in roles:
            sizes = source.array_shape(role)
            # Vectors are kept in float16.
            if len(sizes) == 1:
                total += 2 * sizes[0] + len(role.path)
            axis = residual_axis(role)
            if axis is None:
                continue
            # Matrices are sketched across the residual stream, neuron by neuron.
            width, length = sizes[axis], sizes[1 - axis]
            cells.add((role.block, role.matrix))
            parts.add(role.group if role.block is None else "blocks")
            if role.block is None:
                total += length // 8 if role.group == "embedding" else 0
            elif role.group in ("gate", "up", "down"):
                is_routed = role.expert is not None and not role.is_shared
                total += spaces * dim * stored_neurons(length, num_experts if is_routed else 1, settings)
                total += 30 if role.group == "up" else 0
            elif role.group == "router":
                total += spaces * dim * length
        # The heat map has a row for each matrix, coordinates one for each part.
        total += len(cells) * (2 * width + 16) + len(parts) * (width * dim + 100)
        if has_vocabulary and shape.num_heads:
            total += len(heads) * (shape.num_heads * 2 * dim * dim + 10)
        total += 2_000
    return total


def fitted(source: RoleSource, settings: Settings, max_bytes: int) -> Settings:
    """Lower the number of neurons until the file fits.

    Raises:
        InputError: nothing fits.
    """
    if predicted_bytes(source, settings) <= max_bytes:
        return settings

    def size(neurons: int) -> int:
        return predicted_bytes(source, dataclasses.replace(settings, neurons=neurons))

    smallest = size(_LEAST)
    if smallest > max_bytes:
        raise InputError(
            f"with {_LEAST} neurons of each MLP a fingerprint still has {smallest:,} bytes, above the limit of "
            f"{max_bytes:,}: raise --max-bytes, or lower --dim below {settings.dim}"
        )
    # The largest number that fits, of those up to all neurons.
    largest = max(size for role in source.roles for size in source.array_shape(role))
    numbers = range(_LEAST, settings.neurons or largest)
    return dataclasses.replace(settings, neurons=numbers[bisect.bisect_right(numbers, max_bytes, key=size) - 1])
