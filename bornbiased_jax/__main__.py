"""``python -m bornbiased_jax``: the same as the ``bornbiased`` command."""

from bornbiased_jax.cli import main

if __name__ == "__main__":
    main()
