"""The tables of prices of ``sink_cures``, and what seeds say of findings that were published from one run each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bornbiased_jax.experiments.base import Entry, Record
from bornbiased_jax.experiments.sinks.settings import MITIGATIONS
from bornbiased_jax.experiments.sinks.sink_training import last_rate
from bornbiased_jax.report.numbers import fixed, near_one, percent, significant, times
from bornbiased_jax.report.tables import Cells, Table, Value, tabulate
from bornbiased_jax.stats.intervals import mean_interval, ratio_interval

BASELINE, HEAD_GATE, ELEMENT_GATE = "baseline", "head-wise gate", "element-wise gate"

ROUNDED = "w6a6"
"""The scheme at which mitigations are weighed, with one scale a tensor: the cost of sinks shows there first."""

FEW_SINKS = 0.02

INTERVALS = "± is half of the 95% interval over seeds (Student's t)"


def over_seeds(values: Sequence[float | None], missing: str = "destroyed") -> Value:
    """Return the mean and half of its 95% interval; where seeds have no value, their number and the reason."""
    present = [value for value in values if value is not None]
    if len(present) < len(values):
        return f"{missing} in {len(values) - len(present)} of {len(values)}"
    if len(present) < 2:
        return present[0]
    low, high = mean_interval(present)
    return float(np.mean(present)), (high - low) / 2


def cells(run: Entry, key: str, **labels: object) -> list[float | None]:
    """Return a quantity of one cell of the rounding by seed; None where that model was destroyed."""
    cell_values = []
    for seed in run["by_seed"]:
        (cell,) = (cell for cell in seed["price"]["quantisation"] if all(cell[name] == labels[name] for name in labels))
        cell_values.append(None if cell["destroyed"] else cell[key])
    return cell_values


def streamed(run: Entry, keep: int, window: int | None) -> list[Any]:
    """Return the loss with a rolling cache by seed; with None for the window, with everything kept."""
    return [
        next(e["loss"] for e in seed["price"]["streaming"] if e["window"] == window and e["keep_sinks"] == keep)
        for seed in run["by_seed"]
    ]


def tables(record: Record) -> list[Table]:
    """Show rounding, D_sink, spread and streaming of every attention; findings. Empty where no price was measured."""
    if "price" not in record["settings"]:
        return []
    return [_rounding(record), _sinks_part(record), _unevenness(record), _streaming(record), *_findings(record)]


def worth(record: Record) -> list[Table]:
    """Weigh each mitigation: loss, cost, sinks left, gain under rounding, verdict, options of ``pretrain``."""
    settings, runs = record["settings"], record["result"]["cures"]
    if "price" not in settings or len(settings["seeds"]) < 2:
        return []
    price = settings["price"]
    # The smallest scale has other schemes.
    scheme = ROUNDED if ROUNDED in price["schemes"] else price["schemes"][0]
    granularity = price["granularities"][0]
    base, seconds = runs[BASELINE], record["result"].get("step_seconds")
    rows = []
    for name, run in runs.items():
        sinks = _sinks_left(run)
        gaps = np.subtract(run["curve_validation_loss"][-1], base["curve_validation_loss"][-1])
        rounded = {"scheme": scheme, "granularity": granularity, "keep_sinks": 0}
        pairs = zip(cells(base, "delta_nats", **rounded), cells(run, "delta_nats", **rounded), strict=True)
        gains = [None if before is None or after is None else before - after for before, after in pairs]
        cost = float(np.median(np.divide(seconds[name], seconds[BASELINE]))) if seconds else None
        options = " ".join(f"--set {field}={str(value).lower()}" for field, value in MITIGATIONS[name].items())
        measured = {
            "loss above baseline": (fixed(3), over_seeds(list(gaps))),
            "time of a step": (times(2), cost),
            "sinks left": (percent(0), sinks),
            "gain under rounding": (significant(3), over_seeds(gains)),
            "verdict": "" if name == BASELINE else _worth(sinks, _sinks_left(base), mean_interval(list(gaps))),
            "add to `pretrain`": f"`{options}`" if options else "",
        }
        rows.append(([name], measured))
    note = (
        "Loss above baseline: held-out loss less the baseline's of the same seed, in nats a token. Time of a step: "
        "over the baseline's, timed in turn. Sinks left: fraction of heads above ε = 0.25, mean over "
        f"{len(settings['seeds'])} seeds. Gain under rounding: by how much a model loses less than the baseline when "
        f"it is rounded ({scheme}, one scale a {granularity}). {INTERVALS}, each by itself. Verdict: no sinks where "
        f"at most {percent(0)(FEW_SINKS)} of the heads are left, few where at most half of the baseline's are; the "
        "loss is called lower or higher where its interval excludes zero. The window and the model without positions "
        "are controls."
    )
    return [tabulate("Which mitigation is worth it", ["mitigation"], rows, note)]


def _worth(sinks: float, baseline_sinks: float, interval: tuple[float, float]) -> str:
    low, high = interval
    loss = "lower loss" if high < 0 else "higher loss" if low > 0 else "loss undecided"
    if sinks <= FEW_SINKS:
        return f"no sinks, {loss}"
    return f"{'few sinks' if sinks <= baseline_sinks / 2 else 'sinks stay'}, {loss}"


def _sinks_left(run: Entry) -> float:
    return float(np.mean([last_rate(seed) for seed in run["by_seed"]]))


def _by_attention(record: Record, title: str, note: str, columns: Callable[[Entry], Cells]) -> Table:
    """Tabulate every attention, whose note says what ± means."""
    rows = [([name], columns(run)) for name, run in record["result"]["cures"].items()]
    return tabulate(title, ["attention"], rows, f"{note} {INTERVALS}.")


def _rounding(record: Record) -> Table:
    settings = record["settings"]["price"]
    heads = {
        (scheme, keep): scheme if keep == 0 else f"{scheme}, {keep} kept"
        for scheme in settings["schemes"]
        for keep in settings["keep_sinks"]
    }
    rows = []
    for name, run in record["result"]["cures"].items():
        for granularity in settings["granularities"]:
            measured: Cells = {}
            for (scheme, keep), head in heads.items():
                deltas = cells(run, "delta_nats", scheme=scheme, granularity=granularity, keep_sinks=keep)
                measured[head] = (significant(3), over_seeds(deltas))
            rows.append(([name, granularity], measured))
    note = (
        "Loss with rounded weights and activations (w, a) or caches (kv) less that in full precision, in nats a "
        "token. One scale serves a whole sequence (tensor) or one position (token), in caches too. Kept: the first "
        f"tokens that stay in full precision. {INTERVALS}. Destroyed: the loss exceeds ten times that of full "
        "precision."
    )
    return tabulate("What rounding costs", ["attention", "scale"], rows, note)


def _sinks_part(record: Record) -> Table:
    settings = record["settings"]["price"]
    keep = max(settings["keep_sinks"])

    def columns(run: Entry) -> Cells:
        measured: Cells = {}
        for scheme, granularity in itertools.product(settings["schemes"], settings["granularities"]):
            parts = cells(run, "d_sink", scheme=scheme, granularity=granularity, keep_sinks=keep)
            measured[f"{scheme}, {granularity}"] = (significant(3), over_seeds(parts))
        return measured

    note = (
        f"D_sink: the cost of rounding all positions less the cost with the first {keep} in full precision, in nats "
        "a token; below zero, rounding the first token helps."
    )
    return _by_attention(record, "How much of that the first token causes", note, columns)


def _unevenness(record: Record) -> Table:
    heads = {"max |x|": "largest", "kurtosis": "kurtosis", "dispersion": "dispersion"}

    def columns(run: Entry) -> Cells:
        by_seed = [seed["price"]["unevenness"] for seed in run["by_seed"]]
        in_stream = {
            f"{head}, stream": over_seeds([sites["residual"][statistic] for sites in by_seed], "undefined")
            for head, statistic in heads.items()
        }
        anywhere = {
            f"{head}, any site": over_seeds(
                [max(site[statistic] for site in sites.values() if site[statistic] is not None) for sites in by_seed]
            )
            for head, statistic in heads.items()
        }
        return {head: (significant(3), value) for head, value in (in_stream | anywhere).items()}

    note = (
        "Each number is the largest over blocks: of the residual stream, or of any site where it is defined "
        "(softpick leaves positions empty), which are the stream, keys, values and what the four groups of linear "
        "maps read. Kurtosis: 3 for a Gaussian. Dispersion: largest over median norm of a sequence's positions."
    )
    return _by_attention(record, "How the activations are spread", note, columns)


def _streaming(record: Record) -> Table:
    settings = record["settings"]["price"]
    window, keep = settings["window"], settings["streaming_keep"]

    def columns(run: Entry) -> Cells:
        measured = {f"{count} kept": over_seeds(streamed(run, count, window)) for count in keep}
        for count in [count for count in keep if count][:1]:
            pairs = zip(streamed(run, 0, window), streamed(run, count, window), strict=True)
            gaps = [None if a is None or b is None else a - b for a, b in pairs]
            measured[f"0 kept less {count} kept"] = over_seeds(gaps)
        measured["everything kept"] = over_seeds(streamed(run, 0, None))
        return {head: (fixed(3), value) for head, value in measured.items()}

    first = next(iter(record["result"]["cures"].values()))["by_seed"][0]["price"]["streaming"][0]
    note = (
        f"Loss in nats a token with a cache of the latest {window} tokens and of the first ones that are kept, from "
        f"position {first['from_position']} to {settings['streaming_length']}, of models trained on "
        f"{record['settings']['schedule']['context']} positions. Everything kept: nothing leaves the cache, so that "
        "positions exceed those of training."
    )
    return _by_attention(record, "Loss with a rolling cache", note, columns)


class _Ratio(NamedTuple):
    """A ratio of means over seeds, and its interval (Fieller's)."""

    value: float
    low: float
    high: float


def _verdict(difference: Value, ratio: _Ratio | None, published: float) -> str:
    """Describe in words the sign from the interval over seeds, the size from the ratio of means."""
    if not isinstance(difference, tuple):
        return "cannot be said"
    mean, half = difference
    if mean - half <= 0 <= mean + half:
        return "not seen: the interval holds zero"
    if mean < 0:
        return "refuted: the other way round"
    if ratio is None:
        return "the direction holds, the size cannot be said: the smaller mean is not above zero"
    if ratio.value < published / 2:
        return "the direction holds, the size does not"
    # A ratio that nobody published may lie close to one, and then its distance from one is what the row is about.
    write = fixed(1) if published else near_one(fixed(3))
    high = "∞" if math.isinf(ratio.high) else write(ratio.high)
    word = "confirmed" if published else "seen, no size is published"
    return f"{word}: {write(ratio.value)}× [{write(ratio.low)}, {high}]"


def _ratio(over: Sequence[float | None], under: Sequence[float | None]) -> tuple[Value, _Ratio | None]:
    """Return the paired difference over seeds, and the ratio of means where both are above zero."""
    pairs = [(a, b) for a, b in zip(over, under, strict=True) if a is not None and b is not None]
    if len(pairs) < max(2, len(over)):
        return "destroyed", None
    difference = over_seeds([a - b for a, b in pairs])
    uppers, lowers = zip(*pairs, strict=True)
    upper, lower = float(np.mean(uppers)), float(np.mean(lowers))
    if not (lower > 0 and upper > 0):
        return difference, None
    return difference, _Ratio(upper / lower, *ratio_interval(uppers, lowers))


def _findings(record: Record) -> list[Table]:
    runs, settings = record["result"]["cures"], record["settings"]["price"]
    if not {BASELINE, HEAD_GATE, ELEMENT_GATE} <= set(runs) or "w8a8" not in settings["schemes"]:
        return []
    keep = max(settings["keep_sinks"])

    def sink_part(name: str, granularity: str) -> list[float | None]:
        return cells(runs[name], "d_sink", scheme="w8a8", granularity=granularity, keep_sinks=keep)

    rows = []
    # Ratios of D_sink against the published ones.
    for words, name, granularity, published in (
        ("a scale for each token makes D_sink 30 to 45 times smaller", BASELINE, "token", 30.0),
        ("a head-wise gate makes D_sink 50 times smaller", HEAD_GATE, "tensor", 50.0),
    ):
        difference, ratio = _ratio(sink_part(BASELINE, "tensor"), sink_part(name, granularity))
        measured = "—" if ratio is None else times(1)(ratio.value)
        verdict = _verdict(difference, ratio, published)
        rows.append(_finding(words, f"{published:.0f}×", measured, difference, verdict))
    rows.append(_elementwise(runs))
    # Loss of the rolling cache without its first tokens.
    window = settings["window"]
    first = min((count for count in settings["streaming_keep"] if count), default=None)
    if first is not None:
        difference, ratio = _ratio(streamed(runs[BASELINE], 0, window), streamed(runs[BASELINE], first, window))
        words = f"without its first tokens a rolling cache loses; {first} kept win it back"
        rows.append(_finding(words, "", "", difference, _verdict(difference, ratio, 0.0)))
    note = (
        "Findings that were published from one run each, at w8a8. Here: D_sink of the baseline with one scale a "
        "sequence over D_sink after the change named, a ratio of means over seeds. Difference: paired by seed; "
        f"{INTERVALS}. Confirmed: the interval of the difference excludes zero in the published direction and the "
        "ratio is at least half of the published one; its 95% interval (Fieller's) follows. In the row of the "
        "rolling cache the ratio is of losses. The published models have hundreds of millions of parameters, these "
        "about half a million at most: what is not seen here is not refuted there."
    )
    return [tabulate("Findings of single runs, with seeds", ["published finding"], rows, note)]


def _finding(words: str, published: str, measured: str, difference: Value, verdict: str) -> tuple[list[str], Cells]:
    return [words], {
        "published": published,
        "here": measured,
        "difference": (significant(3), difference),
        "verdict": verdict,
    }


def _elementwise(runs: Entry) -> tuple[list[str], Cells]:
    """Check whether the least sink mass of all is yet destroyed by one scale a tensor."""
    mass = {name: float(np.mean([np.mean(seed["score_LH"]) for seed in run["by_seed"]])) for name, run in runs.items()}
    rank = 1 + sum(value < mass[ELEMENT_GATE] for value in mass.values())
    deltas = {
        name: cells(runs[name], "delta_nats", scheme="w8a8", granularity="tensor", keep_sinks=0)
        for name in (BASELINE, ELEMENT_GATE)
    }
    num_undefined = sum(delta is None for delta in deltas[ELEMENT_GATE])
    difference, _ = _ratio(deltas[ELEMENT_GATE], deltas[BASELINE])
    verdict = f"destroyed in {num_undefined} of {len(deltas[ELEMENT_GATE])} seeds"
    if not num_undefined:
        verdict = "refuted at this size: no seed is destroyed"
    words = "an element-wise gate has the least sink mass and is destroyed by one int8 scale a tensor"
    return _finding(words, "destroyed", f"{rank} of {len(mass)} by sink mass", difference, verdict)
