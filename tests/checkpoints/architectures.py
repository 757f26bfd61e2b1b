"""Tiny models of public architectures, as transformers itself configures them: the sizes of each."""

import json
import shutil

import numpy as np
import pytest
import safetensors.numpy

transformers = pytest.importorskip("transformers")

SIZES = dict(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=64,
    max_position_embeddings=64,
)
ALL_HEADS = {name: size for name, size in SIZES.items() if name != "num_key_value_heads"}
GPT = dict(n_embd=32, n_layer=2, n_head=4, vocab_size=64, n_positions=64)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24)
DEEPSEEK = dict(
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_shared_experts=1,
    moe_intermediate_size=24,
    first_k_dense_replace=1,
)
LATENT = dict(
    **DEEPSEEK,
    num_key_value_heads=4,
    q_lora_rank=12,
    kv_lora_rank=8,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=6,
    n_group=1,
    topk_group=1,
)
VISION = dict(
    hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2, image_size=8, patch_size=4
)
LINEAR = dict(
    shared_expert_intermediate_size=24,
    linear_num_value_heads=4,
    linear_num_key_heads=2,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    layer_types=["linear_attention", "full_attention"],
)
GPT_NEO = dict(hidden_size=32, intermediate_size=64, num_layers=2, num_heads=4, vocab_size=64)
GPT_NEO |= dict(max_position_embeddings=64, attention_types=[[["global", "local"], 1]], window_size=8)
MAMBA2 = dict(hidden_size=32, num_hidden_layers=2, vocab_size=64, state_size=8, num_heads=8, head_dim=8, n_groups=1)
DBRX = dict(d_model=32, n_heads=4, n_layers=2, vocab_size=64, max_seq_len=64)
DBRX |= dict(attn_config=dict(kv_n_heads=2, rope_theta=1e4, clip_qkv=8.0))
DBRX |= dict(ffn_config=dict(ffn_hidden_size=24, moe_num_experts=4, moe_top_k=2, hidden_size=32))
# Two layers of Mamba and one of attention: a table of decay rates that one layer alone has may be of a seed.
HYBRID = dict(mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_n_groups=1)
NEMOTRON_H = dict(mamba_num_heads=4, mamba_head_dim=16, ssm_state_size=8, n_groups=1, head_dim=8)
FALCON = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=64, ffn_hidden_size=64)
ROPE = dict(rope_parameters=dict(rope_type="default", mrope_section=[1, 1, 2], rope_theta=1e4))
# Class of the configuration and its sizes; the row "a name" is not an architecture but one of its layouts.
MODELS = {
    "llama": ("Llama", SIZES),
    "qwen2": ("Qwen2", SIZES),
    "qwen3": ("Qwen3", dict(**SIZES, head_dim=8)),
    "qwen3_moe": ("Qwen3Moe", dict(**SIZES, **EXPERTS, head_dim=8)),
    "qwen2_moe": ("Qwen2Moe", dict(**SIZES, **EXPERTS, shared_expert_intermediate_size=40)),
    "qwen3_next": ("Qwen3Next", dict(**SIZES, **EXPERTS, **LINEAR, head_dim=8)),
    "gemma": ("Gemma", dict(**SIZES, head_dim=8)),
    "gemma2": ("Gemma2", dict(**SIZES, head_dim=8)),
    "gemma3": ("Gemma3Text", dict(**SIZES, head_dim=8)),
    "phi": ("Phi", ALL_HEADS),
    "phi3": ("Phi3", dict(**SIZES, pad_token_id=0)),
    # Phi-4-mini: tied, of three quarters rotary, with a factor for each frequency.
    "phi4_mini": ("Phi3", dict(**SIZES, pad_token_id=0, tie_word_embeddings=True)),
    "mistral": ("Mistral", SIZES),
    "mixtral": ("Mixtral", dict(**SIZES, num_local_experts=4)),
    "deepseek_v2": ("DeepseekV2", {**SIZES, **LATENT}),
    "deepseek_v3": ("DeepseekV3", {**SIZES, **LATENT}),
    "olmo": ("Olmo", SIZES),
    "olmo2": ("Olmo2", SIZES),
    "starcoder2": ("Starcoder2", SIZES),
    "gpt_bigcode": ("GPTBigCode", dict(**GPT, n_inner=64)),
    "gpt2": ("GPT2", GPT),
    "gptj": ("GPTJ", dict(**GPT, rotary_dim=4)),
    "gpt_neox": ("GPTNeoX", ALL_HEADS),
    "falcon, groups": ("Falcon", dict(**FALCON, new_decoder_architecture=True, num_kv_heads=2)),
    "falcon, one key head": ("Falcon", dict(**FALCON, new_decoder_architecture=False, multi_query=True)),
    "stablelm": ("StableLm", SIZES),
    "smollm3": ("SmolLM3", dict(**SIZES, pad_token_id=0)),
    "gpt_oss": ("GptOss", dict(**SIZES, head_dim=8, num_local_experts=4, num_experts_per_tok=2)),
    "glm4": ("Glm4", dict(**SIZES, head_dim=8, pad_token_id=0)),
    "glm4_moe": ("Glm4Moe", dict(**SIZES, **DEEPSEEK, head_dim=8, use_qk_norm=True)),
    "granite": ("Granite", SIZES),
    "granitemoe": ("GraniteMoe", dict(**SIZES, num_local_experts=4, num_experts_per_tok=2)),
    "cohere": ("Cohere", dict(**SIZES, use_qk_norm=True)),
    "llama4": (
        "Llama4Text",
        dict(**SIZES, head_dim=8, intermediate_size_mlp=64, num_local_experts=4, interleave_moe_layer_step=1),
    ),
    "mpt": ("Mpt", dict(d_model=32, n_heads=4, n_layers=2, vocab_size=64)),
    "bloom": ("Bloom", dict(hidden_size=32, n_layer=2, n_head=4, vocab_size=64)),
    "llava": ("Llava", dict(image_token_id=5)),
    "qwen2_vl": ("Qwen2VL", {}),
    "gpt_neo": ("GPTNeo", GPT_NEO),
    "olmo3": ("Olmo3", dict(**SIZES, sliding_window=8)),
    "olmoe": ("Olmoe", dict(**SIZES, num_experts=4, num_experts_per_tok=2)),
    "opt": ("OPT", dict(**{**ALL_HEADS, "ffn_dim": 64}, word_embed_proj_dim=32)),
    "opt, norms behind": (
        "OPT",
        dict(**{**ALL_HEADS, "ffn_dim": 64}, word_embed_proj_dim=32, do_layer_norm_before=False),
    ),
    "nemotron": ("Nemotron", SIZES),
    "seed_oss": ("SeedOss", dict(**SIZES, head_dim=8)),
    "arcee": ("Arcee", SIZES),
    "ernie4_5": ("Ernie4_5", dict(**SIZES, head_dim=8)),
    "exaone4": ("Exaone4", dict(**SIZES, head_dim=8)),
    "hunyuan": ("HunYuanDenseV1", dict(**SIZES, head_dim=8)),
    "ministral": ("Ministral", dict(**SIZES, head_dim=8)),
    "cohere2": ("Cohere2", dict(**SIZES, sliding_window=8)),
    "falcon, all key heads": ("Falcon", dict(**FALCON, new_decoder_architecture=False, multi_query=False, bias=True)),
    "codegen": ("CodeGen", dict(**GPT, n_inner=64, n_ctx=64, rotary_dim=4)),
    "persimmon": ("Persimmon", ALL_HEADS),
    "openai_gpt": ("OpenAIGPT", GPT),
    "bitnet": ("BitNet", SIZES),
    "vaultgemma": ("VaultGemma", dict(**SIZES, head_dim=8)),
    "phimoe": ("Phimoe", dict(**SIZES, num_local_experts=4, num_experts_per_tok=2)),
    "granitemoe_shared": (
        "GraniteMoeShared",
        dict(**SIZES, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=40),
    ),
    "flex_olmo": ("FlexOlmo", dict(**SIZES, num_experts=4, num_experts_per_tok=2, pad_token_id=0)),
    "hunyuan_moe": ("HunYuanMoEV1", dict(**SIZES, head_dim=8, num_experts=4, moe_topk=2)),
    "afmoe": (
        "Afmoe",
        dict(**SIZES, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, num_dense_layers=1),
    ),
    "minimax": (
        "MiniMax",
        dict(**SIZES, head_dim=8, num_local_experts=4, layer_types=["linear_attention", "full_attention"]),
    ),
    "dbrx": ("Dbrx", DBRX),
    "jamba": (
        "Jamba",
        dict(
            **{**SIZES, "num_hidden_layers": 3},
            attn_layer_period=3,
            attn_layer_offset=1,
            num_experts=4,
            mamba_d_state=4,
            mamba_dt_rank=4,
        ),
    ),
    "bamba": ("Bamba", dict(**{**SIZES, "num_hidden_layers": 3}, **HYBRID, attn_layer_indices=[1])),
    "nemotron_h": (
        "NemotronH",
        dict(**SIZES, **NEMOTRON_H, layers_block_type=["mamba", "attention", "mamba", "mlp"]),
    ),
    "lfm2": ("Lfm2", dict(**SIZES, layer_types=["conv", "full_attention"])),
    "rwkv": ("Rwkv", dict(hidden_size=32, attention_hidden_size=32, num_hidden_layers=2, vocab_size=64)),
    "mamba": ("Mamba", dict(hidden_size=32, num_hidden_layers=2, vocab_size=64, state_size=4)),
    "mamba2": ("Mamba2", MAMBA2),
}
# Encoders, and what is made of their parts: before the logits they have layers that no convention names.
ENCODERS = {
    "bert": ("Bert", ALL_HEADS),
    "nomic_bert": ("NomicBert", ALL_HEADS),
    "modernbert": ("ModernBert", dict(**ALL_HEADS, pad_token_id=0)),
    "modernbert-decoder": ("ModernBertDecoder", dict(**ALL_HEADS, pad_token_id=0)),
}

