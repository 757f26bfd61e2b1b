"""What the statistics of the sheet need of one model, from one read of it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
from scipy import linalg

from bornbiased_jax import hardware
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.digests import tensor_digest
from bornbiased_jax.checkpoints.native_roles import LANGUAGE
from bornbiased_jax.checkpoints.roles import Role, RoleSource
from bornbiased_jax.checkpoints.weight_files import find_tokenizers
from bornbiased_jax.lineage.fingerprints import TensorRecord
from bornbiased_jax.lineage.same_model import logits_memory, probe_logits
from bornbiased_jax.lineage.sheet_tokens import Labels, Vocabulary, vocabulary
from bornbiased_jax.lineage.spectra import SPECTRA, attention_products
from bornbiased_jax.text import load_tokenizer

VectorPair = tuple[np.ndarray, np.ndarray]
Records = Mapping[str, TensorRecord]
"""Records of the tensors of a model, by path."""
WIDEST = 1024
"""Widest matrix of which singular values are computed."""
WIDEST_PRODUCT = 512
"""Widest model of whose attention eigenvalues are computed: two products a block, a third of a second each."""
_ATTENTION = ("query", "key", "value", "output")
# Random sequences that both models are run on, and their length.
_SEQUENCES, _LENGTH = 8, 16


@dataclasses.dataclass(frozen=True, eq=False)
class Reading:
    """What the statistics need of one model, from one read of it, tensor by tensor.

    Attributes:
        source: the model.
        embedding: the role of its embedding; None where it has none.
        vectors: norm scales and biases of queries, keys and values, by path.
        stds: standard deviations of Q, K, V, O, by path.
        spectra: singular values by path, of matrices up to 1,024 wide.
        products: sorted values of both products of attention, block by block, by the key of the method
            (:data:`bornbiased_jax.lineage.spectra.SPECTRA`); up to a width of 512.
        digests: of all tensors that are not constant, by path.
        settings: fields of the configuration; None where this package does not run the model.
        logits_PV: on random tokens; None likewise.
        tokenizer_file: of its tokenizer, if it has one.
    """

    source: RoleSource
    embedding: Role | None
    vectors: Mapping[str, np.ndarray]
    stds: Mapping[str, float]
    spectra: Mapping[str, np.ndarray]
    products: Mapping[str, Sequence[VectorPair]]
    digests: Mapping[str, str]
    settings: Mapping[str, object] | None
    logits_PV: np.ndarray | None
    tokenizer_file: Path | None

    @functools.cached_property
    def vocabulary(self) -> Vocabulary | None:
        """Tokens and merges; None without a tokenizer, or an embedding."""
        if self.tokenizer_file is None or self.embedding is None:
            return None
        return vocabulary(load_tokenizer(self.tokenizer_file), self.source.array_shape(self.embedding)[0])

    @property
    def labels(self) -> Labels | None:
        """The bytes of every token; None without a tokenizer."""
        return None if self.vocabulary is None else self.vocabulary.labels


def probe_ids(first: Checkpoint, second: Checkpoint) -> np.ndarray | None:
    """Draw random tokens for two models, [S, T]; None where vocabularies differ in size or memory is small."""
    free = hardware.available_memory()
    if first.config.vocab_size != second.config.vocab_size:
        return None
    if free is not None and max(logits_memory(first), logits_memory(second)) > free:
        return None
    length = min(_LENGTH, first.config.max_seq_len, second.config.max_seq_len)
    return np.random.default_rng(0).integers(0, first.config.vocab_size, (_SEQUENCES, length), dtype=np.int32)


def read_model(
    source: RoleSource,
    checkpoint: Checkpoint | None,
    ids_ST: np.ndarray | None,
    records: Records = MappingProxyType({}),
) -> Reading:
    """Read all that the statistics need of one model.

    Args:
        source: the model by role; its language component is read.
        checkpoint: the same, where this package runs it.
        ids_ST: what it is run on; None runs nothing.
        records: digests and statistics of its tensors by path, of those that are known; such a tensor is read only
            where its numbers are asked for.
    """
    vectors: dict[str, np.ndarray] = {}
    stds: dict[str, float] = {}
    spectra: dict[str, np.ndarray] = {}
    attention: dict[int, dict[str, np.ndarray]] = {}
    digests: dict[str, str] = {}
    embedding = None
    for role in source.roles:
        if role.component != LANGUAGE:
            continue
        # Norm scales and biases of attention drift little: kept as they are.
        is_vector = role.leaf == "scale" or (role.leaf == "bias" and role.module in _ATTENTION[:3])
        is_block_kernel = role.leaf == "kernel" and role.block is not None
        shape = source.array_shape(role)
        has_spectrum = is_block_kernel and len(shape) == 2 and max(shape) <= WIDEST
        # One tensor at a time: its digest, and by kind its values, scale and spectrum.
        record = records.get(role.path)
        is_read = record is None or is_vector or has_spectrum
        tensor = source.read(role) if is_read else np.empty(0, np.float32)
        is_constant = tensor.min() == tensor.max() if record is None else record.minimum == record.maximum
        if math.prod(shape) > 1 and not is_constant:
            digests[role.path] = tensor_digest(tensor) if record is None else record.digest
        if role.group == "embedding":
            embedding = role
        if is_block_kernel and role.group in _ATTENTION:
            stds[role.path] = float(tensor.std()) if record is None else record.std
        if is_vector:
            vectors[role.path] = tensor.reshape(-1).astype(np.float64)
        if has_spectrum:
            spectra[role.path] = linalg.svdvals(tensor)
        if is_block_kernel and role.block is not None and role.group in _ATTENTION and max(shape) <= WIDEST_PRODUCT:
            attention.setdefault(role.block, {})[role.group] = tensor
    products = _product_spectra(source, attention)
    settings = None if checkpoint is None else checkpoint.config.to_dict()
    logits_PV = None if checkpoint is None or ids_ST is None else probe_logits(checkpoint, ids_ST)
    return Reading(
        source,
        embedding,
        vectors,
        stds,
        spectra,
        products,
        digests,
        settings,
        logits_PV,
        _tokenizer_file(source, checkpoint),
    )


def _product_spectra(
    source: RoleSource, attention: Mapping[int, Mapping[str, np.ndarray]]
) -> dict[str, list[VectorPair]]:
    """Compute the sorted values of attention's products of every block that has them, by method."""
    values: dict[str, list[VectorPair]] = {key: [] for key in SPECTRA}
    shape = source.shape(LANGUAGE) if attention else None
    if shape is None or shape.num_heads is None or shape.num_kv_heads is None:
        return values
    for kernels in attention.values():
        products = attention_products(kernels, shape.num_heads, shape.num_kv_heads)
        if products is not None:
            for key, sorted_values in SPECTRA.items():
                values[key].append((sorted_values(products[0]), sorted_values(products[1])))
    return values


def _tokenizer_file(source: RoleSource, checkpoint: Checkpoint | None) -> Path | None:
    """Find the tokenizer of a model: beside the files of its weights, of an adapter beside its own first."""
    if checkpoint is not None:
        return next(iter(checkpoint.tokenizer_files), None)
    folders = dict.fromkeys(path.parent for path in reversed(source.files))
    return next((file for folder in folders for file in find_tokenizers(folder)), None)
