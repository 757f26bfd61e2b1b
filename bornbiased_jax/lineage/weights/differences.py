"""What differs between two models whose matrices are the same: settings, biases, per-head norms, logits.

Equal matrices make no equal function: the same weights under another activation compute something else. Only where
nothing of this module differs may a verdict speak of the same function.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.lineage.weights.align import Aligned
from bornbiased_jax.lineage.weights.logits import SAME_LOGITS, fit_in_memory, logits_apart
from bornbiased_jax.lineage.weights.view import Matrix, folded
from bornbiased_jax.parameters import Parameter, parameter_table

# Settings that compute nothing by themselves: how weights were drawn, and what shapes of parameters tell already.
_NEUTRAL = {"init", "num_layers", "d_model", "d_ff", "vocab_size", "tie_embeddings", "bias", "qkv_bias"}
_LLAMA3_ROPE = ("rope_low_freq_factor", "rope_high_freq_factor", "rope_original_max_seq_len")
_ROPE = ("rope_theta", "rotary_fraction", "rope_scaling", "rope_local_theta", "rope_scaling_factor", *_LLAMA3_ROPE)
# GGUF holds settings in single precision.
_SINGLE = 1e-6
# Vectors whose difference is below this part of them are equal: more than half precision loses.
_CLOSE = 1e-2
_TINY = 1e-6
# Matrices that are compared hidden unit by hidden unit and head by head; others are compared as a whole.
_PAIRED = {
    *("attention/query", "attention/key", "attention/value", "attention/output"),
    *("mlp/gate", "mlp/up", "mlp/down"),
}


class MatchedUnits(NamedTuple):
    """The hidden units of two blocks that are the same.

    Attributes:
        changes: what was done to them.
        units_F: the suspect's unit for each unit of the base.
        factors_F: by what each unit's row of up was multiplied.
    """

    changes: set[str]
    units_F: np.ndarray
    factors_F: np.ndarray


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


def kinds_of(base: Checkpoint, suspect: Checkpoint, paths: Iterable[str]) -> list[str]:
    """Name the kinds of parameters that differ, from their paths in either model: one item a kind."""
    table = parameter_table(suspect.cfg) | parameter_table(base.cfg)
    kinds = dict.fromkeys(_kind(table[path]) for path in paths)
    return [f"{kind} differ" for kind in kinds]


def _kind(row: Parameter) -> str:
    if row.group == "bias":
        return "biases"
    if row.group == "norm":
        return "norms" if row.axes[-1] == ("residual",) else "per-head norms"
    return {"positions": "positions", "prefix": "prefixes"}.get(row.group, row.group.replace("_", " ") + "s")


def parameters_apart(aligned: Aligned, matches: Sequence[MatchedUnits]) -> list[str]:
    """Name the kinds of parameters that differ where embedding, attention's maps and hidden units are the same.

    Biases are compared with what the norms' biases add to them, in the suspect's coordinates, hidden units and all
    heads together; per-head norms and other parameters of heads in any order of the heads.

    Args:
        aligned: the models, with the map of their residual streams.
        matches: the hidden units of each pair of blocks.
    """
    apart: dict[str, None] = {}
    readers = aligned.base, aligned.suspect
    if "positions/embedding" in parameter_table(readers[0].cfg) and not _same_positions(aligned):
        apart["positions"] = None
    # Block by block: biases, then norms and parameters of heads.
    for pair, units in zip(aligned.pairs, matches, strict=True):
        if not all(_same(*vectors) for vectors in _biases(aligned, pair, units)):
            apart["biases"] = None
        for path, row in parameter_table(readers[0].cfg).items():
            if not row.is_stacked or _is_compared_elsewhere(row):
                continue
            leaves = [reader.read(path, layer) for reader, layer in zip(readers, pair, strict=True) if reader.has(path)]
            if len(leaves) == 1:
                continue  # the settings tell
            if row.reads_residual:
                module = row.module.removeprefix("blocks/")
                rows = [folded(reader, Matrix(module, layer)) for reader, layer in zip(readers, pair, strict=True)]
                turned = rows[0] @ _turn(aligned)
                is_same = _same(turned.T @ turned, rows[1].T @ rows[1])
            else:
                is_same = _same(*(np.sort(leaf, axis=None) for leaf in leaves))
            if not is_same:
                apart[_kind(row)] = None
    # The final norm's bias, by the logits that it adds.
    shifts = [_head_shift(reader, ids_I) for reader, ids_I in zip(readers, _ids(aligned), strict=True)]
    if not _same(*shifts):
        apart["biases"] = None
    return [f"{kind} differ" for kind in apart]


def _is_compared_elsewhere(row: Parameter) -> bool:
    """Return whether a parameter is one of the paired matrices, or a norm or bias at the residual stream."""
    module = row.module.removeprefix("blocks/")
    return module in _PAIRED or (row.axes[-1] == ("residual",) and not row.is_matrix)


def _turn(aligned: Aligned) -> np.ndarray:
    assert aligned.turn_DD is not None
    return aligned.turn_DD


def _ids(aligned: Aligned) -> tuple[np.ndarray, np.ndarray]:
    return aligned.tokens.base_I, aligned.tokens.suspect_I


def _same_positions(aligned: Aligned) -> bool:
    base_TD, suspect_TD = (folded(reader, Matrix("positions")) for reader in (aligned.base, aligned.suspect))
    length = min(len(base_TD), len(suspect_TD))
    return _same(base_TD[:length] @ _turn(aligned), suspect_TD[:length])


def _biases(aligned: Aligned, pair: tuple[int, int], units: MatchedUnits) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield what biases add in two blocks: the base's in the suspect's coordinates, and the suspect's."""
    readers, turn_DD = (aligned.base, aligned.suspect), _turn(aligned)
    sides = list(zip(readers, pair, strict=True))
    cfg = readers[0].cfg
    for sublayer in ("attention", "mlp"):
        # What a sublayer adds to the stream whatever it reads.
        writer = "output" if sublayer == "attention" else "down"
        for module in (f"blocks/{sublayer}/{writer}", *_norms_after(cfg, sublayer)):
            base_D, suspect_D = (_at_stream(reader, module, layer) for reader, layer in sides)
            yield base_D @ turn_DD, suspect_D
    if cfg.mlp:
        for module in ("mlp/gate", "mlp/up"):
            if not all(reader.has(f"blocks/{module}/kernel") for reader in readers):
                continue
            base_F, suspect_F = (_read_bias(reader, module, layer) for reader, layer in sides)
            factors_F = units.factors_F if cfg.gated_mlp and module == "mlp/up" else 1.0
            yield base_F * factors_F, suspect_F[units.units_F]
    if cfg.attention:
        # The part of the two maps of attention that biases make, over all heads.
        for base_map, suspect_map in zip(*(_attention_biases(reader, layer) for reader, layer in sides), strict=True):
            yield (base_map @ turn_DD if base_map.ndim else base_map), suspect_map


