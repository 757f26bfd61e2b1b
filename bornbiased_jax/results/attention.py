"""Results of `sinks` and `intervene`: the attention sinks of a checkpoint, as it is and after an intervention."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict, TypeVar, Unpack

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bornbiased_jax.checkpoints import Checkpoint, open_checkpoint
from bornbiased_jax.errors import InputError
from bornbiased_jax.evaluation import ReportOptions, sink_report
from bornbiased_jax.evaluation import intervention as intervening
from bornbiased_jax.evaluation.intervention import InterventionReport
from bornbiased_jax.evaluation.sink_report import SinkReport, largest_block, strongest_head
from bornbiased_jax.probes.sinks import ScoreConvention, Threshold
from bornbiased_jax.quantization import Granularity, Scheme
from bornbiased_jax.report import figures, sink_figures
from bornbiased_jax.report.tables import Panel
from bornbiased_jax.results.result import Listing, Report, listing
from bornbiased_jax.results.wording import count, explain, percent, percents
from bornbiased_jax.text import Tokenizer

T = TypeVar("T")
QUANTITIES: tuple[Literal["attention_output"], Literal["residual"]] = ("attention_output", "residual")


class SinkFields(TypedDict, total=False):
    """Fields of :class:`bornbiased_jax.evaluation.ReportOptions`, each by its name."""

    epsilon: float
    convention: ScoreConvention
    position: int
    threshold: Threshold
    normalize: bool
    lengths: Sequence[int]
    num_sequences: int
    details: bool
    schemes: Sequence[Scheme]
    granularities: Sequence[Granularity]
    keep_sinks: Sequence[int]
    streaming: int | None
    seed: int


class InterventionFields(TypedDict, total=False):
    """Fields of :class:`bornbiased_jax.evaluation.intervention.InterventionOptions`, each by its name."""

    silence: Sequence[str]
    write: Sequence[str]
    clear: Sequence[str]
    first_token: int | None
    position: int
    epsilon: float
    length: int
    num_sequences: int


class Sinks(Report[SinkReport]):
    """Attention sinks: heads that give one position much of their attention."""

    question = "Which heads are attention sinks?"
    axes = ("block", "head", "length")

    def summary(self) -> list[str]:
        """Say how many heads are sinks, how sure that is, and which neurons could be behind it."""
        report = self.report
        length = max(report["sink_rate"], key=int)
        rate = report["sink_rate"][length]
        std, sequences = report.get("sink_rate_std", {}).get(length), report["num_sequences"]
        # Over sequences, of their mean: a rate of average scores has none.
        is_average = report.get("threshold") == "average"
        error = "" if std is None or sequences < 2 or is_average else f", give or take {percent(std / sequences**0.5)},"
        least, where = f"more than {report['epsilon']:g}", f"position {report['position']} at T = {length}"
        # In short sequences attention without any preference exceeds ε as well.
        even = self._even_score(int(length))
        meaning = "they are sinks"
        if even > report["epsilon"]:
            meaning = f"so would even attention, whose score is {even:.2f}, and longer sequences tell sinks from it"
        sentences = [
            f"{percent(rate)} of the heads{error} put {least} of their attention on {where}: {meaning}."
            if rate
            else f"No head puts {least} of its attention on {where}: there are no sinks.",
            f"All heads of the model were measured, on {count(sequences, 'window')} of one text.",
        ]
        # They fire at the first position: what makes a sink of another, they do not explain.
        if self.super_neurons and rate and report["position"] == 1:
            first = next(row for row in report["super_neurons"] if row["super"])
            sentences.append(
                f"{count(len(self.super_neurons), 'super neuron')} could be the cause, the first in block "
                f"{first['block']} (neuron {first['neuron']}). Test it with `bornbiased intervene … --silence "
                f"{self.super_neurons[0]}`."
            )
        return sentences

    def _even_score(self, length: int) -> float:
        """Compute the score of the position where every query spreads its attention evenly over all that it sees."""
        position = self.report["position"]
        num_rows = length - position + 1 if self.report.get("convention") == "rows_from_k" else length
        return sum(1 / row for row in range(position, length + 1)) / num_rows

    @property
    def super_neurons(self) -> list[str]:
        """Super neurons, as :func:`intervention` takes them to silence, those that write most first."""
        rows = self.report.get("super_neurons", [])
        return [f"blocks/{row['block']}/mlp:{row['neuron']}" for row in rows if row["super"]]

    def tables(self) -> list[Listing]:
        """List a row for each length, then the largest states, super neurons, a rolling cache, steps and rounding."""
        tables = [make(self.report) for make in (_largest, _neurons, _streaming, _steps, _rounding)]
        return [_lengths(self.report), *(table for table in tables if table.rows)]

    def figures(self) -> dict[str, Panel]:
        """Draw the sink map of the greatest length, and the variances and top channels where they were measured."""
        report = self.report
        length = max(report["score_by_layer_head"], key=int)
        caption = f"Attention that each head pays position {report['position']} at T = {length}; sinks carry a dot."
        panels = {"sink-map": Panel(self.draw(), caption)}
        L = len(report["score_by_layer_head"][length])
        blocks = sorted({0, min(1, L - 1), L // 2, L - 1})
        variance = report.get("variance")
        by_quantity = {} if variance is None else {key: variance[key] for key in QUANTITIES}
        for name, moments in by_quantity.items():
            figure = sink_figures.variance_by_position({f"block {at + 1}": moments["pooled"][at] for at in blocks})
            caption = f"Variance of the {name.replace('_', ' ')} by position, on random tokens."
            panels[f"variance-{name}"] = Panel(figure, caption)
        largest = largest_block(report)
        if largest is not None:
            top = largest["top_channels"]
            figure = sink_figures.top_channels(
                [entry["first"] for entry in top],
                [entry["rest"] for entry in top],
                block=largest["block"],
                channels=[entry["channel"] for entry in top],
            )
            caption = f"The largest channels after block {largest['block']}, where the residual stream is largest."
            panels["top-channels"] = Panel(figure, caption)
        return panels

    def draw(self, ax: Axes | None = None) -> Figure:
        """Draw the sink map of the greatest length, into axes if given."""
        report = self.report
        T, score_LH = max(report["score_by_layer_head"].items(), key=lambda item: int(item[0]))
        return sink_figures.sink_map(
            score_LH, epsilon=report["epsilon"], length=int(T), position=report["position"], ax=ax
        )

    def rows(self) -> list[dict[str, object]]:
        """Return a row for each length, block and head."""
        return [
            {"length": int(length), "block": block, "head": head, "score": score}
            for length, score_LH in self.report["score_by_layer_head"].items()
            for block, score_H in enumerate(score_LH, 1)
            for head, score in enumerate(score_H, 1)
        ]


class Intervention(Report[InterventionReport]):
    """Sinks by block and the loss, before and after an intervention."""

    question = "What is left of the sinks after an intervention?"
    axes = ("block",)

    def summary(self) -> list[str]:
        """Say how many sinks are left, and how far the loss moved."""
        report, before = self.report, self.report["before"]
        difference = report["sink_rate"] - before["sink_rate"]
        change = "are fewer" if difference < 0 else "are more" if difference > 0 else "are as many"
        rate_before, rate = percents(before["sink_rate"], report["sink_rate"])
        return [
            f"Sinks at position {report['position']} {change}: {rate_before} of the heads as it is, {rate} after the "
            "intervention.",
            f"The loss moved by {report['loss'] - before['loss']:+.4f} nats a token, to {report['loss']:.4f}; both are "
            "means over the same windows of one text.",
        ]

    def tables(self) -> list[Listing]:
        """List a row for each block: the fraction of its heads that are sinks, as it is and after."""
        report, before = self.report, self.report["before"]
        changes = [
            f"{kind.replace('_', ' ')} {', '.join(value) if isinstance(value, list) else value}"
            for kind, value in report["interventions"].items()
            if value not in (None, [])
        ]
        title = f"Heads that are sinks at position {report['position']}, epsilon {report['epsilon']:g}"
        title = ": ".join([title, *filter(None, ["; ".join(changes)])])
        note = (
            f"All blocks: {before['sink_rate']:.1%} of heads before, {report['sink_rate']:.1%} after; "
            f"loss {before['loss']:.4f} before, {report['loss']:.4f} nats a token after."
        )
        return [listing(title, {"block": "block", "before": "as it is", "after": "after"}, self.rows(), note)]

    def figures(self) -> dict[str, Panel]:
        """Draw the fraction of heads that are sinks by block, as it is and after."""
        caption = "Heads that are sinks by block, as it is and after the intervention."
        return {"intervention": Panel(self.draw(), caption)}

    def draw(self, ax: Axes | None = None) -> Figure:
        """Draw that figure, into axes if given."""
        figure, ax = figures.new(ax=ax)
        blocks = range(1, len(self.report["by_block"]) + 1)
        figures.line(ax, blocks, self.report["before"]["by_block"], name="as it is", markers=True)
        after = self.report["by_block"]
        figures.line(ax, blocks, after, name="after the intervention", color=figures.SERIES[1], markers=True)
        ax.set_ylim(-0.03, 1.03)
        figures.count_axis(ax)
        figures.label(ax, "block", "fraction of heads that are sinks")
        # Rates of 0 and 1 are common, and leave no room among the curves.
        figures.legend(ax, is_above=True)
        return figure

    def rows(self) -> list[dict[str, object]]:
        """Return a row for each block."""
        pairs = zip(self.report["before"]["by_block"], self.report["by_block"], strict=True)
        return [{"block": block, "before": before, "after": after} for block, (before, after) in enumerate(pairs, 1)]


def sinks(
    checkpoint: str | Path | Checkpoint,
    text: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    by_step: bool = False,
    quiet: bool = False,
    **options: Unpack[SinkFields],
) -> Sinks:
    """Look for attention sinks on a text.

    Args:
        checkpoint: a reference, or what :func:`bornbiased_jax.checkpoints.open_checkpoint` returned.
        text: a file, a folder, ``builtin:prose`` or ``builtin:code``.
        tokenizer: in place of the checkpoint's own.
        by_step: of a pretraining run, also every seed at every checkpoint.
        quiet: show no progress.
        options: fields of :class:`bornbiased_jax.evaluation.ReportOptions` (``lengths``, ``epsilon`` …).

    Raises:
        InputError: a field that the options do not have, or as :func:`bornbiased_jax.evaluation.sinks_report`.
    """
    opened = checkpoint if isinstance(checkpoint, Checkpoint) else open_checkpoint(checkpoint)
    report_options = _as_options(ReportOptions, options)
    report = sink_report.sinks_report(opened, text, report_options, tokenizer=tokenizer, by_step=by_step, quiet=quiet)
    return Sinks(report, opened.cfg.to_dict())


def intervention(
    checkpoint: str | Path | Checkpoint,
    text: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    quiet: bool = False,
    **options: Unpack[InterventionFields],
) -> Intervention:
    """Silence or move what makes a sink, and measure what is left of it.

    Arguments are those of :func:`sinks`, options the fields of
    :class:`bornbiased_jax.evaluation.intervention.InterventionOptions` (``silence``, ``write``, ``clear``,
    ``first_token``, ``length``, ``num_sequences`` …).

    Raises:
        InputError: a field that the options do not have, or what
            :func:`bornbiased_jax.evaluation.intervention.intervene_checkpoint` refuses.
    """
    opened = checkpoint if isinstance(checkpoint, Checkpoint) else open_checkpoint(checkpoint)
    intervention_options = _as_options(intervening.InterventionOptions, options)
    report = intervening.intervene_checkpoint(opened, text, intervention_options, tokenizer=tokenizer, quiet=quiet)
    return Intervention(report, opened.cfg.to_dict())


def _as_options(kind: type[T], options: Mapping[str, object]) -> T:
    """Make options of their fields by name; refuse a name that is no field, and a value of another kind."""
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]  # a dataclass, by its callers
    unknown = [name for name in options if name not in names]
    if unknown:
        raise InputError(f"{unknown[0]} is no option here: choose among {', '.join(names)}")
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]  # as above
        value = options.get(field.name, field.default)
        if isinstance(field.default, tuple) and isinstance(value, int | float | str):
            raise InputError(f"{field.name}={value!r} is one value: give a list, as in {field.name}=[{value!r}]")
        if isinstance(field.default, float) and not isinstance(value, int | float | np.number):
            raise InputError(f"{field.name}={value!r} is no number")
    return kind(**options)


def _lengths(report: SinkReport) -> Listing:
    rows = []
    for length, rate in report["sink_rate"].items():
        score, block, head = strongest_head(report["score_by_layer_head"][length])
        strongest = f"{score:.3f} (block {block}, head {head})"
        rows.append([length, rate, report["sink_rate_of_average"][length], strongest])
    columns = ["length", "sink rate", "of averages", "strongest head"]
    title = f"Sinks at position {report['position']}, epsilon {report['epsilon']:g}"
    return Listing(title, columns, rows, explain("sink rate"))


def _largest(report: SinkReport) -> Listing:
    columns = {
        "block": "block",
        "position": "position",
        "channel": "channel",
        "largest": "largest |h|",
        "dom_ratio_first": "DomRatio first",
        "dom_ratio_rest": "DomRatio others",
        "effective_rank": "effective rank",
    }
    largest = largest_block(report)
    title = "Where the residual stream is largest (channels count from 0)"
    return listing(title, columns, [] if largest is None else [largest], explain("DomRatio", "effective rank"))


def _neurons(report: SinkReport) -> Listing:
    columns = {
        "block": "block",
        "neuron": "neuron",
        "channel": "to channel",
        "write": "writes",
        "channel_share": "fraction of its row",
        "firing_ratio": "first over rest",
    }
    rows = [
        {key: "only the first" if cell is None else cell for key, cell in row.items()}
        for row in report.get("super_neurons", [])
        if row["super"]
    ]
    title = "Super neurons: they fire at the first token (neurons and channels count from 0)"
    return listing(title, columns, rows, explain("super neuron"))


def _streaming(report: SinkReport) -> Listing:
    entries = report.get("streaming", [])
    rows = [
        [
            "all tokens" if entry["window"] is None else f"the last {entry['window']}",
            entry["keep_sinks"],
            "not finite" if entry["loss"] is None else f"{entry['loss']:.4f}",
            "" if entry["loss_interval"] is None else "{:.4f} to {:.4f}".format(*entry["loss_interval"]),
        ]
        for entry in entries
    ]
    start = entries[0]["from_position"] if entries else None
    title = f"Loss in nats a token with a rolling cache, from position {start} on"
    return Listing(title, ["cache", "first kept", "loss", "95% interval"], rows)


def _steps(report: SinkReport) -> Listing:
    entries = report.get("by_step", [])
    rows = [
        [
            entry["step"],
            ", ".join(f"{rate:.1%}" for rate in entry["sink_rate"]),
            ", ".join(f"{score:.3f}" for score in entry["largest_score"]),
        ]
        for entry in entries
    ]
    seeds = ", ".join(map(str, entries[0]["seeds"])) if entries else ""
    return Listing(f"Sinks by step, seeds {seeds}", ["step", "heads that are sinks", "largest score"], rows)


def _rounding(report: SinkReport) -> Listing:
    columns = "quantized", "scale of a", "first kept", "Δ loss", "95% interval", "median KL", "same top-1", "D_sink"
    rows = [
        [
            cell["scheme"],
            cell["granularity"],
            cell["keep_sinks"],
            "destroyed" if cell["destroyed"] else f"{cell['delta_nats']:+.4f}",
            "" if cell["delta_interval"] is None else "{:+.4f} to {:+.4f}".format(*cell["delta_interval"]),
            "" if cell["kl_median"] is None else f"{cell['kl_median']:.2g}",
            f"{cell['same_top1']:.1%}",
            "" if cell["d_sink"] is None else f"{cell['d_sink']:+.4f}",
        ]
        for cell in report.get("quantisation", [])
    ]
    terms = explain("Δ loss", "KL", "D_sink")
    return Listing("What rounding costs, in nats a token", list(columns), rows, terms)
