"""Popular statistics of a pair next to unrelated models: what they are for copies, and that they change no verdict."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.native_roles import NativeRoles
from bornbiased_jax.cli.main import run
from bornbiased_jax.experiments.results import committed
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.lineage.sheet import (
    CALIBRATION,
    KINDS,
    NORM_SCALES,
    QUANTILES,
    STATISTICS,
    SYNTHETIC,
    compare,
    evidence_sheet,
    probe_ids,
    read_model,
    synthetic_releases,
)
from tests.lineage.descendants import config, descend, reader, rotated

CFG = config(num_layers=2, d_model=64, d_ff=96, qkv_bias=True)
SMALL = "llama-tiny,num_layers=2,num_heads=2,d_model=32,d_ff=48,vocab_size=128"


def untrained(cfg, seed):
    return Checkpoint.from_params(cfg, init_seed(cfg, seed), seed=seed, is_initial=True)


def statistics(first, second):
    ids_ST = probe_ids(first, second)
    return compare(*(read_model(NativeRoles(model), model, ids_ST) for model in (first, second)))


def test_a_copy_agrees_in_all_statistics():
    model = reader(descend(CFG, 1))
    values = statistics(model, model)
    assert values.pop("mdir_trace") == pytest.approx(64, abs=1e-3)
    assert values.pop("tokenizer_overlap") is None
    # Biases start at zero, and these were not trained.
    values.pop("bias_cosine")
    assert values == {key: pytest.approx(1.0, abs=1e-4) for key in values}


def test_unrelated_models_have_scales_profiles_and_spectra_alike_and_no_equal_tensor():
    first, second = untrained(CFG, 1), untrained(CFG, 2)
    values = statistics(first, second)
    assert values["norm_cosine"] == pytest.approx(1.0) and values["norm_cosine_centered"] is None
    assert values["spectra"] > 0.98 and values["equal_settings"] == 1.0
    assert values["equal_tensors"] == 0.0 and abs(values["embedding_cosine"]) < 0.1 and abs(values["mdir_trace"]) < 5


def test_records_of_a_fingerprint_stand_for_tensors_that_are_not_read():
    models = [reader(descend(CFG, seed)) for seed in (1, 2)]
    ids_ST = probe_ids(*models)
    values, read = [], []
    for with_records in (False, True):
        readings = []
        for model in models:
            source = NativeRoles(model, observe=lambda name, _: read.append(name))
            records = {record.path: record for record in fingerprint(NativeRoles(model)).tensors}
            readings.append(read_model(source, model, ids_ST, records if with_records else {}))
        values.append(compare(*readings))
        if not with_records:
            assert any(name == "embed/embedding" for name in read)
            read.clear()
    # Standard deviations of the records are rounded to float32, those of tensors summed in it.
    assert values[1].pop("std_profile") == pytest.approx(values[0].pop("std_profile"), abs=1e-4)
    assert values[1] == values[0]
    assert read.count("embed/embedding") == 2  # to compare both tables, and no sooner


def test_a_rotation_hides_the_cosine_of_embeddings_and_procrustes_undoes_it():
    cfg, params = descend(CFG, 1)
    values = statistics(reader((cfg, params)), reader(rotated(cfg, params)))
    assert abs(values["embedding_cosine"]) < 0.3
    assert values["output_agreement"] > 0.9 and values["cka"] > 0.99


def test_models_of_two_widths_or_vocabularies_leave_statistics_undefined():
    narrow = untrained(config(num_layers=2, d_model=32, d_ff=48), 3)
    values = statistics(untrained(config(num_layers=2, d_model=64, d_ff=96), 1), narrow)
    assert values["embedding_cosine"] is values["norm_cosine"] is values["spectra"] is None
    assert values["cka"] is not None and 0 < values["equal_settings"] < 1
    other = untrained(config(num_layers=2, d_model=64, d_ff=96, vocab_size=100), 1)
    assert statistics(narrow, other)["cka"] is None


def test_the_packaged_ranges_are_those_of_the_committed_record():
    packaged, record = json.loads(CALIBRATION.read_text()), committed("evidence_sheet", "laptop")
    assert packaged == record["result"] and set(packaged["statistics"]) == set(STATISTICS)
    for key, by_kind in packaged["statistics"].items():
        assert set(by_kind) <= set(KINDS)
        assert by_kind or key == "tokenizer_overlap"
        assert all(row == sorted(row) and len(row) == len(QUANTILES) for row in by_kind.values())


def test_unrelated_models_of_the_record_look_alike_by_popular_statistics():
    """The cosines and correlations that disputes were argued with are near 1 between models that share nothing."""
    medians = {key: {kind: row[2] for kind, row in by_kind.items()} for key, by_kind in
               committed("evidence_sheet", "laptop")["result"]["statistics"].items()}  # fmt: skip
    for kind in KINDS[:3]:
        assert medians["norm_cosine"][kind] > 0.9 and medians["spectra"][kind] > 0.9
    assert all(abs(value) < 0.1 for value in medians["embedding_cosine"].values())


def test_synthetic_norm_scales_of_two_releases_show_why_a_cosine_of_99_percent_is_no_evidence():
    profiles = json.loads(NORM_SCALES.read_text())
    assert profiles["about"].startswith("Synthetic") and all("synthetic" in name for name in profiles["releases"])
    first, second = (np.array(blocks) for blocks in profiles["releases"].values())
    # Positive numbers that vary by s and s' around their means, drawn apart: 1/√((1 + s²)(1 + s'²)).
    variations = [scales.std(axis=1) / scales.mean(axis=1) for scales in (first, second)]
    expected = np.prod([1 / np.sqrt(1 + variation**2) for variation in variations], axis=0).mean()
    cosines = synthetic_releases()
    assert round(cosines["norm_cosine"], 2) == 0.99
    assert cosines["norm_cosine"] == pytest.approx(expected, abs=1e-3)
    # Without their means, independent numbers: the mean of 8 correlations of 64 pairs has a deviation of 0.044.
    assert abs(cosines["norm_cosine_centered"]) < 3 / 8 / np.sqrt(8)
    # The sheet shows them next to the pair, so that 0.99 lies within its range, and says why.
    model = untrained(CFG, 1)
    sheet = evidence_sheet(NativeRoles(model), NativeRoles(model), None)
    row = next(row for row in sheet.rows if row.key == "norm_cosine")
    assert row.ranges[SYNTHETIC][0] == cosines["norm_cosine"]
    assert dataclasses.replace(row, value=0.992).is_within
    assert "a variation by a tenth gives 0.99" in STATISTICS["norm_cosine"].worth


@pytest.mark.slow
def test_the_sheet_stands_at_the_end_of_a_page_and_changes_no_verdict(tmp_path, capsys):
    pair = ["seedprint", f"seed:1@{SMALL}", f"seed:2@{SMALL}", "--quiet"]
    assert run([*pair, "--json", str(tmp_path / "plain.json")]) == 0
    plain = capsys.readouterr().out
    assert run([*pair, "--json", str(tmp_path / "page.json"), "--page", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == plain
    first, second = (json.loads((tmp_path / name).read_text()) for name in ("plain.json", "page.json"))
    assert first["verdict"] == second["verdict"] == "unrelated" and first.keys() == second.keys()
    page = (tmp_path / "page.html").read_text()
    assert "What is this evidence worth?" in page and STATISTICS["norm_cosine"].worth in page
    assert "Other sizes have other ranges" in page and "two releases (synthetic)" in page


def test_a_stored_fingerprint_has_no_sheet(tmp_path):
    stored = str(tmp_path / "a.fingerprint")
    assert run(["fingerprint", f"seed:1@{SMALL}", "--out", stored, "--quiet"]) == 0
    assert run(["seedprint", stored, f"seed:2@{SMALL}", "--quiet", "--page", str(tmp_path / "page.html")]) == 0
    assert "What is this evidence worth?" not in (tmp_path / "page.html").read_text()


def test_values_beyond_all_unrelated_pairs_are_marked():
    model = reader(descend(CFG, 1))
    sheet = evidence_sheet(NativeRoles(model), NativeRoles(model), (model, model))
    rows = {row.key: row for row in sheet.rows}
    assert rows["equal_tensors"].is_within is False and rows["tokenizer_overlap"].is_within is None
