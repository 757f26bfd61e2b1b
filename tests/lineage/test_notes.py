"""What a verdict on weights says of blocks, neurons and tensors that do not stand where the base's stand."""

import dataclasses
import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bornbiased_jax.checkpoints import Checkpoint, export_hugging_face
from bornbiased_jax.checkpoints.native_roles import NativeRoles
from bornbiased_jax.config import preset
from bornbiased_jax.derive import damage, symmetries
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage import weights_verdict
from bornbiased_jax.lineage.battery import ALL, ComponentTest, Options, compare_weights
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.lineage.trace import trace
from bornbiased_jax.lineage.weights_verdict import auto_verdict
from bornbiased_jax.model import flatten, unflatten
from bornbiased_jax.results import verdicts
from bornbiased_jax.results.verdicts import Lineage

CFG = preset("llama-tiny", num_layers=3, num_heads=4, d_model=64, d_ff=96, vocab_size=300)
BASE = init_seed(CFG, 1)


def noisy(params, scale=0.002, seed=0):
    """All matrices with noise, so that no tensor is equal bit for bit."""
    rng = np.random.default_rng(seed)
    flat = flatten(params)
    return unflatten(
        {
            path: np.asarray(leaf) + np.float32(scale) * rng.standard_normal(leaf.shape, np.float32)
            for path, leaf in flat.items()
        }
    )


def verdict_on(cfg, params, base=BASE, **options):
    return trace(Checkpoint.from_params(CFG, base), Checkpoint.from_params(cfg, params), num_permutations=99, **options)


def notes_of(verdict, words):
    return [note for note in verdict.notes if words in note]


def narrow(keep=48):
    """Half of each MLP's neurons, in another order."""
    order = np.random.default_rng(3).permutation(CFG.d_ff)[:keep]
    flat = dict(flatten(noisy(BASE)))
    for name, axis in (("gate", 2), ("up", 2), ("down", 1)):
        path = f"blocks/mlp/{name}/kernel"
        flat[path] = np.take(flat[path], order, axis)
    return CFG.replace(d_ff=keep), unflatten(flat)


def test_reordered_neurons_that_match_are_not_said_to_disagree():
    verdict = verdict_on(*narrow())
    assert verdict.verdict == "same-lineage" and verdict.detail["agreement"] > verdict.detail["agreement_threshold"]
    assert verdict.detail["shared_embeddings"] is False
    assert not notes_of(verdict, "Shared embeddings") and not notes_of(verdict, "and not in gate")
    assert notes_of(verdict, "more than the 50.0% from which on they decide; unrelated models with so few neurons")


def test_shared_embeddings_are_still_told_where_no_neurons_match():
    other = dict(flatten(init_seed(CFG, 2)))
    other["embed/embedding"] = flatten(noisy(BASE))["embed/embedding"]
    verdict = verdict_on(CFG, unflatten(other))
    assert verdict.detail["shared_embeddings"] is True and notes_of(verdict, "Shared embeddings")


def test_repeated_blocks_are_named_with_the_block_that_they_come_from():
    cfg, params = damage.keep_blocks(CFG, noisy(BASE), [1, 2, 3, 2, 3])
    flat = dict(flatten(params))
    # The repeated blocks are further from the base than the first ones.
    for path, leaf in flat.items():
        if path.startswith("blocks/") and path.endswith("kernel"):
            leaf = np.array(leaf)
            leaf[3:] += np.float32(0.01) * np.random.default_rng(4).standard_normal(leaf[3:].shape, np.float32)
            flat[path] = leaf
    verdict = verdict_on(cfg, unflatten(flat))
    assert notes_of(verdict, "Corresponding blocks, base – suspect: blocks 1 to 3 of either.")
    (note,) = notes_of(verdict, "Further blocks of the suspect")
    assert "4 from 2 (z = " in note and "5 from 3 (z = " in note
    drawn = Lineage("base", "suspect", verdict).figures()["blocks"].figure.axes[0]
    labels = [label.get_text() for label in drawn.get_yticklabels()]
    assert labels == ["1 – 1", "2 – 2", "3 – 3", "2 – 4", "3 – 5"]


def test_dropped_and_foreign_blocks_are_told_apart():
    cfg, params = damage.keep_blocks(CFG, noisy(BASE), [1, 3])
    verdict = verdict_on(cfg, params)
    assert notes_of(verdict, "Corresponding blocks, base – suspect: block 1 of either, 3 – 2.")
    assert notes_of(verdict, "Without a block of the suspect that they agree with: the base's block 2.")
    drawn = Lineage("base", "suspect", verdict).figures()["blocks"].figure.axes[0]
    assert [label.get_text() for label in drawn.get_yticklabels()] == ["1 – 1", "3 – 2", "2 – none"]


