"""Numbers that pages write into their own sentences are those of the committed records: what no block generates."""

import json
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.config import preset
from bornbiased_jax.experiments import results, runner
from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.birth import top1_inputs, top1_tables
from bornbiased_jax.experiments.lineage import court, table4a
from bornbiased_jax.experiments.lineage import settings as lineage_settings
from bornbiased_jax.experiments.sinks import price_tables, sink_cures, sink_growth, sink_interventions
from bornbiased_jax.experiments.survival import decay, finding7, trained_pairs
from bornbiased_jax.experiments.theory import predicted
from bornbiased_jax.lineage import matching
from bornbiased_jax.prediction import stack_of
from bornbiased_jax.report.numbers import fixed, from_log10, p_value, percent
from bornbiased_jax.stats.multiple import holm
from bornbiased_jax.theory.mean_field import profile
from bornbiased_jax.theory.predict import contraction

ROOT = Path(__file__).resolve().parent.parent.parent
COUNTS = {3: "three", 5: "five", 7: "seven"}


def _result(name: str, scale: str = "laptop"):
    return results.committed(name, scale)["result"]


def _span(values: Iterable[float], digits: int) -> str:
    values = list(values)
    return f"{fixed(digits)(min(values))} to {fixed(digits)(max(values))}"


def _of_court(test: str, *kinds: str):
    return [row for row in _result("court")["tests"] if row["test"] == test and row["kind"].startswith(kinds)]


def _scores_of_untrained(method: str) -> list[float]:
    """Scores of all pairs of the paper's untrained models: those of its seeds, and those of their null."""
    groups = [_result(f"table4a_{family}_16", "paper")["groups"][0] for family in ("llama", "qwen")]
    return [
        score
        for group in groups
        for score in (*group["null"][method], *(pair["baselines"][method] for pair in group["pairs"]))
    ]


def _comparison() -> list[str]:
    (pcs,) = _of_court("HuRef (PCS)", "births")
    record = json.loads((ROOT / "benchmarks" / "results" / "peers_in_disputes.json").read_text())
    called = {
        test["test"]: [sum(row[side] for row in test["decisions"]) for side in ("guilty", "innocent")]
        for test in record["tests"]
    }
    assert called["weightscope (unchanged entries)"] == [30, 0]
    disputes = _result("disputes")
    (kit_weights,) = (test["auc"]["rate"] for test in record["tests"] if test["test"].endswith("weights alone"))
    assert kit_weights == 1 > max(test["auc"]["rate"] for test in disputes["tests"])
    (settings,) = (test for test in disputes["tests"] if test["test"] == "equal fields of the configuration")
    assert settings["power"] == 0 and disputes["num_pairs"]["guilty"] == 130
    num_innocent = disputes["num_pairs"]["innocent"]
    return [
        f"calls {called['Provenance Kit'][1]} of {num_innocent:,} unrelated pairs a match",
        f"no pair of untrained models does ({_span(_scores_of_untrained('reef'), 2)},",
        f"PCS is {_span((pcs['least'], pcs['largest']), 2)} for untrained",
        f"and {_span(_scores_of_untrained('pcs'), 2)} at 768",
    ]


def _weight_tests() -> list[str]:
    (t,), (u,) = (_of_court(f"Algorithm 1, {test}, vectors", "a birth") for test in "tU")
    trained = _of_court("Algorithm 1, t, vectors", "trained")
    assert not any(kind["rates"][0]["rate"] for kind in trained)
    rates = [percent(0)(kind["rates"][0]["rate"]) for kind in (t, u)]
    return [
        f"(PCS {_span(_scores_of_untrained('pcs'), 2)}, REEF {_span(_scores_of_untrained('reef'), 2)},",
        f"({rates[0]} by the t-test, {rates[1]} by the U-test); of {sum(kind['num_pairs'] for kind in trained)} pairs",
        *_level_of_token_neurons(),
        *_evasions(),
    ]


def _level_of_token_neurons() -> list[str]:
    """Counts of pairs on which neurons in token space reject: of four architectures, and on other seeds."""
    untied, *others = [case for case in _result("weights_calibration")["cases"] if case["test"].startswith("rotation")]
    assert len(others) == 3
    defined = [case["num_pairs"] - case["num_undefined"] for case in (untied, *others)]
    further = _result("token_neurons_level")["summary"]["rates"][1]
    return [
        f"p < 0.01 in {untied['rates'][0]['count']} of {defined[0]:,} pairs where 50 are expected",
        f"({untied['rates'][0]['count'] + 1} of {untied['num_pairs']:,} pairs, {_with_pair_left_out():.3f})",
        f"in {sum(case['rates'][0]['count'] for case in others)} of {sum(defined[1:]):,}, where 150 are expected",
        f"{further['count']} pairs below 0.05 where 500 are expected",
        f"of the {defined[0]:,} pairs before, {untied['rates'][1]['count']} where 250 are",
        f"a rate of {percent(2)(further['high'])} at 5%",
    ]


def _with_pair_left_out() -> float:
    """The smallest corrected p of the checks with the one pair that has p below 0.01 and was left undefined."""
    result = _result("weights_calibration")
    (untied,) = (case for case in result["cases"] if case["test"] == "rotation, form A")
    count = untied["rates"][0]["count"] + untied["num_undefined"]
    p_two_sided = stats.binomtest(count, untied["num_pairs"], untied["rates"][0]["level"]).pvalue
    return float(p_two_sided) * result["family"]["num_checks"]


def _evasions() -> list[str]:
    rows = _result("evasions")["rows"]
    head, none = (
        min(row["tests"]["rotation, form A"]["z"] for row in rows if row["change"] == change)
        for change in ("a vector added to every head column", "none")
    )
    agreement = [row["agreement"] for row in rows if row["change"].startswith("all but the roll")]
    assert sum(value < 0.76 for value in agreement) == 2 and len(agreement) == 4
    return [
        f"falls from {none:.0f} to {head:.0f}",
        f"{percent(0)(min(agreement))} of the units or more, where a verdict asks for "
        f"{percent(1)(4 * matching.UNRELATED_AGREEMENT[256])} of MLPs with 256 units",
    ]


