"""The experiment on a real model, with a small model in its place."""

import numpy as np
import pytest

from bornbiased_jax import io
from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.experiments.sinks import real_models, sink_knockout, sink_sweep, subject
from tests.experiments.smoke import record_of
from tests.fixtures.llama2c_files import write_pair

pytestmark = pytest.mark.slow


def test_everything_is_measured_of_a_model_that_is_named(tmp_path):
    path = write_pair(tmp_path, layers=3)
    text = tmp_path / "text.txt"
    text.write_text("A text of its own, long enough for sixteen tokens. " * 20)
    record = record_of(real_models.EXPERIMENT, tmp_path, data=f"model={path};{text}")
    result = record["result"]
    assert (result["checkpoint"], result["source"]) == ("model", "text.txt")
    assert result["sha256"] is None and result["licence"] is None
    assert list(result["protocol"]["sink_rate"]) == ["8", "16"]
    assert len(result["rounding"]) == 2 * 2 and len(result["streaming"]) == 3
    names = {entry["kind"] for entry in result["weights"]}
    assert {"blocks/attention/query", "blocks/mlp/down", "embed/embedding"} <= names
    assert real_models.EXPERIMENT.headline(record).endswith("of the heads of model are sinks at T = 16.")
    notes = " ".join(table.note or "" for table in real_models.tables(record))
    assert "Weights stay as they are stored" in notes and "quantized already" not in notes


def test_a_single_file_is_identified_by_its_digest(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"weights")
    opened = open_checkpoint("seed:1@gpt2-tiny,num_layers=1,num_heads=1,d_model=8,d_ff=8,vocab_size=32")
    read = subject.SinkModel(opened, tmp_path / "model.gguf", "builtin:prose", np.arange(4))
    assert subject.about(read)["sha256"] == io.sha256(tmp_path / "model.gguf")


def test_weights_by_kind_against_known_distributions():
    draws = np.random.default_rng(0)
    blocks = {"mlp": {"up": {"kernel": 0.5 * draws.standard_normal((2, 200, 100))}}}
    params = {"embed": {"embedding": draws.uniform(-1, 1, (300, 100))}, "blocks": blocks}
    rows = {row["kind"]: row for row in real_models.weights_by_kind(params)}
    # Five standard errors: √(24/n) of a Gaussian's kurtosis, 0.5/√(2n) of its standard deviation.
    assert np.allclose(rows["blocks/mlp/up"]["kurtosis"], 3, atol=5 * np.sqrt(24 / 20_000))
    assert np.allclose(rows["blocks/mlp/up"]["std"], 0.5, atol=5 * 0.5 / np.sqrt(40_000))
    assert rows["embed/embedding"]["kurtosis"] == [pytest.approx(1.8, abs=0.05)]


@pytest.mark.parametrize("module", [real_models, sink_knockout, sink_sweep], ids=lambda module: module.__name__)
def test_missing_real_models_reported(module, tmp_path, monkeypatch):
    monkeypatch.setattr(subject, "find_smollm2", lambda: None)
    assert record_of(module.EXPERIMENT, tmp_path)["result"] == {"attempted": False, "reason": subject.ABSENT}


GIVEN = [real_models.EXPERIMENTS["real_models_given"], sink_knockout.EXPERIMENTS["sink_knockout_given"]]


@pytest.mark.parametrize("experiment", GIVEN, ids=lambda experiment: experiment.name)
def test_named_model_never_replaced_by_default(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(subject, "find_smollm2", lambda: pytest.fail("looked for another model"))
    for data in (None, "builtin:prose"):
        record = record_of(experiment, tmp_path, data=data)
        assert record["result"] == {"attempted": False, "reason": subject.UNNAMED}


def test_named_model_split_and_joined(tmp_path):
    path = write_pair(tmp_path, layers=3)
    text = tmp_path / "text.txt"
    text.write_text("A text of its own, long enough for sixteen tokens. " * 20)
    record = record_of(GIVEN[1], tmp_path, data=f"model={path};{text}")
    result = record["result"]
    assert (result["checkpoint"], result["source"]) == ("model", "text.txt")
    assert all(len(row["by_block"]) == 3 for row in result["rows"])
