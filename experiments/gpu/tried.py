"""What may bring the process down, tried item by item: a process that died goes on after what killed it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bornbiased_jax import files
from bornbiased_jax.checkpoints.storage import first_line
from bornbiased_jax.errors import InputError

DIED = "the process died while this was tried"


def each(path: Path, names: Sequence[str], compute: Callable[[str], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """``compute`` of each name, kept in a file after every one.

    Args:
        path: the file; what an earlier process left there stays.
        names: in order.
        compute: gives a JSON-ready dict; whatever it raises is kept as the reason why there is none.

    Returns:
        Name -> what was computed, or ``{"refused": reason}``.
    """
    kept = _read(path)
    if kept["trying"] is not None:
        kept["results"][kept["trying"]] = {"refused": DIED}
    for name in names:
        if name in kept["results"]:
            continue
        files.write_json(path, {**kept, "trying": name})
        try:
            kept["results"][name] = compute(name)
        except Exception as error:  # whatever a backend answers to what it does not know
            kept["results"][name] = {"refused": f"{type(error).__name__}: {first_line(error)}"}
        kept["trying"] = None
        files.write_json(path, kept)
    return {name: kept["results"][name] for name in names}


def _read(path: Path) -> dict[str, Any]:
    try:
        kept = files.read_json(path)
        return {"results": dict(kept["results"]), "trying": kept["trying"]}
    except (InputError, KeyError, TypeError, ValueError):
        return {"results": {}, "trying": None}
