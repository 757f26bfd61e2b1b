"""Results of commands as frozen dataclasses, for the command line, Python and notebooks.

Each function calls what the command of its name calls and returns a result: ``to_json()`` is what ``--json`` writes,
``summary()`` the sentences that the command ends with (``repr``; a notebook shows the tables as well), ``tables()`` the
tables that it prints and ``table()`` the first of them, ``figures()`` matplotlib figures without pyplot and ``plot()``
the first of them (``plot(ax=ax)``: into axes of yours), ``arrays`` the numbers as NumPy arrays by name, ``to_pandas()``
a data frame where pandas is installed, and ``to_csv()`` the same rows as text or, with a path, as a file.
``compare(a, b)`` sets two results of one kind against each other.
"""

from bornbiased_jax.results.attention import Intervention, Sinks, intervention, sinks
from bornbiased_jax.results.comparison import Comparison, compare
from bornbiased_jax.results.prediction import Prediction
from bornbiased_jax.results.probes import Contraction, Preference, contraction, preference
from bornbiased_jax.results.result import Listing, Result
from bornbiased_jax.results.runs import Training, training
from bornbiased_jax.results.scans import Scan, scan
from bornbiased_jax.results.verdicts import Lineage, lineage

__all__ = [
    "Comparison",
    "Contraction",
    "Intervention",
    "Lineage",
    "Listing",
    "Prediction",
    "Preference",
    "Result",
    "Scan",
    "Sinks",
    "Training",
    "compare",
    "contraction",
    "intervention",
    "lineage",
    "preference",
    "scan",
    "sinks",
    "training",
]
