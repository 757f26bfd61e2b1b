"""Every numerical integral of the theory at the edges of its stated range, against other rules; refused beyond."""

import fractions
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from scipy import special

from bornbiased_jax.theory import (
    activations,
    attention,
    attention_weights,
    finite_width,
    kernels,
    preference,
    quadrature,
    variance,
)
from bornbiased_jax.theory.attention_weights import LARGEST_VARIANCE, participation
from bornbiased_jax.theory.logits import Scatter
from tests.tiers import NIGHTLY


def panels(low: float, high: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights on ``count`` equal panels, 16 to each."""
    z, w = np.polynomial.legendre.leggauss(16)
    edges = np.linspace(low, high, count + 1)
    half = np.diff(edges) / 2
    return ((edges[:-1] + half)[:, None] + half[:, None] * z).ravel(), (half[:, None] * w).ravel()


def integrated(count: int, variance: float) -> float:
    """Participation by another rule inside and outside, with twice the nodes and wider limits."""
    std = np.sqrt(variance)
    z, w = panels(-12, 12, max(24, int(14 * std)))
    w = w * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    log_y, weight = panels(-40 - 12 * std, 5 + 12 * std, max(40, int(24 * std)))
    total = 0.0
    for part, dy in zip(np.array_split(log_y, 20), np.array_split(weight, 20), strict=True):
        gone = np.exp(part)[:, None] * np.exp(std * z)
        others = np.exp((count - 1) * np.log1p(-np.minimum(-np.expm1(-gone) @ w, 1 - 1e-16)))
        total += float(np.sum(dy * (np.exp(2 * (part[:, None] + std * z) - gone) @ w) * others))
    return count * total


@pytest.mark.long
@pytest.mark.parametrize(
    ("count", "variance"),
    [(1, 0.0), (1, 200.0), (2, 1e-3), (2, 200.0), (512, 56.1), (2048, 24.2), (2048, 43.0), (4096, 74.9), (4096, 200.0)]
    + [(1024, 1e-6), (10**6, 1.0), (10**6, 200.0), (10**9, 50.0)],
)
def test_participation_over_its_range(count: int, variance: float) -> None:
    assert participation(count, variance) == pytest.approx(integrated(count, variance), rel=1e-10)


@pytest.mark.parametrize(("count", "variance", "drawn"), [(4096, 74.9, 0.589), (512, 56.1, 0.599), (2048, 43.0, 0.495)])
def test_participation_of_sharp_logits_against_monte_carlo(count: int, variance: float, drawn: float) -> None:
    """Means drawn beforehand, with a standard error of 0.004; the same draws refuse what a coarse rule made of them."""
    assert abs(participation(count, variance) - drawn) < 4 * 0.004


def test_participation_of_two_is_exact_at_the_edge() -> None:
    """1 − 2 E[σ(d)σ(−d)], d ~ N(0, 2·variance), to 25 digits."""
    with mpmath.workdps(25):
        std = mpmath.sqrt(2 * mpmath.mpf(LARGEST_VARIANCE))
        edges = [0, 2, 5, 10, 20, 50, 10 * std]
        both = 2 * mpmath.quad(lambda d: mpmath.npdf(d, 0, std) / (2 + 2 * mpmath.cosh(d)), edges)
        exact = float(1 - 2 * both)
    assert participation(2, LARGEST_VARIANCE) == pytest.approx(exact, rel=1e-11)


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, 14.0, 100.0])
def test_the_lattice_at_any_scale(scale: float) -> None:
    """E sech²(scale·z) by mpmath; poles are π/2 away, as near as they may be."""
    z, w = quadrature.normal_lattice(scale)
    with mpmath.workdps(20):
        edges = [0, *(c / max(scale, 1.0) for c in (1, 4, 10, 30)), 40]
        exact = 2 * mpmath.quad(lambda x: mpmath.npdf(x) * mpmath.sech(scale * x) ** 2, sorted(edges))
    tail = np.exp(-2 * np.abs(scale * z))
    assert 4 * tail / (1 + tail) ** 2 @ w == pytest.approx(float(exact), rel=1e-13)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, quadrature.LARGEST_PANEL_SCALE])
def test_the_panels_over_their_range(scale: float) -> None:
    """E[max(tanh(scale·z), 0)], with a kink at 0 and a feature 1/scale wide."""
    z, w = quadrature.normal_panels()
    with mpmath.workdps(20):
        edges = [0, *(c / max(scale, 1.0) for c in (1, 4, 10, 30)), 40]
        exact = mpmath.quad(lambda x: mpmath.npdf(x) * mpmath.tanh(scale * x), sorted(edges))
    assert np.maximum(np.tanh(scale * z), 0) @ w == pytest.approx(float(exact), rel=1e-13)


@pytest.mark.parametrize("count", [1, 9, 48, 256])
def test_gauss_hermite_is_exact_for_polynomials(count: int) -> None:
    z, w = quadrature.normal_nodes(count)
    for power in range(0, min(2 * count, 40), 2):
        assert z**power @ w == pytest.approx(float(mpmath.fac2(power - 1)), rel=1e-11)


EDGE = kernels.LARGEST_STD


@pytest.mark.long
def test_kernels_of_series_at_their_largest_std() -> None:
    """tanh and its derivative at std 16, by lattice and panels: E over z of tanh(16z) times its conditional mean."""
    rho = np.array([-0.999, 0.3, 0.97])
    z, w = quadrature.normal_panels()
    x, v = panels(-10, 10, 400)
    v = v * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
    cosines = kernels.dual("tanh", rho, EDGE)
    for r, value in zip(rho, cosines, strict=True):
        other = np.concatenate([np.tanh(EDGE * (r * p[:, None] + np.sqrt(1 - r * r) * x)) @ v for p in np.split(z, 8)])
        assert value == pytest.approx(float((np.tanh(EDGE * z) * other) @ w), abs=1e-11)


@pytest.mark.parametrize(("name", "std"), [("tanh", 3.0), ("gelu_tanh", 5.0), ("silu", 7.0)])
def test_kernels_of_layers_at_their_largest_std(name: str, std: float) -> None:
    """Value and slope where the series converges most slowly, near 1, against moments of one variable."""
    value, slope, _ = finite_width.kernel(name, False, np.array([std])).expand(np.ones(1))
    z, w = quadrature.normal_panels()
    phi, derivative = activations.ACTIVATIONS[name], activations.DERIVATIVES[name]
    assert value[0] == pytest.approx(phi(std * z) ** 2 @ w, rel=1e-9)
    assert slope[0] == pytest.approx(std**2 * derivative(std * z) ** 2 @ w, rel=1e-6)


@pytest.mark.parametrize("name", sorted(activations.ACTIVATIONS))
@pytest.mark.parametrize(
    "rho", [0.6, pytest.param(0.0, marks=pytest.mark.long), pytest.param(1.0, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("std", [0.05, EDGE])
def test_moments_of_neurons_over_their_range(name: str, rho: float, std: float) -> None:
    moments, weights = finite_width.neuron_moments(name, np.array([std]), np.array([rho]), 4)
    b, _ = quadrature.normal_panels() if name in finite_width.PIECEWISE else quadrature.normal_lattice(std)
    assert weights.sum() == pytest.approx(1, abs=1e-13)
    chosen = np.flatnonzero(np.abs(b) < 5)[:: b.size // 12]
    size = np.zeros(4)
    errors: list[list[float]] = [[] for _ in range(4)]
    for place in chosen:
        mean, apart = np.sqrt(rho) * b[place], np.sqrt(1 - rho)
        shift = finite_width.PIECEWISE[name].shift if name in finite_width.PIECEWISE else 0.0
        kink = np.clip(-(shift / std + mean) / apart, -12, 12) if apart else 0.0
        low, high = panels(-12, kink, 400), panels(kink, 12, 400)
        x, v = (np.concatenate(pair) for pair in zip(low, high, strict=True))
        value = activations.ACTIVATIONS[name](std * (mean + apart * x))
        for k in range(4):
            density = v * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
            size[k] = max(size[k], np.abs(value) ** (k + 1) @ density)
            errors[k].append(abs(moments[k, 0, place] - float(value ** (k + 1) @ density)))
    for k in range(4):
        assert max(errors[k]) < 1e-10 * size[k]


def agreement(rho: float, vocab: int) -> float:
    """V ∫∫ φ₂(a, x) Φ₂(a, x)^(V−1), by panels in all three variables."""
    s, r = np.sqrt(1 - rho), np.sqrt(rho)
    leader, weight = panels(max(-9.0, float(special.ndtri(np.exp(-45 / vocab)))), 9.5, 30)
    total = 0.0
    for m, w in zip(leader, weight * np.exp(-leader * leader / 2), strict=True):
        x, dx = panels(r * m - 9 * s, r * m + 9 * s, 12)
        below, da = panels(0, m + 9, 80)
        a = m - below
        miss = special.ndtr(-m) + special.ndtr((r * a - x[:, None]) / s) @ (
            da * np.exp(-a * a / 2) / np.sqrt(2 * np.pi)
        )
        win = np.exp((vocab - 1) * np.log1p(-np.minimum(miss, 1 - 1e-16)))
        total += float(w * (dx * np.exp(-(((x - r * m) / s) ** 2) / 2) / s) @ win)
    return vocab * total / (2 * np.pi)


@pytest.mark.parametrize(
    ("rho", "vocab"),
    [
        pytest.param(1e-4, 50_257, marks=NIGHTLY),
        pytest.param(0.01, 10**7, marks=NIGHTLY),
        pytest.param(0.9, 10**7, marks=NIGHTLY),
        pytest.param(0.999, 10**4, marks=pytest.mark.long),
        pytest.param(0.446, 30, marks=pytest.mark.long),
    ],
)
def test_expected_fraction_over_its_range(rho: float, vocab: int) -> None:
    assert preference.expected_fraction(rho, vocab) == pytest.approx(agreement(rho, vocab), rel=1e-6)


@pytest.mark.parametrize("vocab", [2, 10**8])
def test_tied_fraction_at_the_ends(vocab: int) -> None:
    """No alignment is a fair draw; full alignment sets the logit at √d."""
    assert preference.tied_last_token_fraction(0.3, vocab, 16, 0.0) == pytest.approx(1 / vocab, rel=1e-6)
    certain = float(np.exp((vocab - 1) * special.log_ndtr(4.0)))
    assert preference.tied_last_token_fraction(0.3, vocab, 16, 1.0) == pytest.approx(certain, rel=1e-3)


@pytest.mark.parametrize(("width", "anisotropy"), [(2, 1.0), (16, 16.0), (64, 30.0), (768, 300.0)])
def test_scales_keep_their_first_two_moments_at_the_edges(width: int, anisotropy: float) -> None:
    """Nine nodes carry mean 1 and variance 2r/(d − 1), up to 1e-3 for the most skewed that widths allow."""
    scale, w = Scatter(width, anisotropy).scales()
    assert scale**2 @ w == pytest.approx(1, rel=1e-3)
    assert scale**4 @ w - (scale**2 @ w) ** 2 == pytest.approx(2 * anisotropy / (width - 1), rel=1e-3)


@pytest.mark.parametrize("layers", [1, 2, 7, 100, 3000])
def test_the_series_of_proposition_5_at_any_depth(layers: int) -> None:
    """Against exact integers, where log-gammas of large arguments lost digits."""
    term, total = fractions.Fraction(2, 3), fractions.Fraction(0)
    for k in range(min(layers, 80)):
        total += term
        term *= fractions.Fraction(2 * (layers - 1 - k), 3 * max(2 * layers - 2 - k, 1))
    assert attention.prop5_closed_form_gap(layers) == pytest.approx(float(1 - total), abs=2e-15)


@pytest.mark.parametrize("ratio", [1e-300, 1e-30, 0.5, 1.0])
@pytest.mark.parametrize("layers", [1, 40, 400])
def test_the_correlation_at_any_ratio(layers: int, ratio: float) -> None:
    with mpmath.workdps(40):
        u = -mpmath.log(mpmath.mpf(ratio))
        exact, c = mpmath.mpf(0), mpmath.mpf(1)
        for k in range(layers):
            exact += c * u**k / mpmath.factorial(k)
            c *= mpmath.mpf(layers - 1 - k) / max(2 * layers - 2 - k, 1)
        exact *= mpmath.exp(-u / 2)
    assert attention.pair_correlation_limit(ratio, layers) == pytest.approx(float(exact), rel=1e-11)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: participation(4096, 200.1), "variance"),
        (lambda: participation(4096, np.inf), "variance"),
        (lambda: participation(4096, np.nan), "variance"),
        (lambda: participation(4, -1e-9), "variance"),
        (lambda: participation(0, 1.0), "count"),
        (lambda: kernels.dual("tanh", 0.5, 1.01 * EDGE), "std"),
        (lambda: kernels.dual("silu", 0.5, 1.0, 1.01 * EDGE), "std2"),
        (lambda: kernels.dual_derivative("gelu_tanh", 0.5, 1.01 * EDGE), "std"),
        (lambda: kernels.lattice_dual(np.tanh, np.zeros(1), 1.01 * EDGE, 1.0), "s"),
        (lambda: kernels.second_moment("silu", 1001.0), "std"),
        (lambda: kernels.second_moment("gelu_tanh", 1001.0), "std"),
        (lambda: kernels.hermite_coefficients("relu", 1001.0), "std"),
        (lambda: variance.output_variance(4, output_gate="headwise", gate_std=1001.0), "std"),
        (lambda: finite_width.kernel("tanh", False, np.array([1.0, 4.0])), "std_n"),
        (lambda: finite_width.kernel("silu", True, np.array([9.0])), "std_n"),
        (lambda: finite_width.neuron_moments("gelu", np.array([1.01 * EDGE]), np.zeros(1), 2), "std_n"),
        (lambda: preference.expected_fraction(0.5, 10**7 + 1), "vocab_size"),
        (lambda: quadrature.normal_nodes(257), "count"),
        (lambda: quadrature.normal_lattice(-1.0), "scale"),
        (lambda: quadrature.normal_lattice(np.inf), "scale"),
        (lambda: quadrature.normal_lattice(1.0, np.nan), "reach"),
        (lambda: quadrature.normal_lattice(1e7), "scale"),
    ],
)
def test_refused_beyond(call: Callable[[], object], word: str) -> None:
    with pytest.raises(ValueError, match=rf"^{word}:"):
        call()


def test_the_error_names_the_range() -> None:
    assert attention_weights.LARGEST_VARIANCE == 200
    with pytest.raises(ValueError, match=r"^variance: 812.* above 200"):
        participation(16, 812.0)
