"""Checkpoints that others made: what ``auto`` says of them, in whatever layout they are."""

import pytest

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.checkpoints.native_roles import NativeRoles
from bornbiased_jax.lineage import fingerprint
from bornbiased_jax.lineage.weights_verdict import auto_verdict
from tests.fixtures.llama2c_files import transposed, write_converted


def auto_test(base, suspect):
    return auto_verdict(*(fingerprint(NativeRoles(model)) for model in (base, suspect)))


@pytest.fixture
def stories(reference_model):
    return open_checkpoint(reference_model("stories260K/stories260K.bin"))


@pytest.fixture
def small(tmp_path):
    """A small file as others make them, and its copy in another layout."""
    sizes = dict(tied=True, vocab=64, length=16)
    return (
        open_checkpoint(write_converted(tmp_path / "model", **sizes)),
        open_checkpoint(write_converted(tmp_path / "transposed", change=transposed, **sizes)),
    )


def test_a_relaid_out_copy_is_found_by_what_kept_its_place(small):
    """As the real ones below: the embedding and five norms are where they were, fourteen matrices are not."""
    verdict = auto_test(*small)
    assert verdict.verdict == "same-lineage"
    assert (verdict.detail["identity"], verdict.detail["identical_tensors"]) == (None, 6)
    message = "6 of 20 tensors that a seed may have decided are identical"
    assert any(note.startswith(message) for note in verdict.detail["notes"])


def test_models_of_other_makers_have_nothing_in_common(reference_model, stories):
    unrelated = auto_test(stories, open_checkpoint(reference_model("llama2xs/model.bin")))
    assert unrelated.verdict == "unrelated" and unrelated.p_value > 1e-3 and unrelated.detail["identical_tensors"] == 0
    wide = auto_test(stories, open_checkpoint(reference_model("babyllama/tok105_model5000.bin")))
    assert wide.verdict == "unrelated" and wide.p_value > 1e-3 and wide.detail["tokens_matched_by"] == "strings"
    reasons = {row["name"]: row["reason"] for row in wide.detail["tests"]}
    assert "the widths differ (64 and 128)" in reasons["coordinates"]
