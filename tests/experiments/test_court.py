"""The calibration benchmark of lineage tests, and the calibration of the tests in the weights, at their smallest."""

import jax
import numpy as np
import pytest
from scipy import stats

from bornbiased_jax import model as models
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.experiments.lineage import (
    court,
    evidence_sheet,
    token_level,
    unrelated_models,
    unrelated_pairs,
    weights_calibration,
)
from bornbiased_jax.experiments.lineage.unrelated_models import packed, stacked, unpacked
from bornbiased_jax.lineage.verdict import Verdict
from bornbiased_jax.stats.intervals import disjoint_pairs, model_interval
from tests.experiments.smoke import context_of, record_of, show

pytestmark = pytest.mark.slow


@pytest.mark.nightly
def test_tests_in_the_weights_keep_their_level_on_untrained_models(tmp_path, monkeypatch):
    monkeypatch.setattr(unrelated_models, "train_run", noisy_initializations)
    record = record_of(weights_calibration.EXPERIMENT, tmp_path, num_pairs=150, chunk=75, num_permutations=100)
    result = record["result"]
    uniform = [case for case in result["cases"] if case["uniform"]]
    assert result["family"]["num_checks"] == 3 * len(uniform) and result["family"]["calibrated"]
    for case in result["cases"]:
        assert case["num_pairs"] == 150 and case["num_undefined"] == 0 and case["at_alpha"]["count"] == 0
        # p are not stuck: what never rejects is no test (P(no p < 0.05 in 150 pairs) = 5e-4).
        assert case["rates"][1]["count"] > 0 or not case["uniform"]
    assert "none rejects" in weights_calibration.EXPERIMENT.headline(record)


def test_pairs_of_many_shapes_are_unrelated_and_none_is_called_related(tmp_path, monkeypatch):
    monkeypatch.setattr(unrelated_models, "train_run", noisy_initializations)
    context = context_of(weights_calibration.EXPERIMENT, tmp_path)
    pairs = list(unrelated_pairs.pairs_of(context.settings))
    assert all(pair.base[:2] != pair.suspect[:2] for pair in pairs)
    assert {pair.kind for pair in pairs} == {unrelated_pairs.PLAIN, unrelated_pairs.ACROSS, *unrelated_pairs.CHANGES}
    trained = unrelated_pairs.calibrate(context)
    assert [test["test"] for test in trained["tests"]][-1] == unrelated_pairs.VERDICT
    assert sum(kind["num_pairs"] for kind in trained["kinds"]) == len(pairs)
    assert all(kind["at_alpha"]["count"] == 0 for kind in trained["kinds"])
    assert all(0 < row["largest"] < 0.5 for row in trained["agreement"])


@pytest.mark.nightly
def test_calibration_notices_p_that_are_too_small(tmp_path, monkeypatch):
    def squared(base, suspect, options):
        p = float(np.random.default_rng(options.seed).random()) ** 2
        tests = [{"name": weights_calibration.SIGNLESS, "p_value": p, "z": 0.0}]
        return Verdict("unrelated", "", p, None, 0.0, "", None, 0.01, {"tests": tests})

    monkeypatch.setattr(weights_calibration, "auto_verdict", squared)
    monkeypatch.setattr(unrelated_models, "train_run", noisy_initializations)
    monkeypatch.setattr(weights_calibration, "ARCHITECTURES", {"": {}})
    changes = {"num_pairs": 60, "chunk": 60, "num_permutations": 100}
    family = record_of(weights_calibration.EXPERIMENT, tmp_path, **changes)["result"]["family"]
    bad = {check["case"] for check in family["checks"] if check["adjusted_p"] < 0.05}
    assert bad == {"coordinates"} and not family["calibrated"]


@pytest.mark.parametrize("name", token_level.SKIPPED)
def test_the_level_on_other_seeds_is_of_pairs_that_no_other_record_has(tmp_path, monkeypatch, name):
    asked, pairs = [], token_level.untrained_pairs
    monkeypatch.setattr(token_level, "untrained_pairs", lambda cfg, *words: pairs(cfg, *(asked.append(words) or words)))
    experiments = {"weights_calibration": weights_calibration.EXPERIMENT, **token_level.EXPERIMENTS}
    record = record_of(experiments[name], tmp_path, num_pairs=8, chunk=4, num_permutations=50)
    assert record["result"]["summary"]["num_pairs"] == 8 and len(record["result"]["family"]["checks"]) == 3
    first = token_level.SKIPPED[name]
    assert sorted(asked) == [(2 * first, 4), (2 * first + 8, 4)]
    # Those before it end where it begins, at any scale.
    for other, place in {"weights_calibration": 0, **token_level.SKIPPED}.items():
        if place < first:
            most = max(settings["num_pairs"] for settings in experiments[other].settings.values())
            assert place + most <= first


