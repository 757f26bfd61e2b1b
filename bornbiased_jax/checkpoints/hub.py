"""Checkpoints by name, ``hf:OWNER/NAME[@REVISION]``: safetensors alone, into the hub's own cache.

What the cache holds whole is read without a network, so that a name keeps the meaning it had when it was first
fetched; a commit as the revision says which that is. Everything else goes through ``huggingface_hub``, file by file
with the weights last: a call that broke off resumes with the next file, and whole weights are never without their
tokenizer. No pickle is fetched, whatever its name.
"""

from __future__ import annotations

import contextlib
import fnmatch
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from bornbiased_jax import hub, io, progress, schema
from bornbiased_jax.checkpoints import quantization_files
from bornbiased_jax.checkpoints.formats.huggingface import weight_files
from bornbiased_jax.checkpoints.weight_files import INDEX, PICKLES, TOKENIZERS, WEIGHTS, shard_names
from bornbiased_jax.errors import InputError

MAIN = "main"
_CONFIG = "config.json"
# What a tokenizer of two files needs besides the first, and settings of quantized weights.
_COMPANIONS = ("merges.txt", *quantization_files.FILES)
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_NAME = re.compile(rf"hf:(?P<repository>{_PART}/{_PART})(?:@(?P<revision>[^\s@:?*\[\\^~]+))?")
_MEGABYTE = 1_000_000


class HubName(NamedTuple):
    """A repository of models on the hub ("OWNER/NAME") and one of its branches, tags or commits."""

    repository: str
    revision: str = MAIN

    def __str__(self) -> str:
        return f"{hub.PREFIX}{self.repository}" + ("" if self.revision == MAIN else f"@{self.revision}")


class RemoteFile(NamedTuple):
    """A file as the hub lists it: bytes, and SHA-256 of its content where the hub keeps it as a large file."""

    size: int
    sha256: str | None


def parse_name(text: str) -> HubName:
    """Parse what a user wrote for a checkpoint of the hub, without a network.

    Raises:
        InputError: it is not of that form.

    >>> parse_name("hf:EleutherAI/pythia-160m-seed1@step1000")
    HubName(repository='EleutherAI/pythia-160m-seed1', revision='step1000')
    """
    match = _NAME.fullmatch(text)
    if match is None:
        raise InputError(f"{schema.shown(text)} is not of the form hf:OWNER/NAME or hf:OWNER/NAME@REVISION")
    return HubName(match["repository"], match["revision"] or MAIN)


def library(reference: str) -> ModuleType:
    """Import ``huggingface_hub`` for something that was named, its bars and warnings off: standard error is ours.

    Raises:
        InputError: it is not installed.
    """
    module: ModuleType = hub.library("huggingface_hub", "hub", reference, "on the Hugging Face hub")
    hub.library("huggingface_hub.utils", "hub", reference, "on the Hugging Face hub").logging.set_verbosity_error()
    return module


