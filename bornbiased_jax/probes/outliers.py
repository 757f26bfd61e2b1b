"""Massive activations, dimension disparity, effective rank, and the super neurons that make them.

Sources: Sun et al. (2024) for massive activations; "The Structural Origin of Attention Sink" for DomRatio,
super neurons and the effective rank it reports; Roy and Vetterli (2007) for the rank's definition.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.limits import check_sequences
from bornbiased_jax.model.streaming import Reading, Weights, parameter
from bornbiased_jax.probes import batching
from bornbiased_jax.probes.batching import read_batches
from bornbiased_jax.probes.inputs.kinds import HostOrDevice

# Sun et al. (2024): a massive activation exceeds 100 and a thousand times the median magnitude.
MASSIVE_ABSOLUTE = 100.0
MASSIVE_RELATIVE = 1000.0
# States, whole sequences at a time, in the matrix of the effective rank.
_RANK_ROWS = 4096
# A super neuron fires at the first position, and its input columns are long.
_FIRING_RATIO, _NORM_RATIO = 10.0, 2.0


class Outliers(NamedTuple):
    """Statistics of the residual stream after each block, float64; positions and channels count from 0."""

    largest_L: np.ndarray
    """Largest |h_j| seen."""
    largest_at_L3: np.ndarray
    """Where: sequence, position, channel."""
    massive_L: np.ndarray
    """Fraction of sequences with a massive activation in the sense of Sun et al. (2024)."""
    dom_ratio_LT: np.ndarray
    """max_j |h_j| / mean_j |h_j| of each position, averaged over sequences."""
    first_LD: np.ndarray
    """Mean |h_j| over sequences at the first position."""
    rest_LD: np.ndarray
    """Mean |h_j| over sequences and the other positions (zeros when there is one position)."""
    effective_rank_L: np.ndarray
    """exp of the entropy of the singular values of the state matrix, see :func:`effective_rank`."""
    rank_rows: int
    """Rows (states) in that matrix."""


def dom_ratio(h: HostOrDevice) -> HostOrDevice:
    """Compute dimension disparity max_j |h_j| / mean_j |h_j| over the last axis: 1 if flat, D for a single spike.

    NaN for a vector of zeros, which has no dominant dimension.

    Example:
        >>> float(dom_ratio(np.array([0.0, 0.0, -8.0, 0.0])))
        4.0
    """
    size: HostOrDevice = abs(h)
    ratio: HostOrDevice = size.max(axis=-1) / size.mean(axis=-1)
    return ratio


def effective_rank(gram_DD: np.ndarray) -> float:
    """Compute exp(−Σ p_i ln p_i) with p_i = σ_i / Σσ, σ the singular values of a matrix X [R, D] (not centered).

    Args:
        gram_DD: XᵀX in float64; its eigenvalues are σ².

    Returns:
        Between 1 and min(R, D); NaN when X is all zeros.

    Example:
        >>> round(effective_rank(np.diag([4.0, 4.0, 0.0])), 6)
        2.0
    """
    values = np.linalg.eigvalsh(np.asarray(gram_DD, np.float64))
    # Eigenvalues below rounding of the largest one are zero.
    values = np.where(values > len(values) * np.finfo(np.float64).eps * values[-1], values, 0.0)
    sigma = np.sqrt(values[values > 0])
    if not sigma.size:
        return float("nan")
    p = sigma / sigma.sum()
    return float(np.exp(-np.sum(p * np.log(p))))


def measure_outliers(
    cfg: ModelConfig,
    params: Weights,
    tokens_NT: ArrayLike,
    *,
    advance: Callable[[int], None] | None = None,
) -> Outliers:
    """Measure outliers of the residual stream over N sequences, streamed in batches.

    Args:
        cfg: the architecture.
        params: its weights, in memory or streamed.
        tokens_NT: token ids [N, T], or vectors [N, T, D].
        advance: called with the number of sequences done since the last call.

    Raises:
        InputError: inputs that do not fit the model.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> from bornbiased_jax.init import init_seed
        >>> cfg = preset("llama-tiny", num_layers=2, d_model=16, num_heads=2, d_ff=32, vocab_size=32)
        >>> measure_outliers(cfg, init_seed(cfg, 0), np.zeros((2, 8), int)).massive_L.tolist()
        [0.0, 0.0]
    """
    x = check_sequences(cfg, tokens_NT)
    N, T = x.shape[:2]
    L, D = cfg.num_layers, cfg.d_model
    for_rank = min(N, max(1, _RANK_ROWS // T))

    largest_L, at_L3, massive_L = np.zeros(L), np.zeros((L, 3), int), np.zeros(L)
    ratio_LT, first_LD, all_LD = np.zeros((L, T)), np.zeros((L, D)), np.zeros((L, D))
    # The first sequences, whole batches of them, also give the matrix of the effective rank.
    states: list[np.ndarray] = []
    offset = 0
    size = batching.batch_size_for(cfg, T)
    first = math.ceil(for_rank / size) * size
    computed = itertools.chain(
        read_batches(cfg, params, x[:first], Reading(("residual",), _with_states), advance=advance),
        read_batches(cfg, params, x[first:], Reading(("residual",), _without_states), advance=advance),
    )
    for batch, statistics in computed:
        for layer in range(L):
            # Where the largest value of the block is, over all batches so far.
            best = int(np.argmax(statistics["largest"][layer]))
            if statistics["largest"][layer, best] > largest_L[layer]:
                largest_L[layer] = statistics["largest"][layer, best]
                at_L3[layer] = (offset + best, *divmod(int(statistics["at"][layer, best]), D))
        massive_L += np.sum(
            (statistics["largest"] > MASSIVE_ABSOLUTE)
            & (statistics["largest"] > MASSIVE_RELATIVE * statistics["median"]),
            axis=1,
        )
        ratio_LT += statistics["ratio"]
        first_LD += statistics["first"]
        all_LD += statistics["all"]
        if "states" in statistics:
            states.append(np.array(statistics["states"][:, : for_rank - offset]).reshape(L, -1, D))
        offset += len(batch)
    return Outliers(
        largest_L=largest_L,
        largest_at_L3=at_L3,
        massive_L=massive_L / N,
        dom_ratio_LT=ratio_LT / N,
        first_LD=first_LD / N,
        rest_LD=(all_LD - first_LD) / (N * max(1, T - 1)),
        effective_rank_L=np.array([effective_rank(_gram([part[layer] for part in states], D)) for layer in range(L)]),
        rank_rows=sum(part.shape[1] for part in states),
    )


class SuperNeuron(TypedDict):
    """One of the neurons that write most at the first position, JSON-ready."""

    block: int
    """From 1; neurons and channels count from 0."""
    neuron: int
    write: float
    """Mean activation at the first position × largest weight of the row of W_down, in residual units (where no norm
    follows)."""
    channel: int
    """Where that weight is."""
    channel_share: float
    """Its fraction of the row's energy."""
    channels: float
    """Participation ratio (Σw²)²/Σw⁴ of the row: 1 writes a single channel, D/3 is a Gaussian row."""
    first: float
    """Mean |activation| at the first position."""
    rest: float
    firing_ratio: float | None
    gate_norm_ratio: float | None
    """None without a gate."""
    up_norm_ratio: float
    super: bool


