import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.population import population_test
from bornbiased_jax.stats.ranks import rank_correlation


def leaky(rng, shared):
    """An unrelated model that lets shared continuous inputs through in their own coordinates."""
    return 0.7 * shared + rng.standard_normal(shared.shape)


def test_score_is_the_trace_of_the_rank_correlation():
    base, suspect, *references = np.random.default_rng(0).standard_normal((103, 40, 9))
    statistic = population_test(base, suspect, references).detail["statistic"]
    assert statistic == pytest.approx(np.trace(rank_correlation(base, suspect)), abs=1e-12)


def test_finds_a_descendant_among_references_in_every_form():
    rng = np.random.default_rng(2)
    shared = rng.standard_normal((60, 16))
    base = leaky(rng, shared)
    suspect = base + rng.standard_normal(base.shape)
    references = np.stack([leaky(rng, shared) for _ in range(120)])
    verdict = population_test(base, suspect, references)
    assert verdict.verdict == "same-lineage" and verdict.p_value == 1 / 121
    # One null, that of ranks; the tail describes.
    assert verdict.log10_p == pytest.approx(np.log10(1 / 121), rel=1e-12)
    assert verdict.z > 3 and verdict.detail["log10_p_moments"] < -2
    assert population_test(base, suspect, list(references)) == verdict


def test_refusals_and_undefined():
    rng = np.random.default_rng(3)
    base, suspect, *references = rng.standard_normal((30, 25, 8))
    with pytest.raises(InputError, match="28 references cannot give"):
        population_test(base, suspect, references)
    with pytest.raises(InputError, match="architecture"):
        population_test(base, suspect, [references[0][:, :5]], alpha=0.5)
    assert population_test(base, suspect[:, :7], references).verdict == "undefined"
    same = population_test(base, suspect, [references[0]] * 25, alpha=0.05)
    assert same.verdict == "undefined" and "same score" in same.reason


def test_the_tail_is_students():
    """K references and the pair's own score: t with K − 1 degrees of freedom, of z over √(1 + 1/K)."""
    rng = np.random.default_rng(4)
    base, suspect, *references = rng.standard_normal((8, 40, 10))
    verdict = population_test(base, suspect, references, alpha=0.2)
    score = lambda initial: sum(stats.spearmanr(initial[:, j], suspect[:, j]).statistic for j in range(10))  # noqa: E731
    null = np.array([score(reference) for reference in references])
    z = (score(base) - null.mean()) / null.std(ddof=1)
    assert verdict.z == pytest.approx(z, rel=1e-9) and verdict.detail["null"] == "population"
    expected = stats.t.logsf(z / np.sqrt(1 + 1 / 6), 5) / np.log(10)
    assert verdict.detail["log10_p_moments"] == pytest.approx(expected, rel=1e-9)
    assert verdict.log10_p == pytest.approx(np.log10(verdict.p_value), rel=1e-12)
    assert expected != pytest.approx(stats.norm.logsf(z) / np.log(10), rel=1e-2)