def _disputes() -> list[str]:
    record = json.loads((ROOT / "benchmarks" / "results" / "peers_in_disputes.json").read_text())
    decisions = {
        test["test"]: {row["kind"]: (row["guilty"], row["innocent"]) for row in test["decisions"]}
        for test in record["tests"]
    }
    kit, weights, weightscope = decisions.values()
    kinds = sorted(kind for kind, (guilty, _) in weightscope.items() if guilty)
    assert kinds == ["LoRA, merged", "half of the neurons pruned, healed", "rounded to 4 bits"]
    assert not sum(innocent for _, innocent in weightscope.values())
    missed = {kind: 10 - guilty for kind, (guilty, _) in weights.items() if guilty < 10}
    assert missed == {"30% of a merge": 9, "vision tower inherited, retrained": 10}
    innocent = sum(innocent for _, innocent in kit.values()) / (len(kit) * 90)
    turned = np.concatenate([*_result("evidence_sheet")["statistics"]["mdir_trace"].values()])
    spectra = [row for row in _result("disputes")["tests"] if row["test"].startswith(("GhostSpec", "SELF"))]
    assert all(fixed(1)(row["power"]) == "0.5" for row in spectra)
    found = [sum(kind["power"] >= 0.9 for kind in row["kinds"]) for row in spectra]
    return [
        f"between {fixed(1)(turned.min())} and {fixed(1)(turned.max())} for these unrelated models",
        f"they find half of the related pairs [above](#scores), {found[0]} and {found[1]} of {len(kit)} kinds",
        f"those of three kinds, {sum(guilty for guilty, _ in weightscope.values())} of {10 * len(weightscope)}:",
        "it misses nine of ten suspects that hold 30% of the base, and all that inherited only the tower",
        f"{percent(0)(innocent)} of the innocent pairs are a “Confirmed Match”",
        *_power(),
    ]


def _power() -> list[str]:
    """How far z of neurons in token space lies from the formula: soon after the initialization, and later."""
    early, early_quarter, wide, narrow = [], [], [], []
    for row in _result("power")["z"]:
        ratio = np.mean(row["z"]["neurons in token space"]) / np.mean(row["formula"])
        if row["step"] == 10:
            (early if row["neurons"] == 4 * row["width"] else early_quarter).append(abs(ratio - 1))
        else:
            (narrow if row["width"] == 16 else wide).append(ratio)
    return [
        f"within {math.ceil(100 * max(early))}%, or {math.ceil(100 * max(early_quarter))}% where a quarter",
        f"{_span(wide, 2)} of it at widths 32 and 64, and {_span(narrow, 2)} of it at width 16",
    ]


def _first_tokens_part(name: str, schemes: tuple[str, ...]):
    """Mean and half of its interval of D_sink, of every attention and granularity."""
    return [
        price_tables.over_seeds(price_tables.cells(run, "d_sink", scheme=scheme, granularity=granularity, keep_sinks=1))
        for run in _result(name)["cures"].values()
        for scheme in schemes
        for granularity in ("tensor", "token")
    ]


def _mean(run, quantity: str, scheme: str, granularity: str, keep_sinks: int) -> float:
    options = {"scheme": scheme, "granularity": granularity, "keep_sinks": keep_sinks}
    return price_tables.over_seeds(price_tables.cells(run, quantity, **options))[0]


def _rounding() -> list[str]:
    """What rounding costs at both sizes, and what of it the first token causes."""
    small, larger = (_result(name)["cures"] for name in ("sink_cures", "sink_cures_larger"))
    costs = [
        _mean(run, "delta_nats", scheme, granularity, 0)
        for run in small.values()
        for scheme in ("w8a8", "kv8")
        for granularity in ("tensor", "token")
    ]
    # One scale for a sequence over one for each token; without positions the latter cost nothing at six bits.
    ratios = [
        np.divide(*(_mean(run, "delta_nats", scheme, granularity, 0) for granularity in ("tensor", "token")))
        for name, run in small.items()
        for scheme in ("w6a6", "kv4")
        if (name, scheme) != ("no positions", "w6a6")
    ]
    assert _mean(small["no positions"], "delta_nats", "w6a6", "token", 0) <= 0
    first = {name: _mean(run, "d_sink", "w6a6", "tensor", 1) for name, run in larger.items()}
    by_token = [
        abs(_mean(run, "d_sink", scheme, "token", 1))
        for run in larger.values()
        for scheme in ("w8a8", "w6a6", "kv8", "kv4")
    ]
    free = (
        "positional attenuation",
        "head-wise gate",
        "zero extra logit",
        "learned extra logit",
        "learned key and value",
    )
    low = ("centred attention", "per-head RMSNorm", "positional amplification")
    baseline = _mean(larger["baseline"], "delta_nats", "w6a6", "tensor", 0)
    assert f"{first['baseline'] / baseline:.1f}" == "0.4"
    return [
        f"Eight bits cost at most {max(costs):.4f} nats, whatever the attention",
        f"by a factor of {min(ratios):.1f} or more",
        f"it causes at most {max(by_token):.4f} nats in any attention",
        f"costs {_span((first[name] for name in free), 2)} nats at six bits, in the baseline {first['baseline']:.2f}",
        f"at most {max(first[name] for name in low):.3f}",
    ]


def _costs(name: str) -> tuple[str, str]:
    record = results.committed(name, "laptop")
    costs = [
        sink_cures._cost(record, mitigation) for mitigation in record["result"]["cures"] if mitigation != "baseline"
    ]
    return tuple(_span(numbers, 2) for numbers in np.transpose(costs))


def _mitigations() -> list[str]:
    parts = _first_tokens_part("sink_cures", ("w8a8", "kv8"))
    excluding = sum(abs(mean) > half for mean, half in parts)
    searched = [seed["seed"] for seed in _result("figure12")["cures"]["baseline"]["by_seed"]]
    assert searched == results.committed("sink_search", "laptop")["settings"]["seeds"]
    further = [
        percent(0)(seed["sink_rate"]["64"])
        for seed in _result("sink_cures")["cures"]["baseline"]["by_seed"]
        if seed["seed"] not in searched
    ]
    on_smollm2 = [percent(0)(_first_of(_result("real_models"), scheme)[0]) for scheme in ("a8", "a6")]
    (larger, larger_std), (small, small_std) = map(_costs, ("sink_cures_larger", "sink_cures"))
    return [
        f"of one has sinks in {further[0]} of the heads, that of the other in {further[1]}.",
        f"(D_sink) is at most {max(abs(mean) for mean, _ in parts):.4f} nats at eight bits",
        f"of {len(parts)} intervals, each at 95%, {excluding} exclude zero",
        f"on SmolLM2 it is {on_smollm2[0]} of the cost at eight bits and {on_smollm2[1]} at six",
        *_rounding(),
        f"is {larger} of the baseline's at 2 × 128, and {small} of it at 2 × 32",
        f"standard deviations of {larger_std}, and of {small_std}",
    ]


