"""Weights that a run begins with instead of untrained ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.checkpoints.formats.run import read_run
from bornbiased_jax.checkpoints.reference import parse_ref
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import parameter_shapes
from bornbiased_jax.parameters import Params, flatten
from bornbiased_jax.text import Tokenizer
from bornbiased_jax.training.config import PretrainConfig

Initial = tuple[ModelConfig, Params]
"""A model to begin with: its architecture and its weights."""


def open_initial(reference: str, seeds: Sequence[int]) -> tuple[list[Initial], Tokenizer | None]:
    """Open the models that the seeds of a run begin with (``--init-from``).

    Args:
        reference: a checkpoint for one seed; or a run that has all the seeds, each of which continues from its own.
        seeds: of the run that is to begin.

    Returns:
        (architecture, weights) for every seed, and their tokenizer.

    Raises:
        InputError: nothing there, or one model for several seeds, which would stay copies of one another.
    """
    # Headers of all first, then their weights.
    opened = [open_checkpoint(seed_reference) for seed_reference in initial_references(reference, seeds)]
    return [(checkpoint.cfg, checkpoint.params()) for checkpoint in opened], opened[0].tokenizer


def initial_references(reference: str, seeds: Sequence[int]) -> list[str]:
    """Name the checkpoint that each seed of a run begins with.

    Args:
        reference: as of :func:`open_initial`.
        seeds: of the run.

    Raises:
        InputError: one model for several seeds.
    """
    run = parse_ref(reference)
    folder = run.path if run.kind == "run" and run.seed is None else None
    if folder is not None and set(seeds) <= set(read_run(folder)["config"]["seeds"]):
        step = "" if run.step is None else f",step={run.step}"
        return [f"{folder}@seed={seed}{step}" for seed in seeds]
    if len(seeds) > 1:
        raise InputError(
            f"--init-from {reference} is one model for {len(seeds)} seeds, which would stay copies of each other: give "
            "one seed, or a run that has these seeds"
        )
    return [reference]


def check_initial(config: PretrainConfig, initial: Sequence[Initial] | None) -> Params | None:
    """Check and stack the weights to begin with: for one seed or for each [S, ...]; for adapters one model [1, ...].

    Raises:
        InputError: their number or architecture does not fit.
    """
    if not initial and config.adapter is not None:
        raise InputError("an adapter needs the weights that it is trained on: give them")
    if (not initial) != (config.init_from is None):
        raise InputError("init_from names where the given weights came from: set both or neither")
    if not initial:
        return None
    if config.adapter is not None and jax.process_count() > 1:
        raise InputError("an adapter is trained by one process: start one alone")
    if config.adapter is not None and len(initial) != 1:
        raise InputError(f"{len(initial)} models to train an adapter on: give one")
    if config.adapter is None and len(initial) != len(config.seeds):
        raise InputError(
            f"{len(initial)} models to begin with for {len(config.seeds)} seeds: give one for each, or one seed"
        )
    # The architecture by its fields, and then every parameter by its shape.
    shapes = flatten(parameter_shapes(config.model))
    for cfg, params in initial:
        check_architecture(config, cfg)
        for path, leaf in flatten(params).items():
            if path not in shapes or tuple(leaf.shape) != tuple(shapes[path].shape):
                raise InputError(f"the model to begin with has a {path} that the run's model has not")
    stacked: Params = jax.tree.map(
        lambda *leaves: np.stack([np.asarray(leaf, np.float32) for leaf in leaves]), *(params for _, params in initial)
    )
    return stacked


def drawn_as(config: PretrainConfig, initial: Sequence[Initial] | None) -> PretrainConfig:
    """Return the run with the scheme by which its weights were drawn: where they are given, theirs and not its own."""
    if not initial:
        return config
    cfg = initial[0][0]
    return dataclasses.replace(config, model=config.model.replace(init=cfg.init, init_groups=cfg.init_groups))


def check_architecture(config: PretrainConfig, cfg: ModelConfig) -> None:
    """Refuse a model to begin with whose architecture is not that of the run.

    Raises:
        InputError: it is another; the sentence names the field.
    """
    ignored = dict.fromkeys(cfg.free_fields)
    of_run, of_model = ({**vars(architecture), **ignored} for architecture in (config.model, cfg))
    # What was asked for before what follows from it.
    first = ("d_model", "num_layers", "num_heads", "vocab_size")
    for name, value in sorted(of_run.items(), key=lambda item: item[0] not in first):
        if of_model[name] != value:
            raise InputError(
                f"the model to begin with has {name}={of_model[name]!r}, the run {value!r}: set {name}={of_model[name]}"
            )
