"""Pages on lineage tests quote the committed records."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.experiments import SELECTIONS, results
from bornbiased_jax.experiments.lineage import table4a
from bornbiased_jax.experiments.lineage.token_space import EXPECTED
from bornbiased_jax.experiments.survival import trained_pairs
from bornbiased_jax.lineage import matching
from bornbiased_jax.report.numbers import fixed, p_value, percent
from tests.docs.quoted.records import COUNTS, ROOT, assert_quoted, result_of, span, with_pair_left_out


def _of_court(test: str, *kinds: str):
    return [row for row in result_of("court")["tests"] if row["test"] == test and row["kind"].startswith(kinds)]


def _scores_of_untrained(method: str) -> list[float]:
    """Scores of all pairs of the paper's untrained models: those of its seeds, and those of their null."""
    groups = [result_of(f"table4a_{family}_16", "paper")["groups"][0] for family in ("llama", "qwen")]
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
    related, unrelated = called["weightscope (unchanged entries)"]
    assert unrelated == 0
    disputes = result_of("disputes")
    (kit_weights,) = (test["auc"]["rate"] for test in record["tests"] if test["test"].endswith("weights alone"))
    assert kit_weights == 1 > max(test["auc"]["rate"] for test in disputes["tests"])
    (settings,) = (test for test in disputes["tests"] if test["test"] == "equal fields of the configuration")
    assert settings["power"] == 0
    num_guilty, num_innocent = disputes["num_pairs"]["guilty"], disputes["num_pairs"]["innocent"]
    num_kinds = COUNTS[len(settings["kinds"])]
    return [
        f"on {num_kinds} kinds of dispute they find none",
        f"On the {num_guilty + num_innocent:,} pairs of {num_kinds} kinds of dispute (models 2 × 64) that score ranks",
        f"calls {called['Provenance Kit'][1]} of {num_innocent:,} unrelated pairs a match",
        f"called none of those unrelated pairs related, and {related} of the {num_guilty} related ones",
        f"no pair of untrained models does ({span(_scores_of_untrained('reef'), 2)},",
        f"PCS is {span((pcs['least'], pcs['largest']), 2)} for untrained",
        f"and {span(_scores_of_untrained('pcs'), 2)} at 768",
    ]


def _weight_tests() -> list[str]:
    (t,), (u,) = (_of_court(f"Algorithm 1, {test}, vectors", "a birth") for test in "tU")
    trained = _of_court("Algorithm 1, t, vectors", "trained")
    assert not any(kind["rates"][0]["rate"] for kind in trained)
    called = [pair["paper"]["verdict"] for pair in result_of("trained_apart_256_2m")["pairs"]].count("same-lineage")
    rates = [percent(0)(kind["rates"][0]["rate"]) for kind in (t, u)]
    return [
        f"(PCS {span(_scores_of_untrained('pcs'), 2)}, REEF {span(_scores_of_untrained('reef'), 2)},",
        f"({rates[0]} by the t-test, {rates[1]} by the U-test); of {sum(kind['num_pairs'] for kind in trained)} pairs "
        f"of two models trained apart it calls none, but all [{called} pairs at width 256]",
        *_level_of_token_neurons(),
        *_tails_of_court(),
        *_evasions(),
    ]


def _level_of_token_neurons() -> list[str]:
    """Counts of pairs on which neurons in token space reject: of four architectures, and on other seeds."""
    untied, *others = [
        case for case in result_of("weights_calibration")["cases"] if case["test"].startswith("rotation")
    ]
    assert len(others) == 3
    defined = [case["num_pairs"] - case["num_undefined"] for case in (untied, *others)]
    first, last = (result_of(f"token_neurons_{name}")["summary"] for name in ("level", "further"))
    further = first["rates"][1]
    return [
        f"p < 0.01 in {untied['rates'][0]['count']} of {defined[0]:,} pairs where 50 are expected",
        f"({untied['rates'][0]['count'] + 1} of {untied['num_pairs']:,} pairs, {with_pair_left_out():.3f})",
        f"in {sum(case['rates'][0]['count'] for case in others)} of {sum(defined[1:]):,}, where 150 are expected",
        f"{further['count']} pairs below 0.05 where 500 are expected",
        f"of the {defined[0]:,} pairs before, {untied['rates'][1]['count']} where 250 are",
        f"Together {_pooled_at_five_percent(untied, first, words='have one')} by itself",
        f"have p below 0.05 in {_pooled_at_five_percent(untied, first, last, words='pairs')} by itself",
        f"a rate of {percent(2)(further['high'])} at 5%",
    ]


def _pooled_at_five_percent(*summaries, words: str) -> str:
    """Records of untied models together, below the level at which the first two have an excess."""
    count = sum(summary["rates"][1]["count"] for summary in summaries)
    total = sum(summary["num_pairs"] - summary["num_undefined"] for summary in summaries)
    # With 2,000 permutations the 100 smallest of 2,001 numbers lie below 0.05.
    p = stats.binomtest(count, total, 100 / 2_001).pvalue
    return f"{count:,} of {total:,} {words} ({percent(2)(count / total)}), for which p is {p_value(2)(p)}"


