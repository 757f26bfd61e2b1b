"""Each experiment about lineage at its smallest scale, from its run to its tables and figures."""

import json

import numpy as np
import pytest

from bornbiased_jax import model as models
from bornbiased_jax.checkpoints import Checkpoint, export_hugging_face
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments._shared import lineage
from bornbiased_jax.experiments.lineage import calibration, figure13, lineage_pairs, table4a, table6
from bornbiased_jax.experiments.survival import birth_to_life
from bornbiased_jax.lineage.output_fingerprint import fingerprint_outputs
from bornbiased_jax.lineage.paper import paper_test
from bornbiased_jax.probes import inputs
from bornbiased_jax.stats.kendall import tau_b
from tests.experiments.smoke import context_of, record_of, show
from tests.tiers import nightly_except

pytestmark = pytest.mark.slow


@pytest.mark.nightly
def test_calibration_shows_every_test_and_corrects_for_the_checks(tmp_path):
    result = record_of(calibration.EXPERIMENT, tmp_path)["result"]
    # One architecture and two kinds of inputs: the permutation test on tokens, the population test on both.
    assert result["family"]["num_checks"] == 9
    assert result["confidence"] == pytest.approx(1 - 0.05 / 9)
    assert {(row["inputs"], row["test"]) for row in result["pooled"]} == {
        (kind, test) for kind in calibration.INPUTS for test in calibration.NAMES
    }
    by = {(row["inputs"], row["test"]): row for row in result["cases"]}
    # Shared vectors leak their coordinates into both models: all are called related, as the test on tokens does not.
    assert by["gaussian", "permutation"]["rates"][0]["rate"] == 1.0
    assert by["tokens", "permutation"]["num_pairs"] == 60
    assert by["tokens", "permutation"]["rates"][1]["rate"] < 0.25  # 60 draws of 0.05: probability 1e-7 beyond
    assert by["tokens", "permutation"]["power"][0]["rates"][0]["rate"] > 0.5  # a fifth of the weights is left
    assert not by["gaussian", "permutation"]["claims_calibration"]


@pytest.mark.nightly
def test_a_killed_calibration_goes_on(tmp_path, monkeypatch):
    few = {"permutation": {"tokens": 4, "gaussian": 4}, "published": 4, "population": 2}
    fewer = {"pairs": few, "power": {**calibration.EXPERIMENT.settings["smoke"]["power"], "num_pairs": 2}}
    record = record_of(calibration.EXPERIMENT, tmp_path, **fewer)

    def never(*args, **kwargs):
        raise AssertionError("a finished case was run again")

    # What the cases call: their own functions are known by their code, and others would not be theirs.
    monkeypatch.setattr(calibration.calibration, "unrelated_pairs", never)
    monkeypatch.setattr(calibration, "final_outputs", never)
    assert record_of(calibration.EXPERIMENT, tmp_path, **fewer)["result"] == record["result"]


def test_both_p_of_algorithm_1_come_from_one_computation():
    rng = np.random.default_rng(0)
    base, suspect = rng.standard_normal((2, 60, 24)).astype(np.float32)
    direct = paper_test(base, suspect)
    verdicts = calibration.published(base, suspect)
    assert verdicts["paper U"].p_value == pytest.approx(direct.detail["p_u"])
    assert verdicts["paper t"].p_value == direct.p_value != verdicts["paper U"].p_value


@pytest.mark.nightly
def test_figure_13_in_units_of_the_null(tmp_path):
    record = record_of(figure13.EXPERIMENT, tmp_path)
    tokens, vectors = record["result"]["groups"]
    width = np.diff(tokens["edges"])
    assert (np.array(tokens["density"]) * width).sum() + tokens["outside"] == pytest.approx(1.0)
    assert vectors["mean"] > 5 * abs(tokens["mean"])  # the leak
    # The unit is the spread of tau between independent draws.
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, 50, 400))
    taus = figure13.tau_b(x, y)
    assert taus.std() / figure13.null_std(50) == pytest.approx(1.0, abs=4 / np.sqrt(2 * 400))


