"""A real model behind every free change and noise: what ``seedprint`` says of it, in what time and memory.

    python -m benchmarks disguised --gguf FILE --other FILE --json benchmarks/results/disguised.json

The suspect is the model of a GGUF file with factors of either sign moved from down to up, hidden units and heads
permuted, the residual stream rotated by a random orthogonal matrix, coordinates negated, and noise of 5% of its
standard deviation on every matrix, written as a Hugging Face directory in float32. ``bornbiased seedprint`` (``auto``)
then compares with it the original, a birth of the model's own architecture, and another model, each in a process of its
own. With ``--folder`` what is done is kept there, and a measurement that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from benchmarks.child import run_child
from benchmarks.recorded import run
from bornbiased_jax import files
from bornbiased_jax.adapt import symmetries
from bornbiased_jax.checkpoints import export_hugging_face, open_checkpoint
from bornbiased_jax.checkpoints.reader import open_reader
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import flatten, unflatten

NOISE, BIRTH, PRESET = 0.05, 42, "qwen-tiny"
GOAL_SECONDS, GOAL_BYTES = 600.0, 3e9
_KEPT = ("verdict", "reason", "p_value", "log10_p", "z", "null")
_KEPT_OF_TESTS = ("name", "verdict", "reason", "p_value", "log10_p", "z", "null", "agreement")


def disguise(source: Path, folder: Path, seed: int = 0) -> None:
    """Write the suspect. The model is held in memory twice, before and after a change."""
    opened = open_checkpoint(source)
    cfg, params = opened.cfg, opened.params
    del opened
    draws = np.random.default_rng(seed)
    shape = (cfg.num_layers, cfg.d_ff)
    factors_LF = (draws.choice([-1, 1], shape) * np.exp(draws.normal(size=shape))).astype(np.float32)
    orders_LF, orders_LG = (
        np.stack([draws.permutation(size) for _ in range(cfg.num_layers)]) for size in (cfg.d_ff, cfg.kv_heads)
    )
    cfg, params = symmetries.rescale_units(cfg, params, factors_LF)
    cfg, params = symmetries.permute_units(cfg, params, orders_LF)
    cfg, params = symmetries.permute_heads(cfg, params, orders_LG)
    cfg, params = symmetries.rotate(cfg, params, symmetries.random_rotation(cfg, seed + 1))
    cfg, params = symmetries.negate(cfg, params, draws.choice([-1.0, 1.0], cfg.d_model))
    flat = {path: np.asarray(leaf) for path, leaf in flatten(params).items()}
    del params
    for path, leaf in flat.items():
        if path.endswith(("/kernel", "/embedding")):
            for matrix in leaf if leaf.ndim == 3 else leaf[None]:
                matrix += np.float32(NOISE * matrix.std()) * draws.standard_normal(matrix.shape, np.float32)
    export_hugging_face(cfg, unflatten(flat), folder)


def birth_of(cfg: ModelConfig, seed: int) -> str:
    """A reference to a birth of this architecture."""
    plain = preset(PRESET).to_dict()
    changed = {name: value for name, value in cfg.to_dict().items() if value != plain[name]}
    return f"seed:{seed}@{PRESET}," + ",".join(f"{name}={str(value).lower()}" for name, value in changed.items())


def described(path: Path) -> dict[str, Any]:
    """A GGUF file by its name, its bytes' SHA-256, and what it says of its licence."""
    fields = gguf.GGUFReader(path).fields
    said = {name: fields[f"general.{name}"].contents() for name in ("name", "license") if f"general.{name}" in fields}
    with path.open("rb") as stream:
        return {"file": path.name, "sha256": hashlib.file_digest(stream, "sha256").hexdigest(), **said}


def verdict_of(base: str, suspect: Path, kept: Path) -> dict[str, Any]:
    """What the command says of a pair, and what it took."""
    if kept.exists():
        found: dict[str, Any] = files.read_json(kept)
        return found
    child = run_child("bornbiased_jax", ["seedprint", base, str(suspect), "--quiet"])
    result = child.pop("result")
    tests = [{key: row.get(key) for key in _KEPT_OF_TESTS} for row in result["tests"]]
    found = {
        **{key: result.get(key) for key in _KEPT},
        "identity": result["identity"],
        "tests": tests,
        "process": child,
    }
    files.write_json(kept, found)
    return found


def measure(source: Path, other: Path, folder: Path, pairs: Sequence[str]) -> dict[str, Any]:
    """All pairs, or those named."""
    suspect = folder / "disguised"
    if not (suspect / "config.json").exists():
        files.write_json(
            folder / "made.json", run_child("benchmarks.disguised", ["--make", str(suspect), "--gguf", str(source)])
        )
    bases = {
        "the original": str(source),
        "a birth of its architecture": birth_of(open_reader(suspect).cfg, BIRTH),
        "another model": str(other),
    }
    found = {
        name: verdict_of(bases[name], suspect, folder / f"{name.replace(' ', '-')}.json") for name in pairs or bases
    }
    made = files.read_json(folder / "made.json") if (folder / "made.json").exists() else None
    return {
        "model": described(source),
        "other": described(other),
        "noise": NOISE,
        "birth_seed": BIRTH,
        "verdicts": found,
        "disguising": None if made is None else {key: made[key] for key in ("wall_s", "cpu_s", "peak_bytes")},
        "goal_seconds": GOAL_SECONDS,
        "goal_bytes": GOAL_BYTES,
    }


def main(arguments: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Measure and print; returns the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gguf", type=Path, required=True, help="The model.")
    parser.add_argument("--other", type=Path, help="Another model, in a GGUF file too.")
    parser.add_argument("--folder", type=Path, help="Keep the suspect and the verdicts here.")
    parser.add_argument("--pair", action="append", default=[], help="Only this pair; may be given more than once.")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    if options.make is not None:
        disguise(options.gguf, options.make)
        files.write_json(options.json, {"made": True})
        return None
    if options.other is None:
        raise InputError("--other is missing: name the GGUF file of another model")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        return run(lambda: measure(options.gguf, options.other, folder, options.pair), options.json)


if __name__ == "__main__":
    main()
