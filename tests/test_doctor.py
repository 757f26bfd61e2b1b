"""What an installation is said to have."""

import tomllib
from importlib import metadata
from pathlib import Path

import jax
import pytest
from packaging.requirements import Requirement

from bornbiased_jax import doctor
from bornbiased_jax.cli.main import run


def test_every_extra_is_explained():
    # An installation may be older than the file.
    text = (Path(__file__).resolve().parent.parent / "pyproject.toml").read_text()
    assert set(tomllib.loads(text)["project"]["optional-dependencies"]) <= set(doctor.EXTRAS)


def test_this_installation(monkeypatch, tmp_path):
    monkeypatch.setenv("BORNBIASED_CACHE", str(tmp_path))
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "kept").write_bytes(b"12345")
    rows = doctor.diagnose()
    assert rows["libraries"]["jax"] == metadata.version("jax")
    assert len(rows["devices"]) == len(jax.local_devices())
    cache = {"folder": str(tmp_path), "from": "BORNBIASED_CACHE", "files": 1, "bytes": 5, "writable": True}
    assert rows["cache"] == cache
    assert rows["extras"]["dev"]["installed"], "the tests run, so that what they need is here"
    assert rows["problems"] == []


def test_a_missing_package_and_an_old_one_are_named(monkeypatch):
    here = {"torch": "2.1.0", "transformers": "5.9.0"}
    monkeypatch.setattr(doctor, "_version", here.get)
    named = [
        line for row in ("torch>=2.7", "transformers>=5", "datasets>=4") for line in doctor.missing(Requirement(row))
    ]
    assert named == ["torch>=2.7 (2.1.0 is here)", "datasets>=4"]


def test_doctor_checks_extras_of_requirements():
    """An extra may ask for another package with an extra of its own, as [cuda] does of jax."""
    added = {row.name for row in doctor._required("jax", "cuda13")}
    assert "jax-cuda13-plugin" in added and "numpy" not in added
    absent = {name for name in added if doctor._version(name) is None}
    assert {line.partition("<")[0].partition(">")[0] for line in doctor.missing(Requirement("jax[cuda13]"))} == absent


@pytest.mark.parametrize("name", [doctor.DISTRIBUTION, "jax"])
def test_doctor_reports_problems(name, monkeypatch, tmp_path, capsys):
    """A package that is not installed, or a platform that is not there."""
    if name == "jax":

        def absent() -> list[object]:
            raise RuntimeError("Unable to initialize backend 'tpu'")

        monkeypatch.setattr(jax, "local_devices", absent)
    else:
        real = doctor._version
        monkeypatch.setattr(doctor, "_version", lambda wanted: None if wanted == name else real(wanted))
    monkeypatch.setenv("BORNBIASED_CACHE", str(tmp_path / "new"))
    (problem,) = doctor.diagnose()["problems"]
    assert ("backend 'tpu'" in problem) if name == "jax" else ("pip install" in problem)
    assert run(["doctor"]) == 0
    assert problem in " ".join(capsys.readouterr().out.split())


def test_a_cache_below_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    assert not doctor._cache(tmp_path / "file" / "cache")["writable"]
    assert doctor._cache(tmp_path / "new" / "cache")["writable"]
