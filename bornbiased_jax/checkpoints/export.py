"""Write weights as a Hugging Face directory that ``transformers`` opens with the same logits."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bornbiased_jax import files
from bornbiased_jax.checkpoints.huggingface import WEIGHTS
from bornbiased_jax.checkpoints.layout import (
    Biases,
    Entry,
    Family,
    Shapes,
    file_shapes,
    hugging_face_entries,
    pack,
    shape_in_file,
)
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import flatten
from bornbiased_jax.models.activations import ACTIVATIONS
from bornbiased_jax.models.parameters import Params
from bornbiased_jax.text.protocol import Tokenizer

ARCHITECTURES: dict[Family, str] = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
}
_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
# Fields with one value that every class of transformers has.
_PLAIN: dict[str, Any] = {
    "residual": True,
    "attention": True,
    "mlp": True,
    "attention_kernel": "softmax",
    "sink_logit": "none",
    "positional_scale": "none",
    "head_norm": False,
    "output_gate": "none",
}


def export_hugging_face(
    cfg: ModelConfig, params: Params, folder: str | Path, *, tokenizer: Tokenizer | None = None
) -> Family:
    """Write ``config.json``, ``model.safetensors`` and the tokenizer. All of it appears at once, or nothing.

    Args:
        cfg: the architecture.
        params: float32, float16 or bfloat16 weights; the file keeps their type.
        folder: a new or empty folder, or one that an earlier export wrote, which is replaced.
        tokenizer: saved beside the weights.

    Returns:
        The model type that was chosen.

    Raises:
        InputError: transformers has no class for such an architecture (the field is named), a bias has no
            place in the class and is not zero, or the folder cannot be written or holds other things.
    """
    folder = Path(folder)
    family = family_of(cfg)
    biases = _biases(cfg, family)
    shapes = file_shapes(cfg, biases)
    flat = flatten(params)
    for path in sorted(set(flat) - set(shapes)):
        if np.any(np.asarray(flat[path])):
            raise InputError(
                f"transformers' {family} has no {path}, and these weights have one that is not zero: "
                "train with bias=false to export"
            )
    files.check_writable(folder / "config.json")
    _check_replaceable(folder)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        entries = hugging_face_entries(family, shapes)
        _write_weights(fresh / WEIGHTS, cfg, flat, entries, shapes)
        if tokenizer is not None:
            tokenizer.save(fresh)
        dtype = np.asarray(flat["embed/embedding"][:1]).dtype.name
        files.write_json(fresh / "config.json", config_json(cfg, family, dtype=dtype, tokenizer=tokenizer))
        os.chmod(fresh, 0o755)
        # A folder cannot be swapped in one step: the old one goes aside first, and comes back if the rename fails.
        aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.old."))
        os.rename(folder, aside / "old")
        try:
            os.rename(fresh, folder)
        except OSError:
            os.rename(aside / "old", folder)
            raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror}; free some room or choose another place") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return family


def _check_replaceable(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if path.name not in ("config.json", WEIGHTS) and not path.name.startswith("tokenizer"):
            raise InputError(f"{folder} holds {path.name}, which no export wrote: choose a new folder")


def family_of(cfg: ModelConfig) -> Family:
    """The model type of transformers that computes what the config says.

    Raises:
        InputError: there is none; the field that stands in the way is named.
    """
    for name, wanted in _PLAIN.items():
        if getattr(cfg, name) != wanted:
            raise _no_class(cfg, name, f"only {name}={_text(wanted)} can be exported")
    if cfg.norm == "layernorm":
        return _layernorm_family(cfg)
    if cfg.norm == "rmsnorm":
        return _rmsnorm_family(cfg)
    raise _no_class(cfg, "norm", "use layernorm or rmsnorm")


def _layernorm_family(cfg: ModelConfig) -> Family:
    wanted = dict(gated_mlp=False, norm_position="pre", qk_norm=False, window=None, num_kv_heads=cfg.num_heads)
    for name, value in wanted.items():
        if getattr(cfg, name) != value:
            raise _no_class(cfg, name, f"with norm=layernorm it must be {_text(value)}")
    if cfg.key_dim * cfg.num_heads != cfg.d_model:
        raise _no_class(cfg, "head_dim", "with norm=layernorm it must be d_model / num_heads")
    if cfg.positions == "rope":
        return "gpt_neox"
    if cfg.positions == "none":
        raise _no_class(cfg, "positions", "use rope or learned")
    if cfg.parallel_residual:
        raise _no_class(cfg, "parallel_residual", "with learned positions it must be false")
    return "gpt2"


def _rmsnorm_family(cfg: ModelConfig) -> Family:
    wanted = dict(gated_mlp=True, positions="rope", parallel_residual=False, rotary_fraction=1.0)
    for name, value in wanted.items():
        if getattr(cfg, name) != value:
            raise _no_class(cfg, name, f"with norm=rmsnorm it must be {_text(value)}")
    family = _rmsnorm_family_by_norms(cfg)
    if cfg.window is not None and family not in ("mistral", "qwen2", "qwen3"):
        raise _no_class(cfg, "window", f"the other fields make it {family}, which has none")
    if family == "llama" and cfg.d_model % cfg.num_heads:
        raise _no_class(cfg, "num_heads", "with biases it must divide d_model")
    return family


def _rmsnorm_family_by_norms(cfg: ModelConfig) -> Family:
    if cfg.norm_position == "post":
        if not (cfg.qk_norm and cfg.qk_norm_scope == "projection"):
            raise _no_class(cfg, "norm_position", "post needs qk_norm=true and qk_norm_scope=projection")
        return "olmo2"
    if cfg.qk_norm:
        if cfg.qk_norm_scope != "head":
            raise _no_class(cfg, "qk_norm_scope", "with norm_position=pre it must be head")
        return "qwen3"
    if cfg.bias:
        return "llama"
    if cfg.qkv_bias:
        return "qwen2"
    return "llama" if cfg.window is None and cfg.d_model % cfg.num_heads == 0 else "mistral"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _no_class(cfg: ModelConfig, name: str, remedy: str) -> InputError:
    return InputError(f"transformers has no class for {name}={_text(getattr(cfg, name))} here: {remedy}")


def _biases(cfg: ModelConfig, family: Family) -> Biases:
    """The biases that the class has; where the config has none, zeros are written."""
    attention = cfg.bias or cfg.qkv_bias
    table = {
        "gpt2": Biases(True, True, True),
        "gpt_neox": Biases(attention, attention, True),
        "llama": Biases(attention, attention, cfg.bias),
        "mistral": Biases(False, False, False),
        "qwen2": Biases(True, False, False),
        "qwen3": Biases(attention, attention, False),
        "olmo2": Biases(attention, attention, False),
    }
    return table[family]


def config_json(cfg: ModelConfig, family: Family, *, dtype: str, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The ``config.json`` of a model; RoPE in the older style, which every version of transformers reads."""
    found: dict[str, Any] = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "torch_dtype": dtype,
        "vocab_size": cfg.vocab_size,
        "tie_word_embeddings": cfg.tie_embeddings,
        "bos_token_id": tokenizer.bos_id if tokenizer is not None else None,
        "eos_token_id": tokenizer.eos_id if tokenizer is not None else None,
        "pad_token_id": None,
    }
    if family == "gpt2":
        return found | {
            "n_layer": cfg.num_layers,
            "n_head": cfg.num_heads,
            "n_embd": cfg.d_model,
            "n_inner": cfg.d_ff,
            "n_positions": cfg.max_seq_len,
            "activation_function": ACTIVATIONS[cfg.activation].hugging_face,
            "layer_norm_epsilon": cfg.norm_eps,
        }
    found |= {
        "num_hidden_layers": cfg.num_layers,
        "num_attention_heads": cfg.num_heads,
        "hidden_size": cfg.d_model,
        "intermediate_size": cfg.d_ff,
        "max_position_embeddings": cfg.max_seq_len,
        "hidden_act": ACTIVATIONS[cfg.activation].hugging_face,
        "rope_scaling": _rope_scaling(cfg),
    }
    biases = _biases(cfg, family)
    if family == "gpt_neox":
        return found | {
            "layer_norm_eps": cfg.norm_eps,
            "rotary_emb_base": cfg.rope_theta,
            "rotary_pct": cfg.rotary_fraction,
            "use_parallel_residual": cfg.parallel_residual,
            "attention_bias": biases.qkv,
        }
    found |= {
        "num_key_value_heads": cfg.kv_heads,
        "head_dim": cfg.key_dim,
        "rms_norm_eps": cfg.norm_eps,
        "rope_theta": cfg.rope_theta,
    }
    if family in ("llama", "qwen3", "olmo2"):
        found["attention_bias"] = biases.qkv
    if family == "llama":
        found["mlp_bias"] = biases.mlp
    if family == "mistral":
        found["sliding_window"] = cfg.window
    if family in ("qwen2", "qwen3"):
        windowed = cfg.window is not None
        found |= {
            "use_sliding_window": windowed,
            "sliding_window": cfg.window,
            "max_window_layers": 0 if windowed else cfg.num_layers,
        }
    return found


