"""Every checkpoint of a run held against the births: Figures 11 and 14."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bornbiased_jax import progress
from bornbiased_jax.checkpoints.formats.run import find_steps
from bornbiased_jax.lineage.paper import paper_test, top_mean
from bornbiased_jax.lineage.permutation import permutation_test
from bornbiased_jax.lineage.verdict import Verdict
from bornbiased_jax.stats.kendall import tau_b
from experiments.base import Context
from experiments.survival import persistence
from experiments.survival.persistence import Model
from experiments.survival.persistence_pairs import brief

TOP = 50
"""m of Section 5: the coordinates with the largest mean output of the birth."""


def correlations(context: Context) -> dict[str, Any]:
    """Compute Kendall's tau of the birth's top coordinates with those of its own and another seed's checkpoints.

    Returns:
        ``facts``, ``steps`` [C], ``top``, ``seeds`` (the birth's, the other's), and by kind of inputs, by "own" and
        "other": ``mean`` and ``std`` [C] over the top coordinates; ``progress`` [C] of both seeds.
    """
    settings = context.settings
    run, (seed, other) = persistence.base_run(context), settings["seeds"][:2]
    steps, moments = find_steps(run), persistence.birth_moments(settings)
    born = persistence.birth(run, seed)
    top = min(TOP, persistence.model_config(settings).d_model)
    taus: dict[str, Any] = {}
    with progress.bar(4 * len(steps), "checkpoints", unit="checkpoints", quiet=context.quiet) as advance:
        # Tau of the top coordinates, own seed and another's.
        for kind in persistence.KINDS:
            birth_ND = persistence.outputs(settings, born, kind, moments)
            dims = top_mean(birth_ND, top)
            for name, who in (("own", seed), ("other", other)):
                taus_CM = []
                for step in steps:
                    suspect_ND = persistence.outputs(settings, _at(run, who, step), kind, moments)
                    taus_CM.append(tau_b(birth_ND[:, dims], suspect_ND[:, dims]))
                    advance(1)
                mean, std = np.mean(taus_CM, axis=1), np.std(taus_CM, axis=1, ddof=1)
                taus.setdefault(kind, {})[name] = {"mean": mean.tolist(), "std": std.tolist()}
    return {
        "facts": persistence.facts_of(run),
        "seeds": [seed, other],
        "steps": steps,
        "top": top,
        "taus": taus,
        "progress": [[persistence.progress_of(_at(run, who, step)) for step in steps] for who in (seed, other)],
    }


def every_checkpoint(context: Context) -> dict[str, Any]:
    """Compare every checkpoint of every seed with its own birth and with the next seed's.

    Returns:
        ``facts``, ``steps`` [C] (the birth left out), ``seeds``, ``progress`` [S][C], and "own" and "other": by test
        ("permutation" on tokens, "paper" on shared vectors, "paper_tokens") verdicts [S][C].
    """
    settings = context.settings
    run, seeds = persistence.base_run(context), settings["seeds"]
    steps, moments = find_steps(run)[1:], persistence.birth_moments(settings)
    tests: dict[str, tuple[str, Callable[..., Verdict]]] = {
        "permutation": ("tokens", permutation_test),
        "paper": ("gaussian", paper_test),
        "paper_tokens": ("tokens", paper_test),
    }
    verdicts_by_relation: dict[str, Any] = {}
    total = 2 * len(tests) * len(seeds) * len(steps)
    with progress.bar(total, "checkpoints", unit="verdicts", quiet=context.quiet) as advance:
        # Checkpoints against their own birth, then against the next seed's.
        for name, shift in (("own", 0), ("other", 1)):
            for test, (kind, run_test) in tests.items():
                by_seed = []
                for index in range(len(seeds)):
                    born = persistence.birth(run, seeds[(index + shift) % len(seeds)])
                    birth_ND = persistence.outputs(settings, born, kind, moments)
                    verdicts = []
                    for step in steps:
                        suspect_ND = persistence.outputs(settings, _at(run, seeds[index], step), kind, moments)
                        verdicts.append(brief(run_test(birth_ND, suspect_ND)))
                        advance(1)
                    by_seed.append(verdicts)
                verdicts_by_relation.setdefault(name, {})[test] = by_seed
    return {
        "facts": persistence.facts_of(run),
        "seeds": seeds,
        "steps": steps,
        "progress": [[persistence.progress_of(_at(run, seed, step)) for step in steps] for seed in seeds],
        **verdicts_by_relation,
    }


def _at(run: Path, seed: int, step: int) -> Model:
    return {"run": str(run), "seed": seed, "step": step}
