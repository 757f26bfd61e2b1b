"""Results of `sinks` and `intervene`: the attention sinks of a checkpoint, as it is and after an intervention."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bornbiased_jax.results.listing import Listing, data_frame, fragment
from bornbiased_jax.results.phrases import count, percent
from bornbiased_jax.results.terms import explain

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from bornbiased_jax.checkpoints import Checkpoint
    from bornbiased_jax.evaluation import SinkReport
    from bornbiased_jax.text import Tokenizer


@dataclasses.dataclass(frozen=True, repr=False)
class Sinks:
    """Attention sinks: heads that give one position much of their attention.

    Attributes:
        report: what ``bornbiased sinks --json`` writes.
    """

    report: SinkReport

    def to_json(self) -> dict[str, Any]:
        """Give what the command writes with --json."""
        return dict(self.report)

    def summary(self) -> list[str]:
        """Say how many heads are sinks, how sure that is, and which neurons could be behind it."""
        report = self.report
        length, rate = max(report["sink_rate"].items(), key=lambda item: int(item[0]))
        std, sequences = report.get("sink_rate_std", {}).get(length), report["num_sequences"]
        # Over sequences, of their mean.
        error = "" if std is None or sequences < 2 else f", give or take {percent(std / sequences**0.5)}"
        sentences = [
            f"{percent(rate)} of the heads{error}, put more than {report['epsilon']:g} of their attention on position "
            f"{report['position']} at T = {length}: they are sinks.",
            f"That is over {count(sequences, 'window')} of one text; heads are the model's own and no sample.",
        ]
        if self.super_neurons:
            first = next(row for row in report["super_neurons"] if row["super"])
            sentences.append(
                f"{count(len(self.super_neurons), 'super neuron')} could be behind it, the first in block "
                f"{first['block']} (neuron {first['neuron']}): `bornbiased intervene … --silence "
                f"{self.super_neurons[0]}` tries that."
            )
        return sentences

    @property
    def super_neurons(self) -> list[str]:
        """Neurons that fire at the first token alone, as :func:`intervention` takes them to silence, largest first."""
        rows = self.report.get("super_neurons", [])
        return [f"blocks/{row['block']}/mlp:{row['neuron']}" for row in rows if row["super"]]

    def table(self) -> Listing:
        """List a row for each length."""
        from bornbiased_jax.evaluation.sink_report import strongest_head

        report = self.report
        rows = []
        for length, rate in report["sink_rate"].items():
            score, block, head = strongest_head(report["score_by_layer_head"][length])
            strongest = f"{score:.3f} (block {block}, head {head})"
            rows.append([length, rate, report["sink_rate_of_average"][length], strongest])
        columns = ["length", "sink rate", "of averages", "strongest head"]
        title = f"Sinks at position {report['position']}, epsilon {report['epsilon']:g}"
        return Listing(title, columns, rows, explain("sink rate"))

    def tables(self) -> list[Listing]:
        """List a row for each length, then the largest states, super neurons, a rolling cache, steps and rounding."""
        tables = [make(self.report) for make in (_largest, _neurons, _streaming, _steps, _rounding)]
        return [self.table(), *(table for table in tables if table.rows)]

    def plot(self) -> Figure:
        """Draw the score of the position in every block and head at the greatest length; sinks carry a dot."""
        from bornbiased_jax.report.sink_figures import sink_map

        scores = self.report["score_by_layer_head"]
        score_LH = scores[max(scores, key=int)]
        return sink_map(score_LH, epsilon=self.report["epsilon"], position=self.report["position"])

    def to_pandas(self) -> DataFrame:
        """Make a data frame with a row for each length, block and head; needs pandas."""
        return data_frame(
            [
                {"length": int(length), "block": block, "head": head, "score": score}
                for length, score_LH in self.report["score_by_layer_head"].items()
                for block, score_H in enumerate(score_LH, 1)
                for head, score in enumerate(score_H, 1)
            ]
        )

    def __repr__(self) -> str:
        return " ".join(self.summary())

    def _repr_html_(self) -> str:
        return fragment(self.summary(), [table for table in (self.table(), _neurons(self.report)) if table.rows])


@dataclasses.dataclass(frozen=True, repr=False)
class Intervention:
    """Sinks by block and the loss, before and after an intervention.

    Attributes:
        report: what ``bornbiased intervene --json`` writes.
    """

    report: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Give what the command writes with --json."""
        return dict(self.report)

    def summary(self) -> list[str]:
        """Say how many sinks are left, and how far the loss moved."""
        report, before = self.report, self.report["before"]
        difference = report["sink_rate"] - before["sink_rate"]
        change = "are fewer" if difference < 0 else "are more" if difference > 0 else "are as many"
        return [
            f"Sinks at position {report['position']} {change}: {percent(before['sink_rate'])} of the heads as it is, "
            f"{percent(report['sink_rate'])} after the intervention.",
            f"The loss moved by {report['loss'] - before['loss']:+.4f} nats a token, to {report['loss']:.4f}; both are "
            "means over the same windows of one text.",
        ]

    def table(self) -> Listing:
        """List a row for each block: the fraction of its heads that are sinks, as it is and after."""
        report, before = self.report, self.report["before"]
        title = f"Heads that are sinks at position {report['position']}, epsilon {report['epsilon']:g}"
        note = (
            f"All blocks: {before['sink_rate']:.1%} of heads before, {report['sink_rate']:.1%} after; "
            f"loss {before['loss']:.4f} before, {report['loss']:.4f} nats a token after."
        )
        rows = [list(row.values()) for row in self._blocks()]
        return Listing(title, ["block", "as it is", "after"], rows, note)

    def plot(self) -> Figure:
        """Draw the fraction of heads that are sinks by block, as it is and after."""
        from bornbiased_jax.report import figures

        figure, ax = figures.new()
        blocks = range(1, len(self.report["by_block"]) + 1)
        figures.line(ax, blocks, self.report["before"]["by_block"], name="as it is", markers=True)
        after = self.report["by_block"]
        figures.line(ax, blocks, after, name="after the intervention", colour=figures.SERIES[1], markers=True)
        ax.set_ylim(-0.03, 1.03)
        figures.count_axis(ax)
        figures.label(ax, "block", "fraction of heads that are sinks")
        figures.legend(ax)
        return figure

    def to_pandas(self) -> DataFrame:
        """Make a data frame with a row for each block; needs pandas."""
        return data_frame(self._blocks())

    def _blocks(self) -> list[dict[str, Any]]:
        pairs = zip(self.report["before"]["by_block"], self.report["by_block"], strict=True)
        return [{"block": block, "before": before, "after": after} for block, (before, after) in enumerate(pairs, 1)]

    def __repr__(self) -> str:
        return " ".join(self.summary())

    def _repr_html_(self) -> str:
        return fragment(self.summary(), [self.table()])


