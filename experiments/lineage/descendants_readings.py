"""What every test and baseline reads on one pair: a score that ranks pairs, and a p where there is one.

The tests in the weights are evidence of fingerprints, one of each model: the statistics are those of the verdicts, and
so is the threshold of the agreement of matchings. Labels are paired once for all evidence on two models. Permutations
are drawn in two stages: a few, and where none of these reaches the pair as many others, or 9,999 unless the bound
settles it at the test's level. The p is valid, and decides at the level as the verdict's.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.experiments._shared.baselines import (
    Projections,
    mlp_activations,
    phi_h,
    phi_match,
    reef,
    reef_features,
)
from bornbiased_jax.experiments.base import Entry
from bornbiased_jax.experiments.lineage.sketched import SETTINGS, sketch
from bornbiased_jax.lineage.baselines import LEVEL, THRESHOLD, awm, ics, intrinsic, pcs, phi_u
from bornbiased_jax.lineage.battery import ALPHA, ComponentTest, Options, main_pair, single_cell
from bornbiased_jax.lineage.component_pair import ComponentPair
from bornbiased_jax.lineage.evidence import COORDINATES, MATCHED, RAW_NEURONS, SIGNLESS, TOKEN_NEURONS, EvidenceError
from bornbiased_jax.lineage.fingerprints import Fingerprint, Settings
from bornbiased_jax.lineage.outputs import OutputOptions, last_outputs
from bornbiased_jax.lineage.paper import iclr_test, paper_test
from bornbiased_jax.lineage.permutation import permutation_test
from bornbiased_jax.lineage.verdict import Verdict
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes.inputs import Inputs, gaussian, parse_inputs, random_tokens
from bornbiased_jax.stats.permutations import NUM_PERMUTATIONS

FEW = 199
"""Permutations of the first stage."""
# Seed of the second stage.
_AGAIN = 1 << 30

ScoreReading = tuple[float | None, float | None]
"""A score, larger for pairs that are more alike, and log₁₀ p; None where there is none."""
NOTHING: ScoreReading = (None, None)


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

    def same(self, reading: ScoreReading) -> bool:
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
    "weights, agreement of matchings": Reads(False, 1.0, by_p=False),
    "birth: matched units": Reads(False, ALPHA, exact=True, base="birth"),
}  # fmt: skip
"""Every test by name, in the order of the tables.

