"""Every test of the court on one pair of models: a p, or a score, or nothing where the test is not defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.lineage.baselines import phi_match
from bornbiased_jax.lineage.baselines.score import LEVEL
from bornbiased_jax.lineage.permutation import permutation_test
from bornbiased_jax.lineage.verdict import Verdict
from bornbiased_jax.lineage.weights.align import match_layers, rotation
from bornbiased_jax.lineage.weights.bilinear import bilinear_test
from bornbiased_jax.lineage.weights.compare import weights_test
from bornbiased_jax.lineage.weights.matching import match_units
from bornbiased_jax.lineage.weights.rank import rank_test
from bornbiased_jax.lineage.weights.tokens import shared_tokens
from bornbiased_jax.lineage.weights.units import unit_cosines
from experiments.lineage import descendants_readings
from experiments.lineage.court_models import born
from experiments.lineage.descendants_readings import Reads, Subject, read_published

Draw = dict[str, Any]
"""``num_permutations`` and ``seed`` of a pair's permutations."""


class Tested(NamedTuple):
    """One test of this package.

    Attributes:
        verdict: of base, suspect and permutations.
        births: 0, or how many of a pair must be births for the test to claim anything.
    """

    verdict: Callable[[Subject, Subject, Draw], Verdict]
    births: int = 0


def _outputs(**options: Any) -> Callable[[Subject, Subject, Draw], Verdict]:
    return lambda a, b, draw: permutation_test(a.outputs["tokens"], b.outputs["tokens"], **draw, **options)


def _weights(**options: Any) -> Callable[[Subject, Subject, Draw], Verdict]:
    return lambda a, b, draw: weights_test(a.reader, b.reader, **draw, **options)


def _tied(birth: Subject) -> Checkpoint:
    """Return the birth of the same seed whose head is its embedding."""
    cfg = birth.cfg.replace(tie_embeddings=True)
    return Checkpoint.from_params(cfg, born(cfg, np.uint32(birth.origin.seed)), seed=birth.seed, is_initial=True)


OURS: dict[str, Tested] = {
    "outputs, permutation": Tested(_outputs()),
    "outputs, signs free": Tested(_outputs(signs="free")),
    "outputs, Kendall": Tested(_outputs(correlation="kendall")),
    "weights, coordinates": Tested(_weights()),
    "weights, coordinates signed": Tested(_weights(signed=True)),
    "weights, units": Tested(_weights(labels="units")),
    "weights, rotation, form A": Tested(_weights(align="rotation")),
    "weights, matched units": Tested(_weights(align="units"), births=1),
    "bilinear, untied birth": Tested(lambda a, b, draw: bilinear_test(a.reader, b.reader, **draw), births=1),
    "bilinear, tied birth": Tested(lambda a, b, draw: bilinear_test(_tied(a), b.reader, **draw), births=1),
}
RANK = {"rank": Tested(lambda a, b, draw: rank_test(a.reader, b.reader, num_births=99), births=1)}
"""Each takes 99 births a pair, so that it is asked of a few."""

TESTS: dict[str, Reads] = {name: test for name, test in descendants_readings.TESTS.items() if test.published}
TESTS |= {name: Reads(False, LEVEL, base="birth" if test.births else "model") for name, test in (OURS | RANK).items()}


def examine(base: Subject, suspect: Subject, draw: Draw, *, rank: bool = False) -> dict[str, float | None]:
    """Run every test that claims anything of such a pair; the base is the birth where the test needs one."""
    values: dict[str, float | None] = {}
    for name, (score, log10_p) in read_published(base, suspect).items():
        values[name] = score if not TESTS[name].by_p else None if log10_p is None else 10.0**log10_p
    num_births = base.is_initial + suspect.is_initial
    for name, test in (OURS | RANK if rank else OURS).items():
        if test.births <= num_births:
            values[name] = test.verdict(base, suspect, draw).p_value
    return {name: None if value is None else float(f"{value:.6g}") for name, value in values.items()}


def matchings(base: Subject, suspect: Subject) -> dict[str, Any]:
    """Measure how often independent matchings of hidden units agree, block by block.

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
