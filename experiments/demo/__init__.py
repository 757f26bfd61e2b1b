"""The demo: one experiment for each pillar, at sizes that two cores afford in minutes."""
