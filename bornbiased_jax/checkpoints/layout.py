"""Where every weight lies in a file: names, transpositions, fused matrices, interleaved RoPE rows.

One list of entries describes a file format for one architecture, and serves reading and writing alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.models import flatten, parameter_shapes

Family = Literal["gpt2", "llama", "mistral", "qwen2", "qwen3", "gpt_neox", "olmo2"]
Form = Literal["same", "transposed", "fused columns", "fused heads", "paired query", "paired key"]
Shapes = dict[str, tuple[int, ...]]

QKV = tuple(f"blocks/attention/{name}" for name in ("query", "key", "value"))


class Biases(NamedTuple):
    """Which linear layers have a bias in the file. A file may have fewer, or more, than the config says."""

    qkv: bool
    output: bool
    mlp: bool


class Entry(NamedTuple):
    """One tensor of a file, and the parameter (three, when fused) that it holds.

    ``layer`` is the index on the leading axis of the parameters, None where there is none.
    """

    name: str
    paths: tuple[str, ...]
    layer: int | None
    form: Form


def file_shapes(cfg: ModelConfig, biases: Biases) -> Shapes:
    """Path to shape of every parameter that a file holds: those of the config, but with the biases of the file."""
    shapes = {path: tuple(leaf.shape) for path, leaf in flatten(parameter_shapes(cfg)).items()}
    found: Shapes = {}
    for path, shape in shapes.items():
        module, _, leaf = path.rpartition("/")
        if leaf == "bias" and _is_linear(module):
            continue
        found[path] = shape
        if leaf == "kernel" and _is_linear(module) and _has_bias(module, biases):
            found[f"{module}/bias"] = (shape[0], shape[2])
    return dict(sorted(found.items()))


def _is_linear(module: str) -> bool:
    return module.startswith("blocks/") and module.split("/")[1] in ("attention", "mlp") and "norm" not in module


def _has_bias(module: str, biases: Biases) -> bool:
    if module in QKV:
        return biases.qkv
    return biases.output if module == "blocks/attention/output" else biases.mlp


# Paths of the file's names; "{l}" is the layer, and {leaf} is weight for kernel and scale, else bias.
_LLAMA = {
    "embed": "model.embed_tokens.{leaf}",
    "blocks/attention_norm": "model.layers.{l}.input_layernorm.{leaf}",
    "blocks/mlp_norm": "model.layers.{l}.post_attention_layernorm.{leaf}",
    "blocks/attention/query": "model.layers.{l}.self_attn.q_proj.{leaf}",
    "blocks/attention/key": "model.layers.{l}.self_attn.k_proj.{leaf}",
    "blocks/attention/value": "model.layers.{l}.self_attn.v_proj.{leaf}",
    "blocks/attention/output": "model.layers.{l}.self_attn.o_proj.{leaf}",
    "blocks/attention/query_norm": "model.layers.{l}.self_attn.q_norm.{leaf}",
    "blocks/attention/key_norm": "model.layers.{l}.self_attn.k_norm.{leaf}",
    "blocks/mlp/gate": "model.layers.{l}.mlp.gate_proj.{leaf}",
    "blocks/mlp/up": "model.layers.{l}.mlp.up_proj.{leaf}",
    "blocks/mlp/down": "model.layers.{l}.mlp.down_proj.{leaf}",
    "final_norm": "model.norm.{leaf}",
    "head": "lm_head.{leaf}",
}
_OLMO2 = {
    **_LLAMA,
    "blocks/attention_norm": "model.layers.{l}.post_attention_layernorm.{leaf}",
    "blocks/mlp_norm": "model.layers.{l}.post_feedforward_layernorm.{leaf}",
}
_GPT2 = {
    "embed": "transformer.wte.{leaf}",
    "positions": "transformer.wpe.{leaf}",
    "blocks/attention_norm": "transformer.h.{l}.ln_1.{leaf}",
    "blocks/mlp_norm": "transformer.h.{l}.ln_2.{leaf}",
    "blocks/attention/qkv": "transformer.h.{l}.attn.c_attn.{leaf}",
    "blocks/attention/output": "transformer.h.{l}.attn.c_proj.{leaf}",
    "blocks/mlp/up": "transformer.h.{l}.mlp.c_fc.{leaf}",
    "blocks/mlp/down": "transformer.h.{l}.mlp.c_proj.{leaf}",
    "final_norm": "transformer.ln_f.{leaf}",
    "head": "lm_head.{leaf}",
}
_NEOX = {
    "embed": "gpt_neox.embed_in.{leaf}",
    "blocks/attention_norm": "gpt_neox.layers.{l}.input_layernorm.{leaf}",
    "blocks/mlp_norm": "gpt_neox.layers.{l}.post_attention_layernorm.{leaf}",
    "blocks/attention/qkv": "gpt_neox.layers.{l}.attention.query_key_value.{leaf}",
    "blocks/attention/output": "gpt_neox.layers.{l}.attention.dense.{leaf}",
    "blocks/mlp/up": "gpt_neox.layers.{l}.mlp.dense_h_to_4h.{leaf}",
    "blocks/mlp/down": "gpt_neox.layers.{l}.mlp.dense_4h_to_h.{leaf}",
    "final_norm": "gpt_neox.final_layer_norm.{leaf}",
    "head": "embed_out.{leaf}",
}
_GGUF = {
    "embed": "token_embd.{leaf}",
    "blocks/attention_norm": "blk.{l}.attn_norm.{leaf}",
    "blocks/mlp_norm": "blk.{l}.ffn_norm.{leaf}",
    "blocks/attention/query": "blk.{l}.attn_q.{leaf}",
    "blocks/attention/key": "blk.{l}.attn_k.{leaf}",
    "blocks/attention/value": "blk.{l}.attn_v.{leaf}",
    "blocks/attention/output": "blk.{l}.attn_output.{leaf}",
    "blocks/attention/query_norm": "blk.{l}.attn_q_norm.{leaf}",
    "blocks/attention/key_norm": "blk.{l}.attn_k_norm.{leaf}",
    "blocks/mlp/gate": "blk.{l}.ffn_gate.{leaf}",
    "blocks/mlp/up": "blk.{l}.ffn_up.{leaf}",
    "blocks/mlp/down": "blk.{l}.ffn_down.{leaf}",
    "final_norm": "output_norm.{leaf}",
    "head": "output.{leaf}",
}
HUGGING_FACE: dict[Family, dict[str, str]] = {
    "gpt2": _GPT2,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gpt_neox": _NEOX,
    "olmo2": _OLMO2,
}


def hugging_face_entries(family: Family, shapes: Shapes) -> list[Entry]:
    """The tensors of a Hugging Face file with these parameters.

    gpt2 keeps kernels as [in, out] and lays query, key and value side by side; gpt_neox interleaves the
    three per head; all others keep [out, in] and every matrix apart.
    """
    fused: Form = "fused columns" if family == "gpt2" else "fused heads"
    kernel: Form = "same" if family == "gpt2" else "transposed"

    def form(module: str) -> Form:
        if module == "head":
            return "transposed"
        return fused if module == "blocks/attention/qkv" else kernel

    return _entries(HUGGING_FACE[family], shapes, form)


def gguf_entries(shapes: Shapes, *, interleaved: bool) -> list[Entry]:
    """The tensors of a GGUF file; ``interleaved`` is how files of the architecture "llama" keep query and key rows."""

    def form(module: str) -> Form:
        if interleaved and module == "blocks/attention/query":
            return "paired query"
        if interleaved and module == "blocks/attention/key":
            return "paired key"
        return "transposed"

    return _entries(_GGUF, shapes, form)


def _entries(names: dict[str, str], shapes: Shapes, form: Callable[[str], Form]) -> list[Entry]:
    fuses = "blocks/attention/qkv" in names
    entries = []
    for path, shape in shapes.items():
        module, _, leaf = path.rpartition("/")
        paths: tuple[str, ...] = (path,)
        if fuses and module in QKV:
            if module != QKV[0]:
                continue
            paths = tuple(f"{one}/{leaf}" for one in QKV)
            module = "blocks/attention/qkv"
        template = names[module]
        suffix = "bias" if leaf == "bias" else "weight"
        plain = leaf in ("scale", "embedding")
        for layer in range(shape[0]) if path.startswith("blocks/") else (None,):
            name = template.format(l=layer, leaf=suffix)
            entries.append(Entry(name, paths, layer, "same" if plain else form(module)))
    return entries


def shape_in_file(entry: Entry, shapes: Shapes) -> tuple[int, ...]:
    """The shape that the entry's tensor must have in the file."""
    own = [shapes[path] if entry.layer is None else shapes[path][1:] for path in entry.paths]
    if entry.form in ("fused columns", "fused heads"):
        joined = (*own[0][:-1], sum(shape[-1] for shape in own))
        return joined if entry.form == "fused columns" else joined[::-1]
    return own[0] if entry.form == "same" else own[0][::-1]


