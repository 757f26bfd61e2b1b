"""One seed on other inputs: input sets are independent, and everything is shown."""

import pytest

from bornbiased_jax.experiments.birth import top1_inputs
from tests.experiments.smoke import record_of


def test_shared_tokens_are_counted_within_and_between_seeds():
    sets = [[{"ids": [1, 2, 3]}, {"ids": [4, 5, 6]}], [{"ids": [3, 9, 1]}, {"ids": [1, 4, 5]}]]
    assert top1_inputs.shared_tokens(sets, 3) == (2.0, 0.5)
    assert top1_inputs.shared_tokens(sets, 1) == (0.0, 0.5)


@pytest.mark.slow
def test_input_sets_differ_and_lengths_have_rows(tmp_path):
    record = record_of(top1_inputs.EXPERIMENT, tmp_path)
    groups = record["result"]["groups"]
    assert [entry["seq_len"] for entry in groups] == [4, 8] and len(groups[0]["sets"]) == 2
    first, second = groups[0]["sets"]
    assert [row["seed"] for row in first] == [42, 43] and first != second
