"""Every test of the court on one pair of models: a p, or a score, or nothing where the test is not defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from bornbiased_jax.seedprint.baselines import awm, ics, intrinsic, pcs, phi_h, phi_match, phi_u, reef
from bornbiased_jax.seedprint.baselines.score import Score
from bornbiased_jax.seedprint.iclr import iclr_test
from bornbiased_jax.seedprint.paper import paper_test
from bornbiased_jax.seedprint.permutation import permutation_test
from bornbiased_jax.seedprint.verdict import Verdict
from bornbiased_jax.seedprint.weights.align import match_layers, rotation
from bornbiased_jax.seedprint.weights.bilinear import bilinear_test
from bornbiased_jax.seedprint.weights.compare import weights_test
from bornbiased_jax.seedprint.weights.matching import match_units
from bornbiased_jax.seedprint.weights.rank import rank_test
from bornbiased_jax.seedprint.weights.tokens import shared_tokens
from bornbiased_jax.seedprint.weights.units import unit_cosines
from experiments.lineage.court_models import Model

Draw = dict[str, Any]
"""``num_permutations`` and ``seed`` of a pair's permutations."""


class Tested(NamedTuple):
    """One test of the court.

    Attributes:
        apply: base, suspect, permutations -> its p or score, None where it is not defined.
        published: whether it is from the literature, or this package's.
        gives: "p", or "score", read at 0.8.
        births: 0, or how many of a pair must be births for the test to claim anything.
    """

    apply: Callable[[Model, Model, Draw], float | None]
    published: bool
    gives: str = "p"
    births: int = 0


def _of_score(score: Score) -> float | None:
    return score.value


def _p_of_score(score: Score) -> float | None:
    return None if score.log10_p is None else 10.0**score.log10_p


def _p(verdict: Verdict) -> float | None:
    return verdict.p_value


def _paper(kind: str, which: str) -> Callable[[Model, Model, Draw], float | None]:
    def apply(base: Model, suspect: Model, draw: Draw) -> float | None:
        verdict = paper_test(base.outputs[kind], suspect.outputs[kind])
        return None if verdict.p_value is None else float(verdict.detail[which])

    return apply


def _iclr(kind: str) -> Callable[[Model, Model, Draw], float | None]:
    return lambda base, suspect, draw: _p(iclr_test(base.outputs[kind], suspect.outputs[kind]))


def _outputs(**options: Any) -> Callable[[Model, Model, Draw], float | None]:
    def apply(base: Model, suspect: Model, draw: Draw) -> float | None:
        return _p(permutation_test(base.outputs["tokens"], suspect.outputs["tokens"], **draw, **options))

    return apply


def _weights(**options: Any) -> Callable[[Model, Model, Draw], float | None]:
    return lambda base, suspect, draw: _p(weights_test(base.reader, suspect.reader, **draw, **options))


def _rank(base: Model, suspect: Model, draw: Draw) -> float | None:
    return _p(rank_test(base.reader, suspect.reader, num_births=99))


PUBLISHED: dict[str, Tested] = {
    "φ_U": Tested(lambda a, b, draw: _p_of_score(phi_u(a.cfg, a.params, b.cfg, b.params)), True),
    "φ_H": Tested(lambda a, b, draw: _p_of_score(phi_h(a.activations, b.activations)), True),
    "φ_MATCH": Tested(lambda a, b, draw: _p_of_score(phi_match(a.activations, b.activations)), True),
    "AWM, its z as normal": Tested(lambda a, b, draw: _p_of_score(awm(a.cfg, a.params, b.cfg, b.params)), True),
    "Algorithm 1, t, vectors": Tested(_paper("gaussian", "p_t"), True),
    "Algorithm 1, U, vectors": Tested(_paper("gaussian", "p_u"), True),
    "Algorithm 1, t, tokens": Tested(_paper("tokens", "p_t"), True),
    "Algorithm 1, U, tokens": Tested(_paper("tokens", "p_u"), True),
    "iclr, vectors": Tested(_iclr("gaussian"), True),
    "iclr, tokens": Tested(_iclr("tokens"), True),
    "HuRef (ICS)": Tested(lambda a, b, draw: _of_score(ics(a.cfg, a.params, b.cfg, b.params)), True, "score"),
    "HuRef (PCS)": Tested(lambda a, b, draw: _of_score(pcs(a.params, b.params)), True, "score"),
    "Intrinsic": Tested(lambda a, b, draw: _of_score(intrinsic(a.params, b.params)), True, "score"),
    "REEF": Tested(lambda a, b, draw: _of_score(reef(a.features, b.features)), True, "score"),
}

OURS: dict[str, Tested] = {
    "outputs, permutation": Tested(_outputs(), False),
    "outputs, signs free": Tested(_outputs(signs="free"), False),
    "outputs, Kendall": Tested(_outputs(correlation="kendall"), False),
    "weights, coordinates": Tested(_weights(), False),
    "weights, coordinates signed": Tested(_weights(signed=True), False),
    "weights, units": Tested(_weights(labels="units"), False),
    "weights, rotation, form A": Tested(_weights(align="rotation"), False),
    "weights, matched units": Tested(_weights(align="units"), False, births=1),
    "bilinear, untied birth": Tested(lambda a, b, draw: _p(bilinear_test(a.reader, b.reader, **draw)), False, births=1),
    "bilinear, tied birth": Tested(
        lambda a, b, draw: _p(bilinear_test(a.tied_birth, b.reader, **draw)), False, births=1
    ),
}
RANK: dict[str, Tested] = {"rank": Tested(_rank, False, births=1)}
"""Each takes 99 births a pair, so that it is asked of a few."""

TESTS: dict[str, Tested] = PUBLISHED | OURS | RANK


def examine(base: Model, suspect: Model, draw: Draw, *, rank: bool = False) -> dict[str, float | None]:
    """Every test that claims anything of such a pair; the base is the birth where one is asked for."""
    num_births = sum(model.origin.corpus is None for model in (base, suspect))
    chosen = {name: test for name, test in (PUBLISHED | OURS).items() if test.births <= num_births}
    if rank:
        chosen |= RANK
    return {name: _rounded(test.apply(base, suspect, draw)) for name, test in chosen.items()}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def matchings(base: Model, suspect: Model) -> dict[str, Any]:
    """How often independent matchings of hidden units agree, block by block.

    Returns:
        ``agreement``: of the gate's matching with that of up and down, after both models were aligned by rotation and
        their blocks by Gram, as ``weights --align units`` has it between trained models: the fraction of units in each
        block. ``gate_up``: units that gate and up match alike after the same alignment, in numbers.
        ``activations``: units that φ_MATCH's two matchings pair alike, in numbers.
    """
    turn_DD = rotation(base.reader, suspect.reader, shared_tokens(base.reader, suspect.reader))
    agreement, gate_up = [], []
    for pair in match_layers(base.reader, suspect.reader, turn_DD):
        cosines = unit_cosines(base.reader, suspect.reader, pair, turn_DD)
        matched = match_units(cosines.scores())
        by_up_F = linear_sum_assignment(cosines.up, maximize=True)[1]
        agreement.append(round(matched.agreement, 6))
        gate_up.append(int(np.sum(matched.units_F == by_up_F)))
    activations = phi_match(base.activations, suspect.activations).detail["coincidences"]
    return {"agreement": agreement, "gate_up": gate_up, "activations": activations}
