"""A fingerprint: a model's last-position outputs on known inputs, with what identifies both.

Stored as one safetensors file: the outputs as a tensor, everything else as JSON in the header, a digest
of it all to notice damage.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NotRequired, Required

import numpy as np
from safetensors import SafetensorError, safe_open
from typing_extensions import TypedDict

from bornbiased_jax import io, parallel, record, schema, store
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.checkpoint import verified_checkpoint
from bornbiased_jax.checkpoints.reference import portable_source
from bornbiased_jax.chunk_store import Chunk, Results, TaskSettings
from bornbiased_jax.errors import InputError
from bornbiased_jax.executors import Engine, local
from bornbiased_jax.lineage import tensor_file
from bornbiased_jax.lineage.outputs import OutputOptions, check_memory, embedding_moments, last_outputs, storage_of
from bornbiased_jax.model.streaming import check_plain
from bornbiased_jax.probes.inputs import KINDS, Inputs
from bornbiased_jax.probes.inputs.facts import arrays_of, facts_of, from_facts
from bornbiased_jax.probes.measure import range_length
from bornbiased_jax.schema import Layers

FORMAT = "bornbiased-fingerprint-1"
FUNCTION = "bornbiased_jax.lineage.output_fingerprint:compute"
_REMEDY = "make it again with `bornbiased fingerprint --outputs`"


class InputFacts(TypedDict, total=False):
    """The identity of inputs; vectors have the moments that they were given, texts a source besides."""

    kind: Required[str]
    num_inputs: Required[int]
    seq_len: Required[int]
    vocab_size: int
    d_model: int
    seed: int
    digest: Required[str]
    mean: float
    std: float


class OutputFacts(TypedDict):
    """Facts of the outputs in a stored fingerprint: the fields of :class:`OutputFingerprint` but for the outputs."""

    inputs: InputFacts
    layer: Layers | None
    weights_digest: str
    tensor_digests: dict[str, str]
    config: dict[str, object]
    source: str
    provenance: NotRequired[dict[str, object]]
    value_digests: NotRequired[dict[str, str]]
    storage: NotRequired[Literal["float32", "bfloat16"]]


@dataclasses.dataclass(frozen=True, eq=False)
class OutputFingerprint:
    """Outputs of one model on one set of inputs.

    Attributes:
        outputs_ND: [N, D] float32, last position.
        inputs: facts of the inputs with their ``digest``; for vectors also their ``mean`` and ``std``.
        layer: None for the output of the final norm, else the block (1 to L) after which it was read.
        weights_digest: of all weights.
        tensor_digests: of each tensor that is not one number repeated (all initializations share those), by path.
        value_digests: of the same tensors' numbers whatever their order; empty where not stored.
        config: the architecture's fields.
        source: one line on where the model came from.
        provenance: versions, device and precision; no time, so that the same model has the same file.
        storage: the type that the weights were held in, "float32" or "bfloat16"; products are float32 in either case,
            and the digests are of the weights as they were held.
    """

    outputs_ND: np.ndarray
    inputs: InputFacts
    layer: int | None
    weights_digest: str
    tensor_digests: dict[str, str]
    config: dict[str, object]
    source: str
    provenance: dict[str, object] = dataclasses.field(default_factory=dict)
    value_digests: dict[str, str] = dataclasses.field(default_factory=dict)
    storage: str = "float32"


def fingerprint_outputs(
    checkpoint: Checkpoint,
    inputs: Inputs,
    options: OutputOptions = OutputOptions(),
    *,
    resume: Path | str | None = None,
    engine: Engine = local,
    range_size: int | None = None,
    advance: Callable[..., None] | None = None,
) -> OutputFingerprint:
    """Compute a model's fingerprint.

    Args:
        checkpoint: an opened model.
        inputs: N sequences.
        options: where and how outputs are read; vectors have the moments of the model's own embedding unless given.
        resume: a store, in which finished ranges of inputs are kept, so that a killed call resumes and several
            processes may share the work.
        engine: who computes what the store lacks (:mod:`bornbiased_jax.executors`).
        range_size: sequences in a chunk of the store; by the sizes of model and inputs unless given.
        advance: called with the number of sequences done since the last call.

    Raises:
        InputError: inputs that do not fit the model, outputs that are not finite, a store that cannot be written, or
            another engine without one.
    """
    # Refuse what does not fit before anything is read.
    store.check(resume, engine)
    inputs.check_fits(checkpoint.cfg)
    check_memory(checkpoint.cfg, inputs, options)
    # Vectors are scaled to the moments given, or to the embedding's; ids are not.
    facts = inputs.describe()
    moments = (options.moments or embedding_moments(checkpoint.weights)) if inputs.vectors else None
    if moments is not None:
        facts |= {"mean": moments[0], "std": moments[1]}
    # In one pass, or chunk by chunk in a store that other processes may share.
    options = dataclasses.replace(options, moments=moments)
    if resume is None:
        outputs_ND = last_outputs(checkpoint.cfg, checkpoint.weights, inputs, options, advance=advance)
    else:
        check_plain(checkpoint.weights, resume=resume)
        chunks = request(checkpoint, inputs, options, engine, range_size, advance)
        outputs_ND = np.concatenate([part["outputs"] for part in store.fulfill(chunks, resume, engine, advance)])
    # Constant tensors are equal in unrelated models: their digests are no evidence.
    tensors = checkpoint.tensor_facts
    trivial = set(tensors["constant"])
    return OutputFingerprint(
        outputs_ND=outputs_ND,
        inputs=record.jsonable(facts),
        layer=options.layer,
        weights_digest=checkpoint.digest(),
        tensor_digests={name: value for name, value in tensors["digests"].items() if name not in trivial},
        value_digests={name: value for name, value in tensors["values"].items() if name not in trivial},
        config=dict(checkpoint.cfg.to_dict()),
        source=checkpoint.description,
        provenance=record.lasting(record.provenance(precision=f"float32 {options.precision}")),
        storage=storage_of(checkpoint.weights),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Ranges of the inputs in a store, computed in whatever process opens the same checkpoint


def spans(checkpoint: Checkpoint, inputs: Inputs, size: int, requested: int | None = None) -> list[Chunk]:
    """Split the inputs into ranges (:func:`.probes.measure.range_length`)."""
    step = range_length(checkpoint.cfg, inputs.seq_len, size, requested)
    return [Chunk(0, start, min(start + step, inputs.num_inputs)) for start in range(0, inputs.num_inputs, step)]


def request(
    checkpoint: Checkpoint,
    inputs: Inputs,
    options: OutputOptions,
    engine: Engine,
    range_size: int | None = None,
    advance: Callable[..., None] | None = None,
) -> store.Request:
    """Describe last outputs as a request to a store; arguments as of :func:`fingerprint_outputs`.

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


