"""Prefix-Tuning+ and prefix tuning at the smallest scale: one budget, no weight taken, and what is shown."""

import numpy as np
import pytest

from bornbiased_jax.experiments.survival.prefix_plus import EXPERIMENT, NEW, OLD, ends_of, wins_of
from tests.experiments.smoke import committed, record_of

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return record_of(EXPERIMENT, tmp_path_factory.mktemp("out"))


def test_the_budget_is_one_and_the_softmax_is_left_to_the_input(record):
    result = record["result"]
    assert {row["parameters"] for row in result["methods"].values()} == {result["budget"]}
    start = {name: row["held_out"][0] for name, row in result["methods"].items()}
    np.testing.assert_allclose(start[NEW], result["before"], rtol=1e-6)
    np.testing.assert_allclose(start["lora"], result["before"], rtol=1e-6)
    assert np.all(np.not_equal(start[OLD], result["before"]))
    new, old = (np.asarray(result["methods"][name]["shares"]["weight"]) for name in (NEW, OLD))
    np.testing.assert_allclose(new, 1, atol=1e-5)
    # Among four keys and i tokens of a young model.
    positions = np.arange(1, old.shape[1] + 1)
    np.testing.assert_allclose(old, np.broadcast_to(positions / (positions + 4), old.shape), atol=0.1)


def test_the_record_says_what_its_numbers_say():
    record = committed("prefix_plus")
    wins, count = wins_of(record)
    assert count >= 5 and f"{wins} of {count} seeds" in EXPERIMENT.headline(record)
    old = record["result"]["methods"][OLD]["shares"]
    # The longer the input, the less the prefix; the longer the prefix, the less the input.
    assert ends_of(old, "prefix")["last"] < ends_of(old, "prefix")["first"]
    weights = [np.mean(row["shares"]["weight"]) for row in record["result"]["lengths"]]
    assert weights == sorted(weights, reverse=True)
