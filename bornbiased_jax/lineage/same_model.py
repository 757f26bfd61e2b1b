"""Are two checkpoints one model? By where they come from, by files, tensors, and settings that compute something.

Equal matrices make no equal function: the same weights under another activation compute something else.
"""

from __future__ import annotations

import dataclasses
import filecmp
import math
from collections.abc import Iterable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.roles import Role, RoleSource
from bornbiased_jax.config import ModelConfig

FILES = "the two models' weight files are the same, byte for byte"
# Settings that compute nothing by themselves: how weights were drawn, and what shapes of parameters tell already.
_NEUTRAL = {"init", "init_groups", "num_layers", "d_model", "d_ff", "vocab_size", "tie_embeddings", "bias", "qkv_bias"}
_LLAMA3_ROPE = ("rope_low_freq_factor", "rope_high_freq_factor", "rope_original_max_seq_len")
_ROPE = ("rope_theta", "rotary_fraction", "rope_scaling", "rope_local_theta", "rope_scaling_factor", *_LLAMA3_ROPE)
# GGUF holds settings in single precision.
_SINGLE = 1e-6
NEAR = 0.05
"""Models are nearly equal where no number differs by more than this part of its tensor's root mean square."""
_ROUNDINGS = {
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "8 bits (e4m3)": ml_dtypes.float8_e4m3fn,
    "8 bits (e5m2)": ml_dtypes.float8_e5m2,
}
# Biases and norms of heads of a rotated or reordered copy have the same size, up to what float32 leaves.
_SAME_SIZE = 1e-3
_PIECE = 1 << 22


@dataclasses.dataclass(frozen=True)
class Apart:
    """How far two models with the same tensors are apart, measured on every number.

    Attributes:
        largest: the largest difference, in parts of its tensor's root mean square.
        path: of that tensor.
        rounding: the type that makes all tensors equal once both are rounded to it; None where none does.
    """

    largest: float
    path: str
    rounding: str | None

    @property
    def sentence(self) -> str:
        """How equal the weights are."""
        if self.largest == 0.0:
            return "the two models have the same weights, tensor by tensor"
        how = "nearly equal" if self.rounding is None else f"equal after rounding to {self.rounding}"
        return (
            f"the weights are {how} (largest difference {self.largest:.2g} of its tensor's root mean square, in "
            f"{self.path})"
        )


def tensors_apart(base: RoleSource, suspect: RoleSource) -> Apart | None:
    """Measure how far two models are apart, tensor by tensor; None where they are not even nearly equal.

    The first tensor that is too far ends it, so that models that differ are told apart after a tensor or two.
    """
    theirs = {role.path: role for role in suspect.roles}
    if theirs.keys() != {role.path for role in base.roles}:
        return None
    largest, path, roundings = 0.0, "", list(_ROUNDINGS)
    for role in base.roles:
        other = theirs[role.path]
        if base.array_shape(role) != suspect.array_shape(other):
            return None
        first_N, second_N = base.read(role).reshape(-1), suspect.read(other).reshape(-1)
        difference = max(float(np.abs(ours - their).max()) for ours, their in _pieces(first_N, second_N))
        if difference == 0.0:
            continue
        roundings = [name for name in roundings if _equal_rounded(first_N, second_N, _ROUNDINGS[name])]
        size = math.sqrt(float(np.square(first_N, dtype=np.float64).mean())) or math.inf
        if difference > NEAR * size and not roundings:
            return None
        if difference / size >= largest:
            largest, path = difference / size, role.path
    return Apart(largest, path, roundings[0] if largest and roundings else None)


def _equal_rounded(first_N: np.ndarray, second_N: np.ndarray, dtype: Any) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):
        return all(
            bool(np.array_equal(ours.astype(dtype), their.astype(dtype))) for ours, their in _pieces(first_N, second_N)
        )


