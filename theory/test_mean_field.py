"""Mean field against what was established before, its own limits, and the closed forms it contains."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bornbiased_jax.theory import attention, attention_weights, mlp, positions, seeds, sublayers, variance
from bornbiased_jax.theory.mean_field import MeanFieldProfile, Stack, profile


def gpt2(layers: int, width: int, **changes: object) -> Stack:
    base = Stack(
        num_layers=layers,
        width=width,
        mlp_width=4 * width,
        query_width=width,
        value_width=width,
        output_std=0.02 / math.sqrt(2 * layers),
    )
    return dataclasses.replace(base, **changes)


def averaging(layers: int, width: int = 64) -> Stack:
    """Attn₀ in the limit of small logits: no norm, no residual, no MLP."""
    return gpt2(layers, width, norm="none", residual=False, mlp=False)


def inter_by_position(prediction: MeanFieldProfile) -> np.ndarray:
    """Cosine of position t of two sequences, for every t, [L + 1, T]."""
    return np.stack([prediction.grid.interpolation_Tn @ sublayers.correlation(f.cross_n, f) for f in prediction.layers])


# Established before this code was: uniform attention, no eps, infinite width; printed to three digits.

NANO_64 = [0.099, 0.172, 0.216, 0.244, 0.265, 0.281, 0.294, 0.304, 0.313, 0.320, 0.327, 0.333]
LAST_DIGIT = 5.5e-4


def plain(stack: Stack, length: int) -> np.ndarray:
    prediction = profile(dataclasses.replace(stack, norm_eps=0.0), length, finite=False, uniform=True)
    return prediction.inter_cosine[1:]


def test_nano_layer_by_layer() -> None:
    np.testing.assert_allclose(plain(gpt2(12, 768), 64), NANO_64, atol=LAST_DIGIT)


@pytest.mark.long
@pytest.mark.parametrize(
    ("layers", "width", "length", "cosine"),
    [
        (12, 768, 256, 0.399),
        (12, 768, 1024, 0.446),
        (24, 2048, 64, 0.461),
        (24, 2048, 256, 0.531),
        (24, 2048, 1024, 0.593),
    ],
)
def test_other_lengths_and_sizes(layers: int, width: int, length: int, cosine: float) -> None:
    assert plain(gpt2(layers, width), length)[-1] == pytest.approx(cosine, abs=LAST_DIGIT)


def test_ablations() -> None:
    assert plain(gpt2(12, 768, attention=False), 1)[-1] == pytest.approx(0.238, abs=LAST_DIGIT)
    np.testing.assert_array_equal(plain(gpt2(12, 768, mlp=False), 64), 0.0)


# What the stack contains.


@given(length=st.integers(2, 40), layers=st.integers(1, 6))
@settings(max_examples=8)
def test_averaging_is_proposition_5(length: int, layers: int) -> None:
    cosine = profile(averaging(layers), length, uniform=True).intra_cosine[layers]
    with_itself = float(attention.prop5_exact(length, layers)[-1])
    pairs = (length * with_itself - 1) / (length - 1)
    assert cosine == pytest.approx(pairs, abs=1e-10)


@given(length=st.integers(2, 60), data=st.data())
@settings(max_examples=8)
def test_positions_do_not_see_what_follows_them(length: int, data: st.DataObject) -> None:
    """Position t of a longer sequence is the last position of one of length t."""
    place = data.draw(st.integers(1, length))
    stack = gpt2(3, 64, activation="relu", position_std=data.draw(st.sampled_from([0.0, 0.02])))
    full, part = profile(stack, length), profile(stack, place)
    np.testing.assert_allclose(inter_by_position(full)[:, place - 1], part.inter_cosine, atol=1e-12)
    np.testing.assert_allclose(full.variance[:, :place], part.variance, rtol=1e-10)


@given(layers=st.integers(1, 6), width=st.integers(1, 4))
@settings(max_examples=6)
def test_relu_without_norm_and_residual_is_proposition_2(layers: int, width: int) -> None:
    stack = gpt2(layers, 512 * width, norm="none", residual=False, attention=False, activation="relu")
    rho, expected = 0.0, []
    for _ in range(layers):
        rho = float(mlp.relu_map(rho))
        expected.append(rho)
    np.testing.assert_allclose(profile(stack, 1, finite=False).inter_cosine[1:], expected, atol=1e-12)


@pytest.mark.parametrize("activation", ["tanh", "identity"])
def test_odd_activations_do_not_contract(activation: str) -> None:
    prediction = profile(gpt2(4, 64, activation=activation), 8)
    np.testing.assert_allclose(prediction.inter_cosine, 0.0, atol=1e-12)


def test_corrections_vanish_with_width() -> None:
    """In ρ at a fixed pre-activation std, as the width grows the finite-width correction falls as 1/D."""
    gaps = []
    for width in (256, 512, 1024):
        std = 0.5 / math.sqrt(width)
        stack = gpt2(2, width, weight_std=std, output_std=std, embedding_std=1.0, norm_eps=0.0, activation="relu")
        gap = profile(stack, 6).inter_cosine[-1] - profile(stack, 6, finite=False).inter_cosine[-1]
        gaps.append(abs(gap) * width)
    np.testing.assert_allclose(gaps, gaps[-1], rtol=0.02)


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("norm", ["layernorm", "none"])
@pytest.mark.parametrize("changes", [{}, {"positional_scale": "amplify"}, {"position_std": 0.3}])
def test_lengths_of_averages_vary_twice_as_their_products(residual: bool, norm: str, changes: dict) -> None:
    """Sums of Gaussian tokens are Gaussian: Var ‖x̃‖² is 2 tr C², Var x̃·x̃' is tr C²; each is followed by itself."""
    stack = Stack(
        num_layers=3,
        width=24,
        value_width=8,
        query_width=8,
        mlp=False,
        residual=residual,
        norm=norm,
        embedding_std=1.0,
        weight_std=0.2,
        output_std=0.3,
    )
    for fields in profile(dataclasses.replace(stack, **changes), 6).layers:
        products = np.diagonal(fields.overlap().own) * fields.variance_n**2
        assert fields.length_n == pytest.approx(2 * products, rel=1e-12)


