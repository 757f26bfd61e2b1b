"""Gradient norms at initialization against ``jax.grad`` of the real modules.

Held out: the formulas were written before any gradient was measured; the shapes of four first comparisons (3 blocks,
D = 128, T = 16 and 24, seeds 0 to 11) are not among those below, and neither are the seeds.
"""

import dataclasses
import math

import numpy as np
import pytest

from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments.theory.gradient_norms import CASES, block_norms, group_norms, model_of
from bornbiased_jax.model.layers import rotate
from bornbiased_jax.parameters import parameter_table
from bornbiased_jax.prediction import predict_gradients, stack_of
from bornbiased_jax.theory.gradients import LARGEST_HEAD_VARIANCE, HeadGradients, _turned, gradients
from bornbiased_jax.theory.mean_field import profile
from bornbiased_jax.theory.stack import Stack
from tests.tiers import nightly_except


def _check(name, seeds):
    cfg, (_, _, length, num_inputs) = model_of(name), CASES[name]
    predicted = predict_gradients(cfg, length, num_inputs)
    by_group = group_norms(cfg, length, num_inputs, seeds)
    by_block = block_norms(by_group)
    expected = np.array(predicted["gradient_norm_by_block"])
    error = 2 * by_block.std(axis=0, ddof=1) / math.sqrt(len(seeds))
    assert np.all(np.abs(by_block.mean(axis=0) - expected) < 0.05 * expected + error), by_block.mean(axis=0) / expected
    # Single groups.
    assert set(predicted["gradient_norm_by_group"]) == set(by_group)
    for group, values in predicted["gradient_norm_by_group"].items():
        # Queries and keys feel twice how much tokens differ; where little, corrections of order 1/D are largest.
        slack = 0.15 if "neox" in name and group in ("query", "key") else 0.08
        error = 3 * by_group[group].std(axis=0, ddof=1) / math.sqrt(len(seeds))
        assert np.all(np.abs(by_group[group].mean(axis=0) - values) <= slack * np.array(values) + error), group


@pytest.mark.long
@pytest.mark.parametrize("name", nightly_except(["gpt2, tied", "llama"], "llama"))
def test_gradient_norms_of_eight_seeds(name):
    _check(name, range(300, 308))


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_gradient_norms_within_two_standard_errors_of_32_seeds(name):
    _check(name, range(1000, 1032))


STACK = Stack(num_layers=3, width=64, mlp_width=256, query_width=64, value_width=64)


def test_norms_of_one_sequence_and_many():
    """Own terms of N sequences average: norms fall as 1/√N until what all tokens share is left."""
    forward, head = profile(STACK, 8, exact=True), HeadGradients(4096, 0.02)
    first, four, endless = (gradients(forward, count, head).by_block for count in (1, 4, 10**9))
    np.testing.assert_allclose(first / four, 2.0, rtol=0.02)
    assert np.all(endless < 0.1 * four)


def test_groups_add_up_to_the_block():
    result = gradients(profile(STACK, 8, exact=True), 4, HeadGradients(512, 0.02), ("query", "up"))
    total = sum(values**2 for values in result.by_group.values())
    np.testing.assert_allclose(total, result.by_block**2, rtol=1e-12)
    assert np.all(result.by_group["bias"] > 0)


@pytest.mark.parametrize(("head_dim", "fraction"), [(3, 0.7), (5, 0.4), (6, 1.0), (4, 0.0)])
def test_products_of_rotated_keys(head_dim, fraction):
    """A dimension of its own at the end of an odd head, which no pair holds and nothing rotates, was not counted."""
    cfg = preset("gpt2-tiny", head_dim=head_dim, rotary_fraction=fraction)
    units_KTHK = np.broadcast_to(np.eye(head_dim, dtype=np.float32)[:, None, None], (head_dim, 7, 1, head_dim))
    rotated = np.asarray(rotate(units_KTHK, np.arange(7), cfg))
    kept_T = np.einsum("ktk->t", rotated[:, :, 0]) / head_dim
    np.testing.assert_allclose(_turned(stack_of(cfg), 7)[0], kept_T, atol=1e-6)


