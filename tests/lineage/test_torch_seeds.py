"""Seeds of torch: models that transformers draws are found by their seed, and what draws them is recorded."""

import json
import sys

import numpy as np
import pytest

from bornbiased_jax.checkpoints import Checkpoint, open_checkpoint
from bornbiased_jax.cli.main import run
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage import torch_seeds
from bornbiased_jax.lineage.torch_seeds import POPULAR_SEEDS, TorchDraw, num_searched, which_torch_seed

SIZES = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2)
CONFIGS = {
    "gpt2": dict(vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=32),
    "llama": {**SIZES, "num_key_value_heads": 1, "max_position_embeddings": 32},
    "qwen2": {**SIZES, "num_key_value_heads": 1, "max_position_embeddings": 32},
    "gpt_neox": {**SIZES, "max_position_embeddings": 32},
}


def _saved(family, seed, folder):
    """Draw a model as users do, in this test's own words, and save it."""
    torch = pytest.importorskip("torch", exc_type=ImportError)
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    config = transformers.AutoConfig.for_model(family, **CONFIGS[family])
    torch.manual_seed(seed)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return torch, transformers


@pytest.mark.parametrize("family", CONFIGS)
def test_seed_of_a_transformers_initialization_is_found(family, tmp_path, monkeypatch):
    torch, transformers = _saved(family, 3, tmp_path)
    monkeypatch.setattr(torch_seeds, "POPULAR_SEEDS", (1, 2))
    suspect = open_checkpoint(tmp_path)
    result = which_torch_seed(suspect.cfg, suspect, range(2, 9))
    assert result.seed == 3
    # The same numbers, bit for bit; the suspect's matrices are compared in units of their own size.
    assert result.best.correlation > 0.999
    draw = TorchDraw(suspect.cfg)
    saved = [suspect.read(path, layer).ravel()[:count] for path, layer, count, _ in draw.places]
    assert np.array_equal(draw(3), np.concatenate(saved))
    assert result.num_seeds == 3
    assert result.runner_up is not None and result.runner_up.log10_p == 0.0
    versions = {"name": "torch", "torch": torch.__version__, "transformers": transformers.__version__, "device": "cpu"}
    assert result.to_json()["framework"] == versions


def test_a_trained_model_is_found_and_the_generator_stays_as_it_is(tmp_path):
    torch, _ = _saved("llama", 42, tmp_path)
    suspect = open_checkpoint(tmp_path)
    noisy = _with_noise(suspect.params(), np.random.default_rng(0))
    before = torch.random.get_rng_state()
    result = which_torch_seed(suspect.cfg, Checkpoint.from_params(suspect.cfg, noisy), range(1))
    assert result.seed == 42 and 0.5 < result.best.correlation < 0.9
    assert torch.equal(before, torch.random.get_rng_state())


def _with_noise(tree, rng):
    if isinstance(tree, dict):
        return {name: _with_noise(leaf, rng) for name, leaf in tree.items()}
    leaf = np.asarray(tree)
    return leaf + np.float32(0.02) * rng.standard_normal(leaf.shape).astype(np.float32)


def test_a_model_of_this_package_is_not_found(monkeypatch):
    pytest.importorskip("transformers", exc_type=ImportError)
    monkeypatch.setattr(torch_seeds, "POPULAR_SEEDS", (0,))
    cfg = preset("llama-tiny", num_layers=1, d_model=32, num_heads=2, d_ff=48, vocab_size=64)
    result = which_torch_seed(cfg, Checkpoint.from_params(cfg, init_seed(cfg, 1)), range(3))
    assert result.seed is None and result.num_seeds == 3
    assert "drawn by torch" in result.reason


def test_popular_seeds_are_searched_once():
    assert len(set(POPULAR_SEEDS)) == len(POPULAR_SEEDS)
    assert list(torch_seeds._in_order(range(44)))[:3] == [0, 42, 1234]
    assert len(list(torch_seeds._in_order(range(44)))) == num_searched(range(44))


def test_without_torch_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    cfg = preset("gpt2-tiny", num_layers=1, d_model=32, num_heads=2, d_ff=48, vocab_size=64)
    with pytest.raises(InputError, match=r"pip install 'bornbiased-jax\[torch\]'"):
        which_torch_seed(cfg, Checkpoint.from_params(cfg, init_seed(cfg, 1)), range(1))


def test_other_families_are_refused():
    cfg = preset("mixtral-tiny")
    with pytest.raises(InputError, match="not for mixtral"):
        which_torch_seed(cfg, Checkpoint.from_seed(cfg, 0), range(1))


def test_the_command_records_what_drew(tmp_path, capsys, refused):
    _saved("gpt2", 1337, tmp_path / "model")
    target = tmp_path / "found.json"
    call = ["whichseed", str(tmp_path / "model"), "--framework", "torch", "--seeds", "0:2", "--quiet"]
    assert run([*call, "--json", str(target)]) == 0
    report = json.loads(target.read_text())
    assert report["seed"] == 1337 and report["framework"]["device"] == "cpu"
    assert "Seeds are torch's" in capsys.readouterr().out
    assert "leave --resume" in refused([*call, "--resume", str(tmp_path / "kept")])
