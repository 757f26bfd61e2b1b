"""A Hugging Face ``config.json`` read field by field: each one understood, harmless or refused by name."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from typing_extensions import TypedDict

from bornbiased_jax import schema
from bornbiased_jax.checkpoints.families import FAMILIES, Family
from bornbiased_jax.checkpoints.families.reading import SHARED, Fields, read_rope
from bornbiased_jax.checkpoints.layout import Biases
from bornbiased_jax.config import TYPES, ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import distribution
from bornbiased_jax.model.layers import HUGGING_FACE as ACTIVATIONS
from bornbiased_jax.parameters import parameter_table
from bornbiased_jax.schemes import DEFAULT_STD

# Fields with one value that we understand: anything else changes what the model computes.
_MUST_BE: dict[str, object] = {
    "add_cross_attention": False,
    "cross_attention_hidden_size": None,
    # Read by the masks of all families: null too lets them see later tokens.
    "is_causal": True,
    "is_encoder_decoder": False,
    "per_layer_config": None,
    "pruned_heads": {},
    # MLX's name, and that of all others.
    "quantization": None,
    "quantization_config": None,
    "rope_interleaved": False,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "tie_encoder_decoder": False,
}

# Fields that change nothing about the logits in inference: training, generation, labels, bookkeeping.
HARMLESS = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _commit_hash _flash_attn_2_enabled _name_or_path _num_labels
    architectures attention_dropout attention_probs_dropout_prob attn_implementation attn_pdrop auto_map bad_words_ids
    begin_suppress_tokens bos_token_id cache_implementation chunk_size_feed_forward classifier_dropout
    decoder_start_token_id diversity_penalty do_sample dtype early_stopping embd_pdrop embedding_dropout
    encoder_no_repeat_ngram_size
    eos_token_id exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id
    gradient_checkpointing hidden_dropout hidden_dropout_prob id2label is_decoder is_llama_config label2id
    length_penalty max_length max_sequence_length min_length model_max_length model_type n_ctx n_special
    neftune_noise_alpha no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences output_attentions
    output_hidden_states output_past output_router_logits output_scores pad_token_id predict_special_tokens prefix
    pretraining_tp problem_type remove_invalid_values reorder_and_upcast_attn repetition_penalty resid_pdrop
    residual_dropout return_dict router_aux_loss_coef router_jitter_noise return_dict_in_generate sep_token_id
    summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj suppress_tokens
    task_specific_params temperature tf_legacy_loss tokenizer_class top_k top_p torch_dtype torchscript training_context
    transformers.js_config transformers_version typical_p unsloth_fixed unsloth_version use_bfloat16 use_cache
    """.split()
)

# How transformers draws a family's initial weights at a standard deviation of 0.02: only GPT-2's writers are scaled.
_SCHEMES = {"gpt2": "gpt2-scaled"}

# Two names of one fact: the second counts where both have one value.
_SAME_FACT = {
    "partial_rotary_factor": "rotary_pct",
    "rope_theta": "rotary_emb_base",
    "hidden_act": "hidden_activation",
    "sliding_window_size": "sliding_window",
}


class Read(NamedTuple):
    """The contents of a ``config.json``."""

    cfg: ModelConfig
    family: Family
    biases: Biases


