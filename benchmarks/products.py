"""Measure float32 products by name: their rate, their error, and what they change in a probe."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.matmul import matmul_rate, product_error
from benchmarks.recorded import Findings, command
from benchmarks.tables import entries
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.init import init_seed
from bornbiased_jax.model.layers import PRECISIONS
from bornbiased_jax.probes.inputs import random_tokens
from bornbiased_jax.probes.observe import observe, unit

CHANGED, COSINE = 1e-3, 1e-5
"""Bounds: fraction of inputs with another top-1 token, which bounds every count; change of a layer's mean cosine."""
BATCHES = 8


def probe(cfg: ModelConfig, tokens_NT: np.ndarray, precision: jax.lax.PrecisionLike) -> tuple[np.ndarray, np.ndarray]:
    """Return each input's top-1 token [N] and the mean cosine between inputs after each block [L], of seed 42."""
    step = jax.jit(lambda params, tokens_BT: observe(cfg, params, tokens_BT, precision=precision))
    params, N = init_seed(cfg, 42), len(tokens_NT)
    outputs = [step(params, tokens_BT) for tokens_BT in np.split(tokens_NT, BATCHES)]
    unit_LND = unit(jnp.concatenate([batch.last_LBD for batch in outputs], axis=1))
    cosine_L = (jnp.sum(jnp.square(jnp.sum(unit_LND, axis=1)), axis=-1) - N) / (N * (N - 1))
    return np.concatenate([batch.prediction_B for batch in outputs]), np.asarray(cosine_L)


def measure(model: str = "gpt2-nano", num_inputs: int = 2_000, seq_len: int = 64) -> Findings:
    """Measure float32 products by algorithm: their rate, their error, and what they change in a probe.

    Of an algorithm that the device refuses, the reason is kept.

    Args:
        model: A preset.
        num_inputs: Sequences, a multiple of 8.
        seq_len: Tokens in a sequence.
    """
    cfg = preset(model)
    tokens_NT = np.asarray(random_tokens(num_inputs, seq_len, cfg.vocab_size).batch(0, num_inputs))
    reference_N, reference_L = probe(cfg, tokens_NT, "highest")
    by_algorithm: dict[str, Findings] = {}
    for name, precision in PRECISIONS.items():
        try:
            top1_N, cosine_L = probe(cfg, tokens_NT, precision)
            rate, error = matmul_rate(cfg, tokens_NT.size // BATCHES, precision), product_error(cfg, precision)
        except (ValueError, NotImplementedError, jax.errors.JaxRuntimeError) as refusal:
            by_algorithm[name] = {"refused": str(refusal).splitlines()[0]}
            continue
        changed, moved = float(np.mean(top1_N != reference_N)), float(np.max(np.abs(cosine_L - reference_L)))
        keeps = changed <= CHANGED and moved <= COSINE
        by_algorithm[name] = {
            "tflops": rate / 1e12,
            "error": error,
            "changed": changed,
            "cosine": moved,
            "keeps": keeps,
        }
    return {"bounds": {"changed": CHANGED, "cosine": COSINE}, "algorithms": by_algorithm}


tables = functools.partial(
    entries,
    title="Float32 products by `--precision`, {provenance[device][kind]}",
    each="algorithms",
    columns={
        "precision": "{name}",
        "TFLOP/s": "{tflops:fixed:0}",
        "error": "{error:significant:2}",
        "other top-1": "{changed:percent:2}",
        "change of a mean cosine": "{cosine:significant:2}",
        "within bounds": "{keeps}",
    },
    note="Rate of the products of gpt2-nano's blocks; largest ‖C − exact‖/‖exact‖ of them; of 2,000 inputs those with "
    "another top-1 token than at `highest`, and the largest change of a block's mean cosine. Bounds, stated before: "
    "{bounds[changed]:percent:1} of inputs, {bounds[cosine]:significant:1}.",
)

main = functools.partial(
    command,
    measure,
    about=lambda model, **_: {"config": preset(model), "seeds": [42]},
    precision="float32 by algorithm",
)