def _theory() -> list[str]:
    unseen = results.committed("unseen_schemes", "laptop")
    cells = zip(unseen["settings"]["cells"], unseen["result"]["groups"], strict=False)
    outside = [(scheme, shape, seed) for (scheme, shape), group in cells for seed in _seeds_outside(group)]
    shapes, seeds = ({cell[place] for cell in outside} for place in (1, 2))
    assert [cell[0] for cell in outside] == ["kaiming", "kaiming, leaky ReLU, RMSNorm"] and len(shapes | seeds) == 2
    inside = unseen["result"]["coverage"]["inside"] - 48
    # The same test of fit, of a cosine that is 25% larger.
    fits = _result("predicted")
    controls = [
        fit["control_p"]
        for group, fit in zip(fits["groups"], fits["fits"], strict=True)
        if fit is not None and np.mean(probing.cosines(group)) < 0.25
    ]
    kept = [p for p in controls if p >= predicted.SIGNIFICANCE]
    (post_norm,) = [group for group in fits["groups"] if group["group"]["model"] == "olmo2-tiny"]
    expected, cosine = post_norm["theory"]["inter_cosine_by_layer"][-1], np.mean(probing.cosines(post_norm))
    assert not _seeds_outside(post_norm) and len(post_norm["records"]) == 16
    (large,) = _result("table1_c_256_n125")["groups"]
    low_L, high_L, theory_L = (
        np.array(large["theory"][f"inter_cosine_by_layer{end}"]) for end in ("_low", "_high", "")
    )
    first_L, second_L = (np.array(row["contraction"]["inter_cosine_by_layer"]) for row in large["records"])
    assert ((low_L <= first_L) & (first_L <= high_L)).all()
    z = (second_L[-1] - theory_L[-1]) / large["theory"]["inter_cosine_by_layer_std"][-1]
    below = int((second_L < low_L).sum())
    assert below == ((second_L < low_L) | (second_L > high_L)).sum()
    return [
        f"{_with_the_first_four_terms()} have the first four, and none",
        f"{_balanced_of_all_pairs('relu')} is predicted for ReLU and {_balanced_of_all_pairs('gelu')} for GELU",
        f"with 125 inputs, in {below} (z = {fixed(1)(z)}).",
        f"{expected:.3f} where {cosine:.3f} is measured (T = 12, 16 seeds). All 16 seeds lie",
        f"these two, {inside} of {inside + len(outside)} lie inside; the two outside are one seed",
        f"({seeds.pop()} at {shapes.pop().split(',')[0]})",
        f"in {COUNTS[len(kept)]} of the {COUNTS[len(controls)]} configurations with a cosine below 0.25",
        f"(p from {p_value(2)(min(kept))} to {p_value(2)(max(kept))})",
    ]


def _with_the_first_four_terms() -> str:
    """Records that the page on theory shows and that were made with terms that it had for the record of ablation."""
    page = (ROOT / "docs" / "results" / "theory.md").read_text()
    shown = re.findall(r"<!-- record: (\w+)(?: scale=(\w+))? ", page)
    made = {name: results.committed(name, scale or "laptop")["provenance"]["timestamp"] for name, scale in shown}
    *names, last = sorted(f"`{name}`" for name, timestamp in made.items() if timestamp >= made["ablation"])
    return f"{', '.join(names)} and {last}"


def _balanced_of_all_pairs(activation: str) -> str:
    """Predict the cosine of all pairs, as other code measured it (theory/test_schemes.py)."""
    shape = dict(num_layers=6, d_model=256, d_ff=1024, activation=activation, init="normal-0.02-balanced")
    cfg = preset("gpt2-tiny", **shape)
    cosine = contraction(profile(stack_of(cfg), 32), 1_500).mean[-1]
    return fixed(4)(cosine + (1 - cosine) / cfg.vocab_size)


def _errata() -> list[str]:
    attention = next(group for group in _result("table2", "paper")["groups"] if "mlp" in group["group"]["changes"])
    stds = [row["contraction"]["inter_cosine_std_final"] for row in attention["records"]]
    pairs = attention["group"]["num_inputs"] * (attention["group"]["num_inputs"] - 1) / 2
    assert {fixed(2)(2 * stats.norm.sf(1.11e-4 / std * np.sqrt(pairs))) for std in stds} == {"0.16"}
    untrained, trained, pairs_without = [], [], []
    for name in ("trained_apart", "trained_apart_256_2m"):
        initial, mixed, later = _result(name)["shared"].values()
        untrained += [own for pair in initial for own in pair["own"]] + [pair["own"][0] for pair in mixed]
        trained += [own for pair in later for own in pair["own"]] + [pair["own"][1] for pair in mixed]
        pairs_without += [pair["paper_without"]["verdict"] for pair in (*initial, *mixed, *later)]
    return [
        f"deviations of {stds[0]:.4f} and {stds[1]:.4f}, and either gives 0.16",
        f"Untrained models have {min(untrained):.2f} to {max(untrained):.2f}, models trained here {min(trained):.2f} "
        f"to {max(trained):.2f}, and with the vector removed from the outputs Algorithm 1 calls "
        f"{pairs_without.count('same-lineage')} of {len(pairs_without)} such pairs",
    ]


def _seeds_outside(group) -> list[int]:
    low, high = (group["theory"][f"inter_cosine_by_layer_{end}"][-1] for end in ("low", "high"))
    rows = zip(group["records"], probing.cosines(group), strict=True)
    return [row["seed"] for row, cosine in rows if not low <= cosine <= high]


def _seeds_and_tokens(name: str) -> dict[int, int]:
    (group,) = _result(name, "paper")["groups"]
    assert group["group"]["fix_embeddings"]
    return {record["seed"]: record["preference"]["top1_id"] for record in group["records"]}


def _measurements() -> list[str]:
    at_16, at_64 = _seeds_and_tokens("finding2_nano"), _seeds_and_tokens("finding2_64")
    tokens = {
        (seed, length): _seeds_and_tokens(f"table1_a_{length}_{seed}")[seed]
        for seed in (42, 43)
        for length in (64, 256, 1_024)
    }
    assert tokens[42, 64] == tokens[42, 256] == at_64[42] and tokens[43, 256] == tokens[43, 1_024]
    same = sum(at_16[seed] == at_64[seed] for seed in at_16)
    assert len(set(at_16.values())) == len(at_16) - 1
    return [
        f"seed 42 of gpt2-nano has {at_16[42]:,} at T = 16, {tokens[42, 64]:,} at T = 64 and 256, and "
        f"{tokens[42, 1_024]:,} at T = 1,024, and seed 43 has {tokens[43, 64]:,} at T = 64 and {tokens[43, 256]:,} "
        "at T = 256 and 1,024;",
        f"two share a top-1 token, and {same} have the same one at T = 64",
    ]


