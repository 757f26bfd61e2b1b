"""LoRA adapters as PEFT stores them: read, checked and merged into the weights that they belong to, and written.

``adapter_config.json`` has the rank r and α, ``adapter_model.safetensors`` two matrices for each adapted module of the
Hugging Face model: A [r, in] and B [out, r]. Merged, W [out, in] becomes W + (α/r) B A, with α/√r where the adapter was
trained with rank-stabilised scaling.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save

from bornbiased_jax import io
from bornbiased_jax.checkpoints.export import MAKER as EXPORTER
from bornbiased_jax.checkpoints.export import family_of
from bornbiased_jax.checkpoints.formats.run import read_run, restore_adapter
from bornbiased_jax.checkpoints.layout import Entry, Shapes, file_shapes, pack, shape_in_file, unpack
from bornbiased_jax.checkpoints.reference import parse_ref
from bornbiased_jax.checkpoints.tensors import read_finite
from bornbiased_jax.checkpoints.weight_files import HOW_TO_CONVERT, open_weights
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.io import Folder
from bornbiased_jax.model.adapters import IN, OUT
from bornbiased_jax.model.adapters import Adapter as Trained
from bornbiased_jax.parameters import Params, flatten, unflatten
from bornbiased_jax.schema import cut, shown

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"

# Fields that change what an adapter computes, with the values under which it is W + (α/r) B A.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "lora_bias": (False, None),
    "use_dora": (False, None),
    "use_qalora": (False, None),
    "modules_to_save": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "layer_replication": (None, []),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, [], {}),
    "megatron_config": (None, {}),
    "arrow_config": (None, {}),
}
# Fields that say how it was trained or where it came from, or which the names of the tensors say again.
_HARMLESS = frozenset(
    """
    alora_invocation_tokens auto_mapping base_model_name_or_path corda_config ensure_weight_tying eva_config
    exclude_modules fan_in_fan_out inference_mode init_lora_weights layers_pattern layers_to_transform loftq_config
    lora_dropout megatron_core peft_version qalora_group_size revision target_modules task_type
    """.split()
)
_NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<factor>[AB])(\.default)?\.weight")


class Adapter(NamedTuple):
    """A LoRA adapter.

    Attributes:
        where: its folder, for errors.
        rank: r.
        scale: what B A is multiplied by.
        factors: by module of the Hugging Face model, A [r, in] and B [out, r].
    """

    where: str
    rank: int
    scale: float
    factors: dict[str, tuple[np.ndarray, np.ndarray]]


def read_adapter(folder: str | Path) -> Adapter:
    """Read an adapter as ``save_pretrained`` of PEFT writes it.

    Raises:
        InputError: a file is missing, damaged or a pickle; a field is not understood, or changes what the adapter
            computes in a way that is not supported; a matrix is missing, of a wrong shape, or not finite.
    """
    folder = io.user_path(folder)
    rank, scale = _read_config(folder)
    if not (folder / WEIGHTS).is_file():
        if (folder / PICKLE).is_file():
            raise InputError(f"{folder / PICKLE} {HOW_TO_CONVERT}")
        raise InputError(f"{folder} has no {WEIGHTS}: fetch the adapter's weights")
    # Two factors, A and B, of every adapted module.
    source = open_weights(folder, [folder / WEIGHTS])
    modules: dict[str, dict[str, np.ndarray]] = {}
    for name, shape in source.shapes.items():
        match = _NAME.fullmatch(name)
        if match is None:
            raise InputError(f"tensor {name} of {folder} is none of a LoRA adapter's: it was saved by something else")
        if len(shape) != 2 or shape[0 if match["factor"] == "A" else 1] != rank:
            raise InputError(f"tensor {name} of {folder} has shape {list(shape)}, which does not fit its rank {rank}")
        modules.setdefault(match["module"], {})[match["factor"]] = np.asarray(read_finite(source, name), np.float32)
    for module, factors in modules.items():
        if len(factors) < 2:
            raise InputError(f"{folder} has only lora_{next(iter(factors))} of {module}: fetch the adapter again")
    if not modules:
        raise InputError(f"{folder / WEIGHTS} holds no matrix: fetch the adapter again")
    return Adapter(str(folder), rank, scale, {module: (pair["A"], pair["B"]) for module, pair in modules.items()})


def _read_config(folder: Path) -> tuple[int, float]:
    """Return an adapter's rank and what B A is multiplied by.

    Raises:
        InputError: there is no configuration, or a field is not understood, not supported or no number.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder: name an adapter's, with its {CONFIG}")
    config = io.read_json(folder / CONFIG)
    if not isinstance(config, dict):
        raise InputError(f"{folder / CONFIG} is not a JSON object: it should be a PEFT adapter's configuration")
    for name, value in config.items():
        if name in _PLAIN and value not in _PLAIN[name]:
            raise InputError(
                f"{folder / CONFIG} has {name}={shown(value)}, but only a LoRA adapter with {name}={_PLAIN[name][0]!r} "
                "is supported: merge it with PEFT"
            )
        if name not in _PLAIN and name not in _HARMLESS and name not in ("r", "lora_alpha", "use_rslora"):
            raise InputError(
                f"{folder / CONFIG} has {cut(name)}={shown(value)}, a field that is not understood: merge it with PEFT"
            )
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise InputError(f"{folder / CONFIG} has r={shown(rank)}, which is no rank: fetch the adapter again")
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not math.isfinite(alpha):
        raise InputError(
            f"{folder / CONFIG} has lora_alpha={shown(alpha)}, which is no number: fetch the adapter again"
        )
    # Rank-stabilized scaling divides by the root of the rank.
    return rank, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def merge_adapter(cfg: ModelConfig, params: Params, adapter: Adapter) -> Params:
    """Merge an adapter into the weights, float32 NumPy.

    Args:
        cfg, params: the model that it was trained on, of a family that transformers has.
        adapter: the adapter.

    Raises:
        InputError: the model has no such module, a matrix does not fit, or the rank exceeds a matrix's width.
    """
    family = family_of(cfg)
    shapes = file_shapes(cfg, family.biases(cfg))
    entries = {entry.name.removesuffix(".weight"): entry for entry in family.entries(shapes)}
    flat = {path: np.array(leaf, np.float32) for path, leaf in flatten(params).items()}
    for module, (a_rI, b_Or) in adapter.factors.items():
        entry = entries.get(module)
        if entry is None or not entry.name.endswith(".weight") or not entry.paths[0].endswith("/kernel"):
            raise InputError(f"{adapter.where} adapts {module}, which is no matrix of this {family.name} model")
        delta = _delta(adapter, entry, shape_in_file(entry, shapes), a_rI, b_Or)
        for path, part in zip(entry.paths, unpack(entry, cfg, delta), strict=True):
            target = flat[path] if entry.layer is None else flat[path][entry.layer]
            target += part
    return unflatten(flat)


