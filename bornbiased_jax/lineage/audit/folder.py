"""The checkpoints in a folder: which there are, what their names claim, what run records say of them."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from bornbiased_jax import io
from bornbiased_jax.checkpoints.adapters import is_adapter, read_adapter
from bornbiased_jax.checkpoints.by_role import read_by_names
from bornbiased_jax.checkpoints.formats import torch_file
from bornbiased_jax.checkpoints.formats.orbax_tree import METADATA as TREE
from bornbiased_jax.checkpoints.formats.orbax_tree import tree_of
from bornbiased_jax.checkpoints.formats.run import RUN_FILE, find_steps, read_run
from bornbiased_jax.checkpoints.formats.torch_distributed import METADATA
from bornbiased_jax.checkpoints.reference import is_log, parse_ref
from bornbiased_jax.checkpoints.weight_files import PICKLES, WEIGHTS, check_pointer, choose_weights
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.audit.finding import Finding
from bornbiased_jax.lineage.audit.labels import Label, natural, read_label
from bornbiased_jax.lineage.audit.listing import is_training_state, is_weights
from bornbiased_jax.schema import whole

ADAPTED = "a LoRA adapter, no model of its own: digested alone"
PICKLED = "a pickle that is not read as tensors: digested alone, never unpickled"
SHARDED = "shards, or a tree of arrays, without a config.json, of names that are not known: digested alone"
# A file that holds a part of a model.
_SHARD = re.compile(r".*\d+-of-\d+\.safetensors")
# Files that lie beside checkpoints and claim to be none.
_BESIDE = re.compile(
    r"\..*|events\.out\.tfevents\..*|cachedir\.tag|merges\.txt|vocab\.txt|tokenizer\.model|.*\.tiktoken|(readme|licen[cs]e|notice|changelog|requirements|contributing|authors|citation|makefile)\b.*"
    r"|.*\.(md|rst|json|jsonl|log|csv|tsv|ya?ml|toml|cfg|ini|lock|py|sh|ipynb|html|pdf|png|jpe?g|svg|gitattributes)",
    re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True)
class RunOrigin:
    """The origin of a run of this package, as its record states it.

    Attributes:
        seed: the run's seed.
        is_initialized_here: whether its step 0 is an initialization of that seed.
        data: what identifies its data and their order.
        adapted: the run's folder, where it trained an adapter beside a model that stays as it is; else None.
    """

    seed: int
    is_initialized_here: bool
    data: Mapping[str, object]
    adapted: Path | None = None


@dataclasses.dataclass(frozen=True)
class Item:
    """One checkpoint of a folder.

    Attributes:
        name: its path below the folder, and seed and step within a run.
        label: what the name claims.
        reference: what opens it; None where it may not be opened.
        files: those that hold its weights; none of a run, whose checkpoints share folders.
        note: why it is not opened, or "".
        origin: of a run of this package.
        is_above: whether its folder also holds checkpoints of its run, as a trainer's final model does.
        file: which file of its folder, where the weights have a name of their own.
        refusal: why files that should hold weights are digested alone, or "".
    """

    name: str
    label: Label
    reference: str | None
    files: tuple[Path, ...] = ()
    note: str = ""
    origin: RunOrigin | None = None
    is_above: bool = False
    file: str | None = None
    refusal: str = ""


def find_items(folder: str | Path, pattern: re.Pattern[str] | None = None) -> tuple[list[Item], list[Finding]]:
    """Find all checkpoints of a folder, with a finding for each entry that should be one and is not.

    Raises:
        InputError: there is no such folder, or nothing in it that could be a checkpoint.
    """
    root = io.user_path(folder)
    if not root.is_dir():
        raise InputError(f"{root} is no folder: name a folder of checkpoints, or a listing of digests (.json)")
    entries = list(_walk(root, root, pattern))
    items = [entry for entry in entries if isinstance(entry, Item)]
    findings = [entry for entry in entries if isinstance(entry, Finding)]
    if not items:
        logs = [f"{path.name} is a log of training" for path in sorted(root.iterdir()) if is_log(path.name)]
        reason = next((f" ({text})" for text in (*(row.text.rstrip(".") for row in findings), *logs)), "")
        raise InputError(f"{root} holds no checkpoint{reason}: name a folder of Hugging Face directories or of runs")
    return items, findings


def _walk(
    place: Path,
    root: Path,
    pattern: re.Pattern[str] | None,
    above: frozenset[tuple[int, int]] = frozenset(),
) -> Iterator[Item | Finding]:
    """Walk a folder. One that a link leads back to, from below itself (``above``), is not entered again."""
    name = place.relative_to(root).as_posix()
    if name == ".":
        # What lies in the folder under the folder's own name is another one.
        name = f"{root.name}/." if os.path.lexists(root / root.name) else root.name
    is_model = False
    try:
        status = place.stat()
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            return
        if (place / RUN_FILE).is_file():
            yield from _run(place, "" if place == root else name)
            return
        entries = sorted(place.iterdir(), key=lambda path: natural(path.name))
        folders = [entry.name for entry in entries if os.path.isdir(entry)]
        if {"blobs", "snapshots"} <= set(folders):
            # A repository in the hub's cache: files lie in blobs, and names of theirs in snapshots.
            entries = [place / "snapshots"]
        # Several files of whole models, one beside the other, are as many items. An adapter or a model is one, and a
        # trainer's checkpoints may lie below it; everything else is looked through.
        several = _several(place)
        is_model = bool(several) or is_adapter(place) or _is_model(place)
        if several:
            for path in several:
                file_name = path.relative_to(root).as_posix()
                label = read_label(file_name.removesuffix(path.suffix), pattern)
                yield Item(file_name, label, str(place), (path,), file=path.name)
            entries = [entry for entry in entries if entry not in several]
        elif is_model:
            tree = tree_of(place)
            entries = [
                entry for entry in entries if entry != tree and os.path.isdir(entry) and _is_checkpoint(entry, pattern)
            ]
            item = _adapter(place, name, pattern) if is_adapter(place) else _model(place, name, pattern)
            yield dataclasses.replace(item, is_above=item.label.step is None and bool(entries))
    except (InputError, OSError) as error:
        yield Finding("unreadable", (name,), f"{name} cannot be read: {error}.")
        # A model that cannot be read hides no checkpoint of its trainer.
        if not is_model:
            return
    if not entries and not is_model and place != root and read_label(name, pattern).step is not None:
        yield Finding("unreadable", (name,), f"{name} is an empty folder.")
    for entry in entries:
        # Not Path.is_dir, which raises where the link's target may not be looked at.
        if os.path.isdir(entry) and not entry.name.startswith("."):
            yield from _walk(entry, root, pattern, above | {identity})
        elif os.path.isfile(entry):
            yield from _file(entry, root, pattern)


def _adapter(place: Path, name: str, pattern: re.Pattern[str] | None) -> Item:
    read_adapter(place)
    return Item(name, read_label(name, pattern), None, tuple(sorted(place.glob("adapter_model.*"))), ADAPTED)


def _is_checkpoint(place: Path, pattern: re.Pattern[str] | None) -> bool:
    """Tell whether a folder below a model is a checkpoint of its trainer, by its name or by what it holds."""
    # DeepSpeed's "global_step100" below a checkpoint is the state that training resumes from.
    if any(place.glob("*_model_states.pt")):
        return False
    return read_label(place.name, pattern).step is not None or is_adapter(place) or _is_model(place)


def _several(place: Path) -> list[Path]:
    """Return the files of a folder that has several of safetensors, and neither an index nor shards of one model."""
    files = sorted(place.glob("*.safetensors"), key=lambda path: natural(path.name))
    is_one = is_adapter(place) or (place / WEIGHTS).is_file() or any(place.glob("*.index.json"))
    is_one |= any(_SHARD.fullmatch(path.name) for path in files)
    return [] if is_one or len(files) < 2 else files


def _is_model(place: Path) -> bool:
    config = place / "config.json"
    if config.is_file():
        try:
            content = io.read_json(config)
        except InputError:
            return True  # a reason is given once it is opened
        if isinstance(content, dict) and "model_type" in content:
            return True
    return tree_of(place) is not None or any(
        any(place.glob(kind)) for kind in ("*.safetensors", "pytorch_model*.bin", METADATA)
    )


def _label(place: Path, name: str, pattern: re.Pattern[str] | None) -> Label:
    """Read what the name of a model's folder claims; Orbax's manager names a step by its number alone."""
    label = read_label(name, pattern)
    step = None if tree_of(place) in (None, place) else whole(place.name)
    if pattern is not None or label.step is not None or step is None:
        return label
    return Label(name.rpartition("/")[0], step)


def _model(place: Path, name: str, pattern: re.Pattern[str] | None) -> Item:
    label = _label(place, name, pattern)
    try:
        files = tuple(choose_weights(place).paths)
    except InputError as error:
        # Without safetensors there may be torch files under other names: one of them is read, several are digested.
        pickles = tuple(path for kind in PICKLES for path in sorted(place.glob(kind)) if is_weights(path.name))
        if not pickles or any(place.glob("*.safetensors*")):
            raise
        for path in pickles:
            check_pointer(path)
        if len(pickles) > 1:
            return Item(name, label, None, pickles, PICKLED, refusal=str(error))
        return _pickled(Item(name, label, str(place), pickles, file=pickles[0].name))
    if files[0].name in (METADATA, TREE) and not (place / "config.json").is_file():
        try:
            read_by_names(place)
        except InputError:
            return Item(name, label, None, files, SHARDED)
    return _pickled(Item(name, label, str(place), files))


def _pickled(item: Item) -> Item:
    """Return a checkpoint to be read, or one whose pickle describes more than tensors, to be digested alone.

    Raises:
        InputError: a file is a pointer of Git LFS.
    """
    if item.files[0].name in (METADATA, TREE):
        return item
    for path in item.files:
        if any(path.match(kind) for kind in PICKLES):
            check_pointer(path)
            try:
                torch_file.locate(path)
            except InputError as error:
                return dataclasses.replace(item, reference=None, note=PICKLED, refusal=str(error))
    return item


def _run(place: Path, name: str) -> Iterator[Item]:
    content = read_run(place)
    # What the record says of all checkpoints of the run.
    config = content["config"]
    is_initialized_here = config.get("init_from") is None
    data = {"tokens_digest": content["tokens_digest"], "data_seed": config.get("data_seed")}
    steps = find_steps(place)
    if not steps:
        raise InputError("this run has no checkpoint yet")
    # Each seed is a run of its own.
    for seed in config["seeds"]:
        run = f"{name}@seed={seed}" if name else f"seed={seed}"
        for step in steps:
            where = f"seed={seed},step={step}"
            origin = RunOrigin(
                int(seed), is_initialized_here, data, place if config.get("adapter") is not None else None
            )
            yield Item(f"{name}@{where}" if name else where, Label(run, step), f"{place}@{where}", origin=origin)


def _file(path: Path, root: Path, pattern: re.Pattern[str] | None) -> Iterator[Item | Finding]:
    name = path.relative_to(root).as_posix()
    if not is_weights(name) and (_BESIDE.fullmatch(path.name) or is_training_state(name) or is_log(path.name)):
        return
    # A file that opens is a checkpoint; a pickle is read as data, or digested where it is not called weights.
    label = read_label(name.removesuffix(path.suffix) if is_weights(name) else name, pattern)
    try:
        parse_ref(path)
    except InputError as error:
        if "is a pickle" not in str(error):
            yield Finding("unreadable", (name,), f"{error}.")
        elif is_weights(name):
            yield _pickled(Item(name, label, str(path.parent), (path,), file=path.name))
        else:
            yield Item(name, label, None, (path,), PICKLED)
        return
    yield Item(name, label, str(path), (path,))
