"""A model's matrices as rows over residual coordinates, in a form that free rescalings leave alone.

Every matrix that touches the residual stream becomes [n, D], a row a hidden unit (or a head's channel, or a token):

- the scale of a norm belongs to the matrices that read its output (query, key, value, gate, up, head), or, where a norm
  stands on a sublayer's output, to the matrix that writes it (output, down);
- LayerNorm takes out the mean over coordinates: rows of readers and, before such a norm, of writers lose theirs;
- the head of a tied model is its embedding with the final norm's scale, as an untied copy would have it.

Biases, per-head norms and extra attention logits are left out: they carry no numbers of the birth.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.parameters import GROUPS, parameter_table

VOCABULARY = ("embed", "head")
_TINY = 1e-30


class Matrix(NamedTuple):
    """A matrix by name: "embed", "positions", "head", or that of a block ("mlp/up"), with the block counted from 0."""

    module: str
    layer: int | None = None

    def __str__(self) -> str:
        return self.module if self.layer is None else f"blocks/{self.layer + 1}/{self.module}"


def matrices(cfg: ModelConfig) -> list[Matrix]:
    """List every matrix at the residual stream, module by module: readers may keep one parameter of all blocks."""
    listed = [Matrix("embed")]
    if "positions/embedding" in parameter_table(cfg):
        listed.append(Matrix("positions"))
    for module in block_modules(cfg):
        listed += [Matrix(module, layer) for layer in range(cfg.num_layers)]
    return [*listed, Matrix("head")]


def block_modules(cfg: ModelConfig) -> list[str]:
    """List the matrices of each block that read the residual stream or write to it, in the order of groups."""
    rows = [row for row in parameter_table(cfg).values() if row.is_stacked and row.is_matrix]
    at_stream = [row for row in rows if row.reads_residual or row.writes_residual]
    ordered = sorted(at_stream, key=lambda row: GROUPS.index(row.group))
    return [row.module.removeprefix("blocks/") for row in ordered]


def folded(reader: Checkpoint, matrix: Matrix) -> np.ndarray:
    """Read one matrix as rows over residual coordinates: [n, D] float32, the caller's to change."""
    cfg, table = reader.cfg, parameter_table(reader.cfg)
    is_centred = cfg.norm == "layernorm"
    if matrix.module in ("embed", "positions"):
        rows_nD = np.array(reader.read(f"{matrix.module}/embedding"))
        # The first norm takes out the mean, if one stands before the first sublayer.
        return _centre(rows_nD) if is_centred and cfg.norm_position == "pre" else rows_nD
    if matrix.module == "head":
        if cfg.tie_embeddings:
            rows_nD = np.array(reader.read("embed/embedding"))
        else:
            rows_nD = np.array(reader.read("head/kernel").T)
        return _read_by(rows_nD, _scale(reader, "final_norm", None), is_centred)
    row = table[f"blocks/{matrix.module}/kernel"]
    kernel = reader.read(row.path, matrix.layer)
    scale_D = None if row.norm is None else _scale(reader, row.norm, matrix.layer)
    if row.reads_residual:
        # The rows of experts one after the other.
        rows_nD = np.array(np.swapaxes(kernel, -1, -2)).reshape(-1, cfg.d_model)
        return rows_nD if row.norm is None else _read_by(rows_nD, scale_D, is_centred)
    rows_nD = np.array(kernel).reshape(-1, cfg.d_model)
    if is_centred:
        _centre(rows_nD)
    if scale_D is not None:
        rows_nD *= scale_D
    return rows_nD


def unit_rows(rows_nD: np.ndarray) -> np.ndarray:
    """Scale every row to norm 1, in place; rows of zeros stay."""
    norms_n = np.sqrt(np.einsum("nd,nd->n", rows_nD, rows_nD, dtype=np.float32))
    rows_nD *= (1.0 / np.maximum(norms_n, _TINY))[:, None]
    return rows_nD


def token_rows(reader: Checkpoint, module: str, ids_I: np.ndarray) -> np.ndarray:
    """Return rows of "embed" or "head" of some tokens at unit norm: [I, D] float32.

    Those of the head are centred over the tokens first: a vector added to every column changes no probability.
    """
    rows_ID = rows_of(folded(reader, Matrix(module)), ids_I)
    if module == "head":
        rows_ID -= rows_ID.mean(axis=0, dtype=np.float64).astype(np.float32)
    return unit_rows(rows_ID)


def rows_of(rows_nD: np.ndarray, ids_I: np.ndarray) -> np.ndarray:
    """Return the rows of some tokens; those of all tokens in their order are not copied."""
    return rows_nD if np.array_equal(ids_I, np.arange(len(rows_nD))) else rows_nD[ids_I]


def _scale(reader: Checkpoint, norm: str, layer: int | None) -> np.ndarray | None:
    path = f"{norm}/scale"
    return reader.read(path, layer) if reader.has(path) else None


def _read_by(rows_nD: np.ndarray, scale_D: np.ndarray | None, centred: bool) -> np.ndarray:
    if scale_D is not None:
        rows_nD *= scale_D
    return _centre(rows_nD) if centred else rows_nD


def _centre(rows_nD: np.ndarray) -> np.ndarray:
    rows_nD -= rows_nD.mean(axis=1, dtype=np.float64).astype(np.float32)[:, None]
    return rows_nD