def _rope_scaling(cfg: ModelConfig) -> dict[str, Any] | None:
    if cfg.rope_scaling == "none":
        return None
    found: dict[str, Any] = {"rope_type": cfg.rope_scaling, "factor": cfg.rope_scaling_factor}
    if cfg.rope_scaling == "llama3":
        found |= {
            "low_freq_factor": cfg.rope_low_freq_factor,
            "high_freq_factor": cfg.rope_high_freq_factor,
            "original_max_position_embeddings": cfg.rope_original_max_seq_len,
        }
    return found


def _write_weights(path: Path, cfg: ModelConfig, flat: dict[str, Any], entries: list[Entry], shapes: Shapes) -> None:
    """A safetensors file written tensor by tensor: the library's own writer wants them all at once.

    Source: the format's specification (github.com/huggingface/safetensors).
    """
    dtype = np.asarray(flat["embed/embedding"][:1]).dtype
    if dtype.name not in _TYPES:
        raise InputError(f"weights of type {dtype.name} cannot be exported: cast them to float32")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for entry in entries:
        shape = shape_in_file(entry, shapes)
        size = int(np.prod(shape)) * dtype.itemsize
        header[entry.name] = {
            "dtype": _TYPES[dtype.name],
            "shape": list(shape),
            "data_offsets": [position, position + size],
        }
        position += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for tensor in _tensors(cfg, flat, entries, shapes, dtype):
            stream.write(np.ascontiguousarray(tensor, dtype).view(np.uint8).data)
        stream.flush()
        os.fsync(stream.fileno())


def _tensors(
    cfg: ModelConfig, flat: dict[str, Any], entries: list[Entry], shapes: Shapes, dtype: Any
) -> Iterator[np.ndarray]:
    for entry in entries:
        parts = []
        for path in entry.paths:
            if path not in flat:
                parts.append(np.zeros(shapes[path] if entry.layer is None else shapes[path][1:], dtype))
            else:
                parts.append(np.asarray(flat[path] if entry.layer is None else flat[path][entry.layer]))
        yield pack(entry, cfg, parts)
