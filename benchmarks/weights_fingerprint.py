"""A fingerprint of the weights of a model of 7B shape: its time against reading the same files, and its memory.

    python -m benchmarks weights_fingerprint --json benchmarks/results/weights_fingerprint.json

Random weights of LLaMA-7B's shape in bfloat16 and several safetensors files are written below a temporary folder, two
blocks deep unless told otherwise (1.3 GB, removed afterwards). Reading every tensor and turning it into float32, the
digest of all weights alone, which is SHA-256 of the same float32 numbers, the fingerprint of weights whose digest is
known, and the fingerprint with its digest are then timed in turn; the command runs once more in a process of its own,
whose peak memory is taken. Blocks are alike: time grows with their number, and memory does not.
"""

from __future__ import annotations

import functools
import os
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.child import run_child
from benchmarks.recorded import Findings, command, timed
from benchmarks.streamed import SIZES, write_model
from benchmarks.tables import facts
from bornbiased_jax import progress
from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.checkpoints.native_roles import NativeRoles
from bornbiased_jax.checkpoints.weight_files import choose_weights, locate_tensors
from bornbiased_jax.config import preset
from bornbiased_jax.lineage.fingerprint_file import encode
from bornbiased_jax.lineage.fingerprint_pass import fingerprint, weights_digests
from bornbiased_jax.lineage.fingerprint_size import predicted_bytes
from bornbiased_jax.lineage.fingerprints import Settings

LAYERS, FULL_DEPTH, ROUNDS = 2, 32, 3


def read_and_upcast(folder: Path) -> None:
    """Read every tensor of a directory and turn it into float32, one at a time."""
    source = locate_tensors(folder, choose_weights(folder))
    for name in source.shapes:
        source.read(name).astype(np.float32)


def measure(folder: Path, layers: int = LAYERS, rounds: int = ROUNDS) -> Findings:
    """Measure a fingerprint of the weights of a model of 7B shape against reading the same files.

    Args:
        folder: For the model.
        layers: Blocks, 0.4 gigabytes of disk each.
        rounds: Times that both are timed.
    """
    cfg, model = preset("llama-tiny", num_layers=layers, **SIZES), folder / "model"
    progress.note("writing the model")
    write_model(model, cfg, 0)
    sketches = fingerprint(model)  # reads the files into the page cache
    source = NativeRoles(open_checkpoint(model))
    digests = weights_digests(source)
    steps: dict[str, Callable[[], object]] = {
        "read": lambda: read_and_upcast(model),
        "digest": lambda: weights_digests(source),
        "sketch": lambda: fingerprint(model, digests=digests),
        "fingerprint": lambda: fingerprint(model),
    }
    before = os.getloadavg()[0]
    rows = [{name: timed(step).wall_s for name, step in steps.items()} for _ in range(rounds)]
    times = {name: [row[name] for row in rows] for name in steps}
    load = [before, os.getloadavg()[0]]
    progress.note("the command, for its memory")
    words = ["fingerprint", str(model), "--out", str(folder / "a.fingerprint"), "--quiet"]
    process = run_child("bornbiased_jax", words)
    process.pop("result")
    table_bytes = 2 * 4 * SIZES["vocab_size"] * SIZES["d_model"]
    block_bytes = sum(
        2 * int(np.prod(source.array_shape(role))) for role in source.roles if role.block == 1
    )  # in bfloat16
    file_bytes = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    read_s, sketch_s, make_s = (statistics.median(times[name]) for name in ("read", "sketch", "fingerprint"))
    full_bytes = file_bytes + (FULL_DEPTH - layers) * block_bytes
    return {
        "layers": layers,
        "sizes": SIZES,
        "file_bytes": file_bytes,
        "fingerprint_bytes": len(encode(sketches)),
        **{f"{name}_seconds": seconds for name, seconds in times.items()},
        "ratio": make_s / read_s,
        "sketch_ratio": sketch_s / read_s,
        "load": load,
        "command": process,
        "table_bytes": table_bytes,
        "beyond_tables_bytes": process["peak_bytes"] - table_bytes,
        "full_depth": {
            "layers": FULL_DEPTH,
            "seconds_extrapolated": make_s * full_bytes / file_bytes,
            "fingerprint_bytes": predicted_bytes(_at_depth(), Settings()),
        },
    }


def _at_depth() -> NativeRoles:
    """Open untrained weights of full depth, of which only the sizes are asked for."""
    fields = [f"num_layers={FULL_DEPTH}", *(f"{name}={size}" for name, size in SIZES.items())]
    return NativeRoles(open_checkpoint(",".join(["seed:0@llama-tiny", *fields])))


tables = functools.partial(
    facts,
    title="A fingerprint of the weights of {layers} blocks of 7B shape and their tables "
    "(width {sizes[d_model]:integer}, {sizes[d_ff]:integer} hidden units, {file_bytes:GB} in bfloat16)",
    rows={
        "seconds of reading the files into float32": "{read_seconds:fixed:1}",
        "seconds of the digest of all weights alone": "{digest_seconds:fixed:1}",
        "seconds of the fingerprint without it": "{sketch_seconds:fixed:1}",
        "seconds of the fingerprint with it": "{fingerprint_seconds:fixed:1}",
        "the fingerprint over reading, by their medians": "{ratio:fixed:2}",
        "without the digest": "{sketch_ratio:fixed:2}",
        "peak memory of the command beyond the two tables": "{beyond_tables_bytes:GB}",
        "the two tables in float32": "{table_bytes:GB}",
        "{full_depth[layers]} blocks: time, extrapolated, and size of the file": (
            "{full_depth[seconds_extrapolated]:duration}, {full_depth[fingerprint_bytes]:MB}"
        ),
        "processor time and time of the whole command": "{command[cpu_s]:duration}, {command[wall_s]:duration}",
    },
)

main = functools.partial(command, measure, precision="float32")
