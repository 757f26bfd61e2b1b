"""Cells of the benchmarks' tables are templates of a record's fields."""

import pytest

from benchmarks import tables

RECORD = {
    "speedup": 1.374,
    "range": [1.5, 1.2],
    "alike": [2.01, 2.02],
    "found": None,
    "equal": True,
    "parts": {"a": 0.25, "b": 0.5},
    "memory": {"peak": 2_568_000_000, "file": 6_300_000},
    "seconds": 125.0,
    "rows": [{"width": 4096, "log": -20.66}],
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{speedup:times:2} ({range:times:2})", "1.37× (1.20× to 1.50×)"),
        ("{alike:fixed:1}", "2.0"),
        ("{found:integer}, {equal}", "none, yes"),
        ("{parts:percent:0}", "25% to 50%"),
        ("{memory[peak]:GB}, {memory[file]:MB}", "2.57 GB, 6.30 MB"),
        ("{seconds:duration} of {rows[0][width]}", "2 min 05 s of 4096"),
    ],
)
def test_fields_are_written_by_their_formats(template, text):
    assert tables.fill(template, RECORD) == text


def test_facts_have_a_row_and_entries_a_column_for_each_template():
    (table,) = tables.facts(RECORD, title="{speedup:fixed:1}", rows={"of {seconds:duration}": "{equal}"})
    assert table.title == "1.4" and table.rows[0].settings == ["of 2 min 05 s"]
    assert table.rows[0].measured == {"measured": "yes"}
    columns = {"D": "{width:integer}", "log10 p": "{log:fixed:1}"}
    (table,) = tables.entries(RECORD, title="", each="rows", columns=columns)
    assert (table.rows[0].settings, table.rows[0].measured) == (["4,096"], {"log10 p": "−20.7"})
    (table,) = tables.entries({"runs": {"one": {"s": 1}}}, title="", each="runs", columns={"": "{name}", "s": "{s}"})
    assert (table.rows[0].settings, table.rows[0].measured) == (["one"], {"s": "1"})


@pytest.mark.parametrize(("template", "error"), [("{nothing}", KeyError), ("{speedup:prose:2}", ValueError)])
def test_missing_fields_and_unknown_formats_are_refused(template, error):
    with pytest.raises(error):
        tables.fill(template, RECORD)
