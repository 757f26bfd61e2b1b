"""Descendants made by changes; lineage tests and baselines of one pair, as rows of a record."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.derive.changes import ChangeContext, parse_change
from bornbiased_jax.derive.damage import Model
from bornbiased_jax.experiments._shared.baselines import reef
from bornbiased_jax.experiments.base import Entry
from bornbiased_jax.lineage.baselines import Score, ics, intrinsic, pcs
from bornbiased_jax.lineage.compare import compare
from bornbiased_jax.lineage.lineage_tests import lineage_test
from bornbiased_jax.lineage.output_fingerprint import OutputFingerprint
from bornbiased_jax.lineage.verdict import Verdict
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes.inputs import Inputs, parse_inputs

_RECORDED_KEYS = (
    *("verdict", "reason", "p_value", "log10_p", "z", "p_t", "log10_p_t", "p_u", "log10_p_u", "num_dims"),
    *("identical_tensors", "reordered_tensors", "num_tensors"),
)
BASELINES = ("intrinsic", "reef", "pcs", "ics")


def derived(model: Model, *changes: str, seed: int, used_ids: np.ndarray | None = None) -> Model:
    """Make changes of ``bornbiased derive``, one after the other; ``{seed}`` in their texts stands for the seed."""
    context = ChangeContext(seed=seed, used_ids=used_ids)
    for change in changes:
        model = parse_change(change.format(seed=seed)).apply(model, context)
    return model


def verdicts(
    base_ND: np.ndarray, suspect_ND: np.ndarray, tests: Sequence[str] = ("permutation", "paper", "iclr")
) -> dict[str, Entry]:
    """Map each test's name to its verdict, p, log10 p, z; "paper" also has both of its p."""
    return {name: row(lineage_test(name).load()(base_ND, suspect_ND)) for name in tests}


def compared(base: OutputFingerprint, suspect: OutputFingerprint) -> dict[str, Entry]:
    """Compare fingerprints as :func:`verdicts` does models: identity comes before any test."""
    return {name: row(compare(base, suspect, test=name)) for name in ("permutation", "paper", "iclr")}


def row(verdict: Verdict) -> Entry:
    """Return the fields of a verdict that a record keeps."""
    value = verdict.to_json()
    return {name: value[name] for name in _RECORDED_KEYS if name in value}


def sentences(cfg: ModelConfig, settings: Entry) -> Inputs:
    """Return REEF's text for a model: {"text", "num_sentences", "sentence_len"}."""
    return parse_inputs(
        settings["text"], num_inputs=settings["num_sentences"], seq_len=settings["sentence_len"], cfg=cfg
    )


def baseline_scores(
    base_cfg: ModelConfig,
    base: Params,
    suspect_cfg: ModelConfig,
    suspect: Params,
    features: tuple[np.ndarray, np.ndarray],
) -> dict[str, Score]:
    """Map each baseline to its score; ``features`` are what REEF reads of both models."""
    base, suspect = (jax.tree.map(np.asarray, params) for params in (base, suspect))
    return {
        "intrinsic": intrinsic(base, suspect),
        "reef": reef(*features),
        "pcs": pcs(base, suspect),
        "ics": ics(base_cfg, base, suspect_cfg, suspect),
    }
