"""From two folders of 7B shape to a document: the time and memory of ``bornbiased seedprint A B --page``.

    python -m benchmarks document --json benchmarks/results/document.json

Random weights of LLaMA-7B's shape in bfloat16 and several safetensors files are written below a temporary folder, and
after each other two suspects made of them: a copy with noise of a fiftieth of each tensor's standard deviation, as a
small fine-tune has it, and a copy in 8 bits with a scale for each block of 128 × 128. At full depth base and suspect
need 27 GB of disk. The command runs in a process of its own, which reads every file.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

from benchmarks.child import run_child
from benchmarks.recorded import Findings, command
from benchmarks.streamed import SIZES, write_model
from benchmarks.tables import entries
from bornbiased_jax import io, progress
from bornbiased_jax.config import preset

LAYERS = 32
NOISE, BLOCK = 0.02, 128
_LARGEST_CODE = 448.0

Tensors = dict[str, np.ndarray]


def noisy(name: str, matrix_OI: np.ndarray, rng: np.random.Generator) -> Tensors:
    """Add noise to a matrix as a file has it."""
    noise_OI = rng.standard_normal(matrix_OI.shape, np.float32)
    return {name: (matrix_OI + np.float32(NOISE) * matrix_OI.std() * noise_OI).astype(ml_dtypes.bfloat16)}


def rounded(name: str, matrix_OI: np.ndarray, _rng: np.random.Generator) -> Tensors:
    """Round a matrix of a block to 8 bits, with a scale for each block; tables stay as they are."""
    if "layers." not in name:
        return {name: matrix_OI.astype(ml_dtypes.bfloat16)}
    rows, columns = matrix_OI.shape[0] // BLOCK, matrix_OI.shape[1] // BLOCK
    blocks = matrix_OI.reshape(rows, BLOCK, columns, BLOCK)
    scale = np.abs(blocks).max(axis=(1, 3)) / np.float32(_LARGEST_CODE)
    codes = (blocks / scale[:, None, :, None]).reshape(matrix_OI.shape).astype(ml_dtypes.float8_e4m3fn)
    return {name: codes, f"{name}_scale_inv": scale}


CHANGES: dict[str, tuple[Callable[[str, np.ndarray, np.random.Generator], Tensors], Findings]] = {
    "a noisy copy": (noisy, {}),
    "a copy in 8 bits": (
        rounded,
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}},
    ),
}
"""Name of a suspect -> what happens to each of its matrices, and what its configuration says of that."""


def write_suspect(base: Path, suspect: Path, kind: str) -> None:
    """Write a changed copy of a Hugging Face directory, file by file."""
    change, settings = CHANGES[kind]
    suspect.mkdir()
    table: dict[str, str] = {}
    for number, path in enumerate(sorted(base.glob("*.safetensors"))):
        tensors: Tensors = {}
        for name, tensor in load_file(path).items():
            is_changed = tensor.ndim == 2
            rng = np.random.default_rng([1, number, len(tensors)])
            tensors |= change(name, tensor.astype(np.float32), rng) if is_changed else {name: tensor}
        save_file(tensors, suspect / path.name, metadata={"format": "pt"})
        table |= dict.fromkeys(tensors, path.name)
    io.write_json(suspect / "config.json", io.read_json(base / "config.json") | settings)
    io.write_json(suspect / "model.safetensors.index.json", {"metadata": {}, "weight_map": table})


def measure(folder: Path, layers: int = LAYERS) -> Findings:
    """Measure how long two folders of 7B shape take to a document.

    Args:
        folder: For the models.
        layers: Blocks, 0.8 gigabytes of disk each.
    """
    cfg, base, suspect = preset("llama-tiny", num_layers=layers, **SIZES), folder / "base", folder / "suspect"
    progress.note("writing the base")
    write_model(base, cfg, 0)
    suspects = {}
    for kind in CHANGES:
        progress.note(f"writing {kind}, and comparing it")
        write_suspect(base, suspect, kind)
        page = folder / "document.html"
        process = run_child("bornbiased_jax", ["seedprint", str(base), str(suspect), "--page", str(page), "--quiet"])
        verdict = process.pop("result")
        shutil.rmtree(suspect)
        facts = {name: verdict[name] for name in ("verdict", "identity", "reason", "log10_p")}
        suspects[kind] = {**process, **facts, "page_bytes": page.stat().st_size}
    num_bytes = sum(path.stat().st_size for path in base.glob("*.safetensors"))
    return {
        "layers": layers,
        "sizes": SIZES,
        "base_bytes": num_bytes,
        "suspects": suspects,
    }


tables = functools.partial(
    entries,
    title="`seedprint A B --page` at {layers} blocks of 7B shape (width {sizes[d_model]:integer}, "
    "{sizes[d_ff]:integer} hidden units, {base_bytes:GB} in bfloat16)",
    each="suspects",
    columns={
        "suspect": "{name}",
        "time": "{wall_s:duration}",
        "processor time": "{cpu_s:duration}",
        "most memory": "{peak_bytes:GB}",
        "verdict": "{verdict}",
        "because": "{reason}",
    },
)

main = functools.partial(command, measure, precision="float32")
