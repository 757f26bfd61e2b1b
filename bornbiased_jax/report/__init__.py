"""Figures, tables and the self-contained page that shows them."""