def unpack(entry: Entry, cfg: ModelConfig, tensor: np.ndarray) -> list[np.ndarray]:
    """The parameters that a tensor of the file holds, in the order of ``entry.paths``, as views where possible."""
    if entry.form == "same":
        return [tensor]
    if entry.form == "fused columns":
        return np.split(tensor, 3, axis=-1)
    flipped = tensor.T
    lead = flipped.shape[:-1]
    if entry.form == "fused heads":
        apart = flipped.reshape(*lead, cfg.num_heads, 3, cfg.key_dim)
        return [apart[..., index, :].reshape(*lead, -1) for index in range(3)]
    if entry.form in ("paired query", "paired key"):
        # Rows 2i and 2i + 1 of a head turn together; in our layout rows i and i + K/2 do.
        pairs = flipped.reshape(*lead, _heads(entry, cfg), cfg.key_dim // 2, 2)
        return [np.swapaxes(pairs, -1, -2).reshape(*lead, -1)]
    return [flipped]


def pack(entry: Entry, cfg: ModelConfig, parameters: Iterable[np.ndarray]) -> np.ndarray:
    """The inverse of :func:`unpack`."""
    arrays = list(parameters)
    if entry.form == "same":
        return arrays[0]
    if entry.form == "fused columns":
        return np.concatenate(arrays, axis=-1)
    lead = arrays[0].shape[:-1]
    if entry.form == "fused heads":
        heads = [array.reshape(*lead, cfg.num_heads, 1, cfg.key_dim) for array in arrays]
        return np.concatenate(heads, axis=-2).reshape(*lead, -1).T
    if entry.form in ("paired query", "paired key"):
        halves = arrays[0].reshape(*lead, _heads(entry, cfg), 2, cfg.key_dim // 2)
        return np.swapaxes(halves, -1, -2).reshape(*lead, -1).T
    return arrays[0].T


def _heads(entry: Entry, cfg: ModelConfig) -> int:
    return cfg.num_heads if entry.form == "paired query" else cfg.kv_heads
