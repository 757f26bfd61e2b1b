"""Tensors of ``pytorch_model.bin``: the pickle in it is read as data, and nothing that it names is imported or called.

``torch.save`` writes a ZIP archive of ``data.pkl`` and one member per storage. The opcodes of the pickle are walked
with a stack of plain values; what is no tensor of numbers, no container and no text is refused by name.
"""

from __future__ import annotations

import pickletools
import warnings
import zipfile
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import ml_dtypes
import numpy as np

from bornbiased_jax import schema
from bornbiased_jax.errors import InputError

_STORAGES = {
    "DoubleStorage": ("F64", np.dtype("<f8")),
    "FloatStorage": ("F32", np.dtype("<f4")),
    "HalfStorage": ("F16", np.dtype("<f2")),
    "BFloat16Storage": ("BF16", np.dtype(ml_dtypes.bfloat16)),
    "LongStorage": ("I64", np.dtype("<i8")),
    "IntStorage": ("I32", np.dtype("<i4")),
    "ShortStorage": ("I16", np.dtype("<i2")),
    "CharStorage": ("I8", np.dtype("i1")),
    "ByteStorage": ("U8", np.dtype("u1")),
    "BoolStorage": ("BOOL", np.dtype("?")),
}
_TENSOR = ("torch._utils", "_rebuild_tensor_v2")
_PARAMETER = ("torch._utils", "_rebuild_parameter")
_DICT = ("collections", "OrderedDict")
_Kind = TypeVar("_Kind")
_ALLOWED = {_TENSOR, _PARAMETER, _DICT, *(("torch", name) for name in _STORAGES)}
# What the standard library raises on archives that are cut or corrupted.
_DAMAGE = (zipfile.BadZipFile, OSError, NotImplementedError, EOFError)
_LONGEST_PICKLE = 64 << 20
"""Bytes of a pickle without numbers: 100,000 tensors need a sixth of it."""


class _Name(NamedTuple):
    """A global that the pickle names, never looked up."""

    module: str
    name: str


class _Storage(NamedTuple):
    kind: str
    dtype: np.dtype
    key: str


