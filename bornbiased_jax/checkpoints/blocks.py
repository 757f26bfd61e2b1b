"""A checkpoint whose weights stay in their file, read block by block (:mod:`bornbiased_jax.model.streamed`)."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
from annotated_types import Ge
from typing_extensions import TypedDict

from bornbiased_jax import code, hardware, io, schema
from bornbiased_jax.checkpoints.checkpoint import Checkpoint
from bornbiased_jax.checkpoints.digests import is_constant, tensor_digest, value_digest
from bornbiased_jax.checkpoints.huggingface import training_context
from bornbiased_jax.checkpoints.reader import WeightsReader, open_reader
from bornbiased_jax.checkpoints.reference import parse_ref
from bornbiased_jax.checkpoints.run import RunInfo
from bornbiased_jax.checkpoints.streaming import aligned_zeros
from bornbiased_jax.errors import InputError
from bornbiased_jax.io import Folder
from bornbiased_jax.model.memory import streamed_bytes
from bornbiased_jax.model.streamed import StreamedWeights
from bornbiased_jax.parameters import Params, parameter_table, unflatten
from bornbiased_jax.text.cache import cache_dir

MAKER = "bornbiased --stream"
# Columns copied together where a matrix is turned: as many as caches hold of both sides.
_COLUMNS = 64


class TensorFacts(TypedDict):
    """What is known of all tensors once each was read."""

    digests: dict[str, str]
    values: dict[str, str]
    constant: list[str]
    largest: Annotated[float, Ge(0)]


def open_streamed(ref: str | Path, scratch: str | Path | None = None) -> Checkpoint:
    """Open a model without loading it: what takes a checkpoint's ``weights`` reads it block by block.

    Args:
        ref: a Hugging Face directory, a GGUF file or a birth.
        scratch: a folder for hidden states; below the user's cache unless given. What is whole there is taken up
            again.

    Raises:
        InputError: a run, whose blocks lie together; nothing there, or what is there is damaged or not understood; a
            folder of other things; a model of which not even two blocks fit in memory.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     opened = open_streamed("seed:42@gpt2-tiny,num_layers=2,vocab_size=64", folder)
        ...     opened.weights.read("blocks/mlp/up/kernel", 1).shape
        (128, 512)
    """
    reference = parse_ref(ref).fetched()
    if reference.kind == "run":
        raise InputError(
            f"{ref} is a pretraining run, in which all blocks lie together, so that it cannot be streamed: "
            "open it whole, or export it first"
        )
    # Hidden states and the facts of tensors are kept in a folder of scratch files.
    folder = Folder(scratch or cache_dir() / "streamed", MAKER)
    folder.check()
    folder.claim()
    reader = open_reader(ref)
    hardware.check_memory(
        streamed_bytes(reader.cfg),
        f"a streamed model of d_model={reader.cfg.d_model} and vocab_size={reader.cfg.vocab_size}",
        "choose a smaller one",
    )
    # Tensors are read from their file on demand.
    identity = _identity(reader)
    facts = _Facts(reader, folder.path / f"{identity}.json")
    streamed = StreamedWeights(
        cfg=reader.cfg,
        read=lambda path, layer: np.ascontiguousarray(reader.read(path, layer)),
        read_block=functools.partial(read_block, reader),
        largest=lambda: facts.found["largest"],
        identity=identity,
        scratch=folder.path,
        name=str(ref),
    )
    info: RunInfo = {}
    if reference.kind == "huggingface" and reference.path is not None:
        context = training_context(reference.path)
        info = {} if context is None else {"context": context}
    return Checkpoint(
        cfg=reader.cfg,
        params={},
        reference=str(ref),
        source_format=reference.kind,
        description=reader.description,
        files=reader.files,
        tokenizer_files=reader.tokenizer_files,
        info=info,
        streamed=streamed,
        streamed_facts=lambda: facts.found,
    )


def read_block(reader: WeightsReader, layer: int) -> Params:
    """Read all parameters of one block (from 0) to the device, as :func:`bornbiased_jax.model.apply` takes them."""
    flat = {}
    for path, row in parameter_table(reader.cfg).items():
        if row.is_stacked:
            flat[path.removeprefix("blocks/")] = _on_device(reader.read(path, layer))
    return unflatten(flat)


def _on_device(tensor: np.ndarray) -> jax.Array:
    """Copy a tensor in C order to where a device wants it; most matrices are transposed in their file."""
    buffer = aligned_zeros(list(tensor.shape), np.dtype(np.float32))
    if tensor.ndim == 2 and not tensor.flags.c_contiguous:
        # Some columns at a time: turned as a whole, every number of a large matrix would come from memory alone.
        for start in range(0, tensor.shape[1], _COLUMNS):
            buffer[:, start : start + _COLUMNS] = tensor[:, start : start + _COLUMNS]
    else:
        buffer[...] = tensor
    # Nobody writes to the buffer any more, so that a CPU's array may be it.
    return jax.block_until_ready(jax.device_put(buffer, may_alias=True))


def _identity(reader: WeightsReader) -> str:
    """Identify these weights without reading them: by files, their times, and how they are read."""
    places = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in reader.files]
    facts = [reader.kind, reader.description, reader.cfg.to_dict(), places, code.code_digest(open_reader)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]


class _Facts:
    """The facts of all tensors, read when first asked for and kept in the scratch folder."""

    def __init__(self, reader: WeightsReader, place: Path) -> None:
        self._reader, self._place = reader, place

    @functools.cached_property
    def found(self) -> TensorFacts:
        """Read each tensor once, or take what an earlier call found."""
        if self._place.is_file():
            try:
                stored: TensorFacts = schema.check(TensorFacts, io.read_json(self._place), str(self._place))
                return stored
            except InputError:
                pass  # made again
        facts = tensor_facts(self._reader)
        io.write_json(self._place, facts)
        return facts


def tensor_facts(reader: WeightsReader) -> TensorFacts:
    """Collect digests and sizes of all tensors, one tensor in memory at a time."""
    facts: TensorFacts = {"digests": {}, "values": {}, "constant": [], "largest": 0.0}
    for name, path, layer in reader.places():
        tensor = np.ascontiguousarray(reader.read(path, layer))
        facts["digests"][name] = tensor_digest(tensor)
        facts["values"][name] = value_digest(tensor)
        if is_constant(tensor):
            facts["constant"].append(name)
        facts["largest"] = max(facts["largest"], float(tensor.max()), -float(tensor.min()))
    return facts