def fetch(name: HubName) -> Path:
    """Return the folder of a checkpoint: from the cache where it is complete, and from the hub where not.

    Raises:
        InputError: the hub has no such checkpoint or none in safetensors, cannot be reached or breaks off, a file is
            not what the hub lists, the disk has no room, or ``huggingface_hub`` is not installed.
    """
    api = library(str(name))
    cached = find_cached(name)
    if cached is not None:
        if not _is_tokenizer_known(api, name, cached):
            # Another program fetched the weights alone. Where the hub does not answer, they are used as they are.
            with contextlib.suppress(InputError), hub.asking(str(name)):
                _fetch_small(api, name, cached.name)
        return cached
    with hub.asking(str(name)):
        try:
            config = api.hf_hub_download(name.repository, _CONFIG, revision=name.revision, tqdm_class=_SILENT)
        except api.errors.RemoteEntryNotFoundError as error:
            raise InputError(
                f"{name} has no {_CONFIG}, as a GGUF file or an adapter has none: fetch it with "
                f"`hf download {name.repository}`, and name the file or folder"
            ) from error
        commit = Path(config).parent.name
        # The tokenizer and settings first, weights last.
        listed = _fetch_small(api, name, commit)
        weights = _weights(api, name, commit, listed)
        missing = [file for file in weights if _cached(api, name, commit, file) is None]
        needed = sum(listed[file].size for file in missing)
        check_room(str(name), needed)
        with progress.bar(needed // _MEGABYTE, f"fetching {name}", "MB", quiet=needed < _MEGABYTE) as advance:
            bar = _bytes_to(advance)
            for file in missing:
                _fetch_file(api, name, commit, file, listed[file], bar)
    return Path(config).parent


def find_cached(name: HubName) -> Path | None:
    """Return the folder of a checkpoint whose configuration and weights the cache holds, or None, without a network.

    Raises:
        InputError: ``huggingface_hub`` is not installed.
    """
    config = _cached(library(str(name)), name, name.revision, _CONFIG)
    if config is None:
        return None
    try:
        weight_files(config.parent)
    except InputError:
        return None
    return config.parent


def check_room(reference: str, needed: int) -> None:
    """Refuse to fetch so many bytes where the hub's cache has no room for them.

    Raises:
        InputError: it has not.
    """
    constants = hub.library("huggingface_hub.constants", "hub", reference, "on the Hugging Face hub")
    cache = Path(constants.HF_HUB_CACHE)
    free = shutil.disk_usage(next(folder for folder in (cache, *cache.parents) if folder.exists())).free
    if needed > free:
        raise InputError(
            f"{reference} needs {needed / 1e9:.1f} GB, and {cache} has room for {free / 1e9:.1f} GB: make room, or set "
            "HF_HUB_CACHE to a folder elsewhere"
        )


def has_safetensors(names: Iterable[str]) -> bool:
    """Tell whether files of these names make up a checkpoint that :func:`fetch` takes."""
    return bool({WEIGHTS, INDEX} & set(names))


def _fetch_small(api: ModuleType, name: HubName, commit: str) -> dict[str, RemoteFile]:
    """Fetch the tokenizer and settings of a commit; return all files that the hub lists of it."""
    listed = {
        row.path: RemoteFile(row.size, row.lfs.sha256 if row.lfs is not None else None)
        for row in api.HfApi().list_repo_tree(name.repository, revision=commit, recursive=True)
        if hasattr(row, "blob_id")
    }
    for file in sorted(row for row in listed if _matches(row, (*TOKENIZERS, *_COMPANIONS))):
        _fetch_file(api, name, commit, file, listed[file], _SILENT)
    if not any(_matches(file, TOKENIZERS) for file in listed):
        # The cache notes that there is none, so that nobody asks again.
        with contextlib.suppress(api.errors.RemoteEntryNotFoundError):
            api.hf_hub_download(name.repository, TOKENIZERS[0], revision=commit)
    return listed


def _is_tokenizer_known(api: ModuleType, name: HubName, folder: Path) -> bool:
    """Tell whether the cache holds a tokenizer next to the weights, or the note that the hub has none."""
    if any(_matches(path.name, TOKENIZERS) for path in folder.iterdir()):
        return True
    return api.try_to_load_from_cache(name.repository, TOKENIZERS[0], revision=folder.name) is not None


def _weights(api: ModuleType, name: HubName, commit: str, listed: dict[str, RemoteFile]) -> list[str]:
    """Return the files of weights, in order."""
    if INDEX in listed:
        index = _fetch_file(api, name, commit, INDEX, listed[INDEX], _SILENT)
        shards = shard_names(index)
        for file in shards:
            if file not in listed:
                raise InputError(f"{name} lacks {schema.cut(file)}, though its {INDEX} names it: tell its owner")
            if not file.endswith(".safetensors"):
                raise InputError(f"{INDEX} of {name} names {schema.cut(file)}, which is no safetensors file")
        return shards
    if WEIGHTS in listed:
        return [WEIGHTS]
    pickles = sorted(file for file in listed if _matches(file, PICKLES))
    if pickles:
        raise InputError(
            f"{pickles[0]} of {name} is a pickle, which is never fetched because it can run code: convert it, with "
            f"AutoModelForCausalLM.from_pretrained({name.repository!r}).save_pretrained(DIR), and name DIR"
        )
    raise InputError(f"{name} has neither {WEIGHTS} nor {INDEX}: name a model whose weights are in safetensors")


def _fetch_file(api: ModuleType, name: HubName, commit: str, file: str, listed: RemoteFile, bar: type) -> Path:
    """Fetch one file of a commit from the cache or the hub; what comes is what was listed, or is not kept."""
    if (cached := _cached(api, name, commit, file)) is not None:
        return cached
    path = Path(api.hf_hub_download(name.repository, file, revision=commit, tqdm_class=bar))
    if listed.sha256 is not None and io.sha256(path) != listed.sha256:
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise InputError(f"{file} of {name} came corrupted, and was not kept: call again")
    return path


def _cached(api: ModuleType, name: HubName, revision: str, file: str) -> Path | None:
    """Return a file from the cache; None where it is not, or is known not to exist."""
    path = api.try_to_load_from_cache(name.repository, file, revision=revision)
    return Path(path) if isinstance(path, str) else None


def _matches(file: str, patterns: Iterable[str]) -> bool:
    """Return whether a file is of one of these patterns and in no folder of the repository."""
    return "/" not in file and any(fnmatch.fnmatchcase(file, pattern) for pattern in patterns)


def _bytes_to(advance: progress.Advance) -> type:
    """Make a class that the library takes for its bars, file after file, and that tells ours in whole megabytes."""
    count = 0

    class Bytes:
        def __init__(self, *_: object, **options: object) -> None:
            self.total = options.get("total")

        def update(self, n: float | None = 1) -> None:
            nonlocal count
            before, count = count, count + int(n or 0)
            if count // _MEGABYTE != before // _MEGABYTE:
                advance(count // _MEGABYTE - before // _MEGABYTE)

        def __enter__(self) -> Bytes:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def __getattr__(self, _: str) -> Callable[..., None]:
            return lambda *_, **__: None

    return Bytes


_SILENT = _bytes_to(lambda _=1: None)
