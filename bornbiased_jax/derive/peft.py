"""Adapters as PEFT stores them, merged into parameters, and those that were trained here written in its layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from bornbiased_jax import progress
from bornbiased_jax.checkpoints.adapters import CONFIG, WEIGHTS, PeftAdapter
from bornbiased_jax.checkpoints.export import MAKER as EXPORTER
from bornbiased_jax.checkpoints.export import families_of, family_of
from bornbiased_jax.checkpoints.formats.run import read_run, restore_adapter
from bornbiased_jax.checkpoints.layout import FileEntry, Shapes, file_shapes, pack, unpack
from bornbiased_jax.checkpoints.reference import parse_ref
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.io import Folder
from bornbiased_jax.model.adapters import IN, OUT, Adapter
from bornbiased_jax.parameters import Params, flatten, unflatten


def merge_adapter(cfg: ModelConfig, params: Params, adapter: PeftAdapter) -> Params:
    """Merge an adapter into the weights, float32 NumPy.

    A tied model has a head of its own afterwards if the adapter replaces its embedding or its head.

    Args:
        cfg: the architecture, of a family that transformers has.
        params: its weights, which the adapter was trained on.
        adapter: the adapter.

    Raises:
        InputError: the model has no such module, or a matrix does not fit.
    """
    flat = {path: np.array(leaf, np.float32) for path, leaf in flatten(params).items()}
    if cfg.tie_embeddings and adapter.unties:
        cfg = cfg.replace(tie_embeddings=False)
        flat["head/kernel"] = flat["embed/embedding"].T.copy()
    entries, adapted = _entries_of(cfg, flat, adapter)
    if left_out := adapter.left_out(adapted):
        progress.note(f"{adapter.where}: {left_out}")
    for place, name in adapted.items():
        # The matrix as its file has it, in which query, key and value may be one.
        entry = entries[place]
        tensor = pack(entry, cfg, [flat[path][entry.place] for path in entry.paths])
        is_conv1d = _is_flipped(entry) and entry.paths[0].endswith("/kernel")
        merged = adapter.merged(name, tensor, is_conv1d=is_conv1d)
        for path, part in zip(entry.paths, unpack(entry, cfg, merged), strict=True):
            flat[path][entry.place] = part
    return unflatten(flat)


def _entries_of(
    cfg: ModelConfig, flat: Mapping[str, np.ndarray], adapter: PeftAdapter
) -> tuple[dict[str, FileEntry], dict[str, str]]:
    """Return the tensors of the family whose names an adapter has, and which of them it adapts by which name.

    Raises:
        InputError: no family of such an architecture has them.
    """
    refusals = []
    for family in families_of(cfg):
        listed = family.entries(file_shapes(cfg, family.biases(cfg)))
        entries = {entry.name: entry for entry in listed if flat.keys() >= set(entry.paths)}
        try:
            return entries, adapter.names_in(entries, f"this {family.name} model")
        except InputError as error:
            refusals.append(error)
    raise refusals[0]


def _is_flipped(entry: FileEntry) -> bool:
    """Tell whether the file keeps a matrix as [in, out]: transformers' Conv1D."""
    return entry.form in ("same", "fused columns")


def export_adapter(reference: str, folder: str | Path, *, overwrite: bool = False) -> str:
    """Write the LoRA adapter that a run trained in PEFT's layout.

    Args:
        reference: the run, as in ``RUN@seed=0,step=100``.
        folder: as of :func:`write_adapter`.
        overwrite: as of :func:`write_adapter`.

    Returns:
        The model that the adapter was trained on.

    Raises:
        InputError: no run, a run without an adapter, or as :func:`write_adapter` says.
    """
    run = parse_ref(reference)
    if run.kind != "run" or run.path is None:
        raise InputError(f"{reference} is no run that trained an adapter: name one")
    place, trained = restore_adapter(run.path, run.seed, run.step)
    assert place.adapter is not None
    base = str(read_run(place.folder)["config"].get("init_from"))
    write_adapter(place.trained, place.adapter, trained, folder, base=base, overwrite=overwrite)
    return base