def _claims_on_untrained() -> list[str]:
    short, long = _seeds_and_tokens("finding2_nano"), _seeds_and_tokens("finding2_64")
    changed = sum(short[seed] != long[seed] for seed in short)
    hits, theory = [], []
    for name in ("finding2_nano", "finding2_64"):
        (group,) = _result(name, "paper")["groups"]
        hits.append(percent(0)(float(np.mean([record["direction_matches_top1"] for record in group["records"]]))))
        theory.append(percent(0)(group["theory"]["overlap"]))
    likely = {
        name: max(_result(name, "paper")["groups"][0]["records"][0]["preference"]["top_dimension_log10_p_by_layer"])
        for name in ("figure10_64", "table1_a_1024_42")
    }
    assert likely["figure10_64"] < -64 and likely["table1_a_1024_42"] < -19
    groups = _result("figure13_tiny", "paper")["groups"]
    stds, shifts = ([group[key] for group in groups if group["group"]["inputs"] == inputs]
                    for key, inputs in (("std", "tokens"), ("mean", "gaussian")))  # fmt: skip
    (larger,) = _result("figure13_nano", "paper")["groups"]
    assert larger["num_pairs"] == groups[0]["num_pairs"]
    (inputs,) = _result("top1_inputs_256")["groups"]
    by_seed = zip(*inputs["sets"], strict=True)
    assert [len({row["ids"][0] for row in rows}) for rows in by_seed] == [4, 4]
    within, between = top1_inputs.shared_tokens(inputs["sets"], 5)
    assert between == 0
    (large,) = _result("table1_c_256_n125")["groups"]
    large_fractions = [percent(1)(row["preference"]["top1_share"]) for row in large["records"]]
    tenths = [percent(1)(large["theory"][f"top1_share_{quantile}"]) for quantile in ("p50", "p10", "p90")]
    common = top1_tables.tokens_in_common(_result("top1_tables", "laptop")["probes"], 5)
    assert common["table"] == common["seed"] == 0
    return [
        f"{len(short)} seeds, all with one embedding and head (Appendix B.2), have {len(set(short.values()))} "
        f"different top-1 tokens at T = 16, and {len(set(long.values()))} at T = 64; but a seed's changes with length "
        f"({changed} of {len(short)} between these two;",
        f"{hits[0]} at T = 16, theory {theory[0]}; {hits[1]} at T = 64, theory {theory[1]};",
        "every layer beyond p = 10⁻⁶⁴; with N = 2,000 at T = 1,024 beyond 10⁻¹⁹;",
        f"({groups[0]['num_pairs']:,} pairs; standard deviation {_span(stds, 2)} times the null's, "
        f"{larger['std']:.2f} times in the paper's architecture)",
        f"sets of 500 at T = 256: 4 different ones each, {within:.1f} of five shared, none by two seeds)",
        f"{' and '.join(large_fractions)}, theory's median for as many {tenths[0]}, "
        f"its tenths {tenths[1]} and {tenths[2]}",
        f"none of the five in common under two tables, {common['input set']:.1f} on two input sets under one)",
        f"shifted by {min(shifts):.1f} standard deviations with 0.02 everywhere and by {max(shifts):.1f} with the",
    ]


def _claims() -> list[str]:
    taus = _result("figure11")["taus"]
    tokens, vectors = ({who: taus[kind][who] for who in ("own", "other")} for kind in ("tokens", "gaussian"))
    recognized = {who: _result("figure14")[who] for who in ("own", "other")}
    checkpoints = [row["verdict"] == "same-lineage" for seed in recognized["other"]["paper"] for row in seed]
    assert all(row["verdict"] == "same-lineage" for seed in recognized["own"]["permutation"] for row in seed)
    assert not any(row["verdict"] == "same-lineage" for seed in recognized["other"]["permutation"] for row in seed)
    own = [pair for pair in _result("table4b")["pairs"] if pair["base"]["seed"] == pair["suspect"]["seed"]]
    missed = sorted(pair["paper_tokens"]["p"] for pair in own if pair["paper_tokens"]["verdict"] != "same-lineage")
    called = {}
    for name in ("table4c", "table11"):
        pairs = [pair for pair in _result(name)["pairs"] if pair["base"]["seed"] != pair["suspect"]["seed"]]
        assert not any(pair["paper_tokens"]["verdict"] == "same-lineage" for pair in pairs)
        called[name] = (sum(pair["paper"]["verdict"] == "same-lineage" for pair in pairs), len(pairs))
    both = np.sum(list(called.values()), axis=0)
    last = {who: kind["mean"][-1] for who, kind in tokens.items()}
    return [
        *_claims_on_untrained(),
        f"{fixed(3)(last['own'])} against {fixed(3)(last['other'])} at the end (standard deviations over coordinates "
        f"{tokens['own']['std'][-1]:.3f} and {tokens['other']['std'][-1]:.3f})",
        f"is about as high ({vectors['other']['mean'][-1]:.3f} against {vectors['own']['mean'][-1]:.3f})",
        f"{len(checkpoints)} of {len(checkpoints)} by their own initialization; on the published vectors "
        f"{sum(checkpoints)} of {len(checkpoints)} by another seed's as well",
        f"{len(own) - len(missed)} of {len(own)} (the other two have p of {missed[0]:.3f} and {missed[1]:.3f})",
        *(f"Algorithm 1 on vectors calls {count} of {every} one lineage" for count, every in called.values()),
        f"({both[0]} of {both[1]} in Tables 4c and 11, and",
        *_claims_on_larger_models(),
        *_claims_on_sinks(),
        *_claims_on_table_4a(),
        *_claims_on_table_7(),
    ]


def _claims_on_larger_models() -> list[str]:
    taus = {kind: _result("figure11_256_2m")["taus"][kind] for kind in ("tokens", "gaussian")}
    tokens, vectors = (
        f"{kind['own']['mean'][-1]:.3f} against {kind['other']['mean'][-1]:.3f}" for kind in taus.values()
    )
    pairs = _result("table4c_256_2m")["pairs"]
    is_called = [pair["paper"]["verdict"] == "same-lineage" for pair in pairs if not _is_own(pair)]
    apart = _result("trained_apart_256_2m")["pairs"]
    return [
        f"{sum(is_called)} of {len(is_called)} of the larger models)",
        f"[{sum(pair['paper']['verdict'] == 'same-lineage' for pair in apart)} of {len(apart)} at width 256]",
        f"{tokens} on tokens and {vectors} on vectors |",
        f"[PCS scores {sum(row['pcs']['same_at_0.8'] for row in _result('table8_256_2m')['own'])} of 4 above 0.8]",
    ]


def _claims_on_sinks() -> list[str]:
    given = _result("sink_knockout_given")
    rates = {(row["kind"], row["what"], row["position"]): row["sink_rate"] for row in given["rows"]}
    without = [rate for (kind, _, _), rate in rates.items() if kind == "silenced"]
    (elsewhere,) = (rate for (kind, _, position), rate in rates.items() if kind == "written elsewhere" and position > 1)
    spanned = f"{percent(0)(min(without))} to {percent(0)(max(without))}"
    return [
        f"({spanned} of the heads without them, {percent(0)(rates['as it is', '', 1])} with them), though what these "
        f"write makes one at another position ({percent(0)(elsewhere)})",
    ]


