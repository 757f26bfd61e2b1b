"""The list of commands, what it imports, the help of each, and completion in a shell."""

import json
import os
import re
import subprocess
import sys

import click
import pytest

from bornbiased_jax.cli.catalogue import COMMANDS, SECTIONS
from bornbiased_jax.cli.main import run
from bornbiased_jax.cli.sections import SECTIONS as SECTIONS_OF_OPTIONS
from tests.cli.commands import commands

IMPORTED = """
import json, sys
from bornbiased_jax.cli.main import run
for words in sys.argv[1:]:
    print(json.dumps([words, run(words.split()), sorted(sys.modules)]), flush=True)
"""
STARTED = """
import sys
from bornbiased_jax.cli.main import run
assert not any(run([*words.split(), "--help"]) for words in sys.argv[1:])
from bornbiased_jax.record import backends_are_initialized
print("started" if backends_are_initialized() else "idle")
"""


def test_the_list_of_commands_fits_eighty_columns_and_nothing_is_cut(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for question, entries in SECTIONS.items():
        place = lines.index(question)
        for offset, (name, entry) in enumerate(entries.items(), 1):
            # On one line, whole, below its question.
            assert lines[place + offset].split(maxsplit=1) == [name, entry.line]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        # Of weights a stored fingerprint is tested by auto.
        ("seedprint", "auto, and permutation with a stored fingerprint of outputs]"),
        # 1.2 and 2.0 times, by the record benchmark/products.
        ("probe preference", "which an H100 makes up to twice as fast."),
    ],
)
def test_help_says_what_code_and_records_say(path, said, capsys):
    assert run([*path.split(), "--help"]) == 0
    assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("path", commands())
def test_help_fits_eighty_columns_and_explains_each_option_in_its_section(path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*path.split(), "--help"]) == 0
    page = capsys.readouterr().out
    lines = page.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith("...") for line in lines if not line.startswith("Usage: "))
    assert any(line.strip().startswith(f"bornbiased {path}") for line in lines), "an example"
    titles = [line.removesuffix(":") for line in lines if line.endswith(":") and line[0] != " "]
    sections = [title for title in titles if title != "Positional arguments"]
    assert sections == [title for title in ("Options", *SECTIONS_OF_OPTIONS) if title in sections]
    for parameter in commands()[path].params:
        assert parameter.help, parameter.name
        if isinstance(parameter, click.Option):
            titles = [title for title, names in SECTIONS_OF_OPTIONS.items() if parameter.name in names]
            (section,) = titles or ["Options"]
            body = page.partition(f"\n{section}:\n")[2].partition("\n\n")[0]
            assert f"\n  {parameter.opts[0]}" in f"\n{body}"


EVERYDAY = {
    "probe preference": ("--model", "--seq-len", "--num-inputs", "--seeds", "--checkpoint", "--theory", "--sweep"),
    "pretrain": ("--model", "--data", "--out", "--seeds", "--steps", "--schedule", "--optimizer", "--learning-rate"),
    "seedprint": ("--test", "--alpha", "--base-digest", "--by-step"),
    "sinks": ("--text", "--lengths", "--quantise", "--by-step"),
}


@pytest.mark.parametrize("path", EVERYDAY)
def test_everyday_options_come_first(path, capsys):
    assert run([*path.split(), "--help"]) == 0
    first = capsys.readouterr().out.partition("\nOptions:\n")[2].partition("\n\n")[0].splitlines()
    names = [line.split()[0] for line in first if line.startswith("  --")]
    assert set(EVERYDAY[path]) <= set(names) and len(names) < 20
    assert not {"--mesh", "--engine", "--beta1", "--precision"} & set(names)


@pytest.mark.parametrize("path", sorted(commands()))
def test_the_help_of_an_option_names_options_of_its_command(path):
    parameters = commands()[path].params
    existing = {name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)}
    texts = " ".join(parameter.help or "" for parameter in parameters if isinstance(parameter, click.Option))
    assert set(re.findall(r"--[a-z][a-z0-9-]*", texts)) <= existing


def test_every_option_of_a_section_exists():
    names = {parameter.name for command in commands().values() for parameter in command.params}
    assert {name for section in SECTIONS_OF_OPTIONS.values() for name in section} <= names


def test_the_list_names_every_command_once():
    assert sum(len(entries) for entries in SECTIONS.values()) == len(COMMANDS)
    assert {path.split()[0] for path in commands()} == set(COMMANDS)


def test_the_list_of_commands_imports_no_command():
    """Nor does an unknown command; the list needs click alone."""
    calls = {"--help": 0, "--version": 0, "nonsense": 2}
    process = subprocess.run([sys.executable, "-c", IMPORTED, *calls], capture_output=True, text=True, timeout=120)
    answers = [json.loads(line) for line in process.stdout.splitlines() if line.startswith('["')]
    assert {words: code for words, code, _ in answers} == calls, process.stderr
    for words, _, imported in answers:
        assert {"jax", "numpy", "rich", "bornbiased_jax.cli.options"}.isdisjoint(imported), words


@pytest.mark.slow
def test_the_modules_of_commands_start_no_backend():
    """Processes of one computation join before anything touches a device."""
    calls = [*COMMANDS, "probe contraction"]
    process = subprocess.run([sys.executable, "-c", STARTED, *calls], capture_output=True, text=True, timeout=120)
    assert process.returncode == 0 and process.stdout.splitlines()[-1] == "idle", process.stderr


def printed(**environment: str) -> str:
    """Standard output of the program without arguments."""
    process = subprocess.run(
        [sys.executable, "-m", "bornbiased_jax"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def complete(line: str) -> list[str]:
    """Return the completions that a shell is offered for the last word of a line."""
    last = str(len(line.split(" ")) - 1)
    offered = printed(COMP_WORDS=line, COMP_CWORD=last, _BORNBIASED_COMPLETE="bash_complete")
    return [line.partition(",")[2] for line in offered.splitlines()]


def test_the_shell_script_of_the_readme_is_printed():
    assert "bash_complete" in printed(_BORNBIASED_COMPLETE="bash_source")


def test_a_shell_completes_commands_and_options():
    assert complete("bornbiased se") == ["seedprint"]
    assert "--seeds" in complete("bornbiased probe preference --se")


def test_names_are_completed_without_their_modules():
    from bornbiased_jax.cli.main import cli

    offered = [item.value for item in cli.shell_complete(click.Context(cli), "p")]
    assert offered == [name for name in COMMANDS if name.startswith("p")]
    assert "--version" in [item.value for item in cli.shell_complete(click.Context(cli), "--")]
