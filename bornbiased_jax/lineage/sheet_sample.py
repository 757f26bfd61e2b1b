"""Which matrices of wide models the sheet takes spectra of, so that a model of 7B costs no more than one block of it.

Work is counted in multiplications, as timed: of a matrix with sides s ≤ l, s² l / 2 for its Gram matrix and 1.7 s³ for
the eigenvalues of that; of a product of attention of rank r, 10 r³ for all its values (7 r³ of them for the
eigenvalues), and 4 r² for every coordinate above r. The blocks of a sample lie evenly over the depth. Where one block
alone exceeds the limit, its attention's products stay, and of its matrices the cheapest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from bornbiased_jax.checkpoints.native_roles import LANGUAGE
from bornbiased_jax.checkpoints.roles import Role, RoleSource
from bornbiased_jax.lineage.spectra import MATRICES, SPECTRA

WIDEST = 4096
"""Longest shorter side of a matrix, and highest rank of a product of attention, of which spectra are computed."""
# Multiplications for one model, which a core takes a minute or two for: one block at 4,096 wide with as many key heads.
_WORK = 30 * 4096**3
# Blocks that are named one by one.
_NAMED = 6

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
    narrow = {
        block: [role for role in roles if min(base.array_shape(role)) <= WIDEST] for block, roles in shared.items()
    }
    work = {role: _matrix_work(base.array_shape(role)) for roles in narrow.values() for role in roles}
    products = [_product_work(source) for source in sources]
    # As many blocks as the limit allows, of the model that takes longer.
    of_block = sum(work.values()) / max(1, len(narrow))
    of_products = max(sum(by_block.values()) / max(1, len(by_block)) for by_block in products)
    count = max(1, int(_WORK / max(1.0, of_block + of_products)))
    sample = {block: narrow[block] for block in _evenly_over(list(narrow), count)}
    blocks = [_evenly_over(list(by_block), count) for by_block in products]
    if count == 1:
        sample = {block: _cheapest(roles, work, _WORK - of_products) for block, roles in sample.items()}
    paths = frozenset(role.path for roles in sample.values() for role in roles)
    texts = [_blocks_text(sampled, by_block) for sampled, by_block in zip(blocks, products, strict=True)]
    of_products_text = " and ".join(dict.fromkeys(text for text in texts if text))
    parts = {"spectra": _matrices_text(sample, shared), **dict.fromkeys(SPECTRA, of_products_text)}
    return (Sample(paths, frozenset(blocks[0])), Sample(paths, frozenset(blocks[1]))), parts


def is_block_matrix(source: RoleSource, role: Role) -> bool:
    """Check whether a role is a matrix of a block of the language model."""
    is_kernel = role.component == LANGUAGE and role.leaf == "kernel" and role.block is not None
    return is_kernel and len(source.array_shape(role)) == 2


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


def _matrix_work(shape: tuple[int, ...]) -> float:
    short, long = sorted(shape)
    return short**2 * long / 2 + 1.7 * short**3


def _product_work(source: RoleSource) -> dict[int, float]:
    """Return the work for the products of attention of every block that has them, of a rank that is computed."""
    kernels: dict[int, dict[str, tuple[int, ...]]] = {}
    for role in source.roles:
        if role.block is not None and role.group in MATRICES and is_block_matrix(source, role):
            kernels.setdefault(role.block, {})[role.group] = source.array_shape(role)
    work = {}
    for block, shapes in kernels.items():
        if shapes.keys() >= set(MATRICES):
            ranks = [min(shapes[name]) for name in ("key", "value")]
            width = shapes["key"][0]
            if max(ranks) <= WIDEST:
                work[block] = sum(10.0 * rank**3 + 4.0 * (width - rank) * rank**2 for rank in ranks)
    return work


def _evenly_over(blocks: Sequence[int], count: int) -> list[int]:
    """Choose blocks that lie evenly over the depth, the middle of as many parts.

    >>> _evenly_over(range(1, 33), 1), _evenly_over(range(1, 33), 4), _evenly_over([1, 2], 5)
    ([16], [4, 12, 20, 28], [1, 2])
    """
    if count >= len(blocks):
        return list(blocks)
    return [blocks[((2 * part + 1) * len(blocks) - 1) // (2 * count)] for part in range(count)]


def _cheapest(roles: Sequence[Role], work: Mapping[Role, float], limit: float) -> list[Role]:
    """Choose the matrices that take the least, up to a limit; at least one."""
    sample: list[Role] = []
    for role in sorted(roles, key=work.__getitem__):
        limit -= work[role]
        if sample and limit < 0:
            break
        sample.append(role)
    return sample


def _blocks_text(sample: Collection[int], blocks: Collection[int]) -> str:
    """Name blocks of a sample; "" for all.

    >>> _blocks_text([16], range(1, 33)), _blocks_text([4, 12, 20, 28], range(1, 33)), _blocks_text([1, 2], [1, 2])
    ('block 16 of 32', 'blocks 4, 12, 20, 28 of 32', '')
    """
    if len(sample) == len(blocks):
        return ""
    if len(sample) > _NAMED:
        return f"{len(sample)} of {len(blocks)} blocks"
    return f"block{'s' if len(sample) > 1 else ''} {', '.join(map(str, sample))} of {len(blocks)}"


def _matrices_text(sample: BlockRoles, shared: BlockRoles) -> str:
    blocks = _blocks_text(sample, shared)
    counts = [sum(len(roles[block]) for block in sample) for roles in (sample, shared)]
    if counts[0] == counts[1]:
        return blocks
    roles = [role for of_block in sample.values() for role in of_block]
    # Experts are many: counted.
    has_experts = any(role.expert is not None for role in roles)
    names = f"{counts[0]} of {counts[1]} matrices" if has_experts else ", ".join(dict.fromkeys(r.matrix for r in roles))
    return f"{names} of {blocks or 'all blocks'}"
