"""Gradient norms at initialization by block: predicted from the configuration alone, and measured by ``jax.grad``.

Stated before the numbers: for every model and block the mean norm over seeds should lie within 5% of the predicted one,
plus two standard errors of that mean (``LIMIT``). Blocks have their norms before their sublayers. None of the shapes
and seeds was measured while the theory was made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bornbiased_jax.chunk_store import Chunk
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record, by_scale, chunked
from bornbiased_jax.init import init_seed
from bornbiased_jax.model.loss import loss_sum
from bornbiased_jax.parameters import flatten, parameter_table
from bornbiased_jax.prediction import predict_gradients
from bornbiased_jax.report.numbers import percent, significant
from bornbiased_jax.report.tables import Claim, Table, tabulate

LIMIT = 0.05
"""Largest relative error of a mean norm, beyond two standard errors."""
SIZES: Entry = dict(num_layers=4, num_heads=4, d_model=160, d_ff=320, vocab_size=700)
# Theory takes weights of attention for uniform: muP has logits that small, the other two get muP's scale.
_SMALL_LOGITS: Entry = {"attention_scale": 1 / 40}
CASES: dict[str, tuple[str, Entry, int, int]] = {
    "gpt2, tied": ("gpt2-tiny", {}, 20, 3),
    "gpt2, normal-0.02, untied": ("gpt2-tiny", {"tie_embeddings": False, "init": "normal-0.02"}, 12, 40),
    "llama": ("llama-tiny", {"num_kv_heads": 2}, 28, 6),
    "relu balanced": ("gpt2-tiny", {"activation": "relu", "init": "normal-0.02-balanced"}, 20, 4),
    "tanh, rmsnorm": ("gpt2-tiny", {"activation": "tanh", "norm": "rmsnorm", "tie_embeddings": False}, 20, 4),
    "mlp only": ("gpt2-tiny", {"attention": False, "tie_embeddings": False}, 20, 4),
    "window": ("llama-tiny", {"window": 5}, 24, 4),
    "neox": ("gpt2-tiny", {"init": "neox", "tie_embeddings": False}, 20, 4),
    "learned positions": ("gpt2-tiny", {"init": "neox", "positions": "learned"}, 20, 4),
    "torchtitan": ("llama-tiny", {"init": "torchtitan-llama3", "rope_theta": 500_000}, 16, 6),
    "gemma": ("gpt2-tiny", {"init": "gemma-jax", "activation": "gelu_tanh", "rotary_fraction": 0.5}, 18, 4),
    "mup": ("llama-tiny", {"init": "mup", **_SMALL_LOGITS}, 16, 4),
    "nanochat": (
        "gpt2-tiny",
        {"init": "nanochat", "activation": "relu_squared", "tie_embeddings": False, **_SMALL_LOGITS},
        16,
        4,
    ),
    "olmo": ("llama-tiny", {"init": "olmo-mitchell", **_SMALL_LOGITS}, 16, 4),
}
"""Name -> preset, its changes besides ``SIZES``, T and the number of sequences of a batch."""


def model_of(name: str) -> ModelConfig:
    """Return the configuration of a case."""
    base, changes, _, _ = CASES[name]
    return preset(base, **{**SIZES, **changes})


def group_norms(cfg: ModelConfig, length: int, num_inputs: int, seeds: Sequence[int]) -> dict[str, np.ndarray]:
    """Compute norms of the mean loss's gradient over the parameters of each group in each block, {group: [S, L]}.

    Tokens are uniform, and others for every seed.
    """
    table = parameter_table(cfg)

    @jax.jit
    def squares(seed: jax.Array, tokens: jax.Array) -> dict[str, jax.Array]:
        gradient = jax.grad(lambda params: loss_sum(cfg, params, tokens)[0] / (num_inputs * length))
        sums: dict[str, jax.Array] = {}
        for path, leaf in flatten(gradient(init_seed(cfg, seed))).items():
            if table[path].is_stacked:
                square = (leaf**2).reshape(leaf.shape[0], -1).sum(axis=1)
                sums[table[path].group] = sums.get(table[path].group, 0.0) + square
        return sums

    rows = []
    for seed in seeds:
        tokens = np.random.default_rng(seed).integers(0, cfg.vocab_size, (num_inputs, length + 1)).astype(np.int32)
        rows.append(squares(np.uint32(seed), tokens))
    return {group: np.sqrt(np.array([row[group] for row in rows], np.float64)) for group in rows[0]}


def block_norms(by_group: dict[str, np.ndarray]) -> np.ndarray:
    """Return norms over all parameters of each block [S, L]."""
    return np.sqrt(sum((norms**2 for norms in by_group.values()), np.zeros(())))


@chunked
def compute(settings: Entry, _: object, chunk: Chunk) -> list[Entry]:
    """Measure and predict one case: the place in ``settings["cases"]`` is the chunk's."""
    name = settings["cases"][chunk.start]
    cfg, (_, _, length, num_inputs) = model_of(name), CASES[name]
    norms_SL = block_norms(group_norms(cfg, length, num_inputs, settings["seeds"]))
    row = {
        "case": name,
        "norm_by_block": norms_SL.mean(axis=0),
        "norm_se_by_block": norms_SL.std(axis=0, ddof=1) / math.sqrt(len(norms_SL)),
        "predicted_norm_by_block": predict_gradients(cfg, length, num_inputs)["gradient_norm_by_block"],
    }
    return [row]


