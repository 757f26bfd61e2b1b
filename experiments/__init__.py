"""The papers' tables and figures, one module each; ``bornbiased reproduce`` runs them by name."""

_NAMES = (
    "table1",
    "figure1",
    "figure2",
    "findings1",
    "finding2",
    "figure10",
    "table2",
    "figure3",
    "figure4",
    "figure5",
    "figure6",
    "figure7",
    "table3",
    "figure8",
    "figure9",
    "predicted",
    "figure11",
    "table4b",
    "table4c",
    "table5",
    "table8",
    "table10",
    "table11",
    "table12",
    "figure14",
    "sink_interventions",
    "sink_growth",
    "figure12",
    "table7",
    "sink_cures",
    "calibration",
    "figure13",
    "table4a",
    "table6",
    "lineage_pairs",
    "birth_to_life",
)
MODULES: dict[str, str] = {name: f"experiments.{name}" for name in _NAMES}
"""Name on the command line -> module with an ``EXPERIMENT``, in the order in which the page shows them."""

SELECTIONS: dict[str, tuple[str, ...]] = {
    "demo": ("table1", "figure1", "figure2", "finding2", "figure10"),
    "all": tuple(MODULES),
}
"""Names that stand for several experiments."""