# ---------------------------------------------------------------------------------------------------------------------
# Files


def save_outputs(path: Path | str, saved: OutputFingerprint) -> Path:
    """Write a fingerprint, whole or not at all: the same bytes for the same fingerprint.

    Raises:
        InputError: the file cannot be written.
    """
    facts = {
        field.name: getattr(saved, field.name) for field in dataclasses.fields(saved) if field.name != "outputs_ND"
    }
    if saved.storage == "float32":
        del facts["storage"]  # what a file says that does not name it
    # Sorted keys and little-endian numbers: equal fingerprints are equal files.
    described = json.dumps(facts, sort_keys=True, allow_nan=False)
    outputs_ND = np.ascontiguousarray(saved.outputs_ND, dtype="<f4")
    metadata = {"format": FORMAT, "facts": described, "digest": _digest(outputs_ND, described)}
    return io.write_bytes(path, tensor_file.encode(metadata, {"outputs": outputs_ND}))


def load_outputs(path: Path | str) -> OutputFingerprint:
    """Read a fingerprint. Nothing is unpickled.

    Raises:
        InputError: it is missing, corrupted, or another kind of file.
    """
    path = io.check_regular(path)
    try:
        with safe_open(path, framework="numpy") as opened:
            metadata = opened.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise InputError(f"{path} is not a fingerprint: make one with `bornbiased fingerprint --outputs`")
            outputs_ND = opened.get_tensor("outputs")
        # The digest first: a corrupted file says nothing else of itself.
        if metadata.get("digest") != _digest(outputs_ND, metadata["facts"]):
            raise InputError(f"{path} is corrupted: its digest does not match its content; make it again")
        facts = schema.parse_json(metadata["facts"], str(path))
        schema.check(OutputFacts, facts, str(path), _REMEDY)
        if facts["inputs"]["kind"] not in KINDS or outputs_ND.ndim != 2:
            raise InputError(f"{path} holds no outputs of inputs of a kind that is known: {_REMEDY}")
        return OutputFingerprint(outputs_ND=outputs_ND, **facts)
    except (SafetensorError, OSError, KeyError, TypeError) as error:
        reason = schema.cut(str(error))
        raise InputError(f"{path} is not a readable fingerprint ({reason}): {_REMEDY}") from error


def is_output_fingerprint(path: Path | str) -> bool:
    """Return whether a file says that it is a fingerprint of outputs (it may still be corrupted)."""
    return tensor_file.has_format(path, FORMAT)


def _digest(outputs_ND: np.ndarray, described: str) -> str:
    head = f"{outputs_ND.dtype.str} {list(outputs_ND.shape)}\0{described}\0".encode()
    return hashlib.sha256(head + np.ascontiguousarray(outputs_ND).tobytes()).hexdigest()


def check_comparable(base: OutputFingerprint, suspect: OutputFingerprint) -> None:
    """Refuse fingerprints of different inputs or reading points.

    Raises:
        InputError: they differ; the sentence says in what.
    """
    # The same inputs, then the same place of reading.
    for fact in ("kind", "num_inputs", "seq_len", "digest", "mean", "std"):
        base_value, suspect_value = base.inputs.get(fact), suspect.inputs.get(fact)
        if base_value != suspect_value:
            raise InputError(
                f"the fingerprints are of different inputs ({fact}: {base_value} and {suspect_value}): "
                "make both from the same inputs"
            )
    if base.layer != suspect.layer:
        raise InputError(
            f"the fingerprints were read at different layers ({base.layer} and {suspect.layer}): read both at the same"
        )
