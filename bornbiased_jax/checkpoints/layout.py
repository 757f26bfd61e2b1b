"""Where every weight lies in a file: names, transpositions, fused matrices, interleaved RoPE rows.

One list of entries describes a file format for one architecture, and serves reading and writing alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.init import parameter_shapes
from bornbiased_jax.parameters import flatten

Form = Literal[
    "same",
    "plus one",
    "transposed",
    "fused columns",
    "fused rows",
    "fused heads",
    "paired query",
    "paired key",
]
_IN_OUT: tuple[Form, ...] = ("same", "plus one", "fused columns")
"""Forms of which a file has matrices as [in, out], as the parameters are."""
Shapes = dict[str, tuple[int, ...]]

QKV = tuple(f"blocks/attention/{name}" for name in ("query", "key", "value"))
FUSED: Mapping[str, tuple[str, ...]] = {
    "blocks/attention/qkv": QKV,
    "blocks/mlp/gate_up": ("blocks/mlp/gate", "blocks/mlp/up"),
}
"""Modules that a file may hold in one matrix, by what the tables of names call it."""


class Biases(NamedTuple):
    """The linear layers that have a bias in the file. A file may have fewer, or more, than the config says."""

    qkv: bool = False
    output: bool = False
    mlp: bool = False


class FileEntry(NamedTuple):
    """One tensor of a file, and the parameter (three, when fused) that it holds.

    ``layer`` is the index on the leading axis of the parameters, None where there is none; ``expert`` that on the next
    axis, of a parameter that has one tensor an expert in the file. Of the form "plus one" are norm scales of which the
    file keeps the difference from 1.
    """

    name: str
    paths: tuple[str, ...]
    layer: int | None
    form: Form
    expert: int | None = None

    @property
    def place(self) -> tuple[int, ...]:
        """Indices on the leading axes of the parameters."""
        return tuple(index for index in (self.layer, self.expert) if index is not None)


def file_shapes(cfg: ModelConfig, biases: Biases) -> Shapes:
    """Return path to shape of every parameter that a file holds: those of the config, with the biases of the file."""
    shapes = {path: tuple(leaf.shape) for path, leaf in flatten(parameter_shapes(cfg)).items()}
    in_file: Shapes = {}
    for path, shape in shapes.items():
        module, _, leaf = path.rpartition("/")
        if leaf == "bias" and _is_linear(module):
            continue
        in_file[path] = shape
        if leaf == "kernel" and _is_linear(module) and _has_bias(module, biases):
            in_file[f"{module}/bias"] = (shape[0], shape[-1])
    return dict(sorted(in_file.items()))


def _is_linear(module: str) -> bool:
    return module.startswith("blocks/") and module.split("/")[1] in ("attention", "mlp") and "norm" not in module


def _has_bias(module: str, biases: Biases) -> bool:
    if module in QKV:
        return biases.qkv
    return biases.output if module == "blocks/attention/output" else biases.mlp


def make_entries(
    names: Mapping[str, str], shapes: Shapes, form: Callable[[str], Form], *, offset_norms: bool = False
) -> list[FileEntry]:
    """List the tensors of a file with parameters of these shapes.

    In the name of a module "{l}" is the layer, "{e}" the expert, "{leaf}" weight or bias. A file with offset norms
    keeps their scales less one.
    """
    fused_in = {part: module for module, parts in FUSED.items() if module in names for part in parts}
    entries = []
    for path, shape in shapes.items():
        module, _, leaf = path.rpartition("/")
        paths: tuple[str, ...] = (path,)
        if module in fused_in:
            parts = FUSED[fused_in[module]]
            if module != parts[0]:
                continue
            paths = tuple(f"{part}/{leaf}" for part in parts)
            module = fused_in[module]
        template = names[module]
        suffix = "bias" if leaf == "bias" else "weight"
        plain: Form = "plus one" if leaf == "scale" and offset_norms else "same"
        of_tensor: Form = plain if leaf in ("scale", "embedding") else form(module)
        for layer in range(shape[0]) if path.startswith("blocks/") else (None,):
            for expert in range(shape[1]) if "{e}" in template else (None,):
                name = template.format(l=layer, e=expert, leaf=suffix)
                entries.append(FileEntry(name, paths, layer, of_tensor, expert))
    return entries


def shape_in_file(entry: FileEntry, shapes: Shapes) -> tuple[int, ...]:
    """Return the shape that the entry's tensor must have in the file."""
    block_shapes = [shapes[path][len(entry.place) :] for path in entry.paths]
    joined = (*block_shapes[0][:-1], sum(shape[-1] for shape in block_shapes))
    return joined if entry.form in _IN_OUT else (*joined[:-2], *joined[-2:][::-1])


