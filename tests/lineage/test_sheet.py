"""Popular statistics of a pair next to unrelated models: what they are for copies, and that they change no verdict."""

import dataclasses
import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from bornbiased_jax.checkpoints import Checkpoint, export_hugging_face, open_checkpoint
from bornbiased_jax.checkpoints.by_role import read_by_names
from bornbiased_jax.checkpoints.native_roles import NativeRoles
from bornbiased_jax.checkpoints.roles import Role, RoleSource, RoleTensor
from bornbiased_jax.cli.main import run
from bornbiased_jax.experiments.results import committed
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage import sheet_sample, spectra
from bornbiased_jax.lineage.blockwise import ProbeOutputs, probe_ids
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.lineage.sheet import (
    CALIBRATION,
    KINDS,
    QUANTILES,
    STATISTICS,
    SYNTHETIC,
    SheetRow,
    calibrated_config,
    evidence_sheet,
)
from bornbiased_jax.lineage.sheet_reading import (
    SheetReading,
    TokenVocabulary,
    config_fields,
    read_model,
    vocabulary,
)
from bornbiased_jax.lineage.sheet_statistics import (
    NORM_SCALES,
    _embedding_statistics,
    compare,
    measure,
    synthetic_releases,
    token_statistics,
)
from bornbiased_jax.results.sheet_tables import number_text, place_text, sheet_listings, value_text
from bornbiased_jax.text.bpe import train_bpe
from tests.fixtures.configs import edit_config
from tests.lineage.descendants import config, descend, edited, reader, rotated

CFG = config(num_layers=2, d_model=64, d_ff=96, qkv_bias=True)
SMALL = "llama-tiny,num_layers=2,num_heads=2,d_model=32,d_ff=48,vocab_size=128"


def test_too_few_shared_tokens_are_the_reason_also_where_no_rotation_is_fitted(monkeypatch):
    monkeypatch.setattr("bornbiased_jax.lineage.sheet_statistics._WIDEST_TABLE", 4)
    table = SimpleNamespace(read=lambda _role: np.ones((1, 8), np.float32))
    values = _embedding_statistics(*(SimpleNamespace(embedding="", labels=(x,), source=table) for x in (b"a", b"b")))
    assert values["embedding_cosine"] == "fewer than two tokens in both models"
    assert values["embedding_procrustes"] == values["mdir_trace"] == "embeddings wider than 4"


def untrained(cfg, seed):
    return Checkpoint.from_params(cfg, init_seed(cfg, seed), seed=seed, is_initial=True)


def statistics(first, second):
    ids_ST = probe_ids(first, second)
    return compare(*(read_model(NativeRoles(model), model, ids_ST) for model in (first, second)))


def test_a_copy_agrees_in_all_statistics():
    model = reader(descend(CFG, 1))
    values = statistics(model, model)
    assert values.pop("mdir_trace") == pytest.approx(64, abs=1e-3)
    assert [values.pop(key) for key in ("tokenizer_overlap", "shared_merges", "id_shift")] == [None] * 3
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
            source = NativeRoles(model)
            source.observe = lambda role, _: read.append(role.name)
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


def test_cosines_of_norm_scales_are_told_by_block_beside_their_mean():
    cfg, params = descend(config(num_layers=3, d_model=64, d_ff=96), 1)
    model = reader((cfg, params))
    draws = np.random.default_rng(0)

    def edit(path, leaf):
        # The second block's scales are drawn apart, the others kept.
        if not (path.startswith("blocks/") and path.endswith("norm/scale")):
            return leaf
        leaf[1] = np.exp(0.3 * draws.standard_normal(leaf[1].shape))
        return leaf

    rows = sheet_of_pair(model, reader(edited(cfg, params, edit)))
    for key in ("norm_cosine", "norm_cosine_centered"):
        least, largest = rows[key].by_block
        assert largest == pytest.approx(1.0) and least < rows[key].value < largest
    # Two norms in each of three blocks, and one after them.
    mean = (2 * (2 + rows["norm_cosine"].by_block[0]) + 1) / 7
    assert rows["norm_cosine"].value == pytest.approx(mean)
    assert value_text(rows["norm_cosine"]).endswith(" to 1 by block)")
    assert abs(rows["norm_cosine_centered"].by_block[0]) < 0.5
    assert {key for key, row in rows.items() if row.by_block} == {"norm_cosine", "norm_cosine_centered"}
    # Of constant scales the raw cosine alone is defined.
    untrained_rows = sheet_of_pair(untrained(CFG, 1), untrained(CFG, 2))
    assert untrained_rows["norm_cosine"].by_block == pytest.approx((1.0, 1.0))
    assert untrained_rows["norm_cosine_centered"].by_block is None


