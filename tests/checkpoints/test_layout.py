"""Layouts of tensors in files: packing is the inverse of unpacking, and each layout is the one it is said to be."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bornbiased_jax.checkpoints.layout import (
    FileEntry,
    pack,
    shape_in_file,
    unpack,
)
from bornbiased_jax.config import ModelConfig

FORMS = ("same", "transposed", "fused columns", "fused rows", "fused heads", "paired query", "paired key")


@given(
    form=st.sampled_from(FORMS),
    kv_heads=st.integers(1, 3),
    groups=st.integers(1, 3),
    half=st.integers(1, 4),
    width=st.integers(1, 5),
    vector=st.booleans(),
)
def test_packing_undoes_unpacking(form, kv_heads, groups, half, width, vector):
    fused = form.startswith("fused")
    heads = kv_heads * (1 if fused else groups)
    cfg = ModelConfig(num_heads=heads, num_kv_heads=kv_heads, head_dim=2 * half, d_model=width)
    out = (kv_heads if form == "paired key" else heads) * 2 * half
    shape = (out,) if vector else (width, out)
    paths = ("q", "k", "v") if fused else ("q",)
    entry = FileEntry("tensor", paths, None, form)
    parameters = [np.random.default_rng(i).normal(size=shape) for i in range(len(paths))]
    tensor = pack(entry, cfg, parameters)
    assert tensor.shape == shape_in_file(entry, dict.fromkeys(paths, shape))
    for before, after in zip(parameters, unpack(entry, cfg, tensor), strict=True):
        np.testing.assert_array_equal(before, after)


def test_interleaved_rows_become_halves():
    """Meta's layout turns rows 2i and 2i + 1 of a head together, ours rows i and i + K/2."""
    cfg = ModelConfig(num_heads=2, head_dim=6, d_model=12)
    rows = np.arange(12.0)[:, None] * np.ones((1, 3))
    (kernel,) = unpack(FileEntry("wq", ("q",), None, "paired query"), cfg, rows)
    assert kernel[0].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]
