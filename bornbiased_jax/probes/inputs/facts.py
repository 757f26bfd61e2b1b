"""Inputs known by a few facts: what identifies them in a store, and how another process has the same again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict, cast

import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.probes.inputs.kinds import Inputs, from_tokens, random_inputs

TOKENS = "tokens"


class InputDescription(TypedDict):
    """The facts that identify inputs, JSON-ready: the fields of :class:`Inputs` of the same names."""

    kind: str
    num_inputs: int
    seq_len: int
    vocab_size: int | None
    d_model: int | None
    seed: int | None
    digest: str


def facts_of(inputs: Inputs) -> InputDescription:
    """Return the facts that identify inputs."""
    return cast(InputDescription, {name: getattr(inputs, name) for name in InputDescription.__annotations__})


def arrays_of(inputs: Inputs) -> dict[str, np.ndarray]:
    """Return ids that no seed gives another process, under the name that :func:`from_facts` looks for."""
    return {} if inputs.tokens_NT is None else {TOKENS: inputs.tokens_NT}


def from_facts(facts: InputDescription, cfg: ModelConfig, sources: Mapping[str, str]) -> Inputs:
    """Make the inputs of some facts.

    Args:
        facts: of :func:`facts_of`.
        cfg: the architecture that they were drawn for.
        sources: paths of the arrays that :func:`arrays_of` named.

    Raises:
        InputError: what is drawn or read here is something else.
    """
    if TOKENS in sources:
        inputs = from_tokens(np.load(Path(sources[TOKENS]), allow_pickle=False), facts["vocab_size"] or 0)
    else:
        sizes = facts["num_inputs"], facts["seq_len"]
        inputs = random_inputs(facts["kind"], *sizes, cfg, seed=facts["seed"] or 0, vocab_size=facts["vocab_size"])
    if inputs.digest != facts["digest"]:
        raise InputError(f"the inputs drawn here have the digest {inputs.digest}, not {facts['digest']}: they differ")
    return inputs
