"""Transformers are born biased: seeded models, sweeps over seeds, probes, fingerprints and theory in JAX.

The modules are imported by name (``from bornbiased_jax import sweep``); this file imports nothing, so
that ``import bornbiased_jax`` costs nothing.
"""

__version__ = "0.2.0"
