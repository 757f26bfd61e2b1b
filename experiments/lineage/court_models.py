"""The models that stand before the court: trained apart on two corpora at two widths, and births; what tests read.

For each width and corpus half of the seeds see the text in one order and half in another. No seed occurs twice, births
included, so that every pair is unrelated.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import models
from bornbiased_jax.checkpoints.reader import WeightsReader, params_reader
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.data.windows import batches
from bornbiased_jax.inputs import parse_inputs, random_inputs
from bornbiased_jax.parameters import Params
from bornbiased_jax.pretrain import PretrainConfig, begin, load_data, train
from bornbiased_jax.record import jsonable
from bornbiased_jax.seedprint.baselines import Activations, mlp_activations, reef_features
from bornbiased_jax.seedprint.outputs import last_outputs
from experiments.base import Context

ORDERS = (0, 1)
KINDS = ("tokens", "gaussian")
_BIRTHS = 500_000


class Origin(NamedTuple):
    """Where a model comes from: a name that says it all; no corpus for a birth."""

    width: int
    corpus: str | None
    order: int
    seed: int


class Model:
    """One model with what the tests read of it, each computed when first asked for."""

    def __init__(self, origin: Origin, cfg: ModelConfig, params: Params, settings: Mapping[str, Any]) -> None:
        self.origin, self.cfg, self.params, self._settings = origin, cfg, params, settings

    @functools.cached_property
    def reader(self) -> WeightsReader:
        """For the tests in the weights."""
        return params_reader(self.cfg, self.params, seed=self.origin.seed, is_birth=self.origin.corpus is None)

    @functools.cached_property
    def tied_birth(self) -> WeightsReader:
        """A birth of the same seed whose head is its embedding."""
        cfg = self.cfg.replace(tie_embeddings=True)
        return params_reader(cfg, _born(cfg, np.uint32(self.origin.seed)), seed=self.origin.seed, is_birth=True)

    @functools.cached_property
    def outputs(self) -> dict[str, np.ndarray]:
        """Last outputs [N, D] on random tokens, and on Gaussian vectors that all models share."""
        probe = self._settings["probe"]
        found = {}
        for kind in KINDS:
            inputs = random_inputs(kind, probe["num_inputs"], probe["seq_len"], self.cfg)
            mean, std = inputs.moments(0.0, self.cfg.embedding_std) or (0.0, 1.0)
            found[kind] = last_outputs(self.cfg, self.params, inputs, mean=mean, std=std)
        return found

    @functools.cached_property
    def features(self) -> np.ndarray:
        """REEF's features of sentences."""
        probe = self._settings["probe"]
        text = parse_inputs(
            probe["text"], num_inputs=probe["num_sentences"], seq_len=probe["sentence_len"], cfg=self.cfg
        )
        return reef_features(self.cfg, self.params, text)

    @functools.cached_property
    def activations(self) -> Activations:
        """Of the gate and up projections on the tokens of some sentences."""
        probe = self._settings["probe"]
        text = parse_inputs(probe["text"], num_inputs=probe["num_matched"], seq_len=probe["sentence_len"], cfg=self.cfg)
        return mlp_activations(self.cfg, self.params, text)


def config(settings: Mapping[str, Any], width: int) -> ModelConfig:
    """The architecture at one width."""
    return preset(settings["model"], **{**settings["changes"], "d_model": width, "d_ff": 2 * width})


def trained(context: Context, width: int) -> list[Model]:
    """All trained models of one width: corpus by corpus, order by order, seed by seed; kept as one array a run."""
    settings = context.settings
    cfg = config(settings, width)
    found = []
    for number, (corpus, order) in enumerate(itertools.product(settings["corpora"], ORDERS)):
        first = 1_000 * (number + len(settings["corpora"]) * len(ORDERS) * settings["widths"].index(width))
        seeds = list(range(first, first + settings["seeds_an_order"]))

        def compute(folder: Path, corpus: str = corpus, order: int = order, seeds: list[int] = seeds) -> np.ndarray:
            return train_run(settings["schedule"], cfg, corpus, order, seeds)

        identity = [settings["schedule"], cfg.to_dict(), corpus, order, seeds]
        weights_SP = context.cached("court/models", jsonable(identity), compute)
        for seed, weights_P in zip(seeds, weights_SP, strict=True):
            found.append(Model(Origin(width, corpus, order, seed), cfg, unpacked(cfg, weights_P), settings))
    return found


def train_run(schedule: Mapping[str, Any], cfg: ModelConfig, corpus: str, order: int, seeds: list[int]) -> np.ndarray:
    """Train seeds at once on the same text in the same order: the weights [S, P] float32, parameters by their paths."""
    run = PretrainConfig(
        model=cfg,
        data=corpus,
        tokenizer="bytes",
        out="unused",
        seeds=tuple(seeds),
        data_seed=order,
        tensorboard=False,
        quiet=True,
        **schedule,
    )
    state, _ = begin(run)
    shape = (run.accumulation, run.micro_batch, run.context + 1)
    stream = batches(load_data(run).train, batch_size=run.batch_size, data_seed=order)
    tokens = (jnp.asarray(rows).reshape(shape) for rows in itertools.islice(stream, schedule["steps"]))
    state, _ = train(state, _step(cfg, len(seeds), tuple(sorted(schedule.items()))), tokens)
    flat = models.flatten(jax.tree.map(np.asarray, state.params))
    return np.concatenate([flat[path].reshape(len(seeds), -1) for path in sorted(flat)], axis=1).astype(np.float32)


@functools.lru_cache(maxsize=4)
def _step(cfg: ModelConfig, count: int, schedule: tuple[tuple[str, Any], ...]) -> Any:
    """The update of so many seeds, compiled once for all corpora and orders."""
    run = PretrainConfig(
        model=cfg, data="unused", out="unused", seeds=tuple(range(count)), tokenizer="bytes", tensorboard=False,
        quiet=True, **dict(schedule),
    )  # fmt: skip
    return begin(run)[1]


def unpacked(cfg: ModelConfig, weights_P: np.ndarray) -> Params:
    """The parameters from one row of :func:`train_run`."""
    shapes = {path: leaf.shape for path, leaf in models.flatten(models.parameter_shapes(cfg)).items()}
    sizes = [int(np.prod(shapes[path])) for path in sorted(shapes)]
    parts = np.split(weights_P, np.cumsum(sizes)[:-1])
    return models.unflatten(
        {path: part.reshape(shapes[path]) for path, part in zip(sorted(shapes), parts, strict=True)}
    )


def births(settings: Mapping[str, Any], width: int) -> list[Model]:
    """Births of one width, as many as are trained."""
    cfg = config(settings, width)
    count = settings["seeds_an_order"] * len(ORDERS) * len(settings["corpora"])
    first = _BIRTHS + 1_000 * settings["widths"].index(width)
    return [
        Model(Origin(width, None, 0, seed), cfg, _born(cfg, np.uint32(seed)), settings)
        for seed in range(first, first + count)
    ]


def _born(cfg: ModelConfig, seed: np.uint32) -> Params:
    return jax.tree.map(np.asarray, _init(cfg, seed))


@functools.partial(jax.jit, static_argnums=0)
def _init(cfg: ModelConfig, seed: jax.Array) -> Params:
    return models.init_seed(cfg, seed)
