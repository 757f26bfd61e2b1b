import json
import re
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import bornbiased_jax
from bornbiased_jax import record
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from tests.fixtures.programs import run_python

MIB = 2**20


def test_provenance_is_json_and_names_what_a_rerun_needs():
    with record.measure() as measurement:
        pass
    cfg = preset("gpt2-tiny")
    provenance = record.provenance(
        config=cfg, seeds=range(3), precision="float32 highest", measurement=measurement, inputs="sha256:ab"
    )
    assert json.loads(json.dumps(provenance, allow_nan=False)) == provenance
    assert type(cfg).from_dict(provenance["config"]) == cfg
    assert provenance["seeds"] == [0, 1, 2]
    assert provenance["version"] == bornbiased_jax.__version__
    assert provenance["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert provenance["versions"]["jax"] == __import__("jax").__version__
    assert provenance["platform"]["cpu"] and provenance["platform"]["cores"] >= 1
    assert provenance["device"]["platform"] == "cpu" and provenance["device"]["count"] >= 1
    assert provenance["prng"] == "threefry2x32"
    assert provenance["flags"]["jax_threefry_partitionable"] is True
    assert {"jax_enable_x64", "jax_default_matmul_precision"} <= set(provenance["flags"])
    assert provenance["precision"] == "float32 highest"
    assert provenance["inputs"] == "sha256:ab"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", provenance["timestamp"])
    assert provenance["wall_time_s"] >= 0 and provenance["peak_memory_bytes"] > 10 * MIB


def test_provenance_does_not_tell_the_machine():
    import getpass
    import socket

    text = json.dumps(record.provenance())
    assert f'"{socket.gethostname()}"' not in text
    assert f'"{getpass.getuser()}"' not in text
    assert str(Path.home()) not in text


def _commit(folder: Path, message: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", folder, "add", "--all"], check=True)
    subprocess.run(["git", "-C", folder, *identity, "commit", "--quiet", "-m", message], check=True)


def _package(folder: Path, monkeypatch) -> Path:
    package = folder / "bornbiased_jax"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(bornbiased_jax, "__file__", str(package / "__init__.py"))
    return package


def test_git_revision_and_its_dirt(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    package = _package(tmp_path, monkeypatch)
    _commit(tmp_path, "first")
    head = subprocess.run(
        ["git", "-C", tmp_path, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert record.git_revision() == {"revision": head, "dirty": False}
    # What no commit knows, such as an output next to the code, changes nothing that the commit says.
    (tmp_path / "out.json").write_text("{}")
    assert record.git_revision() == {"revision": head, "dirty": False}
    (package / "__init__.py").write_text("x = 1\n")
    assert record.git_revision() == {"revision": head, "dirty": True}


def test_no_git_revision_outside_git_nor_in_a_foreign_repository(tmp_path, monkeypatch):
    package = _package(tmp_path, monkeypatch)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert record.git_revision() is None
    # An environment inside a repository that does not track it.
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("bornbiased_jax\n")
    _commit(tmp_path, "another project's")
    assert package.exists() and record.git_revision() is None


def test_a_copy_without_git_says_what_the_environment_says(tmp_path, monkeypatch):
    _package(tmp_path, monkeypatch)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for told, expected in (("a" * 40, {"revision": "a" * 40, "dirty": False}), ("main", None), ("", None)):
        monkeypatch.setenv(record.REVISION_VARIABLE, told)
        assert record.git_revision() == expected
    # A checkout without changes knows better.
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    _commit(tmp_path, "first")
    monkeypatch.setenv(record.REVISION_VARIABLE, "a" * 40)
    assert record.git_revision()["revision"] != "a" * 40
    # A clean tree was copied over a checkout of another commit.
    (tmp_path / "bornbiased_jax" / "__init__.py").write_text("changed = True\n")
    assert record.git_revision() == {"revision": "a" * 40, "dirty": False}
    monkeypatch.delenv(record.REVISION_VARIABLE)
    assert record.git_revision()["dirty"]


def test_no_git_revision_without_git(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert record.git_revision() is None
    provenance = record.provenance()
    assert provenance["git"] is None and "precision" not in provenance


def _touch(mib: int) -> int:
    return int(np.ones(mib * MIB, np.uint8)[::4096].sum())


@pytest.mark.slow
def test_peak_memory_belongs_to_the_block():
    with record.measure() as probe:
        pass
    if probe.peak_memory_scope != "block":
        pytest.skip("this kernel does not let a process reset its peak memory")
    with record.measure() as outer:
        _touch(256)
        with record.measure() as inner:
            _touch(32)
    with record.measure() as after:
        _touch(32)
    # Freed arrays of this size go straight back to the system (they are mapped, not on the heap).
    # Half of the difference of the allocations leaves room for what else the process allocates.
    assert outer.peak_memory_bytes - inner.peak_memory_bytes > 112 * MIB
    assert outer.peak_memory_bytes - after.peak_memory_bytes > 112 * MIB
    assert after.peak_memory_bytes > 32 * MIB


def test_an_outer_block_sees_the_peak_of_an_inner_one():
    with record.measure() as outer, record.measure() as inner:
        _touch(64)
    assert outer.peak_memory_bytes >= inner.peak_memory_bytes
    assert outer.wall_time_s >= inner.wall_time_s


def test_a_measurement_survives_an_exception():
    with pytest.raises(RuntimeError), record.measure() as measurement:
        raise RuntimeError
    assert measurement.peak_memory_bytes > 0
    assert measurement.wall_time_s == measurement.wall_time_s  # the clock has stopped
    assert not record._open


@pytest.mark.slow
def test_children_count():
    """In a process of its own, whose children are known: the child is larger than the process itself."""
    program = """
import subprocess, sys
from bornbiased_jax import record
with record.measure() as measurement:
    subprocess.run([sys.executable, "-c", "x = b'x' * (600 << 20)"], check=True)
print(measurement.children_peak_memory_bytes)
"""
    assert 600 * MIB < int(run_python(program)) < 700 * MIB


@pytest.mark.parametrize(("own", "after", "expected"), [(1, 9, None), (1, 10, 10), (20, 9, 9)])
def test_children_of_another_block_do_not_count(monkeypatch, own, after, expected):
    """The system tells the largest child since the process began, whichever experiment it was of."""
    children = iter((9, after))
    monkeypatch.setattr(record, "_max_rss", lambda who: next(children))
    monkeypatch.setattr(record, "_peak", lambda: own)
    with record.measure() as measurement:
        pass
    assert measurement.children_peak_memory_bytes == measurement.to_dict()["children_peak_memory_bytes"] == expected


def test_jsonable_converts_what_experiments_hold():
    value = {
        "array": np.arange(3, dtype=np.float32),
        "jax": jnp.float32(1.5),
        "scalar": np.int64(7),
        "flag": np.bool_(True),
        "tuple": (1, 2.5, None),
        "path": Path("a") / "b",
        3: {5, 4},
    }
    expected = {
        "array": [0.0, 1.0, 2.0],
        "jax": 1.5,
        "scalar": 7,
        "flag": True,
        "tuple": [1, 2.5, None],
        "path": "a/b",
        "3": [4, 5],
    }
    json_value = record.jsonable(value)
    assert json_value == expected
    assert type(json_value["scalar"]) is int and json_value["flag"] is True
    assert json.loads(json.dumps(json_value)) == expected


@pytest.mark.parametrize("value", [float("nan"), np.float32("inf"), [1.0, float("-inf")], object(), b"x"])
def test_jsonable_refuses_what_json_cannot_say(value):
    with pytest.raises(InputError, match="record"):
        record.jsonable(value)


@pytest.mark.slow
def test_json_of_a_command_that_computes_nothing_starts_no_backend():
    code = (
        "import json, contextlib, io; from jax._src import xla_bridge; from bornbiased_jax.cli.main import run\n"
        "text = io.StringIO()\n"
        "with contextlib.redirect_stdout(text): assert run(['models', '--json', '-']) == 0\n"
        "assert not xla_bridge.backends_are_initialized()\n"
        "device = json.loads(text.getvalue())['provenance']['device']\n"
        "assert device == dict.fromkeys(('platform', 'kind', 'count', 'processes')), device"
    )
    run_python(code)
