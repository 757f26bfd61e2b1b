"""φ_H, φ_MATCH and REEF against straightforward references, and scores against a null of unrelated seeds."""

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from bornbiased_jax import model as models
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments._shared import baselines
from bornbiased_jax.experiments._shared.baselines import Projections, phi_h, phi_match, reef, reef_block, reef_features
from bornbiased_jax.lineage.baselines import Score, pcs
from bornbiased_jax.probes import inputs
from tests.lineage.pairs import initial, jittered
from tests.lineage.test_baselines import CFG, GPT2, LLAMA, fisher, matched_by_cosine

PLAIN = preset("gpt2-tiny", num_layers=2, d_model=24, num_heads=4, d_ff=40, vocab_size=90)


@pytest.mark.slow
def test_activations_are_those_of_the_projections():
    x = inputs.random_tokens(9, 6, 90)
    params = models.init_seed(CFG, 5)
    layers = baselines.mlp_activations(CFG, params, x)
    assert layers.up.shape == layers.gate.shape == (3, 54, 20)
    out = models.apply(CFG, params, x.batch(0, 9), logits=False, capture=("mlp_hidden", "mlp_preactivation"))
    gate_LNF, hidden_LNF = (
        np.asarray(out.layers[name], float).reshape(3, 54, 20) for name in ("mlp_preactivation", "mlp_hidden")
    )
    np.testing.assert_allclose(layers.gate, gate_LNF, atol=1e-6)
    np.testing.assert_allclose(layers.up * gate_LNF / (1 + np.exp(-gate_LNF)), hidden_LNF, atol=1e-6)
    plain = baselines.mlp_activations(PLAIN, models.init_seed(PLAIN, 5), x)
    assert plain.gate is None and plain.up.shape == (2, 54, 40)
    with pytest.raises(InputError, match="MLP"):
        baselines.mlp_activations(CFG.replace(mlp=False), params, x)


def test_activations_that_cannot_be_matched():
    acts = Projections(np.zeros((2, 5, 4)), None)
    assert "gate" in phi_match(acts, acts).reason
    assert "same inputs" in phi_h(acts, Projections(np.zeros((2, 6, 4)), None)).reason


def activations(seed, like=None, fraction=1.0):
    rng = np.random.default_rng(seed)
    up, gate = rng.standard_normal((2, 3, 40, 16)).astype(np.float32)
    if like is None:
        return Projections(up, gate)
    return Projections(like.up + fraction * up, like.gate + fraction * gate)


@pytest.mark.parametrize("fraction", [None, 8.0, 5.0])
def test_phi_h_and_phi_match_are_their_definitions(fraction):
    a = activations(0)
    b = activations(1) if fraction is None else activations(1, a, fraction)
    p_h, p_match, coincidences = [], [], []
    for layer in range(3):
        p_h.append(stats.spearmanr(matched_by_cosine(a.up[layer].T, b.up[layer].T), np.arange(16)).pvalue)
        by_gate, by_up = (
            linear_sum_assignment(
                cdist(actual[layer].T.astype(float), reference[layer].T.astype(float), "sqeuclidean")
            )[1]
            for actual, reference in ((a.gate, b.gate), (a.up, b.up))
        )
        p_match.append(stats.spearmanr(by_gate, by_up).pvalue)
        coincidences.append(int((by_gate == by_up).sum()))
    assert 10 ** phi_h(a, b).log10_p == pytest.approx(fisher(p_h), rel=1e-6)
    match = phi_match(a, b)
    assert 10**match.log10_p == pytest.approx(fisher(p_match), rel=1e-6)
    assert match.detail["coincidences"] == coincidences


def test_phi_match_alone_is_blind_to_the_order_of_units():
    a = activations(0)
    order = np.random.default_rng(3).permutation(16)
    b = Projections(a.up[:, :, order], a.gate[:, :, order])
    assert phi_match(a, b).detail["coincidences"] == [16] * 3 and phi_match(a, b).same
    assert phi_match(a, b).log10_p == phi_match(a, a).log10_p
    assert not phi_h(a, b).same and phi_h(a, a).same


