"""The papers' tables and figures, one module each; ``bornbiased reproduce`` runs them by name."""

MODULES: dict[str, str] = {
    name: f"experiments.{name}"
    for name in ("table1", "figure1", "figure2", "findings1", "finding2", "figure10")
}
"""Name on the command line -> module with an ``EXPERIMENT``, in the order in which the page shows them."""

SELECTIONS: dict[str, tuple[str, ...]] = {
    "demo": ("table1", "figure1", "figure2", "finding2", "figure10"),
    "all": tuple(MODULES),
}
"""Names that stand for several experiments."""
