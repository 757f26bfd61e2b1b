"""Weights that are equal after rounding to 8 bits, with the scales that quantized files have."""

import numpy as np
import pytest

from bornbiased_jax.lineage.roundings import ROUNDINGS, Explanations
from tests.lineage.rounded import (
    FORMS,
    LARGEST,
    bfloat16,
    by_channel,
    by_tensor,
    codes_of,
    explained,
    rounded,
    weights,
)

# Every form by its name: weights, and what they are rounded to.
ROUNDED = {name: (base_OI, form(kind, base_OI)) for base_OI in [weights()] for name, (kind, form) in FORMS.items()}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("was_bfloat16", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_each_form_of_8_bits_is_told_by_its_scales(name, was_bfloat16):
    kind, form = FORMS[name]
    base_OI = weights()
    suspect_OI = form(kind, bfloat16(base_OI) if was_bfloat16 else base_OI)
    assert explained(base_OI, suspect_OI) == name
    # Either side may be the one in 8 bits; matrices stand as the transpose of what files hold.
    assert explained(suspect_OI.T, base_OI.T) == name


@pytest.mark.parametrize("name", [name for name, (_, form) in FORMS.items() if form in (by_channel, by_tensor)])
def test_numbers_divided_in_16_bits_are_told_too(name):
    """As libraries quantize models in bfloat16: scale, quotient and product are rounded to it."""
    kind, form = FORMS[name]
    base_OI = weights()
    halved_OI = bfloat16(base_OI) if form is by_channel else bfloat16(base_OI).reshape(1, -1)
    scale_G1 = bfloat16(np.abs(halved_OI).max(axis=1, keepdims=True) / np.float32(LARGEST[kind]))
    codes_OI = np.minimum(codes_of(kind, bfloat16(halved_OI / scale_G1)), LARGEST[kind])
    assert explained(base_OI, (codes_OI * scale_G1).reshape(base_OI.shape)) == name


def test_a_small_change_of_all_numbers_is_no_rounding():
    base_OI = weights()
    for size in (1e-2, 1e-3, 1e-4):
        noise_OI = np.random.default_rng(1).standard_normal(base_OI.shape).astype(np.float32)
        assert explained(base_OI, base_OI + np.float32(size) * noise_OI) is None


@pytest.mark.parametrize(("size", "name"), [(1e-5, "8 bits (e4m3)"), (1e-7, "8 bits (e5m2)"), (1e-9, "float16")])
def test_other_numbers_that_all_become_zero_are_no_equality(size, name):
    base_OI, suspect_OI = (weights(seed) * np.float32(size) for seed in (0, 1))
    assert not ROUNDINGS[name].cast(base_OI).any()
    assert explained(base_OI, suspect_OI) is None


@pytest.mark.parametrize("kind", LARGEST)
def test_a_part_of_a_matrix_that_was_rounded_whole_has_the_scale_of_the_whole(kind):
    """As the keys of fused queries, keys and values, whose largest number is none of the whole's."""
    base_OI = np.random.default_rng(0).standard_normal((256, 192)).astype(np.float32)
    base_OI[200, 100] = 1.2 * np.abs(base_OI).max()
    part_OI = by_tensor(kind, base_OI)[64:128]
    name = f"8 bits{' (e4m3)' if kind == 'float8' else ''} with a scale for each tensor"
    assert explained(base_OI[64:128], part_OI) == name
    part_OI[3, 5] += np.abs(part_OI).max() / 50
    assert explained(base_OI[64:128], part_OI) is None


def test_rows_may_be_cut_into_blocks_of_128():
    base_OI = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    suspect_OI = rounded("float8", base_OI.reshape(-1, 128)).reshape(base_OI.shape)
    assert explained(base_OI.T, suspect_OI.T) == "8 bits (e4m3) with a scale for each block of 128"


def test_numbers_halfway_between_two_codes_may_go_either_way():
    base_N = np.array([[127.0, 0.5, 1.5, -2.5]], np.float32)
    for codes in ([127, 0, 2, -2], [127, 1, 1, -3]):
        assert ROUNDINGS["8 bits with a scale for each tensor"].makes_equal(base_N, np.array([codes], np.float32), 0.5)
    assert not ROUNDINGS["8 bits with a scale for each tensor"].makes_equal(
        base_N, np.array([[127, 1, 3, -2]], np.float32), 0.5
    )


def test_the_lowest_code_may_be_the_largest_number():
    """Formats that map the range to 255 steps use −128 too."""
    base_N = np.array([[-128.2, 3.3, 100.4, 7.0]], np.float32)
    suspect_N = np.array([[-128.0, 3.0, 100.0, 7.0]], np.float32)
    assert ROUNDINGS["8 bits with a scale for each tensor"].makes_equal(base_N / 1000, suspect_N / 1000, 4e-4)


@pytest.mark.parametrize("name", FORMS)
def test_a_tensor_of_another_size_or_zeros_is_no_rounding(name):
    kind, form = FORMS[name]
    base_OI = weights()
    suspect_OI = form(kind, base_OI)
    # Asked as if the tensors were near, so that the search itself must say no.
    assert ROUNDINGS[name].makes_equal(base_OI, suspect_OI, 0.0)
    assert not ROUNDINGS[name].makes_equal(base_OI * np.float32(1.02), suspect_OI, 0.0)
    silent_OI = suspect_OI.copy()
    silent_OI[:128, :128] = 0.0
    assert not ROUNDINGS[name].makes_equal(base_OI, silent_OI, 0.0)
    both_OI = base_OI.copy()
    both_OI[:128, :128] = 0.0
    if form not in (by_tensor, by_channel):
        assert ROUNDINGS[name].makes_equal(both_OI, silent_OI, 0.0)


def test_norms_in_16_bits_beside_matrices_in_8_are_said():
    explanations = Explanations()
    matrix_OI, scale_D = weights(), 1 + weights(1)[0] / 10
    for base, suspect in ((matrix_OI, by_channel("int8", matrix_OI)), (scale_D, bfloat16(scale_D))):
        explanations.see(base, suspect, float(np.abs(base - suspect).max()))
    assert explanations.sentence == "8 bits with a scale for each channel, of some tensors to bfloat16"
    explanations.see(matrix_OI, by_tensor("int8", matrix_OI), 1.0)
    assert explanations.sentence is None


def test_other_models_are_told_apart_without_a_search(monkeypatch):
    base_OI, other_OI = weights(0), weights(1)
    difference = float(np.abs(base_OI - other_OI).max())
    monkeypatch.setattr("bornbiased_jax.lineage.roundings.Rounding._on_grid", pytest.fail)
    for name in FORMS:
        assert not ROUNDINGS[name].makes_equal(base_OI, other_OI, difference)


@pytest.mark.parametrize("cast", [bfloat16, lambda array: array.astype(np.float16).astype(np.float32)])
def test_scales_that_a_file_stores_less_one_are_rounded_there(cast):
    """Gemma stores g and multiplies by 1 + g: rounding 1 + g would be another rounding."""
    offsets_D = (0.05 * np.random.default_rng(0).standard_normal(4096)).astype(np.float32)
    base_D, suspect_D = 1 + offsets_D, 1 + cast(offsets_D)
    explanations = Explanations()
    explanations.see(base_D, suspect_D, 1e-3)
    assert explanations.sentence not in ("bfloat16", "float16")
    explanations = Explanations()
    explanations.see(base_D, suspect_D, 1e-3, is_scale=True)
    assert explanations.sentence == ("bfloat16" if cast is bfloat16 else "float16")
    # One number a step further is no rounding.
    suspect_D[7] += 2 * np.abs(suspect_D - base_D).max()
    explanations = Explanations()
    explanations.see(base_D, suspect_D, 1e-3, is_scale=True)
    assert explanations.sentence not in ("bfloat16", "float16")


@pytest.mark.parametrize("name", ROUNDED)
def test_one_number_that_rounds_elsewhere_is_no_equality(name):
    base_OI, suspect_OI = ROUNDED[name]
    # Of a group that does not end at its largest number: by one and a half steps of the integers.
    changed_OI = base_OI.copy()
    changed_OI[130, 70] += 0.012 * np.abs(base_OI).max()
    assert explained(changed_OI, suspect_OI) is None
    # Nor is a number between two steps.
    moved_OI = suspect_OI.copy()
    steps = np.diff(np.unique(suspect_OI[130, 64:96]))
    moved_OI[130, 70] += steps.min() / 10
    assert explained(base_OI, moved_OI) is None
