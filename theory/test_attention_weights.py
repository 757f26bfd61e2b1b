"""Weights of heads, of two sequences and of kernels without a sum of 1, against drawn rows and the real modules."""

import math

import numpy as np
import pytest
from scipy import special

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.prediction import stack_of
from bornbiased_jax.theory.mean_field import Stack, profile
from bornbiased_jax.theory.softmax_rows import participation, row_overlap, with_sink
from bornbiased_jax.theory.sublayers import Sublayer
from theory.test_blocks import ERRORS, excess, measure, predicted

SMALL = dict(vocab_size=2, max_seq_len=32, num_heads=4, d_model=64, mlp=False, init="lecun")
LOGITS = {"init.query": "normal:0.125", "init.key": "normal:0.125"}
"""Logits of variance 1 at width 64."""


def first(length: int, **fields: object) -> Sublayer:
    """Attention of one block on unit vectors, its logits of variance 1 unless groups say otherwise."""
    stack = Stack(**{**dict(num_layers=1, width=64, mlp=False, norm_eps=0.0, weight_std=0.125), **fields})
    return profile(stack, length).sublayers[0]


def standard_error(measured: np.ndarray) -> np.ndarray:
    return measured.std(axis=0, ddof=1) / math.sqrt(len(measured))


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_heads_choose_each_for_itself(heads: int) -> None:
    """Products of two outputs are means over heads of Σ a_i a'_j x_i·x'_j: E a² E a'² for one head with itself."""
    length, wide = 4, 10**6
    update = first(
        length, width=wide, query_width=wide, value_width=wide, num_heads=heads, weight_std=wide**-0.5
    ).update
    boost = length * participation(length, 1.0)
    told = update.pair_cnn.sum(axis=0)[-1, -1] * wide / update.variance_n[-1] ** 2
    assert told == pytest.approx((boost**2 / heads + 1 - 1 / heads) / boost**2, rel=1e-3)


def test_sequences_have_tokens_in_common_before_their_last_ones() -> None:
    """Of 4 · 4 pairs of keys all but that of the two last ones hold one token with probability 1/V."""
    update = first(4, vocabulary=8, embedding_std=1.0, logit_scale=0.0).update
    assert update.cross_n[-1] / update.variance_n[0] == pytest.approx(15 / 16 / 8)