def read_config(values: object, where: str, ignore_fields: Sequence[str] = ()) -> Read:
    """Read the architecture that a ``config.json`` describes.

    Args:
        values: the parsed file.
        where: its path, for errors.
        ignore_fields: fields to leave out, as if the file did not have them.

    Raises:
        InputError: a field that is not understood, by name; one to leave out that is not there;
            a family that is not known; a missing field.
    """
    if not isinstance(values, dict):
        raise InputError(f"{where} is not a JSON object: it should be a Hugging Face model's configuration")
    absent = [name for name in ignore_fields if name not in values]
    if absent:
        raise InputError(f"{where} has no field {schema.shown(absent[0])}: leave it out of the fields to ignore")
    values = {name: value for name, value in values.items() if name not in ignore_fields}
    # The family decides how the other fields are read.
    fields = Fields(values, where)
    name = fields.get("model_type", None)
    if not isinstance(name, str) or name not in FAMILIES:
        raise InputError(f"{where} has model_type={schema.shown(name)}, which is not one of {', '.join(FAMILIES)}")
    family = FAMILIES[name]
    schema.check(file_schema(name), values, where)
    # Fields with a name of their own, then what a family reads itself.
    settings = dict(family.fixed)
    for field, (key, default) in family.sizes.items():
        settings[field] = fields.get(key, default)
    if str(settings["activation"]) not in ACTIVATIONS:
        raise fields.refuse(
            family.sizes["activation"][0], settings["activation"], f"which is not one of {', '.join(ACTIVATIONS)}"
        )
    settings["activation"] = ACTIVATIONS[str(settings["activation"])]
    for key, reason in family.refused.items():
        value = fields.get(key, None)
        if value is not None and value is not False:
            raise fields.refuse(key, value, reason)
    settings |= family.read(fields)
    if family.rope is not None:
        settings |= read_rope(fields, family.rope)
    biases = family.read_biases(fields)
    stated_std = fields.get("initializer_range", None)
    settings["bias"] = biases.output or biases.mlp
    settings["qkv_bias"] = biases.qkv and not settings["bias"]
    _refuse_the_rest(fields)
    try:
        return Read(_initialized(ModelConfig.from_dict(settings), family.name, stated_std), family, biases)
    except InputError as error:
        raise InputError(f"{where} describes no model that can be built: {error}") from error


def _initialized(cfg: ModelConfig, family: str, stated_std: float | None) -> ModelConfig:
    """Return the configuration with the initialization that transformers gives the family.

    Where a file does not state ``initializer_range`` the configuration keeps its default scheme.
    """
    if not stated_std:
        return cfg
    cfg = cfg.replace(init=_SCHEMES.get(family, "normal-0.02"), init_groups=None)
    if math.isclose(stated_std, DEFAULT_STD, rel_tol=1e-6):
        return cfg
    # The scheme with another standard deviation: every group that it draws, scaled alike.
    distributions = {row.group: distribution(cfg, row) for row in parameter_table(cfg).values()}
    rules = {
        f"init.{group}": f"normal:{rule.std * stated_std / DEFAULT_STD}"
        for group, rule in distributions.items()
        if rule.constant is None
    }
    return cfg.replace(**rules)


def initializer_range(cfg: ModelConfig, family: str) -> float | None:
    """Return the ``initializer_range`` that describes how a model was drawn; None where silence or no number does."""
    if (cfg.init, cfg.init_groups) == (ModelConfig().init, None):
        return None
    stated_std = cfg.embedding_std
    return stated_std if _initialized(cfg, family, stated_std) == cfg else None


@functools.cache
def file_schema(name: str) -> type[object]:
    """Return the type of a family's ``config.json``: fields that are read, with the ranges of ours that they become."""
    fields: dict[str, object] = dict(SHARED)
    for field, (key, default) in FAMILIES[name].sizes.items():
        value = str if field == "activation" else TYPES[field]
        fields[key] = value | None if default is None else value
    kind: type[object] = TypedDict("ConfigFile", fields, total=False)  # type: ignore[misc]  # the fields are data
    return kind


def _refuse_the_rest(fields: Fields) -> None:
    for name, value in fields.values.items():
        if name in _MUST_BE:
            supported = _MUST_BE[name]
            if value != supported and not (value is None and supported in ({}, False)):
                is_quantized = name in ("quantization", "quantization_config")
                remedy = "so save it dequantized first" if is_quantized else f"but only {supported!r} is supported"
                raise fields.refuse(name, value, remedy)
        elif name not in fields.asked and name not in HARMLESS and not _changes_nothing(fields, name, value):
            remedy = f"if it does not, give --ignore-field {schema.cut(name)}"
            raise fields.refuse(name, value, f"a field that is not understood: it may change the model; {remedy}")


def _changes_nothing(fields: Fields, name: str, value: object) -> bool:
    """Tell whether a field that nobody asks for is empty, or says what another field or the architecture says."""
    if value is None or value is False or value in ({}, []):
        return True
    if name == "layer_types":
        return isinstance(value, list) and all(kind == "full_attention" for kind in value)
    return name in _SAME_FACT and value == fields.values.get(_SAME_FACT[name])
