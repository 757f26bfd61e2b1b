"""A verdict's page on paper: headless Chromium prints it on A4, nothing is wider than a page, and no table is cut."""

import html
import re
import shutil
import subprocess

import pytest

from bornbiased_jax.checkpoints import export_hugging_face
from bornbiased_jax.cli.main import run
from bornbiased_jax.lineage.trace import trace
from bornbiased_jax.results.page import draw
from bornbiased_jax.results.verdicts import Lineage
from tests.lineage.descendants import config, descend, reader
from tests.report.test_accessibility import answers
from tests.report.test_accessibility import chromium as browser  # noqa: F401

# A4 in points, and the width between margins of 14 mm in pixels of CSS.
PAPER, BETWEEN_MARGINS = (595, 842), 687
ASKS = """<script>
addEventListener("load", () => parent.postMessage([...document.querySelectorAll("body *")].filter(
  element => element.getBoundingClientRect().right > innerWidth + 1).map(element => element.outerHTML.slice(0, 80)),
"*"));
</script></body>"""


@pytest.fixture
def pages(tmp_path_factory):
    """The page of two folders with all its tables, and that of a run followed through its steps."""
    folder = tmp_path_factory.mktemp("models_with_a_long_name_as_folders_of_published_models_have")
    cfg = config(num_layers=2, d_model=48, d_ff=64)
    for name, change in (("base", 1), ("suspect", 2)):
        export_hugging_face(*descend(cfg, 1, 0.3, change=change), folder / name)
    place = folder / "page.html"
    assert run(["seedprint", str(folder / "base"), str(folder / "suspect"), "--quiet", "--page", str(place)]) == 0
    verdict = trace(*(reader(descend(cfg, 1, 0.3, change=change)) for change in (1, 2)), num_permutations=99)
    components = [{**row, "log10_p_adjusted": row["log10_p"]} for row in verdict.detail["components"]]
    steps = [
        {"step": step, "verdict": "same-lineage", "z": 9.0, "log10_p": -50.0, "components": components}
        for step in range(0, 40_000, 1_000)
    ]
    by_step = Lineage("runs/a@seed=42", "suspect", verdict, steps=steps)
    return {"two folders": place.read_text(), "by step": draw(by_step, "runs/a@seed=42 and suspect")}


def printed(chromium, text, folder):
    """The path of a page as PDF."""
    (folder / "page.html").write_text(text)
    subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer",
         "--virtual-time-budget=20000", f"--user-data-dir={folder / 'profile'}",
         f"--print-to-pdf={folder / 'page.pdf'}", (folder / "page.html").as_uri()],
        capture_output=True, timeout=240, check=True,
    )  # fmt: skip
    return folder / "page.pdf"


def too_wide(chromium, texts, folder):
    """Elements of each page that end beyond the paper's margin, by the rules of print at the width of a page."""
    requests = [text.replace("@media print", "@media all").replace("</body>", ASKS) for text in texts]
    return answers(chromium, [(text, BETWEEN_MARGINS) for text in requests], folder)


def cells(text):
    """Texts of the cells of every table that is printed."""
    shown = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
    result = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", shown, re.DOTALL)
    return [html.unescape(re.sub(r"<[^>]*>", "", cell)) for cell in result]


def squeezed(text):
    """A text without spaces, breaks of lines and the hyphens that printing adds."""
    return re.sub(r"[\s\u00ad\u2010-]", "", text)


def look_at_print(path, page):
    size = subprocess.run(["pdfinfo", path], capture_output=True, text=True, check=True).stdout
    width, height = map(float, re.search(r"Page size: +([\d.]+) x ([\d.]+) pts", size).groups())
    assert (round(width), round(height)) == PAPER
    # Every word lies on the paper, between its margins, in letters that can be read.
    boxes = subprocess.run(["pdftotext", "-bbox", path, "-"], capture_output=True, text=True, check=True).stdout
    words = re.findall(r'<word xMin="([-\d.]+)" yMin="([-\d.]+)" xMax="([-\d.]+)" yMax="([-\d.]+)">', boxes)
    corners = [tuple(map(float, word)) for word in words]
    assert len(corners) > 300
    assert min(left for left, *_ in corners) > 30 and max(right for *_, right, _ in corners) < PAPER[0] - 30
    assert min(top for _, top, _, _ in corners) > 30 and max(bottom for *_, bottom in corners) < PAPER[1] - 30
    # Every cell of every table is there, its last column too.
    text = squeezed(subprocess.run(["pdftotext", "-raw", path, "-"], capture_output=True, text=True, check=True).stdout)
    tables = cells(page)
    words = {squeezed(word) for cell in tables for word in cell.split()}
    assert len(tables) > 100 and sorted(word for word in words if word not in text) == []


@pytest.mark.slow
def test_verdicts_are_printed_whole_on_a4(browser, pages, tmp_path):  # noqa: F811
    broken = pages["two folders"].replace("<h1>", '<h1 style="width:3000px">')
    *sound, beyond = too_wide(browser, [*pages.values(), broken], tmp_path)
    assert sound == [[], []] and [element[:3] for element in beyond] == ["<h1"]
    if not all(map(shutil.which, ("pdftotext", "pdfinfo"))):
        pytest.skip("poppler is absent")
    for text in pages.values():
        look_at_print(printed(browser, text, tmp_path), text)
