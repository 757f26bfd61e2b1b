"""Labels that are hidden units: form A, which no free rescaling of a unit changes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bornbiased_jax.checkpoints.reader import WeightsReader
from bornbiased_jax.seedprint.weights.align import mlp_modules
from bornbiased_jax.seedprint.weights.coordinates import Module, trace_z
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
) -> tuple[np.ndarray, list[Module]]:
    """Scores of hidden unit f of the base with f' of the suspect: [F, F] float32, and z by matrix.

    H[f, f'] = cos(gate) + |cos(up) + cos(down)|, and cos(up) + cos(down) where there is no gate. Rows have unit norm,
    and up and down may change their sign together, so that moving a factor from one to the other changes nothing. Two
    score matrices are in memory at a time.
    """
    gated = "mlp/gate" in mlp_modules(base)
    scores_FF: np.ndarray | None = None
    by_module = []
    for module in ("mlp/up", "mlp/down", "mlp/gate")[: 3 if gated else 2]:
        if module == "mlp/gate" and scores_FF is not None:
            np.abs(scores_FF, out=scores_FF)
        part_FF = _cosines(base, suspect, module, pair, rotation_DD)
        change = np.abs if gated and module != "mlp/gate" else None
        by_module.append(Module(str(Matrix(module, pair[0])), trace_z(part_FF, change)))
        if scores_FF is None:
            scores_FF = part_FF
        else:
            scores_FF += part_FF
    assert scores_FF is not None
    return scores_FF, by_module


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
