"""Compute outputs of hundreds of untrained models: the population of calibrations and reference nulls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import model as models
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.model.memory import check_forward, weights_bytes
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes.inputs import Inputs
from bornbiased_jax.sweep import Probe, SweepOptions, sweep

# Tokens that one step of the loop over inputs takes of each model.
_BATCH_TOKENS = 2048


class _Batch(TypedDict):
    """Sequences, and the number of the first of them."""

    x: np.ndarray
    start: np.int32


def final_outputs(
    cfg: ModelConfig, seeds: Sequence[int], inputs: Inputs, moments: tuple[float, float] | None = None
) -> Iterator[np.ndarray]:
    """Compute last-position outputs of the final norm of freshly initialized models, one after the other.

    Each model has its own embedding: independent initializations share nothing but the inputs.

    Args:
        cfg: the architecture.
        seeds: of the initializations.
        inputs: N sequences; vectors are fed to every model in place of its embeddings.
        moments: mean and standard deviation of vectors; those of the initial embedding unless given.

    Yields:
        [N, D] float32, in the order of ``seeds``.

    Raises:
        InputError: inputs that do not fit the architecture, or a bad seed.
    """
    inputs.check_fits(cfg)
    x = inputs.scaled(inputs.batch(0, inputs.num_inputs), *(moments or (0.0, cfg.embedding_std)))
    check_forward(cfg, 1, x.shape[1], also=weights_bytes(cfg) + 2.0 * x.nbytes)
    size = max(1, min(len(x), _BATCH_TOKENS // x.shape[1]))
    starts = range(0, len(x), size)
    # Equal batches; the padding repeats the first inputs and is cut off again.
    padded = np.resize(x, (len(starts) * size, *x.shape[1:]))

    def batches() -> Iterator[_Batch]:
        return ({"x": padded[start : start + size], "start": np.int32(start)} for start in starts)

    # One program serves any number of seeds.
    options = SweepOptions(steady=True)
    for _, outputs_ND in sweep(*_probe(cfg, len(padded)), seeds, batches, options):
        yield outputs_ND[: len(x)]


# The same functions share their compiled programs.
@functools.lru_cache(maxsize=16)
def _probe(cfg: ModelConfig, num_inputs: int) -> tuple[Probe, Callable[[jax.Array], Params]]:
    """Return what collects the outputs of one model, and what draws its weights."""

    def update(outputs_ND: jax.Array, params: Params, batch: _Batch) -> jax.Array:
        final_BTD = models.apply(cfg, params, jnp.asarray(batch["x"]), positions="last", logits=False).final_BTD
        return jax.lax.dynamic_update_slice(outputs_ND, final_BTD[:, 0], (batch["start"], 0))

    probe = Probe(
        lambda: jnp.zeros((num_inputs, cfg.d_model), jnp.float32), update, lambda outputs_ND, _params: outputs_ND
    )
    return probe, functools.partial(models.init_seed, cfg)
