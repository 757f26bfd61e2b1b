"""The top-1 token's fraction: against closed forms, exact arithmetic and simulation of its model."""

import tracemalloc

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from bornbiased_jax.theory import preference
from tests.tiers import nightly_except

STANDARD_ERRORS = 5.0

TABLE_1 = [
    # count, inputs, vocabulary, log10 p to two decimals, p as printed (None where the print's digits differ)
    (52, 2_000, 50_304, -136.34, 4.55e-137),
    (97, 2_000, 50_304, -284.18, 6.59e-285),
    (104, 2_000, 50_304, -308.17, 6.75e-309),
    (79, 2_000, 50_304, -223.59, 2.57e-224),
    (60, 2_000, 50_304, None, 2.20e-162),
    (105, 2_000, 50_304, None, 2.42e-312),
    (6, 10_000, 32_000, -1.50, 3.16e-2),
    (7, 10_000, 32_000, -2.85, 1.40e-3),
    (9, 10_000, 32_000, -5.72, None),
]


@pytest.mark.parametrize(("count", "inputs", "vocab", "log10_p", "printed"), TABLE_1)
def test_p_values_of_table_1(count, inputs, vocab, log10_p, printed):
    value = preference.log10_p_value(count, inputs, vocab)
    if log10_p is not None:
        assert round(value, 2) == log10_p
    if printed is not None:
        # Three printed digits; the print's numbers may lie below the range of float64.
        mantissa, exponent = f"{printed:.2e}".split("e") if printed > 1e-307 else _digits(printed)
        assert f"{10 ** (value - int(exponent)):.2f}" == mantissa


def _digits(printed):
    return {6.75e-309: ("6.75", -309), 2.42e-312: ("2.42", -312)}[printed]


def test_p_values_under_the_settings_of_the_text_are_others():
    """N = 10,000 and V = 50,000, as the text has it, give none of the printed values."""
    for fraction, printed in ((0.0260, -136.34), (0.0485, -284.18), (0.0520, -308.17), (0.0395, -223.59)):
        value = preference.log10_p_value(round(fraction * 10_000), 10_000, 50_000)
        assert abs(value - printed) > 400


def test_the_nine_of_table_1b():
    assert 10 ** preference.log10_p_value(9, 10_000, 32_000) == pytest.approx(1.886e-6, rel=3e-4)


@settings(max_examples=40)
@given(n=st.integers(1, 400), v=st.integers(2, 10**6), data=st.data())
def test_p_values_against_exact_arithmetic(n, v, data):
    k = data.draw(st.integers(0, n))
    with mpmath.workdps(60):
        p = mpmath.mpf(1) / v
        tail = mpmath.fsum(mpmath.binomial(n, x) * p**x * (1 - p) ** (n - x) for x in range(k, n + 1))
        exact = min(mpmath.mpf(0), mpmath.log10(tail * v))
    assert preference.log10_p_value(k, n, v) == pytest.approx(float(exact), abs=1e-10, rel=1e-12)


def test_p_values_never_underflow_and_fall():
    table = preference.log10_p_values(10_000, 50_000)
    assert np.all(np.isfinite(table)) and np.all(np.diff(table) <= 0)
    assert table[0] == 0 and table[-1] == pytest.approx(-9_999 * np.log10(50_000), rel=1e-12)
    assert preference.log10_p_value(1, 1, 1) == 0.0


def test_uniform_top_count():
    """Six or more of 10,000 draws over 32,000 tokens: 3.1%."""
    assert preference.uniform_top_count_tail(6, 10_000, 32_000) == pytest.approx(0.0312, abs=2e-4)


def _exact_top_count_tail(count: int, num_inputs: int, vocab_size: int) -> float:
    """Count draws whose largest count stays below: Poisson counts, given that they sum to N."""
    rate = num_inputs / vocab_size
    below, power, left = np.ones(1), stats.poisson.pmf(np.arange(count), rate), vocab_size
    while left:
        if left % 2:
            below = np.convolve(below, power)[: num_inputs + 1]
        power, left = np.convolve(power, power)[: num_inputs + 1], left // 2
    reached = below[num_inputs] if below.size > num_inputs else 0.0
    return float(1 - reached / stats.poisson.pmf(num_inputs, num_inputs))


