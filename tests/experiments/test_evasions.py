"""What hides a copy, at the smallest scale: copies compute the same, form A sees all but rolled units."""

import numpy as np
import pytest

from bornbiased_jax.config import preset
from bornbiased_jax.experiments import results
from bornbiased_jax.experiments.survival import evasions
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage.matching import AGREEMENT
from bornbiased_jax.model import apply
from tests.experiments.smoke import record_of

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return record_of(evasions.EXPERIMENT, tmp_path_factory.mktemp("out"))


def check_pattern(record):
    """Check which tests reject which change, whatever the scale."""
    for row in record["result"]["rows"]:
        verdicts = {test: entry["verdict"] for test, entry in row["tests"].items()}
        turned = "rotated" in row["change"]
        assert row["logits"] < 1e-4, row["change"]
        assert verdicts[evasions.CONTROL] == "unrelated", row["change"]
        is_evaded = row["change"] in evasions.EVADING
        assert (verdicts["rotation, form A"] == "same-lineage") == (not is_evaded), row["change"]
        assert verdicts["coordinates, squares"] == ("same-lineage" if not turned else verdicts["coordinates, squares"])
        if turned:
            assert verdicts["coordinates, squares"] != "same-lineage", row["change"]
        if row["agreement"] is not None:
            # Among all changes at once an idle block may be paired in place of a true one, whose units then match none.
            least = AGREEMENT if "all but" in row["change"] else 0.9
            assert row["agreement"] > least, row["change"]


def test_each_test_sees_what_it_is_said_to_see(record):
    assert len(record["result"]["rows"]) == 2 * len(evasions.CHANGES)
    check_pattern(record)
    assert len(record["result"]["replaced"]) == 2
    for row in record["result"]["replaced"]:
        assert row["loss_replaced"] > row["loss"] and list(row["verdicts"]) == list(evasions.KEYS)


@pytest.mark.parametrize("change", evasions.CHANGES)
def test_every_copy_computes_the_same(change):
    cfg = preset(
        "llama-tiny",
        num_layers=2,
        d_model=16,
        num_heads=4,
        num_kv_heads=2,
        d_ff=24,
        vocab_size=32,
        tie_embeddings=False,
    )
    params = init_seed(cfg, 3)
    ids = np.arange(4, 28, dtype=np.int32).reshape(2, 12)
    changed = evasions.CHANGES[change](evasions.Original(cfg, params, 5, [0, 1]))
    before, after = (np.asarray(apply(*model, ids).logits_BTV) for model in ((cfg, params), changed))
    # A vector in every column of the head moves all logits of a position alike.
    moved = (after - before).mean(axis=-1, keepdims=True)
    assert (np.abs(moved).max() > 0.1) == ("head column" in change or "all but" in change)
    np.testing.assert_allclose(after - moved, before, rtol=0, atol=1e-4 * np.abs(before).max())


def test_untrained_rows_are_those_that_only_decayed():
    cfg = preset("llama-tiny", num_layers=1, d_model=16, vocab_size=8, num_heads=2, d_ff=16)
    initialization, life = init_seed(cfg, 0), init_seed(cfg, 0)
    rows = np.array(life["embed"]["embedding"]) * 0.9
    rows[[2, 5]] += 0.01 * np.random.default_rng(0).standard_normal((2, 16)).astype(np.float32)
    life["embed"]["embedding"] = rows
    assert evasions.untrained_ids(initialization, life).tolist() == [0, 1, 3, 4, 6, 7]


def test_the_committed_record_says_the_same():
    record = results.committed("evasions", "laptop")
    if record is not None:
        check_pattern(record)
        form_a = [
            row["tests"]["rotation, form A"]["z"]
            for row in record["result"]["rows"]
            if row["change"] not in evasions.EVADING
        ]
        assert min(form_a) > 150
        # What evades every exact test is found by matchings, in every model.
        assert {row["change"] for row in record["result"]["rows"]} == set(evasions.CHANGES)
        hidden = [row for row in record["result"]["rows"] if "all but" in row["change"]]
        assert not any(row["tests"][test]["verdict"] == "same-lineage" for row in hidden for test in evasions.TESTS)
        assert all(row["agreement"] is not None for row in hidden)
