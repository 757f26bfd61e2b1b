"""Weights that are equal after rounding to 8 bits with zero points: numbers on equal steps."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from bornbiased_jax.lineage.roundings import ROUNDINGS
from tests.lineage.rounded import (
    WITH_ZERO,
    ZEROS,
    bfloat16,
    by_32,
    by_channel,
    by_groups,
    by_tensor,
    explained,
    skewed,
    weights,
)
from tests.tiers import nightly_except

OPTIONS = {
    "float32": {},
    "scales in float16": {"scale_type": np.float16},
    "in bfloat16": {"cast": bfloat16},
    "in bfloat16 from -128": {"cast": bfloat16, "lowest": -128},
    "in float16": {"cast": lambda array: np.asarray(array, np.float16).astype(np.float32)},
}


@pytest.mark.parametrize(
    ("group", "options"),
    nightly_except(
        itertools.product(ZEROS, OPTIONS),
        *zip(ZEROS, OPTIONS, strict=True),
        *zip(ZEROS, reversed(OPTIONS), strict=True),
    ),
)
def test_each_form_of_8_bits_with_zero_points_is_told(group, options):
    base_OI = skewed()
    suspect_OI = by_groups(ZEROS[group], base_OI, **OPTIONS[options])
    assert explained(base_OI, suspect_OI) == WITH_ZERO + group
    assert explained(suspect_OI.T, base_OI.T) == WITH_ZERO + group


SCALE_TYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


@pytest.mark.parametrize(
    ("group", "scale_type"),
    nightly_except(itertools.product(ZEROS, SCALE_TYPES), *zip(ZEROS, itertools.cycle(SCALE_TYPES), strict=False)),
)
def test_a_copy_in_bfloat16_may_have_been_rounded_with_zero_points(group, scale_type):
    base_OI = skewed()
    suspect_OI = by_groups(ZEROS[group], bfloat16(base_OI), scale_type=scale_type)
    assert explained(base_OI, suspect_OI) == WITH_ZERO + group


@pytest.mark.parametrize("group", ZEROS)
def test_an_offset_need_not_be_a_code(group):
    """As formats that store scale and offset as floats: the least number is code 0 exactly."""
    base_OI = skewed()
    groups_GN = base_OI if ZEROS[group] is None else base_OI.reshape(-1, ZEROS[group] or base_OI.size)
    low_G1 = groups_GN.min(axis=1, keepdims=True)
    scale_G1 = (groups_GN.max(axis=1, keepdims=True) - low_G1) / np.float32(255)
    suspect_OI = (np.rint((groups_GN - low_G1) / scale_G1) * scale_G1 + low_G1).reshape(base_OI.shape)
    assert explained(base_OI, suspect_OI) == WITH_ZERO + group


@pytest.mark.parametrize("group", ZEROS)
def test_one_number_that_rounds_to_another_step_is_no_equality(group):
    base_OI = skewed()
    suspect_OI = by_groups(ZEROS[group], base_OI)
    for changed, place in ((base_OI.copy(), (130, 70)), (base_OI.copy(), (255, 383))):
        changed[place] += 0.012 * np.abs(base_OI).max()
        assert explained(changed, suspect_OI) is None
    # Nor is a number between two steps.
    moved_OI = suspect_OI.copy()
    steps = np.diff(np.unique(suspect_OI[130, 64:96]))
    moved_OI[130, 70] += steps.min() / 10
    assert explained(base_OI, moved_OI) is None


def bases():
    """Weights as stored: in float32, in 16 bits, pruned, and in 4, 2 or less bits."""
    weight_OI = skewed()
    yield "float32", weight_OI
    yield "bfloat16", bfloat16(weight_OI)
    yield "float16", weight_OI.astype(np.float16).astype(np.float32)
    yield "pruned", weight_OI * (np.random.default_rng(2).random(weight_OI.shape) < 0.1)
    for bits in (4, 3, 2):
        yield f"{bits} bits", by_groups(32, weight_OI, bits=bits)
    yield "three values", np.sign(np.round(weight_OI)) * np.float32(0.1)
    yield "two values", np.where(weight_OI > 0, np.float32(0.1), np.float32(-0.1))


@pytest.mark.parametrize("name", [name for name, _ in bases()])
@pytest.mark.parametrize("size", [1e-2, 1e-3, 1e-4, 1e-5])
def test_noise_is_no_rounding_with_zero_points(name, size):
    """Asked as if the tensors were near, so that the search itself must say no; in 16 bits it does so too."""
    base_OI = dict(bases())[name].astype(np.float32)
    noise_OI = np.random.default_rng(3).standard_normal(base_OI.shape).astype(np.float32)
    noisy_OI = base_OI + np.float32(size) * noise_OI * np.abs(base_OI).std()
    for suspect_OI in (noisy_OI, bfloat16(noisy_OI), noisy_OI.astype(np.float16).astype(np.float32)):
        for group in ZEROS:
            assert not ROUNDINGS[WITH_ZERO + group].makes_equal(base_OI, suspect_OI, 0.0)


def test_four_bits_are_not_called_eight():
    base_OI = skewed()
    for size in (None, 128, 32):
        suspect_OI = by_groups(size, base_OI, bits=4)
        assert explained(base_OI, suspect_OI) is None
        assert not any(ROUNDINGS[WITH_ZERO + group].makes_equal(base_OI, suspect_OI, 0.0) for group in ZEROS)


def test_columns_of_two_numbers_prove_nothing():
    """Any two numbers are the ends of a grid."""
    base_OI = np.random.default_rng(0).standard_normal((4096, 2)).astype(np.float32)
    noisy_OI = base_OI + np.float32(1e-4) * np.random.default_rng(1).standard_normal(base_OI.shape).astype(np.float32)
    assert explained(base_OI, noisy_OI) is None and explained(base_OI.T, noisy_OI.T) is None


def test_symmetric_codes_are_not_said_to_have_zero_points():
    base_OI = weights()
    for form in (by_channel, by_tensor, by_32):
        assert "zero point" not in explained(base_OI, form("int8", base_OI))
