"""How long an audit takes: 24 checkpoints of llama-tiny with all pairs, and a listing of 154 branches."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.recorded import run
from bornbiased_jax.audit.audit import audit_folder
from bornbiased_jax.checkpoints import export_hugging_face
from bornbiased_jax.config import preset
from bornbiased_jax.models import flatten, init_seed, unflatten

SEEDS, STEPS = range(4), range(0, 600, 100)
BRANCHES = 154
AUDIT_GOAL, LISTING_GOAL = 120.0, 1.0


def write_models(folder: Path) -> None:
    """Births of four seeds and five later checkpoints of each, which drift by noise."""
    cfg = preset("llama-tiny")
    for seed in SEEDS:
        flat = {path: np.array(leaf) for path, leaf in flatten(init_seed(cfg, seed)).items()}
        draws = np.random.default_rng(seed)
        for step in STEPS:
            export_hugging_face(cfg, unflatten(flat), folder / f"seed{seed}-step{step}")
            for path, leaf in flat.items():
                flat[path] = leaf + np.float32(0.006) * draws.standard_normal(leaf.shape, np.float32)


def write_listing(path: Path) -> None:
    """Branches of two files each, all different."""
    revisions = {
        f"step{number * 1000}": [
            {"type": "file", "path": f"model-{shard}.safetensors", "lfs": {"oid": f"{number:032x}{shard:032x}"}}
            for shard in range(2)
        ]
        for number in range(BRANCHES)
    }
    path.write_text(json.dumps({"revisions": revisions}))


def measure() -> dict[str, Any]:
    """Seconds of both; the listing by the command, from a fresh process to its end."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_models(folder / "models")
        start = time.perf_counter()
        found = audit_folder(folder / "models")
        seconds = time.perf_counter() - start
        assert found["clean"] and len(found["checkpoints"]) == 24, found["findings"]
        write_listing(folder / "listing.json")
        command = [sys.executable, "-m", "bornbiased_jax", "audit", str(folder / "listing.json"), "--strict"]
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        listing = time.perf_counter() - start
    return {
        "checkpoints": len(found["checkpoints"]),
        "pairs": len(found["pairs"]),
        "seconds_audit": seconds,
        "goal_audit": AUDIT_GOAL,
        "branches": BRANCHES,
        "seconds_listing": listing,
        "goal_listing": LISTING_GOAL,
    }


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure and print; returns the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    return run(measure, options.json)


if __name__ == "__main__":
    main()
