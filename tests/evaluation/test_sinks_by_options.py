"""The report on sinks of a mixture of experts."""

import numpy as np
import pytest

from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.evaluation import sink_report
from bornbiased_jax.evaluation.sink_report import ReportOptions, report_on_ids
from bornbiased_jax.init import init_seed
from bornbiased_jax.quantization import parse_scheme


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
