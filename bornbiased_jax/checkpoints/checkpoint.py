"""A model opened from wherever it lies: its architecture, its weights and what identifies them."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge
from jax.typing import DTypeLike
from typing_extensions import TypedDict

from bornbiased_jax import code, hardware, io, schema
from bornbiased_jax.checkpoints.digests import combine, is_constant, tensor_digest, value_digest
from bornbiased_jax.checkpoints.formats import gguf, huggingface, initial, run
from bornbiased_jax.checkpoints.native_roles import NativeRoles
from bornbiased_jax.checkpoints.reference import ReferenceKind, parse_ref
from bornbiased_jax.checkpoints.tensors import Piece, Shardings, StoredModel, load_params, read_block, read_parameter
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.io import Folder
from bornbiased_jax.model.memory import streamed_bytes
from bornbiased_jax.model.streaming import StreamedWeights, Weights
from bornbiased_jax.parallel import on_host
from bornbiased_jax.parameters import Params, flatten, parameter_table
from bornbiased_jax.text.cache import cache_dir
from bornbiased_jax.text.protocol import Tokenizer
from bornbiased_jax.text.tokenizers import fits_vocabulary, load_tokenizer

MAKER = "bornbiased --stream"


class TensorFacts(TypedDict):
    """The facts of all tensors once each was read."""

    digests: dict[str, str]
    values: dict[str, str]
    constant: list[str]
    largest: Annotated[float, Ge(0)]


@dataclasses.dataclass(eq=False)
class Checkpoint(StoredModel):
    """A model whose weights are read when asked for: tensor by tensor, block by block, or all of them.

    Attributes:
        reference: what was asked for.
        kind: of its format; "memory" for weights that were in memory.
        dtype: of the parameters that :meth:`params` gives.
        sharding: where they go.
        scratch: a folder for the hidden states of :attr:`weights` that stay in their file; None for weights in memory.

    Example:
        >>> checkpoint = open_checkpoint("seed:42@gpt2-tiny,num_layers=2,vocab_size=64")
        >>> checkpoint.read("blocks/mlp/up/kernel", 1).shape
        (128, 512)
        >>> checkpoint.params()["embed"]["embedding"].shape
        (64, 128)
    """

    _: dataclasses.KW_ONLY
    reference: str
    kind: ReferenceKind | Literal["memory"]
    dtype: DTypeLike | None = None
    sharding: Shardings | None = None
    scratch: Path | None = None
    _loaded: Params | None = dataclasses.field(default=None, init=False)

    @classmethod
    def from_seed(cls, config: ModelConfig, seed: int) -> Checkpoint:
        """Describe the initial weights of a seed, each drawn when it is asked for.

        Raises:
            InputError: the seed is out of range.
        """
        stored = initial.read_headers(config, seed)
        return cls(**vars(stored), reference=stored.description, kind="birth")

    @classmethod
    def from_params(
        cls,
        config: ModelConfig,
        params: Params,
        *,
        seed: int | None = None,
        is_initial: bool = False,
        reference: str = "weights in memory",
    ) -> Checkpoint:
        """Wrap weights that are in memory already, as :func:`bornbiased_jax.model.init` lays them out."""
        flat = flatten(params)
        checkpoint = cls(
            config,
            reference,
            lambda path: [Piece(path, (), lambda: on_host(flat[path]))],
            seed=seed,
            is_initial=is_initial,
            reference=reference,
            kind="memory",
        )
        checkpoint._loaded = params
        return checkpoint

    @property
    def cfg(self) -> ModelConfig:
        """Its architecture, under a former name."""
        return self.config

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that came with the weights, read when first asked for, or None.

        Tokens that were added after training, such as a ``[PAD]``, may have no row in the model.

        Raises:
            InputError: it is corrupted, or has other ids that the model does not know.
        """
        if not self.tokenizer_files:
            return None
        path = self.tokenizer_files[0]
        tokenizer = load_tokenizer(path)
        if not fits_vocabulary(tokenizer, self.config.vocab_size):
            raise InputError(
                f"the tokenizer {path} has {tokenizer.vocab_size} ids, its model only {self.config.vocab_size}: "
                "put the model's own tokenizer there"
            )
        return tokenizer

    def require_tokenizer(self, chosen: Tokenizer | None = None) -> Tokenizer:
        """Return the chosen tokenizer, or else the model's own.

        Raises:
            InputError: there is neither.
        """
        tokenizer = chosen or self.tokenizer
        if tokenizer is None:
            raise InputError(f"{self.reference} has no tokenizer: name one with --tokenizer")
        return tokenizer

    def tensors(self) -> Iterator[tuple[str, str, int | None]]:
        """Yield name, path and block of every tensor, in the architecture's order; :meth:`read` takes the last two."""
        for path, row in parameter_table(self.config).items():
            for layer in range(row.shape[0]) if row.is_stacked else (None,):
                yield path if layer is None else f"{path}/{layer}", path, layer

    def read(self, path: str, layer: int | None = None) -> np.ndarray:
        """Read one parameter, of one block where it lies in the blocks: float32, not to be written to.

        Args:
            path: of the parameter ("blocks/mlp/up/kernel").
            layer: the block, from 0; None outside the blocks.

        Raises:
            InputError: it holds NaN or infinite values.
            KeyError: the architecture has no such parameter, or no such block.
        """
        row = parameter_table(self.config)[path]
        if row.is_stacked != (layer is not None) or (layer is not None and not 0 <= layer < row.shape[0]):
            raise KeyError(f"{path} of block {layer}")
        return read_parameter(self.pieces(path), row.block_shape, layer)

    def by_role(self) -> NativeRoles:
        """Return the tensors by role: what comparison and fingerprints read."""
        return NativeRoles(self)

    def params(self) -> Params:
        """Load all parameters, as :func:`bornbiased_jax.model.init` lays them out, and keep them.

        Weights go tensor by tensor to where they belong; there is never a second copy of them all.

        Raises:
            InputError: a tensor is corrupted or not finite, or the weights do not fit in memory.
        """
        if self._loaded is None:
            self._loaded = load_params(self, self.dtype, self.sharding)
        return self._loaded

    @property
    def weights(self) -> Weights:
        """The parameters, or where they lie if there is a folder for hidden states: what a forward pass takes."""
        return self.params() if self.scratch is None else self.streamed

    @cached_property
    def streamed(self) -> StreamedWeights:
        """The weights in their file, from which a forward pass reads one block after the other.

        Raises:
            InputError: a run, whose blocks lie together; a scratch folder of other things; a model of which not even
                two blocks fit in memory.
        """
        if self.kind == "run":
            raise InputError(
                f"{self.reference} is a pretraining run, in which all blocks lie together, so that it cannot be "
                "streamed: open it whole, or export it first"
            )
        folder = Folder(self.scratch or cache_dir() / "streamed", MAKER)
        folder.check()
        folder.claim()
        hardware.check_memory(
            streamed_bytes(self.config),
            f"a streamed model of d_model={self.config.d_model} and vocab_size={self.config.vocab_size}",
            "choose a smaller one",
        )
        return StreamedWeights(
            cfg=self.config,
            read=lambda path, layer: np.ascontiguousarray(self.read(path, layer)),
            read_block=functools.partial(read_block, self.config, self.read),
            largest=lambda: self.tensor_facts["largest"],
            identity=self._identity(),
            scratch=folder.path,
            name=self.reference,
        )

    def close(self) -> None:
        """Remove what passes through streamed weights kept on disk: the work that they were for is done."""
        if "streamed" in self.__dict__:
            self.streamed.clear()

    @cached_property
    def tensor_facts(self) -> TensorFacts:
        """Digests and sizes of all tensors, each read once; those of streamed weights are kept with hidden states."""
        place = None if self.scratch is None else self.streamed.scratch / f"{self.streamed.identity}.json"
        if place is not None and place.is_file():
            try:
                stored: TensorFacts = schema.check(TensorFacts, io.read_json(place), str(place))
                return stored
            except InputError:
                pass  # made again
        facts: TensorFacts = {"digests": {}, "values": {}, "constant": [], "largest": 0.0}
        for name, path, layer in self.tensors():
            tensor = np.ascontiguousarray(self.read(path, layer))
            facts["digests"][name] = tensor_digest(tensor)
            facts["values"][name] = value_digest(tensor)
            if is_constant(tensor):
                facts["constant"].append(name)
            facts["largest"] = max(facts["largest"], float(tensor.max()), -float(tensor.min()))
        if place is not None:
            io.write_json(place, facts)
        return facts

    @cached_property
    def _digests(self) -> dict[str, str]:
        # Facts are kept with the hidden states of streamed weights; by themselves, digests are found sooner.
        if {"tensor_facts", "streamed"} & self.__dict__.keys():
            return self.tensor_facts["digests"]
        return {name: tensor_digest(self.read(path, layer)) for name, path, layer in self.tensors()}

    def digest(self) -> str:
        """Return SHA-256 of all weights as float32, whatever the format, the order of tensors, or ``dtype``."""
        return combine(self._digests)

    def _identity(self) -> str:
        """Identify these weights without reading them: by files, their times, and how they are read."""
        places = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in self.files]
        facts = [self.kind, self.description, self.config.to_dict(), places, code.code_digest(open_checkpoint)]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]


