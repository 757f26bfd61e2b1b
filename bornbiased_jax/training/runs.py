"""List runs and how far each came."""

from __future__ import annotations

from pathlib import Path

from typing_extensions import TypedDict

from bornbiased_jax import io, progress
from bornbiased_jax.checkpoints.formats.run import RUN_FILE, find_steps, read_run
from bornbiased_jax.config import PRESETS, ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.training.metrics import read_metrics


class RunDescription(TypedDict):
    """A run and how far it came; JSON-ready, lists in the order of the seeds.

    ``steps`` are planned, ``step`` is the last logged; ``preset`` names the model, if it has a name.
    """

    path: str
    model: str
    preset: str | None
    parameters: int | None
    data: str
    init_from: str | None
    seeds: list[int]
    steps: int
    step: int
    finished: bool
    checkpoints: list[int]
    loss: list[float] | None
    validation_loss: list[float] | None
    tokens: int


def list_runs(folder: Path | str) -> list[RunDescription]:
    """List every run in a folder or below it, sorted by path.

    A run whose files are corrupted is told of and left out.

    Raises:
        InputError: there is no such folder, or no whole run in it.
    """
    # Every folder below that has the record of a run.
    root = io.user_path(folder)
    if not root.is_dir():
        raise InputError(f"{root} does not exist: name a folder of runs")
    runs: list[RunDescription] = []
    corrupted: InputError | None = None
    for path in sorted(io.below(root, RUN_FILE)):
        try:
            runs.append(describe(path.parent))
        except (InputError, OSError) as error:
            # One corrupted run is no reason not to list its neighbors.
            corrupted = error if isinstance(error, InputError) else InputError(f"{path.parent} cannot be read: {error}")
            progress.warn(f"left out: {corrupted}")
    if not runs and corrupted is not None:
        raise corrupted
    if not runs:
        raise InputError(f"{root} holds no pretraining run: `bornbiased pretrain --out {root}/NAME` makes one")
    return runs


def describe(folder: Path) -> RunDescription:
    """Describe one run."""
    # What was asked for, what was logged, and what was saved.
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
