"""Pages on attention sinks quote the committed records."""

import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.experiments import results
from bornbiased_jax.experiments.sinks import price_tables, sink_cures, sink_growth
from bornbiased_jax.report.numbers import fixed, p_value, percent
from bornbiased_jax.stats.multiple import holm
from tests.docs.quoted.records import assert_quoted, perplexities, result_of, span


def _first_tokens_part(name: str, schemes: tuple[str, ...]):
    """Mean and half of its interval of D_sink, of every attention and granularity."""
    return [
        price_tables.over_seeds(price_tables.cells(run, "d_sink", scheme=scheme, granularity=granularity, keep_sinks=1))
        for run in result_of(name)["cures"].values()
        for scheme in schemes
        for granularity in ("tensor", "token")
    ]


def _mean(run, quantity: str, scheme: str, granularity: str, keep_sinks: int) -> float:
    options = {"scheme": scheme, "granularity": granularity, "keep_sinks": keep_sinks}
    return price_tables.over_seeds(price_tables.cells(run, quantity, **options))[0]


def _rounding() -> list[str]:
    """What rounding costs at both sizes, and what of it the first token causes."""
    small, larger = (result_of(name)["cures"] for name in ("sink_cures", "sink_cures_larger"))
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
    fifths = {2: "two fifths"}[round(5 * first["baseline"] / baseline)]
    return [
        f"Eight bits cost at most {max(costs):.4f} nats, whatever the attention",
        f"by a factor of {min(ratios):.1f} or more",
        f"it causes {fifths} of the baseline's cost at six bits. With a scale for each token it causes at most "
        f"{max(by_token):.4f} nats in any attention",
        f"costs {span((first[name] for name in free), 2)} nats at six bits, in the baseline {first['baseline']:.2f}",
        f"at most {max(first[name] for name in low):.3f}",
    ]


def _costs(name: str) -> tuple[str, str]:
    record = results.committed(name, "laptop")
    costs = [
        sink_cures._cost(record, mitigation) for mitigation in record["result"]["cures"] if mitigation != "baseline"
    ]
    return tuple(span(numbers, 2) for numbers in np.transpose(costs))


def _mitigations() -> list[str]:
    parts = _first_tokens_part("sink_cures", ("w8a8", "kv8"))
    excluding = sum(abs(mean) > half for mean, half in parts)
    searched = [seed["seed"] for seed in result_of("figure12")["cures"]["baseline"]["by_seed"]]
    assert searched == results.committed("sink_search", "laptop")["settings"]["seeds"]
    further = [
        percent(0)(seed["sink_rate"]["64"])
        for seed in result_of("sink_cures")["cures"]["baseline"]["by_seed"]
        if seed["seed"] not in searched
    ]
    on_smollm2 = [percent(0)(_first_of(result_of("real_models"), scheme)[0]) for scheme in ("a8", "a6")]
    (larger, larger_std), (small, small_std) = map(_costs, ("sink_cures_larger", "sink_cures"))
    amplified, attenuated, baseline = (fixed(1)(each) for each in perplexities("table7_256_2m", "WikiText-2"))
    return [
        f"({attenuated} on the test text of WikiText-2, where the baseline has {baseline}), amplification doubles the "
        f"perplexity ({amplified})",
        f"of one has sinks in {further[0]} of the heads, that of the other in {further[1]}.",
        f"(D_sink) is at most {max(abs(mean) for mean, _ in parts):.4f} nats at eight bits",
        f"of {len(parts)} intervals, each at 95%, {excluding} exclude zero",
        f"on SmolLM2 it is {on_smollm2[0]} of the cost at eight bits and {on_smollm2[1]} at six",
        *_rounding(),
        f"is {larger} of the baseline's at 2 × 128, and {small} of it at 2 × 32",
        f"standard deviations of {larger_std}, and of {small_std}",
    ]


def _initializations() -> list[str]:
    result = result_of("sink_schemes")
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


def _knockout(name: str) -> dict[tuple[str, str, int], float]:
    return {(row["kind"], row["what"], row["position"]): row["sink_rate"] for row in result_of(name)["rows"]}


def _sinks() -> list[str]:
    result = result_of("sink_knockout")
    silenced = {row["what"]: row["sink_rate"] for row in result["rows"] if row["kind"] == "silenced"}
    single = [silenced[name] for name in result["named"]]
    (as_it_is,) = (row["sink_rate"] for row in result["rows"] if (row["kind"], row["position"]) == ("as it is", 1))
    assert len(result["named"]) == 6
    assert len(result_of("sink_knockout_given")["named"]) == 3
    return [
        f"{percent(1)(as_it_is)} of the heads are sinks. Six super neurons",
        f"{percent(1)(min(single))} to {percent(1)(max(single))} of the heads are still sinks",
        f"without both, {percent(0)(min(silenced.values()))} of the heads are sinks",
        "none of the three super neurons",
    ]


def _sinks_measured() -> list[str]:
    rows = _knockout("sink_knockout")
    first, second = (f"blocks/12/mlp:{neuron}" for neuron in (1229, 1487))
    singles = [percent(1)(rows["silenced", what, 1]) for what in (first, second)]
    others = [rate for (kind, _, _), rate in rows.items() if kind == "another first token"]
    (elsewhere,) = (rate for (kind, _, k), rate in rows.items() if kind == "written elsewhere" and k != 1)
    sweep = result_of("sink_sweep")
    made = np.array(sweep["kinds"]["variance amplification"]["made"], float) - np.array(sweep["plain"], float)
    # The last row is of all blocks at once.
    assert (made[2] >= 0.1).all()
    assert np.argwhere(np.delete(made[:-1], 2, axis=0) >= 0.1).tolist() == [[9, 0], [10, 0]]
    return [
        f"without one of the two {' and '.join(singles)} are (single blocks change more), without both "
        f"{percent(1)(rows['silenced', f'{first} + {second}', 1])}",
        f"another first token {span((100 * rate for rate in others), 0).replace(' to', '% to')}% of the heads",
        f"another position in only {percent(1)(elsewhere)} of the heads",
        f"blocks 11 and 12 add {percent(0)(made[10, 0])} and {percent(0)(made[11, 0])} of the later heads",
    ]


def _real_models() -> list[str]:
    small, larger = (result_of(name) for name in ("real_models", "real_models_given"))
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
        f"{span((100 * rate for rate in silenced), 1).replace(' to', '% to')}% of the heads are sinks",
        f"in {percent(1)(elsewhere.pop(8))} of the heads; but the first position stays one in "
        f"{percent(1)(elsewhere.pop(1))}",
    ]


def _first_of(result, scheme: str) -> tuple[float, float]:
    """The fraction of the cost of rounding with one scale for a sequence that the first token causes, and the cost."""
    rows = [row for row in result["rounding"] if row["scheme"] == scheme and row["granularity"] == "tensor"]
    cost, kept = (next(row["delta_nats"] for row in rows if row["keep_sinks"] == count) for count in (0, 1))
    return (cost - kept) / cost, cost


@pytest.mark.parametrize(
    "page, phrases",
    [
        ("docs/sinks.md", _sinks),
        ("docs/results/initializations.md", _initializations),
        ("docs/results/mitigations.md", _mitigations),
        ("docs/results/real_models.md", _real_models),
        ("docs/results/sinks.md", _sinks_measured),
    ],
)
def test_pages_quote_their_records(page, phrases):
    assert_quoted(page, phrases())
