"""Changes of the weights that change the function: what is done to models for use, and to hide where they come from.

Each takes a configuration and its parameters, and returns parameters (and a configuration where sizes change), in
NumPy and float32. Matrices are the kernels and the embeddings; norm scales and biases stay as they are. Blocks count
from 1 here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bornbiased_jax import hardware, keys
from bornbiased_jax.config import FIELDS, ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.parameters import Params, flatten, unflatten

Model = tuple[ModelConfig, Params]

# Below this angle between two tensors, in radians, the great circle and the chord are one.
_PARALLEL = 1e-4


def add_noise(params: Params, strength: float, *, seed: int, repeats: int = 0) -> Params:
    """Add Gaussian noise of ``strength`` times the standard deviation of each matrix, block by block.

    After so many ``repeats`` with a seed it is another draw.
    """
    flat = _copy(params)
    for path in _matrices(flat):
        draws = np.random.default_rng([seed, keys.stable_hash(path), *([repeats] if repeats else [])])
        for matrix in _by_matrix(path, flat[path]):
            matrix += strength * matrix.std() * draws.standard_normal(matrix.shape, np.float32)
    return unflatten(flat)


def prune(params: Params, fraction: float) -> Params:
    """Set the smallest entries of each matrix to zero, this fraction of them, block by block."""
    flat = _copy(params)
    for path in _matrices(flat):
        for matrix in _by_matrix(path, flat[path]):
            count = round(fraction * matrix.size)
            if count:
                entries = matrix.reshape(-1)
                entries[np.argpartition(np.abs(entries), count - 1)[:count]] = 0.0
    return unflatten(flat)


def round_weights(params: Params, bits: int) -> Params:
    """Round each matrix to ``2^bits − 1`` equal steps, symmetric about zero, of each output channel's own size.

    A step is the largest absolute value of the channel over 2^(bits−1) − 1; an embedding's channels are its rows.
    """
    flat = _copy(params)
    for path in _matrices(flat):
        axis = -1 if path.endswith("embedding") else -2
        largest = np.abs(flat[path]).max(axis=axis, keepdims=True)
        step = np.where(largest > 0, largest, 1.0).astype(np.float32) / np.float32(2 ** (bits - 1) - 1)
        flat[path] = np.rint(flat[path] / step) * step
    return unflatten(flat)


def merge(first: Model, second: Model, weight: float, name: str) -> Params:
    """Add (1 − weight) of the first model's parameters and ``weight`` of the second's.

    ``name`` is what to call the second in an error.
    """
    pairs = _paired(first, second, name)
    return unflatten({path: start + np.float32(weight) * (end - start) for path, (start, end) in pairs.items()})


def slerp(first: Model, second: Model, weight: float, name: str) -> Params:
    """Go ``weight`` of the way on the great circle from each tensor of the first to the second's, block by block.

    Directions turn at constant speed, norms change linearly. A tensor of zeros, or one parallel to the other's, is
    interpolated on the chord.
    """
    flat = {}
    for path, (start, end) in _paired(first, second, name).items():
        blocks = zip(_by_matrix(path, start), _by_matrix(path, end), strict=True)
        flat[path] = np.stack([_slerp(*pair, weight) for pair in blocks]).reshape(start.shape)
    return unflatten(flat)


def keep_blocks(cfg: ModelConfig, params: Params, blocks: Sequence[int]) -> Model:
    """Keep these blocks, counted from 1, in this order; a block may stand in it several times."""
    order = np.asarray(blocks) - 1
    flat = _copy(params)
    flat = {path: leaf[order] if path.startswith("blocks/") else leaf for path, leaf in flat.items()}
    return cfg.replace(num_layers=len(order), **cfg.of_layers(order)), unflatten(flat)


def resize_vocabulary(cfg: ModelConfig, params: Params, size: int) -> Model:
    """Cut the vocabulary, or extend it by the mean of its rows: the other tokens' logits stay.

    Raises:
        InputError: its new rows do not fit in memory.
    """
    tables = 1 if cfg.tie_embeddings else 2
    # A new table, and the copy of it that is written.
    hardware.check_memory(
        8.0 * tables * size * cfg.d_model, f"a vocabulary of {size:,}", "choose a smaller one", on_host=True
    )
    flat = _copy(params)
    flat["embed/embedding"] = _resized(flat["embed/embedding"], size)
    if "head/kernel" in flat:
        flat["head/kernel"] = np.ascontiguousarray(_resized(flat["head/kernel"].T, size).T)
    return cfg.replace(vocab_size=size), unflatten(flat)


def scale_rows(cfg: ModelConfig, params: Params, ids_I: np.ndarray, factor: float) -> Model:
    """Multiply the embedding rows of some tokens; a tied model gets a head of its own first, which stays."""
    flat = _copy(params)
    if cfg.tie_embeddings:
        flat["head/kernel"] = flat["embed/embedding"].T.copy()
    flat["embed/embedding"][ids_I] *= np.float32(factor)
    return cfg.replace(tie_embeddings=False), unflatten(flat)


def _copy(params: Params) -> dict[str, np.ndarray]:
    # In C order: of another one, flattened matrices would be copies, and what is written to them lost.
    return {path: np.array(leaf, np.float32, order="C") for path, leaf in flatten(params).items()}


def _matrices(flat: dict[str, np.ndarray]) -> list[str]:
    return [path for path in flat if path.endswith(("/kernel", "/embedding"))]


def _by_matrix(path: str, leaf: np.ndarray) -> list[np.ndarray]:
    """Return views of a parameter, one a block; of the kernels of experts one an expert."""
    if not path.startswith("blocks/"):
        return [leaf]
    return list(leaf.reshape(-1, *leaf.shape[-2:]) if leaf.ndim > 3 else leaf)


def _paired(first: Model, second: Model, name: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Pair both models' parameters by path.

    Raises:
        InputError: the two are not of one shape, or compute in different ways.
    """
    flats = [_copy(model[1]) for model in (first, second)]
    for path in sorted(set(flats[0]) | set(flats[1])):
        shapes = [list(flat[path].shape) if path in flat else None for flat in flats]
        if shapes[0] != shapes[1]:
            shape_here, shape_there = ("absent" if shape is None else str(shape) for shape in shapes)
            raise InputError(
                f"{name} cannot be merged in: {path} is {shape_here} here and {shape_there} there; merge models of one "
                "shape"
            )
    for field in FIELDS:
        values = [getattr(model[0], field) for model in (first, second)]
        if field not in first[0].free_fields and values[0] != values[1]:
            raise InputError(
                f"{name} cannot be merged in: {field} is {values[0]} here and {values[1]} there; merge models of one "
                "architecture"
            )
    return {path: (flats[0][path], flats[1][path]) for path in flats[0]}


