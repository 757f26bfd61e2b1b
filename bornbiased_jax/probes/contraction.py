"""How far last-position states of different sequences point the same way (Sections 4.1 and 4.4).

No N×N matrix: Σ_{i≠j} cos(h_i, h_j) = ‖Σĥ‖² − Σ‖ĥ‖², and Σ cos² = ‖Σ ĥĥᵀ‖²_F − Σ‖ĥ‖⁴. Two random
sequences that happen to end in the same token are alike for a reason that has nothing to do with
contraction, so their pairs are removed: sequences arrive sorted by last token, and the sum of each
run of equal last tokens is enough to subtract its pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NotRequired, TypedDict, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.probes.observe import Observation, unit
from bornbiased_jax.stats.tails import log10_rayleigh_p


class ContractionRecord(TypedDict):
    """The result of :func:`summarize`, JSON-ready; lists are by block."""

    num_inputs: int
    inter_cosine_by_layer: list[float]
    inter_cosine_final: float
    inter_cosine_all_pairs_by_layer: list[float]
    inter_cosine_all_pairs_final: float
    pairs_sharing_last_token: float
    log10_p_by_layer: list[float]
    log10_p: float
    inter_cosine_std_by_layer: NotRequired[list[float]]
    inter_cosine_std_final: NotRequired[float]
    intra_cosine_by_layer: NotRequired[Sequence[float | None]]
    intra_cosine_std_by_layer: NotRequired[Sequence[float | None]]


class ContractionState(NamedTuple):
    """Running sums over sequences; the layer axis holds L blocks, then the final norm's output."""

    num: jax.Array
    sum_LD: jax.Array
    moment_LDD: jax.Array
    own_L: jax.Array
    """Σ‖ĥ‖², which is the count up to rounding."""
    own_squared_L: jax.Array
    run_token: jax.Array
    run_sum_LD: jax.Array
    run_own_L: jax.Array
    run_count: jax.Array
    same_last_L: jax.Array
    """Σ cos over ordered pairs that share their last token, closed runs only."""
    same_last_pairs: jax.Array
    intra_sum_L: jax.Array
    intra_squared_L: jax.Array


def init(cfg: ModelConfig, *, second_moment: bool = True) -> ContractionState:
    """Return empty sums. Without ``second_moment`` the D×D sums, and the standard deviation, are left out."""
    L, D = cfg.num_layers + 1, cfg.d_model
    layers, wide = jnp.zeros(L), jnp.zeros((L, D))
    zero = jnp.zeros(())
    return ContractionState(
        num=zero,
        sum_LD=wide,
        moment_LDD=jnp.zeros((L, D, D) if second_moment else (L, 0, 0)),
        own_L=layers,
        own_squared_L=layers,
        run_token=jnp.full((), -1, jnp.int32),
        run_sum_LD=wide,
        run_own_L=layers,
        run_count=zero,
        same_last_L=layers,
        same_last_pairs=zero,
        intra_sum_L=jnp.zeros(cfg.num_layers),
        intra_squared_L=jnp.zeros(cfg.num_layers),
    )


def update(
    state: ContractionState, observation: Observation, weight_B: jax.Array, last_token_B: jax.Array
) -> ContractionState:
    """Add one batch, whose sequences come in order of ``last_token_B`` (use distinct ids where none applies)."""
    weight_B = weight_B.astype(jnp.float32)
    states_LBD = jnp.concatenate([observation.last_LBD, observation.final_BD[None]])
    unit_LBD = unit(states_LBD) * weight_B[None, :, None]
    own_LB = jnp.sum(jnp.square(unit_LBD), axis=-1)
    runs = _close_runs(state, unit_LBD, own_LB, weight_B, last_token_B)
    if observation.intra_LB is not None:
        intra_LB = observation.intra_LB * weight_B[None, :]
        runs["intra_sum_L"] = state.intra_sum_L + jnp.sum(intra_LB, axis=-1)
        runs["intra_squared_L"] = state.intra_squared_L + jnp.sum(jnp.square(intra_LB), axis=-1)
    if state.moment_LDD.size:
        product_LDD = jnp.einsum("LBD,LBE->LDE", unit_LBD, unit_LBD, precision="highest")
        runs["moment_LDD"] = state.moment_LDD + product_LDD
    return state._replace(
        num=state.num + jnp.sum(weight_B),
        sum_LD=state.sum_LD + jnp.sum(unit_LBD, axis=1),
        own_L=state.own_L + jnp.sum(own_LB, axis=-1),
        own_squared_L=state.own_squared_L + jnp.sum(jnp.square(own_LB), axis=-1),
        **runs,
    )


