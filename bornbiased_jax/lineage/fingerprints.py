"""Fingerprints of weights: sketches that compare two models exactly, from one read of each.

A fingerprint holds what a verdict needs and no weights: sketches of neurons, heads and residual coordinates in a few
numbers each, statistics and digests of every tensor, and what repeats inside the model. Sign vectors come from hashes
of public labels, so that fingerprints made anywhere are comparable. The file format has a page of its own
(``docs/fingerprint-format.md``).

In every sketch a vector is an int8 row: a unit vector times 127, rounded. A row of zeros means that the weights behind
it are zero, constant, or of two repeated numbers: no seed decided them, and they are no labels of a permutation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

import numpy as np

from bornbiased_jax.checkpoints.roles import Shape
from bornbiased_jax.errors import InputError
from bornbiased_jax.schema import Count, SketchDim, shown, within

TokenLabels = Literal["strings", "ids"]
RepeatLabels = Literal["neurons", "heads", "experts", "coordinates", "tokens"]
LARGE = 500_000_000
"""Parameters from which on a model takes long enough for progress to be shown."""
# Bytes of a key of BLAKE2b.
_LONGEST_KEY = 64


@dataclasses.dataclass(frozen=True)
class Settings:
    """Choices that two fingerprints must share to be compared.

    Attributes:
        dim: numbers in each sketched vector, 512 at most.
        neurons: how many neurons of each MLP are stored, the first ones; None for all. Of an expert they are
            ``neurons / E``, 64 at least.
        sign_key: key of the hash that signs come from, 64 bytes at most; empty for public signs.
        token_labels: what names a token: its string where a tokenizer is there, or its number.
    """

    dim: int = 16
    neurons: int | None = 1024
    sign_key: bytes = b""
    token_labels: TokenLabels = "strings"

    def __post_init__(self) -> None:
        """Refuse numbers that no file of a fingerprint has, and a key that the hash does not take."""
        within(SketchDim, self.dim, "dim")
        if self.neurons is not None:
            within(Count, self.neurons, "neurons")
        if len(self.sign_key) > _LONGEST_KEY:
            raise InputError(
                f"a sign key of {len(self.sign_key)} bytes is longer than the {_LONGEST_KEY} that the hash takes: give "
                "a shorter one"
            )


def read_sign_key(text: str) -> bytes:
    """Read the key of signs from hexadecimal digits.

    Raises:
        InputError: they are none.
    """
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise InputError(
            f"--sign-key {shown(text)} is not hexadecimal: give an even number of digits 0-9, a-f"
        ) from error


@dataclasses.dataclass(frozen=True, eq=False)
class Neurons:
    """Sketches of the neurons of one MLP, or of one expert: the first ``stored`` of ``total``.

    Attributes:
        block: counted from 1.
        expert: counted from 1; None for a dense MLP.
        is_shared: whether it is an expert that every token visits.
        total: neurons of the MLP.
        token: sketches in token space by matrix ("gate" where there is one, "up", "down"): int8 [N, k]; empty where the
            component has no vocabulary.
        coordinates: sketches in residual coordinates by matrix: int8 [N, k].
    """

    block: int
    expert: int | None
    is_shared: bool
    total: int
    token: Mapping[str, np.ndarray]
    coordinates: Mapping[str, np.ndarray]

    @property
    def stored(self) -> int:
        """The number of neurons that are stored."""
        return len(self.coordinates["up"])

    def first(self, count: int) -> Neurons:
        """Return the sketches of the first neurons alone."""
        token, coordinates = (
            {name: rows_nK[:count] for name, rows_nK in sketch.items()} for sketch in (self.token, self.coordinates)
        )
        return dataclasses.replace(self, token=token, coordinates=coordinates)

    @property
    def is_complete(self) -> bool:
        """True if every neuron is stored, so that neurons in another order can be matched."""
        return self.stored == self.total


@dataclasses.dataclass(frozen=True, eq=False)
class HeadSketches:
    """Sketches of the query heads of one block in token space: products of matrices that no basis enters.

    Attributes:
        block: counted from 1.
        num_groups: key/value groups; head h is in group ``h // (H / num_groups)``.
        query_key: int8 [H, k·k], of P·W_Q·W_Kᵀ·Pᵀ.
        value_output: int8 [H, k·k], of P·W_V·W_O·P'ᵀ.
    """

    block: int
    num_groups: int
    query_key: np.ndarray
    value_output: np.ndarray

    @property
    def num_heads(self) -> int:
        """The number of query heads."""
        return len(self.query_key)


@dataclasses.dataclass(frozen=True, eq=False)
class Router:
    """Sketches of a router: a row an expert.

    Attributes:
        block: counted from 1.
        token: int8 [E, k]; None where the component has no vocabulary.
        coordinates: int8 [E, k].
    """

    block: int
    token: np.ndarray | None
    coordinates: np.ndarray

    @property
    def num_experts(self) -> int:
        """The number of experts that it chooses from."""
        return len(self.coordinates)


@dataclasses.dataclass(frozen=True, eq=False)
class Component:
    """All sketches of one part of a model.

    Attributes:
        name: "language", "vision", "projector" ….
        shape: heads, gate, kind of norm, tied head.
        width: residual coordinates D.
        num_blocks: how many blocks it has.
        vocab_size: tokens; None where it has no vocabulary.
        token_labels: what named the tokens; None where it has no vocabulary.
        is_token_used_V: tokens in the token space, bool [V]: rows of zeros, equal rows and rows of extreme norm are
            left out as padding. None where it has no vocabulary.
        coordinates: coordinates of the matrices of a part, summed: int8 [D, k] by "embedding", "positions", "head" and
            "blocks".
        heat_map: coordinates of each kind of matrix in each block at two numbers a coordinate, int8 [D, 2], by block
            (from 1; None outside blocks) and "embedding", "query", "up", "shared_up" …; experts of a block are summed.
        neurons: of each MLP or expert, by block, shared experts first.
        heads: of each block that has attention.
        routers: of each block that has one.
        vectors: norm scales, biases and per-head norms, float16 by path, as in "blocks/3/mlp_norm/scale".
    """

    name: str
    shape: Shape
    width: int
    num_blocks: int
    vocab_size: int | None
    token_labels: TokenLabels | None
    is_token_used_V: np.ndarray | None
    coordinates: Mapping[str, np.ndarray]
    heat_map: Mapping[tuple[int | None, str], np.ndarray]
    neurons: tuple[Neurons, ...]
    heads: tuple[HeadSketches, ...]
    routers: tuple[Router, ...]
    vectors: Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class TensorRecord:
    """Digest and statistics of one tensor.

    Attributes:
        path: component, block, expert and matrix, as in "language/blocks/3/up/kernel".
        array_shape: its sizes; matrices stand as [in, out], tables as [vocab, residual].
        digest: SHA-256 of its numbers as float32.
        mean, std, kurtosis, minimum, maximum: of its numbers; the kurtosis of a normal distribution is 3, that of a
            constant tensor is given as 0.
        diagonal_z: z of the sum of the main diagonal of a matrix, against entries of this mean and std: large where a
            matrix is like the identity. 0 for vectors and tables.
        is_evidence: whether a seed may have decided it: no constant tensor, and none of two repeated numbers.
    """

    path: str
    array_shape: tuple[int, ...]
    digest: str
    mean: float
    std: float
    kurtosis: float
    minimum: float
    maximum: float
    diagonal_z: float
    is_evidence: bool


@dataclasses.dataclass(frozen=True)
class Repeats:
    """Repeats along one axis of a component, all blocks together.

    Attributes:
        component: its name.
        labels: the axis.
        num_labels: labels of one block (of the first, where blocks differ).
        num_equal: labels of all blocks whose numbers equal those of an earlier label of the same block.
        z_by_period: z of the score between labels f and f + n/s of the same model, by s; about standard normal where
            nothing repeats.
    """

    component: str
    labels: RepeatLabels
    num_labels: int
    num_equal: int
    z_by_period: Mapping[int, float]


@dataclasses.dataclass(frozen=True)
class FingerprintSource:
    """The origin of the weights. Not in the payload: equal tensors in another file have another source.

    Attributes:
        description: one line.
        naming: "native", or the convention of names that was applied.
        storage: storage types of the tensors and how many have each.
        unread: names of tensors that no convention understands.
    """

    description: str
    naming: str
    storage: Mapping[str, int]
    unread: tuple[str, ...] = ()

    @property
    def types(self) -> set[str]:
        """Storage types one by one: of a file with several they are joined."""
        return {kind for joined in self.storage for kind in joined.split(" and ")}


@dataclasses.dataclass(frozen=True, eq=False)
class Fingerprint:
    """Everything a comparison needs of one model.

    Attributes:
        settings: dimension, neurons stored, sign key, token labels.
        components: by name.
        tensors: digest and statistics of every tensor, in canonical order.
        repeats: what repeats inside the model.
        weights_digest: of all tensors, as ``bornbiased digest`` prints it.
        tokenizer_digest: of the tokens' strings; None without a tokenizer.
        source: where the weights came from.
    """

    settings: Settings
    components: Mapping[str, Component]
    tensors: tuple[TensorRecord, ...]
    repeats: tuple[Repeats, ...]
    weights_digest: str
    tokenizer_digest: str | None
    source: FingerprintSource

    @property
    def made_as(self) -> Settings:
        """The settings for a model that is compared with this one: tokens by number where these have no strings."""
        is_by_ids = any(component.token_labels == "ids" for component in self.components.values())
        return dataclasses.replace(self.settings, token_labels="ids") if is_by_ids else self.settings

    def first_neurons(self, count: int) -> Fingerprint:
        """Return the fingerprint with the first neurons of each MLP alone, as one made with so many has them."""
        components = {
            name: dataclasses.replace(component, neurons=tuple(mlp.first(count) for mlp in component.neurons))
            for name, component in self.components.items()
        }
        return dataclasses.replace(self, components=components)
