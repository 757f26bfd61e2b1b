"""Outliers against NumPy on the captured states, and planted ones that must be found."""

import tracemalloc

import jax
import numpy as np
import pytest

from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed
from bornbiased_jax.model import ForwardOptions
from bornbiased_jax.model.interventions import Neuron, silence
from bornbiased_jax.probes import batching, outliers
from bornbiased_jax.probes.outliers import dom_ratio, effective_rank, measure_outliers, super_neurons
from tests.model.forward import apply
from tests.tiers import nightly_except

L, D, F, N, T = 3, 32, 40, 7, 6


@pytest.fixture(scope="module")
def model():
    cfg = preset("llama-tiny", num_layers=L, d_model=D, vocab_size=61, d_ff=F, num_heads=4)
    params = init_seed(cfg, 0)
    params = jax.tree.map(lambda leaf: np.asarray(leaf) * (10.0 if leaf.ndim > 2 else 1.0), params)
    return cfg, params, np.random.default_rng(0).integers(0, 61, (N, T))


def test_dom_ratio():
    assert dom_ratio(np.array([3.0, -3.0, 3.0])) == 1.0
    assert dom_ratio(np.eye(8)[2]) == 8.0
    np.testing.assert_allclose(dom_ratio(np.array([[1.0, -5.0, 0.0, 2.0]])), [2.5])


def test_effective_rank():
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((D, D)))[0]
    assert effective_rank(np.eye(D)) == pytest.approx(D)
    assert effective_rank(np.outer(basis[0], basis[0])) == pytest.approx(1.0, abs=1e-6)
    # Five equal directions count as five, in any basis and at any scale.
    assert effective_rank(1e6 * basis[:, :5] @ basis[:, :5].T) == pytest.approx(5.0, abs=1e-5)
    x = rng.standard_normal((100, D)) * rng.uniform(0, 3, D)
    p = np.linalg.svd(x, compute_uv=False)
    p = p / p.sum()
    assert effective_rank(x.T @ x) == pytest.approx(np.exp(-np.sum(p * np.log(p))), rel=1e-9)
    assert np.isnan(effective_rank(np.zeros((3, 3))))


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", nightly_except([2, 7], 2))
def test_statistics_equal_numpy(model, batch_size, monkeypatch):
    monkeypatch.setattr(outliers, "_RANK_ROWS", 5 * T)
    cfg, params, tokens = model
    monkeypatch.setattr(batching, "batch_size_for", lambda *sizes: batch_size)
    actual = measure_outliers(cfg, params, tokens)
    h = np.asarray(apply(cfg, params, tokens, capture=("residual",)).layers["residual"], np.float64)
    size = np.abs(h)
    np.testing.assert_allclose(actual.largest_L, size.max((1, 2, 3)), rtol=1e-5)
    for layer, at in enumerate(actual.largest_at_L3):
        assert size[layer][tuple(at)] == pytest.approx(actual.largest_L[layer], rel=1e-5)
    np.testing.assert_allclose(actual.dom_ratio_LT, dom_ratio(h).mean(1), rtol=1e-5)
    np.testing.assert_allclose(actual.first_LD, size[:, :, 0].mean(1), rtol=1e-4)
    np.testing.assert_allclose(actual.rest_LD, size[:, :, 1:].mean((1, 2)), rtol=1e-4)
    assert actual.rank_rows == 5 * T
    for layer in range(L):
        rows = h[layer, :5].reshape(-1, D)
        # Singular values in float64 of states that agree to float32 rounding.
        assert actual.effective_rank_L[layer] == pytest.approx(effective_rank(rows.T @ rows), rel=1e-4)
    assert not actual.massive_L.any()


def test_a_planted_massive_activation_is_found(model, monkeypatch):
    """The embedding of one token carries 500 in channel 9: massive in the two sequences that hold it."""
    cfg, params, tokens = model
    tokens = np.where(tokens == 3, 4, tokens)
    tokens[1, 4] = tokens[5, 2] = 3
    table = np.array(params["embed"]["embedding"])
    table[3, 9] = 500.0
    small = {**params, "embed": {"embedding": table}}
    blocks = jax.tree.map(lambda leaf: leaf * 0.1, params["blocks"])
    small["blocks"] = {**blocks, "attention_norm": params["blocks"]["attention_norm"]}
    monkeypatch.setattr(batching, "batch_size_for", lambda *sizes: 3)
    outliers = measure_outliers(cfg, small, tokens)
    np.testing.assert_allclose(outliers.massive_L, 2 / N)
    for at in outliers.largest_at_L3:
        assert tuple(at[1:]) in ((4, 9), (2, 9)) and at[0] in (1, 5)


