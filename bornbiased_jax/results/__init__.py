"""Results as small records, for Python and notebooks: what a command finds, in words, as a table and as a figure.

Each function calls what the command of its name calls and returns a frozen record with the same facts. A record says
its sentences (``repr``), shows itself in a notebook with its tables (``_repr_html_``) and draws itself (``plot()``, a
matplotlib figure without pyplot).
"""

from bornbiased_jax.results.attention import Intervention, Sinks, intervention, sinks
from bornbiased_jax.results.birth import Contraction, Preference, contraction, preference
from bornbiased_jax.results.lines import Training, training
from bornbiased_jax.results.listing import Listing
from bornbiased_jax.results.verdicts import Lineage, lineage

__all__ = [
    "Contraction",
    "Intervention",
    "Lineage",
    "Listing",
    "Preference",
    "Sinks",
    "Training",
    "contraction",
    "intervention",
    "lineage",
    "preference",
    "sinks",
    "training",
]
