"""What a quantization costs: loss, distance from the full-precision distribution, and how much of it the sinks cause.

Everything is paired: each sequence against itself in float32. Δ is the mean over sequences of the difference in mean
loss, with a 95% interval of Student's t over sequences. D_sink = Δ(all positions quantized) − Δ(the first k kept in
full precision). A cell whose loss exceeds ten times the reference is called destroyed, and says no D_sink.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model import ForwardOptions, apply
from bornbiased_jax.model.interventions import NO_EDITS, Edits
from bornbiased_jax.model.limits import check_sequences, check_tokens
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes.batching import batches
from bornbiased_jax.quantization.fake import Granularity
from bornbiased_jax.quantization.model import quantized_edits, quantized_params
from bornbiased_jax.quantization.schemes import Scheme
from bornbiased_jax.stats.intervals import mean_interval

DESTROYED = 10.0
"""Times the reference's loss."""
LOGIT_BYTES = 2**27
"""Bytes of one batch's logits."""


class Price(TypedDict):
    """One cell: a scheme, a granularity, a number of kept positions; JSON-ready."""

    scheme: str
    granularity: Granularity
    keep_sinks: int
    loss: float | None
    """Nats a token; None, as all that follow, where it is not finite."""
    delta_nats: float | None
    """Above the full-precision loss, mean over sequences."""
    delta_interval: list[float] | None
    """95%, over sequences; None for a single sequence."""
    kl_median: float | None
    """Median over positions of KL(full precision ‖ quantized), nats."""
    same_top1: float
    """Fraction of positions with the same most likely token."""
    d_sink: float | None
    """Δ(nothing kept) − Δ(this many kept); None where nothing is kept or a cell is destroyed."""
    destroyed: bool


