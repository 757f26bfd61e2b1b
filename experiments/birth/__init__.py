"""Sections 3 to 4.3: what untrained models prefer, and how their representations contract."""
