"""Alignments that never look at hidden units: a rotation by vocabulary rows, and layers by their Grams.

Because no label of a hidden unit enters, a test that permutes hidden units stays exact after them.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy.optimize import linear_sum_assignment

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.lineage.weights.tokens import MIN_TOKENS, SharedTokens, ordinary_in_both
from bornbiased_jax.lineage.weights.view import VOCABULARY, Matrix, block_modules, folded, token_rows, unit_rows

# Grams are compared on a projection this wide at most: they tell layers apart long before.
_SKETCH = 512


class Unaligned(Exception):
    """Two models give nothing to align them by; the text says why."""


@dataclasses.dataclass(frozen=True, eq=False)
class Aligned:
    """Two models whose residual streams and blocks are brought together, for all that compares hidden units.

    Attributes:
        base, suspect: the models.
        turn_DD: the base's rows times this lie in the suspect's coordinates; None where they are taken as they are.
        tokens: that it was found by.
        pairs: of blocks, counted from 0.
    """

    base: Checkpoint
    suspect: Checkpoint
    turn_DD: np.ndarray | None
    tokens: SharedTokens
    pairs: list[tuple[int, int]]


def align(base: Checkpoint, suspect: Checkpoint, tokens: SharedTokens, *, rotated: bool) -> Aligned:
    """Bring two models together, by a rotation of the residual stream or with the coordinates as they are.

    Raises:
        Unaligned: their hidden units do not correspond, or there is nothing to find a rotation by.
    """
    reason = _unfit(base, suspect, rotated)
    if reason is not None:
        raise Unaligned(reason)
    if not rotated:
        pairs = match_layers(base, suspect, np.eye(base.cfg.d_model, dtype=np.float32))
        return Aligned(base, suspect, None, tokens, pairs)
    tokens = _usable(base, suspect, tokens)
    turn_DD = _procrustes(base, suspect, tokens)
    return Aligned(base, suspect, turn_DD, tokens, match_layers(base, suspect, turn_DD))


def _unfit(base: Checkpoint, suspect: Checkpoint, rotated: bool) -> str | None:
    for name, reader in (("base", base), ("suspect", suspect)):
        if not mlp_modules(reader):
            return f"the {name} has no MLP, and so no hidden units to permute"
        if reader.cfg.num_experts is not None:
            return f"the {name} is a mixture of experts: its neurons lie in experts, which are not paired here"
    if mlp_modules(base) != mlp_modules(suspect):
        return "one model's MLP is gated, the other's is not: their hidden units do not correspond"
    if not rotated and base.cfg.d_model != suspect.cfg.d_model:
        return f"the widths differ ({base.cfg.d_model} and {suspect.cfg.d_model}): align by rotation"
    return None


def rotation(base: Checkpoint, suspect: Checkpoint, tokens: SharedTokens) -> np.ndarray:
    """Find the orthogonal map from the base's residual stream to the suspect's that brings token rows together.

    Procrustes' problem on the embedding and the head, each of norm 1 in all, tokens at unit norm: with
    M = Σ E_baseᵀ E_suspect = A S Bᵀ the map is A Bᵀ, semi-orthogonal where the widths differ. Padding is left out.

    Returns:
        Q, [D_base, D_suspect] float32: base rows times Q lie in the suspect's coordinates.

    Raises:
        Unaligned: too few tokens in common, or a vocabulary matrix of zeros.
    """
    return _procrustes(base, suspect, _usable(base, suspect, tokens))


def _usable(base: Checkpoint, suspect: Checkpoint, tokens: SharedTokens) -> SharedTokens:
    tokens = ordinary_in_both(base, suspect, tokens)
    if len(tokens) < MIN_TOKENS:
        raise Unaligned(
            f"the models have {len(tokens)} usable token ids in common, too few of at least {MIN_TOKENS} to align by"
        )
    return tokens


def _procrustes(base: Checkpoint, suspect: Checkpoint, tokens: SharedTokens) -> np.ndarray:
    moment_DD = np.zeros((base.cfg.d_model, suspect.cfg.d_model))
    for module in VOCABULARY:
        base_ID = token_rows(base, module, tokens.base_I)
        suspect_ID = token_rows(suspect, module, tokens.suspect_I)
        moment_DD += base_ID.T @ suspect_ID
        del base_ID, suspect_ID  # before the next two are read
    left_DK, _, right_KD = np.linalg.svd(moment_DD, full_matrices=False)
    return (left_DK @ right_KD).astype(np.float32)


def match_layers(base: Checkpoint, suspect: Checkpoint, rotation_DD: np.ndarray) -> list[tuple[int, int]]:
    """Pair blocks (base, suspect), counted from 0, by the Grams of their hidden units' rows.

    Σ_f w_f w_fᵀ over the unit rows of gate, up and down does not depend on the order of the units. Grams less their
    multiple of the identity are compared by their cosine, and pairs assigned so that the sum is largest: blocks put
    in or taken out leave the others paired.

    Returns:
        As many pairs as the shallower model has blocks, in the base's order.
    """
    width = suspect.cfg.d_model
    sketch_DK = np.eye(width, dtype=np.float32)
    if width > _SKETCH:
        draws = np.random.default_rng(0).standard_normal((width, _SKETCH), np.float32)
        sketch_DK = draws / np.float32(np.sqrt(width))
    base_grams = _layer_grams(base, rotation_DD @ sketch_DK)
    suspect_grams = _layer_grams(suspect, sketch_DK)
    base_layers, suspect_layers = linear_sum_assignment(-(base_grams @ suspect_grams.T))
    return [
        (int(base_layer), int(suspect_layer))
        for base_layer, suspect_layer in zip(base_layers, suspect_layers, strict=True)
    ]


def _layer_grams(reader: Checkpoint, sketch_DK: np.ndarray) -> np.ndarray:
    """Compute centered Grams of every block as unit vectors: [L, K²]."""
    size = sketch_DK.shape[1]
    grams_LKK = np.zeros((reader.cfg.num_layers, size, size), np.float32)
    for module in mlp_modules(reader):
        for layer in range(reader.cfg.num_layers):
            rows_FK = unit_rows(folded(reader, Matrix(module, layer))) @ sketch_DK
            grams_LKK[layer] += rows_FK.T @ rows_FK
    # What all blocks would have by chance: the sketch's own Gram.
    expected_KK = sketch_DK.T @ sketch_DK
    expected_KK /= np.linalg.norm(expected_KK)
    for gram_KK in grams_LKK:
        gram_KK -= float((gram_KK * expected_KK).sum()) * expected_KK
        gram_KK /= max(float(np.linalg.norm(gram_KK)), 1e-30)
    return grams_LKK.reshape(len(grams_LKK), -1)


def mlp_modules(reader: Checkpoint) -> list[str]:
    """List the matrices of an MLP: gate (where there is one), up and down."""
    return [module for module in block_modules(reader.cfg) if module.startswith("mlp/")]
