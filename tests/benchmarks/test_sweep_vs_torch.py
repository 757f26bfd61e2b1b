"""The benchmark of the sweep: both ways of counting give the same counts, and the record has both ratios."""

import json

import numpy as np
import pytest

from benchmarks import sweep_vs_torch
from bornbiased_jax.config import preset
from bornbiased_jax.probes.inputs import random_tokens
from bornbiased_jax.probes.measure import initial_params, order_inputs, stream
from bornbiased_jax.sweep import sweep

CFG = preset("llama-tiny", d_model=16, d_ff=24, num_layers=2, num_heads=2, vocab_size=64)


@pytest.mark.slow
def test_equal_work_finds_the_same_tokens():
    inputs = random_tokens(11, 6, CFG.vocab_size)
    batches = list(stream(inputs, order_inputs(inputs, 4)))
    probes = sweep_vs_torch.preference_probe(CFG), sweep_vs_torch.equal_work_probe(CFG)
    counts = [
        [result["counts"] for _, result in sweep(probe, initial_params(CFG, None), [0, 1], lambda: batches)]
        for probe in probes
    ]
    np.testing.assert_array_equal(*counts)
    assert np.sum(counts[0], axis=-1).tolist() == [11, 11]


@pytest.mark.slow
def test_the_record_has_both_ratios(tmp_path):
    pytest.importorskip("transformers", exc_type=ImportError)
    model = "llama-tiny,d_model=16,d_ff=24,num_layers=2,num_heads=2,vocab_size=64"
    sizes = ["--seeds", "2", "--sequences", "8", "--length", "6", "--batches", "4,8", "--pairs", "1"]
    record = sweep_vs_torch.main(["--model", model, *sizes, "--json", str(tmp_path / "a.json")])
    assert record == json.loads((tmp_path / "a.json").read_text())
    assert record["provenance"]["config"]["d_model"] == 16 and record["batch_ours"] in (4, 8)
    for ratio, seconds in (("speedup", "seconds_ours"), ("speedup_equal_work", "seconds_ours_equal_work")):
        assert record[f"{ratio}_median"] == pytest.approx(record["seconds_torch"] / record[seconds])
        assert record[f"{ratio}_range"] == [record[f"{ratio}_median"]] * 2