def planted(gated: bool):
    """A stack that sees nothing but whether a token stands first, and a neuron that fires there alone.

    A constant channel 0 is 1; attention is uniform and averages channel 1, which is +1 at the first token of
    every sequence and 0 elsewhere, so its output is 1/i; the neuron fires where that is above 0.6.
    """
    cfg = preset(
        "gpt2-tiny",
        num_layers=2,
        num_heads=1,
        d_model=8,
        d_ff=16,
        vocab_size=9,
        norm="none",
        positions="none",
        bias=False,
        activation="relu",
        gated_mlp=gated,
    )
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), init_seed(cfg, 0))
    table = np.zeros((9, 8), np.float32)
    table[:, 0] = 1.0
    table[0, 1] = 1.0
    params["embed"]["embedding"] = table
    attention, mlp = params["blocks"]["attention"], params["blocks"]["mlp"]
    attention["value"]["kernel"][0, 1, 0] = 1.0
    attention["output"]["kernel"][0, 0, 2] = 1.0
    for name in ("gate", "up") if gated else ("up",):
        # Idle neurons read channels that are always 0, or always 1 in the second block, with columns of norm 1.
        mlp[name]["kernel"][0, 5] = mlp[name]["kernel"][1, 0] = 1.0
        mlp[name]["kernel"][1, :, 11] = 0.0
        mlp[name]["kernel"][1, [0, 2], 11] = (-6.0, 10.0)
    mlp["down"]["kernel"][:] = 0.01 * rng.standard_normal((2, 16, 8))
    mlp["down"]["kernel"][1, 11] = [0, 0, 0, 0, 0, 0, -20.0, 1.0]
    tokens = np.concatenate([np.zeros((4, 1), int), rng.integers(1, 9, (4, 5))], axis=1)
    return cfg, params, tokens


@pytest.mark.parametrize("gated", [False, True])
def test_a_planted_super_neuron_is_found(gated, monkeypatch):
    cfg, params, tokens = planted(gated)
    monkeypatch.setattr(batching, "batch_size_for", lambda *sizes: 3)
    neurons = super_neurons(cfg, params, tokens)
    best = neurons[0]
    assert (best["block"], best["neuron"], best["channel"]) == (2, 11, 6)
    assert best["super"] and [neuron["super"] for neuron in neurons[1:]] == [False] * 9
    # 10·1 − 6 = 4 at the first position (16 when the gate multiplies), nothing where 10/i < 6.
    fires = 16.0 if gated else 4.0
    assert best["first"] == pytest.approx(fires) and best["rest"] == 0.0 and best["firing_ratio"] is None
    assert best["write"] == pytest.approx(-20.0 * fires)
    assert best["channel_share"] == pytest.approx(400 / 401)
    assert best["channels"] == pytest.approx(401**2 / (400**2 + 1))
    assert best["up_norm_ratio"] == pytest.approx(np.sqrt(136))
    assert (best["gate_norm_ratio"] is not None) == gated
    # A higher bar on the norm refuses it.
    monkeypatch.setattr(outliers, "_NORM_RATIO", 12.0)
    assert not super_neurons(cfg, params, tokens, top=1)[0]["super"]


def test_neurons_with_a_row_of_zeros_write_nothing_and_are_left_out():
    """As every neuron of a scheme whose projections begin at zero."""
    cfg, params, tokens = planted(gated=False)
    params["blocks"]["mlp"]["down"]["kernel"][:, :9] = 0.0
    neurons = super_neurons(cfg, params, tokens, top=32)
    assert len(neurons) == 7 and min(neuron["neuron"] for neuron in neurons) == 9
    assert np.isfinite([neuron["channels"] for neuron in neurons]).all()
    # A neuron that never fires writes nothing either, however long its column.
    params["blocks"]["mlp"]["up"]["kernel"][1, 0, 12] = -50.0
    assert len(super_neurons(cfg, params, tokens, top=32)) == 6
    params["blocks"]["mlp"]["down"]["kernel"][:] = 0.0
    assert super_neurons(cfg, params, tokens) == []


@pytest.mark.slow
def test_writes_are_what_the_residual_stream_lacks_without_the_neuron():
    """Granite multiplies what a sublayer writes."""
    cfg = preset("llama-tiny", num_layers=1, d_model=D, vocab_size=61, d_ff=F, num_heads=4, residual_scale=0.25)
    params, tokens = init_seed(cfg, 0), np.random.default_rng(0).integers(0, 61, (N, T))
    (best,) = super_neurons(cfg, params, tokens, top=1)
    edit = silence(cfg, [Neuron(best["block"], best["neuron"])])
    with_it, without = (
        apply(cfg, params, tokens, capture=("residual",), options=ForwardOptions(edit=edits)).layers["residual"]
        for edits in (None, edit)
    )
    written = np.asarray(with_it - without)[0, :, 0, best["channel"]].mean()
    assert best["write"] == pytest.approx(written, rel=1e-3)


def test_norms_of_mostly_pruned_neurons_are_those_of_the_others():
    kernels = np.zeros((3, 2, 5))
    kernels[0, 0, :2] = 1.0, 3.0
    kernels[1, 0] = 1.0, 2.0, 4.0, 0.0, 0.0
    ratio_LF = outliers._norm_ratio(preset("llama-tiny", num_layers=3), lambda layer: kernels[layer])
    assert ratio_LF.tolist() == [[0.5, 1.5, 0, 0, 0], [1, 2, 4, 0, 0], [0] * 5]


