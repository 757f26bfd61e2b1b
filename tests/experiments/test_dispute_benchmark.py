"""The benchmark of disputes and the power of fingerprints, at their smallest: without training's compilation."""

import functools

import jax
import numpy as np
import pytest

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.native_roles import LANGUAGE, NativeRoles
from bornbiased_jax.derive import symmetries
from bornbiased_jax.experiments import results
from bornbiased_jax.experiments.lineage import (
    descendants_families,
    disputes,
    disputes_recipes,
    disputes_tables,
    power,
    unrelated_models,
)
from bornbiased_jax.experiments.lineage.descendants_summary import FALSE_POSITIVES
from bornbiased_jax.experiments.lineage.disputes_recipes import KINDS, TOWER, TowerRoles
from bornbiased_jax.experiments.lineage.unrelated_models import draw
from bornbiased_jax.lineage.sheet_reading import read_model
from bornbiased_jax.lineage.sheet_statistics import compare
from bornbiased_jax.model import apply, flatten, parameter_shapes, unflatten
from tests.experiments.smoke import context_of, record_of
from tests.experiments.test_court import noisy_initializations

SMOKE = disputes.EXPERIMENT.settings["smoke"]
CFG = disputes_recipes.config(SMOKE)


def moved(_loss, trained, _fixed, _tokens, _rate, marks):
    """Stand in for training without its compilation: add a little noise to each model's parameters."""
    draws = np.random.default_rng(0)

    def move(leaf):
        return leaf + np.float32(0.02) * draws.standard_normal(leaf.shape, np.float32)

    return {mark: jax.tree.map(move, trained) for mark in marks}


def random_weights(cfg, seed):
    """Every parameter at random but for norms, without a compilation."""
    draws = np.random.default_rng(seed)
    leaves = flatten(parameter_shapes(cfg)).items()
    return unflatten(
        {
            path: np.ones(leaf.shape, np.float32) if "norm" in path else draws.standard_normal(leaf.shape, np.float32)
            for path, leaf in leaves
        }
    )


@functools.cache
def model(seed):
    return CFG, draw(CFG, np.uint32(seed))


def logits(model):
    cfg, params = model
    return np.asarray(apply(cfg, params, np.arange(24, dtype=np.int32).reshape(2, 12)).logits_BTV)


@pytest.mark.slow
def test_free_recipes_leave_the_function_alone():
    base = logits(model(1))
    for suspect in (disputes_recipes.upcycled(2, model(1), 0), disputes_recipes._washed(model(1), 0)):
        np.testing.assert_allclose(logits(suspect), base, rtol=0, atol=1e-4 * np.abs(base).max())


def test_pruning_keeps_the_half_of_the_neurons_with_the_largest_norms():
    cfg, params = disputes_recipes.pruned(model(1), 0)
    base, pruned = (np.asarray(weights["blocks"]["mlp"]["up"]["kernel"]) for weights in (model(1)[1], params))
    assert cfg.d_ff == CFG.d_ff // 2 == pruned.shape[-1]
    for block in range(CFG.num_layers):
        columns = {column.tobytes() for column in base[block].T}
        assert all(np.ascontiguousarray(column).tobytes() in columns for column in pruned[block].T)
    norms = [np.linalg.norm(matrix, axis=1).mean() for matrix in (base, pruned)]
    assert norms[1] > norms[0]


def test_a_tower_is_a_component_without_a_vocabulary():
    language, tower = (NativeRoles(Checkpoint.from_params(*model(seed))) for seed in (1, 2))
    roles = TowerRoles(language, tower)
    groups = {name: {role.group for role in roles.roles if role.component == name} for name in (LANGUAGE, TOWER)}
    assert groups[LANGUAGE] - groups[TOWER] == {"embedding", "head"}
    up = next(role for role in roles.roles if role.component == TOWER and role.group == "up")
    np.testing.assert_array_equal(roles.read(up), model(2)[1]["blocks"]["mlp"]["up"]["kernel"][0])


def spectra_scores(*pair):
    """The scores of two models that the benchmark takes from the sheet, by name."""
    public = compare(*(read_model(NativeRoles(Checkpoint.from_params(*model)), None, None) for model in pair))
    return {title: public[key] for title, key in disputes.SPECTRA.items()}


def test_spectra_of_attention_products_survive_rotations_and_permuted_heads():
    cfg = CFG.replace(num_heads=8, num_kv_heads=4, qkv_bias=False)
    base, other = ((cfg, random_weights(cfg, seed)) for seed in (1, 2))
    hidden = symmetries.rotate(cfg, base[1], symmetries.random_rotation(cfg, 4))
    hidden = symmetries.permute_heads(*hidden, np.tile(np.arange(4)[::-1], (cfg.num_layers, 1)))
    scores = [spectra_scores(base, suspect) for suspect in (hidden, other)]
    # Products keep their singular values and eigenvalues; those of unrelated models are near, and not equal.
    for name in disputes.SPECTRA:
        assert scores[0][name] == pytest.approx(1.0, abs=1e-6)
        assert 0.8 < scores[1][name] < 1 - 1e-4


