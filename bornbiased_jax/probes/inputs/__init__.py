"""Probe inputs: N sequences of T token ids or vectors, known by one digest."""

from bornbiased_jax.probes.inputs.kinds import (
    KINDS,
    RANDOM_KINDS,
    InputKind,
    Inputs,
    from_tokens,
    gaussian,
    random_inputs,
    random_tokens,
)
from bornbiased_jax.probes.inputs.spec import parse_inputs
from bornbiased_jax.probes.inputs.windows import text

__all__ = [
    "KINDS",
    "RANDOM_KINDS",
    "InputKind",
    "Inputs",
    "from_tokens",
    "gaussian",
    "parse_inputs",
    "random_inputs",
    "random_tokens",
    "text",
]
