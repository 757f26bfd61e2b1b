"""Results in words: what is claimed follows from the numbers, and stops where they do."""

import dataclasses
from pathlib import Path

import pytest

from bornbiased_jax import results
from bornbiased_jax.config import preset
from bornbiased_jax.lineage.scan import Match, ScanResult
from bornbiased_jax.lineage.verdict import Verdict
from bornbiased_jax.lineage.whichseed import Candidate, Found
from bornbiased_jax.probes import outliers
from bornbiased_jax.results import lineage_reports, run_reports
from bornbiased_jax.results.wording import TERMS, named, percent

ROOT = Path(__file__).resolve().parent.parent.parent


def test_terms_are_the_glossarys():
    glossary = (ROOT / "docs" / "glossary.md").read_text().lower()
    other = {"over uniform": "ratio to uniform", "cosine between sequences": "inter-sequence cosine"}
    other |= {"cosine within a sequence": "intra-sequence cosine", "log10 p": "log10 p of preference"}
    missing = {term for term in TERMS if other.get(term, term).lower() not in glossary}
    assert not missing


def test_a_super_neuron_is_defined_by_both_of_its_conditions():
    assert (outliers._FIRING_RATIO, outliers._NORM_RATIO) == (10, 2)
    for phrase in ("at least ten times as active at the first token", "at least twice as long as its block's median"):
        assert phrase in TERMS["super neuron"]


@pytest.mark.parametrize("changes", [{"logit_softcap": 30.0}, {"init_groups": "down=zeros"}, {"residual_scale": 0.5}])
def test_a_model_is_named_with_every_field_that_its_preset_has_not(changes):
    ((field, value),) = changes.items()
    assert named(preset("gpt2-tiny", **changes).to_dict()) == f"gpt2-tiny, {field} = {value}"
    assert named(preset("gpt2-tiny").to_dict()) == "gpt2-tiny"
    assert named(preset("gemma3-tiny", attention_scale=None).to_dict()) == "gemma3-tiny, attention_scale = None"


def test_a_part_is_never_written_as_the_whole():
    texts = [percent(value) for value in (0.9949, 0.996, 0.9996, 0.99996, 1.0)]
    assert texts == ["99%", "99.6%", "99.96%", "99.996%", "100%"]
    value = {"num_tokens": 40_000, "max_abs_error": 1e-4, "logit_std": 1.0, "transformers": "5"}
    told = run_reports.Parity({**value, "top1_agreement": 0.99975}, {}).summary()
    assert told[1].startswith("99.98% of the predicted tokens are the same")
    assert "100% of" in run_reports.Parity({**value, "top1_agreement": 1.0}, {}).summary()[1]


def initial(seed, count, log10_p, **changes):
    """A record of `probe preference` of 4,000 inputs and GPT-2's vocabulary."""
    record = {"seed": seed, "seq_len": 64, "num_inputs": 4_000, "vocab_size": 50_257, "top1_id": 31_337 + (seed or 0)}
    return {**record, "top1_count": count, "top1_share": count / 4_000, "log10_p": log10_p, **changes}


def test_preference_sentence_has_size_and_p():
    first, *_ = results.Preference([initial(0, 76, -183.4)]).summary()
    assert first == (
        "Seed 0 prefers token 31,337: 1.9% of 4,000 inputs, 955 times what a token gets on average; by chance 10⁻¹⁸³."
    )


def test_the_strongest_of_several_leads_and_the_others_are_counted():
    told = results.Preference([initial(0, 9, -0.1), initial(1, 76, -183.4), initial(2, 60, -140.0)]).summary()
    assert told[0].startswith("Seed 1 prefers token 31,338")
    assert told[1].startswith("2 of 3 results show more") and "2 different tokens" in told[1]
    told = results.Preference([initial(0, 9, -0.1), initial(1, 76, -183.4)]).summary()
    assert told[1].startswith("1 of 2 results shows more")


@pytest.mark.parametrize("log10_p", [0.0, -0.5, -2.2])
def test_no_preference_is_claimed_where_chance_explains_it(log10_p):
    """10^-2.2 is below 0.01 and no more than one of two may reach."""
    told = " ".join(results.Preference([initial(0, 5, 0.0), initial(1, 5, log10_p)]).summary())
    assert "prefers" not in told and "No token is preferred more than chance allows" in told


def test_a_checkpoint_has_no_seed():
    (first, *_) = results.Preference([initial(None, 76, -183.4)]).summary()
    assert first.startswith("The model prefers")
    # Nor another width, or another scheme.
    (_, remedy) = results.Preference([initial(None, 5, 0.0)]).summary()
    assert remedy == "That is no proof of indifference: more inputs show smaller preferences."