def test_distant_window_changes_nothing() -> None:
    full, window = gpt2(3, 128, activation="relu"), gpt2(3, 128, activation="relu", window=30)
    np.testing.assert_allclose(profile(window, 30).inter_cosine, profile(full, 30).inter_cosine, atol=1e-12)
    assert profile(window, 60).inter_cosine[-1] < profile(full, 60).inter_cosine[-1]


def test_amplification_flattens_the_variance() -> None:
    """√i undoes σ²/i of independent values; attenuation √(i/T_max) does so at a smaller scale."""
    first = {
        scale: profile(gpt2(1, 64, positional_scale=scale, max_seq_len=32), 32, uniform=True)
        for scale in ("none", "amplify", "attenuate")
    }
    std = {scale: profiled.sublayers[0].aggregated_n for scale, profiled in first.items()}
    places = np.arange(1, 33)
    np.testing.assert_allclose(std["none"] * places, std["none"][0], rtol=1e-10)
    np.testing.assert_allclose(std["amplify"], std["amplify"][0], rtol=1e-10)
    np.testing.assert_allclose(std["attenuate"] * 32, std["amplify"], rtol=1e-10)


@pytest.mark.parametrize(
    ("mitigation", "same"),
    [
        ({}, {}),
        ({"window": 5}, {"window": 5}),
        ({"sink_logit": True}, {"sink_logit": "zero"}),
        ({"attention_kernel": "sigmoid"}, {"attention_kernel": "sigmoid", "max_seq_len": 32}),
        ({"positional_scale": "amplify"}, {"positional_scale": "amplify"}),
        ({"positional_scale": "attenuate"}, {"positional_scale": "attenuate", "max_seq_len": 32}),
        ({"head_norm": True}, {"head_norm": True}),
        ({"output_gate": True}, {"output_gate": "headwise", "gate_std": 0.16}),
    ],
)
def test_every_mitigation_is_that_of_one_layer(mitigation: dict, same: dict) -> None:
    """Uniform attention to independent values of variance 0.02²·64 = 0.16²; gate logits have it, too."""
    stack, grid = gpt2(1, 64, norm_eps=0.0, max_seq_len=32, **mitigation), positions.grid(16, mitigation.get("window"))
    sublayer = profile(stack, 16, uniform=True).sublayers[0]
    np.testing.assert_allclose(sublayer.aggregated_n, variance.output_variance(16, 0.16**2, **same), rtol=1e-9)
    # The mean weight enters covariances, the mean square the variance.
    chosen = {key: value for key, value in same.items() if key in ("window", "sink_logit", "attention_kernel")}
    mean = attention_weights.weights(stack, 0, np.ones(16), np.zeros((16, 16)), grid, uniform=True).mean_n
    np.testing.assert_allclose(mean, variance.initial_weights(16, max_seq_len=32, **chosen)[1], rtol=1e-12)


# The grid of positions.


