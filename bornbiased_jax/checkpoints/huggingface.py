"""A Hugging Face model directory: ``config.json`` and safetensors, in one file or several."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from annotated_types import Len
from typing_extensions import TypedDict

from bornbiased_jax import io, schema
from bornbiased_jax.checkpoints.hf_config import Read, read_config
from bornbiased_jax.checkpoints.layout import Entry, file_shapes
from bornbiased_jax.checkpoints.safetensors_file import open_safetensors
from bornbiased_jax.checkpoints.streaming import Located, Shardings, Source, check_entries, load
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.memory import FLOAT, check_weights
from bornbiased_jax.parameters import Params

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
HOW_TO_CONVERT = (
    "is a pickle, which is never opened here because it can run code: convert it with transformers, "
    "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR, safe_serialization=True)"
)
# Buffers that older versions of transformers wrote beside the weights; all follow from the configuration.
_BUFFERS = re.compile(r".*\.(attn|attention)\.(bias|masked_bias)|.*rotary_emb\.inv_freq")
TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.bytes.json",
    "tokenizer.model",
    "spiece.model",
    "*.tiktoken",
    "vocab.json",
)
"""Names of the files that hold a tokenizer, the first that is there first."""


TRAINING_CONTEXT = "training_context"
"""Where an exported run's config.json says how many tokens a sequence had in training."""


def training_context(folder: Path) -> int | None:
    """Return the tokens of a sequence in training, where a directory's config.json says so."""
    tokens = io.read_json(folder / "config.json").get(TRAINING_CONTEXT)
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens > 0 else None


class IndexFile(TypedDict):
    """``model.safetensors.index.json``: from tensors to the files that hold them."""

    weight_map: Annotated[dict[str, str], Len(1)]


class Opened(NamedTuple):
    """A loaded model and where it came from."""

    cfg: ModelConfig
    params: Params
    description: str
    files: tuple[Path, ...]
    tokenizer_files: tuple[Path, ...]


def open_directory(folder: Path, *, dtype: Any = None, sharding: Shardings | None = None) -> Opened:
    """Load a directory as ``save_pretrained`` writes it.

    Raises:
        InputError: a file is missing, damaged or a pickle; a field of the configuration is not understood; a
            tensor is missing, unknown, of a wrong shape or not finite.
    """
    return opened(locate_directory(folder), dtype=dtype, sharding=sharding)


def opened(located: Located, *, dtype: Any = None, sharding: Shardings | None = None) -> Opened:
    """Load what was located.

    Raises:
        InputError: a tensor is missing, unknown, of a wrong shape or not finite.
    """
    cfg, source, entries, shapes = located[:4]
    check_entries(source, entries, shapes, located.ignored)
    check_weights(cfg, copies=jnp.dtype(dtype or jnp.float32).itemsize / FLOAT)
    params = load(cfg, source, entries, shapes, dtype=dtype, sharding=sharding, ignored=located.ignored)
    return Opened(cfg, params, located.description, located.files, located.tokenizer_files)


def locate_directory(folder: Path) -> Located:
    """Read a directory's configuration and its list of tensors, and none of the tensors.

    Raises:
        InputError: as :func:`open_directory`, but for what only the numbers tell.
    """
    read = read_config(io.read_json(folder / "config.json"), str(folder / "config.json"))
    paths = weight_files(folder)
    source = open_safetensors(folder, paths)
    shapes = file_shapes(read.cfg, read.biases)
    entries = _as_named_in(source, read, read.family.entries(shapes))
    ignored = _ignored(source, read, entries)
    candidates = (sorted(folder.glob(pattern)) for pattern in TOKENIZERS)
    tokenizer_files = tuple(path for group in candidates for path in group)[:1]
    description = f"{read.family.name} model of {folder}"
    return Located(read.cfg, source, entries, shapes, description, tuple(paths), tokenizer_files, ignored)


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a directory.

    Raises:
        InputError: there are none, or the index names one that is not there.
    """
    index = folder / INDEX
    if index.is_file():
        table = schema.check(IndexFile, io.read_json(index), str(index))["weight_map"]
        paths = [folder / Path(name).name for name in sorted(set(table.values()))]
        for path in paths:
            # Not Path.is_file, which raises where no file can have such a name.
            if not os.path.isfile(path):
                raise InputError(f"{schema.cut(path.name)} is missing, though {index} names it: fetch that shard")
        return paths
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    for pattern in PICKLES:
        for path in sorted(folder.glob(pattern)):
            raise InputError(f"{path} {HOW_TO_CONVERT}")
    raise InputError(f"{folder} has neither {WEIGHTS} nor {INDEX}: fetch the model's weights")


def _as_named_in(source: Source, read: Read, entries: list[Entry]) -> list[Entry]:
    """Return the entries under the names of this file: it may be saved without its head, and so without a prefix."""
    embedding = read.family.tensors["embed"].format(leaf="weight")
    prefix = embedding.split(".")[0] + "."
    if embedding not in source.shapes and embedding.removeprefix(prefix) in source.shapes:
        entries = [entry._replace(name=entry.name.removeprefix(prefix)) for entry in entries]
    renamed = {name: alias for name, alias in read.family.aliases.items() if name not in source.shapes}
    return [entry._replace(name=renamed.get(entry.name, entry.name)) for entry in entries]


def _ignored(source: Source, read: Read, entries: list[Entry]) -> Any:
    """Return which tensors are no parameters: buffers, and the copy of a tied embedding, if it is one."""
    copies = {"lm_head.weight", "embed_out.weight"} & set(source.shapes) if read.cfg.tie_embeddings else set()
    embedding = next(entry.name for entry in entries if entry.paths == ("embed/embedding",))
    for copy in copies:
        if embedding in source.shapes and not np.array_equal(source.read(copy), source.read(embedding)):
            raise InputError(
                f"tensor {copy} of {source.where} differs from the embedding, though tie_word_embeddings is true: "
                "set it to false in config.json if the model has a head of its own"
            )
    return lambda name: name in copies or _BUFFERS.fullmatch(name) is not None