@pytest.mark.parametrize(
    ("num_inputs", "vocab_size", "error"), [(200, 300, 0.02), (500, 300, 0.0135), (2_000, 50_304, 1e-3)]
)
def test_uniform_top_count_tail_is_never_above_the_exact_one(num_inputs, vocab_size, error):
    """Counts that sum to N are negatively associated: as independent ones they reach a count less often."""
    for count in range(2, 8):
        exact = _exact_top_count_tail(count, num_inputs, vocab_size)
        tail = preference.uniform_top_count_tail(count, num_inputs, vocab_size)
        assert (1 - error) * exact - 1e-9 < tail < exact + 1e-9, count


def test_top_counts_of_section_3_under_uniformity():
    """A top count of 2 has probability 0.60, one of 3 has 0.40: erratum 1."""
    tails = [_exact_top_count_tail(count, 2_000, 50_304) for count in (2, 3, 4)]
    np.testing.assert_allclose(-np.diff(tails), [0.5997, 0.3952], atol=1e-4)


@pytest.mark.long
@given(rho=st.floats(0, 1))
@settings(max_examples=8)
@example(rho=1 - 1e-12)
def test_two_tokens_have_a_closed_form(rho):
    """V = 2: P(two differences of correlation √ρ have one sign) = ½ + arcsin(√ρ)/π."""
    exact = 0.5 + np.arcsin(np.sqrt(rho)) / np.pi
    assert preference.expected_fraction(rho, 2) == pytest.approx(exact, abs=2e-6)


@pytest.mark.long
@pytest.mark.parametrize("vocab", [10, 50_257])
def test_ends_of_the_expected_fraction(vocab):
    assert preference.expected_fraction(0.0, vocab) == pytest.approx(1 / vocab, rel=1e-6)
    assert preference.expected_fraction(1.0, vocab) == 1.0
    fractions = [preference.expected_fraction(rho, vocab) for rho in (0.0, 0.1, 0.3, 0.9, 1.0)]
    assert np.all(np.diff(fractions) > 0)


def simulate(rho, vocab, inputs, width, seeds, seed):
    """Top-1 counts of the model and whether argmax a_v won (ties by lot). Two arrays [seeds]."""
    rng = np.random.default_rng(seed)
    counts, won = np.empty(seeds, int), np.empty(seeds, bool)
    for i in range(seeds):
        a = rng.normal(size=vocab)
        if width is None:
            noise = rng.standard_normal((inputs, vocab), dtype=np.float32)
        else:
            own = rng.normal(size=(inputs, width - 1))
            own /= np.linalg.norm(own, axis=1, keepdims=True)
            noise = own @ rng.normal(size=(width - 1, vocab))
        histogram = np.bincount(np.argmax(np.sqrt(rho) * a + np.sqrt(1 - rho) * noise, axis=1), minlength=vocab)
        counts[i] = histogram.max()
        won[i] = rng.choice(np.flatnonzero(histogram == counts[i])) == np.argmax(a)
    return counts, won


def distribution_accepts(fraction, counts):
    """Does the distribution fit the simulated counts: the mean, and a chi-square test over its deciles?"""
    error = np.std(counts) / np.sqrt(counts.size)
    if abs(np.mean(counts) - fraction.fraction_mean * fraction.num_inputs) > STANDARD_ERRORS * error:
        return False
    edges = np.unique([fraction.counts[np.searchsorted(fraction.cdf, q)] for q in np.arange(0.1, 0.95, 0.1)])
    below = np.interp(edges, fraction.counts, fraction.cdf)
    expected = np.diff(np.concatenate([[0.0], below, [1.0]])) * counts.size
    observed = np.bincount(np.searchsorted(edges, counts, side="left"), minlength=edges.size + 1)
    keep = expected > 5
    statistic = np.sum((observed[keep] - expected[keep]) ** 2 / expected[keep])
    return bool(stats.chi2.sf(statistic, np.sum(keep) - 1) > 1e-6)


CASES = [
    (0.3, 200, 150, None),
    (0.6, 200, 150, None),
    (0.1, 500, 100, None),
    (0.0, 100, 200, None),
    (0.3, 200, 150, 24),
]


@pytest.mark.long
@pytest.mark.parametrize(("rho", "vocab", "inputs", "width"), CASES)
def test_the_distribution_of_the_top_count_against_simulation(rho, vocab, inputs, width):
    counts, won = simulate(rho, vocab, inputs, width, 500, 1)
    fraction = preference.top1_distribution(rho, vocab, inputs, width)
    assert distribution_accepts(fraction, counts)
    error = np.sqrt(max(fraction.overlap * (1 - fraction.overlap), 1e-3) / won.size)
    assert abs(np.mean(won) - fraction.overlap) <= STANDARD_ERRORS * error


