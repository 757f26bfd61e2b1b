"""Results of commands as frozen dataclasses, for the command line, Python and notebooks.

Each function calls what the command of its name calls and returns a result: ``to_json()`` is what ``--json`` writes,
``summary()`` the sentences that the command ends with (``repr``; a notebook shows the tables as well), ``tables()`` the
tables that it prints and ``table()`` the first of them, ``figures()`` matplotlib figures without pyplot and ``plot()``
the first of them (``plot(ax=ax)``: into axes of yours), ``arrays`` the numbers as NumPy arrays by name, ``to_pandas()``
a data frame where pandas is installed, and ``to_csv()`` the same rows as text or, with a path, as a file.
``compare(a, b)`` sets two results of one kind against each other.

Names load their modules when first used; ``__init__.pyi`` tells type checkers of them.
"""

from importlib import import_module as _import_module

_HOMES = {
    "attention": "Intervention Sinks intervention sinks",
    "comparison": "Comparison compare",
    "prediction": "Prediction",
    "probes": "Contraction Preference contraction preference",
    "result": "Listing Result",
    "runs": "Training training",
    "scans": "Scan scan",
    "verdicts": "Lineage lineage",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'bornbiased_jax.results' has no attribute {name!r}")
    return getattr(_import_module(f"bornbiased_jax.results.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
