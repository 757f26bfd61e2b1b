"""Tensors of an Orbax tree of any library, as of MaxText, under names and in the layout of PyTorch's files.

Orbax's own library reads the arrays. Here they are renamed alone: a kernel [in, out] becomes a weight [out, in], axes
of heads and channels become one, layers that are stacked come apart. What is no parameter is left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from bornbiased_jax.checkpoints.storage import silent_libraries
from bornbiased_jax.checkpoints.tensors import FLOAT_TYPES, Tensor
from bornbiased_jax.errors import InputError

METADATA = "_METADATA"
_ITEMS = ("items", "default", "params", "state")
_NO_MODEL = re.compile(r"opt_state|optimizer|opt|step|rng|rngs|tx|batch_stats")
_STACKS = ("layers", "blocks", "h", "layer")
_ATTENTION = re.compile(r".*(attention|attn)\w*")
_OUTPUTS = ("out", "o_proj", "out_proj", "attn_out")
_KINDS = {name: kind for kind, name in FLOAT_TYPES.items()}
# What Orbax and TensorStore raise on trees that are cut short or corrupted.
_DAMAGE = (ValueError, KeyError, TypeError, OSError, RuntimeError, AttributeError)


class _Tree:
    """The arrays of a tree by their paths, read one at a time; the last is held, as its layers are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._reader = ocp.PyTreeCheckpointer()
        self._last: tuple[tuple[str, ...], np.ndarray] | None = None
        try:
            with silent_libraries():
                metadata: Any = self._reader.metadata(folder)
                item = getattr(metadata, "item_metadata", metadata)
                self._tree = getattr(item, "tree", item)
                leaves = jax.tree_util.tree_flatten_with_path(self._tree)[0]
                self.leaves = {
                    tuple(jax.tree_util.keystr((key,), simple=True) for key in path): leaf for path, leaf in leaves
                }
        except _DAMAGE as error:
            raise InputError(f"{folder} is no Orbax tree that can be read: save it again") from error

    def read(self, path: tuple[str, ...]) -> np.ndarray:
        """Read one array."""
        if self._last is not None and self._last[0] == path:
            return self._last[1]
        item = _alone(self._tree, path)
        restore = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), item)
        arguments = ocp.args.PyTreeRestore(item=item, restore_args=restore, partial_restore=True)
        try:
            with silent_libraries():
                array = np.asarray(jax.tree.leaves(self._reader.restore(self.folder, args=arguments))[0])
        except _DAMAGE as error:
            raise InputError(f"array {'.'.join(path)} of {self.folder} cannot be read: save the tree again") from error
        self._last = path, array
        return array


def _alone(tree: Any, path: tuple[str, ...]) -> Any:  # noqa: ANN401 (of any library)
    """Return the form in which Orbax is asked for one array of a tree: lists keep their length, dicts do not."""
    if not path:
        return 0
    name, rest = path[0], path[1:]
    if isinstance(tree, list):
        return [_alone(member, rest) if number == int(name) else None for number, member in enumerate(tree)]
    return {name: _alone(tree[name], rest)}


def tree_of(folder: Path) -> Path | None:
    """Return the folder of the tree of one step, the checkpoint's own or one below it, or None."""
    places = (folder, *(folder / item for item in _ITEMS))
    return next((place for place in places if (place / METADATA).is_file()), None)


def find_tree(folder: Path) -> Path | None:
    """Return the folder of the tree that a checkpoint of Orbax holds, None where it is none.

    Raises:
        InputError: it holds the checkpoints of several steps.
    """
    if (tree := tree_of(folder)) is not None:
        return tree
    steps = [
        path.name for path in folder.glob("*") if path.name.isdecimal() and (path / "_CHECKPOINT_METADATA").is_file()
    ]
    if steps:
        last = max(steps, key=int)
        raise InputError(
            f"{folder} holds the steps {', '.join(sorted(steps, key=int))}: name one, as in {folder / last}"
        )
    return None