def _pieces(first_N: np.ndarray, second_N: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    return ((first_N[i : i + _PIECE], second_N[i : i + _PIECE]) for i in range(0, len(first_N), _PIECE))


def vectors_apart(base: RoleSource, suspect: RoleSource) -> list[str]:
    """Name biases and per-head norms that no rotation and no other order explains, as one item for each kind."""
    differing: dict[str, list[str]] = {}
    sizes = [_vector_sizes(source) for source in (base, suspect)]
    for path, (kind, size) in sizes[0].items() | sizes[1].items():
        other = min(model.get(path, (kind, 0.0))[1] for model in sizes)
        if not math.isclose(size, other, rel_tol=_SAME_SIZE):
            differing.setdefault(kind, []).append(path)
    return [f"{kind} differ: {', '.join(sorted(set(paths)))}" for kind, paths in sorted(differing.items())]


def _vector_sizes(source: RoleSource) -> dict[str, tuple[str, float]]:
    """Measure the norm of every bias and of every scale of heads, by module over all blocks."""
    squares: dict[str, tuple[str, float]] = {}
    for role in source.roles:
        kind = _vector_kind(role)
        if kind is not None:
            name = role.module or role.group
            total = squares.get(name, (kind, 0.0))[1] + float(np.square(source.read(role), dtype=np.float64).sum())
            squares[name] = kind, total
    return {name: (kind, math.sqrt(total)) for name, (kind, total) in squares.items()}


def _vector_kind(role: Role) -> str | None:
    if role.leaf == "bias" or role.group == "bias":
        return "biases"
    return "norms of heads" if role.module in ("query_norm", "key_norm") else None


def same_source(base: Checkpoint, suspect: Checkpoint) -> str | None:
    """Describe base and suspect as one and the same model, by where they come from; None where they are not."""
    drawn_alike = base.kind == suspect.kind and base.kind in ("birth", "run") and base.cfg == suspect.cfg
    if drawn_alike and base.description == suspect.description:
        return f"the base is the suspect: both are the {base.description}"
    base_files, suspect_files = ([path.resolve() for path in reader.files] for reader in (base, suspect))
    if base_files and base_files == suspect_files and base.cfg == suspect.cfg:
        return f"the base is the suspect: both are read from {base.files[0]}"
    return None


def same_files(base: Checkpoint, suspect: Checkpoint) -> bool:
    """Return whether the files that hold the weights are the same, byte for byte."""
    if not base.files or len(base.files) != len(suspect.files):
        return False
    return all(
        filecmp.cmp(base_file, suspect_file, shallow=False)
        for base_file, suspect_file in zip(base.files, suspect.files, strict=True)
    )


def with_differences(sentence: str, differences: Iterable[str]) -> str:
    """Append what differs to a sentence that says what is the same.

    >>> with_differences("the same matrices", ["settings differ: window"])
    'the same matrices; settings differ: window'
    """
    return "; ".join([sentence, *differences])


def settings_apart(base_cfg: ModelConfig, suspect_cfg: ModelConfig) -> list[str]:
    """Name the settings that make two models of the same weights compute something else, as one item or none.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> settings_apart(preset("llama-tiny"), preset("llama-tiny", window=3, init="normal-0.02"))
        ['settings differ: window']
    """
    settings = _computing(base_cfg), _computing(suspect_cfg)
    names = [name for name, value in settings[0].items() if not _equal(value, settings[1][name])]
    return [f"settings differ: {', '.join(names)}"] if names else []


def _computing(cfg: ModelConfig) -> dict[str, Any]:
    """Return the settings that change numbers; None for those that change none beside the others."""
    values = {field.name: getattr(cfg, field.name) for field in dataclasses.fields(cfg)}
    local = cfg.is_local if cfg.is_local is not None and any(cfg.is_local) else None
    values["attention_pattern"] = local
    idle: set[str] = set()
    if cfg.positions != "rope" or not cfg.attention:
        idle.update(_ROPE)
    if cfg.rope_scaling == "none":
        idle.add("rope_scaling_factor")
    if cfg.rope_scaling != "llama3":
        idle.update(_LLAMA3_ROPE)
    if local is None:
        idle.add("rope_local_theta")
    if cfg.num_experts is None:
        idle.update(("experts_per_token", "normalize_expert_weights"))
    if not cfg.qk_norm:
        idle.add("qk_norm_scope")
    if cfg.attention_kernel not in ("sigmoid", "clipped") and cfg.positional_scale != "attenuate":
        idle.add("max_seq_len")
    if cfg.norm == "none" and not cfg.qk_norm and not cfg.head_norm:
        idle.add("norm_eps")
    # Coordinates that stay zero lower the mean square that the constant is added to.
    values["norm_eps"] = cfg.norm_eps * cfg.d_model
    values["attention_scale"] = cfg.attention_scale or 1 / math.sqrt(cfg.key_dim)
    return {name: None if name in idle else value for name, value in values.items() if name not in _NEUTRAL}


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        return math.isclose(first, second, rel_tol=_SINGLE)
    return bool(first == second)
