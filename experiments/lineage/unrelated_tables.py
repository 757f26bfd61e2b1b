"""How the record of ``court`` is shown: a line a test with its promise, then every kind of pair, then matchings."""

from __future__ import annotations

from collections.abc import Sequence

from bornbiased_jax.experiments.base import Entry, Record
from bornbiased_jax.report.numbers import fixed, integer, p_value, percent, rate_interval
from bornbiased_jax.report.tables import Cells, Claim, Table, tabulate

_WORDS = {True: "kept", False: "EXCEEDED", None: "not tried"}
SCORE_LEVEL = 0.05
"""The fraction of unrelated pairs above a score's threshold that counts as too many: scores state none themselves."""


def _of(record: Record, name: str) -> Sequence[Entry]:
    return [summary for summary in record["result"]["tests"] if summary["test"] == name]


def _is_score(summaries: Sequence[Entry]) -> bool:
    return any(len(summary["rates"]) == 1 for summary in summaries)


def tables(record: Record) -> Sequence[Table]:
    """Tabulate calibration; size by kind of pair, for p and for scores; matchings."""
    return [_promises(record), _sizes(record), _scores(record), _matchings(record)]


def _promises(record: Record) -> Table:
    rows = []
    for promise in record["result"]["promises"]:
        summaries = [summary for summary in _of(record, promise["test"]) if summary["rates"]]
        if not summaries:
            continue
        worst = max(summaries, key=lambda summary: summary["rates"][0]["rate"])
        where = list(dict.fromkeys(entry["kind"] for entry in promise["broken"]))
        measured: Cells = {
            "pairs": (integer, sum(summary["num_pairs"] - summary["num_undefined"] for summary in summaries)),
            "level": _WORDS[promise["kept"]],
            "called the same, worst kind": rate_interval(worst["rates"][0]),
            "worst kind": worst["kind"],
            "exceeded on": "; ".join(where) or None,
        }
        source = "published" if promise["published"] else "this package"
        reads = "score > 0.8" if _is_score(summaries) else "p ≤ 0.01"
        rows.append(([promise["test"], source, reads], measured))
    note = (
        f"Unrelated pairs. {_about(record)} The level of a p is its own; a score states no rate, and is held against "
        f"{percent(0)(SCORE_LEVEL)} above its published threshold, which is a reading of this project at these widths. "
        "Exceeded: on some kind of pair the fraction called the same is above the level beyond doubt (95% for all "
        "intervals of a test together). Keeping it on so few models is no proof, and says nothing of power: a test "
        "that calls nothing the same keeps it too. The constants behind AWM's z belong to published models of 7 "
        "billion parameters; at these widths they do not hold."
    )
    title = "Which test keeps its level"
    return tabulate(title, ["test", "source", "read at"], rows, note, first_screen=True)


def _about(record: Record) -> str:
    settings, counts = record["settings"], record["result"]["num_pairs"]
    schedule = settings["schedule"]
    each = settings["seeds_an_order"] * 2
    models = each * len(settings["widths"]) * len(settings["corpora"])
    widths = " and ".join(map(str, settings["widths"]))
    numbers = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    return (
        f"{models} trained models ({settings['changes']['num_layers']} blocks, D = {widths}, bytes, "
        f"{schedule['steps']} steps of {schedule['batch_size']} × {schedule['context']} tokens; {each} seeds for each "
        f"width and text, half with another order of the data) and {models} initializations. Pairs: {numbers}."
    )


def _sizes(record: Record) -> Table:
    rows = []
    for summary in record["result"]["tests"]:
        if len(summary["rates"]) != 2:
            continue
        measured: Cells = {
            "p ≤ 0.01": rate_interval(summary["rates"][0]),
            "p ≤ 0.05": rate_interval(summary["rates"][1]),
            "KS p": (p_value(2), summary["ks_p"]),
            "disjoint pairs": (integer, summary["ks_pairs"]),
            "smallest p": (p_value(2), summary["least"]),
            "undefined": (integer, summary["num_undefined"]),
        }
        rows.append(([summary["test"], summary["kind"], summary["num_pairs"]], measured))
    note = (
        "95% intervals, models resampled. KS against uniform on pairs that share no model. Algorithm 1 and iclr read "
        "random tokens, or Gaussian vectors that both models share, as published."
    )
    return tabulate("Sizes on unrelated pairs", ["test", "pairs of", "number"], rows, note)


