"""Mixtures: how far a suspect went from a base toward each of several other models, by least squares.

The suspect's difference from the base is fitted by the differences of the other models, S − B₀ ≈ Σ cᵢ (Bᵢ − B₀), each
matrix by itself. Linear merges, task arithmetic and layer-wise schedules show as coefficients over depth. Coefficients
are geometry: fine-tunes of one base on similar texts move in similar directions, so that a fine-tune can lie nearer its
sibling than its base. They never say which model another one was made from.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from bornbiased_jax import progress
from bornbiased_jax.checkpoints.roles import Role, RoleSource
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.compared_model import ComparedModel
from bornbiased_jax.lineage.pairing import unit_rows
from bornbiased_jax.lineage.scan import Base
from bornbiased_jax.parameters import Axis

ILL_CONDITIONED = 30.0
"""Above this condition number of the differences, single coefficients are poorly determined."""
# Squared difference, relative to the squared norms, below which two float32 matrices are equal up to rounding; so are
# differences that depend on each other, by the eigenvalues of their correlations.
_ROUNDING = 1e-12
# Rows that are compared at once, and neurons that are matched before the order of all of them is looked for.
_ROWS, _FEW = 1024, 64

_Gram = tuple[int | None, np.ndarray]
Permutations = dict[str, np.ndarray]
"""The suspect's entry at each place of an axis of the base, by the name of the axis."""


@dataclasses.dataclass(frozen=True)
class BlockCoefficient:
    """A coefficient in one block.

    Attributes:
        block: its number, counted from 1; None for the matrices outside blocks.
        coefficient: fitted to all matrices of the block together; None where the model equals the base there.
        std: standard deviation over the block's matrices, each fitted by itself.
    """

    block: int | None
    coefficient: float | None
    std: float | None


@dataclasses.dataclass(frozen=True)
class Coefficient:
    """The suspect's way from the base toward one model: 0 at the base, 1 at the model.

    Attributes:
        base: the name of the model.
        coefficient: fitted to all matrices together.
        std: standard deviation over matrices, each fitted by itself.
        by_block: the same in each block.
    """

    base: str
    coefficient: float
    std: float
    by_block: tuple[BlockCoefficient, ...]


@dataclasses.dataclass(frozen=True)
class Mixture:
    """A suspect as a mixture of known models.

    Attributes:
        origin: the name of the base B₀, from which differences are taken.
        coefficients: one for each other model.
        residual: the fraction of the distance from B₀ that no combination explains, each matrix fitted by itself: 0
            for an exact merge, near 1 where the models have nothing to do with the suspect's difference.
        condition_number: of the differences, each scaled to norm 1: 1 where they are orthogonal, a million at most.
        num_tensors: matrices that were fitted.
        left_out: matrices that a model lacks or has in another shape.
        undone: labels of the suspect that were put back in order: "coordinates", "neurons of 4 MLPs".
    """

    origin: str
    coefficients: tuple[Coefficient, ...]
    residual: float
    condition_number: float
    num_tensors: int
    left_out: tuple[str, ...]
    undone: tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class _MixtureModel:
    """A checkpoint and its matrices by path, read in the order of the base's labels.

    Attributes:
        name: of the checkpoint.
        source: its tensors by role.
        roles: of its matrices: tensors of two axes or more, for vectors have too few numbers to fit.
        permutations: undone when a matrix is read.
    """

    name: str
    source: RoleSource
    roles: dict[str, Role]
    permutations: Permutations = dataclasses.field(default_factory=dict)

    def shape(self, path: str) -> tuple[int, ...] | None:
        """Return the sizes of a matrix; None where the model lacks it."""
        return self.source.array_shape(self.roles[path]) if path in self.roles else None

    def read(self, path: str) -> np.ndarray:
        """Read a matrix, its axes permuted."""
        role = self.roles[path]
        array = self.source.read(role)
        for axis, name in enumerate(_axis_names(role)):
            if name in self.permutations:
                array = array.take(self.permutations[name], axis=axis)
        return array


