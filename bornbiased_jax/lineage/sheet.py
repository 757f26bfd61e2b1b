"""What is this evidence worth: statistics that public disputes were argued with, for a pair and for unrelated models.

None of them is a test. Each value stands next to its range over unrelated models (``unrelated_models.json``, the result
of ``bornbiased reproduce evidence_sheet``), so that a cosine of 0.99 between norm scales can be read for what it is.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import linalg
from threadpoolctl import threadpool_limits

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.roles import RoleSource
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.lineage.same_model import ProbeOutputs
from bornbiased_jax.lineage.sheet_fields import CONFIG, FieldComparison, compare_fields
from bornbiased_jax.lineage.sheet_reading import (
    Reading,
    Records,
    VectorPair,
    probe_ids,
    read_model,
)
from bornbiased_jax.lineage.sheet_sample import WIDEST, sample_pair
from bornbiased_jax.lineage.sheet_tokens import Labels, shared_numbers, token_statistics
from bornbiased_jax.lineage.spectra import MATRICES, SPECTRA, assigned_cosine
from bornbiased_jax.parameters import parameter_table

KINDS = ("untrained", "trained on one text", "trained on other texts", "of two widths")
"""Kinds of unrelated pairs in the calibration."""
SYNTHETIC = "two releases (synthetic)"
"""The pair of norm scales that were drawn apart, with the variation of trained ones."""
QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)
CALIBRATION = Path(__file__).with_name("unrelated_models.json")
NORM_SCALES = Path(__file__).with_name("synthetic_norm_scales.json")
# Most tokens that embeddings are compared on, and tokens whose rows are compared at once.
_TOKENS, _ROWS = 20_000, 1024
# Widest embeddings that a rotation is fitted to: a dozen seconds on two cores.
_WIDEST_TABLE = 4096


class Statistic(NamedTuple):
    """A statistic of a pair.

    Attributes:
        title: its name for a reader.
        worth: what it is worth as evidence, in one sentence.
        is_evidence: whether it can tell related models from unrelated ones; a place beside a range means nothing else.
        has_one_range: whether unrelated models of every size have the same range.
    """

    title: str
    worth: str
    is_evidence: bool = True
    has_one_range: bool = False


STATISTICS: dict[str, Statistic] = {
    "norm_cosine": Statistic(
        "cosine of norm scales",
        "No evidence: scales are positive and vary little around their mean, so that those of any two models point the "
        "same way; a variation by a tenth gives 0.99.",
        is_evidence=False,
    ),
    "norm_cosine_centered": Statistic(
        "cosine of norm scales, means taken out",
        "Evidence where it is far above its range: without their mean, unrelated scales agree by chance alone.",
    ),
    "std_profile": Statistic(
        "correlation of standard deviations of Q, K, V, O over blocks",
        "No evidence: initialization and architecture shape the profile, whatever the seed.",
        is_evidence=False,
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
        is_evidence=False,
    ),
    "shared_merges": Statistic(
        "shared merges of the tokenizer, as a fraction of all",
        "No evidence about weights: whoever takes a public tokenizer has its merges.",
        is_evidence=False,
    ),
    "id_shift": Statistic(
        "shared tokens whose numbers differ by one constant",
        "No evidence about weights: near 1 it shows that one tokenizer was made from the other.",
        is_evidence=False,
    ),
    "equal_settings": Statistic(
        "equal fields of the configuration",
        "No evidence about weights: recipes are copied with their settings.",
        is_evidence=False,
    ),
    "bias_cosine": Statistic(
        "cosine of the biases of Q, K, V",
        "Evidence where it is far above its range: heads and channels of unrelated models do not correspond.",
    ),
    "equal_tensors": Statistic(
        "equal tensors, as a fraction of those that are not constant",
        "A fact and no statistic: tensors that a seed drew are equal only where they were copied or drawn alike.",
        has_one_range=True,
    ),
    "spectra": Statistic(
        "cosine of singular values of matrices",
        "No evidence: matrices of one shape and one initialization have one spectrum, whatever the seed.",
        is_evidence=False,
    ),
    "ghostspec": Statistic(
        "GhostSpec (spectra of products)",
        "No evidence by itself: attention's products of one shape have one spectrum in the main, whatever the seed.",
        is_evidence=False,
    ),
    "self": Statistic(
        "SELF (eigenvalues of products)",
        "No evidence by itself, for the same reason; a rotation hides neither.",
        is_evidence=False,
    ),
    "cka_hidden": Statistic(
        "CKA of hidden states after the middle block, on random tokens",
        "Weak evidence: its range depends on the inputs, and is highest between models that nobody trained.",
    ),
    "cka": Statistic(
        "CKA of logits on random tokens",
        "Weak evidence, for the same reason.",
    ),
    "output_agreement": Statistic(
        "equal next tokens on random tokens",
        "No evidence by itself: models of one text prefer the same tokens.",
        is_evidence=False,
    ),
}
"""Statistics by key, in the order of the sheet."""


StdProfiles = Mapping[str, Sequence[float | None]]
"""Standard deviations by matrix ("query" …), of block after block; None where a block lacks the matrix."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One statistic of a pair next to unrelated models.

    Attributes:
        key: in :data:`STATISTICS`.
        value: of the pair; None where it is not defined.
        ranges: quantiles (:data:`QUANTILES`) by kind of unrelated pair, or :data:`SYNTHETIC`; kinds where it is not
            defined are missing.
        reason: why there is no value; "" where there is one.
        is_calibrated: whether both models have the architecture and a size of the unrelated models.
        sample: the part of both models that the value was taken from, or the counts behind it; "" for all of them.
        by_block: of a mean over the norm scales of all blocks, the least and the largest mean of one block.
    """

    key: str
    value: float | None
    ranges: Mapping[str, tuple[float, ...]]
    reason: str = ""
    is_calibrated: bool = True
    sample: str = ""
    by_block: tuple[float, float] | None = None

    @property
    def place(self) -> Literal["above", "inside", "below"] | None:
        """Where the value lies beside all unrelated pairs.

        None where that would mean nothing: without a value or a range, for a statistic that is no evidence, and for
        models whose ranges nobody measured, because unrelated models of their size were not.
        """
        statistic = STATISTICS[self.key]
        if self.value is None or not self.ranges or not statistic.is_evidence:
            return None
        if not (self.is_calibrated or statistic.has_one_range):
            return None
        least, largest = (end(row[at] for row in self.ranges.values()) for end, at in ((min, 0), (max, -1)))
        # Ranges are stored with four digits.
        value = float(f"{self.value:.4g}")
        return "above" if value > largest else "below" if value < least else "inside"


@dataclasses.dataclass(frozen=True)
class Sheet:
    """Every statistic of a pair next to unrelated models.

    Attributes:
        rows: one for each statistic.
        sizes: of the unrelated models, in words.
        fields: of both ``config.json``; None where not both models have one.
        stds: standard deviations of the base's Q, K, V, O over its blocks, and of the suspect's.
    """

    rows: tuple[Row, ...]
    sizes: str
    fields: FieldComparison | None = None
    stds: tuple[StdProfiles, StdProfiles] = ({}, {})

    def to_json(self) -> dict[str, object]:
        """Return the values of the pair by statistic, and the standard deviations of each model by matrix and block."""
        profiles = {
            model: {matrix: list(values) for matrix, values in stds.items()}
            for model, stds in zip(("base", "suspect"), self.stds, strict=True)
        }
        return {"values": {row.key: row.value for row in self.rows}, "std_by_block": profiles}


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
    is_calibrated = checkpoints is not None and all(_is_calibrated(model.config, calibration) for model in checkpoints)
    # Both models on the same tokens, then every statistic with its range.
    ids_ST = None if first is None or second is None else probe_ids(first, second)
    samples = sample_pair(base, suspect)
    # A core for each model: threads of BLAS beyond the cores would wait by spinning.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(2) as pool:
        sources, models, of_both = (base, suspect), (first, second), (samples.base, samples.suspect)
        readings = list(pool.map(read_model, sources, models, (ids_ST, ids_ST), records or ({}, {}), of_both))
    values = compare(*readings)
    fields, settings = _compared_files(*readings), _compared_settings(*readings)
    parts = {
        "spectra": samples.matrices,
        **dict.fromkeys(SPECTRA, samples.products),
        "equal_settings": _count(settings, "settings of this package") or _count(fields, f"fields in both {CONFIG}"),
    }
    synthetic = synthetic_releases()
    by_block = norms_by_block(*readings)
    rows = []
    for key in STATISTICS:
        ranges = {kind: tuple(row) for kind, row in calibration["statistics"][key].items()}
        if key in synthetic:
            ranges[SYNTHETIC] = (synthetic[key],) * len(QUANTILES)
        reason = "" if values[key] is not None else _reason(key, *readings)
        rows.append(Row(key, values[key], ranges, reason, is_calibrated, parts.get(key, ""), by_block.get(key)))
    profiles = (_stds_by_block(readings[0].stds), _stds_by_block(readings[1].stds))
    return Sheet(tuple(rows), calibration["sizes"], fields, profiles)


def calibrated_config(calibration: Mapping[str, Any], width: int) -> ModelConfig:
    """Return the architecture of the unrelated models at one of their widths."""
    models = calibration["models"]
    return preset(models["model"], **{**models["changes"], "d_model": width, "d_ff": 2 * width})


def _is_calibrated(cfg: ModelConfig, calibration: Mapping[str, Any]) -> bool:
    """Check whether a model has the parameters of the unrelated models, in shape, at one of their widths."""
    widths = calibration["models"]["widths"]
    return any(_shapes(cfg) == _shapes(calibrated_config(calibration, width)) for width in widths)


def _shapes(cfg: ModelConfig) -> dict[str, tuple[int, ...]]:
    return {path: tuple(row.shape) for path, row in parameter_table(cfg).items()}


def synthetic_releases() -> dict[str, float]:
    """Compute both cosines of the norm scales of two synthetic releases, block by block, that share nothing."""
    first, second = json.loads(NORM_SCALES.read_text())["releases"].values()
    pairs = list(zip(np.array(first), np.array(second), strict=True))
    means = {"norm_cosine": _mean(_cosine, pairs), "norm_cosine_centered": _mean(_correlation, pairs)}
    return {key: mean for key, mean in means.items() if mean is not None}


def _compared_files(base: Reading, suspect: Reading) -> FieldComparison | None:
    return None if base.fields is None or suspect.fields is None else compare_fields(base.fields, suspect.fields)


def _compared_settings(base: Reading, suspect: Reading) -> FieldComparison | None:
    """Compare two models by this package's fields: one that a model alone names has its default in the other."""
    if base.settings is None or suspect.settings is None:
        return None
    defaults = dict.fromkeys(base.settings.keys() | suspect.settings.keys())
    return compare_fields(defaults | dict(base.settings), defaults | dict(suspect.settings))


