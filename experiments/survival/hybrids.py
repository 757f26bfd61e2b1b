"""Births put together from the parts of two births."""

from __future__ import annotations

from collections.abc import Iterable

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.parameters import Params, flatten, parameter_table, unflatten

PARTS = ("embedding", "attention", "MLP", "norms", "head")
BLOCKS = ("attention", "MLP", "norms")
"""What a block is made of; the final norm counts among the norms."""

HYBRIDS: dict[str, tuple[str, ...]] = {
    "own birth": (),
    "another's embedding": ("embedding",),
    "another's blocks": BLOCKS,
    "another birth": PARTS,
    "another's attention": ("attention",),
    "another's MLP": ("MLP",),
    "another's norms": ("norms",),
    "another's head": ("head",),
}
"""What is tested against a trained model -> the parts that come from another birth; the rest is its own."""


def part_of(path: str) -> str:
    """Return the part that a parameter belongs to.

    Example:
        >>> [part_of(path) for path in ("embed/embedding", "blocks/attention_norm/scale", "blocks/mlp/up/kernel")]
        ['embedding', 'norms', 'MLP']

    Raises:
        KeyError: a path of no known part.
    """
    first, *rest = path.split("/")
    module = rest[0] if first == "blocks" else first
    if module.endswith("_norm"):
        return "norms"
    return {"embed": "embedding", "positions": "embedding", "attention": "attention", "mlp": "MLP", "head": "head"}[
        module
    ]


def transplant(receiver: Params, donor: Params, parts: Iterable[str]) -> Params:
    """Replace these parts of the receiver by the donor's, both of one architecture."""
    parts = set(parts)
    receiver_leaves, donor_leaves = flatten(receiver), flatten(donor)
    return unflatten(
        {path: donor_leaves[path] if part_of(path) in parts else leaf for path, leaf in receiver_leaves.items()}
    )


def hybrids_of(cfg: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Return those of :data:`HYBRIDS` whose parts an architecture has."""
    have = {part_of(path) for path in parameter_table(cfg)}
    return {name: parts for name, parts in HYBRIDS.items() if not parts or have & set(parts)}
