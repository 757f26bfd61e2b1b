"""Files of a folder that hold its weights, and their tensors, in whatever format they are.

One set of weights is chosen; what else lies there is said.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, NamedTuple

from annotated_types import Len
from typing_extensions import TypedDict

from bornbiased_jax import io, progress, schema
from bornbiased_jax.checkpoints import quantization_files
from bornbiased_jax.checkpoints.formats import orbax_tree, safetensors, torch_distributed, torch_file
from bornbiased_jax.checkpoints.formats.torch_distributed import METADATA
from bornbiased_jax.checkpoints.tensors import NamedTensors, Tensor
from bornbiased_jax.errors import InputError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"
_POINTER = b"version https://git-lfs.github.com/spec/"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
# What trainers save next to the weights.
_TRAINER_STATE = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state|random_states)[^/]*")
TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.bytes.json",
    "tokenizer.model",
    "spiece.model",
    "*.tiktoken",
    "vocab.json",
)
"""Names of the files that hold a tokenizer, the first that is there first."""


class IndexFile(TypedDict):
    """``model.safetensors.index.json``: from tensors to the files that hold them."""

    weight_map: Annotated[dict[str, str], Len(1)]


class WeightFiles(NamedTuple):
    """One set of weights: its name, its files, and notes about them."""

    name: str
    paths: list[Path]
    notes: tuple[str, ...] = ()


def choose_weights(folder: Path, file: str | None = None) -> WeightFiles:
    """Return the files of a folder's weights: safetensors, or pickles where there are none.

    Of several sets of weights the name of a file or an index chooses one.

    Raises:
        InputError: there are none, there are two sets and none is chosen, or a shard is missing.
    """
    if file is not None:
        return _named_set(folder, file)
    for single in (WEIGHTS, PICKLE):
        index = folder / f"{single}.index.json"
        is_whole = (folder / single).is_file()
        if index.is_file() and is_whole:
            # The index of an earlier save names shards that have gone, or lists the single file itself.
            if not any(os.path.isfile(path) for path in _shards(index) if path.name != single):
                return WeightFiles(single, [folder / single], (f"{index.name} is stale: its shards are not there",))
            raise InputError(
                f"{folder} holds two sets of weights, {single} and {index.name}: choose one with --file NAME"
            )
        if index.is_file():
            return _named_set(folder, index.name)
        if is_whole:
            return WeightFiles(single, [folder / single])
    if (quantized := quantization_files.find_weights(folder)) is not None:
        return _named_set(folder, quantized)
    if (folder / METADATA).is_file():
        shards = sorted(folder.glob("*.distcp"))
        return WeightFiles(
            METADATA, [folder / METADATA, *shards], ("read from shards of torch.distributed.checkpoint",)
        )
    if (tree := orbax_tree.find_tree(folder)) is not None:
        parts = sorted(path for path in tree.rglob("*") if path.is_file() and path.name != orbax_tree.METADATA)
        return WeightFiles(orbax_tree.METADATA, [tree / orbax_tree.METADATA, *parts], ("read from a tree of Orbax",))
    # Pipes, whose opening waits for a writer, and links that lead nowhere are no weights.
    others = sorted(path for path in folder.glob("*.safetensors") if os.path.isfile(path))
    if len(others) == 1:
        return WeightFiles(others[0].name, others)
    if len(others) > 1:
        names = f"{others[0].name} and {others[1].name}" + (f" and {len(others) - 2} more" if len(others) > 2 else "")
        raise InputError(f"{folder} holds {names}, and no index: choose one with --file NAME")
    pickles = sorted(
        path
        for kind in PICKLES
        for path in folder.glob(kind)
        if os.path.isfile(path) and not _TRAINER_STATE.fullmatch(path.name)
    )
    if pickles:
        raise InputError(
            f"{folder} has no {WEIGHTS}, only {pickles[0].name}: choose it with --file {pickles[0].name}, or convert "
            "it to safetensors"
        )
    raise InputError(f"{folder} has neither {WEIGHTS} nor {INDEX}: fetch the model's weights")


def _named_set(folder: Path, file: str) -> WeightFiles:
    path = folder / Path(file).name
    if not os.path.isfile(path):
        raise InputError(f"{path} does not exist: choose a file of weights, or an index, that is in {folder}")
    if not path.name.endswith(".index.json"):
        return WeightFiles(path.name, [path])
    shards = _shards(path)
    for shard in shards:
        # Not Path.is_file, which raises where no file can have such a name.
        if not os.path.isfile(shard):
            raise InputError(f"{schema.cut(shard.name)} is missing, though {path} names it: fetch that shard")
    return WeightFiles(path.name, shards)


def _shards(index: Path) -> list[Path]:
    return [index.parent / name for name in shard_names(index)]


def shard_names(index: Path) -> list[str]:
    """Return the names of the files that an index names, in its folder or in one below.

    Raises:
        InputError: it is corrupted, or names files elsewhere.
    """
    table = schema.check(IndexFile, io.read_json(index), str(index))["weight_map"]
    names = sorted(set(table.values()))
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise InputError(
                f"{index} names {schema.cut(name)}, which is not in its folder: name files in {index.parent}"
            )
    return names


def locate_tensors(folder: Path, weights: WeightFiles) -> NamedTensors:
    """Locate the tensors of one set of weights, none read yet, and say what was noticed in it.

    Raises:
        InputError: a file is corrupted or of another kind, or a name occurs twice.
    """
    tensors: dict[str, Tensor] = {}
    # Shards and parts of trees are located by what describes them, which stands first.
    is_described = weights.paths[0].name in (METADATA, orbax_tree.METADATA)
    for path in weights.paths[:1] if is_described else weights.paths:
        check_pointer(path)
        for name, tensor in _locate(path).items():
            if name in tensors:
                raise InputError(
                    f"tensor {schema.cut(name)} is in more than one file of {folder}: leave it in one of them"
                )
            tensors[name] = tensor
    # What the files lack, and what is not plain about them.
    notes = weights.notes
    if weights.name.endswith(".index.json"):
        index: IndexFile = schema.check(IndexFile, io.read_json(folder / weights.name), weights.name)
        if absent := sorted(index["weight_map"].keys() - tensors.keys()):
            more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
            notes = (*notes, f"{weights.name} names {schema.cut(absent[0])}{more}, which no file holds")
    for note in notes:
        progress.once(progress.note, f"{folder}: {note}")
    return NamedTensors(str(folder), tensors, notes)


def _locate(path: Path) -> dict[str, Tensor]:
    """Locate the tensors of a file by its name."""
    if path.suffix == ".safetensors":
        return safetensors.locate(path)
    if path.name == orbax_tree.METADATA:
        return orbax_tree.locate(path.parent)
    return torch_distributed.locate(path) if path.name == METADATA else torch_file.locate(path)


def check_pointer(path: Path) -> None:
    """Refuse a pointer of Git LFS, which a clone without LFS has in place of the file.

    Raises:
        InputError: it is one.
    """
    with path.open("rb") as stream:
        if stream.read(len(_POINTER)) == _POINTER:
            raise InputError(f"{path} is a pointer of Git LFS, not the file itself: run `git lfs pull` in its folder")


def find_tokenizers(folder: Path) -> tuple[Path, ...]:
    """Return the file of a folder's tokenizer, or none."""
    return tuple(path for pattern in TOKENIZERS for path in sorted(folder.glob(pattern)))[:1]
