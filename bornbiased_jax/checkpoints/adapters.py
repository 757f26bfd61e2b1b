"""Adapters of LoRA's kind as PEFT stores them: read, checked, and merged into the matrices that they belong to.

``adapter_config.json`` has the rank r and α, ``adapter_model.safetensors`` two matrices for each adapted module:
A [r, in] and B [out, r]. Merged, W [out, in] becomes W + s B A, with s = α/r, or α/√r where scaling is
rank-stabilized; r and α may differ by module. DoRA then gives every row of W the norm that the adapter stores. Modules
that were trained whole replace those of the base. PiSSA and OLoRA start from a part of W, which is taken out of W
first.

Source: PEFT 0.21.2 (github.com/huggingface/peft), LoRA (2106.09685), rsLoRA (2312.03732), DoRA (2402.09353),
PiSSA (2404.02948), OLoRA (2406.01775).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple, NotRequired

import numpy as np
from annotated_types import Ge, Gt
from typing_extensions import TypedDict

from bornbiased_jax import io, schema
from bornbiased_jax.checkpoints.conventions import HEAD_TENSORS, is_other_head
from bornbiased_jax.checkpoints.tensors import NamedTensors, read_finite
from bornbiased_jax.checkpoints.weight_files import WeightFiles, locate_tensors
from bornbiased_jax.errors import InputError
from bornbiased_jax.schema import cut, shown

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"

# Values of fields that change what an adapter computes; null, false and empty values change nothing.
_SUPPORTED: Mapping[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", "lora_only", "all"),
    "init_lora_weights": (True, "gaussian", "eva", "orthogonal", "pissa", "olora"),
}
# Fields that are read here, say how the adapter was trained, or repeat what the names of the tensors say.
_READ = frozenset(
    """
    r lora_alpha use_rslora use_dora lora_bias rank_pattern alpha_pattern modules_to_save trainable_token_indices
    auto_mapping base_model_name_or_path ensure_weight_tying eva_config exclude_modules fan_in_fan_out inference_mode
    layers_pattern layers_to_transform loftq_config lora_dropout megatron_core peft_version qalora_group_size revision
    runtime_config target_modules target_parameters task_type
    """.split()
)
_OF_MLX = {"fine_tune_type", "lora_parameters"}
_PREFIX = "base_model.model."
_FACTOR = re.compile(
    r"(?P<module>.+)\.(?P<part>lora_(?:embedding_)?[AB]|lora_magnitude_vector)(\.default)?(?P<leaf>\.weight|\.bias|)"
)
_TOKENS = ".token_adapter.trainable_tokens_delta"
_EMBEDDING = re.compile(r"(.+\.)?(embed_tokens|wte|embed_in|word_embeddings)\.weight")


_Rank = Annotated[int, Ge(1)]
_Rows = list[Annotated[int, Ge(0)]]


class AdapterFile(TypedDict):
    """Of ``adapter_config.json`` what is read."""

    r: _Rank
    lora_alpha: float
    rank_pattern: NotRequired[dict[str, _Rank] | None]
    alpha_pattern: NotRequired[dict[str, Annotated[float, Gt(0)]] | None]
    trainable_token_indices: NotRequired[_Rows | dict[str, _Rows] | None]
    use_rslora: NotRequired[bool | None]
    use_dora: NotRequired[bool | None]
    init_lora_weights: NotRequired[object]
    fan_in_fan_out: NotRequired[bool | None]
    target_parameters: NotRequired[object]
    base_model_name_or_path: NotRequired[str | None]


class Update(NamedTuple):
    """The change that an adapter makes to one matrix.

    Attributes:
        a_rI, b_Or: the factors.
        scale: what B A is multiplied by.
        norms_O: DoRA's norm of each row, None without DoRA.
        bias_O: what is added to the module's bias, None for nothing.
        initialization: "pissa" or "olora", where a part of the base was taken out of it; else "".
    """

    a_rI: np.ndarray
    b_Or: np.ndarray
    scale: float
    norms_O: np.ndarray | None
    bias_O: np.ndarray | None
    initialization: str

    def merged(self, weight_OI: np.ndarray) -> np.ndarray:
        """Return the matrix with the adapter merged into it."""
        weight_OI = weight_OI - self._initial(weight_OI)
        weight_OI = weight_OI + np.float32(self.scale) * (self.b_Or @ self.a_rI)
        if self.norms_O is None:
            return weight_OI
        return np.asarray(weight_OI * (self.norms_O / np.linalg.norm(weight_OI, axis=1))[:, None], np.float32)

    def _initial(self, weight_OI: np.ndarray) -> np.ndarray:
        """Return the part of the base that the factors began as."""
        rank = len(self.a_rI)
        if self.initialization == "pissa":
            u_OR, s_R, v_RI = np.linalg.svd(weight_OI, full_matrices=False)
            return np.asarray((u_OR[:, :rank] * s_R[:rank]) @ v_RI[:rank])
        if self.initialization == "olora":
            q_OR, r_RI = np.linalg.qr(weight_OI)
            return np.asarray(np.float32(self.scale) * (q_OR[:, :rank] @ r_RI[:rank]))
        return np.zeros((), np.float32)


@dataclasses.dataclass(frozen=True)
class PeftAdapter:
    """An adapter of LoRA's kind.

    Attributes:
        where: its folder, for errors.
        base: what it says its base is, or "".
        updates: by module of the Hugging Face model.
        tensors: that replace those of the base, by name.
        tokens: rows that replace those of a table, by its name: their numbers and the rows.
        has_conv1d: whether the modules of the base whose names begin with ``c_`` lie as [in, out].
    """

    where: str
    base: str
    updates: Mapping[str, Update]
    tensors: Mapping[str, np.ndarray]
    tokens: Mapping[str, tuple[list[int], np.ndarray]]
    has_conv1d: bool = False

    @property
    def unties(self) -> bool:
        """Whether embedding or head was trained, each for itself, so that a base's one table becomes two.

        Rows of tokens are trained in the one table.
        """
        return any(name in HEAD_TENSORS or _EMBEDDING.fullmatch(name) for name in self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the matrices that the adapter replaces or adapts."""
        return (*(f"{module}.weight" for module in self.updates), *self.tensors)

    def names_in(self, names: Iterable[str], where: str) -> dict[str, str]:
        """Return the names of a base's tensors that are others with the adapter, with the adapter's names for them.

        Files of models without a head have names without the first prefix; so have the adapters of such models. Heads
        of classifiers and reward models that the base lacks have none: the language model does without them.

        Raises:
            InputError: the base lacks one.
        """
        biases = [f"{module}.bias" for module, update in self.updates.items() if update.bias_O is not None]
        available = dict.fromkeys(names)
        adapted = {}
        for name in (*self.names, *biases, *self.tokens):
            candidates = (name, f"model.{name}", f"transformer.{name}", name.partition(".")[2])
            place = next((candidate for candidate in candidates if candidate in available), None)
            if place is None and is_other_head(name):
                continue
            if place is None:
                raise InputError(f"{self.where} adapts {name}, which is no matrix of {where}: it is another model's")
            adapted[place] = name
        return adapted

    def left_out(self, adapted: Mapping[str, str]) -> str:
        """Return what to say of heads that are not in a base, from the names that are (:meth:`names_in`); or ""."""
        heads = sorted(set(filter(is_other_head, self.names)) - set(adapted.values()))
        return f"left out of the adapter, as no part of a language model: {', '.join(heads)}" if heads else ""

    def merged(self, name: str, tensor: np.ndarray, *, is_conv1d: bool = False) -> np.ndarray:
        """Return a tensor of the base with the adapter merged into it, float32; a matrix of Conv1D lies as [in, out].

        Raises:
            InputError: its shape is not the adapter's.
        """
        tensor = np.asarray(tensor, np.float32)
        module, _, leaf = name.rpartition(".")
        replacement, update = self.tensors.get(name), self.updates.get(module)
        if replacement is not None:
            self._check(name, tensor.shape, replacement.shape)
            tensor = replacement
        if name in self.tokens:
            rows, values = self.tokens[name]
            self._check(name, (len(rows), tensor.shape[-1]), values.shape)
            if max(rows, default=0) >= len(tensor):
                raise InputError(
                    f"{self.where} has row {max(rows)} of {name}, which has {len(tensor)}: another model's"
                )
            tensor = tensor.copy()
            tensor[rows] = values
        if update is None:
            return tensor
        if leaf == "bias":
            return tensor if update.bias_O is None else tensor + np.float32(update.scale) * update.bias_O
        weight_OI = tensor.T if is_conv1d else tensor
        self._check(module, weight_OI.shape, (len(update.b_Or), update.a_rI.shape[1]))
        return update.merged(weight_OI).T if is_conv1d else update.merged(weight_OI)

    def _check(self, name: str, shape: tuple[int, ...], adapted: tuple[int, ...]) -> None:
        if shape != adapted:
            sizes, model = (" by ".join(map(str, sizes)) for sizes in (adapted, shape))
            raise InputError(
                f"{self.where} adapts {name} as a matrix of {sizes}, but the model's is {model}: it is another model's "
                "adapter"
            )


