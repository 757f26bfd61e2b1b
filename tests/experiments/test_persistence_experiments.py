"""Each experiment about what training leaves of an initialization, at its smallest scale, from run to tables."""

import random

import numpy as np
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments.survival import checkpoints, persistence, persistence_tables, stories
from bornbiased_jax.experiments.survival.trained_pairs import EXPERIMENTS as PAIRS
from bornbiased_jax.experiments.survival.trained_pairs import pass_through
from tests.experiments.smoke import context_of, record_of, show

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """One output folder, so that experiments find each other's models."""
    return tmp_path_factory.mktemp("persistence")


@pytest.mark.nightly
def test_untrained_model_is_found_in_its_own_model_alone(work):
    record = record_of(PAIRS["table4b"], work)
    pairs = {(p["base"]["seed"], p["suspect"]["seed"]): p for p in record["result"]["pairs"]}
    assert len(pairs) == 9
    for (initial, trained), pair in pairs.items():
        # Eight steps leave a model its initialization; the trace of the rank correlations is then close to its largest
        # value.
        assert (pair["permutation"]["z"] > 10) == (initial == trained)
        assert pair["suspect"]["step"] == 8 and 0 < pair["progress"]["moved"] < 0.5
    (table,), _, claims = show(PAIRS["table4b"], record)
    assert [row.settings[0] for row in table.rows] == [f"s{seed} at initialization" for seed in (42, 123, 1000)]
    assert claims[0].measured == "3 of 3"
    # What was trained, next to the paper's, wherever a p stands.
    assert "1,024 tokens" in table.note and "10B" in table.note
    for row in table.rows:
        assert row.measured[persistence_tables.LOSS] and row.measured[persistence_tables.ENTROPY] and not row.paper
    # The paper's numbers stand next to its own configuration alone.
    printed = show(PAIRS["table4b"], {**record, "scale": "paper"})[0][0].rows[0].paper
    assert printed[persistence_tables.T_TEST] == pytest.approx(np.log10(2.20e-8))
    assert show(PAIRS["table4b"], {**record, "scale": "paper", "data": "x"})[0][0].rows[0].paper == {}


@pytest.mark.nightly
def test_models_are_trained_once_for_all_tables(work):
    record = record_of(PAIRS["table4b"], work)
    runs = sorted((work / "persistence").glob("*/value.json"))
    stamps = [path.stat().st_mtime_ns for path in runs]
    other = record_of(PAIRS["table4c"], work)
    assert other["result"] == record["result"]
    assert [path.stat().st_mtime_ns for path in runs] == stamps
    (table,), _, claims = show(PAIRS["table4c"], other)
    assert len(table.rows) == 6 and claims[0].measured.endswith(" of 6")


def test_a_run_that_was_stopped_is_not_taken_for_a_finished_one(tmp_path, monkeypatch):
    monkeypatch.setattr(persistence, "pretrain", lambda config, initial: {"finished": False, "step": 3})
    context = context_of(PAIRS["table4b"], tmp_path)
    with pytest.raises(SystemExit):
        persistence.base_run(context)
    monkeypatch.setattr(persistence, "pretrain", lambda config, initial: pytest.fail("goes on"))
    with pytest.raises(pytest.fail.Exception, match="goes on"):
        persistence.base_run(context)


@pytest.mark.nightly
def test_progress_is_measured_from_untrained_model(work):
    context = context_of(PAIRS["table4b"], work)
    run = persistence.base_run(context)
    initial, trained = persistence.initialization(run, 42), persistence.last(run, 42)
    start, end = persistence.load(initial), persistence.load(trained)
    every = lambda params: np.concatenate([leaf.ravel() for leaf in persistence.flatten(params).values()])  # noqa: E731
    expected = np.linalg.norm(every(end) - every(start)) / np.linalg.norm(every(start))
    assert persistence.progress_of(trained)["moved"] == pytest.approx(expected, rel=1e-5)
    at_initialization = persistence.progress_of(initial)
    assert at_initialization["moved"] == 0
    # An untrained byte model knows nothing: ln 256, give or take its logits' spread; the bytes' own entropy is lower.
    assert at_initialization["loss"] == pytest.approx(np.log(256), abs=0.1)
    assert at_initialization["bigram_loss"] < at_initialization["unigram_entropy"] < at_initialization["loss"]