def mixture(suspect: str, origin: str, bases: Sequence[Base]) -> Mixture:
    """Fit a suspect's difference from a base by the differences of other models, matrix by matrix.

    Two matrices are in memory at a time. Coordinates and neurons of the suspect that stand in another order are put
    back first, where each has its own best partner in the base. Heads and experts in another order and rotated models
    are out of reach: they give a residual near 1.

    Args:
        suspect: a checkpoint.
        origin: the checkpoint B₀ that differences are taken from.
        bases: the other checkpoints.

    Raises:
        InputError: a stored fingerprint, a checkpoint that cannot be read, no matrix that all models have in one shape,
            or two models with the same weights.

    Example:
        >>> progress.set_quiet(True)
        >>> small = "llama-tiny,num_layers=1,d_model=32,vocab_size=64"
        >>> seeds = [Base(f"seed:{seed}@{small}", f"seed:{seed}@{small}") for seed in (2, 3)]
        >>> fit = mixture(f"seed:4@{small}", f"seed:1@{small}", seeds)
        >>> [round(entry.coefficient, 1) for entry in fit.coefficients], round(fit.residual, 1)
        ([0.3, 0.3], 0.8)
    """
    first, second, *rest = [_open(model) for model in (Base(origin, origin), Base(suspect, suspect), *bases)]
    models = [first, second, *rest]
    # Matrices that all models have in one shape; the others are left out, and named.
    paths = [path for path in first.roles if len({model.shape(path) for model in models}) == 1]
    left_out = sorted({path for model in models for path in model.roles}.difference(paths))
    if not paths:
        names = ", ".join(model.name for model in models)
        raise InputError(f"no matrix has one name and one shape in {names}: name models of one architecture")
    second.permutations.update(_permutations(first, second, paths))
    # Inner products of the differences from the base, of the suspect and then of each other model, with their block.
    grams: list[_Gram] = []
    with progress.bar(len(paths), f"mixture {suspect}", unit="matrices") as advance:
        for path in paths:
            grams.append((first.roles[path].block, _differences(models, path)))
            advance(1)
    total_MM = np.sum([inner_MM for _, inner_MM in grams], axis=0)
    _check_distinct([model.name for model in models], total_MM)
    # One fit of all matrices and one of each; the residual is that of the fits one by one.
    pooled_K, unexplained = _fit(total_MM)[0], sum(_fit(inner_MM)[1] for _, inner_MM in grams)
    each_NK = np.array([_fit(inner_MM)[0] for _, inner_MM in grams])
    coefficients = tuple(
        Coefficient(model.name, float(pooled_K[k]), float(np.nanstd(each_NK[:, k])), _by_block(grams, k))
        for k, model in enumerate(rest)
    )
    scale_K = np.sqrt(np.diagonal(total_MM)[1:])
    singular_K = np.linalg.svd(total_MM[1:, 1:] / np.outer(scale_K, scale_K), compute_uv=False)
    condition_number = math.sqrt(singular_K[0] / max(singular_K[-1], _ROUNDING * singular_K[0]))
    return Mixture(
        origin,
        coefficients,
        residual=math.sqrt(unexplained / total_MM[0, 0]),
        condition_number=condition_number,
        num_tensors=len(paths),
        left_out=tuple(left_out),
        undone=_undone(second.permutations),
    )


def check_checkpoint(place: str) -> ComparedModel:
    """Return a model that may be part of a mixture.

    Raises:
        InputError: it is a stored fingerprint.
    """
    model = ComparedModel(place)
    if model.stored is not None:
        raise InputError(f"{place} is a stored fingerprint, and mixtures are fitted to weights: name the checkpoint")
    return model


def _open(model: Base) -> _MixtureModel:
    source = check_checkpoint(model.place).roles
    return _MixtureModel(
        model.name, source, {role.path: role for role in source.roles if len(source.array_shape(role)) > 1}
    )


def _check_distinct(names: Sequence[str], total_MM: np.ndarray) -> None:
    """Refuse models without a difference: their coefficients would be anything.

    Raises:
        InputError: two models have the same weights.
    """
    # Nothing may equal the base, and no two models each other.
    origin, *rest = names
    squares_M = np.diagonal(total_MM)
    for index, name in enumerate(rest):
        if squares_M[index] == 0.0:
            raise InputError(f"{name} has the weights of the base {origin}: no mixture to fit, name another model")
        for earlier in range(1, index):
            distance = squares_M[index] + squares_M[earlier] - 2 * total_MM[index, earlier]
            if distance <= math.sqrt(_ROUNDING) * squares_M[index]:
                raise InputError(f"{rest[earlier]} and {name} have the same weights: leave one of them out")


# ---------------------------------------------------------------------------------------------------------------------
# Least squares


def _differences(models: Sequence[_MixtureModel], path: str) -> np.ndarray:
    """Return inner products of the models' differences from the first one in one matrix, two matrices at a time."""
    # Inner products of the matrices themselves.
    count = len(models)
    inner_MM = np.zeros((count, count))
    for i in range(count):
        left_N = models[i].read(path).reshape(-1)
        for j in range(i, count):
            right_N = left_N if i == j else models[j].read(path).reshape(-1)
            # In double precision, from a buffer: no copy of a matrix.
            inner_MM[i, j] = inner_MM[j, i] = np.einsum("n,n->", left_N, right_N, dtype=np.float64)
    # ⟨A − B₀, B − B₀⟩ from products in double precision, which leave 1e-15 of the squared norms.
    differences_MM: np.ndarray = inner_MM[1:, 1:] - inner_MM[1:, :1] - inner_MM[:1, 1:] + inner_MM[0, 0]
    is_equal_M = np.diagonal(differences_MM) <= _ROUNDING * (np.diagonal(inner_MM)[1:] + inner_MM[0, 0])
    differences_MM[is_equal_M] = 0.0
    differences_MM[:, is_equal_M] = 0.0
    return differences_MM


