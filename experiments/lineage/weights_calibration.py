"""False-positive rates of the tests in the weights on unrelated models, each pair with its permutations.

The analysis, fixed before any number. Initializations: of each architecture independent seeds, each in one pair; of
every pair all evidence and the verdict, from one comparison. By test the fraction of pairs with p < 0.01 and with
p < 0.05, each with the exact two-sided binomial test of that level, and Kolmogorov–Smirnov of the permutation p (before
the bound) against uniform; all checks of all tests together by Holm at 5%. With 2,000 permutations p < 0.01 has
probability 20/2,001 and p < 0.05 100/2,001 where a test is exact. Intervals are Clopper and Pearson's at 95%, for they
are shown and not checked. At 1e-4, the level of verdicts, a count with its upper limit. ``auto`` corrects for its
cells, so that its p is no uniform number: its rates are shown, and none of the checks is of them.

Trained models: those of :mod:`.unrelated_pairs`, where intervals are resampled by model.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from bornbiased_jax import model as models
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.chunk_store import Chunk
from bornbiased_jax.config import FieldValue, ModelConfig, preset
from bornbiased_jax.experiments._shared import calibration
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record, chunked
from bornbiased_jax.experiments.lineage import settings, unrelated_pairs
from bornbiased_jax.experiments.lineage.sketched import sketch
from bornbiased_jax.experiments.lineage.unrelated_pairs import count_below
from bornbiased_jax.lineage.battery import ALPHA, Options
from bornbiased_jax.lineage.evidence import COORDINATES, MATCHED, RAW_NEURONS, SIGNLESS, TOKEN_HEADS, TOKEN_NEURONS
from bornbiased_jax.lineage.weights_verdict import auto_verdict
from bornbiased_jax.report.numbers import fixed, p_value, rate_interval, significant
from bornbiased_jax.report.tables import Cells, Claim, Table, tabulate
from bornbiased_jax.stats.intervals import binomial_interval

AUTO = "auto"
TESTS: dict[str, str] = {
    SIGNLESS: "coordinates",
    COORDINATES: "coordinates, signed",
    RAW_NEURONS: "units, form A",
    TOKEN_NEURONS: "rotation, form A",
    TOKEN_HEADS: "heads",
    MATCHED: "matched units",
    AUTO: AUTO,
}
"""Name of each piece of evidence, and of the verdict of all, in tables."""
ARCHITECTURES: dict[str, dict[str, FieldValue]] = {
    "": {},
    "tied": {"tie_embeddings": True},
    "grouped heads": {"num_heads": 16},
    "experts": {"num_experts": 4},
}
"""Kinds of initial weights: what differs from the first."""
PairRow = tuple[float | None, float | None, bool]
"""The permutation p of one pair, z, and whether the pair is called related at the level of verdicts."""
# Seeds of one architecture; far fewer are used.
_SEEDS_EACH = 1_000_000


def run(context: Context) -> Entry:
    """Summarize every test and the family of checks, then pairs of trained models."""
    settings = context.settings
    cases, family = [], {}
    for number, architecture in enumerate(ARCHITECTURES):
        rows = context.rows(
            "weights_calibration/pairs",
            compute,
            {key: settings[key] for key in ("model", "changes", "num_permutations")} | {"number": number},
            settings["num_pairs"],
            size=settings["chunk"],
        )
        for evidence in dict.fromkeys(name for row in rows for name in row):
            name = ", ".join(filter(None, (TESTS[evidence], architecture)))
            values = [row.get(evidence, (None, None, False)) for row in rows]
            p_values, z_values, is_same = zip(*values, strict=True)
            summary = calibration.summarize(p_values, z_values)
            # The p of a verdict is corrected for its cells: no uniform number.
            if evidence != AUTO:
                family[name] = summary
            at_alpha = {"count": sum(is_same), "upper": binomial_interval(sum(is_same), len(rows))[1]}
            cases.append(
                {
                    "test": name,
                    "uniform": evidence != AUTO,
                    **dataclasses.asdict(summary),
                    "at_alpha": at_alpha,
                }
            )
    return {
        "cases": cases,
        "family": calibration.check_family(family),
        "trained": unrelated_pairs.calibrate(context),
    }


@chunked
def compute(settings: Entry, _sources: object, chunk: Chunk) -> list[dict[str, PairRow]]:
    """Compare some pairs by every piece of evidence and by the verdict of all."""
    cfg = config(settings, list(ARCHITECTURES)[settings["number"]])
    first = settings["number"] * _SEEDS_EACH + 2 * chunk.start
    # The bound alone reaches below the count of permutations.
    least = 1 / (settings["num_permutations"] + 1)
    rows = []
    for index, (base, suspect) in enumerate(untrained_pairs(cfg, first, chunk.stop - chunk.start), chunk.start):
        options = Options(ALPHA, settings["num_permutations"], index, has_untrained=True)
        verdict = auto_verdict(sketch(base), sketch(suspect), options)
        detail: Entry = verdict.detail
        row = {
            test["name"]: (max(test["p_value"], least), test["z"], test["p_value"] <= ALPHA)
            for test in detail["tests"]
            if test["p_value"] is not None
        }
        row[AUTO] = verdict.p_value, verdict.z, verdict.verdict == "same-lineage"
        rows.append(row)
    return rows


def config(settings: Entry, architecture: str) -> ModelConfig:
    """Return the configuration of an architecture by name."""
    return preset(settings["model"], **{**settings["changes"], **ARCHITECTURES[architecture]})


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
    """Tabulate rates and uniformity by test, then pairs of trained models."""
    result, settings = record["result"], record["settings"]
    adjusted = {(check["case"], check["check"]): check["adjusted_p"] for check in result["family"]["checks"]}
    rows = []
    # Rates and uniformity, a row a test.
    for case in result["cases"]:
        checks = [value for (name, _), value in adjusted.items() if name == case["test"]]
        measured = {**level_cells(case, checks), "p ≤ 10⁻⁴": count_below(case["at_alpha"])}
        rows.append(([case["test"], case["num_pairs"]], measured))
    changes = settings["changes"]
    note = (
        f"Disjoint pairs of independent initializations, {settings['model']} with {changes['num_layers']} blocks, D "
        f"= {changes['d_model']}, {changes['d_ff']} hidden units, {changes['vocab_size']} tokens; "
        f"{settings['num_permutations']:,} permutations a pair. Fractions of p below 0.01 and 0.05, with 95% "
        "intervals (Clopper and Pearson); KS p: Kolmogorov and Smirnov's test against uniform. Smallest adjusted p: "
        f"of these three checks, corrected for all {result['family']['num_checks']} (Holm). In brackets: the 95% "
        "upper limit of the rate."
    )
    if not all(case["uniform"] for case in result["cases"]):
        note += " The p of a verdict (auto) is corrected for its number of tests, and so is not uniform."
    listings = [tabulate("The tests in the weights on unrelated initializations", ["test", "pairs"], rows, note)]
    return [*listings, *unrelated_pairs.tables(result["trained"], settings)]


def level_cells(summary: Entry, checks: Sequence[float]) -> Cells:
    """Tabulate rates, uniformity and z of one test, and the smallest p of its checks; a verdict has none of these."""
    return {
        "below 0.01": rate_interval(summary["rates"][0], percent_digits=2),
        "below 0.05": rate_interval(summary["rates"][1], percent_digits=2),
        "KS p": (p_value(2), summary["ks_p"]) if checks else None,
        "z": (fixed(2), (summary["z_mean"], summary["z_std"])),
        "smallest adjusted p": (p_value(2), min(checks)) if checks else None,
    }


def claims(record: Record) -> Sequence[Claim]:
    """State the smallest adjusted p of the family."""
    family = record["result"]["family"]
    count = record["settings"]["num_pairs"]
    statement = (
        f"Tests in the weights on {count:,} disjoint pairs of initializations each: smallest of {family['num_checks']} "
        "p of their checks, corrected (below 0.05 at least one test would be off its level)"
    )
    rows = [Claim(statement, min(check["adjusted_p"] for check in family["checks"]), format=significant(2))]
    return [*rows, *unrelated_pairs.claims(record["result"]["trained"])]


def headline(record: Record) -> str:
    """State what the family of checks says."""
    family = record["result"]["family"]
    trained = unrelated_pairs.headline(record["result"]["trained"])
    return (
        f"Of {family['num_checks']} checks of the tests in the weights on {record['settings']['num_pairs']:,} disjoint "
        f"pairs of initializations each, together by Holm at 5%, {calibration.verdict_of(family)}. {trained}"
    )


EXPERIMENT = Experiment(
    name="weights_calibration",
    title="The level of the tests in the weights on untrained models",
    description=(
        "Every exact test in the weights on thousands of disjoint pairs of independent initializations, all checks "
        "held together by Holm's correction; then all evidence and the verdict on pairs of models trained apart, as "
        "they are and quantized, pruned, merged or upcycled."
    ),
    settings=settings.WEIGHTS_CALIBRATION,
    cost={
        "smoke": "a minute, most of it compilation",
        "laptop": "58 minutes on two busy cores",
        "paper": "not measured: hours",
    },
    run=run,
    claims=claims,
    tables=tables,
    headline=headline,
)
