"""False-positive rates of the tests in the weights on disjoint pairs of initializations, each with its permutations.

The analysis, fixed before any number: initializations of independent seeds, each in one pair. By test the fraction of
pairs with p < 0.01 and with p < 0.05, each with the exact two-sided binomial test of that level, and Kolmogorov–Smirnov
against uniform; all checks of all tests together by Holm at 5%. With 2,000 permutations p < 0.01 has probability
20/2,001 and p < 0.05 100/2,001 where a test is exact. Intervals are Clopper and Pearson's at 95%, for they are shown
and not checked.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from bornbiased_jax import model as models
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.chunk_store import Chunk
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.experiments._shared import calibration
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record, by_scale, chunked
from bornbiased_jax.experiments.lineage.sketched import sketch
from bornbiased_jax.lineage.battery import Options
from bornbiased_jax.lineage.evidence import COORDINATES, MATCHED, RAW_NEURONS, SIGNLESS, TOKEN_NEURONS
from bornbiased_jax.lineage.weights_verdict import single_verdict
from bornbiased_jax.report.numbers import fixed, integer, rate_interval, significant
from bornbiased_jax.report.tables import Claim, Table, tabulate


class Case(NamedTuple):
    """One test on one kind of initial weights: evidence of fingerprints, and whether embeddings are tied."""

    evidence: str
    is_tied: bool = False


CASES: dict[str, Case] = {
    "coordinates": Case(SIGNLESS),
    "coordinates, signed": Case(COORDINATES),
    "coordinates, tied": Case(SIGNLESS, is_tied=True),
    "units, form A": Case(RAW_NEURONS),
    "rotation, form A": Case(TOKEN_NEURONS),
    "rotation, form A, tied": Case(TOKEN_NEURONS, is_tied=True),
    "matched units": Case(MATCHED),
}
# Seeds of one case; far fewer are used.
_SEEDS_A_CASE = 1_000_000
_QUANTILES = 200


def run(context: Context) -> Entry:
    """Summarize every test and the family of checks."""
    settings = context.settings
    cases, family = [], {}
    for number, name in enumerate(CASES):
        test_settings = {key: settings[key] for key in ("model", "changes", "num_permutations")}
        rows = context.rows(
            "weights_calibration/pairs",
            compute,
            {**test_settings, "test": name, "number": number},
            settings["num_pairs"],
            size=settings["chunk"],
        )
        p_values, z_values = zip(*rows, strict=True)
        family[name] = calibration.summarize(p_values, z_values)
        summary = dataclasses.asdict(family[name])
        cases.append({"test": name, "uniform": True, **summary, "qq": _quantiles(p_values)})
    return {"cases": cases, "family": calibration.check_family(family)}


def _quantiles(p_values: Sequence[float | None]) -> dict[str, list[float]]:
    """Return quantiles of p, at most :data:`_QUANTILES`, as observed and as uniform numbers have them."""
    p_N = np.sort([p for p in p_values if p is not None])
    ranks = np.unique(np.linspace(0, len(p_N) - 1, min(len(p_N), _QUANTILES)).round().astype(int))
    return {"expected": ((ranks + 0.5) / max(1, len(p_N))).tolist(), "observed": p_N[ranks].tolist()}


@chunked
def compute(settings: Entry, _sources: object, chunk: Chunk) -> list[tuple[float | None, float | None]]:
    """Compute p and z of some pairs of one test."""
    case = CASES[settings["test"]]
    rows = []
    first = settings["number"] * _SEEDS_A_CASE + 2 * chunk.start
    for index, (base, suspect) in enumerate(untrained_pairs(config(settings, case), first, chunk.stop - chunk.start)):
        options = Options(0.01, settings["num_permutations"], chunk.start + index, has_untrained=True)
        outcome = single_verdict(sketch(base), sketch(suspect), case.evidence, options)
        rows.append((outcome.p_value, outcome.z))
    return rows


def config(settings: Entry, case: Case) -> ModelConfig:
    """Return the architecture of a case."""
    return preset(settings["model"], **settings["changes"], tie_embeddings=case.is_tied)


def untrained_pairs(cfg: ModelConfig, first_seed: int, count: int) -> Iterator[tuple[Checkpoint, Checkpoint]]:
    """Yield disjoint pairs of initializations: seeds ``first_seed`` + 2i and + 2i + 1, drawn together."""
    seeds = np.arange(first_seed, first_seed + 2 * count, dtype=np.uint32)
    drawn_S = jax.tree.map(np.asarray, _initializations(cfg, seeds))
    readers = [
        Checkpoint.from_params(
            cfg, jax.tree.map(lambda leaf, at=at: leaf[at], drawn_S), seed=int(seed), is_initial=True
        )
        for at, seed in enumerate(seeds)
    ]
    yield from zip(readers[::2], readers[1::2], strict=True)


@functools.partial(jax.jit, static_argnums=0)
def _initializations(cfg: ModelConfig, seeds_S: jax.Array) -> models.Params:
    return jax.vmap(functools.partial(models.init_seed, cfg))(seeds_S)


def tables(record: Record) -> Sequence[Table]:
    """Tabulate rates and uniformity by test, then the tied initializations."""
    result, settings = record["result"], record["settings"]
    adjusted = {(check["case"], check["check"]): check["adjusted_p"] for check in result["family"]["checks"]}
    rows = []
    # Rates and uniformity, a row a test.
    for case in result["cases"]:
        smallest = min(value for (name, _), value in adjusted.items() if name == case["test"])
        measured = {
            "below 0.01": rate_interval(case["rates"][0], percent_digits=2),
            "below 0.05": rate_interval(case["rates"][1], percent_digits=2),
            "KS p": (significant(2), case["ks_p"]),
            "z": (fixed(2), (case["z_mean"], case["z_std"])),
            "smallest adjusted p": (significant(2), smallest),
        }
        rows.append(([case["test"], case["num_pairs"]], measured))
    changes = settings["changes"]
    note = (
        f"Disjoint pairs of independent initializations, {settings['model']} with {changes['num_layers']} blocks, "
        f"D = {changes['d_model']}, {changes['d_ff']} hidden units, {changes['vocab_size']} tokens; "
        f"{settings['num_permutations']:,} permutations a pair. 95% intervals (Clopper and Pearson). Last column: of "
        f"the test's three checks, corrected for all {result['family']['num_checks']} (Holm)."
    )
    if not all(case["uniform"] for case in result["cases"]):
        note += " The best pair of blocks is corrected for their number, and checked for too many small p alone."
    shown = [tabulate("The tests in the weights on unrelated initializations", ["test", "pairs"], rows, note)]
    if "tied_rows_alone" in result:
        shown.append(_tied_rows_alone(result["tied_rows_alone"]))
    return shown


def _tied_rows_alone(tied: Entry) -> Table:
    """Tabulate what permuting embedding rows alone would do, from records made before fingerprints."""
    counts = {
        "embedding and head together, as the test does": tied["below_0.01"],
        "embedding rows alone, which it never does": tied["below_0.01_rows_alone"],
    }
    rows = [([name, tied["num_pairs"]], {"below 0.01": (integer, count)}) for name, count in counts.items()]
    return tabulate("Unrelated tied initializations in the bilinear test", ["permuted", "pairs"], rows)


def claims(record: Record) -> Sequence[Claim]:
    """State the smallest adjusted p of the family."""
    family = record["result"]["family"]
    count = record["settings"]["num_pairs"]
    statement = (
        f"Tests in the weights on {count:,} disjoint pairs of initializations each: smallest of {family['num_checks']} "
        "p of their checks, corrected (below 0.05 at least one test would be off its level)"
    )
    least = min(check["adjusted_p"] for check in family["checks"])
    return [Claim(statement, least, format=significant(2))]


def headline(record: Record) -> str:
    """State what the family of checks says."""
    family = record["result"]["family"]
    least = min(check["adjusted_p"] for check in family["checks"])
    verdict = "none rejects" if family["calibrated"] else "at least one REJECTS"
    return (
        f"Of {family['num_checks']} checks of the tests in the weights on {record['settings']['num_pairs']:,} disjoint "
        f"pairs of initializations each, together by Holm at 5%, {verdict} (smallest adjusted p {least:.2g})."
    )


_TINY = {"num_layers": 2, "num_heads": 2, "num_kv_heads": 2, "d_model": 32, "d_ff": 64, "vocab_size": 64}
_LEAST = {**_TINY, "num_heads": 1, "num_kv_heads": 1, "d_model": 12, "d_ff": 16, "vocab_size": 24}

EXPERIMENT = Experiment(
    name="weights_calibration",
    title="The tests in the weights keep their level on untrained models",
    description=(
        "Every exact test in the weights on thousands of disjoint pairs of independent initializations: how many p "
        "fall below 0.01 and 0.05, and whether p is uniform, all checks held together by Holm's correction.\n\n"
        "Trained models are another matter, and the calibration benchmark's."
    ),
    settings=by_scale(
        model="llama-tiny",
        changes=(_LEAST, _TINY, {**_TINY, "d_model": 96, "d_ff": 256, "vocab_size": 256}),
        num_pairs=(40, 5_000, 20_000),
        num_permutations=(200, 2_000, 2_000),
        chunk=(40, 500, 500),
    ),  # fmt: skip
    cost={"smoke": "seconds", "laptop": "see the record", "paper": "not measured: hours"},
    run=run,
    claims=claims,
    tables=tables,
    headline=headline,
)
