"""Section 4.1 and 4.2: what untrained models prefer, and how their representations contract."""
