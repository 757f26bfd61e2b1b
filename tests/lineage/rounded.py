"""Weights that are rounded to 8 bits as quantizers do it."""

from functools import partial

import ml_dtypes
import numpy as np

from bornbiased_jax.lineage.roundings import Explanations

LARGEST = {"int8": 127, "float8": 448}


def bfloat16(array):
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


def codes_of(kind, numbers):
    return np.rint(numbers) if kind == "int8" else numbers.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)


def rounded(kind, groups_GN, scale_type=np.float32):
    """Round groups to 8 bits as a quantizer does: numbers over the scale, which the file keeps in a type of its own."""
    scale_G1 = (np.abs(groups_GN).max(axis=1, keepdims=True) / LARGEST[kind]).astype(np.float32)
    stored_G1 = scale_G1.astype(scale_type).astype(np.float32)
    return codes_of(kind, groups_GN / scale_G1) * stored_G1


def by_tensor(kind, weight_OI):
    return rounded(kind, weight_OI.reshape(1, -1)).reshape(weight_OI.shape)


def by_channel(kind, weight_OI):
    return rounded(kind, weight_OI)


def by_32(kind, weight_OI):
    # Q8_0 of GGUF: numbers are rounded by the scale in float32, which is kept in float16.
    return rounded(kind, weight_OI.reshape(-1, 32), np.float16).reshape(weight_OI.shape)


def by_microscales(_kind, weight_OI):
    # MXFP8: scales are powers of two, and what they leave above the largest code is cut off.
    groups_GN = weight_OI.reshape(-1, 32)
    scale_G1 = np.exp2(np.floor(np.log2(np.abs(groups_GN).max(axis=1, keepdims=True))) - 8)
    return (codes_of("float8", np.clip(groups_GN / scale_G1, -448, 448)) * scale_G1).reshape(weight_OI.shape)


def by_squares(kind, weight_OI, side=128):
    made = np.empty_like(weight_OI)
    for row in range(0, len(weight_OI), side):
        for column in range(0, weight_OI.shape[1], side):
            square = weight_OI[row : row + side, column : column + side]
            made[row : row + side, column : column + side] = by_tensor(kind, square)
    return made


FORMS = {
    "8 bits with a scale for each tensor": ("int8", by_tensor),
    "8 bits with a scale for each channel": ("int8", by_channel),
    "8 bits with a scale for each block of 32": ("int8", by_32),
    "8 bits (e4m3) with a scale for each tensor": ("float8", by_tensor),
    "8 bits (e4m3) with a scale for each channel": ("float8", by_channel),
    "8 bits (e4m3) with a scale for each block of 128 × 128": ("float8", by_squares),
    "8 bits (e4m3) with a scale for each block of 64 × 64": ("float8", partial(by_squares, side=64)),
    "8 bits (e4m3) with a scale for each block of 32 × 32": ("float8", partial(by_squares, side=32)),
    "8 bits (e4m3) with a scale for each block of 32": ("float8", by_microscales),
}


def weights(seed=0):
    draws = np.random.default_rng(seed)
    # Rows of several sizes, so that scales for each tensor and each channel differ.
    return (draws.standard_normal((256, 192)) * np.exp(draws.normal(size=(256, 1)))).astype(np.float32)


def explained(base, suspect):
    explanations = Explanations()
    explanations.see(base, suspect, float(np.abs(base - suspect).max()))
    return explanations.sentence
