"""The decay of births in a run that ``--data`` names: a folder of ``bornbiased pretrain --checkpoint-log-spaced``.

What is computed, and what would refute it, is stated in :mod:`.decay`; run by name alone.
"""

from __future__ import annotations

import dataclasses

from experiments.survival import decay

EXPERIMENT = dataclasses.replace(
    decay.EXPERIMENT,
    name="decay_of_run",
    title="How long each matrix of a longer run remembers its birth",
    run=decay.run_given,
    settings={"laptop": {}},
    cost={"laptop": "a minute on two cores, the run not counted"},
)