def sinks(
    checkpoint: str | Path | Checkpoint,
    text: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    by_step: bool = False,
    quiet: bool = False,
    **options: Any,
) -> Sinks:
    """Look for attention sinks on a text.

    Args:
        checkpoint: a reference, or what :func:`bornbiased_jax.checkpoints.open_checkpoint` returned.
        text: a file, a folder, ``builtin:prose`` or ``builtin:code``.
        tokenizer, by_step, quiet: as :func:`bornbiased_jax.evaluation.sinks_report` takes them.
        options: fields of :class:`bornbiased_jax.evaluation.ReportOptions` (``lengths``, ``epsilon`` …).

    Raises:
        InputError: what that function refuses.
    """
    from bornbiased_jax.evaluation import ReportOptions, sinks_report

    measured = ReportOptions(**options)
    return Sinks(sinks_report(checkpoint, text, measured, tokenizer=tokenizer, by_step=by_step, quiet=quiet))


def intervention(
    checkpoint: str | Path | Checkpoint,
    text: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    quiet: bool = False,
    **options: Any,
) -> Intervention:
    """Cut or move what makes a sink, and see what is left of it.

    Args:
        checkpoint, text: as in :func:`sinks`.
        tokenizer, quiet: as :func:`bornbiased_jax.evaluation.intervention.intervene_checkpoint` takes them.
        options: fields of :class:`bornbiased_jax.evaluation.intervention.InterventionOptions`: ``silence``, ``write``,
            ``clear``, ``first_token``, ``length``, ``num_sequences`` …

    Raises:
        InputError: what that function refuses.
    """
    from bornbiased_jax.checkpoints import Checkpoint, open_checkpoint
    from bornbiased_jax.evaluation.intervention import InterventionOptions, intervene_checkpoint

    opened = checkpoint if isinstance(checkpoint, Checkpoint) else open_checkpoint(checkpoint)
    chosen = InterventionOptions(**options)
    return Intervention(intervene_checkpoint(opened, text, chosen, tokenizer=tokenizer, quiet=quiet))


def _largest(report: SinkReport) -> Listing:
    from bornbiased_jax.evaluation.sink_report import largest_block

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
    rows = [] if largest is None else [[largest[key] for key in columns]]
    title = "Where the residual stream is largest (channels count from 0)"
    return Listing(title, list(columns.values()), rows, explain("DomRatio", "effective rank"))


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
        ["only the first" if row[key] is None else row[key] for key in columns]
        for row in report.get("super_neurons", [])
        if row["super"]
    ]
    title = "Super neurons: they fire at the first token (neurons and channels count from 0)"
    return Listing(title, list(columns.values()), rows, explain("super neuron"))


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
    columns = "quantised", "scale of a", "first kept", "Δ loss", "95% interval", "median KL", "same top-1", "D_sink"
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
