"""φ_U, φ_H, φ_MATCH and AWM against straightforward references."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from bornbiased_jax import model as models
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import baselines
from bornbiased_jax.lineage.baselines import Activations, awm, phi_h, phi_match, phi_u, unbiased_cka
from bornbiased_jax.probes import inputs
from bornbiased_jax.stats import tails
from tests.lineage.pairs import born, jittered

CFG = preset("qwen-tiny", num_layers=3, d_model=24, num_heads=4, num_kv_heads=2, d_ff=20, vocab_size=90)
PLAIN = preset("gpt2-tiny", num_layers=2, d_model=24, num_heads=4, d_ff=40, vocab_size=90)


def fisher(p_values):
    """As the published code combines them."""
    return stats.chi2.sf(-2 * np.log(p_values).sum(), df=2 * len(p_values))


def matched_by_cosine(a_Fn, b_Fn):
    return linear_sum_assignment(cdist(a_Fn.astype(float), b_Fn.astype(float), "cosine"))[1]


@pytest.mark.parametrize("fraction", [None, 6.0, 3.5])
def test_phi_u_is_its_definition(fraction):
    a = born(CFG, 0)
    b = born(CFG, 1) if fraction is None else jittered(a, fraction, seed=77)
    p_values, correlations = [], []
    for layer in range(3):
        rows = [np.asarray(params["blocks"]["mlp"]["up"]["kernel"][layer]).T for params in (a, b)]
        rho, p = stats.spearmanr(matched_by_cosine(*rows), np.arange(20))
        p_values.append(p)
        correlations.append(rho)
    found = phi_u(CFG, a, CFG, b)
    assert found.value == pytest.approx(np.mean(correlations))
    assert 10**found.log10_p == pytest.approx(fisher(p_values), rel=1e-6)
    assert found.same == (fisher(p_values) < 0.01)
    assert found.to_json()["log10_p"] == found.log10_p and "log10_p" not in baselines.pcs(a, b).to_json()


def test_phi_u_of_a_copy_does_not_underflow_and_is_bounded_by_the_orders():
    a = born(CFG, 0)
    found = phi_u(CFG, a, CFG, a)
    least = (math.log(2) - math.lgamma(21)) / tails.LN10
    assert found.value == 1.0 and found.same
    assert found.detail["log10_p_by_block"] == pytest.approx([least] * 3)
    # e^{−x}(1 + x + x²/2) with x = −3 ln p.
    x = -3 * least * tails.LN10
    assert found.log10_p == pytest.approx((-x + math.log(1 + x + x * x / 2)) / tails.LN10)


def test_phi_undefined_cases():
    a = born(CFG, 0)
    for other, word in ((CFG.replace(d_model=32), "widths"), (CFG.replace(d_ff=24), "hidden units"),
                        (CFG.replace(num_layers=2), "blocks"), (CFG.replace(mlp=False), "without an MLP")):  # fmt: skip
        found = phi_u(CFG, a, other, born(other, 1))
        assert found.value is None and found.same is None and word in found.reason
    acts = Activations(np.zeros((2, 5, 4)), None)
    assert "gate" in phi_match(acts, acts).reason
    assert "same inputs" in phi_h(acts, Activations(np.zeros((2, 6, 4)), None)).reason


@pytest.mark.slow
def test_activations_are_those_of_the_projections():
    x = inputs.random_tokens(9, 6, 90)
    params = models.init_seed(CFG, 5)
    found = baselines.mlp_activations(CFG, params, x)
    assert found.up.shape == found.gate.shape == (3, 54, 20)
    out = models.apply(CFG, params, x.batch(0, 9), logits=False, capture=("mlp_hidden", "mlp_preactivation"))
    gate_LNF, hidden_LNF = (
        np.asarray(out.layers[name], float).reshape(3, 54, 20) for name in ("mlp_preactivation", "mlp_hidden")
    )
    np.testing.assert_allclose(found.gate, gate_LNF, atol=1e-6)
    np.testing.assert_allclose(found.up * gate_LNF / (1 + np.exp(-gate_LNF)), hidden_LNF, atol=1e-6)
    plain = baselines.mlp_activations(PLAIN, models.init_seed(PLAIN, 5), x)
    assert plain.gate is None and plain.up.shape == (2, 54, 40)
    with pytest.raises(InputError, match="MLP"):
        baselines.mlp_activations(CFG.replace(mlp=False), params, x)


def activations(seed, like=None, fraction=1.0):
    rng = np.random.default_rng(seed)
    up, gate = rng.standard_normal((2, 3, 40, 16)).astype(np.float32)
    if like is None:
        return Activations(up, gate)
    return Activations(like.up + fraction * up, like.gate + fraction * gate)


@pytest.mark.parametrize("fraction", [None, 8.0, 5.0])
def test_phi_h_and_phi_match_are_their_definitions(fraction):
    a = activations(0)
    b = activations(1) if fraction is None else activations(1, a, fraction)
    p_h, p_match, coincidences = [], [], []
    for layer in range(3):
        p_h.append(stats.spearmanr(matched_by_cosine(a.up[layer].T, b.up[layer].T), np.arange(16)).pvalue)
        by_gate, by_up = (
            linear_sum_assignment(cdist(ours[layer].T.astype(float), theirs[layer].T.astype(float), "sqeuclidean"))[1]
            for ours, theirs in ((a.gate, b.gate), (a.up, b.up))
        )
        p_match.append(stats.spearmanr(by_gate, by_up).pvalue)
        coincidences.append(int((by_gate == by_up).sum()))
    assert 10 ** phi_h(a, b).log10_p == pytest.approx(fisher(p_h), rel=1e-6)
    found = phi_match(a, b)
    assert 10**found.log10_p == pytest.approx(fisher(p_match), rel=1e-6)
    assert found.detail["coincidences"] == coincidences


def test_phi_match_alone_is_blind_to_the_order_of_units():
    a = activations(0)
    order = np.random.default_rng(3).permutation(16)
    b = Activations(a.up[:, :, order], a.gate[:, :, order])
    assert phi_match(a, b).detail["coincidences"] == [16] * 3 and phi_match(a, b).same
    assert phi_match(a, b).log10_p == phi_match(a, a).log10_p
    assert not phi_h(a, b).same and phi_h(a, a).same


def unbiased_hsic(k_nn, l_nn):
    """The estimator of Song et al. (2012), term by term."""
    k_nn, l_nn = k_nn - np.diag(np.diag(k_nn)), l_nn - np.diag(np.diag(l_nn))
    n, one = len(k_nn), np.ones(len(k_nn))
    total = np.trace(k_nn @ l_nn)
    total += (one @ k_nn @ one) * (one @ l_nn @ one) / ((n - 1) * (n - 2))
    return (total - 2 / (n - 2) * (one @ k_nn @ l_nn @ one)) / (n * (n - 3))


def cka(x_nd, y_nd):
    k_nn, l_nn = x_nd @ x_nd.T, y_nd @ y_nd.T
    return unbiased_hsic(k_nn, l_nn) / np.sqrt(unbiased_hsic(k_nn, k_nn) * unbiased_hsic(l_nn, l_nn))


def test_unbiased_cka_is_the_ratio_of_unbiased_hsic():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((20, 5)), rng.standard_normal((20, 9))
    assert unbiased_cka(x, y) == pytest.approx(cka(x, y), rel=1e-9)
    assert unbiased_cka(x, x @ np.linalg.qr(rng.standard_normal((5, 5)))[0] + 3) == pytest.approx(1.0)
    assert abs(np.mean([unbiased_cka(*rng.standard_normal((2, 20, 6))) for _ in range(400)])) < 0.01
    assert math.isnan(unbiased_cka(np.ones((20, 2)) * 0, y)) and math.isnan(unbiased_cka(x[:3], y[:3]))


def awm_reference(a, b, depth_a, depth_b):
    embed = [np.asarray(params["embed"]["embedding"], float) for params in (a, b)]
    unit = [table / np.linalg.norm(table, axis=0) for table in embed]
    cosine = unit[0].T @ unit[1]
    rows, columns = linear_sum_assignment(1 - np.abs(cosine))
    chosen, sign = np.zeros(len(columns), int), np.zeros(len(columns))
    for row, column in zip(rows, columns, strict=True):
        chosen[column], sign[column] = row, np.sign(cosine[row, column])
    every = np.zeros((2, depth_a, depth_b))
    for at, kind in enumerate(("query", "key")):
        for i in range(depth_a):
            for j in range(depth_b):
                ours, theirs = (
                    np.asarray(params["blocks"]["attention"][kind]["kernel"][layer], float)
                    for params, layer in ((a, i), (b, j))
                )
                every[at, i, j] = cka(np.diag(sign) @ ours[chosen], theirs)
    if depth_a == depth_b:
        return np.mean([every[:, i, i] for i in range(depth_a)])
    pairs = linear_sum_assignment(-every.mean(axis=0))
    return every[:, pairs[0], pairs[1]].mean()


def test_awm_is_its_definition():
    a, b = born(CFG, 0), born(CFG, 1)
    found = awm(CFG, a, CFG, b)
    assert found.value == pytest.approx(awm_reference(a, b, 3, 3), abs=1e-9)
    z = (found.value - 0.00375) / 0.0028
    assert found.detail["z"] == pytest.approx(z)
    assert 10**found.log10_p == pytest.approx(2 * stats.norm.sf(abs(z)), rel=1e-6)
    assert awm(CFG, a, CFG, a).value == pytest.approx(1.0, abs=1e-6) and awm(CFG, a, CFG, a).log10_p < -1000
    shallow, narrow = CFG.replace(num_layers=2), CFG.replace(d_model=16)
    c, d = born(shallow, 2), born(narrow, 3)
    assert awm(CFG, a, shallow, c).value == pytest.approx(awm_reference(a, c, 3, 2), abs=1e-9)
    assert awm(CFG, a, narrow, d).value == pytest.approx(awm_reference(a, d, 3, 3), abs=1e-9)
    # The wider model is the one that is matched into, whichever comes first.
    assert awm(narrow, d, CFG, a).value == awm(CFG, a, narrow, d).value
    silent = CFG.replace(attention=False)
    assert awm(CFG, a, silent, born(silent, 0)).value is None


def test_awm_sees_through_permuted_and_negated_coordinates():
    a = born(CFG, 0)
    rng = np.random.default_rng(1)
    order, sign = rng.permutation(24), rng.choice([-1.0, 1.0], 24).astype(np.float32)
    attention = {kind: {"kernel": a["blocks"]["attention"][kind]["kernel"][:, order] * sign[:, None]}
                 for kind in ("query", "key")}  # fmt: skip
    moved = {
        **a,
        "embed": {"embedding": a["embed"]["embedding"][:, order] * sign},
        "blocks": {**a["blocks"], "attention": {**a["blocks"]["attention"], **attention}},
    }
    assert awm(CFG, a, CFG, moved).value == pytest.approx(1.0, abs=1e-6)


def test_fisher_and_spearman_tails_equal_scipy_where_it_does_not_underflow():
    rng = np.random.default_rng(0)
    for count in (1, 2, 7):
        p = rng.random(count)
        assert math.exp(tails.log_fisher(np.log(p))) == pytest.approx(stats.combine_pvalues(p).pvalue, rel=1e-10)
    far = tails.log_fisher(np.full(32, -1000.0))
    x, k = 32_000.0, np.arange(32)
    assert far == pytest.approx(-x + np.logaddexp.reduce(k * math.log(x) - [math.lgamma(i + 1) for i in k]))
    assert tails.log_fisher(np.zeros(3)) == 0.0
    assert math.isnan(tails.log_fisher(np.array([]))) and math.isnan(tails.log_fisher(np.array([np.nan])))
    for _ in range(5):
        a, b = rng.permutation(30), rng.permutation(30)
        expected = stats.spearmanr(a, b)
        assert tails.spearman(a, b) == pytest.approx(expected.statistic)
        assert math.exp(tails.log_spearman(a, b)) == pytest.approx(expected.pvalue, rel=1e-9)
    assert tails.log_spearman(a, a[::-1][np.argsort(np.argsort(a))]) <= 0
    assert tails.log_spearman(np.arange(30), np.arange(30)[::-1]) == tails.log_spearman(a, a)
    assert math.isnan(tails.log_spearman(np.arange(2), np.arange(2)))
