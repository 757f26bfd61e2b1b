"""Models of an experiment by their fingerprints, and how far two matchings of their neurons agree."""

from __future__ import annotations

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.native_roles import LANGUAGE, NativeRoles
from bornbiased_jax.lineage.evidence import EvidenceError
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.lineage.fingerprints import Fingerprint, Settings
from bornbiased_jax.lineage.matching import Matching, match_neurons
from bornbiased_jax.lineage.pairing import pair_blocks, pair_neurons

SETTINGS = Settings(dim=64, neurons=None, token_labels="ids")
"""Models here are small: every neuron is kept, in more numbers than what is published has."""


def sketch(model: Checkpoint) -> Fingerprint:
    """Make the fingerprint of a model in memory."""
    return fingerprint(NativeRoles(model), SETTINGS)


def matched(base: Fingerprint, suspect: Fingerprint) -> Matching | None:
    """Match the neurons of two models twice, in token space; None where they do not correspond."""
    components = base.components[LANGUAGE], suspect.components[LANGUAGE]
    try:
        pairs = pair_neurons(*components, pair_blocks(*components))
        return match_neurons(pairs, "token", components[0].shape)
    except EvidenceError:
        return None
