"""Results of `predict`: what mean-field theory says of a configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bornbiased_jax.config import PRESETS, FieldValue
from bornbiased_jax.report import figures
from bornbiased_jax.report.tables import Panel
from bornbiased_jax.results.result import Listing, Result
from bornbiased_jax.results.wording import explain, named, percent

_BY_LAYER = {
    "inter_cosine": "inter_cosine_by_layer",
    "inter_cosine_std": "inter_cosine_by_layer_std",
    "intra_cosine": "intra_cosine_by_layer",
}


@dataclasses.dataclass(frozen=True, repr=False)
class Prediction(Result):
    """Predictions of theory, one a value of the swept field.

    Attributes:
        name: of the model, for a reader.
        model: its configuration, all fields.
        records: what :func:`bornbiased_jax.prediction.predict` returns; with a sweep each holds the swept field.
        swept: that field; "" without a sweep, where there is one record.
    """

    question = "What does theory expect of an untrained model?"
    axes = ("block", "seq_len")
    name: str
    model: Mapping[str, FieldValue]
    records: Sequence[Mapping[str, Any]]
    swept: str = ""

    def index(self) -> tuple[str, ...]:
        """Return the columns that say which row a row is, the field of a sweep among them."""
        return (*self.axes, self.swept) if self.swept else self.axes

    def to_json(self) -> dict[str, object]:
        """Return what the command writes with --json: the prediction, with a sweep ``records``."""
        return ({"records": list(self.records)} if self.swept else dict(self.records[0])) | {"model": self.model}

    def summary(self) -> list[str]:
        """Say which cosine and top-1 fraction theory expects, and for which seeds its band holds."""
        sentences = []
        for record in self.records:
            cosine, std = record["inter_cosine_by_layer"][-1], record["inter_cosine_by_layer_std"][-1]
            median, low, high = (percent(record[f"top1_share_{end}"]) for end in ("p50", "p10", "p90"))
            band = f"are at {low}" if low == high else f"lie between {low} and {high}"
            at = f"At {self.swept} = {record[self.swept]} theory" if self.swept else "Theory"
            sentences.append(
                f"{at} expects unrelated inputs to end at a cosine of {cosine:.3f} after the last block, give or take "
                f"{std:.3f} from seed to seed, and {median} of the inputs to get one and the same token: the median of "
                f"seeds with fresh embeddings, of which 80% {band}."
            )
        return [
            *sentences,
            "No model was built, nothing was sampled or fitted to measurements, and one constant of the interval's "
            "width was chosen. `probe … --theory` sets a measurement next to the prediction, which is then for the one "
            "embedding table that all seeds of `probe` share.",
        ]

    def _subject(self) -> str:
        """Name the model, and what was changed in a preset."""
        return (self.name in PRESETS and named(self.model)) or self.name

    def tables(self) -> list[Listing]:
        """List a row for each block; with a sweep first a row for each value."""
        tables = [self._by_value()] if self.swept else []
        for index, record in enumerate(self.records):
            at = f", {self.swept} = {record[self.swept]}" if self.swept else ""
            columns = ["after block", "cosine between sequences", "std across seeds", "cosine within a sequence"]
            rows = [[row[name] for name in ("block", *_BY_LAYER)] for row in self._layers(record)]
            median, low, high = (record[f"top1_share_{end}"] for end in ("p50", "p10", "p90"))
            note = (
                f"Fraction of the top-1 token: {median:.3%} in the median of seeds with fresh embeddings "
                f"(80%: {low:.3%}–{high:.3%})"
            )
            if index == 0:
                terms = "cosine between sequences", "cosine within a sequence", "top-1 token", "top-1 fraction"
                note += f"\n{explain(*terms)}"
            tables.append(Listing(f"Theory for {self._subject()}{at}, T = {record['seq_len']}", columns, rows, note))
            if "gradient_norm_by_block" in record:
                tables.append(_gradients(record, at))
        return tables

    def figures(self) -> dict[str, Panel]:
        """Draw the cosine after each block, with the interval over seeds; a curve for each value of a sweep."""
        coverage = f"{100 * self.records[0]['coverage']:.0f}%"
        caption = f"Predicted cosine; bands hold {coverage} of seeds." + figures.left_out(len(self.records))
        return {"prediction": Panel(self.draw(), caption)}

    def draw(self, ax: Axes | None = None) -> Figure:
        """Draw that figure, into axes if given."""
        figure, ax = figures.new(ax=ax)
        for record, color in zip(self.records, figures.SERIES, strict=False):
            cosine, low, high = (record[f"inter_cosine_by_layer{end}"] for end in ("", "_low", "_high"))
            name = f"{self.swept} = {record[self.swept]}" if self.swept else "theory"
            figures.line(ax, range(1, len(cosine) + 1), cosine, (low, high), name, color, dashed=True)
        figures.count_axis(ax)
        figures.label(ax, "after block", "cosine between unrelated inputs")
        figures.legend(ax)
        return figure

    def rows(self) -> list[dict[str, object]]:
        """Return a row for each block."""
        return [row for record in self.records for row in self._layers(record)]

    def _layers(self, record: Mapping[str, Any]) -> list[dict[str, object]]:
        shared = {self.swept: record[self.swept]} if self.swept else {}
        by_layer = {name: record[key] for name, key in _BY_LAYER.items()}
        if "gradient_norm_by_block" in record:
            by_layer["gradient_norm"] = record["gradient_norm_by_block"]
            groups = record["gradient_norm_by_group"].items()
            by_layer |= {f"gradient_norm.{group}": norms for group, norms in groups}
        return [
            {**shared, "seq_len": record["seq_len"], "block": block + 1}
            | {name: values[block] for name, values in by_layer.items()}
            for block in range(len(record["inter_cosine_by_layer"]))
        ]

    def _by_value(self) -> Listing:
        rows = [
            [
                record[self.swept],
                record["inter_cosine_by_layer"][-1],
                record["inter_cosine_by_layer_std"][-1],
                record["intra_cosine_by_layer"][-1],
                record["top1_share_p50"],
                f"{record['top1_share_p10']:.4g} to {record['top1_share_p90']:.4g}",
            ]
            for record in self.records
        ]
        columns = [self.swept, "cosine, last block", "std across seeds", "within a sequence", "top-1 fraction, median"]
        return Listing(f"Theory for {self._subject()} by {self.swept}", [*columns, "80% of seeds"], rows)


def _gradients(record: Mapping[str, Any], at: str) -> Listing:
    """List gradient norms, a row for each block."""
    groups = record["gradient_norm_by_group"]
    rows = [
        [block + 1, norm, *(norms[block] for norms in groups.values())]
        for block, norm in enumerate(record["gradient_norm_by_block"])
    ]
    title = f"Norm of the gradient of the mean loss over {record['num_tokens']:,} random tokens{at}"
    return Listing(title, ["block", "all", *groups], rows)
