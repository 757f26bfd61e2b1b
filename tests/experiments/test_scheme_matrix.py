"""The matrix of initialization schemes: pairing, correction, how many seeds decide, and every scheme has a row."""

import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.experiments import results
from bornbiased_jax.experiments.birth import figure6
from bornbiased_jax.experiments.birth.scheme_tables import compare, inside, seeds_needed, tables
from bornbiased_jax.experiments.birth.schemes import REFERENCE, ROWS
from bornbiased_jax.schemes import SCHEMES


def _result(losses, reference="a"):
    rows = [
        {
            "name": name,
            "steps": [0, 10],
            "predicted": {"cosine_interval": (0.0, 0.5)},
            "by_seed": [{"loss": [5.0, loss], "cosine": loss} for loss in values],
        }
        for name, values in losses.items()
    ]
    return {"reference": reference, "rows": rows}


def test_every_named_scheme_has_a_row():
    assert set(SCHEMES) < set(ROWS)
    assert REFERENCE in ROWS


def test_differences_are_paired_by_seed_and_corrected_over_all_rows():
    base = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    shift = np.array([0.10, 0.11, 0.09, 0.10, 0.10])
    result = _result({"a": base, "b": base + shift, "c": base + shift - 0.1, "d": base})
    first, second, same = compare(result)
    # Seeds differ by whole nats; pairs by a hundredth.
    assert first.mean_by_step[-1] == pytest.approx(0.10)
    assert first.p_value == pytest.approx(stats.ttest_rel(base + shift, base).pvalue)
    assert first.adjusted_p == pytest.approx(3 * first.p_value) and first.is_decided
    assert not second.is_decided and second.interval_by_step[-1][0] < 0 < second.interval_by_step[-1][1]
    assert same.p_value == 1.0 and same.seeds_needed == 2


def test_cells_inside_their_interval_are_counted():
    assert inside(_result({"a": [0.1, 0.6], "b": [0.2, 0.3]})) == (3, 4)


@pytest.mark.parametrize("std", [0.005, 0.02])
def test_that_many_pairs_find_the_difference_in_four_of_five_trials(std):
    pairs = seeds_needed(std)
    draws = np.random.default_rng(0).normal(0.01, std, (4000, pairs))
    power = np.mean(stats.ttest_1samp(draws, 0.0, axis=1).pvalue < 0.05)
    assert 0.77 < power < 0.93
    fewer = np.random.default_rng(1).normal(0.01, std, (4000, pairs - 1))
    assert np.mean(stats.ttest_1samp(fewer, 0.0, axis=1).pvalue < 0.05) < 0.82


def test_notes_state_how_many_seeds_each_number_is_of():
    record = results.committed("scheme_matrix", "laptop")
    traced = {sum(seed["z"] is not None for seed in row["by_seed"]) for row in record["result"]["rows"]}
    assert traced == {2} and "mean over the first 2 seeds." in tables(record)[2].note
    record = results.committed("figure6", "paper")
    (note,) = [table.note for table in figure6.tables(record)]
    # One σ a block, that of the first seed, and a cosine of each.
    assert {np.shape(row["std_by_layer"]) for row in record["result"]["norms"]} == {(12,)}
    assert "enter GELU, seed 42;" in note and "mean of 2 seeds" in note