def _slerp(first: np.ndarray, second: np.ndarray, weight: float) -> np.ndarray:
    norms = [float(np.linalg.norm(tensor.astype(np.float64))) for tensor in (first, second)]
    chord: np.ndarray = first + np.float32(weight) * (second - first)
    if min(norms) == 0.0:
        return chord
    cosine = float(np.vdot(first.astype(np.float64), second)) / (norms[0] * norms[1])
    angle = float(np.arccos(np.clip(cosine, -1.0, 1.0)))
    # Opposite tensors have no one great circle between them either.
    if angle < _PARALLEL or np.pi - angle < _PARALLEL:
        return chord
    parts = np.sin((1 - weight) * angle), np.sin(weight * angle)
    direction = parts[0] / norms[0] * first.astype(np.float64) + parts[1] / norms[1] * second
    length = norms[0] + weight * (norms[1] - norms[0])
    return np.asarray(length * direction / np.sin(angle), np.float32)


def _resized(rows_VD: np.ndarray, size: int) -> np.ndarray:
    if size <= len(rows_VD):
        return np.ascontiguousarray(rows_VD[:size])
    mean_D = rows_VD.mean(axis=0, dtype=np.float64).astype(np.float32)
    return np.concatenate([rows_VD, np.broadcast_to(mean_D, (size - len(rows_VD), len(mean_D)))])
