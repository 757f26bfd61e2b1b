"""Four published fingerprints (methods, section 2), each one function of two models giving one score.

A score above the published threshold of 0.8 reads as "same". At a fixed threshold the comparison is unfair
to them, so that each is also reported against scores of unrelated seeds (:mod:`.null`).
"""

from bornbiased_jax.seedprint.baselines.ics import ics, rare_tokens
from bornbiased_jax.seedprint.baselines.intrinsic import intrinsic
from bornbiased_jax.seedprint.baselines.null import against_null, unrelated_scores
from bornbiased_jax.seedprint.baselines.pair import weight_scores
from bornbiased_jax.seedprint.baselines.pcs import pcs
from bornbiased_jax.seedprint.baselines.reef import linear_cka, reef, reef_features
from bornbiased_jax.seedprint.baselines.score import THRESHOLD, Score

__all__ = [
    "THRESHOLD",
    "Score",
    "against_null",
    "ics",
    "intrinsic",
    "linear_cka",
    "pcs",
    "rare_tokens",
    "reef",
    "reef_features",
    "unrelated_scores",
    "weight_scores",
]
