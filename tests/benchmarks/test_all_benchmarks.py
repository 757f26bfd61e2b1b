"""All benchmarks in turn: what is there stays, what fails or takes too long is said, clean records are collected."""

import json
import time

import pytest

from benchmarks import all as every
from bornbiased_jax.errors import InputError


def record(revision, dirty=False):
    return json.dumps({"provenance": {"git": {"revision": revision, "dirty": dirty}}})


def test_only_what_is_missing_is_measured(tmp_path, monkeypatch):
    made = []

    def pretend(command, seconds):
        assert command[1:3] == ["-m", "benchmarks"] and 0 < seconds <= 60
        made.append(command[3])
        if command[3] == "bound":
            return 1
        (tmp_path / f"{command[3]}.json").write_text(record("now"))
        return 0

    monkeypatch.setattr(every, "_run", pretend)
    (tmp_path / "kendall.json").write_text(record("now"))
    (tmp_path / "fingerprint.json").write_text(record("before"))
    (tmp_path / "seeds_at_once.json").write_text(record("now", dirty=True))
    names = ["kendall", "fingerprint", "seeds_at_once", "bound"]
    outcomes = every.run_all(names, tmp_path, 1.0, "now")
    assert outcomes == {
        "kendall": "there", "fingerprint": "measured", "seeds_at_once": "measured", "bound": "failed",
    }  # fmt: skip
    assert made == names[1:]
    results = tmp_path / "results"
    results.mkdir()
    assert set(every.collect(tmp_path, "now", results)) == {"kendall", "fingerprint", "seeds_at_once"}
    assert (results / "fingerprint.json").read_text() == record("now")


def test_no_process_outlives_the_limit(tmp_path):
    left = tmp_path / "left"
    begun = time.monotonic()
    assert every._run(["bash", "-c", f"(sleep 3; touch {left}) & sleep 60"], 0.5) is None
    assert every._run(["true"], 0.0) is None and every._run(["false"], 60.0) == 1
    time.sleep(max(0.0, 4 - (time.monotonic() - begun)))
    assert not left.exists()


def test_a_changed_tree_and_unknown_names_are_refused(monkeypatch):
    monkeypatch.setattr(every, "git_revision", lambda: {"revision": "now", "dirty": True})
    with pytest.raises(InputError, match="commit first"):
        every.main([])
    monkeypatch.setattr(every, "git_revision", lambda: {"revision": "now", "dirty": False})
    with pytest.raises(InputError, match="unknown benchmarks none: name some of sweep_vs_torch"):
        every.main(["--names", "kendall,none"])
