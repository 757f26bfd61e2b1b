"""A page is held to a phrase only where the phrase stands once and its numbers are complete."""

import pytest

from tests.docs.quoted import records

PHRASES = ["5 of 30", "pairs, at 0.16"]


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "ROOT", tmp_path)
    return tmp_path / "page.md"


def test_phrases_of_a_page_may_span_lines(page):
    page.write_text("In 5 of\n30 pairs, at 0.16, no more.")
    records.assert_quoted("page.md", PHRASES)


@pytest.mark.parametrize(
    "text",
    [
        "15 of 30 pairs, at 0.16",
        "5 of 30 pairs, at 0.164",
        "5 of 30 pairs, at 0.16; 5 of 30 more",
        "<!-- 5 of 30 pairs, at 0.16 -->",
    ],
)
def test_parts_of_numbers_and_repeated_phrases_are_refused(text, page):
    page.write_text(text)
    with pytest.raises(AssertionError, match="does not say once"):
        records.assert_quoted("page.md", PHRASES)
