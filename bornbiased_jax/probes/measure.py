"""The probe of preference and contraction, its batches of inputs, and its memory."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import PrecisionLike

from bornbiased_jax import hardware, keys
from bornbiased_jax import model as models
from bornbiased_jax.chunk_store import Results
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.memory import FLOAT, check_forward, check_weights, forward_bytes, weights_bytes
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes import contraction, preference
from bornbiased_jax.probes.inputs import Inputs
from bornbiased_jax.probes.inputs.kinds import AnyArray
from bornbiased_jax.probes.observe import observe
from bornbiased_jax.sweep import InitParams, Probe

SequenceBatch = dict[str, jax.Array]
"""``x`` [B, T] or [B, T, D], ``weight`` (0 for padding) and ``last`` (the last token), both [B]."""


class Sums(TypedDict):
    """The state of a probe: running sums over the sequences of one seed."""

    preference: preference.PreferenceState
    contraction: contraction.ContractionState


RANGE_OPERATIONS = 2.0**47
"""Of one seed on one range of inputs: about a quarter of an hour of two cores, the most that a kill can cost."""


@functools.lru_cache(maxsize=16)
def initial_params(cfg: ModelConfig, fixed_embedding_seed: int | None) -> InitParams:
    """Return the function from a seed to initial weights; with a fixed seed all share embeddings and head."""
    fixed = None if fixed_embedding_seed is None else keys.stream_key(fixed_embedding_seed, "embedding")
    return functools.partial(models.init_seed, cfg, fixed_key=fixed)


@functools.lru_cache(maxsize=16)
def last_token_probe(
    cfg: ModelConfig,
    scale: tuple[float, float] | None,
    intra: bool,
    partial: bool = False,
    precision: PrecisionLike = "highest",
) -> Probe:
    """Return the probe of preference and contraction; the same object for equal settings, which compile once.

    Args:
        cfg: the architecture.
        scale: mean and standard deviation of vectors that are fed in place of embeddings.
        intra: as of :class:`bornbiased_jax.probes.run.ProbeOptions`.
        partial: a seed's result is its sums over a range of inputs, of which :func:`merge_ranges` makes one.
        precision: of the matrix products.
    """

    def init() -> Sums:
        return {"preference": preference.init(cfg), "contraction": contraction.init(cfg)}

    def update(state: Sums, params: Params, batch: SequenceBatch) -> Sums:
        x = batch["x"]
        if scale is not None:
            # Vectors take the moments of the embedding in whose place they are fed.
            mean, std = scale
            x = x * jnp.float32(std) + jnp.float32(mean)
        observation = observe(cfg, params, x, intra=intra, precision=precision)
        return {
            "preference": preference.update(state["preference"], observation, batch["weight"]),
            "contraction": contraction.update(state["contraction"], observation, batch["weight"], batch["last"]),
        }

    def finish(state: Sums, params: Params) -> Results:
        if partial:
            return {"preference": state["preference"]._asdict(), "contraction": state["contraction"]._asdict()}
        direction_D = contraction.direction(state["contraction"])
        return {
            "preference": state["preference"]._asdict(),
            "contraction": contraction.reduce(state["contraction"])._asdict(),
            "direction_token": jnp.argmax(models.logits_of(cfg, params, direction_D)),
        }

    return Probe(init, update, finish)


@functools.lru_cache(maxsize=16)
def _finish_seed(
    probe: Probe, init_params: InitParams | None
) -> Callable[[np.uint32, Sums, Params | InitParams | None], Results]:
    """Compile (seed, state, weights or None) → result; initial weights are drawn as far as the result needs them."""
    return jax.jit(
        lambda seed, state, weights: probe.finish(state, weights if init_params is None else init_params(seed))
    )


def merge_ranges(probe: Probe, params: Params | InitParams, seed: int, parts: Sequence[Results]) -> Results:
    """Compute one seed's result from its sums over successive ranges of inputs.

    Args:
        probe: of all inputs.
        params: as of :func:`bornbiased_jax.sweep.sweep`.
        seed: the seed.
        parts: results of the same probe made with ``partial``, in order.
    """
    counts = [preference.PreferenceState(**part["preference"]) for part in parts]
    sums = [contraction.ContractionState(**part["contraction"]) for part in parts]
    state: Sums = {
        "preference": functools.reduce(preference.merge, counts),
        "contraction": functools.reduce(contraction.merge, sums),
    }
    # Initial weights are drawn again inside the compiled function.
    init_params: InitParams | None = params if callable(params) else None
    finish = _finish_seed(probe, init_params)
    result: Results = jax.device_get(finish(np.uint32(seed), state, params if init_params is None else None))
    return result


class Batches(NamedTuple):
    """Inputs in the order of their last token, cut into equal batches."""

    order_N: np.ndarray
    last_N: np.ndarray
    size: int


class ProbeMemory(NamedTuple):
    """Bytes of a probe at the least: one seed's weights, its sums before and after a batch, and a forward pass."""

    weights: float
    state: float
    batch: float


