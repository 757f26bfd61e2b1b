"""Write golden values: ``python -m tests.golden [MODULE[/CASE] …]``, all of them without a name.

Values are written of a commit whose results are trusted, and again only where a change of behavior is intended; the
commit message then names the values it replaces. Programs are compiled as the tests compile them.
"""

import importlib
import sys

from tests import conftest  # noqa: F401  # compiles and caches as the tests do
from tests.golden.record import MODULES, read, write


def main(names: list[str]) -> None:
    """Compute and write the values of the named modules or cases."""
    for name in names or list(MODULES):
        module, _, only = name.partition("/")
        cases = importlib.import_module(f"tests.golden.{module}").CASES
        values = {key: row for key, row in read(module).items() if key in cases}
        for key in [only] if only else cases:
            print(f"{module}/{key}", file=sys.stderr)
            values[key] = dict(cases[key].compute())
        write(module, values)


main(sys.argv[1:])
