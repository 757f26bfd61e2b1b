"""Finding 7: the test of own preferred tokens sees one that is there, and none between seeds that are shuffled."""

import math

import numpy as np
import pytest

from bornbiased_jax.experiments.survival import finding7
from tests.experiments.smoke import record_of


def test_own_preferred_tokens_are_found_under_a_common_shift_and_shuffled_ones_are_not():
    draws = np.random.default_rng(3)
    initial_SI = draws.standard_normal((7, 200))
    # What all models learn from the same text is far larger than what is left of each initialization.
    trained_SI = 0.3 * initial_SI + 5 * draws.standard_normal(200)
    logits_SNI = initial_SI[:, None] + draws.standard_normal((7, 50, 200))
    tokens_SK = np.stack([finding7.preferred(logits_NI, 8) for logits_NI in logits_SNI])
    own = finding7.compared(trained_SI, tokens_SK, 99)
    assert own["rank"]["gap"] > 0.01 and own["rank"]["log10_p"] == pytest.approx(-math.log10(math.factorial(7)))
    shuffled = finding7.compared(trained_SI, np.roll(tokens_SK, 1, axis=0), 99)
    assert shuffled["rank"]["log10_p"] > -2 and shuffled["logit"]["log10_p"] > -2


@pytest.mark.nightly
@pytest.mark.slow
def test_every_initialization_prefers_its_own_tokens_and_everything_is_shown(tmp_path):
    record = record_of(finding7.EXPERIMENT, tmp_path)
    (run,) = record["result"]["runs"].values()
    for content in run["vocabularies"].values():
        first = content["bases"][finding7.OWN][0]["rank"]
        assert first["gap"] > 0 and all(0 <= value <= 1 for value in first["own"])
        assert len(content["bases"][finding7.OWN]) == len(run["steps"]) == 3
