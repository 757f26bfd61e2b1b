"""The certified bound: never below the exact p, close where theory says so, and the p made of it."""

import math
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from benchmarks.bound import at_distance
from bornbiased_jax.stats import bound, certified
from bornbiased_jax.stats.bound import _Centered, joint_bound, sorted_rows, tail_bound
from bornbiased_jax.stats.certified import certified_p
from bornbiased_jax.stats.permutations import TIE, all_permutations, moments, permuted_sums
from bornbiased_jax.stats.tails import LN10
from tests.tiers import nightly_except

KINDS = ("gaussian", "cauchy", "binary", "low rank", "scales")


def drawn(rng, kind, size):
    if kind == "gaussian":
        return rng.standard_normal((size, size))
    if kind == "cauchy":
        return rng.standard_cauchy((size, size))
    if kind == "binary":
        return (rng.random((size, size)) < rng.uniform(0.1, 0.9)).astype(float)
    if kind == "low rank":
        return rng.standard_normal((size, 2)) @ rng.standard_normal((2, size))
    return rng.standard_normal((size, size)) * np.exp(2 * rng.standard_normal((size, 1)))


def exact_p(scores, sums):
    std = math.sqrt(float(moments(scores)[1]))
    return (sums >= np.trace(scores) - TIE * std).mean(axis=-1)


# 5 kinds × (3 × 150 + 40) matrices × 2 forms: 4,900 bounds.
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("size", "count"), nightly_except([(4, 150), (5, 150), (6, 150), (7, 40)], (5, 150)))
def test_never_below_the_exact_p_of_small_matrices(kind, size, count):
    rng = np.random.default_rng([size, KINDS.index(kind)])
    every = all_permutations(size)
    message = 0
    for trial in range(count):
        scores = drawn(rng, kind, size)
        sums = permuted_sums(scores, every)
        # Most trials look into the tail: the labeling becomes the best, the second, the third best one.
        if trial % 4:
            scores = scores[:, every[np.argsort(-sums, kind="stable")[trial % 4 - 1]]]
            sums = permuted_sums(scores, every)
        if not moments(scores)[1] > 1e-20:
            continue
        p = exact_p(scores, sums)
        for top in (None, 2):
            log10_p = tail_bound(scores, top=top)
            assert log10_p >= math.log10(p), (trial, top)
            message += log10_p < 0
    assert message > count / 4  # and it says something


def test_never_below_the_exact_p_of_summed_groups():
    rng = np.random.default_rng(7)
    every = [all_permutations(4), all_permutations(5)]
    message = 0
    for trial in range(150):
        pair = [drawn(rng, KINDS[trial % 5], size) for size in (4, 5)]
        pair = [
            scores[:, perms[permuted_sums(scores, perms).argmax()]] if trial % 3 else scores
            for scores, perms in zip(pair, every, strict=True)
        ]
        variances = [float(moments(scores)[1]) for scores in pair]
        if min(variances) < 1e-20:
            continue
        first, second = (permuted_sums(scores, perms) for scores, perms in zip(pair, every, strict=True))
        least = sum(np.trace(scores) for scores in pair) - TIE * math.sqrt(sum(variances))
        p = (first[:, None] + second[None, :] >= least).mean()
        log10_p = tail_bound(pair)
        assert log10_p >= math.log10(p)
        message += log10_p < 0
    assert message > 50


# Methods, 1b: the identity and Gaussian noise, here with one draw of the noise; 4,096 is run by hand (three
# seconds and 1.5 GB a matrix): −20.6, −189.5 and −1,588 with the top 64, −20.7, −190.9 and −1,593 in full.
@pytest.mark.parametrize(
    ("size", "z", "expected"),
    [(96, 10, -17.0), (96, 30, -121.0), (96, 87, -150.0), (768, 10, -19.7), (768, 30, -182.0), (768, 87, -1297.0)],
)
def test_published_values(size, z, expected):
    scores = at_distance(np.random.default_rng(0).standard_normal((size, size)), z)
    result = tail_bound(scores, scale=False)
    # Noise of another draw moves it: at D = 96 and z = 30 from −131 to −125.
    assert result == pytest.approx(expected, rel=0.1 if size == 96 else 0.02)
    normal = stats.norm.logsf(z) / LN10
    assert result > max(normal, -math.lgamma(size + 1) / LN10)
    # Scaling can only help, and does most where the tail is far.
    assert tail_bound(scores) <= result


