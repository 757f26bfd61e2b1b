"""Sinks by step under the criteria of the report, and the report of a mixture of experts."""

import numpy as np
import pytest

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.evaluation import sink_report, sink_steps
from bornbiased_jax.evaluation.sink_report import ReportOptions, report_on_ids, sinks_report
from bornbiased_jax.init import init_seed
from bornbiased_jax.quantization import parse_scheme
from bornbiased_jax.text import ByteTokenizer

REF = "seed:3@gpt2-tiny,num_layers=2,d_model=16,d_ff=32,num_heads=2,vocab_size=260"


@pytest.mark.slow
def test_sinks_by_step_have_the_criteria_of_the_report(monkeypatch):
    """The run's only step is its initialization, which the report is of."""
    opened = open_checkpoint(REF)
    monkeypatch.setitem(opened.info, "run", "elsewhere")
    monkeypatch.setattr(sink_steps, "read_run", lambda folder: {"config": {"seeds": [3]}})
    monkeypatch.setattr(sink_steps, "find_steps", lambda folder: [])
    options = ReportOptions(
        lengths=[8], num_sequences=3, details=False, position=3, convention="rows_from_k", threshold="average",
        epsilon=0.25,
    )  # fmt: skip
    report = sinks_report(opened, "builtin:prose", options, tokenizer=ByteTokenizer(), by_step=True, quiet=True)
    (row,) = report["by_step"]
    assert row["sink_rate"] == [report["sink_rate"]["8"]] == [0.0]
    assert row["largest_score"] == [pytest.approx(np.max(report["score_by_layer_head"]["8"]))]


def test_a_single_position_has_no_others():
    cfg = preset("llama-tiny", num_layers=1, d_model=16, num_heads=2, d_ff=8, vocab_size=64)
    report = report_on_ids(cfg, init_seed(cfg, 0), np.arange(9), ReportOptions(lengths=[1], num_sequences=2))
    (block,) = report["outliers"]["layers"]
    assert block["dom_ratio_first"] > 1 and block["dom_ratio_rest"] is None


def test_lengths_beyond_what_the_model_is_made_for_are_said(capsys):
    cfg = preset("llama-tiny", num_layers=1, d_model=16, num_heads=2, d_ff=8, vocab_size=64, max_seq_len=4)
    options = ReportOptions(lengths=[4, 8], num_sequences=2, details=False)
    assert report_on_ids(cfg, init_seed(cfg, 0), np.arange(9), options)["beyond_max_seq_len"]
    assert "length of 8 is longer than the 4 positions" in capsys.readouterr().err


@pytest.mark.slow
def test_a_mixture_of_experts_has_a_report_without_super_neurons(monkeypatch):
    cfg = preset("mixtral-tiny", num_layers=2, d_model=16, num_heads=2, num_kv_heads=1, d_ff=8, vocab_size=64)
    params, ids = init_seed(cfg, 0), np.arange(24)
    options = ReportOptions(lengths=[6], num_sequences=2, schemes=[parse_scheme("w4kv4")], granularities=["token"])
    report = report_on_ids(cfg, params, ids, options)
    assert "super_neurons" not in report and len(report["outliers"]["layers"]) == 2
    assert len(report["quantisation"]) == 1
    # What cannot be measured is refused before anything is.
    monkeypatch.setattr(sink_report, "measure_sinks", None)
    with pytest.raises(InputError, match="w8a8 quantizes activations, and those in a mixture of experts"):
        report_on_ids(cfg, params, ids, ReportOptions(lengths=[6], schemes=[parse_scheme("w8a8")]))
