"""The live comparison with transformers, where it is installed."""

import importlib.util
import sys
from pathlib import Path

import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.evaluation.parity import parity

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"


def _script():
    spec = importlib.util.spec_from_file_location("make_hf_fixtures", FIXTURES / "make_hf_fixtures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = _script()


def test_the_fixtures_are_those_of_the_script():
    assert sorted(SCRIPT.CASES) == sorted(path.name for path in (FIXTURES / "hf").iterdir())


@pytest.mark.parametrize("name", SCRIPT.CASES)
def test_fresh_models_of_transformers_agree(name, tmp_path):
    pytest.importorskip("torch", exc_type=ImportError)
    pytest.importorskip("transformers", exc_type=ImportError)
    SCRIPT.build(SCRIPT.CASES[name], tmp_path, seed=77)
    found = parity(tmp_path)
    assert found["max_abs_error"] <= 1e-4
    assert found["logit_std"] > 0.5
    assert found["top1_agreement"] == 1.0
    assert 0 <= found["mean_abs_error"] <= found["max_abs_error"]
    # Four sequences, no longer than the model's 40 positions.
    assert found["num_tokens"] == 4 * 40


def test_without_transformers_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"pip install 'bornbiased-jax\[torch\]'"):
        parity(FIXTURES / "hf" / "llama")


def test_only_directories_of_hugging_face_can_be_compared(tmp_path):
    for ref in ("seed:1@llama-tiny", tmp_path):
        with pytest.raises(InputError, match="no Hugging Face directory|neither a Hugging Face"):
            parity(ref)