def is_adapter(folder: Path) -> bool:
    """Tell whether a folder holds an adapter."""
    return (folder / CONFIG).is_file()


def weights_file(folder: Path) -> Path:
    """Return the file of an adapter's weights: safetensors, or where there is none what ``torch.save`` wrote."""
    is_pickled = not (folder / WEIGHTS).is_file() and (folder / PICKLE).is_file()
    return folder / (PICKLE if is_pickled else WEIGHTS)


def read_adapter(folder: str | Path) -> PeftAdapter:
    """Read an adapter as ``save_pretrained`` of PEFT writes it.

    Raises:
        InputError: a file is missing or corrupted; a field is not understood, or changes what the adapter
            computes in a way that is not supported; a matrix is missing, of a wrong shape, or not finite.
    """
    folder = io.user_path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder: name an adapter's, with its {CONFIG}")
    config = _read_config(folder / CONFIG)
    weights = weights_file(folder)
    if not weights.is_file():
        raise InputError(f"{folder} has no {WEIGHTS}: fetch the adapter's weights")
    # Factors by module; everything else is a tensor of a module that was trained whole.
    source = locate_tensors(folder, WeightFiles(weights.name, [weights]))
    modules: dict[str, dict[str, np.ndarray]] = {}
    tensors: dict[str, np.ndarray] = {}
    tokens: dict[str, tuple[list[int], np.ndarray]] = {}
    for name in source.shapes:
        plain = name.removeprefix(_PREFIX).replace(".base_layer.", ".").replace(".modules_to_save.default.", ".")
        match = _FACTOR.fullmatch(plain)
        if match is not None:
            factors = modules.setdefault(match["module"], {})
            is_bias = match["leaf"] == ".bias"
            factors["bias" if is_bias else match["part"]] = _read(source, name)
        elif plain.endswith(_TOKENS):
            module = plain.removesuffix(_TOKENS)
            tokens[f"{module}.weight"] = _token_rows(folder, config, module), _read(source, name)
        elif not name.startswith(_PREFIX):
            raise InputError(f"tensor {name} of {folder} is none of a LoRA adapter's: it was saved by something else")
        else:
            tensors[plain] = _read(source, name)
    updates = {module: _update(folder, config, module, factors) for module, factors in modules.items()}
    if not updates and not tensors and not tokens:
        raise InputError(f"{weights} holds no matrix: save it with PEFT again")
    base = config.get("base_model_name_or_path") or ""
    return PeftAdapter(str(folder), base, updates, tensors, tokens, bool(config.get("fan_in_fan_out")))