def unpack(entry: FileEntry, cfg: ModelConfig, tensor: np.ndarray) -> list[np.ndarray]:
    """Unpack the parameters that a tensor of the file holds, ordered as ``entry.paths``, as views where possible."""
    if entry.form == "plus one":
        return [tensor.astype(np.float32) + np.float32(1.0)]
    array = tensor if entry.form in _IN_OUT else _flipped(tensor)
    lead = array.shape[:-1]
    if entry.form in ("fused columns", "fused rows"):
        return np.split(array, np.cumsum([_width(path, cfg) for path in entry.paths])[:-1], axis=-1)
    if entry.form == "fused heads":
        split = array.reshape(*lead, cfg.num_heads, 3, cfg.key_dim)
        return [split[..., index, :].reshape(*lead, -1) for index in range(3)]
    if entry.form in ("paired query", "paired key"):
        # Rows 2i and 2i + 1 of a head turn together; in our layout rows i and i + R/2 of the first R do.
        heads = array.reshape(*lead, _heads(entry, cfg), cfg.key_dim)
        return [with_rotated(heads, (cfg.rotary_dim // 2, 2)).reshape(*lead, -1)]
    return [array]


def _flipped(array: np.ndarray) -> np.ndarray:
    """Exchange the input and the output axis of a matrix, or of the matrices of all experts; a vector stays."""
    return array.swapaxes(-1, -2) if array.ndim > 1 else array


def pack(entry: FileEntry, cfg: ModelConfig, parameters: Iterable[np.ndarray]) -> np.ndarray:
    """Pack parameters into a tensor of the file: the inverse of :func:`unpack`."""
    arrays = list(parameters)
    array, lead = arrays[0], arrays[0].shape[:-1]
    if entry.form == "plus one":
        array = np.asarray(array - np.asarray(1.0, array.dtype))
    elif entry.form in ("fused columns", "fused rows"):
        array = np.concatenate(arrays, axis=-1)
    elif entry.form == "fused heads":
        by_head = [part.reshape(*lead, cfg.num_heads, 1, cfg.key_dim) for part in arrays]
        array = np.concatenate(by_head, axis=-2).reshape(*lead, -1)
    elif entry.form in ("paired query", "paired key"):
        heads = array.reshape(*lead, _heads(entry, cfg), cfg.key_dim)
        array = with_rotated(heads, (2, cfg.rotary_dim // 2)).reshape(*lead, -1)
    return array if entry.form in _IN_OUT else _flipped(array)


def _heads(entry: FileEntry, cfg: ModelConfig) -> int:
    return cfg.num_heads if entry.form == "paired query" else cfg.kv_heads


def with_rotated(heads: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Transpose the rotated dimensions of every head [..., K], taken as a matrix of this shape; the rest stays."""
    size = math.prod(shape)
    rotated = heads[..., :size]
    turned = np.swapaxes(rotated.reshape(*rotated.shape[:-1], *shape), -1, -2).reshape(rotated.shape)
    return np.concatenate([turned, heads[..., size:]], axis=-1)


def _width(path: str, cfg: ModelConfig) -> int:
    """Return the output width of a matrix that may be fused with others."""
    if path.startswith("blocks/mlp/"):
        return cfg.d_ff
    return cfg.key_dim * (cfg.num_heads if path.startswith(QKV[0]) else cfg.kv_heads)