@pytest.mark.long
@pytest.mark.parametrize(
    "stack",
    [
        gpt2(4, 256, activation="relu"),
        gpt2(3, 256, activation="silu", gated_mlp=True, norm="rmsnorm", output_std=0.02),
        gpt2(3, 256, position_std=0.02),
        gpt2(2, 256, residual=False, activation="relu", positional_scale="amplify"),
    ],
)
def test_a_few_positions_stand_for_all(stack: Stack) -> None:
    few, all_ = profile(stack, 200), profile(stack, 200, exact=True)
    assert few.grid.nodes.size < 70
    np.testing.assert_allclose(few.inter_cosine, all_.inter_cosine, atol=2e-5, rtol=2e-4)
    np.testing.assert_allclose(few.intra_cosine, all_.intra_cosine, atol=2e-4)
    np.testing.assert_allclose(few.variance, all_.variance, rtol=2e-4)
    np.testing.assert_allclose(inter_by_position(few), inter_by_position(all_), atol=2e-4)


@given(length=st.integers(1, 3000))
@settings(max_examples=15)
def test_sums_over_positions(length: int) -> None:
    places = positions.grid(length)
    assert places.nodes[0] == 1 and places.nodes[-1] == length
    assert np.all(np.diff(places.nodes) >= 1)
    np.testing.assert_allclose(places.seen_nn @ np.ones(places.nodes.size), places.nodes, rtol=1e-9)
    harmonic = np.cumsum(1 / np.arange(1, length + 1))[places.nodes.astype(int) - 1]
    np.testing.assert_allclose(places.seen_nn @ (1 / places.nodes), harmonic, rtol=1e-6)


# Bad arguments.


