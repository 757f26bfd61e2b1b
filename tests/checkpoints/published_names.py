"""Random tensors under the names of transformers and under those of other published code, with what that code fuses."""

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

D, H, K, F, V, BLOCKS, EXPERTS = 16, 4, 4, 24, 11, 2, 3
# Latent attention: ranks of queries and of keys and values, sizes of a head without RoPE, with it, and of its value.
Q_RANK, KV_RANK, NOPE, ROPE, VALUE = 12, 8, 6, 4, 5
QKV = tuple(f"self_attn.{name}_proj" for name in "qkv")
GATE, UP, DOWN = (f"mlp.{name}_proj" for name in ("gate", "up", "down"))
EXPERT = {name: f"mlp.experts.{{}}.{name}_proj" for name in ("gate", "up", "down")}
SHARED = {name: f"mlp.shared_expert.{name}_proj" for name in ("gate", "up", "down")}
W = {"gate": "w1", "up": "w3", "down": "w2"}
LATENT = {"n_heads": H, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE}


def one_after_the_other(matrices):
    return np.concatenate(matrices)


def group_by_group(matrices):
    """A group's queries, then its key and its value; or a head's key, then its value."""
    groups = len(matrices[-1]) // K
    parts = [matrix.reshape(groups, -1, *matrix.shape[1:]) for matrix in matrices]
    return np.concatenate(parts, axis=1).reshape(-1, *matrices[0].shape[1:])


def row_by_row(matrices):
    return np.stack(matrices, axis=1).reshape(-1, *matrices[0].shape[1:])