class _View(NamedTuple):
    """A tensor: a part of a storage, in numbers of its type."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Mark:
    """Where the arguments of an opcode begin on the stack."""


class TorchTensor(NamedTuple):
    """A tensor by its storage in the archive."""

    name: str
    path: Path
    archive: str
    view: _View

    @property
    def kind(self) -> str:
        """Its type, as safetensors calls it."""
        return self.view.storage.kind

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return self.view.shape

    def read(self) -> np.ndarray:
        """Read the tensor as the file has it.

        Raises:
            InputError: its storage is cut short.
        """
        try:
            with zipfile.ZipFile(self.path) as file:
                data = file.read(f"{self.archive}/data/{self.view.storage.key}")
        except _DAMAGE as error:
            raise InputError(f"{self.path} is cut short or corrupted at tensor {self.name}: fetch it again") from error
        numbers = np.frombuffer(data, self.view.storage.dtype)
        strides = tuple(stride * numbers.itemsize for stride in self.view.strides)
        # The ends were checked against the member's size: no number outside of it is reached.
        part = np.lib.stride_tricks.as_strided(numbers[self.view.offset :], self.view.shape, strides, writeable=False)
        return part.copy()

    def first(self, axis: int, count: int) -> np.ndarray:
        """Return so much of it along an axis; the storage is read whole."""
        return self.read()[(slice(None),) * axis + (slice(count),)]


def locate(path: Path) -> dict[str, TorchTensor]:
    """Locate the tensors of a ``.bin`` file as ``torch.save`` has written it since 2020, none read yet.

    Raises:
        InputError: it is cut short, of another kind, or holds anything but tensors.
    """
    try:
        with zipfile.ZipFile(path) as file:
            sizes = {info.filename: info.file_size for info in file.infolist()}
            if any(info.compress_type != zipfile.ZIP_STORED for info in file.infolist()):
                raise InputError(f"{path} is compressed, as torch.save writes no file: fetch it again")
            pickles = [name for name in sizes if name.endswith("/data.pkl")]
            if len(pickles) != 1 or sizes[pickles[0]] > _LONGEST_PICKLE:
                raise InputError(f"{path} is no file of torch.save: it has no data.pkl that can be read")
            data = file.read(pickles[0])
            archive = pickles[0].removesuffix("/data.pkl")
            if sizes.get(f"{archive}/byteorder") == len("big") and file.read(f"{archive}/byteorder") == b"big":
                raise InputError(f"{path} was written on a big-endian machine: save it as safetensors")
    except (*_DAMAGE, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} is cut short, or no ZIP archive as torch.save writes it since 2020: fetch it again or save it "
            "as safetensors"
        ) from error
    try:
        with warnings.catch_warnings():
            # Texts of a corrupted file with escapes that the decoder does not know.
            warnings.simplefilter("ignore", DeprecationWarning)
            content = _walk(data, str(path))
    except InputError:
        raise
    except (ValueError, IndexError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(f"{path} holds a pickle that is corrupted: fetch it again") from error
    members = {}
    for name, view in _flat(content, str(path)).items():
        size = sizes.get(f"{archive}/data/{view.storage.key}")
        last = view.offset + sum((length - 1) * stride for length, stride in zip(view.shape, view.strides, strict=True))
        if size is None or (0 not in view.shape and (last + 1) * view.storage.dtype.itemsize > size):
            raise InputError(f"tensor {name} of {path} reaches beyond its storage: fetch it again")
        members[name] = TorchTensor(name, path, archive, view)
    return members


def _flat(content: object, where: str) -> dict[str, _View]:
    """Return the tensors by name; a checkpoint of a trainer keeps them below "state_dict", "model" or "module"."""
    if isinstance(content, dict):
        for key in ("state_dict", "model", "module"):
            if isinstance(content.get(key), dict):
                return _flat(content[key], where)
        views = {name: value for name, value in content.items() if isinstance(name, str) and isinstance(value, _View)}
        if views:
            return views
    raise InputError(f"{where} holds no tensors by name: it is no file of a model's weights")


def _walk(data: bytes, where: str) -> object:
    """Walk the opcodes of a pickle with a stack of plain values, and return the one that it leaves.

    Raises:
        InputError: an opcode or a global that no file of weights needs, by name.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def pop_mark() -> list[Any]:
        start = max(index for index, value in enumerate(stack) if isinstance(value, _Mark))
        values = stack[start + 1 :]
        del stack[start:]
        return values

    for opcode, argument, _ in pickletools.genops(data):
        match opcode.name:
            case "PROTO" | "FRAME":
                pass
            case "STOP":
                return stack.pop()
            case "MARK":
                stack.append(_Mark())
            case "NONE":
                stack.append(None)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(opcode.name == "NEWTRUE")
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT" | "BINUNICODE" | "SHORT_BINUNICODE":
                stack.append(argument)
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(opcode.name[-1])
                values = tuple(stack[-count:])
                if len(values) != count:
                    raise ValueError("too few values")
                del stack[-count:]
                stack.append(values)
            case "TUPLE":
                stack.append(tuple(pop_mark()))
            case "BINPUT" | "LONG_BINPUT":
                memo[_as_kind(argument, int)] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[_as_kind(argument, int)])
            case "APPEND":
                value = stack.pop()
                _as_kind(stack[-1], list).append(value)
            case "APPENDS":
                values_list = pop_mark()
                _as_kind(stack[-1], list).extend(values_list)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                _set(_as_kind(stack[-1], dict), key, value)
            case "SETITEMS":
                pairs = pop_mark()
                for key, value in zip(pairs[::2], pairs[1::2], strict=True):
                    _set(_as_kind(stack[-1], dict), key, value)
            case "GLOBAL":
                module, _, name = _as_kind(argument, str).partition(" ")
                stack.append(_named(module, name, where))
            case "STACK_GLOBAL":
                name, module = _as_kind(stack.pop(), str), _as_kind(stack.pop(), str)
                stack.append(_named(module, name, where))
            case "BINPERSID":
                stack.append(_storage(stack.pop()))
            case "REDUCE":
                arguments, function = _as_kind(stack.pop(), tuple), _as_kind(stack.pop(), _Name)
                stack.append(_rebuilt(function, arguments))
            case "BUILD":
                # Attributes of an OrderedDict (the versions of modules) say nothing about the numbers.
                stack.pop()
                _as_kind(stack[-1], dict)
            case _:
                raise InputError(
                    f"{where} holds the pickle opcode {opcode.name}, which no file of weights needs: it was not opened"
                )
    raise ValueError("no end")


def _as_kind(value: object, kind: type[_Kind]) -> _Kind:
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} where {kind.__name__} belongs")
    return value


def _set(target: dict[Any, Any], key: object, value: object) -> None:
    # Keys of weights are texts; others are dropped, so that nothing is hashed but texts.
    if isinstance(key, str):
        target[key] = value


def _named(module: str, name: str, where: str) -> _Name:
    """Return a global as a name, if files of weights need it."""
    if (module, name) not in _ALLOWED:
        raise InputError(
            f"{where} asks for {schema.cut(f'{module}.{name}')}, which could run code: it was not opened; save the "
            "weights alone, as safetensors"
        )
    return _Name(module, name)


def _storage(identity: object) -> _Storage:
    tag, kind, key, _, _ = _as_kind(identity, tuple)
    name = _as_kind(kind, _Name)
    if tag != "storage" or name.module != "torch" or not _as_kind(key, str).isalnum():
        raise ValueError("no storage")
    return _Storage(*_STORAGES[name.name], key)


def _rebuilt(function: _Name, arguments: tuple[Any, ...]) -> object:
    """Return what one of the allowed functions stands for."""
    if tuple(function) == _DICT:
        if arguments:
            raise ValueError("an OrderedDict with content")
        return {}
    if tuple(function) == _PARAMETER:
        return _as_kind(arguments[0], _View)
    if tuple(function) != _TENSOR:
        raise ValueError("a storage that is called")
    storage, offset, shape, strides = arguments[:4]
    numbers = (offset, *_as_kind(shape, tuple), *_as_kind(strides, tuple))
    if any(type(number) is not int or not 0 <= number < 2**48 for number in numbers) or len(shape) != len(strides):
        raise ValueError("no shape")
    # Of overlapping strides a small file could ask for a large array.
    if len(shape) > 8 or any(size > 1 and stride == 0 for size, stride in zip(shape, strides, strict=True)):
        raise ValueError("overlapping strides")
    return _View(_as_kind(storage, _Storage), offset, shape, strides)