def test_pairs_of_untrained_models_are_disjoint_and_those_of_their_seeds():
    cfg = weights_calibration.config(weights_calibration.EXPERIMENT.settings["smoke"], "")
    pairs = list(weights_calibration.untrained_pairs(cfg, 100, 40))
    assert [(a.seed, b.seed) for a, b in pairs[:2]] == [(100, 101), (102, 103)] and pairs[0][0].is_initial
    for path, layer in (("embed/embedding", None), ("blocks/mlp/up/kernel", 1)):
        np.testing.assert_array_equal(pairs[1][1].read(path, layer), Checkpoint.from_seed(cfg, 103).read(path, layer))


SMOKE = court.EXPERIMENT.settings["smoke"]


def noisy_initializations(schedule, cfg, corpus, order, seeds):
    """Stand in for training without its compilation: move each seed's initialization by numbers of its own."""
    weights_SP = packed(stacked([unrelated_models.draw(cfg, np.uint32(seed)) for seed in seeds]))
    moves = [np.random.default_rng(seed).standard_normal(weights_SP.shape[1], np.float32) for seed in seeds]
    return stacked([unpacked(cfg, weights_P) for weights_P in weights_SP + np.float32(0.01) * np.stack(moves)])


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unrelated_models, "train_run", noisy_initializations)
        return record_of(court.EXPERIMENT, tmp_path_factory.mktemp("court"))


@pytest.mark.nightly
def test_the_calibration_tries_every_test_on_every_kind_of_pair(tried):
    result = tried["result"]
    assert list(result["num_pairs"].values()) == [4, 8, 8, 16, 16]
    tried_kinds = {name: {row["kind"] for row in result["tests"] if row["test"] == name} for name in court.TESTS}
    for name, test in court.TESTS.items():
        expected = {court.INITIALIZATIONS, court.MIXED} if test.base == "birth" else set(court.KINDS)
        assert tried_kinds[name] == expected
    is_at_level = {row["test"]: row["kept"] for row in result["promises"]}
    # Vectors that both models share make every pair the same, whatever the models.
    assert is_at_level["Algorithm 1, t, vectors"] is False and is_at_level["iclr, vectors"] is False
    assert all(value for row in result["promises"] if not row["published"] and (value := row["kept"]) is not None)
    for matching in result["matchings"]:
        assert matching["agreement_largest"] < 0.2
    (promises, sizes, scores, matchings), _, claims = show(court.EXPERIMENT, tried)
    assert promises.first_screen and len(promises.rows) == len(court.TESTS) and len(matchings.rows) == 5
    assert {row.settings[0] for row in scores.rows} == {"HuRef (ICS)", "HuRef (PCS)", "Intrinsic", "REEF"}
    assert len(sizes.rows) == sum(len(row["rates"]) == 2 for row in result["tests"])
    assert claims[0].measured < claims[0].theory and claims[2].measured == claims[2].theory
    assert claims[1].theory is None and "of 4" in claims[1].statement
    assert "Algorithm 1, t, vectors" in court.EXPERIMENT.headline(tried)


def test_pairs_are_of_their_kind_and_no_model_meets_itself():
    draw = unrelated_models.initializations({**SMOKE, "seeds_an_order": 2}, 16)
    trained = [
        unrelated_models.model_of(unrelated_models.Origin(16, corpus, order, 10 * order + seed), None, {}, SMOKE)
        for corpus in ("a", "b") for order in (0, 1) for seed in range(2)
    ]  # fmt: skip
    observed = set()
    for kind, base, suspect in court.pairs_of(trained, draw):
        assert base is not suspect and (id(base), id(suspect)) not in observed
        observed.add((id(base), id(suspect)))
        texts, orders = ({getattr(model.origin, name) for model in (base, suspect)} for name in ("corpus", "order"))
        assert {
            court.SAME_ORDER: len(texts) == len(orders) == 1 and None not in texts,
            court.OTHER_ORDER: len(texts) == 1 and len(orders) == 2,
            court.OTHER_TEXT: texts == {"a", "b"},
            court.INITIALIZATIONS: texts == {None},
            court.MIXED: base.origin.corpus is None and suspect.origin.corpus is not None,
        }[kind]


def rows_of(p_values, kind=court.INITIALIZATIONS):
    every = [(i, j) for i in range(12) for j in range(i)]
    return [
        {"kind": kind, "models": [f"m{i}", f"m{j}"], "values": {"φ_U": float(p)}}
        for (i, j), p in zip(every, p_values, strict=True)
    ]