def run(context: Context) -> Entry:
    """Measure and predict every case, each a chunk of a store."""
    cases = context.settings["cases"]
    return {"rows": context.rows("gradient_norms/cases", compute, context.settings, len(cases), unit="models")}


def excess(row: Entry) -> float:
    """Return by how much the prediction misses at worst, over the prediction, less two standard errors."""
    norm, error, expected = (
        np.asarray(row[key]) for key in ("norm_by_block", "norm_se_by_block", "predicted_norm_by_block")
    )
    return float(np.max((np.abs(norm - expected) - 2 * error) / expected))


def tables(record: Record) -> Sequence[Table]:
    """Show the first and the last block of every case, and the error over all blocks."""
    rows: list[tuple[Any, ...]] = []
    for row in record["result"]["rows"]:
        places = {"first block": 0, "last block": -1}
        measured = {name: (significant(3), row["norm_by_block"][place]) for name, place in places.items()}
        expected = {name: row["predicted_norm_by_block"][place] for name, place in places.items()}
        worst = {"largest error, less 2 se": (percent(1), max(excess(row), 0.0))}
        rows.append(([row["case"]], {**measured, **worst}, {}, expected))
    sizes = ", ".join(f"{key}={value}" for key, value in SIZES.items())
    note = (
        "Norm of the mean loss's gradient over the parameters of a block, mean over "
        f"{len(record['settings']['seeds'])} seeds ({sizes}). The last column is the largest error over all blocks, "
        f"relative to the prediction; it must be at most {LIMIT:.0%}, as was fixed beforehand."
    )
    return [tabulate("Gradient norm of a block before training", ["model"], rows, note)]


def claims(record: Record) -> Sequence[Claim]:
    """Claim the worst error over cases and blocks."""
    worst = max(excess(row) for row in record["result"]["rows"])
    return [
        Claim(
            f"Largest relative error of a predicted gradient norm, less two standard errors (at most {LIMIT:.0%})",
            max(worst, 0.0),
            format=percent(1),
        )
    ]


EXPERIMENT = Experiment(
    name="gradient_norms",
    title="Gradient norms at initialization",
    description=(
        "The norm of the mean loss's gradient over the parameters of each block, predicted and measured, for fourteen "
        "models with norms before their sublayers."
    ),
    settings=by_scale(
        cases=(["gpt2, tied", "mlp only"], list(CASES), list(CASES)),
        seeds=([1000, 1001], list(range(1000, 1032)), list(range(1000, 1032))),
    ),
    cost={"laptop": "a few minutes of CPU", "paper": "as at laptop"},
    run=run,
    tables=tables,
    claims=claims,
)
