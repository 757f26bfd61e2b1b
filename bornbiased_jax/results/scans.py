"""Results of `scan`: which of many models a suspect shares an initialization with."""

from __future__ import annotations

import dataclasses

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bornbiased_jax import progress
from bornbiased_jax.lineage import scan as scanning
from bornbiased_jax.lineage.battery import ALPHA
from bornbiased_jax.lineage.mixture import ILL_CONDITIONED, Coefficient, Mixture, check_checkpoint
from bornbiased_jax.lineage.mixture import mixture as fit_mixture
from bornbiased_jax.lineage.permutation import check_alpha
from bornbiased_jax.lineage.scan import Match, ScanResult, screening_threshold
from bornbiased_jax.lineage.verdict import format_p
from bornbiased_jax.lineage.weights_compare import check_count
from bornbiased_jax.report import figures
from bornbiased_jax.report.tables import Panel
from bornbiased_jax.results.result import Listing, Result, listing
from bornbiased_jax.results.wording import among, count
from bornbiased_jax.stats.permutations import NUM_PERMUTATIONS

# Bases that the table shows besides those that match.
_SHOWN = 10
# A mixture that leaves more of the distance than this explains nearly nothing.
_UNEXPLAINED = 0.9
_TRAP = (
    "Coefficients are geometry and never say which model another one descends from: a fine-tune can lie nearer its "
    "sibling, made from the same base on similar texts, than the base itself."
)
_COLUMNS = {"verdict": "verdict", "evidence": "evidence", "log10_p": "log10 p", "z": "z"}


@dataclasses.dataclass(frozen=True, repr=False)
class Scan(Result):
    """A suspect against many bases.

    Attributes:
        result: what was measured.
        mixture: the suspect fitted by the bases; None where that was not wanted.
    """

    question = "Which models share an initialization?"
    axes = ("base",)
    result: ScanResult
    mixture: Mixture | None = None

    def to_json(self) -> dict[str, object]:
        """Return what the command writes with --json."""
        rows = [_row(match) for match in self.result.matches]
        facts = {"num_bases": len(rows), "num_tested": self.result.num_tested, "alpha": self.result.alpha}
        suspect = {"suspect": self.result.suspect, "suspect_digest": self.result.suspect_digest}
        fitted = {} if self.mixture is None else dataclasses.asdict(self.mixture)
        mixture = {"mixture": fitted.pop("coefficients")} if fitted else {}
        return {**suspect, "matches": rows, **facts, **mixture, **fitted}

    def summary(self) -> list[str]:
        """Say with which bases an initialization is shared, how sure that is, and toward which the suspect lies."""
        return [*self._matches_summary(), *([] if self.mixture is None else mixture_summary(self.mixture, self.result))]

    def _matches_summary(self) -> list[str]:
        matches, num_bases = self.result.matches, len(self.result.matches)
        related = [match for match in matches if match.verdict == "same-lineage"]
        unclear = [match.base for match in matches if match.verdict == "undefined"]
        undefined = (
            f"Undefined for {len(unclear)} of {num_bases} bases: {', '.join(unclear)}. `bornbiased seedprint` says why."
        )
        if len(unclear) == num_bases:
            return [undefined]
        if not related:
            return [
                f"Of {count(num_bases - len(unclear), 'base')} none shares an initialization with "
                f"{self.result.suspect}, as far as the stored order of coordinates, neurons and heads shows. "
                "`bornbiased seedprint` also matches neurons in another order.",
                *([undefined] if unclear else []),
            ]
        named = ", ".join(
            f"{match.base} (the same weights)"
            if match.is_identical
            else f"{match.base} ({format_p(match.log10_p or 0.0)})"
            for match in related
        )
        return [
            f"{self.result.suspect} shares an initialization with {len(related)} of {num_bases} bases: {named}. "
            "No test of weights can say which of two is older.",
            *([undefined] if unclear else []),
        ]

    def tables(self) -> list[Listing]:
        """List the bases that agree most, then the components of those that match."""
        matches = self.result.matches
        top = [match for index, match in enumerate(matches) if match.verdict == "same-lineage" or index < _SHOWN]
        threshold = screening_threshold(self.result.alpha, len(matches))
        note = (
            f"{self.result.num_tested} of {len(matches)} bases passed the screen at z = {threshold:.2g}; p is "
            "corrected for all."
        )
        title = f"{self.result.suspect} against {count(len(matches), 'base')}"
        components = [
            listing(f"Components of {match.base}", {"component": "component", **_COLUMNS}, match.components)
            for match in top
            if match.verdict == "same-lineage" and match.components
        ]
        mixtures = [] if self.mixture is None else mixture_tables(self.mixture)
        return [listing(title, {"base": "base", **_COLUMNS}, list(map(_row, top)), note), *components, *mixtures]

    def figures(self) -> dict[str, Panel]:
        """Draw z of the bases that agree most, and the coefficients of a mixture by block."""
        panels = {} if self.mixture is None else mixture_figures(self.mixture)
        figure = self.draw()
        if figure is None:
            return panels
        caption = "z of the bases that agree most; orange: they share an initialization."
        return {"bases": Panel(figure, caption), **panels}

    def draw(self, ax: Axes | None = None) -> Figure | None:
        """Draw z of the bases that agree most, into axes if given; None where no base has any."""
        rows = [match for match in self.result.matches if match.z is not None][:_SHOWN]
        if not rows:
            return None
        figure, ax = figures.new(height=1.0 + 0.3 * len(rows), ax=ax)
        places = np.arange(len(rows))
        z = [float(match.z or 0.0) for match in rows]
        colors = [figures.SERIES[1] if match.verdict == "same-lineage" else figures.MEASURED for match in rows]
        ax.barh(places, z, color=colors)
        ax.set_yticks(places, [figures.short(match.base) for match in rows])
        ax.invert_yaxis()
        figures.label(ax, "z", "")
        return figure

    def rows(self) -> list[dict[str, object]]:
        """Return a row for each base."""
        return [{key: row[key] for key in ("base", *_COLUMNS)} for row in map(_row, self.result.matches)]


