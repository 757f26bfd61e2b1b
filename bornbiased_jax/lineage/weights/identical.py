"""Copies: the same numbers, or the same matrices written in another basis."""

from __future__ import annotations

import filecmp
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.lineage.weights.align import Aligned, mlp_modules
from bornbiased_jax.lineage.weights.differences import MatchedUnits, outputs_apart, parameters_apart, settings_apart
from bornbiased_jax.lineage.weights.units import unit_cosines
from bornbiased_jax.lineage.weights.view import VOCABULARY, Matrix, folded, rows_of, token_rows, unit_rows
from bornbiased_jax.parameters import parameter_table

# Cosines of a copy that was rotated in float32, or stored in half precision, are above this.
_SAME = 0.9999
# Their norms differ by less than this part.
_CLOSE = 1e-2
# So many tokens are looked at before all are.
_FEW = 256
# More hidden units than this are not matched only to name a copy.
_MOST_UNITS = 8192


Identity = Literal[
    "files",
    "tensors",
    "up to signs",
    "up to coordinate permutation",
    "up to scaling and order of hidden units",
    "up to rotation",
    "logits",
]
"""In what way the matrices of two models are the same, the plainest first; "logits": they give the same logits."""

RENUMBERED = "vocabulary renumbered"
FILES = "the two models' weight files are the same, byte for byte"


class Equal(NamedTuple):
    """The tensors of random numbers that two models have in common bit for bit, and how many there are in one.

    Attributes:
        paths: those in common.
        total: the base's.
        differing: paths of all other tensors that differ, as biases that are zero in the base alone.
    """

    paths: tuple[str, ...]
    total: int
    differing: tuple[str, ...] = ()

    @property
    def all(self) -> bool:
        """Whether every one is equal, and the suspect has no matrix more."""
        more = any(path.endswith(("/kernel", "/embedding")) for path in self.differing)
        return len(self.paths) == self.total > 0 and not more

    @property
    def vocabulary_alone(self) -> bool:
        """Whether the token embedding and the head are equal, and nothing of the blocks is."""
        return "embed/embedding" in self.paths and not any(path.startswith("blocks/") for path in self.paths)


def same_source(base: Checkpoint, suspect: Checkpoint) -> str | None:
    """Describe base and suspect as one and the same model, by where they come from; None where they are not."""
    drawn_alike = base.kind == suspect.kind and base.kind in ("birth", "run") and base.cfg == suspect.cfg
    if drawn_alike and base.description == suspect.description:
        return f"the base is the suspect: both are the {base.description}"
    base_files, suspect_files = ([path.resolve() for path in reader.files] for reader in (base, suspect))
    if base_files and base_files == suspect_files and base.cfg == suspect.cfg:
        return f"the base is the suspect: both are read from {base.files[0]}"
    return None


def same_files(base: Checkpoint, suspect: Checkpoint) -> bool:
    """Return whether the files that hold the weights are the same, byte for byte."""
    if not base.files or len(base.files) != len(suspect.files):
        return False
    return all(
        filecmp.cmp(base_file, suspect_file, shallow=False)
        for base_file, suspect_file in zip(base.files, suspect.files, strict=True)
    )


def equal_tensors(base: Checkpoint, suspect: Checkpoint) -> Equal:
    """List which tensors of random numbers are equal; none of another architecture.

    Tensors of one repeated number are no evidence: all births share norm scales of one.
    """
    base_table, suspect_table = parameter_table(base.cfg), parameter_table(suspect.cfg)
    equal: list[str] = []
    differing: dict[str, None] = {}
    total = 0
    for path, row in base_table.items():
        for layer in range(row.shape[0]) if row.is_stacked else (None,):
            # The first row tells most tensors apart: what differs there is not read whole.
            first_row = base.read(path, layer, rows=1)
            alike = path in suspect_table and suspect_table[path].shape == row.shape
            if _constant(first_row) and _constant(base.read(path, layer)):
                if alike and not np.array_equal(base.read(path, layer), suspect.read(path, layer)):
                    differing[path] = None
                continue
            total += 1
            if not alike or not np.array_equal(first_row, suspect.read(path, layer, rows=1)):
                continue
            if np.array_equal(base.read(path, layer), suspect.read(path, layer)):
                equal.append(path if layer is None else f"{path}/{layer}")
    for path, row in suspect_table.items():
        layers = range(row.shape[0]) if row.is_stacked else (None,)
        if path not in base_table and any(suspect.read(path, layer).any() for layer in layers):
            differing[path] = None
    return Equal(tuple(equal), total, tuple(differing))


