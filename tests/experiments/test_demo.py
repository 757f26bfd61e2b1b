"""The demo at smoke scale: four experiments, one for each pillar, with a headline each at the top of the page."""

import re

import numpy as np
import pytest
from smoke import record_of, show

from bornbiased_jax import experiments
from bornbiased_jax.experiments import runner
from bornbiased_jax.experiments.demo import preference, schemes, sinks, traces

PILLARS = {
    "demo_preference": "Preference",
    "demo_traces": "Lineage",
    "demo_sinks": "Sinks",
    "demo_schemes": "Initialization",
}


@pytest.fixture(scope="module")
def record(request, tmp_path_factory):
    return record_of(request.param.EXPERIMENT, tmp_path_factory.mktemp("demo"))


def _with_record(*modules):
    return pytest.mark.parametrize("record", modules, indirect=True, ids=lambda module: module.EXPERIMENT.name)


def test_the_demo_has_a_record_for_each_pillar_at_two_scales():
    assert set(experiments.SELECTIONS["demo"]) == set(PILLARS)
    for name in PILLARS:
        assert set(runner.load(name).settings) == {"smoke", "laptop"}


@pytest.mark.slow
@_with_record(preference)
def test_preference_states_model_inputs_seeds_and_both_cosines(record):
    tables, panels, claims = show(preference.EXPERIMENT, record)
    headline = preference.headline(record)
    assert headline.startswith("Preference: gpt2-tiny") and headline.count(".\n") == 0
    assert "64 random inputs of 16 tokens" in headline and "seed 42" in headline and "seed 43" in headline
    assert len(tables) == 2 and len(panels) == 1 and claims


@pytest.mark.slow
@pytest.mark.nightly
@_with_record(traces)
def test_rotated_models_are_nearer_to_their_own_initialization(record):
    tables, panels, claims = show(traces.EXPERIMENT, record)
    steps = [snapshot["step"] for snapshot in record["result"]["snapshots"]]
    assert steps == [0, 2, 4] and len(tables[0].rows) == 6 and len(panels) == 1
    own, other = (claim.measured for claim in claims)
    assert own > 20 > 6 > other
    # A rotation hides what is compared coordinate by coordinate.
    for snapshot in record["result"]["snapshots"]:
        assert all(abs(pair["z_coordinates"]) < 6 for pair in snapshot["pairs"])
    assert re.match(
        r"Lineage: after 4 training steps .* seeds 42 and 43 .* z = [\d.]+ and [\d.]+", traces.headline(record)
    )


@pytest.mark.nightly
@pytest.mark.slow
@_with_record(sinks)
def test_variance_falls_with_the_position_and_scores_of_a_trained_model_are_shown(record):
    tables, panels, claims = show(sinks.EXPERIMENT, record)
    assert [row.settings[0] for row in tables[0].rows] == [1, 2, 4, 8, 16] and len(tables) == 2 and len(panels) == 2
    ratio = claims[0]
    assert ratio.measured == pytest.approx(ratio.theory, rel=0.25)
    variance_T = np.mean(np.square(record["result"]["variance"]["std_by_seed"]), axis=0)
    np.testing.assert_allclose(variance_T[0] / variance_T[-1], ratio.measured)
    count = sum(seed["largest_score"] > 0.25 for seed in record["result"]["variants"]["one layer"]["by_seed"])
    assert sinks.headline(record).startswith("Sinks: in an untrained") and f"in {count} of 2 seeds" in sinks.headline(
        record
    )


@pytest.mark.nightly
@pytest.mark.slow
@_with_record(schemes)
def test_schemes_are_compared_with_theory(record):
    tables, panels, claims = show(schemes.EXPERIMENT, record)
    names = [probed["group"]["changes"]["init"] for probed in record["result"]["groups"]]
    assert [row.settings[0] for row in tables[0].rows] == names and len(panels) == 1
    by_name = {name: claim.measured for name, claim in zip(names, claims, strict=True)}
    # Larger weights write a larger mean; mirrored neurons write none.
    assert by_name["kaiming"] > by_name["gpt2-scaled-mirrored"]
    headline = schemes.headline(record)
    assert headline.startswith("Initialization: ") and all(name in headline for name in names)
    assert "64 inputs of 16 tokens, mean of 2 seeds" in headline