# Architectures with names that none of the others has.
FURTHER = {
    "stablelm, norms of heads": ("StableLm", dict(**SIZES, qk_layernorm=True)),
    "doge": ("Doge", SIZES),
    "bart": (
        "Bart",
        dict(
            d_model=32,
            decoder_layers=2,
            encoder_layers=2,
            decoder_attention_heads=4,
            encoder_attention_heads=4,
            decoder_ffn_dim=64,
            encoder_ffn_dim=64,
            vocab_size=64,
            max_position_embeddings=64,
        ),
    ),
    "recurrent_gemma": (
        "RecurrentGemma",
        dict(**SIZES, lru_width=32, attention_window_size=8, block_types=["recurrent", "attention"]),
    ),
    "kimi_linear": (
        "KimiLinear",
        {
            **SIZES,
            **dict(pad_token_id=0, bos_token_id=1, eos_token_id=2),
            **dict(layer_types=["linear_attention", "full_attention"], linear_head_dim=8, linear_num_heads=4),
            **dict(num_key_value_heads=4, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6),
            **dict(num_experts=4, num_experts_per_token=2, moe_intermediate_size=24, head_dim=4),
        },
    ),
    "deepseek_v32": ("DeepseekV32", {**SIZES, **LATENT}),
    # Ling: of attention with a state the output is called "dense".
    "bailing_hybrid": (
        "BailingHybrid",
        {
            **SIZES,
            **dict(pad_token_id=0, bos_token_id=1, eos_token_id=2),
            **dict(layer_types=["linear_attention", "full_attention"], linear_head_dim=8, linear_num_heads=4),
            **dict(num_key_value_heads=4, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6),
            **dict(num_experts=4, num_expert_group=1, topk_group=1, num_experts_per_token=2, moe_intermediate_size=24),
        },
    ),
}


