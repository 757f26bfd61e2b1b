"""Which seed of this package a model was initialized from: initializations compared with its weights, a prefix of each.

A weight's draw depends on its seed, its path, its layer and its place alone, so the first few numbers of a matrix can
be drawn without the rest. Two passes:

1. *Search.* Of every seed some hundred numbers are drawn, spread over matrices of all depths; the seeds whose numbers
   correlate best with the suspect's are kept.
2. *Decision.* Of those, many more numbers are drawn, from every matrix that is drawn at all. An initialization's unit
   normals are independent of a model that was not initialized from it, whatever that model is, so the correlation r of
   n of them with any fixed numbers follows t = r √(n − 2)/√(1 − r²) with n − 2 degrees of freedom exactly. The p of the
   best seed is multiplied by 2³², the number of seeds there are, however many were searched: choosing the best cannot
   cheat.
3. *Confirmation.* The seed found is compared with the suspect by all matrices, whole, under permutations of residual
   coordinates (:func:`.weights_verdict.single_verdict`); its p is multiplied by 2³² as well.

Correlations do not see standard deviations, so the initialization scheme does not matter; the sizes do. A model whose
coordinates were permuted, rotated or negated is not found, because its numbers no longer lie where they were drawn.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import numpy as np

from bornbiased_jax import hardware, store
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.executors import Engine, local
from bornbiased_jax.lineage.battery import Options
from bornbiased_jax.lineage.evidence import SIGNLESS
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.lineage.permutation import check_alpha
from bornbiased_jax.lineage.seed_search import (
    CHUNK,
    SearchOptions,
    best_of,
    decision_places,
    draw_entries,
    read_entries,
    request,
    unit,
)
from bornbiased_jax.lineage.verdict import Verdict, probability
from bornbiased_jax.lineage.weights_verdict import single_verdict
from bornbiased_jax.parameters import parameter_table
from bornbiased_jax.stats.tails import LN10, log_t_sf

NUM_SEEDS = 2**32
SIZES = (
    *("num_layers", "num_heads", "num_kv_heads", "head_dim", "d_model", "d_ff"),
    *("vocab_size", "gated_mlp", "num_experts", "shared_expert_width"),
)
"""Fields that say how large the drawn matrices are."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A seed, the correlation of its initialization's numbers with the suspect's, and what that is worth.

    ``log10_p`` (base 10, at most 0) is of the t test, times 2³².
    """

    seed: int
    correlation: float
    t: float
    log10_p: float

    def to_json(self) -> dict[str, object]:
        """Return all fields with the p-value, as JSON-ready values."""
        return {**dataclasses.asdict(self), "p_value": probability(self.log10_p)}


@dataclasses.dataclass(frozen=True)
class Found:
    """The result of a search.

    Attributes:
        seed: the initialization's seed, or None.
        reason: one sentence.
        best: the seed that correlates best.
        runner_up: the next best of the searched seeds, or None when only one was searched.
        num_seeds: how many were searched.
        num_entries: numbers drawn of each seed in the search, and for the decision.
        alpha: level of the decision.
        confirmed: what the test in the weights says of the seed found, its p times 2³²; None where none was found.
        framework: versions of the other framework that drew the seeds, and the device; None of this package's seeds.
    """

    seed: int | None
    reason: str
    best: Candidate
    runner_up: Candidate | None
    num_seeds: int
    num_entries: tuple[int, int]
    alpha: float
    confirmed: Verdict | None = None
    framework: Mapping[str, str] | None = None

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values, with the keys of the command line."""
        # What the exact test says of the best seed, in the keys of its own command.
        keys = ("verdict", "reason", "test", "labels", "align", "null", "p_value", "log10_p", "z", "alpha")
        confirmed = None
        if self.confirmed is not None:
            verdict = self.confirmed.to_json()
            confirmed = {**{key: verdict.get(key) for key in keys}, "corrected_for": NUM_SEEDS}
        best = self.best.to_json()
        framework = {} if self.framework is None else {"framework": {"name": "torch", **self.framework}}
        return {
            "seed": self.seed,
            "p_value": best["p_value"],
            "log10_p": best["log10_p"],
            "num_seeds": self.num_seeds,
            "best": best,
            "runner_up": None if self.runner_up is None else self.runner_up.to_json(),
            "num_entries": {"search": self.num_entries[0], "decision": self.num_entries[1]},
            "corrected_for": NUM_SEEDS,
            "alpha": self.alpha,
            "reason": self.reason,
            "confirmed": confirmed,
            **framework,
        }


