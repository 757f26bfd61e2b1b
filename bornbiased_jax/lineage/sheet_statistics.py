"""The statistics of a sheet for two models that were read: a number each, or the reason why it is not defined."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import linalg

from bornbiased_jax.lineage.sheet_reading import CONFIG, Labels, SheetReading, TokenVocabulary, VectorPair
from bornbiased_jax.lineage.sheet_sample import WIDEST
from bornbiased_jax.lineage.sketches import scaled_down
from bornbiased_jax.lineage.spectra import MATRICES, SPECTRA, assigned_cosine

NORM_SCALES = Path(__file__).with_name("synthetic_norm_scales.json")
Value = float | str
"""A statistic of a pair, or in a few words why it is not defined."""
# Most tokens that embeddings are compared on, and tokens whose rows are compared at once.
_TOKENS, _ROWS = 20_000, 1024
# Widest embeddings that a rotation is fitted to: a dozen seconds on two cores.
_WIDEST_TABLE = 4096


def measure(base: SheetReading, suspect: SheetReading) -> dict[str, Value]:
    """Compute every statistic of a pair by its key."""
    spectra = list(_shared(base.spectra, suspect.spectra).values())
    no_spectra = "matrices of zeros" if spectra else f"no matrices of one shape, with a side up to {WIDEST:,}, in both"
    fields = equal_fields(base, suspect)
    equal_settings = None if fields is None else fields.num_equal / fields.num_shared
    return {
        **_vector_statistics(base.vectors, suspect.vectors),
        **_token_values(base.vocabulary, suspect.vocabulary),
        **_embedding_statistics(base, suspect),
        **_output_statistics(base, suspect),
        "std_profile": _profile(base.stds, suspect.stds),
        "spectra": _or(_mean(_cosine, spectra), no_spectra),
        "equal_tensors": _equal_fraction(base.digests, suspect.digests),
        "equal_settings": _or(equal_settings, f"not both models have a {CONFIG}, or fields in common"),
        **{key: _assigned(base.products[key], suspect.products[key]) for key in SPECTRA},
    }


def compare(base: SheetReading, suspect: SheetReading) -> dict[str, float | None]:
    """Compute every statistic of a pair by its key; None where it is not defined."""
    return {key: None if isinstance(value, str) else value for key, value in measure(base, suspect).items()}


def _or(value: float | None, reason: str) -> Value:
    return reason if value is None else value


# ---------------------------------------------------------------------------------------------------------------------
# Configurations


class EqualFields(NamedTuple):
    """How many fields of two configurations are equal, of those that both have, and what fields they are."""

    num_equal: int
    num_shared: int
    kind: str


def equal_fields(base: SheetReading, suspect: SheetReading) -> EqualFields | None:
    """Count equal fields: this package's where it runs both models, else those of their files; None without any."""
    first, second, kind = base.fields, suspect.fields, f"fields in both {CONFIG}"
    if base.settings is not None and suspect.settings is not None:
        # A setting that a model alone names has its default in the other.
        defaults = dict.fromkeys(base.settings.keys() | suspect.settings.keys())
        first, second = (defaults | dict(settings) for settings in (base.settings, suspect.settings))
        kind = "settings of this package"
    shared = (
        [] if first is None or second is None else [(first[name], second[name]) for name in first if name in second]
    )
    return EqualFields(sum(left == right for left, right in shared), len(shared), kind) if shared else None


# ---------------------------------------------------------------------------------------------------------------------
# Vectors, and numbers by path


def _vector_statistics(base: Mapping[str, np.ndarray], suspect: Mapping[str, np.ndarray]) -> dict[str, Value]:
    """Average cosines of norm scales and of biases that both models have in one size."""
    kinds = {
        "norm_cosine": (_cosine, "/scale", "norm scales", "constant, as before training"),
        "norm_cosine_centered": (_correlation, "/scale", "norm scales", "constant, as before training"),
        "bias_cosine": (_cosine, "/bias", "biases of Q, K, V", "zero"),
    }
    values: dict[str, Value] = {}
    for key, (statistic, ending, name, trivial) in kinds.items():
        models = [
            {path: vector for path, vector in model.items() if path.endswith(ending)} for model in (base, suspect)
        ]
        pairs = list(_shared(*models).values())
        reason = f"{name} that are {trivial}" if pairs else f"{name} of two sizes"
        values[key] = _or(_mean(statistic, pairs), reason if all(models) else f"no {name} in both models")
    return values


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


def _profile(base: Mapping[str, float], suspect: Mapping[str, float]) -> Value:
    paths = sorted(base.keys() & suspect.keys())
    if len(paths) < 3:
        return "fewer than three matrices of attention in both"
    correlation = _correlation(*(np.array([stds[path] for path in paths]) for stds in (base, suspect)))
    return _or(correlation, "matrices of one standard deviation")


def _equal_fraction(base: Mapping[str, str], suspect: Mapping[str, str]) -> Value:
    if not base:
        return "every tensor of the base is constant"
    return sum(suspect.get(path) == digest for path, digest in base.items()) / len(base)