@pytest.mark.parametrize(
    "bad",
    [
        {"num_layers": -1},
        {"width": 0},
        {"mlp_width": 0},
        {"query_width": 0},
        {"value_width": -3},
        {"max_seq_len": 0},
        {"norm_eps": -1e-6},
        {"embedding_std": -0.02},
        {"weight_std": float("nan")},
        {"output_std": float("inf")},
        {"position_std": -1.0},
        {"vocabulary": 0},
        {"activation": "swish"},
        {"norm": "batchnorm"},
        {"norm_position": "middle"},
        {"attention_kernel": "linear"},
        {"positional_scale": "double"},
    ],
)
def test_bad_stacks_are_named(bad: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        dataclasses.replace(gpt2(2, 64), **bad)


def test_bad_lengths_are_named() -> None:
    with pytest.raises(ValueError, match="length"):
        profile(gpt2(1, 64), 0)
    with pytest.raises(ValueError, match="window"):
        profile(gpt2(1, 64, window=0), 8)
    with pytest.raises(ValueError, match="window"):
        profile(gpt2(1, 64, window=8), positions.LARGEST_EXACT + 1)


def test_no_layers_is_the_embedding() -> None:
    prediction = profile(gpt2(1, 64, num_layers=0), 4)
    np.testing.assert_array_equal(prediction.inter_cosine, [0.0])
    np.testing.assert_allclose(prediction.variance, 0.0004)
    # Learned positions are common to all sequences; of two random tokens one in V are the same.
    placed = profile(gpt2(1, 64, num_layers=0, position_std=0.03, vocabulary=50), 4)
    np.testing.assert_allclose(placed.variance, 0.0004 + 0.0009)
    np.testing.assert_allclose(placed.inter_cosine, 9 / 13)
    np.testing.assert_allclose(placed.intra_cosine, 4 / 13 / 50)


def test_products_of_tokens_and_positions_vary_alike_in_any_vocabulary() -> None:
    """By 1/D: positions are no tokens, of which one in V is the same; 1/V more was added."""
    width, count = 64, 100
    rng = np.random.default_rng(0)
    tables, places = rng.standard_normal((500, count, width)), rng.standard_normal((500, width))
    drawn = np.mean(np.einsum("nvd,nd->nv", tables - tables.mean(axis=1, keepdims=True), places) ** 2) / width**2
    stack = gpt2(1, width, num_layers=0, embedding_std=1.0, position_std=1.0, vocabulary=count)
    # The standard error of 500 tables is 1%, and the table's mean takes out 1/V.
    assert profile(stack, 3).layers[0].overlap().lean * 4 == pytest.approx(np.full((3, 3), drawn), rel=0.05)


def test_a_stream_that_vanishes_is_refused() -> None:
    """No norm, no residual, B.1's scaling: the variance falls by 1e-4 to 1e-8 a layer, and float32 loses it, too."""
    bare = dict(norm="none", residual=False, attention=False, activation="relu")
    small = profile(gpt2(12, 128, **bare), 2)
    assert 1e-70 < small.variance[-1, -1] < 1e-40
    # What is kept does not depend on the scale: ReLU is homogeneous.
    large = profile(gpt2(12, 128, **bare, embedding_std=2.0), 2)
    np.testing.assert_allclose(small.inter_cosine, large.inter_cosine, rtol=1e-9)
    np.testing.assert_allclose(seeds.fluctuations(small).std, seeds.fluctuations(large).std, rtol=1e-9, atol=1e-15)
    with pytest.raises(ValueError, match="^num_layers: after block 1[0-9] of 40"):
        profile(gpt2(40, 128, **bare), 2)


def test_a_gate_of_values_acts_before_they_are_aggregated() -> None:
    """Of two values that are alike in part, what they share is gated by two sigmoids that are alike in part."""
    stds = (("value", (0.125,)), ("output_gate", (0.25,)))
    # Heads so wide that no channel of a value decides its own gate.
    stack = Stack(
        1, 64, query_width=10**6, mlp=False, vocabulary=2, embedding_std=1.0, value_gate=True, group_stds=stds
    )
    tokens = profile(stack, 2).layers[0]
    alike = tokens._replace(pair_cnn=0 * tokens.pair_cnn)
    told = sublayers.attend(stack, 0, alike, alike, positions.grid(2), uniform=True).aggregated_n[1]
    draws = np.random.default_rng(0).standard_normal((2, 3, 1_000_000)) * math.sqrt(0.5)
    values, gates = draws[:, :2] + draws[:, 2:]
    drawn = np.mean((values / (1 + np.exp(-2 * gates))).mean(axis=0) ** 2)
    # As a gate of the aggregated values it was 5% more.
    assert told == pytest.approx(drawn, rel=0.01)


def test_sigmoid_attention_is_followed_until_its_logits_vanish() -> None:
    """Without a residual they soon do: the variance of a weight is then rounding, on either side of 0."""
    stack = Stack(num_layers=3, width=16, mlp=False, attention_kernel="sigmoid", residual=False)
    assert np.all(np.isfinite(profile(stack, 12).layers[-1].within_nn))


def test_updates_of_a_parallel_block_move_together_from_pair_to_pair() -> None:
    """Both read one source: what its products do by chance reaches both. Linear, of one token, drawn in NumPy."""
    width, hidden, num_tokens, num_draws = 128, 512, 48, 100
    stds = {"value": width, "output": width, "up": width, "down": hidden}
    stack = Stack(
        1,
        width,
        mlp_width=hidden,
        query_width=width,
        value_width=width,
        norm="none",
        activation="identity",
        parallel_residual=True,
        embedding_std=1.0,
        group_stds=tuple((group, (fan_in**-0.5,)) for group, fan_in in stds.items()),
    )
    rng = np.random.default_rng(0)
    off_diagonal = ~np.eye(num_tokens, dtype=bool)

    def product_variance() -> float:
        x_ND = rng.standard_normal((num_tokens, width))
        value, output, up, down = (
            rng.standard_normal(shape) / math.sqrt(shape[0])
            for shape in ((width, width), (width, width), (width, hidden), (hidden, width))
        )
        y_ND = x_ND + x_ND @ value @ output + x_ND @ up @ down
        return float(((y_ND @ y_ND.T)[off_diagonal] ** 2).mean()) / width**2

    drawn = np.array([product_variance() for _ in range(num_draws)])
    own = profile(stack, 1).layers[-1].overlap().own[0, 0] * profile(stack, 1).variance[-1, 0] ** 2
    # Exactly 18.25/D at F = 4 D and head widths of D; without what the two updates have in common it was 16.25/D.
    assert own == pytest.approx(18.25 / width, rel=1e-6)
    assert abs(drawn.mean() - own) < 4 * drawn.std(ddof=1) / math.sqrt(num_draws) + 2 * own / width


def test_what_rounding_leaves_of_a_mean_divides_nothing() -> None:
    """An odd activation gives no mean: of 1e-37 in the first block covariances of 1e16 were made in the third."""
    stack = gpt2(5, 96, activation="tanh", mlp_width=96, query_width=8, num_heads=1, value_width=8, vocabulary=26981,
                 parallel_residual=True, head_norm=True, output_gate=True, output_std=0.02)  # fmt: skip
    followed = profile(stack, 88)
    assert np.abs(followed.layers[-1].pair_cnn).max() < followed.variance.max() ** 2
    assert seeds.fluctuations(followed).std.max() < 0.01
