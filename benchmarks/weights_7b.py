"""The tests in the weights on a pair of 7B shape, a block deep: products, alignment, matching and permutations apart.

    python -m benchmarks weights_7b --json benchmarks/results/weights_7b.json

Random weights of LLaMA-7B's shape in bfloat16 and several safetensors files are written below a temporary folder (2 GB,
removed afterwards); the suspect is the base with noise. The tests then run in a process of their own, whose peak memory
is taken. Beside the streamed products (reading, folding, normalising and z by matrix included) the rate of NumPy's
float32 products at the same shapes is measured, before and after. Seconds are also those of the processor, which other
work changes less.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from benchmarks.child import run_child
from benchmarks.recorded import run
from bornbiased_jax import files
from bornbiased_jax.checkpoints.export import config_json, family_of
from bornbiased_jax.checkpoints.layout import file_shapes, shape_in_file
from bornbiased_jax.checkpoints.reader import WeightsReader, open_reader
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.seedprint.weights.align import match_layers, rotation
from bornbiased_jax.seedprint.weights.coordinates import coordinate_scores
from bornbiased_jax.seedprint.weights.matching import match_units
from bornbiased_jax.seedprint.weights.tokens import shared_tokens
from bornbiased_jax.seedprint.weights.units import form_a, unit_scores
from bornbiased_jax.seedprint.weights.view import matrices
from bornbiased_jax.stats.certified import Certified, certified_p

SIZES = dict(d_model=4096, d_ff=11008, num_heads=32, vocab_size=32_000)
FULL_DEPTH, NOISE = 32, 0.5
GOAL, GOAL_BYTES = 0.60, 3e9
# Tensors in one file: as many as make about half a gigabyte at 7B shape.
_A_FILE = 4


def write_model(folder: Path, cfg: ModelConfig, seed: int, noise_seed: int | None = None) -> None:
    """A Hugging Face directory in bfloat16 and several files; a second seed adds noise to the first's weights."""
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
                if noise_seed is not None:
                    noise = np.random.default_rng([noise_seed, index]).standard_normal(shape, np.float32)
                    tensor += np.float32(0.02 * NOISE) * noise
            tensors[entry.name] = tensor.astype(ml_dtypes.bfloat16)
            table[entry.name] = name
        save_file(tensors, folder / name, metadata={"format": "pt"})
    files.write_json(folder / "config.json", config_json(cfg, family, dtype="bfloat16", tokenizer=None))
    files.write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": table})


class Clock:
    """Wall and processor seconds of this process by name, added up."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def time(self, name: str, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do the work and note what it took."""
        wall, cpu = time.perf_counter(), time.process_time()
        found = work(*arguments)
        spent = self.seconds.setdefault(name, [0.0, 0.0])
        spent[0] += time.perf_counter() - wall
        spent[1] += time.process_time() - cpu
        return found


def products(base: WeightsReader) -> dict[str, list[tuple[int, int, int]]]:
    """(m, k, n) of every product that each kind of label needs of one block and the vocabulary."""
    cfg = base.cfg
    D, F, query, shared = cfg.d_model, cfg.d_ff, cfg.num_heads * cfg.key_dim, cfg.kv_heads * cfg.key_dim
    rows = {"query": query, "key": shared, "value": shared, "output": query}
    length = {"embed": cfg.vocab_size, "head": cfg.vocab_size}
    names = [matrix.module.rpartition("/")[2] if "/" in matrix.module else matrix.module for matrix in matrices(cfg)]
    by_coordinates = [(D, length.get(name, rows.get(name, F)), D) for name in names]
    return {"coordinates": by_coordinates, "units": [(F, D, F)] * (3 if cfg.gated_mlp else 2)}


def measure_products(clock: Clock, name: str, shapes: list[tuple[int, int, int]]) -> None:
    """The same products on arrays that lie in memory, laid out as the tests have them."""
    draws = np.random.default_rng(0)
    for shape in sorted(set(shapes)):
        m, k, n = shape
        if name == "coordinates":
            left, right = (draws.standard_normal((k, size), np.float32) for size in (m, n))
            clock.time(f"{shape}", np.matmul, left.T, right)
        else:
            left, right = (draws.standard_normal((size, k), np.float32) for size in (m, n))
            clock.time(f"{shape}", np.matmul, left, right.T)


