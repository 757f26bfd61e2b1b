"""Inputs known by a few facts: what identifies them in a store, and how another process has the same again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.probes.inputs.kinds import Inputs, from_tokens, random_inputs

FACTS = ("kind", "num_inputs", "seq_len", "vocab_size", "d_model", "seed", "digest")
TOKENS = "tokens"


def facts_of(inputs: Inputs) -> dict[str, object]:
    """Return the facts that identify inputs, JSON-ready."""
    return {name: getattr(inputs, name) for name in FACTS}


def arrays_of(inputs: Inputs) -> dict[str, np.ndarray]:
    """Return ids that no seed gives another process, under the name that :func:`from_facts` looks for."""
    return {} if inputs.tokens_NT is None else {TOKENS: inputs.tokens_NT}


def from_facts(facts: Mapping[str, Any], cfg: ModelConfig, sources: Mapping[str, Any]) -> Inputs:
    """Make the inputs of some facts.

    Args:
        facts: of :func:`facts_of`.
        cfg: the architecture that they were drawn for.
        sources: paths of the arrays that :func:`arrays_of` named.

    Raises:
        InputError: what is drawn or read here is something else.
    """
    if TOKENS in sources:
        inputs = from_tokens(np.load(Path(sources[TOKENS]), allow_pickle=False), facts["vocab_size"])
    else:
        sizes = facts["num_inputs"], facts["seq_len"]
        inputs = random_inputs(facts["kind"], *sizes, cfg, seed=facts["seed"], vocab_size=facts["vocab_size"])
    if inputs.digest != facts["digest"]:
        raise InputError(f"the inputs drawn here have the digest {inputs.digest}, not {facts['digest']}: they differ")
    return inputs
