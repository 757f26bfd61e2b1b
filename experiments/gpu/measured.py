"""What a step of this folder measured, written with where it came from."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bornbiased_jax import files
from bornbiased_jax.code import code_digest
from bornbiased_jax.errors import InputError
from bornbiased_jax.record import jsonable, measure, provenance

SCALES = ("smoke", "gpu")
"""Seconds on a CPU, as the tests run it; the sizes that fill a GPU."""


def run(
    work: Callable[..., Mapping[str, Any]],
    settings: Mapping[str, Mapping[str, Any]],
    arguments: Sequence[str] | None = None,
    *,
    precision: str = "float32 highest",
    model: str | None = None,
) -> int:
    """A step's command line: do its work at a scale and write the record; the exit code.

    Args:
        work: ``work(settings, folder, seconds)`` gives the findings; what it keeps in the folder lets a killed call go
            on.
        settings: by scale.
        arguments: of the command line.
        precision: of the computation, for the record.
        model: an option ``--model`` is taken, with this default.

    Returns:
        0, or 2 where the input is at fault.
    """
    parser = argparse.ArgumentParser(description=(work.__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", choices=SCALES, default="smoke")
    parser.add_argument("--json", type=Path, required=True, help="The record.")
    parser.add_argument("--work", type=Path, required=True, help="A folder for what lets a killed call go on.")
    parser.add_argument("--seconds", type=float, default=600.0, help="What the work may take, where it can choose.")
    if model is not None:
        parser.add_argument("--model", default=model)
    options = parser.parse_args(arguments)
    chosen = {**settings[options.scale], **({} if model is None else {"model": options.model})}
    try:
        files.check_writable(options.json)
        options.work.mkdir(parents=True, exist_ok=True)
        code = code_digest(work)
        with measure() as measurement:
            result = jsonable(work(chosen, options.work, options.seconds))
        made = provenance(
            config=chosen, seeds=chosen.get("seeds"), precision=precision, measurement=measurement, code=code
        )
        files.write_json(options.json, {**result, "provenance": made})
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0
