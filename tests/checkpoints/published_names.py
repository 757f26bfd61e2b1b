"""Random tensors under the names of transformers and under those of other published code, with what that code fuses."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

D, H, K, F, V, BLOCKS = 16, 4, 4, 24, 11, 2
# Latent attention: ranks of queries and of keys and values, sizes of a head without RoPE, with it, and of its value.
Q_RANK, KV_RANK, NOPE, ROPE, VALUE = 12, 8, 6, 4, 5
QKV = tuple(f"self_attn.{name}_proj" for name in "qkv")
LATENT = {"n_heads": H, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE}


class Kind(NamedTuple):
    """A form of a llama's tensors, and the configuration under which transformers has them."""

    config: dict
    num_kv_heads: int = 2
    has_qkv_bias: bool = False
    has_all_biases: bool = False
    has_gate: bool = True
    has_norms: bool = True
    is_latent: bool = False


class Names(NamedTuple):
    """Names of published code.

    Attributes:
        kind: of the tensors.
        config: that its files have.
        block: prefix of a block.
        names: by those of transformers, without the prefix; "_" at the end stands for itself, not for a dot.
        fused: names of matrices by those that they hold.
        tables: names outside the blocks.
        buffers: names of tensors that are no weights.
        is_grouped: whether queries, keys and values lie group by group.
    """

    kind: Kind
    config: dict
    block: str
    names: dict[str, str]
    fused: dict[str, tuple[str, ...]]
    tables: dict[str, str] = {}
    buffers: tuple[str, ...] = ()
    is_grouped: bool = False


LLAMA = {"model_type": "llama", "num_attention_heads": H, "num_key_value_heads": 2, "rms_norm_eps": 1e-6}
ALL_HEADS = LLAMA | {"num_key_value_heads": H}
MEGATRON = Names(
    Kind(LLAMA),
    {"num_attention_heads": H, "num_query_groups": 2, "kv_channels": K},
    "decoder.layers.{}.",
    {
        "input_layernorm": "self_attention.linear_qkv.layer_norm_",
        "post_attention_layernorm": "mlp.linear_fc1.layer_norm_",
        "self_attn.o_proj": "self_attention.linear_proj",
        "mlp.down_proj": "mlp.linear_fc2",
    },
    {"self_attention.linear_qkv": QKV, "mlp.linear_fc1": ("mlp.gate_proj", "mlp.up_proj")},
    {
        "model.embed_tokens": "embedding.word_embeddings",
        "model.norm": "decoder.final_layernorm",
        "lm_head": "output_layer",
    },
    is_grouped=True,
)
CHATGLM = Names(
    Kind(LLAMA, has_qkv_bias=True),
    {"model_type": "chatglm", "num_attention_heads": H, "multi_query_group_num": 2, "kv_channels": K},
    "transformer.encoder.layers.{}.",
    {"self_attn.o_proj": "self_attention.dense", "mlp.down_proj": "mlp.dense_4h_to_h"},
    {"self_attention.query_key_value": QKV, "mlp.dense_h_to_4h": ("mlp.gate_proj", "mlp.up_proj")},
    {
        "model.embed_tokens": "transformer.embedding.word_embeddings",
        "model.norm": "transformer.encoder.final_layernorm",
        "lm_head": "transformer.output_layer",
    },
    ("transformer.rotary_pos_emb.inv_freq",),
)
PUBLISHED = {
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
        names={"self_attn.o_proj": "attention.dense", "mlp.down_proj": "mlp.dense_4h_to_h"},
        fused={"attention.query_key_value": QKV, "mlp.dense_h_to_4h": ("mlp.up_proj",)},
        tables={
            "model.embed_tokens": "transformer.word_embeddings",
            "model.norm": "transformer.final_layernorm",
            "lm_head": "lm_head",
        },
        is_grouped=True,
    ),
    "Qwen": Names(
        Kind(ALL_HEADS, num_kv_heads=H, has_qkv_bias=True),
        {"model_type": "qwen", "num_attention_heads": H, "kv_channels": K, "layer_norm_epsilon": 1e-6},
        "transformer.h.{}.",
        {
            "input_layernorm": "ln_1",
            "post_attention_layernorm": "ln_2",
            "self_attn.o_proj": "attn.c_proj",
            "mlp.up_proj": "mlp.w1",
            "mlp.gate_proj": "mlp.w2",
            "mlp.down_proj": "mlp.c_proj",
        },
        {"attn.c_attn": QKV},
        {"model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f"},
    ),
    "Megatron": MEGATRON,
    "Megatron without a gate": MEGATRON._replace(
        kind=Kind(LLAMA, has_gate=False), fused={**MEGATRON.fused, "mlp.linear_fc1": ("mlp.up_proj",)}
    ),
    "OLMo": Names(
        Kind({"model_type": "olmo", "num_attention_heads": H, "num_key_value_heads": 2}, has_norms=False),
        {"model_type": "hf_olmo", "n_heads": H, "n_kv_heads": 2, "layer_norm_type": "default"},
        "model.transformer.blocks.{}.",
        {"self_attn.o_proj": "attn_out", "mlp.down_proj": "ff_out"},
        {"att_proj": QKV, "ff_proj": ("mlp.up_proj", "mlp.gate_proj")},
        {"model.embed_tokens": "model.transformer.wte", "lm_head": "model.transformer.ff_out"},
    ),
    "DeepSeek": Names(
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
            "mlp.gate_proj": "ffn.w1",
            "mlp.up_proj": "ffn.w3",
            "mlp.down_proj": "ffn.w2",
        },
        {},
        {"model.embed_tokens": "embed", "model.norm": "norm", "lm_head": "head"},
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
        "mlp.gate_proj": (F, D),
        "mlp.up_proj": (F, D),
        "mlp.down_proj": (D, F),
    }
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
    if not kind.has_gate:
        del in_block["mlp.gate_proj"]
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
        number = name.split(".")[2] if name.startswith("model.layers.") else None
        if number is None:
            made[f"{names.tables.get(name, name)}.{leaf}"] = array
            continue
        tail = name.removeprefix(f"model.layers.{number}.")
        fused = next((new for new, parts in names.fused.items() if tail in parts), None)
        new = names.block.format(number) + (fused or names.names.get(tail, tail))
        place = new + leaf if new.endswith("_") else f"{new}.{leaf}"
        if fused is None:
            made[place] = array
        elif place not in made:
            matrices = [tensors[f"model.layers.{number}.{part}.{leaf}"] for part in names.fused[fused]]
            join: Callable[..., np.ndarray] = _grouped if names.is_grouped and len(matrices) == 3 else np.concatenate
            made[place] = join(matrices)
    return made


def _grouped(matrices: list[np.ndarray]) -> np.ndarray:
    groups = len(matrices[1]) // K
    parts = [matrix.reshape(groups, -1, *matrix.shape[1:]) for matrix in matrices]
    return np.concatenate(parts, axis=1).reshape(-1, *matrices[0].shape[1:])
