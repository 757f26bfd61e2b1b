"""What every test and baseline of the court reads on one pair: a score that ranks pairs, and a p where there is one.

The tests in the weights share what they have in common (tokens, alignment, cosines of units), as ``auto`` does: the
statistics are those of the verdicts. Permutations are drawn in two stages: a few, and where none of these reaches the
pair as many others, or 9,999 unless the bound settles it at the test's level. The p is valid, and decides at the level
as the verdict's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage.baselines import (
    Activations,
    awm,
    ics,
    intrinsic,
    mlp_activations,
    pcs,
    phi_h,
    phi_match,
    phi_u,
    reef,
    reef_features,
)
from bornbiased_jax.lineage.baselines.score import LEVEL, THRESHOLD, Score
from bornbiased_jax.lineage.iclr import iclr_test
from bornbiased_jax.lineage.outputs import last_outputs
from bornbiased_jax.lineage.paper import paper_test
from bornbiased_jax.lineage.permutation import permutation_test
from bornbiased_jax.lineage.verdict import Verdict
from bornbiased_jax.lineage.weights.align import Unaligned, align
from bornbiased_jax.lineage.weights.bilinear import bilinear_test
from bornbiased_jax.lineage.weights.compare import AGREEMENT, weights_test
from bornbiased_jax.lineage.weights.coordinates import coordinate_scores
from bornbiased_jax.lineage.weights.matching import match_units
from bornbiased_jax.lineage.weights.outcome import ALPHA
from bornbiased_jax.lineage.weights.rank import coordinate_score
from bornbiased_jax.lineage.weights.tokens import shared_tokens
from bornbiased_jax.lineage.weights.units import form_a, unit_scores
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes.inputs import Inputs, gaussian, parse_inputs, random_tokens
from bornbiased_jax.stats.certified import certified_p
from bornbiased_jax.stats.permutations import NUM_PERMUTATIONS, TIE, drawn_sums, moments

FEW = 199
"""Permutations of the first stage."""
# Seeds of the second stage, and of fresh births.
_AGAIN, _FRESH = 1 << 30, 3_000_000_000

Reading = tuple[float | None, float | None]
"""A score, larger for pairs that are more alike, and log₁₀ p; None where there is none."""
NOTHING: Reading = (None, None)


class Reads(NamedTuple):
    """One test of the benchmark.

    Attributes:
        published: whether it is from the literature, or this package's.
        limit: the level of its p, or the score that it must exceed.
        by_p: whether it decides by p.
        exact: whether its p is promised at every level.
        base: what a suspect is held against: a "model", or its "birth".
    """

    published: bool
    limit: float
    by_p: bool = True
    exact: bool = False
    base: str = "model"

    def same(self, reading: Reading) -> bool:
        """Return the test's decision at its own level or threshold; what is undefined is not the same."""
        score, log10_p = reading
        if self.by_p:
            return log10_p is not None and log10_p <= math.log10(self.limit)
        return score is not None and score > self.limit


TESTS: dict[str, Reads] = {
    "φ_U": Reads(True, LEVEL),
    "φ_H": Reads(True, LEVEL),
    "φ_MATCH": Reads(True, LEVEL),
    "AWM, its z as normal": Reads(True, LEVEL),
    "Algorithm 1, t, vectors": Reads(True, LEVEL),
    "Algorithm 1, U, vectors": Reads(True, LEVEL),
    "Algorithm 1, t, tokens": Reads(True, LEVEL),
    "Algorithm 1, U, tokens": Reads(True, LEVEL),
    "iclr, vectors": Reads(True, LEVEL),
    "iclr, tokens": Reads(True, LEVEL),
    "HuRef (ICS)": Reads(True, THRESHOLD, by_p=False),
    "HuRef (PCS)": Reads(True, THRESHOLD, by_p=False),
    "Intrinsic": Reads(True, THRESHOLD, by_p=False),
    "REEF": Reads(True, THRESHOLD, by_p=False),
    "outputs, permutation": Reads(False, LEVEL, exact=True),
    "outputs, signs free": Reads(False, LEVEL, exact=True),
    "outputs, Kendall": Reads(False, LEVEL, exact=True),
    "weights, coordinates": Reads(False, ALPHA, exact=True),
    "weights, coordinates signed": Reads(False, ALPHA, exact=True),
    "weights, units": Reads(False, ALPHA, exact=True),
    "weights, rotation, form A": Reads(False, ALPHA, exact=True),
    "weights, agreement of matchings": Reads(False, AGREEMENT, by_p=False),
    "birth: matched units": Reads(False, ALPHA, exact=True, base="birth"),
    "birth: bilinear": Reads(False, ALPHA, exact=True, base="birth"),
    "birth: rank": Reads(False, LEVEL, exact=True, base="birth"),
}  # fmt: skip
"""Every test by name, in the order of the tables."""
EXACT = tuple(
    name for name, test in TESTS.items() if test.exact and test.base == "model" and name != "outputs, Kendall"
)
"""Tests with an exact p between any two models: what every pair of families is tried by. Kendall's form is left out: it
takes as long as all others, and its p is exact for the same reason as Spearman's.
"""


