"""A GGUF file of a Llama-family model; quantized tensors are dequantized one by one.

Source: the GGUF specification (github.com/ggml-org/ggml, docs/gguf.md) and llama.cpp's convert_hf_to_gguf.py,
which interleaves query and key rows for the architecture "llama" and leaves them alone for qwen2 and qwen3.
"""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from bornbiased_jax import hardware
from bornbiased_jax.checkpoints.families import GGUF, Family
from bornbiased_jax.checkpoints.families.reading import Fields
from bornbiased_jax.checkpoints.layout import Biases, file_shapes, gguf_entries
from bornbiased_jax.checkpoints.tensors import NamedTensors, StoredModel, check_entries, file_pieces
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.layers import frequencies
from bornbiased_jax.schema import shown

# What the reader raises on files that are cut or damaged.
_DAMAGE = (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeDecodeError, struct.error, MemoryError)
# Llama 3.1 and 3.2 files give the scaled frequencies as divisors, without the settings that made them.
_LLAMA3_FACTORS = (8.0, 32.0)
# Numbers dequantized together.
_CHUNK = 1 << 20
ROPE_DIVISORS = "rope_freqs.weight"


def _fields(reader: gguf.GGUFReader, path: Path) -> Fields:
    """Read the key-value pairs of a file, but for the tokenizer's."""
    values: dict[str, object] = {}
    for name, field in reader.fields.items():
        if not name.startswith(("tokenizer.", "GGUF.")):
            try:
                value = field.contents()
            except _DAMAGE as error:
                raise InputError(f"{path} has a field {shown(name)} that cannot be read: fetch it again") from error
            # float32 in the file: 9.999999747378752e-06 is 1e-05 there.
            values[name] = float(str(np.float32(value))) if isinstance(value, float) else value
    return Fields(values, str(path))


def read_headers(path: Path) -> StoredModel:
    """Read a GGUF file's fields and its list of tensors, and (but for RoPE's table) none of the tensors.

    Raises:
        InputError: it is corrupted, of another family, split, or has a field, tensor or type that is not understood.
    """
    try:
        reader = gguf.GGUFReader(path)
        tensors = {tensor.name: tensor for tensor in reader.tensors}
    except _DAMAGE as error:
        size = Path(path).stat().st_size
        raise InputError(
            f"{path} is truncated or no GGUF file: its {size:,} bytes do not hold what they announce; fetch it again"
        ) from error
    # Shapes are written fastest axis first.
    shapes = {name: tuple(int(size) for size in tensor.shape[::-1]) for name, tensor in tensors.items()}
    metadata = _fields(reader, path)
    architecture = metadata.get("general.architecture")
    if architecture not in GGUF:
        raise InputError(f"{path} is of the family {architecture!r}, not one of {', '.join(GGUF)}")
    family = GGUF[architecture]
    biases = Biases(*(f"blk.0.{name}.bias" in tensors for name in ("attn_q", "attn_output", "ffn_up")))

    def read(name: str) -> np.ndarray:
        return _dequantized(path, tensors[name], shapes[name])

    def first(name: str, axis: int, count: int) -> np.ndarray:
        return _dequantized(path, tensors[name], shapes[name], rows=count if axis == 0 else None, columns=axis * count)

    # The architecture, then where each of its parameters lies.
    cfg = _config(metadata, family, shapes, biases)
    if ROPE_DIVISORS in tensors:
        cfg = _with_rope_divisors(cfg, read(ROPE_DIVISORS), path)
    own_shapes = file_shapes(cfg, biases)
    entries = gguf_entries(own_shapes, interleaved=family.interleaved)
    source = NamedTensors(str(path), shapes, read, first)
    check_entries(source, entries, own_shapes, {ROPE_DIVISORS}.__contains__)
    return StoredModel(
        cfg,
        f"{architecture} model of GGUF file {path}",
        file_pieces(cfg, source, entries),
        files=(path,),
        tokenizer_files=(path,),
        storage="gguf",
    )


