"""A model's weights one tensor at a time: whatever compares two models never holds either of them.

What :func:`open_checkpoint` opens, :func:`open_reader` reads: a Hugging Face directory in one file or several, GGUF
(dequantised), a run, a birth (every parameter drawn by itself). Fused matrices come apart as the architecture says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np

from bornbiased_jax import hardware, keys
from bornbiased_jax.checkpoints.digests import combine, tensor_digest
from bornbiased_jax.checkpoints.gguf_file import locate_gguf
from bornbiased_jax.checkpoints.huggingface import locate_directory
from bornbiased_jax.checkpoints.layout import Entry, leading_axis, unpack
from bornbiased_jax.checkpoints.reference import Kind, Reference, parse_ref
from bornbiased_jax.checkpoints.run import RunPlace, SavedParameters, locate_run, read_run, tokenizer_file
from bornbiased_jax.checkpoints.streaming import Located, check_entries, read_finite
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import distribution, draw
from bornbiased_jax.model.memory import largest_tensor_bytes
from bornbiased_jax.parameters import Params, flatten, parameter_table

ReadTensor = Callable[[str, int | None, int | None], np.ndarray]
"""From a path, a layer and a number of rows (None: all) to those rows."""


@dataclasses.dataclass(frozen=True, eq=False)
class WeightsReader:
    """A model whose weights are read when asked for, and not kept.

    Attributes:
        cfg: its architecture.
        description: one line for a reader.
        kind: "birth", "run", "huggingface", "gguf", or "memory".
        is_birth: whether these weights are as initialisation left them, known from where they come.
        seed: of a birth or a run, None where it is not known.
        files: the files that hold the weights.
        tokenizer_files: where its tokenizer may be.
        blocked: whether the file says that its numbers were quantised in contiguous blocks.
    """

    cfg: ModelConfig
    description: str
    kind: Kind | str
    is_birth: bool
    seed: int | None
    _read: ReadTensor
    files: tuple[Path, ...] = ()
    tokenizer_files: tuple[Path, ...] = ()
    blocked: bool = False

    def read(self, path: str, layer: int | None = None) -> np.ndarray:
        """Read one parameter, of one block (counted from 0) where it lies in the blocks: float32, not to be written to.

        Raises:
            InputError: it holds NaN or infinite values.
            KeyError: the architecture has no such parameter, or no such block.
        """
        self._check(path, layer)
        return np.asarray(self._read(path, layer, None), np.float32)

    def read_first(self, path: str, layer: int | None, rows: int) -> np.ndarray:
        """Read the first rows of one parameter as :meth:`read` gives it, and no more of a file than they need.

        A vector is given whole; of a run the parameter is read whole.

        Raises:
            InputError: they hold NaN or infinite values.
            KeyError: the architecture has no such parameter, or no such block.
        """
        shape = self._check(path, layer)
        return np.asarray(self._read(path, layer, rows if len(shape) > 1 else None), np.float32)

    def _check(self, path: str, layer: int | None) -> tuple[int, ...]:
        """Return the shape of a parameter, and refuse one that is not in the model."""
        row = parameter_table(self.cfg)[path]
        if row.is_stacked != (layer is not None) or (layer is not None and not 0 <= layer < row.shape[0]):
            raise KeyError(f"{path} of block {layer}")
        return row.block_shape

    def places(self) -> Iterator[tuple[str, str, int | None]]:
        """Yield name, path and layer of every tensor, in the architecture's order; :meth:`read` takes the last two."""
        for path, row in parameter_table(self.cfg).items():
            for layer in range(row.shape[0]) if row.is_stacked else (None,):
                yield path if layer is None else f"{path}/{layer}", path, layer

    def tensor_digests(self) -> dict[str, str]:
        """Return SHA-256 of every tensor by path and layer, reading one tensor at a time.

        They are those that :func:`.digests.tensor_digests` of the opened model gives.
        """
        return {name: tensor_digest(self.read(path, layer)) for name, path, layer in self.places()}

    def digest(self) -> str:
        """Return SHA-256 of all weights, as :meth:`.Checkpoint.digest` does of the same model opened in float32."""
        return combine(self.tensor_digests())

    def has(self, path: str) -> bool:
        """Tell whether the architecture has a parameter of this path."""
        return path in parameter_table(self.cfg)


