"""``python -m bornbiased_jax``: the same as the ``bornbiased`` command."""

import sys

from bornbiased_jax.cli import main

if __name__ == "__main__":
    sys.exit(main())
