"""The format of a pretraining run on disk, and how its weights are read back: no trainer is needed for that.

``RUN/run.json`` says what was asked for; ``RUN/checkpoints/STEP`` holds ``params`` and ``optimizer`` (leading axis of
seeds), and ``progress``: the step, the seeds, the place in the data, and a checksum of every array. Orbax writes under
a temporary name and renames, so what has a plain name is whole, unless the disk corrupted it later: the checksums tell.

Of a run that trains an adapter (:mod:`bornbiased_jax.model.adapters`) ``params`` are the adapter alone; the frozen
model lies once in ``RUN/base``, and what is read back is the adapted model.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NotRequired

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval, Len
from orbax.checkpoint import v1 as ocp
from typing_extensions import TypedDict

from bornbiased_jax import io, schema
from bornbiased_jax.checkpoints.storage import first_line, may_pass, silent_libraries
from bornbiased_jax.checkpoints.tensors import Piece, StoredModel, load_params
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import parameter_shapes
from bornbiased_jax.model.adapters import Adapter, adapted, adapter_shapes, merge_parameter
from bornbiased_jax.parameters import Params, flatten, unflatten
from bornbiased_jax.schema import Length, Seed, Steps

RUN_FILE = "run.json"
FOLDER = "checkpoints"
TOKENIZER = "tokenizer"
BASE = "base"
# Bytes of a run's parameters that are held besides the one that is read.
_ROOM = 64 << 20


class RunSettings(TypedDict):
    """Of what was asked for, that which is needed to read a run back; there is more."""

    model: dict[str, object]
    seeds: Annotated[list[Seed], Len(1, 1_000_000)]
    context: Length
    data: str
    init_from: NotRequired[str | None]
    adapter: NotRequired[dict[str, object] | None]


class RunRecord(TypedDict):
    """``run.json``."""

    config: RunSettings
    steps: Steps
    tokens_digest: str
    initial_digest: str | None
    parameters: NotRequired[Annotated[int, Interval(ge=1)]]
    provenance: NotRequired[dict[str, Any]]


@jax.jit
def checksums(tree: object) -> jax.Array:
    """Compute one 32-bit number a leaf, uint32: Σ bits·odd(position) modulo 2³².

    Any single changed element changes it; being a sum of integers it is the same on any number of devices.
    """
    return jnp.stack([_checksum(leaf) for leaf in jax.tree.leaves(tree)])


def _checksum(leaf: jax.Array) -> jax.Array:
    width = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[leaf.dtype.itemsize]
    bits = jax.lax.bitcast_convert_type(leaf, width).astype(jnp.uint32)
    weight = jnp.full(leaf.shape, 0x9E3779B9, jnp.uint32)
    for axis in range(leaf.ndim):
        weight = (weight ^ jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, axis)) * np.uint32(0x85EBCA6B)
        weight = weight ^ (weight >> 13)
    return jnp.sum(bits * (weight | 1), dtype=jnp.uint32)


def find_steps(folder: Path) -> list[int]:
    """List the steps of the checkpoints in a run's folder, ascending, without those that are still being written.

    Damaged ones are among them, for a folder gets its plain name only when it is whole: who reads one will see.
    """
    root = folder / FOLDER
    if not root.is_dir():
        return []
    return sorted(int(entry.name) for entry in root.iterdir() if entry.name.isdecimal() and entry.is_dir())


def progress_tree(step: int, seeds: Sequence[int], iterator: dict[str, object], sums: object) -> dict[str, object]:
    """Return what ``progress`` of a checkpoint holds: the step, the seeds, the place in the data, the checksums."""
    return {"step": step, "seeds": np.asarray(seeds, np.uint32), "iterator": iterator, "checksums": sums}


def read_run(folder: Path | str) -> RunRecord:
    """Read what ``run.json`` says.

    Raises:
        InputError: the folder is not a run, or the file is corrupted: the sentence names the field.
    """
    folder = io.user_path(folder)
    if not (folder / RUN_FILE).is_file():
        run, at, _ = str(folder).rpartition("@")
        remedy = f"name {run}" if at and (Path(run) / RUN_FILE).is_file() else "check the path"
        raise InputError(f"{folder} is not a pretraining run, it has no {RUN_FILE}: {remedy}")
    content: RunRecord = io.read_json(folder / RUN_FILE)
    place = str(folder / RUN_FILE)
    schema.check(RunRecord, content, place, "it was edited or corrupted, or is of another version")
    try:
        _architecture(content["config"])
    except InputError as error:
        raise InputError(f"{place} describes no model that can be built: {error}") from error
    return content


def _architecture(config: RunSettings) -> tuple[ModelConfig, Adapter | None]:
    """Return the model that a run trains, or that its adapter is of, and the adapter, which must fit it."""
    cfg, settings = ModelConfig.from_dict(config["model"]), config.get("adapter")
    if settings is None:
        return cfg, None
    try:
        adapter = Adapter.from_dict(settings)
        adapted(cfg, adapter)
        adapter_shapes(cfg, adapter)
    except (AssertionError, TypeError, ValueError, KeyError) as error:
        raise InputError(f"the adapter {settings} does not fit its model ({error})") from error
    return cfg, adapter


def trained_shapes(cfg: ModelConfig, adapter: Adapter | None) -> Params:
    """Return the tree that a run trains, as ``jax.ShapeDtypeStruct`` leaves: a whole model, or an adapter of it."""
    return parameter_shapes(cfg) if adapter is None else adapter_shapes(cfg, adapter)


def read_headers(run_dir: Path | str, seed: int | None = None, step: int | None = None) -> StoredModel:
    """Open one seed of a run at one step, with the adapter that it trained merged in, and read no weights.

    Args:
        run_dir: a run's folder.
        seed: which of its seeds; None when it has only one.
        step: after how many updates; None for the last checkpoint.

    Raises:
        InputError: not a run, or no such seed or step (the sentence names those that exist).
    """
    place = _place_of(run_dir, seed, step)
    adapter = place.adapter
    saved = _trained_tree(place) if adapter is None else frozen_tree(place.folder)

    @functools.cache
    def adapter_tensors() -> dict[str, np.ndarray]:
        return flatten(_trained_tree(place).load_all())

    def load(path: str) -> np.ndarray:
        # What an adapter adds to the model is read as it is; what it changes is merged.
        trained = {} if adapter is None else adapter_tensors()
        tensor = trained[path] if path in trained else saved.load(path)
        if adapter is not None and path not in trained:
            tensor = merge_parameter(adapter, path, tensor, trained)
        if not np.all(np.isfinite(tensor)):
            raise InputError(f"{path} of run {place.folder} holds NaN or infinite values: choose an earlier step")
        return tensor

    # One parameter of all blocks lies together: it is held while there is room, or until another is asked for.
    arrays: dict[str, np.ndarray] = {}

    def read(path: str) -> np.ndarray:
        if path not in arrays:
            # A copy: what was loaded is of all seeds.
            tensor = load(path).copy()
            while arrays and tensor.nbytes + sum(parameter.nbytes for parameter in arrays.values()) > _ROOM:
                del arrays[next(iter(arrays))]
            arrays[path] = tensor
        return arrays[path]

    def pieces(get: Callable[[str], np.ndarray]) -> Callable[[str], list[Piece]]:
        return lambda path: [Piece(f"{path} of run {place.folder}", (), lambda: get(path))]

    description = f"run {run_dir}, seed {place.seed}, step {place.step}"
    # Loaded all at once, no parameter is held alongside its copy on the device.
    load_all = functools.partial(load_params, StoredModel(place.cfg, description, pieces(load)))
    tokenizer = tokenizer_file(place.folder)
    return StoredModel(
        place.cfg,
        description,
        pieces(read),
        tokenizer_files=() if tokenizer is None else (Path(tokenizer),),
        seed=place.seed,
        is_initial=place.step == 0 and read_run(place.folder)["config"].get("init_from") is None,
        info={
            "run": str(place.folder),
            "seed": place.seed,
            "step": place.step,
            "context": place.context,
            "tokenizer_file": tokenizer,
        },
        load=load_all,
    )


def restore_adapter(run_dir: Path | str, seed: int | None = None, step: int | None = None) -> tuple[RunPlace, Params]:
    """Restore the adapter that a run trained, apart from its model: where it lies, its settings, its parameters.

    Raises:
        InputError: as of :func:`read_headers`, a corrupted checkpoint, or the run trained a whole model.
    """
    place = _place_of(run_dir, seed, step)
    if place.adapter is None:
        raise InputError(f"{place.folder} trained a whole model, no adapter: export the model")
    return place, _trained_tree(place).load_all()


def _trained_tree(place: RunPlace) -> SavedTree:
    """Return what a run trained, of its seed at its step."""
    path = place.folder / FOLDER / str(place.step)
    shapes = flatten(trained_shapes(place.trained, place.adapter))
    refuse = functools.partial(_unreadable, place)
    return SavedTree(path, shapes, place.seeds, place.seeds.index(place.seed), refuse)


def frozen_tree(folder: Path) -> SavedTree:
    """Return the model that the adapter of a run belongs to.

    Raises:
        InputError: not a run.
    """
    shapes = flatten(parameter_shapes(_architecture(read_run(folder)["config"])[0]))
    return SavedTree(folder / BASE, shapes, (0,), 0, functools.partial(_frozen_unreadable, folder))


def _frozen_unreadable(folder: Path, error: Exception) -> InputError:
    if may_pass(error):
        return InputError(f"{folder / BASE} cannot be read now ({first_line(error)}): fix that, then try again")
    return InputError(
        f"the frozen model in {folder / BASE} is corrupted or missing ({first_line(error)}): put it back from a copy, "
        "or adapt again with another --out"
    )


def _unreadable(place: RunPlace, error: Exception) -> InputError:
    """Name a checkpoint that could not be read: its step, why, and the newest one that can be taken."""
    folder, seed, step = place.folder, place.seed, place.step
    where = f"the checkpoint of step {step} in {folder}"
    if may_pass(error):
        return InputError(f"{where} cannot be read now ({first_line(error)}): fix that, then try again")
    reason = f"{where} is corrupted ({first_line(error)})"
    for candidate in reversed(find_steps(folder)):
        if candidate != step:
            saved = _trained_tree(place._replace(step=candidate))
            try:
                for name in saved.shapes:
                    saved.read(name)
            except Exception:  # whatever a corrupted file makes of itself in the layers below
                continue
            return InputError(f"{reason}: the newest whole one is {folder}@seed={seed},step={candidate}")
    return InputError(f"{reason}, and no other is whole: put one back from a copy, or train again")


class RunPlace(NamedTuple):
    """One seed of a run.

    Attributes:
        folder: its folder.
        cfg: the architecture of what is read back.
        seeds, seed: all of the run, and the one that is meant.
        step: the one that is meant.
        context: tokens a sequence.
        trained: the architecture that was trained, or whose adapter was.
        adapter: the adapter that was trained on it; None for the model itself.
    """

    folder: Path
    cfg: ModelConfig
    seeds: tuple[int, ...]
    seed: int
    step: int
    context: int
    trained: ModelConfig
    adapter: Adapter | None


def _place_of(run_dir: Path | str, seed: int | None = None, step: int | None = None) -> RunPlace:
    """Locate the checkpoints of a run that are meant, without reading any."""
    folder = io.user_path(run_dir).resolve()
    config = read_run(folder)["config"]
    cfg, adapter = _architecture(config)
    seeds = tuple(int(value) for value in config["seeds"])
    names = ", ".join(map(str, seeds))
    if seed is None:
        if len(seeds) > 1:
            raise InputError(f"{folder} has seeds {names}: say which, as in {folder}@seed={seeds[0]}")
        seed = seeds[0]
    if seed not in seeds:
        raise InputError(f"{folder} has no seed {seed}: it has {names}")
    steps = find_steps(folder)
    if not steps:
        raise InputError(f"{folder} has no checkpoint yet: let it run first")
    step = steps[-1] if step is None else step
    if step not in steps:
        raise InputError(f"{folder} has no checkpoint of step {step}: it has {', '.join(map(str, steps))}")
    return RunPlace(folder, adapted(cfg, adapter), seeds, seed, step, config["context"], cfg, adapter)


@dataclasses.dataclass(frozen=True, eq=False)
class SavedTree:
    """Parameters as Orbax wrote them, each read alone and held against its checksum.

    Attributes:
        path: the checkpoint.
        shapes: of all its parameters, as ``jax.ShapeDtypeStruct`` by path.
        seeds, index: those of the checkpoint, and which of them is read.
        refuse: from what went wrong to a sentence.
    """

    path: Path
    shapes: dict[str, jax.ShapeDtypeStruct]
    seeds: tuple[int, ...]
    index: int
    refuse: Callable[[Exception], InputError]

    @functools.cached_property
    def _sums(self) -> dict[str, int]:
        order = jax.tree.leaves(unflatten({name: name for name in self.shapes}))
        return dict(zip(order, _saved_sums(self.path, self.seeds, len(order)).tolist(), strict=True))

    def load(self, name: str) -> np.ndarray:
        """Load one parameter, of all blocks where it has them.

        Raises:
            InputError: it is corrupted, or cannot be read.
        """
        try:
            return self.read(name)
        except Exception as error:  # whatever a corrupted file makes of itself in the layers below
            raise self.refuse(error) from error

    def load_all(self) -> Params:
        """Load all parameters.

        Raises:
            InputError: one is corrupted, or cannot be read.
        """
        return unflatten({name: self.load(name) for name in self.shapes})

    def read(self, name: str) -> np.ndarray:
        """Read one parameter; what goes wrong is raised as it is."""
        leaf = self.shapes[name]
        abstract = np.empty((len(self.seeds), *leaf.shape), leaf.dtype)
        partial = ocp.options.PyTreeOptions(loading=ocp.options.PyTreeOptions.Loading(partial_load=True))
        expected = self._sums[name]
        with silent_libraries(), ocp.Context(pytree_options=partial):
            loaded = flatten(ocp.load(self.path, unflatten({name: abstract}), checkpointable_name="params"))[name]
        if int(checksums({name: loaded})[0]) != expected:
            raise ValueError(f"the checksum of {name} does not match")
        tensor: np.ndarray = np.asarray(loaded)[self.index]
        return tensor


def _saved_sums(path: Path, seeds: tuple[int, ...], leaves: int) -> np.ndarray:
    """Read the checksums of the parameters, as a checkpoint of these seeds, in this order, carries them."""
    num_sums = math.prod(ocp.checkpointables_metadata(path).metadata["progress"]["checksums"].shape)
    place = progress_tree(0, seeds, {"next_index": 0}, np.zeros(num_sums, np.uint32))
    with silent_libraries():
        progress = ocp.load(path, place, checkpointable_name="progress")
    if tuple(progress["seeds"].tolist()) != seeds:
        raise ValueError(f"its seeds are {progress['seeds'].tolist()}, not {list(seeds)}")
    # Of the state's leaves the parameters come first; their sums are enough to trust them.
    sums: np.ndarray = np.asarray(progress["checksums"])[:leaves]
    return sums


def tokenizer_file(folder: Path) -> str | None:
    """Return the file of a run's tokenizer, as ``load_tokenizer`` takes it."""
    place = folder / TOKENIZER
    return str(place) if place.is_dir() and any(place.iterdir()) else None