def write_adapter(
    cfg: ModelConfig, adapter: Adapter, trained: Params, folder: str | Path, *, base: str, overwrite: bool = False
) -> None:
    """Write a LoRA adapter that was trained here as ``PeftModel.from_pretrained`` opens it on the exported base.

    Where transformers keeps query, key and value in one matrix, their factors stand next to each other: the rank in the
    file is then the sum of theirs, of every module alike, filled up with zeros, and α grows with it.

    Args:
        cfg: the base, of a family that transformers has.
        adapter: the adapter's settings.
        trained: its parameters, without a leading axis of seeds.
        folder: a new or empty folder, or one that an earlier call wrote.
        base: what ``base_model_name_or_path`` is to say.
        overwrite: also replace files of other origin.

    Raises:
        InputError: the adapter is no LoRA, the base is of no family, or the folder holds a model or other things.
    """
    if adapter.method != "lora":
        raise InputError(f"{adapter.method} is no LoRA adapter, and only these have PEFT's layout: use the run itself")
    place = Folder(folder, EXPORTER, overwrite=overwrite)
    place.check(CONFIG, WEIGHTS)
    if (place.path / "config.json").exists():
        raise InputError(
            f"{place.path} holds a model, whose folder would be taken for the adapter's: name another folder"
        )
    family = family_of(cfg)
    shapes = file_shapes(cfg, family.biases(cfg))
    # The matrices of the file that hold an adapted module.
    flat = {path: np.asarray(leaf, np.float32) for path, leaf in flatten(trained).items()}
    modules = {path.rpartition("/")[0] for path in flat}
    entries = [
        (entry, [path.rpartition("/")[0] for path in entry.paths])
        for entry in family.entries(shapes)
        if entry.layer is not None and entry.paths[0].endswith("/kernel")
    ]
    entries = [(entry, parts) for entry, parts in entries if modules & set(parts)]
    assert adapter.rank is not None and adapter.alpha is not None
    max_parts = max(len(modules & set(parts)) for _, parts in entries)
    # Stack the factors of the modules that share a matrix, filled up to the largest rank with zeros.
    tensors: dict[str, np.ndarray] = {}
    for entry, parts in entries:
        name = f"base_model.model.{entry.name.removesuffix('.weight')}"
        adapted = [part for part in parts if part in modules]
        a_rI = [flat[f"{part}/{IN}"][entry.layer].T for part in adapted]
        b_Or = [_alone(entry, cfg, shapes, parts, part, flat[f"{part}/{OUT}"][entry.layer]) for part in adapted]
        missing = (max_parts - len(adapted)) * adapter.rank
        tensors[f"{name}.lora_A.weight"] = np.pad(np.concatenate(a_rI), ((0, missing), (0, 0)))
        tensors[f"{name}.lora_B.weight"] = np.pad(np.concatenate(b_Or, axis=1), ((0, 0), (0, missing)))
    names = {".".join(entry.name.removesuffix(".weight").split(".")[-2:]) for entry, _ in entries}
    # The library writes memory as it lies, transposed or not.
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": max_parts * adapter.rank,
        "lora_alpha": max_parts * adapter.alpha,
        "target_modules": sorted(names),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": any(_is_flipped(entry) for entry, _ in entries),
        "inference_mode": True,
        "init_lora_weights": True,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
    }
    place.write_bytes(WEIGHTS, save(tensors, metadata={"format": "pt"}))
    place.write_json(CONFIG, config)


def _alone(
    entry: FileEntry, cfg: ModelConfig, shapes: Shapes, parts: list[str], part: str, out_rO: np.ndarray
) -> np.ndarray:
    """Return B [out, r] of a module in the file of which one part alone is adapted."""
    kernels = [
        out_rO if module == part else np.zeros((len(out_rO), shapes[f"{module}/kernel"][-1]), np.float32)
        for module in parts
    ]
    packed = pack(entry, cfg, kernels)
    return packed.T if _is_flipped(entry) else packed
