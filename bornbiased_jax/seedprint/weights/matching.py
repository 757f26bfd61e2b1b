"""Hidden units whose order is not known: matched on one matrix, tested on the others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from bornbiased_jax.seedprint.weights.units import Cosines


class Matched(NamedTuple):
    """Hidden units of one pair of blocks matched twice, on different matrices.

    Attributes:
        units_F: for each unit of the base the suspect's, by the first matching (on gate, or up where there is none).
        agreement: the fraction of units that a second matching, on the other matrices, gives the same partner.
        scores_FF: agreement of the base's unit with the suspect's *matched to* another, on the matrices that the
            first matching did not see: its trace is the statistic of the re-paired test.
    """

    units_F: np.ndarray
    agreement: float
    scores_FF: np.ndarray


def match_units(cosines: Cosines) -> Matched:
    """Match on gate by the largest sum of cosines, test on |cos(up) + cos(down)|; without a gate on up and on down.

    Between a birth and any model, the birth's rows of the tested matrices are as likely in any pairing with its rows
    of the matched one, so that permuting ``scores_FF`` is exact. Between two trained models it is not: their gate and
    up rows of one unit learned together.
    """
    if cosines.gate is not None:
        first_FF, tested_FF = cosines.gate, np.abs(cosines.up + cosines.down)
    else:
        first_FF, tested_FF = cosines.up, cosines.down
    units_F = linear_sum_assignment(first_FF, maximize=True)[1]
    again_F = linear_sum_assignment(tested_FF, maximize=True)[1]
    return Matched(units_F, float((units_F == again_F).mean()), tested_FF[:, units_F])