def _scores(record: Record) -> Table:
    rows = []
    for summary in record["result"]["tests"]:
        if len(summary["rates"]) != 1:
            continue
        numbers = {name: (fixed(3), summary[name]) for name in ("least", "median", "largest")}
        measured = {"above 0.8": rate_interval(summary["rates"][0]), **numbers}
        rows.append(([summary["test"], summary["kind"], summary["num_pairs"]], measured))
    return tabulate("Scores of unrelated pairs", ["score", "pairs of", "number"], rows)


def _matchings(record: Record) -> Table:
    rows = []
    for matching in record["result"]["matchings"]:
        middle, high, highest = matching["agreement_quantiles"]
        measured = {
            "φ_MATCH, by block": ", ".join(map(fixed(1), matching["activations"])),
            "agreement, median": (percent(2), middle),
            "90%": (percent(2), high),
            "99%": (percent(2), highest),
            "largest": (percent(2), matching["agreement_largest"]),
            "largest in a block": (percent(2), matching["agreement_largest_block"]),
        }
        rows.append(([matching["kind"], matching["num_pairs"]], measured))
    units = " and ".join(str(2 * width) for width in record["settings"]["widths"])
    note = (
        f"Mean number of units that two independent matchings pair alike, of {units}; 1 by chance. "
        "φ_MATCH: activations. Agreement: the fraction of units, over the blocks of a pair, that verdicts hold against "
        "20% between trained models."
    )
    return tabulate("Independent matchings of unrelated models", ["pairs of", "number"], rows, note)


def largest_unrelated_agreement(record: Record) -> float:
    """Find the largest agreement of matchings over the blocks of a pair of models that were trained apart."""
    kinds = [matching for matching in record["result"]["matchings"] if matching["kind"].startswith("trained")]
    return float(max(matching["agreement_largest"] for matching in kinds))


def claims(record: Record) -> Sequence[Claim]:
    """State how many tests are calibrated, how many scores stay below their thresholds, and the largest agreement."""
    widths = " and ".join(map(str, record["settings"]["widths"]))
    groups = (
        (True, False, "Published tests that keep the level of their p on unrelated pairs"),
        (True, True, f"Published scores above their threshold on at most {percent(0)(SCORE_LEVEL)} of unrelated pairs"),
        (False, False, "Tests of this package that keep the level of their p on unrelated pairs"),
    )
    statements = []
    for published, is_score, words in groups:
        tried = [row["kept"] for row in _tried(record, is_score) if row["published"] is published]
        statements.append(
            Claim(
                f"{words}, D = {widths}, of {len(tried)}",
                float(sum(tried)),
                theory=None if is_score else float(len(tried)),
                format=integer,
            )
        )
    largest = Claim(
        "Largest agreement of two independent matchings of hidden units between models trained apart",
        largest_unrelated_agreement(record),
        format=percent(1),
    )
    return [*statements, largest]


def headline(record: Record) -> str:
    """Name the tests that are not calibrated, and apart from them the scores, which state no rate."""
    names = {}
    for is_score in (False, True):
        exceeded = [row["test"] for row in _tried(record, is_score) if not row["kept"]]
        names[is_score] = "; ".join(exceeded) if exceeded else "none"
    widths = " and ".join(map(str, record["settings"]["widths"]))
    return (
        f"Of {len(_tried(record, False))} tests with a p these reject unrelated models of width {widths} more often "
        f"than at their level: {names[False]}. Of {len(_tried(record, True))} scores, which state no rate, these "
        f"exceed their published threshold on more than {percent(0)(SCORE_LEVEL)} of some kind of unrelated pair: "
        f"{names[True]}."
    )


def _tried(record: Record, is_score: bool) -> Sequence[Entry]:
    return [
        row
        for row in record["result"]["promises"]
        if row["kept"] is not None and _is_score(_of(record, row["test"])) is is_score
    ]
