"""A Hugging Face ``config.json`` read field by field: each one understood, harmless or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

from bornbiased_jax.checkpoints.layout import Biases, Family
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.models.activations import HUGGING_FACE as ACTIVATIONS

FAMILIES: tuple[Family, ...] = get_args(Family)


# Our field -> (its name in config.json, its default in transformers; ... where the file must say it).
_LLAMA_SIZES: dict[str, tuple[str, Any]] = {
    "num_layers": ("num_hidden_layers", ...),
    "num_heads": ("num_attention_heads", ...),
    "num_kv_heads": ("num_key_value_heads", None),
    "head_dim": ("head_dim", None),
    "d_model": ("hidden_size", ...),
    "d_ff": ("intermediate_size", ...),
    "vocab_size": ("vocab_size", ...),
    "max_seq_len": ("max_position_embeddings", ...),
    "norm_eps": ("rms_norm_eps", 1e-6),
    "activation": ("hidden_act", "silu"),
    "tie_embeddings": ("tie_word_embeddings", False),
}
_FIELDS: dict[Family, dict[str, tuple[str, Any]]] = {
    "gpt2": {
        "num_layers": ("n_layer", ...),
        "num_heads": ("n_head", ...),
        "d_model": ("n_embd", ...),
        "d_ff": ("n_inner", None),
        "vocab_size": ("vocab_size", ...),
        "max_seq_len": ("n_positions", ...),
        "norm_eps": ("layer_norm_epsilon", 1e-5),
        "activation": ("activation_function", "gelu_new"),
        "tie_embeddings": ("tie_word_embeddings", True),
    },
    "llama": _LLAMA_SIZES,
    "mistral": {**_LLAMA_SIZES, "num_kv_heads": ("num_key_value_heads", 8)},
    "qwen2": {**_LLAMA_SIZES, "num_kv_heads": ("num_key_value_heads", 32)},
    "qwen3": {**_LLAMA_SIZES, "num_kv_heads": ("num_key_value_heads", 32), "head_dim": ("head_dim", 128)},
    "gpt_neox": {
        "num_layers": ("num_hidden_layers", ...),
        "num_heads": ("num_attention_heads", ...),
        "d_model": ("hidden_size", ...),
        "d_ff": ("intermediate_size", ...),
        "vocab_size": ("vocab_size", ...),
        "max_seq_len": ("max_position_embeddings", ...),
        "norm_eps": ("layer_norm_eps", 1e-5),
        "activation": ("hidden_act", "gelu"),
        "tie_embeddings": ("tie_word_embeddings", False),
        "parallel_residual": ("use_parallel_residual", True),
    },
    "olmo2": {**_LLAMA_SIZES, "norm_eps": ("rms_norm_eps", 1e-5)},
}
_FIXED: dict[Family, dict[str, Any]] = {
    "gpt2": dict(norm="layernorm", positions="learned"),
    "llama": dict(norm="rmsnorm", gated_mlp=True),
    "mistral": dict(norm="rmsnorm", gated_mlp=True),
    "qwen2": dict(norm="rmsnorm", gated_mlp=True),
    "qwen3": dict(norm="rmsnorm", gated_mlp=True, qk_norm=True),
    "gpt_neox": dict(norm="layernorm"),
    "olmo2": dict(norm="rmsnorm", gated_mlp=True, norm_position="post", qk_norm=True, qk_norm_scope="projection"),
}

# Fields with one value that we understand: anything else changes what the model computes.
_MUST_BE: dict[str, Any] = {
    "add_cross_attention": False,
    "cross_attention_hidden_size": None,
    "is_encoder_decoder": False,
    "per_layer_config": None,
    "pruned_heads": {},
    "quantization_config": None,
    "rope_interleaved": False,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "tie_encoder_decoder": False,
}

# Fields that change nothing about the logits in inference: training, generation, labels, bookkeeping.
HARMLESS = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _commit_hash _flash_attn_2_enabled _name_or_path architectures
    attention_dropout attention_probs_dropout_prob attn_implementation attn_pdrop bad_words_ids begin_suppress_tokens
    bos_token_id chunk_size_feed_forward classifier_dropout decoder_start_token_id diversity_penalty do_sample dtype
    early_stopping embd_pdrop encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty
    finetuning_task forced_bos_token_id forced_eos_token_id gradient_checkpointing hidden_dropout
    hidden_dropout_prob id2label initializer_range is_decoder is_llama_config label2id length_penalty max_length
    min_length model_type n_ctx no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences
    output_attentions output_hidden_states output_scores pad_token_id prefix pretraining_tp problem_type
    remove_invalid_values reorder_and_upcast_attn repetition_penalty resid_pdrop return_dict
    return_dict_in_generate sep_token_id summary_activation summary_first_dropout summary_proj_to_labels
    summary_type summary_use_proj suppress_tokens task_specific_params temperature tf_legacy_loss
    tokenizer_class top_k top_p torch_dtype torchscript transformers.js_config transformers_version typical_p
    unsloth_fixed unsloth_version use_bfloat16 use_cache
    """.split()
)

