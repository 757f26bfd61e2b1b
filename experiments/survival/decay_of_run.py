"""The decay of births in a run that ``--data`` names: a folder of ``bornbiased pretrain --checkpoint-log-spaced``.

What is computed, and what would refute it, is stated in :mod:`.decay`; run by name alone.
"""

from __future__ import annotations

from experiments.survival import decay

EXPERIMENT = decay.experiment(
    "decay_of_run",
    "How long each matrix of a longer run remembers its birth",
    decay.run_given,
    {"laptop": {}},
    {"laptop": "a minute on two cores, the run not counted"},
)
