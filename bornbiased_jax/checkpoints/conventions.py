"""Conventions of names of tensors, as data: what the last parts of a name say of any model's tensors.

A new convention is a row here. :mod:`.names` looks names up, and :mod:`.naming` reads tensors by what the rows say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

Split = Literal["", "halves", "interleaved", "joined", "grouped", "gated"]
"""How matrices are fused along the output axis: halves, every second row, query, key and value one after the other or
group of heads by group of heads, query and gate head by head."""


class Convention(NamedTuple):
    """What a name says of a tensor.

    Attributes:
        match: pattern of the name without its block's and expert's numbers, its prefix and "weight" or "bias".
        groups: what it is; several, joined by "+", that are fused; with ":" and the module that a norm belongs to.
        split: how they are fused.
        families: pattern of ``model_type``, where a name means another thing in other families.
        axes: of the array [in, out], where they are not those of the group.
    """

    match: str
    groups: str
    split: Split = ""
    families: str = ""
    axes: str = ""


GROUP_AXES: Mapping[str, str] = {
    "embedding": "vocab residual",
    "positions": "position residual",
    "head": "residual vocab",
    "query": "residual head*head_dim",
    "key": "residual kv_head*head_dim",
    "value": "residual kv_head*head_dim",
    "output_gate": "residual head*head_dim",
    "output": "head*head_dim residual",
    "gate": "residual hidden",
    "up": "residual hidden",
    "down": "hidden residual",
    "router": "residual expert",
    "sink_logit": "head",
    "norm": "residual",
    "other": "channel",
}

_A = (
    r"(?:self_attn|self_attention|attn|attention|attn\.attention|attention\.self|temporal_block|attention\.attention)\."
)
_M = r"(?:mlp|feed_forward|ffn|block_sparse_moe|moe|mixer|mlp\.mlp)\."
_X = _M + r"(?:experts|local_experts)\."

POST_NORM_FAMILIES = "olmo[23]|exaone4|olmo_hybrid"

OTHER_HEADS = r"(score|classifier|v_head\.summary|reward_head|value_head|v_head|regression_head|classification_head)"
"""Heads that give no tokens: of classifiers, of reward models, of TRL."""

# The first that matches decides, so that a family's own meaning of a name stands before the usual one.
CONVENTIONS: tuple[Convention, ...] = (
    # Attention: fused.
    Convention(_A + "c_attn", "query+key+value", "grouped", "gpt_bigcode"),
    # Not that of the first ChatGLM, whose module is called attention.
    Convention(r"self_attention\.query_key_value", "query+key+value", "joined", "chatglm"),
    Convention(_A + "(query_key_value|wqkv|linear_qkv)", "query+key+value", "grouped"),
    Convention(_A + "(c_attn|qkv_proj|qkv|Wqkv|W_pack|in_proj)|att_proj", "query+key+value", "joined"),
    Convention(_A + "q_proj", "query+output_gate", "gated", "qwen3_next|qwen3_5.*"),
    # Attention: matrices of their own, and latent attention, of which the products are read.
    Convention(_A + "(q_a_proj|wq_a)", "latent:q_a"),
    Convention(_A + "(q_a_layernorm|q_norm_a)", "latent:q_a_norm"),
    Convention(_A + "(q_b_proj|wq_b)", "latent:q_b"),
    Convention(_A + "(kv_a_proj_with_mqa|wkv_a)", "latent:kv_a"),
    Convention(_A + "(kv_a_layernorm|kv_norm)", "latent:kv_a_norm"),
    Convention(_A + "(kv_b_proj|wkv_b)", "latent:kv_b"),
    Convention(_A + "(q_proj|c_q|wq|query|query_proj|to_q)", "query"),
    Convention(_A + "(k_proj|c_k|wk|key|key_proj|to_k)", "key"),
    Convention(_A + "(v_proj|c_v|wv|value|value_proj|to_v)", "value"),
    Convention(
        _A + r"(o_proj|out_proj|c_proj|wo|Wo|dense|proj|linear_proj|to_out\.0|out)|attn_out|attention\.output\.dense",
        "output",
    ),
    Convention(_A + "(q_norm|q_layernorm|query_norm|q_ln|query_layernorm)", "norm:query_norm"),
    Convention(_A + "(k_norm|k_layernorm|key_norm|k_ln|key_layernorm)", "norm:key_norm"),
    Convention(_A + r"[qk]_layernorm\.norms\.\d+", "other", axes="head_dim"),
    Convention(_A + "(sinks|sink)", "sink_logit"),
    # Experts, stacked or one by one, and MLPs.
    Convention(_X + "gate_up_proj", "gate+up", "interleaved", "gpt_oss"),
    Convention(f"(?:{_X}|{_M})(gate_up_proj|input_linear|gate_and_up_proj)", "gate+up", "halves"),
    # Up alone, without a gate, where it is as wide as down.
    Convention(_M + "(Wi|linear_fc1|dense_h_to_4h)", "gate+up", "halves"),
    Convention("ff_proj", "up+gate", "halves"),
    Convention(_M + "w1", "up", families="qwen"),
    Convention(_M + "w2", "gate", families="qwen"),
    Convention(f"(?:{_X}|{_M})(gate_proj|w1|wi_0)", "gate"),
    Convention(f"(?:{_X}|{_M})(up_proj|w3|wi_1)", "up"),
    Convention(f"(?:{_M})?(c_fc|fc1|fc_in)|{_M}(linear_1|wi)|intermediate\\.dense|mlp\\.0", "up"),
    Convention(
        f"(?:{_X}|{_M})(down_proj|w2|wo|output_linear)|{_M}c_proj|(?:{_M})?(fc2|fc_out|ff_out)|"
        f"{_M}(dense_4h_to_h|linear_fc2|linear_2|Wo)|output\\.dense",
        "down",
    ),
    Convention(_M + r"(gate|router|router\.layer|gate\.wg)", "router"),
    Convention(
        _M + r"(gate\.e_score_correction|router\.e_score_correction|expert_bias)",
        "other:router_correction",
        axes="expert",
    ),
    Convention(_M + "shared_expert_gate", "other:shared_expert_gate", axes="residual channel"),
    # Norms of blocks.
    Convention("post_attention_layernorm", "norm:attention_post_norm", families="gemma[23].*|.*gemma3.*|.*gemma4.*"),
    Convention("post_attention_layernorm", "norm:attention_norm", families=POST_NORM_FAMILIES),
    Convention("post_feedforward_layernorm", "norm:mlp_norm", families=POST_NORM_FAMILIES),
    Convention("post_self_attn_layernorm", "norm:attention_post_norm"),
    Convention("post_feedforward_layernorm|post_mlp_layernorm", "norm:mlp_post_norm"),
    Convention(
        "input_layernorm|ln_1|ln_attn|layer_norm1|norm1|norm_1|attention_norm|self_attn_layer_norm|attn_norm|norm|"
        r"self_attention\.linear_qkv\.layer_norm|input_norm|pre_self_attention_(layer_)?norm",
        "norm:attention_norm",
    ),
    Convention(
        "post_attention_layernorm|pre_feedforward_layernorm|ln_2|ln_mlp|layer_norm2|norm2|norm_2|ffn_norm|"
        r"final_layer_norm|mlp_norm|ff_norm|mlp\.linear_fc1\.layer_norm|pre_mlp_layernorm|post_attention_norm|"
        "post_self_attention_(layer_)?norm",
        "norm:mlp_norm",
    ),
    Convention(r"attention\.output\.LayerNorm", "norm:attention_post_norm"),
    Convention(r"output\.LayerNorm", "norm:mlp_post_norm"),
    # State-space blocks, by their modules: only the axis of the residual stream is named here.
    Convention(r"(linear_attn|mixer|mamba|ssm|short_conv|conv)\.(in_proj\w*)", "other:*", axes="residual channel"),
    Convention(r"(linear_attn|mixer|mamba|ssm|short_conv|conv)\.out_proj", "other:*", axes="channel residual"),
    Convention(r"(linear_attn|mixer|mamba|ssm|short_conv|conv)\.[\w.]+", "other:*"),
)
# Tensors outside blocks.
TABLES: tuple[Convention, ...] = (
    Convention(
        "(embed_tokens|wte|embed_in|word_embeddings|tok_embeddings|embeddings|embedding|embed|token_embedder)",
        "embedding",
    ),
    Convention(r"embeddings?\.(word_embeddings|tok_embeddings)", "embedding"),
    Convention("(lm_head|embed_out|output|output_layer|logits_dense|ff_out|head)", "head"),
    Convention("(wpe|embed_positions|position_embeddings|pos_embed|positional_embedding)", "positions"),
    Convention(r"embeddings\.position_embeddings?", "positions"),
    Convention(
        "(norm|ln_f|final_layer_norm|final_layernorm|norm_f|final_norm|model_norm|decoder_norm)", "norm:final_norm"
    ),
    Convention(r"(word_embeddings_layernorm|embeddings\.LayerNorm|embeddings\.norm|embed_norm)", "norm:embedding_norm"),
    Convention(OTHER_HEADS, "other:*", axes="residual channel"),
)
# Towers and projectors: their residual axis is the stream that they write to.
TOWERS: tuple[Convention, ...] = (
    Convention("(linear_1|mlp.0|fc1|0|linear_fc1)", "up", axes="channel hidden"),
    Convention("(linear_2|mlp.2|fc2|2|linear_fc2)", "down"),
    Convention("(patch_embed.proj|embeddings.patch_embedding|conv1|patch_conv)", "other:*", axes="channel residual"),
    Convention("(embeddings.position_embedding|positional_embedding|pos_embed|position_embedding)", "positions"),
    Convention("(embeddings.class_embedding|class_embedding|cls_token)", "other:*", axes="residual"),
    Convention("(post_layernorm|norm|ln_post)", "norm:final_norm"),
    Convention("(pre_layrnorm|pre_layernorm|ln_pre)", "norm:embedding_norm"),
    Convention(r"(head\.[\w.]+|ln_q|mm_[\w.]+|norm|[\w.]*layer_?norm\w*)", "other:*"),
)

# Names of llama.cpp, by the names of the same tensors above; gate and up in one matrix have the name of up.
GGUF_NAMES: Mapping[str, str] = {
    "token_embd": "embed_tokens",
    "token_embd_norm": "embed_norm",
    "position_embd": "wpe",
    "output_norm": "final_norm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_sinks": "self_attn.sinks",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.linear_fc1",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "exp_probs_b": "mlp.gate.e_score_correction",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ssm_in": "mixer.in_proj",
    "ssm_out": "mixer.out_proj",
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_self_attn_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
GGUF = re.compile(r"(?:blk\.(?P<block>\d+)\.)?(?P<stem>\w+?)(?P<leaf>\.weight|\.bias)?")

# Parts of names: what wraps a whole model, numbers of blocks and experts, what is a buffer and no weight.
WRAPPER = re.compile(r"^(?:_orig_mod\.|module\.|base_model\.model\.|_fsdp_wrapped_module\.)")
BLOCK = re.compile(r"(?:^|(?<=\.))(?:layers|h|blocks|layer|block|resblocks)\.(\d+)\.")
EXPERT = re.compile(r"((?:^|\.)(?:experts|local_experts))\.(\d+)\.")
SHARED = re.compile(r"(?:shared_experts?|shared_mlp)\.")
BUFFER = re.compile(
    r".*(?:rotary_emb\.inv_freq|\.masked_bias|position_ids|num_batches_tracked|rope\.freqs|rotary_pos_emb\.inv_freq)"
    r"|rope_(?:freqs|factors_long|factors_short)\.weight"
)
# Prefixes of components: these words are of the language model.
LANGUAGE_WORDS = frozenset(
    """
    model transformer gpt_neox backbone language_model text_model decoder encoder lm llm bert roberta embedding
    embeddings thinker pretrained_model
    """.split()
) | {""}
PROJECTOR = re.compile(r"projector|merger|connector|aligner")
VISION = re.compile(r"vision|visual|image")
# Families by ``model_type``: whose norms multiply by 1 + g, and whose configuration does not tell which norm they have.
OFFSET_NORMS = re.compile(r"gemma\w*|qwen3_next|qwen3_5\w*|recurrent_gemma|nemotron|paligemma|shieldgemma2?")
LAYERNORM = re.compile(r"(?:hf_)?olmo|modernbert.*|mpt|dbrx|cohere2?|nemotron")
RMSNORM = re.compile(r"mamba2?|falcon_mamba|qwen")
POST_NORMS = re.compile(POST_NORM_FAMILIES)
"""Families whose only norms stand after attention and MLP."""
# Fields of ``config.json``.
HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
KV_HEADS = (
    "num_key_value_heads",
    "num_kv_heads",
    "n_kv_heads",
    "n_head_kv",
    "num_query_groups",
    "multi_query_group_num",
)
HEAD_DIM = ("head_dim", "kv_channels", "attention_head_size")
ACTIVATION = ("hidden_act", "hidden_activation", "activation_function")
ODD_ACTIVATIONS = ("tanh", "linear", "identity")
