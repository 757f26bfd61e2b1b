import numpy as np
import pytest

from bornbiased_jax import model as models
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import baselines
from bornbiased_jax.lineage.baselines import pcs, reef
from bornbiased_jax.lineage.baselines.ics import invariants
from bornbiased_jax.lineage.baselines.intrinsic import profiles, stretched
from bornbiased_jax.lineage.baselines.reef import PUBLISHED_DEPTH, block_at
from bornbiased_jax.lineage.baselines.score import Score
from bornbiased_jax.probes import inputs
from tests.lineage.pairs import born, jittered

LLAMA = preset("qwen-tiny", num_layers=4, d_model=24, num_heads=4, num_kv_heads=2, d_ff=20, vocab_size=90)
GPT2 = preset("gpt2-tiny", num_layers=3, d_model=24, num_heads=4, d_ff=40, vocab_size=90)


def test_intrinsic_is_the_mean_correlation_of_the_profiles():
    a, b = born(LLAMA, 0), born(LLAMA, 1)
    expected = []
    for kind in ("query", "key", "value", "output"):
        ours, theirs = (
            [np.std(layer, ddof=1) for layer in np.asarray(params["blocks"]["attention"][kind]["kernel"], float)]
            for params in (a, b)
        )
        expected.append(np.corrcoef(ours, theirs)[0, 1])
    found = baselines.intrinsic(a, b)
    assert found.value == pytest.approx(np.mean(expected), abs=1e-10)
    assert baselines.intrinsic(a, a).value == pytest.approx(1.0) and baselines.intrinsic(a, a).same is True


def test_intrinsic_stretches_the_shorter_profile():
    assert stretched(np.array([0.0, 1.0, 4.0]), 5).tolist() == [0.0, 0.5, 1.0, 2.5, 4.0]
    found = baselines.intrinsic(born(LLAMA, 0), born(LLAMA.replace(num_layers=7), 0))
    assert found.value is not None and -1 <= found.value <= 1
    one = born(LLAMA.replace(num_layers=1), 0)
    assert baselines.intrinsic(one, one).value is None
    no_attention = born(GPT2.replace(attention=False), 0)
    assert profiles(no_attention) is None and baselines.intrinsic(no_attention, one).value is None


def test_pcs_is_the_cosine_of_everything():
    a, b = born(GPT2, 0), jittered(born(GPT2, 0), 0.5)
    ours, theirs = (
        np.concatenate([np.asarray(leaf, float).ravel() for _, leaf in sorted(models.flatten(p).items())])
        for p in (a, b)
    )
    expected = ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs)
    found = baselines.pcs(a, b)
    assert found.value == pytest.approx(expected, rel=1e-10)
    assert found.detail["without_embeddings"] != pytest.approx(expected, rel=1e-6)
    assert baselines.pcs(a, a).value == pytest.approx(1.0, abs=1e-12)
    other = baselines.pcs(a, born(GPT2.replace(d_ff=41), 0))
    assert other.value is None and "shapes" in other.reason


@pytest.mark.parametrize("cfg", [LLAMA, GPT2])
def test_ics_matrices_are_their_definitions_head_by_head(cfg):
    params, ids = born(cfg, 3), np.array([3, 50, 7, 89])
    x = np.asarray(params["embed"]["embedding"], float)[ids]
    found = list(invariants(cfg, params, ids))
    assert len(found) == 6
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
        for got, expected in zip(found[3 * at : 3 * at + 3], (m_a, m_b, m_f), strict=True):
            np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_ics_is_the_cosine_of_the_stacked_z_scores():
    a, b, ids = born(LLAMA, 0), jittered(born(LLAMA, 0), 0.3), np.arange(40, 90)
    stacks = []
    for params in (a, b):
        matrices = [m.astype(float) for m in invariants(LLAMA, params, ids)]
        stacks.append(np.concatenate([((m - m.mean()) / m.std()).ravel() for m in matrices]))
    expected = stacks[0] @ stacks[1] / np.linalg.norm(stacks[0]) / np.linalg.norm(stacks[1])
    assert baselines.ics(LLAMA, a, LLAMA, b, token_ids=ids).value == pytest.approx(expected, rel=1e-6)


def test_ics_sees_through_a_rotation_of_heads():
    params = born(GPT2, 5)
    rng = np.random.default_rng(0)
    attention = {name: np.asarray(leaf["kernel"]).copy() for name, leaf in params["blocks"]["attention"].items()}
    rotation = np.linalg.qr(rng.standard_normal((24, 24)))[0].astype(np.float32)
    attention["query"] = attention["query"] @ rotation
    attention["key"] = attention["key"] @ rotation
    blocks = {**params["blocks"], "attention": {name: {"kernel": leaf} for name, leaf in attention.items()}}
    rotated = {**params, "blocks": blocks}
    assert baselines.ics(GPT2, params, GPT2, rotated).value == pytest.approx(1.0, abs=1e-5)
    assert baselines.pcs(params, params).value == pytest.approx(1.0)


