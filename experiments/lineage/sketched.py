"""Models of an experiment by their fingerprints, and how far two matchings of their neurons agree."""

from __future__ import annotations

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.native_roles import LANGUAGE, NativeRoles
from bornbiased_jax.lineage.component_pair import ComponentPair
from bornbiased_jax.lineage.evidence import EvidenceError
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.lineage.fingerprints import Fingerprint, Settings
from bornbiased_jax.lineage.matching import Matching

SETTINGS = Settings(dim=64, neurons=None, token_labels="ids")
"""Models here are small: every neuron is kept, in more numbers than what is published has."""


def sketch(model: Checkpoint, settings: Settings = SETTINGS) -> Fingerprint:
    """Make the fingerprint of a model in memory."""
    return fingerprint(NativeRoles(model), settings)


def matched(base: Fingerprint, suspect: Fingerprint) -> Matching | None:
    """Match the neurons of two models twice; None where they do not correspond."""
    try:
        return ComponentPair(base, suspect, LANGUAGE).matching
    except EvidenceError:
        return None