def test_equal_logits_are_called_no_real_preference():
    told = results.Preference([initial(0, 4_000, -300.0, top1_id=0)]).summary()
    assert "ties go to the smallest id" in told[-1] and "is real" not in " ".join(told)


def contracted(seed, by_layer, log10_p, seq_len=64):
    return {"seed": seed, "seq_len": seq_len, "inter_cosine_by_layer": by_layer, "log10_p": log10_p}


@pytest.mark.parametrize(("is_initial", "is_warned"), [(True, False), (False, True)])
def test_theory_next_to_a_trained_model_is_said_to_be_about_initial_weights(is_initial, is_warned):
    theory = {
        "coverage": 0.8,
        "top1_share_mean": 0.01,
        "top1_share_low": 0.005,
        "top1_share_high": 0.02,
        "inside": False,
    }
    record = initial(None, 400, -500.0, is_initial=is_initial, theory=theory)
    sentences = " ".join(results.Preference([record]).summary())
    assert "0 of 1 measurements lie inside theory's 80% interval" in sentences
    assert ("Theory describes initial weights" in sentences) is is_warned


def test_contraction_goes_from_the_first_block_to_the_last():
    records = [contracted(0, [0.1, 0.2, 0.4], -90.0), contracted(1, [0.11, 0.3, 0.5], -50.2)]
    told = results.Contraction(records).summary()
    assert "from 0.100 to 0.110 after the first block to 0.400 to 0.500 after block 3 (T = 64)" in told[0]
    assert "10⁻⁵⁰ at most" in told[1] and "is real" in told[1]
    weak = results.Contraction([*records, contracted(2, [0.0, 0.0, 0.0], -0.3)]).summary()
    assert "is real" not in weak[1] and "0.5" in weak[1]


def test_windows_of_a_text_are_not_called_independent():
    text = {"inputs": {"kind": "text"}}
    told = results.Preference([initial(0, 76, -183.4) | text]).summary()
    assert "which windows of one text are not" in told[-1] and "is real" not in told[-1]
    told = results.Contraction([contracted(0, [0.1, 0.4], -90.0) | text]).summary()
    assert "windows of one text are not independent" in told[1] and "is real" not in told[1]


def test_a_prediction_says_for_whom_its_band_holds():
    value = {"inter_cosine_by_layer": [0.1, 0.31], "inter_cosine_by_layer_std": [0.01, 0.02]}
    value |= {"top1_share_p50": 0.02, "top1_share_p10": 0.01, "top1_share_p90": 0.03}
    (told, *_) = results.Prediction("gpt2-tiny", {}, [value]).summary()
    assert "0.310" in told and "0.020" in told
    assert "2% of the inputs to get one and the same token: the median of seeds with fresh embeddings" in told
    assert "of which 80% lie between 1% and 3%" in told
    (told, *_) = results.Prediction("gpt2-tiny", {}, [value | {"top1_share_p90": 0.01}]).summary()
    assert told.endswith("80% are at 1%.")


def test_terms_are_explained_once_in_a_sweep_of_predictions():
    value = {"inter_cosine_by_layer": [0.1], "inter_cosine_by_layer_std": [0.01], "intra_cosine_by_layer": [0.2]}
    value |= {"top1_share_p50": 0.02, "top1_share_p10": 0.01, "top1_share_p90": 0.03, "seq_len": 8}
    swept = [value | {"num_layers": depth} for depth in (1, 2)]
    text = "\n".join(table.note for table in results.Prediction("gpt2-tiny", {}, swept, "num_layers").tables())
    assert text.count("Fraction of the top-1 token") == 2
    for term in ("cosine between sequences", "cosine within a sequence", "top-1 token", "top-1 fraction"):
        assert text.count(f"  {term}: ") == 1


SEARCHED = Found(
    seed=7,
    reason="r is 1.000",
    best=Candidate(7, 1.0, 99.0, -300.0),
    runner_up=None,
    num_seeds=100,
    num_entries=(256, 4096),
    alpha=1e-4,
    confirmed=Verdict("unrelated", "it is not", 0.5, -0.3, 0.1, "weights", None, 1e-4),
)


def test_unconfirmed_seed_sentence():
    told = lineage_reports.WhichSeed("a", {}, SEARCHED).summary()
    assert told[0] == "Of 100 seeds searched, seed 7 is the one: r is 1.000."
    assert "does not confirm it" in told[1]
    assert "cannot see" in lineage_reports.WhichSeed("a", {}, dataclasses.replace(SEARCHED, seed=None)).summary()[1]


def test_a_scan_that_decides_nothing_denies_nothing():
    def told(*verdicts):
        matches = tuple(
            Match(name, "", verdict, None, None, "") for name, verdict in zip("abc", verdicts, strict=False)
        )
        return results.Scan(ScanResult("suspect", "", 1e-4, matches, 0)).summary()

    assert [part[:14] for part in told("undefined", "undefined")] == ["Undefined for "]
    assert told("unrelated", "undefined")[0].startswith("Of 1 base none shares an initialization with suspect")


