"""What is this evidence worth: statistics that public disputes were argued with, for a pair and for unrelated models.

None of them is a test. Each value stands next to its range over unrelated models (``unrelated_models.json``, the result
of ``bornbiased reproduce evidence_sheet``), so that a cosine of 0.99 between norm scales can be read for what it is.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from scipy import linalg

from bornbiased_jax import hardware
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.digests import tensor_digest
from bornbiased_jax.checkpoints.native_roles import LANGUAGE
from bornbiased_jax.checkpoints.roles import Role, RoleSource
from bornbiased_jax.lineage.fingerprints import TensorRecord
from bornbiased_jax.lineage.same_model import logits_memory, probe_logits

KINDS = ("untrained", "trained on one text", "trained on other texts", "of two widths")
"""Kinds of unrelated pairs in the calibration."""
SYNTHETIC = "two releases (synthetic)"
"""The pair of norm scales that were drawn apart, with the variation of trained ones."""
QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)
CALIBRATION = Path(__file__).with_name("unrelated_models.json")
NORM_SCALES = Path(__file__).with_name("synthetic_norm_scales.json")
VectorPair = tuple[np.ndarray, np.ndarray]
Records = Mapping[str, TensorRecord]
"""Records of the tensors of a model, by path."""
_ATTENTION = ("query", "key", "value", "output")
# Widest matrix of which singular values are computed, and most tokens that embeddings are compared on.
_WIDEST, _TOKENS = 1024, 20_000
# Tokens whose rows are compared at once.
_ROWS = 1024
# Random sequences that both models are run on, and their length.
_SEQUENCES, _LENGTH = 8, 16


class Statistic(NamedTuple):
    """A statistic of a pair: its name for a reader, and what it is worth in one sentence."""

    title: str
    worth: str


STATISTICS: dict[str, Statistic] = {
    "norm_cosine": Statistic(
        "cosine of norm scales",
        "No evidence: scales are positive and vary little around their mean, so that those of any two models point the "
        "same way; a variation by a tenth gives 0.99.",
    ),
    "norm_cosine_centered": Statistic(
        "cosine of norm scales, means taken out",
        "Evidence where it is far above its range: without their mean, unrelated scales agree by chance alone.",
    ),
    "std_profile": Statistic(
        "correlation of standard deviations of Q, K, V, O over blocks",
        "No evidence: initialization and architecture shape the profile, whatever the seed.",
    ),
    "embedding_cosine": Statistic(
        "mean cosine of the embeddings of shared tokens",
        "Evidence where it is far above its range; a rotation hides it.",
    ),
    "embedding_procrustes": Statistic(
        "the same after the best rotation",
        "Evidence where it is far above its range: a fitted rotation aligns any two tables in part, the more the fewer "
        "tokens they share.",
    ),
    "mdir_trace": Statistic(
        "trace of the polar factor of the embeddings (MDIR)",
        "Evidence where it is far above its range: near 0 with a standard deviation of 1 between unrelated models.",
    ),
    "tokenizer_overlap": Statistic(
        "shared tokens, as a fraction of all",
        "No evidence about weights: a tokenizer is chosen, and public ones are chosen often.",
    ),
    "equal_settings": Statistic(
        "equal fields of the configuration",
        "No evidence about weights: recipes are copied with their settings.",
    ),
    "bias_cosine": Statistic(
        "cosine of the biases of Q, K, V",
        "Evidence where it is far above its range: heads and channels of unrelated models do not correspond.",
    ),
    "equal_tensors": Statistic(
        "equal tensors, as a fraction of those that are not constant",
        "A fact and no statistic: tensors that a seed drew are equal only where they were copied or drawn alike.",
    ),
    "spectra": Statistic(
        "cosine of singular values of matrices",
        "No evidence: matrices of one shape and one initialization have one spectrum, whatever the seed.",
    ),
    "cka": Statistic(
        "CKA of logits on random tokens",
        "Weak evidence: its range depends on the inputs, and is highest between models that nobody trained.",
    ),
    "output_agreement": Statistic(
        "equal next tokens on random tokens",
        "No evidence by itself: models of one text prefer the same tokens.",
    ),
}
"""Statistics by key, in the order of the sheet."""


@dataclasses.dataclass(frozen=True, eq=False)
class Reading:
    """What the statistics need of one model, from one read of it, tensor by tensor.

    Attributes:
        source: the model.
        embedding: the role of its embedding; None where it has none.
        vectors: norm scales and biases of queries, keys and values, by path.
        stds: standard deviations of Q, K, V, O, by path.
        spectra: singular values by path, of matrices up to 1,024 wide.
        digests: of all tensors that are not constant, by path.
        settings: fields of the configuration; None where this package does not run the model.
        logits_PV: on random tokens; None likewise.
    """

    source: RoleSource
    embedding: Role | None
    vectors: Mapping[str, np.ndarray]
    stds: Mapping[str, float]
    spectra: Mapping[str, np.ndarray]
    digests: Mapping[str, str]
    settings: Mapping[str, object] | None
    logits_PV: np.ndarray | None

    @functools.cached_property
    def labels(self) -> tuple[bytes | None, ...] | None:
        """The bytes of every token; None without a tokenizer."""
        labels = self.source.token_labels()
        return None if labels is None else tuple(labels)


@dataclasses.dataclass(frozen=True)
class Row:
    """One statistic of a pair next to unrelated models.

    Attributes:
        key: in :data:`STATISTICS`.
        value: of the pair; None where it is not defined.
        ranges: quantiles (:data:`QUANTILES`) by kind of unrelated pair, or :data:`SYNTHETIC`; kinds where it is not
            defined are missing.
    """

    key: str
    value: float | None
    ranges: Mapping[str, tuple[float, ...]]

    @property
    def is_within(self) -> bool | None:
        """Whether some unrelated pair was as extreme on both ends; None where there is nothing to compare with."""
        if self.value is None or not self.ranges:
            return None
        least, largest = (end(row[at] for row in self.ranges.values()) for end, at in ((min, 0), (max, -1)))
        return bool(least <= self.value <= largest)


@dataclasses.dataclass(frozen=True)
class Sheet:
    """Every statistic of a pair next to unrelated models.

    Attributes:
        rows: one for each statistic.
        sizes: of the unrelated models, in words.
    """

    rows: tuple[Row, ...]
    sizes: str


def evidence_sheet(
    base: RoleSource,
    suspect: RoleSource,
    checkpoints: tuple[Checkpoint, Checkpoint] | None,
    records: tuple[Records, Records] | None = None,
) -> Sheet:
    """Compute every statistic of a pair, next to its range over unrelated models.

    Args:
        base, suspect: the models.
        checkpoints: the same, where this package runs both.
        records: of the tensors of each, where fingerprints were made.
    """
    calibration = json.loads(CALIBRATION.read_text())
    first, second = checkpoints or (None, None)
    # Both models on the same tokens, then every statistic with its range.
    ids_ST = None if first is None or second is None else probe_ids(first, second)
    with ThreadPoolExecutor(2) as pool:
        readings = pool.map(read_model, (base, suspect), (first, second), (ids_ST, ids_ST), records or ({}, {}))
        values = compare(*readings)
    synthetic = synthetic_releases()
    rows = []
    for key in STATISTICS:
        ranges = {kind: tuple(row) for kind, row in calibration["statistics"][key].items()}
        if key in synthetic:
            ranges[SYNTHETIC] = (synthetic[key],) * len(QUANTILES)
        rows.append(Row(key, values[key], ranges))
    return Sheet(tuple(rows), calibration["sizes"])


def synthetic_releases() -> dict[str, float]:
    """Compute both cosines of the norm scales of two synthetic releases, block by block, that share nothing."""
    first, second = json.loads(NORM_SCALES.read_text())["releases"].values()
    pairs = list(zip(np.array(first), np.array(second), strict=True))
    means = {"norm_cosine": _mean(_cosine, pairs), "norm_cosine_centered": _mean(_correlation, pairs)}
    return {key: mean for key, mean in means.items() if mean is not None}


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
    digests: dict[str, str] = {}
    embedding = None
    for role in source.roles:
        if role.component != LANGUAGE:
            continue
        # Norm scales and biases of attention drift little: kept as they are.
        is_vector = role.leaf == "scale" or (role.leaf == "bias" and role.module in _ATTENTION[:3])
        is_block_kernel = role.leaf == "kernel" and role.block is not None
        shape = source.array_shape(role)
        has_spectrum = is_block_kernel and len(shape) == 2 and max(shape) <= _WIDEST
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
    settings = None if checkpoint is None else checkpoint.config.to_dict()
    logits_PV = None if checkpoint is None or ids_ST is None else probe_logits(checkpoint, ids_ST)
    return Reading(source, embedding, vectors, stds, spectra, digests, settings, logits_PV)


# ---------------------------------------------------------------------------------------------------------------------
# Statistics


def compare(base: Reading, suspect: Reading) -> dict[str, float | None]:
    """Compute every statistic of a pair by its key; None where it is not defined."""
    # Norm scales and biases that both have in one size.
    vectors = _shared(base.vectors, suspect.vectors)
    scales = [pair for path, pair in vectors.items() if path.endswith("/scale")]
    biases = [pair for path, pair in vectors.items() if path.endswith("/bias")]
    values: dict[str, float | None] = {
        "norm_cosine": _mean(_cosine, scales),
        "norm_cosine_centered": _mean(_correlation, scales),
        "std_profile": _profile(base.stds, suspect.stds),
        "bias_cosine": _mean(_cosine, biases),
        "spectra": _mean(_cosine, list(_shared(base.spectra, suspect.spectra).values())),
        "equal_tensors": _equal_fraction(base.digests, suspect.digests),
        "tokenizer_overlap": _overlap(base.labels, suspect.labels),
        "equal_settings": None
        if base.settings is None or suspect.settings is None
        else float(np.mean([base.settings[name] == suspect.settings.get(name) for name in base.settings])),
    }
    return values | _embedding_statistics(base, suspect) | _output_statistics(base.logits_PV, suspect.logits_PV)


def _shared(base: Mapping[str, np.ndarray], suspect: Mapping[str, np.ndarray]) -> dict[str, VectorPair]:
    """Pair vectors that both models have in one size, by path."""
    return {
        path: (vector, suspect[path])
        for path, vector in base.items()
        if path in suspect and vector.shape == suspect[path].shape
    }


def _cosine(left_N: np.ndarray, right_N: np.ndarray) -> float | None:
    norms = float(np.linalg.norm(left_N) * np.linalg.norm(right_N))
    return float(left_N @ right_N) / norms if norms > 0.0 else None


def _correlation(left_N: np.ndarray, right_N: np.ndarray) -> float | None:
    return _cosine(left_N - left_N.mean(), right_N - right_N.mean())


def _mean(statistic: Callable[[np.ndarray, np.ndarray], float | None], pairs: Sequence[VectorPair]) -> float | None:
    """Average a statistic over pairs of vectors where it is defined."""
    values = [statistic(*pair) for pair in pairs]
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined else None


def _profile(base: Mapping[str, float], suspect: Mapping[str, float]) -> float | None:
    paths = sorted(base.keys() & suspect.keys())
    if len(paths) < 3:
        return None
    return _correlation(*(np.array([stds[path] for path in paths]) for stds in (base, suspect)))


def _equal_fraction(base: Mapping[str, str], suspect: Mapping[str, str]) -> float | None:
    if not base:
        return None
    return sum(suspect.get(path) == digest for path, digest in base.items()) / len(base)


def _overlap(base: tuple[bytes | None, ...] | None, suspect: tuple[bytes | None, ...] | None) -> float | None:
    if base is None or suspect is None:
        return None
    first, second = set(base) - {None}, set(suspect) - {None}
    return len(first & second) / max(1, len(first | second))


def _embedding_statistics(base: Reading, suspect: Reading) -> dict[str, float | None]:
    """Compare the embeddings of shared tokens: by their strings where both have them, else by their numbers."""
    values: dict[str, float | None] = dict.fromkeys(("embedding_cosine", "embedding_procrustes", "mdir_trace"))
    if base.embedding is None or suspect.embedding is None:
        return values
    base_VD, suspect_VD = base.source.read(base.embedding), suspect.source.read(suspect.embedding)
    width = base_VD.shape[1]
    if width != suspect_VD.shape[1]:
        return values
    # Rows of shared tokens in both tables.
    base_rows, suspect_rows = _shared_tokens(base.labels, suspect.labels, min(len(base_VD), len(suspect_VD)))
    # Norms and products of some tokens at a time: in float64 both tables whole would take gigabytes.
    norms, products = [], []
    for start in range(0, len(base_rows), _ROWS):
        base_tD = base_VD[base_rows[start : start + _ROWS]].astype(np.float64)
        suspect_tD = suspect_VD[suspect_rows[start : start + _ROWS]].astype(np.float64)
        norms.append(np.linalg.norm(base_tD, axis=1) * np.linalg.norm(suspect_tD, axis=1))
        products.append((base_tD * suspect_tD).sum(axis=1))
    norms_T = np.concatenate(norms or [np.zeros(0)])
    is_used_T = norms_T > 0.0
    if is_used_T.sum() < 2:
        return values
    values["embedding_cosine"] = float((np.concatenate(products)[is_used_T] / norms_T[is_used_T]).mean())
    if width <= _WIDEST:
        base_TD, suspect_TD = base_VD[base_rows].astype(np.float64), suspect_VD[suspect_rows].astype(np.float64)
        # E_Aᵀ E_B = U S Vᵀ: the best rotation is U Vᵀ, and the cosine after it Σ S.
        left_DD, singular_D, right_DD = linalg.svd(base_TD.T @ suspect_TD)
        scale = float(np.linalg.norm(base_TD) * np.linalg.norm(suspect_TD))
        values["embedding_procrustes"] = float(singular_D.sum()) / scale
        values["mdir_trace"] = float(np.trace(left_DD @ right_DD))
    return values


def _shared_tokens(
    base: tuple[bytes | None, ...] | None, suspect: tuple[bytes | None, ...] | None, count: int
) -> tuple[list[int], list[int]]:
    """Return the numbers of shared tokens in both models, at most so many as are compared."""
    if base is None or suspect is None:
        numbers = list(range(min(count, _TOKENS)))
        return numbers, numbers
    places = {label: number for number, label in enumerate(suspect) if label is not None}
    pairs = [(number, places[label]) for number, label in enumerate(base) if label is not None and label in places]
    pairs = pairs[:: max(1, -(-len(pairs) // _TOKENS))]
    return [first for first, _ in pairs], [second for _, second in pairs]


def _output_statistics(base_PV: np.ndarray | None, suspect_PV: np.ndarray | None) -> dict[str, float | None]:
    """Compare what two models say on the same tokens: linear CKA over positions, and equal next tokens."""
    if base_PV is None or suspect_PV is None or len(base_PV) != len(suspect_PV):
        return {"cka": None, "output_agreement": None}
    # Centered Grams over positions: their cosine is linear CKA.
    grams = []
    for logits_PV in (base_PV, suspect_PV):
        centered_PV = logits_PV - logits_PV.mean(axis=0)
        grams.append((centered_PV @ centered_PV.T).astype(np.float64).reshape(-1))
    agreement = float((base_PV.argmax(axis=1) == suspect_PV.argmax(axis=1)).mean())
    return {"cka": _cosine(*grams), "output_agreement": agreement}
