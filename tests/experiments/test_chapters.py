"""The template runs, and the chapters' pages name what is in them."""

from pathlib import Path

import pytest

from bornbiased_jax import experiments, io
from bornbiased_jax.experiments import runner

ROOT = Path(experiments.__file__).parent
CHAPTERS = sorted({module.split(".")[2] for module in experiments.MODULES.values()})


@pytest.mark.slow
def test_the_template_is_an_experiment(tmp_path, monkeypatch):
    monkeypatch.setattr(experiments, "MODULES", {"_template": "bornbiased_jax.experiments._template"})
    outcome = runner.reproduce(["_template"], "smoke", tmp_path, quiet=True)
    assert outcome.done == ("_template",) and not outcome.failed
    record = io.read_json(runner.record_path(tmp_path, "_template"))
    fractions = [row["share"] for row in record["result"]["seeds"]]
    assert len(fractions) == 2 and all(1 / 16 <= fraction <= 1 for fraction in fractions)
    assert "Largest share of one token" in outcome.page.read_text()


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapters_page_names_its_modules_and_no_other(chapter):
    text = (ROOT / chapter / "README.md").read_text()
    modules = {path.stem for path in (ROOT / chapter).glob("*.py")} - {"__init__"}
    for module in modules:
        assert f"`{module}`" in text or f"`{module}.py`" in text, f"{chapter}/README.md does not name {module}"
    named = {name for name in experiments.MODULES if f"| `{name}` |" in text}
    assert named == {name for name, module in experiments.MODULES.items() if module.split(".")[2] == chapter}
