"""How unevenly the activations of a block are spread: what decides whether few bits can hold them.

At every site where rounding acts, and of the residual stream after the block: the largest absolute value, the kurtosis
E(x − μ)⁴/σ⁴ over all entries (3 for a Gaussian), and the dispersion of rows, the largest over the median norm of a
sequence's positions (1 where all are alike), averaged over sequences.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.models import apply
from bornbiased_jax.models.limits import check_sequences
from bornbiased_jax.models.parameters import Params
from bornbiased_jax.probes.batching import batch_size_for, batches

ATTENTION_SITES = ("attention_input", "keys", "values", "attention_output")
MLP_SITES = ("mlp_input", "mlp_hidden")


class Unevenness(NamedTuple):
    """Statistics of one site by block, float64; NaN where a ratio is undefined (all zeros)."""

    largest_L: np.ndarray
    """max |x|."""
    kurtosis_L: np.ndarray
    dispersion_L: np.ndarray
    """Largest over median norm of the rows, a row being all that a position has there."""


def sites(cfg: ModelConfig) -> tuple[str, ...]:
    """The sites that a model has, the residual stream last."""
    return (*ATTENTION_SITES * cfg.attention, *MLP_SITES * cfg.mlp, "residual")


def measure_unevenness(
    cfg: ModelConfig,
    params: Params,
    tokens_NT: Any,
    *,
    batch_size: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> dict[str, Unevenness]:
    """Largest value, kurtosis and dispersion of every site and block, streamed in batches.

    Args:
        cfg: the architecture.
        params: its weights.
        tokens_NT: token ids [N, T], or vectors [N, T, D].
        batch_size: sequences in one forward pass; chosen by memory unless given.
        advance: called with the number of sequences done since the last call.

    Raises:
        InputError: inputs that do not fit the model.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> from bornbiased_jax.models import init_seed
        >>> cfg = preset("llama-tiny", num_layers=2, d_model=16, num_heads=2, d_ff=32, vocab_size=32)
        >>> found = measure_unevenness(cfg, init_seed(cfg, 0), np.zeros((2, 8), int))
        >>> found["residual"].dispersion_L.round(3).tolist()  # one token at all positions
        [1.0, 1.0]
    """
    x = check_sequences(cfg, tokens_NT)
    size = batch_size_for(cfg, x.shape[1], batch_size)
    found: dict[str, list[Any]] = {site: [] for site in sites(cfg)}
    for batch in batches(x, size):
        for site, sums in jax.device_get(_batch_unevenness(cfg, params, batch)).items():
            found[site].append(sums)
        if advance is not None:
            advance(len(batch))
    return {site: _unevenness(parts, len(x)) for site, parts in found.items()}


def _unevenness(parts: list[dict[str, np.ndarray]], num_sequences: int) -> Unevenness:
    total = {
        name: np.sum([np.sum(part[name], axis=1, dtype=np.float64) for part in parts], axis=0)
        for name in ("first", "second", "third", "fourth", "dispersion")
    }
    mean = total["first"] / num_sequences
    raw2, raw3, raw4 = (total[name] / num_sequences for name in ("second", "third", "fourth"))
    variance = raw2 - mean**2
    fourth = raw4 - 4 * mean * raw3 + 6 * mean**2 * raw2 - 3 * mean**4
    with np.errstate(invalid="ignore", divide="ignore"):
        kurtosis = fourth / variance**2
    largest = np.max([part["largest"].max(axis=1) for part in parts], axis=0).astype(np.float64)
    return Unevenness(largest, kurtosis, total["dispersion"] / num_sequences)


@functools.partial(jax.jit, static_argnames=("cfg",))
def _batch_unevenness(cfg: ModelConfig, params: Params, x: jax.Array) -> dict[str, dict[str, jax.Array]]:
    """By site, of every block and sequence [L, B]: means of powers, largest value, dispersion."""

    def reduce(captured: dict[str, jax.Array]) -> dict[str, dict[str, jax.Array]]:
        return {site: _of_site(captured[site].astype(jnp.float32)) for site in sites(cfg)}

    found: dict[str, dict[str, jax.Array]]
    found = apply(cfg, params, x, logits=False, capture=sites(cfg), reduce=reduce).layers
    return found


def _of_site(x: jax.Array) -> dict[str, jax.Array]:
    rows_BTC = x.reshape(*x.shape[:2], -1)
    norm_BT = jnp.sqrt(jnp.sum(rows_BTC**2, axis=-1))
    powers = ("first", "second", "third", "fourth")
    return {
        "largest": jnp.max(jnp.abs(rows_BTC), axis=(1, 2)),
        "dispersion": jnp.max(norm_BT, axis=1) / jnp.median(norm_BT, axis=1),
        **{name: jnp.mean(rows_BTC**power, axis=(1, 2)) for power, name in enumerate(powers, 1)},
    }
