"""Tests for which one model is a birth: the vocabulary's bilinear form, and a rank among births."""

import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.weights import bilinear_test, rank_test
from tests.lineage.weights.descendants import born, config, descend, edited, everything, reader, rotated, unused_rows

SIZES = dict(num_layers=2, d_model=48, d_ff=64)


@pytest.fixture(scope="module")
def suspect():
    return descend(config(**SIZES), 7)


def test_the_bilinear_form_is_blind_to_every_free_change(suspect):
    birth = Checkpoint.from_seed(suspect[0], 7)
    plain = bilinear_test(birth, reader(suspect))
    assert plain.verdict == "same-lineage" and plain.log10_p < -20 and plain.detail["null"] == "exact"
    assert bilinear_test(birth, reader(everything(*suspect))).z == pytest.approx(plain.z, rel=1e-3)
    assert bilinear_test(reader(suspect), birth).z == pytest.approx(plain.z, rel=1e-6)
    assert bilinear_test(Checkpoint.from_seed(suspect[0], 8), reader(suspect)).verdict == "unrelated"


def test_two_trained_models_have_no_bilinear_verdict(suspect):
    verdict = bilinear_test(reader(suspect), reader(suspect))
    assert verdict.verdict == "undefined" and "neither model is a birth" in verdict.reason


def test_padding_is_left_out(suspect):
    def pad(path, leaf):
        if path == "embed/embedding":
            leaf[200:] = leaf[:200].mean(axis=0)
            leaf[150:160] = 0
        return leaf

    birth = Checkpoint.from_seed(suspect[0], 7)
    padded = bilinear_test(birth, reader(edited(*suspect, pad)))
    assert padded.detail["num_tokens"] == 190 and padded.verdict == "same-lineage"
    assert bilinear_test(birth, reader(unused_rows(*suspect))).verdict == "same-lineage"
    none = bilinear_test(birth, reader(edited(*suspect, lambda path, leaf: leaf * ("embed" not in path))))
    assert none.verdict == "undefined" and "0 usable token ids" in none.reason


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
def test_unrelated_births_are_called_same_at_the_level(tied):
    sizes = dict(num_layers=1, num_heads=2, d_model=12, d_ff=8, vocab_size=20, tie_embeddings=tied)
    cfg = preset("llama-tiny", **sizes)
    pairs = 200
    p_values = np.array(
        [
            bilinear_test(born(cfg, 2 * pair), born(cfg, 2 * pair + 1), num_permutations=199).p_value
            for pair in range(pairs)
        ]
    )
    for level in (0.01, 0.05):
        count = (p_values <= level).sum()
        assert stats.binom.ppf(5e-4, pairs, level) <= count <= stats.binom.ppf(0.9995, pairs, level)
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3


@pytest.mark.slow
def test_a_tied_birth_has_rows_and_columns_permuted_together():
    cfg = config(**SIZES, tie_embeddings=True)
    model = descend(cfg, 7, drift=0.2)
    own = bilinear_test(Checkpoint.from_seed(cfg, 7), reader(model), num_permutations=9_999)
    assert own.detail["tied"] and own.detail["log10_p_bound"] is None
    assert own.verdict == "same-lineage" and own.p_value == 1e-4
    assert bilinear_test(Checkpoint.from_seed(cfg, 8), reader(model), num_permutations=499).verdict == "unrelated"


@pytest.mark.slow
@pytest.mark.parametrize("align", ["none", "rotation"])
def test_rank_among_births(suspect, align):
    hidden = reader(rotated(*suspect) if align == "rotation" else suspect)
    own = rank_test(Checkpoint.from_seed(suspect[0], 7), hidden, align=align, num_births=99)
    assert (own.verdict, own.p_value) == ("same-lineage", 0.01) and own.z > 10
    other = rank_test(Checkpoint.from_seed(suspect[0], 8), hidden, align=align, num_births=99)
    assert other.verdict == "unrelated" and abs(other.z) < 4


def test_rank_refuses_a_trained_base_and_too_few_births(suspect):
    with pytest.raises(InputError, match="is not known to be one"):
        rank_test(reader(suspect), reader(suspect))
    verdict = rank_test(Checkpoint.from_seed(suspect[0], 7), reader(suspect), num_births=98)
    assert verdict.verdict == "undefined" and "ask for 99" in verdict.reason
    with pytest.raises(InputError, match="no score with the alignment 'units'"):
        rank_test(Checkpoint.from_seed(suspect[0], 7), reader(suspect), align="units")
