"""The anatomy of births in a run that ``--data`` names: a folder of ``bornbiased pretrain --checkpoint-log-spaced``.

What is computed, and what would refute it, is stated in :mod:`.anatomy`; run by name alone.
"""

from __future__ import annotations

from experiments.survival import anatomy

EXPERIMENT = anatomy.experiment(
    "anatomy_of_run",
    "What of a birth the outputs of a longer run remember",
    anatomy.run_given,
    {"laptop": dict(num_inputs=600, seq_len=32, num_checkpoints=6, num_fresh=19)},
    {"laptop": "minutes on two cores, the run not counted"},
)
