"""Every numerical integral of the theory at the edges of its stated range, against other rules; refused beyond."""

from collections.abc import Callable

import mpmath
import numpy as np
import pytest

from theory import attention_weights, quadrature
from theory.attention_weights import LARGEST_VARIANCE, participation


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


def test_participation_bounds() -> None:
    """Between 1/count and 1, and growing with the variance, at every count."""
    for count in (1, 3, 100, 10**4):
        values = [participation(count, v) for v in np.linspace(0, LARGEST_VARIANCE, 41)]
        assert np.all(np.diff(values) >= -1e-12) and values[0] == pytest.approx(1 / count) and values[-1] <= 1 + 1e-12


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


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: participation(4096, 200.1), "variance"),
        (lambda: participation(4096, np.inf), "variance"),
        (lambda: participation(4096, np.nan), "variance"),
        (lambda: participation(4, -1e-9), "variance"),
        (lambda: participation(0, 1.0), "count"),
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
