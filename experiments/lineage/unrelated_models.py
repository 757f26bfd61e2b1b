"""Unrelated models: trained apart on two corpora at two widths, and initial weights; what tests read.

For each width and corpus half of the seeds see the text in one order and half in another. No seed occurs twice,
initializations included, so that every pair is unrelated.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from bornbiased_jax import model as models
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.experiments._shared.training import in_memory, token_batches
from bornbiased_jax.experiments.base import Context, Entry
from bornbiased_jax.experiments.lineage.descendants_readings import FamilyReading, Origin
from bornbiased_jax.parameters import Params
from bornbiased_jax.record import jsonable
from bornbiased_jax.training import begin, fit, load_data

ORDERS = (0, 1)
_INITIALIZATIONS = 500_000


def model_of(origin: Origin, cfg: ModelConfig, params: Params, settings: Entry) -> FamilyReading:
    """Return the model of an origin, as the tests read it."""
    return FamilyReading(cfg, params, settings, cfg, tokenizer=None, origin=origin)


def config(settings: Entry, width: int) -> ModelConfig:
    """Return the architecture at one width."""
    return preset(settings["model"], **{**settings["changes"], "d_model": width, "d_ff": 2 * width})


def trained(context: Context, width: int) -> list[FamilyReading]:
    """Train all models of one width: corpus by corpus, order by order, seed by seed; one stored array a run."""
    settings = context.settings
    cfg = config(settings, width)
    subjects = []
    for number, (corpus, order) in enumerate(itertools.product(settings["corpora"], ORDERS)):
        first = 1_000 * (number + len(settings["corpora"]) * len(ORDERS) * settings["widths"].index(width))
        seeds = range(first, first + settings["seeds_an_order"])
        models_S = cached_run(context, "court/models", cfg, corpus, order, seeds)
        for seed, params in zip(seeds, models_S, strict=True):
            subjects.append(model_of(Origin(width, corpus, order, seed), cfg, params, settings))
    return subjects


def initializations(settings: Entry, width: int) -> list[FamilyReading]:
    """Draw initializations of one width, as many as are trained."""
    cfg = config(settings, width)
    count = settings["seeds_an_order"] * len(ORDERS) * len(settings["corpora"])
    first = _INITIALIZATIONS + 1_000 * settings["widths"].index(width)
    return [
        model_of(Origin(width, None, 0, seed), cfg, draw(cfg, np.uint32(seed)), settings)
        for seed in range(first, first + count)
    ]


def cached_run(
    context: Context, place: str, cfg: ModelConfig, corpus: str, order: int, seeds: Sequence[int]
) -> list[Params]:
    """Train seeds at once by the schedule of the settings, on the same text in the same order; kept in a folder."""
    schedule = context.settings["schedule"]
    identity = jsonable([schedule, cfg.to_dict(), corpus, order, seeds])
    weights_SP = context.cached(
        place, identity, lambda _folder: packed(train_run(schedule, cfg, corpus, order, list(seeds)))
    )
    return [unpacked(cfg, weights_P) for weights_P in weights_SP]


def train_run(schedule: Entry, cfg: ModelConfig, corpus: str, order: int, seeds: list[int]) -> Params:
    """Train seeds at once on the same text in the same order: leaves [S, ...]."""
    run = in_memory(cfg, corpus, schedule, seeds, data_seed=order)
    state, _ = begin(run)
    tokens = token_batches(run, load_data(run).train)
    return fit(state, _step(cfg, len(seeds), tuple(sorted(schedule.items()))), tokens)[0].params


@functools.lru_cache(maxsize=4)
def _step(cfg: ModelConfig, count: int, schedule: tuple[tuple[str, Any], ...]) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Return the update of so many seeds, compiled once for all corpora and orders."""
    return begin(in_memory(cfg, "unused", dict(schedule), range(count)))[1]


def packed(params_S: Params) -> np.ndarray:
    """Pack stacked parameters into rows for a file: [S, P] float32."""
    return np.asarray(jax.vmap(lambda params: ravel_pytree(params)[0])(params_S), np.float32)


def unpacked(cfg: ModelConfig, weights_P: np.ndarray) -> Params:
    """Unpack the parameters from one row of :func:`packed`, as arrays of NumPy."""
    return jax.tree.map(np.asarray, _unravel(cfg)(weights_P))


@functools.lru_cache(maxsize=16)
def _unravel(cfg: ModelConfig) -> Callable[..., Params]:
    return ravel_pytree(jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), models.parameter_shapes(cfg)))[1]


def stacked(params: Sequence[Params]) -> Params:
    """Stack parameters with models first, leaves [S, ...]."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *params)


def draw(cfg: ModelConfig, seed: np.uint32) -> Params:
    """Draw the initial weights of a seed, as arrays of NumPy."""
    return jax.tree.map(np.asarray, _init(cfg, seed))


_init = jax.jit(models.init_seed, static_argnums=0)
