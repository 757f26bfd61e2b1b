"""Ways in which a model becomes another: changes that leave its function alone, damage, merges, adapters.

``derive.derive`` has the name of its module and is imported from there.
"""

from bornbiased_jax.derive.changes import Change, ChangeContext, parse_change
from bornbiased_jax.derive.derive import Derived
from bornbiased_jax.derive.peft import merge_adapter

__all__ = ["Change", "ChangeContext", "Derived", "merge_adapter", "parse_change"]
