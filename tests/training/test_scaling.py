"""The coordinate check: slopes of known powers of width, and what real models do at step 0."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.parameters import flatten
from bornbiased_jax.results.initialization import WidthCheck
from bornbiased_jax.schemes import has_rates_by_width
from bornbiased_jax.training import scaling as module
from bornbiased_jax.training.config import PretrainConfig
from bornbiased_jax.training.scaling import Scaling, ScalingRow, at_width, rates_by_width, scaling

SMALL = dict(num_layers=1, num_heads=2, d_model=16, d_ff=32, vocab_size=64, tie_embeddings=False)


def _config(**changes):
    model = preset("gpt2-tiny", **{**SMALL, **changes})
    return PretrainConfig(
        model=model, data="-", out=".", seeds=(0, 1, 2, 3), steps=1, context=8, batch_size=4, warmup=0,
        schedule="constant", min_learning_rate=0.0,
    )  # fmt: skip


@given(power=st.floats(-2, 2), noise=st.integers(0, 2**32 - 1))
def test_slope_of_a_power_of_width(power, noise):
    widths = (32, 64, 256)
    factors = np.exp(np.random.default_rng(noise).normal(size=5))
    row = module._row("residual", 3, widths, np.outer(np.array(widths, float) ** power, factors))
    assert row.slope == pytest.approx(power, abs=1e-9)
    assert row.low <= row.slope <= row.high
    assert row.high - row.low < 1e-6
    assert row.is_flat == (abs(power) <= module.FLAT + 1e-9) or abs(abs(power) - module.FLAT) < 1e-6


def test_interval_covers_the_slope_of_noisy_widths():
    """Of 400 checks with noise in each of four seeds, 95% intervals cover the true slope in all but 5%."""
    rng = np.random.default_rng(3)
    widths = (64, 128, 256)
    stds = np.array(widths, float)[:, None] ** 0.5 * np.exp(0.1 * rng.normal(size=(400, 3, 4)))
    rows = [module._row("residual", 1, widths, std) for std in stds]
    covered = np.mean([row.low <= 0.5 <= row.high for row in rows])
    assert abs(covered - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 400)


def test_zero_activations_are_flat():
    assert module._row("mlp_update", 0, (8, 16), np.zeros((2, 3))).is_flat


@pytest.mark.parametrize(
    ("name", "power", "is_last", "is_flat"),
    [
        ("logits", -0.5, True, True),
        ("logits", -0.8, False, False),
        ("logits", 0.5, False, False),
        ("logits_update", -0.4, False, True),
        ("logits_update", -0.4, True, False),
        ("logits_update", 0.4, False, False),
        ("residual", -0.4, False, False),
    ],
)
def test_random_sums_vanish_by_design_as_mups_logits_do(name, power, is_last, is_flat):
    std_WS = np.outer(np.array((32, 64, 256), float) ** power, np.ones(3))
    assert module._row(name, 1, (32, 64, 256), std_WS, is_last=is_last).is_flat is is_flat


@pytest.mark.parametrize(("optimizer", "up"), [("adamw", 1 / 4), ("muon", 1 / 2)])
def test_rates_by_width_fall_with_fan_in_of_hidden_matrices_and_the_head(optimizer, up):
    base = preset("gpt2-tiny", **SMALL, bias=True)
    factors = flatten(rates_by_width(base, at_width(base, 64), optimizer))
    assert factors["blocks/mlp/up/kernel"] == factors["blocks/mlp/down/kernel"] == up
    assert factors["blocks/attention/query/kernel"] == up
    # AdamW trains the head under either optimizer.
    assert factors["head/kernel"] == 1 / 4
    assert factors["embed/embedding"] == factors["blocks/mlp/up/bias"] == 1.0
    assert all(value == 1.0 for path, value in factors.items() if path.endswith("scale"))


@pytest.mark.parametrize(("name", "answer"), [("mup", True), ("mup-balanced", True), ("gpt2-scaled-balanced", False)])
def test_schemes_with_rates_by_width(name, answer):
    assert has_rates_by_width(name) is answer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({"init": "mup", "attention_scale": 1 / 8}, set()),
        pytest.param(
            {"init": "lecun"},
            {"attention_update", "mlp_update", "residual", "logits", "logits_update"},
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_mup_holds_and_the_standard_parametrization_does_not(changes, fails):
    """A wider model gains at one learning rate, and not under muP's scheme, whose rates fall with the width."""
    config = dataclasses.replace(_config(**changes), steps=2, learning_rate=1e-2)
    result = scaling(config, (32, 128))
    assert {row.activation for row in result.rows if not row.is_flat} == fails
    assert result.to_json()["mup_holds"] is not bool(fails)
    assert result.base_width == (None if fails else 16)


def test_widths_keep_proportions():
    cfg = at_width(preset("gpt2-tiny", **SMALL, attention_scale=1 / 8), 64)
    assert (cfg.d_model, cfg.d_ff, cfg.key_dim, cfg.num_heads) == (64, 128, 32, 2)
    assert cfg.attention_scale == 1 / 32
    assert at_width(preset("gpt2-tiny", **SMALL), 64).attention_scale is None
    mixture = preset("qwen2moe-tiny", d_model=16, num_heads=2, num_kv_heads=1, d_ff=8, shared_expert_width=24)
    assert (at_width(mixture, 48).d_ff, at_width(mixture, 48).shared_expert_width) == (24, 72)
    with pytest.raises(InputError, match="shared_expert_width=24 whole: choose widths that are multiples of 2"):
        at_width(mixture, 17)
    with pytest.raises(InputError, match="choose widths that are multiples of 2"):
        at_width(preset("gpt2-tiny", **SMALL), 17)


def test_sentences_name_what_grows_and_from_which_step():
    rows = (
        ScalingRow("residual", 0, 0.0, -0.05, 0.05, (1.0, 1.0)),
        ScalingRow("residual", 1, 0.9, 0.8, 1.0, (1.0, 2.0)),
        ScalingRow("residual", 2, 0.9, 0.8, 1.0, (1.0, 2.0)),
    )
    cfg = preset("gpt2-tiny", attention_scale=None, tie_embeddings=True)
    text, rates = WidthCheck(Scaling((64, 128), 4, "adamw", rows), cfg).summary()
    assert rates.startswith("Every width was trained at one learning rate")
    assert text.startswith("muP does not hold: from width 64 to 128 residual grows from step 1 (slope 0.90")
    text, rates, lacks = WidthCheck(Scaling((64, 128), 4, "adamw", rows[:1], 64), cfg).summary()
    assert text.startswith("muP holds") and text.endswith("the widest 95% interval of a slope is -0.05 to 0.05.")
    assert "fell with the width, from width 64 on" in rates
    assert "attention_scale=1/head_dim" in lacks and "tie_embeddings=false" in lacks


def test_activations_beyond_float32_are_refused(monkeypatch):
    """A learning rate that is far too large; the record of it could not be written."""
    stds = {"embedded": np.ones((3, 4)), "residual": np.ones((3, 4))}
    stds["residual"][2, 1] = np.nan
    monkeypatch.setattr(module, "_stds", lambda config, rates: stds)
    with pytest.raises(InputError, match="residual of width 32 is not finite at step 2: lower the learning rate"):
        scaling(_config(), (32, 64))


@pytest.mark.parametrize(("widths", "seeds", "message"), [((64,), (0, 1), "two widths"), ((32, 64), (0,), "two seeds")])
def test_too_few_widths_or_seeds_are_refused(widths, seeds, message):
    with pytest.raises(InputError, match=message):
        scaling(dataclasses.replace(_config(), seeds=seeds), widths)
