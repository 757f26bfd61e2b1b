"""Tensors of ``pytorch_model.bin``: the pickle in it is read as data, and nothing that it names is imported or called.

``torch.save`` writes a ZIP archive of ``data.pkl`` and one member per storage. The opcodes of the pickle are walked
with a stack of plain values; what is no tensor of numbers, no container and no text is refused by name.
"""

from __future__ import annotations

import dataclasses
import io
import math
import pickletools
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np

from bornbiased_jax import schema
from bornbiased_jax.checkpoints.tensors import TYPES, Tensor
from bornbiased_jax.errors import InputError, cut_short

_STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
_TENSOR = ("torch._utils", "_rebuild_tensor_v2")
_PARAMETER = ("torch._utils", "_rebuild_parameter")
_DICT = ("collections", "OrderedDict")
_Kind = TypeVar("_Kind")
# What the standard library raises on archives that are cut or corrupted.
_DAMAGE = (zipfile.BadZipFile, OSError, NotImplementedError, EOFError)
LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The beginning of what torch.save wrote before PyTorch 1.6 (2020): a pickled number."""
# A member's flag.
_ENCRYPTED = 1
_COPY = "copy it anew from where it came, or save it again"
_LONGEST_PICKLE = 64 << 20
"""Bytes of a pickle without numbers: 100,000 tensors need a sixth of it."""


class Name(NamedTuple):
    """A global that the pickle names, never looked up."""

    module: str
    name: str


class _Storage(NamedTuple):
    kind: str
    key: str


class _View(NamedTuple):
    """A tensor: a part of a storage, in numbers of its type."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclasses.dataclass(eq=False)
class TorchRecord:
    """An object that the pickle describes and nobody makes: the name of its class, and its state."""

    kind: str
    state: Any = None


class Rules(NamedTuple):
    """The names that a pickle may use.

    Attributes:
        allowed: globals by module and name.
        rebuild: from a global and its arguments to what the call stands for.
        has_objects: whether it may describe objects, which become a :class:`TorchRecord`.
    """

    allowed: frozenset[tuple[str, str]]
    rebuild: Callable[[Name, tuple[Any, ...]], object]
    has_objects: bool = False


class _Mark:
    """The place on the stack at which the arguments of an opcode begin."""


def _numbers(view: _View, data: bytes) -> np.ndarray:
    """Return a tensor as the bytes of its storage have it."""
    numbers = np.frombuffer(data, TYPES[view.storage.kind])
    strides = tuple(stride * numbers.itemsize for stride in view.strides)
    # The ends were checked against the member's size: no number outside of it is reached.
    return np.lib.stride_tricks.as_strided(numbers[view.offset :], view.shape, strides, writeable=False).copy()


def locate(path: Path) -> dict[str, Tensor]:
    """Locate the tensors of a ``.bin`` file as ``torch.save`` has written it since 2020, none read yet.

    Raises:
        InputError: it is cut short, of another kind, or holds anything but tensors.
    """
    with path.open("rb") as stream:
        archive, content, sizes = _open(stream, str(path))
    views = _flat(content, str(path))
    for name, view in views.items():
        _check_ends(view, sizes.get(f"{archive}/data/{view.storage.key}"), f"tensor {name} of {path}")

    def read(name: str, view: _View) -> np.ndarray:
        try:
            with zipfile.ZipFile(path) as file:
                data = file.read(f"{archive}/data/{view.storage.key}")
        except _DAMAGE as error:
            # The list of contents lies at the end, so that nothing is cut off.
            raise InputError(f"{path} is corrupted at tensor {name}: {_COPY}") from error
        return _numbers(view, data)

    return {name: Tensor(view.storage.kind, view.shape, partial(read, name, view)) for name, view in views.items()}


def read_tensor(data: bytes, where: str) -> np.ndarray:
    """Read a file of ``torch.save`` that holds one tensor.

    Raises:
        InputError: as :func:`locate`.
    """
    archive, content, sizes = _open(io.BytesIO(data), where)
    if not isinstance(content, _View):
        raise InputError(f"{where} holds something else than a tensor: save it again")
    _check_ends(content, sizes.get(f"{archive}/data/{content.storage.key}"), where)
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return _numbers(content, file.read(f"{archive}/data/{content.storage.key}"))


def _check_ends(view: _View, size: int | None, where: str) -> None:
    """Refuse a tensor that reaches beyond its storage of so many bytes, None where there is none, or has more numbers.

    A storage ends with a whole number. Of strides that overlap a small file could ask for a large array.
    """
    itemsize = TYPES[view.storage.kind].itemsize
    last = view.offset + sum((length - 1) * stride for length, stride in zip(view.shape, view.strides, strict=True))
    needed = max(last + 1, math.prod(view.shape)) * itemsize
    if size is None or size % itemsize or (0 not in view.shape and needed > size):
        raise InputError(f"{where} reaches beyond its storage, or into a part of a number: save the model again")