def test_ics_of_other_widths_and_bad_ids():
    wide = LLAMA.replace(d_model=32)
    found = baselines.ics(LLAMA, born(LLAMA, 0), wide, born(wide, 0))
    assert abs(found.value) < 0.5 and found.detail["num_tokens"] == 90
    with pytest.raises(InputError, match="ICS needs"):
        baselines.ics(LLAMA, born(LLAMA, 0), LLAMA, born(LLAMA, 0), token_ids=np.array([3, 90]))
    shallow = LLAMA.replace(num_layers=1)
    assert baselines.ics(LLAMA, born(LLAMA, 0), shallow, born(shallow, 0)).value is None
    assert baselines.rare_tokens(4098)[[0, -1]].tolist() == [2, 4097]


@pytest.mark.parametrize("shape", [(12, 30, 20), (60, 10, 8)])
def test_cka_is_its_definition(shape):
    num, wide, wider = shape
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((num, wide)), rng.standard_normal((num, wider))
    centre = np.eye(num) - np.full((num, num), 1 / num)
    k, m = centre @ x @ x.T @ centre, centre @ y @ y.T @ centre
    expected = (k * m).sum() / np.sqrt((k * k).sum() * (m * m).sum())
    assert baselines.linear_cka(x, y) == pytest.approx(expected, rel=1e-10)
    turned = x @ np.linalg.qr(rng.standard_normal((wide, wide)))[0] * 3 + 5
    assert baselines.linear_cka(x, turned) == pytest.approx(1.0, abs=1e-10)
    assert np.isnan(baselines.linear_cka(np.ones_like(x), y))
    with pytest.raises(InputError, match="same inputs"):
        baselines.linear_cka(x, y[:-1])


@pytest.mark.slow
def test_reef_reads_the_block_at_a_fraction_of_the_depth():
    assert [block_at(layers, PUBLISHED_DEPTH) for layers in (32, 12, 4, 1)] == [18, 7, 2, 1]
    x = inputs.random_tokens(30, 5, 90)
    params = born(LLAMA, 0)
    features = baselines.reef_features(LLAMA, params, x)
    direct = models.apply(LLAMA, params, x.batch(0, 30), logits=False, capture=("residual",))
    np.testing.assert_allclose(features, direct.layers["residual"][1][:, -1], rtol=0, atol=1e-5)
    assert baselines.reef(features, features).value == pytest.approx(1.0)
    constant = baselines.reef(np.ones((30, 4)), features)
    assert constant.value is None and constant.same is None


@pytest.mark.slow
def test_empirical_null_of_pcs_finds_what_the_threshold_misses():
    # Norm scales of 1, which all births share, would lift every cosine of so small a model above 0.8.
    cfg = GPT2.replace(norm="none")
    births = [models.init_seed(cfg, seed) for seed in range(40)]
    null = np.array([baselines.pcs(*pair).value for pair in zip(births[::2], births[1::2], strict=True)])
    scaled = baselines.pcs(*(models.init_seed(GPT2, seed) for seed in (1, 2)))
    assert abs(scaled.value) > 0.8 > np.abs(null).max()
    birth, fresh = (models.init_seed(cfg, seed) for seed in (99, 98))
    far = baselines.pcs(birth, jittered(birth, 1.5))
    found = baselines.against_null(far, null)
    assert far.same is False and found["same_at_0.8"] is False
    assert found["p_value"] == pytest.approx(1 / 21) and found["z"] > 5 and found["log10_p"] < -3
    other = baselines.against_null(baselines.pcs(birth, fresh), null)
    assert other["p_value"] > 1 / 21


def test_nulls_that_do_not_exist():
    nothing = baselines.against_null(Score("pcs", None, "because"), np.array([0.1]))
    assert nothing["p_value"] is None and nothing["reason"] == "because"
    flat = baselines.against_null(Score("pcs", 0.5), np.array([0.1, np.nan, 0.1]))
    assert flat["z"] is None and flat["p_value"] == pytest.approx(1 / 3)


def test_pcs_by_hand():
    tree = lambda *numbers: {  # noqa: E731
        "embed": {"embedding": np.array([[numbers[0]]])},
        "blocks": {"mlp": {"up": {"kernel": np.array([[numbers[1], numbers[2]]])}}},
    }
    found = pcs(tree(1.0, 2.0, 2.0), tree(2.0, 1.0, 2.0))
    # (1·2 + 2·1 + 2·2)/(3·3), and without the table (2·1 + 2·2)/(√8·√5).
    assert found.value == pytest.approx(8 / 9)
    assert found.detail["without_embeddings"] == pytest.approx(6 / np.sqrt(40))


def test_reef_by_hand():
    # Standardised: x = (−1, 0, 1)·√1.5 alone against y = (1, −2, 1)/√2 and x: HSIC = ‖xᵀy‖² over all columns.
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