def test_blocks_in_another_order_are_paired_also_in_a_rotated_copy():
    """No evidence but that of tokens sees through a rotation, and it needs blocks that correspond."""
    reversed_blocks = damage.keep_blocks(CFG, noisy(BASE), [3, 2, 1])
    for cfg, params in (reversed_blocks, symmetries.rotate(*reversed_blocks, symmetries.random_rotation(CFG, 4))):
        verdict = verdict_on(cfg, params)
        assert verdict.verdict == "same-lineage" and verdict.detail["blocks"] == [[1, 3], [2, 2], [3, 1]]
        assert notes_of(verdict, "Corresponding blocks, base – suspect: block 2 of either, 1 – 3, 3 – 1.")
    unrelated = verdict_on(CFG, init_seed(CFG, 2))
    assert unrelated.verdict == "unrelated" and unrelated.detail["blocks"] == [[1, 1], [2, 2], [3, 3]]


def test_blocks_that_correspond_by_number_are_not_listed():
    assert not notes_of(verdict_on(CFG, noisy(BASE)), "Corresponding blocks")


def test_tensors_that_differ_are_named_of_checkpoints_and_resolution_is_told_of_fingerprints():
    flat = dict(flatten(BASE))
    flat["head/kernel"] = 3 * np.asarray(flat["head/kernel"])
    suspect = unflatten(flat)
    verdict = verdict_on(CFG, suspect)
    assert notes_of(verdict, "wherever they stand; not the head kernel.")
    assert not notes_of(verdict, "sketch's resolution")
    stored = [fingerprint(NativeRoles(Checkpoint.from_params(CFG, params))) for params in (BASE, suspect)]
    of_fingerprints = auto_verdict(*stored, Options(num_permutations=99))
    assert notes_of(of_fingerprints, "Equal at the sketch's resolution") and notes_of(of_fingerprints, "wherever they")
    assert not notes_of(of_fingerprints, "; not language")


def test_an_identity_has_no_probability_in_its_text():
    verdict = verdict_on(CFG, BASE)
    assert verdict.is_identity and verdict.log10_p is not None
    assert "log10 p" not in verdict.text() and "z =" not in verdict.text().splitlines()[0]
    assert not notes_of(verdict, "Chance is measured") and not notes_of(verdict, "The p-value is exact")


@pytest.fixture(scope="module")
def related():
    verdict = verdict_on(CFG, noisy(BASE))
    return Lineage("base", "suspect", verdict)


def test_tests_are_listed_with_corrected_p_and_parts_with_their_own_verdicts(related):
    tests, parts = related.tables()[:2]
    assert tests.columns == list(verdicts._TEST_COLUMNS.values())
    place = tests.columns.index("log10 p, corrected")
    for row, test in zip(tests.rows, related.verdict.detail["tests"], strict=True):
        assert row[place] == test["log10_p_adjusted"] and (row[place] is None or row[place] >= row[place - 1])
    names = [row[0] for row in parts.rows]
    assert {"the whole model", "embedding", "head", "attention, all matrices", "MLP, all matrices", "block 3"} <= set(
        names
    )
    by_name = {row[0]: row for row in parts.rows}
    strongest = min(by_name[name][3] for name in ("gate", "up", "down"))
    assert by_name["MLP, all matrices"][3] == strongest
    assert len(parts.rows) == len(related.verdict.detail["components"]) + 2


def test_what_is_undefined_is_listed_with_its_reason(related):
    cfg = CFG.replace(num_heads=2, num_kv_heads=1)
    base = init_seed(cfg, 1)
    verdict = trace(*(Checkpoint.from_params(cfg, params) for params in (base, noisy(base))), num_permutations=99)
    tests, parts = Lineage("a", "b", verdict).tables()[:2]
    (row,) = [row for row in tests.rows if row[0] == "heads in token space"]
    assert row[1].startswith("none: only ") and "orders of the labels" in row[1]
    defined = [row for row in (*tests.rows, *parts.rows) if "undefined" not in row]
    assert defined and not any(str(cell).startswith("none: ") for row in defined for cell in row)


