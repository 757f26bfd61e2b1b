"""Attention sinks: where they come from, how they grow, what prevents them."""