def super_neurons(
    cfg: ModelConfig,
    params: Weights,
    tokens_NT: ArrayLike,
    *,
    top: int = 10,
    advance: Callable[[int], None] | None = None,
) -> list[SuperNeuron]:
    """Find the MLP neurons that write most at the first position, and which of them are super neurons.

    A neuron is called super when its mean |activation| at the first position is at least ten times that at the
    others, and the norm of its gate or up column at least twice the median of its layer. The activation is what enters
    W_down.

    Args:
        cfg: the architecture.
        params: its weights, in memory or streamed.
        tokens_NT: token ids [N, T] or vectors [N, T, D], T at least 2.
        top: how many to return, over all layers; fewer where other neurons write nothing anywhere.
        advance: called with the number of sequences done since the last call.

    Returns:
        The neurons, by decreasing ``write``.

    Raises:
        InputError: inputs that do not fit the model, one position only, a model without MLP.
    """
    x = check_sequences(cfg, tokens_NT)
    N, T = x.shape[:2]
    if not cfg.mlp:
        raise InputError("the model has no MLP (mlp=false), so it has no super neurons: choose another")
    if T < 2:
        raise InputError("super neurons are told by the first position against others: give sequences of at least 2")

    # Mean activations at the first position and at the others.
    sums = [np.zeros((cfg.num_layers, cfg.d_ff)) for _ in range(3)]
    reading = Reading(("mlp_hidden",), _firing_sums)
    for _, batch_sums in read_batches(cfg, params, x, reading, advance=advance):
        for total, batch_sum in zip(sums, batch_sums, strict=True):
            total += np.asarray(batch_sum)
    signed_LF, first_LF, rest_LF = sums[0] / N, sums[1] / N, sums[2] / (N * (T - 1))

    # The channel that each neuron writes most to, and with which weight.
    down = functools.partial(parameter, params, "blocks/mlp/down/kernel")
    channel_LF = np.zeros((cfg.num_layers, cfg.d_ff), int)
    weight_LF = np.zeros((cfg.num_layers, cfg.d_ff))
    for layer in range(cfg.num_layers):
        down_FD = down(layer)
        channel_LF[layer] = np.square(down_FD, dtype=np.float64).argmax(axis=-1)
        weight_LF[layer] = np.take_along_axis(down_FD, channel_LF[layer][:, None], -1)[:, 0]
    write_LF = signed_LF * weight_LF * cfg.residual_scale
    # Norms of the input columns, against the layer's median.
    names = ("gate", "up") if cfg.gated_mlp else ("up",)
    norms = {
        name: _norm_ratio(cfg, functools.partial(parameter, params, f"blocks/mlp/{name}/kernel")) for name in names
    }
    # Describe the neurons with the largest writes.
    neurons: list[SuperNeuron] = []
    for flat in np.argsort(-np.abs(write_LF), axis=None)[:top]:
        at = np.unravel_index(flat, write_LF.shape)
        row_D = np.square(down(int(at[0]))[at[1]], dtype=np.float64)
        first, rest = float(first_LF[at]), float(rest_LF[at])
        # Of W_down that begins at zero, or was pruned, a row has no channel; and some neurons never fire.
        if not row_D.any() or not (first or rest):
            continue
        ratio = first / rest if rest > 0 else None
        heaviest = max(float(norm[at]) for norm in norms.values())
        fires = ratio is None or ratio >= _FIRING_RATIO
        neurons.append(
            {
                "block": int(at[0]) + 1,
                "neuron": int(at[1]),
                "write": float(write_LF[at]),
                "channel": int(channel_LF[at]),
                "channel_share": float(row_D.max() / row_D.sum()),
                "channels": float(row_D.sum() ** 2 / np.square(row_D).sum()),
                "first": first,
                "rest": rest,
                "firing_ratio": ratio,
                "gate_norm_ratio": float(norms["gate"][at]) if "gate" in norms else None,
                "up_norm_ratio": float(norms["up"][at]),
                "super": bool(fires and heaviest >= _NORM_RATIO),
            }
        )
    return neurons