def _fit(inner_MM: np.ndarray) -> tuple[np.ndarray, float]:
    """Fit the first difference by the others, from their inner products.

    Returns:
        Coefficients, [K], NaN of a model that does not differ from the base; the squared norm left unexplained.
    """
    target_K, gram_KK = inner_MM[1:, 0], inner_MM[1:, 1:]
    coefficients_K = np.full(len(target_K), np.nan)
    differs_K = np.diagonal(gram_KK) > 0.0
    if not differs_K.any():
        return coefficients_K, float(inner_MM[0, 0])
    # Scaled to norm 1, so that small differences are not taken for dependent ones. Of those that are dependent up to
    # rounding, each has its part.
    scale_K = np.sqrt(np.diagonal(gram_KK)[differs_K])
    correlations_KK = gram_KK[np.ix_(differs_K, differs_K)] / np.outer(scale_K, scale_K)
    solution_K = np.linalg.lstsq(correlations_KK, target_K[differs_K] / scale_K, rcond=_ROUNDING)[0]
    coefficients_K[differs_K] = solution_K / scale_K
    explained = float(solution_K @ (target_K[differs_K] / scale_K))
    return coefficients_K, max(0.0, float(inner_MM[0, 0]) - explained)


def _by_block(grams: Sequence[_Gram], k: int) -> tuple[BlockCoefficient, ...]:
    """Return the coefficient of model k in each block, those outside blocks last."""
    blocks = sorted({block for block, _ in grams}, key=lambda block: block or math.inf)
    rows = []
    # Fit each block, and each matrix of it for the spread.
    for block in blocks:
        inner = [inner_MM for of_block, inner_MM in grams if of_block == block]
        coefficient = float(_fit(np.sum(inner, axis=0))[0][k])
        each_N = np.array([_fit(inner_MM)[0][k] for inner_MM in inner])
        is_fitted = not math.isnan(coefficient)
        std = float(np.nanstd(each_N)) if is_fitted else None
        rows.append(BlockCoefficient(block, coefficient if is_fitted else None, std))
    return tuple(rows)


# ---------------------------------------------------------------------------------------------------------------------
# Labels in another order


def _axis_names(role: Role) -> list[str]:
    """Name the axes of a matrix whose order is free: equal names have one order."""
    names: dict[tuple[Axis, ...], str] = {
        ("residual",): f"{role.component}/residual",
        ("hidden",): f"{role.component}/{role.block}/{role.is_shared}/{role.expert}/hidden",
    }
    return [names.get(axes, "") for axes in role.axes]


def _permutations(base: _MixtureModel, suspect: _MixtureModel, paths: Sequence[str]) -> Permutations:
    """Match the suspect's coordinates by the embedding, then its neurons by what each reads from the coordinates."""
    permutations: Permutations = {}
    for group, leaf, labels in (("embedding", "embedding", "residual"), ("up", "kernel", "hidden")):
        for path in paths:
            role = base.roles[path]
            names = _axis_names(role)
            axis = next((axis for axis, name in enumerate(names) if name.endswith(labels)), None)
            if (role.group, role.leaf) != (group, leaf) or axis is None or len(names) != 2:
                continue
            # Read the suspect in the order so far, and look for partners along this axis.
            ordered = dataclasses.replace(suspect, permutations=permutations)
            vectors = [model.read(path) for model in (base, ordered)]
            partner_n = _partners(*(matrix if axis == 0 else matrix.T for matrix in vectors))
            if partner_n is not None:
                permutations[names[axis]] = partner_n
    return permutations


def _partners(base_nD: np.ndarray, suspect_nD: np.ndarray) -> np.ndarray | None:
    """Return the row of the suspect that resembles each row of the base most; None where no other order is found.

    Rows must be each other's only partners: unrelated rows would share theirs.
    """
    first, second = unit_rows(base_nD), unit_rows(suspect_nD)
    # A few rows show that the order is the same, or that the models have none in common.
    few = np.unique(np.linspace(0, len(first) - 1, _FEW).astype(int))
    partners = _nearest(first[few], second)
    if np.array_equal(partners, few) or not np.array_equal(_nearest(second[partners], first), few):
        return None
    partner_n = _nearest(first, second)
    return partner_n if len(np.unique(partner_n)) == len(partner_n) else None


def _nearest(rows_mD: np.ndarray, among_nD: np.ndarray) -> np.ndarray:
    """Return the index of the most similar row for each row, a block of rows at a time."""
    blocks = (rows_mD[start : start + _ROWS] for start in range(0, len(rows_mD), _ROWS))
    return np.concatenate([(block_mD @ among_nD.T).argmax(axis=1) for block_mD in blocks])


def _undone(permutations: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    num_mlps = sum(name.endswith("hidden") for name in permutations)
    coordinates = ["coordinates"] if num_mlps < len(permutations) else []
    return (*coordinates, *([f"neurons of {num_mlps} MLPs"] if num_mlps else []))
