"""Results of commands as frozen dataclasses, for the command line, Python and notebooks.

Each function calls what the command of its name calls and returns a result: ``to_json()`` is what ``--json`` writes,
``summary()`` the sentences that the command ends with (``repr``; a notebook shows the table as well), ``table()`` the
table that it prints, ``plot()`` a matplotlib figure without pyplot, ``to_pandas()`` a data frame where pandas is
installed. Results of several tables list all of them in ``tables()``.
"""

from bornbiased_jax.results.attention import Intervention, Sinks, intervention, sinks
from bornbiased_jax.results.birth import Contraction, Preference, contraction, preference
from bornbiased_jax.results.lines import Training, training
from bornbiased_jax.results.listing import Listing
from bornbiased_jax.results.scans import Scan, scan
from bornbiased_jax.results.verdicts import Lineage, lineage

__all__ = [
    "Contraction",
    "Intervention",
    "Lineage",
    "Listing",
    "Preference",
    "Scan",
    "Sinks",
    "Training",
    "contraction",
    "intervention",
    "lineage",
    "preference",
    "scan",
    "sinks",
    "training",
]
