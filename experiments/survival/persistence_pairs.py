"""Pairs of trained models under every test of lineage and every baseline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bornbiased_jax import progress
from bornbiased_jax.lineage.baselines import Score, ics, intrinsic, pcs
from bornbiased_jax.lineage.iclr import iclr_test
from bornbiased_jax.lineage.outputs import embedding_moments
from bornbiased_jax.lineage.paper import paper_test
from bornbiased_jax.lineage.permutation import permutation_test
from bornbiased_jax.lineage.verdict import Verdict
from experiments._shared.baselines import against_null, reef, reef_features
from experiments.base import Context
from experiments.survival import persistence
from experiments.survival.persistence import Model

Moments = tuple[float, float]
BASELINES = ("intrinsic", "reef", "pcs", "ics")


def tested(settings: Mapping[str, Any], base: Model, suspect: Model, moments: Moments) -> dict[str, Any]:
    """Run every test on one pair; the suspect's progress stands alongside.

    Returns:
        ``base``, ``suspect`` (seed and step), ``progress`` of the suspect, and by test: ``permutation`` (tokens),
        ``paper`` and ``iclr`` (shared vectors, as published), ``paper_tokens`` and ``iclr_tokens``.
    """
    outputs = {
        kind: [persistence.outputs(settings, model, kind, moments) for model in (base, suspect)]
        for kind in persistence.KINDS
    }
    return {
        "base": _name(base),
        "suspect": _name(suspect),
        "progress": persistence.progress_of(suspect),
        "permutation": brief(permutation_test(*outputs["tokens"])),
        "paper": brief(paper_test(*outputs["gaussian"])),
        "paper_tokens": brief(paper_test(*outputs["tokens"])),
        "iclr": brief(iclr_test(*outputs["gaussian"])),
        "iclr_tokens": brief(iclr_test(*outputs["tokens"])),
    }


def brief(verdict: Verdict) -> dict[str, Any]:
    """Return what a table shows of a verdict."""
    detail_names = ("log10_p_t", "log10_p_u", "mean_tau", "mean_correlation", "num_dims")
    return {
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "p": verdict.p_value,
        "log10_p": verdict.log10_p,
        "z": verdict.z,
        **{name: verdict.detail[name] for name in detail_names if name in verdict.detail},
    }


def _name(model: Model) -> dict[str, Any]:
    return {"run": Path(model["run"]).name, "seed": model["seed"], "step": model["step"]}


def own_and_other(context: Context) -> dict[str, Any]:
    """Compare births with trained models of the base run: the same seed (Table 4b) and another (Table 4c)."""
    settings = context.settings
    run, seeds = persistence.base_run(context), settings["seeds"]
    moments = persistence.birth_moments(settings)
    pairs = []
    with progress.bar(len(seeds) ** 2, "pairs", unit="pairs", quiet=context.quiet) as advance:
        for born in seeds:
            for trained in seeds:
                base, suspect = persistence.birth(run, born), persistence.last(run, trained)
                pairs.append(tested(settings, base, suspect, moments))
                advance(1)
    return {"facts": persistence.facts_of(run), "pairs": pairs}


def compared(settings: Mapping[str, Any], base: Model, suspect: Model, text_run: Path) -> dict[str, Score]:
    """Compute every baseline on one pair; REEF reads the held-out text of a run."""
    cfg = persistence.model_config(settings)
    base_params, suspect_params = persistence.load(base), persistence.load(suspect)
    read = persistence.sentences(text_run, settings)
    features = [reef_features(cfg, params, read) for params in (base_params, suspect_params)]
    return {
        "intrinsic": intrinsic(base_params, suspect_params),
        "reef": reef(*features),
        "pcs": pcs(base_params, suspect_params),
        "ics": ics(cfg, base_params, cfg, suspect_params),
    }


def baselines_of_births(context: Context) -> dict[str, Any]:
    """Compute baselines on every birth and trained model of the base run, pairs of one seed against pairs of two.

    Returns:
        ``facts``, and ``own``: for each seed its ``progress`` and by baseline ``score``, ``same_at_0.8``, and where
        the score lies among those of pairs of different seeds (``p_value``, ``z``, ``null_mean``, ``null_std``);
        ``other``: those scores.
    """
    settings = context.settings
    run, seeds = persistence.base_run(context), settings["seeds"]
    scores_by_pair: dict[tuple[int, int], dict[str, Score]] = {}
    with progress.bar(len(seeds) ** 2, "baselines", unit="pairs", quiet=context.quiet) as advance:
        for born in seeds:
            for trained in seeds:
                base, suspect = persistence.birth(run, born), persistence.last(run, trained)
                scores_by_pair[born, trained] = compared(settings, base, suspect, run)
                advance(1)
    other = {
        name: np.array([np.nan if scores[name].value is None else scores[name].value
                        for pair, scores in scores_by_pair.items() if pair[0] != pair[1]], np.float64)
        for name in BASELINES
    }  # fmt: skip
    own_rows = [
        {
            "seed": seed,
            "progress": persistence.progress_of(persistence.last(run, seed)),
            **{name: against_null(scores_by_pair[seed, seed][name], other[name]) for name in BASELINES},
        }
        for seed in seeds
    ]
    other_scores = {name: [float(value) for value in values if np.isfinite(value)] for name, values in other.items()}
    return {"facts": persistence.facts_of(run), "own": own_rows, "other": other_scores}


def continued(context: Context) -> dict[str, Any]:
    """Compare the base model with its descendant and a distractor's, after further training on each corpus."""
    settings = context.settings
    chosen = settings["continued"]
    base = persistence.last(persistence.base_run(context), chosen["seed"])
    moments = embedding_moments(persistence.load(base))
    pairs = []
    for role in ("stories", "code"):
        run = persistence.continued_run(context, role)
        for seed in (chosen["seed"], chosen["distractor"]):
            suspect = persistence.last(run, seed)
            scores = compared(settings, base, suspect, persistence.base_run(context))
            pairs.append(
                {
                    "role": role,
                    "source": persistence.facts_of(run)["source"],
                    "tokens": persistence.facts_of(run)["tokens"],
                    "related": seed == chosen["seed"],
                    **tested(settings, base, suspect, moments),
                    **{name: score.to_json() for name, score in scores.items()},
                }
            )
    return {"facts": persistence.facts_of(Path(base["run"])), "pairs": pairs}
