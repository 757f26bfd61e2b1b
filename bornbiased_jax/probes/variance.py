"""Variance of representations, position by position (Equation 2 and Figure 9).

Two variances are told apart. ``pooled`` is over sequences and coordinates together, which is what Figure 9
plots. ``across`` is over sequences in each coordinate, averaged over coordinates: it leaves out the part that
all sequences share, so it is the one whose center an intervention can keep while it is amplified. At
initialization both are σ²/i in expectation for uniform attention; in a trained model they are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model import ForwardOptions
from bornbiased_jax.model.interventions import Edit, Edits
from bornbiased_jax.model.limits import check_sequences
from bornbiased_jax.model.streaming import Reading, Weights
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes.batching import read_batches

QUANTITIES = ("attention_output", "attention_update", "residual", "mlp_update", "values")


class PositionMoments(NamedTuple):
    """Moments of one quantity, float64. W is its width: H·K for the attention output, D for the residual."""

    mean_LTW: np.ndarray
    """Mean over sequences of every coordinate."""
    pooled_LT: np.ndarray
    """Variance over sequences and coordinates together (population form)."""
    across_LT: np.ndarray
    """Unbiased variance over sequences, averaged over coordinates."""


def position_moments(
    cfg: ModelConfig,
    params: Weights,
    x: ArrayLike,
    *,
    quantities: Sequence[str] = ("attention_output", "residual"),
    edit: Edit | Edits | None = None,
    advance: Callable[[int], None] | None = None,
) -> dict[str, PositionMoments]:
    """Compute moments of activations at every position of every layer, over N sequences.

    Args:
        cfg: the architecture.
        params: its weights, in memory or streamed.
        x: random-token sequences [N, T], or vectors [N, T, D]; N at least 2.
        quantities: any of ``QUANTITIES``. "attention_output" is the aggregated value o after the mitigations and
            before W_O.
        edit: see :func:`bornbiased_jax.model.apply`.
        advance: called with the number of sequences done since the last call.

    Returns:
        For each quantity its :class:`PositionMoments`. Batches are centered on their own mean on the device
        and merged in float64 (Chan et al., 1983), so a large shared mean costs no digits.

    Raises:
        InputError: inputs that do not fit the model, fewer than two sequences, an unknown quantity.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> from bornbiased_jax.init import init_seed
        >>> cfg = preset("gpt2-tiny", num_layers=2, d_model=16, num_heads=2, d_ff=32, vocab_size=32)
        >>> x_NT = np.arange(24).reshape(4, 6)
        >>> position_moments(cfg, init_seed(cfg, 0), x_NT, quantities=("residual",))["residual"].pooled_LT.shape
        (2, 6)
    """
    x = check_sequences(cfg, x)
    if len(x) < 2:
        raise InputError("one sequence has no variance: give at least 2")
    for name in quantities:
        if name not in QUANTITIES:
            raise InputError(f"unknown quantity {name!r}: choose from {', '.join(QUANTITIES)}")
        if name.startswith(("attention", "values")) and not cfg.attention:
            raise InputError(f"the model has no attention (attention=false), so it has no {name}")
        if name.startswith("mlp") and not cfg.mlp:
            raise InputError(f"the model has no MLP (mlp=false), so it has no {name}")
    # Merge the moments of batches, each centered on its own mean.
    totals: dict[str, tuple[int, np.ndarray, np.ndarray]] = {}
    reading = Reading(tuple(quantities), _centered_moments)
    options = ForwardOptions(edit=edit)
    for batch, sums in read_batches(cfg, params, x, reading, options=options, advance=advance):
        for name, (mean, square) in sums.items():
            new = (len(batch), mean.astype(np.float64), square.astype(np.float64))
            totals[name] = _merge(totals[name], new) if name in totals else new
    return {name: _moments(*total) for name, total in totals.items()}


def ensemble_mean(cfg: ModelConfig, params: Params, random_tokens_NT: ArrayLike) -> np.ndarray:
    """Compute μ, the mean of the aggregated value over random-token sequences: [L, T, H, K], float64.

    Its standard error is the standard deviation over sequences divided by √N.

    Raises:
        InputError: inputs that do not fit the model, fewer than two sequences, a model without attention.
    """
    moments = position_moments(cfg, params, random_tokens_NT, quantities=("attention_output",))
    mean_LTW = moments["attention_output"].mean_LTW
    return mean_LTW.reshape(*mean_LTW.shape[:2], cfg.num_heads, cfg.key_dim)


def discrepancy(variance_LT: np.ndarray) -> np.ndarray:
    """Divide variance at the first position by the median of the others, per layer [L]; at least two positions.

    Infinite where the others have none, NaN where no position has.

    Example:
        >>> discrepancy(np.array([[4.0, 1.0, 1.0]])).tolist()
        [4.0]
    """
    if variance_LT.shape[-1] < 2:
        raise InputError("a single position has no discrepancy: ask for a length of at least 2")
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(variance_LT[..., 0] / np.median(variance_LT[..., 1:], axis=-1))


def _centered_moments(captured: dict[str, jax.Array]) -> dict[str, tuple[jax.Array, jax.Array]]:
    return {name: _center(x) for name, x in captured.items()}


def _center(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute the mean over the batch [T, W], and Σ (x − mean)² over batch and coordinates [T]."""
    x_BTW = x.astype(jnp.float32).reshape(*x.shape[:2], -1)
    mean_TW = jnp.mean(x_BTW, axis=0)
    return mean_TW, jnp.sum(jnp.square(x_BTW - mean_TW[None]), axis=(0, 2))


def _merge(
    a: tuple[int, np.ndarray, np.ndarray], b: tuple[int, np.ndarray, np.ndarray]
) -> tuple[int, np.ndarray, np.ndarray]:
    count = a[0] + b[0]
    shift = b[1] - a[1]
    mean = a[1] + shift * (b[0] / count)
    return count, mean, a[2] + b[2] + np.square(shift).sum(axis=-1) * (a[0] * b[0] / count)


def _moments(count: int, mean_LTW: np.ndarray, scatter_LT: np.ndarray) -> PositionMoments:
    width = mean_LTW.shape[-1]
    within_LT = scatter_LT / (count * width)
    return PositionMoments(
        mean_LTW=mean_LTW,
        pooled_LT=within_LT + mean_LTW.var(axis=-1),
        across_LT=scatter_LT / ((count - 1) * width),
    )
