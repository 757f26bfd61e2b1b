"""Attention sinks: how much attention a position receives, per layer and head.

The score of position k in a head is α_k = Σ_i A[i, k] over the queries i, divided by the number T of
all rows ("all_rows": Section 6.2 of "Transformers Are Born Biased") or by the T − k + 1 rows that can
see k ("rows_from_k": Gu et al., 2024). The two agree at k = 1. The sink rate is the fraction of (layer,
head) with α_k > ε. It is thresholded in each sequence and averaged ("per_sequence": what both papers
average), or thresholded once on the scores averaged over sequences ("average").

Attention is causal, so the first T' rows of a sequence are the rows of its first T' tokens alone: one
pass at the greatest length gives the scores of every shorter one. A layer's weights [B, H, T, T] are
reduced to sums inside the scan over layers; nothing holds [N, L, H, T, T].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model import ForwardOptions
from bornbiased_jax.model.interventions import Edit, Edits
from bornbiased_jax.model.layers import STATIC
from bornbiased_jax.model.limits import check_sequences
from bornbiased_jax.model.streaming import Reading, Weights
from bornbiased_jax.probes.batching import read_batches

ScoreConvention = Literal["all_rows", "rows_from_k"]
Threshold = Literal["per_sequence", "average"]
CONVENTIONS: tuple[ScoreConvention, ...] = ("all_rows", "rows_from_k")
THRESHOLDS: tuple[Threshold, ...] = ("per_sequence", "average")
NOTHING = 1e-4
"""A row whose sum is at most this part of its absolute sum adds up to nothing: float32 leaves some 1e-7 of either."""


@dataclasses.dataclass(frozen=True)
class SinkOptions:
    """The criteria by which heads are sinks.

    Attributes:
        epsilon: a head is a sink where its score exceeds this; between 0 and 1, both excluded.
        convention: what a column's sum is divided by, see above.
        position: k, counted from 1.
        threshold: which of the two sink rates is called ``sink_rate``; both are returned.
        lengths: also report prefixes of these lengths (T itself is always reported).
        normalize: divide each row of weights by its sum first, so that sigmoid attention and extra logits
            compare with a softmax; a row that adds up to nothing counts as zeros. Off, the weights count as they are.
    """

    epsilon: float = 0.25
    convention: ScoreConvention = "all_rows"
    position: int = 1
    threshold: Threshold = "per_sequence"
    lengths: Sequence[int] = ()
    normalize: bool = False


DEFAULTS = SinkOptions()


class SinkRates(TypedDict):
    """Sinks at one length."""

    sink_rate_per_sequence: float
    """Fraction of heads that are sinks in a sequence, averaged over sequences."""
    sink_rate_std: float | None
    """Over sequences; None for one sequence."""
    sink_rate_of_average: float
    """Fraction of heads whose mean score exceeds epsilon."""
    score_LH: np.ndarray
    """Mean score of position k."""
    rate_LH: np.ndarray
    """Fraction of sequences in which the head is a sink."""
    sink_rate: float
    """One of the two fractions of heads, as ``threshold`` says."""


class SinkSettings(TypedDict):
    """Settings of a measurement of sinks."""

    epsilon: float
    convention: ScoreConvention
    position: int
    threshold: Threshold
    normalised_rows: bool
    num_sequences: int


class SinkMeasurement(SinkRates, SinkSettings):
    """Sinks at the greatest length, and at the others; the settings."""

    by_length: dict[int, SinkRates]
    profile_LHT: np.ndarray
    """Mean score of every position."""
    row_mass_LH: np.ndarray
    """Mean sum of a row of weights: 1 for a plain softmax."""
    length: int


def measure_sinks(
    cfg: ModelConfig,
    params: Weights,
    tokens_NT: ArrayLike,
    options: SinkOptions = DEFAULTS,
    *,
    edit: Edit | Edits | None = None,
    advance: Callable[[int], None] | None = None,
) -> SinkMeasurement:
    """Measure sink scores and rates of one model on given sequences.

    Args:
        cfg: the architecture.
        params: its weights, in memory or streamed.
        tokens_NT: N sequences of T token ids, or of vectors [N, T, D] fed in place of embeddings.
        options: which heads are sinks.
        edit: see :func:`bornbiased_jax.model.apply`; interventions make one.
        advance: called with the number of sequences done since the last call.

    Raises:
        InputError: inputs that do not fit the model, a model without attention, or a setting out of range.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> from bornbiased_jax.init import init_seed
        >>> cfg = preset("llama-tiny", num_layers=2, d_model=16, num_heads=2, d_ff=32, vocab_size=32)
        >>> sinks = measure_sinks(cfg, init_seed(cfg, 0), np.zeros((2, 32), int))
        >>> sinks["sink_rate"], sinks["score_LH"].shape  # untrained, attention is all but uniform
        (0.0, (2, 2))
    """
    x = check_sequences(cfg, tokens_NT)
    T = x.shape[1]
    check_epsilon(options.epsilon)
    lengths_reported = _check_settings(cfg, T, options)
    epsilon, convention, position = options.epsilon, options.convention, options.position
    reading = Reading(("attention_weights",), AttentionSums(position, options.normalize))
    # Add up, batch by batch, what positions receive from the queries of each prefix.
    received_LHT = np.zeros((cfg.num_layers, cfg.num_heads, T))
    scores: dict[int, list[np.ndarray]] = {length: [] for length in lengths_reported}
    computed = read_batches(cfg, params, x, reading, options=ForwardOptions(edit=edit), advance=advance)
    for _, (column_LBHT, sums_LBHT) in computed:
        received_LHT += np.sum(sums_LBHT, axis=1, dtype=np.float64)
        cumulative_LBHT = np.cumsum(column_LBHT, axis=-1, dtype=np.float64)
        for length in lengths_reported:
            scores[length].append(cumulative_LBHT[..., length - 1] / _rows(length, position, convention))
    # Threshold the scores.
    by_length = {
        length: _rates(np.concatenate(parts, axis=1), epsilon, options.threshold) for length, parts in scores.items()
    }
    rows_T = np.array([_rows(T, k, convention) for k in range(1, T + 1)])
    return {
        **by_length[T],
        "by_length": by_length,
        "profile_LHT": received_LHT / (len(x) * rows_T),
        "row_mass_LH": received_LHT.sum(axis=-1) / (len(x) * T),
        "epsilon": epsilon,
        "convention": convention,
        "position": position,
        "threshold": options.threshold,
        "normalised_rows": options.normalize,
        "num_sequences": len(x),
        "length": T,
    }


def check_epsilon(epsilon: float) -> None:
    """Refuse a threshold that no attention score, or every one, would exceed.

    Raises:
        InputError: it is not between 0 and 1.
    """
    if not 0.0 < epsilon < 1.0:
        raise InputError(f"epsilon={epsilon} is not between 0 and 1: attention scores are fractions, try 0.25")


def _check_settings(cfg: ModelConfig, T: int, options: SinkOptions) -> list[int]:
    if not cfg.attention:
        raise InputError("the model has no attention (attention=false), so it has no sinks: choose another")
    convention, position, threshold = options.convention, options.position, options.threshold
    if convention not in CONVENTIONS:
        raise InputError(f"convention {convention!r} is not one of {', '.join(CONVENTIONS)}")
    if threshold not in THRESHOLDS:
        raise InputError(f"threshold {threshold!r} is not one of {', '.join(THRESHOLDS)}")
    lengths_reported = sorted({int(length) for length in options.lengths} | {T})
    for length in lengths_reported:
        if not 1 <= length <= T:
            raise InputError(f"length {length} is not between 1 and the {T} positions of the sequences")
    if not 1 <= position <= lengths_reported[0]:
        raise InputError(f"position {position} is not between 1 and the shortest length, {lengths_reported[0]}")
    return lengths_reported


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AttentionSums:
    """Reduce a block's weights to what position k receives from each query, and all positions from all queries.

    Attributes:
        position: k, from 1.
        normalize: divide each row of weights by its sum first.
    """

    position: int | jax.Array
    normalize: bool = dataclasses.field(default=False, metadata=STATIC)

    def __call__(self, captured: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Return both, [B, H, T]."""
        weights_BHTT = captured["attention_weights"].astype(jnp.float32)
        if self.normalize:
            sum_BHT1 = jnp.sum(weights_BHTT, axis=-1, keepdims=True)
            # A row that adds up to nothing (softpick, clipped, centered attention) has no shares: 0, not 0/0.
            has_sum_BHT1 = jnp.abs(sum_BHT1) > NOTHING * jnp.sum(jnp.abs(weights_BHTT), axis=-1, keepdims=True)
            weights_BHTT = jnp.where(has_sum_BHT1, weights_BHTT / jnp.where(has_sum_BHT1, sum_BHT1, 1.0), 0.0)
        column_BHT = jnp.take(weights_BHTT, self.position - 1, axis=-1)
        return column_BHT, jnp.sum(weights_BHTT, axis=2)


def _rows(length: int, position: int, convention: str) -> int:
    return length if convention == "all_rows" else length - position + 1


def _rates(score_LNH: np.ndarray, epsilon: float, threshold: Threshold) -> SinkRates:
    is_sink_LNH = score_LNH > epsilon
    rate_N = is_sink_LNH.mean(axis=(0, 2))
    score_LH = score_LNH.mean(axis=1)
    per_sequence, of_average = float(rate_N.mean()), float((score_LH > epsilon).mean())
    return {
        "sink_rate_per_sequence": per_sequence,
        "sink_rate_std": float(rate_N.std(ddof=1)) if len(rate_N) > 1 else None,
        "sink_rate_of_average": of_average,
        "score_LH": score_LH,
        "rate_LH": is_sink_LNH.mean(axis=1),
        "sink_rate": of_average if threshold == "average" else per_sequence,
    }
