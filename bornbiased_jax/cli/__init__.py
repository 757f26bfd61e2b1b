"""The ``bornbiased`` command. Nothing below this folder knows it."""

from bornbiased_jax.cli.main import main

__all__ = ["main"]
