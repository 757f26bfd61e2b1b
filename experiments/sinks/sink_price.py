"""What a trained model's sinks cost: rounding with and without the first token, a rolling cache, spread activations."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.evaluation.rolling_cache import streaming_losses
from bornbiased_jax.model import apply
from bornbiased_jax.model.limits import check_sequences
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes.batching import batch_size_for, batches
from bornbiased_jax.quantization import parse_scheme, prices

BIN = 8
"""Positions whose streaming losses are averaged, to keep records small."""
ATTENTION_SITES = ("attention_input", "keys", "values", "attention_output")
MLP_SITES = ("mlp_input", "mlp_hidden")
_POWERS = ("first", "second", "third", "fourth")


def price(
    settings: Mapping[str, Any], cfg: ModelConfig, params: Params, tokens_NT: np.ndarray, long_NT: np.ndarray
) -> dict[str, Any]:
    """Measure everything that the table of prices shows of one model.

    Args:
        settings: ``schemes``, ``granularities``, ``keep_sinks`` of the rounding; ``window`` and ``streaming_keep`` of
            the rolling cache.
        cfg: the architecture.
        params: its weights.
        tokens_NT: sequences of the training context, for the rounding and the unevenness.
        long_NT: longer ones, for the rolling cache.

    Returns:
        ``quantisation`` (see :func:`bornbiased_jax.quantization.prices`), ``unevenness`` (see :func:`unevenness`) and
        ``streaming`` with losses averaged over ``BIN`` positions.
    """
    cells = prices(
        cfg,
        params,
        tokens_NT,
        [parse_scheme(name) for name in settings["schemes"]],
        granularities=settings["granularities"],
        keep=settings["keep_sinks"],
    )
    streamed = streaming_losses(cfg, params, long_NT, window=settings["window"], keep=settings["streaming_keep"])
    return {
        "quantisation": cells,
        "unevenness": unevenness(cfg, params, tokens_NT),
        "streaming": [{**entry, "loss_by_position": _binned(entry["loss_by_position"])} for entry in streamed],
    }


def sites(cfg: ModelConfig) -> tuple[str, ...]:
    """Name the sites of a model where rounding acts, and the residual stream last."""
    return (*ATTENTION_SITES * cfg.attention, *MLP_SITES * cfg.mlp, "residual")


def unevenness(cfg: ModelConfig, params: Params, tokens_NT: np.ndarray) -> dict[str, dict[str, float | None]]:
    """Measure how unevenly activations are spread at every site, which decides whether few bits can hold them.

    Returns:
        By site, the largest over blocks of ``largest``, max |x|; ``kurtosis``, E(x − μ)⁴/σ⁴ over all entries (3 for a
        Gaussian); ``dispersion``, the largest over the median norm of a sequence's positions, averaged over sequences.
        None where a block has no ratio, as with softpick, whose aggregated values are zero at most positions.
    """
    x = check_sequences(cfg, tokens_NT)
    parts = [
        jax.device_get(_batch_sums(cfg, params, batch)) for batch in batches(x, batch_size_for(cfg, x.shape[1], None))
    ]
    return {site: _statistics([part[site] for part in parts], len(x)) for site in sites(cfg)}


def _statistics(parts: list[dict[str, np.ndarray]], num_sequences: int) -> dict[str, float | None]:
    """Compute the statistics of one site from the sums of its batches, in float64."""
    total = {
        name: np.sum([np.sum(part[name], axis=1, dtype=np.float64) for part in parts], axis=0)
        for name in (*_POWERS, "dispersion")
    }
    mean = total["first"] / num_sequences
    raw2, raw3, raw4 = (total[name] / num_sequences for name in ("second", "third", "fourth"))
    variance = raw2 - mean**2
    fourth = raw4 - 4 * mean * raw3 + 6 * mean**2 * raw2 - 3 * mean**4
    with np.errstate(invalid="ignore", divide="ignore"):
        kurtosis_L = fourth / variance**2
    largest_L = np.max([part["largest"].max(axis=1) for part in parts], axis=0).astype(np.float64)
    return {
        "largest": _largest(largest_L),
        "kurtosis": _largest(kurtosis_L),
        "dispersion": _largest(total["dispersion"] / num_sequences),
    }


@functools.partial(jax.jit, static_argnames=("cfg",))
def _batch_sums(cfg: ModelConfig, params: Params, x: jax.Array) -> dict[str, dict[str, jax.Array]]:
    """Sum by site, of every block and sequence [L, B]: means of powers, largest value, dispersion."""

    def reduce(captured: dict[str, jax.Array]) -> dict[str, dict[str, jax.Array]]:
        return {site: _of_site(captured[site].astype(jnp.float32)) for site in sites(cfg)}

    sums: dict[str, dict[str, jax.Array]]
    sums = apply(cfg, params, x, logits=False, capture=sites(cfg), reduce=reduce).layers
    return sums


def _of_site(x: jax.Array) -> dict[str, jax.Array]:
    rows_BTC = x.reshape(*x.shape[:2], -1)
    norm_BT = jnp.sqrt(jnp.sum(rows_BTC**2, axis=-1))
    return {
        "largest": jnp.max(jnp.abs(rows_BTC), axis=(1, 2)),
        "dispersion": jnp.max(norm_BT, axis=1) / jnp.median(norm_BT, axis=1),
        **{name: jnp.mean(rows_BTC**power, axis=(1, 2)) for power, name in enumerate(_POWERS, 1)},
    }


def _largest(values_L: np.ndarray) -> float | None:
    return float(np.max(values_L)) if np.isfinite(values_L).all() else None


def _binned(losses: list[float | None]) -> list[float | None]:
    bins = [losses[start : start + BIN] for start in range(0, len(losses), BIN)]
    return [None if None in part else round(float(np.mean([v for v in part if v is not None])), 5) for part in bins]
