"""How the benchmark of disputes is shown: verdicts by kind, power by score, then AUC by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bornbiased_jax.experiments.base import Entry, Record
from bornbiased_jax.experiments.lineage.descendants_summary import FALSE_POSITIVES
from bornbiased_jax.report import figures as plots
from bornbiased_jax.report.numbers import fixed, integer, percent, rate_interval
from bornbiased_jax.report.tables import Cells, Panel, Table, tabulate

_POWERFUL = 0.9
_OURS = "this package"
# Parts of a model that a verdict has rows for, and the rows: by name, or by the part before the number.
_PARTS = {
    "whole": ("all",),
    "embedding": ("embedding",),
    "head": ("head",),
    "blocks": ("blocks",),
    "experts": ("experts",),
    "tower": ("vision/all",),
}


def tables(record: Record) -> Sequence[Table]:
    """Tabulate verdicts by kind; every score over all kinds; its own scores by kind; false positives; AUC by kind."""
    tests = record["result"]["tests"]
    return [_verdicts(record), scores(tests), _power(record), _false_positives(record), areas(tests)]


def _verdicts(record: Record) -> Table:
    rows = []
    for entry in record["result"]["verdicts"]:
        measured: Cells = {
            "found": f"{entry['found']} of {entry['guilty']}",
            "called related": f"{entry['accused']} of {entry['innocent']}",
        }
        for part, names in _PARTS.items():
            fractions = [
                row["guilty"]
                for row in entry["components"]
                if (row["component"] in names or row["component"].rpartition("/")[0] in names)
                and row["guilty"] is not None
            ]
            measured[part] = (percent(0), sum(fractions) / len(fractions) if fractions else None)
        rows.append(([entry["kind"]], measured))
    note = (
        "Found: suspects made from the base that `auto` calls `same-lineage` at 10⁻⁴, from two fingerprints; called "
        "related: suspects made from another base. The other columns say how often a part of a suspect made from the "
        "base is called so by itself, mean over blocks and over experts; the agreement of matchings is of whole "
        f"models. {_about(record)}"
    )
    return tabulate("Verdicts by kind of dispute", ["what was done to the base"], rows, note, first_screen=True)


def _about(record: Record) -> str:
    settings, pairs = record["settings"], record["result"]["num_pairs"]
    changes, schedule = settings["changes"], settings["schedule"]
    guilty = settings["models"]
    return (
        f"{settings['models']} bases ({changes['num_layers']} blocks, D = {changes['d_model']}, F = {changes['d_ff']}, "
        f"bytes, {schedule['steps']} steps of {schedule['batch_size']} × {schedule['context']} tokens; retraining is "
        f"{settings['retraining']['steps']} steps on another text): {pairs['guilty']:,} pairs of a base and its "
        f"suspect (guilty) and {pairs['innocent']:,} of a base and another base's suspect (innocent). Where all "
        f"{guilty} guilty pairs of a kind are found, the 95% interval begins at {percent(0)(0.025 ** (1 / guilty))}."
    )


def scores(tests: Sequence[Entry]) -> Table:
    """Tabulate what :func:`.disputes.summarize` found of each score, over all kinds."""
    rows = []
    for test in tests:
        kinds = test["kinds"]
        missed = [kind["kind"] for kind in kinds if kind["power"] < _POWERFUL]
        measured: Cells = {
            "AUC, all kinds": _interval(test["auc"]),
            "found at 1%": (percent(0), test["power"]),
            "kinds found": f"{len(kinds) - len(missed)} of {len(kinds)}",
            "least AUC of a kind": (fixed(2), min(kind["auc"]["rate"] for kind in kinds)),
            "kinds undefined": (
                integer,
                sum(kind["auc"]["rate"] == 0.5 and kind["num_undefined"] > 0 for kind in kinds),
            ),
        }
        rows.append(([test["test"], test["source"]], measured))
    note = (
        "Found at 1%: guilty pairs whose score lies above all but 1% of the innocent pairs of all kinds; a kind is "
        "found if at least 90% of its guilty pairs are. An undefined score (another depth, another number of "
        "neurons, experts) ranks last; where all are undefined, an AUC of 0.50 is no answer at all. All kinds count "
        "alike, which disputes in the world do not."
    )
    return tabulate("What each score is worth in a dispute", ["score", "source"], rows, note, first_screen=True)


def _interval(entry: Mapping[str, float]) -> str:
    return "{} [{}, {}]".format(*(fixed(2)(entry[end]) for end in ("rate", "low", "high")))


def _power(record: Record) -> Table:
    tests = [test for test in record["result"]["tests"] if test["source"] == _OURS]
    rows = []
    for number, entry in enumerate(record["result"]["verdicts"]):
        rows.append(([entry["kind"]], {test["test"]: (percent(0), test["kinds"][number]["power"]) for test in tests}))
    note = (
        "Fraction of guilty pairs whose z, or agreement of matchings, lies above all but 1% of the innocent pairs of "
        "all kinds."
    )
    return tabulate("Found by each piece of evidence", ["what was done to the base"], rows, note)


def _false_positives(record: Record) -> Table:
    rows = []
    for entry in record["result"]["false_positives"]:
        measured: Cells = {
            "p ≤ 0.01": rate_interval(entry),
            "p ≤ 10⁻⁴": (integer, entry["below_alpha"]),
        }
        rows.append(([entry["test"], entry["num_pairs"]], measured))
    note = (
        "Innocent pairs in which the evidence is defined: the fraction with p ≤ 0.01, with its 95% interval (models "
        "resampled), and the number with p ≤ 10⁻⁴."
    )
    return tabulate("False positives", ["evidence", "innocent pairs"], rows, note)


def areas(tests: Sequence[Entry]) -> Table:
    """Tabulate the area under the ROC curve of each score, by kind of dispute."""
    rows = []
    for test in tests:
        cells: Cells = {}
        for kind in test["kinds"]:
            is_undefined = kind["num_undefined"] == kind["num_guilty"]
            cells[kind["kind"]] = (fixed(2), None if is_undefined else kind["auc"]["rate"])
        rows.append(([test["test"]], cells))
    return tabulate("Area under the ROC curve, by kind", ["score"], rows, "Empty: undefined for that kind.")


def figures(record: Record) -> Sequence[Panel]:
    """Draw the ROC curve of every score over all kinds: this package's, then the others', the best of them by name."""
    figure, axes = plots.new(columns=2, width=9.0, height=4.6)
    tests = sorted(record["result"]["tests"], key=lambda test: -test["auc"]["rate"])
    for ax, is_ours in zip(axes, (True, False), strict=True):
        curves = [test for test in tests if (test["source"] == _OURS) is is_ours]
        named = len(plots.SERIES)
        for test in curves[named:]:
            ax.plot(FALSE_POSITIVES, test["roc"], color=plots.RULE, linewidth=1.2)
        for test, color in zip(curves, plots.SERIES, strict=False):
            # A name that continues the one before it in the tables stands alone here.
            name = test["test"].replace("the same after", "embeddings after")
            ax.plot(FALSE_POSITIVES, test["roc"], color=color, label=name, linewidth=1.2)
        ax.set_xscale("symlog", linthresh=1e-3)
        ax.set_ylim(0, 1.02)
        plots.label(ax, "fraction of innocent pairs above", "fraction of guilty pairs above")
        title = "this package" if is_ours else "others, by area under the curve"
        ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), title=title, alignment="left")
    caption = (
        "ROC of every score over all kinds of dispute together: how many guilty pairs lie above the threshold that a "
        f"fraction of the innocent ones exceeds. Of other scores the {len(plots.SERIES)} with the largest area are "
        "named."
    )
    return [Panel(figure, caption)]


def headline(record: Record) -> str:
    """Name the kinds that the verdict misses, and count the innocent pairs that it calls related."""
    result = record["result"]
    verdicts, innocent = result["verdicts"], result["accused"]
    missed = [f"{row['kind']} ({row['found']} of {row['guilty']})" for row in verdicts if row["found"] < row["guilty"]]
    misses = f"It misses pairs of: {'; '.join(missed)}." if missed else "It finds every guilty pair."
    return (
        f"The verdict calls {innocent['count']} of {innocent['num_pairs']:,} innocent pairs related (at most "
        f"{percent(1)(innocent['upper'])} if pairs were independent; they share {record['settings']['models']} "
        f"bases). {misses}"
    )
