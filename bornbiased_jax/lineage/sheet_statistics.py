"""The statistics of a sheet for two models that were read, and the reasons why one is not defined."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy import linalg

from bornbiased_jax.lineage.blockwise import ProbeOutputs
from bornbiased_jax.lineage.sheet_fields import CONFIG, FieldComparison, compare_fields
from bornbiased_jax.lineage.sheet_reading import SheetReading, VectorPair
from bornbiased_jax.lineage.sheet_sample import WIDEST
from bornbiased_jax.lineage.sheet_tokens import Labels, shared_numbers, token_statistics
from bornbiased_jax.lineage.spectra import MATRICES, SPECTRA, assigned_cosine

NORM_SCALES = Path(__file__).with_name("synthetic_norm_scales.json")
# Most tokens that embeddings are compared on, and tokens whose rows are compared at once.
_TOKENS, _ROWS = 20_000, 1024
# Widest embeddings that a rotation is fitted to: a dozen seconds on two cores.
_WIDEST_TABLE = 4096


def compare(base: SheetReading, suspect: SheetReading) -> dict[str, float | None]:
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
    fields = compared_settings(base, suspect) or compared_files(base, suspect)
    values["equal_settings"] = None if fields is None else fields.fraction
    return values | _embedding_statistics(base, suspect) | _output_statistics(base.outputs, suspect.outputs)


def norms_by_block(base: SheetReading, suspect: SheetReading) -> dict[str, tuple[float, float]]:
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


def stds_by_block(stds: Mapping[str, float]) -> dict[str, list[float | None]]:
    """Sort standard deviations by matrix and block.

    >>> stds_by_block({"language/blocks/1/query/kernel": 0.5, "language/blocks/2/value/kernel": 0.25})
    {'query': [0.5, None], 'value': [None, 0.25]}
    """
    places = {}
    for path, std in stds.items():
        number, _, name = path.partition("/blocks/")[2].partition("/")
        places[name.partition("/")[0], int(number)] = std
    numbers = range(1, max((number for _, number in places), default=0) + 1)
    matrices = [matrix for matrix in MATRICES if any(matrix == of for of, _ in places)]
    return {matrix: [places.get((matrix, number)) for number in numbers] for matrix in matrices}


def synthetic_releases() -> dict[str, float]:
    """Compute both cosines of the norm scales of two synthetic releases, block by block, that share nothing."""
    first, second = json.loads(NORM_SCALES.read_text())["releases"].values()
    pairs = list(zip(np.array(first), np.array(second), strict=True))
    means = {"norm_cosine": _mean(_cosine, pairs), "norm_cosine_centered": _mean(_correlation, pairs)}
    return {key: mean for key, mean in means.items() if mean is not None}


def compared_files(base: SheetReading, suspect: SheetReading) -> FieldComparison | None:
    """Compare two models by the fields of their files; None where not both have a configuration."""
    return None if base.fields is None or suspect.fields is None else compare_fields(base.fields, suspect.fields)


def compared_settings(base: SheetReading, suspect: SheetReading) -> FieldComparison | None:
    """Compare two models by this package's fields: one that a model alone names has its default in the other."""
    if base.settings is None or suspect.settings is None:
        return None
    defaults = dict.fromkeys(base.settings.keys() | suspect.settings.keys())
    return compare_fields(defaults | dict(base.settings), defaults | dict(suspect.settings))


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


def _embedding_statistics(base: SheetReading, suspect: SheetReading) -> dict[str, float | None]:
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


def undefined_reason(key: str, base: SheetReading, suspect: SheetReading) -> str:
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


def _reason_of_vectors(key: str, base: SheetReading, suspect: SheetReading) -> str:
    ending, name = ("/bias", "biases of Q, K, V") if key == "bias_cosine" else ("/scale", "norm scales")
    if any(all(not path.endswith(ending) for path in model.vectors) for model in (base, suspect)):
        return f"no {name} in both models"
    if not any(path.endswith(ending) for path in _shared(base.vectors, suspect.vectors)):
        return f"{name} of two sizes"
    return f"{name} that are {'zero' if key == 'bias_cosine' else 'constant, as before training'}"


def _reason_of_tokens(key: str, base: SheetReading, suspect: SheetReading) -> str:
    if base.vocabulary is None or suspect.vocabulary is None:
        return "not both models have a tokenizer"
    return "not both tokenizers have merges" if key == "shared_merges" else "no token in both models"


def _reason_of_embeddings(base: SheetReading, suspect: SheetReading) -> str:
    if base.embedding is None or suspect.embedding is None:
        return "no embedding in both models"
    widths = {model.source.array_shape(model.embedding)[1] for model in (base, suspect) if model.embedding is not None}
    if len(widths) > 1:
        return "embeddings of two widths"
    if max(widths) > _WIDEST_TABLE:
        return f"embeddings wider than {_WIDEST_TABLE:,}"
    return "fewer than two tokens in both models"