def memory_needed(cfg: ModelConfig, size: int, inputs: Inputs) -> ProbeMemory:
    """Count what one seed holds on batches of ``size`` sequences."""
    sums = FLOAT * (cfg.num_layers + 1) * cfg.d_model**2
    return ProbeMemory(weights_bytes(cfg), 2.0 * sums, forward_bytes(cfg, size, inputs.seq_len, logits=1))


def check_number(inputs: Inputs) -> None:
    """Refuse a single input.

    Raises:
        InputError: fewer than two inputs.
    """
    if inputs.num_inputs < 2:
        raise InputError("num_inputs=1 leaves nothing to compare: give at least 2")


def check_probe(cfg: ModelConfig, size: int, inputs: Inputs, *, is_untrained: bool) -> None:
    """Refuse what does not fit: one seed's weights, sums and forward pass, and the last tokens of all inputs.

    Raises:
        InputError: it does not.
    """
    if is_untrained:
        check_weights(cfg)
    needed = memory_needed(cfg, size, inputs)
    check_forward(cfg, size, inputs.seq_len, logits=1, also=needed.state + is_untrained * needed.weights)
    # Last tokens, their order, and the same sorted.
    hardware.check_memory(16.0 * inputs.num_inputs, f"{inputs.num_inputs:,} inputs", "ask for fewer", on_host=True)


def order_inputs(inputs: Inputs, size: int) -> Batches:
    """Sort sequences by last token, so that runs of equal last tokens are adjacent (see ``contraction``)."""
    last_N = inputs.last_tokens()
    if last_N is None:
        last_N = np.arange(inputs.num_inputs)
    order_N = np.argsort(last_N, kind="stable")
    return Batches(order_N, np.asarray(last_N)[order_N], size)


def range_length(cfg: ModelConfig, seq_len: int, batch_size: int, requested: int | None = None) -> int:
    """Return the number of sequences in a range: whole batches, of about :data:`RANGE_OPERATIONS` for one seed.

    Args:
        cfg: the architecture.
        seq_len: T.
        batch_size: sequences in a batch.
        requested: sequences in a range instead, rounded up to whole batches.

    Raises:
        InputError: fewer than one was asked for.
    """
    if requested is not None and requested < 1:
        raise InputError(f"{requested} inputs in a range are not at least 1")
    # Two operations for each weight and token.
    operations = 2.0 * (weights_bytes(cfg) / FLOAT) * seq_len
    per_range = requested or max(1, int(RANGE_OPERATIONS / operations))
    return math.ceil(per_range / batch_size) * batch_size


def input_ranges(
    cfg: ModelConfig, seq_len: int, batches: Batches, requested: int | None = None
) -> list[tuple[int, int]]:
    """Cut the ordered sequences into ranges, each of about :data:`RANGE_OPERATIONS` for one seed; ends left out.

    They follow from the sizes alone, and no last token ends sequences of two ranges.

    Args:
        cfg: the architecture.
        seq_len: T.
        batches: the order.
        requested: as of :func:`range_length`.

    Raises:
        InputError: fewer than one was asked for.
    """
    size = range_length(cfg, seq_len, batches.size, requested)
    total, last_N = len(batches.order_N), batches.last_N
    # Extend each range to the end of its last run of equal last tokens.
    ends = []
    start = 0
    while start < total:
        stop = min(start + size, total)
        while stop < total and last_N[stop] == last_N[stop - 1]:
            stop += 1
        ends.append((start, stop))
        start = stop
    return ends


def stream(inputs: Inputs, batches: Batches, start: int = 0, stop: int | None = None) -> Iterator[dict[str, AnyArray]]:
    """Yield batches of equal shape of all sequences in order, or of a range; padding of the last has weight 0."""
    n = len(batches.order_N) if stop is None else stop
    for begin in range(start, n, batches.size):
        at = np.minimum(np.arange(begin, begin + batches.size), n - 1)
        yield {
            "x": inputs.generate(batches.order_N[at]),
            "weight": (np.arange(begin, begin + batches.size) < n).astype(np.float32),
            "last": batches.last_N[at].astype(np.int32),
        }


def in_sequences(advance: Callable[[int], None] | None) -> Callable[[int, SequenceBatch], None] | None:
    """Turn a sweep's "one more batch of so many seeds" into sequences; the last batch has fewer than its rows."""
    return None if advance is None else lambda num_seeds, batch: advance(num_seeds * int(batch["weight"].sum()))