def test_a_killed_figure_13_goes_on_with_the_same_numbers(tmp_path, monkeypatch):
    (group, _) = figure13.EXPERIMENT.settings["smoke"]["groups"]
    whole = record_of(figure13.EXPERIMENT, tmp_path / "whole", groups=[group])["result"]
    pairs, most = [], 5

    def counted(base_ND, suspect_ND):
        if len(pairs) == most:
            raise RuntimeError("killed")
        pairs.append(tau_b(base_ND, suspect_ND))
        return pairs[-1]

    monkeypatch.setattr(figure13, "tau_b", counted)
    monkeypatch.setattr(figure13, "BLOCK", 2, raising=False)
    with pytest.raises(RuntimeError, match="killed"):
        record_of(figure13.EXPERIMENT, tmp_path / "killed", groups=[group])
    computed, most = pairs[:4], None
    pairs.clear()
    assert record_of(figure13.EXPERIMENT, tmp_path / "killed", groups=[group])["result"] == whole
    # Two of three blocks were finished; sums are those of one pair after the other.
    assert len(pairs) == 2
    scaled = [taus_D / figure13.null_std(group["num_inputs"]) for taus_D in (*computed, *pairs)]
    total = mean_square = mean = 0.0
    for scaled_D in scaled:
        total, mean, mean_square = total + len(scaled_D), mean + scaled_D.sum(), mean_square + (scaled_D**2).sum()
    (entry,) = whole["groups"]
    assert (entry["mean"], entry["std"]) == (mean / total, np.sqrt(mean_square / total - (mean / total) ** 2))


def test_tables_4a_and_9_show_the_paper_only_at_its_sizes(tmp_path):
    record = record_of(table4a.EXPERIMENT, tmp_path)
    groups = record["result"]["groups"]
    assert [[row["base"], row["suspect"]] for row in groups[1]["pairs"]] == groups[1]["group"]["pairs"]
    (pairs, scores), _, claims = show(table4a.EXPERIMENT, record)
    assert len(pairs.rows) == 8 and not any(row.paper for row in pairs.rows)
    assert {row.settings[1] for row in scores.rows} == set(lineage.BASELINES) and len(claims) == 4
    full = {"model": "llama-nano", "changes": {}, "num_inputs": 10_000, "seq_len": 1_024}
    for group in groups:
        group["group"] |= {**full, "model": group["group"]["model"].replace("tiny", "nano")}
    (pairs, _), _, claims = show(table4a.EXPERIMENT, record)
    assert pairs.rows[0].paper["t-test"] == pytest.approx(np.log10(0.357))
    assert claims[0].paper == pytest.approx(np.log10(0.357)) and claims[2].paper == pytest.approx(np.log10(0.094))


