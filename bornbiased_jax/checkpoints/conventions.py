"""Conventions of names of tensors, as data: what the last parts of a name say of any model's tensors.

A new convention is a row here. :mod:`.names` looks names up, and :mod:`.naming` reads tensors by what the rows say.
Names without a source are those of Hugging Face's transformers, which the tests run; the others name the public file
that writes or reads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

Split = Literal["", "halves", "interleaved", "joined", "grouped", "gated", "quarters", "experts", "experts_in_out"]
"""How matrices are fused along the output axis: halves, every second row, query, key and value one after the other,
group of heads by group of heads or quarter of the heads by quarter, query and gate head by head. Experts, one after the
other, are not fused: they lie as [expert*out, in] or [expert*in, out]."""


class Convention(NamedTuple):
    """The facts of a tensor that its name states.

    Attributes:
        match: pattern of the name without its block's and expert's numbers, its prefix and "weight" or "bias".
        groups: what it is; several, joined by "+", that are fused; with ":" and the module that a norm belongs to.
        split: how they are fused.
        families: pattern of ``model_type``, where a name means another thing in other families.
        axes: of the array [in, out], where they are not those of the group.
        is_paired: whether RoPE rotates adjacent rows of queries and keys together, and not two halves of a head.
    """

    match: str
    groups: str
    split: Split = ""
    families: str = ""
    axes: str = ""
    is_paired: bool = False


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
    r"(?:norm_attn_norm\.)?(?:self_attn|self_attention|attn|attention|attn\.attention|attention\.self|temporal_block|"
    r"attention\.attention|multi_head_attention)\."
)
# Matrices of attention in blocks that call it their mixer, as their state-space layers: Phi 1 to 2 of 2023, Nemotron-H.
_AM = rf"(?:{_A}|mixer\.)"
_M = r"(?:mlp|feed_forward|ffn|block_sparse_moe|moe|mixer|mlp_block|mlp\.mlp)\."
_X = rf"(?:{_M})?(?:experts|local_experts|experts\.local_experts)\."

SUMMED_NORMS = "bart|marian|blenderbot-small|plbart|trocr|mvp"

HEAD_TENSORS = frozenset({"lm_head.weight", "embed_out.weight"})
"""Tensors that a language model's head is stored as, where the embedding is not."""
OTHER_HEADS = r"(score|classifier|v_head\.summary|reward_head|value_head|v_head|regression_head|classification_head)"
"""Heads that give no tokens: of classifiers, of reward models, of TRL."""


def is_other_head(name: str) -> bool:
    """Tell whether a tensor of this name is of a head that gives no tokens."""
    return re.fullmatch(rf"{OTHER_HEADS}\..*", name) is not None


