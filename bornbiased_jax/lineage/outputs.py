"""A model's outputs on probe inputs, streamed in batches: what every test of lineage reads."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from bornbiased_jax import hardware, parallel
from bornbiased_jax import model as models
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.layers import HIGHEST, precision_named
from bornbiased_jax.model.memory import check_forward
from bornbiased_jax.model.streaming import (
    Overflow,
    Reading,
    StreamedWeights,
    Weights,
    check_overflow,
    check_plain,
    forward_batches,
    parameter,
)
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes.batching import batch_size_by_tokens
from bornbiased_jax.probes.inputs import Inputs

MAX_SHARDS = 4
"""Batches at once on a CPU: where one batch's norms and softmax leave cores idle, another's products fill them."""


@dataclasses.dataclass(frozen=True)
class OutputOptions:
    """The place where outputs are read, and their layout.

    Attributes:
        moments: mean and standard deviation that Gaussian vectors are given; ids have none. Two models must be given
            the same, or their inputs differ.
        layer: read the residual stream after this block (1 to L) instead of the output of the final norm.
        batch_size: sequences at a time; by default about 2,048 tokens on a CPU, 8,192 elsewhere. A CPU computes
            several batches at once, one for each core, at most ``MAX_SHARDS``.
        mesh: devices that share the inputs (``data``) and the weights too (``fsdp``), of several processes too, which
            all call this alike; the parameters are on the host then.
        precision: how float32 matrices are multiplied, by :data:`bornbiased_jax.model.layers.PRECISIONS`.
    """

    moments: tuple[float, float] | None = None
    layer: int | None = None
    batch_size: int | None = None
    mesh: Mesh | None = None
    precision: str = HIGHEST


def last_outputs(
    cfg: ModelConfig,
    params: Weights,
    inputs: Inputs,
    options: OutputOptions = OutputOptions(),
    *,
    span: tuple[int, int] | None = None,
    advance: Callable[..., None] | None = None,
) -> np.ndarray:
    """Compute last-position outputs in float32, whatever type weights are stored in.

    Args:
        cfg: the architecture.
        params: its weights, in memory or streamed.
        inputs: N sequences; ids must be below the vocabulary, vectors as wide as the model.
        options: moments of vectors (as they were drawn unless given), layer, and layout.
        span: of sequences, the end left out; all by default. One that begins at a multiple of the batch size gives the
            same bits as all at once.
        advance: called with the number of sequences done since the last call.

    Returns:
        [N, D] float32, N being the length of the span.

    Raises:
        InputError: inputs that do not fit the model, no such layer.
        Overflow: outputs that are not finite, or would be but for a norm.
    """
    layer, mesh = options.layer, options.mesh
    inputs.check_fits(cfg)
    check_overflow(cfg, params)
    if layer is not None and not 1 <= layer <= cfg.num_layers:
        raise InputError(f"layer {layer} is not within 1 to {cfg.num_layers}")
    # Sizes and placement, before anything is computed.
    on_cpu = jax.default_backend() == "cpu"
    size = check_memory(cfg, inputs, options)
    check_plain(params, mesh=mesh)
    placed = params if mesh is None or isinstance(params, StreamedWeights) else parallel.place_params(cfg, params, mesh)
    begin, end = (0, inputs.num_inputs) if span is None else span
    outputs_ND = np.empty((end - begin, cfg.d_model), np.float32)

    def batch(start: int) -> jax.Array:
        # Indices past the end are computed in vain, so that one compilation serves all batches.
        x = jnp.asarray(inputs.generate(np.minimum(np.arange(start, start + size), inputs.num_inputs - 1)))
        x = inputs.scaled(x, *(options.moments or (0.0, 1.0)))
        scaled: jax.Array = x if mesh is None else parallel.place(x, mesh, PartitionSpec(parallel.BATCH_AXES))
        return scaled

    starts = range(begin, end, size)
    batches = [functools.partial(batch, start) for start in starts]
    # Programs over several devices must start on all of them in one order, so they share no device with another.
    shards = min(MAX_SHARDS, hardware.cores()) if on_cpu and mesh is None and _on_one_device(params) else 1
    in_float32 = models.ForwardOptions(dtype=jnp.float32, precision=precision_named(options.precision))
    computed = forward_batches(cfg, placed, batches, _reading(layer), in_float32, workers=shards)
    # Collect the batches; the last one's padding is cut off.
    for start, computed_BD in zip(starts, computed, strict=True):
        stop = min(start + size, end)
        last_BD = computed_BD if layer is None else computed_BD[layer - 1]
        outputs_ND[start - begin : stop - begin] = last_BD[: stop - start]
        if advance is not None:
            advance(stop - start)
    if not np.isfinite(outputs_ND).all():
        raise Overflow("the model's outputs hold NaN or infinite numbers: check its weights")
    return outputs_ND


def check_memory(cfg: ModelConfig, inputs: Inputs, options: OutputOptions) -> int:
    """Return how many sequences :func:`last_outputs` takes at a time, a multiple of a mesh's devices that share them.

    Raises:
        InputError: not even one batch and the outputs of all fit in memory.
    """
    size = batch_size_by_tokens(inputs.seq_len, inputs.num_inputs, options.batch_size)
    check_forward(cfg, size, inputs.seq_len, also=4.0 * inputs.num_inputs * cfg.d_model)
    parts = math.prod(parallel.batch_axes(options.mesh))
    return -(-size // parts) * parts


def _on_one_device(params: Weights) -> bool:
    return isinstance(params, StreamedWeights) or all(
        len(leaf.devices()) == 1 for leaf in jax.tree.leaves(params) if isinstance(leaf, jax.Array)
    )


def _reading(layer: int | None) -> Reading:
    """Read the final norm's output, or the residual stream after every block."""
    if layer is None:
        return Reading(positions="last", finish=_of_final)
    return Reading(positions="last", capture=("residual",), reduce=_of_residual)


def _of_final(_cfg: ModelConfig, _params: Params, final_BTD: jax.Array, _x: jax.Array) -> jax.Array:
    return final_BTD[:, -1].astype(jnp.float32)


def _of_residual(captured: dict[str, jax.Array]) -> jax.Array:
    return captured["residual"][:, -1].astype(jnp.float32)


def storage_of(params: Weights) -> str:
    """Name the type that a model's weights are held in; those of a file are read as float32."""
    return "float32" if isinstance(params, StreamedWeights) else str(params["embed"]["embedding"].dtype)


def embedding_moments(params: Weights) -> tuple[float, float]:
    """Compute mean and standard deviation over all entries of the token embedding."""
    table = np.asarray(parameter(params, "embed/embedding"), np.float32)
    return float(table.mean(dtype=np.float64)), float(table.std(dtype=np.float64))
