"""Labels that are hidden units: form A, which no free rescaling of a unit changes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.lineage.weights.align import mlp_modules
from bornbiased_jax.lineage.weights.coordinates import Module, trace_z
from bornbiased_jax.lineage.weights.view import Matrix, folded, unit_rows


class UnitScores(NamedTuple):
    """Scores of hidden unit f of the base with f' of the suspect for one pair of blocks: [F, F'] float32 each.

    Attributes:
        first_FF: cos(gate), and cos(up) where there is no gate: what units are matched on.
        tested_FF: |cos(up) + cos(down)|, and cos(down) where there is no gate: what a matching is tested on.
        by_module: z by matrix.
    """

    first_FF: np.ndarray
    tested_FF: np.ndarray
    by_module: list[Module]


class Cosines(NamedTuple):
    """Cosines of every hidden unit of the base with every one of the suspect, by matrix: [F, F'] float32 each.

    ``gate`` is None where neither model has one.
    """

    gate: np.ndarray | None
    up: np.ndarray
    down: np.ndarray

    def scores(self) -> UnitScores:
        """Return what units are matched on and tested on, as :func:`unit_scores` has them; no z by matrix."""
        if self.gate is None:
            return UnitScores(self.up, self.down, [])
        return UnitScores(self.gate, np.abs(self.up + self.down), [])


def unit_cosines(
    base: Checkpoint, suspect: Checkpoint, pair: tuple[int, int], rotation_DD: np.ndarray | None
) -> Cosines:
    """Compute the cosines for one pair of blocks; base rows are rotated first where a rotation is given."""
    cosines = {module: _cosines(base, suspect, module, pair, rotation_DD) for module in mlp_modules(base)}
    return Cosines(cosines.get("mlp/gate"), cosines["mlp/up"], cosines["mlp/down"])


def unit_scores(
    base: Checkpoint, suspect: Checkpoint, pair: tuple[int, int], rotation_DD: np.ndarray | None
) -> UnitScores:
    """Compute the scores of one pair of blocks; base rows are rotated first where a rotation is given.

    Rows have unit norm, and up and down may change their sign together, so that moving a factor from one to the other
    changes nothing. Three score matrices are in memory at a time.
    """
    gated = "mlp/gate" in mlp_modules(base)
    by_module = []

    def cosines(module: str) -> np.ndarray:
        part_FF = _cosines(base, suspect, module, pair, rotation_DD)
        change = np.abs if gated and module != "mlp/gate" else None
        by_module.append(Module(str(Matrix(module, pair[0])), trace_z(_leading(part_FF), change)))
        return part_FF

    up_FF, tested_FF = cosines("mlp/up"), cosines("mlp/down")
    if not gated:
        return UnitScores(up_FF, tested_FF, by_module)
    tested_FF += up_FF
    np.abs(tested_FF, out=tested_FF)
    del up_FF
    return UnitScores(cosines("mlp/gate"), tested_FF, by_module)


def form_a(scores: UnitScores) -> np.ndarray:
    """Compute H[f, f'] = cos(gate) + |cos(up) + cos(down)|, without a gate cos(up) + cos(down): [F, F'] float32.

    It takes the place of ``first_FF``, which is not to be used again. Of MLPs of two sizes the first units are
    compared, as many as the smaller has: renumbering those is a group under which either model is exchangeable.
    """
    scores_FF = _leading(scores.first_FF)
    scores_FF += _leading(scores.tested_FF)
    return scores_FF


def _leading(scores_FF: np.ndarray) -> np.ndarray:
    """Return the square of the first units of both models."""
    size = min(scores_FF.shape)
    return scores_FF[:size, :size]


def _cosines(
    base: Checkpoint,
    suspect: Checkpoint,
    module: str,
    pair: tuple[int, int],
    rotation_DD: np.ndarray | None,
) -> np.ndarray:
    base_FD = unit_rows(folded(base, Matrix(module, pair[0])))
    if rotation_DD is not None:
        base_FD = base_FD @ rotation_DD
    suspect_FD = unit_rows(folded(suspect, Matrix(module, pair[1])))
    return base_FD @ suspect_FD.T
