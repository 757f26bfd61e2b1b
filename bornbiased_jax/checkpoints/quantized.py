"""Quantized tensors of files, decoded to float32 one at a time.

A scheme is known by the names of tensors next to a weight. Sources: the formats' own specifications (OCP microscaling
formats 1.0 for FP4; DeepSeek-V3's report for block scales) and the published packing of GPTQ, AWQ, compressed-tensors
and bitsandbytes. Products are those of the exact numbers in float32; libraries that multiply in half precision round
once more.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, NotRequired

import numpy as np
from annotated_types import Interval, Len
from typing_extensions import TypedDict

from bornbiased_jax import schema
from bornbiased_jax.checkpoints.buffers import empty
from bornbiased_jax.checkpoints.quantization_files import SettingsError
from bornbiased_jax.checkpoints.tensors import TYPES, NamedTensors, Tensor
from bornbiased_jax.errors import InputError

FP4 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0], np.float32)
"""Numbers of a sign, two bits of exponent and one of mantissa, by their four bits."""
_AWQ_ORDER = np.array([0, 4, 1, 5, 2, 6, 3, 7])
_DEFAULT_BLOCK = (128, 128)
# Numbers that share a power of two in microscaling formats.
_MX_GROUP = 32
# Types of scales that are powers of two.
_POWERS = ("F8_E8M0", "U8")
# Numbers of eight bits that are turned into float32 at once.
_PIECE = 1 << 16
# Bits of packed numbers.
_BITS = (2, 4, 8)
QuantizationConfig = Mapping[str, object]
"""``quantization_config``, which tells of the packing."""
_Decoded = tuple[Tensor, tuple[str, ...]]
"""A tensor that is decoded when it is read, and the names of the parts that it is decoded from."""


def _bits(settings: QuantizationConfig, where: str, name: str, count: int, width: int) -> int:
    """Return the bits of packed numbers of which so many lie in so many words: those stated that fit, else four.

    Groups of layers, of which compressed-tensors states the bits, may differ.

    Raises:
        SettingsError: bits that are not read, or others than the shapes say.
    """
    stated = _stated(settings, ("bits", "w_bit"), "num_bits")
    first = stated[0] if stated else 4
    if not isinstance(first, int) or first not in _BITS:
        raise SettingsError(f"{where} is quantized to {schema.shown(first)} bits, of which only 2, 4 and 8 are read")
    fitting = [bits for bits in _BITS if -(-count * bits // 32) == width]
    if first in fitting or not fitting:
        return first
    bits = next((bits for bits in fitting if bits in stated or not stated), None)
    if bits is None:
        raise SettingsError(
            f"{where} is said to be quantized to {' and '.join(map(schema.shown, stated))} bits, but {name} has the "
            f"shape of {fitting[0]}: give it the settings that it was quantized with"
        )
    return bits


def _stated(settings: QuantizationConfig, keys: Sequence[str], key_of_group: str) -> list[object]:
    """Return what settings state under the first of several names, and for each group of layers."""
    groups = settings.get("config_groups")
    members = groups.values() if isinstance(groups, dict) else ()
    weights = [group.get("weights") for group in members if isinstance(group, dict)]
    stated = [settings[key] for key in keys if key in settings][:1]
    return stated + [value.get(key_of_group) for value in weights if isinstance(value, dict)]


def _groups(settings: QuantizationConfig, where: str, inputs: int, count: int) -> np.ndarray:
    """Return the group of each input: of the stated size that fits, the last perhaps shorter, else of equal sizes.

    Raises:
        SettingsError: no stated size fits, and groups cannot be equal.
    """
    stated = _stated(settings, ("group_size", "q_group_size"), "group_size")
    fitting = [size for size in stated if isinstance(size, int) and size > 0 and -(-inputs // size) == count]
    if not fitting and inputs % count:
        raise SettingsError(
            f"{where} has {count} groups for {inputs} inputs, and no group_size of its settings fits: give it the "
            "settings that it was quantized with"
        )
    return np.arange(inputs) // (fitting[0] if fitting else inputs // count)


def _block(settings: QuantizationConfig) -> tuple[int, int]:
    """Return rows and columns of a block that shares a scale."""
    block = settings.get("weight_block_size")
    if isinstance(block, list) and len(block) == 2 and all(type(length) is int and length > 0 for length in block):
        return block[0], block[1]
    return _DEFAULT_BLOCK


def decode(source: NamedTensors, config: Mapping[str, object]) -> NamedTensors:
    """Wrap tensors of files, so that quantized ones are decoded to float32 when they are read.

    Raises:
        InputError: (when read) a scheme that is not known, or parts whose shapes contradict each other.
    """
    stated = config.get("quantization_config") or config.get("compression_config")
    settings: QuantizationConfig = stated if isinstance(stated, dict) else {}
    decoded: dict[str, _Decoded] = {}
    for name in source.shapes:
        with _consistent(name, source.where):
            decoded.update(_decoded(source, settings, name))
    absorbed = {part for _, parts in decoded.values() for part in parts}
    tensors = {name: tensor for name, tensor in source.tensors.items() if name not in absorbed}
    tensors |= {name: tensor for name, (tensor, _) in decoded.items()}

    def read(name: str) -> np.ndarray:
        if name not in decoded:
            array = source.read(name)
            if array.dtype.kind in "iub" or array.dtype.itemsize == 1:
                raise InputError(
                    f"tensor {name} of {source.where} is of type {array.dtype} and no scales that we know stand next "
                    "to it: save it as a float"
                )
            return array
        with np.errstate(invalid="ignore", over="ignore"), _consistent(name, source.where):
            array = tensors[name].read()
            if array.shape != tensors[name].shape:
                raise ValueError(f"a shape of {array.shape}")
        return array

    schemes = sorted({tensor.kind for tensor, _ in decoded.values()})
    notes = (f"weights are stored as {' and '.join(schemes)} and decoded",) if schemes else ()
    rows = sorted(tensors.items())
    readable = {name: tensor._replace(read=functools.partial(read, name)) for name, tensor in rows}
    return NamedTensors(source.where, readable, (*source.notes, *notes))


@contextlib.contextmanager
def _consistent(name: str, where: str) -> Iterator[None]:
    """Refuse a quantized tensor whose parts do not fit each other."""
    try:
        yield
    except InputError:
        raise
    except (ValueError, IndexError, TypeError, KeyError, ArithmeticError) as error:
        raise InputError(
            f"the parts of the quantized tensor {name} of {where} contradict each other: quantize it again"
        ) from error


def _decoded(source: NamedTensors, settings: QuantizationConfig, name: str) -> Iterator[tuple[str, _Decoded]]:
    """Yield the tensor whose packed numbers lie under a name, if they do."""
    shapes, kind = source.shapes, source.types.get(name, "")
    base, _, last = name.rpartition(".")
    sibling = functools.partial("{}.{}".format, base)

    def parts(*names: str) -> tuple[str, ...]:
        return tuple(part for part in names if part in shapes)

    if last == "qweight" and {sibling("qzeros"), sibling("scales")} <= shapes.keys():
        used = parts(name, sibling("qzeros"), sibling("scales"), sibling("g_idx"))
        (rows, width), out = shapes[name][:2], shapes[sibling("scales")][-1]
        # Zeros and scales have a column for each output.
        bits = _bits(settings, source.where, name, out, shapes[sibling("qzeros")][-1])
        if width == out:
            gptq = functools.partial(_read_gptq, source, base, bits, settings)
            yield sibling("weight"), (Tensor("GPTQ", (out, rows * 32 // bits), gptq), used)
        else:
            awq = functools.partial(_read_awq, source, base, bits, settings)
            yield sibling("weight"), (Tensor("AWQ", (out, rows), awq), used)
    elif last.endswith("_blocks") and (scales := f"{name.removesuffix('_blocks')}_scales") in shapes:
        *lead, rows, groups, half = shapes[name]
        read = functools.partial(_read_mxfp4, source, name, scales)
        yield name.removesuffix("_blocks"), (Tensor("MXFP4", (*lead, groups * half * 2, rows), read), (name, scales))
    elif last == "weight_packed" and sibling("weight_scale") in shapes:
        used = parts(
            name, *(sibling(f"weight_{part}") for part in ("scale", "global_scale", "shape", "zero_point", "g_idx"))
        )
        used += parts(sibling("input_global_scale"), sibling("input_scale"))
        rows = shapes[name][0]
        if kind == "U8" and sibling("weight_global_scale") not in shapes:
            read = functools.partial(_read_fp4, source, name, sibling("weight_scale"), settings)
            yield sibling("weight"), (Tensor("MXFP4", (rows, shapes[name][1] * 2), read), used)
        elif kind == "U8":
            read = functools.partial(
                _read_nvfp4, source, name, sibling("weight_scale"), sibling("weight_global_scale"), True
            )
            yield sibling("weight"), (Tensor("NVFP4", (rows, shapes[name][1] * 2), read), used)
        else:
            has_shape, width = sibling("weight_shape") in shapes, shapes[name][1]
            columns = int(source.read(sibling("weight_shape"))[1]) if has_shape else 0
            bits = _bits(settings, source.where, name, columns, width)
            columns = columns if has_shape else width * 32 // bits
            read = functools.partial(_read_packed, source, base, bits, columns, settings)
            yield sibling("weight"), (Tensor("compressed-tensors", (rows, columns), read), used)
    elif last == "weight" and kind == "U8" and sibling("weight_scale_2") in shapes:
        used = parts(sibling("weight_scale"), sibling("weight_scale_2"), sibling("input_scale"))
        read = functools.partial(_read_nvfp4, source, name, sibling("weight_scale"), sibling("weight_scale_2"), False)
        yield name, (Tensor("NVFP4", (shapes[name][0], shapes[name][1] * 2), read), used)
    elif last == "weight" and f"{name}.absmax" in shapes:
        used = tuple(part for part in shapes if part.startswith(f"{name}."))
        state = _block_state(source, used)
        read = functools.partial(_read_blocks, source, name, state)
        yield name, (Tensor(state["quant_type"], tuple(state["shape"]), read), used)
    elif last == "weight" and kind == "I8" and sibling("SCB") in shapes:
        read = functools.partial(_read_int8, source, name, sibling("SCB"))
        yield name, (Tensor("bitsandbytes int8", shapes[name], read), parts(sibling("SCB"), sibling("weight_format")))
    elif kind in ("F8_E4M3", "F8_E5M2", "I8", "U8"):
        # Stacked experts have no "weight" in their names, but may have it in those of their scales.
        names = [f"{name}_scale_inv", f"{name}_scale", f"{name}_weight_scale"]
        # Of DeepSeek's own files, and of Mistral's.
        names += [sibling("scale"), sibling("qscale_weight")] if last == "weight" else []
        scale = next(iter(parts(*names)), None)
        used = parts(f"{name}_zero_point", *map(sibling, ("input_scale", "activation_scale", "qscale_act")))
        used += parts(f"{name}_input_scale", f"{name}_activation_scale")
        # Integers have scales of their own; next to powers of two a byte is two numbers of four bits.
        is_fp4 = kind in ("I8", "U8") and scale is not None and source.types[scale] in _POWERS
        if scale is not None and is_fp4:
            shape, read = (*shapes[name][:-1], shapes[name][-1] * 2), functools.partial(_read_fp4, source, name, scale)
            yield name, (Tensor("MXFP4", shape, functools.partial(read, settings)), (scale, *used))
        elif scale is not None and kind != "U8":
            read = functools.partial(_read_scaled, source, name, scale, settings)
            yield name, (Tensor("int8" if kind == "I8" else "float8", shapes[name], read), (scale, *used))


def _read_scaled(source: NamedTensors, name: str, scale_name: str, settings: QuantizationConfig) -> np.ndarray:
    """Multiply eight-bit numbers by a scale per tensor, per channel, per group of columns or per block."""
    numbers, scale = _wide(source.read(name)), _read_scale(source, scale_name)
    # Scales of stacked experts [expert, in, out] are then those of columns, however they lie.
    if numbers.ndim == 3 and settings.get("quant_method") == "fbgemm_fp8":
        scale = scale.reshape(len(scale), 1, -1)
    if (zero := f"{name}_zero_point") in source.shapes:
        _in_blocks(np.subtract, numbers, source.read(zero).astype(np.float32), _block(settings))
    _in_blocks(np.multiply, numbers, scale, _block(settings))
    return numbers


def _read_scale(source: NamedTensors, name: str) -> np.ndarray:
    """Read scales; bytes are exponents of powers of two (MXFP4, MXFP8), for which there is also a type of its own."""
    scale = source.read(name)
    if scale.dtype == np.uint8:
        scale = scale.view(TYPES["F8_E8M0"])
    return scale.astype(np.float32)


def _read_fp4(source: NamedTensors, name: str, scale_name: str, settings: QuantizationConfig) -> np.ndarray:
    """Multiply numbers of four bits, two in each byte, by powers of two for groups of columns."""
    if "int" in str(kind := settings.get("data_type")):
        raise InputError(
            f"{name} of {source.where} is of type {schema.shown(kind)}, which is not read: save it as a float"
        )
    # A power of two for 32 bytes is that of 32 integers (MXINT8): 32 numbers of four bits have 16 bytes.
    num_scales = math.prod(source.shapes[scale_name])
    if not kind and num_scales > 1 and source.shapes[name][-1] == _MX_GROUP * source.shapes[scale_name][-1]:
        raise InputError(
            f"{name} of {source.where} may be of type MXINT8, as each scale is that of {_MX_GROUP} bytes: save it as a "
            "float, or write its data_type into the quantization_config"
        )
    numbers: np.ndarray = FP4[_nibbles(source.read(name).view(np.uint8))]
    _in_blocks(np.multiply, numbers, _read_scale(source, scale_name), _block(settings))
    return numbers


def _wide(codes: np.ndarray) -> np.ndarray:
    """Turn numbers of eight bits into float32, by a table of all of them: faster than one by one."""
    table = np.arange(256, dtype=np.uint8).view(codes.dtype).astype(np.float32)
    numbers = empty(codes.shape, np.float32)
    codes_N, numbers_N = codes.view(np.uint8).reshape(-1), numbers.reshape(-1)
    # Without a check of bounds, which bytes keep, in pieces that fit a cache.
    for start in range(0, len(codes_N), _PIECE):
        part = slice(start, start + _PIECE)
        np.take(table, codes_N[part], out=numbers_N[part], mode="clip")
    return numbers


def _in_blocks(operation: np.ufunc, numbers: np.ndarray, scale: np.ndarray, block: tuple[int, int]) -> None:
    """Subtract zeros from numbers or multiply them by scales in place, each scale for every number of its block."""
    if scale.ndim == 1 and scale.size > 1 and numbers.ndim == 2:
        scale = scale[:, None]
    if scale.size == 1 or scale.ndim != numbers.ndim:
        operation(numbers, scale.reshape(()) if scale.size == 1 else scale, out=numbers)
        return
    # Every axis but that of rows is filled up; rows that share scales are changed together.
    rows_axis = numbers.ndim - 2
    for axis, size in enumerate(numbers.shape):
        width = _block_size(size, scale.shape[axis], block[axis - rows_axis] if axis >= rows_axis else 1)
        if axis != rows_axis and width > 1:
            scale = np.repeat(scale, width, axis=axis)[(slice(None),) * axis + (slice(size),)]
    rows, count = numbers.shape[rows_axis], scale.shape[rows_axis]
    width = _block_size(rows, count, block[0])
    if width == 1:
        operation(numbers, scale, out=numbers)
        return
    for number, start in enumerate(range(0, rows, width)):
        part = numbers[..., start : start + width, :]
        operation(part, scale[..., number : number + 1, :], out=part)


def _block_size(size: int, count: int, block: int) -> int:
    """Return how many numbers along an axis share a scale; 1 where each has its own, or one scale is all there is."""
    if count in (1, size):
        return 1
    # Groups of columns have a size that follows from their number; blocks may be cut short at the end.
    if -(-size // block) == count:
        return block
    if size % count:
        raise ValueError(f"{count} scales for {size} numbers")
    return size // count


def _unpack(words: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """Unpack unsigned numbers from 32-bit words along an axis, the lowest bits first."""
    words = np.moveaxis(words.view(np.uint32), axis, -1)
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    numbers = ((words[..., None] >> shifts) & np.uint32(2**bits - 1)).reshape(*words.shape[:-1], -1)
    return np.moveaxis(numbers, -1, axis).astype(np.int32)


def _are_zeros_whole(settings: QuantizationConfig) -> bool:
    """Tell whether GPTQ's zeros are stored as they are: in its second format, and in that of AutoRound's own kernels.

    The format's older name counts where both are there. AutoRound's source: auto_round/inference/backend.py.
    """
    packing = str(settings.get("packing_format") or settings.get("backend") or "")
    is_own = re.fullmatch(r"auto_?round:(exllamav2|triton)\w*", packing) is not None
    return is_own or (settings.get("checkpoint_format") or settings.get("format")) == "gptq_v2"


def _read_gptq(source: NamedTensors, base: str, bits: int, settings: QuantizationConfig) -> np.ndarray:
    numbers_IO = _unpack(source.read(f"{base}.qweight"), bits, 0)
    zeros = source.read(f"{base}.qzeros").view(np.uint32)
    if _are_zeros_whole(settings):
        zeros_GO = _unpack(zeros, bits, 1)
    else:
        # The first format subtracted one from each zero, of a word together: a zero of 0 borrowed from the next.
        zeros_GO = _unpack(zeros + np.uint32((2**32 - 1) // (2**bits - 1)), bits, 1)
    scales_GO = source.read(f"{base}.scales").astype(np.float32)
    if f"{base}.g_idx" in source.shapes:
        group_I = source.read(f"{base}.g_idx").astype(np.int64)
        if group_I.shape != numbers_IO.shape[:1] or not np.all((group_I >= 0) & (group_I < len(scales_GO))):
            raise InputError(f"{base}.g_idx of {source.where} names groups that are not there: quantize it again")
    else:
        group_I = _groups(settings, f"{base} of {source.where}", len(numbers_IO), len(scales_GO))
    return np.asarray(scales_GO[group_I] * (numbers_IO - zeros_GO[group_I]).astype(np.float32), np.float32).T


def _read_awq(source: NamedTensors, base: str, bits: int, settings: QuantizationConfig) -> np.ndarray:
    if bits != 4:
        raise InputError(f"{base}.qweight of {source.where} is AWQ of {bits} bits, of which only 4 are read")

    def ordered(words: np.ndarray) -> np.ndarray:
        numbers = _unpack(words, bits, 1)
        return numbers.reshape(len(numbers), -1, len(_AWQ_ORDER))[..., _AWQ_ORDER].reshape(numbers.shape)

    numbers_IO, zeros_GO = ordered(source.read(f"{base}.qweight")), ordered(source.read(f"{base}.qzeros"))
    scales_GO = source.read(f"{base}.scales").astype(np.float32)
    group_I = _groups(settings, f"{base} of {source.where}", len(numbers_IO), len(scales_GO))
    return np.asarray((numbers_IO - zeros_GO[group_I]).astype(np.float32) * scales_GO[group_I], np.float32).T


def _read_packed(source: NamedTensors, base: str, bits: int, columns: int, settings: QuantizationConfig) -> np.ndarray:
    numbers_OI = _unpack(source.read(f"{base}.weight_packed"), bits, 1)[:, :columns] - 2 ** (bits - 1)
    scale_OG = source.read(f"{base}.weight_scale").astype(np.float32)
    if (zero := f"{base}.weight_zero_point") in source.shapes:
        zeros_OG = _unpack(source.read(zero), bits, 0)[: len(scale_OG)] - 2 ** (bits - 1)
    else:
        zeros_OG = np.zeros(scale_OG.shape, np.int32)
    order = f"{base}.weight_g_idx"
    group_I = source.read(order) if order in source.shapes else np.array([-1])
    if np.any(group_I < 0):
        group_I = _groups(settings, f"{base} of {source.where}", columns, scale_OG.shape[1])
    return np.asarray((numbers_OI - zeros_OG[:, group_I]).astype(np.float32) * scale_OG[:, group_I], np.float32)


def _nibbles(packed: np.ndarray, *, is_high_first: bool = False) -> np.ndarray:
    """Unpack two numbers from each byte, along the last axis."""
    low, high = packed & np.uint8(15), packed >> np.uint8(4)
    pairs = (high, low) if is_high_first else (low, high)
    return np.stack(pairs, axis=-1).reshape(*packed.shape[:-1], -1)


def _read_mxfp4(source: NamedTensors, name: str, scales: str) -> np.ndarray:
    """Read experts [expert, in, out] of blocks of 32 numbers with a power of two."""
    numbers = FP4[_nibbles(source.read(name))]
    values = numbers * _read_scale(source, scales)[..., None]
    return np.swapaxes(values.reshape(*values.shape[:-2], -1), -1, -2)


def _read_nvfp4(source: NamedTensors, name: str, scale: str, global_scale: str, divides: bool) -> np.ndarray:
    numbers_OI = FP4[_nibbles(source.read(name))]
    tensor_scale = source.read(global_scale).astype(np.float32).reshape(-1)[0]
    local_OG = source.read(scale).astype(np.float32)
    scale_OG = local_OG / tensor_scale if divides else local_OG * tensor_scale
    return np.asarray(numbers_OI * np.repeat(scale_OG, numbers_OI.shape[1] // scale_OG.shape[1], axis=1), np.float32)


def _read_int8(source: NamedTensors, name: str, absmax: str) -> np.ndarray:
    order = name.removesuffix("weight") + "weight_format"
    if order in source.shapes and source.read(order).any():
        raise InputError(
            f"{name} of {source.where} has its numbers in the order of a GPU, as an old bitsandbytes saved a model "
            "that had run: save it before it runs"
        )
    # In the order of bitsandbytes: by the row's largest, then by 1/127.
    largest_O = source.read(absmax).astype(np.float32)
    products_OI = source.read(name).astype(np.float32) * largest_O[:, None]
    return np.asarray(products_OI * np.float32(1.0 / 127.0), np.float32)


class _BlockState(TypedDict):
    """The state that bitsandbytes writes of a matrix in four bits; more where block maxima are quantized too."""

    quant_type: str
    blocksize: Annotated[int, Interval(ge=1, le=1 << 20)]
    shape: Annotated[list[Annotated[int, Interval(ge=1, le=1 << 31)]], Len(1, 4)]
    nested_blocksize: NotRequired[Annotated[int, Interval(ge=1, le=1 << 20)]]
    nested_offset: NotRequired[float]


def _block_state(source: NamedTensors, parts: tuple[str, ...]) -> _BlockState:
    """Read the JSON text that bitsandbytes keeps as bytes next to a tensor."""
    place = next((part for part in parts if ".quant_state.bitsandbytes__" in part), None)
    if place is None:
        raise InputError(f"{parts[0]} of {source.where} has no quant_state next to it: save it with bitsandbytes again")
    where = f"{place} of {source.where}"
    state: _BlockState = schema.check(
        _BlockState,
        schema.parse_json(source.read(place).tobytes(), where),
        where,
        "save it with bitsandbytes again",
    )
    return state


def _read_blocks(source: NamedTensors, name: str, state: _BlockState) -> np.ndarray:
    """Look numbers up in the table of the file, and multiply them by their block's largest."""
    # The bytes may be stored as numbers of another type.
    packed = source.read(name).reshape(-1).view(np.uint8)
    numbers = source.read(f"{name}.quant_map").astype(np.float32)[_nibbles(packed, is_high_first=True)]
    absmax = source.read(f"{name}.absmax")
    if absmax.dtype == np.uint8:
        # The largest of the blocks are quantized too, less their mean.
        table = source.read(f"{name}.nested_quant_map").astype(np.float32)
        largest = source.read(f"{name}.nested_absmax").astype(np.float32)
        nested = _by_blocks(largest, state.get("nested_blocksize", 256), len(absmax))
        absmax = table[absmax] * nested + np.float32(state.get("nested_offset", 0.0))
    count = math.prod(state["shape"])
    scale = _by_blocks(absmax.astype(np.float32), state["blocksize"], count)
    return np.asarray(numbers[:count] * scale, np.float32).reshape(state["shape"])


def _by_blocks(values: np.ndarray, blocksize: int, count: int) -> np.ndarray:
    """Repeat the value of each block for its numbers."""
    if len(values) != -(-count // blocksize):
        raise ValueError(f"{len(values)} blocks of {blocksize} for {count} numbers")
    return np.repeat(values, blocksize)[:count] if count > blocksize else np.repeat(values, count)
