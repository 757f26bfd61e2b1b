import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from bornbiased_jax import model as models
from bornbiased_jax.config import preset
from bornbiased_jax.lineage import baselines
from bornbiased_jax.lineage.baselines import awm, invariants, phi_u, unbiased_cka
from bornbiased_jax.stats import tails
from tests.lineage.pairs import initial, jittered

LLAMA = preset("qwen-tiny", num_layers=4, d_model=24, num_heads=4, num_kv_heads=2, d_ff=20, vocab_size=90)
GPT2 = preset("gpt2-tiny", num_layers=3, d_model=24, num_heads=4, d_ff=40, vocab_size=90)
CFG = LLAMA.replace(num_layers=3)


def test_intrinsic_is_the_mean_correlation_of_the_profiles():
    a, b = initial(LLAMA, 0), initial(LLAMA, 1)
    expected = []
    for kind in ("query", "key", "value", "output"):
        actual, reference = (
            [np.std(layer, ddof=1) for layer in np.asarray(params["blocks"]["attention"][kind]["kernel"], float)]
            for params in (a, b)
        )
        expected.append(np.corrcoef(actual, reference)[0, 1])
    score = baselines.intrinsic(a, b)
    assert score.value == pytest.approx(np.mean(expected), abs=1e-10)
    assert baselines.intrinsic(a, a).value == pytest.approx(1.0) and baselines.intrinsic(a, a).same is True


def test_intrinsic_stretches_the_shorter_profile():
    a, b = initial(LLAMA, 0), initial(LLAMA.replace(num_layers=7), 0)
    expected = []
    for kind in ("query", "key", "value", "output"):
        kernels = [np.asarray(params["blocks"]["attention"][kind]["kernel"], float) for params in (a, b)]
        short, long = (kernel.reshape(len(kernel), -1).std(axis=1, ddof=1) for kernel in kernels)
        expected.append(np.corrcoef(np.interp(np.arange(7) / 2, np.arange(4), short), long)[0, 1])
    assert baselines.intrinsic(a, b).value == pytest.approx(np.mean(expected), abs=1e-10)
    first = initial(LLAMA.replace(num_layers=1), 0)
    assert baselines.intrinsic(first, first).value is None
    no_attention = initial(GPT2.replace(attention=False), 0)
    assert baselines.intrinsic(no_attention, first).value is None


def test_pcs_is_the_cosine_of_everything():
    a, b = initial(GPT2, 0), jittered(initial(GPT2, 0), 0.5)
    actual, reference = (
        np.concatenate([np.asarray(leaf, float).ravel() for _, leaf in sorted(models.flatten(p).items())])
        for p in (a, b)
    )
    expected = actual @ reference / np.linalg.norm(actual) / np.linalg.norm(reference)
    score = baselines.pcs(a, b)
    assert score.value == pytest.approx(expected, rel=1e-10)
    assert score.detail["without_embeddings"] != pytest.approx(expected, rel=1e-6)
    assert baselines.pcs(a, a).value == pytest.approx(1.0, abs=1e-12)
    other = baselines.pcs(a, initial(GPT2.replace(d_ff=41), 0))
    assert other.value is None and "shapes" in other.reason


