"""The coordinate check: slopes of known powers of width, and what real models do at step 0."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.results.initialization import WidthCheck
from bornbiased_jax.training import scaling as module
from bornbiased_jax.training.config import PretrainConfig
from bornbiased_jax.training.scaling import Scaling, ScalingRow, at_width, scaling

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
    row = module._row("logits", 3, widths, np.outer(np.array(widths, float) ** power, factors))
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


def test_muons_logits_may_vanish_before_training_alone():
    first = ScalingRow("logits", 0, -0.5, -0.6, -0.4, (1.0,))
    assert first.is_flat
    assert not dataclasses.replace(first, step=1).is_flat


def test_widths_keep_proportions():
    cfg = at_width(preset("gpt2-tiny", **SMALL, attention_scale=1 / 8), 64)
    assert (cfg.d_model, cfg.d_ff, cfg.key_dim, cfg.num_heads) == (64, 128, 32, 2)
    assert cfg.attention_scale == 1 / 32
    assert at_width(preset("gpt2-tiny", **SMALL), 64).attention_scale is None
    with pytest.raises(InputError, match="choose widths that are multiples of 2"):
        at_width(preset("gpt2-tiny", **SMALL), 17)


@pytest.mark.slow
def test_logits_at_step_zero_follow_the_scheme():
    """A head of standard deviation 0.02 has logits that grow as √D; LeCun's does not."""
    for init, power in (("normal-0.02", 0.5), ("lecun", 0.0)):
        result = scaling(_config(init=init), (32, 128))
        row = next(row for row in result.rows if (row.activation, row.step) == ("logits", 0))
        assert abs(row.slope - power) < 0.1
    assert {row.step for row in result.rows} == {0, 1}
    assert {row.activation for row in result.rows} == {
        "embedded", "attention_update", "mlp_update", "residual", "logits"
    }  # fmt: skip


def test_sentences_name_what_grows_and_from_which_step():
    rows = (
        ScalingRow("residual", 0, 0.0, -0.05, 0.05, (1.0, 1.0)),
        ScalingRow("residual", 1, 0.9, 0.8, 1.0, (1.0, 2.0)),
        ScalingRow("residual", 2, 0.9, 0.8, 1.0, (1.0, 2.0)),
    )
    (text,) = WidthCheck(Scaling((64, 128), 4, "adamw", rows).to_json()).summary()
    assert text.startswith("muP does not hold: from width 64 to 128 residual grows from step 1 (slope 0.90")
    (text,) = WidthCheck(Scaling((64, 128), 4, "adamw", rows[:1]).to_json()).summary()
    assert text.startswith("muP holds")


@pytest.mark.parametrize(("widths", "seeds", "message"), [((64,), (0, 1), "two widths"), ((32, 64), (0,), "two seeds")])
def test_too_few_widths_or_seeds_are_refused(widths, seeds, message):
    with pytest.raises(InputError, match=message):
        scaling(dataclasses.replace(_config(), seeds=seeds), widths)