def test_scaling_helps():
    # Far out the columns' own scales matter: 11 decades of 131 here.
    scores = at_distance(np.random.default_rng(0).standard_normal((96, 96)), 30)
    assert tail_bound(scores) < tail_bound(scores, scale=False) - 8
    rng = np.random.default_rng(1)
    for _ in range(5):
        heavy = rng.standard_cauchy((64, 64)) + 20 * np.eye(64)
        assert tail_bound(heavy) <= tail_bound(heavy, scale=False)


@pytest.mark.slow
@pytest.mark.parametrize("z", [5, 12, 40])
def test_the_top_of_each_row_is_an_upper_bound_and_close(z):
    scores = at_distance(np.random.default_rng(2).standard_normal((900, 900)), z)
    full = tail_bound(scores, scale=False)
    top = tail_bound(scores, top=64, scale=False)
    assert full <= top <= 0.985 * full


def test_grids_keep_their_mass_and_lie_above():
    rng = np.random.default_rng(3)
    row = np.sort(rng.standard_normal(300))[::-1][None, :]
    increments = bound.increments(300)
    grid = bound._grid(300, 10)
    assert grid[:10].tolist() == list(range(10)) and grid[-1] == 299 and len(grid) < 60
    atoms, weights = bound._gridded(row, increments, grid)
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(increments.sum(), rel=1e-12)
    assert (weights * atoms).sum() == pytest.approx((increments * row).sum(), rel=1e-9)
    for tilt in (0.1, 1.0, 5.0):
        assert (weights * np.exp(tilt * atoms)).sum() >= (increments * np.exp(tilt * row)).sum()


def test_wide_groups_take_the_top_by_themselves(monkeypatch):
    monkeypatch.setattr(bound, "FULL_WIDTH", 100)
    scores = np.random.default_rng(4).standard_normal((150, 150))
    assert sorted_rows(scores).atoms_nA.shape[1] < 150
    monkeypatch.setattr(bound, "FULL_WIDTH", 150)
    assert sorted_rows(scores).atoms_nA.shape[1] == 150


@pytest.fixture
def sorts(monkeypatch):
    """What is sorted: whether columns, and whether scaled."""
    calls, sort = [], bound._sort

    def watched(centered, moved_n, top):
        # Columns are the rows of a transposed view.
        is_rows = centered.scores_nn.flags.c_contiguous
        calls.append(("rows" if is_rows else "columns", moved_n is not None))
        return sort(centered, moved_n, top)

    monkeypatch.setattr(bound, "_sort", watched)
    return calls


@pytest.mark.parametrize("is_wide", [True, False])
def test_wide_copies_are_sorted_once_where_no_bound_is_much_smaller(monkeypatch, sorts, is_wide):
    """1/n! is the least p of any statistic: what columns and scaling could win is known beforehand."""
    units = np.random.default_rng(5).standard_normal((200, 64))
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    every = sorted_rows(units @ units.T, top=200)
    monkeypatch.setattr(bound, "_WIDE", 200 if is_wide else 201)
    sorts.clear()
    rows = sorted_rows(units @ units.T, top=200)
    assert len(sorts) == 1 if is_wide else len(sorts) > 1
    floor = -math.lgamma(201) / LN10
    least, result = joint_bound([every]), joint_bound([rows])
    assert floor <= least <= result <= floor + 0.05 / LN10
    # Half of the copy's own score leaves more to be tried: of a wide group one scaling.
    sorts.clear()
    weak = sorted_rows(units @ units.T - 0.8 * np.eye(200), top=200)
    assert len(sorts) == (3 if is_wide else 4) and joint_bound([weak]) > floor + 1


@pytest.mark.parametrize("better", ["rows", "columns"])
def test_of_a_wide_group_the_better_orientation_is_scaled(monkeypatch, sorts, better):
    """Its bound is that of all four, or a larger one; on several cores the same to the last bit."""
    rng = np.random.default_rng(6)
    scores = rng.standard_normal((150, 150)) * np.exp(rng.standard_normal((1, 150))) + 3 * np.eye(150)
    scores = scores if better == "columns" else scores.T.copy()
    every = sorted_rows(scores, top=64)
    monkeypatch.setattr(bound, "_WIDE", 150)
    monkeypatch.setattr(bound, "_CHUNK", 7 * 150)
    results = []
    for num_cores in (1, 3):
        monkeypatch.setattr(bound, "cores", lambda num_cores=num_cores: num_cores)
        sorts.clear()
        results.append(sorted_rows(scores, top=64))
        assert sorts == [("rows", False), ("columns", False), (better, True)]
    first, second = results
    assert first.statistic == second.statistic
    np.testing.assert_array_equal(first.atoms_nA, second.atoms_nA)
    np.testing.assert_array_equal(first.weights_nA, second.weights_nA)
    assert joint_bound([first]) == pytest.approx(joint_bound([every]), rel=1e-6)