def _row(match: Match) -> dict[str, object]:
    return {
        "base": match.base,
        "digest": match.digest,
        "verdict": match.verdict,
        "p_value": match.p_value,
        "log10_p": match.log10_p,
        "z": match.z,
        "evidence": match.evidence,
        "identical": match.is_identical,
        "components": list(match.components),
    }


def mixture_summary(mixture: Mixture, result: ScanResult) -> list[str]:
    """Say toward which models a suspect lies, how much that leaves unexplained, and what it does not show."""
    first, *further = sorted(mixture.coefficients, key=lambda row: -row.coefficient)
    weaker = among([f"{row.base} ({_with_std(row)})" for row in further])
    nearer = f" than {weaker}" if further else ""
    sentences = [
        f"On the way from {mixture.origin}, {result.suspect} lies nearer {first.base} (coefficient "
        f"{_with_std(first)}, ± over {mixture.num_tensors} matrices){nearer}. Of its distance from "
        f"{mixture.origin} the fraction {mixture.residual:.3f} is explained by no combination of these models."
    ]
    if mixture.residual > _UNEXPLAINED:
        sentences.append(
            "Nearly all is unexplained: these models are not what it was mixed from, or it was rotated, or its heads "
            "or experts were permuted, which is not undone here."
        )
    if mixture.condition_number > ILL_CONDITIONED:
        sentences.append(
            f"The models' differences from the base nearly depend on each other (condition number "
            f"{mixture.condition_number:.0f}): single coefficients are poorly determined."
        )
    if mixture.undone:
        sentences.append(f"Put back in order before the fit: {among(mixture.undone)}.")
    if mixture.left_out:
        sentences.append(
            f"Matrices left out ({len(mixture.left_out)}), missing from a model or of another shape: "
            f"{among(mixture.left_out[:4])}{' and more' if len(mixture.left_out) > 4 else ''}."
        )
    return [*sentences, _TRAP]


