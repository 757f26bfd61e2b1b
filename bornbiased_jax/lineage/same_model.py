"""Are two checkpoints one model? By where they come from, by their files, and by the settings that compute something.

Equal matrices make no equal function: the same weights under another activation compute something else.
"""

from __future__ import annotations

import dataclasses
import filecmp
import math
from collections.abc import Iterable
from typing import Any

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import ModelConfig

FILES = "the two models' weight files are the same, byte for byte"
# Settings that compute nothing by themselves: how weights were drawn, and what shapes of parameters tell already.
_NEUTRAL = {"init", "init_groups", "num_layers", "d_model", "d_ff", "vocab_size", "tie_embeddings", "bias", "qkv_bias"}
_LLAMA3_ROPE = ("rope_low_freq_factor", "rope_high_freq_factor", "rope_original_max_seq_len")
_ROPE = ("rope_theta", "rotary_fraction", "rope_scaling", "rope_local_theta", "rope_scaling_factor", *_LLAMA3_ROPE)
# GGUF holds settings in single precision.
_SINGLE = 1e-6


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