def in_pairs(matrices):
    """Rows that RoPE rotates together one behind the other, which transformers has in two halves of a head."""
    (matrix,) = matrices
    return matrix.reshape(-1, 2, K // 2, *matrix.shape[1:]).swapaxes(1, 2).reshape(matrix.shape)


class Kind(NamedTuple):
    """A form of a llama's tensors, and the configuration under which transformers has them."""

    config: dict
    num_kv_heads: int = 2
    has_qkv_bias: bool = False
    has_all_biases: bool = False
    has_gate: bool = True
    has_norms: bool = True
    is_latent: bool = False
    is_parallel: bool = False
    has_experts: bool = False
    has_shared_expert: bool = False
    has_post_norms: bool = False
    has_output_gate: bool = False


class Names(NamedTuple):
    """Names of published code.

    Attributes:
        kind: of the tensors.
        config: that its files have.
        block: prefix of a block.
        names: by those of transformers, without the prefix; "_" at the end stands for itself, not for a dot.
        fused: names of matrices by those that they hold; "{}" is the number of an expert, of which all lie in a tensor
            where the name that holds them has none.
        tables: names outside the blocks.
        buffers: names of tensors that are no weights.
        joins: how fused matrices lie, where not one after the other.
        is_in_out: whether matrices lie as [in, out].
        norm_leaf: what the parameter of a norm is called.
    """

    kind: Kind
    config: dict
    block: str
    names: dict[str, str]
    fused: dict[str, tuple[str, ...]]
    tables: dict[str, str] = {}
    buffers: tuple[str, ...] = ()
    joins: dict[str, Callable] = {}
    is_in_out: bool = False
    norm_leaf: str = "weight"


LLAMA = {"model_type": "llama", "num_attention_heads": H, "num_key_value_heads": 2, "rms_norm_eps": 1e-6}
ALL_HEADS = LLAMA | {"num_key_value_heads": H}
LITGPT = {"model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f"}
# NVIDIA/Megatron-LM: tools/checkpoint/schema_core.py, and the modules of megatron/core/transformer that it names.
MEGATRON = Names(
    Kind(LLAMA),
    {"num_attention_heads": H, "num_query_groups": 2, "kv_channels": K},
    "decoder.layers.{}.",
    {
        "input_layernorm": "self_attention.linear_qkv.layer_norm_",
        "post_attention_layernorm": "mlp.linear_fc1.layer_norm_",
        "self_attn.o_proj": "self_attention.linear_proj",
        DOWN: "mlp.linear_fc2",
    },
    {"self_attention.linear_qkv": QKV, "mlp.linear_fc1": (GATE, UP)},
    {
        "model.embed_tokens": "embedding.word_embeddings",
        "model.norm": "decoder.final_layernorm",
        "lm_head": "output_layer",
    },
    joins={"self_attention.linear_qkv": group_by_group},
)
MEGATRON_EXPERTS = MEGATRON._replace(
    kind=Kind(LLAMA, has_experts=True, has_shared_expert=True),
    names={
        **MEGATRON.names,
        "post_attention_layernorm": "pre_mlp_layernorm",
        "mlp.gate": "mlp.router",
        EXPERT["down"]: "mlp.experts.local_experts.{}.linear_fc2",
        SHARED["down"]: "mlp.shared_experts.linear_fc2",
        "mlp.shared_expert_gate": "mlp.shared_experts.gate_",
    },
    fused={
        "self_attention.linear_qkv": QKV,
        "mlp.experts.local_experts.{}.linear_fc1": (EXPERT["gate"], EXPERT["up"]),
        "mlp.shared_experts.linear_fc1": (SHARED["gate"], SHARED["up"]),
    },
)
# zai-org/chatglm2-6b, modeling_chatglm.py: SelfAttention, MLP.
CHATGLM = Names(
    Kind(LLAMA, has_qkv_bias=True),
    {"model_type": "chatglm", "num_attention_heads": H, "multi_query_group_num": 2, "kv_channels": K},
    "transformer.encoder.layers.{}.",
    {"self_attn.o_proj": "self_attention.dense", DOWN: "mlp.dense_4h_to_h"},
    {"self_attention.query_key_value": QKV, "mlp.dense_h_to_4h": (GATE, UP)},
    {
        "model.embed_tokens": "transformer.embedding.word_embeddings",
        "model.norm": "transformer.encoder.final_layernorm",
        "lm_head": "transformer.output_layer",
    },
    ("transformer.rotary_pos_emb.inv_freq",),
)
# allenai/OLMo, olmo/model.py: OLMoSequentialBlock, SwiGLU.
OLMO = Names(
    Kind({"model_type": "olmo", "num_attention_heads": H, "num_key_value_heads": 2}, has_norms=False),
    {"model_type": "hf_olmo", "n_heads": H, "n_kv_heads": 2, "layer_norm_type": "default"},
    "model.transformer.blocks.{}.",
    {"self_attn.o_proj": "attn_out", DOWN: "ff_out"},
    {"att_proj": QKV, "ff_proj": (UP, GATE)},
    {"model.embed_tokens": "model.transformer.wte", "lm_head": "model.transformer.ff_out"},
)
# deepseek-ai/DeepSeek-V3, inference/model.py: MLA, MLP; names by inference/convert.py.
DEEPSEEK = Names(
    Kind(LATENT | {"model_type": "deepseek_v2", "rms_norm_eps": 1e-6}, is_latent=True),
    LATENT,
    "layers.{}.",
    {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_a_proj": "attn.wq_a",
        "self_attn.q_a_layernorm": "attn.q_norm",
        "self_attn.q_b_proj": "attn.wq_b",
        "self_attn.kv_a_proj_with_mqa": "attn.wkv_a",
        "self_attn.kv_a_layernorm": "attn.kv_norm",
        "self_attn.kv_b_proj": "attn.wkv_b",
        "self_attn.o_proj": "attn.wo",
        GATE: "ffn.w1",
        UP: "ffn.w3",
        DOWN: "ffn.w2",
    },
    {},
    {"model.embed_tokens": "embed", "model.norm": "norm", "lm_head": "head"},
)
# Lightning-AI/litgpt, litgpt/model.py: CausalSelfAttention, LLaMAMLP, Block.
LIT = Names(
    Kind(LLAMA),
    LLAMA,
    "transformer.h.{}.",
    {
        "input_layernorm": "norm_1",
        "post_attention_layernorm": "norm_2",
        "self_attn.o_proj": "attn.proj",
        GATE: "mlp.fc_1",
        UP: "mlp.fc_2",
        DOWN: "mlp.proj",
    },
    {"attn.qkv": QKV},
    LITGPT,
)
PUBLISHED = {
    # baichuan-inc, modeling_baichuan.py: BaichuanAttention, MLP.
    "Baichuan": Names(
        Kind(ALL_HEADS, num_kv_heads=H),
        {"model_type": "baichuan", "num_attention_heads": H, "rms_norm_eps": 1e-6},
        "model.layers.{}.",
        {},
        {"self_attn.W_pack": QKV},
    ),
    "ChatGLM": CHATGLM,
    # The first ChatGLM: heads one after the other, LayerNorm and an MLP without a gate.
    "ChatGLM of 2023": CHATGLM._replace(
        kind=Kind(ALL_HEADS, num_kv_heads=H, has_all_biases=True, has_gate=False),
        config={"model_type": "chatglm", "num_attention_heads": H, "layernorm_epsilon": 1e-5},
        block="transformer.layers.{}.",
        names={"self_attn.o_proj": "attention.dense", DOWN: "mlp.dense_4h_to_h"},
        fused={"attention.query_key_value": QKV, "mlp.dense_h_to_4h": (UP,)},
        tables={
            "model.embed_tokens": "transformer.word_embeddings",
            "model.norm": "transformer.final_layernorm",
            "lm_head": "lm_head",
        },
        joins={"attention.query_key_value": group_by_group},
    ),
    # Qwen/Qwen-7B, modeling_qwen.py: QWenAttention, QWenMLP.
    "Qwen": Names(
        Kind(ALL_HEADS, num_kv_heads=H, has_qkv_bias=True),
        {"model_type": "qwen", "num_attention_heads": H, "kv_channels": K, "layer_norm_epsilon": 1e-6},
        "transformer.h.{}.",
        {
            "input_layernorm": "ln_1",
            "post_attention_layernorm": "ln_2",
            "self_attn.o_proj": "attn.c_proj",
            UP: "mlp.w1",
            GATE: "mlp.w2",
            DOWN: "mlp.c_proj",
        },
        {"attn.c_attn": QKV},
        LITGPT,
    ),
    "Megatron": MEGATRON,
    "Megatron without a gate": MEGATRON._replace(
        kind=Kind(LLAMA, has_gate=False), fused={**MEGATRON.fused, "mlp.linear_fc1": (UP,)}
    ),
    # core/transformer/attention.py, SelfAttention: a group's queries, their gates, its key and its value.
    "Megatron with an output gate": MEGATRON._replace(
        kind=Kind(LLAMA, has_output_gate=True),
        fused={**MEGATRON.fused, "self_attention.linear_qkv": (QKV[0], "self_attn.g_proj", *QKV[1:])},
    ),
    "Megatron with experts": MEGATRON_EXPERTS,
    # core/transformer/moe/experts.py, TEGroupedMLP.
    "Megatron with grouped experts": MEGATRON_EXPERTS._replace(
        names={**MEGATRON_EXPERTS.names, EXPERT["down"]: "mlp.experts.linear_fc2.{leaf}{}"},
        fused={
            **{name: parts for name, parts in MEGATRON_EXPERTS.fused.items() if "local_experts" not in name},
            "mlp.experts.linear_fc1.{leaf}{}": (EXPERT["gate"], EXPERT["up"]),
        },
    ),
    # core/transformer/multi_latent_attention.py, MLASelfAttention.
    "Megatron with latent attention": MEGATRON._replace(
        kind=DEEPSEEK.kind,
        config=LATENT,
        names={
            **MEGATRON.names,
            "input_layernorm": "input_layernorm",
            "self_attn.q_a_proj": "self_attention.linear_q_down_proj",
            "self_attn.q_a_layernorm": "self_attention.linear_q_up_proj.layer_norm_",
            "self_attn.q_b_proj": "self_attention.linear_q_up_proj",
            "self_attn.kv_a_proj_with_mqa": "self_attention.linear_kv_down_proj",
            "self_attn.kv_a_layernorm": "self_attention.linear_kv_up_proj.layer_norm_",
            "self_attn.kv_b_proj": "self_attention.linear_kv_up_proj",
        },
        fused={"mlp.linear_fc1": (GATE, UP)},
    ),
    "OLMo": OLMO,
    # OLMoLlamaBlock there, and LLaDA's block of that name, whose gate and up are apart: modeling_llada.py.
    "OLMo's llama block": OLMO._replace(
        names={**OLMO.names, **{name: name.removeprefix("self_attn.") for name in QKV}}, fused={"ff_proj": (UP, GATE)}
    ),
    "LLaDA": OLMO._replace(
        kind=Kind(LLAMA),
        config={"model_type": "llada", "n_heads": H, "n_kv_heads": 2, "layer_norm_type": "rms"},
        names={
            **OLMO.names,
            **{name: name.removeprefix("self_attn.") for name in QKV},
            "input_layernorm": "attn_norm",
            "post_attention_layernorm": "ff_norm",
            GATE: "ff_proj",
            UP: "up_proj",
        },
        fused={},
        tables={**OLMO.tables, "model.norm": "model.transformer.ln_f"},
    ),
    "DeepSeek": DEEPSEEK,
    # mistralai/mistral-inference, transformer_layers.py: Attention, FeedForward; rope.py: apply_rotary_emb.
    "Mistral": Names(
        Kind(LLAMA),
        {"dim": D, "n_heads": H, "n_kv_heads": 2, "head_dim": K, "norm_eps": 1e-5},
        "layers.{}.",
        {
            "self_attn.v_proj": "attention.wv",
            "self_attn.o_proj": "attention.wo",
            "input_layernorm": "attention_norm",
            "post_attention_layernorm": "ffn_norm",
            **{f"mlp.{name}_proj": f"feed_forward.{new}" for name, new in W.items()},
        },
        {"attention.wq": QKV[:1], "attention.wk": QKV[1:2]},
        {"model.embed_tokens": "tok_embeddings", "model.norm": "norm", "lm_head": "output"},
        joins={"attention.wq": in_pairs, "attention.wk": in_pairs},
    ),
    # THUDM/CogVLM: InternLM/lmdeploy, pytorch/models/cogvlm.py: the language experts.
    "CogVLM": Names(
        Kind(LLAMA),
        LLAMA | {"model_type": "cogvlm2"},
        "model.layers.{}.",
        {
            "self_attn.o_proj": "self_attn.language_expert_dense",
            **{f"mlp.{name}_proj": f"mlp.language_mlp.{name}_proj" for name in W},
        },
        {"self_attn.language_expert_query_key_value": QKV},
    ),
    # SmallThinker: ggml-org/llama.cpp, gguf-py/gguf/tensor_mapping.py.
    "SmallThinker": Names(
        Kind(LLAMA, has_experts=True),
        LLAMA | {"model_type": "smallthinker"},
        "model.layers.{}.",
        {"mlp.gate": "block_sparse_moe.primary_router"}
        | {EXPERT[name]: f"block_sparse_moe.experts.{{}}.{name}" for name in W},
        {},
    ),
    # inclusionAI's Ling: ml-explore/mlx-lm, bailing_moe.py, Attention.
    "Ling": Names(
        Kind(LLAMA, has_experts=True, has_shared_expert=True),
        LLAMA | {"model_type": "bailing_moe"},
        "model.layers.{}.",
        {"self_attn.o_proj": "attention.dense"}
        | {SHARED[name]: f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")},
        {"attention.query_key_value": QKV},
        {"model.embed_tokens": "model.word_embeddings"},
    ),
    # Tencent-Hunyuan-Large: vllm-project/vllm, hunyuan_v1.py, HunYuanModel.load_weights: up before gate.
    "Hunyuan": Names(
        Kind(LLAMA, has_experts=True, has_shared_expert=True),
        LLAMA | {"model_type": "hunyuan"},
        "model.layers.{}.",
        {
            "mlp.gate": "mlp.gate.wg",
            EXPERT["down"]: EXPERT["down"],
            SHARED["down"]: "mlp.shared_mlp.down_proj",
        },
        {
            "self_attn.qkv_proj": QKV,
            "mlp.experts.{}.gate_and_up_proj": (EXPERT["up"], EXPERT["gate"]),
            "mlp.shared_mlp.gate_and_up_proj": (SHARED["up"], SHARED["gate"]),
        },
        joins={"self_attn.qkv_proj": group_by_group},
    ),
    # ml-explore/mlx-lm, phi3small.py: Attention, gegelu.
    "Phi-3-small": Names(
        Kind(LLAMA, has_all_biases=True),
        LLAMA | {"model_type": "phi3small", "layer_norm_epsilon": 1e-5},
        "model.layers.{}.",
        {"self_attn.o_proj": "self_attn.dense"},
        {"self_attn.query_key_value": QKV, "mlp.up_proj": (GATE, UP)},
        {"model.norm": "model.final_layernorm"},
        joins={"self_attn.query_key_value": group_by_group, "mlp.up_proj": row_by_row},
    ),
    # ml-explore/mlx-lm, exaone.py: MLP, TransformerBlock.
    "Exaone 3": Names(
        Kind(LLAMA),
        {"model_type": "exaone", "num_attention_heads": H, "num_key_value_heads": 2, "layer_norm_epsilon": 1e-5},
        "transformer.h.{}.",
        {
            **{f"self_attn.{name}_proj": f"attn.attention.{name}_proj" for name in "qkv"},
            "self_attn.o_proj": "attn.attention.out_proj",
            "input_layernorm": "ln_1",
            "post_attention_layernorm": "ln_2",
            GATE: "mlp.c_fc_0",
            UP: "mlp.c_fc_1",
            DOWN: "mlp.c_proj",
        },
        {},
        LITGPT,
    ),
    # vllm-project/vllm, jais.py: JAISMLP, SwiGLUActivation.
    "Jais": Names(
        Kind(ALL_HEADS, num_kv_heads=H, has_all_biases=True),
        {"model_type": "jais", "n_head": H, "layer_norm_epsilon": 1e-5},
        "transformer.h.{}.",
        {
            "input_layernorm": "ln_1",
            "post_attention_layernorm": "ln_2",
            "self_attn.o_proj": "attn.c_proj",
            UP: "mlp.c_fc",
            GATE: "mlp.c_fc2",
            DOWN: "mlp.c_proj",
        },
        {"attn.c_attn": QKV},
        LITGPT,
        is_in_out=True,
    ),
    "LitGPT": LIT,
    # Before its commit fabf765b.
    "Lit-GPT of 2023": LIT._replace(fused={"attn.attn": QKV}, joins={"attn.attn": group_by_group}),
    "LitGPT with norms after": LIT._replace(
        kind=Kind(LLAMA, has_post_norms=True),
        names={
            **LIT.names,
            "post_self_attn_layernorm": "post_attention_norm",
            "post_mlp_layernorm": "post_mlp_norm",
        },
    ),
    # openai/gpt-oss, gpt_oss/torch/model.py: AttentionBlock, MLPBlock, swiglu.
    "gpt-oss": Names(
        Kind(LLAMA, has_experts=True),
        {"num_attention_heads": H, "num_key_value_heads": 2, "head_dim": K},
        "block.{}.",
        {
            "input_layernorm": "attn.norm",
            "post_attention_layernorm": "mlp.norm",
            "self_attn.o_proj": "attn.out",
            "mlp.gate": "mlp.gate",
        },
        {"attn.qkv": QKV, "mlp.mlp1_": (EXPERT["gate"], EXPERT["up"]), "mlp.mlp2_": (EXPERT["down"],)},
        {"model.embed_tokens": "embedding", "model.norm": "norm", "lm_head": "unembedding"},
        joins={"mlp.mlp1_": row_by_row},
        norm_leaf="scale",
    ),
    # vllm-project/vllm, telechat2.py: TeleChat2Model._split_key_value.
    "TeleChat": Names(
        Kind(ALL_HEADS, num_kv_heads=H),
        {"model_type": "telechat", "n_head": H, "layer_norm_epsilon": 1e-5},
        "transformer.h.{}.",
        {"self_attn.q_proj": "self_attention.query", "self_attn.o_proj": "self_attention.dense"},
        {"self_attention.key_value": QKV[1:]},
        {"model.embed_tokens": "transformer.word_embeddings", "model.norm": "transformer.ln_f"},
        joins={"self_attention.key_value": group_by_group},
    ),
    # ggml-org/llama.cpp, convert_hf_to_gguf.py: RefactModel.
    "Refact": Names(
        Kind(LLAMA | {"num_key_value_heads": 1}, num_kv_heads=1),
        {"model_type": "gpt_refact", "n_head": H, "layer_norm_epsilon": 1e-5, "multi_query": True},
        "transformer.h.{}.",
        {
            "input_layernorm": "ln_1",
            "post_attention_layernorm": "ln_2",
            "self_attn.q_proj": "attn.q",
            "self_attn.o_proj": "attn.c_proj",
            DOWN: "mlp.c_proj",
        },
        {"attn.kv": QKV[1:], "mlp.gate_up_proj": (GATE, UP)},
        LITGPT,
    ),
    # xai-org/grok-1, model.py: MoELayer, DenseBlock, DecoderLayer; names by ggml-org/llama.cpp, tensor_mapping.py.
    "Grok-1": Names(
        Kind(LLAMA, has_experts=True, has_post_norms=True),
        LLAMA | {"model_type": "grok-1"},
        "transformer.decoder_layer.{}.",
        {
            **{f"self_attn.{name[0]}_proj": f"multi_head_attention.{name}" for name in ("query", "key", "value")},
            "self_attn.o_proj": "multi_head_attention.linear",
            "input_layernorm": "rms_norm",
            "post_self_attn_layernorm": "rms_norm_1",
            "post_attention_layernorm": "rms_norm_2",
            "post_mlp_layernorm": "rms_norm_3",
            "mlp.gate": "router",
            EXPERT["gate"]: "moe.{}.linear",
            EXPERT["up"]: "moe.{}.linear_v",
            EXPERT["down"]: "moe.{}.linear_1",
        },
        {},
        {"model.embed_tokens": "transformer.in_out_embed", "model.norm": "transformer.rms_norm"},
    ),
    # microsoft/phi-2 of 2023: ml-explore/mlx-lm, phixtral.py: RoPEAttention, ParallelBlock, OutputHead.
    "Phi-2 of 2023": Names(
        Kind(ALL_HEADS, num_kv_heads=H, has_all_biases=True, has_gate=False, is_parallel=True),
        {"model_type": "phi-msft", "n_head": H, "layer_norm_epsilon": 1e-5},
        "transformer.h.{}.",
        {"input_layernorm": "ln", "self_attn.o_proj": "mixer.out_proj", UP: "mlp.fc1", DOWN: "mlp.fc2"},
        {"mixer.Wqkv": QKV},
        {"model.embed_tokens": "transformer.embd.wte", "model.norm": "lm_head.ln", "lm_head": "lm_head.linear"},
    ),
    # databricks/dbrx: ml-explore/mlx-lm, dbrx.py: Attention, NormAttnNorm, Model.sanitize.
    "DBRX": Names(
        Kind({**LLAMA, "model_type": "dbrx"}, has_experts=True),
        {"model_type": "dbrx", "n_heads": H, "attn_config": {"kv_n_heads": 2}},
        "transformer.blocks.{}.",
        {
            "self_attn.o_proj": "norm_attn_norm.attn.out_proj",
            "input_layernorm": "norm_attn_norm.norm_1",
            "post_attention_layernorm": "norm_attn_norm.norm_2",
            "mlp.gate": "ffn.router.layer",
        },
        {
            "norm_attn_norm.attn.Wqkv": QKV,
            "ffn.experts.mlp.w1@": (EXPERT["gate"],),
            "ffn.experts.mlp.v1@": (EXPERT["up"],),
            "ffn.experts.mlp.w2@": (EXPERT["down"],),
        },
        {"model.embed_tokens": "transformer.wte", "model.norm": "transformer.norm_f"},
        joins={"ffn.experts.mlp.w2@": lambda matrices: matrices[0].T},
    ),
    # Snowflake/snowflake-arctic: vllm-project/vllm, arctic.py: ArcticMLP, ArcticDecoderLayer.
    "Arctic": Names(
        Kind(LLAMA, has_experts=True, has_shared_expert=True),
        LLAMA | {"model_type": "arctic"},
        "model.layers.{}.",
        {
            "mlp.gate": "block_sparse_moe.gate",
            **{EXPERT[name]: f"block_sparse_moe.experts.{{}}.{new}" for name, new in W.items()},
            **{SHARED[name]: f"residual_mlp.{new}" for name, new in W.items()},
        },
        {},
    ),
}


def llama_tensors(kind: Kind, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw the tensors of a model under the names of transformers."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (V, D), "model.norm": (D,), "lm_head": (V, D)}
    in_block: dict[str, tuple[int, ...]] = {
        "input_layernorm": (D,),
        "post_attention_layernorm": (D,),
        "self_attn.q_proj": (H * K, D),
        "self_attn.k_proj": (kind.num_kv_heads * K, D),
        "self_attn.v_proj": (kind.num_kv_heads * K, D),
        "self_attn.o_proj": (D, H * K),
    }
    if kind.has_output_gate:
        in_block["self_attn.g_proj"] = (H * K, D)
    if kind.is_latent:
        in_block = {name: shape for name, shape in in_block.items() if name not in QKV}
        in_block |= {
            "self_attn.q_a_proj": (Q_RANK, D),
            "self_attn.q_a_layernorm": (Q_RANK,),
            "self_attn.q_b_proj": (H * (NOPE + ROPE), Q_RANK),
            "self_attn.kv_a_proj_with_mqa": (KV_RANK + ROPE, D),
            "self_attn.kv_a_layernorm": (KV_RANK,),
            "self_attn.kv_b_proj": (H * (NOPE + VALUE), KV_RANK),
            "self_attn.o_proj": (D, H * VALUE),
        }
    mlp = {"gate": (F, D), "up": (F, D), "down": (D, F)}
    if not kind.has_gate:
        del mlp["gate"]
    if kind.has_experts:
        in_block["mlp.gate"] = (EXPERTS, D)
        in_block |= {EXPERT[name].format(e): shape for e in range(EXPERTS) for name, shape in mlp.items()}
    else:
        in_block |= {f"mlp.{name}_proj": shape for name, shape in mlp.items()}
    if kind.has_shared_expert:
        in_block |= {SHARED[name]: shape for name, shape in mlp.items()}
    if kind.has_post_norms:
        in_block |= {"post_self_attn_layernorm": (D,), "post_mlp_layernorm": (D,)}
    if kind.is_parallel:
        del in_block["post_attention_layernorm"]
    shapes |= {f"model.layers.{block}.{name}": shape for block in range(BLOCKS) for name, shape in in_block.items()}
    if not kind.has_norms:
        shapes = {name: shape for name, shape in shapes.items() if "norm" not in name}
    tensors = {f"{name}.weight": rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for name, shape in shapes.items():
        is_biased = name.endswith(QKV) if kind.has_qkv_bias else name not in ("model.embed_tokens", "lm_head")
        if is_biased and (kind.has_qkv_bias or kind.has_all_biases):
            tensors[f"{name}.bias"] = rng.normal(size=shape[0]).astype(np.float32)
    return tensors


def published_tensors(names: Names, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Write a model's tensors as published code does."""
    made = {name: np.ones(2, np.float32) for name in names.buffers}
    for key, array in tensors.items():
        name, _, leaf = key.rpartition(".")
        new_leaf = names.norm_leaf if "norm" in name and leaf == "weight" else leaf
        if not name.startswith("model.layers."):
            made[f"{names.tables.get(name, name)}.{new_leaf}"] = array
            continue
        # The name in the block, "{}" for the number of an expert.
        block, tail = name.removeprefix("model.layers.").split(".", 1)
        number = re.search(r"(?<=experts\.)\d+", tail)
        expert = number[0] if number else ""
        template = tail.replace(f".{expert}.", ".{}.") if number else tail
        fused = next((new for new, parts in names.fused.items() if template in parts), None)
        new = fused or names.names.get(template, template)
        place = names.block.format(block) + _with_leaf(new.replace("{}", expert), new_leaf)
        if fused is None:
            made[place] = array
        elif place not in made:
            join = names.joins.get(fused, one_after_the_other)
            # Of all experts, where the name has no place for a number.
            experts = range(EXPERTS) if number and "{}" not in fused else [expert]
            prefix = f"model.layers.{block}."
            parts = [
                join([tensors[f"{prefix}{part.format(e)}.{leaf}"] for part in names.fused[fused]]) for e in experts
            ]
            made[place] = np.concatenate(parts) if fused.endswith("@") else np.stack(parts)
            if len(parts) == 1:
                made[place] = parts[0]
    is_in_block = names.block.split("{}")[0]
    return {
        name: array.T if names.is_in_out and name.startswith(is_in_block) else array for name, array in made.items()
    }


def _with_leaf(name: str, leaf: str) -> str:
    """Put weight or bias to a name: where it says, right behind "_", not at all instead of "@", else after a dot."""
    if "{leaf}" in name:
        return name.replace("{leaf}", leaf)
    return name[:-1] if name.endswith("@") else name + leaf if name.endswith("_") else f"{name}.{leaf}"