def measure(base: WeightsReader, suspect: WeightsReader) -> dict[str, Any]:
    """All phases of one block, in this process."""
    clock, found = Clock(), {}
    tokens = shared_tokens(base, suspect)
    wanted = products(base)
    rates: dict[str, Clock] = {name: Clock() for name in wanted}
    measure_products(rates["coordinates"], "coordinates", wanted["coordinates"])
    scores_DD = clock.time("coordinates", coordinate_scores, base, suspect, tokens).scores_DD
    measure_products(rates["coordinates"], "coordinates", wanted["coordinates"])
    certified: Certified = clock.time("permutations of coordinates", certified_p, scores_DD)
    found["coordinates"] = {"z": certified.z, "log10_p": certified.log10_p}
    del scores_DD
    measure_products(rates["units"], "units", wanted["units"])
    scores = clock.time("units", unit_scores, base, suspect, (0, 0), None)
    measure_products(rates["units"], "units", wanted["units"])
    matched = clock.time("matching of units", match_units, scores)
    found["agreement"] = matched.agreement
    del matched
    scores_FF = form_a(scores)
    del scores
    certified = clock.time("permutations of units", certified_p, scores_FF)
    found["units"] = {"z": certified.z, "log10_p": certified.log10_p}
    del scores_FF
    turn_DD = clock.time("rotation by the vocabulary", rotation, base, suspect, tokens)
    clock.time("layers by their Grams", match_layers, base, suspect, turn_DD)
    speed = {}
    for name, shapes in wanted.items():
        operations = sum(2.0 * m * k * n for m, k, n in shapes)
        # Each shape was measured twice, before and after.
        alone = [sum(rates[name].seconds[str(shape)][kind] / 2 for shape in shapes) for kind in (0, 1)]
        speed[name] = {
            "operations": operations,
            "gflops": operations / clock.seconds[name][0] / 1e9,
            "gflops_of_products": operations / alone[0] / 1e9,
            "fraction": alone[0] / clock.seconds[name][0],
            "fraction_cpu": alone[1] / clock.seconds[name][1],
        }
    return {"found": found, "seconds": clock.seconds, "speed": speed, "load": os.getloadavg()[0]}


def scaled(seconds: dict[str, list[float]], cfg: ModelConfig, depth: int) -> dict[str, list[float]]:
    """The phases of a whole model: those of blocks grow with the depth, those of the vocabulary do not."""
    vocabulary = 2 * cfg.vocab_size / (2 * cfg.vocab_size + _block_rows(cfg))
    full = {}
    for name, spent in seconds.items():
        factor = float(depth)
        if name in ("rotation by the vocabulary", "permutations of coordinates"):
            factor = 1.0
        if name == "coordinates":
            factor = vocabulary + (1 - vocabulary) * depth
        full[name] = [value * factor for value in spent]
    return full


def _block_rows(cfg: ModelConfig) -> int:
    query, shared = cfg.num_heads * cfg.key_dim, cfg.kv_heads * cfg.key_dim
    return 2 * query + 2 * shared + (3 if cfg.gated_mlp else 2) * cfg.d_ff


def benchmark(sizes: dict[str, int], keep: Path | None) -> dict[str, Any]:
    """Write the pair, run the child, and give its findings."""
    cfg = preset("llama-tiny", num_layers=1, **sizes)
    with tempfile.TemporaryDirectory(dir=keep) as folder:
        write_model(Path(folder) / "base", cfg, 1)
        write_model(Path(folder) / "suspect", cfg, 1, 2)
        child = run_child("benchmarks.weights_7b", ["--child", folder])
    result = child.pop("result")
    return {
        "model": {**sizes, "num_layers": cfg.num_layers, "noise": NOISE},
        **result,
        "full_depth": FULL_DEPTH,
        "seconds_full_depth": scaled(result["seconds"], cfg, FULL_DEPTH),
        "process": child,
        "goal": GOAL,
        "goal_bytes": GOAL_BYTES,
    }


def main(arguments: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Measure and print; returns the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, size in SIZES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=size)
    parser.add_argument("--folder", type=Path, help="Where the models are written for the time of the measurement.")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    if options.child:
        folder = Path(options.child)
        found = measure(open_reader(folder / "base"), open_reader(folder / "suspect"))
        Path(options.json).write_text(json.dumps(found))
        return None
    sizes = {name: getattr(options, name) for name in SIZES}
    return run(lambda: benchmark(sizes, options.folder), options.json, precision="float32")


if __name__ == "__main__":
    main()
