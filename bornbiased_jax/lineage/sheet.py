"""What is this evidence worth: statistics that public disputes were argued with, for a pair and for unrelated models.

None of them is a test. Each value stands next to its range over unrelated models (``unrelated_models.json``, the result
of ``bornbiased reproduce evidence_sheet``), so that a cosine of 0.99 between norm scales can be read for what it is.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict

from threadpoolctl import threadpool_limits

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.roles import RoleSource
from bornbiased_jax.config import FieldValue, ModelConfig, preset
from bornbiased_jax.lineage.blockwise import probe_ids
from bornbiased_jax.lineage.sheet_reading import Records, read_model
from bornbiased_jax.lineage.sheet_sample import sample_pair
from bornbiased_jax.lineage.sheet_statistics import (
    equal_fields,
    measure,
    norms_by_block,
    stds_by_block,
    synthetic_releases,
)
from bornbiased_jax.parameters import parameter_table

KINDS = ("untrained", "trained on one text", "trained on other texts", "of two widths")
"""Kinds of unrelated pairs in the calibration."""
SYNTHETIC = "two releases (synthetic)"
"""The pair of norm scales that were drawn apart, with the variation of trained ones."""
QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)
CALIBRATION = Path(__file__).with_name("unrelated_models.json")


class UnrelatedModels(TypedDict):
    """The architecture of the unrelated models: a preset, the fields that are changed, and the widths D."""

    model: str
    changes: dict[str, FieldValue]
    widths: list[int]


class Calibration(TypedDict):
    """Contents of ``unrelated_models.json``.

    Attributes:
        sizes: of the models, in words.
        models: their architecture.
        num_pairs: by kind of unrelated pair.
        statistics: :data:`QUANTILES` of each statistic, by kind of unrelated pair.
    """

    sizes: str
    models: UnrelatedModels
    num_pairs: dict[str, int]
    statistics: dict[str, dict[str, list[float]]]


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
        "Weak evidence: its range depends on the inputs, and is highest between untrained models.",
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
class SheetRow:
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
        """The place of the value among all unrelated pairs.

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
        stds: standard deviations of the base's Q, K, V, O over its blocks, and of the suspect's.
    """

    rows: tuple[SheetRow, ...]
    sizes: str
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

    Checkpoints are there where this package runs both models, records of tensors where fingerprints were made.
    """
    calibration: Calibration = json.loads(CALIBRATION.read_text())
    first, second = checkpoints or (None, None)
    is_calibrated = checkpoints is not None and all(_is_calibrated(model.config, calibration) for model in checkpoints)
    # Both models on the same tokens, then every statistic with its range.
    ids_ST = None if first is None or second is None else probe_ids(first, second)
    samples, parts = sample_pair(base, suspect)
    # A core for each model: threads of BLAS beyond the cores would wait by spinning.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(2) as pool:
        sources, models = (base, suspect), (first, second)
        readings = list(pool.map(read_model, sources, models, (ids_ST, ids_ST), records or ({}, {}), samples))
    values = measure(*readings)
    fields = equal_fields(*readings)
    if fields is not None:
        parts["equal_settings"] = f"{fields.num_equal} of {fields.num_shared} {fields.kind}"
    synthetic = synthetic_releases()
    by_block = norms_by_block(*readings)
    rows = []
    for key in STATISTICS:
        ranges = {kind: tuple(row) for kind, row in calibration["statistics"][key].items()}
        if key in synthetic:
            ranges[SYNTHETIC] = (synthetic[key],) * len(QUANTILES)
        value = values[key]
        number, reason = (None, value) if isinstance(value, str) else (value, "")
        rows.append(SheetRow(key, number, ranges, reason, is_calibrated, parts.get(key, ""), by_block.get(key)))
    profiles = (stds_by_block(readings[0].stds), stds_by_block(readings[1].stds))
    return Sheet(tuple(rows), calibration["sizes"], profiles)


def calibrated_config(calibration: Calibration, width: int) -> ModelConfig:
    """Return the architecture of the unrelated models at one of their widths."""
    models = calibration["models"]
    return preset(models["model"], **{**models["changes"], "d_model": width, "d_ff": 2 * width})


def _is_calibrated(cfg: ModelConfig, calibration: Calibration) -> bool:
    """Check whether a model has the parameters of the unrelated models, in shape, at one of their widths."""
    widths = calibration["models"]["widths"]
    return any(_shapes(cfg) == _shapes(calibrated_config(calibration, width)) for width in widths)


def _shapes(cfg: ModelConfig) -> dict[str, tuple[int, ...]]:
    return {path: tuple(row.shape) for path, row in parameter_table(cfg).items()}