def _delta(adapter: Adapter, entry: Entry, shape: tuple[int, ...], a_rI: np.ndarray, b_Or: np.ndarray) -> np.ndarray:
    """Return what is added to a matrix, as its file lays it out: transposed where transformers has a Conv1D."""
    flipped = _is_flipped(entry)
    out, into = shape[::-1] if flipped else shape
    module = entry.name.removesuffix(".weight")
    if (len(b_Or), a_rI.shape[1]) != (out, into):
        raise InputError(
            f"{adapter.where} adapts {module} as a matrix of {len(b_Or)} by {a_rI.shape[1]}, but the model's is "
            f"{out} by {into}: it is another model's adapter"
        )
    if adapter.rank > min(out, into):
        raise InputError(
            f"{adapter.where} has rank {adapter.rank}, more than the width of {module} ({out} by {into}): it is no "
            "low-rank adapter; fine-tune the matrix itself"
        )
    delta_OI: np.ndarray = np.float32(adapter.scale) * (b_Or @ a_rI)
    return delta_OI.T if flipped else delta_OI


def _is_flipped(entry: Entry) -> bool:
    """Tell whether the file keeps a matrix as [in, out]: transformers' Conv1D."""
    return entry.form in ("same", "fused columns")


def export_adapter(reference: str, folder: str | Path, *, overwrite: bool = False) -> str:
    """Write the LoRA adapter that a run trained in PEFT's layout.

    Args:
        reference: the run, as in ``RUN@seed=0,step=100``.
        folder: as of :func:`write_adapter`.
        overwrite: as of :func:`write_adapter`.

    Returns:
        What the adapter was trained beside.

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
    cfg: ModelConfig, adapter: Trained, trained: Params, folder: str | Path, *, base: str, overwrite: bool = False
) -> None:
    """Write a LoRA adapter that was trained here as ``PeftModel.from_pretrained`` opens it on the exported base.

    Where transformers keeps query, key and value in one matrix, their factors stand beside each other: the rank in the
    file is then the sum of theirs, of every module alike, filled up with zeros, and α grows with it.

    Args:
        cfg: the base, of a family that transformers has.
        adapter: the adapter's settings.
        trained: its parameters, without a leading axis of seeds.
        folder: a new or empty folder, or one that an earlier call wrote.
        base: what ``base_model_name_or_path`` is to say.
        overwrite: also replace files of other origin.

    Raises:
        InputError: the adapter is no LoRA, the base is of no family, or the folder holds other things.
    """
    if adapter.method != "lora":
        raise InputError(f"{adapter.method} is no LoRA adapter, and only these have PEFT's layout: use the run itself")
    place = Folder(folder, EXPORTER, overwrite=overwrite)
    place.check(CONFIG, WEIGHTS)
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
    entry: Entry, cfg: ModelConfig, shapes: Shapes, parts: list[str], part: str, out_rO: np.ndarray
) -> np.ndarray:
    """Return B [out, r] of a module in the file of which one part alone is adapted."""
    kernels = [
        out_rO if module == part else np.zeros((len(out_rO), shapes[f"{module}/kernel"][-1]), np.float32)
        for module in parts
    ]
    packed = pack(entry, cfg, kernels)
    return packed.T if _is_flipped(entry) else packed
