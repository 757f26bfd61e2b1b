"""Write weights as a Hugging Face directory that ``transformers`` opens with the same logits."""

from __future__ import annotations

import os
from pathlib import Path

import jax
import numpy as np

from bornbiased_jax import io, progress
from bornbiased_jax.checkpoints.families import FAMILIES, Family
from bornbiased_jax.checkpoints.families.family import Want, text_of
from bornbiased_jax.checkpoints.families.reading import write_rope
from bornbiased_jax.checkpoints.formats.hf_config import initializer_range
from bornbiased_jax.checkpoints.formats.huggingface import TRAINING_CONTEXT
from bornbiased_jax.checkpoints.formats.safetensors import encode_header
from bornbiased_jax.checkpoints.layout import FileEntry, Shapes, file_shapes, pack, shape_in_file
from bornbiased_jax.checkpoints.weight_files import WEIGHTS
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import fields_of
from bornbiased_jax.io import OVERWRITE, Folder, replace_folder
from bornbiased_jax.model.layers import ACTIVATIONS, HUGGING_FACE
from bornbiased_jax.parameters import Params, flatten
from bornbiased_jax.text.protocol import Tokenizer
from bornbiased_jax.text.sentence_piece import SentencePieceTokenizer

MAKER = "bornbiased export"
# A prefix and a memory are read by attention next to its matrices: no matrix can take them in.
_ALONE = "it cannot be merged into the weights; use the run itself, which opens wherever a checkpoint is asked for"
_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def export_hugging_face(
    cfg: ModelConfig,
    params: Params,
    folder: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    context: int | None = None,
    overwrite: bool = False,
) -> str:
    """Write ``config.json``, ``model.safetensors`` and the tokenizer. All of it appears at once, or nothing.

    Args:
        cfg: the architecture.
        params: float32, float16 or bfloat16 weights; the file keeps their type.
        folder: a new or empty folder, or one that an earlier export wrote, which is replaced.
        tokenizer: saved next to the weights.
        context: tokens of a sequence in training, which config.json then says too; transformers leaves it alone.
        overwrite: also replace a model that no export of this program wrote, or that was changed since.

    Returns:
        The model type that was chosen.

    Raises:
        InputError: transformers has no class for such an architecture (the field is named), a bias has no
            place in the class and is not zero, or the folder cannot be written or holds other things.

    >>> import tempfile
    >>> from bornbiased_jax.checkpoints import open_checkpoint
    >>> initial = open_checkpoint("seed:42@llama-tiny,num_layers=2,vocab_size=64")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     family = export_hugging_face(initial.cfg, initial.params(), folder)
    ...     family, open_checkpoint(folder).digest() == initial.digest()
    ('llama', True)
    """
    place = Folder(folder, MAKER, overwrite=overwrite)
    _check_replaceable(place)
    family = family_of(cfg)
    shapes = file_shapes(cfg, family.biases(cfg))
    # A parameter that the class has no place for must be zero.
    flat = flatten(params)
    for path in sorted(set(flat) - set(shapes)):
        if np.any(np.asarray(flat[path])):
            raise InputError(
                f"transformers' {family.name} has no {path}, and these weights have one that is not zero: "
                "train with bias=false to export"
            )
    with replace_folder(place.path, MAKER) as fresh:
        entries = family.entries(shapes)
        _write_weights(fresh / WEIGHTS, cfg, flat, entries, shapes)
        if tokenizer is not None:
            _write_tokenizer(fresh, tokenizer)
        dtype = np.asarray(flat["embed/embedding"][:1]).dtype.name
        config = config_json(cfg, family, dtype=dtype, tokenizer=tokenizer)
        stated = {} if context is None else {TRAINING_CONTEXT: context}
        # Keys in the order of transformers' own files.
        io.write_json(fresh / "config.json", config | stated, sort_keys=True)
        # Again, now that the time has passed that writing took.
        _check_replaceable(Folder(folder, MAKER, overwrite=overwrite))
    return family.name


def check_folder(folder: str | Path, checkpoint: str = "", *, overwrite: bool = False) -> None:
    """Check whether a model may be exported to a folder, before it is opened.

    Raises:
        InputError: the folder holds other things, or the model itself.
    """
    place = Folder(folder, MAKER, overwrite=overwrite)
    target = place.path.resolve()
    for source in filter(None, (checkpoint, checkpoint.rpartition("@")[0])):
        # A reference may be no path at all, or one that no file can have: then it is not there.
        model = Path(os.path.realpath(os.path.expanduser(source)))
        if os.path.exists(model) and (target == model or target in model.parents):
            raise InputError(f"{folder} holds the model that is to be exported: name another folder")
    _check_replaceable(place)


