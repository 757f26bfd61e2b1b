"""The template runs, and the chapters' pages name what is in them."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from bornbiased_jax import code, experiments, io
from bornbiased_jax.experiments import results, runner

ROOT = Path(experiments.__file__).parent
CHAPTERS = sorted({module.split(".")[2] for module in experiments.MODULES.values()})


WORDS = {"two": 2, "five": 5, "eight": 8, "fifteen": 15, "twenty": 20}


def test_a_cost_in_minutes_is_near_that_of_the_record():
    """Within a factor of three: machines differ, and some work is shared with another experiment."""
    told = {}
    for name, scale in results.names():
        minutes = re.match(r"(?:about )?(\w+) min(utes)?\b", runner.load(name).cost.get(scale, ""))
        # Figure 11, which comes first, trains Table 4b's models.
        if minutes and name != "table4b" and (minutes[1].isdigit() or minutes[1] in WORDS):
            took = results.committed(name, scale)["provenance"]["wall_time_s"]
            told[name, scale] = (WORDS.get(minutes[1]) or int(minutes[1])) * 60 / took
    # A moment where another experiment did the work.
    told = {case: ratio for case, ratio in told.items() if ratio < 60}
    assert len(told) > 20
    assert not {case: round(ratio, 1) for case, ratio in told.items() if not 1 / 3 < ratio < 3}


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


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapters_page_and_the_list_of_experiments_state_one_cost(chapter):
    """``reproduce --list`` shows the cost; what a record took is written into both."""
    for line in (ROOT / chapter / "README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        name = cells[1].strip("`") if len(cells) > 3 else ""
        if name in experiments.MODULES:
            words = cells[-1].removeprefix("run by name alone; ")
            scale = "paper" if words.startswith("`--scale paper`: ") else "laptop"
            cost = runner.load(name).cost
            told = cost[scale if scale in cost else "paper"]
            assert words.removeprefix("`--scale paper`: ").replace("`", "") == told.replace("`", ""), name


@pytest.mark.slow
def test_experiments_that_take_a_text_are_those_that_read_one():
    paths = {
        f"bornbiased_jax.experiments.{path.parent.name}.{path.stem}": path
        for path in ROOT.rglob("*.py")
        if path.parent != ROOT
    }
    sources = {name: path.read_text() for name, path in paths.items()}
    # Probes take it in place of a built-in text alone, as their groups say.
    reading = {name for name, source in sources.items() if "context.data" in source and "probing" not in name}
    imported = {
        name: {
            module
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.ImportFrom)
            for module in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        }
        for name, source in sources.items()
    }
    while more := {name for name in imported if not reading.isdisjoint(imported[name])} - reading:
        reading |= more
    for name, module in experiments.MODULES.items():
        experiment = runner.load(name)
        for scale, settings in experiment.settings.items():
            groups = [group for group in settings.get("groups", ()) if isinstance(group, dict)]
            probes_text = any(group.get("inputs", "").startswith("builtin:") for group in groups)
            assert (scale in experiment.takes_data) == (module in reading or probes_text), f"{name} at {scale}"


def test_counts_of_findings1_are_those_of_its_record():
    groups = results.committed("findings1", "laptop")["result"]["groups"]
    counts = [row["preference"]["top1_count"] for group in groups for row in group["records"]]
    assert f"({min(counts)} to {max(counts)} of 500 at the laptop scale)" in runner.load("findings1").description


SETTINGS = [name for name in code.SILENT if name.endswith(".settings")]


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_settings_outside_the_digest_are_read_where_experiments_are_declared_alone(name):
    package, chapter = name.removesuffix(".settings"), name.split(".")[2]
    settings = importlib.import_module(name)
    for path in {*(ROOT / chapter).glob("*.py")} - {ROOT / chapter / "settings.py"}:
        text = path.read_text()
        assert f"{name} import" not in text, f"{path}: write from {package} import settings"
        assert name not in code.closure(f"{package}.{path.stem}")
        for function in ast.walk(ast.parse(text)):
            if isinstance(function, ast.FunctionDef) and ast.unparse(function.returns or function) != "Experiment":
                attributes = [node for node in ast.walk(function) if isinstance(node, ast.Attribute)]
                read = {node.attr for node in attributes if ast.unparse(node.value) == "settings"}
                assert not read & set(vars(settings)), f"{path}: {function.name} reads {read}"