def _constant(tensor: np.ndarray) -> bool:
    return tensor.size == 0 or bool((tensor == tensor.flat[0]).all())


class Rewritten(NamedTuple):
    """A model whose matrices are those of another, written otherwise.

    Attributes:
        identity: in what way.
        changes: what was done to it, as far as it shows: "coordinates rotated", "hidden units reordered" ….
        differences: what is not the same: "biases differ" …; an exact copy has none.
    """

    identity: Identity
    changes: tuple[str, ...]
    differences: tuple[str, ...]


def same_up_to(aligned: Aligned) -> Rewritten | None:
    """Find in what way the suspect's matrices are the base's written otherwise; None where they are not.

    Token rows must agree after one orthogonal map of the residual stream, and so must, block by block, every hidden
    unit (in any order, up and down free to share a scale) and attention's two maps, Σ W_q W_kᵀ and Σ W_v W_o over
    heads; cosines and norms both. Settings, biases, per-head norms and logits tell whether it is a copy as well.

    Returns:
        "up to signs", "up to coordinate permutation" (signs included), "up to rotation", or "up to scaling and order
        of hidden units" where the coordinates are the same; all that was changed, and what differs.
    """
    base, suspect, turn_DD, tokens = aligned.base, aligned.suspect, aligned.turn_DD, aligned.tokens
    if (
        turn_DD is None
        or base.cfg.d_ff != suspect.cfg.d_ff
        or base.cfg.num_layers != suspect.cfg.num_layers
        or base.cfg.d_ff > _MOST_UNITS
        or base.cfg.vocab_size != suspect.cfg.vocab_size
    ):
        return None
    # Vocabulary: rows of the same tokens agree after the rotation, in direction and norm.
    sides = (base, tokens.base_I), (suspect, tokens.suspect_I)
    for module in VOCABULARY:
        base_ID, suspect_ID = (token_rows(reader, module, ids_I) for reader, ids_I in sides)
        # Some tokens tell what is no copy, before all are turned.
        sample = slice(None, None, max(1, len(base_ID) // _FEW))
        if np.einsum("id,id->i", base_ID[sample] @ turn_DD, suspect_ID[sample]).min() < _SAME:
            return None
        if np.einsum("id,id->i", base_ID @ turn_DD, suspect_ID).min() < _SAME:
            return None
        del base_ID, suspect_ID
    norms = [np.linalg.norm(rows_of(folded(reader, Matrix("embed")), ids_I), axis=1) for reader, ids_I in sides]
    if not _close(*norms):
        return None
    # Blocks: hidden units and attention, pair by pair.
    changes: set[str] = {RENUMBERED} if tokens.matched_by == "strings" else set()
    matches: list[MatchedUnits] = []
    for pair in aligned.pairs:
        units, heads = _same_units(base, suspect, pair, turn_DD), _same_attention(base, suspect, pair, turn_DD)
        if units is None or heads is None:
            return None
        changes |= units.changes | heads
        matches.append(units)
        if pair[0] != pair[1]:
            changes.add("blocks reordered")
    identity, coordinates = _kind(turn_DD)
    differences = settings_apart(base.cfg, suspect.cfg) + parameters_apart(aligned, matches)
    # Where these differ already nothing is gained by logits.
    differences = differences or outputs_apart(aligned)
    return Rewritten(identity, (*coordinates, *sorted(changes)), tuple(differences))


def _same_units(
    base: Checkpoint, suspect: Checkpoint, pair: tuple[int, int], turn_DD: np.ndarray
) -> MatchedUnits | None:
    """Match the hidden units of two blocks that are otherwise the same, and list changes; None where they are not."""
    cosines = unit_cosines(base, suspect, pair, turn_DD)
    first_FF = cosines.up if cosines.gate is None else cosines.gate
    units_F = linear_sum_assignment(first_FF, maximize=True)[1]
    units_in_order_F = np.arange(len(units_F))
    least = min(
        float(first_FF[units_in_order_F, units_F].min()),
        *(float(np.abs(part_FF[units_in_order_F, units_F]).min()) for part_FF in (cosines.up, cosines.down)),
    )
    if least < _SAME:
        return None
    changes = {"hidden units reordered"} if (units_F != units_in_order_F).any() else set()
    norms = []
    for reader, layer, order in ((base, pair[0], units_in_order_F), (suspect, pair[1], units_F)):
        modules = mlp_modules(reader)
        norm_by_module = {name: np.linalg.norm(folded(reader, Matrix(name, layer)), axis=1)[order] for name in modules}
        first_F = norm_by_module["mlp/up"] if cosines.gate is None else norm_by_module["mlp/gate"]
        norms.append((first_F, norm_by_module["mlp/up"] * norm_by_module["mlp/down"], norm_by_module["mlp/up"]))
    first, product, up = (_close(base_F, suspect_F) for base_F, suspect_F in zip(*norms, strict=True))
    if not (first and product):
        return None
    signs_F = np.sign(cosines.up[units_in_order_F, units_F])
    factors_F = signs_F * norms[1][2] / np.maximum(norms[0][2], 1e-30)
    return MatchedUnits(changes if up else changes | {"scales moved between matrices"}, units_F, factors_F)


def _close(first: np.ndarray, second: np.ndarray) -> bool:
    return bool(np.all(np.abs(first - second) <= _CLOSE * np.maximum(first, second)))


def _same_attention(
    base: Checkpoint, suspect: Checkpoint, pair: tuple[int, int], turn_DD: np.ndarray
) -> set[str] | None:
    """List changes to the heads of two blocks whose attention is otherwise the same; None where it is not."""
    if not base.cfg.attention or not suspect.cfg.attention:
        return set() if base.cfg.attention == suspect.cfg.attention else None
    changes = set()
    for first, second in (("query", "key"), ("value", "output")):
        base_DD = turn_DD.T @ _attention_map(base, first, second, pair[0]) @ turn_DD
        suspect_DD = _attention_map(suspect, first, second, pair[1])
        sizes = np.linalg.norm(base_DD), np.linalg.norm(suspect_DD)
        if not min(sizes) > 0 or not _close(*(np.asarray(size) for size in sizes)):
            return None
        if float(np.vdot(base_DD, suspect_DD)) < _SAME * float(sizes[0] * sizes[1]):
            return None
        base_nD = unit_rows(folded(base, Matrix(f"attention/{first}", pair[0]))) @ turn_DD
        suspect_nD = unit_rows(folded(suspect, Matrix(f"attention/{first}", pair[1])))
        if len(base_nD) != len(suspect_nD) or np.einsum("nd,nd->n", base_nD, suspect_nD).min() < _SAME:
            changes.add("heads reordered or turned")
    return changes


def _attention_map(reader: Checkpoint, first: str, second: str, layer: int) -> np.ndarray:
    """Sum over heads the first matrix times the second, as a map between residual coordinates: [D, D]."""
    heads = []
    for name in (first, second):
        rows_nD = folded(reader, Matrix(f"attention/{name}", layer))
        rows_HKD = rows_nD.reshape(-1, reader.cfg.key_dim, rows_nD.shape[1])
        heads.append(np.repeat(rows_HKD, reader.cfg.num_heads // len(rows_HKD), axis=0))
    total_DD: np.ndarray = np.einsum("hkd,hke->de", *heads, optimize=True)
    return total_DD


def _kind(turn_DD: np.ndarray) -> tuple[Identity, tuple[str, ...]]:
    """Name a map of coordinates, and what it does to them."""
    largest_D = np.abs(turn_DD).argmax(axis=1)
    signed = np.abs(turn_DD).max(axis=1).min() >= _SAME and len(np.unique(largest_D)) == len(largest_D)
    if not signed or turn_DD.shape[0] != turn_DD.shape[1]:
        return "up to rotation", ("coordinates rotated",)
    if (largest_D != np.arange(len(largest_D))).any():
        return "up to coordinate permutation", ("coordinates renumbered",)
    if (np.diagonal(turn_DD) < 0).any():
        return "up to signs", ("coordinates negated",)
    return "up to scaling and order of hidden units", ()
