"""Pages in headless Chromium, light and dark, narrow and wide: axe finds nothing, and nothing runs off their side."""

import dataclasses
import html
import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from bornbiased_jax.report import figures, page
from bornbiased_jax.report.tables import Panel
from bornbiased_jax.results.lineage_reports import Audit
from bornbiased_jax.results.page import draw
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
FRAME = """<!DOCTYPE html><html lang="en"><head><title>frame</title></head><body style="margin:0">
<pre id="found"></pre><script>
addEventListener("message", event => {{ document.getElementById("found").textContent = event.data }});
</script><iframe title="page" style="border:0;width:{width}px;height:2000px" srcdoc="{page}"></iframe></body></html>"""
ASKS = """<script>{axe}</script><script>
addEventListener("load", () => axe.run(document).then(found => parent.postMessage(JSON.stringify({{
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
}}), "*")));
</script></body>"""


@pytest.fixture(scope="module")
def chromium():
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("Chromium is absent")
    return browser


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


def looked_at(chromium, text, folder, width, dark, axe):
    """Return the findings of axe and of the layout for a page at a width."""
    requests = text.replace("</body>", ASKS.format(axe=axe.replace("</script", "<\\/script")))
    path = folder / "frame.html"
    path.write_text(FRAME.format(width=width, page=html.escape(requests)))
    process = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={max(width, 500)},2000",
         f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--virtual-time-budget=60000",
         f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    match = re.search(r'<pre id="found">(.*?)</pre>', process.stdout, re.DOTALL)
    assert match is not None and match[1], process.stderr[-500:]
    return json.loads(html.unescape(match[1]))


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_axe_finds_nothing_and_nothing_runs_off_the_page(chromium, axe, section, tmp_path, width, dark):  # noqa: F811
    for name, text in pages(section).items():
        report = looked_at(chromium, text, tmp_path, width, dark, axe)
        assert report["dark"] is dark and report["passes"] > 10, name
        assert not report["violations"], (name, report["violations"])
        assert report["excess"] <= 0, (name, report["excess"])
        # A figure scrolls, by the keyboard too, before its letters become too small to read; an audit has none.
        assert report["hidden"] == 0 and (report["letters"] is None or report["letters"] > 9), (name, report["letters"])


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 768, 1280])
@pytest.mark.parametrize("page", ["quickstart.html", "results/claims.html"])
def test_axe_finds_nothing_on_the_site(chromium, axe, tmp_path, page, width, dark):
    path = SITE / page
    if not path.is_file():
        pytest.skip("the site is not built: make docs")
    # What the page loads lies next to it, not next to the frame.
    text = path.read_text().replace("<head>", f'<head><base href="{path.as_uri()}">', 1)
    report = looked_at(chromium, text, tmp_path, width, dark, axe)
    assert report["dark"] is dark and report["passes"] > 10
    assert not report["violations"], report["violations"]
    assert report["excess"] <= 0


@pytest.mark.slow
def test_a_fault_of_the_page_is_found(chromium, axe, section, tmp_path):  # noqa: F811
    broken = pages(section)["audit"].replace("<h1>", '<img src="data:,"><h1 style="width:3000px">')
    report = looked_at(chromium, broken, tmp_path, 390, False, axe)
    assert "image-alt" in {rule for rule, _ in report["violations"]} and report["excess"] > 0
