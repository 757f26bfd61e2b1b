"""Everything a run needs to go on, saved with Orbax and read back: on other devices, or the weights alone.

``RUN/checkpoints/STEP`` holds ``params`` and ``optimiser`` (leading axis of seeds), and ``progress``: the step,
the seeds, the place in the data, and a checksum of every array. Orbax writes under a temporary name and
renames, so what has a plain name is whole, unless the disk damaged it later: the checksums tell.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import v1 as ocp

from bornbiased_jax import files, progress
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import flatten, parameter_shapes, unflatten
from bornbiased_jax.models.parameters import Params
from bornbiased_jax.pretrain.failures import first_line, may_pass, out_of_room, silent_libraries
from bornbiased_jax.pretrain.settings import PretrainConfig
from bornbiased_jax.pretrain.step import State

RUN_FILE = "run.json"
FOLDER = "checkpoints"
DAMAGED = "damaged"
TOKENIZER = "tokenizer"


class Resumed(NamedTuple):
    """What a checkpoint gives back."""

    step: int
    state: State
    iterator: dict[str, Any]


def log_spaced(steps: int) -> list[int]:
    """1, 2, 4, 8, … up to the last step."""
    return [2**power for power in range(steps.bit_length()) if 2**power <= steps]


def kept_forever(config: PretrainConfig, steps: int) -> list[int]:
    """Steps whose checkpoints are made whatever the interval and never deleted: the birth, the last, the log-spaced."""
    return sorted({0, steps, *(log_spaced(steps) if config.checkpoint_log_spaced else ())})


def checkpoint_steps(config: PretrainConfig, steps: int) -> list[int]:
    """Every step after which a checkpoint is made."""
    regular = range(0, steps + 1, config.checkpoint_every) if config.checkpoint_every else ()
    return sorted({*kept_forever(config, steps), *regular})


@jax.jit
def checksums(tree: Any) -> jax.Array:
    """One 32-bit number a leaf, uint32: Σ bits·odd(position) modulo 2³².

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
    """Steps of the whole checkpoints in a run's folder, ascending; temporary ones are left out."""
    root = folder / FOLDER
    if not root.is_dir():
        return []
    names = [entry.name for entry in root.iterdir() if entry.name.isdecimal() and entry.is_dir()]
    return sorted(int(name) for name in names if ocp.is_orbax_checkpoint(root / name))