The agreement of matchings is read in units of the verdict's threshold, which depends on how many neurons a block has.
"""
EVIDENCE: dict[str, str] = {
    "weights, coordinates": SIGNLESS,
    "weights, coordinates signed": COORDINATES,
    "weights, units": RAW_NEURONS,
    "weights, rotation, form A": TOKEN_NEURONS,
}
"""Tests in the weights between any two models, and the evidence of fingerprints that each is."""
AGREEMENT = "weights, agreement of matchings"
SMALL = {name: f"{name}, default size" for name in (*EVIDENCE, AGREEMENT)}
"""Tests in the weights, and their names where sketches have as many numbers as fingerprints have by default: two
checkpoints are compared with so many. What they find is counted by itself."""
EXACT = tuple(
    name for name, test in TESTS.items() if test.exact and test.base == "model" and name != "outputs, Kendall"
)
"""Tests with an exact p between any two models: what every pair of families is tried by. Kendall's form is left out: it
takes as long as all others, and its p is exact for the same reason as Spearman's.
"""


class Origin(NamedTuple):
    """The origin of a model: a name that says it all; no corpus for an initialization."""

    width: int
    corpus: str | None
    order: int
    seed: int | None


DERIVED = Origin(0, "", 0, None)
"""Of a model that training or a change made of a family."""


@dataclasses.dataclass(frozen=True, eq=False)
class FamilyReading:
    """One model with what the tests read of it, each computed when first asked for.

    Attributes:
        cfg: the architecture.
        params: the weights.
        settings: of the experiment; ``probe`` says what is read.
        probe_cfg: the architecture that inputs are made for, those of all models alike: a changed vocabulary changes
            no input.
        tokenizer: of the text that models read.
        origin: where the model comes from.
    """

    cfg: ModelConfig
    params: Params
    settings: Entry
    probe_cfg: ModelConfig
    tokenizer: str | None = "bytes"
    origin: Origin = DERIVED

    @property
    def is_initial(self) -> bool:
        """True if these are initial weights."""
        return self.origin.corpus is None

    @functools.cached_property
    def reader(self) -> Checkpoint:
        """Its weights, tensor by tensor."""
        return Checkpoint.from_params(self.cfg, self.params, seed=self.origin.seed, is_initial=self.is_initial)

    @functools.cached_property
    def sketches(self) -> Fingerprint:
        """For the tests in the weights."""
        return sketch(self.reader)

    @functools.cached_property
    def small_sketches(self) -> Fingerprint:
        """The same with as many numbers as fingerprints have by default."""
        return sketch(self.reader, dataclasses.replace(SETTINGS, dim=Settings().dim))

    @functools.cached_property
    def outputs(self) -> dict[str, np.ndarray]:
        """Last outputs [N, D] on random tokens, and on Gaussian vectors that all models share."""
        probe, cfg = self.settings["probe"], self.probe_cfg
        num, length = probe["num_inputs"], probe["seq_len"]
        tokens = random_tokens(num, length, probe.get("vocab_size", cfg.vocab_size))
        vectors = gaussian(num, length, cfg.d_model)
        return {
            "tokens": last_outputs(self.cfg, self.params, tokens),
            "vectors": last_outputs(self.cfg, self.params, vectors, OutputOptions((0.0, cfg.embedding_std))),
        }

    @functools.cached_property
    def features(self) -> np.ndarray:
        """REEF's features of sentences."""
        return reef_features(self.cfg, self.params, self._text("num_sentences"))

    @functools.cached_property
    def activations(self) -> Projections:
        """Of the gate and up projections on the tokens of some sentences."""
        return mlp_activations(self.cfg, self.params, self._text("num_matched"))

    def _text(self, number: str) -> Inputs:
        probe = self.settings["probe"]
        return _sentences(probe["text"], probe[number], probe["sentence_len"], self.probe_cfg, self.tokenizer)


@functools.lru_cache(maxsize=8)
def _sentences(text: str, number: int, length: int, cfg: ModelConfig, tokenizer: str | None) -> Inputs:
    return parse_inputs(text, num_inputs=number, seq_len=length, cfg=cfg, tokenizer=tokenizer)


def read_published(base: FamilyReading, suspect: FamilyReading) -> dict[str, ScoreReading]:
    """Compute every published test and score."""
    base_model, suspect_model = (base.cfg, base.params), (suspect.cfg, suspect.params)
    score = awm(*base_model, *suspect_model)
    readings = {
        "φ_U": _p_alone(phi_u(*base_model, *suspect_model).log10_p),
        "φ_H": _p_alone(phi_h(base.activations, suspect.activations).log10_p),
        "φ_MATCH": _p_alone(phi_match(base.activations, suspect.activations).log10_p),
        "AWM, its z as normal": (score.value, score.log10_p),
    }
    for kind in ("vectors", "tokens"):
        outputs = base.outputs[kind], suspect.outputs[kind]
        detail: Entry = paper_test(*outputs).detail
        readings[f"Algorithm 1, t, {kind}"] = _p_alone(detail.get("log10_p_t"))
        readings[f"Algorithm 1, U, {kind}"] = _p_alone(detail.get("log10_p_u"))
        readings[f"iclr, {kind}"] = _p_alone(iclr_test(*outputs).log10_p)
    return readings | {
        "HuRef (ICS)": (ics(*base_model, *suspect_model).value, None),
        "HuRef (PCS)": (pcs(base.params, suspect.params).value, None),
        "Intrinsic": (intrinsic(base.params, suspect.params).value, None),
        "REEF": (reef(base.features, suspect.features).value, None),
    }


