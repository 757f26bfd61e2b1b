"""Names of tensors for a reader: those that the checkpoint's own files give them, where they have some."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.naming import NamedRoles
from bornbiased_jax.lineage.audit.finding import listed

StoredNames = Mapping[str, list[str]]
"""Names of tensors in the files, by path: of a parameter, of it in one block, of a role, of a matrix in all blocks."""


def stored_names(opened: Checkpoint | NamedRoles) -> StoredNames:
    """Return the names in the files by path; a path is missing where the format has no other name for it."""
    names: dict[str, list[str]] = defaultdict(list)
    if isinstance(opened, NamedRoles):
        for role in opened.roles:
            names[role.path].append(role.name)
            names[role.matrix_name].append(role.name)
        return names
    for role in opened.by_role().roles:
        path = role.name if role.block is None else role.name.rpartition("/")[0]
        # A piece that has no place is all blocks, or all experts.
        place = tuple(number - 1 for number in (role.block, role.expert) if number is not None)
        pieces = [piece for piece in opened.pieces(path) if piece.tensor and piece.place == place[: len(piece.place)]]
        for key in {path, role.name, role.path}:
            names[key] += [piece.tensor for piece in pieces]
    return {path: tensors for path, tensors in names.items() if tensors}


def joined(names: Iterable[str]) -> str:
    """Write several names as one, with a star for each number that differs; names of several forms are listed.

    >>> joined(["layers.0.up.weight", "layers.1.up.weight"]), joined(["layers.0.w1"])
    ('layers.*.up.weight', 'layers.0.w1')
    """
    forms: dict[tuple[str, ...], list[list[str]]] = defaultdict(list)
    for name in names:
        parts = re.split(r"(?<![a-zA-Z])(\d+)", name)
        forms[tuple(parts[::2])].append(parts[1::2])
    patterns = []
    for texts, rows in forms.items():
        numbers = [column[0] if len(set(column)) == 1 else "*" for column in zip(*rows, strict=True)]
        patterns.append("".join(part for pair in zip(texts, [*numbers, ""], strict=True) for part in pair))
    return listed(patterns)