def _count(compared: FieldComparison | None, words: str) -> str:
    """Count equal fields among those that both models have, in words; "" without any."""
    if compared is None or compared.fraction is None:
        return ""
    return f"{len(compared.equal)} of {len(compared.equal) + len(compared.different)} {words}"


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
        **token_statistics(base.vocabulary, suspect.vocabulary),
        **{key: _assigned(base.products[key], suspect.products[key]) for key in SPECTRA},
    }
    # In words of this package where it runs both models, else in those of their files.
    fields = _compared_settings(base, suspect) or _compared_files(base, suspect)
    values["equal_settings"] = None if fields is None else fields.fraction
    return values | _embedding_statistics(base, suspect) | _output_statistics(base.outputs, suspect.outputs)


def norms_by_block(base: Reading, suspect: Reading) -> dict[str, tuple[float, float]]:
    """Return the least and the largest cosine of norm scales of one block, raw and centered, by key.

    A block with several norms has their mean; the norm after the last block is of none. Undefined cosines are left out.
    """
    blocks: dict[str, list[VectorPair]] = {}
    for path, pair in _shared(base.vectors, suspect.vectors).items():
        _, is_in_block, place = path.partition("/blocks/")
        if is_in_block and path.endswith("/scale"):
            blocks.setdefault(place.partition("/")[0], []).append(pair)
    ends = {}
    for key, statistic in (("norm_cosine", _cosine), ("norm_cosine_centered", _correlation)):
        means = [mean for pairs in blocks.values() if (mean := _mean(statistic, pairs)) is not None]
        if means:
            ends[key] = min(means), max(means)
    return ends


