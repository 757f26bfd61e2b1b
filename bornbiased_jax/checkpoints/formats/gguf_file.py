"""A GGUF file: its fields, and its tensors, which are dequantized one by one.

Source: the GGUF specification (github.com/ggml-org/ggml, docs/gguf.md).
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import gguf
import numpy as np

from bornbiased_jax import hardware
from bornbiased_jax.checkpoints.families.reading import Fields
from bornbiased_jax.checkpoints.layout import Shapes
from bornbiased_jax.checkpoints.tensors import Tensor
from bornbiased_jax.errors import InputError
from bornbiased_jax.schema import shown
from bornbiased_jax.text.gguf_vocabulary import HOW_TO_CONVERT, unreadable

# What the reader raises on files that are cut or damaged.
_DAMAGE = (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeDecodeError, struct.error, MemoryError)
# Numbers dequantized together.
_CHUNK = 1 << 20


@dataclasses.dataclass(frozen=True, eq=False)
class GGUFFile:
    """What stands in a file, before anything is made of it.

    Attributes:
        path: of the file.
        fields: key-value pairs, but for the tokenizer's; names of the architecture are asked for alone.
        tensors: by name.
        shapes: of the tensors, slowest axis first.
        has_tokenizer: whether it carries one.
    """

    path: Path
    fields: Fields
    tensors: Mapping[str, gguf.ReaderTensor]
    shapes: Shapes
    has_tokenizer: bool

    @property
    def architecture(self) -> str:
        """The name of the architecture."""
        return self.fields.prefix.removesuffix(".")

    @property
    def tokenizer_files(self) -> tuple[Path, ...]:
        """The file, if it carries a tokenizer."""
        return (self.path,) if self.has_tokenizer else ()

    @property
    def types(self) -> set[str]:
        """The types of the tensors."""
        return {tensor.tensor_type.name for tensor in self.tensors.values()}

    def decoding(self, *, are_types_kept: bool = False) -> dict[str, Tensor]:
        """Return tensors that are dequantized when they are read, whole or their first rows or columns.

        Args:
            are_types_kept: name the types of the file, and not those of the numbers that are read.
        """
        return {
            name: _decoding(self.path, tensor, self.shapes[name], tensor.tensor_type.name if are_types_kept else "F32")
            for name, tensor in self.tensors.items()
        }


def read_file(path: Path) -> GGUFFile:
    """Read fields and the list of tensors, and none of the tensors.

    Raises:
        InputError: the file is corrupted.
    """
    try:
        reader = gguf.GGUFReader(path)
        tensors = {tensor.name: tensor for tensor in reader.tensors}
    except _DAMAGE as error:
        raise unreadable(path) from error
    # Shapes are written fastest axis first.
    shapes = {name: tuple(int(size) for size in tensor.shape[::-1]) for name, tensor in tensors.items()}
    # The gate of a shared expert, a matrix of one row, is written as a vector.
    gates = [name for name in shapes if name.endswith(".ffn_gate_inp_shexp.weight") and len(shapes[name]) == 1]
    shapes |= {name: (1, *shapes[name]) for name in gates}
    return GGUFFile(path, _fields(reader, path), tensors, shapes, "tokenizer.ggml.model" in reader.fields)


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


def _decoding(path: Path, tensor: gguf.ReaderTensor, shape: tuple[int, ...], kind: str) -> Tensor:
    def first(axis: int, count: int) -> np.ndarray:
        return _dequantized(path, tensor, shape, rows=count if axis == 0 else None, columns=axis * count)

    return Tensor(kind, shape, partial(_dequantized, path, tensor, shape), first)


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