def _claims_on_table_4a() -> list[str]:
    """Cost of a pair at the paper's length, at the rate of the record of all pairs at T = 16."""
    record = results.committed("table4a_llama_16", "paper")
    (group,) = record["settings"]["groups"]
    pair = {**group, "pairs": group["pairs"][:1], "num_inputs": 2_000, "seq_len": 1_024}
    operations = table4a.operations(pair)
    hours = record["provenance"]["wall_time_s"] / 3_600 * operations / table4a.operations(group)
    assert 1.5e15 < operations < 1.6e15
    kinds = {(family, inputs): [] for family in ("llama", "qwen") for inputs in ("gaussian", "tokens")}
    for family, inputs in kinds:
        names = [f"table4a_{family}_16", *(f"table4a_{family}_64_{a}_{b}" for a, b in lineage_settings.PAIRS[family])]
        tests = [pair["tests"][inputs] for name in names for pair in _result(name, "paper")["groups"][0]["pairs"]]
        p = [test["paper"][key] for test in tests for key in ("p_t", "p_u")]
        kinds[family, inputs] = p + ([test["permutation"]["p_value"] for test in tests] if inputs == "tokens" else [])
    assert max(kinds["llama", "gaussian"]) < 1e-5 and max(kinds["qwen", "gaussian"]) < 1e-6
    assert min(kinds["llama", "tokens"]) > 0.08 and min(kinds["qwen", "tokens"]) > 0.15
    return [f"a pair with N = 2,000, about {COUNTS[round(hours)]} hours at the rate of the records at T = 16"]


def _claims_on_table_7() -> list[str]:
    held_out = {
        mitigation: fixed(1)(float(np.mean([seed["perplexity"]["held out"] for seed in run["by_seed"]])))
        for mitigation, run in _result("table7")["cures"].items()
    }
    amplified, attenuated = held_out["positional amplification"], held_out["positional attenuation"]
    return [f"amplification has {amplified} and attenuation {attenuated} where the baseline has {held_out['baseline']}"]


def _is_own(pair) -> bool:
    return pair["base"]["seed"] == pair["suspect"]["seed"]


def _pretraining() -> list[str]:
    own = [seed["pcs"] for seed in _result("table8")["own"]]
    pairs = [pair for name in ("table4c", "table11") for pair in _result(name)["pairs"] if not _is_own(pair)]
    assert not any(pair["paper_tokens"]["verdict"] == "same-lineage" for pair in pairs)
    called = sum(pair["paper"]["verdict"] == "same-lineage" for pair in pairs)
    timed = json.loads((ROOT / "benchmarks" / "results" / "pretrain_vs_torch.json").read_text())
    ratios = {name: size["speedup_median"] for name, size in timed.items() if name != "provenance"}
    narrow = [ratios[name] for name in ("laptop", "tiny", "vocabulary")]
    assert max(size["largest_loss_difference"] for name, size in timed.items() if name in ratios) < 8e-4
    return [
        f"scores of own pairs ({_span((score['score'] for score in own), 3)}) lie far above those of pairs of two "
        f"seeds ({own[0]['null_mean']:.3f} with a standard deviation of {own[0]['null_std']:.3f})",
        f"calls {called} of {len(pairs)} pairs of different seeds one lineage, on tokens none",
        f"train {min(narrow):.1f} to {max(narrow):.1f} times as fast here; at 4 × 256 the two are about equal "
        f"({ratios['wide']:.2f}), and llama-nano is slower ({ratios['nano']:.2f})",
        *_pretraining_of_larger_models(),
    ]


def _pretraining_of_larger_models() -> list[str]:
    small, larger = (
        [f"{pair['permutation']['z']:.1f}" for pair in _result(name)["pairs"] if _is_own(pair)]
        for name in ("table4b", "table4b_256_2m")
    )
    own = _result("table8_256_2m")["own"]
    others = [name for name in ("intrinsic", "reef", "ics") if any(row[name]["same_at_0.8"] for row in own)]
    pairs = _result("table4c_256_2m")["pairs"]
    assert all(pair["progress"]["loss"] < pair["progress"]["bigram_loss"] for pair in pairs)
    assert not others and all(row["pcs"]["same_at_0.8"] for row in own)
    assert all(row["ics"]["z"] > 2_000 for row in own)
    assert all(pair["paper"]["verdict"] == "same-lineage" for pair in pairs)
    assert all((pair["paper_tokens"]["verdict"] == "same-lineage") == _is_own(pair) for pair in pairs)
    taus = {kind: _result("figure11_256_2m")["taus"][kind] for kind in ("tokens", "gaussian")}
    tokens, vectors = (f"{kind['own']['mean'][-1]:.3f} and {kind['other']['mean'][-1]:.3f}" for kind in taus.values())
    further = _result("table5_256_2m")["pairs"]
    right = {
        name: [(pair[name].get("verdict", pair[name].get("same_at_0.8")) in ("same-lineage", True)) == pair["related"]
               for pair in further]
        for name in ("permutation", "paper", "paper_tokens", "intrinsic", "reef", "pcs", "ics")
    }  # fmt: skip
    always = {name for name, pairs in right.items() if all(pairs)}
    assert always == {"permutation", "paper_tokens", "pcs", "ics"}
    assert right["paper"] == right["intrinsic"] == [True, False, True, False] and sum(right["reef"]) == 3
    narrow, wide = (_result(name)["pairs"] for name in ("trained_apart", "trained_apart_256_2m"))
    called = {
        test: [sum(pair[test]["verdict"] == "same-lineage" for pair in pairs) for pairs in (narrow, wide)]
        for test in ("paper", "paper_tokens", "permutation")
    }
    assert called["paper"][0] == called["paper_tokens"][0] == called["permutation"][0] == 0
    (exception,) = (pair["permutation"]["p"] for pair in wide if pair["permutation"]["verdict"] == "same-lineage")
    every, chance = len(narrow + wide), 1 - 0.99 ** len(narrow + wide)
    shared = {name: _result(name)["shared"] for name in ("trained_apart", "trained_apart_256_2m")}
    own, product = (
        {name: [np.mean([pair[key] for pair in pairs]) for pairs in kinds.values()] for name, kinds in shared.items()}
        for key in ("own", "correlation")
    )
    every_pair = [pair for kinds in shared.values() for pairs in kinds.values() for pair in pairs]
    # Outputs are as alike as the vector makes them: within four standard errors of as many independent numbers.
    for name, error in (("trained_apart", 1 / math.sqrt(1_000 * 96)), ("trained_apart_256_2m", 1 / math.sqrt(256_000))):
        for pairs in shared[name].values():
            assert all(abs(pair["correlation"] - pair["product"]) < 4 * error for pair in pairs)
    calls = [sum(pair[test]["verdict"] == "same-lineage" for pair in every_pair) for test in ("paper", "paper_without")]
    least = min(pair["permutation_without"]["p"] for pair in every_pair)
    largest = from_log10(2)(max(pair["paper"]["log10_p"] for pair in wide)).replace("\u202f", " ")
    return [
        f"training of seed 1000, and of the distractor, on {further[0]['tokens']:,} tokens",
        f"output has a correlation of {own['trained_apart_256_2m'][2]:.2f} with the same coordinate of the last "
        f"vector, and so two models' outputs one of {product['trained_apart_256_2m'][2]:.2f}",
        f"training leaves {own['trained_apart'][2]:.2f}, whose square is too small to be found, and untrained models "
        f"have {own['trained_apart'][0]:.2f}",
        f"Algorithm 1 calls {calls[1]} of {len(every_pair)} pairs one lineage, of which it called {calls[0]}, and the "
        f"permutation test has no p below {least:.3f}",
        f"on vectors calls all {called['paper'][1]} pairs one lineage (p at most {largest}), at 4 × 96 none",
        f"On tokens it calls {called['paper_tokens'][1]} of {len(wide)} pairs one lineage at 4 × 256",
        f"one of the {every} pairs one lineage, at p = {exception:.4f}: of {every} independent tests at 0.01 one or "
        f"more is so low with a chance of {chance:.0%}",
        f"by a z of {min(larger)} to {max(larger)}, where it is {min(small)} to {max(small)} in the models",
        f"({tokens} at the end on tokens, {vectors} on vectors)",
    ]


