"""Pretraining: seeds trained at once on the same data, with checkpoints that survive a kill at any moment.

:func:`pretrain` runs a :class:`PretrainConfig`, which :func:`from_schedule` makes by the papers' numbers;
:func:`begin` and :func:`fit` do the same updates in memory.
"""

from bornbiased_jax.training.config import SCHEDULES, PretrainConfig, from_schedule
from bornbiased_jax.training.initial import open_initial
from bornbiased_jax.training.metrics import Logger, read_metrics
from bornbiased_jax.training.plot import plot_run
from bornbiased_jax.training.program import begin
from bornbiased_jax.training.runs import list_runs
from bornbiased_jax.training.setup import Data, load_data
from bornbiased_jax.training.step import State, make_loss, make_train_step
from bornbiased_jax.training.train import TrainingSummary, fit, pretrain

__all__ = [
    "SCHEDULES",
    "Data",
    "Logger",
    "PretrainConfig",
    "State",
    "TrainingSummary",
    "begin",
    "fit",
    "from_schedule",
    "list_runs",
    "load_data",
    "make_loss",
    "make_train_step",
    "open_initial",
    "plot_run",
    "pretrain",
    "read_metrics",
]
