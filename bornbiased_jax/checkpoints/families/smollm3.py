"""SmolLM3: LLaMA of which every fourth layer is not rotated; windows are refused.

Source: RoPE to NoRoPE and back again (2501.18795) and transformers' configuration of ``smollm3``.
"""

import dataclasses

from bornbiased_jax.checkpoints.families import llama
from bornbiased_jax.checkpoints.families.reading import Fields, Rope, shortest_period
from bornbiased_jax.config import FieldValue, ModelConfig


def _read(fields: Fields) -> dict[str, FieldValue]:
    for name in ("sliding_window", "max_window_layers"):
        fields.get(name, None)
    num_layers, interval = fields.get("num_hidden_layers"), fields.get("no_rope_layer_interval", 4)
    # Despite its name, the list has 1 for a layer that is rotated.
    flags = fields.get("no_rope_layers", None) or [int((layer + 1) % interval != 0) for layer in range(num_layers)]
    if len(flags) != num_layers:
        raise fields.refuse("no_rope_layers", flags, f"which does not list {num_layers} layers")
    pattern = shortest_period("".join("r" if flag else "n" for flag in flags))
    return {"rope_pattern": None if pattern == "r" else pattern}


def _write(cfg: ModelConfig) -> dict[str, object]:
    is_rotated = cfg.is_rotated or (True,) * cfg.num_layers
    return {"no_rope_layers": [int(flag) for flag in is_rotated]}


FAMILY = dataclasses.replace(
    llama.FAMILY,
    name="smollm3",
    architecture="SmolLM3ForCausalLM",
    sizes={
        **llama.SIZES,
        "num_kv_heads": ("num_key_value_heads", 4),
        "tie_embeddings": ("tie_word_embeddings", True),
    },
    refused={"use_sliding_window": "but windows of this family are not supported"},
    rope=Rope(base=2_000_000.0),
    read=_read,
    write=_write,
    gguf="smollm3",
    opts=frozenset(["rope_pattern"]),
)