def which_seed(
    cfg: ModelConfig,
    suspect: Checkpoint,
    seeds: range,
    options: SearchOptions = SearchOptions(),
    *,
    alpha: float = 1e-4,
    resume: Path | str | None = None,
    engine: Engine = local,
    advance: Callable[[int], None] | None = None,
) -> Found:
    """Search seeds for the initial weights of a model.

    Args:
        cfg: the architecture that initializations are drawn of.
        suspect: the model.
        seeds: a range of step 1 within 0 to 2³².
        options: how many numbers are drawn of each seed, and how many seeds are in a chunk of the store.
        alpha: level of the decision.
        resume: a store, in which finished ranges of seeds are kept, so that a killed search resumes and a finished one
            can be extended. Several processes may share it.
        engine: who searches what the store lacks (:mod:`bornbiased_jax.executors`).
        advance: called with the number of seeds searched since the last call.

    Raises:
        InputError: no seeds, seeds out of range, sizes that differ, weights without variation, alpha outside (0, 1), a
            store that cannot be written, or another engine without one.
    """
    check_search(cfg, suspect.cfg, seeds, alpha)
    entries = options.entries
    if entries < 16:
        raise InputError(f"{entries} entries are too few to tell seeds apart: give at least 16")
    store.check(resume, engine)
    hardware.check_memory(
        8.0 * min(CHUNK, len(seeds)) * entries, f"{entries:,} numbers of each seed", "draw fewer (--entries)"
    )
    # Search: correlate a few numbers of every seed, chunk by chunk.
    search = request(cfg, suspect, seeds, options, advance)
    best: dict[int, float] = {}
    for chunk in store.fulfill(search, resume, engine, advance):
        best = best_of(best, chunk["seeds"], chunk["correlations"])
    # Decision: many more numbers of the best seeds.
    decided = _decide(cfg, suspect, list(best))
    first, second = decided[0], decided[1] if len(decided) > 1 else None
    hit = first.log10_p < math.log10(alpha)
    reason = (
        f"the initialization of seed {first.seed} correlates with the suspect's numbers at r = {first.correlation:.3f} "
        f"(log10 p = {first.log10_p:.1f} after correction for all 2^32 seeds)"
        if hit
        else f"none of {len(seeds):,} initializations was found in the suspect's coordinates (best: seed {first.seed}, "
        f"r = {first.correlation:.3f}); coordinates that were permuted, rotated or negated are not found so"
    )
    sizes = (len(search.arrays["suspect"]), sum(place.entries for place in decision_places(cfg)))
    # Confirmation: all matrices of the seed, where there is a hit.
    confirmed = confirm(cfg, suspect, first.seed, alpha=alpha) if hit else None
    return Found(first.seed if hit else None, reason, first, second, len(seeds), sizes, alpha, confirmed)


def confirm(cfg: ModelConfig, suspect: Checkpoint, seed: int, *, alpha: float = 1e-4) -> Verdict:
    """Compare whole initial weights with the suspect, coordinate by coordinate; p is that of the best of 2³² seeds.

    The verdict is undefined where the two have nothing of one size.
    """
    # All matrices, coordinate by coordinate up to sign.
    initial, of_suspect = (fingerprint(model.by_role()) for model in (Checkpoint.from_seed(cfg, seed), suspect))
    verdict = single_verdict(initial, of_suspect, SIGNLESS, Options(alpha=alpha, has_untrained=True))
    if verdict.log10_p is None:
        return verdict
    # Bonferroni over every seed there is, as in the search.
    log10_p = min(0.0, verdict.log10_p + math.log10(NUM_SEEDS))
    is_same = log10_p <= math.log10(alpha)
    reason = (
        f"the initial weights of seed {seed} agree with the suspect's {'more' if is_same else 'no more'} than those "
        f"of the best of 2^32 seeds may by chance (p {'≤' if is_same else '>'} {alpha:g})"
    )
    return dataclasses.replace(
        verdict,
        verdict="same-lineage" if is_same else "unrelated",
        reason=reason,
        p_value=probability(log10_p),
        log10_p=log10_p,
    )


def check_search(cfg: ModelConfig, suspect_cfg: ModelConfig, seeds: range, alpha: float) -> None:
    """Check a search's seeds and level, and whether the two architectures have one size.

    Raises:
        InputError: they are out of range, or a size differs.
    """
    check_alpha(alpha)
    if not seeds or seeds.step != 1:
        raise InputError("no seeds to search: give a range such as 0:1000000")
    if seeds.start < 0 or seeds.stop > NUM_SEEDS:
        raise InputError(f"seeds {seeds.start} to {seeds.stop} are not within 0 to 2^32: shorten the range")
    # Numbers correspond only where every size is the same.
    for name in SIZES:
        searched_size, suspect_size = getattr(cfg, name), getattr(suspect_cfg, name)
        if searched_size != suspect_size:
            raise InputError(
                f"the suspect has {name}={suspect_size}, the initializations to be searched {searched_size}: give the "
                "suspect's own sizes by --model and --set"
            )
    # Nor is there anything to compare of a matrix that the suspect lacks.
    suspect_table = parameter_table(suspect_cfg)
    lacking = [place.path for place in decision_places(cfg) if place.path not in suspect_table]
    if lacking:
        raise InputError(
            f"the suspect has no {lacking[0]}, which the initializations to be searched have: give the suspect's own "
            "architecture by --model and --set, or leave them out"
        )


def _decide(cfg: ModelConfig, suspect: Checkpoint, seeds: list[int]) -> list[Candidate]:
    places = decision_places(cfg)
    unit_N = unit(read_entries(suspect, places))
    draw = jax.jit(functools.partial(draw_entries, places))
    candidates = []
    for seed in seeds:
        candidates.append(candidate_of(seed, unit(np.asarray(draw(np.uint32(seed)), np.float64)), unit_N))
    return sorted(candidates, key=lambda row: (-row.t, row.seed))


def candidate_of(seed: int, drawn_N: np.ndarray, suspect_N: np.ndarray) -> Candidate:
    """Correlate a seed's numbers with a suspect's, both centered and of length 1; p is times 2³²."""
    r = float(np.clip(drawn_N @ suspect_N, -1.0, 1.0))
    freedom = len(suspect_N) - 2
    t = r * math.sqrt(freedom / max(1.0 - r * r, 1e-300))
    return Candidate(int(seed), r, t, min(0.0, (log_t_sf(t, freedom) + math.log(NUM_SEEDS)) / LN10))
