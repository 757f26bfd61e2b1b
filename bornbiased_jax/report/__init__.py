"""Figures, tables and the self-contained page that shows them.

:mod:`.numbers` writes numbers, :mod:`.tables` holds claims, tables and panels, :mod:`.figures`, :mod:`.sink_figures`
and :mod:`.lineage_figures` draw, and :func:`render` makes the page.
"""

from bornbiased_jax.report.page import Section, render
from bornbiased_jax.report.tables import Claim, Panel, Quantity, Row, Table

__all__ = ["Claim", "Panel", "Quantity", "Row", "Section", "Table", "render"]
