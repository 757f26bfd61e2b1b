"""README's numbers are those of the committed records."""

import numpy as np

from bornbiased_jax.experiments import results
from bornbiased_jax.experiments.lineage import court
from bornbiased_jax.experiments.sinks import sink_interventions
from bornbiased_jax.experiments.survival import finding7
from bornbiased_jax.report.numbers import percent
from tests.docs.quoted.records import assert_quoted, p_of_preference, result_of, with_pair_left_out


def _readme() -> list[str]:
    rows = [result_of(f"table1_a_1024_{seed}", "paper")["groups"][0] for seed in (42, 43)]
    ratios = [row["records"][0]["preference"]["ratio_to_uniform"] for row in rows]
    cosines = [row["records"][0]["contraction"]["inter_cosine_final"] for row in rows]
    nano = result_of("finding2_nano", "paper")["groups"][0]
    apart = result_of("trained_apart_256_2m")["pairs"]
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
    births = result_of("birth_in_weights")["rows"]
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
    pairs = {promise["test"]: (promise["published"], promise["kept"]) for promise in result_of("court")["promises"]}
    tests = {row["test"]: row["num_pairs"] for row in _tried_on()}
    published = [pairs[test][1] for test in tests if pairs[test][0]]
    own = [test for test in tests if not pairs[test][0]]
    assert all(pairs[test][1] for test in own)
    every = sum(result_of("court")["num_pairs"].values())
    fewer = sorted(tests[test] for test in own if tests[test] < every)
    assert len(fewer) == 2
    family = result_of("weights_calibration")["family"]
    least_p = min(check["adjusted_p"] for check in family["checks"])
    last = p_of_preference(finding7.SEEN)
    return [
        f"z of {int(least[0])} or more by coordinates and {least[1]:.0f} by neurons",
        f"at most {max(unrelated):.1f} between unrelated models",
        f"Of {len(published)} published lineage tests that state a p-value, {sum(published)} keep its level on "
        f"unrelated models, as far as {_models_of_court()} of them show: false positives",
        f"so do all {len(own)} of this package, one on {fewer[0]} of the pairs and one on {fewer[1]} ",
        f"(of {family['num_checks']} further checks of these none rejects, smallest corrected p = {least_p:.3f}, "
        f"or {with_pair_left_out():.3f} with a pair that its code left out)",
        f"| {every} pairs; 6 |",
        f"(p = {last[0]:.2f}, {last[1]:.2f})",
    ]


def _models_of_court() -> int:
    """Trained models, and as many initializations."""
    settings = results.committed("court", "laptop")["settings"]
    return 2 * 2 * settings["seeds_an_order"] * len(settings["widths"]) * len(settings["corpora"])


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
        by_seed = result_of(name)["cures"][mitigation]["by_seed"]
        return percent(0)(float(np.mean([seed["sink_rate"][length] for seed in by_seed])))

    amplified, attenuated = "positional amplification", "positional attenuation"
    assert left("sink_cures", amplified, "64") == left("sink_cures", attenuated, "64")
    baseline = [seed["sink_rate"]["64"] for seed in result_of("sink_cures")["cures"]["baseline"]["by_seed"]]
    record = results.committed("sink_interventions", "laptop")
    made = {claim.statement.split(" (")[0]: percent(0)(claim.measured) for claim in sink_interventions.claims(record)}
    position = "Heads for which position k is a sink: "
    larger = [left("sink_cures_larger", mitigation, "32") for mitigation in ("baseline", amplified, attenuated)]
    return [
        f"from {left('sink_cures', 'baseline', '64')} of the heads ({percent(0)(min(baseline))} to "
        f"{percent(0)(max(baseline))} by seed) to {left('sink_cures', amplified, '64')} (T = 64)",
        f"from {larger[0]} to {larger[1]} by amplification, to {larger[2]} by attenuation (T = 32)",
        f"makes {made[position + 'variance of o_k amplified in block 3, λ = 10']} of the heads attend to it, "
        f"scaling alone {made[position + 'control, o_k scaled by λ in block 3']};",
    ]


def test_readme_page_quotes_its_records():
    assert_quoted("README.md", _readme())