def _open(archive_file: BinaryIO, path: str) -> tuple[str, object, dict[str, int]]:
    """Return the name of an archive, what its pickle holds, and the sizes of its members."""
    try:
        with zipfile.ZipFile(archive_file) as file:
            sizes = {info.filename: info.file_size for info in file.infolist()}
            if any(info.compress_type != zipfile.ZIP_STORED or info.flag_bits & _ENCRYPTED for info in file.infolist()):
                raise InputError(
                    f"{path} is compressed or encrypted, as torch.save writes no file: save the model again"
                )
            pickles = [name for name in sizes if name.endswith("/data.pkl")]
            if len(pickles) != 1 or sizes[pickles[0]] > _LONGEST_PICKLE:
                raise InputError(f"{path} is no file of torch.save: it has no data.pkl that can be read")
            data = file.read(pickles[0])
            archive = pickles[0].removesuffix("/data.pkl")
            if sizes.get(f"{archive}/byteorder") == len("big") and file.read(f"{archive}/byteorder") == b"big":
                raise InputError(f"{path} was written on a big-endian machine: save it as safetensors")
    except (*_DAMAGE, UnicodeDecodeError) as error:
        raise _unreadable(archive_file, path) from error
    return archive, read_pickle(data, path, _WEIGHTS), sizes


def _unreadable(archive_file: BinaryIO, path: str) -> InputError:
    """Return the error of a file that cannot be read as an archive."""
    archive_file.seek(0)
    head = archive_file.read(len(LEGACY))
    if head == LEGACY:
        return InputError(
            f"{path} is in the format of torch.save before PyTorch 1.6, which is not read here: load it with PyTorch, "
            "and save it as safetensors"
        )
    # An archive ends with the list of its contents.
    if zipfile.is_zipfile(archive_file):
        return InputError(f"{path} is corrupted: {_COPY}")
    if not head or head.startswith(b"PK\x03\x04"):
        return cut_short(f"{path}, an archive of torch.save,")
    return InputError(f"{path} is no archive as torch.save writes it since PyTorch 1.6: save the model as safetensors")


def read_pickle(data: bytes, where: str, rules: Rules) -> object:
    """Return what a pickle describes, in plain values; nothing that it names is imported or called.

    Raises:
        InputError: it is corrupted, or asks for more than the rules allow.
    """
    try:
        with warnings.catch_warnings():
            # Texts of a corrupted file with escapes that the decoder does not know.
            warnings.simplefilter("ignore", DeprecationWarning)
            return _walk(data, where, rules)
    except InputError:
        raise
    except (ValueError, IndexError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(f"{where} holds a pickle that is corrupted: save the model again") from error


def _flat(content: object, where: str, levels: int = 9) -> dict[str, _View]:
    """Return the tensors by name; a checkpoint of a trainer keeps them below "state_dict", "model" or "module".

    Only so many levels below, as a dict may hold itself.
    """
    if isinstance(content, dict):
        for key in ("state_dict", "model", "module") if levels else ():
            if isinstance(content.get(key), dict):
                return _flat(content[key], where, levels - 1)
        views = {name: value for name, value in content.items() if isinstance(name, str) and isinstance(value, _View)}
        if views:
            return views
    raise InputError(f"{where} holds no tensors by name: it is no file of a model's weights")


def _walk(data: bytes, where: str, rules: Rules) -> object:
    """Walk the opcodes of a pickle with a stack of plain values, and return the one that it leaves."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def pop_mark() -> list[Any]:
        # From the top alone: a stack of many marks is not looked through for each of them.
        values = []
        while not isinstance(value := stack.pop(), _Mark):
            values.append(value)
        return values[::-1]

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
                stack.append(_named(module, name, where, rules))
            case "STACK_GLOBAL":
                name, module = _as_kind(stack.pop(), str), _as_kind(stack.pop(), str)
                stack.append(_named(module, name, where, rules))
            case "BINPERSID":
                stack.append(_storage(stack.pop()))
            case "REDUCE":
                arguments, function = _as_kind(stack.pop(), tuple), _as_kind(stack.pop(), Name)
                stack.append(rules.rebuild(function, arguments))
            case "NEWOBJ" if rules.has_objects:
                _as_kind(stack.pop(), tuple)
                stack.append(TorchRecord(_as_kind(stack.pop(), Name).name))
            case "BUILD":
                # Attributes of an OrderedDict (the versions of modules) say nothing about the numbers.
                state = stack.pop()
                if isinstance(stack[-1], TorchRecord):
                    stack[-1].state = state
                else:
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
    # Keys of weights are texts, the only ones that are hashed; entries of objects are numbered, others dropped.
    if isinstance(key, str):
        target[key] = value
    elif isinstance(key, TorchRecord):
        target[len(target)] = (key, value)


def _named(module: str, name: str, where: str, rules: Rules) -> Name:
    """Return a global as a name, if files of weights need it."""
    if (module, name) not in rules.allowed:
        raise InputError(
            f"{where} asks for {schema.cut(f'{module}.{name}')}, which could run code: it was not opened; save the "
            "weights alone, as safetensors"
        )
    return Name(module, name)


def _storage(identity: object) -> _Storage:
    tag, kind, key, _, _ = _as_kind(identity, tuple)
    name = _as_kind(kind, Name)
    if tag != "storage" or name.module != "torch" or not _as_kind(key, str).isalnum():
        raise ValueError("no storage")
    return _Storage(_STORAGES[name.name], key)


def _rebuilt(function: Name, arguments: tuple[Any, ...]) -> object:
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
    # What is conjugated or negated when it is read.
    if any(arguments[6:]):
        raise ValueError("numbers of other signs")
    # Of overlapping strides a small file could ask for a large array.
    if len(shape) > 8 or any(size > 1 and stride == 0 for size, stride in zip(shape, strides, strict=True)):
        raise ValueError("overlapping strides")
    return _View(_as_kind(storage, _Storage), offset, shape, strides)


_WEIGHTS = Rules(frozenset({_TENSOR, _PARAMETER, _DICT, *(("torch", name) for name in _STORAGES)}), _rebuilt)
