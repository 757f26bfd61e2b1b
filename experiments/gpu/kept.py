"""Which algorithms for float32 products keep what a probe of births says: top-1 tokens, their counts, cosines.

The bounds are stated before anything was measured. Beside the algorithms stands a control, the same products at
``HIGHEST`` in batches of half the size: what another order of summation moves is no algorithm's fault.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import keys, models
from bornbiased_jax.code import code_digest
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.inputs import Inputs, random_tokens
from bornbiased_jax.probes import contraction, preference
from bornbiased_jax.probes.measure import batch_size_for, order_inputs, stream
from bornbiased_jax.probes.observe import observe
from bornbiased_jax.probes.subject import EMBEDDING_SEED
from experiments.gpu import measured, tried
from experiments.gpu.products import algorithms

CHANGED = 1e-3
"""Of the inputs, at most this fraction may be answered with another token than at ``HIGHEST``."""
COUNT = 1e-3
"""The top-1 token's count may move by this fraction of the inputs."""
COSINE = 1e-5
"""A layer's mean cosine between inputs may move by this much; it stands in tables with three digits."""

REFERENCE, CONTROL = "HIGHEST", "HIGHEST, half the batch"
CANDIDATES = (
    "HIGH", "DEFAULT", "F32_F32_F32", "TF32_TF32_F32_X3", "TF32_TF32_F32", "BF16_BF16_F32_X9", "BF16_BF16_F32_X6",
    "BF16_BF16_F32_X3", "BF16_BF16_F32",
)  # fmt: skip
"""Those that take float32 operands and add in float32."""

SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": dict(
        models={"gpt2-tiny": dict(num_layers=2, vocab_size=256)}, seeds=[42], num_inputs=48, seq_len=8, batch_size=16,
        candidates=["DEFAULT", "BF16_BF16_F32"],
    ),
    "gpu": dict(
        models={"gpt2-nano": {}, "llama-nano": {}}, seeds=[42], num_inputs=2_000, seq_len=64, batch_size=None,
        candidates=list(CANDIDATES),
    ),
}  # fmt: skip


def run(settings: Mapping[str, Any], folder: Path, seconds: float) -> dict[str, Any]:
    """What each algorithm moves of a probe of births, and whether that is within the stated bounds."""
    known = algorithms()
    names = [REFERENCE, CONTROL, *settings["candidates"]]
    by_model: dict[str, dict[str, Any]] = {}
    for name, changes in settings["models"].items():
        cfg = preset(name, **changes)
        inputs = random_tokens(settings["num_inputs"], settings["seq_len"], cfg.vocab_size)
        size = batch_size_for(cfg, inputs, settings["batch_size"])

        def compute(way: str, cfg: ModelConfig = cfg, inputs: Inputs = inputs, size: int = size) -> dict[str, Any]:
            plain = way in (REFERENCE, CONTROL)
            batch = max(1, size // 2) if way == CONTROL else size
            return probed(cfg, settings["seeds"][0], inputs, batch, known[REFERENCE if plain else way])

        rows = tried.each(folder / f"{name}-{code_digest(probed)}.json", names, compute)
        by_model[name] = {
            "batch_size": size,
            "reference": {key: rows[REFERENCE].get(key) for key in ("top1_id", "top1_count", "cosines", "seconds")},
            "ways": {way: compared(rows[REFERENCE], rows[way]) for way in names[1:]},
        }
    keeping = [way for way in settings["candidates"] if all(row["ways"][way].get("keeps") for row in by_model.values())]
    return {"bounds": {"changed": CHANGED, "count": COUNT, "cosine": COSINE}, "models": by_model, "keeping": keeping}


def probed(cfg: ModelConfig, seed: int, inputs: Inputs, size: int, precision: Any) -> dict[str, Any]:
    """One birth on all inputs with products of one kind.

    Returns:
        ``top1_id``, ``top1_count``, ``cosines`` (between inputs after each block and the final norm), ``answers`` (the
        top-1 token of each input, in the order of the inputs), ``seconds`` of a pass without compilation.
    """
    params = models.init_seed(cfg, seed, fixed_key=keys.stream_key(EMBEDDING_SEED, "embedding"))
    batches = order_inputs(inputs, size)

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> tuple[Any, jax.Array]:
        seen = observe(cfg, params, batch["x"], precision=precision)
        counts = preference.update(state[0], seen, batch["weight"])
        sums = contraction.update(state[1], seen, batch["weight"], batch["last"])
        return (counts, sums), seen.prediction_B

    given = [jax.device_put(batch) for batch in stream(inputs, batches)]
    state = begin = (preference.zero(cfg), contraction.zero(cfg, second_moment=False))
    jax.block_until_ready(step(params, begin, given[0]))
    start = time.perf_counter()
    answers = []
    for batch in given:
        state, answer_B = step(params, state, batch)
        answers.append(answer_B)
    jax.block_until_ready(state)
    seconds = time.perf_counter() - start
    in_order = np.empty(inputs.num_inputs, int)
    in_order[batches.order_N] = np.asarray(jnp.concatenate(answers))[: inputs.num_inputs]
    counts = preference.summarise(jax.device_get(state[0]), vocab_size=cfg.vocab_size)
    sums = jax.device_get(jax.jit(contraction.reduce)(state[1]))
    pulled = contraction.summarise(
        sums, d_model=cfg.d_model, intra=False, remove_same_last=inputs.equal_last_tokens_by_chance
    )
    return {
        "top1_id": int(counts["top1_id"]),
        "top1_count": int(counts["top1_count"]),
        "cosines": [*map(float, pulled["inter_cosine_by_layer"]), float(pulled["inter_cosine_final"])],
        "answers": in_order.tolist(),
        "seconds": seconds,
    }


def compared(reference: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """What moved against the reference, and whether all of it is within the bounds; a refusal as it is."""
    if "refused" in row or "refused" in reference:
        return {"refused": row.get("refused", reference.get("refused")), "keeps": None}
    asked = len(reference["answers"])
    moved = {
        "changed": float(np.mean(np.asarray(row["answers"]) != np.asarray(reference["answers"]))),
        "count": abs(row["top1_count"] - reference["top1_count"]) / asked,
        "cosine": float(np.max(np.abs(np.subtract(row["cosines"], reference["cosines"])))),
    }
    within = moved["changed"] <= CHANGED and moved["count"] <= COUNT and moved["cosine"] <= COSINE
    return {
        **moved,
        "same_top1": row["top1_id"] == reference["top1_id"],
        "speedup": reference["seconds"] / row["seconds"],
        "keeps": within and row["top1_id"] == reference["top1_id"],
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure and write the record."""
    return measured.run(run, SETTINGS, arguments, precision="float32 by algorithm")


if __name__ == "__main__":
    sys.exit(main())
