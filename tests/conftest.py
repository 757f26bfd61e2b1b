"""Rules for every test: warnings are errors, ranks are not promoted silently."""

import functools
import gc
import os

# Matrices of tests are small: a second BLAS thread gains nothing, next to another worker its waiting costs fourfold.
# PyTorch's second one spins.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import jax
import pytest

from bornbiased_jax import progress, record
from bornbiased_jax.cli.main import run
from tests.compilation import QUICK
from tests.fixtures.llama2c_files import convert

ROOT = Path(__file__).resolve().parent.parent
# Every answer of a command names the revision: git is asked about this repository once in a process.
_ask_git = record._git
_ask_once = functools.cache(lambda path, *words: _ask_git(ROOT / "bornbiased_jax", *words))


def _git(folder: Path, *words: str) -> str | None:
    if folder == ROOT / "bornbiased_jax":
        return _ask_once(os.environ.get("PATH"), *words)
    return _ask_git(folder, *words)


record._git = _git
# Of the models among the reference material.
TOKENIZERS = ("tok512.bin", "tok105.model")

# Tests run on the CPU unless told otherwise; the environment variable reaches subprocesses as well.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax.config.update("jax_platforms", os.environ["JAX_PLATFORMS"])
jax.config.update("jax_numpy_rank_promotion", "raise")
# A third of the time of tests that call models: `make test-slow` looks in those marked as_users whether every key is
# used once, and tests/test_keys.py whether those of weights and inputs are.
jax.config.update("jax_debug_key_reuse", os.environ.get("CHECK_KEYS") == "1")

# A value already there stays: `make test-slow` runs the tests marked as_users as users compile.
os.environ.setdefault("XLA_FLAGS", QUICK)

# What is compiled is kept: the same small programs recur within a run and between runs, in workers
# and in subprocesses: by way of the environment, so that all share one folder. An entry that another process is
# writing, or was killed writing, is compiled anew (pyproject.toml lets jax say so).
_CACHE = {
    "jax_compilation_cache_dir": str(ROOT / ".pytest_cache" / "jax"),
    "jax_persistent_cache_min_compile_time_secs": 0.1,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
for _name, _value in _CACHE.items():
    if _name.upper() not in os.environ:
        os.environ[_name.upper()] = str(_value)
        jax.config.update(_name, _value)

# The same examples on every machine and in every run; compilation makes first examples slow.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what is for the night as slow: its mark says both."""
    if item.get_closest_marker("nightly"):
        item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Have the garbage collector look no more at what lives to the end: libraries, tests and their parameters."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference material, which is not a part of the project."""
    path = Path(os.environ.get("BORNBIASED_SHARED") or ROOT.parent / "shared")
    if not path.is_dir():
        pytest.skip("the reference material is absent: set BORNBIASED_SHARED to its folder")
    return path


@pytest.fixture(scope="session")
def reference_model(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """From the name of a llama2.c file below checkpoints/ to the Hugging Face directory that it was converted to."""
    converted: dict[str, Path] = {}

    def directory(name: str) -> Path:
        if name not in converted:
            model = shared / "checkpoints" / name
            tokenizer = next((path for path in (model.with_name(name) for name in TOKENIZERS) if path.exists()), None)
            if tokenizer is not None and tokenizer.suffix == ".model":
                pytest.importorskip("sentencepiece", exc_type=ImportError)
            converted[name] = convert(model, tmp_path_factory.mktemp("converted") / model.stem, tokenizer)
        return converted[name]

    return directory


@pytest.fixture(autouse=True)
def _speaks() -> Iterator[None]:
    """A test that ran a command with --quiet leaves this process silent; the next one may listen."""
    yield
    progress.set_quiet(False)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[[list[str]], str]:
    """``refused(call)``: what a command that ends with code 2 says on standard error."""

    def message(call: list[str]) -> str:
        assert run(call) == 2
        return capsys.readouterr().err

    return message
