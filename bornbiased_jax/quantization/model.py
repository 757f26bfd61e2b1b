"""A scheme put on a model: rounded kernels, and edits that round what linear maps read and what the cache keeps."""

from __future__ import annotations

import jax.numpy as jnp

from bornbiased_jax.model.interventions import Edits, as_edits
from bornbiased_jax.parameters import Params, flatten, unflatten
from bornbiased_jax.quantization.fake import FakeQuantizer, Granularity, quantize_kernel
from bornbiased_jax.quantization.schemes import Scheme


def quantized_params(params: Params, bits: int | None, granularity: Granularity) -> Params:
    """Round the blocks' kernels; embedding, head, norms and biases stay, as does everything for None bits."""
    if bits is None:
        return params
    flat = flatten(params)
    for path, leaf in flat.items():
        if path.startswith("blocks/") and path.endswith("/kernel"):
            flat[path] = quantize_kernel(jnp.asarray(leaf), bits, granularity)
    return unflatten(flat)


def quantized_edits(scheme: Scheme, granularity: Granularity, *, keep: int = 0) -> Edits:
    """Return edits that round the inputs of the blocks' linear maps, and keys and values after RoPE.

    What a value-state gate reads (``output_gate="value"``) is no site of an edit and stays in full precision.

    Args:
        scheme: bits; what has none is not touched.
        granularity: of the scales.
        keep: this many first positions stay in full precision.

    Raises:
        InputError: an unknown granularity, a negative ``keep``.
    """
    reads = cache = None
    if scheme.activations is not None:
        reads = FakeQuantizer(scheme.activations, granularity, keep)
    if scheme.cache is not None:
        cache = FakeQuantizer(scheme.cache, granularity, keep)
    return as_edits(
        Edits(
            attention_input=reads,
            attention_output=reads,
            mlp_input=reads,
            mlp_hidden=reads,
            keys=cache,
            values=cache,
        )
    )
