"""Decide whether two models share an initialization: lineage tests on outputs and on weights, and their verdicts.

Two functions have the name of their module and are imported from there: ``trace.trace`` (from two references to a
verdict) and ``compare.compare`` (of two fingerprints of outputs).

Functions load their modules when first used, so that the names of tests are known without JAX; ``__init__.pyi`` tells
type checkers of them.
"""

from __future__ import annotations

from importlib import import_module as _import_module

_HOMES = {
    "commitment": "check_commitment",
    "fingerprint_file": "load_fingerprint payload_digest save_fingerprint",
    "fingerprint_pass": "fingerprint",
    "fingerprints": "Fingerprint Settings",
    "lineage_tests": "LineageTest lineage_test",
    "output_fingerprint": "OutputFingerprint load_outputs save_outputs",
    "outputs": "last_outputs",
    "paper": "iclr_test paper_test",
    "permutation": "permutation_test",
    "population": "population_test",
    "untrained_outputs": "final_outputs",
    "verdict": "Verdict",
    "whichseed": "which_seed",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'bornbiased_jax.lineage' has no attribute {name!r}")
    return getattr(_import_module(f"bornbiased_jax.lineage.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
