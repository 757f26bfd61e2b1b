"""Section 4.1 and 4.2: what newborn models prefer, and how their representations contract."""