def output_verdicts(
    base: FamilyReading, suspect: FamilyReading, num_permutations: int, seed: int, *, kendall: bool = True
) -> dict[str, Verdict]:
    """Run this package's tests on outputs; Kendall's form takes as long as all others."""
    test = functools.partial(
        permutation_test,
        base.outputs["tokens"],
        suspect.outputs["tokens"],
        num_permutations=num_permutations,
        seed=seed,
    )
    verdicts = {"outputs, permutation": test(), "outputs, signs free": test(signs="free")}
    return verdicts | ({"outputs, Kendall": test(correlation="kendall")} if kendall else {})


def read_outputs(base: FamilyReading, suspect: FamilyReading, seed: int, *, kendall: bool) -> dict[str, ScoreReading]:
    """Run this package's tests on outputs, with a few permutations."""
    verdicts = output_verdicts(base, suspect, FEW, seed, kendall=kendall)
    return {name: _z(verdict) for name, verdict in verdicts.items()}


def read_weights(base: FamilyReading, suspect: FamilyReading, seed: int) -> dict[str, ScoreReading]:
    """Run this package's tests in the weights between any two models."""
    return _read_sketches(base.sketches, suspect.sketches, seed)


def read_small(base: FamilyReading, suspect: FamilyReading, seed: int) -> dict[str, ScoreReading]:
    """Run the same tests on sketches of the default size, under names of their own."""
    readings = _read_sketches(base.small_sketches, suspect.small_sketches, seed)
    return {SMALL[name]: reading for name, reading in readings.items()}


def _read_sketches(base: Fingerprint, suspect: Fingerprint, seed: int) -> dict[str, ScoreReading]:
    # Blocks, experts and their labels correspond alike for all evidence.
    pair = main_pair(base, suspect)
    readings = {name: _staged(pair, evidence, seed) for name, evidence in EVIDENCE.items()}
    return readings | {AGREEMENT: _agreement(pair)}


def read_initialization(
    initialization: FamilyReading, suspect: FamilyReading, seed: int, num_permutations: int
) -> dict[str, ScoreReading]:
    """Run this package's test of an initialization against any model."""
    options = Options(ALPHA, num_permutations, seed, has_untrained=True)
    pair = main_pair(initialization.sketches, suspect.sketches)
    return {"birth: matched units": _z(single_cell(pair, MATCHED, options))}


def _staged(pair: ComponentPair, evidence: str, seed: int) -> ScoreReading:
    """Compute z and log₁₀ p of one piece of evidence, by two stages of permutations."""
    cell = single_cell(pair, evidence, Options(ALPHA, FEW, seed))
    # Valid: what follows has draws of its own, and p of 2/200 and more are the first stage's.
    if cell.certified is not None and ALPHA < cell.certified.p_value < 1.5 / (1 + FEW):
        cell = single_cell(pair, evidence, Options(ALPHA, NUM_PERMUTATIONS, seed + _AGAIN))
    return _z(cell)


def _agreement(pair: ComponentPair) -> ScoreReading:
    """Return how far two matchings of the neurons agree, over the verdict's own threshold by the width of the MLPs."""
    try:
        return pair.matching.agreement / pair.matching.threshold, None
    except EvidenceError:
        return NOTHING


def _p_alone(log10_p: float | None) -> ScoreReading:
    return NOTHING if log10_p is None else (-log10_p, float(log10_p))


def _z(verdict: Verdict | ComponentTest) -> ScoreReading:
    """Return z and p; −log₁₀ p in place of a z that is no number."""
    if verdict.log10_p is None:
        return NOTHING
    is_finite = verdict.z is not None and math.isfinite(verdict.z)
    return verdict.z if is_finite else -verdict.log10_p, verdict.log10_p
