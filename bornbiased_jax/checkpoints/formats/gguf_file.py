"""A GGUF file: its fields, and its tensors, which are dequantized one by one.

Source: the GGUF specification (github.com/ggml-org/ggml, docs/gguf.md).
"""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np

from bornbiased_jax import hardware
from bornbiased_jax.checkpoints.families.reading import Fields
from bornbiased_jax.checkpoints.tensors import NamedTensors, Tensor
from bornbiased_jax.errors import InputError
from bornbiased_jax.schema import shown
from bornbiased_jax.text.gguf_vocabulary import HOW_TO_CONVERT, unreadable

# What the reader raises on files that are cut or corrupted.
_DAMAGE = (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeDecodeError, struct.error, MemoryError)
# Numbers dequantized together.
_CHUNK = 1 << 20


class GGUFFile(NamedTuple):
    """What stands in a file, before anything is made of it.

    Attributes:
        fields: key-value pairs, but for the tokenizer's; names of the architecture are asked for alone.
        tensors: of the file's types, dequantized when they are read.
        tokenizer_files: the file, if it carries a tokenizer.
    """

    fields: Fields
    tensors: NamedTensors
    tokenizer_files: tuple[Path, ...]

    @property
    def architecture(self) -> str:
        """The name of the architecture."""
        return self.fields.prefix.removesuffix(".")


def read_file(path: Path) -> GGUFFile:
    """Read fields and the list of tensors, and none of the tensors.

    Raises:
        InputError: the file is corrupted, or of machines with another order of bytes.
    """
    try:
        reader = gguf.GGUFReader(path)
        stored = {tensor.name: tensor for tensor in reader.tensors}
    except _DAMAGE as error:
        raise unreadable(path) from error
    if reader.byte_order != "I":
        raise InputError(
            f"{path} has the bytes of its numbers in the order of other machines (big-endian): convert it with gguf's "
            "gguf_convert_endian.py"
        )
    tensors = {}
    for name, tensor in stored.items():
        # Shapes are written fastest axis first.
        shape = tuple(int(size) for size in tensor.shape[::-1])
        # The gate of a shared expert, a matrix of one row, is written as a vector.
        if name.endswith(".ffn_gate_inp_shexp.weight") and len(shape) == 1:
            shape = (1, *shape)
        tensors[name] = Tensor(tensor.tensor_type.name, shape, partial(_dequantized, path, tensor, shape))
    tokenizer_files = (path,) if "tokenizer.ggml.model" in reader.fields else ()
    return GGUFFile(_fields(reader, path), NamedTensors(str(path), tensors), tokenizer_files)


def _fields(reader: gguf.GGUFReader, path: Path) -> Fields:
    values: dict[str, object] = {}
    for name, field in reader.fields.items():
        if not name.startswith(("tokenizer.", "GGUF.")):
            try:
                value = field.contents()
            except _DAMAGE as error:
                raise InputError(f"{path} has a field {shown(name)} that cannot be read: {HOW_TO_CONVERT}") from error
            # float32 in the file: 9.999999747378752e-06 is 1e-05 there.
            values[name] = float(str(np.float32(value))) if isinstance(value, float) else value
    architecture = Fields(values, str(path), HOW_TO_CONVERT).get("general.architecture")
    return Fields(values, str(path), HOW_TO_CONVERT, prefix=f"{architecture}.")


def refuse_parts(fields: Fields) -> None:
    """Refuse one of several files that a model was split into."""
    name = "split.count"
    if (count := fields.values.get(name, 0)) not in (0, 1):
        raise InputError(
            f"{fields.where} has {name!r} = {shown(count)}, as one of several files of a model: join them with "
            "llama.cpp's llama-gguf-split"
        )


def _dequantized(path: Path, tensor: gguf.ReaderTensor, shape: tuple[int, ...]) -> np.ndarray:
    """Read a tensor in float32; of a matrix some rows at a time, on all cores.

    The bytes are read from the file: a mapping of it would stay in the resident set.
    """
    stored = tensor.data.shape
    if len(stored) != 2:
        numbers = np.fromfile(path, tensor.data.dtype, tensor.data.size, offset=tensor.data_offset)
        return _decoded(path, tensor, numbers.reshape(stored)).reshape(shape)
    height, width = shape
    decoded = np.empty(shape, np.float32)

    def decode(start: int) -> None:
        stop = min(start + step, height)
        offset = tensor.data_offset + start * stored[1] * tensor.data.dtype.itemsize
        numbers = np.fromfile(path, tensor.data.dtype, (stop - start) * stored[1], offset=offset)
        decoded[start:stop] = _decoded(path, tensor, numbers.reshape(-1, stored[1]))

    step = max(1, _CHUNK // width)
    with ThreadPoolExecutor(hardware.cores()) as threads:
        for _ in threads.map(decode, range(0, height, step)):
            pass
    return decoded


def _decoded(path: Path, tensor: gguf.ReaderTensor, stored: np.ndarray) -> np.ndarray:
    try:
        # A corrupted scale gives NaN or infinity, which the caller names; NumPy's warning would name nothing.
        with np.errstate(invalid="ignore", over="ignore"):
            return gguf.dequantize(stored, tensor.tensor_type)
    except NotImplementedError as error:
        raise InputError(
            f"tensor {tensor.name} of {path} is of type {tensor.tensor_type.name}, which cannot be dequantized: "
            "use a file with another quantization"
        ) from error