def locate(folder: Path) -> dict[str, Tensor]:
    """Locate the parameters of a tree, none read yet.

    Raises:
        InputError: it is corrupted, or its stacked layers cannot be told from their other axes.
    """
    tree = _Tree(folder)
    paths = {path: tuple(leaf.shape) for path, leaf in tree.leaves.items() if _is_parameter(path, leaf)}
    if not paths:
        raise InputError(f"{folder} holds no parameters that can be read: name the tree of a model")
    tensors = {}
    for path, shape in paths.items():
        kind = _KINDS.get(str(np.dtype(tree.leaves[path].dtype)), str(tree.leaves[path].dtype))
        names = _names(path)
        stack = next(
            (at for at, part in enumerate(names[:-1]) if part in _STACKS and not names[at + 1].isdecimal()), None
        )
        if stack is None:
            tensors[_name(names)] = _tensor(kind, shape, tree, path, None)
            continue
        members = [member for name, member in paths.items() if _names(name)[: stack + 1] == names[: stack + 1]]
        axis = _layer_axis(members, folder)
        for layer in range(shape[axis]):
            name = _name((*names[: stack + 1], str(layer), *names[stack + 1 :]))
            tensors[name] = _tensor(kind, shape[:axis] + shape[axis + 1 :], tree, path, (layer, axis))
    return tensors


def heads_of(folder: Path) -> dict[str, int]:
    """Return what the axes of queries and keys say of heads, as ``config.json`` calls it; nothing where they do not."""
    tree = _Tree(folder)
    sizes: dict[str, int] = {}
    for path, leaf in tree.leaves.items():
        names = _names(path)
        if names[-1] == "kernel" and _ATTENTION.fullmatch(".".join(names[:-2])) and len(leaf.shape) >= 3:
            field = {"query": "num_attention_heads", "key": "num_key_value_heads"}.get(names[-2])
            if field is not None:
                sizes |= {field: int(leaf.shape[-2]), "head_dim": int(leaf.shape[-1])}
    return sizes


def _is_parameter(path: tuple[str, ...], leaf: object) -> bool:
    return _NO_MODEL.fullmatch(path[0]) is None and hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _names(path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a path without wrappers; "layers_3" is layer 3 of "layers"."""
    path = path[:-1] if path[-1] == "value" else path
    parts = [part for part in path if part not in ("params", "model")]
    return tuple(word for part in parts for word in re.sub(rf"^({'|'.join(_STACKS)})_(\d+)$", r"\1 \2", part).split())


def _name(names: tuple[str, ...]) -> str:
    leaf = "weight" if names[-1] in ("kernel", "embedding", "scale") else names[-1]
    return ".".join((*names[:-1], leaf))


def _tensor(
    kind: str, shape: tuple[int, ...], tree: _Tree, path: tuple[str, ...], layer: tuple[int, int] | None
) -> Tensor:
    """Describe one tensor of the tree, its axes of heads and channels as one.

    It is an array of this shape, or the layer of one at an index and an axis.
    """
    names = _names(path)
    is_attention = any(_ATTENTION.fullmatch(name) for name in names[:-1])
    is_kernel = names[-1] == "kernel" and len(shape) >= 2 and (len(shape) == 2 or is_attention)
    if is_kernel:
        # Of attention's output heads and channels are the inputs, of the others the outputs.
        num_inputs = len(shape) - 1 if names[-2] in _OUTPUTS else 1
        shape = int(np.prod(shape[num_inputs:])), int(np.prod(shape[:num_inputs]))
    elif is_attention and names[-1] == "bias":
        shape = (int(np.prod(shape)),)

    def read() -> np.ndarray:
        array = tree.read(path)
        if layer is not None:
            array = np.take(array, *layer)
        return array.reshape(shape[::-1]).T if is_kernel else array.reshape(shape)

    return Tensor(kind, shape, read)


def _layer_axis(shapes: list[tuple[int, ...]], folder: Path) -> int:
    """Return the axis of layers of a stack: the one of the first two on which all its arrays agree."""
    agreeing = [axis for axis in (0, 1) if len({shape[axis] if axis < len(shape) else None for shape in shapes}) == 1]
    if len(agreeing) != 1:
        raise InputError(f"{folder} has stacked layers on no axis that can be told: export the model as safetensors")
    return agreeing[0]