def _norms_after(cfg: ModelConfig, sublayer: str) -> tuple[str, ...]:
    """Return the norm on a sublayer's output, whose bias is added to the stream."""
    if cfg.norm != "layernorm" or cfg.norm_position == "pre":
        return ()
    return (f"blocks/{sublayer}_{'post_norm' if cfg.norm_position == 'both' else 'norm'}",)


def _at_stream(reader: Checkpoint, module: str, layer: int) -> np.ndarray:
    """Return a bias in residual coordinates, as the next norm sees it: [D]; zeros where there is none."""
    cfg = reader.cfg
    path = f"{module}/bias"
    bias_D = reader.read(path, layer) if reader.has(path) else np.zeros(cfg.d_model, np.float32)
    row = parameter_table(cfg).get(f"{module}/kernel")
    if row is not None and row.norm is not None:
        bias_D = bias_D * reader.read(f"{row.norm}/scale", layer)
    return bias_D - bias_D.mean() if cfg.norm == "layernorm" and cfg.norm_position == "pre" else bias_D


def _read_bias(reader: Checkpoint, module: str, layer: int) -> np.ndarray:
    """Return what a matrix gives for a stream that its norm makes zero: its bias and the norm's through it."""
    row = parameter_table(reader.cfg)[f"blocks/{module}/kernel"]
    bias = np.zeros(row.shape[-1], np.float32)
    if reader.has(f"{row.module}/bias"):
        bias = bias + reader.read(f"{row.module}/bias", layer)
    if row.norm is not None and reader.has(f"{row.norm}/bias"):
        shift_D = reader.read(f"{row.norm}/bias", layer)
        if shift_D.any():
            bias = bias + shift_D @ reader.read(row.path, layer)
    return bias


