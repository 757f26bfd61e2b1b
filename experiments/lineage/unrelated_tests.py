"""Every test on one pair of unrelated models: a p, or a score, or nothing where the test is not defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from bornbiased_jax.lineage.baselines import LEVEL
from bornbiased_jax.lineage.battery import Options
from bornbiased_jax.lineage.evidence import MATCHED
from bornbiased_jax.lineage.permutation import permutation_test
from bornbiased_jax.lineage.verdict import Verdict
from experiments._shared.baselines import phi_match
from experiments.lineage import descendants_readings
from experiments.lineage.descendants_readings import EVIDENCE, Reads, Subject, read_published
from experiments.lineage.sketched import matched, verdict

Signs = Literal["kept", "free"]
Correlation = Literal["spearman", "kendall"]

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


def _outputs(
    signs: Signs = "kept", correlation: Correlation = "spearman"
) -> Callable[[Subject, Subject, Draw], Verdict]:
    return lambda a, b, draw: permutation_test(
        a.outputs["tokens"], b.outputs["tokens"], **draw, signs=signs, correlation=correlation
    )


def _weights(evidence: str, has_untrained: bool = False) -> Callable[[Subject, Subject, Draw], Verdict]:
    return lambda a, b, draw: verdict(a.sketches, b.sketches, evidence, Options(**draw, has_untrained=has_untrained))


OURS: dict[str, Tested] = {
    "outputs, permutation": Tested(_outputs()),
    "outputs, signs free": Tested(_outputs(signs="free")),
    "outputs, Kendall": Tested(_outputs(correlation="kendall")),
    **{name: Tested(_weights(evidence)) for name, evidence in EVIDENCE.items()},
    "weights, matched units": Tested(_weights(MATCHED, has_untrained=True), births=1),
}

TESTS: dict[str, Reads] = {name: test for name, test in descendants_readings.TESTS.items() if test.published}
TESTS |= {name: Reads(False, LEVEL, base="birth" if test.births else "model") for name, test in OURS.items()}


def examine(base: Subject, suspect: Subject, draw: Draw) -> dict[str, float | None]:
    """Run every test that claims anything of such a pair; the base is the birth where the test needs one."""
    values: dict[str, float | None] = {}
    for name, (score, log10_p) in read_published(base, suspect).items():
        values[name] = score if not TESTS[name].by_p else None if log10_p is None else 10.0**log10_p
    num_births = base.is_initial + suspect.is_initial
    for name, test in OURS.items():
        if test.births <= num_births:
            values[name] = test.verdict(base, suspect, draw).p_value
    return {name: None if value is None else float(f"{value:.6g}") for name, value in values.items()}


def matchings(base: Subject, suspect: Subject) -> dict[str, Any]:
    """Measure how often independent matchings of hidden units agree, block by block.

    Returns:
        ``agreement``: of the gate's matching with that of up and down in token space, as verdicts have it between
        trained models: the fraction of units in each block. ``activations``: units that φ_MATCH's two matchings pair
        alike, in numbers.
    """
    matching = matched(base.sketches, suspect.sketches)
    assert matching is not None
    activations = phi_match(base.activations, suspect.activations).detail["coincidences"]
    return {"agreement": [round(value, 6) for value in matching.by_block.values()], "activations": activations}