def test_a_summary_counts_with_intervals_that_respect_shared_models():
    p_values = np.random.default_rng(0).random(66) ** 1.5
    rows = rows_of(p_values)
    summary = court.summarize(rows, "φ_U", court.INITIALIZATIONS)
    names = [tuple(row["models"]) for row in rows]
    for rate, level in zip(summary["rates"], (0.01, 0.05), strict=True):
        assert rate["rate"] == pytest.approx((p_values <= level).mean())
        assert (rate["low"], rate["high"]) == model_interval(p_values <= level, names)
        assert rate["low_together"] <= rate["low"]
    chosen = disjoint_pairs(names)
    assert len(chosen) == 6 == summary["ks_pairs"] and len({name for at in chosen for name in names[at]}) == 12
    assert summary["ks_p"] == pytest.approx(stats.kstest(p_values[chosen], "uniform").pvalue)
    assert court.summarize(rows, "φ_U", court.MIXED) is None
    undefined = court.summarize([{**row, "values": {"φ_U": None}} for row in rows], "φ_U", court.INITIALIZATIONS)
    assert undefined["num_undefined"] == 66 and undefined["rates"] == []


def test_a_promise_is_broken_by_too_many_small_p_alone():
    summaries = [court.summarize(rows_of(np.linspace(0.005, 1, 66)), "φ_U", court.INITIALIZATIONS)]
    assert court.promise("φ_U", summaries)["kept"] is True
    bad = [court.summarize(rows_of(np.linspace(1e-6, 0.04, 66)), "φ_U", court.INITIALIZATIONS)]
    promise = court.promise("φ_U", summaries + bad)
    assert promise["kept"] is False and {entry["kind"] for entry in promise["broken"]} == {court.INITIALIZATIONS}
    assert court.promise("φ_H", summaries)["kept"] is None


def test_every_test_finds_a_copy_with_noise():
    (base, *_) = unrelated_models.initializations(SMOKE, 16)
    moved_S = noisy_initializations({}, base.cfg, "", 0, [base.origin.seed])
    noisy = jax.tree.map(lambda leaf: leaf[0], moved_S)
    copy = unrelated_models.model_of(base.origin._replace(corpus="a"), base.cfg, noisy, SMOKE)
    values = court.examine(base, copy, 200, 0)
    # Eight tokens a row leave REEF and Intrinsic little, and twenty inputs Algorithm 1.
    for name, test in court.TESTS.items():
        if test.by_p and "tokens" not in name:
            assert values[name] <= 0.01, name
    assert values["HuRef (PCS)"] > 0.8
    itself = court.matchings(base, base)
    assert itself == {"agreement": [1.0, 1.0], "activations": [32, 32]}


@pytest.mark.nightly
def test_training_is_of_its_seed_text_and_order():
    cfg = unrelated_models.config(SMOKE, 16).replace(num_layers=1)
    schedule = {**SMOKE["schedule"], "steps": 2}
    first, second = (unrelated_models.train_run(schedule, cfg, "builtin:code", order, [7, 8]) for order in (0, 1))
    rows, others = packed(first), packed(second)
    flat_P = packed(stacked([unrelated_models.draw(cfg, np.uint32(7))]))[0]
    moved = [np.abs(row - flat_P).max() for row in rows]
    assert 0 < moved[0] < 0.01 < moved[1]  # two steps of Adam from the own initialization, and another initialization
    assert not np.array_equal(rows, others)
    back = models.flatten(unpacked(cfg, rows[0]))
    assert back["embed/embedding"].dtype == np.float32
    np.testing.assert_array_equal(back["embed/embedding"], models.flatten(first)["embed/embedding"][0])


def test_the_evidence_sheet_has_quantiles_of_all_kinds_of_unrelated_pairs(tmp_path, monkeypatch):
    monkeypatch.setattr(unrelated_models, "train_run", noisy_initializations)
    record = record_of(evidence_sheet.EXPERIMENT, tmp_path)
    result = record["result"]
    assert all(count > 0 for count in result["num_pairs"].values())
    assert set(result["statistics"]["cka"]) == set(result["num_pairs"])
    # No embedding of one width belongs to one of another, and untrained biases are zero.
    assert "of two widths" not in result["statistics"]["embedding_cosine"]
    assert "untrained" not in result["statistics"]["bias_cosine"]
    (table,), _, claims = show(evidence_sheet.EXPERIMENT, record)
    assert len(table.rows) == sum(map(len, result["statistics"].values())) and len(claims) == 1