def _stds_by_block(stds: Mapping[str, float]) -> dict[str, list[float | None]]:
    """Sort standard deviations by matrix and block.

    >>> _stds_by_block({"language/blocks/1/query/kernel": 0.5, "language/blocks/2/value/kernel": 0.25})
    {'query': [0.5, None], 'value': [None, 0.25]}
    """
    places = {}
    for path, std in stds.items():
        number, _, name = path.partition("/blocks/")[2].partition("/")
        places[name.partition("/")[0], int(number)] = std
    numbers = range(1, max((number for _, number in places), default=0) + 1)
    matrices = [matrix for matrix in MATRICES if any(matrix == of for of, _ in places)]
    return {matrix: [places.get((matrix, number)) for number in numbers] for matrix in matrices}


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


def _assigned(base: Sequence[VectorPair], suspect: Sequence[VectorPair]) -> float | None:
    return assigned_cosine(base, suspect) if base and suspect else None


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
    # Sums over some tokens at a time: in float64 both tables whole would take gigabytes.
    cosines, is_rotated = [], width <= _WIDEST_TABLE
    product_DD, squares = np.zeros((width, width) if is_rotated else (0, 0)), np.zeros(2)
    for start in range(0, len(base_rows), _ROWS):
        base_tD = base_VD[base_rows[start : start + _ROWS]].astype(np.float64)
        suspect_tD = suspect_VD[suspect_rows[start : start + _ROWS]].astype(np.float64)
        squares_2t = np.stack([np.square(rows_tD).sum(axis=1) for rows_tD in (base_tD, suspect_tD)])
        squares += squares_2t.sum(axis=1)
        norms_t = np.sqrt(squares_2t.prod(axis=0))
        is_used_t = norms_t > 0.0
        cosines.append((base_tD * suspect_tD).sum(axis=1)[is_used_t] / norms_t[is_used_t])
        if is_rotated:
            product_DD += base_tD.T @ suspect_tD
    cosines_T = np.concatenate(cosines or [np.zeros(0)])
    if len(cosines_T) < 2:
        return values
    values["embedding_cosine"] = float(cosines_T.mean())
    if is_rotated:
        # E_Aᵀ E_B = U S Vᵀ: the best rotation is U Vᵀ, and the cosine after it Σ S. V by the Gram matrix and U S as
        # the product with it, in a third of the time.
        _, right_DD = linalg.eigh(product_DD.T @ product_DD, driver="evd", overwrite_a=True)
        scaled_DD = product_DD @ right_DD
        singular_D = np.sqrt(np.square(scaled_DD).sum(axis=0))
        values["embedding_procrustes"] = float(singular_D.sum() / np.sqrt(squares.prod()))
        overlaps_D = np.einsum("ij,ij->j", scaled_DD, right_DD)
        values["mdir_trace"] = float((overlaps_D / np.where(singular_D > 0, singular_D, 1)).sum())
    return values