def _close_runs(
    state: ContractionState,
    unit_LBD: jax.Array,
    own_LB: jax.Array,
    weight_B: jax.Array,
    last_token_B: jax.Array,
) -> dict[str, jax.Array]:
    """Sum pairs of the runs of equal last tokens that end in this batch; the last run stays open."""
    B = last_token_B.shape[0]
    # Padding continues the last real run with weight zero, so that it closes nothing.
    real = weight_B > 0
    token_B = jnp.where(real, last_token_B, jnp.max(jnp.where(real, last_token_B, -1)))
    starts_B = jnp.concatenate([token_B[:1] != state.run_token, token_B[1:] != token_B[:-1]])
    run_B = jnp.cumsum(starts_B.astype(jnp.int32))  # run 0 is the one carried over
    # Sum each run; the open one is added to what it held before this batch.
    sums = jax.ops.segment_sum(unit_LBD.transpose(1, 0, 2), run_B, B + 1).transpose(1, 0, 2)
    owns = jax.ops.segment_sum(own_LB.T, run_B, B + 1).T
    counts = jax.ops.segment_sum(weight_B, run_B, B + 1)
    sums = sums.at[:, 0].add(state.run_sum_LD)
    owns = owns.at[:, 0].add(state.run_own_L)
    counts = counts.at[0].add(state.run_count)
    # Σ cos over ordered pairs of a run is ‖Σĥ‖² − Σ‖ĥ‖².
    open_run = run_B[-1]
    closed_R = jnp.arange(B + 1) != open_run
    pairs_LR = jnp.sum(jnp.square(sums), axis=-1) - owns
    return {
        "same_last_L": state.same_last_L + jnp.sum(pairs_LR * closed_R[None, :], axis=-1),
        "same_last_pairs": state.same_last_pairs + jnp.sum(counts * (counts - 1.0) * closed_R),
        "run_token": token_B[-1],
        "run_sum_LD": jnp.take(sums, open_run, axis=1),
        "run_own_L": jnp.take(owns, open_run, axis=1),
        "run_count": jnp.take(counts, open_run),
    }


def merge(first: ContractionState, second: ContractionState) -> ContractionState:
    """Add sums over two ranges of sequences, the second after the first: no last token ends sequences of both.

    On the host, element by element: the same bits wherever it is done.
    """
    added = ("num", "sum_LD", "moment_LDD", "own_L", "own_squared_L", "intra_sum_L", "intra_squared_L")
    values = {name: np.asarray(getattr(first, name)) + np.asarray(getattr(second, name)) for name in added}
    # The run that the first range left open ends with it.
    run_LD, count = np.asarray(first.run_sum_LD), np.asarray(first.run_count)
    pairs_L = np.sum(np.square(run_LD), axis=-1) - np.asarray(first.run_own_L)
    values["same_last_L"] = np.asarray(first.same_last_L) + pairs_L + np.asarray(second.same_last_L)
    closed = count * (count - np.float32(1.0))
    values["same_last_pairs"] = np.asarray(first.same_last_pairs) + closed + np.asarray(second.same_last_pairs)
    return second._replace(**cast("dict[str, jax.Array]", values))


def direction(state: ContractionState) -> jax.Array:
    """Compute the contraction direction [D]: the mean unit output of the final norm (Finding 2.2)."""
    return state.sum_LD[-1] / jnp.maximum(state.num, 1.0)


class ContractionSums(NamedTuple):
    """The state reduced to numbers per layer, small enough to keep for hundreds of seeds."""

    num: jax.Array | np.ndarray | float
    own_L: ArrayLike
    own_squared_L: ArrayLike
    resultant_L: ArrayLike
    moment_L: ArrayLike
    same_last_L: ArrayLike
    same_last_pairs: jax.Array | np.ndarray | float
    intra_sum_L: ArrayLike
    intra_squared_L: ArrayLike


