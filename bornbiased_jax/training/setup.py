"""Prepare a run before its first step: its folder, its tokenizer and its data."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import jax

from bornbiased_jax import io, parallel, progress, record
from bornbiased_jax.checkpoints.digests import digest
from bornbiased_jax.checkpoints.formats.run import BASE, RUN_FILE, TOKENIZER, RunRecord, read_run, tokenizer_file
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import parameter_shapes
from bornbiased_jax.io import Folder
from bornbiased_jax.model.adapters import count_trained
from bornbiased_jax.model.loss import unrolled_blocks
from bornbiased_jax.parameters import Params, count_parameters
from bornbiased_jax.text.protocol import Tokenizer
from bornbiased_jax.text.tokenizers import load_tokenizer, tokenizer_for
from bornbiased_jax.training.checkpoint import save_frozen
from bornbiased_jax.training.config import PretrainConfig, changed_field, output_folder, scheduled, with_defaults
from bornbiased_jax.training.cpu_shards import cpu_shards_for
from bornbiased_jax.training.data.shards import Dataset, prepare
from bornbiased_jax.training.data.windows import Windows, split
from bornbiased_jax.training.metrics import read_metrics

LOCK = ".lock"
MAKER = "bornbiased pretrain"


class Data(NamedTuple):
    """The data of a run."""

    tokenizer: Tokenizer
    dataset: Dataset
    train: Windows
    validation: Windows
    validation_from: str


def check_folder(config: PretrainConfig) -> None:
    """Look at the run's folder before any work, without making it.

    Raises:
        InputError: it holds a run that differs (the sentence names the field) or something else, or cannot be written.
    """
    folder = output_folder(config)
    # The folder, or the one above it that is there, must be a folder that can be written to.
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    if not existing.is_dir():
        raise InputError(f"cannot write {folder}: {existing} is a file; choose another place")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {folder}: {os.strerror(errno.EACCES)}; choose another place")
    # What a run writes into the folder of its text would be text of the same run when it resumes.
    source = io.user_path(config.data).resolve()
    below = folder.relative_to(source).parts if source.is_dir() and folder.is_relative_to(source) else None
    if below is not None and not any(part.startswith(".") for part in below):
        raise InputError(f"{folder} lies in {config.data}, whose files are the text: name another --out, outside of it")
    # A run that is there must be this one, but for fields that may change.
    if (folder / RUN_FILE).exists():
        before, now = with_defaults(read_run(folder)["config"]), config.to_dict()
        field = changed_field(before, now)
        if field == "steps" and config.steps is not None and config.steps > (scheduled(before) or config.steps):
            raise InputError(
                f"{folder} holds a run whose learning rate was laid out for {scheduled(before)} steps and ends there: "
                f"one of {config.steps} is another run; name another --out (--schedule-steps leaves room)"
            )
        if field is not None:
            raise InputError(
                f"{folder} holds a run of {field}={_field(before, field)!r}, not {_field(now, field)!r}: name another "
                "--out, or give the same value to resume"
            )
        return
    # What a run killed before its first record left behind is marked, and no reason to refuse.
    Folder(folder, MAKER).check(ignore=lambda name: name == LOCK)


def check_fresh(folder: Path) -> None:
    """Refuse a folder that has metrics but no checkpoint.

    Raises:
        InputError: it has.
    """
    lines = read_metrics(folder)
    if lines:
        raise InputError(
            f"{folder} has metrics up to step {lines[-1]['step']} but no checkpoint: put its checkpoints back, or name "
            "another --out"
        )


@contextlib.contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Keep other processes from training in a folder meanwhile.

    Raises:
        InputError: one does, or the folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        if jax.process_index() == 0:
            io.check_writable(folder / LOCK)
            if not stack.enter_context(io.locked(folder / LOCK, wait=False)):
                raise InputError(f"another process is training in {folder}: wait until it ends, or name another --out")
        yield


def load_data(config: PretrainConfig, tokenizer: Tokenizer | None = None) -> Data:
    """Load tokenizer and tokens; an existing run keeps its tokenizer, and its tokens where their source is gone.

    Args:
        config: the run.
        tokenizer: that of the weights to begin with, used unless the run names one.

    Raises:
        InputError: the source or the tokenizer is missing or corrupted, or does not fit the model.
    """
    folder = output_folder(config)
    # The run's own tokenizer, else the one named, else the one of the weights to begin with. Without a record of the
    # run what lies there is that of a call which was killed.
    has_record = (folder / RUN_FILE).exists()
    stored = tokenizer_file(folder) if has_record else None
    if stored:
        tokenizer = load_tokenizer(stored)
    elif tokenizer is None or config.tokenizer is not None:
        named = tokenizer_for(config.tokenizer, config.model.vocab_size)
        if tokenizer is not None and tokenizer.digest != named.digest:
            progress.warn(
                f"the weights to begin with were trained with the tokenizer {tokenizer.name}, not {named.name}: its "
                "ids mean other things to them; leave --tokenizer out to use their own"
            )
        tokenizer = named
    if tokenizer.vocab_size > config.model.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} ids, the model only {config.model.vocab_size}: set "
            f"vocab_size={tokenizer.vocab_size} or more, or choose a smaller tokenizer"
        )
    # Tokens from the cache, or made now.
    dataset = prepare(
        config.data,
        tokenizer,
        folder=config.token_cache,
        validation_fraction=config.validation_fraction,
        processes=config.processes,
        tokens_digest=read_run(folder)["tokens_digest"] if has_record else None,
        quiet=config.quiet or jax.process_index() > 0,
    )
    parallel.agree(dataset.digest, "data")
    return Data(tokenizer, dataset, *split(dataset, config.context, config.validation_fraction))


def total_steps(config: PretrainConfig, train: Windows) -> int:
    """Return the number of updates: those set, or one epoch.

    Raises:
        InputError: one epoch is less than one step, or more steps than the learning rate is laid out for.
    """
    # One epoch, unless a number is set.
    steps = config.steps if config.steps is not None else len(train) // config.batch_size
    if steps < 1:
        raise InputError(
            f"{config.data} has {len(train)} windows of {config.context} tokens, less than one step of "
            f"{config.batch_size}: lower the batch size"
        )
    if config.schedule_steps is not None and steps > config.schedule_steps:
        raise InputError(
            f"one epoch of {config.data} is {steps} steps, beyond schedule_steps={config.schedule_steps}, where the "
            "rate ends: raise it, or set steps"
        )
    if steps <= config.warmup and jax.process_index() == 0:
        reached = config.learning_rate * steps / config.warmup
        progress.note(
            f"the warm-up of {config.warmup} steps is not over after {steps}: the learning rate ends at {reached:.2g}"
        )
    return steps


def claim_folder(config: PretrainConfig, data: Data, steps: int, initial: Params | None, devices: int = 1) -> None:
    """Make the run's folder with its ``run.json``, or check that the one there is of the same run.

    With an adapter, the weights that it belongs to are written too, before the record that speaks of them.

    Raises:
        InputError: as of :func:`check_folder`, or the run there is on other data or from other weights.
    """
    folder = output_folder(config)
    digests = {
        "tokens_digest": data.dataset.digest,
        "initial_digest": None if initial is None else digest(initial),
    }
    # Again, now that no other process can: it may have made a run here while the data were tokenized.
    check_folder(config)
    is_new = not (folder / RUN_FILE).exists()
    if not is_new:
        _check_same(config, folder, digests)
        _compare_order_of_sums(folder, read_run(folder), _parts_at_once(config, devices))
    if jax.process_index() == 0:
        if is_new:
            io.check_writable(folder / RUN_FILE)
            Folder(folder, MAKER).claim()
            # A call that was killed before its record may have left those of another run.
            shutil.rmtree(folder / TOKENIZER, ignore_errors=True)
            data.tokenizer.save(folder / TOKENIZER)
        if config.adapter is not None and initial is not None and (is_new or not (folder / BASE).exists()):
            save_frozen(folder, initial)
        # The record comes last, so that it means a complete folder.
        if is_new:
            head = {"config": config.to_dict(), "steps": steps, **digests}
            io.write_json(folder / RUN_FILE, {**head, **_facts(config, data, devices)})
        else:
            _extend(folder, steps)
    parallel.agree("ready", "folder")


def _check_same(config: PretrainConfig, folder: Path, digests: Mapping[str, str | None]) -> None:
    """Refuse a run that is on other data or from other weights.

    Raises:
        InputError: it is.
    """
    # Data and weights are known by their digests, not by their names.
    before = read_run(folder)
    compared = (
        ("data", before["tokens_digest"], digests["tokens_digest"]),
        ("init_from", before["initial_digest"], digests["initial_digest"]),
    )
    for field, recorded, current in compared:
        if recorded != current:
            raise InputError(
                f"{folder} holds a run whose {field} had other content than {getattr(config, field)} has now: "
                "restore it, or name another --out"
            )


def _extend(folder: Path, steps: int) -> None:
    """Note that a run becomes longer, where it does; its learning rate stays as it was laid out."""
    before = read_run(folder)
    if before["steps"] < steps:
        config = {**before["config"], "steps": steps, "schedule_steps": scheduled(before["config"])}
        io.write_json(folder / RUN_FILE, {**before, "config": config, "steps": steps})


def _facts(config: PretrainConfig, data: Data, devices: int) -> dict[str, object]:
    """Return what the record of a run says besides its settings: counts of parameters, provenance."""
    counts: dict[str, object] = {"parameters": count_parameters(parameter_shapes(config.model))}
    if config.adapter is not None:
        counts["trained_parameters"] = count_trained(config.model, config.adapter)
    source = {**data.dataset.facts, "validation_from": data.validation_from, "tokenizer": data.tokenizer.name}
    # What decides the order of sums, besides the versions.
    provenance = record.provenance(
        precision=config.dtype,
        data=source,
        unrolled_blocks=unrolled_blocks(config.model, config.remat),
        lanes=_parts_at_once(config, devices),
    )
    return {**counts, "provenance": provenance}


def _parts_at_once(config: PretrainConfig, devices: int) -> int:
    return cpu_shards_for(config.model, config.batch_size) if devices == 1 else 1


def _compare_order_of_sums(folder: Path, run: RunRecord, parts: int) -> None:
    """Warn where a run resumes with other versions or cores than it began with: the last digits may differ then."""
    if jax.process_index() > 0:
        return
    provenance = run.get("provenance", {})
    before, now = provenance.get("versions", {}), record.library_versions()
    differing = [name for name in ("jax", "jaxlib", "optax") if name in before and before[name] != now[name]]
    changes = [f"{name} {now[name]} instead of {before[name]}" for name in differing]
    if provenance.get("lanes", parts) != parts:
        changes.append(f"a batch in {parts} parts at once, one a core, instead of {provenance['lanes']}")
    if changes:
        progress.warn(f"{folder} resumes with {', '.join(changes)}: losses may differ in their last digits")


def _field(config: Mapping[str, object], name: str) -> object:
    group, _, field = name.partition(".")
    value = config.get(group)
    return vars(ModelConfig.from_dict(value))[field] if field and isinstance(value, Mapping) else value
