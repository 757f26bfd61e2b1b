"""``python -m experiments.tour``: write ``docs/tour.md``, what a new user types and what it prints, with times.

Every command is run in an empty folder, in order, as it stands on the page. It takes a few minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import NamedTuple

from bornbiased_jax import files, record
from bornbiased_jax.errors import InputError
from bornbiased_jax.progress import duration

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "tour.md"
LINES = 34
"""Of an output, at most: of a longer one the beginning and the end."""
WIDTH = 110


class Step(NamedTuple):
    """A question, what it means, and the commands that answer it."""

    title: str
    text: str
    commands: tuple[str, ...]


STEPS = (
    Step(
        "What is here",
        "After `make install`, or `pip install -c constraints.txt -e .`:",
        ("bornbiased doctor",),
    ),
    Step(
        "An untrained model has a favourite token",
        "Four seeds of a small model answer 500 unrelated inputs of random tokens. By chance no token would be first "
        "for more than a handful of them; one is, another for every seed.",
        (
            "bornbiased probe preference --model gpt2-tiny --set init=normal-0.02 --seeds 0:4 --seq-len 64 "
            "--num-inputs 500",
        ),
    ),
    Step(
        "Theory knew it",
        "How alike the states of unrelated inputs become, block by block, follows from the architecture. The "
        "prediction stands beside the measurement with its interval; nothing in it is fitted.",
        ("bornbiased probe contraction --model llama-tiny --seeds 42 --seq-len 64 --num-inputs 500 --theory",),
    ),
    Step(
        "Two seeds, one training",
        "Two models of different seeds see the same text in the same order.",
        (
            "bornbiased pretrain --model llama-tiny --data builtin:prose --steps 30 --seeds 42,123 --out runs/a",
            "bornbiased runs runs",
        ),
    ),
    Step(
        "Which of them is it?",
        "Thirty steps later each is still tied to its own birth, in the weights and exactly, and to no other.",
        (
            "bornbiased seedprint seed:42@llama-tiny runs/a@seed=42",
            "bornbiased seedprint seed:42@llama-tiny runs/a@seed=123",
            "bornbiased whichseed runs/a@seed=123 --seeds 0:10000",
        ),
    ),
    Step(
        "A copy in disguise",
        "The residual stream is rotated, so that no weight stays as it was, and noise is added; the test undoes "
        "the rotation.",
        (
            "bornbiased derive runs/a@seed=42 --change rotate:7 --change noise:0.1 --out copy",
            "bornbiased seedprint runs/a@seed=42 copy --page verdict.html",
        ),
    ),
    Step(
        "A folder that claims things",
        "Every checkpoint of the run is read once, and whatever speaks against its label is named.",
        ("bornbiased audit runs/a --page audit.html",),
    ),
)


def run_step(command: str, folder: Path) -> tuple[str, float]:
    """What a command prints, and the seconds that it took.

    Raises:
        InputError: it failed.
    """
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "COLUMNS": str(WIDTH),
        "NO_COLOR": "1",
        "TERM": "dumb",
    }
    began = time.monotonic()
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise InputError(f"`{command}` failed: {done.stderr.strip()[-500:]}")
    return done.stdout, time.monotonic() - began


def shown(text: str, folder: Path) -> str:
    """An output as the page has it: whole lines, no path of this machine, the middle of a long one left out."""
    text = text.replace(str(folder), ".").replace(str(Path.home()), "~")
    lines = []
    for line in text.strip("\n").splitlines():
        # A table keeps its lines, a sentence is wrapped.
        lines += [line.rstrip()] if "│" in line or "━" in line else textwrap.wrap(line, WIDTH) or [""]
    if len(lines) > LINES:
        head = LINES * 2 // 3
        left = len(lines) - LINES
        lines = [*lines[:head], f"… {left} lines …", *lines[head + left :]]
    return "\n".join(lines)


def write_page(steps: tuple[Step, ...] = STEPS) -> str:
    """The page, from commands that are run now."""
    parts = []
    total, busy = 0.0, os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="tour") as name:
        folder = Path(name)
        for step in steps:
            parts.append(f"## {step.title}\n\n{step.text}\n")
            for command in step.commands:
                output, seconds = run_step(command, folder)
                total += seconds
                parts.append(f"```\n{command}\n```\n\n```text\n{shown(output, folder)}\n```\n\n*{duration(seconds)}*\n")
    kept = record.provenance()
    where = kept["platform"]
    machine = (
        f"{where['cores']} cores of {where['cpu']}, {busy:.1f} processes waiting for them at the start; "
        f"jax {kept['versions']['jax']}"
    )
    head = (
        "# Ten minutes from nothing\n\n"
        "What a new user types, in order and in an empty folder, and what it prints. This page is written by a "
        f"command, `python -m experiments.tour`, which ran each of these: {duration(total)} in all, compilation "
        f"included ({machine}).\n"
    )
    return "\n".join([head, *parts])


if __name__ == "__main__":
    files.write_text(PAGE, write_page().rstrip() + "\n")
    print(f"{PAGE.relative_to(ROOT)} written")
