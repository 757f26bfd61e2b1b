"""The anatomy of births in a run that ``--data`` names: a folder of ``bornbiased pretrain --checkpoint-log-spaced``.

What is computed, and what would refute it, is stated in :mod:`.anatomy`; run by name alone.
"""

from __future__ import annotations

import dataclasses

from experiments.survival import anatomy

EXPERIMENT = dataclasses.replace(
    anatomy.EXPERIMENT,
    name="anatomy_of_run",
    title="What of a birth the outputs of a longer run remember",
    run=anatomy.run_given,
    settings={"laptop": dict(num_inputs=600, seq_len=32, num_checkpoints=6, num_fresh=19)},
    cost={"laptop": "minutes on two cores, the run not counted"},
)
