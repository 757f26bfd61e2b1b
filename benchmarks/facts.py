"""A table of facts: what was measured, and how it is written."""

from __future__ import annotations

from collections.abc import Sequence

from bornbiased_jax.report.tables import Quantity, Row, Table


def facts(title: str, facts: Sequence[tuple[str, str]], note: str = "") -> list[Table]:
    """Make one table with a row for each name and what was measured of it."""
    rows = [Row([name], {"measured": text}) for name, text in facts]
    return [Table(title, ["what"], [Quantity("measured")], rows, note)]
