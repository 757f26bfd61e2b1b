"""Blocks of quantisation are noticed, and nothing else is taken for them."""

import numpy as np
import pytest

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.lineage.weights import weights_test
from bornbiased_jax.lineage.weights.blockwise import has_blocks
from tests.lineage.weights.descendants import born, config, descend, edited, reader

SIZES = dict(num_layers=1, d_model=64, d_ff=96, vocab_size=64)


def rounded(rows_nD, bits, size, dtype=np.float32):
    """Symmetric quantisation with one scale for each ``size`` numbers of a row; 0: one for each row."""
    blocks = rows_nD.reshape(-1, size or rows_nD.shape[1])
    scale = np.abs(blocks).max(axis=1, keepdims=True) / (2 ** (bits - 1) - 1)
    return (np.round(blocks / scale) * scale).reshape(rows_nD.shape).astype(dtype).astype(np.float32)


DRAWN = np.random.default_rng(0).standard_normal((80, 512)).astype(np.float32)


@pytest.mark.parametrize("bits", [4, 6, 8])
@pytest.mark.parametrize("size", [32, 64, 128])
def test_blocks_are_noticed_and_rows_are_none(bits, size):
    assert has_blocks(rounded(DRAWN, bits, size))
    assert has_blocks(np.where(np.abs(DRAWN) < 0.3, 0, rounded(DRAWN, bits, size)))
    assert not has_blocks(rounded(DRAWN, bits, 0))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_plain_numbers_have_no_blocks(dtype):
    half = DRAWN.astype(dtype).astype(np.float32)
    assert not has_blocks(half)
    # bfloat16: the upper half of the bits; and half of them pruned.
    cut = (half.view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert not has_blocks(cut) and not has_blocks(np.where(np.abs(cut) < 0.7, 0, cut))


def quantised(model, size):
    """The matrices rounded to 4 bits along the inputs, as files keep them."""

    def edit(path, leaf):
        if not path.startswith("blocks/") or not path.endswith("kernel"):
            return leaf
        return np.stack([rounded(np.ascontiguousarray(kernel.T), 4, size).T for kernel in leaf])

    return edited(*model, edit)


@pytest.mark.slow
def test_p_is_approximate_where_both_are_quantised_in_blocks():
    model = descend(config(**SIZES), 5)
    blocks, rows = reader(quantised(model, 32)), reader(quantised(model, 0))
    both = weights_test(blocks, blocks)
    assert both.detail["null"] == "approximate" and any("contiguous blocks" in note for note in both.detail["notes"])
    for pair in ((blocks, rows), (rows, blocks), (rows, rows)):
        verdict = weights_test(*pair)
        assert verdict.detail["null"] == "exact"
        assert any(note.startswith("Exact if one of the two models still carries") for note in verdict.detail["notes"])
    # A birth carries its labels, whatever became of the other.
    birth = weights_test(born(model[0], 5), blocks)
    assert birth.detail["null"] == "exact"
    assert not any("contiguous blocks" in note for note in birth.detail["notes"])


def test_initialisations_that_leave_no_label_exchangeable_are_refused():
    cfg = config(**SIZES)
    cfg = cfg.replace(init="gpt2-scaled-mirrored")
    mirrored, other = born(cfg, 1), born(cfg.replace(init="normal-0.02"), 2)
    unknown = Checkpoint.from_params(*descend(cfg, 3))
    for options in (dict(labels="units"), dict(align="rotation"), dict(align="units")):
        for pair in ((mirrored, born(cfg, 4)), (unknown, mirrored)):
            verdict = weights_test(*pair, **options)
            assert verdict.verdict == "undefined"
            assert verdict.reason.startswith(
                "the initialisation gpt2-scaled-mirrored does not leave units exchangeable"
            )
        # One of the two suffices.
        if options.get("align") != "units":
            assert weights_test(mirrored, other, **options).verdict == "unrelated"
    assert weights_test(mirrored, born(cfg, 4)).verdict == "unrelated"