class Checkpointer:
    """Saves the checkpoints of one run in the background and reads the newest whole one back."""

    def __init__(self, folder: Path, config: PretrainConfig, steps: int) -> None:
        self.folder, self._seeds = folder, config.seeds
        self._wanted = frozenset(checkpoint_steps(config, steps))
        self._saved: int | None = None
        preserve = ocp.training.preservation_policies
        keep: Any = preserve.PreserveAll()
        if config.keep_latest is not None:
            forever = preserve.CustomSteps(kept_forever(config, steps))
            keep = preserve.AnyPreservationPolicy([preserve.LatestN(config.keep_latest), forever])
        self._preservation = keep
        self._manager: ocp.training.Checkpointer | None = None
        # Until the end: threads report on their own time.
        self._silence = contextlib.ExitStack()
        self._silence.enter_context(silent_libraries())

    def _open(self) -> ocp.training.Checkpointer:
        if self._manager is None:
            decide = ocp.training.save_decision_policies
            with self._errors("cannot prepare checkpoints"):
                self._manager = ocp.training.Checkpointer(
                    self.folder / FOLDER,
                    # Which steps are saved is decided here; a signal may add one.
                    save_decision_policy=decide.SpecificStepsPolicy([]),
                    preservation_policy=self._preservation,
                    cleanup_tmp_directories=True,
                )
        return self._manager

    def wants(self, step: int) -> bool:
        """Whether a checkpoint is due after this many updates."""
        return step in self._wanted

    def save(self, step: int, state: State, iterator: dict[str, Any]) -> None:
        """Begin to save; returns as soon as the arrays were copied. An earlier save is waited for.

        Raises:
            InputError: this save or the one before cannot be written; older checkpoints are intact.
        """
        content = {
            "params": state.params,
            "optimiser": state.optimiser,
            "progress": _progress(step, self._seeds, iterator, checksums(state)),
        }
        manager = self._open()
        with self._errors(f"cannot save the checkpoint of step {step}"):
            manager.save_checkpointables_async(step, content, force=True)

    def wait(self) -> None:
        """Wait for saves under way.

        Raises:
            InputError: one could not be written.
        """
        if self._manager is not None:
            with self._errors("cannot save the last checkpoint"):
                self._manager.wait()

    def close(self) -> None:
        """Wait and release threads. Errors were told by :meth:`wait`."""
        if self._manager is not None:
            with contextlib.suppress(Exception):
                self._manager.close()
            self._manager = None
        self._silence.close()

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:
            have = ", ".join(map(str, find_steps(self.folder))) or "none"
            remedy = "free room" if out_of_room(error) else "mend that"
            raise InputError(
                f"{what} in {self.folder / FOLDER}: {first_line(error)}; the checkpoints there (steps {have}) are "
                f"intact: {remedy}, then run the same command again"
            ) from error

    def restore(self, abstract: State) -> Resumed | None:
        """The newest whole checkpoint, or None when there is none at all.

        A damaged one is reported and the one before is taken; only then is it set aside, in ``damaged/``.

        Args:
            abstract: the state's shapes, types and shardings on this machine.

        Raises:
            InputError: a checkpoint belongs to another run or version or cannot be read just now, or every one is
                damaged. Nothing was moved.
        """
        steps = find_steps(self.folder)
        damaged: list[Path] = []
        mismatch: _Mismatch | None = None
        for step in reversed(steps):
            path = self.folder / FOLDER / str(step)
            try:
                resumed = _restore(path, abstract, self._seeds)
            except _Foreign as error:
                raise InputError(str(error)) from error
            except Exception as error:  # whatever a damaged file makes of itself in the layers below
                if may_pass(error):
                    raise InputError(
                        f"the checkpoint of step {step} in {self.folder} cannot be read now ({first_line(error)}): "
                        "nothing was changed; mend that, then run the same command again"
                    ) from error
                progress.warn(
                    f"the checkpoint of step {step} in {self.folder} is damaged ({first_line(error)}): "
                    "taking the one before"
                )
                damaged.append(path)
                # One among whole ones is damaged metadata; of nothing else, the work of another version.
                mismatch = mismatch or (error if isinstance(error, _Mismatch) else None)
                continue
            for bad in damaged:
                self._set_aside(bad)
            return resumed
        if mismatch is not None:
            raise InputError(
                f"no checkpoint can be used, {mismatch}: go on with the version that wrote it, put one back from a "
                "copy if it was damaged, or start anew with another --out"
            )
        if steps:
            raise InputError(
                f"every checkpoint in {self.folder / FOLDER} is damaged: put one back from a copy, or start anew with "
                "another --out"
            )
        return None

    def _set_aside(self, path: Path) -> None:
        if jax.process_index() == 0:
            target = self.folder / DAMAGED / path.name
            number = 0
            while target.exists():
                number += 1
                target = target.with_name(f"{path.name}.{number}")
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)
        if jax.process_count() > 1:
            from jax.experimental import multihost_utils

            multihost_utils.sync_global_devices(f"set aside {path.name}")


class _Foreign(ValueError):
    """A whole checkpoint that does not belong to this run."""


class _Mismatch(ValueError):
    """A checkpoint of other arrays than this run's."""


def _check_structure(path: Path, abstract: State) -> None:
    """Whether what is stored has the arrays that the state has; metadata that cannot be read are left to the reading.

    Raises:
        _Mismatch: it has others.
    """
    try:
        stored = ocp.checkpointables_metadata(path).metadata
        found = [sorted(tuple(leaf.shape) for leaf in jax.tree.leaves(stored[name])) for name in State._fields]
    except Exception:  # whatever damaged metadata make of themselves in the layers below
        return
    for name, shapes, wanted in zip(State._fields, found, abstract, strict=True):
        if shapes != sorted(tuple(leaf.shape) for leaf in jax.tree.leaves(wanted)):
            raise _Mismatch(f"the checkpoint {path} has other {name} than this run")


def _progress(step: int, seeds: tuple[int, ...], iterator: dict[str, Any], sums: Any) -> dict[str, Any]:
    return {"step": step, "seeds": np.asarray(seeds, np.uint32), "iterator": iterator, "checksums": sums}


def _restore(path: Path, abstract: State, seeds: tuple[int, ...]) -> Resumed:
    _check_structure(path, abstract)
    leaves = len(jax.tree.leaves(abstract))
    sharding = jax.tree.leaves(abstract)[0].sharding
    whole = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
    sums = jax.ShapeDtypeStruct((leaves,), jnp.uint32, sharding=whole)
    # One after the other: of reads that go on together, a failing one leaves the others half begun.
    place = ocp.load(path, _progress(0, seeds, {"next_index": 0}, sums), checkpointable_name="progress")
    params = ocp.load(path, abstract.params, checkpointable_name="params")
    optimiser = ocp.load(path, abstract.optimiser, checkpointable_name="optimiser")
    if place["seeds"].tolist() != list(seeds):
        raise _Foreign(f"the checkpoints in {path.parent} are of seeds {place['seeds'].tolist()}, not {list(seeds)}")
    state = State(params, optimiser)
    if not np.array_equal(np.asarray(checksums(state)), np.asarray(place["checksums"])):
        raise ValueError("its checksums do not match")
    return Resumed(int(place["step"]), state, {name: int(value) for name, value in place["iterator"].items()})


