"""Published fingerprints, each one function of two models giving one score.

Of the similarity scores (methods, section 2) one above the published threshold of 0.8 reads as "same". At a fixed
threshold the comparison is unfair to them, so that each is also reported against scores of unrelated seeds
(:func:`.score.against_null`). φ_U, φ_H, φ_MATCH and AWM (section 1b) bring a p, which is no better than its null: see
the calibration experiment.
"""

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.lineage.baselines.awm import awm, unbiased_cka
from bornbiased_jax.lineage.baselines.ics import ics, rare_tokens
from bornbiased_jax.lineage.baselines.independence import Activations, mlp_activations, phi_h, phi_match, phi_u
from bornbiased_jax.lineage.baselines.intrinsic import intrinsic
from bornbiased_jax.lineage.baselines.pcs import pcs
from bornbiased_jax.lineage.baselines.reef import linear_cka, reef, reef_features
from bornbiased_jax.lineage.baselines.score import THRESHOLD, Score, against_null

__all__ = [
    "THRESHOLD",
    "Activations",
    "Score",
    "against_null",
    "awm",
    "ics",
    "intrinsic",
    "linear_cka",
    "mlp_activations",
    "pcs",
    "phi_h",
    "phi_match",
    "phi_u",
    "rare_tokens",
    "reef",
    "reef_features",
    "unbiased_cka",
    "weight_scores",
]


def weight_scores(base: Checkpoint, suspect: Checkpoint) -> list[Score]:
    """Compute intrinsic, PCS, ICS, φ_U and AWM of two models."""
    models = base.cfg, base.params(), suspect.cfg, suspect.params()
    weights = base.params(), suspect.params()
    return [intrinsic(*weights), pcs(*weights), ics(*models), phi_u(*models), awm(*models)]