def _shared_tokens(base: Labels | None, suspect: Labels | None, count: int) -> tuple[list[int], list[int]]:
    """Return the numbers of shared tokens in both models, at most so many as are compared."""
    if base is None or suspect is None:
        numbers = list(range(min(count, _TOKENS)))
        return numbers, numbers
    pairs = shared_numbers(base, suspect)
    pairs = pairs[:: max(1, -(-len(pairs) // _TOKENS))]
    return [first for first, _ in pairs], [second for _, second in pairs]


def _output_statistics(base: ProbeOutputs | None, suspect: ProbeOutputs | None) -> dict[str, float | None]:
    """Compare what two models make of the same tokens: linear CKA over positions, and equal next tokens."""
    if base is None or suspect is None or len(base.logits_PV) != len(suspect.logits_PV):
        return dict.fromkeys(("cka_hidden", "cka", "output_agreement"))
    agreement = (base.logits_PV.argmax(axis=1) == suspect.logits_PV.argmax(axis=1)).mean()
    return {
        "cka_hidden": _linear_cka(base.middle_PD, suspect.middle_PD),
        "cka": _linear_cka(base.logits_PV, suspect.logits_PV),
        "output_agreement": float(agreement),
    }


def _linear_cka(*features: np.ndarray) -> float | None:
    """Compute linear CKA of two models' features, [P, D] each: the cosine of centered Grams over positions."""
    grams = []
    for features_PD in features:
        centered_PD = features_PD - features_PD.mean(axis=0)
        grams.append((centered_PD @ centered_PD.T).astype(np.float64).reshape(-1))
    return _cosine(*grams)


# ---------------------------------------------------------------------------------------------------------------------
# Reasons


def _reason(key: str, base: Reading, suspect: Reading) -> str:
    """Say in a few words why a statistic of a pair is not defined."""
    if key in ("norm_cosine", "norm_cosine_centered", "bias_cosine"):
        return _reason_of_vectors(key, base, suspect)
    if key == "std_profile":
        return "fewer than three matrices of attention in both"
    if key == "spectra":
        return f"no matrices of one shape, with a side up to {WIDEST:,}, in both"
    if key == "equal_tensors":
        return "every tensor of the base is constant"
    if key in ("tokenizer_overlap", "shared_merges", "id_shift"):
        return _reason_of_tokens(key, base, suspect)
    if key in SPECTRA:
        return f"no attention of a rank up to {WIDEST:,} in both models"
    if key.startswith("embedding") or key == "mdir_trace":
        return _reason_of_embeddings(base, suspect)
    if key == "equal_settings":
        return f"not both models have a {CONFIG}, or fields in common"
    # The rest needs outputs on the same tokens.
    if base.settings is None or suspect.settings is None:
        return "this package does not run both models"
    if base.settings["vocab_size"] != suspect.settings["vocab_size"]:
        return "vocabularies of two sizes"
    return "more memory than was free"


def _reason_of_vectors(key: str, base: Reading, suspect: Reading) -> str:
    ending, name = ("/bias", "biases of Q, K, V") if key == "bias_cosine" else ("/scale", "norm scales")
    if any(all(not path.endswith(ending) for path in model.vectors) for model in (base, suspect)):
        return f"no {name} in both models"
    if not any(path.endswith(ending) for path in _shared(base.vectors, suspect.vectors)):
        return f"{name} of two sizes"
    return f"{name} that are {'zero' if key == 'bias_cosine' else 'constant, as before training'}"


def _reason_of_tokens(key: str, base: Reading, suspect: Reading) -> str:
    if base.vocabulary is None or suspect.vocabulary is None:
        return "not both models have a tokenizer"
    return "not both tokenizers have merges" if key == "shared_merges" else "no token in both models"


def _reason_of_embeddings(base: Reading, suspect: Reading) -> str:
    if base.embedding is None or suspect.embedding is None:
        return "no embedding in both models"
    widths = {model.source.array_shape(model.embedding)[1] for model in (base, suspect) if model.embedding is not None}
    if len(widths) > 1:
        return "embeddings of two widths"
    if max(widths) > _WIDEST_TABLE:
        return f"embeddings wider than {_WIDEST_TABLE:,}"
    return "fewer than two tokens in both models"
