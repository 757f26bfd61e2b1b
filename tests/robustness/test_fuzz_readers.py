"""Mutated files of every kind are read, or refused in one sentence, within limits of memory and time."""

import pytest

from tests.robustness import __main__ as command
from tests.robustness import readers, weight_kinds
from tests.robustness.kinds import KINDS
from tests.robustness.readers import damaged, fault_of, good, kept
from tests.tiers import NIGHTLY

FEW = range(3)
# In `make test-all`: two thousand files of weights and of what stands next to them, a few dozen of other kinds.
OF_WEIGHTS = (*weight_kinds.KINDS, "config.json", "model.safetensors", "index of shards")
OF_WEIGHTS += tuple(name for name in KINDS if name.endswith("fingerprint of weights"))
MANY = {name: range(3, 175 if name in OF_WEIGHTS else 40) for name in KINDS}


@pytest.mark.parametrize(
    ("name", "seeds"),
    [(name, FEW) for name in KINDS] + [pytest.param(*row, marks=NIGHTLY) for row in MANY.items()],
)
def test_mutated_files_read_or_refused_in_one_sentence(name, seeds):
    folder, file = good(name)
    KINDS[name].read(folder, folder / file)  # what is refused before the mutation would be refused after it
    faults = {seed: fault for seed in seeds if (fault := fault_of(name, damaged(name, seed))) is not None}
    assert not faults


@pytest.mark.parametrize(("name", "path"), kept(), ids=lambda value: getattr(value, "name", value))
def test_corpus_of_mutated_files(name, path):
    assert fault_of(name, path.read_bytes()) is None


def test_fuzzing_command_prints_and_stores_faults(tmp_path, monkeypatch, capsys):
    assert command.main(["--minutes", "0.002", "--kinds", "metrics.jsonl", "gzip"]) == 0
    monkeypatch.setattr(readers, "CORPUS", tmp_path / "corpus")
    monkeypatch.setattr(readers, "fault_of", lambda name, data: "KeyError: 'x'")
    assert command.main(["--minutes", "0.002", "--kinds", "gzip"]) == 1
    assert "gzip, seed 1000000: KeyError: 'x'" in capsys.readouterr().out
    assert 1 <= len(list((tmp_path / "corpus/gzip").iterdir())) <= command.MOST_STORED
