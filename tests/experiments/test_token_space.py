"""Neurons in token space at smoke scale: every change is seen through a rotation, and other bases are not."""

import numpy as np
import pytest

from bornbiased_jax.config import preset
from bornbiased_jax.experiments.lineage import token_space
from bornbiased_jax.lineage.evidence import COORDINATES, TOKEN_NEURONS
from bornbiased_jax.model import init_seed
from tests.experiments.smoke import committed, record_of


@pytest.mark.slow
def test_every_change_is_found_through_a_rotation(tmp_path):
    result = record_of(token_space.EXPERIMENT, tmp_path)["result"]
    assert [row["change"] for row in result["changes"]] == list(token_space.CHANGES)
    for row in result["changes"]:
        assert row["verdict"] == "same-lineage"
        assert (row["z"] > 10) != (row["change"] == "neurons permuted")
        assert max(row["z_unrelated"]) < 5
    for row in result["dims"]:
        assert min(pair[TOKEN_NEURONS] for pair in row["related"]) > 10
        assert max(pair[name] for pair in row["unrelated"] for name in (TOKEN_NEURONS, COORDINATES)) < 5


def test_changed_models_are_what_their_rows_say():
    cfg = preset("llama-tiny", num_layers=3, d_model=32, d_ff=48, vocab_size=260)
    first, second = ((cfg, init_seed(cfg, seed)) for seed in (0, 1))
    models = dict(token_space.changed_models(first, second))
    assert set(models) == set(token_space.CHANGES)
    up = np.asarray(first[1]["blocks"]["mlp"]["up"]["kernel"])
    half = (up + np.asarray(second[1]["blocks"]["mlp"]["up"]["kernel"])) / 2
    merged = models["half merged with another model"][1]["blocks"]["mlp"]["up"]["kernel"]
    assert np.allclose(merged, half, atol=1e-7)
    # On the great circle, three tenths of the way.
    ends = [np.asarray(model[1]["embed"]["embedding"]).ravel() for model in (first, second)]
    between = models["SLERP 0.3 to another model"][1]["embed"]["embedding"].ravel()
    angles = [np.arccos(end @ between / np.linalg.norm(end) / np.linalg.norm(between)) for end in ends]
    assert angles[0] / sum(angles) == pytest.approx(0.3, abs=1e-3)
    assert models["second block dropped"][0].num_layers == 2
    assert models[token_space.CUT][0].vocab_size == 195
    assert np.mean(models["pruned by half"][1]["blocks"]["mlp"]["up"]["kernel"] == 0) == pytest.approx(0.5, abs=0.01)
    # Every row but the first is another model.
    assert all(model[1] is not first[1] for name, model in models.items() if name != "none")


def test_committed_record_reaches_what_was_expected():
    changes = committed("token_space")["result"]["changes"]
    least = {row["change"]: row["z"] / token_space.EXPECTED[row["change"]] for row in changes[:-1]}
    assert min(least.values()) >= 0.9, least