def prices(
    cfg: ModelConfig,
    params: Params,
    tokens_NT: ArrayLike,
    schemes: Sequence[Scheme],
    *,
    granularities: Sequence[Granularity] = ("tensor", "token"),
    keep: Sequence[int] = (0, 1, 4),
    advance: Callable[[int], None] | None = None,
) -> list[Price]:
    """Compute the price of every scheme at every granularity with every number of kept first positions.

    Losses are those of the same positions in every cell: all that are predicted.

    Args:
        cfg: the architecture.
        params: its weights, float32.
        tokens_NT: N sequences of T token ids.
        schemes: what is quantized.
        granularities: whose largest value sets a scale.
        keep: how many first positions stay in full precision.
        advance: called with the number of sequences done since the last call; N in every cell, one without kept
            positions among them.

    Raises:
        InputError: inputs that do not fit the model, sequences of one token, more positions kept than there are,
            activations of a mixture of experts, the cache of a model without attention.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> from bornbiased_jax.init import init_seed
        >>> cfg = preset("llama-tiny", num_layers=2, d_model=16, num_heads=2, d_ff=32, vocab_size=32)
        >>> x_NT = np.arange(24).reshape(2, 12)
        >>> cells = prices(cfg, init_seed(cfg, 0), x_NT, [Scheme(activations=8)], granularities=["token"], keep=[0])
        >>> cells[0]["scheme"], abs(cells[0]["delta_nats"]) < 1e-3
        ('a8', True)
    """
    x = check_tokens(check_sequences(cfg, tokens_NT), cfg.vocab_size)
    N, T = x.shape
    check_prices(cfg, T, schemes, keep)
    size = max(1, LOGIT_BYTES // (4 * T * cfg.vocab_size))
    cells: list[Price] = []
    # What keeping the first positions saves is told from a cell that keeps none.
    counts = sorted({0, *keep})
    for scheme in schemes:
        for granularity in granularities:
            weights = quantized_params(params, scheme.weights, granularity)
            edits = {count: quantized_edits(scheme, granularity, keep=count) for count in counts}
            measured: dict[int, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {count: [] for count in edits}
            full: list[np.ndarray] = []
            for batch in batches(x, size):
                # What full precision says is computed again for every group of cells: all of it does not fit.
                full_BTV = _log_probabilities(cfg, params, batch, NO_EDITS)
                full.append(np.asarray(_loss(full_BTV, batch)))
                for count, edit in edits.items():
                    measured[count].append(jax.device_get(_compared(cfg, weights, batch, edit, full_BTV)))
                    if advance is not None:
                        advance(len(batch))
            full_N = np.concatenate(full).astype(np.float64)
            # One cell for each number of kept positions, against the cell that keeps none.
            unkept: Price | None = None
            for count, parts in measured.items():
                cell = _cell(scheme, granularity, count, full_N, parts, unkept)
                if count in keep:
                    cells.append(cell)
                unkept = cell if count == 0 else unkept
    return cells


def check_prices(cfg: ModelConfig, length: int, schemes: Sequence[Scheme], keep: Sequence[int]) -> None:
    """Refuse what :func:`prices` cannot measure on sequences of ``length`` tokens.

    Raises:
        InputError: sequences of one token, more positions kept than there are, activations of experts, a cache that is
            not there.
    """
    if length < 2:
        raise InputError("a sequence of one token predicts nothing: give at least 2")
    for count in keep:
        if not 0 <= count < length:
            raise InputError(f"{count} first positions cannot be kept of {length}: give numbers from 0 to {length - 1}")
    for scheme in schemes:
        if scheme.activations is not None and cfg.num_experts is not None:
            raise InputError(
                f"{scheme} quantizes activations, and those in a mixture of experts are not edited: quantize weights "
                "or the cache alone (w4, kv4)"
            )
        if scheme.cache is not None and not cfg.attention:
            raise InputError(
                f"{scheme} quantizes keys and values, and the model has no attention (attention=false): quantize "
                "weights or activations alone (w4, a8)"
            )


def _cell(
    scheme: Scheme,
    granularity: Granularity,
    keep: int,
    full_N: np.ndarray,
    measured: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    unkept: Price | None,
) -> Price:
    loss_N, kl_NT, same_NT = (np.concatenate(parts).astype(np.float64) for parts in zip(*measured, strict=True))
    delta_N = loss_N - full_N
    finite = bool(np.isfinite(loss_N).all())
    delta = float(delta_N.mean()) if finite else None
    destroyed = not finite or bool(loss_N.mean() > DESTROYED * full_N.mean())
    # What keeping the first positions saves; no D_sink of a destroyed cell.
    d_sink = None
    if unkept is not None and delta is not None and unkept["delta_nats"] is not None:
        d_sink = None if destroyed or unkept["destroyed"] else unkept["delta_nats"] - delta
    return {
        "scheme": str(scheme),
        "granularity": granularity,
        "keep_sinks": keep,
        "loss": float(loss_N.mean()) if finite else None,
        "delta_nats": delta,
        "delta_interval": list(mean_interval(delta_N)) if finite and len(delta_N) > 1 else None,
        "kl_median": float(np.median(kl_NT)) if finite else None,
        "same_top1": float(same_NT.mean()),
        "d_sink": d_sink,
        "destroyed": destroyed,
    }


@functools.partial(jax.jit, static_argnames=("cfg",))
def _log_probabilities(cfg: ModelConfig, params: Params, tokens: jax.Array, edits: Edits) -> jax.Array:
    """Compute log-probabilities of next tokens at all positions but the last, [B, T − 1, V], float32."""
    logits_BTV = apply(cfg, params, tokens, options=ForwardOptions(edit=edits)).logits_BTV
    assert logits_BTV is not None
    return jax.nn.log_softmax(logits_BTV[:, :-1], axis=-1)


def _loss(log_BTV: jax.Array, tokens: jax.Array | np.ndarray) -> jax.Array:
    """Average the loss over positions for each sequence, [B]."""
    return -jnp.mean(jnp.take_along_axis(log_BTV, jnp.asarray(tokens)[:, 1:, None], axis=-1)[..., 0], axis=-1)


@functools.partial(jax.jit, static_argnames=("cfg",))
def _compared(
    cfg: ModelConfig, weights: Params, tokens: jax.Array, edits: Edits, full_BTV: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return loss [B], KL from full precision [B, T − 1], same most likely token [B, T − 1]."""
    log_BTV = _log_probabilities(cfg, weights, tokens, edits)
    # Both add up to 1, so that KL is Σ p (e^r − 1 − r) with r = ln q/p, no term of which is negative; of small r by its
    # series, where the difference would be rounding alone.
    r_BTV, p_BTV = log_BTV - full_BTV, jnp.exp(full_BTV)
    series_BTV = p_BTV * jnp.square(r_BTV) * (1 / 2 + r_BTV / 6 + jnp.square(r_BTV) / 24)
    whole_BTV = jnp.exp(log_BTV) - p_BTV - p_BTV * r_BTV
    kl_BT = jnp.sum(jnp.where(jnp.abs(r_BTV) < 0.1, series_BTV, whole_BTV), axis=-1)
    same_BT = jnp.argmax(full_BTV, axis=-1) == jnp.argmax(log_BTV, axis=-1)
    return _loss(log_BTV, tokens), kl_BT, same_BT
