"""How the benchmark of descendants is shown: whom to trust after which change, then the numbers behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bornbiased_jax.experiments.base import Entry, Record
from bornbiased_jax.experiments.lineage.sketched import SETTINGS
from bornbiased_jax.lineage.fingerprints import Settings
from bornbiased_jax.report.numbers import fixed, integer, percent, rate_interval, significant
from bornbiased_jax.report.tables import Cells, Claim, Table, tabulate

_DISTILLED = "distilled"


def tables(record: Record) -> Sequence[Table]:
    """Tabulate whom to trust; found by ours; found by published ones; all changes together; accusations."""
    return [
        _trust(record),
        _detections(record, "Found by tests of this package, at their own levels", published=False),
        _detections(record, "Found by published tests and scores, at calibrated thresholds", published=True),
        _overall(record),
        _accusations(record),
        *([_found_by_small(record)] if "small" in record["result"] else []),
    ]


def _cells(record: Record, **fields: object) -> Sequence[Entry]:
    return [cell for cell in record["result"]["cells"] if all(cell[key] == value for key, value in fields.items())]


def _tests(record: Record) -> dict[str, Entry]:
    return {row["test"]: row for row in record["result"]["tests"]}


def _interval(entry: Entry) -> str | None:
    return None if entry["rate"] is None else rate_interval(entry, 0)


def _trust(record: Record) -> Table:
    """Tabulate, a line a change, which tests are to be trusted, of this package's and of the published."""
    tests = _tests(record)
    rows = []
    for change in record["result"]["changes"]:
        if not change["related"]:
            continue
        phrases = []
        for published in (False, True):
            cells = _cells(record, change=change["change"])
            trust_by_test = {
                cell["test"]: cell["trusted"] for cell in cells if tests[cell["test"]]["published"] is published
            }
            phrases.append(in_words(trust_by_test))
        rows.append(([change["change"], *phrases], {"loss": (fixed(2), change["loss"])}))
    note = (
        f"{_about(record)} A test is to be trusted after a change if, at its own level or threshold, it finds at "
        "least 90% of the descendants and does not call too many unrelated pairs the same: an exact test no more "
        "than the 99.9% quantile of a binomial count, any other at most 5%. Tests whose names begin with "
        "initialization compare the suspect with the initialization in place of the trained model, on "
        f"{record['settings']['num_born']} families and at one strength of each kind (the middle one, the longest "
        "training). Loss: of the changed models, in nats a token on the first text; "
        f"{fixed(2)(record['result']['loss'])} before."
    )
    settings = ["change", "of this package", "published"]
    return tabulate("Which test to trust after which change", settings, rows, note, first_screen=True)


def in_words(trust_by_test: Mapping[str, bool]) -> str:
    """List the shorter of those that are to be trusted and those that are not."""
    trusted, untrusted = (
        [name for name, is_trusted in trust_by_test.items() if is_trusted is flag] for flag in (True, False)
    )
    if not untrusted:
        return f"all {len(trust_by_test)}"
    if not trusted:
        return f"none of {len(trust_by_test)}"
    few = trusted if len(trusted) <= len(untrusted) else untrusted
    return f"{len(trusted)} of {len(trust_by_test)}: {'' if few is trusted else 'all but '}{'; '.join(few)}"


def _about(record: Record) -> str:
    settings = record["settings"]
    model, schedule = settings["changes"], settings["schedule"]
    return (
        f"{record['result']['num_families']} families of llama models ({model['num_layers']} blocks, D = "
        f"{model['d_model']}, bytes, {integer(schedule['steps'])} steps of {schedule['batch_size']} × "
        f"{schedule['context']} tokens), all trained on the same text in the same order."
    )


def _detections(record: Record, title: str, *, published: bool) -> Table:
    """Tabulate change × test, with intervals."""
    names = [name for name, row in _tests(record).items() if row["published"] is published]
    rows = []
    for change in record["result"]["changes"]:
        measured: Cells = {}
        for cell in _cells(record, change=change["change"]):
            columns = ("tpr", "teachers_calibrated") if published else ("found", "teachers")
            if cell["test"] in names:
                measured[cell["test"]] = _interval(cell[columns[0 if change["related"] else 1]])
        rows.append(([change["change"]], {name: measured.get(name) for name in names}))
    about = (
        "at the threshold that at most 1% of the unrelated pairs of all changes exceed, in the other half of the "
        "families"
        if published
        else "at each test's own level or threshold, which the table of all changes together lists"
    )
    note = (
        f"Fraction of descendants that each test finds {about}, with its 95% interval (families resampled). Empty: "
        "not run. Rows of distillation: fraction of students that are called descendants of their teachers, which "
        "they are not."
    )
    return tabulate(title, ["change"], rows, note)


def _found_by_small(record: Record) -> Table:
    """Tabulate change × test in the weights: found by sketches of the default size, and by the larger ones."""
    found_by_cell = {(cell["change"], cell["test"]): cell["found"]["rate"] for cell in record["result"]["cells"]}
    rows = []
    for change in record["result"]["changes"]:
        entries = [entry for entry in record["result"]["small"] if entry["change"] == change["change"]]
        if change["related"]:
            measured: Cells = {
                entry["test"]: f"{percent(0)(entry['found']['rate'])}, "
                f"{percent(0)(found_by_cell[change['change'], entry['test']])}"
                for entry in entries
            }
            rows.append(([change["change"]], measured))
    note = (
        f"Fraction of descendants that a test finds at its own level or threshold, with {Settings().dim} numbers in "
        f"each vector, as fingerprints have by default, and with {SETTINGS.dim}, as in the other tables. Two "
        f"checkpoints are compared with {Settings().dim}."
    )
    return tabulate("Found by fingerprints of the default size, and by larger ones", ["change"], rows, note)


