"""``python -m tests.faults [WORDS]``: put the listed faults in, two at a time; WORDS choose by name, as pytest's -k."""

import sys

import pytest

from tests.faults.faults import FOLDER

chosen = ["-k", " ".join(sys.argv[1:])] if sys.argv[1:] else []
sys.exit(pytest.main([str(FOLDER), "-m", "", "-n", "2", "--dist", "worksteal", *chosen]))