def _readme() -> list[str]:
    rows = [_result(f"table1_a_1024_{seed}", "paper")["groups"][0] for seed in (42, 43)]
    ratios = [row["records"][0]["preference"]["ratio_to_uniform"] for row in rows]
    cosines = [row["records"][0]["contraction"]["inter_cosine_final"] for row in rows]
    nano = _result("finding2_nano", "paper")["groups"][0]
    apart = _result("trained_apart_256_2m")["pairs"]
    inside = [
        nano["theory"]["inter_cosine_final_low"] <= row["contraction"]["inter_cosine_final"]
        <= nano["theory"]["inter_cosine_final_high"]
        for row in nano["records"]
    ]  # fmt: skip
    return [
        f"{ratios[0]:.0f} and {ratios[1]:.0f} times the count that the top one of equally likely tokens reaches",
        f"{min(cosines):.2f} and {max(cosines):.2f}; theory says {rows[0]['theory']['inter_cosine_final']:.2f}",
        f"{sum(inside)} of {len(inside)} |",
        f"calls [{sum(pair['paper']['verdict'] == 'same-lineage' for pair in apart)} of {len(apart)} pairs]",
        *_readme_on_lineage(),
        *_readme_on_sinks(),
    ]


def _readme_on_lineage() -> list[str]:
    births = _result("birth_in_weights")["rows"]
    least = [
        min(row["z"] for row in births if row["relation"] == "own birth" and row["test"] == test)
        for test in ("coordinates", "rotation")
    ]
    unrelated = [
        row["z"]
        for row in births
        if row["relation"] in ("another birth", "trained apart") and row["test"] in ("coordinates", "rotation")
    ]
    # Tests that state a p, whether published or this package's own, and whether each keeps its level.
    pairs = {promise["test"]: (promise["published"], promise["kept"]) for promise in _result("court")["promises"]}
    tests = {row["test"]: row["num_pairs"] for row in _tried_on()}
    published = [pairs[test][1] for test in tests if pairs[test][0]]
    own = [test for test in tests if not pairs[test][0]]
    assert all(pairs[test][1] for test in own)
    every = sum(_result("court")["num_pairs"].values())
    fewer = [tests[test] for test in own if tests[test] < every]
    assert len(fewer) == 1
    family = _result("weights_calibration")["family"]
    least_p = min(check["adjusted_p"] for check in family["checks"])
    last = _p_of_preference(finding7.SEEN)
    return [
        f"z of {int(least[0])} or more by coordinates and {least[1]:.0f} by neurons",
        f"at most {max(unrelated):.1f} between unrelated models",
        f"Of {len(published)} published lineage tests that state a p-value, {sum(published)} keep its level",
        f"so do all {len(own)} of this package, one on {fewer[0]} of the pairs ",
        f"(of {family['num_checks']} further checks of these none rejects, smallest corrected p = {least_p:.3f}, "
        f"or {_with_pair_left_out():.3f} with a pair that its code left out)",
        f"| {every} pairs; 6 |",
        f"(p = {last[0]:.2f}, {last[1]:.2f})",
    ]


def _p_of_preference(ids: str) -> list[float]:
    """Of the two runs on bytes, p that preferred tokens rank as high as other seeds' after the last step."""
    runs = _result("finding7")["runs"]
    return [10 ** finding7._entries(runs[name], ids)[-1]["rank"]["log10_p"] for name in ("bytes", "GPT-2, bytes")]


def _tried_on() -> list[dict]:
    """Of each test that states a p, on how many pairs it is defined."""
    record = results.committed("court", "laptop")
    names = [row["test"] for row in court._tried(record, False)]
    return [
        {"test": name, "num_pairs": sum(row["num_pairs"] - row["num_undefined"] for row in court._of(record, name))}
        for name in names
    ]


def _readme_on_sinks() -> list[str]:
    def left(name: str, mitigation: str, length: str) -> str:
        by_seed = _result(name)["cures"][mitigation]["by_seed"]
        return percent(0)(float(np.mean([seed["sink_rate"][length] for seed in by_seed])))

    amplified, attenuated = "positional amplification", "positional attenuation"
    assert left("table7", amplified, "64") == left("table7", attenuated, "64")
    record = results.committed("sink_interventions", "laptop")
    made = {claim.statement.split(" (")[0]: percent(0)(claim.measured) for claim in sink_interventions.claims(record)}
    position = "Heads for which position k is a sink: "
    larger = [left("sink_cures_larger", mitigation, "32") for mitigation in ("baseline", amplified, attenuated)]
    return [
        f"from {left('table7', 'baseline', '64')} of the heads to {left('table7', amplified, '64')} (T = 64)",
        f"from {larger[0]} to {larger[1]} by amplification, to {larger[2]} by attenuation (T = 32)",
        f"makes {made[position + 'variance of o_k amplified in block 3, λ = 10']} of the heads attend to it, "
        f"scaling alone {made[position + 'control, o_k scaled by λ in block 3']};",
    ]


