"""Token preference (Section 3, Appendix B.2) and its counterpart in hidden dimensions (Figure 10)."""

from __future__ import annotations

from typing import NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.probes.observe import Observation
from bornbiased_jax.stats.tails import expected_top_count, log10_preference_p


class PreferenceRecord(TypedDict):
    """The result of :func:`summarize`, JSON-ready."""

    num_inputs: int
    top1_id: int
    top1_count: int
    top1_share: float
    log10_p: float
    uniform_top_count: float
    ratio_to_uniform: float
    num_distinct_tokens: int
    entropy_bits: float
    ranked_ids: list[int]
    ranked_counts: list[int]
    top_dimension_by_layer: list[int]
    top_dimension_count_by_layer: list[int]
    top_dimension_log10_p_by_layer: list[float]
    final_dimension_counts: list[int]


class PreferenceState(NamedTuple):
    """Running counts: how often each token wins, and each hidden dimension in every layer."""

    token_counts_V: jax.Array
    dimension_counts_LD: jax.Array
    """L blocks, then the output of the final norm: L + 1 rows."""


def init(cfg: ModelConfig) -> PreferenceState:
    """Return empty counts."""
    return PreferenceState(
        jnp.zeros(cfg.vocab_size, jnp.int32), jnp.zeros((cfg.num_layers + 1, cfg.d_model), jnp.int32)
    )


def update(state: PreferenceState, observation: Observation, weight_B: jax.Array) -> PreferenceState:
    """Count one batch. ``weight_B`` is 1 for a real sequence and 0 for padding of the last batch."""
    weight_B = weight_B.astype(jnp.int32)
    states_LBD = jnp.concatenate([observation.last_LBD, observation.final_BD[None]])
    winners_LB = jnp.argmax(states_LBD, axis=-1)
    rows_LB = jnp.broadcast_to(jnp.arange(states_LBD.shape[0])[:, None], winners_LB.shape)
    weights_LB = jnp.broadcast_to(weight_B[None, :], winners_LB.shape)
    return PreferenceState(
        state.token_counts_V.at[observation.prediction_B].add(weight_B),
        state.dimension_counts_LD.at[rows_LB, winners_LB].add(weights_LB),
    )


def merge(first: PreferenceState, second: PreferenceState) -> PreferenceState:
    """Add the counts of two ranges of sequences, on the host."""
    return PreferenceState(*(np.asarray(left) + np.asarray(right) for left, right in zip(first, second, strict=True)))


def summarize(state: PreferenceState, *, vocab_size: int, num_ranked: int = 30) -> PreferenceRecord:
    """Turn counts into a record.

    Returns:
        ``top1_id``, ``top1_count``, ``top1_share``, ``log10_p`` (binomial tail, Bonferroni-corrected over
        the vocabulary, at most 0), ``uniform_top_count`` (the expected top count of as many uniform draws),
        ``ratio_to_uniform`` (top count over that), ``num_distinct_tokens``, ``entropy_bits`` (of the observed
        fractions, in bits), ``ranked_ids`` and ``ranked_counts`` (the most frequent tokens), by layer the most
        frequent winning dimension's id, count and log₁₀ p, Bonferroni-corrected over the D dimensions (the last
        entry is the final norm's output), and ``final_dimension_counts`` of the latter, decreasing. Ties go to the
        smallest id.

    Example:
        >>> counts = PreferenceState(np.array([1, 3, 0, 0]), np.array([[2, 2]]))
        >>> record = summarize(counts, vocab_size=4)
        >>> record["top1_id"], record["top1_share"], record["num_distinct_tokens"]
        (1, 0.75, 2)
    """
    counts_V = np.asarray(state.token_counts_V, np.int64)
    num_inputs = int(counts_V.sum())
    order = np.argsort(-counts_V, kind="stable")[:num_ranked]
    top = int(counts_V[order[0]])
    # The dimension that wins most often, layer by layer.
    dims_LD = np.asarray(state.dimension_counts_LD, np.int64)
    best_L = dims_LD.argmax(axis=1)
    best_counts = [int(row[best]) for row, best in zip(dims_LD, best_L, strict=True)]
    D = dims_LD.shape[1]
    baseline = expected_top_count(num_inputs, vocab_size)
    return {
        "num_inputs": num_inputs,
        "top1_id": int(order[0]),
        "top1_count": top,
        "top1_share": top / num_inputs,
        "log10_p": log10_preference_p(top, num_inputs, vocab_size),
        "uniform_top_count": baseline,
        "ratio_to_uniform": top / baseline,
        "num_distinct_tokens": int(np.count_nonzero(counts_V)),
        "entropy_bits": _entropy_bits(counts_V),
        "ranked_ids": [int(i) for i in order if counts_V[i] > 0],
        "ranked_counts": [int(counts_V[i]) for i in order if counts_V[i] > 0],
        "top_dimension_by_layer": [int(i) for i in best_L],
        "top_dimension_count_by_layer": best_counts,
        "top_dimension_log10_p_by_layer": [log10_preference_p(c, num_inputs, D) for c in best_counts],
        "final_dimension_counts": sorted((int(c) for c in dims_LD[-1]), reverse=True)[:num_ranked],
    }


def _entropy_bits(counts_V: np.ndarray) -> float:
    fraction = counts_V[counts_V > 0] / counts_V.sum()
    return float(-np.sum(fraction * np.log2(fraction))) if len(fraction) > 1 else 0.0