def test_zero_writers_leave_no_gradient_behind_them():
    stack = dataclasses.replace(STACK, output_std=0.0)
    result = gradients(profile(stack, 8, exact=True), 4, HeadGradients(512, 0.02))
    assert np.all(result.by_group["up"] == 0)
    assert np.all(result.by_group["down"] > 0)


def test_scale_of_the_head_scales_gradients():
    forward = profile(STACK, 8, exact=True)
    small, double = (gradients(forward, 2, HeadGradients(10**7, std)).by_block for std in (0.001, 0.002))
    np.testing.assert_allclose(double / small, 2.0, rtol=1e-3)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"norm_position": "post"}, "norms after sublayers"),
        ({"qk_norm": True}, "norms of queries and keys"),
        ({"attention_kernel": "sigmoid"}, "sigmoid attention"),
        ({"parallel_residual": True}, "parallel block"),
        ({"output_gate": "headwise"}, "output gate"),
        ({"init.query": "normal:0.06", "init.key": "normal:0.06"}, "logits have variance"),
        ({"init": "torchtitan-llama3"}, "the model's logits have variance 128, above 6.7"),
        ({"norm": "none", "attention": False, "init": "kaiming", "num_layers": 16}, "the model's logits have variance"),
        ({"logit_softcap": 30.0}, "soft cap"),
        ({"positions": "rope", "rope_pattern": "rn"}, "some layers alone"),
        ({"init": "normal-0.02-mirrored"}, "mirrored neurons"),
    ],
)
def test_what_has_no_theory_is_refused_with_the_reason(changes, reason):
    with pytest.raises(InputError, match=reason):
        predict_gradients(preset("gpt2-tiny", **changes), 8, 4)


@pytest.mark.parametrize(
    ("norm", "parameters", "groups"),
    [
        ("layernorm", "all", {"norm", "bias"}),
        ("layernorm", "scale", {"norm"}),
        ("layernorm", "none", set()),
        ("rmsnorm", "none", set()),
    ],
)
def test_norms_have_gradients_of_the_parameters_that_they_have(norm, parameters, groups):
    cfg = preset("gpt2-tiny", num_layers=2, d_model=32, num_heads=2, d_ff=64, vocab_size=64, bias=False, norm=norm)
    whole, predicted = (predict_gradients(cfg.replace(norm_parameters=kind), 8, 4) for kind in ("all", parameters))
    assert {"norm", "bias"} & set(predicted["gradient_norm_by_group"]) == groups
    assert set(predicted["gradient_norm_by_group"]) == {
        row.group for row in parameter_table(cfg.replace(norm_parameters=parameters)).values() if row.is_stacked
    }
    for name, values in predicted["gradient_norm_by_group"].items():
        assert values == whole["gradient_norm_by_group"][name]
    total = np.sqrt(sum(np.square(values) for values in predicted["gradient_norm_by_group"].values()))
    np.testing.assert_allclose(predicted["gradient_norm_by_block"], total, rtol=1e-12)


def test_long_sequences_are_refused():
    with pytest.raises(InputError, match="at most 512 positions, not 513"):
        predict_gradients(preset("gpt2-tiny"), 513, 4)


@pytest.mark.parametrize(("ratio", "least", "largest"), [(LARGEST_HEAD_VARIANCE, 0.05, 0.11), (1.2, 0.5, 2.0)])
def test_log_normal_probabilities_fail_above_their_limit(ratio, least, largest):
    """The norm of p − e_y by formula against simulated softmaxes; its standard error is below 0.5%."""
    V, variance = 512, ratio * math.log(512)
    odds_NV = np.exp(np.random.default_rng(0).normal(0.0, math.sqrt(variance), (4000, V)))
    p_NV = odds_NV / odds_NV.sum(axis=1, keepdims=True)
    simulated = 1 - 2 / V + np.square(p_NV).sum(axis=1).mean()
    excess = math.sqrt((1 - 1 / V + math.expm1(variance) / V) / simulated) - 1
    assert least < excess < largest
