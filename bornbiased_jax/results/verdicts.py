"""Whether two models share a birth."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from bornbiased_jax.errors import InputError
from bornbiased_jax.results import sentences
from bornbiased_jax.results.listing import Listing, fragment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bornbiased_jax.seedprint import Verdict
    from bornbiased_jax.seedprint.trace import Source


@dataclasses.dataclass(frozen=True, repr=False)
class Lineage:
    """The verdict on two models.

    Attributes:
        base, suspect: what a reader knows them by.
        verdict: what was decided, on what evidence; its ``to_json()`` is what ``bornbiased seedprint --json`` writes.
    """

    base: str
    suspect: str
    verdict: Verdict

    def sentences(self) -> list[str]:
        """What was found, how sure that is and what would hide a birth, as the command says it."""
        return sentences.seedprint(self.verdict.to_json())

    def listing(self) -> Listing:
        """A row for each test that was made."""
        told = self.verdict.to_json()
        # A single test is a battery of one.
        tests = told.get("tests") or [{**told, "name": told["test"]}]
        keys = ("name", "permuted", "null", "verdict", "log10_p", "z")
        rows = [["–" if test.get(key) is None else test[key] for key in keys] for test in tests]
        columns = ["test", "labels permuted", "null", "verdict", "log10 p", "z"]
        return Listing(f"{self.base} and {self.suspect}: {told['verdict']}", columns, rows)

    def plot(self) -> Figure:
        """Where in the weights the models agree, z by block and matrix; else the statistic beside its null.

        Raises:
            InputError: a verdict that rests on neither, such as one about two names of the same weights.
        """
        from bornbiased_jax.report.lineage_page import module_map, null_figure

        told = self.verdict.to_json()
        figure = module_map(told["by_module"] or [])
        if figure is None and told.get("null_histogram") and told["z"] is not None:
            figure = null_figure(told["null_histogram"], told["z"])
        if figure is None:
            raise InputError(f"nothing to draw, the verdict rests on no statistic: {told['reason']}")
        return figure

    def __repr__(self) -> str:
        return f"{self.verdict.verdict}: {' '.join(self.sentences())}"

    def _repr_html_(self) -> str:
        return fragment(self.sentences(), [self.listing()])


def lineage(base: Source, suspect: Source, **options: Any) -> Lineage:
    """Say whether two models share a birth, by their weights where both have any.

    Args:
        base, suspect: references to checkpoints, stored fingerprints, or either of them opened.
        options: as :func:`bornbiased_jax.seedprint.trace.trace` takes them (``test``, ``alpha``, ``base_digest`` …).

    Raises:
        InputError: what that function refuses.

    Example:
        >>> from bornbiased_jax import progress
        >>> progress.set_quiet(True)
        >>> small = "llama-tiny,num_layers=1,d_model=32,vocab_size=64"
        >>> lineage(f"seed:1@{small}", f"seed:2@{small}").verdict.verdict
        'unrelated'
    """
    from bornbiased_jax.seedprint import trace

    verdict = trace.trace(base, suspect, **options)
    return Lineage(trace.Side(base).name, trace.Side(suspect).name, verdict)