def test_a_rotation_hides_the_cosine_of_embeddings_and_procrustes_undoes_it():
    cfg, params = descend(CFG, 1)
    values = statistics(reader((cfg, params)), reader(rotated(cfg, params)))
    assert abs(values["embedding_cosine"]) < 0.3
    # CKA sees no rotation.
    assert values["output_agreement"] > 0.9 and values["cka"] > 0.99 and values["cka_hidden"] > 0.99


def test_the_packaged_ranges_are_those_of_the_committed_record():
    packaged, record = json.loads(CALIBRATION.read_text()), committed("evidence_sheet", "laptop")
    assert packaged == record["result"] and set(packaged["statistics"]) == set(STATISTICS)
    for by_kind in packaged["statistics"].values():
        assert set(by_kind) <= set(KINDS)
        assert by_kind
        assert all(row == sorted(row) and len(row) == len(QUANTILES) for row in by_kind.values())


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
    assert min(quantiles[0] for quantiles in row.ranges.values()) < 0.992 and row.place is None
    assert "a variation by a tenth gives 0.99" in STATISTICS["norm_cosine"].worth


@pytest.mark.parametrize("factor", [1e25, 0.0])
def test_weights_without_squares_in_float32_have_finite_statistics_or_the_reason(factor, recwarn):
    """Products of large numbers overflow, and those of zeros have no direction."""
    params = descend(CFG, 1)[1]
    large = Checkpoint.from_params(CFG, jax.tree.map(lambda leaf: np.float32(factor) * np.asarray(leaf), params))
    model = reader((CFG, params))
    records = [{record.path: record for record in fingerprint(NativeRoles(each)).tensors} for each in (model, large)]
    models = (model, large)
    rows = evidence_sheet(*map(NativeRoles, models), models, tuple(records)).rows
    assert not recwarn.list and all(row.value is None or np.isfinite(row.value) for row in rows)
    by_key = {row.key: row for row in rows}
    if factor:
        assert by_key["spectra"].value == pytest.approx(1) and by_key["std_profile"].value == pytest.approx(1)
    else:
        assert by_key["spectra"].reason == "matrices of zeros"
        assert by_key["std_profile"].reason == "matrices of one standard deviation"


def test_outputs_that_overflow_have_no_statistics():
    """Equal next tokens of two models without numbers would be a coincidence of their NaN."""
    model = untrained(CFG, 1)
    reading = read_model(NativeRoles(model), model, probe_ids(model, model))
    broken = dataclasses.replace(
        reading, outputs=reading.outputs._replace(logits_PV=np.full_like(reading.outputs.logits_PV, np.nan))
    )
    values = measure(broken, broken)
    assert values["output_agreement"] == values["cka"] == values["cka_hidden"] == "outputs beyond what float32 holds"