def _assigned(base: Sequence[VectorPair], suspect: Sequence[VectorPair]) -> Value:
    if not base or not suspect:
        return f"no attention of a rank up to {WIDEST:,} in both models"
    return assigned_cosine(base, suspect)


# ---------------------------------------------------------------------------------------------------------------------
# Tokens and their embeddings


def _token_values(base: TokenVocabulary | None, suspect: TokenVocabulary | None) -> dict[str, Value]:
    reasons = {
        "tokenizer_overlap": "no token in both models",
        "shared_merges": "not both tokenizers have merges",
        "id_shift": "no token in both models",
    }
    if base is None or suspect is None:
        return dict.fromkeys(reasons, "not both models have a tokenizer")
    return {key: _or(value, reasons[key]) for key, value in token_statistics(base, suspect).items()}


def token_statistics(base: TokenVocabulary, suspect: TokenVocabulary) -> dict[str, float | None]:
    """Compare two tokenizers: shared tokens and merges as fractions of all, and tokens at one constant shift."""
    first, second = (set(model.labels) - {None} for model in (base, suspect))
    # Of the tokens that both have, those whose numbers differ by the commonest difference.
    pairs = _shared_numbers(base.labels, suspect.labels)
    shifts = Counter(second - first for first, second in pairs)
    has_merges = base.merges is not None and suspect.merges is not None
    return {
        "tokenizer_overlap": _jaccard(first, second),
        "shared_merges": _jaccard(base.merges or set(), suspect.merges or set()) if has_merges else None,
        "id_shift": shifts.most_common(1)[0][1] / len(pairs) if pairs else None,
    }


def _jaccard(first: Set[object], second: Set[object]) -> float:
    return len(first & second) / max(1, len(first | second))


def _shared_numbers(base: Labels, suspect: Labels) -> list[tuple[int, int]]:
    """Return the numbers of every token that both have, in both."""
    places = {label: number for number, label in enumerate(suspect) if label is not None}
    return [(number, places[label]) for number, label in enumerate(base) if label is not None and label in places]


def _embedding_statistics(base: SheetReading, suspect: SheetReading) -> dict[str, Value]:
    """Compare the embeddings of shared tokens: by their strings where both have them, else by their numbers."""
    keys = "embedding_cosine", "embedding_procrustes", "mdir_trace"
    if base.embedding is None or suspect.embedding is None:
        return dict.fromkeys(keys, "no embedding in both models")
    base_VD, suspect_VD = base.source.read(base.embedding), suspect.source.read(suspect.embedding)
    width = base_VD.shape[1]
    if width != suspect_VD.shape[1]:
        return dict.fromkeys(keys, "embeddings of two widths")
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
    too_wide = f"embeddings wider than {_WIDEST_TABLE:,}"
    if len(cosines_T) < 2:
        too_few = "fewer than two tokens in both models"
        return {**dict.fromkeys(keys, too_few if is_rotated else too_wide), "embedding_cosine": too_few}
    values: dict[str, Value] = {**dict.fromkeys(keys, too_wide), "embedding_cosine": float(cosines_T.mean())}
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
    pairs = _shared_numbers(base, suspect)
    pairs = pairs[:: max(1, -(-len(pairs) // _TOKENS))]
    return [first for first, _ in pairs], [second for _, second in pairs]


# ---------------------------------------------------------------------------------------------------------------------
# Outputs


def _output_statistics(base: SheetReading, suspect: SheetReading) -> dict[str, Value]:
    """Compare what two models make of the same tokens: linear CKA over positions, and equal next tokens."""
    keys = "cka_hidden", "cka", "output_agreement"
    first, second = base.outputs, suspect.outputs
    if first is None or second is None or len(first.logits_PV) != len(second.logits_PV):
        if base.settings is None or suspect.settings is None:
            return dict.fromkeys(keys, "this package does not run both models")
        is_one_size = base.settings["vocab_size"] == suspect.settings["vocab_size"]
        return dict.fromkeys(keys, "more memory than was free" if is_one_size else "vocabularies of two sizes")
    if not all(np.isfinite(features_PN).all() for model in (first, second) for features_PN in model):
        return dict.fromkeys(keys, "outputs beyond what float32 holds")
    undefined = "outputs that are the same at every position"
    return {
        "cka_hidden": _or(_linear_cka(first.middle_PD, second.middle_PD), undefined),
        "cka": _or(_linear_cka(first.logits_PV, second.logits_PV), undefined),
        "output_agreement": float((first.logits_PV.argmax(axis=1) == second.logits_PV.argmax(axis=1)).mean()),
    }


def _linear_cka(*features: np.ndarray) -> float | None:
    """Compute linear CKA of two models' features, [P, D] each: the cosine of centered Grams over positions."""
    grams = []
    for features_PD in features:
        centered_PD = scaled_down(features_PD - features_PD.mean(axis=0))
        grams.append((centered_PD @ centered_PD.T).astype(np.float64).reshape(-1))
    return _cosine(*grams)
