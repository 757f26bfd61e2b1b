"""Headlines say what the rows of their record show."""

import copy
import json
from collections import Counter
from pathlib import Path

from scipy import stats

from bornbiased_jax.config import preset
from bornbiased_jax.experiments import runner
from bornbiased_jax.experiments.birth.table1 import headline
from bornbiased_jax.experiments.lineage import disputes_tables, lineage_pairs, table4a, table4a_weights
from bornbiased_jax.experiments.sinks import sink_cures, sink_interventions
from bornbiased_jax.experiments.survival import checkpoints, trained_pairs
from bornbiased_jax.experiments.theory import entropy_transition, predicted
from bornbiased_jax.experiments.theory.settings import CHANGED_FOR
from bornbiased_jax.probes.inputs import random_tokens
from bornbiased_jax.stats.tails import LN10

RECORDS = Path(__file__).parents[2] / "experiments" / "results" / "laptop"
RECORD = json.loads((RECORDS / "table1.json").read_text())


def test_rows_without_a_preference_are_named():
    told = headline(RECORD)
    assert told.startswith("Initialized and never trained, gpt2-nano of seed 42 answers")
    assert "llama-nano and gpt2-tiny show nothing beyond chance at so many inputs (p = 1.00)" in told


def test_nothing_is_claimed_where_no_row_shows_anything():
    silent = copy.deepcopy(RECORD)
    for probed in silent["result"]["groups"]:
        for initialization in probed["records"]:
            initialization["preference"]["log10_p"] = -1.5
    told = headline(silent)
    assert "answers" not in told and "no preference beyond chance shows in gpt2-nano and llama-nano" in told


def test_a_seed_that_shows_nothing_is_left_out():
    mixed = copy.deepcopy(RECORD)
    mixed["result"]["groups"][0]["records"][0]["preference"]["log10_p"] = 0.0
    assert "seed 42" not in headline(mixed) and "seed 43" in headline(mixed)


def test_headlines_are_those_of_complete_records(tmp_path):
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "table1.json").write_text(json.dumps(RECORD))
    failed = {**RECORD, "status": "failed", "error": "no"}
    (tmp_path / "records" / "finding2.json").write_text(json.dumps(failed))
    told = runner.headlines(tmp_path, ["finding2", "table1", "figure2"])
    assert told == {"table1": headline(RECORD)}


def test_groups_of_one_model_are_told_by_their_length():
    at_two_lengths = copy.deepcopy(RECORD)
    first = at_two_lengths["result"]["groups"][0]
    longer = copy.deepcopy(first)
    longer["group"]["seq_len"] = 1024
    for initialization in first["records"]:
        initialization["preference"]["log10_p"] = 0.0
    at_two_lengths["result"]["groups"] = [first, longer]
    told = headline(at_two_lengths)
    assert "never trained, gpt2-nano at T = 1,024 of seed 42" in told
    assert "gpt2-nano at T = 64 shows nothing beyond chance" in told


def test_interventions_on_sinks_are_told_in_the_record_s_numbers():
    record = json.loads((RECORDS / "sink_interventions.json").read_text())
    assert "(λ = 10, block 3) makes sinks of 58% to 74% of the heads, scaling alone of 2% to 5%" in (
        sink_interventions.headline(record)
    )
    for row in record["result"]["interventions"]:
        row["sink_rate"] = 0.0
    assert "makes sinks of 0% of the heads, scaling alone of 0%" in sink_interventions.headline(record)


def test_the_note_on_baselines_names_the_text_that_reef_read():
    record = json.loads((RECORDS / "table4a.json").read_text())
    assert table4a.tables(record)[1].note.endswith("REEF reads 200 passages of English prose at 9/16 of the depth.")
    record["result"]["groups"][0]["group"]["reef"] = {"text": "builtin:code", "num_sentences": 12, "sentence_len": 8}
    assert table4a.tables(record)[1].note.endswith("REEF reads 12 passages of builtin:code at 9/16 of the depth.")


def test_a_pair_of_initializations_and_its_reverse_are_one_comparison():
    record = json.loads((RECORDS.parent / "paper" / "table4a_weights.json").read_text())
    by_family = dict(zip(("llama", "qwen"), table4a_weights.claims(record), strict=True))
    # Of Qwen's four pairs two are the reverse of the others.
    for family, count, chance in (("llama", 16, 57), ("qwen", 8, 88)):
        statement = by_family[family].statement
        assert f"Smallest of {count} p" in statement and f"if they were independent: {chance}%)" in statement


def test_the_table_of_real_pairs_does_not_call_every_published_p_too_small():
    pooled = json.loads((RECORDS / "calibration.json").read_text())["result"]["pooled"]
    (published,) = (row for row in pooled if (row["test"], row["inputs"]) == ("paper t", "tokens"))
    assert published["rates"][0]["rate"] < 0.01 and published["ks_p"] < 1e-12
    (table,) = lineage_pairs.tables(json.loads((RECORDS / "lineage_pairs.json").read_text()))
    assert "too small" not in table.note and "not uniform between unrelated models" in table.note