@pytest.mark.nightly
def test_figures_follow_every_checkpoint(work):
    record = record_of(checkpoints.EXPERIMENTS["figure11"], work)
    result = record["result"]
    assert result["steps"] == [0, 1, 2, 4, 8] and result["top"] == 2
    for kind in persistence.KINDS:
        assert result["taus"][kind]["own"]["mean"][0] == pytest.approx(1.0)
        assert result["taus"][kind]["own"]["std"][0] == pytest.approx(0.0, abs=1e-12)
    # 60 random inputs: one tau of independent numbers has a standard deviation of 0.089, and so has the mean of
    # taus that all move together. Shared vectors reach both outputs in the same coordinates.
    assert abs(result["taus"]["tokens"]["other"]["mean"][0]) < 5 * 0.089
    assert result["taus"]["gaussian"]["other"]["mean"][0] > 5 * 0.089

    record = record_of(checkpoints.EXPERIMENTS["figure14"], work)
    assert record["result"]["steps"] == [1, 2, 4, 8]
    claims = checkpoints.EXPERIMENTS["figure14"].claims(record)
    assert claims[0].measured == "12 of 12" and claims[0].statement.endswith("permutation, tokens")


@pytest.mark.nightly
def test_descendants_and_distractors(work):
    record = record_of(PAIRS["table5"], work)
    pairs = record["result"]["pairs"]
    assert [(p["role"], p["suspect"]["seed"]) for p in pairs] == [
        ("stories", 1000), ("stories", 123), ("code", 1000), ("code", 123),
    ]  # fmt: skip
    for pair in pairs:
        assert (pair["permutation"]["verdict"] == "same-lineage") == pair["related"]
        # Four steps hardly change the weights. Unrelated initializations share their norms' scales, all of them 1: a
        # fixed number, and most of the length of so small a model.
        assert (pair["pcs"]["score"] > 0.99) == pair["related"]
    (table,), _, claims = show(PAIRS["table5"], record)
    assert len(table.rows) == 4 and claims[0].measured == "4 of 4"
    assert [row.measured["PCS"][-1] for row in table.rows] == ["✓", "✗", "✓", "✗"]
    for experiment, reef in (
        (PAIRS["table5"], "0.759"),
        (PAIRS["table12"], "0.957"),
    ):
        at_scale = show(experiment, {**record, "scale": "paper"})[0][0]
        assert at_scale.rows[0].paper["REEF"] == reef
        # The Stack is not what is trained on here.
        assert not at_scale.rows[2].paper
    assert (
        show(PAIRS["table5"], {**record, "scale": "paper"})[0][0].rows[0].paper[persistence_tables.T_TEST]
        == "0 (underflow)"
    )


@pytest.mark.nightly
def test_the_distractor_is_another_seed_in_another_order(work):
    context = context_of(PAIRS["table5"], work)
    base, other = (
        persistence.facts_of(persistence.base_run(context)),
        persistence.facts_of(persistence.distractor_run(context)),
    )
    assert base["source"] == other["source"] and base["data_seed"] != other["data_seed"]
    run = persistence.continued_run(context, "code")
    parent = persistence.load(persistence.last(persistence.base_run(context), 1000))
    assert persistence.moved(parent, persistence.load(persistence.initialization(run, 1000))) == 0


