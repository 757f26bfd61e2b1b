"""Seeds under two embedding tables: what two probes have in common, and that the tables differ."""

import numpy as np
import pytest

from bornbiased_jax.experiments.birth import top1_tables
from tests.experiments.smoke import record_of


def _probe(table, inputs, *ids):
    return {
        "table_seed": table,
        "input_seed": inputs,
        "seeds": [{"seed": seed, "ids": row} for seed, row in enumerate(ids)],
    }


def test_tokens_in_common_counts_pairs_that_differ_in_one_thing():
    probes = [
        _probe(0, 0, [1, 2, 3], [4, 5, 6]), _probe(0, 1, [1, 2, 9], [4, 1, 6]),
        _probe(1, 0, [7, 8, 1], [7, 8, 9]), _probe(1, 1, [1, 1, 1], [2, 2, 2]),
    ]  # fmt: skip
    common = top1_tables.tokens_in_common(probes, 3)
    # One seed and table on two input sets: 2, 2, 1, 0; under two tables: 1, 0, 1, 0; two seeds: 0, 1, 2, 0.
    assert common == {"input set": 5 / 4, "table": 2 / 4, "seed": 3 / 4}
    assert top1_tables.tokens_in_common(probes, 1) == {"input set": 2 / 4, "table": 1 / 4, "seed": 1 / 4}


def test_sign_flip_p_counts_all_signs():
    assert top1_tables.sign_flip_p(np.array([0.1, 0.2, 0.3])) == 2 / 8
    assert top1_tables.sign_flip_p(np.array([0.3, -0.1, -0.2])) == 1.0
    assert top1_tables.sign_flip_p(np.zeros(4)) == 1.0


@pytest.mark.slow
def test_tables_and_input_sets_differ(tmp_path):
    record = record_of(top1_tables.EXPERIMENT, tmp_path)
    probes = record["result"]["probes"]
    assert [(entry["table_seed"], entry["input_seed"]) for entry in probes] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all([row["seed"] for row in entry["seeds"]] == [42, 43, 44] for entry in probes)
    seeds = [entry["seeds"] for entry in probes]
    assert all(first != second for i, first in enumerate(seeds) for second in seeds[:i])