def _check_replaceable(place: Folder) -> None:
    """Refuse a folder that holds more than an earlier export, untouched; or, to be overwritten, a model's files."""
    if place.path.exists() and not place.path.is_dir():
        raise InputError(f"cannot write {place.path}: it is a file; name a folder")
    for name in place.entries():
        if place.owns(name):
            continue
        is_part = name in ("config.json", WEIGHTS) or name.startswith("tokenizer")
        if not is_part or (place.path / name).is_dir():
            raise InputError(f"{place.path} holds {name}, which no export wrote: choose a new folder")
        if not place.overwrite:
            origin = "was changed since an export wrote it" if place.knows(name) else "no export of this program wrote"
            raise InputError(
                f"{place.path} holds a {name} that {origin}: choose a new folder, or give {OVERWRITE} to "
                "replace the model there"
            )


def family_of(cfg: ModelConfig) -> Family:
    """Return the first family of transformers that computes what the config says.

    Raises:
        InputError: as :func:`families_of`.
    """
    return families_of(cfg)[0]


def families_of(cfg: ModelConfig) -> list[Family]:
    """Return all families of transformers that compute what the config says, that of an export first.

    They differ in the names and the fusion of matrices: a Phi-3 without partial RoPE is a LLaMA too.

    Raises:
        InputError: there is none. The field that is named is the one in the way of the family that comes nearest:
            the one of whose conditions most are met before the first that is not.
    """
    for name, policy in fields_of("export"):
        if policy.kind == "refused" and getattr(cfg, name) != policy.unless:
            remedy = _ALONE if name.startswith("prefix_") else f"only {name}={text_of(policy.unless)} can be exported"
            raise _no_class(cfg, name, remedy)
    if ACTIVATIONS[cfg.activation].hugging_face is None:
        names = ", ".join(sorted(set(HUGGING_FACE.values())))
        raise _no_class(cfg, "activation", f"only activation={names} can be exported")
    # Of each family the first condition that is not met.
    families: list[Family] = []
    unmet: list[tuple[int, Want, Family]] = []
    for family in FAMILIES.values():
        missing = [(index, want) for index, want in enumerate(family.conditions) if not want.holds(cfg)]
        if missing:
            unmet.append((*missing[0], family))
        else:
            families.append(family)
    if families:
        return families
    nearest = max(index for index, _, _ in unmet)
    name = next(want.field for index, want, _ in unmet if index == nearest)
    remedies: dict[str, list[str]] = {}
    for index, want, family in unmet:
        if index == nearest and want.field == name:
            remedies.setdefault(want.remedy, []).append(family.name)
    raise _no_class(cfg, name, " or ".join(f"{', '.join(names)} with {remedy}" for remedy, names in remedies.items()))


def _no_class(cfg: ModelConfig, name: str, remedy: str) -> InputError:
    return InputError(f"transformers has no class for {name}={text_of(getattr(cfg, name))} here: {remedy}")


def config_json(cfg: ModelConfig, family: Family, *, dtype: str, tokenizer: Tokenizer | None) -> dict[str, object]:
    """Return the ``config.json`` of a model."""
    entries: dict[str, object] = {
        "architectures": [family.architecture],
        "model_type": family.name,
        "torch_dtype": dtype,
        "bos_token_id": tokenizer.bos_id if tokenizer is not None else None,
        "eos_token_id": tokenizer.eos_id if tokenizer is not None else None,
        "pad_token_id": None,
    }
    sizes = {key: getattr(cfg, field) for field, (key, _) in family.sizes.items()}
    sizes[family.sizes["activation"][0]] = ACTIVATIONS[cfg.activation].hugging_face
    stated_std = initializer_range(cfg, family.name)
    initializer = {} if stated_std is None else {"initializer_range": stated_std}
    rope = {} if family.rope is None else write_rope(cfg, family.rope)
    return entries | sizes | initializer | rope | family.write_biases(cfg) | family.write(cfg)


def _write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    tokenizer.save(folder)
    if isinstance(tokenizer, SentencePieceTokenizer):
        same = tokenizer.for_transformers()
        if same is not None:
            same.save(folder)
        else:
            progress.warn(
                f"transformers may cut text otherwise than {tokenizer.name} does: use that file with SentencePiece"
            )


def _write_weights(
    path: Path, cfg: ModelConfig, flat: dict[str, jax.Array], entries: list[FileEntry], shapes: Shapes
) -> None:
    """Write a safetensors file tensor by tensor: the library's own writer wants them all at once."""
    dtype = np.asarray(flat["embed/embedding"][:1]).dtype
    if dtype.name not in _TYPES:
        raise InputError(f"weights of type {dtype.name} cannot be exported: cast them to float32")
    tensors = {entry.name: (_TYPES[dtype.name], shape_in_file(entry, shapes)) for entry in entries}
    with path.open("wb") as stream:
        stream.write(encode_header({"format": "pt"}, tensors))
        for entry in entries:
            parts = [
                np.asarray(flat[path][entry.place])
                if path in flat
                else np.zeros(shapes[path][len(entry.place) :], dtype)
                for path in entry.paths
            ]
            stream.write(np.ascontiguousarray(pack(entry, cfg, parts), dtype).view(np.uint8).data)
        stream.flush()
        os.fsync(stream.fileno())
