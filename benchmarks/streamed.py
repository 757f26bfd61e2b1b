"""A fingerprint of a model of 7B shape that is read block by block: its memory, and its rate against that of products.

    python -m benchmarks streamed --json benchmarks/results/streamed.json

Random weights of LLaMA-7B's shape in bfloat16 and several safetensors files are written below a temporary folder,
eight blocks deep unless told otherwise (4 GB, removed afterwards). Blocks are alike: memory does not grow with their
number, and time does in proportion. The command ``bornbiased fingerprint --outputs --stream`` then runs in a process of
its own, whose peak memory is taken; in another one the pass alone is timed, between two measurements of the rate of
float32 products at the model's shapes.
"""

from __future__ import annotations

import functools
import statistics
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from benchmarks.child import run_child
from benchmarks.matmul import matmul_rate
from benchmarks.recorded import Findings, command, timed
from benchmarks.tables import facts
from bornbiased_jax import io, progress
from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.checkpoints.export import config_json, family_of
from bornbiased_jax.checkpoints.layout import file_shapes, shape_in_file
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.lineage.outputs import last_outputs
from bornbiased_jax.model.memory import needed_operations, weights_bytes
from bornbiased_jax.probes.batching import BATCH_TOKENS_CPU
from bornbiased_jax.probes.inputs import random_tokens

SIZES = dict(d_model=4096, d_ff=11008, num_heads=32, vocab_size=32_000)
NUM_INPUTS, LENGTH = 64, 64
LAYERS, FULL_DEPTH = 8, 32
# Tensors in one file: as many as make about half a gigabyte at 7B shape.
_A_FILE = 4


def write_model(folder: Path, cfg: ModelConfig, seed: int) -> None:
    """Write random weights as a Hugging Face directory, in bfloat16 and several files."""
    folder.mkdir(parents=True)
    family = family_of(cfg)
    shapes = file_shapes(cfg, family.biases(cfg))
    entries = family.entries(shapes)
    table: dict[str, str] = {}
    for number, start in enumerate(range(0, len(entries), _A_FILE), start=1):
        name, tensors = f"model-{number:05}.safetensors", {}
        for index, entry in enumerate(entries[start : start + _A_FILE], start=start):
            shape = shape_in_file(entry, shapes)
            tensor = np.ones(shape, np.float32)
            if len(shape) > 1:
                tensor = 0.02 * np.random.default_rng([seed, index]).standard_normal(shape, np.float32)
            tensors[entry.name] = tensor.astype(ml_dtypes.bfloat16)
            table[entry.name] = name
        save_file(tensors, folder / name, metadata={"format": "pt"})
    io.write_json(folder / "config.json", config_json(cfg, family, dtype="bfloat16", tokenizer=None))
    io.write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": table})


def operations(cfg: ModelConfig, num_inputs: int, length: int) -> float:
    """Count the operations that outputs of all sequences at the last position cannot do without."""
    return num_inputs * (needed_operations(cfg, length) - 2.0 * cfg.d_model * cfg.vocab_size)


def time_pass(folder: str, num_inputs: int, length: int) -> Findings:
    """Time one streamed pass, and the rate of products before and after it; in this process."""
    opened = open_checkpoint(Path(folder) / "model", scratch=Path(folder) / "alone")
    cfg = opened.cfg
    assert opened.streamed is not None
    opened.streamed.largest()  # reads every tensor once, for what the command keeps of them
    inputs = random_tokens(num_inputs, length, cfg.vocab_size, 0)
    rows = min(num_inputs, max(1, BATCH_TOKENS_CPU // length)) * length
    rates = [matmul_rate(cfg, rows)]
    seconds = timed(lambda: last_outputs(cfg, opened.weights, inputs)).wall_s
    rates.append(matmul_rate(cfg, rows))
    opened.close()
    return {"seconds": seconds, "product_rates": rates}


def measure(folder: Path, layers: int = LAYERS, num_inputs: int = NUM_INPUTS, length: int = LENGTH) -> Findings:
    """Measure a fingerprint of a model of 7B shape that is read block by block.

    Args:
        folder: For the model.
        layers: Blocks, half a gigabyte of disk each.
        num_inputs: Sequences.
        length: Tokens in a sequence.
    """
    cfg = preset("llama-tiny", num_layers=layers, **SIZES)
    model = folder / "model"
    progress.note("writing the model")
    write_model(model, cfg, 0)
    # The whole command, for its memory.
    words = ["fingerprint", "--outputs", str(model), "--num-inputs", str(num_inputs), "--seq-len", str(length)]
    words += ["--stream", "--scratch", str(folder / "command"), "--out", str(folder / "a.fingerprint"), "--quiet"]
    progress.note("the command")
    process = run_child("bornbiased_jax", words)
    process.pop("result")
    progress.note("the pass alone")
    # The pass alone, for its rate.
    arguments = ["--folder", str(folder), "--num-inputs", str(num_inputs), "--length", str(length)]
    timed = run_child("benchmarks.streamed", arguments)
    needed, timing = operations(cfg, num_inputs, length), timed["result"]
    timing.pop("provenance")
    rate, products = needed / timing["seconds"], statistics.mean(timing["product_rates"])
    full = cfg.replace(num_layers=FULL_DEPTH)
    return {
        "num_inputs": num_inputs,
        "length": length,
        "layers": layers,
        "sizes": SIZES,
        "weights_bytes": weights_bytes(cfg),
        "command": process,
        "pass": {**timing, "needed_gflop": needed / 1e9, "gflops": rate / 1e9, "load": timed["load"]},
        "fraction_of_products": rate / products,
        "full_depth": {
            "layers": FULL_DEPTH,
            "weights_bytes": weights_bytes(full),
            "seconds_extrapolated": operations(full, num_inputs, length) / rate,
        },
    }


tables = functools.partial(
    facts,
    title="{num_inputs} sequences of {length} tokens through {layers} blocks of 7B shape "
    "(width {sizes[d_model]:integer}, {sizes[d_ff]:integer} hidden units)",
    rows={
        "peak memory of the command": "{command[peak_bytes]:GB}",
        "the weights in float32": "{weights_bytes:GB}",
        "the pass, fraction of the rate of float32 products": "{fraction_of_products:percent:0}",
        "time of the pass": "{pass[seconds]:duration}",
        "{full_depth[layers]} blocks: weights in float32": "{full_depth[weights_bytes]:GB}",
        "{full_depth[layers]} blocks: time of the pass, extrapolated": "{full_depth[seconds_extrapolated]:duration}",
        "processor time and time of the whole command": "{command[cpu_s]:duration}, {command[wall_s]:duration}",
    },
)

main = functools.partial(command, measure, precision="float32 highest")

if __name__ == "__main__":
    command(time_pass)