def _seedprint() -> list[str]:
    result = _result("calibration")
    strongest = max(power["drift"] for case in result["cases"] for power in case["power"] or ())

    def power_of(inputs: str, test: str) -> str:
        cases = [case for case in result["cases"] if (case["inputs"], case["test"]) == (inputs, test)]
        rates = [power["rates"][0]["rate"] for case in cases for power in case["power"] if power["drift"] == strongest]
        return percent(0)(float(np.mean(rates)))

    pooled = {(row["inputs"], row["test"]): row for row in result["pooled"]}
    papers = [pooled["tokens", f"paper {test}"] for test in "Ut"]
    assert not any(row["rates"][0]["rate"] for row in papers)
    found = [power_of("tokens", f"paper {test}") for test in "Ut"]
    return [
        f"rejects 0 of {papers[0]['num_pairs']:,} unrelated pairs at 0.01, and finds {found[0].rstrip('%')} to "
        f"{found[1]} of the descendants where the permutation test finds {power_of('tokens', 'permutation')}",
        f"stays calibrated but has {power_of('gaussian', 'population')} power",
        *_untrained_pairs(),
    ]


def _untrained_pairs() -> list[str]:
    """Algorithm 1 on untrained models of the paper's size, p as printed, and the hours of a pair at its length."""
    groups = [
        results.committed(path.stem, "paper")["result"]["groups"][0]
        for path in (ROOT / "experiments/results/paper").glob("table4a_*_*.json")
    ]
    p_values = [pair["tests"]["gaussian"]["paper"]["p_t"] for group in groups for pair in group["pairs"]]
    assert len(p_values) == 16
    tables = (trained_pairs.OTHER_LLAMA, trained_pairs.OTHER_QWEN, table4a.PRINTED)
    printed = [p for table in tables for p, _ in table.values()]
    short, (long,) = (
        runner.load(name).settings["paper"]["groups"]
        for name in ("table4a_llama_16", "table4a_llama_1024_42_2000_n2000")
    )
    seconds = results.committed("table4a_llama_16", "paper")["provenance"]["wall_time_s"]
    assert round(seconds * table4a.operations(long) / table4a.operations(short[0]) / 3600) == 3
    return [
        f"the t-test's p is {p_value(2)(min(p_values))} to {p_value(2)(max(p_values))}".replace("\u202f", " "),
        f"{sum(p < 0.5 for p in printed)} of the {len(printed)} t-test values lie below 0.5",
        f"gives {1e4 * stats.kstest(printed, 'uniform').pvalue:.0f} × 10⁻⁴",
        "takes about three hours on two cores with 2,000 inputs",
    ]


EMBEDDING, BLOCKS, HEAD = (f"another's {part}" for part in ("embedding", "blocks", "head"))


def _gaps() -> list[str]:
    """Fractions of the preference's gap at initialization that are left under another seed's parts."""
    runs = _result("finding7")["runs"]
    left = {
        name: [
            {part: base[0]["rank"]["gap"] / ids["bases"]["own initialization"][0]["rank"]["gap"]
             for part, base in ids["bases"].items()}
            for ids in run["vocabularies"].values()
        ]
        for name, run in runs.items()
    }  # fmt: skip
    llama, gpt2 = left["bytes"], left["GPT-2, bytes"]
    blocks = [gaps[BLOCKS] for gaps in llama]
    return [
        f"another seed's blocks leave {percent(0)(min(blocks))} to {percent(0)(max(blocks))} of the gap, another's "
        f"embedding or head at most {percent(0)(max(max(gaps[EMBEDDING], gaps[HEAD]) for gaps in llama))}",
        "another's table or blocks leave at most "
        f"{percent(0)(max(max(gaps[EMBEDDING], gaps[BLOCKS]) for gaps in gpt2))}",
    ]


def _survival() -> list[str]:
    seen, unseen = map(_p_of_preference, (finding7.SEEN, finding7.UNSEEN))
    held = {}
    for name in ("decay", "decay_of_run"):
        for claim in decay.claims(results.committed(name, "laptop")):
            held[claim.statement.replace("matrices of 30 whose last decade ", "")] = claim.measured
    assert not held["bpe-4096: the form predicts, by tokens"] and not held["bytes: the form predicts, by tokens"]
    missed = [30 - held[f"{name}: the form predicts, by summed learning rate"] for name in ("bpe-4096", "bytes")]
    least = min(value for statement, value in held.items() if ": least z" in statement)
    hybrids = [run for name in ("anatomy", "anatomy_of_run") for run in _result(name)["runs"].values()]
    z_RS = [{what: np.array(z) for what, z in run["z"]["uniform ids"].items()} for run in hybrids]
    left = [z["another's blocks"][:, -1].mean() / z["own birth"][:, -1].mean() for z in z_RS]
    return [
        f"(z of {max(z[EMBEDDING].max() for z in z_RS):.1f} at most on uniform ids)",
        f"({percent(0)(min(left))} to {percent(0)(max(left))} of that z after training)",
        *_gaps(),
        f"are ranked alike (p = {seen[0]:.2f} and {seen[1]:.2f})",
        f"none of it either (p = {unseen[0]:.2f} and {unseen[1]:.2f})",
        f"far above chance at the end (z of {int(least)} or more)",
        f"of {missed[0]} and {missed[1]} of them when it is counted in summed learning rate",
        f"it holds for {held['BPE: the form predicts, by tokens']:.0f} of 30, and carrying the last value forward for "
        f"{held['BPE: no change would predict']:.0f}",
    ]


def _initializations() -> list[str]:
    result = _result("sink_schemes")
    lower = [name for name, (_, p) in sink_growth._score_differences(result).items() if p <= sink_growth.LEVEL]
    assert lower == ["neox", "olmo-mitchell"]
    rates = {name: [seed["sink_rate"]["64"] for seed in run["by_seed"]] for name, run in result["variants"].items()}
    assert not any(np.any(rates[name]) for name in lower)
    reference = rates.pop(sink_growth.SCHEMES[0])
    assert min(np.mean(reference), np.mean(rates["normal-0.02"])) > 1 / 3
    seeds = [*reference, *rates["normal-0.02"]]
    least = min(holm(np.array([stats.ttest_rel(each, reference).pvalue for each in rates.values()])))
    return [
        f"the mean of five seeds from {percent(0)(min(seeds))} to {percent(0)(max(seeds))}",
        f"GPT-2's in no scheme (smallest p {p_value(2)(least)})",
    ]


