"""A llama2.c ``.bin``: seven integers, then float32 weights in a fixed order.

Source: github.com/karpathy/llama2.c, ``legacy_export`` of export.py. Query and key rows are interleaved
(Meta's RoPE layout). The RoPE tables in the file are not read by anything since; they follow from base 10,000.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from bornbiased_jax.checkpoints.huggingface import Opened, opened
from bornbiased_jax.checkpoints.layout import Biases, Entry, Form, file_shapes, shape_in_file
from bornbiased_jax.checkpoints.streaming import Located, Shardings, Source
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError

_HEADER = struct.Struct("<7i")
_MAGIC = 0x616B3432
_LAYERS: tuple[tuple[str, Form], ...] = (
    ("blocks/attention_norm/scale", "same"),
    ("blocks/attention/query/kernel", "paired query"),
    ("blocks/attention/key/kernel", "paired key"),
    ("blocks/attention/value/kernel", "transposed"),
    ("blocks/attention/output/kernel", "transposed"),
    ("blocks/mlp_norm/scale", "same"),
    ("blocks/mlp/gate/kernel", "transposed"),
    ("blocks/mlp/down/kernel", "transposed"),
    ("blocks/mlp/up/kernel", "transposed"),
)


def open_llama2c(path: Path, *, dtype: Any = None, sharding: Shardings | None = None) -> Opened:
    """Load a llama2.c file (version 0, float32).

    Raises:
        InputError: the header makes no sense, the size differs from what it implies, or weights are not finite.
    """
    return opened(locate_llama2c(path), dtype=dtype, sharding=sharding)


def locate_llama2c(path: Path) -> Located:
    """Read a llama2.c file's header and check its size; its tensors are mapped, not read.

    Raises:
        InputError: the header makes no sense, or the size differs from what it implies.
    """
    cfg = read_header(path)
    shapes = file_shapes(cfg, Biases(False, False, False))
    entries = _in_file_order(cfg, shapes)
    offsets: dict[str, int] = {}
    position = _HEADER.size
    for entry in entries:
        if entry.paths == ("head/kernel",):
            position += 4 * cfg.max_seq_len * cfg.key_dim
        offsets[entry.name] = position
        position += 4 * int(np.prod(shape_in_file(entry, shapes)))
    if cfg.tie_embeddings:
        position += 4 * cfg.max_seq_len * cfg.key_dim
    size = path.stat().st_size
    if size != position:
        what = "truncated" if size < position else "of another format"
        raise InputError(f"{path} is {what}: its header implies {position} bytes, it has {size}; fetch it again")
    tensors = {entry.name: shape_in_file(entry, shapes) for entry in entries}

    def read(name: str) -> np.ndarray:
        shape = tensors[name]
        return np.memmap(path, "<f4", mode="r", offset=offsets[name], shape=shape)

    def first(name: str, axis: int, count: int) -> np.ndarray:
        return read(name)[(slice(None),) * axis + (slice(count),)]

    source = Source(str(path), tensors, read, first)
    beside = sorted({*path.parent.glob("tok*.bin"), *path.parent.glob("tok*.model")} - {path})
    return Located(cfg, source, entries, shapes, f"llama2.c model {path}", (path,), tuple(beside))


def read_header(path: Path) -> ModelConfig:
    """The architecture that the first 28 bytes describe.

    Raises:
        InputError: they are no such header.
    """
    with path.open("rb") as stream:
        head = stream.read(_HEADER.size)
    wrong = InputError(f"{path} is no llama2.c checkpoint: name a file written by its export.py with --version 0")
    if len(head) < _HEADER.size:
        raise wrong
    values = _HEADER.unpack(head)
    if values[0] == _MAGIC:
        raise InputError(f"{path} is a version {values[1]} llama2.c file: export it again with --version 0")
    width, hidden, layers, heads, kv_heads, vocab, length = values
    if min(width, hidden, layers, heads, kv_heads, abs(vocab), length) < 1 or layers > 10_000 or width > 1 << 20:
        raise wrong
    try:
        return ModelConfig(
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            d_model=width,
            d_ff=hidden,
            vocab_size=abs(vocab),
            max_seq_len=length,
            norm="rmsnorm",
            activation="silu",
            gated_mlp=True,
            tie_embeddings=vocab > 0,
        )
    except InputError as error:
        raise wrong from error


def _in_file_order(cfg: ModelConfig, shapes: dict[str, tuple[int, ...]]) -> list[Entry]:
    entries = [Entry("embed/embedding", ("embed/embedding",), None, "same")]
    for path, form in _LAYERS:
        entries += [Entry(f"{path}/{layer}", (path,), layer, form) for layer in range(cfg.num_layers)]
    entries.append(Entry("final_norm/scale", ("final_norm/scale",), None, "same"))
    if not cfg.tie_embeddings:
        entries.append(Entry("head/kernel", ("head/kernel",), None, "transposed"))
    return entries