def test_inputs_that_do_not_fit(model):
    cfg, params, tokens = model
    with pytest.raises(InputError, match="outside the model's vocabulary"):
        measure_outliers(cfg, params, tokens + 61)
    with pytest.raises(InputError, match="no super neurons"):
        super_neurons(cfg.replace(mlp=False), params, tokens)
    with pytest.raises(InputError, match="at least 2"):
        super_neurons(cfg, params, tokens[:, :1])


@pytest.mark.parametrize(
    ("largest", "median", "massive"),
    [
        (99.0, 0.01, False),  # a thousand times the median, but not above 100
        (100.0, 0.01, False),
        (101.0, 0.01, True),
        (150.0, 0.15, False),  # above 100, but a thousand times the median exactly
        (151.0, 0.15, True),
        (5000.0, 6.0, False),
    ],
)
def test_massive_means_above_100_and_a_thousand_medians(largest, median, massive, monkeypatch):
    """Sun et al. (2024): both conditions, in each sequence; here in one of two sequences of the second block."""
    cfg = preset("llama-tiny", num_layers=2, d_model=4, num_heads=1, vocab_size=9)
    quiet = np.full((2, 2), 1.0)
    observed = {"largest": np.array([[1.0, 1.0], [largest, 1.0]]), "median": np.array([[1.0, 1.0], [median, 1.0]])}
    observed |= {"at": np.zeros((2, 2), int), "ratio": quiet, "first": np.ones((2, 4)), "all": np.ones((2, 4))}
    monkeypatch.setattr(batching, "forward_batches", lambda *arguments: iter([observed]))
    outliers = measure_outliers(cfg, {}, np.ones((2, 2), int))
    assert outliers.massive_L.tolist() == [0.0, 0.5 if massive else 0.0]


@pytest.mark.parametrize(
    ("first", "rest", "up", "gate", "is_super"),
    [
        (10.0, 1.0, 2.0, 1.0, True),  # both bars are reached exactly
        (9.9, 1.0, 2.0, 1.0, False),
        (10.0, 1.0, 1.9, 1.0, False),
        (10.0, 1.0, 1.0, 2.0, True),  # either column may be heavy
        (10.0, 1.0, 1.9, 1.9, False),
        (0.5, 0.0, 2.0, 1.0, True),  # silent elsewhere: no ratio, and it fires
    ],
)
def test_super_means_ten_times_the_others_and_twice_the_median_norm(first, rest, up, gate, is_super, monkeypatch):
    """Neuron 2 of five, two sequences of four tokens; the other neurons have columns of norm 1 and write little."""
    cfg = preset("llama-tiny", num_layers=1, d_model=3, num_heads=1, head_dim=2, d_ff=5, vocab_size=9)
    columns = {name: np.zeros((1, 3, 5)) for name in ("up", "gate")}
    for name, norm in (("up", up), ("gate", gate)):
        columns[name][0, 0] = 1.0
        columns[name][0, 0, 2] = norm
    down = np.full((1, 5, 3), 0.01)
    down[0, 2] = [0.0, -2.0, 1.0]
    params = {"blocks": {"mlp": {**{k: {"kernel": v} for k, v in columns.items()}, "down": {"kernel": down}}}}
    signed, size, others = (np.zeros((1, 5)) for _ in range(3))
    # Sums over two sequences: a mean of −first, and over six other positions.
    signed[0, 2], size[0, 2], others[0, 2] = -2 * first, 2 * first, 6 * rest
    monkeypatch.setattr(batching, "forward_batches", lambda *arguments: iter([(signed, size, others)]))
    neuron = super_neurons(cfg, params, np.ones((2, 4), int), top=1)[0]
    assert (neuron["block"], neuron["neuron"], neuron["channel"], neuron["super"]) == (1, 2, 1, is_super)
    assert (neuron["first"], neuron["rest"]) == (pytest.approx(first), pytest.approx(rest))
    assert neuron["firing_ratio"] == (pytest.approx(first / rest) if rest else None)
    assert neuron["write"] == pytest.approx(2 * first)
    assert neuron["channel_share"] == pytest.approx(4 / 5)
    assert (neuron["up_norm_ratio"], neuron["gate_norm_ratio"]) == (pytest.approx(up), pytest.approx(gate))


@pytest.mark.slow
def test_no_copy_of_all_blocks_is_made():
    """Of the weights and the states: in float64 either would take more than the model, which has 12 blocks."""
    cfg = preset("llama-tiny", num_layers=12, d_model=64, vocab_size=61, d_ff=512, num_heads=4)
    params = init_seed(cfg, 0)
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(params["blocks"]["mlp"]))
    tokens_NT = np.zeros((4, 64), int)
    states = 4 * cfg.num_layers * tokens_NT.size * cfg.d_model
    for measured, most in (
        (lambda: super_neurons(cfg, params, tokens_NT), weights // 2),
        # What is returned of a batch, with the sums over D x D; half of the states is less than their float64.
        (lambda: measure_outliers(cfg, params, tokens_NT), 2 * states + 8 * cfg.num_layers * cfg.d_model**2),
    ):
        measured()  # compiled
        tracemalloc.start()
        try:
            measured()
            assert tracemalloc.get_traced_memory()[1] < most
        finally:
            tracemalloc.stop()