@pytest.mark.long
def test_the_fractions_of_random_gpt2():
    """The measured and predicted means at V = 50,257 lie inside the stated 10-90% spreads."""
    stated = {0.238: (0.007, 0.019), 0.333: (0.012, 0.035), 0.446: (0.020, 0.071)}
    for rho, (low, high) in stated.items():
        fraction = preference.top1_distribution(rho, 50_257, 2_000)
        assert low < fraction.fraction_mean < high
        assert low < preference.expected_fraction(rho, 50_257) < high
        assert fraction.fraction_p10 == pytest.approx(low, rel=0.2) and fraction.fraction_p90 == pytest.approx(
            high, rel=0.2
        )
    assert preference.expected_fraction(0.446, 50_257) == pytest.approx(0.0429, abs=2e-4)


def test_gated_models_are_barely_significant():
    fraction = preference.top1_distribution(0.0032, 32_000, 10_000)
    assert 4 <= fraction.fraction_p50 * 10_000 <= 6
    assert fraction.log10_p_p10 is not None and fraction.log10_p_p10 > -1.5


@pytest.mark.long
def test_overlap_of_finding_2_2():
    """The paper's 76 of 100 models: within three standard errors of the prediction at 768 dimensions."""
    overlap = preference.expected_overlap(0.446, 50_257, 2_000, 768)
    assert abs(overlap - 0.76) <= 3 * np.sqrt(overlap * (1 - overlap) / 100)
    # It is not 1 because of the finite number of inputs and the unequal lengths of the rows.
    assert round(overlap, 2) == 0.81 and round(preference.expected_overlap(0.446, 50_257, 2_000), 2) == 0.85
    assert preference.expected_overlap(0.446, 50_257) == 1.0


@pytest.mark.long
def test_many_inputs_approach_the_fraction_itself():
    limit = preference.expected_fraction(0.4, 300)
    for inputs, off in ((10**3, 0.05), (10**5, 0.002), (None, 0.002)):
        fraction = preference.top1_distribution(0.4, 300, inputs)
        assert fraction.fraction_mean == pytest.approx(limit, rel=off)
        assert fraction.fraction_mean >= limit * (1 - 1e-3)  # The largest count is biased upwards.


@pytest.mark.long
def test_std_of_rho_widens_the_fraction():
    narrow = preference.top1_distribution(0.3, 500, 400)
    wide = preference.top1_distribution(0.3, 500, 400, rho_std=0.08)
    assert wide.fraction_std > 1.05 * narrow.fraction_std
    assert wide.fraction_p90 - wide.fraction_p10 > narrow.fraction_p90 - narrow.fraction_p10
    assert preference.top1_distribution(0.3, 500, 400, rho_std=1e-9).fraction_mean == pytest.approx(
        narrow.fraction_mean
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("vocab", "gap"),
    nightly_except([(2, 1e-3), (2, 2.0**-53), (50_257, 1e-3), (50_257, 2.0**-53)], (2, 2.0**-53), (50_257, 1e-3)),
)
def test_near_certain_preference_needs_little_memory(vocab, gap):
    """The noise is √gap wide: a lattice over all logits would need 1e8 nodes and more."""
    tracemalloc.start()
    fraction = preference.top1_distribution(1 - gap, vocab, 2_000, 768)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200e6
    # The leader loses its place where the runner-up is within the noise: with a probability of order √gap · √(ln V).
    lost = 2 * np.sqrt(gap * np.log(vocab))
    for value in (fraction.fraction_mean, fraction.overlap):
        assert 1 - lost - 1e-9 < value <= 1 + 1e-12
    assert np.all(np.diff(fraction.cdf) >= 0) and fraction.cdf[-1] == pytest.approx(1.0, abs=1e-9)


def test_the_fraction_near_certainty_has_its_closed_form():
    """V = 2, infinitely many inputs: 1 − share = arccos(√ρ)/π, of order √gap."""
    for gap in (1e-2, 1e-4, 1e-6):
        exact = np.arccos(np.sqrt(1 - gap)) / np.pi
        assert 1 - preference.expected_fraction(1 - gap, 2) == pytest.approx(exact, rel=1e-4, abs=1e-9)