def reduce(state: ContractionState) -> ContractionSums:
    """Close the last run and take the norms of the sums."""
    pairs_L = jnp.sum(jnp.square(state.run_sum_LD), axis=-1) - state.run_own_L
    return ContractionSums(
        state.num,
        state.own_L,
        state.own_squared_L,
        jnp.sum(jnp.square(state.sum_LD), axis=-1),
        jnp.sum(jnp.square(state.moment_LDD), axis=(-2, -1)),
        state.same_last_L + pairs_L,
        state.same_last_pairs + state.run_count * (state.run_count - 1.0),
        state.intra_sum_L,
        state.intra_squared_L,
    )


def summarize(sums: ContractionSums, *, d_model: int, intra: bool, remove_same_last: bool = True) -> ContractionRecord:
    """Turn sums into a record of cosines.

    Returns:
        ``inter_cosine_by_layer`` (after each block) and ``inter_cosine_final`` (after the final norm):
        the mean over pairs of different sequences; ``inter_cosine_std_by_layer`` over all pairs
        (where the second moment was kept);
        ``log10_p`` of Rayleigh's test on the final norm's output, and by layer; with ``intra``,
        ``intra_cosine_by_layer`` and its standard deviation over sequences. Standard deviations come from sums of
        squares in float32: near a cosine of 1 those below 0.001 are rounding. Where the sequences are
        random tokens, pairs that share the last token are left out of the means and the test.

    Example:
        >>> pointing = dict(resultant_L=[9.0, 3.0], moment_L=[9.0, 3.0])  # all the same way, then all at right angles
        >>> nothing = dict(same_last_L=[0.0, 0.0], same_last_pairs=0.0, intra_sum_L=[0.0], intra_squared_L=[0.0])
        >>> sums = ContractionSums(num=3.0, own_L=[3.0, 3.0], own_squared_L=[3.0, 3.0], **pointing, **nothing)
        >>> record = summarize(sums, d_model=4, intra=False)
        >>> record["inter_cosine_by_layer"], record["inter_cosine_final"]
        ([1.0], 0.0)
    """
    # Mean and standard deviation over all pairs.
    n = float(sums.num)
    total_L = np.asarray(sums.resultant_L, np.float64) - np.asarray(sums.own_L, np.float64)
    pairs = n * (n - 1.0)
    all_L = total_L / pairs
    squared_L = (np.asarray(sums.moment_L, np.float64) - np.asarray(sums.own_squared_L, np.float64)) / pairs
    std_L = np.sqrt(np.maximum(squared_L - np.square(all_L), 0.0))
    # The same without the pairs that share their last token.
    removed = float(sums.same_last_pairs) if remove_same_last else 0.0
    mean_L = all_L
    # Counts and sums are float32's: where all but a millionth of the pairs share it, the difference is rounding.
    if 0.0 < removed < (1 - 1e-6) * pairs:
        mean_L = (total_L - np.asarray(sums.same_last_L, np.float64)) / (pairs - removed)
    record: ContractionRecord = {
        "num_inputs": int(n),
        "inter_cosine_by_layer": [float(c) for c in mean_L[:-1]],
        "inter_cosine_final": float(mean_L[-1]),
        "inter_cosine_all_pairs_by_layer": [float(c) for c in all_L[:-1]],
        "inter_cosine_all_pairs_final": float(all_L[-1]),
        "pairs_sharing_last_token": removed / pairs,
        "log10_p_by_layer": [log10_rayleigh_p(float(c), int(n), d_model) for c in mean_L[:-1]],
        "log10_p": log10_rayleigh_p(float(mean_L[-1]), int(n), d_model),
    }
    if np.any(np.asarray(sums.moment_L) > 0):
        record["inter_cosine_std_by_layer"] = [float(s) for s in std_L[:-1]]
        record["inter_cosine_std_final"] = float(std_L[-1])
    if intra:
        mean_intra = np.asarray(sums.intra_sum_L, np.float64) / n
        var_intra = np.asarray(sums.intra_squared_L, np.float64) / n - np.square(mean_intra)
        record["intra_cosine_by_layer"] = [float(c) for c in mean_intra]
        record["intra_cosine_std_by_layer"] = [float(s) for s in np.sqrt(np.maximum(var_intra, 0.0))]
    return record
