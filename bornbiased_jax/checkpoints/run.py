"""The format of a pretraining run on disk, and how its weights are read back: no trainer is needed for that.

``RUN/run.json`` says what was asked for; ``RUN/checkpoints/STEP`` holds ``params`` and ``optimiser`` (leading axis of
seeds), and ``progress``: the step, the seeds, the place in the data, and a checksum of every array. Orbax writes under
a temporary name and renames, so what has a plain name is whole, unless the disk damaged it later: the checksums tell.

Of a run that trains an adapter (:mod:`bornbiased_jax.model.adapters`) ``params`` are the adapter alone; the frozen
model lies once in ``RUN/base``, and what is read back is the adapted model.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NotRequired

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval, Len
from typing_extensions import TypedDict

from bornbiased_jax import io, schema
from bornbiased_jax.checkpoints.storage import first_line, may_pass, silent_libraries
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import parameter_shapes
from bornbiased_jax.model.adapters import Adapter, adapted, adapter_shapes, merge, merge_parameter
from bornbiased_jax.model.memory import check_weights
from bornbiased_jax.parameters import Params, flatten, unflatten
from bornbiased_jax.ranges import Length, Seed, Steps

RUN_FILE = "run.json"
FOLDER = "checkpoints"
TOKENIZER = "tokenizer"
BASE = "base"


class RunSettings(TypedDict):
    """Of what was asked for, that which is needed to read a run back; there is more."""

    model: dict[str, Any]
    seeds: Annotated[list[Seed], Len(1, 1_000_000)]
    context: Length
    data: str
    init_from: NotRequired[str | None]
    adapter: NotRequired[dict[str, Any] | None]


class RunRecord(TypedDict):
    """``run.json``."""

    config: RunSettings
    steps: Steps
    tokens_digest: str
    initial_digest: str | None
    parameters: NotRequired[Annotated[int, Interval(ge=1)]]
    provenance: NotRequired[dict[str, Any]]


class RunInfo(TypedDict, total=False):
    """What a run knows about one of its checkpoints; empty for models of other origin."""

    run: str
    """Its folder."""
    seed: int
    step: int
    """Updates before it."""
    context: int
    """Tokens of a sequence in training."""
    tokenizer_file: str | None


@jax.jit
def checksums(tree: Any) -> jax.Array:
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


def progress_tree(step: int, seeds: tuple[int, ...], iterator: dict[str, Any], sums: Any) -> dict[str, Any]:
    """Return what ``progress`` of a checkpoint holds: the step, the seeds, the place in the data, the checksums."""
    return {"step": step, "seeds": np.asarray(seeds, np.uint32), "iterator": iterator, "checksums": sums}


def read_run(folder: Path | str) -> RunRecord:
    """Read what ``run.json`` says.

    Raises:
        InputError: the folder is not a run, or the file is damaged: the sentence names the field.
    """
    folder = io.user_path(folder)
    if not (folder / RUN_FILE).is_file():
        raise InputError(f"{folder} is not a pretraining run, it has no {RUN_FILE}: check the path")
    content: RunRecord = io.read_json(folder / RUN_FILE)
    place = str(folder / RUN_FILE)
    schema.check(RunRecord, content, place, "it was edited or damaged, or is of another version")
    try:
        _architecture(content["config"])
    except InputError as error:
        raise InputError(f"{place} describes no model that can be built: {error}") from error
    return content


def _architecture(config: RunSettings) -> tuple[ModelConfig, Adapter | None]:
    """Return the model that a run trains, or that its adapter is of, and the adapter.

    Raises:
        InputError: a field is unknown, out of range, or the adapter does not fit the model.
    """
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


def restore_params(
    run_dir: Path | str, seed: int | None = None, step: int | None = None
) -> tuple[ModelConfig, Params, RunInfo]:
    """Restore the weights of one seed at one step, on the host, for probing; of an adapted model with its adapter.

    Args:
        run_dir: a run's folder.
        seed: which of its seeds; None when it has only one.
        step: after how many updates; None for the last checkpoint.

    Returns:
        The architecture, the weights as numpy arrays without a leading axis of seeds, and :class:`RunInfo`.

    Raises:
        InputError: not a run, no such seed or step (the sentence names those that exist), or a damaged checkpoint: the
            sentence names the newest whole one.
    """
    place = locate_run(run_dir, seed, step)
    params = _load_trained(place)
    if place.adapter is not None:
        params = merge(place.adapter, load_frozen(place.folder, place.trained), params)
    info: RunInfo = {
        "run": str(place.folder),
        "seed": place.seed,
        "step": place.steps[-1],
        "context": place.context,
        "tokenizer_file": tokenizer_file(place.folder),
    }
    return place.cfg, params, info


def restore_adapter(run_dir: Path | str, seed: int | None = None, step: int | None = None) -> tuple[RunPlace, Params]:
    """Restore the adapter that a run trained, apart from its model: where it lies, its settings, its parameters.

    Raises:
        InputError: as of :func:`restore_params`, or the run trained a whole model.
    """
    place = locate_run(run_dir, seed, step)
    if place.adapter is None:
        raise InputError(f"{place.folder} trained a whole model, no adapter: export the model")
    return place, _load_trained(place)


def _load_trained(place: RunPlace) -> Params:
    """Load what a run trained, of its seed at its last located step.

    Raises:
        InputError: it is damaged, or cannot be read.
    """
    path = place.folder / FOLDER / str(place.steps[-1])
    try:
        return _load_tree(path, place.trained, place.adapter, place.seeds, place.seeds.index(place.seed))
    except Exception as error:  # whatever a damaged file makes of itself in the layers below
        raise _unreadable(place, error) from error


def load_frozen(folder: Path, cfg: ModelConfig) -> Params:
    """Load the model that the adapter of a run belongs to.

    Raises:
        InputError: it is missing or damaged, or cannot be read.
    """
    try:
        return _load_tree(folder / BASE, cfg, None, (0,), 0)
    except Exception as error:  # as above
        raise _frozen_unreadable(folder, error) from error


def _frozen_unreadable(folder: Path, error: Exception) -> InputError:
    if may_pass(error):
        return InputError(f"{folder / BASE} cannot be read now ({first_line(error)}): mend that, then try again")
    return InputError(
        f"the frozen model in {folder / BASE} is damaged or missing ({first_line(error)}): put it back from a copy, or "
        "adapt again with another --out"
    )


def _unreadable(place: RunPlace, error: Exception) -> InputError:
    """Name a checkpoint that could not be read: its step, why, and the newest one that can be taken."""
    folder, seed, step = place.folder, place.seed, place.steps[-1]
    where = f"the checkpoint of step {step} in {folder}"
    if may_pass(error):
        return InputError(f"{where} cannot be read now ({first_line(error)}): mend that, then try again")
    reason = f"{where} is damaged ({first_line(error)})"
    for candidate in reversed(find_steps(folder)):
        if candidate != step:
            path = folder / FOLDER / str(candidate)
            try:
                _load_tree(path, place.trained, place.adapter, place.seeds, place.seeds.index(seed))
            except Exception:  # as above: it is damaged too
                continue
            return InputError(f"{reason}: the newest whole one is {folder}@seed={seed},step={candidate}")
    return InputError(f"{reason}, and no other is whole: put one back from a copy, or train again")


class RunPlace(NamedTuple):
    """One seed of a run.

    Attributes:
        folder: its folder.
        cfg: the architecture of what is read back.
        seeds, seed: all of the run, and the one that is meant.
        steps: ascending; one alone where it was named.
        context: tokens a sequence.
        trained: the architecture that was trained, or whose adapter was.
        adapter: what was trained beside it; None for the model itself.
    """

    folder: Path
    cfg: ModelConfig
    seeds: tuple[int, ...]
    seed: int
    steps: list[int]
    context: int
    trained: ModelConfig
    adapter: Adapter | None


def locate_run(run_dir: Path | str, seed: int | None = None, step: int | None = None) -> RunPlace:
    """Locate the checkpoints of a run that are meant, without reading any.

    Raises:
        InputError: not a run, or no such seed or step (the sentence names those that exist).
    """
    folder = io.user_path(run_dir).resolve()
    config = read_run(folder)["config"]
    cfg, adapter = _architecture(config)
    seeds = tuple(int(value) for value in config["seeds"])
    names = ", ".join(map(str, seeds))
    if seed is None:
        if len(seeds) > 1:
            raise InputError(f"{folder} has seeds {names}: say which, as in {folder.name}@seed={seeds[0]}")
        seed = seeds[0]
    if seed not in seeds:
        raise InputError(f"{folder} has no seed {seed}: it has {names}")
    steps = find_steps(folder)
    have = ", ".join(map(str, steps))
    if not steps:
        raise InputError(f"{folder} has no checkpoint yet: let it run first")
    if step is not None and step not in steps:
        raise InputError(f"{folder} has no checkpoint of step {step}: it has {have}")
    chosen = steps if step is None else [step]
    return RunPlace(folder, adapted(cfg, adapter), seeds, seed, chosen, config["context"], cfg, adapter)


def _load_tree(path: Path, cfg: ModelConfig, adapter: Adapter | None, seeds: tuple[int, ...], index: int) -> Params:
    from orbax.checkpoint import v1 as ocp

    shapes = flatten(trained_shapes(cfg, adapter))
    count = len(seeds)
    check_weights(cfg, copies=count if adapter is None else 1)
    empty = {name: np.empty((count, *leaf.shape), leaf.dtype) for name, leaf in shapes.items()}
    with silent_libraries():
        params = ocp.load(path, unflatten(empty), checkpointable_name="params")
    flat = flatten(params)
    if not np.array_equal(np.asarray(checksums(unflatten(flat))), _saved_sums(path, seeds, len(flat))):
        raise ValueError("its checksums do not match")
    return unflatten({name: leaf[index] for name, leaf in flat.items()})


class SavedParameters:
    """The parameters of a run's last located step, each read alone and held against its checksum.

    The checksums, and an adapter, which is small, are read once.
    """

    def __init__(self, place: RunPlace) -> None:
        self._place = place
        is_model = place.adapter is None
        self._path = place.folder / FOLDER / str(place.steps[-1]) if is_model else place.folder / BASE
        self._seeds = place.seeds if is_model else (0,)

    @functools.cached_property
    def _adapter(self) -> dict[str, Any]:
        return {} if self._place.adapter is None else dict(flatten(_load_trained(self._place)))

    @functools.cached_property
    def _sums(self) -> dict[str, int]:
        names = flatten(parameter_shapes(self._place.trained))
        order = jax.tree.leaves(unflatten({name: name for name in names}))
        return dict(zip(order, _saved_sums(self._path, self._seeds, len(order)).tolist(), strict=True))

    def load(self, name: str) -> np.ndarray:
        """Load one parameter, of all layers where it has them.

        Raises:
            InputError: it is damaged, or cannot be read.
        """
        place, adapter = self._place, self._place.adapter
        if name in self._adapter:
            return np.asarray(self._adapter[name])
        try:
            tensor = self._leaf(name)
        except Exception as error:  # whatever a damaged file makes of itself in the layers below
            raise (_unreadable(place, error) if adapter is None else _frozen_unreadable(place.folder, error)) from error
        return tensor if adapter is None else merge_parameter(adapter, name, tensor, self._adapter)

    def _leaf(self, name: str) -> np.ndarray:
        from orbax.checkpoint import v1 as ocp

        shape = flatten(parameter_shapes(self._place.trained))[name]
        abstract = np.empty((len(self._seeds), *shape.shape), shape.dtype)
        partial = ocp.options.PyTreeOptions(loading=ocp.options.PyTreeOptions.Loading(partial_load=True))
        expected = self._sums[name]
        with silent_libraries(), ocp.Context(pytree_options=partial):
            loaded = flatten(ocp.load(self._path, unflatten({name: abstract}), checkpointable_name="params"))[name]
        if int(checksums({name: loaded})[0]) != expected:
            raise ValueError(f"the checksum of {name} does not match")
        return np.asarray(loaded)[self._seeds.index(self._place.seed) if self._place.adapter is None else 0]


def _saved_sums(path: Path, seeds: tuple[int, ...], leaves: int) -> np.ndarray:
    """Read the checksums of the parameters, as a checkpoint of these seeds carries them.

    Raises:
        ValueError: it is a checkpoint of other seeds, or of the same in another order.
    """
    from orbax.checkpoint import v1 as ocp

    place = progress_tree(0, seeds, {"next_index": 0}, np.zeros(leaves + _optimiser_leaves(path), np.uint32))
    with silent_libraries():
        progress = ocp.load(path, place, checkpointable_name="progress")
    if tuple(progress["seeds"].tolist()) != seeds:
        raise ValueError(f"its seeds are {progress['seeds'].tolist()}, not {list(seeds)}")
    # Of the state's leaves the parameters come first; their sums are enough to trust them.
    return np.asarray(progress["checksums"])[:leaves]


def _optimiser_leaves(path: Path) -> int:
    from orbax.checkpoint import v1 as ocp

    metadata = ocp.checkpointables_metadata(path).metadata
    sums = metadata["progress"]["checksums"]
    params = len(jax.tree.leaves(metadata["params"]))
    return math.prod(sums.shape) - params


def tokenizer_file(folder: Path) -> str | None:
    """Return the file of a run's tokenizer, as ``load_tokenizer`` takes it."""
    place = folder / TOKENIZER
    return str(place) if place.is_dir() and any(place.iterdir()) else None
