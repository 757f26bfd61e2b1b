"""Loss against position when a model reads on with a rolling cache: the first tokens and the latest ones.

As in StreamingLLM (Xiao et al., 2023): each query sees itself, the ``window`` − 1 tokens before it and the first
``keep`` tokens, at their positions inside the cache. Keys and values stay those of the time when their token was read,
so that one pass over the text with the right mask and angles gives what decoding token by token would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model import ForwardOptions, logits_of
from bornbiased_jax.model.layers import RollingCache
from bornbiased_jax.model.limits import check_length, check_tokens
from bornbiased_jax.model.model import head_path
from bornbiased_jax.model.streaming import Reading
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes.batching import batch_size_for, read_batches
from bornbiased_jax.stats.intervals import mean_interval

LOGIT_BYTES = 2**28
"""Bytes of one batch's logits."""


class Streamed(TypedDict):
    """Results of :func:`streaming_losses` for one number of kept tokens, JSON-ready."""

    window: int | None
    """Latest tokens seen, the query's own among them; None where everything before is seen."""
    keep_sinks: int
    loss: float | None
    """Nats a token over the positions from ``from_position`` on; None where it is not finite."""
    loss_interval: list[float] | None
    """95%, over sequences; None for a single sequence."""
    from_position: int
    """The first position, from 1, at which every cache asked for has dropped something."""
    loss_by_position: list[float | None]
    """Mean over sequences of the loss of predicting from each position, from 1 to T − 1."""


def streaming_losses(
    cfg: ModelConfig,
    params: Params,
    tokens_NT: ArrayLike,
    *,
    window: int,
    keep: Sequence[int] = (0, 1, 4),
    advance: Callable[[int], None] | None = None,
) -> list[Streamed]:
    """Compute loss with a rolling cache of ``window`` tokens and each number of first tokens kept.

    The last entry, without window, has everything kept, where the model numbers so many positions.

    Args:
        cfg: the architecture.
        params: its weights.
        tokens_NT: N sequences of T token ids, T greater than the largest cache and the token after it.
        window: latest tokens seen, at least 1.
        keep: first tokens never dropped, for each entry of the result.
        advance: called with the number of sequences done since the last call; N for each entry.

    Raises:
        InputError: inputs that do not fit the model, a window or a number to keep out of range, sequences that no
            cache would drop anything of, a model without attention, a cache beyond learned positions.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> from bornbiased_jax.init import init_seed
        >>> cfg = preset("llama-tiny", num_layers=2, d_model=16, num_heads=2, d_ff=32, vocab_size=32)
        >>> x_NT = np.arange(24).reshape(2, 12)
        >>> losses = streaming_losses(cfg, init_seed(cfg, 0), x_NT, window=4, keep=[0, 1])
        >>> [(entry["window"], entry["keep_sinks"], entry["from_position"]) for entry in losses]
        [(4, 0, 6), (4, 1, 6), (None, 0, 6)]
    """
    x = check_streaming(cfg, tokens_NT, window, keep)
    T = x.shape[1]
    cells: list[tuple[int | None, int]] = [(window, count) for count in keep]
    if cfg.positions != "learned" or cfg.max_seq_len >= T:
        cells.append((None, 0))
    size = min(batch_size_for(cfg, T), max(1, LOGIT_BYTES // (4 * T * cfg.vocab_size)))
    start = max(keep) + window
    reading = Reading(finish=_next_token_losses, needs=(head_path(cfg),))
    entries: list[Streamed] = []
    for width, count in cells:
        # Without a window everything is kept.
        rolling = RollingCache(jnp.asarray(count, jnp.int32), jnp.asarray(width or T, jnp.int32))
        options = ForwardOptions(rolling=rolling)
        computed = read_batches(cfg, params, x, reading, size=size, options=options, advance=advance)
        loss_NT = np.concatenate([loss_BT.astype(np.float64) for _, loss_BT in computed])
        # Average where every cache has dropped something.
        loss_N = loss_NT[:, start:].mean(axis=1)
        finite = bool(np.isfinite(loss_N).all())
        entries.append(
            {
                "window": width,
                "keep_sinks": count,
                "loss": float(loss_N.mean()) if finite else None,
                "loss_interval": list(mean_interval(loss_N)) if finite and len(loss_N) > 1 else None,
                "from_position": start + 1,
                "loss_by_position": [float(v) if np.isfinite(v) else None for v in loss_NT.mean(axis=0)],
            }
        )
    return entries


def check_streaming(cfg: ModelConfig, tokens_NT: ArrayLike, window: int, keep: Sequence[int]) -> np.ndarray:
    """Return the sequences as int32, if they and the caches fit the model and one another.

    Raises:
        InputError: see :func:`streaming_losses`.
    """
    x = np.asarray(tokens_NT)
    if x.ndim != 2 or not x.size:
        raise InputError(f"inputs of shape {x.shape} are not token ids [N, T]")
    x = check_tokens(x, cfg.vocab_size)
    if not cfg.attention:
        raise InputError("the model has no attention (attention=false), so it keeps no cache: choose another")
    if window < 1:
        raise InputError(f"a window of {window} tokens sees nothing: give at least 1")
    if not keep or min(keep) < 0:
        raise InputError(f"{list(keep)} first tokens cannot be kept: give numbers from 0 on")
    largest = window + max(keep)
    if largest + 1 >= x.shape[1]:
        raise InputError(
            f"sequences of {x.shape[1]} tokens fill no cache of {largest}: give longer sequences or a smaller window"
        )
    check_length(cfg, largest)
    return x


def _next_token_losses(cfg: ModelConfig, params: Params, final_BTD: jax.Array, tokens_BT: jax.Array) -> jax.Array:
    """Compute the loss of every next token, [B, T − 1], float32."""
    log_BTV = jax.nn.log_softmax(logits_of(cfg, params, final_BTD)[:, :-1], axis=-1)
    return -jnp.take_along_axis(log_BTV, tokens_BT[:, 1:, None], axis=-1)[..., 0]
