"""A verdict's page on paper: headless Chromium prints it on A4, nothing is wider than a page, and no table is cut."""

import html
import json
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
from tests.report.screenshots import browser
from tests.report.test_accessibility import FRAME

# A4 in points, and the width between margins of 14 mm in pixels of CSS.
PAPER, BETWEEN_MARGINS = (595, 842), 687
ASKS = """<script>
addEventListener("load", () => parent.postMessage(JSON.stringify([...document.querySelectorAll("body *")].filter(
  element => element.getBoundingClientRect().right > innerWidth + 1).map(element => element.outerHTML.slice(0, 80))),
"*"));
</script></body>"""


@pytest.fixture(scope="module")
def chromium():
    path = browser()
    if path is None:
        pytest.skip("Chromium is absent")
    return path


@pytest.fixture(scope="module")
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


def too_wide(chromium, text, folder):
    """Elements that end beyond the paper's margin, laid out by the rules of print at the width of a page."""
    requests = text.replace("@media print", "@media all").replace("</body>", ASKS)
    (folder / "frame.html").write_text(FRAME.format(width=BETWEEN_MARGINS, page=html.escape(requests)))
    process = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1000,2000",
         "--virtual-time-budget=20000", f"--user-data-dir={folder / 'profile'}", "--dump-dom",
         (folder / "frame.html").as_uri()],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    match = re.search(r'<pre id="found">(.*?)</pre>', process.stdout, re.DOTALL)
    assert match is not None and match[1], process.stderr[-500:]
    return json.loads(html.unescape(match[1]))


def cells(text):
    """Texts of the cells of every table that is printed."""
    shown = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
    result = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", shown, re.DOTALL)
    return [html.unescape(re.sub(r"<[^>]*>", "", cell)) for cell in result]


def squeezed(text):
    """A text without spaces, breaks of lines and the hyphens that printing adds."""
    return re.sub(r"[\s\u00ad\u2010-]", "", text)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two folders", "by step"])
def test_a_verdict_is_printed_whole_on_a4(chromium, pages, tmp_path, name):
    assert too_wide(chromium, pages[name], tmp_path) == []
    path = printed(chromium, pages[name], tmp_path)
    if not all(map(shutil.which, ("pdftotext", "pdfinfo"))):
        pytest.skip("poppler is absent")
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
    tables = cells(pages[name])
    words = {squeezed(word) for cell in tables for word in cell.split()}
    assert len(tables) > 100 and sorted(word for word in words if word not in text) == []


@pytest.mark.slow
def test_an_element_beyond_the_margin_is_found(chromium, pages, tmp_path):
    broken = pages["two folders"].replace("<h1>", '<h1 style="width:3000px">')
    assert [element[:3] for element in too_wide(chromium, broken, tmp_path)] == ["<h1"]
