"""A model's outputs in a store: ranges of the inputs, computed in whatever process opens the same checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from bornbiased_jax import parallel, store
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.checkpoint import open_verified
from bornbiased_jax.checkpoints.reference import portable_source
from bornbiased_jax.chunk_store import Chunk
from bornbiased_jax.errors import InputError
from bornbiased_jax.executors import Engine, local
from bornbiased_jax.lineage.outputs import check_memory, last_outputs, storage_of
from bornbiased_jax.model.memory import FLOAT, weights_bytes
from bornbiased_jax.probes.inputs import Inputs
from bornbiased_jax.probes.inputs.facts import arrays_of, facts_of, from_facts
from bornbiased_jax.probes.measure import RANGE_OPERATIONS

FUNCTION = "bornbiased_jax.lineage.output_chunks:compute"


def spans(checkpoint: Checkpoint, inputs: Inputs, size: int, requested: int | None = None) -> list[Chunk]:
    """Split the inputs into ranges of about :data:`.measure.RANGE_OPERATIONS`, whole batches each.

    Args:
        checkpoint: the model.
        inputs: N sequences.
        size: of a batch.
        requested: sequences in a range instead, rounded up to whole batches.
    """
    each = 2.0 * (weights_bytes(checkpoint.cfg) / FLOAT) * inputs.seq_len
    num_sequences = requested or max(1, int(RANGE_OPERATIONS / each))
    step = -(-num_sequences // size) * size
    return [Chunk(0, start, min(start + step, inputs.num_inputs)) for start in range(0, inputs.num_inputs, step)]


def kept_outputs(
    checkpoint: Checkpoint,
    inputs: Inputs,
    *,
    folder: Path | str,
    engine: Engine = local,
    range_size: int | None = None,
    mean: float = 0.0,
    std: float = 1.0,
    layer: int | None = None,
    batch_size: int | None = None,
    mesh: Mesh | None = None,
    advance: Callable[..., None] | None = None,
) -> np.ndarray:
    """Compute :func:`.outputs.last_outputs` by way of a store: the same bits, whoever computes them.

    Args:
        checkpoint: the model; other processes open it by its reference.
        inputs, mean, std, layer, batch_size, mesh, advance: as there.
        folder: the store.
        engine: who computes what it lacks (:mod:`bornbiased_jax.executors`).
        range_size: sequences in a chunk of it; by the sizes of model and inputs unless given.

    Raises:
        InputError: as there, or a store that cannot be written.
    """
    inputs.check_fits(checkpoint.cfg)
    if mesh is not None and engine is not local:
        raise InputError("a mesh is of the devices of this process: leave --mesh or --engine out")
    # All that moves a bit of the outputs is part of the request.
    size = check_memory(checkpoint.cfg, inputs, batch_size, mesh)
    reading = {"mean": mean, "std": std, "layer": layer, "batch_size": size}
    storage = storage_of(checkpoint.params())
    chunks = spans(checkpoint, inputs, size, range_size)

    def here(_: Any, __: Any, todo: list[Chunk]) -> Iterator[dict[str, Any]]:
        yield from compute_outputs(checkpoint, inputs, {**reading, "mesh": mesh}, todo, advance)

    request = store.Request(
        FUNCTION,
        {
            "weights": checkpoint.digest(),
            "inputs": facts_of(inputs),
            "shards": parallel.batch_parts(mesh),
            "storage": storage,
            **reading,
        },
        chunks,
        here,
        sources={} if engine is local else portable_source(checkpoint.reference),
        arrays=arrays_of(inputs),
    )
    return np.concatenate([part["outputs"] for part in store.fulfill(request, folder, engine, advance)])


def compute(settings: Mapping[str, Any], found_at: Mapping[str, Any], chunks: list[Chunk]) -> Iterator[dict[str, Any]]:
    """Compute the chunks of a job, from JSON and the checkpoint that it names.

    Raises:
        InputError: the checkpoint or the inputs are not those of the settings.
    """
    if "checkpoint" not in found_at:
        raise InputError("the job does not say where the checkpoint lies: start it by `bornbiased fingerprint`")
    checkpoint = open_verified(found_at["checkpoint"], settings["weights"], settings["storage"])
    inputs = from_facts(settings["inputs"], checkpoint.cfg, found_at)
    reading = {name: settings[name] for name in ("mean", "std", "layer", "batch_size")}
    yield from compute_outputs(checkpoint, inputs, reading, chunks)


def compute_outputs(
    checkpoint: Checkpoint,
    inputs: Inputs,
    reading: Mapping[str, Any],
    chunks: list[Chunk],
    advance: Callable[..., None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the outputs of each range: ``{"outputs": [n, D] float32}``."""
    for chunk in chunks:
        span = (chunk.start, chunk.stop)
        outputs_ND = last_outputs(checkpoint.cfg, checkpoint.params(), inputs, **reading, span=span, advance=advance)
        yield {"outputs": outputs_ND}
