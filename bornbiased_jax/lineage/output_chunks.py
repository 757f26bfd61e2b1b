"""A model's outputs in a store: ranges of the inputs, computed in whatever process opens the same checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from bornbiased_jax import parallel, store
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.checkpoint import verified_checkpoint
from bornbiased_jax.checkpoints.reference import portable_source
from bornbiased_jax.chunk_store import Chunk, Results, TaskSettings
from bornbiased_jax.errors import InputError
from bornbiased_jax.executors import Engine, local
from bornbiased_jax.lineage.outputs import OutputOptions, check_memory, last_outputs, storage_of
from bornbiased_jax.model.memory import FLOAT, weights_bytes
from bornbiased_jax.probes.inputs import Inputs
from bornbiased_jax.probes.inputs.facts import arrays_of, facts_of, from_facts
from bornbiased_jax.probes.measure import RANGE_OPERATIONS

FUNCTION = "bornbiased_jax.lineage.output_chunks:compute"


def spans(checkpoint: Checkpoint, inputs: Inputs, size: int, requested: int | None = None) -> list[Chunk]:
    """Split the inputs into ranges of whole batches: of the sequences requested, or of about ``RANGE_OPERATIONS``."""
    # Two operations a weight and token.
    operations = 2.0 * (weights_bytes(checkpoint.cfg) / FLOAT) * inputs.seq_len
    num_sequences = requested or max(1, int(RANGE_OPERATIONS / operations))
    step = -(-num_sequences // size) * size
    return [Chunk(0, start, min(start + step, inputs.num_inputs)) for start in range(0, inputs.num_inputs, step)]


def request(
    checkpoint: Checkpoint,
    inputs: Inputs,
    options: OutputOptions,
    engine: Engine,
    range_size: int | None = None,
    advance: Callable[..., None] | None = None,
) -> store.Request:
    """Describe last outputs as a request to a store; arguments as of :func:`.output_fingerprint.fingerprint_outputs`.

    Raises:
        InputError: a mesh and another engine, or a checkpoint that other processes cannot open.
    """
    if options.mesh is not None and engine is not local:
        raise InputError("a mesh is of the devices of this process: leave --mesh or --engine out")
    # All that moves a bit of the outputs is part of the request.
    size = check_memory(checkpoint.cfg, inputs, options)
    options = dataclasses.replace(options, batch_size=size)
    mean, std = options.moments or (0.0, 1.0)
    settings = {
        "weights": checkpoint.digest(),
        "inputs": facts_of(inputs),
        "shards": parallel.batch_axes(options.mesh),
        "storage": storage_of(checkpoint.params()),
        **{"mean": mean, "std": std, "layer": options.layer, "batch_size": size, "precision": options.precision},
    }
    # Other processes read the checkpoint by its reference and the inputs from arrays.
    return store.Request(
        FUNCTION,
        settings,
        spans(checkpoint, inputs, size, range_size),
        compute=lambda _, __, chunks: _compute(checkpoint, inputs, options, chunks, advance),
        sources={} if engine is local else portable_source(checkpoint.reference),
        arrays=arrays_of(inputs),
    )


def compute(settings: TaskSettings, sources: TaskSettings, chunks: list[Chunk]) -> Iterator[Results]:
    """Compute the chunks of a job, from JSON and the checkpoint that it names.

    Raises:
        InputError: the checkpoint or the inputs are not those of the settings.
    """
    if "checkpoint" not in sources:
        raise InputError("the job does not say where the checkpoint lies: start it by `bornbiased fingerprint`")
    checkpoint = verified_checkpoint(sources["checkpoint"], settings["weights"], settings["storage"])
    inputs = from_facts(settings["inputs"], checkpoint.cfg, sources)
    moments = settings["mean"], settings["std"]
    options = OutputOptions(moments, settings["layer"], settings["batch_size"], precision=settings["precision"])
    yield from _compute(checkpoint, inputs, options, chunks)


def _compute(
    checkpoint: Checkpoint,
    inputs: Inputs,
    options: OutputOptions,
    chunks: list[Chunk],
    advance: Callable[..., None] | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the outputs of each range: ``{"outputs": [n, D] float32}``."""
    for chunk in chunks:
        span = (chunk.start, chunk.stop)
        outputs_ND = last_outputs(checkpoint.cfg, checkpoint.params(), inputs, options, span=span, advance=advance)
        yield {"outputs": outputs_ND}