def _with_std(row: Coefficient) -> str:
    return f"{row.coefficient:.3f} ± {row.std:.3f}"


def mixture_tables(mixture: Mixture) -> list[Listing]:
    """List the coefficients, over all matrices and by block."""
    note = f"Residual {mixture.residual:.4f}, condition number {mixture.condition_number:.3g}. {_TRAP}"
    rows = [{"base": row.base, "coefficient": row.coefficient, "std": row.std} for row in mixture.coefficients]
    columns = {"base": "toward", "coefficient": "coefficient", "std": "std over matrices"}
    blocks = [
        ["outside blocks" if cells[0].block is None else str(cells[0].block), *(cell.coefficient for cell in cells)]
        for cells in zip(*(row.by_block for row in mixture.coefficients), strict=True)
    ]
    names = [row.base for row in mixture.coefficients]
    return [
        listing(f"Mixture, from {mixture.origin}", columns, rows, note),
        Listing("Coefficients by block", ["block", *names], blocks),
    ]


def mixture_figures(mixture: Mixture) -> dict[str, Panel]:
    """Draw the coefficients of a mixture over depth."""
    figure, ax = figures.new(height=3.0)
    bars = []
    for index, row in enumerate(mixture.coefficients):
        cells = [cell for cell in row.by_block if cell.block is not None and cell.coefficient is not None]
        blocks, heights = [cell.block for cell in cells], [cell.coefficient for cell in cells]
        color, dashes = figures.curve_style(index)
        stds = [cell.std for cell in cells]
        bars.append(ax.errorbar(blocks, heights, stds, color=color, linestyle=dashes, marker="o", capsize=2))
    ax.legend(bars, [figures.short(row.base) for row in mixture.coefficients])
    figures.count_axis(ax)
    figures.label(ax, "block", "coefficient")
    caption = (
        f"How far the suspect went from {mixture.origin} (0) toward each model (1), block by block; bars: standard "
        "deviation over the matrices of a block."
    )
    return {"mixture": Panel(figure, caption)}


def scan(
    suspect: str,
    *bases: str,
    alpha: float | None = None,
    num_permutations: int | None = None,
    mixture_base: str | None = None,
) -> Scan:
    """Say which of many models one model shares an initialization with.

    Args:
        suspect: a checkpoint or a file of a stored fingerprint.
        bases: checkpoints, stored fingerprints, or folders of fingerprints.
        alpha: level of all decisions together; 10⁻⁴ by default.
        num_permutations: of the tests of those bases that pass the screen and that quick bounds do not decide.
        mixture_base: a checkpoint: also fit the suspect's difference from it by those of the bases.

    Raises:
        InputError: a model that cannot be read, no base at all, a bad option, or a mixture of stored fingerprints.

    Example:
        >>> progress.set_quiet(True)
        >>> small = "llama-tiny,num_layers=1,d_model=32,vocab_size=64"
        >>> [match.verdict for match in scan(f"seed:1@{small}", f"seed:1@{small}", f"seed:2@{small}").result.matches]
        ['same-lineage', 'unrelated']
    """
    level = check_alpha(ALPHA if alpha is None else alpha)
    permutations = check_count(NUM_PERMUTATIONS if num_permutations is None else num_permutations)
    models = scanning.find_bases(bases)
    if mixture_base is not None:
        # Refuse stored fingerprints before anything is read.
        for place in (mixture_base, suspect, *(model.place for model in models)):
            check_checkpoint(place)
    with progress.bar(len(models), f"scan {suspect}", unit="bases") as advance:
        result = scanning.scan(suspect, models, alpha=level, num_permutations=permutations, advance=advance)
    return Scan(result, None if mixture_base is None else fit_mixture(suspect, mixture_base, models))