def open_checkpoint(
    ref: str | Path,
    *,
    dtype: DTypeLike | None = None,
    sharding: Shardings | None = None,
    scratch: str | Path | None = None,
    file: str | None = None,
    ignore_fields: Sequence[str] = (),
) -> Checkpoint:
    """Open a model: a file, a directory, a run, a seed or a name (:func:`parse_ref` says how each is written).

    Only headers are read here, weights when they are asked for.

    Args:
        ref: what to open.
        dtype: of the parameters; float32 by default.
        sharding: from a row of the table of parameters to its ``jax.sharding.Sharding``, as
            :func:`bornbiased_jax.parallel.shardings` gives it for a mesh: of a file or a seed, a process then holds
            the parts of its own devices alone. By default everything goes to the default device.
        scratch: a folder for hidden states: weights stay in their file, and a forward pass reads them block by block.
            Complete blocks there are reused.
        file: which set of weights, by the name of its file or index, where a Hugging Face folder holds several.
        ignore_fields: fields of its ``config.json`` to leave out, which are known not to change the model.

    Raises:
        InputError: nothing is there, or what is there is corrupted, of another kind or not understood; the
            sentence names the file and the remedy. Nothing is ever unpickled.

    >>> checkpoint = open_checkpoint("seed:42@gpt2-tiny,num_layers=2,vocab_size=64")
    >>> checkpoint.description, checkpoint.config.num_layers
    ('initialization of seed 42', 2)
    """
    reference = parse_ref(ref).fetched()
    if reference.kind != "huggingface" and (file is not None or ignore_fields):
        option = "--file" if file is not None else "--ignore-field"
        raise InputError(f"{ref} is no Hugging Face folder, which {option} is for: leave the option out")
    # Weights come from a seed, a run, a GGUF file or a Hugging Face directory.
    if reference.path is None:
        assert reference.seed is not None and reference.cfg is not None
        stored = initial.read_headers(reference.cfg, reference.seed)
    elif reference.kind == "run":
        stored = run.read_headers(reference.path, reference.seed, reference.step)
    elif reference.kind == "gguf":
        stored = gguf.read_headers(reference.path)
    else:
        stored = huggingface.read_headers(reference.path, file=file, ignore_fields=ignore_fields)
    stored.description = reference.describe(stored.description)
    folder = None if scratch is None else Path(scratch)
    return Checkpoint(
        **vars(stored), reference=str(ref), kind=reference.kind, dtype=dtype, sharding=sharding, scratch=folder
    )


@functools.lru_cache(maxsize=1)
def verified_checkpoint(reference: str, digest: str, dtype: str | None = None) -> Checkpoint:
    """Open a checkpoint that another process has named, once in this one, with parameters of type ``dtype``.

    Raises:
        InputError: it is not there, or has other weights.
    """
    checkpoint = open_checkpoint(reference, dtype=dtype)
    if checkpoint.digest() != digest:
        raise InputError(
            f"{reference} has the digest {checkpoint.digest()} here, not {digest}: let all processes see the same files"
        )
    return checkpoint