def audited(*kinds, tested=0):
    pairs = [{"p_value": 0.5}] * tested + [{"p_value": None}]
    findings = [{"kind": kind} for kind in kinds]
    clean = not {"duplicate", "gap"} & set(kinds)
    return {
        "checkpoints": [{}] * 4,
        "runs": [{}, {}],
        "findings": findings,
        "pairs": pairs,
        "clean": clean,
        "alpha": 1e-4,
    }


def test_an_audit_counts_defects_and_says_how_far_it_reached():
    told = lineage_reports.Audit(audited("duplicate", "duplicate", "gap", "shared-birth", tested=3)).summary()
    assert told[0] == "4 checkpoints of 2 runs: duplicates (2) and steps missing from the grid (1)."
    assert told[1].startswith("3 pairs were tested") and "0.0001" in told[1]
    assert lineage_reports.Audit(audited(tested=1)).summary()[1].startswith("1 pair was tested")
    clean = lineage_reports.Audit(audited("shared-birth")).summary()
    assert "nothing contradicts their labels" in clean[0] and "not looked for" in clean[1]


def test_sinks_have_an_error_and_a_suspect():
    value = {"sink_rate": {"32": 0.5, "128": 0.72}, "sink_rate_std": {"128": 0.1}, "num_sequences": 100}
    value |= {"epsilon": 0.25, "position": 1, "super_neurons": [{"super": True, "block": 12, "neuron": 1229}]}
    told = results.Sinks(value).summary()
    assert told[0].startswith("72% of the heads, give or take 1%,") and "T = 128" in told[0]
    assert "--silence blocks/12/mlp:1229" in told[2]
    # The deviation over sequences is not that of heads by their average score.
    assert results.Sinks(value | {"threshold": "average"}).summary()[0].startswith("72% of the heads put more")


def test_scores_of_even_attention_are_no_sinks():
    value = {"sink_rate": {"8": 1.0}, "num_sequences": 4, "position": 1, "epsilon": 0.25}
    assert "even attention, whose score is 0.34," in results.Sinks(value).summary()[0]
    # From the eighth position on one row is left of eight.
    late = value | {"position": 8}
    assert "they are sinks" in results.Sinks(late).summary()[0]
    assert "they are sinks" in results.Sinks(late | {"convention": "rows_from_k"}).summary()[0]
    assert "even attention" in results.Sinks(late | {"convention": "rows_from_k", "epsilon": 0.1}).summary()[0]


@pytest.mark.parametrize(("after", "word"), [(0.2, "fewer"), (0.5, "as many"), (0.7, "more")])
def test_intervention_sentence_has_sign(after, word):
    value = {"position": 1, "sink_rate": after, "loss": 3.25, "before": {"sink_rate": 0.5, "loss": 3.0}}
    told = results.Intervention(value).summary()
    assert f"are {word}" in told[0] and "+0.2500" in told[1]


def evaluated(**changes):
    value = {"perplexity": 9.04, "context": 64, "num_tokens": 1_000, "num_sequences": 16, "training_text": None}
    return run_reports.Evaluation({**value, **changes}, {})


def test_perplexity_sentence_warns_of_training_text():
    assert "new text" in evaluated(training_text=True).summary()[-1]
    assert "new text" not in " ".join(evaluated().summary())
    # An initialization has been trained on nothing yet.
    assert len(evaluated(training_text=True, step=0).summary()) == 2
    assert "as among 9.04 equally likely" in evaluated().summary()[0]
    assert "of 1 sequence." in evaluated(num_sequences=1).summary()[1]


def test_perplexity_beyond_floats_has_words():
    told = evaluated(perplexity=None, loss=900.0)
    assert "more than any float can count" in told.summary()[0]
    assert ["loss (nats per token)", 900.0] in told.tables()[0].rows


def test_generation_sentence_says_whether_tokens_were_drawn():
    assert "each the likeliest" in run_reports.Generation([1, 2], "", {}, None).summary()[0]
    told = " ".join(run_reports.Generation([1, 2], "", {}, 7).summary())
    assert "2 tokens with the prompt, each drawn" in told and "seed (7)" in told and "likeliest" not in told


def test_stopped_run_sentence_says_resume():
    value = {"out": "runs/a", "step": 3, "steps": 9, "finished": False, "loss": [4.5, 4.75], "tokens": 96}
    told = results.Training(value | {"validation_loss": None, "peak_share": None}).summary()
    assert "2 seeds at step 3 of 9" in told[0] and "4.50 to 4.75" in told[1] and "resumes there" in told[2]