@pytest.mark.parametrize(
    ("name", "tokens"), [("table4b_256", 17e6), ("table12_256", 17e6), ("table4b_256_2m", 2e6), ("table5_256_2m", 2e6)]
)
def test_larger_models_are_trained_for_the_tokens_of_their_title(name, tokens):
    settings = PAIRS[name].settings["laptop"]
    schedule = settings["schedule"]
    length = schedule["batch_size"] * schedule["context"]
    assert schedule["steps"] * length == pytest.approx(tokens, rel=0.02)
    assert f"{tokens / 1e6:.0f} million tokens" in PAIRS[name].title
    assert settings["continued"]["schedule"]["steps"] * length == pytest.approx(tokens / 4, rel=0.02)
    assert persistence.model_config(settings).vocab_size == 4_096


@pytest.mark.nightly
def test_baselines_against_other_seeds(work):
    record = record_of(PAIRS["table8"], work)
    result = record["result"]
    assert len(result["own"]) == 3 and len(result["other"]["pcs"]) == 6
    for row in result["own"]:
        assert row["pcs"]["score"] > max(result["other"]["pcs"]) and row["pcs"]["p_value"] == pytest.approx(1 / 7)


@pytest.mark.nightly
def test_models_trained_apart(work):
    record = record_of(PAIRS["trained_apart"], work)
    (pairs, shared), _, claims = show(PAIRS["trained_apart"], record)
    assert [row.settings for row in pairs.rows] == [
        [f"s{first} trained", f"s{second} trained"] for first, second in ((42, 123), (42, 1000), (123, 1000))
    ]
    assert [len(rows) for rows in record["result"]["shared"].values()] == [3, 6, 3, 2, 3, 2] and len(shared.rows) == 6
    *_, own, further = record["result"]["shared"].values()
    assert all(pair["base"] == pair["suspect"] for pair in own + further)
    assert claims[0].measured == "0 of 3"


@pytest.mark.parametrize("carried", [0.3, 1.0, 5.0])
def test_shared_vectors_alone_make_outputs_alike(carried):
    """Models that add noise of their own to a shared vector are alike until the vector is removed; relatives stay."""
    draws = np.random.default_rng(0)
    vectors_ND = draws.standard_normal((400, 64))

    def outputs(*updates):
        stream_ND = carried * vectors_ND + sum(updates)
        return (8 * stream_ND / np.linalg.norm(stream_ND, axis=1, keepdims=True)).astype(np.float32)

    own, other, common = (draws.standard_normal(vectors_ND.shape) for _ in range(3))
    result = pass_through(outputs(own), outputs(other), vectors_ND)
    assert result["correlation"] == pytest.approx(result["product"], abs=4 / np.sqrt(vectors_ND.size))
    assert result["paper"]["verdict"] == "same-lineage"
    assert result["paper_without"]["verdict"] == "unrelated" and result["permutation_without"]["p"] > 0.01
    related = pass_through(outputs(own, common), outputs(other, common), vectors_ND)
    assert related["paper_without"]["verdict"] == related["permutation_without"]["verdict"] == "same-lineage"


@pytest.mark.nightly
def test_qwen_tables(work):
    for experiment, rows in ((PAIRS["table10"], 3), (PAIRS["table11"], 6)):
        record = record_of(experiment, work)
        assert record["result"]["facts"]["model"]["qkv_bias"]
        (table,), _, _ = show(experiment, record)
        assert len(table.rows) == rows


def test_corpora_by_role(work):
    def named(data):
        return persistence.corpora(context_of(PAIRS["table5"], work, data))

    assert named(None)["base"] == "builtin:prose"
    assert named("a.txt") == {**named(None), "base": "a.txt"}
    assert named("a.txt;stories=b.txt") == {"base": "a.txt", "stories": "b.txt", "code": "builtin:code"}
    assert named("stories=b.txt") == {**named(None), "stories": "b.txt"}
    with pytest.raises(InputError, match="'verse': the corpora are base, stories, code"):
        named("verse=c.txt")


def test_stories_are_the_same_every_time_and_tell_something():
    text = stories.stories(50)
    assert text == stories.stories(50)
    told = text.split("<|endoftext|>")
    assert len(told) == 50 and len(set(told)) == 50 and "{" not in text
    assert stories.story(random.Random(3)).count(".") >= 4
