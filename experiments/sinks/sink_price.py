"""What a trained model's sinks cost: rounding with and without the first token, a rolling cache, spread activations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.evaluation.streaming import streaming_losses
from bornbiased_jax.models.parameters import Params
from bornbiased_jax.probes.unevenness import measure_unevenness
from bornbiased_jax.quantise import parse_scheme, prices

BIN = 8
"""Positions whose streaming losses are averaged, to keep records small."""


def price(
    settings: Mapping[str, Any], cfg: ModelConfig, params: Params, tokens_NT: np.ndarray, long_NT: np.ndarray
) -> dict[str, Any]:
    """Everything that the table of prices shows of one model.

    Args:
        settings: ``schemes``, ``granularities``, ``keep_sinks`` of the rounding; ``window`` and ``streaming_keep`` of
            the rolling cache.
        cfg: the architecture.
        params: its weights.
        tokens_NT: sequences of the training context, for the rounding and the unevenness.
        long_NT: longer ones, for the rolling cache.

    Returns:
        ``quantisation`` (see :func:`bornbiased_jax.quantise.prices`), ``unevenness`` by site (largest over blocks; None
        where a block has no ratio, as with softpick, whose aggregated values are zero at most positions) and
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
    unevenness = {
        site: {name.removesuffix("_L"): _largest(values_L) for name, values_L in measured._asdict().items()}
        for site, measured in measure_unevenness(cfg, params, tokens_NT).items()
    }
    streamed = streaming_losses(cfg, params, long_NT, window=settings["window"], keep=settings["streaming_keep"])
    return {
        "quantisation": cells,
        "unevenness": unevenness,
        "streaming": [{**entry, "loss_by_position": _binned(entry["loss_by_position"])} for entry in streamed],
    }


def _largest(values_L: np.ndarray) -> float | None:
    return float(np.max(values_L)) if np.isfinite(values_L).all() else None


def _binned(losses: list[float | None]) -> list[float | None]:
    bins = [losses[start : start + BIN] for start in range(0, len(losses), BIN)]
    return [None if None in part else round(float(np.mean([v for v in part if v is not None])), 5) for part in bins]
