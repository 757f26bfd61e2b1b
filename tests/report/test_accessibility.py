"""Pages in headless Chromium, light and dark, narrow and wide: axe finds nothing, and nothing runs off their side."""

import dataclasses
import html
import importlib.util
import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from bornbiased_jax.report import figures, page
from bornbiased_jax.report.tables import Panel
from bornbiased_jax.results.lineage_reports import Audit
from bornbiased_jax.results.page import draw
from tests.report.screenshots import WIDTHS, browser
from tests.report.test_page import section  # noqa: F401

AUDITED = {
    "source": "models",
    "basis": "all weights, read tensor by tensor",
    "alpha": 0.01,
    "clean": False,
    "findings": [
        {
            "kind": "duplicate",
            "subjects": ["a-step10", "b-step10"],
            "text": "They hold the same files.",
            "p_value": None,
        }
    ],
    "checkpoints": [
        {"name": f"{run}-step{step}", "run": run, "step": step, "opened": True, "note": "", "model": "llama model"}
        for run in "ab"
        for step in (0, 10, 20)
    ],
    "pairs": [],
    "runs": [{"name": run, "steps": [0, 10, 20], "data": "not known", "shares_data_with": []} for run in "ab"],
    "graph": {"nodes": [f"{run}-step{step}" for run in "ab" for step in (0, 10, 20)], "edges": []},
}
SITE = Path(__file__).resolve().parents[2] / "out" / "site"
# Chromium's windows are no narrower than 500 pixels; a frame is as narrow as it is told.
FRAMES = """<!DOCTYPE html><html lang="en"><head><title>frames</title></head><body style="margin:0">
<pre id="found"></pre><script>
const found = [];
addEventListener("message", event => {{
  const frames = [...document.querySelectorAll("iframe")].map(frame => frame.contentWindow);
  found[frames.indexOf(event.source)] = event.data;
  if (found.filter(Boolean).length == frames.length)
    document.getElementById("found").textContent = JSON.stringify(found);
}});
</script>{frames}</body></html>"""
FRAME = '<iframe title="page" style="border:0;width:{width}px;height:2000px" srcdoc="{page}"></iframe>'
ASKS = """<script>{axe}</script><script>
addEventListener("load", () => axe.run(document).then(found => parent.postMessage({{
  dark: matchMedia("(prefers-color-scheme: dark)").matches,
  passes: found.passes.length,
  excess: document.documentElement.scrollWidth - innerWidth,
  letters: Math.min(...[...document.querySelectorAll("figure svg text")].map(text => {{
    const drawn = text.getScreenCTM();  // turned for the axis at the left
    return parseFloat(getComputedStyle(text).fontSize) * Math.hypot(drawn.a, drawn.b);
  }})),
  hidden: [...document.querySelectorAll("figure .scroll")].filter(
    box => box.scrollWidth > box.clientWidth && box.tabIndex < 0).length,
  violations: found.violations.map(row => [row.id, row.nodes.map(node => node.html.slice(0, 160))]),
}}, "*")));
</script></body>"""


@pytest.fixture(scope="module")
def chromium():
    path = browser()
    if path is None:
        pytest.skip("Chromium is absent")
    return path


@pytest.fixture(scope="module")
def axe():
    spec = importlib.util.find_spec("axe_core_python")
    if spec is None:
        pytest.skip("axe-core-python is absent: pip install 'bornbiased-jax[dev]'")
    return Path(spec.submodule_search_locations[0], "axe.min.js").read_text()


def pages(section):  # noqa: F811
    """An experiment with a table, bars, curves and a map, and an audit."""
    curves, ax = figures.new()
    blocks = np.arange(1, 13)
    figures.line(ax, blocks, blocks / 30, (blocks / 40, blocks / 20), name="measured", markers=True)
    figures.line(ax, blocks, blocks / 28, name="theory", color=figures.THEORY, dashed=True)
    figures.label(ax, "block", "cosine")
    figures.legend(ax)
    colored, ax = figures.new()
    figures.heatmap(ax, np.eye(6) - 0.5, "abcdef", "ghijkl", "z", diverging=True, digits=1)
    panels = (*section.panels, Panel(curves, "Curves."), Panel(colored, "A map."))
    full = dataclasses.replace(section, panels=panels, figures="figures")
    return {"experiment": page.render("A page", "Its standfirst.", [full]), "audit": draw(Audit(AUDITED), "models")}


def answers(chromium, pages, folder, dark=False):
    """Return what each page, in a frame of its width, posts to its parent."""
    frames = "".join(FRAME.format(width=width, page=html.escape(text)) for text, width in pages)
    path = folder / "frames.html"
    path.write_text(FRAMES.format(frames=frames))
    process = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,2000",
         f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--virtual-time-budget=60000",
         f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    match = re.search(r'<pre id="found">(.*?)</pre>', process.stdout, re.DOTALL)
    assert match is not None and match[1], process.stderr[-500:]
    return json.loads(html.unescape(match[1]))


def looked_at(chromium, pages, folder, dark, axe):
    """Return the findings of axe and of the layout for each page at its width."""
    asks = ASKS.format(axe=axe.replace("</script", "<\\/script"))
    pages = [(text.replace("</body>", asks), width) for text, width in pages]
    return answers(chromium, pages, folder, dark)


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_and_nothing_runs_off_the_page(chromium, axe, section, tmp_path, dark):  # noqa: F811
    cells = [(name, text, width) for name, text in pages(section).items() for width in WIDTHS]
    reports = looked_at(chromium, [cell[1:] for cell in cells], tmp_path, dark, axe)
    for (name, _, width), report in zip(cells, reports, strict=True):
        assert report["dark"] is dark and report["passes"] > 10, (name, width)
        assert not report["violations"], (name, width, report["violations"])
        assert report["excess"] <= 0, (name, width, report["excess"])
        # A figure scrolls, by the keyboard too, before its letters become too small to read; an audit has none.
        assert report["hidden"] == 0, (name, width)
        assert report["letters"] is None or report["letters"] > 9, (name, width, report["letters"])


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("page", ["quickstart.html", "results/claims.html"])
def test_axe_finds_nothing_on_the_site(chromium, axe, tmp_path, page, dark):
    path = SITE / page
    if not path.is_file():
        pytest.skip("the site is not built: make docs")
    # What the page loads lies next to it, not next to the frame.
    text = path.read_text().replace("<head>", f'<head><base href="{path.as_uri()}">', 1)
    for report in looked_at(chromium, [(text, width) for width in WIDTHS], tmp_path, dark, axe):
        assert report["dark"] is dark and report["passes"] > 10
        assert not report["violations"], report["violations"]
        assert report["excess"] <= 0


@pytest.mark.slow
def test_a_fault_of_the_page_is_found(chromium, axe, section, tmp_path):  # noqa: F811
    sound = pages(section)["audit"]
    broken = sound.replace("<h1>", '<img src="data:,"><h1 style="width:3000px">')
    _, report = looked_at(chromium, [(sound, 390), (broken, 390)], tmp_path, False, axe)
    assert "image-alt" in {rule for rule, _ in report["violations"]} and report["excess"] > 0
