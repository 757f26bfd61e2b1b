"""What the docs say can be typed: commands name what is there, Python blocks run, links lead somewhere."""

import importlib.util
import itertools
import json
import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

import bornbiased_jax
from bornbiased_jax.cli.main import cli, run
from bornbiased_jax.probes import run as probes

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in itertools.chain(ROOT.glob("*.md"), *(ROOT.glob(f"{folder}/**/*.md") for folder in ("docs", "theory")))
)
FENCE = re.compile(r"^```([\w{}-]*)(?: \w+)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _blocks(page: str, language: str) -> list[str]:
    return [body for name, body in FENCE.findall((ROOT / page).read_text()) if name == language]


def _commands(page: str) -> list[tuple[str, bool]]:
    """Whole commands, the lines of code blocks (True), and what is quoted in a sentence."""
    text = (ROOT / page).read_text()
    bodies = [*_blocks(page, ""), *(body for body in _blocks(page, "{code-cell}") if body.startswith("%%bash\n"))]
    lines = [" ".join(line.split()) for body in bodies for line in body.replace("\\\n", " ").splitlines()]
    quoted = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", FENCE.sub("", text))]
    found = [*((line, True) for line in lines), *((code, False) for code in quoted)]
    return [row for row in found if row[0].startswith("bornbiased ") and "…" not in row[0]]


COMMANDS = sorted({(page, *row) for page in PAGES for row in _commands(page)})


@pytest.mark.parametrize("page, command, is_whole", COMMANDS)
def test_a_command_names_options_that_are_there(page, command, is_whole):
    """Every word of the command line is looked at; what the arguments name is not opened."""
    words = shlex.split(command.partition(" # ")[0])[1:]
    context, level = click.Context(cli, info_name="bornbiased"), cli
    while isinstance(level, click.Group) and words and not words[0].startswith("-"):
        name, level, words = level.resolve_command(context, words)
        context = click.Context(level, info_name=name, parent=context)
    # A sentence may name a command without its arguments; options must be the command's own even then.
    existing = {option for parameter in level.params if isinstance(parameter, click.Option)
             for option in parameter.opts + parameter.secondary_opts} | {"--help"}  # fmt: skip
    assert not {word.partition("=")[0] for word in words if word.startswith("--")} - existing, page
    required = {parameter.opts[0] for parameter in level.params if is_whole and parameter.required}
    assert not {option for option in required if option.startswith("--")} - set(words), page


def test_commands_were_found():
    assert len(COMMANDS) >= 10 and {"README.md", "docs/results/sinks.md"} <= {page for page, *_ in COMMANDS}


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.nightly if page == "docs/cluster.md" else ())
        for page in PAGES
        if _blocks(page, "python") and page != "README.md"
    ],
)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    """A page's blocks are one program, run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    exec("\n".join(_blocks(page, "python")), {"__name__": "__main__"})


def test_readme_is_short_and_leads_to_four_doors():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    for door in ("I train", "I initialize", "I am accused", "I fight sinks"):
        for page in (lines, (ROOT / "docs" / "index.md").read_text().splitlines()):
            assert [line for line in page if line.startswith(f"- **{door}")], door


def test_goals_of_the_quickstart_take_at_most_two_commands():
    text = (ROOT / "docs" / "quickstart.md").read_text()
    goals = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    cells = {title: FENCE.findall(body) for title, body in goals.items()}
    # Cells, which run while the site is built: one a goal, of commands or of a few lines of Python.
    assert all([name for name, _ in blocks] == ["{code-cell}"] for blocks in cells.values()), cells
    commands = {title: blocks[0][1].count("bornbiased ") for title, blocks in cells.items()}
    assert len(goals) == 5 and max(commands.values()) <= 2
    assert len(cells["The same from Python"][0][1].splitlines()) <= 10


@pytest.mark.slow
def test_the_readme_runs_and_its_output_is_what_its_command_prints(tmp_path, capsys, monkeypatch):
    """The rows of the table, and the last sentences as far as they are quoted; its Python measures the same."""
    measured, probe = {}, probes.probe

    def once(subject, seeds, inputs, *options, **more):
        asked = json.dumps([subject.cfg.to_dict(), list(seeds), inputs.describe()])
        if asked not in measured:
            measured[asked] = list(probe(subject, seeds, inputs, *options, **more))
        return measured[asked]

    monkeypatch.setattr(probes, "probe", once)
    (command,) = [
        command for command, is_whole in _commands("README.md") if is_whole and command.startswith("bornbiased probe")
    ]
    (quoted,) = _blocks("README.md", "text")
    assert run([*shlex.split(command)[1:], "--quiet"]) == 0
    printed = capsys.readouterr().out
    rows = [re.findall(r"[\d.-]+", line) for line in quoted.splitlines() if "│" in line]
    assert rows == [re.findall(r"[\d.-]+", line) for line in printed.splitlines() if "│" in line] and len(rows) == 7
    last = " ".join(quoted[quoted.index("Seed 0") :].split())
    assert last.removesuffix(" …") in " ".join(printed.split())
    monkeypatch.chdir(tmp_path)
    exec("\n".join(_blocks("README.md", "python")), {"__name__": "__main__"})
    assert len(measured) == 1 and last.removesuffix(" …") in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page):
    text = FENCE.sub("", (ROOT / page).read_text())
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in target]
    assert not [target for target in targets if not ((ROOT / page).parent / target).exists()]


def test_the_version_is_the_same_everywhere():
    version = bornbiased_jax.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dynamic"] == ["version"]


def test_files_and_imports_of_the_next_release_exist():
    """What the changelog names for the next release is there, whatever it was called on the way."""
    text = (ROOT / "CHANGELOG.md").read_text().split("\n## [")[1]
    named = {*re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", text)} - {"out/site/"}
    folders = (ROOT, ROOT / "bornbiased_jax")
    assert [name for name in sorted(named) if not any((folder / name).exists() for folder in folders)] == []
    modules = re.findall(r"`from (bornbiased_jax[\w.]*) import", text)
    assert len(named) > 5 and modules
    assert [module for module in modules if importlib.util.find_spec(module) is None] == []


def test_planted_faults_that_survive_stand_for_lines_of_the_code():
    listed = re.findall(r"^- (\S+): `(.*?)` -> `", (ROOT / "tests" / "mutants.md").read_text(), re.MULTILINE)
    assert listed
    for path, line in listed:
        assert line in map(str.strip, (ROOT / path).read_text().splitlines()), path


def test_papers_are_cited_alike():
    numbers = re.compile(r"\b2[56]\d\d\.\d{5}\b")
    cited = set(numbers.findall((ROOT / "README.md").read_text()))
    assert cited and cited <= set(numbers.findall((ROOT / "CITATION.cff").read_text()))