def open_reader(ref: str | Path) -> WeightsReader:
    """Open a model for reading tensor by tensor.

    Args:
        ref: what :func:`bornbiased_jax.checkpoints.open_checkpoint` takes.

    Raises:
        InputError: nothing is there, or what is there is damaged, of another kind or not understood.
    """
    reference = parse_ref(ref).fetched()
    if reference.kind == "birth":
        assert reference.seed is not None and reference.cfg is not None
        return birth_reader(reference.cfg, reference.seed)
    assert reference.path is not None
    if reference.kind == "run":
        return _run(reference)
    located = (locate_gguf if reference.kind == "gguf" else locate_directory)(reference.path)
    return _file(reference.kind, located._replace(description=reference.describe(located.description)))


def params_reader(
    cfg: ModelConfig, params: Params, *, seed: int | None = None, is_birth: bool = False
) -> WeightsReader:
    """Make a reader of weights that are in memory already, as :func:`bornbiased_jax.model.init` lays them out."""
    flat = flatten(params)

    def read(path: str, layer: int | None, rows: int | None) -> np.ndarray:
        return np.asarray(flat[path] if layer is None else flat[path][layer])[:rows]

    return WeightsReader(cfg, "weights in memory", "memory", is_birth, seed, read)


def birth_reader(cfg: ModelConfig, seed: int) -> WeightsReader:
    """Make a reader of a seed's initial weights, each drawn when it is asked for.

    Raises:
        InputError: the seed is out of range.
    """
    key = keys.init_key(keys.check_seed(seed))
    drawn = parameter_table(cfg)
    hardware.check_memory(2 * largest_tensor_bytes(cfg), "the largest tensor of this model", "choose a smaller one")

    def read(path: str, layer: int | None, rows: int | None) -> np.ndarray:
        shape = drawn[path].block_shape
        distributed = distribution(cfg, drawn[path])
        # The first numbers of independent draws do not depend on how many follow.
        if rows is not None and distributed.is_independent:
            shape = (min(rows, shape[0]), *shape[1:])
        block = None if layer is None else np.uint32(layer)
        return np.asarray(_draw(keys.leaf_key(key, path), shape, distributed, block))[:rows]

    return WeightsReader(cfg, f"birth of seed {seed}", "birth", True, int(seed), read)


_draw = jax.jit(draw, static_argnums=(1, 2))
"""One program for all parameters of a shape and a distribution."""


_ROOM = 64 << 20
"""Bytes of a run's parameters that its reader keeps beside the one that was asked for."""


def _run(reference: Reference) -> WeightsReader:
    assert reference.path is not None
    place: RunPlace = locate_run(reference.path, reference.seed, reference.step)
    step = place.steps[-1]
    born_here = read_run(place.folder)["config"].get("init_from") is None
    saved = SavedParameters(place)
    # One parameter of all layers lies together: it is kept while there is room, or until another is asked for.
    held: dict[str, np.ndarray] = {}

    def read(path: str, layer: int | None, rows: int | None) -> np.ndarray:
        if path not in held:
            tensor = saved.load(path)
            while held and tensor.nbytes + sum(parameter.nbytes for parameter in held.values()) > _ROOM:
                del held[next(iter(held))]
            if not np.all(np.isfinite(tensor)):
                raise InputError(f"{path} of run {place.folder} holds NaN or infinite values: choose an earlier step")
            held[path] = tensor
        return (held[path] if layer is None else held[path][layer])[:rows]

    description = f"run {place.folder}, seed {place.seed}, step {step}"
    tokenizer = tokenizer_file(place.folder)
    tokenizer_files = () if tokenizer is None else (Path(tokenizer),)
    is_birth = step == 0 and born_here
    return WeightsReader(place.cfg, description, "run", is_birth, place.seed, read, tokenizer_files=tokenizer_files)


def _file(kind: Kind, located: Located) -> WeightsReader:
    cfg, source, entries, shapes = located[:4]
    check_entries(source, entries, shapes, located.ignored)
    # One tensor of the file for each parameter of a layer, or one for each of its experts.
    holders: dict[tuple[str, int | None], list[tuple[Entry, int]]] = {}
    for entry in entries:
        for index, path in enumerate(entry.paths):
            holders.setdefault((path, entry.layer), []).append((entry, index))
    drawn = parameter_table(cfg)

    def read(path: str, layer: int | None, rows: int | None) -> np.ndarray:
        if (path, layer) not in holders:  # a bias that the configuration has and the file has not
            return np.zeros(drawn[path].block_shape, np.float32)
        entry, index = holders[path, layer][0]
        if entry.expert is not None:
            experts = holders[path, layer][:rows]
            return np.stack([unpack(holder, cfg, read_finite(source, holder.name))[at] for holder, at in experts])
        first = None if rows is None else (leading_axis(entry), rows)
        return unpack(entry, cfg, read_finite(source, entry.name, first=first))[index]

    return WeightsReader(
        cfg, located.description, kind, False, None, read, located.files, located.tokenizer_files, located.blocked
    )
