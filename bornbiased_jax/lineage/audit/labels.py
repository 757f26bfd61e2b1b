"""What a name claims: which run a checkpoint is of, and after how many updates."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import NamedTuple

from bornbiased_jax.errors import InputError
from bornbiased_jax.schema import shown, whole

ALIASES = frozenset(("main", "master", "latest", "final", "last", "best"))
"""Names that promise no content of their own: a copy under one of them is no defect."""
_WORD = r"(?:step|checkpoint|ckpt|(?<![a-z])iter)[-_=]?"
_STEP = re.compile(rf"(?:global[-_]?)?{_WORD}(?P<step>\d+)(?P<unit>[km](?![a-z]))?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}
# What grows with the step and names no run: "tokens4B", "consumed_samples=256", "val_loss=2.1"; after a step "-105b".
_COUNTERS = re.compile(
    r"(?<![-_])[-_]*(?:tokens|consumed[-_]samples|samples|(?:reduced[-_])?(?:(?:train|val|eval)[-_])?loss|epoch)[-_=]?"
    r"\d+(?:\.\d+)?(?:e[-+]?\d+)?[kmbt]?(?![a-z0-9])"
    rf"|(?P<step>{_WORD}\d+[km]?)[-_]\d+(?:\.\d+)?[bt](?![a-z0-9])",
    re.IGNORECASE,
)
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
        raise InputError(f"{option} {shown(text)} is no regular expression ({error}): correct it") from error


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
            of the name. By default ``step1000``, ``checkpoint-1000``, ``step-50K`` and the like, the last in the name,
            and counters that grow with the step ("tokens4B") are no part of the run.

    >>> read_label("seed1-step512"), read_label("step1000"), read_label("seed2/checkpoint-30"), read_label("main")
    (Label(run='seed1', step=512), Label(run='', step=1000), Label(run='seed2', step=30), Label(run='main', step=None))
    """
    # The step, with its unit.
    text = name if pattern is not None else _without_counters(name)
    # Of several the last: "step1_sft/checkpoint-500".
    match = pattern.search(text) if pattern is not None else max(_STEP.finditer(text), key=re.Match.end, default=None)
    step = None if match is None else whole(match["step"] or "")
    if match is None or step is None:
        return Label(name, None)
    groups = match.groupdict()
    step *= _UNITS[(groups.get("unit") or "").lower()] if pattern is None else 1
    # The run: a group of the pattern, else the rest of the name.
    for group in ("run", "seed"):
        if groups.get(group) is not None:
            return Label(groups[group], step)
    rest = (text[: match.start()].rstrip(_SEPARATORS), text[match.end() :].lstrip(_SEPARATORS))
    return Label("-".join(part for part in rest if part), step)


def by_run(labels: Mapping[str, Label]) -> dict[str, dict[int, str]]:
    """Return the names of checkpoints by step, by run; those without a step are left out."""
    runs: dict[str, dict[int, str]] = {}
    for name, label in labels.items():
        if label.step is not None:
            runs.setdefault(label.run, {})[label.step] = name
    return runs


def _without_counters(name: str) -> str:
    return _COUNTERS.sub(lambda match: match["step"] or "", name).lstrip(_SEPARATORS)


def is_alias(name: str) -> bool:
    """Tell whether a name promises no content of its own ("main")."""
    return last_part(name) in ALIASES


def last_part(name: str) -> str:
    """Return the last part of a path, or the revision of a model of the hub, in lower case."""
    return re.split("[/@]", name)[-1].lower()


def at_step(name: str, step: int, new_step: int) -> str:
    """Return the name that a checkpoint of another step would have.

    >>> at_step("seed1-step0200", 200, 300)
    'seed1-step0300'
    """
    plain = _without_counters(name)
    for match in reversed(list(re.finditer(r"(\d+)([km](?![a-z]))?", plain, re.IGNORECASE))):
        number, unit = whole(match[1]), match[2] or ""
        factor = _UNITS[unit.lower()]
        if number is not None and number * factor == step and new_step % factor == 0:
            digits = len(match[1]) if match[1].startswith("0") else 0
            return plain[: match.start()] + str(new_step // factor).zfill(digits) + unit + plain[match.end() :]
    return f"{name} at step {new_step}"


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts names by the numbers in them.

    >>> sorted(["step10", "step2"], key=natural)
    ['step2', 'step10']
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