def test_doctor_sentence_names_missing_packages():
    value = {"extras": {"hf": {"installed": False}, "torch": {"installed": True}}, "problems": [], "cores": 2}
    told = run_reports.Diagnosis(value | {"backend": "cpu"}).summary()
    assert told[0].startswith("Nothing is wrong") and "hf;" in told[1] and "torch" not in told[1]
    broken = run_reports.Diagnosis({**value, "backend": None, "problems": ["a", "b"]}).summary()
    assert broken[0].startswith("2 things to fix") and "no device" in broken[0]


@pytest.mark.parametrize(("preserved", "word"), [(True, "the same function"), (False, "another function")])
def test_a_descendant_says_whether_its_function_moved(preserved, word):
    origin = "m", ["rotate:7", "noise:0.1"], "d", "llama", preserved, None, "0a", "0b", None, {}
    told = lineage_reports.Descendant(*origin).summary()
    assert "rotate:7 and noise:0.1" in told[0] and word in told[1]


def test_reproduce_sentence_leads_with_result():
    outcome = ["table1"], ["figure2"], {"figure1": "no"}, {"table1": "Seeds differ."}, None
    told = run_reports.Reproduction("laptop", "out", "i.html", *outcome).summary()
    assert told[0] == "Seeds differ."
    assert told[1] == "2 experiments have a result, 1 of them made now; 1 other has none."


@pytest.mark.parametrize(("done", "failed", "word"), [(3, 0, "resumes"), (3, 1, "1 failed"), (4, 0, "Nothing is left")])
def test_status_sentence_counts_remaining_chunks(done, failed, word):
    value = {"folder": "kept", "done": done, "asked": 4, "failed": failed, "pages": [{}]}
    told = run_reports.StoreStatus(value).summary()
    assert told[0] == f"{done} of 4 chunks are done, in 1 page of kept." and word in told[1]
    (sentence, _) = run_reports.StoreStatus({**value, "done": 1, "asked": 1}).summary()
    assert sentence.startswith("1 of 1 chunk is done")


def test_the_p_of_a_finding_is_written_in_digits_that_say_something():
    texts = [lineage_reports._p(value) for value in (None, 0.0002, 5.7e-88, 1e-300)]
    assert texts == ["", " (p = 0.0002)", " (p = 5.7 × 10⁻⁸⁸)", " (p < 10⁻³⁰⁰)"]


@pytest.mark.parametrize("seeds", [6, 7])
def test_captions_say_which_curves_have_no_color_left(seeds):
    record = {"seq_len": 4, "ranked_counts": [1], "num_inputs": 2, "top1_id": 0, "uniform_top_count": 1.0}
    preferred = results.Preference([{**record, "seed": seed} for seed in range(seeds)]).figures()["preference"]
    contracted = results.Contraction(
        [{"seq_len": length, "inter_cosine_by_layer": [0.1]} for length in range(seeds)]
    ).figures()["contraction"]
    told = [panel.caption.endswith("The first 6 of 7 curves are drawn.") for panel in (preferred, contracted)]
    assert told == [seeds == 7] * 2


@pytest.mark.parametrize(("rate", "position", "could"), [(0.5, 1, True), (0.0, 1, False), (0.5, 3, False)])
def test_super_neurons_are_no_cause_of_sinks_that_there_are_not(rate, position, could):
    report = {"sink_rate": {"8": rate}, "num_sequences": 1, "epsilon": 0.25, "position": position}
    neuron = {"block": 2, "neuron": 7, "super": True}
    assert any("the cause" in part for part in results.Sinks({**report, "super_neurons": [neuron]}).summary()) == could


@pytest.mark.parametrize(("cosines", "told"), [([0.1], "goes to 0.100 after block 1"), ([0.1, 0.2], "goes from 0.100")])
def test_one_block_has_no_way_from_the_first_to_the_last(cosines, told):
    record = {"seed": 0, "seq_len": 4, "inter_cosine_by_layer": cosines, "log10_p": -9.0}
    assert told in results.Contraction([record]).summary()[0]


def test_names_of_runs_cannot_break_the_table_of_an_audit():
    runs = [{"name": "a|b\n<i>", "steps": [0], "shares_data_with": ["*c*", "_d_e_"]}, {"name": "", "steps": [0, 9]}]
    record = {"source": "runs", "clean": True, "findings": [], "checkpoints": [], "pairs": [], "basis": "digests"}
    rows = lineage_reports.Audit({**record, "runs": runs}).markdown().splitlines()[-2:]
    assert rows == [r"| a\|b \<i> | 0 | \*c\*, \_d_e\_ |", "| (the folder) | 2 from 0 to 9 | not known |"]
    finding = {"kind": "gap", "text": "Run a\n## clean lacks one step.", "p_value": None}
    report = lineage_reports.Audit({**record, "findings": [finding], "runs": runs}).markdown()
    assert "- Run a ## clean lacks one step.\n" in report
