"""What storing weights as bfloat16 does to the z of fingerprints: births beside noisy copies and beside other births.

    python -m benchmarks storage --json benchmarks/results/storage.json

Each pair is fingerprinted with both models held as float32, both as bfloat16, and one as each. Products are float32 in
every case, so that the difference is that of rounding the weights alone.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.recorded import run
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.inputs import random_tokens
from bornbiased_jax.models import init_seed
from bornbiased_jax.models.parameters import Params
from bornbiased_jax.report.tables import Quantity, Row, Table
from bornbiased_jax.seedprint.lineage_tests import lineage_test
from bornbiased_jax.seedprint.outputs import last_outputs
from bornbiased_jax.seedprint.permutation import permutation_test

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2-tiny": ("gpt2-tiny", {}),
    "llama-tiny": ("llama-tiny", {}),
    "qwen-tiny": ("qwen-tiny", {}),
    "llama-tiny, 8 blocks of width 256": ("llama-tiny", {"num_layers": 8, "d_model": 256, "num_heads": 8, "d_ff": 704}),
}
STORAGES = ("float32", "bfloat16")
NUM_INPUTS, LENGTH, NOISE = 500, 32, 1.0


def noisy(params: Params, seed: int, size: float) -> Params:
    """The weights with Gaussian noise of ``size`` times each tensor's own standard deviation."""
    draws = np.random.default_rng(seed)

    def moved(leaf: jax.Array) -> jax.Array:
        noise = draws.standard_normal(leaf.shape, np.float32)
        return leaf + size * jnp.std(leaf) * noise

    return jax.tree.map(moved, params)


def suspects(cfg: ModelConfig, params: Params, seed: int, noise: float) -> Iterator[tuple[str, Params]]:
    """What a birth is compared with."""
    yield "a noisy copy", noisy(params, seed, noise)
    yield "another birth", init_seed(cfg, seed + 1_000_000)


def pairs(cfg: ModelConfig, seeds: Sequence[int], num_inputs: int, length: int, noise: float) -> list[dict[str, Any]]:
    """z of each pair by the storage of base and suspect."""
    inputs = random_tokens(num_inputs, length, cfg.vocab_size, 0)

    def outputs(params: Params, storage: str) -> np.ndarray:
        held = jax.tree.map(lambda leaf: leaf.astype(storage), params)
        return last_outputs(cfg, held, inputs)

    alpha = lineage_test("permutation").alpha
    rows = []
    for seed in seeds:
        born = init_seed(cfg, seed)
        bases = {storage: outputs(born, storage) for storage in STORAGES}
        for kind, params in suspects(cfg, born, seed, noise):
            others = {storage: outputs(params, storage) for storage in STORAGES}
            tested = {
                f"{ours}, {theirs}": permutation_test(bases[ours], others[theirs], alpha=alpha)
                for ours, theirs in itertools.product(STORAGES, STORAGES)
            }
            z = {name: verdict.z for name, verdict in tested.items()}
            verdicts = {name: verdict.verdict for name, verdict in tested.items()}
            rows.append({"seed": seed, "suspect": kind, "z": z, "verdicts": verdicts})
    return rows


def measure(names: Sequence[str], seeds: int, num_inputs: int, length: int, noise: float) -> dict[str, Any]:
    """All pairs of all models, and what bfloat16 changes of z."""
    rows = []
    for name in names:
        base, changes = MODELS[name]
        for row in pairs(preset(base, **changes), range(seeds), num_inputs, length, noise):
            rows.append({"model": name, **row})
    return {"num_inputs": num_inputs, "length": length, "noise": noise, "seeds": seeds, "rows": rows}


def tables(record: Mapping[str, Any]) -> list[Table]:
    """A row for each model and kind of suspect."""
    rows = []
    for model, suspect in dict.fromkeys((row["model"], row["suspect"]) for row in record["rows"]):
        same = [row for row in record["rows"] if (row["model"], row["suspect"]) == (model, suspect)]
        z = {name: [row["z"][name] for row in same] for name in same[0]["z"]}
        plain = z["float32, float32"]
        moved = {name: max(abs(a - b) for a, b in zip(plain, values, strict=True)) for name, values in z.items()}
        kept = sum(len(set(row["verdicts"].values())) == 1 for row in same)
        cells = {
            "z in float32": f"{statistics.mean(plain):.2f} ({min(plain):.2f} to {max(plain):.2f})",
            "both in bfloat16": f"{moved['bfloat16, bfloat16']:.3f}",
            "one in each": f"{max(moved['float32, bfloat16'], moved['bfloat16, float32']):.3f}",
            "same verdict": f"{kept} of {len(same)}",
        }
        rows.append(Row([model, suspect], cells))
    note = (
        f"Permutation test of outputs on {record['num_inputs']:,} sequences of {record['length']} random tokens, "
        f"{record['seeds']} births of each model: mean and range of z, and its largest change. A noisy copy has noise "
        f"as large as {record['noise']:g} times its weights. Products are float32 in every case."
    )
    names = ("z in float32", "both in bfloat16", "one in each", "same verdict")
    quantities = [Quantity(name) for name in names]
    return [Table("What bfloat16 storage changes of z", ["model", "beside a birth"], quantities, rows, note)]


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure and print; returns the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8, help="Births of each model.")
    parser.add_argument("--num-inputs", type=int, default=NUM_INPUTS)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--noise", type=float, default=NOISE)
    parser.add_argument("--models", default=";".join(MODELS), help="Separated by semicolons.")
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    sizes = (options.seeds, options.num_inputs, options.length, options.noise)
    return run(lambda: measure(options.models.split(";"), *sizes), options.json, precision="float32 highest")


if __name__ == "__main__":
    main()
