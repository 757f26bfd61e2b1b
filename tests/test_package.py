"""What is built holds all that runs: the command from an unpacked wheel, which a source distribution gives again."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.slow


def build(source, into):
    """The wheel and the source distribution of a folder."""
    call = [sys.executable, "-m", "hatchling", "build", "-d", str(into)]
    process = subprocess.run(call, cwd=source, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    (wheel,), (archive,) = into.glob("*.whl"), into.glob("*.tar.gz")
    return wheel, archive


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(ROOT, tmp_path_factory.mktemp("built"))


EXPERIMENT = """
from bornbiased_jax import experiments, theory
from bornbiased_jax.cli.main import run
print(experiments.__file__, theory.__file__)
assert run("reproduce finding2 --scale smoke --out out --quiet".split()) == 0
"""


def names(wheel):
    """List the files of a wheel."""
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_holds_the_package_alone_and_no_tests(built):
    files = names(built[0])
    assert {"bornbiased_jax/py.typed", "bornbiased_jax/report/page.html.j2"} <= files
    here = {
        path.relative_to(ROOT).as_posix()
        for folder in ("bornbiased_jax", "bornbiased_jax/theory", "bornbiased_jax/experiments")
        for path in (ROOT / folder).rglob("*.py*")
        if path.suffix != ".pyc" and not path.name.startswith(("test_", "conftest"))
    }
    assert len(here) > 300 and here <= files
    others = {name for name in files if not name.startswith(("bornbiased_jax/", "bornbiased_jax-"))}
    assert not others and not any(Path(name).name.startswith(("test_", "conftest")) for name in files)


def test_the_command_runs_from_the_wheel_among_foreign_packages(built, tmp_path):
    place = tmp_path / "site"
    zipfile.ZipFile(built[0]).extractall(place)
    # Names that other distributions have as well: what the command runs must not be theirs.
    for name in ("theory", "experiments"):
        (place / name).mkdir()
        (place / name / "__init__.py").write_text(f"raise RuntimeError('a foreign {name} was imported')")
    env = {**os.environ, "PYTHONPATH": str(place), "JAX_PLATFORMS": "cpu"}

    def say(*words):
        call = [sys.executable, *words]
        process = subprocess.run(call, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert process.returncode == 0, process.stderr
        return process.stdout

    sizes = "--set num_layers=1 --set vocab_size=64 --seeds 0:2 --seq-len 8 --num-inputs 16".split()
    call = "probe", "preference", "--model", "gpt2-tiny", *sizes
    assert "top-1 token" in say("-m", "bornbiased_jax", *call)
    told = say("-c", EXPERIMENT).splitlines()[0].split()
    assert len(told) == 2 and all(path.startswith(str(place)) for path in told)
    assert (tmp_path / "out" / "index.html").stat().st_size > 10_000


def test_the_source_distribution_gives_the_same_wheel(built, tmp_path):
    wheel, archive = built
    with tarfile.open(archive) as opened:
        # The default from Python 3.14 on; 3.11.3 and older have no filters.
        opened.extraction_filter = getattr(tarfile, "data_filter", None)
        opened.extractall(tmp_path)
    (source,) = tmp_path.iterdir()
    (tmp_path / "again").mkdir()
    again, _ = build(source, tmp_path / "again")
    assert names(again) == names(wheel)
    assert not {"out", ".venv", ".git", ".ci", ".github"} & {path.name for path in source.iterdir()}