def test_a_single_test_has_no_corrected_column():
    verdict = verdict_on(CFG, noisy(BASE), test="weights")
    (table,) = [listing for listing in Lineage("a", "b", verdict).tables() if "log10 p" in listing.columns]
    assert "log10 p, corrected" not in table.columns


def test_tests_of_a_second_component_are_named_with_it(related):
    rows = [dict(row) for row in related.verdict.detail["tests"]]
    for row in rows[1:]:
        row["component"] = "vision"
    detail = {**related.verdict.detail, "tests": rows}
    listed = dataclasses.replace(related, verdict=dataclasses.replace(related.verdict, detail=detail)).tables()[0]
    assert listed.rows[0][0] == "coordinates" and listed.rows[2][0] == "neurons in coordinates, vision tower"


@pytest.mark.slow
def test_what_was_left_out_of_a_models_files_is_part_of_the_verdict(tmp_path):
    folder = tmp_path / "suspect"
    export_hugging_face(CFG, BASE, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["v_head.summary.weight"] = np.zeros((1, CFG.d_model), np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    verdict = trace(Checkpoint.from_params(CFG, BASE), folder, num_permutations=99)
    assert verdict.reason == "the two models have the same weights, tensor by tensor, in all tensors that both have"
    (note,) = notes_of(verdict, "The suspect's files: ")
    assert "v_head.summary.weight" in note
    assert not notes_of(verdict_on(CFG, BASE), "files: ")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_a_model_without_a_head_is_the_base_in_all_tensors_that_both_have(tmp_path, dtype):
    base, suspect, shallow = (tmp_path / name for name in ("base", "suspect", "shallow"))
    export_hugging_face(CFG, BASE, base)
    tensors = load_file(base / "model.safetensors")
    del tensors["lm_head.weight"]
    # Tensors that a seed did not decide are equal, whatever a model's: a block less is no missing table.
    for place, contents in (
        (suspect, tensors),
        (shallow, {name: tensors[name] for name in tensors if ".1." not in name}),
    ):
        place.mkdir()
        config = json.loads((base / "config.json").read_text())
        config |= {"architectures": ["LlamaModel"], "num_hidden_layers": CFG.num_layers - (place == shallow)}
        (place / "config.json").write_text(json.dumps(config))
        save_file({name: array.astype(dtype) for name, array in contents.items()}, place / "model.safetensors")
    verdict = trace(base, suspect, num_permutations=99)
    assert verdict.is_identity and verdict.detail["identity"] == ("tensors" if dtype is np.float32 else "rounded")
    assert verdict.reason.endswith(", in all tensors that both have: the base alone has the head kernel")
    swapped = trace(suspect, base, num_permutations=99)
    assert swapped.reason.endswith(": the suspect alone has the head kernel")
    assert trace(base, shallow, num_permutations=99).detail["identity"] is None


def test_the_whole_model_is_named_where_it_agrees_though_a_part_has_the_smaller_p(related):
    assert related.verdict.reason.endswith("more than chance allows")
    cells = [ComponentTest("coordinates", "experts/1", 9.0, -50.0001, log10_adjusted=-49.0)]
    cells += [ComponentTest("coordinates", ALL, 9.0, -50.0, log10_adjusted=-49.0)]
    base = fingerprint(NativeRoles(Checkpoint.from_params(CFG, BASE)))
    comparison = dataclasses.replace(compare_weights(base, base), cells=tuple(cells), equal=())
    decision, reason, deciding = weights_verdict._decide(comparison, None, [], "", "")
    assert (decision, deciding.component) == ("same-lineage", "experts/1") and "expert" not in reason
    alone = dataclasses.replace(comparison, cells=(cells[0], dataclasses.replace(cells[1], log10_adjusted=0.0)))
    assert weights_verdict._decide(alone, None, [], "", "")[1].endswith(", in expert 1")


def test_each_component_has_a_map_of_its_own_and_no_block_is_listed_outside(related):
    by_module = list(related.verdict.detail["by_module"])
    by_module += [{**row, "module": f"vision/{row['module']}"} for row in by_module]
    detail = {**related.verdict.detail, "by_module": by_module}
    shown = dataclasses.replace(related, verdict=dataclasses.replace(related.verdict, detail=detail))
    panels = shown.figures()
    assert {"modules", "modules_vision"} <= set(panels)
    assert "of the vision tower" in panels["modules_vision"].caption and "tower" not in panels["modules"].caption
    (outside,) = [table for table in shown.tables() if table.title == "Outside the blocks"]
    assert [row[0] for row in outside.rows] == ["embed", "head", "vision/embed", "vision/head"]
