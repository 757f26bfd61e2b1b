"""Caches and records know the code behind them: tried on a scratch copy of the packages."""

import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from bornbiased_jax import code, experiments
from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments import base, runner
from bornbiased_jax.experiments.base import cache_folder, cached

PROBE = '''"""An experiment that needs theory and a probe."""
from bornbiased_jax.report.tables import Quantity, Row, Table
from bornbiased_jax.experiments.base import Experiment


def run(context):
    from bornbiased_jax.probes import outliers
    from bornbiased_jax.theory import attention

    assert attention.__name__ and outliers.__name__

    def compute(folder):
        log = context.work.parent / "computed"
        log.write_text(log.read_text() + "x" if log.exists() else "x")
        return context.settings["n"]

    return {"n": context.cached("numbers/n", context.settings["n"], compute)}


def tables(record):
    return [Table("n", [], [Quantity("n")], [Row([], {"n": record["result"]["n"]})])]


EXPERIMENT = Experiment(
    name="tiny", title="Tiny", paper="", description="It counts.", settings={"smoke": {"n": 3}},
    cost={"smoke": "nothing"}, run=run, tables=tables,
)
'''


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """A copy of the packages with one more experiment, in the place of the packages for whoever takes digests."""
    root = tmp_path / "tree"
    # The folders that links of the package lead to lie in it, as in an installed one.
    ignore = shutil.ignore_patterns("__pycache__", "test_*")
    shutil.copytree(code.ROOT / code.PACKAGE, root / code.PACKAGE, ignore=ignore)
    path = root / code.PACKAGE / "experiments" / "tiny.py"
    path.write_text(PROBE)
    spec = importlib.util.spec_from_file_location("bornbiased_jax.experiments.tiny", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "bornbiased_jax.experiments.tiny", module)
    monkeypatch.setattr(code, "ROOT", root)
    monkeypatch.setattr(experiments, "MODULES", {"tiny": "bornbiased_jax.experiments.tiny"})
    monkeypatch.setattr(experiments, "SELECTIONS", {"all": ("tiny",)})
    forget()
    yield root
    forget()


def forget():
    """Read all files again."""
    for cache in (code._digest, code._parse):
        cache.cache_clear()


def ran(tmp_path):
    """Return whether ``reproduce`` runs the experiment, and whether its cache computes."""
    forget()
    (tmp_path / "out" / "work").mkdir(parents=True, exist_ok=True)
    log = tmp_path / "out" / "work" / "computed"
    before = log.stat().st_size if log.exists() else 0
    outcome = runner.reproduce(["all"], "smoke", tmp_path / "out", quiet=True)
    assert not outcome.failed
    computed = (log.stat().st_size if log.exists() else 0) > before
    return bool(outcome.done), computed


def change(path, old, new):
    text = path.read_text()
    assert len(re.findall(old, text)) >= 1, f"{path} has no {old}"
    path.write_text(re.sub(old, new, text, count=1))