def test_certain_preference():
    fraction = preference.top1_distribution(1.0, 50, 20)
    assert fraction.fraction_mean == 1.0 and fraction.overlap == 1.0 and fraction.fraction_std == 0.0
    assert fraction.log10_p_p90 == pytest.approx(-19 * np.log10(50))
    # The table of counts has its finest steps at either end, so that a share of 1 is read as 1.
    assert preference.top1_distribution(1.0, 50_257, 2_000).fraction_mean == 1.0
    assert preference.top1_distribution(1.0, 50_257).fraction_mean == 1.0


@given(alignment=st.floats(0, 0.5), vocab=st.integers(2, 10**5), width=st.integers(20, 2000))
@settings(max_examples=10)
def test_tied_fraction_against_adaptive_quadrature(alignment, vocab, width):
    lift, std = alignment * np.sqrt(width), np.sqrt(1 - alignment**2)

    def density(x):
        z = (x - lift) / std
        return np.exp(-z * z / 2) / np.sqrt(2 * np.pi) / std * special.ndtr(x) ** (vocab - 1)

    integral = integrate.quad(density, lift - 9, lift + 9, points=[lift], limit=400, epsabs=1e-12)[0]
    assert preference.tied_last_token_fraction(0.3, vocab, width, alignment) == pytest.approx(
        integral, rel=1e-6, abs=1e-10
    )


def test_tied_fraction_at_initialization_is_small_and_is_lost_to_the_top1_token():
    """GPT-2 nano, T = 64: the embedding holds about 1/300 of the final variance; measured, 0.6-1.0% of inputs."""
    assert preference.tied_last_token_fraction(0.333, 50_257, 768, 0.0) == pytest.approx(1 / 50_257, rel=1e-6)
    assert 0.003 < preference.tied_last_token_fraction(0.333, 50_257, 768, np.sqrt(1 / 300)) < 0.012
    tied = preference.top1_distribution(0.5, 500, 400, last_token_fraction=0.1)
    untied = preference.top1_distribution(0.5, 500, 400)
    assert tied.fraction_mean == pytest.approx(0.9 * untied.fraction_mean, rel=0.02)


def test_a_fraction_is_restated_for_more_inputs() -> None:
    fraction = preference.top1_distribution(0.1, 300, 500)
    same, twice, endless = (preference.recounted(fraction, count, 300) for count in (500, 1000, None))
    assert same.log10_p_mean == pytest.approx(fraction.log10_p_mean)
    assert (same.log10_p_p10, same.log10_p_p90) == (fraction.log10_p_p10, fraction.log10_p_p90)
    np.testing.assert_array_equal(same.counts, fraction.counts)
    assert (twice.fraction_p90, twice.num_inputs, twice.counts[-1]) == (fraction.fraction_p90, 1000, 1000)
    assert twice.log10_p_p90 == preference.log10_p_value(round(1000 * fraction.fraction_p90), 1000, 300)
    assert endless.log10_p_mean is None and endless.fraction_mean == fraction.fraction_mean
    # Quantiles of a count of inputs are such counts.
    other = preference.recounted(preference.top1_distribution(0.1, 300, 961), 1000, 300)
    assert {other.fraction_p10, other.fraction_p50, other.fraction_p90} <= {count / 1000 for count in range(1001)}


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: preference.expected_fraction(-0.1, 10), "rho"),
        (lambda: preference.expected_fraction(0.1, 0), "vocab_size"),
        (lambda: preference.top1_distribution(1.1, 10), "rho"),
        (lambda: preference.top1_distribution(0.1, 10, 0), "num_inputs"),
        (lambda: preference.top1_distribution(0.1, 10, 5, 1), "width"),
        (lambda: preference.top1_distribution(0.1, 10, 5, rho_std=-1.0), "rho_std"),
        (lambda: preference.top1_distribution(0.1, 10, 5, last_token_fraction=2.0), "last_token_fraction"),
        (lambda: preference.log10_p_value(11, 10, 5), "count"),
        (lambda: preference.log10_p_values(0, 5), "num_inputs"),
        (lambda: preference.uniform_top_count_tail(-1, 10, 5), "count"),
        (lambda: preference.tied_last_token_fraction(0.1, 10, 5, 1.5), "alignment"),
        (lambda: preference.tied_last_token_fraction(0.1, 10, 0, 0.5), "width"),
    ],
)
def test_bad_arguments_are_named(call, word):
    with pytest.raises(ValueError, match=rf"^{word}:"):
        call()
