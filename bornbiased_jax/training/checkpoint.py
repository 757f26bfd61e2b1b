"""Save everything a run needs to resume with Orbax, and read it back on other devices.

The format is that of :mod:`bornbiased_jax.checkpoints.formats.run`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import v1 as ocp

from bornbiased_jax import io, parallel, progress
from bornbiased_jax.checkpoints.formats.run import BASE, FOLDER, checksums, find_steps, progress_tree
from bornbiased_jax.checkpoints.storage import first_line, may_pass, out_of_room, silent_libraries
from bornbiased_jax.errors import InputError
from bornbiased_jax.parameters import Params
from bornbiased_jax.training.config import PretrainConfig
from bornbiased_jax.training.step import State

DAMAGED = "damaged"
PARTS = ("params", "optimiser")
"""Names of a state's arrays in the files."""
NEXT_INDEX = "next_index"
"""What a data iterator calls the number of batches that it has given: one a step."""
INTERRUPTED = ".interrupted.json"
"""Steps whose checkpoints a signal made; each goes when there is a newer one."""


class _SavedStep(Protocol):
    """A checkpoint, as Orbax describes it."""

    step: int


@dataclasses.dataclass
class _Preservation:
    """The checkpoints that stay: those kept forever, the latest of the regular ones, and the newest in any case.

    What is kept forever beside the interval does not count among the latest, and neither does what a signal made
    (``passing``), so that an interrupted run keeps in the end what an undisturbed one keeps.
    """

    forever: frozenset[int]
    latest: int | None
    interval: int | None
    passing: frozenset[int]

    def should_preserve(self, checkpoints: Sequence[_SavedStep], **_context: object) -> list[bool]:
        """Answer for each checkpoint, ascending by step; Orbax asks after every save."""
        # Of another interval, before the run resumed, are some that are neither kept forever nor multiples of this one.
        steps = [checkpoint.step for checkpoint in checkpoints]
        beside = {step for step in self.forever if self.interval is None or step % self.interval}
        regular = [step for step in steps if step not in self.passing | beside]
        preserved = {*(regular if self.latest is None else regular[-self.latest :]), *steps[-1:]}
        return [step in preserved or step in self.forever for step in steps]


def _read_interrupted(folder: Path) -> frozenset[int]:
    try:
        return frozenset(step for step in io.read_json(folder / INTERRUPTED) if isinstance(step, int))
    except (InputError, TypeError):
        return frozenset()


def log_spaced(steps: int) -> list[int]:
    """Return 1, 2, 4, 8, … up to the last step."""
    return [2**power for power in range(steps.bit_length()) if 2**power <= steps]


def kept_forever(config: PretrainConfig, steps: int) -> list[int]:
    """Return the steps saved whatever the interval and never deleted: initial weights, the last, the log-spaced."""
    return sorted({0, steps, *(log_spaced(steps) if config.checkpoint_log_spaced else ())})


def checkpoint_steps(config: PretrainConfig, steps: int) -> list[int]:
    """Return every step after which a checkpoint is made."""
    regular = range(0, steps + 1, config.checkpoint_every) if config.checkpoint_every else ()
    return sorted({*kept_forever(config, steps), *regular})