CONSTANTS = {
    "theory": ("bornbiased_jax/theory/kernels.py", "TAIL = 2e-14", "TAIL = 1e-14"),
    "a probe": ("bornbiased_jax/probes/outliers.py", "100.0", "101.0"),
    "the experiment": ("bornbiased_jax/experiments/tiny.py", '"numbers/n"', '"numbers/m"'),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", CONSTANTS)
def test_a_changed_constant_is_computed_again(scratch, tmp_path, what):
    assert ran(tmp_path) == (True, True)
    assert ran(tmp_path) == (False, False)
    place, old, new = CONSTANTS[what]
    change(scratch / place, old, new)
    assert ran(tmp_path) == (True, True)
    assert ran(tmp_path) == (False, False)


@pytest.mark.slow
def test_key_ignores_code_without_effect_on_numbers(scratch, tmp_path):
    assert ran(tmp_path) == (True, True)
    kernels = scratch / "bornbiased_jax" / "theory" / "kernels.py"
    kernels.write_text("# A comment.\n" + kernels.read_text().replace('"""', '"""Another docstring. ', 1))
    change(scratch / "bornbiased_jax" / "experiments" / "__init__.py", '"table1": "birth"', '"table0": "birth"')
    change(scratch / "bornbiased_jax" / "__init__.py", "__version__ = .*", '__version__ = "99"')
    (scratch / "bornbiased_jax" / "report" / "tables.py").write_text("nothing = 0")
    (scratch / "bornbiased_jax" / "probes" / "unused.py").write_text("nothing = 0")
    assert ran(tmp_path) == (False, False)


@pytest.mark.slow
def test_the_digest_does_not_know_where_the_packages_lie(scratch, monkeypatch):
    copied = code.closure("bornbiased_jax.experiments._shared.probing")
    monkeypatch.setattr(code, "ROOT", Path(code.__file__).parent.parent)
    assert copied == code.closure("bornbiased_jax.experiments._shared.probing")


def test_the_closure_holds_what_is_imported_within_functions_and_from_folders():
    modules = code.closure("bornbiased_jax.experiments._shared.probing")
    for module in ("bornbiased_jax.probes.preference", "bornbiased_jax.model.model", "bornbiased_jax.theory.seeds"):
        assert module in modules
    for name in ("report.tables", "probes", "experiments", "theory.test_kernels"):
        assert f"bornbiased_jax.{name}" not in modules


def test_no_module_is_imported_out_of_sight():
    dynamic = re.compile(r"import_module\(|__import__\(|spec_from_file_location")
    observed = {
        str(path.relative_to(code.ROOT))
        for package in ("bornbiased_jax", "theory", "experiments")
        for path in (code.ROOT / package).rglob("*.py")
        if dynamic.search(path.read_text()) and not path.name.startswith("test_")
    }
    # A task of a store is named by the digest of the module that it imports by name.
    silent = {
        "bornbiased_jax/cli/catalogue.py",
        # The public face, which no module of the packages imports from.
        "bornbiased_jax/__init__.py",
        # Libraries that may be absent, none of ours.
        "bornbiased_jax/hub.py",
        "bornbiased_jax/training/metrics.py",
        "bornbiased_jax/chunk_store.py",
        "experiments/docs.py",
        "experiments/runner.py",
    }
    # Names in full, which the closure follows; and packages that are refused where they hide a module.
    followed = {
        "bornbiased_jax/lineage/lineage_tests.py",
        "bornbiased_jax/lineage/__init__.py",
        "theory/__init__.py",
    }
    assert observed == silent | followed


def test_modules_named_in_full_by_strings_are_followed(tmp_path):
    assert "bornbiased_jax.lineage.paper" in code.closure("bornbiased_jax.lineage.lineage_tests")
    (tmp_path / "odd.py").write_text("from bornbiased_jax.theory import prop5_correlations\n")
    refusal = "prop5_correlations of bornbiased_jax.theory is found by name: import it from its module"
    with pytest.raises(InputError, match=refusal):
        code.closure("odd", source=tmp_path / "odd.py")


def test_digest_does_not_depend_on_the_encoding_of_the_locale(tmp_path, monkeypatch):
    """In a locale of ASCII or Latin-1 the text of this package was refused, or had another digest."""
    path = tmp_path / "odd.py"
    path.write_text("NAME = 'D²'\r\n", encoding="utf-8", newline="")
    expected = code.closure("odd", source=path)["odd"]
    assert "D²" in expected
    code._parse.cache_clear()
    monkeypatch.setattr("io.text_encoding", lambda encoding, level=2: encoding or "latin-1")
    assert code.closure("odd", source=path)["odd"] == expected


def test_values_and_arrays_come_back_and_are_kept(tmp_path, monkeypatch):
    calls = []

    def value(folder):
        calls.append(folder)
        return {"a": np.float32(0.5), "b": (1, 2)}

    def array(folder):
        calls.append(folder)
        return np.arange(3, dtype=np.float32)

    for _ in range(2):
        assert cached(tmp_path / "value", [1], value) == {"a": 0.5, "b": [1, 2]}
        np.testing.assert_array_equal(cached(tmp_path / "array", None, array), np.arange(3, dtype=np.float32))
    assert calls == [cache_folder(tmp_path / "value", [1], value), cache_folder(tmp_path / "array", None, array)]
    assert json.loads((calls[0] / "value.json").read_text())["identity"] == [1]
    cached(tmp_path / "value", [2], value)
    assert len(calls) == 3
    monkeypatch.setattr(base, "computing_device", lambda: "gpu")
    cached(tmp_path / "value", [2], value)
    assert len(calls) == 4


@pytest.mark.parametrize("damage", ["torn", "empty", "one digit", "not JSON"])
@pytest.mark.parametrize("kind", ["value", "array"])
def test_damaged_work_is_named_set_aside_and_computed_again(tmp_path, capsys, kind, damage):
    def compute(folder):
        return {"a": 0.5} if kind == "value" else np.arange(3.0)

    cached(tmp_path / "kept", 0, compute)
    (path,) = tmp_path.glob("kept-*/value.*")
    data = path.read_bytes()
    last = data.rindex(b"5") if kind == "value" else len(data) - 1
    bad = {"torn": data[:-7], "empty": b"", "not JSON": b"\x00" * 40}.get(damage, data[:last] + b"7" + data[last + 1 :])
    path.write_bytes(bad)
    np.testing.assert_equal(cached(tmp_path / "kept", 0, compute), {"a": 0.5} if kind == "value" else np.arange(3.0))
    assert path.read_bytes() == data and path.with_name(f"{path.name}.damaged").read_bytes() == bad
    assert f"{path} is corrupted: set aside as {path.name}.damaged" in capsys.readouterr().err


def test_other_libraries_are_another_key(tmp_path, monkeypatch):
    from bornbiased_jax.experiments import base

    def value(folder):
        return 1

    before = cache_folder(tmp_path / "value", 0, value)
    monkeypatch.setattr(base, "library_versions", lambda: {"jax": "99"})
    assert cache_folder(tmp_path / "value", 0, value) != before


def test_code_without_a_source_file_has_no_digest():
    space = {"__name__": "nowhere"}
    exec("def made(): pass", space)
    with pytest.raises(InputError, match="made has no source file"):
        code.code_digest(space["made"])


def test_untraceable_import_refused(tmp_path):
    for text in ("from theory import *", "from . import kernels", "def broken(:"):
        (tmp_path / "odd.py").write_text(text)
        with pytest.raises(InputError, match=r"odd\.py cannot be read as Python"):
            code.closure("odd", source=tmp_path / "odd.py")
