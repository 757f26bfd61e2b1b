"""Labels that are hidden units: form A, which no free rescaling of a unit changes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bornbiased_jax.checkpoints.reader import WeightsReader
from bornbiased_jax.seedprint.weights.align import mlp_modules
from bornbiased_jax.seedprint.weights.view import Matrix, folded, unit_rows


class Cosines(NamedTuple):
    """Cosines of every hidden unit of the base with every one of the suspect, by matrix: [F, F'] float32 each.

    ``gate`` is None where neither model has one.
    """

    gate: np.ndarray | None
    up: np.ndarray
    down: np.ndarray


def unit_cosines(
    base: WeightsReader, suspect: WeightsReader, pair: tuple[int, int], rotation_DD: np.ndarray | None
) -> Cosines:
    """The cosines for one pair of blocks; base rows are turned by the rotation first where one is given."""
    found = {module: _cosines(base, suspect, module, pair, rotation_DD) for module in mlp_modules(base)}
    return Cosines(found.get("mlp/gate"), found["mlp/up"], found["mlp/down"])


def form_a(
    base: WeightsReader, suspect: WeightsReader, pair: tuple[int, int], rotation_DD: np.ndarray | None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Scores of hidden unit f of the base with f' of the suspect: [F, F] float32, and their parts' diagonals apart.

    H[f, f'] = cos(gate) + |cos(up) + cos(down)|, and cos(up) + cos(down) where there is no gate. Rows have unit norm,
    and up and down may change their sign together, so that moving a factor from one to the other changes nothing.
    """
    gate_FF, up_FF, down_FF = unit_cosines(base, suspect, pair, rotation_DD)
    parts = {"mlp/up": up_FF, "mlp/down": down_FF}
    scores_FF = up_FF + down_FF
    if gate_FF is not None:
        np.abs(scores_FF, out=scores_FF)
        scores_FF += gate_FF
        parts = {"mlp/gate": gate_FF, **{module: np.abs(part_FF) for module, part_FF in parts.items()}}
    return scores_FF, parts


def _cosines(
    base: WeightsReader,
    suspect: WeightsReader,
    module: str,
    pair: tuple[int, int],
    rotation_DD: np.ndarray | None,
) -> np.ndarray:
    ours_FD = unit_rows(folded(base, Matrix(module, pair[0])))
    if rotation_DD is not None:
        ours_FD = ours_FD @ rotation_DD
    theirs_FD = unit_rows(folded(suspect, Matrix(module, pair[1])))
    return ours_FD @ theirs_FD.T
