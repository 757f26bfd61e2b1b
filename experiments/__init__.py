"""The papers' tables and figures, one module each; ``bornbiased reproduce`` runs them by name."""

MODULES: dict[str, str] = {}
"""Name on the command line -> module with an ``EXPERIMENT``, in the order in which the page shows them."""

SELECTIONS: dict[str, tuple[str, ...]] = {
    "demo": (),
    "all": tuple(MODULES),
}
"""Names that stand for several experiments."""
