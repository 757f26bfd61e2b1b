"""One entry of the list: a command of this repository that writes a record, or several, and what is known of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

PATIENCE = 4.0
"""A step is ended after so many times what it was thought to take."""


@dataclasses.dataclass(frozen=True)
class Place:
    """What a step's command is made for.

    Attributes:
        scale: "smoke" or "gpu".
        record: where a command with ``--json`` writes its record.
        work: a folder of the step's own.
        reproduce: a folder of ``bornbiased reproduce``, the step's own: a page draws all records of its folder.
        seconds: what is left for the step.
    """

    scale: str
    record: Path
    work: Path
    reproduce: Path
    seconds: float


@dataclasses.dataclass(frozen=True)
class Step:
    """One entry of the list.

    Attributes:
        name: of its record.
        title: what it is, in words.
        seconds: what it was thought to take on an NVIDIA H100 before any was tried; a step is begun only if so much
            time is left, and ended after :data:`PATIENCE` times as much.
        command: the words after ``python``, for a place.
        experiments: names of the records that ``bornbiased reproduce`` writes; empty where ``--json`` is taken.
        needs: modules without which it is skipped.
        goal: what was aimed at, for the record.
        rest: it takes whatever time is left.
        environment: variables of its process.
    """

    name: str
    title: str
    seconds: float
    command: Callable[[Place], list[str]]
    experiments: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    goal: str = ""
    rest: bool = False
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