def _lineage() -> list[str]:
    pooled = [
        row for row in _result("calibration")["pooled"] if row["inputs"] == "gaussian" and row["test"] != "population"
    ]
    published = [row for row in pooled if row["test"].startswith(("paper", "iclr"))]
    (num_pairs,) = {row["num_pairs"] for row in published}
    assert all(row["rates"][0]["rate"] == 1 for row in published)
    result = _result("court")
    scores = {"HuRef (PCS)", "HuRef (ICS)", "Intrinsic", "REEF"}
    exceeded = {
        row["test"] for row in result["tests"] if row["test"] in scores and max(r["rate"] for r in row["rates"]) > 0.05
    }
    assert (len(exceeded), len(scores)) == (3, 4)
    descendants = _result("descendants")
    exact = {row["test"] for row in descendants["tests"] if row["by_p"] and not row["published"]}
    taken = max(row["teachers"]["rate"] or 0 for row in descendants["cells"] if row["test"] in exact)
    called = {
        name: {test: [pair[test]["verdict"] for pair in _result(name)["pairs"]].count("same-lineage")
               for test in ("paper", "iclr")}
        for name in ("trained_apart", "trained_apart_256_2m")
    }  # fmt: skip
    assert called["trained_apart"] == {"paper": 0, "iclr": 0}
    (all_called,) = set(called["trained_apart_256_2m"].values())
    return [
        f"and so it did {all_called} of {len(_result('trained_apart_256_2m')['pairs'])} pairs of models trained",
        f"On {num_pairs:,} pairs of untrained models of different seeds",
        f"takes {round(taken * descendants['num_families'])} of {descendants['num_families']} students",
    ]


def _sinks() -> list[str]:
    result = _result("sink_knockout")
    silenced = {row["what"]: row["sink_rate"] for row in result["rows"] if row["kind"] == "silenced"}
    single = [silenced[name] for name in result["named"]]
    (as_it_is,) = (row["sink_rate"] for row in result["rows"] if (row["kind"], row["position"]) == ("as it is", 1))
    assert len(result["named"]) == 6
    assert len(_result("sink_knockout_given")["named"]) == 3
    return [
        f"{percent(1)(as_it_is)} of the heads are sinks. Six super neurons",
        f"{percent(1)(min(single))} to {percent(1)(max(single))} of the heads are still sinks",
        f"without both, {percent(0)(min(silenced.values()))} of the heads are sinks",
        "none of the three super neurons",
    ]


def _schemes_guide() -> list[str]:
    unseen = results.committed("unseen_schemes", "laptop")
    balanced = [
        group["theory"]["inter_cosine_by_layer"][-1] / np.mean(probing.cosines(group))
        for (scheme, _), group in zip(unseen["settings"]["cells"], unseen["result"]["groups"], strict=False)
        if scheme == "kaiming-balanced"
    ]
    return [f"is predicted {_span(balanced, 1)} times too high"]


def _knockout(name: str) -> dict[tuple[str, str, int], float]:
    return {(row["kind"], row["what"], row["position"]): row["sink_rate"] for row in _result(name)["rows"]}


def _sinks_measured() -> list[str]:
    rows = _knockout("sink_knockout")
    first, second = (f"blocks/12/mlp:{neuron}" for neuron in (1229, 1487))
    singles = [percent(1)(rows["silenced", what, 1]) for what in (first, second)]
    others = [rate for (kind, _, _), rate in rows.items() if kind == "another first token"]
    (elsewhere,) = (rate for (kind, _, k), rate in rows.items() if kind == "written elsewhere" and k != 1)
    sweep = _result("sink_sweep")
    made = np.array(sweep["kinds"]["variance amplification"]["made"], float) - np.array(sweep["plain"], float)
    # The last row is of all blocks at once.
    assert (made[2] >= 0.1).all()
    assert np.argwhere(np.delete(made[:-1], 2, axis=0) >= 0.1).tolist() == [[9, 0], [10, 0]]
    return [
        f"without one of the two {' and '.join(singles)} are (single blocks change more), without both "
        f"{percent(1)(rows['silenced', f'{first} + {second}', 1])}",
        f"another first token {_span((100 * rate for rate in others), 0).replace(' to', '% to')}% of the heads",
        f"another position in only {percent(1)(elsewhere)} of the heads",
        f"blocks 11 and 12 add {percent(0)(made[10, 0])} and {percent(0)(made[11, 0])} of the later heads",
    ]


def _real_models() -> list[str]:
    small, larger = (_result(name) for name in ("real_models", "real_models_given"))
    (first_8, _), (first_6, _), (first_given, cost_given) = (
        _first_of(result, scheme) for result, scheme in ((small, "a8"), (small, "a6"), (larger, "a6"))
    )
    *bounded, whole = [row["loss"] for row in small["streaming"]]
    losses = [f"{loss - whole:.2f}" for loss in bounded]
    rows = _knockout("sink_knockout_given")
    silenced = [rate for (kind, _, _), rate in rows.items() if kind == "silenced"]
    elsewhere = {k: rate for (kind, _, k), rate in rows.items() if kind == "written elsewhere"}
    return [
        f"causes {percent(0)(first_8)} of the cost at 8 bits and {percent(0)(first_6)} at 6",
        f"loses {losses[0]} nats to the whole text; with one token kept it loses {losses[1]}, with four {losses[2]}",
        f"causes {percent(0)(first_given)} of the cost at 6 bits ({first_given * cost_given:.2f} of {cost_given:.2f}",
        f"{_span((100 * rate for rate in silenced), 1).replace(' to', '% to')}% of the heads are sinks",
        f"in {percent(1)(elsewhere.pop(8))} of the heads; but the first position stays one in "
        f"{percent(1)(elsewhere.pop(1))}",
    ]


def _first_of(result, scheme: str) -> tuple[float, float]:
    """The fraction of the cost of rounding with one scale for a sequence that the first token causes, and the cost."""
    rows = [row for row in result["rounding"] if row["scheme"] == scheme and row["granularity"] == "tensor"]
    cost, kept = (next(row["delta_nats"] for row in rows if row["keep_sinks"] == count) for count in (0, 1))
    return (cost - kept) / cost, cost


QUOTED: dict[str, Callable[[], list[str]]] = {
    "README.md": _readme,
    "docs/comparison.md": _comparison,
    "docs/initializations.md": _schemes_guide,
    "docs/lineage.md": _lineage,
    "docs/sinks.md": _sinks,
    "docs/results/claims.md": _claims,
    "docs/results/disputes.md": _disputes,
    "docs/results/initializations.md": _initializations,
    "docs/results/measurements.md": _measurements,
    "docs/results/mitigations.md": _mitigations,
    "docs/results/pretraining.md": _pretraining,
    "docs/results/real_models.md": _real_models,
    "docs/results/seedprint.md": _seedprint,
    "docs/results/sinks.md": _sinks_measured,
    "docs/results/survival.md": _survival,
    "docs/results/theory.md": _theory,
    "docs/results/weight_tests.md": _weight_tests,
    "theory/ERRATA.md": _errata,
}
"""Page -> phrases that it must hold, their numbers computed from the records."""


@pytest.mark.parametrize("page", QUOTED)
def test_a_page_quotes_its_records(page):
    text = re.sub(r"<!--.*?-->", "", (ROOT / page).read_text())
    absent = [phrase for phrase in QUOTED[page]() if phrase not in " ".join(text.split())]
    assert not absent, f"{page} does not say, as its records do: {absent}"
