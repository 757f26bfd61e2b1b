"""Make the fingerprint of a model's weights: one pass over its tensors, each read once, the tables first."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from bornbiased_jax.checkpoints.digests import combine
from bornbiased_jax.checkpoints.naming import open_role_source
from bornbiased_jax.checkpoints.roles import Role, RoleSource, Shape, canonical_key
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import sketches
from bornbiased_jax.lineage.fingerprint_file import fitted, stored_neurons
from bornbiased_jax.lineage.fingerprints import (
    Component,
    Fingerprint,
    Heads,
    MatrixSketch,
    Neurons,
    RepeatLabels,
    Repeats,
    Router,
    Settings,
    Source,
    TensorRecord,
)

MLP = ("gate", "up", "down")
ATTENTION = ("query", "key", "value", "output")
WRITERS = ("output", "down")
# Tensors that are hashed at once, and stay in memory until they are: hashing takes longer than sketching.
_HASHED_AT_ONCE = 3
_LARGEST_HALF = float(np.finfo(np.float16).max)
_LARGEST_SINGLE = float(np.finfo(np.float32).max)


def fingerprint(
    checkpoint: str | Path | RoleSource,
    settings: Settings | None = None,
    *,
    max_bytes: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> Fingerprint:
    """Make the fingerprint of a model's weights.

    Tensors are read one at a time: memory holds the two tables, then a tensor or two.

    Args:
        checkpoint: what :func:`bornbiased_jax.checkpoints.open_checkpoint` takes, or an opened source of roles.
        settings: dimension, neurons, sign key and labels of tokens; public signs of 16 numbers by default.
        max_bytes: store fewer neurons, so that the file has at most so many bytes.
        advance: called with the number of tensors done since the last call.

    Raises:
        InputError: the checkpoint cannot be read or holds NaN, or no fingerprint of it is that small.

    Example:
        >>> made = fingerprint("seed:42@llama-tiny,num_layers=1")
        >>> made.components["language"].neurons[0].token["up"].shape
        (352, 16)
    """
    source = open_role_source(checkpoint) if isinstance(checkpoint, (str, Path)) else checkpoint
    settings = settings or Settings()
    if max_bytes is not None:
        settings = fitted(source, settings, max_bytes)
    labels = source.token_labels() if settings.token_labels == "strings" else None
    roles = sorted(source.roles, key=canonical_key)
    if not roles:
        raise InputError(f"{source.description} has no tensor that any convention of names understands")
    passes: dict[str, _ComponentPass] = {}
    measured: list[tuple[Role, tuple[int, ...], sketches.Moments, float]] = []
    with _Digests(source, roles) as digests:
        for role in roles:
            tensor = source.read(role)
            digests.add(role, tensor)
            if role.component not in passes:
                passes[role.component] = _ComponentPass(source, role.component, roles, settings, labels)
            statistics, diagonal = passes[role.component].add(role, tensor)
            measured.append((role, tensor.shape, statistics, diagonal))
            del tensor
            if advance is not None:
                advance(1)
        components = {name: passed.finish() for name, passed in passes.items()}
    return Fingerprint(
        settings=settings,
        components=components,
        tensors=tuple(
            TensorRecord(
                path=role.path,
                array_shape=shape,
                digest=digests.of_role(role),
                mean=_as_stored(statistics.mean),
                std=_as_stored(statistics.std),
                kurtosis=_as_stored(statistics.kurtosis),
                minimum=_as_stored(statistics.minimum),
                maximum=_as_stored(statistics.maximum),
                diagonal_z=_as_stored(diagonal),
                is_evidence=not statistics.is_two_valued,
            )
            for role, shape, statistics, diagonal in measured
        ),
        repeats=tuple(repeats for passed in passes.values() for repeats in passed.repeats()),
        weights_digest=digests.of_all(),
        tokenizer_digest=None if labels is None else _labels_digest(labels),
        source=Source(
            description=source.description,
            naming=source.naming,
            storage=dict(sorted(Counter(source.stored_as(role) for role in roles).items())),
            unread=tuple(source.unread),
        ),
    )


def weights_digests(source: RoleSource) -> dict[str, str]:
    """Compute SHA-256 of every tensor by its path, those of experts that one parameter holds together.

    Raises:
        InputError: the files cannot be read.
    """
    roles = sorted(source.roles, key=canonical_key)
    with _Digests(source, roles) as digests:
        for role in roles:
            digests.add(role, source.read(role))
    return digests.by_name()


def _as_stored(value: float) -> float:
    """Round a statistic to float32, as the file has it."""
    return float(np.float32(min(max(value, -_LARGEST_SINGLE), _LARGEST_SINGLE)))


def _labels_digest(labels: Sequence[bytes | None]) -> str:
    hasher = hashlib.sha256()
    for text in labels:
        hasher.update(b"-" if text is None else b"%d:" % len(text) + text)
    return hasher.hexdigest()


class _Digests:
    """SHA-256 of tensors, computed in threads while the sketches are made: of each, and of all together."""

    def __init__(self, source: RoleSource, roles: Sequence[Role]) -> None:
        self._source = source
        self._pool = ThreadPoolExecutor(_HASHED_AT_ONCE)
        self._pending: deque[Future[None]] = deque()
        self._of_role: dict[Role, str] = {}
        self._of_name: dict[str, hashlib._Hash] = {}
        self._slices = Counter(source.digest_name(role) for role in roles)

    def __enter__(self) -> _Digests:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(wait=True)
        if error[0] is None:
            self._wait(0)

    def add(self, role: Role, tensor: np.ndarray) -> None:
        """Hash one tensor, once few others are in memory; slices of one tensor come in their order."""
        self._wait(0 if self._slices[self._source.digest_name(role)] > 1 else _HASHED_AT_ONCE - 1)
        self._pending.append(self._pool.submit(self._hash, role, tensor))

    def _wait(self, number: int) -> None:
        """Wait until no more than a number of tensors are unfinished."""
        while len(self._pending) > number:
            self._pending.popleft().result()

    def _hash(self, role: Role, tensor: np.ndarray) -> None:
        # Experts that are slices of one tensor add up to the digest of that tensor.
        name, dtype = self._source.digest_name(role), tensor.dtype.name
        count = self._slices[name]
        own = hashlib.sha256(f"{dtype}{list(tensor.shape)}".encode())
        if count > 1 and name not in self._of_name:
            self._of_name[name] = hashlib.sha256(f"{dtype}{[count, *tensor.shape]}".encode())
        for rows in sketches.rows_in_order(tensor):
            own.update(rows.view(np.uint8).data)
            if count > 1:
                self._of_name[name].update(rows.view(np.uint8).data)
        if count == 1:
            self._of_name[name] = own
        self._of_role[role] = own.hexdigest()

    def of_role(self, role: Role) -> str:
        """Return the digest of one tensor."""
        return self._of_role[role]

    def of_all(self) -> str:
        """Return the digest of all weights."""
        return combine(self.by_name())

    def by_name(self) -> dict[str, str]:
        """Return the digest of each tensor under the name that it counts by."""
        return {name: hasher.hexdigest() for name, hasher in self._of_name.items()}


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


class _ComponentPass:
    """Sketches of one component, as its tensors come in canonical order."""

    def __init__(
        self,
        source: RoleSource,
        name: str,
        roles: Sequence[Role],
        settings: Settings,
        labels: Sequence[bytes | None] | None,
    ) -> None:
        own = [role for role in roles if role.component == name]
        self._source, self._name, self._settings, self._labels = source, name, settings, labels
        self._shape: Shape = source.shape(name)
        self._num_blocks = len({role.block for role in own} - {None})
        self._num_experts = max((role.expert or 0 for role in own if not role.is_shared), default=0)
        self._width = next((_residual_size(source, role) for role in own if _residual_axis(role) is not None), 0)
        self._signs: dict[str, np.ndarray] = {}
        self._tables: dict[str, tuple[Role, np.ndarray]] = {}
        self._are_tables_open = True
        # Columns of a reader's and a writer's projections: token space, then coordinates.
        self._reader_DK = self._writer_DK = self._coordinate_signs()
        self._has_vocabulary = False
        self._vocab_size: int | None = None
        self._is_token_used_V: np.ndarray | None = None
        self._coordinates: dict[str, np.ndarray] = {}
        self._heat_map: dict[tuple[int, str], np.ndarray] = {}
        self._vectors: dict[str, np.ndarray] = {}
        self._block: _Block | None = None
        self._neurons: list[Neurons] = []
        self._heads: list[Heads] = []
        self._routers: list[Router] = []
        self._counters: dict[RepeatLabels, sketches.RepeatCounter] = {}

    def _coordinate_signs(self) -> np.ndarray:
        """Return the signs of residual coordinates, centered where the norms take out the mean: float64 [D, k]."""
        signs_DK = sketches.axis_signs("residual", self._width, self._settings.dim, self._settings.sign_key)
        return _centered(signs_DK.astype(np.float64)) if self._shape.is_centered else signs_DK.astype(np.float64)

    def add(self, role: Role, tensor: np.ndarray) -> tuple[sketches.Moments, float]:
        """Sketch one tensor; return its statistics and the z of its diagonal."""
        if role.block is not None:
            self._close_tables()
            if self._block is None or self._block.number != role.block:
                self._close_block()
                self._block = _Block(role.block)
        matrix = sketches.transposed(tensor) if role.leaf == "kernel" and tensor.ndim == 2 else tensor
        statistics = sketches.moments(matrix)
        if not np.isfinite(statistics.mean):
            raise InputError(f"{role.path} of {self._source.description} holds NaN or infinite values: fetch it again")
        is_table = ("vocab",) in role.axes or ("position",) in role.axes
        diagonal = 0.0 if is_table else sketches.diagonal_z(matrix, statistics.mean, statistics.std)
        if tensor.ndim == 1:
            self._add_vector(role, tensor)
        elif _residual_axis(role) is not None:
            self._add_coordinates(role, matrix, statistics)
            if role.block is None and role.group in ("embedding", "head"):
                self._tables[role.group] = role, matrix
            elif role.block is not None and role.group in (*MLP, *ATTENTION, "router"):
                self._add_products(role, matrix, statistics)
        return statistics, diagonal

    def _add_vector(self, role: Role, vector: np.ndarray) -> None:
        path = role.path.removeprefix(f"{role.component}/")
        self._vectors[path] = np.clip(vector, -_LARGEST_HALF, _LARGEST_HALF).astype(np.float16)
        if self._block is not None and role.module in ("query_norm", "key_norm") and role.leaf == "scale":
            self._block.head_scales[role.module.removesuffix("_norm")] = vector

    def _add_coordinates(self, role: Role, matrix: np.ndarray, statistics: sketches.Moments) -> None:
        """Add a matrix to the coordinates of its part, and to its cell of the heat map."""
        residual = _residual_axis(role)
        if role.leaf == "kernel" and residual is not None:
            residual = 1 - residual
        rows_Dn = matrix if residual == 0 else matrix.T
        squares_D = statistics.squares_row if residual == 0 else statistics.squares_column
        sketch_DK = np.zeros((len(rows_Dn), self._settings.dim))
        if not statistics.is_two_valued:
            scale_D = self._source.norm_scale(role) if self._shape.is_centered else None
            signs_nK = self._axis_signs(role, rows_Dn.shape[1])
            sketch_DK = sketches.coordinate_rows(rows_Dn, signs_nK, squares_D, scale_D, self._shape.is_centered)
        part = role.group if role.block is None else "blocks"
        self._coordinates[part] = self._coordinates.get(part, 0.0) + sketch_DK
        cell = role.block or 0, role.matrix
        self._heat_map[cell] = self._heat_map.get(cell, 0.0) + sketch_DK[:, :2]

    def _axis_signs(self, role: Role, size: int) -> np.ndarray:
        """Return the signs along the other axis of a matrix: of tokens, or of its entries by number."""
        is_vocabulary = ("vocab",) in role.axes
        name = "vocabulary" if is_vocabulary else role.matrix_name
        if name not in self._signs or len(self._signs[name]) != size:
            dim, key = self._settings.dim, self._settings.sign_key
            self._signs[name] = (
                sketches.token_signs(self._labels, size, dim, key)
                if is_vocabulary
                else sketches.axis_signs(name, size, dim, key)
            )
        return self._signs[name]

    def _close_tables(self) -> None:
        """Make the token space from the embedding and the head, once both are read."""
        if not self._are_tables_open:
            return
        self._are_tables_open = False
        if "embedding" not in self._tables:
            self._tables.clear()
            return
        role, embedding_VD = self._tables["embedding"]
        head_role, head_VD = self._tables.get("head", (None, embedding_VD))
        is_centered = self._shape.is_centered
        scale_D = (
            self._source.output_norm_scale(self._name) if head_role is None else self._source.norm_scale(head_role)
        )
        embedding = sketches.Table(embedding_VD, None, is_centered)
        head = sketches.Table(head_VD, scale_D, is_centered)
        # Padding leaves the token space.
        is_used_V = sketches.ordinary_rows(embedding_VD, embedding.norms())
        is_used_V &= sketches.ordinary_rows(head_VD, head.norms())
        signs_VK = self._axis_signs(role, len(embedding_VD))
        reader_DK = sketches.token_space(embedding, signs_VK, is_used_V, None)
        writer_DK = sketches.token_space(head, signs_VK, is_used_V, head.mean(is_used_V))
        coordinate_DK = self._reader_DK
        self._count_repeats(
            "tokens",
            len(embedding_VD),
            sketches.inner(sketches.unit(sketches.product(embedding_VD, coordinate_DK))),
            int(sketches.equal_rows(embedding_VD).sum()),
        )
        self._reader_DK = np.concatenate([reader_DK, coordinate_DK], axis=1)
        self._writer_DK = np.concatenate([writer_DK, coordinate_DK], axis=1)
        self._has_vocabulary, self._vocab_size, self._is_token_used_V = True, len(embedding_VD), is_used_V
        self._tables.clear()

    def _add_products(self, role: Role, matrix_OI: np.ndarray, statistics: sketches.Moments) -> None:
        """Multiply a matrix of a block with the projections of the residual stream."""
        assert self._block is not None
        is_writer = role.group in WRITERS
        projection_DK = self._writer_DK if is_writer else self._reader_DK
        if role.group in ATTENTION:
            if not self._has_vocabulary:
                return
            projection_DK = projection_DK[:, : self._settings.dim]
        rows_nD = matrix_OI.T if is_writer else matrix_OI
        if statistics.is_two_valued:
            products_nK = np.zeros((len(rows_nD), projection_DK.shape[1]))
        else:
            scale_D = self._source.norm_scale(role)
            folded_DK = projection_DK if scale_D is None else projection_DK * scale_D[:, None].astype(np.float64)
            products_nK = sketches.product(rows_nD, folded_DK)
        if role.group in ATTENTION:
            self._block.attention[role.group] = products_nK
            if role.group == "query" and self._shape.num_heads:
                heads = rows_nD.reshape(self._shape.num_heads, -1)
                self._block.num_equal["heads"] += int(sketches.equal_rows(heads).sum())
        elif role.group == "router":
            self._block.router = products_nK
        else:
            self._block.mlps.setdefault((role.expert, role.is_shared), {})[role.group] = products_nK
            if role.group == "up":
                self._block.num_equal["neurons"] += int(sketches.equal_rows(rows_nD).sum())

    def _close_block(self) -> None:
        """Turn the products of a block into sketches."""
        block, self._block = self._block, None
        if block is None:
            return
        for (expert, is_shared), matrices in block.mlps.items():
            if "up" in matrices and "down" in matrices:
                self._close_neurons(block, expert, is_shared, matrices)
        routed = [matrices for (expert, is_shared), matrices in block.mlps.items() if expert and not is_shared]
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
        for name in MLP:
            if name in matrices:
                token_nK, coordinate_nK = self._split(matrices[name][:stored])
                coordinates[name] = sketches.quantize(coordinate_nK)
                if token_nK is not None:
                    token[name] = sketches.quantize(token_nK)
        self._neurons.append(Neurons(block.number, expert, is_shared, total, token, coordinates))
        units = {name: sketches.unit(self._split(products_nK)[1]) for name, products_nK in matrices.items()}
        num_equal = block.num_equal.pop("neurons", 0)
        self._count_repeats("neurons", total, self._neuron_score(units), num_equal)

    def _neuron_score(self, units: Mapping[str, np.ndarray]) -> sketches.Score:
        """Return the score of two neurons, or of two experts' neurons added up, from unit vectors of each matrix.

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
        """Multiply the projected matrices of each query head: [H, k, k] of query and key, and of value and output."""
        num_heads, num_groups = self._shape.num_heads, self._shape.num_kv_heads
        assert num_heads is not None
        num_groups = num_groups or num_heads
        by_head = {}
        for name in ATTENTION:
            count = num_heads if name in ("query", "output") else num_groups
            products_HdK = block.attention[name].reshape(count, -1, self._settings.dim)
            if name in block.head_scales:
                scale = block.head_scales[name]
                channels = products_HdK.shape[1]
                products_HdK = products_HdK * scale.reshape(-1, channels, 1)
            by_head[name] = np.repeat(products_HdK, num_heads // count, axis=0)
        if by_head["query"].shape != by_head["key"].shape or by_head["value"].shape != by_head["output"].shape:
            return
        query_key = np.einsum("hdk,hdl->hkl", by_head["query"], by_head["key"]).reshape(num_heads, -1)
        value_output = np.einsum("hdk,hdl->hkl", by_head["value"], by_head["output"]).reshape(num_heads, -1)
        self._heads.append(
            Heads(block.number, num_groups, sketches.quantize(query_key), sketches.quantize(value_output))
        )
        both = np.concatenate([sketches.unit(query_key), sketches.unit(value_output)], axis=1)
        self._count_repeats("heads", num_heads, sketches.inner(both), block.num_equal["heads"])

    def _count_repeats(self, labels: RepeatLabels, num_labels: int, score: sketches.Score, num_equal: int) -> None:
        self._counters.setdefault(labels, sketches.RepeatCounter()).add(num_labels, score, num_equal)

    def finish(self) -> Component:
        """Return the sketches once every tensor is in."""
        self._close_tables()
        self._close_block()
        if "blocks" in self._coordinates:
            rows_DK = self._coordinates["blocks"]
            num_equal = int(sketches.equal_rows(sketches.quantize(rows_DK)).sum())
            self._count_repeats("coordinates", len(rows_DK), sketches.inner(sketches.unit(rows_DK)), num_equal)
        return Component(
            name=self._name,
            shape=self._shape,
            width=self._width,
            num_blocks=self._num_blocks,
            vocab_size=self._vocab_size,
            token_labels=None if not self._has_vocabulary else "ids" if self._labels is None else "strings",
            is_token_used_V=self._is_token_used_V,
            coordinates={part: sketches.quantize(rows_DK) for part, rows_DK in self._coordinates.items()},
            heat_map=tuple(
                MatrixSketch(block or None, matrix, sketches.quantize(rows_D2))
                for (block, matrix), rows_D2 in self._heat_map.items()
            ),
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


def _residual_axis(role: Role) -> int | None:
    """Return the residual axis of a matrix; None of vectors, and of arrays that have none."""
    is_matrix = len(role.axes) == 2 and role.leaf in ("kernel", "embedding")
    return role.axes.index(("residual",)) if is_matrix and ("residual",) in role.axes else None


def _residual_size(source: RoleSource, role: Role) -> int:
    axis = _residual_axis(role)
    return 0 if axis is None else source.array_shape(role)[axis]


def _centered(rows_DK: np.ndarray) -> np.ndarray:
    centered_DK: np.ndarray = rows_DK - rows_DK.mean(axis=0)
    return centered_DK
