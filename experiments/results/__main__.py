"""``python -m experiments.results [collect OUT | verify OUT [FORMER]]``: list committed records, add or verify some."""

import sys
from collections.abc import Callable
from pathlib import Path

from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments import results


def main(arguments: list[str]) -> int:
    """Run the command line; return the exit code."""
    calls: dict[tuple[str, int], Callable[..., list[Path]]] = {
        ("collect", 2): results.collect,
        ("verify", 2): results.verify,
        ("verify", 3): results.verify,
    }
    call = calls.get((arguments[0], len(arguments))) if arguments else None
    if arguments and call is None:
        print("usage: python -m experiments.results [collect OUT | verify OUT [FORMER]]", file=sys.stderr)
        return 2
    try:
        if call is None:
            for name, scale in results.names():
                print(results.state(name, scale))
            return 0
        for path in call(*arguments[1:]):
            print(path)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
