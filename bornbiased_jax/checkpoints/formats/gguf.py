"""Models in GGUF files: what fields and tensors mean, by architecture.

Source: llama.cpp's convert_hf_to_gguf.py, which

- interleaves query and key rows for llama, granite, smollm3 and olmo, and leaves them as they lie for the others;
- keeps Gemma's norm scales as they multiply, not less one;
- puts the experts of a block into one tensor, and GPT-NeoX's queries, keys and values one after the other.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from bornbiased_jax import progress
from bornbiased_jax.checkpoints.families import FAMILIES, GGUF, Family
from bornbiased_jax.checkpoints.families.reading import Fields
from bornbiased_jax.checkpoints.formats.gguf_file import GGUFFile, read_file, refuse_parts
from bornbiased_jax.checkpoints.layout import (
    FUSED,
    QKV,
    Biases,
    FileEntry,
    Form,
    Shapes,
    file_shapes,
    make_entries,
    with_rotated,
)
from bornbiased_jax.checkpoints.sizes import first_size
from bornbiased_jax.checkpoints.tensors import (
    FLOAT_TYPES,
    NamedTensors,
    StoredModel,
    Tensor,
    check_entries,
    file_pieces,
)
from bornbiased_jax.config import FieldValue, ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.layers import HUGGING_FACE as ACTIVATIONS
from bornbiased_jax.model.layers import frequencies
from bornbiased_jax.schema import shown
from bornbiased_jax.text.gguf_vocabulary import HOW_TO_CONVERT

# Files of Llama 3.1 and later give the scaled frequencies as divisors, without the settings that made them.
ROPE_DIVISORS = "rope_freqs.weight"
_QUERY_OR_KEY = re.compile(r"blk\.\d+\.attn_[qk]\.(weight|bias)")
# Fields of sizes and layouts of tensors, besides those of heads and widths.
_SIZES = """
    block_count feed_forward_length attention.head_count_kv attention.key_length expert_count expert_used_count
    expert_feed_forward_length expert_shared_feed_forward_length rope.dimension_count
