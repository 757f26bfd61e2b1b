"""What a benchmark found, printed and written with where it came from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bornbiased_jax import io
from bornbiased_jax.code import code_digest
from bornbiased_jax.record import measure, provenance


def run(work: Callable[[], dict[str, Any]], path: Path | str | None, **facts: object) -> dict[str, Any]:
    """Do the work; print its findings, add provenance (its code, wall time, peak memory) and write them.

    Args:
        work: gives the findings, JSON-ready.
        path: where the record goes, or None.
        facts: what :func:`bornbiased_jax.record.provenance` is to hold beside its own.

    Returns:
        The record as written.

    Raises:
        InputError: the path cannot be written; nothing was measured then.
    """
    if path is not None:
        io.check_writable(path)
    code = code_digest(work)
    with measure() as measurement:
        findings = work()
    print(json.dumps(findings, indent=2))
    record = {**findings, "provenance": provenance(measurement=measurement, code=code, **facts)}
    if path is not None:
        io.write_json(path, record)
    return record
