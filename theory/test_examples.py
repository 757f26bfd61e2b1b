"""The examples in docstrings run; the package's map names functions that exist, and all that it exports."""

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from bornbiased_jax import theory

MODULES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if ">>> " in path.read_text("utf-8"))


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in MODULES if not name.startswith("test_")])
def test_examples_run(name: str) -> None:
    results = doctest.testmod(importlib.import_module(f"bornbiased_jax.theory.{name}"), optionflags=doctest.ELLIPSIS)
    assert results.attempted > 0 == results.failed


def test_the_map_names_what_is_exported() -> None:
    table = (theory.__doc__ or "").split("====\n")[2]
    named = {name for name in table.split("``")[1::2] if "." not in name}
    assert named <= set(theory.__all__)
    for name in theory.__all__:
        assert getattr(theory, name).__name__ == name and (getattr(theory, name).__doc__ or "")
    assert set(theory.__all__) <= set(dir(theory))
    with pytest.raises(AttributeError, match="prop6"):
        _ = theory.prop6
    # Those that the table leaves out are variants of what it names.
    assert set(theory.__all__) - named == {
        "Stack",
        "dual_derivative",
        "prop5_closed_form_gap",
        "prop5_exact_gap",
        "scatter",
    }


def test_importing_the_package_loads_no_module_of_it() -> None:
    loaded = "[m for m in sys.modules if m.startswith(('bornbiased_jax.theory.', 'scipy'))]"
    code = f"import sys, bornbiased_jax.theory; assert not {loaded}"
    subprocess.run([sys.executable, "-c", code], check=True)
