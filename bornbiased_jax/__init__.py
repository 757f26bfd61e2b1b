"""Transformers are born biased: seeded models, sweeps over seeds, probes, fingerprints and theory in JAX.

The names below, and modules such as ``bf.lineage``, are loaded when first used, so that ``import bornbiased_jax`` costs
nothing and waits for no JAX; all modules can be imported by name as well. ``__init__.pyi`` tells type checkers of them.

    import bornbiased_jax as bf

    bf.compare("seed:42@llama-tiny", "seed:43@llama-tiny")
"""

from importlib import import_module as _import_module

__version__ = "0.2.0"

# A public name → the module that has it, and what it is called there where that differs.
_HOMES = {
    "ModelConfig": "config",
    "PretrainConfig": "training.config",
    "apply": "model.model",
    "compare": "results.verdicts:lineage",
    "contraction": "results.probes",
    "fingerprint": "lineage.fingerprint_pass",
    "init_seed": "init",
    "open_checkpoint": "checkpoints.checkpoint",
    "predict": "prediction",
    "preference": "results.probes",
    "preset": "config",
    "pretrain": "training.train",
    "scan": "results.scans",
    "sinks": "results.attention",
}
# Modules that users reach as attributes: those of the API reference.
_MODULES = frozenset(
    "checkpoints config derive evaluation lineage model prediction probes quantization report results stats text "
    "theory training".split()
)
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return _import_module(f"bornbiased_jax.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'bornbiased_jax' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(_import_module(f"bornbiased_jax.{module}"), attribute or name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
