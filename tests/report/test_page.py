import base64
import dataclasses
import json
import re
from html.parser import HTMLParser

import pytest

from bornbiased_jax.report import figures, numbers, page
from bornbiased_jax.report.tables import Claim, Panel, Quantity, Row, Table

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Reader(HTMLParser):
    """Checks that tags close in order, and keeps what the tests ask for."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.links, self.text, self.tags = [], [], [], [], []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.tags.append((tag, values))
        if "id" in values:
            self.ids.append(values["id"])
        self.links += [values[name] for name in ("href", "src", "xlink:href") if name in values]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.text.append(data)


def read(html):
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def words(html):
    return re.sub(r"\s+", " ", " ".join(read(html).text))


RECORD = {
    "experiment": "counting",
    "scale": "smoke",
    "settings": {"model": "gpt2-tiny", "seeds": [42]},
    "result": {"share": 0.026},
    "provenance": {
        "version": "1.2.3",
        "git": {"revision": "0123456789abcdef", "dirty": True},
        "versions": {"jax": "0.10.2"},
        "device": {"kind": "cpu", "count": 1},
        "precision": "float32 highest",
        "wall_time_s": 75.0,
        "peak_memory_bytes": 2_500_000_000,
        "timestamp": "2026-01-02T03:04:05+00:00",
    },
}


@pytest.fixture
def section():
    figure, ax = figures.new()
    figures.ranked_bars(ax, [3, 1, 2], baseline=1)
    table = Table(
        "Shares & p-values",
        ("model", "seed"),
        (Quantity("share", numbers.percent(2)), Quantity("p", numbers.from_log10(3))),
        [
            Row(
                ("gpt2-nano", 42),
                {"share": 0.0261, "p": -136.34},
                paper={"share": 0.026},
                theory={"share": (0.024, 0.009)},
            ),
            Row(("gpt2-tiny", 42), {"share": 0.5}),
        ],
        note="± is the standard deviation.",
    )
    return page.Section(
        name="counting",
        title="Counting <tokens>",
        paper="Table 1",
        description="First paragraph.\n\nSecond paragraph.",
        command="bornbiased reproduce counting --scale smoke",
        scale="smoke",
        cost="2 s",
        headline="One token in 38.",
        claims=(
            Claim("share", 0.026, 0.026, format=numbers.percent(1), key="of inputs"),
            Claim("smaller model", 0.5, format=numbers.percent(1)),
        ),
        tables=(table,),
        panels=(Panel(figure, "Counts by rank."), Panel(figure, "Again.")),
        record=RECORD,
    )


def test_the_page_is_one_file_without_outside_references(section):
    html = page.render("Title", "Standfirst.", [section])
    reader = read(html)
    for link in reader.links:
        assert link.startswith(("#", "data:"))
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    assert not any(tag == "script" for tag, _ in reader.tags)
    # The only addresses are the names of XML namespaces.
    assert set(re.findall(r"https?://[^\s\"'<]+", html)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_headlines_of_all_sections_lead_in_their_order(section):
    other = page.Section("other", "Other", "", "x", "cmd", "smoke", headline="Preference: two, p = 0.1.")
    silent = page.Section("silent", "Silent", "", "x", "cmd", "smoke")
    html = page.render("Title", "", [section, silent, other])
    assert re.findall(r'<p class="headline">(.*?)</p>', html) == [
        "One token in 38.",
        "<strong>Preference:</strong> two, p\u00a0=\u00a00.1.",
    ]


def test_anchors_exist_and_ids_are_unique(section):
    other = page.Section("other", "Other", "", "x", "cmd", "smoke", panels=section.panels)
    reader = read(page.render("Title", "", [section, other]))
    assert len(reader.ids) == len(set(reader.ids))
    inside = {link[1:] for link in reader.links if link.startswith("#")}
    assert {"top", "counting", "other"} <= inside <= set(reader.ids)


def test_tables_compare_the_sources_and_mark_other_configurations(section):
    html = page.render("Title", "", [section])
    body = html[html.index("<tbody>", html.index('id="counting"')) :]
    cells = [
        [" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)]
        for row in re.findall(r"<tr>(.*?)</tr>", body, flags=re.DOTALL)[:2]
    ]
    assert cells == [
        ["gpt2-nano", "42", "2.60%", "2.61%", "2.40% ± 0.90%", "4.57 × 10⁻¹³⁷"],
        ["gpt2-tiny other configuration", "42", "—", "50.0%", "—", "—"],
    ]


def test_rows_and_claims_without_a_counterpart_in_the_paper_are_not_marked(section):
    own = dataclasses.replace(section.tables[0], rows=section.tables[0].rows[1:])
    assert "other configuration" not in words(page.render("Title", "", [dataclasses.replace(section, tables=(own,))]))


def test_a_table_without_paper_or_theory_names_no_source(section):
    bare = dataclasses.replace(section, tables=(Table("Steps", ["step"], [Quantity("z")], [Row([0], {"z": 3.0})]),))
    html = page.render("Title", "", [dataclasses.replace(bare, claims=())])
    head = html[html.index("<thead>") : html.index("</thead>")]
    assert "measured" not in head and 'rowspan="1"' in head
    html = page.render("Title", "", [section])
    assert "measured" in html[html.index("<thead>", html.index('id="counting"')) :].partition("</thead>")[0]


def test_lines_of_a_note_stay_apart(section):
    noted = dataclasses.replace(section.tables[0], note="  a: <b>\n  c: d")
    html = page.render("Title", "", [dataclasses.replace(section, tables=(noted,))])
    assert re.search(r'<p class="note">\s*a: &lt;b&gt;<br>\s*c: d</p>', html)


def test_sections_of_the_demo_are_linked_by_their_subject(section):
    demo = dataclasses.replace(section, name="demo_sinks", paper="Figure 9")
    assert demo.label == "sinks"
    assert dataclasses.replace(demo, name="figure9").label == "Figure 9"


def test_tables_and_figures_can_be_read_without_eyes(section):
    reader = read(page.render("Title", "", [section]))
    assert all("scope" in attributes for tag, attributes in reader.tags if tag == "th")
    assert sum(tag == "caption" for tag, _ in reader.tags) == 1
    alts = [attributes["aria-label"] for tag, attributes in reader.tags if tag == "svg"]
    assert alts == ["Counts by rank.", "Again."]
    assert dict(reader.tags)["html"]["lang"] == "en"


def test_the_first_screen_leads_with_the_key_numbers(section):
    html = page.render("Title", "", [section])
    head = words(html[html.index("<header") : html.index("</header>")] + "</header>")
    assert "One token in 38." in head and "of inputs" in head and "2.6%" in head
    assert "smaller model" in head


def test_a_table_may_stand_on_the_first_screen(section):
    table = dataclasses.replace(section.tables[0], first_screen=True)
    html = page.render("Title", "", [dataclasses.replace(section, tables=(table,))])
    assert html.count("Shares &amp; p-values</caption>") == 2
    assert html.index("Shares &amp; p-values</caption>") < html.index('id="counting"')


def test_the_provenance_and_the_whole_record_are_on_the_page(section):
    html = page.render("Title", "", [section])
    text = words(html)
    assert "cpu · jax 0.10.2 · float32 highest · 0123456789 with changes" in text
    assert "1 min 15 s · 2.50 GB at most · 2026-01-02" in text
    assert "settings.model" in text and "gpt2-tiny" in text
    address = next(link for link in read(html).links if link.startswith("data:application/json"))
    assert json.loads(base64.b64decode(address.split(",")[1])) == RECORD


def test_names_in_lists_of_the_provenance_keep_their_letters(section):
    record = {**RECORD, "settings": {"models": ["größe/模型", "b<c>"]}}
    html = page.render("Title", "", [dataclasses.replace(section, record=record)])
    assert "größe/模型" in html and "b&lt;c&gt;" in html


def test_a_large_record_is_left_out_of_the_page(section, monkeypatch):
    monkeypatch.setattr(page, "LARGEST_EMBEDDED_RECORD", 10)
    assert "data:application/json" not in page.render("Title", "", [section])


def test_theory_is_mentioned_only_when_there_is_some(section):
    assert "nothing fitted" in page.render("Title", "", [section])
    without = dataclasses.replace(section, tables=())
    assert "nothing fitted" not in page.render("Title", "", [without])


def test_text_from_outside_cannot_become_markup(section):
    html = page.render("<b>Title</b>", "", [section])
    assert "<b>" not in html and "Counting &lt;tokens&gt;" in html


def test_a_failure_is_said_at_the_top_and_in_its_place():
    failed = page.Section("counting", "Counting", "Table 1", "x", "cmd", "smoke", failure="out of memory")
    text = words(page.render("Title", "", [failed]))
    assert "Table 1 has no result. out of memory" in text
    assert "No result. out of memory" in text


def test_a_page_without_experiments_is_still_a_page():
    assert "Title" in words(page.render("Title", "", []))
