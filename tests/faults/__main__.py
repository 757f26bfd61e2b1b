"""Put the listed faults in, two at a time: ``python -m tests.faults [WORDS]``.

A fault with any of the WORDS in its name is chosen.
"""

import sys

import pytest

from tests.faults.faults import FOLDER

if __name__ == "__main__":
    chosen = ["-k", " or ".join(sys.argv[1:])] if sys.argv[1:] else []
    sys.exit(pytest.main([str(FOLDER), "-m", "", "-n", "2", "--dist", "worksteal", *chosen]))
