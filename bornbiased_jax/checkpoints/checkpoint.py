"""A model opened from wherever it lies: its architecture, its weights and what identifies them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import keys, parallel
from bornbiased_jax.checkpoints.digests import combine, constant_tensors, tensor_digests, value_digests
from bornbiased_jax.checkpoints.gguf_file import open_gguf
from bornbiased_jax.checkpoints.huggingface import Opened, open_directory, training_context
from bornbiased_jax.checkpoints.reference import Kind, Reference, parse_ref
from bornbiased_jax.checkpoints.run import RunInfo, restore_params
from bornbiased_jax.checkpoints.streaming import Shardings
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed, parameter_shapes
from bornbiased_jax.model.memory import check_weights
from bornbiased_jax.model.streaming import StreamedWeights, Weights
from bornbiased_jax.parameters import Params, flatten, unflatten
from bornbiased_jax.text.protocol import Tokenizer
from bornbiased_jax.text.tokenizers import load_tokenizer


@dataclasses.dataclass(frozen=True, eq=False)
class Checkpoint:
    """An opened model.

    Attributes:
        cfg: its architecture.
        params: its weights, as :func:`bornbiased_jax.model.init` lays them out.
        reference: what was asked for.
        source_format: "birth", "run", "huggingface" or "gguf".
        description: one line for a reader.
        files: the files that hold the weights; none for a birth.
        tokenizer_files: where its tokenizer may be.
        info: what else the source knows (a run: its seed and step).
        streamed: weights that stay in their file, with no ``params`` beside them (:func:`.blocks.open_streamed`).
        streamed_facts: what is known of their tensors.
    """

    cfg: ModelConfig
    params: Params
    reference: str
    source_format: Kind
    description: str
    files: tuple[Path, ...] = ()
    tokenizer_files: tuple[Path, ...] = ()
    info: RunInfo = dataclasses.field(default_factory=lambda: RunInfo())
    streamed: StreamedWeights | None = None
    streamed_facts: Callable[[], Mapping[str, Any]] = dict

    @property
    def weights(self) -> Weights:
        """The parameters, in memory or in their file."""
        return self.params if self.streamed is None else self.streamed

    def close(self) -> None:
        """Remove what passes through streamed weights kept on disk: the work that they were for is done."""
        if self.streamed is not None:
            self.streamed.clear()

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that came with the weights, read when first asked for, or None.

        Raises:
            InputError: it is damaged, or has ids that the model does not know.
        """
        if not self.tokenizer_files:
            return None
        path = self.tokenizer_files[0]
        tokenizer = load_tokenizer(path)
        if tokenizer.vocab_size > self.cfg.vocab_size:
            raise InputError(
                f"the tokenizer {path} has {tokenizer.vocab_size} ids, its model only {self.cfg.vocab_size}: "
                "put the model's own tokenizer there"
            )
        return tokenizer

    @cached_property
    def _digests(self) -> dict[str, str]:
        return tensor_digests(self.params) if self.streamed is None else dict(self.streamed_facts()["digests"])

    def tensor_digests(self) -> dict[str, str]:
        """Return SHA-256 of every tensor by path and layer; see :func:`bornbiased_jax.checkpoints.tensor_digests`."""
        return dict(self._digests)

    def value_digests(self) -> dict[str, str]:
        """Return SHA-256 of each tensor's numbers in any order: :func:`bornbiased_jax.checkpoints.value_digests`."""
        return value_digests(self.params) if self.streamed is None else dict(self.streamed_facts()["values"])

    def constant_tensors(self) -> set[str]:
        """Return the names of tensors that hold one number throughout."""
        return constant_tensors(self.params) if self.streamed is None else set(self.streamed_facts()["constant"])

    def digest(self) -> str:
        """Return SHA-256 of all weights, independent of the file format and the order of the tensors in it."""
        return combine(self._digests)