CFG = ModelConfig(
    num_layers=2, num_heads=2, d_model=32, d_ff=48, vocab_size=260, max_seq_len=32,
    norm="rmsnorm", activation="silu", gated_mlp=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """A base, a copy with noise, an unrelated model and a wider model, as Hugging Face directories."""
    folder = tmp_path_factory.mktemp("models")
    base = models.init_seed(CFG, 1)
    _, noisy = lineage.derived((CFG, base), "noise:0.2", seed=0)
    wide = CFG.replace(d_model=48)
    rng = np.random.default_rng(0)
    shapes = models.flatten(models.parameter_shapes(wide))
    every = {
        "base": (CFG, base),
        "noisy": (CFG, noisy),
        "unrelated": (CFG, models.init_seed(CFG, 2)),
        "wide": (
            wide,
            models.unflatten({path: rng.standard_normal(leaf.shape, np.float32) for path, leaf in shapes.items()}),
        ),
    }
    for name, (cfg, params) in every.items():
        export_hugging_face(cfg, params, folder / name)
    return folder


def test_table_6_without_models_says_so(tmp_path):
    record = record_of(table6.EXPERIMENT, tmp_path)
    assert record["result"]["attempted"] is False
    assert table6.EXPERIMENT.headline(record).startswith("Not attempted")
    for data in ("base=a", "a=b;c=d", "base=a;base=b", "base"):
        with pytest.raises(InputError, match="^--data (?!.*no models were named)"):
            table6.named(data)


@pytest.mark.parametrize("dtype", nightly_except(["float32", "bfloat16"], "float32"))
def test_table_6_on_directories(tmp_path, directories, dtype):
    data = ";".join(f"{name}={directories / name}" for name in ("base", "noisy", "unrelated", "wide"))
    reef = {"text": "builtin:code", "num_sentences": 12, "sentence_len": 8}
    record = record_of(table6.EXPERIMENT, tmp_path, data, dtype=dtype, reef=reef)
    assert str(directories) not in json.dumps(record["result"])
    noisy, unrelated, wide = record["result"]["suspects"]
    assert noisy["tests"]["tokens"]["permutation"]["verdict"] == "same-lineage"
    assert unrelated["tests"]["tokens"]["permutation"]["z"] < noisy["tests"]["tokens"]["permutation"]["z"] / 2
    assert noisy["baselines"]["pcs"] > 0.9 > abs(unrelated["baselines"]["ics"])
    assert "widths 32 and 48" in wide["undefined"]
    (table,), _, _ = show(table6.EXPERIMENT, record)
    assert len(table.rows) == 3 and not any(row.paper for row in table.rows)


def test_pairs_of_checkpoints_at_hand(tmp_path, directories, monkeypatch):
    monkeypatch.setattr(lineage_pairs, "find_smollm2", lambda: None)
    (directories / "notes.gguf").write_bytes(b"no checkpoint")
    named = lineage_pairs.checkpoints_in(str(directories))
    assert [path.name for path in named] == ["base", "noisy", "unrelated", "wide"]
    record = record_of(lineage_pairs.EXPERIMENT, tmp_path, ";".join(map(str, named[:3])))
    result = record["result"]
    assert result["smollm2"] == {"attempted": False, "reason": lineage_pairs.ABSENT}
    verdict = {(row["base"], row["suspect"]): row["tests"]["permutation"] for row in result["others"]["pairs"]}
    assert len(verdict) == 3
    # Holm over the three pairs that have a p: the smallest is multiplied by three.
    defined = sorted(row["p_value"] for row in verdict.values() if row["p_value"] is not None)
    assert verdict["base", "noisy"]["adjusted_p"] == pytest.approx(3 * defined[0])
    assert [row["num_pairs"] for row in result["others"]["strangers"]] == [6] * 3
    assert verdict["base", "noisy"]["verdict"] == "same-lineage"
    with pytest.raises(InputError, match="no checkpoint lies there"):
        (tmp_path / "empty").mkdir()
        lineage_pairs.checkpoints_in(str(tmp_path / "empty"))
    with pytest.raises(InputError, match="does not exist"):
        lineage_pairs.checkpoints_in("nowhere")


def test_another_file_of_the_same_name_is_measured_again(tmp_path, monkeypatch):
    model = tmp_path / "model.gguf"
    monkeypatch.setattr(lineage_pairs, "find_smollm2", lambda: model)
    monkeypatch.setattr(lineage_pairs, "_smollm2", lambda _context, path: {"attempted": True, "read": path.read_text()})
    context = context_of(lineage_pairs.EXPERIMENT, tmp_path / "work")
    for content in ("one", "another"):
        model.write_text(content)
        assert lineage_pairs.run(context)["smollm2"]["read"] == content


@pytest.mark.nightly
def test_untrained_models_against_models_in_training(tmp_path):
    record = record_of(birth_to_life.EXPERIMENT, tmp_path)
    first, last = record["result"]["snapshots"]
    assert (first["step"], last["step"]) == (0, 4)
    assert first["moved"] == [0.0, 0.0] and min(last["moved"]) > 0
    # ln of 260 ids and the initial spread of the logits; a few steps help.
    assert np.allclose(first["held_out_loss"], np.log(260), atol=0.2)
    assert np.all(np.array(last["held_out_loss"]) < first["held_out_loss"])
    same, other = (birth_to_life._pick(first, "tokens", "permutation", flag) for flag in (True, False))
    assert len(same) == len(other) == 2 and min(same) > max(other)


def test_a_row_keeps_what_is_identical():
    base = Checkpoint.from_seed(CFG, 1)
    outputs = fingerprint_outputs(base, inputs.random_tokens(60, 4, 260))
    row = lineage.compared(outputs, outputs)["permutation"]
    assert row["verdict"] == "same-lineage" and row["identical_tensors"] == row["num_tensors"] > 0