def test_constants_of_rows_and_columns_change_nothing():
    rng = np.random.default_rng(5)
    scores = rng.standard_normal((80, 80)) + 1.5 * np.eye(80)
    moved = scores + 1e3 * rng.standard_normal((80, 1)) + 1e3 * rng.standard_normal((1, 80))
    assert tail_bound(moved) == pytest.approx(tail_bound(scores), rel=1e-6)


def test_a_transposed_view_has_the_rows_of_its_copy():
    """Columns are the rows of a view: strips of it are copied in the order of memory, and hold the same numbers."""
    scores = np.random.default_rng(0).standard_normal((700, 700), dtype=np.float32)
    views = [_Centered(view) for view in (scores.T, np.ascontiguousarray(scores.T))]
    for span in (slice(0, 90), slice(690, 700)):
        strip, other = (view.strip(span, np.arange(700.0)) for view in views)
        assert strip.flags.c_contiguous
        np.testing.assert_array_equal(strip, other)


def test_both_orientations_are_tried():
    # One column dominates: sorted by rows every row looks extreme, by columns only one does.
    rng = np.random.default_rng(6)
    scores = rng.standard_normal((60, 60)) * np.exp(1.5 * rng.standard_normal((1, 60))) + 2 * np.eye(60)
    both = [scores, scores.T.copy()]
    actual, transposed = (tail_bound(scores_nn, scale=False) for scores_nn in both)
    assert actual == pytest.approx(transposed, rel=1e-9)
    # The quick bound takes rows as they are: of one of the two it is larger.
    quick = sorted(joint_bound([sorted_rows(scores_nn, scale=False, columns=False)]) for scores_nn in both)
    assert quick[0] == pytest.approx(actual, rel=1e-9) and quick[1] > actual + 0.5


def test_rounding_is_outward():
    # The statistic is taken less by the slack that the module's text states, and the value is raised.
    scores = np.random.default_rng(8).standard_normal((200, 200)) + np.eye(200)
    rows = sorted_rows(scores, scale=False, columns=False)
    centred = scores - scores.mean(0) - scores.mean(1, keepdims=True) + scores.mean()
    std = math.sqrt(float(moments(scores)[1]))
    taken = np.trace(centred) - rows.statistic
    assert TIE * std < taken < 1.01 * TIE * std + 1e-9
    value, slope, curvature = bound._chernoff([rows], rows.statistic, 0.5)
    sorted_nn = -np.sort(-centred, axis=1)
    increments = np.diff([0.0] + [math.exp(math.lgamma(k + 1) / k) for k in range(1, 201)])
    plain = -0.5 * rows.statistic + np.log(np.exp(0.5 * sorted_nn) @ increments).sum() - math.lgamma(201)
    assert 0 < value - plain < 1e-6
    step = 1e-4
    nearby = [bound._chernoff([rows], rows.statistic, 0.5 + sign * step)[0] for sign in (-1, 1)]
    assert slope == pytest.approx((nearby[1] - nearby[0]) / (2 * step), rel=1e-5)
    assert curvature == pytest.approx((nearby[1] - 2 * value + nearby[0]) / step**2, rel=1e-3)


def test_tilt_is_where_the_bound_is_least():
    scores = at_distance(np.random.default_rng(9).standard_normal((100, 100)), 8)
    rows = sorted_rows(scores, scale=False)
    best, tilt = bound._minimized([rows])
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert bound._chernoff([rows], rows.statistic, factor * tilt)[0] > best


def test_below_the_mean_it_says_nothing():
    scores = np.random.default_rng(10).standard_normal((30, 30)) - 3 * np.eye(30)
    assert tail_bound(scores) == 0.0
    assert tail_bound(np.ones((5, 5))) == 0.0


