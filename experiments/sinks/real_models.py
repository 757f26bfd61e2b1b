"""What a real model's sinks look like and what they cost, by the published protocol; no paper's table.

The protocol of "Transformers Are Born Biased": 100 sequences of a text (the paper's is WikiText-2 test), lengths 32 to
512, ε = 0.25. Besides, on fewer sequences: super neurons and massive channels, the price of rounding, the loss with a
rolling cache; and how the weights are distributed. The model is SmolLM2-135M-Instruct where it is installed, or any
checkpoint: ``--data "model=PATH;TEXT"``.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bornbiased_jax.evaluation.rolling_cache import streaming_losses
from bornbiased_jax.evaluation.sink_report import ReportOptions, cut_sequences, report_on_ids, strongest_head
from bornbiased_jax.experiments.base import (
    SCALES,
    Context,
    Entry,
    Experiment,
    Record,
    by_scale,
    variants,
    where_attempted,
)
from bornbiased_jax.experiments.sinks.settings import EPSILON
from bornbiased_jax.experiments.sinks.subject import NEURON_NOTE, SinkModel, attempt, neuron_rows
from bornbiased_jax.parameters import Params, flatten
from bornbiased_jax.quantization import parse_scheme, prices
from bornbiased_jax.report.numbers import fixed, percent, significant
from bornbiased_jax.report.tables import Cells, Claim, Table, Value, tabulate


def run(context: Context, must_be_named: bool = False) -> Entry:
    """Run every measurement on one model, or return the reason why not."""
    return attempt(context, functools.partial(_measure, context), must_be_named)


def _measure(context: Context, subject: SinkModel) -> Entry:
    """Measure sinks by the protocol, the price of rounding and a rolling cache, and the weights."""
    settings, opened, ids_T = context.settings, subject.opened, subject.ids_T
    identity = [opened.digest(), ids_T.tolist()]

    def protocol(_folder: Path) -> object:
        options = settings["protocol"]
        return report_on_ids(opened.cfg, opened.params(), ids_T, ReportOptions(epsilon=EPSILON, **options))

    def rounding(_folder: Path) -> object:
        options = settings["rounding"]
        tokens_NT = cut_sequences(ids_T, options["length"], options["num_sequences"])
        schemes = [parse_scheme(name) for name in options["schemes"]]
        return prices(opened.cfg, opened.params(), tokens_NT, schemes, keep=options["keep_sinks"])

    def rolling(_folder: Path) -> object:
        options = settings["streaming"]
        tokens_NT = cut_sequences(ids_T, options["length"], options["num_sequences"])
        return streaming_losses(
            opened.cfg, opened.params(), tokens_NT, window=options["window"], keep=options["keep_sinks"]
        )

    # Each measurement cached by itself, so that a killed run resumes.
    steps = {"protocol": protocol, "rounding": rounding, "streaming": rolling}
    measured = {
        name: context.cached(f"real_models/{name}", [*identity, settings[name]], compute)
        for name, compute in steps.items()
    }
    return {**measured, "weights": weights_by_kind(opened.params())}


def weights_by_kind(params: Params) -> Sequence[Entry]:
    """Compute standard deviation and kurtosis of every kind of matrix over the blocks."""
    kinds: dict[str, list[np.ndarray]] = defaultdict(list)
    for name, leaf in flatten(params).items():
        values = np.asarray(leaf, np.float64)
        if name.startswith("blocks/") and values.ndim == 3:
            kinds[name.removesuffix("/kernel")] = list(values)
        elif not name.startswith("blocks/") and values.ndim == 2:
            kinds[name] = [values]
    rows = []
    for name, matrices in kinds.items():
        std_L = [float(matrix.std()) for matrix in matrices]
        kurtosis_L = [float(((matrix - matrix.mean()) ** 4).mean() / matrix.var() ** 2) for matrix in matrices]
        largest_L = [float(np.abs(matrix).max() / matrix.std()) for matrix in matrices]
        rows.append({"kind": name, "std": std_L, "kurtosis": kurtosis_L, "largest": largest_L})
    return rows


@where_attempted
def tables(record: Record) -> Sequence[Table]:
    """Show sinks by length, by block, super neurons, rounding, rolling cache, weights."""
    result = record["result"]
    page_tables = [_lengths(result), _blocks(result), _neurons(result), _rounding(record), _streaming(record)]
    return [*page_tables, _weights(result)]


def _lengths(result: Entry) -> Table:
    protocol = result["protocol"]
    rows = []
    for length, rate in protocol["sink_rate"].items():
        score, block, head = strongest_head(protocol["score_by_layer_head"][length])
        deviation = protocol["sink_rate_std"][length]
        measured: Cells = {
            "heads that are sinks": (percent(1), rate if deviation is None else (rate, deviation)),
            "by average score": (percent(1), protocol["sink_rate_of_average"][length]),
            "strongest head": f"{score:.2f} (block {block}, head {head})",
        }
        rows.append(([int(length)], measured))
    note = (
        f"{protocol['num_sequences']} sequences of {result['source']}. Sinks: heads whose attention to the first "
        f"position exceeds ε = {EPSILON:g} in a sequence, mean ± standard deviation over sequences; by average "
        "score: heads whose mean attention over sequences does."
    )
    return tabulate("Sinks by length", ["T"], rows, note=note)


def _blocks(result: Entry) -> Table:
    protocol = result["protocol"]
    length = max(protocol["score_by_layer_head"], key=int)
    rows = []
    for layer, score_H in zip(protocol["outliers"]["layers"], protocol["score_by_layer_head"][length], strict=True):
        measured: Cells = {
            "sinks": f"{sum(score > EPSILON for score in score_H)} of {len(score_H)}",
            "mean score": (fixed(2), float(np.mean(score_H))),
            "max |h|": (significant(3), layer["largest"]),
            "at": f"position {layer['position']}, channel {layer['channel']}",
            "massive": (percent(0), layer["share_of_sequences_massive"]),
            "DomRatio, first": (fixed(1), layer["dom_ratio_first"]),
            "DomRatio, others": (fixed(1), layer["dom_ratio_rest"]),
        }
        rows.append(([layer["block"]], measured))
    outliers = protocol["outliers"]
    note = (
        f"Sinks: heads whose average score at T = {length} exceeds {EPSILON:g}. The other columns are of the "
        f"residual stream after each block, on {outliers['num_sequences']} sequences of {outliers['length']} tokens: "
        "its largest activation and where that is; massive: fraction of sequences with an activation above 100 and a "
        "thousand times the median; DomRatio: largest over mean |h| of a token. Channels count from 0."
    )
    return tabulate("Block by block", ["block"], rows, note=note)


def _neurons(result: Entry) -> Table:
    rows = neuron_rows(result["protocol"].get("super_neurons", []))
    return tabulate("What writes most at the first token", ["block", "neuron"], rows, note=NEURON_NOTE)


def _interval(middle: float | None, interval: Sequence[float] | None) -> Value:
    return middle if middle is None or interval is None else (middle, (interval[1] - interval[0]) / 2)


def _rounding(record: Record) -> Table:
    options = record["settings"]["rounding"]
    is_gguf = record["result"]["checkpoint"].endswith(".gguf")
    weights = "The file's weights are quantized already and" if is_gguf else "Weights"
    rows = []
    for cell in record["result"]["rounding"]:
        measured: Cells = {
            "Δ loss": (
                significant(3),
                "destroyed" if cell["destroyed"] else _interval(cell["delta_nats"], cell["delta_interval"]),
            ),
            "median KL": (significant(2), cell["kl_median"]),
            "same top-1": (percent(1), cell["same_top1"]),
            "D_sink": (significant(3), cell["d_sink"]),
        }
        rows.append(([cell["scheme"], cell["granularity"], cell["keep_sinks"]], measured))
    note = (
        "Loss with rounded activations (a) or caches (kv) less that in full precision, in nats a token, on "
        f"{options['num_sequences']} sequences of {options['length']} tokens; ± is half of the 95% interval over "
        f"sequences. {weights} stay as they are stored. One scale serves a whole sequence (tensor) or one position "
        "(token). First kept: tokens in full precision; D_sink: what that saves. KL and same top-1: of the "
        "predictions, against full precision."
    )
    return tabulate("What rounding costs", ["rounded", "scale", "first kept"], rows, note=note)


def _streaming(record: Record) -> Table:
    options = record["settings"]["streaming"]
    entries = record["result"]["streaming"]
    rows = []
    for entry in entries:
        name = "everything" if entry["window"] is None else f"the last {entry['window']}"
        measured = {"loss": (fixed(3), _interval(entry["loss"], entry["loss_interval"]))}
        rows.append(([name, entry["keep_sinks"]], measured))
    note = (
        f"Loss in nats a token from position {entries[0]['from_position']} on, with a cache of the last tokens and "
        f"of the first ones that are kept, on {options['num_sequences']} sequences of {options['length']} tokens; ± "
        "is half of the 95% interval over sequences. Positions are counted inside the cache."
    )
    return tabulate("Loss with a rolling cache", ["cache", "first kept"], rows, note=note)


def _weights(result: Entry) -> Table:
    rows = [
        (
            [entry["kind"]],
            {
                "std": _range(entry["std"]),
                "kurtosis": _range(entry["kurtosis"]),
                "largest over std": _range(entry["largest"]),
            },
        )
        for entry in result["weights"]
    ]
    note = "Smallest, median and largest over the blocks. Kurtosis: 3 for a Gaussian, which initial weights have."
    return tabulate("How the weights are distributed", ["matrix"], rows, note=note)


def _range(values: Sequence[float]) -> str:
    low, middle, high = (significant(3)(float(value)) for value in np.quantile(values, [0, 0.5, 1]))
    return middle if len(values) == 1 else f"{low} … {middle} … {high}"


@where_attempted
def claims(record: Record) -> Sequence[Claim]:
    """Claim the rate at the greatest length, and what streaming without and with one first token loses."""
    result = record["result"]
    protocol = result["protocol"]
    page_claims = [
        Claim(f"Heads of {result['checkpoint']} that are sinks, T = {length}", rate, format=percent(1))
        for length, rate in protocol["sink_rate"].items()
    ]  # fmt: skip
    by_keep = {entry["keep_sinks"]: entry["loss"] for entry in result["streaming"] if entry["window"] is not None}
    full_loss = next((entry["loss"] for entry in result["streaming"] if entry["window"] is None), None)
    for keep, loss in by_keep.items():
        if full_loss is not None and loss is not None:
            words = f"Loss with a rolling cache and {keep} first tokens kept, less that with everything kept"
            page_claims.append(Claim(words, loss - full_loss, format=fixed(3)))
    return page_claims


@where_attempted
def headline(record: Record) -> str:
    """Return one sentence."""
    result = record["result"]
    length, rate = list(result["protocol"]["sink_rate"].items())[-1]
    return f"{rate:.0%} of the heads of {result['checkpoint']} are sinks at T = {length}."


_NUM_SINKS = [0, 1, 4]

EXPERIMENT = Experiment(
    name="real_models",
    title="What real models look like",
    description=(
        "A trained model by the published protocol: sinks by length, block and head, super neurons and massive "
        "channels, the price of rounding with first tokens kept in full precision or not, the loss with a rolling "
        "cache, and the distribution of the weights.\n\nThe text is built-in prose unless --data names one; the "
        "published protocol has WikiText-2 test. SmolLM2-135M-Instruct is taken where it is installed, any other "
        "checkpoint by --data 'model=PATH;TEXT'."
    ),
    settings=by_scale(
        seeds=[0],
        characters=(4_000, 400_000, 4_000_000),
        protocol={
            "lengths": ([8, 16], [32, 64, 128, 256, 512], [32, 64, 128, 256, 512]),
            "num_sequences": (2, 100, 100),
        },
        rounding={
            "length": (8, 128, 512),
            "num_sequences": (2, 8, 32),
            "schemes": (["a8"], ["a8", "a6", "kv8", "kv4"], ["a16", "a8", "a6", "kv8", "kv4"]),
            "keep_sinks": ([0, 1], _NUM_SINKS, _NUM_SINKS),
        },
        streaming={
            "length": (16, 768, 4096),
            "num_sequences": (2, 4, 16),
            "window": (6, 128, 1020),
            "keep_sinks": ([0, 1], _NUM_SINKS, _NUM_SINKS),
        },
    ),
    cost={"laptop": "see the record", "paper": "not measured"},
    run=run,
    takes_data=SCALES,
    tables=tables,
    claims=claims,
    headline=headline,
)

_LAPTOP = EXPERIMENT.settings["laptop"]
# A larger model costs more: a quarter of the sequences, chosen before any number.
_FEWER = {
    **_LAPTOP,
    "protocol": {**_LAPTOP["protocol"], "num_sequences": 25},
    "rounding": {**_LAPTOP["rounding"], "num_sequences": 4},
    "streaming": {**_LAPTOP["streaming"], "length": 512},
}
EXPERIMENTS = variants(
    EXPERIMENT,
    real_models_given=dict(
        title="What a larger real model looks like",
        settings={**EXPERIMENT.settings, "laptop": _FEWER},
        run=functools.partial(run, must_be_named=True),
    ),
)
