"""Sink scores and rates against those computed directly from the attentions that transformers returns."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.probes.sinks import CONVENTIONS, SinkOptions, measure_sinks

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
NAMES = sorted(path.stem for path in (FIXTURES / "attentions").iterdir())
POSITIONS = (1, 2, 7, 19)


def stored(name):
    with np.load(FIXTURES / "attentions" / f"{name}.npz") as arrays:
        return arrays["tokens"], arrays["attentions"].astype(np.float64)


def between_scores(score_LNH):
    """An ε in the widest gap of the middle third of all scores, so that rounding decides no comparison."""
    ordered = np.sort(np.concatenate([score_LNH.ravel(), score_LNH.mean(1).ravel()]))
    third = len(ordered) // 3
    at = third + int(np.argmax(np.diff(ordered)[third : 2 * third]))
    assert ordered[at + 1] - ordered[at] > 1e-4
    return float(ordered[at : at + 2].mean())


def check(checkpoint, tokens_NT, weights_LNHTT, convention, position):
    T = tokens_NT.shape[1]
    # Column k summed over every query and divided as the two papers do, written out.
    rows = {"all_rows": T, "rows_from_k": T - position + 1}[convention]
    score_LNH = np.zeros(weights_LNHTT.shape[:3])
    for query in range(position, T + 1):
        score_LNH += weights_LNHTT[..., query - 1, position - 1] / rows
    epsilon = between_scores(score_LNH)
    sinks = measure_sinks(
        checkpoint.cfg,
        checkpoint.params(),
        tokens_NT,
        options=SinkOptions(epsilon=epsilon, convention=convention, position=position),
    )
    np.testing.assert_allclose(sinks["score_LH"], score_LNH.mean(axis=1), rtol=0, atol=1e-5)
    np.testing.assert_allclose(sinks["profile_LHT"][..., position - 1], score_LNH.mean(axis=1), rtol=0, atol=1e-5)
    exact = dict(rtol=0, atol=1e-12)
    np.testing.assert_allclose(sinks["rate_LH"], (score_LNH > epsilon).mean(axis=1), **exact)
    np.testing.assert_allclose(sinks["sink_rate"], (score_LNH > epsilon).mean(), **exact)
    np.testing.assert_allclose(sinks["sink_rate_of_average"], (score_LNH.mean(axis=1) > epsilon).mean(), **exact)
    per_sequence = (score_LNH > epsilon).mean(axis=(0, 2))
    np.testing.assert_allclose(sinks["sink_rate_std"], per_sequence.std(ddof=1), **exact)


@pytest.mark.parametrize("name", NAMES)
def test_scores_and_rates_equal_those_from_stored_attentions(name):
    checkpoint = open_checkpoint(FIXTURES / "hf" / name)
    tokens_NT, weights_LNHTT = stored(name)
    T = tokens_NT.shape[1]
    # Nothing here is near uniform, where every implementation would agree.
    assert weights_LNHTT[..., -1, :].max(-1).mean() > 3 / T
    for convention in CONVENTIONS:
        for position in POSITIONS:
            if convention == "all_rows" and position == T:
                continue  # One weight over T rows: the same number as from k, divided by T.
            check(checkpoint, tokens_NT, weights_LNHTT, convention, position)


def test_stored_attentions_are_what_transformers_returns_now():
    pytest.importorskip("torch", exc_type=ImportError)
    pytest.importorskip("transformers", exc_type=ImportError)
    spec = importlib.util.spec_from_file_location("make_attention_fixtures", FIXTURES / "make_attention_fixtures.py")
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    assert sorted(maker.NAMES) == NAMES
    for name in ("llama", "qwen2-window"):
        tokens_NT, weights_LNHTT = maker.attentions_of(name)
        kept_NT, kept_LNHTT = stored(name)
        np.testing.assert_array_equal(tokens_NT, kept_NT)
        np.testing.assert_allclose(weights_LNHTT, kept_LNHTT, rtol=0, atol=1e-5)
        check(open_checkpoint(FIXTURES / "hf" / name), tokens_NT, weights_LNHTT.astype(np.float64), "rows_from_k", 4)