def test_spectra_of_models_of_two_depths_pair_blocks_and_without_attention_are_undefined():
    deep = random_weights(CFG.replace(num_layers=4), 1)
    base = (CFG.replace(num_layers=4), deep)
    blocks = jax.tree.map(lambda leaf: leaf[np.array([1, 3])], deep["blocks"])
    shallow = (CFG, {**deep, "blocks": blocks})
    assert list(spectra_scores(base, shallow).values()) == [pytest.approx(1.0)] * 2
    silent = CFG.replace(attention=False)
    silent_model = (silent, random_weights(silent, 1))
    assert set(spectra_scores(silent_model, silent_model).values()) == {None}


@pytest.mark.nightly
@pytest.mark.slow
def test_the_benchmark_holds_every_suspect_against_every_base(tmp_path, monkeypatch):
    monkeypatch.setattr(unrelated_models, "train_run", noisy_initializations)
    for module in (disputes_recipes, descendants_families):
        monkeypatch.setattr(module, "fit", moved)
    result = record_of(disputes.EXPERIMENT, tmp_path)["result"]
    count = SMOKE["models"]
    assert result["num_pairs"] == {"guilty": len(KINDS) * count, "innocent": len(KINDS) * count * (count - 1)}
    assert [row["kind"] for row in result["verdicts"]] == list(KINDS)
    assert result["accused"]["count"] == 0 and result["accused"]["num_pairs"] == len(KINDS) * count * (count - 1)
    counts = {row["kind"]: row["found"] for row in result["verdicts"]}
    assert all(
        counts[kind] == count for kind in (disputes_recipes.NOISE, disputes_recipes.FP8, disputes_recipes.WASHED)
    )
    # A tower is found by itself, and the language models around it are not.
    parts = {row["component"]: row for row in result["verdicts"][-1]["components"]}
    assert parts["vision/all"]["guilty"] == 1.0 and parts["all"]["guilty"] == parts["vision/all"]["innocent"] == 0.0
    for test in result["tests"]:
        assert len(test["roc"]) == len(FALSE_POSITIVES) and test["roc"] == sorted(test["roc"])
        assert [kind["kind"] for kind in test["kinds"]] == list(KINDS)


@pytest.mark.nightly
@pytest.mark.slow
def test_curves_of_scores_have_a_color_each_and_one_scale():
    (panel,) = disputes_tables.figures(results.committed("disputes", "laptop"))
    panels = [[line for line in ax.get_lines() if not line.get_label().startswith("_")] for ax in panel.figure.axes]
    for named in panels:
        assert len({line.get_color() for line in named}) == len(named) == 6
        assert not [line.get_label() for line in named if "the same" in line.get_label()]
    assert len({ax.get_ylim() for ax in panel.figure.axes}) == 1


def test_power_has_every_setting_and_its_formula_is_near(tmp_path, monkeypatch):
    monkeypatch.setattr(power, "fit", moved)
    record = record_of(power.EXPERIMENT, tmp_path)
    settings = record["settings"]
    rows = [row for row in record["result"]["z"] if row["neurons"] == settings["widths"][0][1]]
    assert {(row["step"], row["dim"]) for row in rows} == {
        (step, dim) for step in settings["marks"] for dim in settings["dims"]
    }
    for row in rows:
        for z, expected in zip(row["z"][power.TOKEN_NEURONS], row["formula"], strict=True):
            # 64 neurons are few, and k beyond the rank is not independent: the formula is an approximation.
            assert 0.75 < z / expected < 1.25
    (entry,) = record["result"]["unrelated"]
    assert entry["num_pairs"] == 4 and entry["largest_agreement"] == max(entry["agreement"]) < 0.2


def test_effective_rank_counts_directions():
    rows_VD = np.eye(6)[[0, 1, 2, 3] * 5]
    assert power.effective_rank(3.0 * rows_VD) == pytest.approx(4.0)
    assert power.effective_rank(rows_VD[:1]) == pytest.approx(1.0)


def test_pairs_are_every_base_with_every_suspect(tmp_path):
    context = context_of(disputes.EXPERIMENT, tmp_path)
    pairs = list(disputes.pairs_of(context.settings["models"]))
    assert len(set(pairs)) == len(pairs) == len(KINDS) * context.settings["models"] ** 2
