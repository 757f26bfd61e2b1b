"""The plan of the house: which room may import which, and what an import may do."""

import ast
import functools
from pathlib import Path

import pytest

from tests.fixtures.programs import ROOT, run_python

# From the ground up. A room imports rooms of lower floors, and of its own floor as long as there is no circle.
FLOORS: tuple[set[str], ...] = (
    {"__init__"},
    {"theory"},
    {"errors"},
    {"code", "config", "hardware", "hub", "io", "keys", "memoized", "progress", "record", "schema", "schemes"},
    {"fields", "parameters", "init", "parallel", "sweep"},
    {"executors"},
    {"chunk_store", "store"},
    {"stats"},
    {"model", "models"},
    {"given_table", "prediction", "text", "trainability"},
    {"probes.inputs", "training.data", "doctor"},
    {"checkpoints"},
    {"probes"},
    {"lineage"},
    {"quantization"},
    {"report.figures"},
    {"evaluation", "training"},
    {"derive"},
    {"lineage.audit"},
    {"report"},
    {"results"},
    {"cli", "experiments"},
    {"__main__", "benchmarks"},
)
RANK = {room: rank for rank, floor in enumerate(FLOORS) for room in floor}
# The command line starts experiments, and an experiment may be asked for its command: both are the top floor.
TOP = {("cli", "experiments")}


# Folders at the top of the repository that are packages of bornbiased_jax, by links.
LINKED = ("theory", "experiments")


def _room(module: str) -> str:
    """Return the room of a module's dotted name: its package below ``bornbiased_jax``, or the top package."""
    package, _, rest = module.partition(".")
    if package != "bornbiased_jax":
        return package
    top, _, below = rest.partition(".")
    nested = f"{top}.{below.partition('.')[0]}"
    return nested if nested in RANK else top or "__init__"


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] in LINKED:
        parts = ("bornbiased_jax", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {
    _module(path): path
    for package in ("theory", "bornbiased_jax", "experiments", "benchmarks")
    for path in sorted((ROOT / package).rglob("*.py"))
    # Tests of the theory may use all of the package.
    if not (package == "theory" and (path.stem.startswith("test_") or path.stem == "conftest"))
}


@functools.cache
def _imports(path: Path) -> set[str]:
    """Modules of the project that a file imports, inside functions too, and for types alone too."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
            assert not {name.partition(".")[0] for name in imported} & set(LINKED), (
                f"{path}: import from bornbiased_jax"
            )
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            # Installed, a package of that name at the top is another distribution's.
            assert str(node.module).partition(".")[0] not in LINKED, f"{path}: import bornbiased_jax.{node.module}"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                imported.add(name if name in FILES else str(node.module))
    return {name for name in imported if name in FILES}


def _arrows() -> dict[str, set[str]]:
    """Map each module to the modules of the project that it imports."""
    return {module: _imports(path) for module, path in FILES.items()}


def test_every_room_has_a_floor():
    assert {_room(module) for module in FILES} <= set(RANK)
    assert sum(len(floor) for floor in FLOORS) == len(RANK), "a room stands on two floors"


def test_no_arrow_between_rooms_points_up():
    wrong = []
    for module, imported in _arrows().items():
        for other in imported:
            here, there = _room(module), _room(other)
            if RANK[there] > RANK[here] and (here, there) not in TOP:
                wrong.append(f"{module} imports {other}")
    assert not wrong, "\n".join(wrong)


def test_neither_rooms_nor_modules_import_in_a_circle():
    rooms: dict[str, set[str]] = {}
    for module, imported in _arrows().items():
        rooms.setdefault(_room(module), set()).update(_room(other) for other in imported)
    rooms = {room: others - {room} for room, others in rooms.items()}
    # A package's __init__ gathers its own modules, which may reach each other through it.
    modules = {
        module: {other for other in others - {module} if not module.startswith(f"{other}.")}
        for module, others in _arrows().items()
    }
    for graph in (rooms, modules):
        left = dict(graph)
        while free := [name for name, others in left.items() if not others & left.keys()]:
            for name in free:
                del left[name]
        assert not left, f"a circle among {sorted(left)}"


IMPORTS = """
import sys, bornbiased_jax.theory.predict, bornbiased_jax.theory.preference
print(*sys.modules)
import bornbiased_jax.training, bornbiased_jax.evaluation
print(*sys.modules)
import bornbiased_jax.results.probes, bornbiased_jax.results.verdicts
print(*sys.modules)
"""


@pytest.mark.slow
def test_theory_needs_neither_jax_nor_another_room_and_programs_start_without_what_few_of_them_use():
    """tensorboardX imports PyTorch where that is installed; SciPy's statistics take half a second."""
    theory, training, results = map(str.split, run_python(IMPORTS).splitlines())
    rooms = {_room(name) for name in theory if name.startswith("bornbiased_jax")}
    assert "jax" not in theory and rooms == {"__init__", "theory"}
    assert "jax" in training and not {"torch", "tensorboardX"} & set(training)
    assert not {"scipy.stats", "scipy.optimize", "scipy.spatial", "scipy.integrate"} & set(results)


@pytest.mark.parametrize("package", LINKED)
def test_packages_of_the_top_level_lie_in_the_package_by_a_link(package):
    assert (ROOT / "bornbiased_jax" / package).resolve() == ROOT / package


# Any connection, lookup of a name or bound socket is told; sockets as such are made by event loops without a network.
NO_NETWORK = """
import importlib, sys
def hook(event, arguments):
    if event in ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        sys.exit(f"{event} {arguments[1:]}")
sys.addaudithook(hook)
for name in sys.argv[1:]:
    importlib.import_module(name)
print(len(sys.argv) - 1)
"""


@pytest.mark.slow
def test_nothing_speaks_to_the_network_at_import():
    modules = [module for module in FILES if not module.endswith("__main__") and _room(module) != "benchmarks"]
    assert int(run_python(NO_NETWORK, *modules).split()[-1]) == len(modules)