@pytest.mark.parametrize("cfg", [LLAMA, GPT2])
def test_ics_matrices_are_their_definitions_head_by_head(cfg):
    params, ids = initial(cfg, 3), np.array([3, 50, 7, 89])
    x = np.asarray(params["embed"]["embedding"], float)[ids]
    matrices = list(invariants(cfg, params, ids))
    assert len(matrices) == 6
    width, group = cfg.key_dim, cfg.num_heads // cfg.kv_heads
    for at, layer in enumerate(range(cfg.num_layers - 2, cfg.num_layers)):
        block = {
            name: np.asarray(params["blocks"]["attention"][name]["kernel"][layer], float)
            for name in ("query", "key", "value", "output")
        }
        m_a, m_b = np.zeros((4, 4)), np.zeros((4, 4))
        for head in range(cfg.num_heads):
            q = slice(head * width, (head + 1) * width)
            kv = slice(head // group * width, (head // group + 1) * width)
            m_a += x @ block["query"][:, q] @ block["key"][:, kv].T @ x.T
            m_b += x @ block["value"][:, kv] @ block["output"][q] @ x.T
        mlp = {name: np.asarray(kernel["kernel"][layer], float) for name, kernel in params["blocks"]["mlp"].items()}
        inner = mlp["up"] * mlp["gate"] if cfg.gated_mlp else mlp["up"]
        m_f = x @ inner @ mlp["down"] @ x.T
        for got, expected in zip(matrices[3 * at : 3 * at + 3], (m_a, m_b, m_f), strict=True):
            np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_ics_is_the_cosine_of_the_stacked_z_scores():
    a, b, ids = initial(LLAMA, 0), jittered(initial(LLAMA, 0), 0.3), np.arange(90)
    stacks = []
    for params in (a, b):
        matrices = [m.astype(float) for m in invariants(LLAMA, params, ids)]
        stacks.append(np.concatenate([((m - m.mean()) / m.std()).ravel() for m in matrices]))
    expected = stacks[0] @ stacks[1] / np.linalg.norm(stacks[0]) / np.linalg.norm(stacks[1])
    assert baselines.ics(LLAMA, a, LLAMA, b).value == pytest.approx(expected, rel=1e-6)


def test_ics_sees_through_a_rotation_of_heads():
    params = initial(GPT2, 5)
    rng = np.random.default_rng(0)
    attention = {name: np.asarray(leaf["kernel"]).copy() for name, leaf in params["blocks"]["attention"].items()}
    rotation = np.linalg.qr(rng.standard_normal((24, 24)))[0].astype(np.float32)
    attention["query"] = attention["query"] @ rotation
    attention["key"] = attention["key"] @ rotation
    blocks = {**params["blocks"], "attention": {name: {"kernel": leaf} for name, leaf in attention.items()}}
    rotated = {**params, "blocks": blocks}
    assert baselines.ics(GPT2, params, GPT2, rotated).value == pytest.approx(1.0, abs=1e-5)


def test_ics_of_other_widths_and_depths():
    wide = LLAMA.replace(d_model=32)
    score = baselines.ics(LLAMA, initial(LLAMA, 0), wide, initial(wide, 0))
    assert abs(score.value) < 0.5 and score.detail["num_tokens"] == 90
    shallow = LLAMA.replace(num_layers=1)
    assert baselines.ics(LLAMA, initial(LLAMA, 0), shallow, initial(shallow, 0)).value is None


def fisher(p_values):
    """As the published code combines them."""
    return stats.chi2.sf(-2 * np.log(p_values).sum(), df=2 * len(p_values))


def matched_by_cosine(a_Fn, b_Fn):
    return linear_sum_assignment(cdist(a_Fn.astype(float), b_Fn.astype(float), "cosine"))[1]


@pytest.mark.parametrize("fraction", [None, 6.0, 3.5])
def test_phi_u_is_its_definition(fraction):
    a = initial(CFG, 0)
    b = initial(CFG, 1) if fraction is None else jittered(a, fraction, seed=77)
    p_values, correlations = [], []
    for layer in range(3):
        rows = [np.asarray(params["blocks"]["mlp"]["up"]["kernel"][layer]).T for params in (a, b)]
        rho, p = stats.spearmanr(matched_by_cosine(*rows), np.arange(20))
        p_values.append(p)
        correlations.append(rho)
    score = phi_u(CFG, a, CFG, b)
    assert score.value == pytest.approx(np.mean(correlations))
    assert 10**score.log10_p == pytest.approx(fisher(p_values), rel=1e-6)
    assert score.same == (fisher(p_values) < 0.01)
    assert score.to_json()["log10_p"] == score.log10_p and "log10_p" not in baselines.pcs(a, b).to_json()


def test_phi_u_of_a_copy_does_not_underflow_and_is_bounded_by_the_orders():
    a = initial(CFG, 0)
    score = phi_u(CFG, a, CFG, a)
    least = (math.log(2) - math.lgamma(21)) / tails.LN10
    assert score.value == 1.0 and score.same
    assert score.detail["log10_p_by_block"] == pytest.approx([least] * 3)
    # e^{−x}(1 + x + x²/2) with x = −3 ln p.
    x = -3 * least * tails.LN10
    assert score.log10_p == pytest.approx((-x + math.log(1 + x + x * x / 2)) / tails.LN10)


def test_what_phi_is_not_defined_for():
    a = initial(CFG, 0)
    for other, word in ((CFG.replace(d_model=32), "widths"), (CFG.replace(d_ff=24), "hidden units"),
                        (CFG.replace(num_layers=2), "blocks"), (CFG.replace(mlp=False), "without an MLP")):  # fmt: skip
        score = phi_u(CFG, a, other, initial(other, 1))
        assert score.value is None and score.same is None and word in score.reason
    for width in (1, 2):
        narrow = CFG.replace(d_ff=width)
        score = phi_u(narrow, initial(narrow, 0), narrow, initial(narrow, 1))
        assert score.value is None and score.reason == "fewer than three hidden units have no order to test"


def unbiased_hsic(k_nn, l_nn):
    """The estimator of Song et al. (2012), term by term."""
    k_nn, l_nn = k_nn - np.diag(np.diag(k_nn)), l_nn - np.diag(np.diag(l_nn))
    n, first = len(k_nn), np.ones(len(k_nn))
    total = np.trace(k_nn @ l_nn)
    total += (first @ k_nn @ first) * (first @ l_nn @ first) / ((n - 1) * (n - 2))
    return (total - 2 / (n - 2) * (first @ k_nn @ l_nn @ first)) / (n * (n - 3))


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
                actual, reference = (
                    np.asarray(params["blocks"]["attention"][kind]["kernel"][layer], float)
                    for params, layer in ((a, i), (b, j))
                )
                every[at, i, j] = cka(np.diag(sign) @ actual[chosen], reference)
    if depth_a == depth_b:
        return np.mean([every[:, i, i] for i in range(depth_a)])
    pairs = linear_sum_assignment(-every.mean(axis=0))
    return every[:, pairs[0], pairs[1]].mean()


def test_awm_is_its_definition():
    a, b = initial(CFG, 0), initial(CFG, 1)
    score = awm(CFG, a, CFG, b)
    assert score.value == pytest.approx(awm_reference(a, b, 3, 3), abs=1e-9)
    z = (score.value - 0.00375) / 0.0028
    assert score.detail["z"] == pytest.approx(z)
    assert 10**score.log10_p == pytest.approx(2 * stats.norm.sf(abs(z)), rel=1e-6)
    assert awm(CFG, a, CFG, a).value == pytest.approx(1.0, abs=1e-6) and awm(CFG, a, CFG, a).log10_p < -1000
    shallow, narrow = CFG.replace(num_layers=2), CFG.replace(d_model=16)
    c, d = initial(shallow, 2), initial(narrow, 3)
    assert awm(CFG, a, shallow, c).value == pytest.approx(awm_reference(a, c, 3, 2), abs=1e-9)
    assert awm(CFG, a, narrow, d).value == pytest.approx(awm_reference(a, d, 3, 3), abs=1e-9)
    # The wider model is the one that is matched into, whichever comes first.
    assert awm(narrow, d, CFG, a).value == awm(CFG, a, narrow, d).value
    silent = CFG.replace(attention=False)
    assert awm(CFG, a, silent, initial(silent, 0)).value is None


def test_awm_sees_through_permuted_and_negated_coordinates():
    a = initial(CFG, 0)
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