def _dequantized(
    path: Path, tensor: gguf.ReaderTensor, shape: tuple[int, ...], *, rows: int | None = None, columns: int = 0
) -> np.ndarray:
    """Read a tensor in float32, or its first rows, or its first columns; some rows at a time, on all cores.

    The bytes are read from the file: a mapping of it would stay in the resident set.
    """
    kind, stored = tensor.tensor_type, tensor.data.shape
    if len(stored) != 2:
        numbers = np.fromfile(path, tensor.data.dtype, tensor.data.size, offset=tensor.data_offset)
        return _decoded(path, tensor, numbers.reshape(stored)).reshape(shape)
    height, width = min(rows or stored[0], stored[0]), stored[1]
    num_columns = min(columns or shape[1], shape[1])
    if columns:
        # Whole blocks: as many stored numbers (bytes, or floats where nothing is quantized) as hold the columns.
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        width = -(-num_columns // block) * block_bytes // tensor.data.dtype.itemsize
    decoded = np.empty((height, num_columns), np.float32)

    def decode(start: int) -> None:
        stop = min(start + step, height)
        offset = tensor.data_offset + start * stored[1] * tensor.data.dtype.itemsize
        numbers = np.fromfile(path, tensor.data.dtype, (stop - start) * stored[1], offset=offset)
        decoded[start:stop] = _decoded(path, tensor, numbers.reshape(-1, stored[1])[:, :width])[:, :num_columns]

    step = max(1, _CHUNK // shape[1])
    with ThreadPoolExecutor(hardware.cores()) as threads:
        for _ in threads.map(decode, range(0, height, step)):
            pass
    return decoded


def _decoded(path: Path, tensor: gguf.ReaderTensor, stored: np.ndarray) -> np.ndarray:
    try:
        # A damaged scale gives NaN or infinity, which the caller names; NumPy's warning would name nothing.
        with np.errstate(invalid="ignore", over="ignore"):
            return gguf.dequantize(stored, tensor.tensor_type)
    except NotImplementedError as error:
        raise InputError(
            f"tensor {tensor.name} of {path} is of type {tensor.tensor_type.name}, which cannot be dequantized: "
            "use a file with another quantization"
        ) from error


def _config(metadata: Fields, family: Family, shapes: dict[str, tuple[int, ...]], biases: Biases) -> ModelConfig:
    architecture = family.gguf

    def get(name: str, default: object = ...) -> Any:  # noqa: ANN401 (of the file)
        return metadata.get(f"{architecture}.{name}", default)

    path = metadata.where
    if "token_embd.weight" not in shapes or len(shapes["token_embd.weight"]) != 2:
        raise InputError(f"{path} has no embedding matrix token_embd.weight: it is no language model")
    heads, width = get("attention.head_count"), get("embedding_length")
    if not all(isinstance(value, int) and value > 0 for value in (heads, width)):
        raise InputError(f"{path} has attention.head_count={heads!r}, embedding_length={width!r}: fetch it again")
    # Fields with one value that is supported.
    head_dim = get("attention.key_length", width // heads)
    for name, supported in {
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "expert_count": 0,
        "expert_used_count": 0,
        "vocab_size": shapes["token_embd.weight"][0],
    }.items():
        value = get(name, supported)
        if value != supported:
            raise InputError(f"{path} has {architecture}.{name}={value!r}, but only {supported!r} is supported")
    scaling = get("rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise InputError(f"{path} has {architecture}.rope.scaling.type={scaling!r}, which is not none or linear")
    # Files from before rope.scaling.type existed give the factor alone.
    factor = get("rope.scale_linear", 1.0) if scaling == "none" else get("rope.scaling.factor")
    metadata.asked.add(f"{architecture}.rope.scaling.original_context_length")
    bias = biases.output or biases.mlp
    fields = dict(
        **family.fixed,
        num_layers=get("block_count"),
        num_heads=heads,
        num_kv_heads=get("attention.head_count_kv", heads),
        head_dim=head_dim,
        d_model=width,
        d_ff=get("feed_forward_length"),
        vocab_size=shapes["token_embd.weight"][0],
        max_seq_len=get("context_length"),
        norm_eps=get("attention.layer_norm_rms_epsilon"),
        activation="silu",
        bias=bias,
        qkv_bias=biases.qkv and not bias,
        tie_embeddings="output.weight" not in shapes,
        rope_theta=get("rope.freq_base", 10_000.0),
        rope_scaling="none" if factor == 1.0 else "linear",
        rope_scaling_factor=factor,
    )
    # Any other field may change the model.
    for name in metadata.values:
        is_understood = name in metadata.asked or name.startswith(("general.", "quantize."))
        if name == "split.count":
            is_understood = metadata.get(name) in (0, 1)
        if not is_understood and not name.startswith(("split.no", "split.tensors.count")):
            raise InputError(f"{path} has a field {name!r} that is not understood: it may change the model")
    try:
        return ModelConfig(**fields)
    except InputError as error:
        raise InputError(f"{path} describes no model that can be built: {error}") from error


def _with_rope_divisors(cfg: ModelConfig, divisors: np.ndarray, path: Path) -> ModelConfig:
    """Return the config whose RoPE scaling these divisors of the frequencies come from."""
    plain = frequencies(cfg.replace(rope_scaling="none", rope_scaling_factor=1.0))
    if cfg.rope_scaling == "none" and divisors.shape == plain.shape:
        if np.all(divisors == 1.0):
            return cfg
        for factor in _LLAMA3_FACTORS:
            scaled = cfg.replace(rope_scaling="llama3", rope_scaling_factor=factor)
            if np.allclose(plain / frequencies(scaled), divisors, rtol=1e-5, atol=0.0):
                return scaled
    raise InputError(f"{path} scales RoPE by a table ({ROPE_DIVISORS}) other than Llama 3's: that is not supported")
