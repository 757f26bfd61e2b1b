"""Cross-Grams of two models of one architecture: every matrix that touches the residual stream.

Where fingerprints have a few numbers of each coordinate, these have all: what a series over checkpoints needs that is
to tell one matrix from another long after the birth.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.parameters import GROUPS, parameter_table
from bornbiased_jax.stats.permutations import moments

_TINY = 1e-30
_VOCABULARY = ("embed", "head")


def cross_grams(birth: Checkpoint, now: Checkpoint, ids_I: np.ndarray) -> Iterator[tuple[str, str | None, np.ndarray]]:
    """Yield every matrix of both models: its name, its kind in blocks, cosines of coordinates [D, D].

    Rows have unit norm, so that scales moved between matrices change nothing; those of the embedding and the head are
    of the tokens ``ids_I``. Matrices of zeros are left out.
    """
    for module, layer in _matrices(birth.cfg):
        born_nD, lived_nD = (_rows(model, module, layer, ids_I) for model in (birth, now))
        if born_nD.any() and lived_nD.any():
            cross_DD = born_nD.T @ lived_nD
            cross_DD /= _column_norms(born_nD)[:, None]
            cross_DD /= _column_norms(lived_nD)
            yield (module, None, cross_DD) if layer is None else (f"blocks/{layer + 1}/{module}", module, cross_DD)


def trace_z(scores_nn: np.ndarray) -> float:
    """Compute the trace's standard deviations above its mean over permutations; NaN where it cannot vary."""
    mean, variance = moments(scores_nn)
    if not variance > 1e-6 * float(np.vdot(scores_nn, scores_nn)) / len(scores_nn):
        return float("nan")
    return (float(np.trace(scores_nn, dtype=np.float64)) - float(mean)) / float(variance) ** 0.5


def _matrices(cfg: ModelConfig) -> list[tuple[str, int | None]]:
    """List matrices by module and block, counted from 0: tables first, blocks in the order of groups, the head last."""
    rows = [row for row in parameter_table(cfg).values() if row.is_stacked and row.is_matrix]
    rows = [row for row in rows if row.reads_residual or row.writes_residual]
    modules = [row.module.removeprefix("blocks/") for row in sorted(rows, key=lambda row: GROUPS.index(row.group))]
    tables = ["embed", "positions"] if "positions/embedding" in parameter_table(cfg) else ["embed"]
    blocks = [(module, layer) for module in modules for layer in range(cfg.num_layers)]
    return [*((table, None) for table in tables), *blocks, ("head", None)]


def _rows(model: Checkpoint, module: str, layer: int | None, ids_I: np.ndarray) -> np.ndarray:
    """Read one matrix as unit rows over residual coordinates: [n, D] float32, the scale of its norm folded in."""
    cfg, table = model.cfg, parameter_table(model.cfg)
    is_centered, scale_D, is_reader = cfg.norm == "layernorm", None, True
    if module in ("embed", "positions"):
        rows_nD = np.array(model.read(f"{module}/embedding"))
        # The first norm takes out the mean, if one stands before the first sublayer.
        is_centered &= cfg.norm_position == "pre"
    elif module == "head":
        rows_nD = np.array(model.read("embed/embedding") if cfg.tie_embeddings else model.read("head/kernel").T)
        scale_D = _scale(model, "final_norm", None)
    else:
        row = table[f"blocks/{module}/kernel"]
        kernel, is_reader = model.read(row.path, layer), row.reads_residual
        # The rows of experts one after the other.
        rows_nD = np.array(np.swapaxes(kernel, -1, -2) if is_reader else kernel).reshape(-1, cfg.d_model)
        scale_D = None if row.norm is None else _scale(model, row.norm, layer)
        is_centered &= not is_reader or row.norm is not None
    if is_centered and not is_reader:
        rows_nD -= rows_nD.mean(axis=1, keepdims=True, dtype=np.float64)
    if scale_D is not None:
        rows_nD *= scale_D
    if is_centered and is_reader:
        rows_nD -= rows_nD.mean(axis=1, keepdims=True, dtype=np.float64)
    if module in _VOCABULARY:
        rows_nD = rows_nD[ids_I]
    if module == "head":
        # A vector added to every column changes no probability.
        rows_nD -= rows_nD.mean(axis=0, dtype=np.float64)
    return rows_nD / np.maximum(np.linalg.norm(rows_nD, axis=1, keepdims=True), _TINY)


def _scale(model: Checkpoint, norm: str, layer: int | None) -> np.ndarray | None:
    path = f"{norm}/scale"
    return model.read(path, layer) if model.has(path) else None


def _column_norms(rows_nD: np.ndarray) -> np.ndarray:
    norms_D = np.linalg.norm(rows_nD, axis=0)
    return np.where(norms_D > 0, norms_D, np.float32(1.0))
