"""What the statistics of the sheet need of one model, from one read of it."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from bornbiased_jax import io
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.digests import tensor_digest
from bornbiased_jax.checkpoints.native_roles import LANGUAGE
from bornbiased_jax.checkpoints.roles import Role, RoleSource
from bornbiased_jax.checkpoints.weight_files import find_tokenizers
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.blockwise import ProbeOutputs, probe_outputs
from bornbiased_jax.lineage.fingerprints import TensorRecord
from bornbiased_jax.lineage.sheet_sample import Sample, is_block_matrix
from bornbiased_jax.lineage.sketches import scaled_down
from bornbiased_jax.lineage.spectra import MATRICES, SPECTRA, attention_factors, product_spectra, singular_values
from bornbiased_jax.text import load_tokenizer
from bornbiased_jax.text.bpe import LibraryTokenizer
from bornbiased_jax.text.protocol import Tokenizer, UnknownTokenizerError

CONFIG = "config.json"
ConfigValues = Mapping[str, object]
"""Values of a configuration by the names of its fields; of objects inside it by names with dots."""
Labels = tuple[bytes | None, ...]
"""The bytes of every token by its number, None for one without any."""
Merges = frozenset[tuple[str, str]]
"""Pairs of pieces that a BPE joins."""
VectorPair = tuple[np.ndarray, np.ndarray]
Records = Mapping[str, TensorRecord]
"""Records of the tensors of a model, by path."""


class TokenVocabulary(NamedTuple):
    """Of a tokenizer what is compared; merges are None where its file has none."""

    labels: Labels
    merges: Merges | None


@dataclasses.dataclass(eq=False)
class SheetReading:
    """The numbers of one model that the statistics need, from one read of it, tensor by tensor.

    Attributes:
        source: the model.
        settings: by this package's fields; None where it does not run the model.
        fields: of the ``config.json`` next to its weights; None without one.
        outputs: on random tokens; None where it is not run on any.
        tokenizer_file: of its tokenizer, if it has one.
        embedding: the role of its embedding; None where it has none.
        vectors: norm scales and biases of queries, keys and values, by path.
        stds: standard deviations of Q, K, V, O, by path.
        spectra: singular values of the matrices of a sample, by path.
        products: sorted values of both products of attention, block by block of the sample, by the key of the method
            (:data:`bornbiased_jax.lineage.spectra.SPECTRA`).
        digests: of all tensors that are not constant, by path.
    """

    source: RoleSource
    settings: ConfigValues | None
    fields: ConfigValues | None
    outputs: ProbeOutputs | None
    tokenizer_file: Path | None
    embedding: Role | None = None
    vectors: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    stds: dict[str, float] = dataclasses.field(default_factory=dict)
    spectra: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    products: dict[str, list[VectorPair]] = dataclasses.field(default_factory=lambda: {key: [] for key in SPECTRA})
    digests: dict[str, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def vocabulary(self) -> TokenVocabulary | None:
        """Tokens and merges; None without a tokenizer of a known kind, or an embedding."""
        if self.tokenizer_file is None or self.embedding is None:
            return None
        try:
            tokenizer = load_tokenizer(self.tokenizer_file)
        except UnknownTokenizerError:
            return None
        return vocabulary(tokenizer, self.source.array_shape(self.embedding)[0])

    @property
    def labels(self) -> Labels | None:
        """The bytes of every token; None without a tokenizer."""
        return None if self.vocabulary is None else self.vocabulary.labels


def read_model(
    source: RoleSource,
    checkpoint: Checkpoint | None,
    ids_ST: np.ndarray | None,
    records: Records = MappingProxyType({}),
    sample: Sample | None = None,
) -> SheetReading:
    """Read all that the statistics need of one model.

    Args:
        source: the model by role; its language component is read.
        checkpoint: the same, where this package runs it.
        ids_ST: what it is run on; None runs nothing.
        records: digests and statistics of its tensors by path, of those that are known; such a tensor is read only
            where its numbers are asked for.
        sample: the matrices and blocks that spectra are taken of; of all by default.
    """
    settings = None if checkpoint is None else checkpoint.config.to_dict()
    outputs = None if checkpoint is None or ids_ST is None else probe_outputs(checkpoint, ids_ST)
    fields, tokenizer_file = config_fields(source.files), _tokenizer_file(source, checkpoint)
    reading = SheetReading(source, settings, fields, outputs, tokenizer_file)
    attention: dict[str, np.ndarray] = {}
    block = None
    for role in source.roles:
        if role.component != LANGUAGE:
            continue
        # Norm scales and biases of attention drift little: kept as they are.
        is_vector = role.leaf == "scale" or (role.leaf == "bias" and role.module in MATRICES[:3])
        is_matrix = is_block_matrix(source, role)
        has_spectrum = is_matrix and (sample is None or role.path in sample.paths)
        has_product = is_matrix and role.group in MATRICES and (sample is None or role.block in sample.blocks)
        # One tensor at a time: its digest, and by kind its values, scale and spectrum.
        record = records.get(role.path)
        is_read = record is None or is_vector or has_spectrum or has_product
        tensor = source.read(role) if is_read else np.empty(0, np.float32)
        is_constant = tensor.min() == tensor.max() if record is None else record.minimum == record.maximum
        if math.prod(source.array_shape(role)) > 1 and not is_constant:
            reading.digests[role.path] = tensor_digest(tensor) if record is None else record.digest
        if role.group == "embedding":
            reading.embedding = role
        if role.leaf == "kernel" and role.block is not None and role.group in MATRICES:
            reading.stds[role.path] = float(tensor.std()) if record is None else record.std
        if is_vector:
            reading.vectors[role.path] = tensor.reshape(-1).astype(np.float64)
        # Spectra are compared by cosines, which no power of two changes: float32 holds no squares of large numbers.
        matrix = scaled_down(tensor, 1.0) if has_spectrum or has_product else tensor
        if has_spectrum:
            reading.spectra[role.path] = singular_values(matrix)
        if has_product:
            # Blocks follow one another: of each the products, once its four matrices are there.
            attention = {**(attention if role.block == block else {}), role.group: matrix}
            block = role.block
            if attention.keys() >= set(MATRICES):
                for key, values in _product_spectra(source, attention).items():
                    reading.products[key].append(values)
                attention = {}
    return reading


def _product_spectra(source: RoleSource, kernels: Mapping[str, np.ndarray]) -> dict[str, VectorPair]:
    """Compute the sorted values of the products of one block's attention, by method; empty where it has none."""
    shape = source.shape(LANGUAGE)
    if shape.num_heads is None or shape.num_kv_heads is None:
        return {}
    factors = attention_factors(kernels, shape.num_heads, shape.num_kv_heads)
    if factors is None:
        return {}
    values = [product_spectra(product) for product in factors]
    return {key: (values[0][key], values[1][key]) for key in SPECTRA}


