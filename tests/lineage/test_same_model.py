"""Do two models compute the same: by their tensors, their settings and their logits."""

import re

import numpy as np
import pytest

from bornbiased_jax import hardware
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.native_roles import NativeRoles
from bornbiased_jax.lineage.same_model import differing_settings, same_logits, tensor_difference
from bornbiased_jax.lineage.trace import trace
from tests.lineage.descendants import config, descend, edited, everything, reader, shuffled

CFG = config(num_layers=2, d_model=48, d_ff=64)


@pytest.fixture(scope="module")
def base():
    return descend(CFG, 42)


def noisy(cfg, params, part=0.1):
    draws = np.random.default_rng(1)

    def edit(path, leaf):
        noise = draws.standard_normal(leaf.shape).astype(np.float32) * np.float32(part * leaf.std())
        return leaf if path.endswith("/scale") else leaf + noise

    return edited(cfg, params, edit)


def test_settings_that_compute_nothing_are_no_difference():
    cfg = config()
    for idle in (dict(init="normal-0.02"), dict(max_seq_len=64), dict(rope_scaling_factor=2.0)):
        assert differing_settings(cfg, cfg.replace(**idle)) == []
    # Single precision holds 1e-5 as another number.
    assert differing_settings(cfg.replace(norm_eps=float(np.float32(1e-5))), cfg) == []
    clipped = cfg.replace(attention_kernel="clipped")
    assert differing_settings(clipped, clipped.replace(max_seq_len=64)) == ["max_seq_len"]
    wide = cfg.replace(num_heads=8, d_ff=64)
    assert differing_settings(cfg, wide) == ["num_heads", "num_kv_heads", "head_dim", "attention_scale"]


@pytest.mark.slow
def test_same_function_recognized_by_logits(base, monkeypatch):
    """An inserted block that does nothing: no map of coordinates, units and heads makes the one of the other."""
    hidden = reader(everything(*base))
    assert same_logits(reader(base), hidden) is True
    assert same_logits(reader(base), reader(noisy(*everything(*base), 0.03))) is False
    # Nothing is said where logits do not depend on the ids, between initializations, and of what does not fit in
    # memory.
    silent = edited(*base, lambda path, leaf: leaf * np.float32(path != "head/kernel"))
    assert same_logits(reader(silent), reader(silent)) is None
    assert same_logits(*(Checkpoint.from_seed(CFG, seed) for seed in (1, 2))) is None
    monkeypatch.setattr(hardware, "available_memory", lambda: 1000)
    assert same_logits(reader(base), hidden) is None


@pytest.mark.parametrize("change", ["head", "noise"])
def test_a_copy_that_computes_something_else_is_not_called_the_same_function(base, change):
    """A temperature in the head, which leaves every preferred token; noise that is far below the weights."""
    cfg, params = base
    if change == "head":
        suspect = edited(cfg, params, lambda path, leaf: leaf * 3 if path == "head/kernel" else leaf)
    else:
        suspect = noisy(cfg, params, 0.003)
    verdict = trace(reader(base), reader(suspect), num_permutations=99)
    assert verdict.verdict == "same-lineage" and verdict.detail["identity"] is None
    assert not re.search("same function|exact copy|identical|scales moved|reordered|turned", verdict.reason)


@pytest.mark.slow
def test_the_same_function_is_not_said_where_only_biases_differ():
    """A bias of keys moves all scores of a query alike, which the softmax takes out: logits stay, biases do not."""
    base = descend(config("gpt2-tiny", num_layers=2, d_model=48, d_ff=64, positions="learned"), 3)
    moved = edited(*base, lambda path, leaf: leaf + 1 if path.endswith("key/bias") else leaf)
    for suspect in (moved, shuffled(*moved)):
        verdict = trace(reader(base), reader(suspect), num_permutations=99)
        assert verdict.detail["identity"] == "logits"
        assert verdict.reason == "the two models give the same logits on random tokens; biases differ: key"
        assert "the same function" not in verdict.text()
    same = trace(reader(moved), reader(shuffled(*moved)), num_permutations=99)
    assert same.reason.endswith(": the same function, written otherwise")


def test_a_tensor_of_zeros_is_not_equal_to_what_became_of_it():
    base = descend(config("gpt2-tiny", num_layers=2, d_model=48, d_ff=64), 3)
    # Biases start at zero; a copy whose biases alone were trained.
    tuned = edited(*base, lambda path, leaf: leaf + np.float32(1e-3) if path.endswith("up/bias") else leaf)
    for pair in ((base, tuned), (tuned, base)):
        assert tensor_difference(*(NativeRoles(reader(model)) for model in pair)) is None
    assert trace(reader(base), reader(tuned), num_permutations=99).detail["identity"] is None
