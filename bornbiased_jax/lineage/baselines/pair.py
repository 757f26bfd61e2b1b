"""Every published score that two checkpoints have without running either."""

from __future__ import annotations

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.lineage.baselines.awm import awm
from bornbiased_jax.lineage.baselines.ics import ics
from bornbiased_jax.lineage.baselines.independence import phi_u
from bornbiased_jax.lineage.baselines.intrinsic import intrinsic
from bornbiased_jax.lineage.baselines.pcs import pcs
from bornbiased_jax.lineage.baselines.score import Score


def weight_scores(base: Checkpoint, suspect: Checkpoint) -> list[Score]:
    """Compute intrinsic, PCS, ICS, φ_U and AWM of two models."""
    return [
        intrinsic(base.params(), suspect.params()),
        pcs(base.params(), suspect.params()),
        ics(base.cfg, base.params(), suspect.cfg, suspect.params()),
        phi_u(base.cfg, base.params(), suspect.cfg, suspect.params()),
        awm(base.cfg, base.params(), suspect.cfg, suspect.params()),
    ]