def _read(source: NamedTensors, name: str) -> np.ndarray:
    return np.asarray(read_finite(source, name), np.float32)


def _update(folder: Path, config: AdapterFile, module: str, factors: dict[str, np.ndarray]) -> Update:
    """Return what an adapter does to a module."""
    for first, second in (("lora_A", "lora_B"), ("lora_embedding_A", "lora_embedding_B")):
        if (first in factors) != (second in factors):
            missing = first if second in factors else second
            present = second if second in factors else first
            raise InputError(f"{folder} has only {present} of {module}, and no {missing}: save it with PEFT again")
    is_embedding = "lora_embedding_A" in factors
    if not is_embedding and "lora_A" not in factors:
        raise InputError(f"{folder} has no lora_A of {module}: save it with PEFT again")
    a_rI, b_Or = (factors[f"lora_{'embedding_' if is_embedding else ''}{name}"] for name in "AB")
    rank = _of_module(config.get("rank_pattern"), module, config["r"])
    alpha = _of_module(config.get("alpha_pattern"), module, config["lora_alpha"])
    for name, factor, axis in (("lora_A", a_rI, 0), ("lora_B", b_Or, 1)):
        if factor.ndim != 2 or factor.shape[axis] != rank:
            # Of all experts of a block PEFT stores the factors one after the other.
            if config.get("target_parameters") and module.endswith("experts"):
                raise InputError(
                    f"{folder} adapts {module} by target_parameters, all experts together, which is not supported: "
                    "merge it with PEFT"
                )
            raise InputError(
                f"tensor {name} of {module} of {folder} has shape {list(factor.shape)}, which does not fit its rank "
                f"{rank:g}"
            )
    norms_O = factors.get("lora_magnitude_vector")
    if norms_O is not None and (is_embedding or norms_O.size != len(b_Or)):
        raise InputError(f"{folder} has DoRA norms of {module} that do not fit its matrix: merge it with PEFT")
    if config.get("use_dora") and norms_O is None:
        raise InputError(
            f"{folder} has no lora_magnitude_vector of {module}, which DoRA needs: save it with PEFT again"
        )
    # Rank-stabilized scaling divides by the root of the rank.
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    initial = config.get("init_lora_weights")
    return Update(
        # The rows of a table are tokens: [vocab, residual] stands for [out, in].
        b_Or=a_rI.T if is_embedding else b_Or,
        a_rI=b_Or.T if is_embedding else a_rI,
        scale=scale,
        norms_O=None if norms_O is None else norms_O.reshape(-1),
        bias_O=factors.get("bias"),
        initialization=str(initial) if initial in ("pissa", "olora") and not is_embedding else "",
    )