""".split()


def _check_sizes(fields: Fields) -> None:
    """Refuse a size that is no number; :func:`_config` refuses heads and widths."""
    for name in _SIZES:
        value = fields.values.get(fields.prefix + name, 1)
        if type(value) is not int or value < (name == "attention.key_length"):
            raise InputError(
                f"{fields.where} has {fields.prefix}{name}={shown(value)}, which is no size: {HOW_TO_CONVERT}"
            )


def read_named(path: Path) -> tuple[NamedTensors, dict[str, object], tuple[Path, ...]]:
    """Locate the tensors of a file of any architecture, its sizes by the names of a ``config.json``, and its tokenizer.

    Rows of queries and keys that llama.cpp interleaves lie in halves, where the architecture is one that is run.

    Raises:
        InputError: it is corrupted, or one of several.
    """
    file = read_file(path)
    fields = file.fields
    refuse_parts(fields)
    prefix = fields.prefix
    settings = {name.removeprefix(prefix): value for name, value in fields.values.items() if name.startswith(prefix)}
    head_dim = first_size(settings, "attention.key_length_mla", "attention.key_length")
    rotary_dim = first_size(settings, "rope.dimension_count")
    config: dict[str, object] = {
        "model_type": f"{file.architecture} (GGUF)",
        "num_attention_heads": first_size(settings, "attention.head_count"),
        "num_key_value_heads": first_size(settings, "attention.head_count_kv"),
        "head_dim": head_dim,
        "tie_word_embeddings": _NAMES["head"].format(leaf="weight") not in file.tensors.shapes,
    }
    # Latent attention: the rest of a head has no RoPE.
    if head_dim and rotary_dim and first_size(settings, "attention.kv_lora_rank"):
        config |= {"qk_rope_head_dim": rotary_dim, "qk_nope_head_dim": head_dim - rotary_dim}
    for name, field in ((_RMS_EPSILON, "rms_norm_eps"), ("attention.layer_norm_epsilon", "layer_norm_eps")):
        if name in settings:
            config[field] = 1e-5
    tensors = dict(file.tensors.tensors)
    family = GGUF.get(file.architecture)
    if family is not None and any(_is_interleaved(family, module) for module in QKV):
        width, heads = (first_size(settings, name) for name in ("embedding_length", "attention.head_count"))
        size = head_dim or (width or 0) // (heads or 1)
        rotated = size
        if rotary_dim and family.rope is not None and family.rope.rotated is not None:
            rotated = min(rotary_dim, size)
        for name, tensor in tensors.items():
            if _QUERY_OR_KEY.fullmatch(name) and size and tensor.shape[0] % size == 0:
                tensors[name] = tensor._replace(read=functools.partial(_read_in_halves, tensor, size, rotated))
    return dataclasses.replace(file.tensors, tensors=tensors), config, file.tokenizer_files


def _read_in_halves(tensor: Tensor, head_dim: int, rotary_dim: int) -> np.ndarray:
    """Read queries or keys [heads * head_dim, ...], rows that RoPE rotates together in two halves of a head."""
    array = tensor.read()
    heads = array.T.reshape(*array.shape[:0:-1], -1, head_dim)
    return with_rotated(heads, (rotary_dim // 2, 2)).reshape(array.shape[::-1]).T


def refusal(path: Path) -> str:
    """Say why the fields of a file describe no model that this package runs; "" where they do.

    Raises:
        InputError: it is corrupted.
    """
    file = read_file(path)
    try:
        _described(file, path)
    except InputError as error:
        return str(error)
    return ""


def _described(file: GGUFFile, path: Path) -> tuple[ModelConfig, Family, Biases]:
    """Return the architecture that fields describe, its family and the biases of the file."""
    fields, architecture = file.fields, file.architecture
    if architecture not in GGUF:
        raise InputError(f"{path} is of the family {architecture!r}, not one of {', '.join(sorted(GGUF))}")
    refuse_parts(fields)
    _check_sizes(fields)
    shapes = file.tensors.shapes
    # Mixtral calls itself llama.
    has_experts = fields.get("expert_count", 0) > 0
    family = FAMILIES["mixtral"] if architecture == "llama" and has_experts else GGUF[architecture]
    has_qkv_bias = "blk.0.attn_q.bias" in shapes or "blk.0.attn_qkv.bias" in shapes
    biases = Biases(has_qkv_bias, "blk.0.attn_output.bias" in shapes, "blk.0.ffn_up.bias" in shapes)
    cfg = _config(fields, family, shapes, biases)
    if ROPE_DIVISORS in shapes:
        cfg = _with_rope_divisors(cfg, file.tensors.read(ROPE_DIVISORS), path)
    return cfg, family, biases


def read_headers(path: Path) -> StoredModel:
    """Read a GGUF file's fields and its list of tensors, and (but for RoPE's table) none of the tensors.

    Raises:
        InputError: it is corrupted, of another family, split, or has a field, tensor or type that is not understood.
    """
    file = read_file(path)
    cfg, family, biases = _described(file, path)
    lacking = _lacking_window(file.fields, family)
    if lacking:
        progress.once(progress.warn, f"{path} {lacking}")
    # What is read is float32, whatever the types of the file.
    stored = {name: tensor._replace(kind="F32") for name, tensor in file.tensors.tensors.items()}
    source = NamedTensors(str(path), stored)
    own_shapes = file_shapes(cfg, biases)
    entries = _entries(family, own_shapes)
    check_entries(source, entries, own_shapes, {ROPE_DIVISORS}.__contains__)
    return StoredModel(
        cfg,
        f"{file.architecture} model of GGUF file {path}",
        file_pieces(cfg, source, entries),
        files=(path,),
        tokenizer_files=file.tokenizer_files,
        storage=" and ".join(sorted({FLOAT_TYPES.get(kind, kind) for kind in file.tensors.types.values()})),
        notes=(lacking,) if lacking else (),
    )


def _config(fields: Fields, family: Family, shapes: Mapping[str, tuple[int, ...]], biases: Biases) -> ModelConfig:
    """Return the architecture that a file's fields describe; every field is understood, or refused by name."""
    get, path = fields.get, fields.where
    if "token_embd.weight" not in shapes or len(shapes["token_embd.weight"]) != 2:
        raise InputError(f"{path} has no embedding matrix token_embd.weight: it is no language model")
    heads, width = get("attention.head_count"), get("embedding_length")
    if not all(isinstance(value, int) and value > 0 for value in (heads, width)) or heads > width:
        raise InputError(f"{path} has attention.head_count={heads!r}, embedding_length={width!r}: {HOW_TO_CONVERT}")
    # Fields with one value that is supported.
    head_dim = get("attention.key_length", width // heads)
    _check(fields, "attention.value_length", head_dim)
    _check(fields, "vocab_size", shapes["token_embd.weight"][0])
    rotary_dim = get("rope.dimension_count", head_dim)
    if family.rope is None or family.rope.rotated is None:
        _check(fields, "rope.dimension_count", head_dim)
    scaling = get("rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise InputError(f"{path} has {fields.prefix}rope.scaling.type={scaling!r}, which is not none or linear")
    # Files from before rope.scaling.type existed give the factor alone.
    factor = get("rope.scale_linear", 1.0) if scaling == "none" else get("rope.scaling.factor")
    get("rope.scaling.original_context_length", None)
    bias = biases.output or biases.mlp
    epsilon = "attention.layer_norm_epsilon" if family.fixed["norm"] == "layernorm" else _RMS_EPSILON
    settings = {
        "num_layers": get("block_count"),
        "num_heads": heads,
        "num_kv_heads": get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "d_model": width,
        "d_ff": get("feed_forward_length"),
        "vocab_size": shapes["token_embd.weight"][0],
        "max_seq_len": get("context_length"),
        "norm_eps": get(epsilon),
        "activation": ACTIVATIONS[str(family.sizes["activation"][1])],
        "bias": bias,
        "qkv_bias": biases.qkv and not bias,
        "tie_embeddings": "output.weight" not in shapes,
        "rope_theta": get("rope.freq_base", 10_000.0),
        "rotary_fraction": rotary_dim / head_dim,
        "rope_scaling": "none" if factor == 1.0 else "linear",
        "rope_scaling_factor": factor,
        **family.fixed,
        **(_SPECIAL[family.name](fields) if family.name in _SPECIAL else {}),
    }
    _refuse_the_rest(fields)
    try:
        return ModelConfig.from_dict(settings)
    except InputError as error:
        raise InputError(f"{path} describes no model that can be built: {error}") from error


def _lacking_window(fields: Fields, family: Family) -> str:
    """Return what to say of a Mistral, whose files never carry its window; nothing of other files."""
    names = " ".join(str(value) for name, value in fields.values.items() if name.startswith("general."))
    if family.name != "llama" or "mistral" not in names.lower():
        return ""
    return (
        "is named a Mistral, and its sliding window, if it has one, is not in the file: beyond it logits are not "
        "those of the source; if config.json there has a sliding_window, name that folder for longer texts"
    )


def _check(fields: Fields, name: str, supported: object) -> None:
    """Refuse a field with another value than the one that is supported."""
    value = fields.get(name, supported)
    if value != supported:
        raise InputError(f"{fields.where} has {fields.prefix}{name}={value!r}, but only {supported!r} is supported")


def _refuse_the_rest(fields: Fields) -> None:
    """Refuse fields that nobody asked for: they may change the model."""
    for name in fields.values:
        is_understood = name in fields.asked or name.startswith(("general.", "quantize."))
        if not is_understood and not name.startswith("split."):
            raise InputError(f"{fields.where} has a field {name!r} that is not understood: it may change the model")


ConfigFields = dict[str, FieldValue]


def _gemma(fields: Fields) -> ConfigFields:
    return {"embedding_scale": math.sqrt(fields.get("embedding_length"))}


def _local_gemma(largest: int, pattern: str) -> Callable[[Fields], ConfigFields]:
    """Read what Gemma 2 and 3 have in common; the largest model, known by its depth, scales by the residual width."""

    def read(fields: Fields) -> ConfigFields:
        width, heads = fields.get("embedding_length"), fields.get("attention.head_count")
        is_largest = fields.get("block_count") == largest
        scale_dim = width / heads if is_largest else fields.get("attention.key_length", width // heads)
        return {
            **_gemma(fields),
            "window": fields.get("attention.sliding_window"),
            "attention_pattern": pattern,
            "attention_scale": float(scale_dim) ** -0.5,
            "attention_softcap": fields.get("attn_logit_softcapping", None),
            "logit_softcap": fields.get("final_logit_softcapping", None),
        }

    return read


def _mixture(width: str, *, is_normalized: bool) -> Callable[[Fields], ConfigFields]:
    def read(fields: Fields) -> ConfigFields:
        return {
            "d_ff": fields.get(width),
            "num_experts": fields.get("expert_count"),
            "experts_per_token": fields.get("expert_used_count"),
            "normalize_expert_weights": is_normalized,
        }

    return read


def _qwen2_moe(fields: Fields) -> ConfigFields:
    # Files made before June 2024 state the shared expert's width alone, which the chosen experts make up together.
    shared_width, num_chosen = fields.get("feed_forward_length"), fields.get("expert_used_count")
    return {
        **_mixture("feed_forward_length", is_normalized=False)(fields),
        "d_ff": fields.get("expert_feed_forward_length", shared_width // max(num_chosen, 1)),
        "shared_expert_width": fields.get("expert_shared_feed_forward_length", shared_width),
    }


def _inverse(fields: Fields, name: str) -> float:
    """Return 1 over a field, which is 1 where it is absent."""
    value = fields.get(name, 1.0)
    if not isinstance(value, (int, float)) or not value:
        raise InputError(
            f"{fields.where} has {fields.prefix}{name}={shown(value)}, which divides nothing: {HOW_TO_CONVERT}"
        )
    return 1 / value


# What llama.cpp knows of an architecture, in its fields or in its code.
_SPECIAL: dict[str, Callable[[Fields], ConfigFields]] = {
    "gemma": _gemma,
    "gemma2": _local_gemma(46, "lg"),
    "gemma3_text": lambda fields: {**_local_gemma(62, "lllllg")(fields), "rope_local_theta": 10_000.0},
    "phi3": lambda fields: {"window": fields.get("attention.sliding_window", 0) or None},
    "granite": lambda fields: {
        "attention_scale": fields.get("attention.scale"),
        "embedding_scale": fields.get("embedding_scale", 1.0),
        "residual_scale": fields.get("residual_scale", 1.0),
        "logit_scale": _inverse(fields, "logit_scale"),
    },
    "cohere": lambda fields: {"logit_scale": fields.get("logit_scale")},
    "smollm3": lambda _: {"rope_pattern": "rrrn"},
    "gpt_neox": lambda fields: {"parallel_residual": fields.get("use_parallel_residual", True)},
    "mixtral": _mixture("feed_forward_length", is_normalized=True),
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _mixture("expert_feed_forward_length", is_normalized=True),
}
_RMS_EPSILON = "attention.layer_norm_rms_epsilon"


_PAIRED: dict[str, Form] = {QKV[0]: "paired query", QKV[1]: "paired key"}


def _is_interleaved(family: Family, module: str) -> bool:
    """Tell whether files of a family have rows of a module that RoPE rotates together next to each other."""
    return module in _PAIRED and (family.interleaved or family.forms.get(module) == _PAIRED[module])


def _entries(family: Family, shapes: Shapes) -> list[FileEntry]:
    """List the tensors of a file, by the names of llama.cpp."""
    names = {module: _NAMES[module] for module in family.tensors}
    if family.fixed.get("norm_position") == "post":
        names |= {
            "blocks/attention_norm": "blk.{l}.post_attention_norm.{leaf}",
            "blocks/mlp_norm": "blk.{l}.post_ffw_norm.{leaf}",
        }
    if "blocks/mlp/router" in names:
        names |= {f"blocks/mlp/{name}": f"blk.{{l}}.ffn_{name}_exps.{{leaf}}" for name in ("gate", "up", "down")}

    def form(module: str) -> Form:
        if module in FUSED:
            return "fused rows"
        return _PAIRED[module] if _is_interleaved(family, module) else "transposed"

    return make_entries(names, shapes, form)


# Names of modules; "{l}" is the layer, and {leaf} is weight for kernel and scale, else bias.
_NAMES = {
    "embed": "token_embd.{leaf}",
    "positions": "position_embd.{leaf}",
    "blocks/attention_norm": "blk.{l}.attn_norm.{leaf}",
    "blocks/attention_post_norm": "blk.{l}.post_attention_norm.{leaf}",
    "blocks/mlp_norm": "blk.{l}.ffn_norm.{leaf}",
    "blocks/mlp_post_norm": "blk.{l}.post_ffw_norm.{leaf}",
    "blocks/attention/qkv": "blk.{l}.attn_qkv.{leaf}",
    "blocks/attention/query": "blk.{l}.attn_q.{leaf}",
    "blocks/attention/key": "blk.{l}.attn_k.{leaf}",
    "blocks/attention/value": "blk.{l}.attn_v.{leaf}",
    "blocks/attention/output": "blk.{l}.attn_output.{leaf}",
    "blocks/attention/query_norm": "blk.{l}.attn_q_norm.{leaf}",
    "blocks/attention/key_norm": "blk.{l}.attn_k_norm.{leaf}",
    "blocks/mlp/router": "blk.{l}.ffn_gate_inp.{leaf}",
    # Gate and up in one matrix have the name of up.
    "blocks/mlp/gate_up": "blk.{l}.ffn_up.{leaf}",
    "blocks/mlp/gate": "blk.{l}.ffn_gate.{leaf}",
    "blocks/mlp/up": "blk.{l}.ffn_up.{leaf}",
    "blocks/mlp/down": "blk.{l}.ffn_down.{leaf}",
    "blocks/mlp/shared_expert_gate": "blk.{l}.ffn_gate_inp_shexp.{leaf}",
    **{f"blocks/mlp/shared_expert/{name}": f"blk.{{l}}.ffn_{name}_shexp.{{leaf}}" for name in ("gate", "up", "down")},
    "final_norm": "output_norm.{leaf}",
    "head": "output.{leaf}",
}


def _with_rope_divisors(cfg: ModelConfig, divisors: np.ndarray, path: Path) -> ModelConfig:
    """Return the config whose RoPE scaling these divisors of the frequencies come from."""
    plain = frequencies(cfg.replace(rope_scaling="none", rope_scaling_factor=1.0))
    if cfg.rope_scaling == "none" and divisors.shape == plain.shape:
        if np.all(divisors == 1.0):
            return cfg
        if np.all(np.isfinite(divisors) & (divisors >= 1.0)):
            for scaled in _llama3_configs(cfg, divisors.astype(np.float64), 2 * np.pi / plain):
                if np.allclose(plain / frequencies(scaled), divisors, rtol=1e-5, atol=0.0):
                    return scaled
    raise InputError(f"{path} scales RoPE by a table ({ROPE_DIVISORS}) other than Llama 3's: that is not supported")


def _llama3_configs(cfg: ModelConfig, divisors_F: np.ndarray, wavelengths_F: np.ndarray) -> Iterator[ModelConfig]:
    """Yield configs with Llama 3's scaling that a table may come from: of 8,192 original positions, then of others.

    A divisor d is 1 / (s + (1 - s) / factor), in which s falls from 1 to 0 as wavelengths grow (:func:`frequencies`).
    """
    low, high = cfg.rope_low_freq_factor, cfg.rope_high_freq_factor
    scaled = cfg.replace(rope_scaling="llama3")
    # The factor, from the longest wavelength: the divisor itself where s is 0 there.
    smooth = float(np.clip((cfg.rope_original_max_seq_len / wavelengths_F[-1] - low) / (high - low), 0.0, 1.0))
    remainder = 1 / divisors_F[-1] - smooth
    if 0 < remainder <= 1 - smooth:
        yield scaled.replace(rope_scaling_factor=_rounded((1 - smooth) / remainder))
    # The number of positions, from a wavelength where s lies between 0 and 1.
    factor = float(divisors_F.max())
    is_between_F = (divisors_F > 1.0) & (divisors_F < factor)
    if np.any(is_between_F):
        smooth = (1 / divisors_F[is_between_F][0] - 1 / factor) / (1 - 1 / factor)
        positions = round(float(wavelengths_F[is_between_F][0]) * (low + smooth * (high - low)))
        yield scaled.replace(rope_scaling_factor=_rounded(factor), rope_original_max_seq_len=positions)


def _rounded(factor: float) -> float:
    """Return a factor without the error of single precision."""
    return float(f"{factor:.5g}")
