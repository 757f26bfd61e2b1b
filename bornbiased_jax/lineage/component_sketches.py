"""Sketches of one component of a model, from its tensors in canonical order."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bornbiased_jax.checkpoints.roles import Role, RoleSource
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import sketches
from bornbiased_jax.lineage.fingerprint_size import residual_axis, stored_neurons
from bornbiased_jax.lineage.fingerprints import (
    Component,
    HeadSketches,
    Neurons,
    RepeatLabels,
    Repeats,
    Router,
    Settings,
)
from bornbiased_jax.lineage.token_space import TokenTable, token_space, used_tokens

MLP = ("gate", "up", "down")
ATTENTION = ("query", "key", "value", "output")
WRITERS = ("output", "down")
_LARGEST_HALF = float(np.finfo(np.float16).max)
# Vectors of fewer numbers may be equal in 8 bits though the coordinates behind them are not.
_DISTINCT_DIM = 8


@dataclasses.dataclass(frozen=True, eq=False)
class TensorMeasurement:
    """Statistics of one tensor and its products with signs.

    Attributes:
        role: what it is.
        moments: its statistics.
        diagonal_z: z of the sum of its main diagonal; 0 of vectors and tables.
        vector: its numbers, of a vector.
        coordinates_DK: its rows along residual coordinates times signs; None where it has no such axis.
        products_nK: its rows times projections of the residual stream; None outside neurons, heads and routers.
        num_equal: rows (of a query matrix heads) that equal an earlier one.
    """

    role: Role
    moments: sketches.Moments
    diagonal_z: float
    vector: np.ndarray | None = None
    coordinates_DK: np.ndarray | None = None
    products_nK: np.ndarray | None = None
    num_equal: int = 0


@dataclasses.dataclass
class _Block:
    """Products of one block that wait for the other matrices of their neurons and heads.

    Attributes:
        number: counted from 1.
        mlps: products [F, 2k] by matrix, by expert and whether it is shared.
        attention: products [heads · head_dim, k] by matrix.
        head_scales: scales of query and key norms by "query" and "key".
        router: products [E, 2k].
        num_equal: equal rows of neurons and of heads.
    """

    number: int
    mlps: dict[tuple[int | None, bool], dict[str, np.ndarray]] = dataclasses.field(default_factory=dict)
    attention: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    head_scales: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    router: np.ndarray | None = None
    num_equal: Counter[str] = dataclasses.field(default_factory=Counter)


class ComponentSketches:
    """Sketches of one component: :meth:`job` in the order of reading, :meth:`add` of its results in the same order."""

    def __init__(
        self, source: RoleSource, name: str, settings: Settings, labels: Sequence[bytes | None] | None
    ) -> None:
        roles = [role for role in source.roles if role.component == name]
        self._source, self._name, self._settings, self._labels = source, name, settings, labels
        self._shape = source.shape(name)
        self._num_blocks = len({role.block for role in roles} - {None})
        self._num_experts = max((role.expert or 0 for role in roles if not role.is_shared), default=0)
        self._width = next(
            (source.array_shape(role)[axis] for role in roles if (axis := residual_axis(role)) is not None), 0
        )
        self._signs: dict[str, np.ndarray] = {}
        # Tables wait until the first block asks for the token space.
        self._tables: dict[str, tuple[Role, np.ndarray]] = {}
        # Signs of residual coordinates, centered where the norms take out the mean.
        signs_DK = sketches.axis_signs("residual", self._width, settings.dim, settings.sign_key).astype(np.float64)
        if self._shape.is_centered:
            signs_DK -= signs_DK.mean(axis=0)
        # Columns of a reader's and a writer's projections: token space, then coordinates.
        self._reader_DK = self._writer_DK = signs_DK
        self._is_token_used_V: np.ndarray | None = None
        self._coordinates: dict[str, np.ndarray] = {}
        self._heat_map: dict[tuple[int | None, str], np.ndarray] = {}
        self._vectors: dict[str, np.ndarray] = {}
        # Sections of finished blocks, and products of the one that is open.
        self._block: _Block | None = None
        self._neurons: list[Neurons] = []
        self._heads: list[HeadSketches] = []
        self._routers: list[Router] = []
        self._counters: dict[RepeatLabels, sketches.RepeatCounter] = {}

    @property
    def _has_vocabulary(self) -> bool:
        return self._is_token_used_V is not None

    def job(self, role: Role, tensor: np.ndarray) -> Callable[[], TensorMeasurement]:
        """Return the measuring of a tensor, for any thread; tables stay in memory until the first block comes."""
        if role.block is not None:
            self._close_tables()
        # Matrices are taken as [out, in], as most files have them: then this is no copy.
        matrix = sketches.transposed(tensor) if role.leaf == "kernel" and tensor.ndim == 2 else tensor
        if residual_axis(role) is None:
            return functools.partial(self._measure, role, matrix, None, None, None)
        if role.block is None and role.group in ("embedding", "head"):
            self._tables[role.group] = role, matrix
        # Norm scales are folded in where rows are projected or centered.
        projection_DK = self._projection(role)
        needs_scale = projection_DK is not None or self._shape.is_centered
        scale_D = self._source.norm_scale(role) if needs_scale else None
        scale_D = None if scale_D is None else sketches.scaled_down(scale_D)
        signs_nK = self._axis_signs(role)
        return functools.partial(self._measure, role, matrix, signs_nK, projection_DK, scale_D)

    def _projection(self, role: Role) -> np.ndarray | None:
        """Return the projections that the rows of a matrix are multiplied with; heads have those of tokens alone."""
        if role.block is None or role.group not in (*MLP, *ATTENTION, "router"):
            return None
        projection_DK = self._writer_DK if role.group in WRITERS else self._reader_DK
        if role.group in ATTENTION:
            return projection_DK[:, : self._settings.dim] if self._has_vocabulary else None
        return projection_DK

    def _axis_signs(self, role: Role) -> np.ndarray:
        """Return the signs along the other axis of a matrix: of tokens, or of its entries by number."""
        axis = residual_axis(role)
        assert axis is not None
        size = self._source.array_shape(role)[1 - axis]
        name = "vocabulary" if ("vocab",) in role.axes else role.matrix_name
        if name not in self._signs or len(self._signs[name]) != size:
            dim, key = self._settings.dim, self._settings.sign_key
            self._signs[name] = (
                sketches.token_signs(self._labels, size, dim, key)
                if name == "vocabulary"
                else sketches.axis_signs(name, size, dim, key)
            )
        return self._signs[name]

    def _measure(
        self,
        role: Role,
        matrix: np.ndarray,
        signs_nK: np.ndarray | None,
        projection_DK: np.ndarray | None,
        scale_D: np.ndarray | None,
    ) -> TensorMeasurement:
        """Take the statistics of a tensor, and multiply a matrix on the residual stream with signs and projections."""
        # Statistics first: they show what is not finite.
        moments = sketches.moments(matrix)
        if not np.isfinite(moments.mean):
            raise self._not_finite(role.path)
        vector = np.array(matrix) if matrix.ndim == 1 else None
        # Squares of very large numbers are beyond float32: of numbers scaled down all but the moments is the same.
        scaled = moments
        if moments.largest > sketches.LARGEST:
            matrix = sketches.scaled_down(matrix)
            scaled = sketches.moments(matrix)
        is_table = ("vocab",) in role.axes or ("position",) in role.axes
        diagonal_z = 0.0 if is_table else sketches.diagonal_z(matrix, scaled.mean, scaled.std)
        coordinates_DK = products_nK = None
        num_equal = 0
        if signs_nK is not None:
            # Rows along the residual axis, and rows over it; kernels stand transposed.
            is_along = (residual_axis(role) == 0) != (role.leaf == "kernel")
            rows_Dn, squares_D = (matrix, scaled.squares_row) if is_along else (matrix.T, scaled.squares_column)
            coordinates_DK = np.zeros((len(rows_Dn), self._settings.dim))
            if not moments.is_two_valued:
                is_centered = self._shape.is_centered
                coordinates_DK = sketches.coordinate_rows(rows_Dn, signs_nK, squares_D, scale_D, is_centered)
            # Neurons, heads and experts by their projections.
            if projection_DK is not None:
                rows_nD = rows_Dn.T
                products_nK = np.zeros((len(rows_nD), projection_DK.shape[1]))
                if not moments.is_two_valued:
                    scale_D1 = 1.0 if scale_D is None else scale_D[:, None].astype(np.float64)
                    products_nK = sketches.product(rows_nD, projection_DK * scale_D1)
                if role.group == "up":
                    num_equal = int(sketches.equal_rows(rows_nD).sum())
                elif role.group == "query" and self._shape.num_heads and len(rows_nD) % self._shape.num_heads == 0:
                    num_equal = int(sketches.equal_rows(rows_nD.reshape(self._shape.num_heads, -1)).sum())
        return TensorMeasurement(role, moments, diagonal_z, vector, coordinates_DK, products_nK, num_equal)

    def _not_finite(self, name: str) -> InputError:
        return InputError(
            f"{name} of {self._source.description} holds NaN or infinite values: train or export it again"
        )

    def _close_tables(self) -> None:
        """Make the token space from the embedding and the head, once both are read."""
        tables, self._tables = self._tables, {}
        if "embedding" not in tables:
            return
        role, embedding_VD = tables["embedding"]
        head_role, head_VD = tables.get("head", (None, embedding_VD))
        is_centered = self._shape.is_centered
        scale_D = (
            self._source.output_norm_scale(self._name) if head_role is None else self._source.norm_scale(head_role)
        )
        embedding = _scaled_down(TokenTable(embedding_VD, None, is_centered))
        head = _scaled_down(TokenTable(_with_rows(head_VD, len(embedding_VD)), scale_D, is_centered))
        for table_role, table in ((role, embedding), (head_role or role, head)):
            if not np.isfinite(table.norms).all():
                is_own = not np.isfinite(table.rows_VD).all()
                raise self._not_finite(table_role.path if is_own else f"the norm before {table_role.path}")
        # Padding leaves the token space.
        is_used_V = used_tokens(embedding) & used_tokens(head)
        # Readers are projected on the embedding, writers on the centered head.
        signs_VK = self._axis_signs(role)
        reader_DK = token_space(embedding, signs_VK, is_used_V, None)
        writer_DK = token_space(head, signs_VK, is_used_V, head.mean(is_used_V))
        coordinate_DK = self._reader_DK
        # Count repeated rows of the embedding.
        vectors_VK = sketches.unit(sketches.product(embedding.rows_VD, coordinate_DK))
        num_equal = int(sketches.equal_rows(embedding_VD).sum())
        self._count_repeats("tokens", len(embedding_VD), sketches.inner(vectors_VK), num_equal)
        self._reader_DK = np.concatenate([reader_DK, coordinate_DK], axis=1)
        self._writer_DK = np.concatenate([writer_DK, coordinate_DK], axis=1)
        self._is_token_used_V = is_used_V

    def add(self, measurement: TensorMeasurement) -> None:
        """Add the results of one tensor."""
        role = measurement.role
        if role.block is not None and (self._block is None or self._block.number != role.block):
            self._close_block()
            self._block = _Block(role.block)
        # Vectors are kept as they are; scales of query and key norms belong to the heads.
        if measurement.vector is not None:
            path = role.path.removeprefix(f"{role.component}/")
            self._vectors[path] = np.clip(measurement.vector, -_LARGEST_HALF, _LARGEST_HALF).astype(np.float16)
            if self._block is not None and role.module in ("query_norm", "key_norm") and role.leaf == "scale":
                self._block.head_scales[role.module.removesuffix("_norm")] = measurement.vector
        if measurement.coordinates_DK is not None:
            # To the coordinates of its part, and to its cell of the heat map.
            part = role.group if role.block is None else "blocks"
            self._coordinates[part] = self._coordinates.get(part, 0.0) + measurement.coordinates_DK
            cell = role.block, role.matrix
            self._heat_map[cell] = self._heat_map.get(cell, 0.0) + measurement.coordinates_DK[:, :2]
        # Products wait for the other matrices of their neurons and heads.
        if self._block is None or measurement.products_nK is None:
            return
        if role.group in ATTENTION:
            self._block.attention[role.group] = measurement.products_nK
            self._block.num_equal["heads"] += measurement.num_equal
        elif role.group == "router":
            self._block.router = measurement.products_nK
        else:
            self._block.mlps.setdefault((role.expert, role.is_shared), {})[role.group] = measurement.products_nK
            self._block.num_equal["neurons"] += measurement.num_equal

    def _close_block(self) -> None:
        """Turn the products of a block into sketches."""
        block, self._block = self._block, None
        if block is None:
            return
        # Neurons of each MLP, then experts as wholes, heads and the router.
        mlps = {place: matrices for place, matrices in block.mlps.items() if _is_whole(matrices)}
        for (expert, is_shared), matrices in mlps.items():
            self._close_neurons(block, expert, is_shared, matrices)
        routed = [matrices for (expert, is_shared), matrices in mlps.items() if expert and not is_shared]
        if len(routed) > 1 and all(matrices.keys() == routed[0].keys() for matrices in routed):
            self._count_experts(routed)
        if all(name in block.attention for name in ATTENTION) and self._shape.num_heads:
            self._close_heads(block)
        if block.router is not None:
            token_EK, coordinate_EK = self._split(block.router)
            token = None if token_EK is None else sketches.quantize(token_EK)
            self._routers.append(Router(block.number, token, sketches.quantize(coordinate_EK)))

    def _split(self, products_nK: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
        """Split products into those of token space, where there is a vocabulary, and of coordinates."""
        if not self._has_vocabulary:
            return None, products_nK
        return products_nK[:, : self._settings.dim], products_nK[:, self._settings.dim :]

    def _close_neurons(
        self, block: _Block, expert: int | None, is_shared: bool, matrices: Mapping[str, np.ndarray]
    ) -> None:
        token: dict[str, np.ndarray] = {}
        coordinates: dict[str, np.ndarray] = {}
        total = len(matrices["up"])
        stored = stored_neurons(total, self._num_experts if expert and not is_shared else 1, self._settings)
        # The first neurons are stored, in both spaces.
        for name in MLP:
            if name in matrices:
                token_nK, coordinate_nK = self._split(matrices[name][:stored])
                coordinates[name] = sketches.quantize(coordinate_nK)
                if token_nK is not None:
                    token[name] = sketches.quantize(token_nK)
        self._neurons.append(Neurons(block.number, expert, is_shared, total, token, coordinates))
        # Repeats are counted over all of them.
        units = {name: sketches.unit(self._split(products_nK)[1]) for name, products_nK in matrices.items()}
        num_equal = block.num_equal.pop("neurons", 0)
        self._count_repeats("neurons", total, self._neuron_score(units), num_equal)

    def _neuron_score(self, units: Mapping[str, np.ndarray]) -> sketches.LabelScore:
        """Return the score of two neurons, or of two experts' neurons summed, from unit vectors of each matrix.

        Vectors are [n, k], or [E, F, k].
        """
        is_blind_to_signs = "gate" in units or self._shape.has_odd_activation

        def score(order_n: np.ndarray) -> np.ndarray:
            inner = {name: np.einsum("...k,...k->...", rows, rows[order_n]) for name, rows in units.items()}
            pair = inner["up"] + inner["down"]
            total: np.ndarray = inner.get("gate", 0.0) + (np.abs(pair) if is_blind_to_signs else pair)
            return total if total.ndim == 1 else total.sum(axis=1)

        return score

    def _count_experts(self, routed: Sequence[Mapping[str, np.ndarray]]) -> None:
        if len({len(matrices["up"]) for matrices in routed}) > 1:
            return
        units = {
            name: np.stack([sketches.unit(self._split(matrices[name])[1]) for matrices in routed]) for name in routed[0]
        }
        num_equal = int(sketches.equal_rows(units["up"].reshape(len(routed), -1)).sum())
        self._count_repeats("experts", len(routed), self._neuron_score(units), num_equal)

    def _close_heads(self, block: _Block) -> None:
        """Multiply the projected matrices of each query head: [H, k, k] of query and key, and of value and output.

        Matrices that the number of heads does not divide are of other heads than it says, and are left out.
        """
        num_heads = self._shape.num_heads
        assert num_heads is not None
        num_groups = self._shape.num_kv_heads or num_heads
        # Rows of each head by matrix, per-head norms folded in.
        by_head = {}
        for name in ATTENTION:
            count = num_heads if name in ("query", "output") else num_groups
            if len(block.attention[name]) % count:
                return
            products_HdK = block.attention[name].reshape(count, -1, self._settings.dim)
            if name in block.head_scales:
                products_HdK = products_HdK * block.head_scales[name].reshape(-1, products_HdK.shape[1], 1)
            # Keys and values are repeated for the query heads of their group.
            by_head[name] = np.repeat(products_HdK, num_heads // count, axis=0)
        if by_head["query"].shape != by_head["key"].shape or by_head["value"].shape != by_head["output"].shape:
            return
        # Products of matrices, which no basis inside a head enters.
        query_key = np.einsum("hdk,hdl->hkl", by_head["query"], by_head["key"]).reshape(num_heads, -1)
        value_output = np.einsum("hdk,hdl->hkl", by_head["value"], by_head["output"]).reshape(num_heads, -1)
        self._heads.append(
            HeadSketches(block.number, num_groups, sketches.quantize(query_key), sketches.quantize(value_output))
        )
        vectors_HK = np.concatenate([sketches.unit(query_key), sketches.unit(value_output)], axis=1)
        self._count_repeats("heads", num_heads, sketches.inner(vectors_HK), block.num_equal["heads"])

    def _count_repeats(self, labels: RepeatLabels, num_labels: int, score: sketches.LabelScore, num_equal: int) -> None:
        self._counters.setdefault(labels, sketches.RepeatCounter()).add(num_labels, score, num_equal)

    def finish(self) -> Component:
        """Return the sketches once every tensor is in."""
        self._close_tables()
        self._close_block()
        # Coordinates are complete only now: count repeats among them.
        if "blocks" in self._coordinates:
            rows_DK = self._coordinates["blocks"]
            is_equal_D = sketches.equal_rows(sketches.quantize(rows_DK))
            num_equal = int(is_equal_D.sum()) if self._settings.dim >= _DISTINCT_DIM else 0
            self._count_repeats("coordinates", len(rows_DK), sketches.inner(sketches.unit(rows_DK)), num_equal)
        is_used_V = self._is_token_used_V
        return Component(
            name=self._name,
            shape=self._shape,
            width=self._width,
            num_blocks=self._num_blocks,
            vocab_size=None if is_used_V is None else len(is_used_V),
            token_labels=None if is_used_V is None else "ids" if self._labels is None else "strings",
            is_token_used_V=is_used_V,
            coordinates={part: sketches.quantize(rows_DK) for part, rows_DK in self._coordinates.items()},
            heat_map={cell: sketches.quantize(rows_D2) for cell, rows_D2 in self._heat_map.items()},
            neurons=tuple(self._neurons),
            heads=tuple(self._heads),
            routers=tuple(self._routers),
            vectors=self._vectors,
        )

    def repeats(self) -> list[Repeats]:
        """Report what repeats along each axis."""
        return [
            Repeats(self._name, labels, counter.num_labels, counter.num_equal, counter.z_by_period())
            for labels, counter in sorted(self._counters.items())
        ]


def _is_whole(mlp: Mapping[str, np.ndarray]) -> bool:
    """Tell whether the matrices of an MLP that a file has are those of neurons: up and down, all of one width."""
    return {"up", "down"} <= mlp.keys() and len({len(products_nK) for products_nK in mlp.values()}) == 1


def _with_rows(table_VD: np.ndarray, count: int) -> np.ndarray:
    """Return so many rows of a table, zeros after its last: a head may know other tokens than the embedding."""
    if len(table_VD) >= count:
        return table_VD[:count]
    return np.pad(table_VD, ((0, count - len(table_VD)), (0, 0)))


def _scaled_down(table: TokenTable) -> TokenTable:
    """Return a table whose norms float32 holds."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.all(table.norms <= sketches.LARGEST):
            return table
    scale_D = None if table.scale_D is None else sketches.scaled_down(table.scale_D, 1.0)
    return TokenTable(sketches.scaled_down(table.rows_VD, 1.0), scale_D, table.is_centered)
