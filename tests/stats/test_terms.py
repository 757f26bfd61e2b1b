"""Sums of traces: permuted alike or each on its own, and bounded from the screen on."""

import math

import numpy as np
import pytest

from bornbiased_jax.stats.terms import SCREEN, Term, bound_of, certified_sum, join_terms, z_of


def test_joint_terms_are_permuted_alike():
    """Labels that repeat each other in both models count once."""
    base_nk = np.random.default_rng(1).standard_normal((48, 16))
    scores_nn = base_nk @ (base_nk + np.random.default_rng(2).standard_normal(base_nk.shape)).T
    alone = certified_sum([Term(scores_nn)], 999)
    joint = certified_sum(join_terms([Term(scores_nn) for _ in range(4)], is_joint=True), 999)
    independent = certified_sum([Term(scores_nn) for _ in range(4)], 999)
    assert joint.z == pytest.approx(alone.z)
    assert joint.log10_p_bound == pytest.approx(alone.log10_p_bound, rel=0.05)
    assert independent.log10_p_bound < 3 * alone.log10_p_bound


def test_terms_are_added_and_narrow_ones_permuted_independently():
    rng = np.random.default_rng(13)
    terms = [Term(rng.standard_normal((n, n))) for n in (20, 20, 23)]
    result = certified_sum(terms, 4000)
    assert result.statistic == pytest.approx(sum(np.trace(each.scores_nn) for each in terms))
    assert result.mean == pytest.approx(sum(each.facts.mean for each in terms))
    assert result.std == pytest.approx(math.sqrt(sum(each.facts.variance for each in terms)))
    sums = [each.permuted_traces(4000, 0, stream) for stream, each in enumerate(terms)]
    assert result.exceedances == (np.sum(sums, axis=0) >= result.statistic).sum()
    assert [len(join_terms([Term(np.eye(n))] * 2)) for n in (23, 24)] == [2, 1]
    # One permutation for both would give correlated sums: two equal matrices show it.
    std = np.sum([terms[0].permuted_traces(4000, 0, stream) for stream in range(2)], axis=0).std()
    assert certified_sum(terms[:1] * 2, 4000).std == pytest.approx(std, rel=0.05)


def test_many_weak_terms_are_one_strong_finding():
    rng = np.random.default_rng(14)
    terms = [Term(rng.standard_normal((50, 50)) + 0.72 * np.eye(50)) for _ in range(9)]
    alone, together = [certified_sum([each], 99) for each in terms], certified_sum(terms, 99)
    assert together.z == pytest.approx(np.sum([each.z for each in alone]) / 3, rel=0.02) and together.z > 12
    assert together.log10_p_bound < 3 * min(each.log10_p_bound for each in alone)


def test_bound_begins_at_the_screen_and_counts_orders_by_the_factorial():
    scores_nn = np.random.default_rng(14).standard_normal((50, 50))
    below, above = (Term(scores_nn + part * np.eye(50)) for part in (0.5, 0.6))
    assert z_of([below]) < SCREEN < z_of([above]) < 3.5
    assert bound_of([below]) == 0.0 > -1 > bound_of([above])
    assert below.log_order == pytest.approx(math.log(math.factorial(50)))


def test_scores_of_labels_with_themselves_are_less_their_mean_over_permutations():
    scores_nn = np.random.default_rng(15).standard_normal((30, 30)) + 2
    single = Term(scores_nn)
    np.testing.assert_allclose(single.own_n, np.diagonal(scores_nn) - scores_nn.mean())
    (joint,) = join_terms([single, Term(scores_nn.T, signed_n=np.arange(30.0))])
    np.testing.assert_allclose(joint.scores_nn, scores_nn + scores_nn.T)
    np.testing.assert_allclose(joint.own_n, single.own_n + np.arange(30.0))
    # Terms are told apart as objects: arrays have no truth value.
    assert single != Term(scores_nn) and len({single, joint}) == 2


def test_nested_terms_have_the_permutations_of_groups_and_within_them():
    nested = Term(np.random.default_rng(16).standard_normal((12, 12)), num_groups=4)
    assert nested.log_order == pytest.approx(math.log(math.factorial(4) * math.factorial(3) ** 4))
    assert certified_sum([nested], 99).std == pytest.approx(math.sqrt(nested.facts.variance))