@pytest.mark.parametrize("shape", [(12, 30, 20), (60, 10, 8)])
def test_cka_is_its_definition(shape):
    num, wide, wider = shape
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((num, wide)), rng.standard_normal((num, wider))
    center = np.eye(num) - np.full((num, num), 1 / num)
    k, m = center @ x @ x.T @ center, center @ y @ y.T @ center
    expected = (k * m).sum() / np.sqrt((k * k).sum() * (m * m).sum())
    assert baselines.linear_cka(x, y) == pytest.approx(expected, rel=1e-10)
    turned = x @ np.linalg.qr(rng.standard_normal((wide, wide)))[0] * 3 + 5
    assert baselines.linear_cka(x, turned) == pytest.approx(1.0, abs=1e-10)
    assert np.isnan(baselines.linear_cka(np.ones_like(x), y))
    with pytest.raises(InputError, match="same inputs"):
        baselines.linear_cka(x, y[:-1])


@pytest.mark.slow
def test_reef_reads_the_block_at_a_fraction_of_the_depth():
    assert [reef_block(layers) for layers in (32, 12, 4, 1)] == [18, 7, 2, 1]
    x = inputs.random_tokens(30, 5, 90)
    params = initial(LLAMA, 0)
    features = reef_features(LLAMA, params, x)
    direct = models.apply(LLAMA, params, x.batch(0, 30), logits=False, capture=("residual",))
    np.testing.assert_allclose(features, direct.layers["residual"][1][:, -1], rtol=0, atol=1e-5)
    assert reef(features, features).value == pytest.approx(1.0)
    constant = reef(np.ones((30, 4)), features)
    assert constant.value is None and constant.same is None


@pytest.mark.slow
def test_empirical_null_of_pcs_finds_what_the_threshold_misses():
    # Norm scales of 1, which all initializations share, would lift every cosine of so small a model above 0.8.
    cfg = GPT2.replace(norm="none")
    initializations = [models.init_seed(cfg, seed) for seed in range(40)]
    null = np.array([pcs(*pair).value for pair in zip(initializations[::2], initializations[1::2], strict=True)])
    scaled = pcs(*(models.init_seed(GPT2, seed) for seed in (1, 2)))
    assert abs(scaled.value) > 0.8 > np.abs(null).max()
    initialization, fresh = (models.init_seed(cfg, seed) for seed in (99, 98))
    far = pcs(initialization, jittered(initialization, 1.5))
    verdict = baselines.against_null(far, null)
    assert far.same is False and verdict["same_at_0.8"] is False
    assert verdict["p_value"] == pytest.approx(1 / 21) and verdict["z"] > 5 and verdict["log10_p"] < -3
    other = baselines.against_null(pcs(initialization, fresh), null)
    assert other["p_value"] > 1 / 21


def test_nulls_that_do_not_exist():
    nothing = baselines.against_null(Score("pcs", None, "because"), np.array([0.1]))
    assert nothing["p_value"] is None and nothing["reason"] == "because"
    flat = baselines.against_null(Score("pcs", 0.5), np.array([0.1, np.nan, 0.1]))
    assert flat["z"] is None and flat["p_value"] == pytest.approx(1 / 3)


def test_reef_by_hand():
    # Standardized: x = (−1, 0, 1)·√1.5 alone against y = (1, −2, 1)/√2 and x: HSIC = ‖xᵀy‖² over all columns.
    x = np.array([[0.0], [1.0], [2.0]])
    y = np.array([[1.0], [0.0], [1.0]])
    assert reef(x, y).value == pytest.approx(0.0, abs=1e-12)  # xᵀy = −1 + 0 + 1
    both = np.hstack([5 * x, y])
    # ‖xᵀ[x y]‖² = 9, ‖xᵀx‖ = 3, ‖[x y]ᵀ[x y]‖ = √(9 + 9).
    assert reef(x, both).value == pytest.approx(9 / (3 * np.sqrt(18)))
    # Twice as many columns than inputs takes the other form, with the same value.
    wide = np.hstack([both] * 3)
    assert reef(x, wide).value == pytest.approx(9 / (3 * np.sqrt(18)))
    assert reef(np.hstack([x] * 5), wide).value == pytest.approx(9 / (3 * np.sqrt(18)))