# The first that matches decides, so that a family's own meaning of a name stands before the usual one.
CONVENTIONS: tuple[Convention, ...] = (
    # Attention: fused.
    Convention(_A + "c_attn", "query+key+value", "grouped", "gpt_bigcode"),
    Convention(_A + "qkv_proj", "query+value+key", "quarters", "codegen"),
    # Lightning attention, whose keys have as many heads as its queries: vllm minimax_text_01.py.
    Convention(_A + "(qkv_proj|output_gate)", "other:*", families="minimax|minimax_text_01", axes="residual channel"),
    Convention(_A + "out_proj", "other:*", families="minimax|minimax_text_01", axes="channel residual"),
    Convention(_A + "norm", "other:*", families="minimax|minimax_text_01"),
    # Tencent-Hunyuan-Large: vllm hunyuan_v1.py, _split_qkv_weight.
    Convention(_A + "qkv_proj", "query+key+value", "grouped", r"hunyuan\w*"),
    # zai-org/chatglm2-6b modeling_chatglm.py, SelfAttention. Not that of the first ChatGLM, whose module is attention.
    Convention(r"self_attention\.query_key_value", "query+key+value", "joined", "chatglm"),
    # inclusionAI's Ling: mlx-lm bailing_moe.py, Attention.
    Convention(_A + "query_key_value", "query+key+value", "joined", r"bailing_\w+"),
    # wqkv: InternLM2, modeling_internlm2.py, InternLM2Attention. linear_qkv: Megatron-LM core/transformer/attention.py.
    # attn.attn: checkpoints of Lit-GPT of 2023; Phi-3-small has query_key_value: mlx-lm phi3small.py.
    Convention(_A + r"(query_key_value|wqkv|linear_qkv)|attn\.attn", "query+key+value", "grouped"),
    # W_pack: Baichuan, modeling_baichuan.py, BaichuanAttention. Wqkv: llm-foundry layers/attention.py, and Phi of 2023.
    # c_attn: Qwen of 2023, modeling_qwen.py, QWenAttention. att_proj: allenai/OLMo olmo/model.py, OLMoSequentialBlock.
    # qkv: openai/gpt-oss torch/model.py, AttentionBlock; LitGPT litgpt/model.py, CausalSelfAttention.
    # wqkv, wo: MoonViT, modeling_kimi_vl.py, MoonVitEncoderLayer. CogVLM: lmdeploy pytorch/models/cogvlm.py.
    Convention(
        rf"{_A}(c_attn|qkv|in_proj|language_expert_query_key_value)|{_AM}(qkv_proj|Wqkv|W_pack)|att_proj|wqkv",
        "query+key+value",
        "joined",
    ),
    Convention(_A + "vision_expert_query_key_value", "other:*", axes="residual channel"),
    Convention(_A + "vision_expert_dense", "other:*", axes="channel residual"),
    # TeleChat: vllm telechat2.py, _split_key_value. Refact: llama.cpp convert_hf_to_gguf.py, RefactModel.
    Convention(_A + "key_value", "key+value", "grouped"),
    Convention(_A + "kv", "key+value", "joined"),
    Convention(_A + "q_proj", "query+output_gate", "gated", r"qwen3_next|qwen3_5\w*|qwen4_exp\w*"),
    # Attention: matrices of their own, and latent attention, of which the products are read. Those of wq_a and its like
    # are those of deepseek-ai/DeepSeek-V3 inference/model.py, MLA; linear_q_down_proj and its like those of Megatron-LM
    # core/transformer/multi_latent_attention.py; q_a_norm and kv_a_norm those of LitGPT.
    Convention(_A + "(q_a_proj|wq_a|linear_q_down_proj)", "latent:q_a"),
    Convention(_A + r"(q_a_layernorm|q_norm_a|q_a_norm|linear_q_up_proj\.layer_norm)", "latent:q_a_norm"),
    Convention(_A + "(q_b_proj|wq_b|linear_q_up_proj)", "latent:q_b"),
    Convention(_A + "(kv_a_proj_with_mqa|wkv_a|linear_kv_down_proj)", "latent:kv_a"),
    Convention(
        _A + r"(kv_a_layernorm|kv_norm|kv_a_norm|kv_layernorm|linear_kv_up_proj\.layer_norm)", "latent:kv_a_norm"
    ),
    Convention(_A + "(kv_b_proj|wkv_b|linear_kv_up_proj)", "latent:kv_b"),
    # wq, wk, wv, wo: llama, and mistralai/mistral-inference transformer_layers.py, Attention; rope.py there.
    Convention(r"attention\.wq", "query", is_paired=True),
    Convention(r"attention\.wk", "key", is_paired=True),
    # c_q, c_k, c_v: nanochat. linear_q_proj: Megatron-LM's MLASelfAttention. q_lin: DistilBERT.
    Convention(rf"{_A}(c_q|wq|query|query_proj|to_q|q|q_lin|linear_q_proj)|(?:{_AM})?q_proj", "query"),
    Convention(rf"{_A}(c_k|wk|key|key_proj|to_k|k_lin)|(?:{_AM})?k_proj", "key"),
    Convention(rf"{_A}(c_v|wv|value|value_proj|to_v|v_lin)|(?:{_AM})?v_proj", "value"),
    Convention(r"mixer\.out_proj", "output", families="phi-msft|mixformer-sequential"),
    Convention(
        rf"{_A}(out_proj|c_proj|wo|Wo|dense|proj|linear|linear_proj|to_out\.0|out|out_lin|language_expert_dense)|"
        rf"{_AM}o_proj|attn_out|wo|attention\.output\.dense",
        "output",
    ),
    Convention(f"(?:{_A})?(q_norm|q_layernorm|query_norm|q_ln|query_layernorm|norm_q)", "norm:query_norm"),
    Convention(f"(?:{_A})?(k_norm|k_layernorm|key_norm|k_ln|key_layernorm|norm_k)", "norm:key_norm"),
    Convention(_A + r"[qk]_layernorm\.norms\.\d+", "other:*", axes="head_dim"),
    Convention(_A + "(sinks|sink|softmax_offset|attention_sink)", "sink_logit"),
    # The choice of keys in DeepSeek V3.2's sparse attention.
    Convention(r"self_attn\.indexer\.(wk|weights_proj)", "other:*", axes="residual channel"),
    Convention(r"self_attn\.indexer\.\w+", "other:*"),
    # Attention with a state, of Kimi and Ling; what else such a module has is settled by .sizes.
    Convention(_A + r"(A_log|dt_bias|b_proj|f_proj|[fg]_[ab]_proj|[qkv]_conv1d|o_norm)", "other:*"),
    # Of channels, or of whole heads.
    Convention(_A + "(gate_proj|g_proj)", "output_gate"),
    # BitNet: norms before the output and before down.
    Convention(_A + "(attn_sub_norm|inner_attn_ln)", "other:*", axes="head*head_dim"),
    Convention(_M + "(ffn_sub_norm|ffn_layernorm)", "other:*", axes="hidden"),
    # Experts, stacked or one by one, and MLPs.
    Convention(_X + "gate_up_proj", "gate+up", "interleaved", "gpt_oss"),
    # openai/gpt-oss torch/model.py, MLPBlock.
    Convention(_M + "mlp1", "gate+up", "interleaved"),
    Convention(_M + "mlp2", "down"),
    # Phi-3-small: mlx-lm phi3small.py, gegelu.
    Convention(_M + "up_proj", "gate+up", "interleaved", "phi3small"),
    # Tencent-Hunyuan-Large: vllm hunyuan_v1.py, HunYuanModel.load_weights.
    Convention(f"(?:{_X}|{_M})gate_and_up_proj", "up+gate", "halves"),
    # proj_1, proj_2: OpenELM, mlx-lm openelm.py, MLP.
    Convention(rf"(?:{_X}|{_M})(gate_up_proj|input_linear)|{_X}fc1|ffn\.proj_1", "gate+up", "halves"),
    # Up alone, without a gate, where it is as wide as down. linear_fc1: Megatron-LM core/transformer/mlp.py, MLP.
    # dense_h_to_4h: with a gate in zai-org/chatglm2-6b modeling_chatglm.py, MLP.
    Convention(rf"(?:{_X}|{_M})(Wi|linear_fc1|dense_h_to_4h)", "gate+up", "halves"),
    # allenai/OLMo olmo/model.py, SwiGLU; gate alone beside an up_proj: LLaDA's modeling_llada.py, LLaDALlamaBlock.
    Convention("ff_proj", "up+gate", "halves"),
    # Qwen of 2023: modeling_qwen.py, QWenMLP. Jais: vllm jais.py, JAISMLP. Grok-1: model.py, DenseBlock.
    Convention(_M + "w1", "up", families="qwen"),
    Convention(_M + "w2", "gate", families="qwen"),
    Convention(_M + "c_fc2", "gate", families="jais"),
    Convention(r"moe\.linear", "gate", families="grok.*"),
    Convention(r"moe\.linear_v", "up", families="grok.*"),
    Convention(r"moe\.linear_1", "down", families="grok.*"),
    # Experts one after the other along the first axis.
    Convention(_X + r"mlp\.w1", "up", "experts", families="nomic_bert"),
    Convention(_X + r"mlp\.w1", "gate", "experts"),
    Convention(_X + r"mlp\.v1", "up", "experts"),
    Convention(_X + r"mlp\.w2", "down", "experts_in_out"),
    # w1, w2, w3: llama, mistral-inference, InternLM2 and DeepSeek. c_fc_0, c_fc_1: Exaone 3, mlx-lm exaone.py, MLP.
    # fc_1, fc_2, proj: litgpt/model.py, LLaMAMLP; fc, proj: GptNeoxMLP there.
    # fc11, fc12: Nomic BERT, transformers conversion_mapping.py. SmallThinker: llama.cpp tensor_mapping.py.
    Convention(rf"(?:{_X}|{_M})(gate_proj|w1|wi_0|c_fc_0|fc_1|fc12|language_mlp\.gate_proj)|{_X}gate", "gate"),
    Convention(
        rf"(?:{_X}|{_M})(up_proj|w3|wi_1|c_fc_1|fc_2|fc|fc0|fc11|lin1|language_mlp\.up_proj)|{_X}up|up_proj", "up"
    ),
    Convention(f"(?:{_M})?(c_fc|fc1|fc_in)|{_M}(linear_1|wi)|intermediate\\.dense|mlp\\.0", "up"),
    Convention(
        rf"(?:{_X}|{_M})(down_proj|w2|wo|output_linear|linear_fc2|proj|lin2|language_mlp\.down_proj)|{_X}(down|fc2)|"
        rf"{_M}c_proj|(?:{_M})?(fc2|fc_out|ff_out)|{_M}(dense_4h_to_h|linear_2|Wo|proj_2)|output\.dense",
        "down",
    ),
    Convention(_M + r"vision_mlp\.(gate_proj|up_proj)", "other:*", axes="residual channel"),
    Convention(_M + r"vision_mlp\.down_proj", "other:*", axes="channel residual"),
    Convention(
        _M + r"(gate|router|router\.layer|router\.gate|gate\.wg|primary_router)|router|router\.proj|gate", "router"
    ),
    Convention(
        _M + r"(?:(?:gate|router|moe_statics|experts)\.)?(?:e_score_correction|expert)",
        "other:router_correction",
        axes="expert",
    ),
    # Megatron-LM core/transformer/moe/shared_experts.py, SharedExpertMLP: shared_experts.gate_weight.
    Convention(_M + r"(shared_expert_gate|shared_experts\.gate)", "other:shared_expert_gate", axes="residual channel"),
    # Norms of blocks. What stands before and what after a sublayer is settled by the others of the block (.sizes).
    Convention(r"norm_attn_norm\.norm_1", "norm:attention_norm"),
    Convention(r"norm_attn_norm\.norm_2", "norm:mlp_norm"),
    # openai/gpt-oss torch/model.py: AttentionBlock, MLPBlock.
    Convention(r"attn\.norm", "norm:attention_norm", families="(?!deepseek).*"),
    Convention(r"mlp\.norm", "norm:mlp_norm"),
    Convention("rms_norm", "norm:attention_norm", families="grok.*"),
    # GPT-1, BART, models made like it and Nomic BERT have their norms behind the sum with the stream.
    Convention("self_attn_layer_norm", "norm:attention_post_norm", families=SUMMED_NORMS),
    Convention("final_layer_norm", "norm:mlp_post_norm", families=SUMMED_NORMS),
    Convention("ln_1", "norm:attention_post_norm", families="openai-gpt"),
    Convention("ln_2", "norm:mlp_post_norm", families="openai-gpt"),
    Convention("norm1", "norm:attention_post_norm", families="nomic_bert"),
    Convention("norm2", "norm:mlp_post_norm", families="nomic_bert"),
    Convention(
        "rms_norm_1|post_self_attn_layernorm|post_attn_norm|post_mixer_norm|sa_layer_norm|post_norm1|post_operator_norm",
        "norm:attention_post_norm",
    ),
    Convention("rms_norm_2", "norm:mlp_norm", families="grok.*"),
    Convention(
        "post_feedforward_layernorm|post_mlp_layernorm|post_mlp_norm|post_moe_norm|rms_norm_3|output_layer_norm|"
        "post_norm2|post_ffn_norm",
        "norm:mlp_post_norm",
    ),
    Convention(
        "input_layernorm|ln_1|ln1|ln|ln_attn|layer_norm1|norm0|norm1|norm_1|attention_norm|self_attn_layer_norm|attn_norm|norm|"
        r"self_attention\.linear_qkv\.layer_norm|input_norm|pre_self_attention_(layer_)?norm|operator_norm|"
        "attention_layernorm|attention_layer_norm|pre_attention_layernorm|pre_attn_norm|pre_mixer_norm|temporal_pre_norm",
        "norm:attention_norm",
    ),
    Convention(
        "post_attention_layernorm|pre_feedforward_layernorm|ln_2|ln2|ln_mlp|layer_norm2|norm2|norm_2|ffn_norm|"
        r"final_layer_norm|mlp_norm|ff_norm|mlp\.linear_fc1\.layer_norm|pre_mlp_layernorm|post_attention_norm|"
        r"post_self_attention_(layer_)?norm|feedforward_layernorm|feedforward_layer_norm|pre_ff_layernorm|pre_moe_layernorm|"
        "pre_moe_norm|pre_mlp_norm|channel_pre_norm",
        "norm:mlp_norm",
    ),
    Convention(r"attention\.output\.LayerNorm", "norm:attention_post_norm"),
    Convention(r"output\.LayerNorm", "norm:mlp_post_norm"),
    # RWKV 4 to 6: neurons of channels, and the rest by its axis of the residual stream alone.
    Convention(r"feed_forward\.key", "up", families=r"rwkv\d?"),
    Convention(r"feed_forward\.value", "down", families=r"rwkv\d?"),
    Convention(r"feed_forward\.receptance", "other:*", families=r"rwkv\d?", axes="residual residual"),
    Convention(r"attention\.(receptance|gate)", "other:*", families=r"rwkv\d?", axes="residual channel"),
    Convention(r"(attention|feed_forward)\.time_mix_\w+", "other:*", axes="channel channel residual"),
    Convention(r"attention\.output", "output", families=r"rwkv\d?"),
    Convention(r"attention\.time_(decay|first)", "other:*"),
    Convention("pre_ln", "norm:embedding_norm"),
    # Doge.
    Convention("(input|post_attention)_residual", "other:*", axes="residual"),
    Convention(r"self_attn\.A", "other:*", axes="kv_head"),
    Convention(r"self_attn\.dt_proj", "other:*", axes="kv_head*head_dim kv_head"),
    # State-space blocks, by their modules: only the axis of the residual stream is named here.
    Convention(r"linear_attn\.[abgqkv]_proj|temporal_block\.linear_[xy]", "other:*", axes="residual channel"),
    Convention(r"linear_attn\.o_proj|temporal_block\.linear_out", "other:*", axes="channel residual"),
    Convention(r"temporal_block\.(conv_1d|rg_lru\.\w+)", "other:*"),
    Convention(r"(linear_attn|mixer|mamba|ssm|short_conv|conv)\.(in_proj\w*)", "other:*", axes="residual channel"),
    Convention(r"(linear_attn|mixer|mamba|ssm|short_conv|conv)\.out_proj", "other:*", axes="channel residual"),
    Convention(r"(linear_attn|mixer|mamba|ssm|short_conv|conv)\.[\w.]+", "other:*"),
)
# Tensors outside blocks.
TABLES: tuple[Convention, ...] = (
    Convention(
        "(embed_tokens|wte|embed_in|word_embeddings|tok_embeddings|embeddings|embedding|embed|token_embedder|in_out_embed|"
        "tokens_embed|token_embeddings|shared)",
        "embedding",
    ),
    Convention(r"embeddings?\.(word_embeddings|tok_embeddings)", "embedding"),
    Convention(r"(lm_head|embed_out|output|output_layer|logits_dense|ff_out|head|unembedding|lm_head\.linear)", "head"),
    Convention("(wpe|embed_positions|position_embeddings|pos_embed|positional_embedding|positions_embed)", "positions"),
    Convention(r"embeddings\.position_embeddings?", "positions"),
    Convention("embedding_norm", "norm:final_norm", families="lfm.*"),
    Convention(
        r"(norm|ln_f|final_layer_norm|final_layernorm|norm_f|final_norm|model_norm|decoder_norm|layer_norm|rms_norm|lm_head\.ln|ln_out)",
        "norm:final_norm",
    ),
    Convention(
        r"(word_embeddings_layernorm|embeddings\.LayerNorm|embeddings\.norm|embed_norm|embedding_norm|emb_norm|emb_ln|layernorm_embedding)",
        "norm:embedding_norm",
    ),
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
GGUF = re.compile(r"(?:blk\.(?P<block>\d{1,5})\.)?(?P<stem>\w+?)(?P<leaf>\.weight|\.bias)?")

# Parts of names: what wraps a whole model, numbers of blocks and experts, what is a buffer and no weight. No model has
# a block or an expert of more than five digits: what names one is unread.
WRAPPER = re.compile(r"^(?:_orig_mod\.|module\.|base_model\.model\.|_fsdp_wrapped_module\.)")
BLOCK = re.compile(r"(?:^|(?<=\.))(?:layers|h|blocks|layer|block|resblocks|decoder_layer)\.(\d{1,5})\.")
EXPERT = re.compile(r"((?:^|\.)(?:experts|local_experts|moe))\.(\d{1,5})\.")
# Megatron-LM core/transformer/moe/experts.py, TEGroupedMLP: the weights of all experts are of one module.
EXPERT_WEIGHT = re.compile(r"(experts\.\w+\.(?:weight|bias))(\d{1,5})$")
SHARED = re.compile(rf"(?:{_M})?(?:shared_experts?|shared_mlp|share_expert|residual_mlp)\.(?!gate_weight)")
BUFFER = re.compile(
    r".*(?:rotary_emb\.inv_freq|\.masked_bias|position_ids|num_batches_tracked|rope\.freqs|rotary_pos_emb\.inv_freq|"
    r"\.slope_rate|\.diagonal_decay|\.(?:query|key)_decay)"
    r"|rope_(?:freqs|factors_long|factors_short)\.weight"
)
# Prefixes of components: these words are of the language model.
LANGUAGE_WORDS = frozenset(
    """
    model transformer gpt_neox backbone language_model text_model decoder encoder lm llm bert roberta embedding
    embeddings embd layers thinker pretrained_model distilbert rwkv
    """.split()
) | {""}
# What a comparison calls parts of a component: no names of components.
PARTS = frozenset(("all", "blocks", "experts", "quarters"))
PROJECTOR = re.compile(r"projector|merger|connector|aligner")
VISION = re.compile(r"vision|visual|image")
# Families by ``model_type``: whose norms multiply by 1 + g, and whose configuration does not tell which norm they have.
OFFSET_NORMS = re.compile(
    r"(?:t5|vault|recurrent_)?gemma|gemma[23]|gemma3_text|t5gemma2?\w*|paligemma|shieldgemma2?|qwen3_next|qwen3_5\w*|"
    r"qwen4_exp\w*|nemotron|minimax_m3_vl\w*|step3p[57]\w*|muse_\w+"
)
LAYERNORM = re.compile(r"(?:hf_)?olmo|modernbert.*|mpt|dbrx|cohere2?|nemotron")
RMSNORM = re.compile(r"mamba2?|falcon_mamba|nemotron_h|qwen|exaone|telechat\d?|gpt_refact")
# Fields of ``config.json``.
HEADS = (
    *("num_attention_heads", "n_head", "num_heads", "n_heads"),
    *("decoder_attention_heads", "encoder_attention_heads"),
)
KV_HEADS = (
    "num_key_value_heads",
    "num_kv_heads",
    "n_kv_heads",
    "n_head_kv",
    "num_query_groups",
    "multi_query_group_num",
    "kv_n_heads",
)
HEAD_DIM = ("head_dim", "kv_channels", "attention_head_size", "attention_head_dim", "hidden_size_per_head")
ACTIVATION = ("hidden_act", "hidden_activation", "activation_function")
ODD_ACTIVATIONS = ("tanh", "linear", "identity")
