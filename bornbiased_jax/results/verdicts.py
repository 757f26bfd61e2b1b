"""Results of `seedprint`: whether two models share an initialization."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bornbiased_jax.errors import InputError
from bornbiased_jax.results.listing import Listing, data_frame, fragment

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from bornbiased_jax.lineage import Verdict
    from bornbiased_jax.lineage.baselines import Score
    from bornbiased_jax.lineage.trace import Source


@dataclasses.dataclass(frozen=True, repr=False)
class Lineage:
    """The verdict on two models.

    Attributes:
        base, suspect: what a reader knows them by.
        verdict: what was decided, on what evidence.
        scores: published scores of the weights; None where none were computed.
    """

    base: str
    suspect: str
    verdict: Verdict
    scores: Sequence[Score] | None = None

    def to_json(self) -> dict[str, Any]:
        """Give what the command writes with --json."""
        value = self.verdict.to_json()
        return value if self.scores is None else {**value, "baselines": [score.to_json() for score in self.scores]}

    def summary(self) -> list[str]:
        """Say what was decided, how sure that is and what would hide a shared initialization."""
        return [self.verdict.summary()]

    def text(self) -> str:
        """Write what the command prints: the decision, the summary, the points that it rests on, the scores."""
        return self.verdict.text() + ("" if self.scores is None else f"\n{_score_lines(self.scores)}")

    def table(self) -> Listing:
        """List a row for each test."""
        rows = [["–" if cell is None else cell for cell in row.values()] for row in self._tests()]
        columns = ["test", "labels permuted", "null", "verdict", "log10 p", "z"]
        return Listing(f"{self.base} and {self.suspect}: {self.verdict.verdict}", columns, rows)

    def plot(self) -> Figure:
        """Draw where in the weights the models agree, z by block and matrix; else the statistic beside its null.

        Raises:
            InputError: a verdict that rests on neither, such as one about two names of the same weights.
        """
        from bornbiased_jax.report.lineage_page import module_map, null_figure

        value = self.verdict.to_json()
        figure = module_map(value["by_module"] or [])
        if figure is None and value.get("null_histogram") and value["z"] is not None:
            figure = null_figure(value["null_histogram"], value["z"])
        if figure is None:
            raise InputError(f"nothing to draw, the verdict rests on no statistic: {value['reason']}")
        return figure

    def to_pandas(self) -> DataFrame:
        """Make a data frame with a row for each test; needs pandas."""
        return data_frame(self._tests())

    def _tests(self) -> list[dict[str, Any]]:
        value = self.verdict.to_json()
        # A single test is a battery of one.
        tests = value.get("tests") or [{**value, "name": value["test"]}]
        keys = ("name", "permuted", "null", "verdict", "log10_p", "z")
        return [{key: test.get(key) for key in keys} for test in tests]

    def __repr__(self) -> str:
        return f"{self.verdict.verdict}: {' '.join(self.summary())}"

    def _repr_html_(self) -> str:
        return fragment(self.summary(), [self.table()])


def _score_lines(scores: Sequence[Score]) -> str:
    decisions = {None: "undefined", True: "same", False: "not the same"}
    width = max(len(score.method) for score in scores)
    lines = ["Published scores of the weights, read at their threshold of 0.8, or at p < 0.01 where they give a p:"]
    for score in scores:
        value = score.reason if score.value is None else f"{score.value:.4f}"
        if score.log10_p is not None:
            value += f", log10 p {score.log10_p:.2f}"
        lines.append(f"  {score.method:<{width}}  {value}  ({decisions[score.same]})")
    return "\n".join(lines)


def lineage(base: Source, suspect: Source, **options: Any) -> Lineage:
    """Say whether two models share an initialization, by their weights where both have any.

    Args:
        base, suspect: references to checkpoints, stored fingerprints, or either of them opened.
        options: as :func:`bornbiased_jax.lineage.trace.trace` takes them (``test``, ``alpha``, ``base_digest`` …).

    Raises:
        InputError: what that function refuses.

    Example:
        >>> from bornbiased_jax import progress
        >>> progress.set_quiet(True)
        >>> small = "llama-tiny,num_layers=1,d_model=32,vocab_size=64"
        >>> lineage(f"seed:1@{small}", f"seed:2@{small}").verdict.verdict
        'unrelated'
    """
    from bornbiased_jax.lineage import trace

    verdict = trace.trace(base, suspect, **options)
    return Lineage(trace.Side(base).name, trace.Side(suspect).name, verdict)