class Checkpointer:
    """Saves the checkpoints of one run in the background and reads the newest whole one back."""

    def __init__(self, folder: Path, config: PretrainConfig, steps: int) -> None:
        self.folder = folder
        self._wanted = frozenset(checkpoint_steps(config, steps))
        self._saved: int | None = None
        self._preservation = _Preservation(
            frozenset(kept_forever(config, steps)),
            config.keep_latest,
            config.checkpoint_every,
            _read_interrupted(folder) - self._wanted,
        )
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
        """Return whether a checkpoint is due after this many updates."""
        return step in self._wanted

    def interrupted_at(self, step: int) -> None:
        """Note that the checkpoint of a step is made only because the run was stopped; a newer one replaces it.

        Raises:
            InputError: the folder cannot be written.
        """
        self._preservation.passing |= {step}
        if jax.process_index() == 0:
            io.write_json(self.folder / INTERRUPTED, sorted(self._preservation.passing))

    def save(self, state: State) -> None:
        """Begin to save; returns as soon as the arrays were copied. An earlier save is waited for.

        Raises:
            InputError: this save or the one before cannot be written; older checkpoints are intact.
        """
        # The checksums are of the arrays on the devices: what storage makes of them shows when they are read.
        step, seeds = int(parallel.fetch(state.step)[0]), parallel.fetch(state.seed)
        place = progress_tree(step, seeds, {NEXT_INDEX: step}, checksums(state.arrays))
        content = {**dict(zip(PARTS, state.arrays, strict=True)), "progress": place}
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
            path = self.folder / INTERRUPTED
            if (
                jax.process_index() == 0
                and path.exists()
                and self._preservation.passing.isdisjoint(find_steps(self.folder))
            ):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Wait and release threads. Errors were reported by :meth:`wait`."""
        if self._manager is not None:
            with contextlib.suppress(Exception):
                self._manager.close()
            self._manager = None
        self._silence.close()

    @contextlib.contextmanager
    def _errors(self, failure: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:
            have = ", ".join(map(str, find_steps(self.folder))) or "none"
            remedy = "free room" if out_of_room(error) else "fix that"
            raise InputError(
                f"{failure} in {self.folder / FOLDER}: {first_line(error)}; the checkpoints there (steps {have}) are "
                f"intact: {remedy}, then run the same command again"
            ) from error

    def restore(self, abstract: State, seeds: Sequence[int]) -> State | None:
        """Return the state of the newest intact checkpoint, or None when there is none at all.

        A corrupted one is reported and the one before is taken; only then is it set aside, in ``damaged/``.

        Args:
            abstract: the state's shapes, types and shardings on this machine.
            seeds: of the run.

        Raises:
            InputError: a checkpoint belongs to another run or version or cannot be read just now, or every one is
                corrupted. Nothing was moved.
        """
        steps = find_steps(self.folder)
        corrupted_paths: list[Path] = []
        mismatch: _MismatchError | None = None
        # Newest first: the first intact checkpoint counts.
        for step in reversed(steps):
            path = self.folder / FOLDER / str(step)
            try:
                state = _restore(path, abstract, seeds)
            except _ForeignError as error:
                raise InputError(str(error)) from error
            except Exception as error:  # whatever a corrupted file makes of itself in the layers below
                if may_pass(error):
                    raise InputError(
                        f"the checkpoint of step {step} in {self.folder} cannot be read now ({first_line(error)}): "
                        "nothing was changed; fix that, then run the same command again"
                    ) from error
                progress.warn(
                    f"the checkpoint of step {step} in {self.folder} is corrupted ({first_line(error)}): "
                    "taking the one before"
                )
                corrupted_paths.append(path)
                # One among whole ones is corrupted metadata; of nothing else, the work of another version.
                mismatch = mismatch or (error if isinstance(error, _MismatchError) else None)
                continue
            # Move corrupted ones aside only now that an older one has been read.
            for bad in corrupted_paths:
                self._set_aside(bad)
            return state
        # No intact checkpoint: tell another version's apart from corrupted ones.
        if mismatch is not None:
            raise InputError(
                f"no checkpoint can be used, {mismatch}: resume with the version that wrote it, put one back from a "
                "copy if it was corrupted, or start anew with another --out"
            )
        if steps:
            raise InputError(
                f"every checkpoint in {self.folder / FOLDER} is corrupted: put one back from a copy, or start anew "
                "with another --out"
            )
        return None

    def _set_aside(self, path: Path) -> None:
        # Never replace what was moved aside before.
        if jax.process_index() == 0:
            target = self.folder / DAMAGED / path.name
            number = 0
            while target.exists():
                number += 1
                target = target.with_name(f"{path.name}.{number}")
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices(f"set aside {path.name}")


def save_frozen(folder: Path, weights: Params) -> None:
    """Write the weights that an adapter belongs to, once, as :func:`.run.frozen_tree` reads them.

    Args:
        folder: the run's.
        weights: of one model, leaves [1, ...].

    Raises:
        InputError: they cannot be written.
    """
    content = {"params": weights, "progress": progress_tree(0, (0,), {NEXT_INDEX: 0}, checksums(weights))}
    try:
        with silent_libraries():
            ocp.save_checkpointables(folder / BASE, content, overwrite=True)
    except (OSError, ValueError, RuntimeError) as error:
        remedy = "free room" if out_of_room(error) else "fix that"
        raise InputError(
            f"cannot write the frozen model to {folder / BASE}: {first_line(error)}; {remedy}, then run the same "
            "command again"
        ) from error


class _ForeignError(ValueError):
    """A whole checkpoint that does not belong to this run."""


class _MismatchError(ValueError):
    """A checkpoint of other arrays than this run's."""


def _check_structure(path: Path, abstract: State) -> None:
    """Check that the stored arrays are those of the state; unreadable metadata are left to the reading.

    Raises:
        _MismatchError: it has others.
    """
    for name, expected in zip(PARTS, abstract.arrays, strict=True):
        try:
            stored = ocp.checkpointables_metadata(path).metadata[name]
            shapes = sorted(tuple(leaf.shape) for leaf in jax.tree.leaves(stored))
        except Exception:  # whatever corrupted metadata make of themselves in the layers below
            return
        if stored is None:  # what Orbax could not read
            return
        if shapes != sorted(tuple(leaf.shape) for leaf in jax.tree.leaves(expected)):
            raise _MismatchError(f"the checkpoint {path} has other {name} than this run")


def _restore(path: Path, abstract: State, seeds: Sequence[int]) -> State:
    _check_structure(path, abstract)
    sharding = abstract.step.sharding
    assert isinstance(sharding, jax.sharding.NamedSharding) and isinstance(sharding.mesh, jax.sharding.Mesh)
    count = len(jax.tree.leaves(abstract.arrays))
    sums = jax.ShapeDtypeStruct((count,), jnp.uint32, sharding=parallel.replicated(sharding.mesh))
    # One after the other: of reads that run together, a failing one leaves the others half begun.
    place = ocp.load(path, progress_tree(0, seeds, {NEXT_INDEX: 0}, sums), checkpointable_name="progress")
    parts = zip(PARTS, abstract.arrays, strict=True)
    params, optimizer = (ocp.load(path, tree, checkpointable_name=name) for name, tree in parts)
    # Intact, but of other seeds: this is no corruption, and is refused.
    if place["seeds"].tolist() != list(seeds):
        raise _ForeignError(
            f"the checkpoints in {path.parent} are of seeds {place['seeds'].tolist()}, not {list(seeds)}"
        )
    if not np.array_equal(np.asarray(checksums((params, optimizer))), np.asarray(place["checksums"])):
        raise ValueError("its checksums do not match")
    # Every seed has made the same number of updates.
    steps = np.full(len(seeds), int(place["step"]), np.int32)
    step = parallel.place_array(steps, sharding)
    return State(params, optimizer, step, parallel.place_array(place["seeds"], sharding))
