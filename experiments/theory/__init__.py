"""Predictions in closed form against simplified and real modules."""