def _tails_of_court() -> list[str]:
    """The smallest p of two published tests, and the chance that one of as many independent ones is so small."""
    least = {test: min(row["least"] for row in _of_court(test, "")) for test in ("φ_U", "φ_MATCH")}
    count = sum(row["num_pairs"] for row in _of_court("φ_U", ""))
    chance = -math.expm1(count * math.log1p(-least["φ_U"]))
    return [
        f"of φ_U one of {count} p is {p_value(2)(least['φ_U'])}, which one of as many independent ones is with a "
        f"chance of {percent(1)(chance)}, and of φ_MATCH one is {p_value(2)(least['φ_MATCH'])}.".replace("\u202f", " ")
    ]


def _evasions() -> list[str]:
    rows = result_of("evasions")["rows"]
    head, none = (
        min(row["tests"]["rotation, form A"]["z"] for row in rows if row["change"] == change)
        for change in ("a vector added to every head column", "none")
    )
    agreement = [row["agreement"] for row in rows if row["change"].startswith("all but the roll")]
    assert len(agreement) == 4
    replaced = result_of("evasions")["replaced"]
    public, keyed = (
        [row["verdicts"][key]["verdict"] for row in replaced] for key in ("public signs", "a key drawn afterwards")
    )
    assert sorted(public) == ["same-lineage", *["undefined"] * 3] and keyed == ["same-lineage"] * 4
    cost = np.mean([row["loss_replaced"] - row["loss"] for row in replaced])
    return [
        f"that costs more than a nat: {cost:.2f}.",
        f"falls from {none:.0f} to {head:.0f}",
        f"{percent(0)(min(agreement))} of the units, where a verdict asks for "
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
    turned = np.concatenate([*result_of("evidence_sheet")["statistics"]["mdir_trace"].values()])
    spectra = [row for row in result_of("disputes")["tests"] if row["test"].startswith(("GhostSpec", "SELF"))]
    power = " and ".join(percent(0)(row["power"]) for row in spectra)
    found = [sum(kind["power"] >= 0.9 for kind in row["kinds"]) for row in spectra]
    return [
        f"between {fixed(1)(turned.min())} and {fixed(1)(turned.max())} for these unrelated models",
        f"they find {power} of the related pairs [above](#scores), {found[0]} and {found[1]} of {len(kit)} kinds",
        f"those of three kinds, {sum(guilty for guilty, _ in weightscope.values())} of {10 * len(weightscope)}:",
        "it misses nine of ten suspects that hold 30% of the base, and all that inherited only the tower",
        f"{percent(0)(innocent)} of the innocent pairs are a “Confirmed Match”",
        *_power(),
        *_token_space(),
    ]


def _token_space() -> list[str]:
    """How far z lies from what was expected after every change, and the largest z of other bases."""
    rows = result_of("token_space")["changes"]
    ratios = {row["change"]: row["z"] / EXPECTED[row["change"]] for row in rows if row["change"] in EXPECTED}
    merged = ratios.pop("half merged with another model")
    assert {row["verdict"] for row in rows} == {"same-lineage"} and len(rows) == 14
    largest = max(z for row in rows for z in row["z_unrelated"])
    return [
        f"Measured: {span(ratios.values(), 2)} of what was expected, and {merged:.2f} of it for the merge; all",
        f"has a z above {largest:.1f}",
    ]


def _power() -> list[str]:
    """How far z of neurons in token space lies from the formula: soon after the initialization, and later."""
    early, early_quarter, wide, narrow = [], [], [], []
    for row in result_of("power")["z"]:
        ratio = np.mean(row["z"]["neurons in token space"]) / np.mean(row["formula"])
        if row["step"] == 10:
            (early if row["neurons"] == 4 * row["width"] else early_quarter).append(abs(ratio - 1))
        else:
            (narrow if row["width"] == 16 else wide).append(ratio)
    return [
        f"within {math.ceil(100 * max(early))}%, or {math.ceil(100 * max(early_quarter))}% where a quarter",
        f"{span(wide, 2)} of it at widths 32 and 64, and {span(narrow, 2)} of it at width 16",
    ]


def _lineage() -> list[str]:
    pooled = [
        row for row in result_of("calibration")["pooled"] if row["inputs"] == "gaussian" and row["test"] != "population"
    ]
    published = [row for row in pooled if row["test"].startswith(("paper", "iclr"))]
    (num_pairs,) = {row["num_pairs"] for row in published}
    assert all(row["rates"][0]["rate"] == 1 for row in published)
    result = result_of("court")
    scores = {"HuRef (PCS)", "HuRef (ICS)", "Intrinsic", "REEF"}
    exceeded = {
        row["test"] for row in result["tests"] if row["test"] in scores and max(r["rate"] for r in row["rates"]) > 0.05
    }
    descendants = result_of("descendants")
    exact = {row["test"] for row in descendants["tests"] if row["by_p"] and not row["published"]}
    taken = max(row["teachers"]["rate"] or 0 for row in descendants["cells"] if row["test"] in exact)
    called = {
        name: {test: [pair[test]["verdict"] for pair in result_of(name)["pairs"]].count("same-lineage")
               for test in ("paper", "iclr")}
        for name in ("trained_apart", "trained_apart_256_2m")
    }  # fmt: skip
    assert called["trained_apart"] == {"paper": 0, "iclr": 0}
    narrow, wide = (list(result_of(name)["shared"].values()) for name in ("trained_apart", "trained_apart_256_2m"))
    without = [
        [pair["paper_without"]["verdict"] == "same-lineage" for pairs in kinds for pair in pairs]
        for kinds in (narrow[:4] + wide[:4], narrow[4:5])
    ]
    assert not any(without[1])
    (all_called,) = set(called["trained_apart_256_2m"].values())
    return [
        f"Algorithm 1 calls {sum(without[0])} of {len(without[0])} unrelated pairs one lineage there",
        f"and so it did {all_called} of {len(result_of('trained_apart_256_2m')['pairs'])} pairs of models trained",
        "(4 layers, 256 wide; at 96 neither called any,",
        f"{COUNTS[len(exceeded)]} of {COUNTS[len(scores)]} published scores exceed their own threshold on more than 5%",
        f"On {num_pairs:,} pairs of untrained models of different seeds",
        f"takes {round(taken * descendants['num_families'])} of {descendants['num_families']} students",
    ]


def _descendants() -> list[str]:
    """What sketches of the default size find less often, and coordinates up to sign."""
    result = result_of("descendants")
    small = {(row["change"], row["test"]): row["found"]["rate"] for row in result["small"]}
    large = {(row["change"], row["test"]): row["found"]["rate"] for row in result["cells"]}
    exact = {row["test"] for row in result["tests"] if row["by_p"] and not row["published"]}
    lost = [
        cell
        for cell, rate in small.items()
        if cell[1] in exact and rate is not None and rate < 0.9 and large[cell] >= 0.9
    ]
    token = "weights, rotation, form A"
    assert set(lost) == {("noise 2", token), ("merge 0.75", token)}
    merged = [large[change, "weights, coordinates"] for change in ("merge 0.75", "slerp 0.75")]
    assert all(large[change, "weights, coordinates signed"] == 1 for change in ("merge 0.75", "slerp 0.75"))
    return [
        f"(16 find {percent(0)(small['noise 2', token])}) and",
        f"three quarters another model ({percent(0)(small['merge 0.75', token])})",
        f"find {percent(0)(merged[0])} of the merges that are three quarters another model, and "
        f"{percent(0)(merged[1])} of such",
    ]


def _seedprint() -> list[str]:
    result = result_of("calibration")
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
    """Algorithm 1 on untrained models of the paper's size, by length with fewer inputs, and p as printed."""
    tables = (trained_pairs.OTHER_LLAMA, trained_pairs.OTHER_QWEN, table4a.PRINTED)
    printed = [p for table in tables for p, _ in table.values()]
    names = [name for name in SELECTIONS["table4a_sizes"] if results.committed(name, "paper") is not None]
    p_values = [p for name in names for p in _t_tests(name)]
    assert len(p_values) == 16
    by_length = [p_value(2)(p) for name in SELECTIONS["table4a_lengths"] for p in _t_tests(name)]
    return [
        f"the t-test's p is {p_value(2)(min(p_values))} to {p_value(2)(max(p_values))}".replace("\u202f", " "),
        f"{sum(p < 0.5 for p in printed)} of the {len(printed)} t-test values lie below 0.5",
        f"gives {1e4 * stats.kstest(printed, 'uniform').pvalue:.0f} × 10⁻⁴",
        "p on vectors is {}, {} and {} at T = 16, 64 and 1,024".format(*by_length).replace("\u202f", " "),
        f"where {table4a.PRINTED['llama', 42, 2000][0]} is printed",
    ]


def _t_tests(name: str) -> list[float]:
    pairs = result_of(name, "paper")["groups"][0]["pairs"]
    return [pair["tests"]["gaussian"]["paper"]["p_t"] for pair in pairs]


@pytest.mark.parametrize(
    "page, phrases",
    [
        ("docs/comparison.md", _comparison),
        ("docs/lineage.md", _lineage),
        ("docs/results/descendants.md", _descendants),
        ("docs/results/disputes.md", _disputes),
        ("docs/results/seedprint.md", _seedprint),
        ("docs/results/weight_tests.md", _weight_tests),
    ],
)
def test_pages_quote_their_records(page, phrases):
    assert_quoted(page, phrases())
