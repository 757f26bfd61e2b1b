"""A Hugging Face model directory: ``config.json`` and safetensors, in one file or several."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from bornbiased_jax import io, progress
from bornbiased_jax.checkpoints.adapters import is_adapter
from bornbiased_jax.checkpoints.conventions import HEAD_TENSORS, is_other_head
from bornbiased_jax.checkpoints.formats.hf_config import Read, read_config
from bornbiased_jax.checkpoints.layout import FileEntry, file_shapes
from bornbiased_jax.checkpoints.quantization_files import FIELD, FILES, with_quantization
from bornbiased_jax.checkpoints.quantized import decode
from bornbiased_jax.checkpoints.roles import LEFT_OUT
from bornbiased_jax.checkpoints.tensors import FLOAT_TYPES, NamedTensors, StoredModel, check_entries, file_pieces
from bornbiased_jax.checkpoints.weight_files import (
    INDEX,
    PICKLES,
    choose_weights,
    find_tokenizers,
    locate_tensors,
)
from bornbiased_jax.errors import InputError

# Buffers that older versions of transformers wrote next to the weights; all follow from the configuration.
_BUFFERS = re.compile(r".*\.(attn|attention)\.(bias|masked_bias)|.*rotary_emb\.inv_freq")
TRAINING_CONTEXT = "training_context"
"""Where an exported run's config.json says how many tokens a sequence had in training."""


def read_headers(folder: Path, *, file: str | None = None, ignore_fields: Sequence[str] = ()) -> StoredModel:
    """Read the configuration and the list of tensors of a directory as ``save_pretrained`` writes it, and no tensor.

    Raises:
        InputError: a file is missing or corrupted; a field of the configuration is not understood; a
            tensor is missing, unknown or of a wrong shape.
    """
    if is_adapter(folder) and not (folder / "config.json").is_file():
        raise InputError(
            f"{folder} is an adapter, no model of its own: merge it into its base with "
            f"`bornbiased derive BASE --change lora:{folder} --out DIR`, and name DIR"
        )
    content = io.read_json(folder / "config.json")
    read = read_config(content, str(folder / "config.json"), ignore_fields)
    weights = choose_weights(folder, file)
    source = locate_tensors(folder, weights)
    _refuse_quantized(folder, content, source)
    shapes = file_shapes(read.cfg, read.biases)
    entries = _as_named_in(source, read, read.family.entries(shapes))
    check_entries(source, entries, shapes, _ignored(source, read, entries))
    notes = (*source.notes, *_noticed(source, read, entries))
    for note in notes:
        progress.once(progress.note, f"{folder}: {note}")
    context = content.get(TRAINING_CONTEXT)
    is_context = isinstance(context, int) and not isinstance(context, bool) and context > 0
    return StoredModel(
        read.cfg,
        f"{read.family.name} model of {folder}",
        file_pieces(read.cfg, source, entries),
        files=tuple(weights.paths),
        tokenizer_files=find_tokenizers(folder),
        storage=" and ".join(sorted({FLOAT_TYPES.get(kind, kind) for kind in source.types.values()})),
        info={"context": context} if is_context else {},
        notes=notes,
    )


def refused_settings(folder: Path, content: Mapping[str, object]) -> Mapping[str, object]:
    """Return the settings of quantized weights next to a ``config.json`` that has none; empty where there are none.

    Raises:
        InputError: files contradict each other.
    """
    settings = with_quantization(folder, content).get(FIELD)
    return settings if isinstance(settings, dict) and not content.get(FIELD) else {}


def _refuse_quantized(folder: Path, content: Mapping[str, object], source: NamedTensors) -> None:
    """Refuse to run packed weights whose settings lie next to ``config.json``, as those with settings inside it."""
    settings = refused_settings(folder, content)
    if settings and decode(source, {FIELD: settings}).shapes.keys() != source.shapes.keys():
        raise InputError(
            f"the weights of {folder} are quantized, as its {' or '.join(FILES)} says: save it dequantized first, or "
            "compare it as it is (seedprint, digest)"
        )


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a directory.

    Raises:
        InputError: there are none, there are two sets of weights, or the index names one that is not there.
    """
    if not (folder / INDEX).is_file() and not any(folder.glob("*.safetensors")):
        for pattern in PICKLES:
            for path in sorted(folder.glob(pattern)):
                raise InputError(f"{path} is a pickle, not safetensors: convert it")
    return choose_weights(folder).paths


def _as_named_in(source: NamedTensors, read: Read, entries: list[FileEntry]) -> list[FileEntry]:
    """Return the entries under the names of this file: it may be saved without its head, and so without a prefix."""
    embedding = read.family.tensors["embed"].format(leaf="weight")
    prefix = embedding.split(".")[0] + "."
    if embedding not in source.shapes and embedding.removeprefix(prefix) in source.shapes:
        entries = [entry._replace(name=entry.name.removeprefix(prefix)) for entry in entries]
    renamed = {name: alias for name, alias in read.family.aliases.items() if name not in source.shapes}
    heads = set(source.shapes) & HEAD_TENSORS
    if read.cfg.tie_embeddings and heads and embedding not in source.shapes:
        # safetensors keeps one name of a tied table, and that may be the head's.
        renamed[embedding] = heads.pop()
    return [entry._replace(name=renamed.get(entry.name, entry.name)) for entry in entries]


def _ignored(source: NamedTensors, read: Read, entries: list[FileEntry]) -> Callable[[str], bool]:
    """Return which tensors are no parameters: buffers, and the copy of a tied embedding, if it is one."""
    copies = HEAD_TENSORS & set(source.shapes) if read.cfg.tie_embeddings else set()
    embedding = _embedding_name(entries)
    for copy in copies - {embedding}:
        if embedding in source.shapes and not np.array_equal(source.read(copy), source.read(embedding)):
            raise InputError(
                f"tensor {copy} of {source.where} differs from the embedding, though tie_word_embeddings is true: "
                "set it to false in config.json if the model has a head of its own"
            )
    return lambda name: name in copies or is_other_head(name) or _BUFFERS.fullmatch(name) is not None


def _noticed(source: NamedTensors, read: Read, entries: list[FileEntry]) -> tuple[str, ...]:
    """Return what is not plain in a file that was checked: heads left out, a prefix that lacks, a tied table."""
    notes = []
    if heads := sorted(filter(is_other_head, source.shapes)):
        notes.append(f"{LEFT_OUT}: {', '.join(heads)}")
    prefix, _, plain = read.family.tensors["embed"].format(leaf="weight").partition(".")
    embedding = _embedding_name(entries)
    if embedding == plain:
        notes.append(f"names lack the prefix {prefix}., which was put before them")
    if read.cfg.tie_embeddings:
        tied = sorted(HEAD_TENSORS & set(source.shapes))
        notes += [
            f"the embedding is stored once, as {name}" if name == embedding else f"{name} is a copy of the embedding"
            for name in tied
        ]
    return tuple(notes)


def _embedding_name(entries: list[FileEntry]) -> str:
    return next(entry.name for entry in entries if entry.paths == ("embed/embedding",))
