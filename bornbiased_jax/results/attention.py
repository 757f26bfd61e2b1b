"""The attention sinks of a checkpoint, and what is left of them after an intervention."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bornbiased_jax.results import sentences
from bornbiased_jax.results.listing import Listing, fragment
from bornbiased_jax.results.terms import explain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bornbiased_jax.checkpoints import Checkpoint
    from bornbiased_jax.evaluation import SinkReport


@dataclasses.dataclass(frozen=True, repr=False)
class Sinks:
    """Which heads give one position much of their attention.

    Attributes:
        report: what ``bornbiased sinks --json`` writes.
    """

    report: SinkReport

    def sentences(self) -> list[str]:
        """What was found and how sure that is, as the command ends with it."""
        return sentences.sinks(self.report)

    @property
    def super_neurons(self) -> list[str]:
        """Neurons that fire at the first token alone, as :func:`intervention` takes them to silence, largest first."""
        rows = self.report.get("super_neurons", [])
        return [f"blocks/{row['block']}/mlp:{row['neuron']}" for row in rows if row["super"]]

    def listings(self) -> list[Listing]:
        """A row for each length; then the super neurons, if there are any."""
        from bornbiased_jax.evaluation.sink_report import strongest_head

        report = self.report
        rows = []
        for length, rate in report["sink_rate"].items():
            score, block, head = strongest_head(report["score_by_layer_head"][length])
            strongest = f"{score:.3f} (block {block}, head {head})"
            rows.append([length, rate, report["sink_rate_of_average"][length], strongest])
        columns = ["length", "sink rate", "of averages", "strongest head"]
        title = f"Sinks at position {report['position']}, epsilon {report['epsilon']:g}"
        listings = [Listing(title, columns, rows, explain("sink rate"))]
        neurons = [row for row in report.get("super_neurons", []) if row["super"]]
        if neurons:
            keys = ("block", "neuron", "channel", "write", "channel_share", "firing_ratio")
            rows = [["only the first" if row[key] is None else row[key] for key in keys] for row in neurons]
            columns = ["block", "neuron", "to channel", "writes", "fraction of its row", "first over rest"]
            title = "Super neurons: they fire at the first token (neurons and channels count from 0)"
            listings.append(Listing(title, columns, rows, explain("super neuron")))
        return listings

    def plot(self) -> Figure:
        """The score of the position in every block and head at the greatest length; sinks carry a dot."""
        from bornbiased_jax.report.sink_figures import sink_map

        scores = self.report["score_by_layer_head"]
        score_LH = scores[max(scores, key=int)]
        return sink_map(score_LH, epsilon=self.report["epsilon"], position=self.report["position"])

    def __repr__(self) -> str:
        return " ".join(self.sentences())

    def _repr_html_(self) -> str:
        return fragment(self.sentences(), self.listings())


@dataclasses.dataclass(frozen=True, repr=False)
class Intervention:
    """What is left of the sinks, block by block, and what it cost.

    Attributes:
        report: what ``bornbiased intervene --json`` writes.
    """

    report: Mapping[str, Any]

    def sentences(self) -> list[str]:
        """What was found, as the command ends with it."""
        return sentences.intervene(self.report)

    def listing(self) -> Listing:
        """A row for each block: the fraction of its heads that are sinks, as it is and after."""
        report = self.report
        pairs = zip(report["before"]["by_block"], report["by_block"], strict=True)
        rows = [[block, before, after] for block, (before, after) in enumerate(pairs, 1)]
        title = f"Heads that are sinks at position {report['position']}, epsilon {report['epsilon']:g}"
        return Listing(title, ["block", "as it is", "after"], rows)

    def plot(self) -> Figure:
        """The fraction of heads that are sinks by block, as it is and after."""
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

    def __repr__(self) -> str:
        return " ".join(self.sentences())

    def _repr_html_(self) -> str:
        return fragment(self.sentences(), [self.listing()])


def sinks(checkpoint: str | Path | Checkpoint, text: str | Path, **options: Any) -> Sinks:
    """Look for attention sinks on a text.

    Args:
        checkpoint: a reference, or what :func:`bornbiased_jax.checkpoints.open_checkpoint` returned.
        text: a file, a folder, ``builtin:prose`` or ``builtin:code``.
        options: as :func:`bornbiased_jax.evaluation.sinks_report` takes them (``lengths``, ``epsilon`` …).

    Raises:
        InputError: what that function refuses.
    """
    from bornbiased_jax.evaluation import sinks_report

    return Sinks(sinks_report(checkpoint, text, **options))


def intervention(checkpoint: str | Path | Checkpoint, text: str | Path, **options: Any) -> Intervention:
    """Cut or move what makes a sink, and see what is left of it.

    Args:
        checkpoint, text: as in :func:`sinks`.
        options: as :func:`bornbiased_jax.evaluation.intervention.intervene_checkpoint` takes them: ``silence``,
            ``write``, ``clear``, ``first_token``, ``length``, ``num_sequences`` …

    Raises:
        InputError: what that function refuses.
    """
    from bornbiased_jax.checkpoints import Checkpoint, open_checkpoint
    from bornbiased_jax.evaluation.intervention import intervene_checkpoint

    opened = checkpoint if isinstance(checkpoint, Checkpoint) else open_checkpoint(checkpoint)
    return Intervention(intervene_checkpoint(opened, text, **options))