class Subject:
    """One model with what the tests read of it, each computed when first asked for.

    All models are asked the same inputs, made for the architecture ``probe_cfg``, so that a changed vocabulary does not
    change the questions. ``origin`` is where the model comes from, for those who want to know.
    """

    def __init__(
        self,
        cfg: ModelConfig,
        params: Params,
        settings: Mapping[str, Any],
        probe_cfg: ModelConfig,
        seed: int | None = None,
        is_initial: bool = False,
        tokenizer: str | None = "bytes",
        origin: Any = None,
    ) -> None:
        self.cfg, self.params, self.seed, self.is_initial, self.origin = cfg, params, seed, is_initial, origin
        self._probe, self._probe_cfg, self._tokenizer = settings["probe"], probe_cfg, tokenizer

    @functools.cached_property
    def reader(self) -> Checkpoint:
        """For the tests in the weights."""
        return Checkpoint.from_params(self.cfg, self.params, seed=self.seed, is_initial=self.is_initial)

    @functools.cached_property
    def outputs(self) -> dict[str, np.ndarray]:
        """Last outputs [N, D] on random tokens, and on Gaussian vectors that all models share."""
        num, length = self._probe["num_inputs"], self._probe["seq_len"]
        tokens = random_tokens(num, length, self._probe.get("vocab_size", self._probe_cfg.vocab_size))
        vectors = gaussian(num, length, self._probe_cfg.d_model)
        return {
            "tokens": last_outputs(self.cfg, self.params, tokens),
            "vectors": last_outputs(self.cfg, self.params, vectors, mean=0.0, std=self._probe_cfg.embedding_std),
        }

    @functools.cached_property
    def features(self) -> np.ndarray:
        """REEF's features of sentences."""
        return reef_features(self.cfg, self.params, self._text(self._probe["num_sentences"]))

    @functools.cached_property
    def activations(self) -> Activations:
        """Of the gate and up projections on the tokens of some sentences."""
        return mlp_activations(self.cfg, self.params, self._text(self._probe["num_matched"]))

    def _text(self, number: int) -> Inputs:
        return _sentences(self._probe["text"], number, self._probe["sentence_len"], self._probe_cfg, self._tokenizer)


@functools.lru_cache(maxsize=8)
def _sentences(text: str, number: int, length: int, cfg: ModelConfig, tokenizer: str | None) -> Inputs:
    return parse_inputs(text, num_inputs=number, seq_len=length, cfg=cfg, tokenizer=tokenizer)


def read_published(base: Subject, suspect: Subject) -> dict[str, Reading]:
    """Compute every published test and score."""
    base_model, suspect_model = (base.cfg, base.params), (suspect.cfg, suspect.params)
    readings = {
        "φ_U": _by_p(phi_u(*base_model, *suspect_model)),
        "φ_H": _by_p(phi_h(base.activations, suspect.activations)),
        "φ_MATCH": _by_p(phi_match(base.activations, suspect.activations)),
    }
    score = awm(*base_model, *suspect_model)
    readings["AWM, its z as normal"] = (score.value, score.log10_p)
    for kind in ("vectors", "tokens"):
        verdict = paper_test(base.outputs[kind], suspect.outputs[kind])
        for which in ("t", "U"):
            log10_p = None if verdict.p_value is None else float(verdict.detail[f"log10_p_{which.lower()}"])
            readings[f"Algorithm 1, {which}, {kind}"] = NOTHING if log10_p is None else (-log10_p, log10_p)
        readings[f"iclr, {kind}"] = _p_alone(iclr_test(base.outputs[kind], suspect.outputs[kind]))
    readings["HuRef (ICS)"] = _value(ics(*base_model, *suspect_model))
    readings["HuRef (PCS)"] = _value(pcs(base.params, suspect.params))
    readings["Intrinsic"] = _value(intrinsic(base.params, suspect.params))
    readings["REEF"] = _value(reef(base.features, suspect.features))
    return readings


def read_outputs(base: Subject, suspect: Subject, seed: int, *, kendall: bool) -> dict[str, Reading]:
    """Run this package's tests on outputs."""
    options: dict[str, dict[str, Any]] = {"outputs, permutation": {}, "outputs, signs free": {"signs": "free"}}
    if kendall:
        options["outputs, Kendall"] = {"correlation": "kendall"}
    pair = base.outputs["tokens"], suspect.outputs["tokens"]
    return {
        name: _z(permutation_test(*pair, num_permutations=FEW, seed=seed, **kind)) for name, kind in options.items()
    }


