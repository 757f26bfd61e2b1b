"""Casts to the codes of other types, given back as float32."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from bornbiased_jax.lineage.rounding_casts import MOST_FLOAT8, float8, int8


def test_float8_rounds_as_a_cast_to_e4m3_does():
    rng = np.random.default_rng(0)
    numbers_N = (rng.standard_normal(20_000) * np.exp2(rng.uniform(-14, 10, 20_000))).astype(np.float32)
    cut_N = np.clip(numbers_N, -MOST_FLOAT8, MOST_FLOAT8)
    np.testing.assert_array_equal(float8(numbers_N), cut_N.astype(ml_dtypes.float8_e4m3fn).astype(np.float32))


def test_codes_stay_as_they_are():
    codes_C = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    codes_C = codes_C[np.isfinite(codes_C)]
    np.testing.assert_array_equal(float8(codes_C), codes_C)
    np.testing.assert_array_equal(int8(np.arange(-200.0, 200.0)), np.clip(np.arange(-200.0, 200.0), -128, 127))
