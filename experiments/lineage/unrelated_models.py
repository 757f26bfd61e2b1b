"""Unrelated models: trained apart on two corpora at two widths, and initial weights; what tests read.

For each width and corpus half of the seeds see the text in one order and half in another. No seed occurs twice,
initializations included, so that every pair is unrelated.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bornbiased_jax import model as models
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.experiments._shared.training import in_memory, token_batches
from bornbiased_jax.experiments.base import Context
from bornbiased_jax.experiments.lineage.descendants_readings import Origin, Subject
from bornbiased_jax.parameters import Params
from bornbiased_jax.record import jsonable
from bornbiased_jax.training import begin, fit, load_data

ORDERS = (0, 1)
_INITIALIZATIONS = 500_000


def model_of(origin: Origin, cfg: ModelConfig, params: Params, settings: Mapping[str, Any]) -> Subject:
    """Return the model of an origin, as the tests read it."""
    is_initial = origin.corpus is None
    return Subject(cfg, params, settings, cfg, seed=origin.seed, is_initial=is_initial, tokenizer=None, origin=origin)


def config(settings: Mapping[str, Any], width: int) -> ModelConfig:
    """Return the architecture at one width."""
    return preset(settings["model"], **{**settings["changes"], "d_model": width, "d_ff": 2 * width})


def trained(context: Context, width: int) -> list[Subject]:
    """Train all models of one width: corpus by corpus, order by order, seed by seed; one stored array a run."""
    settings = context.settings
    cfg = config(settings, width)
    subjects = []
    for number, (corpus, order) in enumerate(itertools.product(settings["corpora"], ORDERS)):
        first = 1_000 * (number + len(settings["corpora"]) * len(ORDERS) * settings["widths"].index(width))
        seeds = list(range(first, first + settings["seeds_an_order"]))

        def compute(_folder: Path, corpus: str = corpus, order: int = order, seeds: list[int] = seeds) -> np.ndarray:
            return train_run(settings["schedule"], cfg, corpus, order, seeds)

        identity = [settings["schedule"], cfg.to_dict(), corpus, order, seeds]
        weights_SP = context.cached("court/models", jsonable(identity), compute)
        for seed, weights_P in zip(seeds, weights_SP, strict=True):
            subjects.append(model_of(Origin(width, corpus, order, seed), cfg, unpacked(cfg, weights_P), settings))
    return subjects


def train_run(schedule: Mapping[str, Any], cfg: ModelConfig, corpus: str, order: int, seeds: list[int]) -> np.ndarray:
    """Train seeds at once on the same text in the same order: the weights [S, P] float32, parameters by their paths."""
    run = in_memory(cfg, corpus, schedule, seeds, data_seed=order)
    state, _ = begin(run)
    tokens = token_batches(run, load_data(run).train)
    state, _ = fit(state, _step(cfg, len(seeds), tuple(sorted(schedule.items()))), tokens)
    flat = models.flatten(jax.tree.map(np.asarray, state.params))
    return np.concatenate([flat[path].reshape(len(seeds), -1) for path in sorted(flat)], axis=1).astype(np.float32)


@functools.lru_cache(maxsize=4)
def _step(cfg: ModelConfig, count: int, schedule: tuple[tuple[str, Any], ...]) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Return the update of so many seeds, compiled once for all corpora and orders."""
    return begin(in_memory(cfg, "unused", dict(schedule), range(count)))[1]


def unpacked(cfg: ModelConfig, weights_P: np.ndarray) -> Params:
    """Unpack the parameters from one row of :func:`train_run`."""
    shapes = {path: leaf.shape for path, leaf in models.flatten(models.parameter_shapes(cfg)).items()}
    sizes = [int(np.prod(shapes[path])) for path in sorted(shapes)]
    parts = np.split(weights_P, np.cumsum(sizes)[:-1])
    return models.unflatten(
        {path: part.reshape(shapes[path]) for path, part in zip(sorted(shapes), parts, strict=True)}
    )


def initializations(settings: Mapping[str, Any], width: int) -> list[Subject]:
    """Draw initializations of one width, as many as are trained."""
    cfg = config(settings, width)
    count = settings["seeds_an_order"] * len(ORDERS) * len(settings["corpora"])
    first = _INITIALIZATIONS + 1_000 * settings["widths"].index(width)
    return [
        model_of(Origin(width, None, 0, seed), cfg, draw(cfg, np.uint32(seed)), settings)
        for seed in range(first, first + count)
    ]


def draw(cfg: ModelConfig, seed: np.uint32) -> Params:
    """Draw the initial weights of a seed, as arrays of NumPy."""
    return jax.tree.map(np.asarray, _init(cfg, seed))


@functools.partial(jax.jit, static_argnums=0)
def _init(cfg: ModelConfig, seed: jax.Array) -> Params:
    return models.init_seed(cfg, seed)
