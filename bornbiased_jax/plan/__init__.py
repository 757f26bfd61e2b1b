"""What a command needs before it is run: devices, memory and hours.

:func:`.commands.needs_of` says what a command holds and computes, :func:`.rates.measure` how fast this machine is at
that, and :func:`.estimates.estimate` puts both together.
"""

from bornbiased_jax.plan.commands import needs_of
from bornbiased_jax.plan.estimates import estimate
from bornbiased_jax.plan.needs import Needs, Part, Work

__all__ = ["Needs", "Part", "Work", "estimate", "needs_of"]
