"""The tour is written by a command, and the page that is committed holds the commands that it runs."""

import re
from pathlib import Path

import pytest

from bornbiased_jax.errors import InputError
from experiments import tour

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tour.md"


def test_the_page_has_what_commands_print_and_how_long_they_took(monkeypatch):
    said = iter(["a table │\n" + "word " * 60, "\n".join(f"line {number}" for number in range(100))])
    monkeypatch.setattr(tour, "run_step", lambda command, folder: (next(said), 65.0))
    page = tour.write_page((tour.Step("One", "What it is.", ("bornbiased a", "bornbiased b")),))
    assert "## One\n\nWhat it is.\n" in page and "```\nbornbiased a\n```" in page and "2 min 10 s in all" in page
    assert page.count("*1 min 05 s*") == 2 and "a table │\nword word" in page
    assert max(map(len, re.findall(r"^word.*$", page, re.MULTILINE))) <= tour.WIDTH
    assert f"… {100 - tour.LINES} lines …" in page and "line 0\n" in page and "line 99\n" in page


def test_a_command_runs_in_its_folder_and_one_that_fails_ends_the_tour(tmp_path):
    output, seconds = tour.run_step("bornbiased completion bash --json shell.json", tmp_path)
    assert "bornbiased" in output and seconds > 0 and (tmp_path / "shell.json").is_file()
    with pytest.raises(InputError, match="`bornbiased digest nothing` failed: .*does not exist"):
        tour.run_step("bornbiased digest nothing", tmp_path)


def test_the_committed_page_is_of_this_tour():
    commands = re.findall(r"^```\n(.*)\n```$", PAGE.read_text(), re.MULTILINE)
    assert commands == [command for step in tour.STEPS for command in step.commands]