def test_rows_of_one_variance_overlap_by_their_correlation() -> None:
    """Two sequences whose keys have their positions in common have weights in common; as of none it was 30% less."""
    drawn = np.random.default_rng(0).standard_normal((3, 20_000, 6))
    # Four fifths of a token are its position, in queries as in keys.
    common = 0.8**2
    weights = special.softmax(math.sqrt(common) * drawn[0] + math.sqrt(1 - common) * drawn[1:], axis=-1)
    expected = 0.8 * np.mean(np.prod(weights, axis=0)) / np.mean(weights**2)
    update = first(6, embedding_std=1.0, position_std=2.0).update
    assert update.cross_n[-1] / update.variance_n[-1] == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("variance", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("rho", [0.1, 0.4, 0.8])
def test_a_power_of_the_boost_of_one_row_is_that_of_two(variance: float, rho: float) -> None:
    for count in (2, 8, 64):
        boost = count * participation(count, variance)
        assert boost**rho - 1 == pytest.approx(count * row_overlap(count, count, variance, rho) - 1, rel=0.1)


def test_sigmoids_of_keys_that_are_alike_add_up() -> None:
    """Logits that two keys share do not cancel as in a softmax: of tokens alike by half the mean was short of it."""
    drawn = np.random.default_rng(0).standard_normal((3, 100_000)) * math.sqrt(0.5)
    one, two = special.expit(2 * (drawn[:2] + drawn[2]) - math.log(8))
    expected = np.mean(one**2 + two**2 + one * two) / np.mean(one**2)
    fields = dict(vocabulary=2, embedding_std=1.0, attention_kernel="sigmoid", max_seq_len=8)
    sublayer = first(2, **fields, group_stds=(("query", (0.25,)), ("key", (0.125,))))
    assert sublayer.aggregated_n[1] / sublayer.aggregated_n[0] == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("kernel", ["softmax", "sigmoid"])
def test_sequences_have_tokens_in_common_before_the_last(kernel: str) -> None:
    """Two tokens are equal with probability 1/V, but for both last ones: sigmoids left those of one position out."""
    T, V = 3, 5
    same = np.full((T, T), 1 / V)
    same[-1, -1] = 0.0
    stack = Stack(1, 64, mlp=False, residual=False, vocabulary=V, attention_kernel=kernel, max_seq_len=T)
    update = profile(stack, T, uniform=True).layers[-1]
    normalizer = {"softmax": T**2, "sigmoid": 1}[kernel]
    assert update.cross_n[-1] / update.variance_n[0] == pytest.approx(same.sum() / normalizer)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_a_sink_leaves_a_part_of_the_weights(scale: float) -> None:
    """One key has half of them in the mean, not e^(Ω/2) of what the sink has: values' variance was 33% too large."""
    drawn = np.random.default_rng(0).standard_normal((3, 200_000)) * math.sqrt(0.5)
    logits = scale * (drawn[:2] + drawn[2])
    alone, (one, two, _) = special.expit(logits[0]), special.softmax([*logits, 0 * logits[0]], axis=0)
    expected = np.mean(alone**2), np.mean(one**2 + two**2 + one * two)
    fields = dict(vocabulary=2, embedding_std=1.0, sink_logit=True, logit_scale=scale)
    np.testing.assert_allclose(first(2, **fields).aggregated_n, expected, rtol=0.01)


def test_moments_of_weights_next_to_a_sink() -> None:
    z, w = np.polynomial.hermite_e.hermegauss(60)
    for variance, common in ((1.0, 0.0), (0.5, 0.5), (0.0, 1.0)):
        mean, square, participation = with_sink(1, variance, common)
        expected = [special.expit(z) ** k @ w / w.sum() for k in (1, 2)]
        np.testing.assert_allclose([mean, square, participation], [*expected, expected[1]], rtol=1e-10)
    drawn = np.random.default_rng(0).standard_normal((100_000, 5))
    logits = np.column_stack([math.sqrt(3) * drawn[:, :4] + drawn[:, 4:], np.zeros(len(drawn))])
    weights = special.softmax(logits, axis=1)[:, :4]
    total = weights.sum(axis=1)
    for told, sample in zip(with_sink(4, 3.0, 1.0), (total, total**2, (weights**2).sum(axis=1)), strict=True):
        assert abs(told - sample.mean()) < ERRORS * sample.std() / math.sqrt(sample.size)


def test_gated_values_have_a_mean() -> None:
    """A value and its own gate covary over inputs by 1/K of their variance, which no average over keys takes out."""
    heads, width, gate = 8, 64, 0.5
    rng = np.random.default_rng(0)
    values = rng.standard_normal((1000, width, heads)) / 8
    gates = rng.standard_normal((1000, heads, heads)) * gate
    covariance = values.transpose(0, 2, 1) @ values
    with_gate = np.einsum("nkj,nkj->nj", gates, covariance)
    gate_std = np.sqrt(np.einsum("nkj,nkl,nlj->nj", gates, covariance, gates))
    z, w = np.polynomial.hermite_e.hermegauss(40)
    opened = special.expit(gate_std[..., None] * z)
    mean = with_gate * ((opened * (1 - opened)) @ w) / w.sum()
    told = first(
        1,
        embedding_std=1.0,
        query_width=heads,
        value_width=heads,
        value_gate=True,
        group_stds=(("value", (0.125,)), ("output_gate", (gate * math.sqrt(heads) * 0.125,))),
    )
    # Values of unit variance, before W_O; the norm of a gate's row varies too, by 1/K.
    scale = told.aggregated_n[0] / told.update.variance_n[0]
    assert told.update.cross_n[0] * scale == pytest.approx(np.mean(mean**2), rel=0.1)


@pytest.mark.long
def test_products_of_outputs_vary_less_where_heads_choose() -> None:
    """Against the real modules: what large logits leave of the variance of a pair's cosine."""
    configs = [
        ModelConfig(**SMALL, num_layers=1).replace(**{f"init.{group}": f"normal:{std}" for group in ("query", "key")})
        for std in (0.001, 0.125)
    ]
    measured = [measure(cfg, 8)["pair_square"][:, 0] for cfg in configs]
    told = [profile(stack_of(cfg, tokens=False), 8).layers[1].overlap().own[-1, -1] for cfg in configs]
    ratios = measured[1] / measured[0]
    assert abs(ratios.mean() - told[1] / told[0]) < ERRORS * standard_error(ratios)
    # With all heads as one the ratio was 1.
    assert abs(ratios.mean() - 1) > 2 * ERRORS * standard_error(ratios)


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {"output_gate": "value", "init.value_gate": "normal:0.5", "num_heads": 2},
        {"positions": "learned", "init.positions": "normal:0.04", **LOGITS},
    ],
)
def test_contraction_of_large_gates_and_logits(changes: dict) -> None:
    cfg = ModelConfig(**SMALL, num_layers=1).replace(**changes)
    assert np.all(excess(measure(cfg, 12)["inter"], predicted(cfg, 12)) < 1)