def _tokenizer_file(source: RoleSource, checkpoint: Checkpoint | None) -> Path | None:
    """Find the tokenizer of a model: next to the files of its weights, of an adapter next to its own first."""
    if checkpoint is not None:
        return next(iter(checkpoint.tokenizer_files), None)
    folders = dict.fromkeys(path.parent for path in reversed(source.files))
    return next((file for folder in folders for file in find_tokenizers(folder)), None)


def config_fields(files: Sequence[Path]) -> ConfigValues | None:
    """Read the fields of ``config.json`` next to weights; None where there is none that can be read.

    Args:
        files: of the weights; of several folders the first one's configuration is taken.
    """
    for folder in dict.fromkeys(path.parent for path in files):
        place = folder / CONFIG
        if place.is_file():
            try:
                content = io.read_json(place)
            except InputError:
                return None
            return _flat(content) if isinstance(content, dict) else None
    return None


def _flat(value: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Name what lies in objects inside an object: {"text_config": {"bias": False}} has the field text_config.bias."""
    fields: dict[str, object] = {}
    for name, entry in value.items():
        if isinstance(entry, dict) and entry:
            fields |= _flat(entry, f"{prefix}{name}.")
        else:
            fields[f"{prefix}{name}"] = entry
    return fields


def vocabulary(tokenizer: Tokenizer, vocab_size: int | None = None) -> TokenVocabulary:
    """Read tokens and merges of a tokenizer.

    Args:
        tokenizer: of any kind; merges are known of the ``tokenizers`` library's BPE alone.
        vocab_size: of the model; tokens beyond it are left out, rows without a token are None.
    """
    labels = tokenizer.token_bytes()
    count = len(labels) if vocab_size is None else vocab_size
    return TokenVocabulary(tuple([*labels, *[None] * (count - len(labels))][:count]), _merges(tokenizer))


def _merges(tokenizer: Tokenizer) -> Merges | None:
    if not isinstance(tokenizer, LibraryTokenizer):
        return None
    rows = json.loads(tokenizer.json_text)["model"].get("merges")
    # A merge is a list of two pieces, or in older files a text with a space between them.
    pairs = [row.split(" ") if isinstance(row, str) else row for row in rows or []]
    return frozenset((pair[0], pair[1]) for pair in pairs if len(pair) == 2) or None