def _of_module(patterns: Mapping[str, float] | None, module: str, default: float) -> float:
    """Return the rank or α of a module: that of the first pattern which its name ends in, or of all."""
    matches = (value for ending, value in (patterns or {}).items() if re.fullmatch(_pattern(ending), module))
    return next(matches, default)


def _pattern(ending: str) -> str:
    """Return the regular expression of the names of modules that end in a pattern, as PEFT reads it."""
    return rf"(.*\.)?({ending})"


def _token_rows(folder: Path, config: AdapterFile, module: str) -> list[int]:
    """Return the numbers of the tokens whose rows were trained."""
    stated = config.get("trainable_token_indices")
    if isinstance(stated, dict):
        stated = next((rows for name, rows in stated.items() if module.endswith(str(name))), None)
    if not isinstance(stated, list):
        raise InputError(
            f"{folder / CONFIG} says of no tokens which rows of {module} they are: save it with PEFT again"
        )
    return stated


def _read_config(path: Path) -> AdapterFile:
    """Read an adapter's configuration; refuse fields that are not understood, not supported or no number."""
    config: dict[str, object] = schema.check(dict[str, object], io.read_json(path), str(path))
    if "peft_type" not in config and _OF_MLX & config.keys():
        raise InputError(
            f"{path} is of an adapter of mlx-lm, not of PEFT: merge it with mlx_lm.fuse, and name what it writes"
        )
    # What kind of adapter it is first: other fields follow from it.
    for name, value in sorted(config.items(), key=lambda entry: entry[0] != "peft_type"):
        if not value and name not in ("peft_type", "r", "lora_alpha"):
            continue
        if name in _SUPPORTED:
            if value not in _SUPPORTED[name]:
                raise InputError(
                    f"{path} has {name}={shown(value)}, but only a LoRA adapter with {name}="
                    f"{' or '.join(map(repr, _SUPPORTED[name]))} is supported: merge it with PEFT"
                )
        elif name not in _READ:
            raise InputError(
                f"{path} has {cut(name)}={shown(value)}, a field that is not understood: merge it with PEFT"
            )
    checked: AdapterFile = schema.check(AdapterFile, config, str(path))
    for ending in (*(checked.get("rank_pattern") or {}), *(checked.get("alpha_pattern") or {})):
        try:
            re.compile(_pattern(ending))
        except (re.error, RecursionError, OverflowError) as error:
            raise InputError(
                f"{path} has the pattern {shown(ending)}, which is no regular expression: correct it"
            ) from error
    return checked


def adapt(base: NamedTensors, adapter: PeftAdapter, *, is_tied: bool) -> NamedTensors:
    """Wrap the tensors of a base, whose head may be its embedding, to merge the adapter into them when they are read.

    Raises:
        InputError: the adapter adapts a module that the base does not have.
    """
    table = next(filter(_EMBEDDING.fullmatch, base.shapes), None)
    if is_tied and adapter.unties and table is not None and not HEAD_TENSORS & set(base.shapes):
        head = min(HEAD_TENSORS & set(adapter.names), default="lm_head.weight")
        base = dataclasses.replace(base, tensors={**base.tensors, head: base.tensors[table]})
    adapted = adapter.names_in(base.shapes, base.where)

    def read(name: str) -> np.ndarray:
        is_conv1d = adapter.has_conv1d and name.split(".")[-2].startswith("c_")
        return adapter.merged(adapted[name], base.read(name), is_conv1d=is_conv1d)

    merged = {name: base.tensors[name]._replace(read=functools.partial(read, name)) for name in adapted}
    notes = [*base.notes, f"the adapter {adapter.where} is merged into {base.where}"]
    if left_out := adapter.left_out(adapted):
        notes.append(left_out)
    return NamedTensors(f"{base.where} with {adapter.where}", {**base.tensors, **merged}, tuple(notes))


def base_folder(folder: Path, adapter: PeftAdapter) -> Path:
    """Return the folder of an adapter's base, which its configuration names.

    Raises:
        InputError: it is not on this machine.
    """
    for place in (Path(adapter.base), folder / adapter.base, folder.parent / adapter.base):
        # Not Path.is_dir, which raises where no folder can have such a name.
        if adapter.base and os.path.isdir(place):
            return place
    raise InputError(
        f"{folder} is an adapter of {shown(adapter.base)}, which is no folder here: merge it into its base with "
        f"`bornbiased derive BASE --change lora:{folder} --out DIR`, and name DIR"
    )