_ROPE_KEYS: dict[str, dict[str, str]] = {
    "default": {},
    "linear": {"factor": "rope_scaling_factor"},
    "llama3": {
        "factor": "rope_scaling_factor",
        "low_freq_factor": "rope_low_freq_factor",
        "high_freq_factor": "rope_high_freq_factor",
        "original_max_position_embeddings": "rope_original_max_seq_len",
    },
}


class Read(NamedTuple):
    """What a ``config.json`` says."""

    cfg: ModelConfig
    family: Family
    biases: Biases


class _Fields:
    """The fields of one file, remembering which were asked for."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where
        self.asked: set[str] = set()

    def get(self, name: str, default: Any = ...) -> Any:
        self.asked.add(name)
        if name not in self.values and default is ...:
            raise InputError(f"{self.where} has no field {name!r}: fetch it again")
        return self.values.get(name, default)

    def refuse(self, name: str, value: Any, remedy: str) -> InputError:
        return InputError(f"{self.where} has {name}={value!r}, {remedy}")


def read_config(values: Any, where: str) -> Read:
    """The architecture that a ``config.json`` describes.

    Args:
        values: the parsed file.
        where: its path, for errors.

    Raises:
        InputError: a field that is not understood, by name; a family that is not known; a missing field.
    """
    if not isinstance(values, dict):
        raise InputError(f"{where} is not a JSON object: it should be a Hugging Face model's configuration")
    fields = _Fields(values, where)
    family = fields.get("model_type", None)
    if family not in FAMILIES:
        raise InputError(f"{where} has model_type={family!r}, which is not one of {', '.join(FAMILIES)}")
    found = dict(_FIXED[family])
    for ours, (theirs, default) in _FIELDS[family].items():
        found[ours] = fields.get(theirs, default)
    if str(found["activation"]) not in ACTIVATIONS:
        name = _FIELDS[family]["activation"][0]
        raise fields.refuse(name, found["activation"], f"which is not one of {', '.join(ACTIVATIONS)}")
    found["activation"] = ACTIVATIONS[found["activation"]]
    if family == "gpt2" and found["d_ff"] is None:
        found["d_ff"] = 4 * _integer(fields, "n_embd")
    if family != "gpt2":
        found |= _rope(fields, family)
    biases = _biases(fields, family)
    found["bias"] = biases.output or biases.mlp
    found["qkv_bias"] = biases.qkv and not found["bias"]
    found["window"] = _window(fields, family)
    _refuse_the_rest(fields)
    try:
        return Read(ModelConfig(**found), family, biases)
    except InputError as error:
        raise InputError(f"{where} describes no model that can be built: {error}") from error


def _biases(fields: _Fields, family: Family) -> Biases:
    if family == "gpt2":
        return Biases(True, True, True)
    if family == "gpt_neox":
        attention = _boolean(fields, "attention_bias", True)
        return Biases(attention, attention, True)
    if family == "qwen2":
        return Biases(True, False, False)
    if family == "mistral":
        return Biases(False, False, False)
    attention = _boolean(fields, "attention_bias", False)
    return Biases(attention, attention, _boolean(fields, "mlp_bias", False) if family == "llama" else False)


def _boolean(fields: _Fields, name: str, default: bool) -> bool:
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise fields.refuse(name, value, "which is not true or false")
    return value


def _integer(fields: _Fields, name: str, default: Any = ...) -> int:
    value = fields.get(name, default)
    if not isinstance(value, int):
        raise fields.refuse(name, value, "which is not an integer")
    return value


def _window(fields: _Fields, family: Family) -> int | None:
    """The window of every layer alike; a mixture of windows is refused."""
    if family == "mistral":
        window: int | None = fields.get("sliding_window", 4096)
        return window
    if family not in ("qwen2", "qwen3"):
        return None
    sliding = fields.get("sliding_window", 4096)
    first = _integer(fields, "max_window_layers", 28)
    used = _boolean(fields, "use_sliding_window", False) and sliding is not None
    kinds = fields.get("layer_types", None)
    if kinds is None:
        name, value = "max_window_layers", first
        num_layers = _integer(fields, "num_hidden_layers")
        kinds = ["sliding_attention" if used and layer >= first else "full_attention" for layer in range(num_layers)]
    else:
        name, value = "layer_types", kinds
        if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
            raise fields.refuse(name, kinds, "which is not a list of names")
        if not used and set(kinds) != {"full_attention"}:
            raise fields.refuse(name, value, "but no sliding window: make the two agree")
    if set(kinds) == {"full_attention"}:
        return None
    if set(kinds) == {"sliding_attention"}:
        return _integer(fields, "sliding_window", 4096)
    raise fields.refuse(name, value, "so its layers attend in different ways, which is not supported")


def _rope(fields: _Fields, family: Family) -> dict[str, Any]:
    """RoPE in the style of transformers 5 (rope_parameters) or before (rope_theta, rope_scaling)."""
    theta_name, fraction_name = ("rotary_emb_base", "rotary_pct") if family == "gpt_neox" else ("rope_theta", "")
    theta = fields.get(theta_name, 10_000.0)
    fraction = fields.get(fraction_name, 0.25) if fraction_name else fields.get("partial_rotary_factor", 1.0)
    old, new = fields.get("rope_scaling", None), fields.get("rope_parameters", None)
    if old and new and old != new:
        raise fields.refuse("rope_scaling", old, "but rope_parameters says otherwise: keep one of them")
    name = "rope_scaling" if old else "rope_parameters"
    given = old or new or {}
    if not isinstance(given, dict):
        raise fields.refuse(name, given, "which is not an object")
    kind: Any = given.get("rope_type", given.get("type", "default"))
    if str(kind) not in _ROPE_KEYS:
        raise fields.refuse(f"{name}.rope_type", kind, f"which is not one of {', '.join(_ROPE_KEYS)}")
    keys = _ROPE_KEYS[kind]
    for key in given:
        if key not in ("rope_type", "type", "rope_theta", "partial_rotary_factor", *keys):
            raise fields.refuse(f"{name}.{key}", given[key], "a field that is not understood")
    fraction = given.get("partial_rotary_factor", fraction)
    if family != "gpt_neox" and fraction != 1.0:
        raise fields.refuse("partial_rotary_factor", fraction, f"which {family} models do not have")
    found = {"rope_theta": given.get("rope_theta", theta), "rotary_fraction": fraction}
    found["rope_scaling"] = "none" if kind == "default" else kind
    for key, ours in keys.items():
        if key not in given:
            if key == "original_max_position_embeddings":
                fallback = fields.get("max_position_embeddings")
                found[ours] = fields.get("original_max_position_embeddings", fallback)
                continue
            raise InputError(f"{fields.where} has {name} of type {kind!r} without {key}: fetch it again")
        found[ours] = given[key]
    return found


def _refuse_the_rest(fields: _Fields) -> None:
    for name, value in fields.values.items():
        if name in _MUST_BE:
            wanted = _MUST_BE[name]
            if value != wanted and not (value is None and wanted in ({}, False)):
                quantised = name == "quantization_config"
                remedy = "so save it dequantised first" if quantised else f"but only {wanted!r} is supported"
                raise fields.refuse(name, value, remedy)
        elif name not in fields.asked and name not in HARMLESS:
            raise fields.refuse(name, value, "a field that is not understood: it may change the model")