def _attention_biases(reader: Checkpoint, layer: int) -> list[np.ndarray]:
    """Return Σ W_q b_k, Σ b_q W_k and Σ b_v W_o over heads [D], and Σ b_q·b_k [], in this order."""
    biases = {
        name: _by_head(reader.cfg, _read_bias(reader, f"attention/{name}", layer)[:, None])[..., 0]
        for name in ("query", "key", "value")
    }

    def through(name: str, bias_HK: np.ndarray) -> np.ndarray:
        if not bias_HK.any():
            return np.zeros(reader.cfg.d_model, np.float32)
        rows_nD = folded(reader, Matrix(f"attention/{name}", layer))
        sum_D: np.ndarray = np.einsum("hkd,hk->d", _by_head(reader.cfg, rows_nD), bias_HK)
        return sum_D

    return [
        through("query", biases["key"]),
        through("key", biases["query"]),
        through("output", biases["value"]),
        np.einsum("hk,hk->", biases["query"], biases["key"]),
    ]


def _by_head(cfg: ModelConfig, rows_nD: np.ndarray) -> np.ndarray:
    """Return rows of heads as [H, K, D], those of key/value heads once for each query head."""
    rows_HKD = rows_nD.reshape(-1, cfg.key_dim, rows_nD.shape[1])
    return np.repeat(rows_HKD, cfg.num_heads // len(rows_HKD), axis=0)


def _head_shift(reader: Checkpoint, ids_I: np.ndarray) -> np.ndarray:
    """Return what the final norm's bias adds to the logits of some tokens, less its mean: [I]."""
    cfg = reader.cfg
    if not reader.has("final_norm/bias"):
        return np.zeros(len(ids_I), np.float32)
    bias_D = reader.read("final_norm/bias")
    if not bias_D.any():
        return np.zeros(len(ids_I), np.float32)
    head_VD = reader.read("embed/embedding") if cfg.tie_embeddings else reader.read("head/kernel").T
    shift_I: np.ndarray = (head_VD @ bias_D)[ids_I]
    return shift_I - shift_I.mean()


def _same(first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether two arrays of one shape are equal up to rounding."""
    if first.shape != second.shape:
        return False
    size = max(float(np.linalg.norm(first)), float(np.linalg.norm(second)))
    return float(np.linalg.norm(first - second)) <= _CLOSE * size + _TINY


def outputs_apart(aligned: Aligned) -> list[str]:
    """Name a difference of logits on random tokens, or that they were not compared, as one item or none.

    Logits that do not vary over tokens are no difference unless the other model's vary.
    """
    if not fit_in_memory(aligned.base, aligned.suspect):
        return ["logits were not compared, for want of memory"]
    by_strings = aligned.tokens.matched_by == "strings"
    apart = logits_apart(aligned.base, aligned.suspect, aligned.tokens if by_strings else None)
    if apart is None or apart <= SAME_LOGITS:
        return []
    if math.isnan(apart):
        return ["logits overflow float32 and were not compared"]
    by = "" if math.isinf(apart) else f" by up to {apart:.2g} of their standard deviation"
    return [f"logits on random tokens differ{by}"]
