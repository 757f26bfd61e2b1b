"""The live comparison with transformers, where it is installed."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from benchmarks.parity import MODELS
from bornbiased_jax.checkpoints import export_hugging_face, open_checkpoint
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.evaluation.generation import generate
from bornbiased_jax.evaluation.parity import parity
from bornbiased_jax.init import init_seed
from bornbiased_jax.results.run_reports import Parity
from tests.model.forward import apply
from tests.tiers import nightly_except

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"


def _script():
    spec = importlib.util.spec_from_file_location("make_hf_fixtures", FIXTURES / "make_hf_fixtures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = _script()


def test_the_fixtures_are_those_of_the_script():
    assert sorted(SCRIPT.CASES) == sorted(path.name for path in (FIXTURES / "hf").iterdir())


def test_pickled_weights_are_compared_once_they_are_exported(tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers", exc_type=ImportError)
    source, pickled = FIXTURES / "hf" / "llama", tmp_path / "pickled"
    pickled.mkdir()
    shutil.copy(source / "config.json", pickled)
    weights = safetensors.numpy.load_file(source / "model.safetensors")
    torch.save({name: torch.tensor(array) for name, array in weights.items()}, pickled / "pytorch_model.bin")
    with pytest.raises(InputError, match=f"bornbiased export {pickled} DIRECTORY"):
        parity(pickled)
    opened = open_checkpoint(pickled)
    export_hugging_face(opened.cfg, opened.params(), tmp_path / "exported")
    comparison = parity(tmp_path / "exported")
    # Both sides round, as below.
    assert comparison["max_abs_error"] <= 3e-5 * comparison["logit_std"]


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly_except(SCRIPT.CASES, "llama", "gemma3_text", "mixtral"))
def test_fresh_models_of_transformers_agree(name, tmp_path):
    pytest.importorskip("torch", exc_type=ImportError)
    pytest.importorskip("transformers", exc_type=ImportError)
    SCRIPT.build(SCRIPT.CASES[name], tmp_path, seed=77)
    comparison = parity(tmp_path)
    # Both sides round, in models as the fixtures but of another seed: up to 1.5e-5 in llama.
    assert comparison["max_abs_error"] <= 3e-5 * comparison["logit_std"]
    assert comparison["logit_std"] > 0.5
    assert comparison["top1_agreement"] == 1.0
    assert 0 <= comparison["mean_abs_error"] <= comparison["max_abs_error"]
    # Four sequences, no longer than the model's 40 positions.
    assert comparison["num_tokens"] == 4 * 40


def test_without_transformers_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"pip install 'bornbiased-jax\[torch\]'"):
        parity(FIXTURES / "hf" / "llama")


def test_only_directories_of_hugging_face_can_be_compared(tmp_path):
    for ref in ("seed:1@llama-tiny", tmp_path):
        with pytest.raises(InputError, match="no Hugging Face directory|neither a Hugging Face"):
            parity(ref)


@pytest.mark.parametrize(
    "logit, words",
    [(0.0, "all logits of transformers are equal"), (np.nan, "not finite"), (np.inf, "not finite")],
)
def test_parity_is_undefined_where_logits_say_nothing(monkeypatch, logit, words):
    def constant(place, tokens_BT):
        return np.full((*tokens_BT.shape, 53), logit, np.float32), {"transformers": "5", "torch": "2"}

    monkeypatch.setattr("bornbiased_jax.evaluation.parity.transformers_logits", constant)
    comparison = parity(FIXTURES / "hf" / "llama", num_sequences=1, seq_len=4)
    assert comparison["verdict"] == "undefined" and words in comparison["reason"]
    assert comparison["top1_agreement"] is None
    # JSON has no NaN.
    assert json.dumps(comparison, allow_nan=False)
    (line,) = Parity(comparison, {}).summary()
    assert line.startswith("Undefined: ") and words in line


# Layers that differ, and experts.
MIXED = ["gemma3_text", "gemma3_text-capped", "qwen2-mixed"]
EXPERTS = ["mixtral", "mixtral-window", "qwen3_moe", "qwen3_moe-normalized", "qwen2_moe", "qwen2_moe-window"]
# Families of which the fixtures' logits are compared every day, and generation and initial models less often.
ADDED = ["starcoder2", "gemma", "gemma2", "phi3", "glm4", "granite", "cohere", "olmo", "smollm3"]


@pytest.mark.slow
@pytest.mark.parametrize("family", nightly_except(MODELS, "starcoder2"))
def test_initial_models_agree_to_five_digits_of_the_logits_deviation(family, tmp_path):
    """Weights of the size that models begin with: those of the fixtures are larger, and amplify rounding."""
    pytest.importorskip("torch", exc_type=ImportError)
    pytest.importorskip("transformers", exc_type=ImportError)
    name, changes = MODELS[family]
    cfg = preset(name, **changes)
    assert export_hugging_face(cfg, init_seed(cfg, 7), tmp_path / "model") == family
    comparison = parity(tmp_path / "model")
    assert comparison["max_abs_error"] <= 1e-5 * comparison["logit_std"]
    assert comparison["top1_agreement"] == 1.0


def _of_transformers(name):
    torch = pytest.importorskip("torch", exc_type=ImportError)
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        FIXTURES / "hf" / name, dtype=torch.float32, attn_implementation="eager"
    )
    return torch, loaded.eval()


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly_except([*MIXED, *EXPERTS, *ADDED], "gemma3_text-capped", "qwen2_moe", "glm4"))
def test_greedy_generation_is_that_of_transformers(name):
    torch, reference = _of_transformers(name)
    actual = open_checkpoint(FIXTURES / "hf" / name)
    prompt = np.random.default_rng(3).integers(3, actual.cfg.vocab_size, 7)
    with torch.no_grad():
        expected = reference.generate(
            torch.tensor(prompt)[None], max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    assert generate(actual, prompt.tolist(), 16) == expected[0].tolist()


@pytest.mark.parametrize("name", EXPERTS)
def test_every_token_goes_to_the_experts_of_transformers(name):
    torch, reference = _of_transformers(name)
    actual = open_checkpoint(FIXTURES / "hf" / name)
    tokens_BT = np.random.default_rng(4).integers(0, actual.cfg.vocab_size, (3, 17)).astype(np.int32)
    captured = apply(actual.cfg, actual.params(), tokens_BT, logits=False, capture=("router_logits",)).layers
    with torch.no_grad():
        expected = reference(torch.tensor(tokens_BT), output_router_logits=True).router_logits
    chosen = actual.cfg.experts_per_token
    for ours_BTE, theirs_NE in zip(np.asarray(captured["router_logits"]), expected, strict=True):
        ours_NE = ours_BTE.reshape(-1, ours_BTE.shape[-1])
        routes = [np.sort(np.argsort(logits, axis=-1)[:, -chosen:]) for logits in (ours_NE, theirs_NE.numpy())]
        np.testing.assert_array_equal(*routes)