def test_the_worth_of_the_overlap_is_counted_and_not_asserted():
    record = json.loads((RECORDS / "entropy_transition.json").read_text())
    assert "as much as" not in entropy_transition.EXPERIMENT.description
    assert "In 9 of 15 rows the prediction with Y₁₁ alone is nearer" in entropy_transition.tables(record)[1].note
    for row in record["result"]["rows"]:
        row["cosine_by_layer"] = row["predicted_cosine_by_layer"][entropy_transition.EXACT]
    assert "In 0 of 15 rows" in entropy_transition.tables(record)[1].note


def test_limits_over_pairs_with_common_models_say_that_they_take_them_for_independent():
    told = disputes_tables.headline(json.loads((RECORDS / "disputes.json").read_text()))
    assert "at most 0.3% if pairs were independent; they share 10 bases" in told
    claims = runner.load("table4c").claims(json.loads((RECORDS / "table4c.json").read_text()))
    assert all("if the pairs, which share 4 models, were independent" in claim.statement for claim in claims)


def test_the_row_that_the_theory_was_changed_for_is_named_where_it_is_shown():
    record = json.loads((RECORDS / "predicted.json").read_text())
    sentence = "The row of gpt2-tiny (d_model=256, d_ff=1024, num_layers=6) is no test of the theory"
    assert sentence in predicted.tables(record)[1].note
    for outcome in record["result"]["groups"]:
        if outcome["group"] == CHANGED_FOR:
            outcome["group"]["seq_len"] += 1
    assert "is no test of the theory" not in predicted.tables(record)[1].note


def test_one_top_1_token_of_all_seeds_is_the_most_frequent_last_token_of_the_inputs():
    record = json.loads((RECORDS / "findings1.json").read_text())
    for probed in record["result"]["groups"]:
        group = probed["group"]
        ids = {row["preference"]["top1_id"] for row in probed["records"]}
        if len(ids) == 1:
            cfg = preset(group["model"], **group["changes"])
            N = group["num_inputs"]
            last_N = random_tokens(N, group["seq_len"], cfg.vocab_size).batch(0, N)[:, -1]
            assert cfg.tie_embeddings and ids == {Counter(last_N.tolist()).most_common(1)[0][0]}
    experiment = runner.load("findings1")
    assert "answer each input with its own last token" in experiment.tables(record)[0].note
    record["result"]["groups"] = record["result"]["groups"][:1]
    assert "last token," not in experiment.tables(record)[0].note


def test_the_test_of_isotropy_is_not_said_to_reject_what_it_accepts():
    """Its p varies too much where the effective dimension is below D; of attention alone no committed p is small."""
    experiment = runner.load("table2")
    for scale in ("laptop", "paper"):
        (table,) = experiment.tables(json.loads((RECORDS.parent / scale / "table2.json").read_text()))
        alone = [row.measured for row in table.rows if row.settings[0] == "self-attention only"]
        assert all(measured["p, isotropy"] > -1 and measured["effective D"] < 768 / 5 for measured in alone)
        assert "rejects" not in table.note


def test_tests_of_initializations_were_run_at_the_strengths_that_the_page_says():
    experiment, record = runner.load("descendants"), json.loads((RECORDS / "descendants.json").read_text())
    changes = {change["change"]: change for change in record["result"]["changes"]}
    cells = [cell for cell in record["result"]["cells"] if cell["test"] == "birth: matched units"]
    assert {cell["change"] for cell in cells} == {name for name, change in changes.items() if change["usual"]}
    assert "noise 0.5" in {cell["change"] for cell in cells} and "noise 2" in changes
    assert {cell["num_related"] for cell in cells if changes[cell["change"]]["related"]} == {10}
    note = experiment.tables(record)[0].note
    assert "on 10 families and at one strength of each kind (the middle one, the longest training)" in note


def test_every_scale_trains_what_the_claim_on_mitigations_compares():
    for experiment in sink_cures.EXPERIMENTS.values():
        for settings in experiment.settings.values():
            assert {"baseline", sink_cures.HEAD_NORM} <= set(settings["cures"])


def test_the_caption_of_checkpoints_says_that_the_permutation_p_is_no_normal_tail():
    record = json.loads((RECORDS / "figure14.json").read_text())
    rows = [row for by_seed in record["result"]["own"]["permutation"] for row in by_seed]
    assert max(abs(row["log10_p"] - stats.norm.logsf(row["z"]) / LN10) for row in rows) > 1000
    (panel,) = checkpoints.recognition_panels(record)
    assert "certified bound" in panel.caption and "normal" not in panel.caption


def test_rates_of_unrelated_pairs_have_both_ends_where_some_are_called():
    """Of 6 of 6 pairs the page gave the upper end alone, which is 100% whatever the number of pairs."""
    record = json.loads((RECORDS / "trained_apart_256_2m.json").read_text())
    claims = {
        claim.measured: claim.statement for claim in trained_pairs.EXPERIMENTS["trained_apart_256_2m"].claims(record)
    }
    assert "; 95% interval 54% to 100% if the pairs" in claims["6 of 6"]
    none = json.loads((RECORDS / "trained_apart.json").read_text())
    (first, *_) = trained_pairs.EXPERIMENTS["trained_apart"].claims(none)
    assert first.measured == "0 of 6" and "; 95% interval up to 46% if the pairs" in first.statement