def open_checkpoint(ref: str | Path, *, dtype: Any = None, sharding: Shardings | None = None) -> Checkpoint:
    """Open a model: a file, a directory, a run, a seed or a name (:func:`parse_ref` says how each is written).

    Weights stream tensor by tensor to where they belong; there is never a second copy of them all.

    Args:
        ref: what to open.
        dtype: of the weights; float32 by default.
        sharding: from a parameter's path ("blocks/mlp/up/kernel") and shape to its ``jax.sharding.Sharding``, as
            :func:`bornbiased_jax.parallel.shardings` gives it for a mesh: of a file or a seed, a process then holds
            the parts of its own devices alone. By default everything goes to the default device.

    Raises:
        InputError: nothing is there, or what is there is damaged, of another kind or not understood; the
            sentence names the file and the remedy. Nothing is ever unpickled.

    >>> checkpoint = open_checkpoint("seed:42@gpt2-tiny,num_layers=2,vocab_size=64")
    >>> checkpoint.description, checkpoint.cfg.num_layers
    ('birth of seed 42', 2)
    """
    reference = parse_ref(ref).fetched()
    # Weights come from a seed, a run, a GGUF file or a Hugging Face directory.
    info: RunInfo = {}
    if reference.kind == "birth":
        opened = _birth(reference, dtype, sharding)
    elif reference.kind == "run":
        opened, info = _run(reference, dtype, sharding)
    else:
        opener = open_gguf if reference.kind == "gguf" else open_directory
        assert reference.path is not None
        opened = opener(reference.path, dtype=dtype, sharding=sharding)
        if reference.kind == "huggingface" and (context := training_context(reference.path)) is not None:
            info = {"context": context}
    return Checkpoint(
        cfg=opened.cfg,
        params=opened.params,
        reference=str(ref),
        source_format=reference.kind,
        description=reference.describe(opened.description),
        files=opened.files,
        tokenizer_files=opened.tokenizer_files,
        info=info,
    )


def _birth(reference: Reference, dtype: Any, sharding: Shardings | None) -> Opened:
    assert reference.seed is not None and reference.cfg is not None
    check_weights(reference.cfg)
    seed = jnp.uint32(keys.check_seed(reference.seed))
    born = partial(init_seed, reference.cfg)
    if sharding is not None:
        shapes = flatten(parameter_shapes(reference.cfg))
        params = unflatten(
            {path: _drawn(born, seed, path, sharding(path, leaf.shape)) for path, leaf in shapes.items()}
        )
    else:
        params = born(seed)
    if dtype is not None:
        params = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    return Opened(reference.cfg, params, f"birth of seed {reference.seed}", (), ())


def _drawn(born: Callable[[jax.Array], Params], seed: jax.Array, path: str, target: Any) -> jax.Array:
    """Draw one parameter of an untrained model where it is to lie.

    It has a program of its own, so that the random bits of no other lie alongside.
    """
    return jax.block_until_ready(jax.jit(lambda seed: flatten(born(seed))[path], out_shardings=target)(seed))


def _run(reference: Reference, dtype: Any, sharding: Shardings | None) -> tuple[Opened, RunInfo]:
    assert reference.path is not None
    cfg, params, info = restore_params(reference.path, seed=reference.seed, step=reference.step)
    flat = {}
    for path, leaf in flatten(params).items():
        if not np.all(np.isfinite(leaf)):
            raise InputError(f"{path} of run {reference.path} holds NaN or infinite values: choose an earlier step")
        array = np.asarray(leaf).astype(jnp.dtype(dtype or jnp.float32))
        target = None if sharding is None else sharding(path, array.shape)
        flat[path] = jax.device_put(array) if target is None else parallel.place_array(array, target)
    where = ", ".join(f"{name} {value}" for name, value in info.items() if name in ("seed", "step"))
    tokenizer = info.get("tokenizer_file")
    tokenizer_files = () if tokenizer is None else (Path(tokenizer),)
    opened = Opened(cfg, unflatten(flat), f"run {reference.path}, {where}", (), tokenizer_files)
    return opened, info
