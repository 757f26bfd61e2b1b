"""Which matrices of wide models the sheet takes spectra of, so that a model of 7B costs no more than one block of it.

Of models up to a width of 1,024 all are taken, of wider ones those of the block in the middle of the depth, and there
of one expert for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bornbiased_jax.checkpoints.native_roles import LANGUAGE
from bornbiased_jax.checkpoints.roles import Role, RoleSource
from bornbiased_jax.lineage.spectra import MATRICES, SPECTRA

WIDEST = 4096
"""Longest shorter side of a matrix, and highest rank of a product of attention, of which spectra are computed."""
_NARROW = 1024

BlockRoles = Mapping[int, Sequence[Role]]
"""Roles by the number of their block."""


class Sample(NamedTuple):
    """The part of a model that spectra are taken of.

    Attributes:
        paths: of matrices whose singular values are computed.
        blocks: whose products of attention are; numbers from 1.
    """

    paths: frozenset[str]
    blocks: frozenset[int]


def sample_pair(base: RoleSource, suspect: RoleSource) -> tuple[tuple[Sample, Sample], dict[str, str]]:
    """Choose the matrices and the blocks of two models whose spectra are compared.

    Returns:
        The sample of each model; by statistic which matrices or blocks both samples hold, "" where they hold all.
    """
    sources = (base, suspect)
    shared = _shared_matrices(*sources)
    of_products = [_product_blocks(source) for source in sources]
    matrices, blocks = shared, of_products
    if any(map(_is_wide, sources)):
        matrices = {block: _few(base, shared[block]) for block in _middle(shared)}
        blocks = [_middle(of_model) for of_model in of_products]
    paths = frozenset(role.path for roles in matrices.values() for role in roles)
    texts = [_blocks_text(sampled, of_model) for sampled, of_model in zip(blocks, of_products, strict=True)]
    products_text = " and ".join(dict.fromkeys(text for text in texts if text))
    parts = {"spectra": _matrices_text(matrices, shared), **dict.fromkeys(SPECTRA, products_text)}
    return (Sample(paths, frozenset(blocks[0])), Sample(paths, frozenset(blocks[1]))), parts


def is_block_matrix(source: RoleSource, role: Role) -> bool:
    """Check whether a role is a matrix of a block of the language model."""
    is_kernel = role.component == LANGUAGE and role.leaf == "kernel" and role.block is not None
    return is_kernel and len(source.array_shape(role)) == 2


def _is_wide(source: RoleSource) -> bool:
    sides = (min(source.array_shape(role)) for role in source.roles if is_block_matrix(source, role))
    return max(sides, default=0) > _NARROW


def _shared_matrices(base: RoleSource, suspect: RoleSource) -> BlockRoles:
    """Return the matrices of blocks that both models have in one shape."""
    of_suspect = {role.path: suspect.array_shape(role) for role in suspect.roles}
    shared: dict[int, list[Role]] = {}
    for role in base.roles:
        shape = base.array_shape(role)
        is_shared = is_block_matrix(base, role) and of_suspect.get(role.path) == shape
        if role.block is not None and is_shared:
            shared.setdefault(role.block, []).append(role)
    return shared


def _few(source: RoleSource, roles: Sequence[Role]) -> list[Role]:
    """Leave out what is too wide, and all experts but the first."""
    return [role for role in roles if min(source.array_shape(role)) <= WIDEST and role.expert in (None, 1)]


def _product_blocks(source: RoleSource) -> list[int]:
    """List the blocks that have all matrices of attention, with products of a rank that is computed."""
    shapes: dict[int, dict[str, tuple[int, ...]]] = {}
    for role in source.roles:
        if role.block is not None and role.group in MATRICES and is_block_matrix(source, role):
            shapes.setdefault(role.block, {})[role.group] = source.array_shape(role)
    return [
        block
        for block, of_block in shapes.items()
        if of_block.keys() >= set(MATRICES) and max(min(of_block[name]) for name in ("key", "value")) <= WIDEST
    ]


def _middle(blocks: Iterable[int]) -> list[int]:
    """Return the block in the middle of the depth; none without blocks."""
    numbers = list(blocks)
    return numbers[(len(numbers) - 1) // 2 :][:1]


def _blocks_text(sample: Iterable[int], blocks: Iterable[int]) -> str:
    """Name the block of a sample; "" for all.

    >>> _blocks_text([16], range(1, 33)), _blocks_text([1, 2], [1, 2])
    ('block 16 of 32', '')
    """
    numbers, count = list(sample), len(list(blocks))
    return "" if len(numbers) == count else f"block {numbers[0]} of {count}"


def _matrices_text(sample: BlockRoles, shared: BlockRoles) -> str:
    blocks = _blocks_text(sample, shared)
    names = {block: [role.matrix for role in roles] for block, roles in sample.items()}
    if all(len(names[block]) == len(shared[block]) for block in names):
        return blocks
    matrices = ", ".join(dict.fromkeys(name for of_block in names.values() for name in of_block))
    # A model of one block has no other.
    return " of ".join(text for text in (matrices, blocks) if text)
