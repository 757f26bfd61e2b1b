"""Tensors of a GGUF file as float32, read and dequantized some rows at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import numpy as np

from bornbiased_jax import hardware
from bornbiased_jax.errors import InputError

WHOLE_TYPES = tuple(gguf.GGMLQuantizationType[name] for name in ("F64", "F32", "F16", "BF16"))
"""Types that keep each number by itself; all others are quantized in blocks."""
# Numbers dequantized together.
_CHUNK = 1 << 20


def read_dequantized(
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
        # Whole blocks: as many stored numbers (bytes, or floats where nothing is quantised) as hold the columns.
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
            f"tensor {tensor.name} of {path} is of type {tensor.tensor_type.name}, which cannot be dequantised: "
            "use a file with another quantisation"
        ) from error
