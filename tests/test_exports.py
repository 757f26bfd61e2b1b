"""Each room's ``__init__`` exports what the room is for; what the glossary points to is there."""

import importlib
import re
from pathlib import Path

import pytest

import bornbiased_jax
from bornbiased_jax import lineage
from tests.fixtures.programs import ROOT, run_python

# Rooms for the command line alone, and one that is used module by module (their __init__ say why).
APART = {"cli", "experiments", "lineage.audit"}
# Names that a room exports besides its own: a model is used with its initial weights and their tree.
HANDED_ON = {"model": ("bornbiased_jax.init", "bornbiased_jax.parameters")}
NESTED = {"lineage.audit", "probes.inputs", "training.data"}
FOLDERS = {path.parent.name for path in (ROOT / "bornbiased_jax").glob("*/__init__.py")} | NESTED
ROOMS = sorted(FOLDERS - APART)


def test_every_room_is_a_package():
    folders = {path.parent.name for path in (ROOT / "bornbiased_jax").glob("*/*.py")}
    assert folders | NESTED == FOLDERS


@pytest.mark.parametrize("room", ROOMS)
def test_package_exports_are_defined_in_it(room):
    module = importlib.import_module(f"bornbiased_jax.{room}")
    assert module.__doc__ and module.__all__
    for name in module.__all__:
        thing = getattr(module, name)
        home = getattr(thing, "__module__", module.__name__)
        # Aliases of types and tables of values know no module.
        assert home.startswith((module.__name__, "typing", "builtins", *HANDED_ON.get(room, ()))), name
        # Importing a module later would put it in the place of what has its name.
        assert not (ROOT / "bornbiased_jax" / room.replace(".", "/") / f"{name}.py").exists(), name


def _resolve(path: str) -> bool:
    """Check that ``a.b.c`` is a module below the package, or something in one."""
    parts = f"bornbiased_jax.{path.removeprefix('bornbiased_jax.')}".split(".")
    for length in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            thing = getattr(thing, part, None)
        return thing is not None
    return False


def test_glossary_targets_exist():
    rows = re.findall(r"^\|.*\| ([^|]*) \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    places = {place for row in rows for place in re.findall(r"`([\w./]+)`", row)}
    assert len(places) > 30
    missing = {
        place
        for place in places
        if not any((ROOT / folder / place).exists() for folder in (".", "bornbiased_jax")) and not _resolve(place)
    }
    assert not missing


STUB = re.compile(r"^from (\S+) import (\w+) as (\w+)$", re.MULTILINE)


@pytest.mark.parametrize("package", [bornbiased_jax, lineage], ids=lambda package: package.__name__)
def test_lazy_names_visible_to_type_checkers(package):
    told = STUB.findall(Path(package.__file__).with_suffix(".pyi").read_text())
    # Modules of the package are told of by their own names.
    told = [row for row in told if row[0] != "bornbiased_jax"]
    assert sorted(name for _, _, name in told) == package.__all__ == sorted(set(package.__all__))
    for home, original, name in told:
        assert getattr(package, name) is getattr(importlib.import_module(home), original)
    assert set(package.__all__) <= set(dir(package))


def test_public_names_are_no_modules_of_the_package():
    # Importing such a module would put it in the place of the function.
    assert not {path.stem for path in Path(bornbiased_jax.__file__).parent.iterdir()} & set(bornbiased_jax.__all__)
    with pytest.raises(AttributeError, match="'bornbiased_jax' has no attribute 'prefer'"):
        bornbiased_jax.prefer  # noqa: B018


def test_modules_of_the_api_reference_are_attributes():
    told = {name for home, name, _ in STUB.findall(Path(bornbiased_jax.__file__).with_suffix(".pyi").read_text())
            if home == "bornbiased_jax"}  # fmt: skip
    pages = {path.stem.partition(".")[0] for path in (ROOT / "docs" / "api").glob("*.md")} - {"index"}
    assert told == pages <= set(dir(bornbiased_jax))
    code = "import bornbiased_jax as bf; print(bf.lineage.permutation_test.__name__, bf.stats.__name__)"
    assert run_python(code).split() == ["permutation_test", "bornbiased_jax.stats"]


def test_importing_the_package_loads_the_standard_library_alone():
    code = (
        "import sys; before = set(sys.modules); import bornbiased_jax; "
        "loaded = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(*(loaded - set(sys.stdlib_module_names)))"
    )
    assert run_python(code).split() == ["bornbiased_jax"]
