"""``python -m experiments.results [collect OUT]``: list committed records, or take some over."""

import sys

from bornbiased_jax.errors import InputError
from experiments import results


def main(arguments: list[str]) -> int:
    """Run the command line; return the exit code."""
    if not arguments:
        for name, scale in results.names():
            print(results.state(name, scale))
        return 0
    if len(arguments) != 2 or arguments[0] != "collect":
        print("usage: python -m experiments.results [collect OUT]", file=sys.stderr)
        return 2
    try:
        for path in results.collect(arguments[1]):
            print(path)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