def _overall(record: Record) -> Table:
    rows = []
    for row in record["result"]["tests"]:
        reads = f"{'p ≤' if row['by_p'] else 'score >'} {row['limit']:g}"
        measured: Cells = {
            "AUC": (fixed(3), row["auc"]["rate"]),
            "KS distance": (fixed(2), row["ks"]),
            "TPR at FPR ≤ 1%": _interval(row["tpr"]),
            "its FPR": _interval(row["fpr"]),
            "found": _interval(row["found"]),
            "called related": _interval(row["accused"]),
            "accuracy": (percent(1), row["accuracy"]),
            "accuracy, calibrated": (percent(1), row["accuracy_calibrated"]),
        }
        settings = [row["test"], "published" if row["published"] else "this package", reads]
        rows.append((settings, measured))
    note = (
        "Related pairs against unrelated ones, all changes together. Found and called related: fractions of both at "
        "the test's own level or threshold; accuracy: the mean of the fractions that are right. TPR at FPR ≤ 1%: "
        "fraction found at a threshold from the other half of the families, as in the table above; its FPR: the "
        "fraction of unrelated pairs above it in the half where it is used."
    )
    return tabulate("All changes together", ["test", "source", "read at"], rows, note)


def _accusations(record: Record) -> Table:
    """Tabulate the worst kind of every exact test, of all that were counted."""
    rows = []
    entries = record["result"]["accusations"]
    for name in dict.fromkeys(entry["test"] for entry in entries):
        test_entries = [entry for entry in entries if entry["test"] == name]
        worst = max(test_entries, key=lambda entry: entry["accused"])
        most_often = max(test_entries, key=lambda entry: entry["below_0.01"])
        measured: Cells = {
            "kinds": (integer, len(test_entries)),
            "pairs of each": (integer, min(entry["num_pairs"] for entry in test_entries)),
            "level": (significant(1), worst["alpha"]),
            "most called related": (integer, worst["accused"]),
            "of that kind": worst["kind"],
            "allowed": (integer, worst["most"]),
            "p ≤ 0.01, all kinds": (
                percent(2),
                sum(entry["below_0.01"] for entry in test_entries) / sum(e["num_pairs"] for e in test_entries),
            ),
            "worst kind": (integer, most_often["below_0.01"]),
            "allowed at 0.01": (integer, most_often["most_below_0.01"]),
        }
        rows.append(([name], measured))
    note = (
        "For each kind of change the unrelated pairs are counted that a test calls the same at its own level; a "
        "student and its teacher are unrelated. Shown are the kind with the most and the number that is allowed, the "
        "99.9% quantile of a binomial count; then the fraction of p ≤ 0.01 over all kinds, the number in the kind "
        "with the most, and what is allowed of it. All kinds have the same families, and two families count once; "
        "where no change moves what a test reads, its counts are all the same."
    )
    return tabulate("Rejections by exact tests", ["test"], rows, note)


def claims(record: Record) -> Sequence[Claim]:
    """State accusations beyond chance, students taken for descendants, changes that no test finds."""
    result = record["result"]
    entries = result["accusations"]
    beyond = sum(entry["accused"] > entry["most"] for entry in entries)
    taught = [
        cell["teachers"]["rate"]
        for cell in result["cells"]
        if cell["change"].startswith(_DISTILLED) and cell["teachers"]["rate"] is not None and _is_exact(record, cell)
    ]
    unfound = [name for name, cells in _trusted_by_change(record).items() if not cells]
    return [
        Claim(
            f"Counts of rejections, of {len(entries)} (exact test × kind of change, {_fewest(entries)} unrelated "
            "pairs or more each), above the 99.9% binomial quantile",
            float(beyond),
            format=integer,
        ),
        Claim(
            "Largest fraction of distilled students that an exact test takes for descendants of their teacher",
            max(taught, default=None),
            format=percent(1),
        ),
        Claim(
            f"Changes, of {len(_trusted_by_change(record))}, after which no test of this package is to be trusted",
            float(len(unfound)),
            format=integer,
        ),
    ]


def _fewest(entries: Sequence[Entry]) -> str:
    return integer(min(entry["num_pairs"] for entry in entries))


def _is_exact(record: Record, cell: Entry) -> bool:
    return cell["test"] in {entry["test"] for entry in record["result"]["accusations"]}


def _trusted_by_change(record: Record) -> dict[str, list[str]]:
    tests = _tests(record)
    return {
        change["change"]: [
            cell["test"]
            for cell in _cells(record, change=change["change"], trusted=True)
            if not tests[cell["test"]]["published"]
        ]
        for change in record["result"]["changes"]
        if change["related"]
    }


def headline(record: Record) -> str:
    """Name the changes after which no test of this package is to be trusted."""
    trusted = _trusted_by_change(record)
    unfound = [name for name, tests in trusted.items() if not tests]
    if not unfound:
        return f"After each of {len(trusted)} changes some test of this package is to be trusted; the table says which."
    return f"After {len(unfound)} of {len(trusted)} changes no test of this package is trusted: {', '.join(unfound)}."
