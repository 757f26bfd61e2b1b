"""Pretraining: seeds trained at once on the same data, with checkpoints that survive a kill at any moment.

:func:`pretrain` runs a :class:`PretrainConfig`; :func:`from_schedule` makes one by the papers' numbers.
"""

from bornbiased_jax.pretrain.loop import pretrain
from bornbiased_jax.pretrain.plot import plot_run
from bornbiased_jax.pretrain.runs import list_runs
from bornbiased_jax.pretrain.settings import SCHEDULES, PretrainConfig, from_schedule

__all__ = [
    "SCHEDULES",
    "PretrainConfig",
    "from_schedule",
    "list_runs",
    "plot_run",
    "pretrain",
]
