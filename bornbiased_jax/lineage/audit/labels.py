"""What a name claims: which run a checkpoint is of, and after how many updates."""

from __future__ import annotations

import re
import warnings
from typing import NamedTuple

from bornbiased_jax.errors import InputError
from bornbiased_jax.ranges import whole
from bornbiased_jax.schema import shown

ALIASES = frozenset(("main", "master", "latest", "final", "last", "best"))
"""Names that promise no content of their own: a copy under one of them is no defect."""
_STEP = re.compile(r"(?:global[-_]?)?(?:step|checkpoint|ckpt|iter)[-_=]?(?P<step>\d+)", re.IGNORECASE)
_SEPARATORS = "-_./@, "


class Label(NamedTuple):
    """The run that a name claims ("" where there is but one), and its step; None where the name has no step."""

    run: str
    step: int | None


def regular_expression(text: str, option: str) -> re.Pattern[str]:
    """Compile what a user wrote for an option.

    Raises:
        InputError: it is no regular expression, or one that Python warns of because it may come to mean something else.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)
            return re.compile(text)
    except (re.error, FutureWarning, OverflowError, RecursionError) as error:
        raise InputError(f"{option} {shown(text)} is no regular expression ({error}): mend it") from error


def pattern_of(text: str) -> re.Pattern[str]:
    """Compile a pattern of the user's, which has a group for the step.

    Raises:
        InputError: it is no regular expression, or has no group ``step``.
    """
    pattern = regular_expression(text, "--pattern")
    if "step" not in pattern.groupindex:
        raise InputError(
            f"--pattern {text!r} has no group for the step: write one, as in '(?P<run>seed\\d+)-step(?P<step>\\d+)'"
        )
    return pattern


def read_label(name: str, pattern: re.Pattern[str] | None = None) -> Label:
    """Read what a name claims.

    Args:
        name: a branch, or a path below the folder.
        pattern: with a group ``step``, and perhaps ``run`` (or ``seed``); without the latter the run is what is left
            of the name. By default ``step1000``, ``checkpoint-1000`` and the like, anywhere in the name.

    >>> read_label("seed1-step512"), read_label("step1000"), read_label("seed2/checkpoint-30"), read_label("main")
    (Label(run='seed1', step=512), Label(run='', step=1000), Label(run='seed2', step=30), Label(run='main', step=None))
    """
    match = (pattern or _STEP).search(name)
    step = None if match is None else whole(match["step"] or "")
    if match is None or step is None:
        return Label(name, None)
    groups = match.groupdict()
    for group in ("run", "seed"):
        if groups.get(group) is not None:
            return Label(groups[group], step)
    rest = (name[: match.start()].rstrip(_SEPARATORS), name[match.end() :].lstrip(_SEPARATORS))
    return Label("-".join(part for part in rest if part), step)


def is_alias(name: str) -> bool:
    """Tell whether a name promises no content of its own ("main")."""
    return name.rpartition("/")[2].lower() in ALIASES


def at_step(name: str, step: int, new_step: int) -> str:
    """Return the name that a checkpoint of another step would have.

    >>> at_step("seed1-step0200", 200, 300)
    'seed1-step0300'
    """
    matches = [match for match in re.finditer(r"\d+", name) if whole(match[0]) == step]
    if not matches:
        return f"{name} at step {new_step}"
    last = matches[-1]
    digits = len(last[0]) if last[0].startswith("0") else 0
    return name[: last.start()] + str(new_step).zfill(digits) + name[last.end() :]


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts names by the numbers in them.

    >>> sorted(["step10", "step2"], key=natural)
    ['step2', 'step10']
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
