"""What enters the MLP's activation function: its standard deviation decides how asymmetric GELU acts (Figure 6)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.limits import check_sequences
from bornbiased_jax.model.streaming import Reading, Weights
from bornbiased_jax.probes.batching import read_batches


class Preactivation(NamedTuple):
    """Statistics over sequences, positions and neurons of each layer, float64."""

    mean_L: np.ndarray
    std_L: np.ndarray
    histogram_LE: np.ndarray
    """Density per unit of pre-activation in each bin; values outside the edges are left out."""
    edges: np.ndarray
    """Bin edges, in units of the pre-activation."""


def preactivation(
    cfg: ModelConfig,
    params: Weights,
    x: ArrayLike,
    *,
    edges: ArrayLike | None = None,
    advance: Callable[[int], None] | None = None,
) -> Preactivation:
    """Measure the distribution of MLP pre-activations in every layer (the gate's, when the MLP is gated).

    With unit-variance inputs to the MLP (LayerNorm) it has std 0.02·√D at initialization, 0.554 at D = 768;
    without a norm and with inputs of std 0.02, 0.011 in the first layer.

    Args:
        cfg: the architecture.
        params: its weights, in memory or streamed.
        x: tokens [N, T] or vectors [N, T, D].
        edges: histogram bin edges, increasing; 121 from −3 to 3 unless given.
        advance: called with the number of sequences done since the last call.

    Raises:
        InputError: inputs that do not fit the model, or a model without MLP.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> from bornbiased_jax.init import init_seed
        >>> cfg = preset("gpt2-tiny", num_layers=2, d_model=16, num_heads=2, d_ff=32, vocab_size=32)
        >>> preactivation(cfg, init_seed(cfg, 0), np.zeros((2, 4), int)).histogram_LE.shape
        (2, 120)
    """
    x = check_sequences(cfg, x)
    if not cfg.mlp:
        raise InputError("the model has no MLP (mlp=false), so it has no pre-activations")
    edges = np.linspace(-3.0, 3.0, 121) if edges is None else np.asarray(edges, np.float64)
    if edges.ndim != 1 or len(edges) < 2 or not np.all(np.diff(edges) > 0):
        raise InputError("histogram edges must be at least two increasing numbers")

    count = 0
    mean_L = variance_L = np.zeros(cfg.num_layers)
    bins_LE = np.zeros((cfg.num_layers, len(edges) - 1))
    reading = Reading(("mlp_preactivation",), Histogram(jnp.asarray(edges, jnp.float32)))
    for batch, statistics in read_batches(cfg, params, x, reading, advance=advance):
        stats = {name: value.astype(np.float64) for name, value in statistics.items()}
        # Merge with what went before (Chan et al., 1983).
        batch_count = len(batch) * x.shape[1] * cfg.d_ff
        weight = batch_count / (count + batch_count)
        shift_L = stats["mean"] - mean_L
        variance_L = variance_L + weight * (stats["spread"] - variance_L) + weight * (1 - weight) * np.square(shift_L)
        mean_L = mean_L + weight * shift_L
        bins_LE += stats["bins"]
        count += batch_count
    histogram_LE = bins_LE / (count * np.diff(edges)[None, :])
    return Preactivation(mean_L, np.sqrt(variance_L), histogram_LE, edges)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Histogram:
    """Reduce a block's pre-activations to their mean, variance and histogram over fixed bins."""

    edges: jax.Array

    def __call__(self, captured: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Return statistics over sequences, positions and neurons of the batch: float32, and int32 counts."""
        u = captured["mlp_preactivation"].astype(jnp.float32).ravel()
        mean = jnp.mean(u)
        # As jnp.histogram has it, which counts in float32: beyond 2^24 in a bin it would count no further.
        at = jnp.searchsorted(self.edges, u, side="right")
        at = jnp.where(u == self.edges[-1], len(self.edges) - 1, at)
        bins = jnp.zeros(len(self.edges), jnp.int32).at[at].add(1)[1:]
        return {"mean": mean, "spread": jnp.mean(jnp.square(u - mean)), "bins": bins}