# Sizes that a wider model has more of.
_WIDTHS = {
    *("hidden_size", "intermediate_size", "n_embd", "n_inner", "moe_intermediate_size", "q_lora_rank", "kv_lora_rank"),
    *("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "shared_expert_intermediate_size", "head_dim", "d_model"),
    *("linear_key_head_dim", "linear_value_head_dim", "ffn_hidden_size", "rotary_dim", "embed_dim", "vocab_size"),
    *(
        "ffn_dim",
        "word_embed_proj_dim",
        "intermediate_size_mlp",
        "projection_dim",
        "max_position_embeddings",
        "mrope_section",
        "mamba_d_head",
        "mamba_head_dim",
    ),
}


def transformers_config(name, *, scale=1):
    """The configuration of a tiny model of this name, ``scale`` times as wide as 32."""
    kind, sizes = (MODELS | ENCODERS | FURTHER)[name]
    sizes = dict(sizes)
    if name == "llava":
        sizes["vision_config"] = {**VISION, "projection_dim": 16, "model_type": "clip_vision_model"}
        sizes["text_config"] = {**SIZES, "model_type": "llama"}
    if name == "qwen2_vl":
        vision = dict(depth=1, embed_dim=24, hidden_size=32, num_heads=2, mlp_ratio=2, patch_size=4)
        sizes |= {"vision_config": {**vision, "temporal_patch_size": 2}, "text_config": {**SIZES, **ROPE}}
    sizes = _scaled(sizes, scale)
    if name == "phi4_mini":
        pairs = 3 * sizes["hidden_size"] // sizes["num_attention_heads"] // 8
        longrope = dict(rope_type="longrope", rope_theta=1e4, partial_rotary_factor=0.75)
        factors = dict(short_factor=[1.0 + 0.1 * pair for pair in range(pairs)], long_factor=[2.0] * pairs)
        sizes |= {"original_max_position_embeddings": 32, "rope_parameters": {**longrope, **factors}}
    return getattr(transformers, f"{kind}Config")(**sizes)


def _scaled(sizes, scale):
    def scaled(name, value):
        if isinstance(value, dict):
            return _scaled(value, scale)
        if name not in _WIDTHS:
            return value
        return [scale * part for part in value] if isinstance(value, list) else scale * value

    return {name: scaled(name, value) for name, value in sizes.items()}


def auto_class(name):
    """The class of transformers that opens the model with its head."""
    if name in ("bert", "nomic_bert", "modernbert"):
        return transformers.AutoModelForMaskedLM
    several = name in ("llava", "qwen2_vl")
    return transformers.AutoModelForImageTextToText if several else transformers.AutoModelForCausalLM


def named_as_internlm2(tensors, config):
    """Return the tensors of a llama under the names of InternLM2.

    It is no class of transformers; its published code splits ``wqkv`` into groups of heads.
    """
    renamed = {}
    names = {"self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3"}
    names |= {"mlp.down_proj": "feed_forward.w2", "input_layernorm": "attention_norm", "lm_head": "output"}
    names |= {"post_attention_layernorm": "ffn_norm", "embed_tokens": "tok_embeddings"}
    for name, array in tensors.items():
        if not name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            new = next((name.replace(old, word) for old, word in names.items() if old in name), name)
            renamed[new] = array
    for block in range(config["num_hidden_layers"]):
        place = f"model.layers.{block}"
        query, key, value = (tensors[f"{place}.self_attn.{part}_proj.weight"] for part in "qkv")
        groups, width = config["num_key_value_heads"], query.shape[1]
        parts = [part.reshape(groups, -1, width) for part in (query, key, value)]
        renamed[f"{place}.attention.wqkv.weight"] = np.concatenate(parts, axis=1).reshape(-1, width)
    return renamed


def write_model(name, folder, seed, scale=4):
    """Write an initialization as transformers draws it with this seed; return its folder."""
    pytest.importorskip("torch").manual_seed(seed)
    auto_class(name).from_config(transformers_config(name, scale=scale)).save_pretrained(folder)
    return folder


def tensors_of(folder):
    """The tensors of a folder's one file."""
    return safetensors.numpy.load_file(folder / "model.safetensors")


def with_tensors(folder, place, tensors, **settings):
    """Write a model of the folder's configuration, but for these settings, and other tensors."""
    shutil.copytree(folder, place)
    config = json.loads((folder / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | settings))
    safetensors.numpy.save_file(tensors, place / "model.safetensors", {"format": "pt"})
    return place


def noisy(tensors, fraction=0.1):
    """Return tensors with noise of a fraction of their standard deviation; norms have none, and get noise of 0.01."""
    rng = np.random.default_rng(0)
    return {
        name: array + np.float32(fraction * (array.std() or 0.1)) * rng.standard_normal(array.shape, np.float32)
        for name, array in tensors.items()
    }