def read_run(folder: Path | str) -> dict[str, Any]:
    """What ``run.json`` says.

    Raises:
        InputError: the folder is not a run.
    """
    folder = Path(folder).expanduser()
    if not (folder / RUN_FILE).is_file():
        raise InputError(f"{folder} is not a pretraining run, it has no {RUN_FILE}: check the path")
    content = files.read_json(folder / RUN_FILE)
    for name in ("config", "steps", "tokens_digest", "initial_digest"):
        if not isinstance(content, dict) or name not in content:
            raise InputError(f"{folder / RUN_FILE} has no {name}: it is not that of a pretraining run, or was edited")
    return content


def restore_params(
    run_dir: Path | str, seed: int | None = None, step: int | None = None
) -> tuple[ModelConfig, Params, dict[str, Any]]:
    """The weights of one seed at one step, on the host, for probing.

    Args:
        run_dir: a run's folder.
        seed: which of its seeds; None when it has only one.
        step: after how many updates; None for the last checkpoint (one that is damaged is reported and passed over).

    Returns:
        The architecture, the weights as numpy arrays without a leading axis of seeds, and facts: ``seed``, ``step``,
        ``run``, ``context`` (tokens a sequence in training), ``tokenizer_file`` (None when there is none).

    Raises:
        InputError: not a run, no such seed or step (the sentence names those that exist), or a damaged checkpoint.
    """
    folder = Path(run_dir).expanduser().resolve()
    config = PretrainConfig.from_dict(read_run(folder)["config"])
    names = ", ".join(map(str, config.seeds))
    if seed is None:
        if len(config.seeds) > 1:
            raise InputError(f"{folder} has seeds {names}: say which, as in {folder.name}@seed={config.seeds[0]}")
        seed = config.seeds[0]
    if seed not in config.seeds:
        raise InputError(f"{folder} has no seed {seed}: it has {names}")
    steps = find_steps(folder)
    have = ", ".join(map(str, steps))
    if not steps:
        raise InputError(f"{folder} has no checkpoint yet: let it run first")
    if step is not None and step not in steps:
        raise InputError(f"{folder} has no checkpoint of step {step}: it has {have}")
    for candidate in [step] if step is not None else list(reversed(steps)):
        try:
            params = _load_params(folder / FOLDER / str(candidate), config, config.seeds.index(seed))
        except Exception as error:  # whatever a damaged file makes of itself in the layers below
            if may_pass(error):
                raise InputError(
                    f"the checkpoint of step {candidate} in {folder} cannot be read now ({first_line(error)}): mend "
                    "that, then try again"
                ) from error
            reason = f"the checkpoint of step {candidate} in {folder} is damaged ({first_line(error)})"
            if step is not None:
                raise InputError(f"{reason}: choose another of {have}") from error
            progress.warn(f"{reason}: taking the one before")
            continue
        info = {
            "run": str(folder),
            "seed": seed,
            "step": candidate,
            "context": config.context,
            "tokenizer_file": tokenizer_file(folder),
        }
        return config.model, params, info
    raise InputError(f"every checkpoint in {folder / FOLDER} is damaged: train again")


def _load_params(path: Path, config: PretrainConfig, index: int) -> Params:
    shapes = flatten(parameter_shapes(config.model))
    count = len(config.seeds)
    empty = {name: np.empty((count, *leaf.shape), leaf.dtype) for name, leaf in shapes.items()}
    with silent_libraries():
        params = ocp.load(path, unflatten(empty), checkpointable_name="params")
    flat = flatten(params)
    # Of the state's leaves the parameters come first; their sums are enough to trust them.
    leaves = len(flat)
    total = leaves + _optimiser_leaves(path)
    place = _progress(0, config.seeds, {"next_index": 0}, np.zeros(total, np.uint32))
    with silent_libraries():
        sums = ocp.load(path, place, checkpointable_name="progress")["checksums"]
    if not np.array_equal(np.asarray(checksums(unflatten(flat))), sums[:leaves]):
        raise ValueError("its checksums do not match")
    return unflatten({name: leaf[index] for name, leaf in flat.items()})


def _optimiser_leaves(path: Path) -> int:
    metadata = ocp.checkpointables_metadata(path).metadata
    sums = metadata["progress"]["checksums"]
    params = len(jax.tree.leaves(metadata["params"]))
    return math.prod(sums.shape) - params


def tokenizer_file(folder: Path) -> str | None:
    """The file of a run's tokenizer, as ``load_tokenizer`` takes it."""
    place = folder / TOKENIZER
    return str(place) if place.is_dir() and any(place.iterdir()) else None