@pytest.mark.parametrize("width", [12, 64, 400])
def test_no_p_lies_below_that_of_one_labeling(width):
    """Perfect agreement: the identity alone of D! labelings reaches it, where the normal tail would go far below."""
    result = certified_p(1000.0 * np.eye(width), num_permutations=99)
    assert result.z == pytest.approx(width - 1)
    floor = -math.lgamma(width + 1) / LN10
    assert stats.norm.logsf(result.z) / LN10 < floor
    assert result.log10_p_moments == pytest.approx(floor, rel=1e-12)
    assert floor <= result.log10_p_bound <= floor + 1e-3
    assert result.log10_p == result.log10_p_bound and result.p_value == 10**result.log10_p


def test_the_p_counts_first_and_is_the_bound_beyond_the_count():
    rng = np.random.default_rng(11)
    noise = rng.standard_normal((40, 40))
    for z, reached in ((1.0, True), (12.0, False)):
        scores = at_distance(noise, z)
        result = certified_p(scores, num_permutations=499, seed=3)
        assert (result.exceedances > 0) is reached
        if reached:
            assert result.p_value == (1 + result.exceedances) / 500
            assert result.log10_p == pytest.approx(math.log10(result.p_value))
        else:
            assert result.log10_p == result.log10_p_bound < -5
    # Between the two the count is the smaller: the bound is never taken alone.
    middle = certified_p(at_distance(noise, 3.5), num_permutations=99, seed=1)
    assert middle.exceedances == 0 and -2 < middle.log10_p_bound < 0
    assert middle.p_value == 1 / 100


def test_float32_scores_give_nearly_the_same():
    scores = np.random.default_rng(15).standard_normal((90, 90)) + np.eye(90)
    wide, narrow = certified_p(scores), certified_p(scores.astype(np.float32))
    assert narrow.z == pytest.approx(wide.z, rel=1e-6)
    assert narrow.log10_p_bound == pytest.approx(wide.log10_p_bound, rel=1e-5)


def test_no_labeling_differs():
    ends_n = np.random.default_rng(0).standard_normal(12)
    # Rounding leaves the second a little variance.
    for scores in (np.ones((12, 12)), np.add.outer(ends_n, ends_n)):
        result = certified_p(scores, num_permutations=99)
        assert math.isnan(result.p_value) and math.isnan(result.z)


@pytest.mark.slow
def test_p_values_are_valid_under_the_null():
    # 400 unrelated pairs of 25 labels: p ≤ level no more often than a binomial of that level allows.
    rng = np.random.default_rng(16)
    p = np.array([certified_p(rng.standard_normal((25, 25)), num_permutations=199, seed=i).p_value for i in range(400)])
    for level in (0.05, 0.25, 0.5):
        assert stats.binomtest(int((p <= level + 1e-9).sum()), 400, level).pvalue > 1e-4


@pytest.mark.parametrize("bad", [np.zeros((3, 4)), np.zeros(3), np.zeros((1, 1)), np.full((4, 4), np.nan)])
def test_bad_scores_are_refused(bad):
    with pytest.raises(ValueError, match="scores"):
        tail_bound(bad)
    with pytest.raises(ValueError, match="scores"):
        certified_p(bad)


def test_a_reached_sum_keeps_its_count(monkeypatch):
    # Where permutations reach the sum the bound is above the count; were it not, the count would still hold.
    monkeypatch.setattr(certified, "joint_bound", lambda groups: -50.0)
    noise = np.random.default_rng(17).standard_normal((30, 30))
    reached, beyond = (certified_p(at_distance(noise, z), num_permutations=99) for z in (0.5, 12.0))
    assert reached.exceedances > 0 and reached.p_value == (1 + reached.exceedances) / 100
    assert beyond.exceedances == 0 and beyond.log10_p == -50.0


def test_a_wide_group_is_never_copied_in_double_precision():
    """Scores of n = 11,008 take 0.48 GB; what is made of them is under 1.2 GB more: below 9.9 bytes a score."""
    size = 1_200
    scores_nn = np.random.default_rng(0).standard_normal((size, size), np.float32) + 0.5 * np.eye(
        size, dtype=np.float32
    )
    tracemalloc.start()
    try:
        result = certified_p(scores_nn, num_permutations=99)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.exceedances == 0 and peak < 1.2e9 / 11_008**2 * size**2
