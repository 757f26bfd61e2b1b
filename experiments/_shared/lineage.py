"""Lineage tests and baselines of one pair, as rows of a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.experiments._shared.baselines import reef
from bornbiased_jax.lineage.baselines import ics, intrinsic, pcs
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


def verdicts(
    base_ND: np.ndarray, suspect_ND: np.ndarray, tests: Sequence[str] = ("permutation", "paper", "iclr")
) -> dict[str, dict[str, Any]]:
    """Map each test's name to its verdict, p, log10 p, z; "paper" also has both of its p."""
    return {name: row(lineage_test(name).load()(base_ND, suspect_ND)) for name in tests}


def compared(base: OutputFingerprint, suspect: OutputFingerprint) -> dict[str, dict[str, Any]]:
    """Compare fingerprints as :func:`verdicts` does models: identity comes before any test."""
    return {name: row(compare(base, suspect, test=name)) for name in ("permutation", "paper", "iclr")}


def row(verdict: Verdict) -> dict[str, Any]:
    """Return the fields of a verdict that a record keeps."""
    value = verdict.to_json()
    return {name: value[name] for name in _RECORDED_KEYS if name in value}


def sentences(cfg: ModelConfig, settings: Mapping[str, Any]) -> Inputs:
    """Return REEF's text for a model: {"text", "num_sentences", "sentence_len"}."""
    return parse_inputs(
        settings["text"], num_inputs=settings["num_sentences"], seq_len=settings["sentence_len"], cfg=cfg
    )


def baseline_scores(
    base_cfg: ModelConfig,
    base: Params,
    suspect_cfg: ModelConfig,
    suspect: Params,
    reef_pair: tuple[np.ndarray, np.ndarray] | None,
) -> dict[str, float | None]:
    """Map each baseline to its score, None where it is not defined."""
    base, suspect = (jax.tree.map(np.asarray, params) for params in (base, suspect))
    scores = {
        "intrinsic": intrinsic(base, suspect).value,
        "reef": None if reef_pair is None else reef(*reef_pair).value,
        "pcs": pcs(base, suspect).value,
        "ics": ics(base_cfg, base, suspect_cfg, suspect).value,
    }
    return {name: None if value is None else float(value) for name, value in scores.items()}
