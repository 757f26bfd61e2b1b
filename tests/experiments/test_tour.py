"""Tours are written by a command, and the pages that are committed hold the commands that it runs."""

import re
from pathlib import Path

import pytest

from bornbiased_jax.errors import InputError
from experiments import tour

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_has_what_commands_print_and_how_long_they_took(monkeypatch):
    said = iter(["a table │\n" + "word " * 60, "\n".join(f"line {number}" for number in range(100))])
    monkeypatch.setattr(tour, "run_step", lambda command, folder: (next(said), 65.0))
    steps = (tour.Step("One", "What it is.", ("bornbiased a", "bornbiased b")),)
    page = tour.render(tour.Tour("A tour", "Of two commands.", steps), "smollm2")
    assert page.startswith("# A tour\n\nOf two commands. ") and "`python -m experiments.tour smollm2`" in page
    assert "## One\n\nWhat it is.\n" in page and "```\nbornbiased a\n```" in page and "2 min 10 s in all" in page
    assert page.count("*1 min 05 s*") == 2 and "a table │\nword word" in page
    assert max(map(len, re.findall(r"^word.*$", page, re.MULTILINE))) <= tour.WIDTH
    assert f"… {100 - tour.LINES} lines …" in page and "line 0\n" in page and "line 99\n" in page


@pytest.mark.slow
def test_a_command_runs_in_its_folder_and_one_that_fails_ends_the_tour(tmp_path):
    output, seconds = tour.run_step("bornbiased models --json models.json", tmp_path)
    assert "Presets" in output and seconds > 0 and (tmp_path / "models.json").is_file()
    with pytest.raises(InputError, match="`bornbiased digest nothing` failed: .*does not exist"):
        tour.run_step("bornbiased digest nothing", tmp_path)


@pytest.mark.parametrize("name", tour.TOURS)
def test_the_committed_page_is_of_this_tour(name):
    commands = re.findall(r"^```\n(.*)\n```$", (DOCS / f"{name}.md").read_text(), re.MULTILINE)
    assert commands == [command for step in tour.TOURS[name].steps for command in step.commands]


def test_a_tour_that_there_is_not_is_refused(capsys):
    assert tour.main(["nowhere"]) == 2 and "tour|smollm2" in capsys.readouterr().err
