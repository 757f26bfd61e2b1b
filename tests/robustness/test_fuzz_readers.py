"""Damaged files of every kind are read, or refused in one sentence, within bounds of memory and time."""

import os
import time

import pytest

from tests.robustness import weight_kinds
from tests.robustness.kinds import KINDS
from tests.robustness.readers import damaged, fault_of, good, kept

CASES = 200
EACH = -(-CASES // len(KINDS))
SECONDS = float(os.environ.get("FUZZ_SECONDS", 1))
"""By kind, in `make test-all`."""


@pytest.mark.parametrize("name", KINDS)
def test_damaged_files(name):
    folder, file = good(name)
    KINDS[name].read(folder, folder / file)  # what is refused whole would be refused damaged
    found = {seed: fault_of(name, damaged(name, seed)) for seed in range(EACH)}
    assert not any(found.values()), {seed: fault for seed, fault in found.items() if fault}


@pytest.mark.parametrize(("name", "path"), kept(), ids=lambda value: getattr(value, "name", value))
def test_corpus_of_mutated_files(name, path):
    assert fault_of(name, path.read_bytes()) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_damaged_files_by_the_clock(name):
    end, seed = time.monotonic() + SECONDS, EACH
    while time.monotonic() < end:
        fault = fault_of(name, damaged(name, seed))
        assert fault is None, f"seed {seed}: {fault}"
        seed += 1


MUTATIONS = 2_000
"""Of all files of weights together, and of what stands beside them."""
OF_WEIGHTS = (*weight_kinds.KINDS, "config.json", "model.safetensors", "index of shards")


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_WEIGHTS)
def test_two_thousand_mutated_files_of_weights(name):
    faults = {
        seed: fault_of(name, damaged(name, seed)) for seed in range(EACH, EACH + -(-MUTATIONS // len(OF_WEIGHTS)))
    }
    assert not any(faults.values()), {seed: fault for seed, fault in faults.items() if fault}
