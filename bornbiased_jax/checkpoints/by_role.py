"""Read any model's tensors by role: by the table of parameters where this package runs the model, else by names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bornbiased_jax import io, progress
from bornbiased_jax.checkpoints import adapters, open_checkpoint
from bornbiased_jax.checkpoints.families import FAMILIES
from bornbiased_jax.checkpoints.formats import gguf
from bornbiased_jax.checkpoints.formats.orbax_tree import find_tree, heads_of
from bornbiased_jax.checkpoints.names import read_roles_file
from bornbiased_jax.checkpoints.naming import NamedRoles
from bornbiased_jax.checkpoints.quantization_files import SettingsError, with_quantization
from bornbiased_jax.checkpoints.quantized import decode
from bornbiased_jax.checkpoints.reference import parse_ref
from bornbiased_jax.checkpoints.roles import RoleSource
from bornbiased_jax.checkpoints.sizes import Json
from bornbiased_jax.checkpoints.weight_files import choose_weights, find_tokenizers, locate_tensors
from bornbiased_jax.errors import InputError


def read_by_names(folder: Path, *, file: str | None = None, roles_file: Path | None = None) -> NamedRoles:
    """Open a folder of weights for reading by role, whatever its architecture.

    Its ``config.json`` may be missing; of an adapter the base is read, which the adapter names.

    Raises:
        InputError: the files are corrupted, are two sets of weights, or have names that no convention fits.
    """
    adapter = adapters.read_adapter(folder) if adapters.is_adapter(folder) else None
    place = folder if adapter is None else adapters.base_folder(folder, adapter)
    config = _read_config(place)
    chosen = choose_weights(place, file)
    tensors = decode(locate_tensors(place, chosen), config)
    is_tied = config.get("tie_word_embeddings") is not False
    source = NamedRoles(
        tensors if adapter is None else adapters.adapt(tensors, adapter, is_tied=is_tied),
        config,
        rows=() if roles_file is None else read_roles_file(roles_file),
        tokenizer_files=find_tokenizers(folder) or find_tokenizers(place),
    )
    source.files = tuple(chosen.paths) if adapter is None else (*chosen.paths, adapters.weights_file(folder))
    for note in source.notes:
        progress.once(progress.note, f"{place}: {note}")
    return source


def _read_config(folder: Path) -> Json:
    """Read ``config.json``, or the ``params.json`` of llama and Mistral; a tree of Orbax tells its heads itself."""
    place = next(
        (path for name in ("config.json", "params.json") if (path := folder / name).is_file()), folder / "config.json"
    )
    tree = find_tree(folder)
    config: object = io.read_json(place) if place.is_file() else {} if tree is None else heads_of(tree)
    if not isinstance(config, dict):
        raise InputError(f"{place} is not a JSON object: it should be a Hugging Face model's configuration")
    return with_quantization(folder, config)


def read_by_role(
    ref: str | Path, *, file: str | None = None, roles_file: Path | None = None, ignore_fields: Sequence[str] = ()
) -> RoleSource:
    """Open any model for reading by role: by the table of parameters where this package runs it, else by names.

    Args:
        ref: what :func:`bornbiased_jax.checkpoints.open_checkpoint` takes, or a folder of any model's weights.
        file: which set of weights, where a folder holds several.
        roles_file: what the conventions of names do not know.
        ignore_fields: fields of ``config.json`` to leave out, which are known not to change the model.

    Raises:
        InputError: nothing is there, or what is there is corrupted or not understood.
    """
    reference = parse_ref(ref).fetched()
    path, folder = reference.path, reference.path if reference.kind == "huggingface" else None
    if roles_file is not None and folder is None:
        raise InputError(f"{ref} is no folder of weights, which --roles is for: leave the option out")
    if folder is not None and (roles_file is not None or adapters.is_adapter(folder)):
        return read_by_names(folder, file=file, roles_file=roles_file)
    try:
        return open_checkpoint(ref, file=file, ignore_fields=ignore_fields).by_role()
    except InputError as refusal:
        if path is None or reference.kind == "run":
            raise
        # A comparison needs no forward pass: what stands in its way may not matter here.
        try:
            return read_gguf_by_names(path) if folder is None else read_by_names(folder, file=file)
        except SettingsError:
            raise
        except InputError as error:
            is_known = folder is None or str(_read_config(folder).get("model_type")) in FAMILIES
            raise (refusal if is_known else error) from error


def read_gguf_by_names(path: Path) -> NamedRoles:
    """Open a GGUF file of any architecture for reading by role, by the names that llama.cpp gives tensors.

    Raises:
        InputError: it is corrupted, one of several, or has names that no convention fits.
    """
    tensors, config, tokenizer_files = gguf.read_named(path)
    source = NamedRoles(tensors, config, tokenizer_files=tokenizer_files)
    source.files = (path,)
    for note in source.notes:
        progress.once(progress.note, f"{path}: {note}")
    return source