def read_weights(base: Subject, suspect: Subject, seed: int) -> dict[str, Reading]:
    """Run this package's tests in the weights between any two models."""
    base_reader, suspect_reader = base.reader, suspect.reader
    names = [name for name in TESTS if name.startswith("weights, ")]
    readings = dict.fromkeys(names, NOTHING)
    tokens = shared_tokens(base_reader, suspect_reader)
    compared = coordinate_scores(base_reader, suspect_reader, tokens, signed=True)
    if compared.by_module:
        readings["weights, coordinates signed"] = _certified([compared.scores_DD], seed)
        readings["weights, coordinates"] = _certified([np.square(compared.scores_DD)], seed)
    for name, rotated in (("weights, units", False), ("weights, rotation, form A", True)):
        try:
            aligned = align(base_reader, suspect_reader, tokens, rotated=rotated)
        except Unaligned:
            continue
        blocks = [unit_scores(base_reader, suspect_reader, pair, aligned.turn_DD) for pair in aligned.pairs]
        if rotated:
            agreement = float(np.mean([match_units(block).agreement for block in blocks]))
            readings["weights, agreement of matchings"] = (agreement, None)
        readings[name] = _certified([form_a(block) for block in blocks], seed)
    return readings


def read_birth(birth: Subject, suspect: Subject, seed: int, num_permutations: int) -> dict[str, Reading]:
    """Run this package's tests of a birth against any model, but for its rank (:func:`read_ranks`)."""
    options: dict[str, Any] = {"num_permutations": num_permutations, "seed": seed}
    return {
        "birth: matched units": _z(weights_test(birth.reader, suspect.reader, align="units", **options)),
        "birth: bilinear": _z(bilinear_test(birth.reader, suspect.reader, **options)),
    }


def fresh_births(cfg: ModelConfig, number: int) -> list[Checkpoint]:
    """Draw births of the same distribution that nobody was trained from, for :func:`read_ranks`."""
    seeds = range(_FRESH, _FRESH + number)
    params = (jax.tree.map(np.asarray, init_seed(cfg, seed)) for seed in seeds)
    return [
        Checkpoint.from_params(cfg, each, seed=seed, is_initial=True) for seed, each in zip(seeds, params, strict=True)
    ]


def read_ranks(births: Sequence[Subject], suspect: Subject, fresh: Sequence[Checkpoint]) -> list[dict[str, Reading]]:
    """Rank each birth among fresh ones, by the coordinates that it shares with the suspect."""
    suspect_reader = suspect.reader
    readings: list[dict[str, Reading]] = []
    scores = [coordinate_score(birth, suspect_reader, shared_tokens(birth, suspect_reader)) for birth in fresh]
    for birth in births:
        own_score = coordinate_score(birth.reader, suspect_reader, shared_tokens(birth.reader, suspect_reader))
        p = (1 + sum(score >= own_score for score in scores)) / (1 + len(scores))
        z = (own_score - float(np.mean(scores))) / float(np.std(scores))
        readings.append({"birth: rank": (z, math.log10(p))})
    return readings


def _certified(scores: list[np.ndarray], seed: int) -> Reading:
    """Compute z and log₁₀ p of a trace, by two stages of permutations."""
    statistic = sum(float(np.trace(scores_nn, dtype=np.float64)) for scores_nn in scores)
    mean, variance = np.sum([moments(scores_nn) for scores_nn in scores], axis=0)
    if not variance > 0:
        return NOTHING
    drawn = [drawn_sums(scores_nn, FEW, seed=seed, group=index) for index, scores_nn in enumerate(scores)]
    reached = int((np.sum(drawn, axis=0) >= statistic - TIE * variance**0.5).sum())
    z = float((statistic - mean) / variance**0.5)
    if reached:
        return z, math.log10((1 + reached) / (1 + FEW))
    # Valid: what follows has draws of its own, and p of 1/200 and more are the first stage's.
    certified = certified_p(scores, num_permutations=FEW, seed=seed + _AGAIN)
    if not math.isfinite(certified.p_value) or certified.p_value > ALPHA:
        certified = certified_p(scores, num_permutations=NUM_PERMUTATIONS, seed=seed + _AGAIN)
    return (z, certified.log10_p) if math.isfinite(certified.p_value) else NOTHING


def _by_p(score: Score) -> Reading:
    return NOTHING if score.log10_p is None else (-score.log10_p, score.log10_p)


def _value(score: Score) -> Reading:
    return score.value, None


def _p_alone(verdict: Verdict) -> Reading:
    return NOTHING if verdict.log10_p is None else (-verdict.log10_p, verdict.log10_p)


def _z(verdict: Verdict) -> Reading:
    if verdict.log10_p is None:
        return NOTHING
    return _finite(verdict.z, -verdict.log10_p), verdict.log10_p


def _finite(value: float | None, instead: float) -> float:
    return instead if value is None or not math.isfinite(value) else float(value)