@pytest.mark.slow
def test_the_sheet_stands_at_the_end_of_a_page_and_changes_no_verdict(tmp_path, capsys):
    pair = ["seedprint", f"seed:1@{SMALL}", f"seed:2@{SMALL}", "--quiet"]
    assert run([*pair, "--json", str(tmp_path / "plain.json")]) == 0
    plain = capsys.readouterr().out
    assert run([*pair, "--json", str(tmp_path / "page.json"), "--page", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == plain
    first, second = (json.loads((tmp_path / name).read_text()) for name in ("plain.json", "page.json"))
    assert first["verdict"] == second["verdict"] == "unrelated" and first.keys() | {"sheet"} == second.keys()
    page = (tmp_path / "page.html").read_text()
    assert "What is this evidence worth?" in page and STATISTICS["norm_cosine"].worth in page
    assert "Other sizes have other ranges" in page and "two releases (synthetic)" in page


def calibrated(seed, width=64, **changes):
    cfg = calibrated_config(json.loads(CALIBRATION.read_text()), width).replace(**changes)
    return reader(descend(cfg, seed, change=seed))


def sheet_of_pair(base, suspect):
    return {row.key: row for row in evidence_sheet(NativeRoles(base), NativeRoles(suspect), (base, suspect)).rows}


def test_a_copy_lies_above_all_unrelated_pairs_where_that_means_something():
    model = calibrated(1)
    places = {key: row.place for key, row in sheet_of_pair(model, model).items()}
    above = {key for key, place in places.items() if place == "above"}
    # Biases of an initialization are zero, and this one has no tokenizer.
    assert above == {
        *("norm_cosine_centered", "embedding_cosine", "embedding_procrustes", "mdir_trace", "equal_tensors"),
        *("cka_hidden", "cka"),
    }
    assert all(places[key] is None for key, statistic in STATISTICS.items() if not statistic.is_evidence)


@pytest.mark.parametrize(("first", "second"), [(1, 2), (3, 4), (5, 6)])
def test_an_innocent_pair_is_among_the_unrelated_ones(first, second):
    rows = sheet_of_pair(calibrated(first), calibrated(second))
    assert {row.place for row in rows.values()} <= {None, "inside", "below"}
    assert rows["equal_tensors"].place == rows["embedding_cosine"].place == rows["mdir_trace"].place == "inside"


@pytest.mark.slow
def test_no_place_is_said_for_models_of_other_sizes_than_the_ranges():
    """Two seeds of another size have a CKA beyond all unrelated pairs that were measured, and share nothing."""
    model, other = untrained(CFG, 1), untrained(CFG, 2)
    rows = sheet_of_pair(model, other)
    assert {key for key, row in rows.items() if row.place is not None} == {"equal_tensors"}
    assert rows["equal_tensors"].place == "inside" and sheet_of_pair(model, model)["equal_tensors"].place == "above"
    assert place_text(rows["cka"]) == "not said: other architecture or size"
    assert place_text(rows["std_profile"]) == "not said: it is no evidence"
    wide, narrow = calibrated(1, 96), calibrated(2, 64)
    assert sheet_of_pair(wide, narrow)["cka"].place is not None
    assert sheet_of_pair(calibrated(1, vocab_size=200), calibrated(2, vocab_size=200))["cka"].place is None


def test_outputs_that_are_the_same_everywhere_have_no_cka_whatever_memory_is_free():
    constant = ProbeOutputs(np.ones((6, 16), np.float32), np.ones((6, 8), np.float32))
    reading = SheetReading(None, {"vocab_size": 16}, None, constant, None)
    values = measure(reading, reading)
    assert values["output_agreement"] == 1.0
    assert values["cka"] == values["cka_hidden"] == "outputs that are the same at every position"


def test_a_value_that_rounds_to_the_end_of_its_range_is_inside():
    row = SheetRow("cka", 0.40004, {KINDS[0]: (0.1, 0.1, 0.2, 0.4, 0.4)})
    assert row.place == "inside"
    assert dataclasses.replace(row, value=0.4002).place == "above"
    assert dataclasses.replace(row, value=0.09).place == "below"


def test_every_statistic_without_a_value_says_why():
    plain = config(num_layers=2, d_model=64, d_ff=96)
    rows = sheet_of_pair(untrained(plain, 1), untrained(plain, 2))
    reasons = {key: row.reason for key, row in rows.items() if row.value is None}
    assert reasons == {
        "norm_cosine_centered": "norm scales that are constant, as before training",
        "bias_cosine": "no biases of Q, K, V in both models",
        **dict.fromkeys(("tokenizer_overlap", "shared_merges", "id_shift"), "not both models have a tokenizer"),
    }
    assert value_text(rows["bias_cosine"]) == "none: no biases of Q, K, V in both models"
    narrow = untrained(config(num_layers=2, d_model=32, d_ff=48, vocab_size=100), 3)
    rows = sheet_of_pair(untrained(plain, 1), narrow)
    assert rows["embedding_cosine"].reason == "embeddings of two widths"
    assert rows["norm_cosine"].reason == "norm scales of two sizes"
    assert rows["cka"].reason == "vocabularies of two sizes" and 0 < rows["equal_settings"].value < 1
    assert rows["spectra"].reason.startswith("no matrices of one shape")
    # Models that this package does not run.
    sources = [NativeRoles(untrained(plain, seed)) for seed in (1, 2)]
    rows = {row.key: row for row in evidence_sheet(*sources, None).rows}
    assert rows["cka"].reason == "this package does not run both models"
    assert rows["equal_settings"].reason == "not both models have a config.json, or fields in common"
    assert rows["embedding_cosine"].value is not None and rows["embedding_cosine"].place is None


def test_fields_of_both_configurations_are_counted_whatever_the_models(tmp_path):
    folders = [tmp_path / name for name in ("base", "suspect")]
    for seed, folder in enumerate(folders, 1):
        export_hugging_face(CFG, init_seed(CFG, seed), folder)
    edit_config(folders[1], rope_theta=5e5, text_config={"use_cache": True})
    # As models that this package does not run, then by the settings that it reads.
    named = [read_by_names(folder) for folder in folders]
    runnable = [open_checkpoint(str(folders[0]))] * 2
    by_names = evidence_sheet(*named, None)
    row = next(row for row in by_names.rows if row.key == "equal_settings")
    # All but the base of rotations are equal, and one of the suspect alone does not count.
    count = len(config_fields([folders[0] / "model.safetensors"]))
    assert count > 10 and row.value == (count - 1) / count
    assert value_text(row).endswith(f"({count - 1} of {count} fields in both config.json)")
    run_both = evidence_sheet(*map(NativeRoles, runnable), tuple(runnable))
    row = next(row for row in run_both.rows if row.key == "equal_settings")
    assert row.value == 1.0 and row.sample.endswith("settings of this package")


def test_standard_deviations_of_both_models_stand_block_by_block():
    deep, flat = config(num_layers=3, d_model=64, d_ff=96), config(num_layers=2, d_model=64, d_ff=96)
    models = untrained(deep, 1), untrained(flat, 2)
    sheet = evidence_sheet(*map(NativeRoles, models), models)
    (table,) = [table for table in sheet_listings(sheet) if table.title.startswith("Standard deviations")]
    assert table.columns == ["block", "Q", "K", "V", "O"] and [row[0] for row in table.rows] == [1, 2, 3]
    profiles = sheet.to_json()["std_by_block"]
    for name, model, cfg in zip(("base", "suspect"), models, (deep, flat), strict=True):
        for matrix in ("query", "key", "value", "output"):
            stds = [model.read(f"blocks/attention/{matrix}/kernel", block).std() for block in range(cfg.num_layers)]
            np.testing.assert_allclose(profiles[name][matrix], stds, rtol=1e-6)
    base, suspect = (number_text(profiles[name]["value"][1]) for name in ("base", "suspect"))
    assert table.rows[1][3] == f"{base} | {suspect}"
    # The block that the suspect lacks.
    assert table.rows[2][1] == f"{number_text(profiles['base']['query'][2])} | –"
    # The correlation of the rows above is over these very numbers.
    pairs = [
        (profiles["base"][matrix][block], profiles["suspect"][matrix][block])
        for matrix in profiles["suspect"]
        for block in range(2)
    ]
    row = next(row for row in sheet.rows if row.key == "std_profile")
    assert row.value == pytest.approx(np.corrcoef(np.transpose(pairs))[0, 1], abs=1e-9)


def test_a_configuration_that_is_no_object_has_no_fields(tmp_path):
    weights = [tmp_path / "model.safetensors"]
    assert config_fields(weights) is None
    for text in ("[1]", "{", "{}"):
        (tmp_path / "config.json").write_text(text)
        assert config_fields(weights) == ({} if text == "{}" else None)


def test_the_tables_have_a_word_in_every_cell_and_explain_their_dashes():
    model, other = untrained(CFG, 1), untrained(CFG, 2)
    worth, stds, ranges = sheet_listings(evidence_sheet(NativeRoles(model), NativeRoles(other), (model, other)))
    assert len(stds.rows) == CFG.num_layers and all(cell for row in stds.rows for cell in row)
    assert all(cell for row in worth.rows for cell in row) and len(worth.rows) == len(STATISTICS)
    assert "architecture and a size" in worth.note
    assert ranges.columns[-1] == SYNTHETIC and "last column is of no model" in ranges.note
    row = next(row for row in ranges.rows if row[0] == STATISTICS["cka"].title)
    least, *_, largest = json.loads(CALIBRATION.read_text())["statistics"]["cka"]["untrained"]
    assert f"({number_text(least)} to {number_text(largest)})" in row[1]


TEXTS = ["the cat sat on the mat and the rat sat on the hat", "to be or not to be that is the question"] * 20


def test_tokenizers_are_compared_by_tokens_merges_and_one_constant_shift():
    tokenizer = train_bpe(TEXTS, 280)
    base = vocabulary(tokenizer)
    assert token_statistics(base, base) == {"tokenizer_overlap": 1.0, "shared_merges": 1.0, "id_shift": 1.0}
    # Three tokens put before all others move every number by three.
    shifted = TokenVocabulary((b"<a>", b"<b>", b"<c>", *base.labels), base.merges)
    values = token_statistics(base, shifted)
    assert values["id_shift"] == 1.0 and values["tokenizer_overlap"] < 1.0
    # Of tokens that stand in the opposite order, one at most keeps a distance.
    backwards = TokenVocabulary(base.labels[::-1], base.merges)
    assert token_statistics(base, backwards)["id_shift"] == pytest.approx(1 / len(base.labels))
    other = vocabulary(train_bpe(["zig zag zog zug"] * 20, 270))
    assert 0 <= token_statistics(base, other)["shared_merges"] < 0.2
    assert token_statistics(base, TokenVocabulary(base.labels, None))["shared_merges"] is None


def test_merges_are_read_in_both_spellings_of_the_file():
    tokenizer = train_bpe(TEXTS, 280)
    content = json.loads(tokenizer.json_text)
    pairs = [row if isinstance(row, list) else row.split(" ") for row in content["model"]["merges"]]
    for rows in (pairs, [" ".join(pair) for pair in pairs]):
        content["model"]["merges"] = rows
        spelled = dataclasses.replace(tokenizer, json_text=json.dumps(content))
        assert vocabulary(spelled).merges == frozenset(map(tuple, pairs))


def test_spectra_of_products_survive_a_rotation_and_tell_shapes():
    # Scales of norms are 1 here: a rotation folds others into the matrices, which moves their spectra.
    model = CFG, init_seed(CFG, 1)
    values = statistics(reader(model), reader(rotated(*model)))
    assert values["ghostspec"] == pytest.approx(1.0, abs=1e-5) and values["self"] == pytest.approx(1.0, abs=1e-4)
    assert statistics(reader(model), untrained(CFG, 2))["ghostspec"] < 0.9999


def attention(num_heads, num_kv_heads, width=64, head_dim=8):
    draws = np.random.default_rng(0)
    of_heads, of_groups = (width, num_heads * head_dim), (width, num_kv_heads * head_dim)
    shapes = {"query": of_heads, "key": of_groups, "value": of_groups, "output": of_heads[::-1]}
    return {name: draws.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(8, 8), (8, 2), (4, 4), (12, 12), (12, 3)])
def test_spectra_of_factors_are_those_of_the_whole_product(num_heads, num_kv_heads):
    """Of less rank than width, of as much and of more: each key and value repeated for the heads of its group."""
    kernels = attention(num_heads, num_kv_heads)
    query_DH, output_HD = (kernels[name].astype(np.float64) for name in ("query", "output"))
    repeated = [
        kernels[name].astype(np.float64).reshape(64, num_kv_heads, 1, 8).repeat(num_heads // num_kv_heads, axis=2)
        for name in ("key", "value")
    ]
    key_DH, value_DH = (array.reshape(64, -1) for array in repeated)
    for product_DD, factors in zip(
        (query_DH @ key_DH.T, value_DH @ output_HD),
        spectra.attention_factors(kernels, num_heads, num_kv_heads),
        strict=True,
    ):
        values = spectra.product_spectra(factors)
        assert {array.shape for array in values.values()} == {(64,)}
        singular_D = np.linalg.svd(product_DD, compute_uv=False)
        np.testing.assert_allclose(values["ghostspec"], singular_D, atol=1e-4 * singular_D[0])
        eigenvalues_D = np.sort(np.abs(np.linalg.eigvals(product_DD)))[::-1]
        np.testing.assert_allclose(values["self"], eigenvalues_D, atol=1e-4 * eigenvalues_D[0])


@pytest.mark.parametrize("shape", [(40, 96), (96, 40), (64, 64)])
def test_singular_values_by_the_gram_matrix_of_either_layout(monkeypatch, shape):
    monkeypatch.setattr(spectra, "_DIRECT", 16)
    matrix = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    expected = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    for laid_out in (matrix, np.asfortranarray(matrix), np.repeat(matrix, 2, axis=1)[:, ::2]):
        np.testing.assert_allclose(spectra.singular_values(laid_out), expected, atol=2e-3 * expected[0])
        values = spectra.singular_values(laid_out).astype(np.float64)
        assert values @ expected / np.linalg.norm(values) / np.linalg.norm(expected) > 1 - 1e-6


class Shapes(RoleSource):
    """A model of which only the shapes are known: attention and a gated MLP, dense or of experts."""

    def __init__(self, num_layers, width, kv_width, hidden, num_experts=None):
        super().__init__("", ())
        experts = [None] if num_experts is None else range(1, num_experts + 1)
        for block in range(1, num_layers + 1):
            attention = {"query": (width, width), "key": (width, kv_width)}
            attention |= {"value": (width, kv_width), "output": (width, width)}
            mlp = {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
            rows = [(group, None, shape) for group, shape in attention.items()]
            rows += [(group, expert, shape) for expert in experts for group, shape in mlp.items()]
            for group, expert, shape in rows:
                self._parts[Role("language", group, "kernel", block, expert, ((), ()))] = RoleTensor(shape, pytest.fail)


@pytest.mark.parametrize(
    ("sizes", "matrices", "products"),
    [
        ((32, 4096, 4096, 11008), "block 16 of 32", "block 16 of 32"),
        ((24, 1024, 1024, 2816), "", ""),
        ((80, 8192, 1024, 28672), "key, value of block 40 of 80", "block 40 of 80"),
        ((1, 4096, 1024, 14336, 8), "query, key, value, output, gate, up, down", ""),
        ((32, 4096, 1024, 14336, 8), "query, key, value, output, gate, up, down of block 16 of 32", "block 16 of 32"),
    ],
)
def test_wide_models_are_sampled_in_the_middle_of_their_depth(sizes, matrices, products):
    model = Shapes(*sizes)
    (first, second), parts = sheet_sample.sample_pair(model, model)
    assert (parts["spectra"], parts["ghostspec"]) == (matrices, products)
    assert first == second and first.paths and first.blocks


def test_models_of_two_depths_are_sampled_at_the_same_part_of_each():
    (first, second), parts = sheet_sample.sample_pair(Shapes(32, 4096, 4096, 11008), Shapes(40, 4096, 4096, 11008))
    assert parts["self"] == "block 16 of 32 and block 20 of 40"
    assert (first.blocks, second.blocks) == ({16}, {20})
    assert first.paths == second.paths  # in the blocks that both have
    (first, second), _ = sheet_sample.sample_pair(Shapes(2, 64, 64, 96), Shapes(2, 32, 32, 48))
    assert not first.paths and second.blocks == {1, 2}


def test_a_sheet_of_a_sample_has_every_value_and_says_of_what(monkeypatch):
    cfg = config(num_layers=4, d_model=64, d_ff=96)
    model, other = untrained(cfg, 1), untrained(cfg, 2)
    whole = sheet_of_pair(model, other)
    monkeypatch.setattr(sheet_sample, "_NARROW", 32)
    rows = sheet_of_pair(model, other)
    assert {key: row.sample for key, row in rows.items() if row.sample} == {
        "equal_settings": whole["equal_settings"].sample,
        "spectra": "block 2 of 4",
        "ghostspec": "block 2 of 4",
        "self": "block 2 of 4",
    }
    for key in ("spectra", "ghostspec", "self"):
        assert not whole[key].sample
        assert rows[key].value != whole[key].value and rows[key].value == pytest.approx(whole[key].value, abs=0.01)
        assert value_text(rows[key]).endswith(f" ({rows[key].sample})")
    worth, *_ = sheet_listings(evidence_sheet(NativeRoles(model), NativeRoles(other), (model, other)))
    assert "in brackets" in worth.note
    copy = sheet_of_pair(model, model)
    assert all(copy[key].value == pytest.approx(1.0) for key in ("spectra", "ghostspec", "self"))


@pytest.mark.parametrize("value", [1.0, 0.99996, 0.9997, 0.38354, 0.0, -2.669])
def test_numbers_next_to_one_are_told_from_it(value):
    assert float(number_text(value).replace("−", "-")) == pytest.approx(value, rel=2e-4)
    assert (number_text(value) == "1") == (value == 1.0)
