"""List runs and how far each came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bornbiased_jax import io, progress
from bornbiased_jax.checkpoints.formats.run import RUN_FILE, find_steps, read_run
from bornbiased_jax.config import PRESETS, ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.training.metrics import read_metrics


def list_runs(folder: Path | str) -> list[dict[str, Any]]:
    """List every run in a folder or below it, sorted by path; JSON-ready.

    Each has ``path``, ``model`` (its size in words), ``preset`` (its name, None of
    another model), ``data``, ``seeds``, ``steps`` (planned), ``step`` (the last
    logged), ``finished``, ``checkpoints`` (their steps), ``loss`` (by seed, the last logged), ``validation_loss``
    (the last made, or None) and ``tokens`` seen.

    A run whose files are damaged is told of and left out.

    Raises:
        InputError: there is no such folder, or no whole run in it.
    """
    root = io.user_path(folder)
    if not root.is_dir():
        raise InputError(f"{root} does not exist: name a folder of runs")
    runs, strange = [], None
    for path in sorted(io.below(root, RUN_FILE)):
        try:
            runs.append(describe(path.parent))
        except (InputError, OSError) as error:
            # One damaged run is no reason not to list its neighbours.
            strange = error if isinstance(error, InputError) else InputError(f"{path.parent} cannot be read: {error}")
            progress.warn(f"left out: {strange}")
    if not runs and strange is not None:
        raise strange
    if not runs:
        raise InputError(f"{root} holds no pretraining run: `bornbiased pretrain --out {root}/NAME` makes one")
    return runs


def describe(folder: Path) -> dict[str, Any]:
    """Describe one run, as :func:`list_runs` gives it."""
    run = read_run(folder)
    config = run["config"]
    lines = read_metrics(folder)
    last = lines[-1] if lines else None
    checkpoints = find_steps(folder)
    validations = [line["validation_loss"] for line in lines if "validation_loss" in line]
    cfg = ModelConfig.from_dict(config["model"])
    return {
        "path": str(folder),
        "model": f"{cfg.num_layers} layers, {cfg.num_heads} heads, {cfg.d_model} wide",
        "preset": next((name for name, preset in PRESETS.items() if preset == cfg), None),
        "parameters": run.get("parameters"),
        "data": config["data"],
        "init_from": config.get("init_from"),
        "seeds": config["seeds"],
        "steps": run["steps"],
        "step": 0 if last is None else last["step"],
        "finished": bool(checkpoints) and checkpoints[-1] == run["steps"],
        "checkpoints": checkpoints,
        "loss": None if last is None else last["loss"],
        "validation_loss": validations[-1] if validations else None,
        "tokens": 0 if last is None else last["tokens"],
    }
