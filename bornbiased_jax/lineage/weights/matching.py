"""Hidden units whose order is not known: matched on one matrix, tested on the others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from bornbiased_jax.lineage.weights.units import UnitScores


class Matched(NamedTuple):
    """Hidden units of one pair of blocks matched twice, on different matrices.

    Attributes:
        units_F: for each unit of the base the suspect's, by the first matching (on gate, or up where there is none);
            −1 for those that a smaller MLP leaves over.
        agreement: the fraction of units that two matchings, on different matrices, give the same partner; of the
            smaller MLP where the sizes differ.
        scores_KK: agreement of the base's unit with the suspect's *matched to* another, on the matrices that the
            first matching did not see; of the units that it matched. Its trace is the statistic of the re-paired test.
    """

    units_F: np.ndarray
    agreement: float
    scores_KK: np.ndarray


def match_units(scores: UnitScores) -> Matched:
    """Match on gate by the largest sum of cosines, test on |cos(up) + cos(down)|; without a gate on up and on down.

    Between a birth and any model, the birth's rows of the tested matrices are as likely in any pairing with its rows
    of the matched one, so that permuting ``scores_KK`` is exact (of unequal MLPs too: which units are matched the
    matched rows alone tell). Between two trained models it is not: their gate and
    up rows of one unit learned together.
    """
    base_K, suspect_K = _assigned(scores.first_FF)
    units_F, again_F = np.full(len(scores.first_FF), -1), np.full(len(scores.first_FF), -2)
    units_F[base_K] = suspect_K
    again_base_K, again_suspect_K = _assigned(scores.tested_FF)
    again_F[again_base_K] = again_suspect_K
    agreement = float((units_F == again_F).sum() / len(base_K))
    tested_KF = scores.tested_FF if len(base_K) == len(scores.tested_FF) else scores.tested_FF[base_K]
    return Matched(units_F, agreement, tested_KF[:, suspect_K])


def _assigned(scores_FF: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Assign rows to columns by the largest sum of scores. SciPy would copy what it is to maximise once more."""
    rows_K, columns_K = linear_sum_assignment(np.negative(scores_FF, dtype=np.float64))
    return rows_K, columns_K
