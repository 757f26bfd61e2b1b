"""The documentation's site: every room has its page, pages are reached, and the check of links finds what is wrong."""

import re
from pathlib import Path

import pytest

from tests.docs.site import faults
from tests.test_exports import ROOMS

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_room_that_exports_something_has_a_page():
    written = {path.stem for path in (DOCS / "api").glob("*.md")} - {"index"}
    assert written == {*ROOMS, "config", "prediction", "theory"}
    listed = re.search(r"```\{toctree\}\n.*?\n\n(.*?)\n```", (DOCS / "api" / "index.md").read_text(), re.DOTALL)
    assert set(listed[1].split()) == written
    for name in written:
        assert f".. automodule:: bornbiased_jax.{name}\n" in (DOCS / "api" / f"{name}.md").read_text()


def test_every_page_is_in_the_contents():
    index = (DOCS / "index.md").read_text()
    listed = {line for body in re.findall(r"```\{toctree\}\n(?::[^\n]*\n)*\n(.*?)\n```", index, re.DOTALL) for line in
              body.split()}  # fmt: skip
    notebooks = {f"notebooks/{path.stem}" for path in (DOCS / "notebooks").glob("*.ipynb")}
    pages = {f"results/{path.stem}" for path in (DOCS / "results").glob("*.md")}
    assert listed == {path.stem for path in DOCS.glob("*.md")} - {"index"} | {"api/index"} | notebooks | pages
    assert max(len(path.read_text().splitlines()) for path in DOCS.rglob("*.md")) <= 800


WHOLE = '<html><body id="top"><a href="b.html#here">b</a><script src="a.js"></script></body></html>'


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("b.html#here", "c.html", "index.html links to c.html, which is not there"),
        ("#here", "#there", "index.html links to b.html#there, a place that is not there"),
        ('"a.js"', '"https://cdn.example/a.js"', "index.html loads https://cdn.example/a.js"),
        ('"a.js"', '"//cdn.example/a.js"', "index.html loads //cdn.example/a.js"),
        ('"a.js"', '"b.js"', "index.html lacks b.js"),
        (
            "<body",
            '<link rel="stylesheet" href="https://fonts.example/x.css"><body',
            "index.html loads https://fonts.example/x.css",
        ),
        ("b.html#here", "https://example.org", None),
        ("b.html#here", "#top", None),
        ("", "", None),
    ],
)
def test_links_that_lead_nowhere_and_loads_from_elsewhere_are_found(tmp_path, old, new, said):
    (tmp_path / "index.html").write_text(WHOLE.replace(old, new, 1) if old else WHOLE)
    (tmp_path / "b.html").write_text('<p id="here">b</p>')
    (tmp_path / "a.js").write_text("")
    assert faults(tmp_path) == ([] if said is None else [said])
