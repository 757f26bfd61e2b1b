"""Pretraining: seeds trained at once on the same data, with checkpoints that survive a kill at any moment.

:func:`pretrain` runs a :class:`PretrainConfig`, which :func:`from_schedule` makes by the papers' numbers;
:func:`begin` and :func:`train` do the same updates in memory.
"""

from bornbiased_jax.training.in_memory import begin, train
from bornbiased_jax.training.initial import open_initial
from bornbiased_jax.training.loop import pretrain
from bornbiased_jax.training.metrics import read_metrics
from bornbiased_jax.training.plot import plot_run
from bornbiased_jax.training.runs import list_runs
from bornbiased_jax.training.settings import SCHEDULES, PretrainConfig, from_schedule
from bornbiased_jax.training.setup import Data, load_data
from bornbiased_jax.training.step import State, make_train_step

__all__ = [
    "SCHEDULES",
    "Data",
    "PretrainConfig",
    "State",
    "begin",
    "from_schedule",
    "list_runs",
    "load_data",
    "make_train_step",
    "open_initial",
    "plot_run",
    "pretrain",
    "read_metrics",
    "train",
]