def _gram(states: Sequence[np.ndarray], width: int) -> np.ndarray:
    """Compute XᵀX in float64 of the states [R, D] of one block, part by part."""
    gram_DD = np.zeros((width, width))
    for states_RD in states:
        wide_RD = states_RD.astype(np.float64)
        gram_DD += wide_RD.T @ wide_RD
    return gram_DD


def _without_states(captured: dict[str, jax.Array]) -> dict[str, jax.Array]:
    h_BTD = captured["residual"].astype(jnp.float32)
    size_BTD = jnp.abs(h_BTD)
    flat_BN = size_BTD.reshape(len(h_BTD), -1)
    return {
        "largest": jnp.max(flat_BN, axis=-1),
        "at": jnp.argmax(flat_BN, axis=-1),
        "median": jnp.median(flat_BN, axis=-1),
        "ratio": jnp.sum(dom_ratio(h_BTD), axis=0),
        "first": jnp.sum(size_BTD[:, 0], axis=0),
        "all": jnp.sum(size_BTD, axis=(0, 1)),
    }


def _with_states(captured: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return _without_states(captured) | {"states": captured["residual"].astype(jnp.float32)}


def _firing_sums(captured: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
    """Sum over the batch [F]: activation and its size at the first position, its size at the others."""
    a_BTF = captured["mlp_hidden"].astype(jnp.float32)
    size_BTF = jnp.abs(a_BTF)
    first, size = jnp.sum(a_BTF[:, 0], axis=0), jnp.sum(size_BTF[:, 0], axis=0)
    return first, size, jnp.sum(size_BTF[:, 1:], axis=(0, 1))


def _norm_ratio(cfg: ModelConfig, kernel_of: Callable[[int], np.ndarray]) -> np.ndarray:
    """Divide the norm of each neuron's input column by the median of its layer, [L, F]; kernels [D, F] by layer.

    Of a layer of which most columns are zeros (pruned neurons) by the median of the others; of zeros alone it is 0.
    """
    kernels = map(kernel_of, range(cfg.num_layers))
    norm_LF = np.stack([np.linalg.norm(kernel_DF.astype(np.float64), axis=0) for kernel_DF in kernels])
    median_L1 = np.median(norm_LF, axis=-1, keepdims=True)
    for layer in np.flatnonzero(median_L1 == 0):
        median_L1[layer] = np.median(norm_LF[layer][norm_LF[layer] > 0]) if norm_LF[layer].any() else 1.0
    return np.asarray(norm_LF / median_L1)
