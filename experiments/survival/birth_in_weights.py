"""What is left of an initialization in the weights: every test in the weights on models trained apart on the same text.

No paper's table: the published tests read outputs, or have no exact null. The models are those of Table 4b with more
seeds. Analyzed as stated before any number: own initializations and other initializations by each test, independently
trained pairs by the tests that are exact between them, and how far two matchings of hidden units agree for independent
models and for copies that were hidden. Unrelated pairs share models, so their count is not a sample size: rates are not
tested here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.derive.damage import Model
from bornbiased_jax.experiments._shared.lineage import derived
from bornbiased_jax.experiments.base import SCALES, Context, Entry, Experiment, Record, each
from bornbiased_jax.experiments.lineage.sketched import matched, sketch
from bornbiased_jax.experiments.survival import persistence
from bornbiased_jax.experiments.survival.settings import PRECISION, changed
from bornbiased_jax.lineage.battery import Options
from bornbiased_jax.lineage.evidence import MATCHED, SIGNLESS, TOKEN_NEURONS
from bornbiased_jax.lineage.fingerprints import Fingerprint
from bornbiased_jax.lineage.verdict import Verdict
from bornbiased_jax.lineage.weights_verdict import single_verdict
from bornbiased_jax.parameters import Params
from bornbiased_jax.report.numbers import fixed, integer, percent
from bornbiased_jax.report.tables import Cells, Claim, Table, tabulate

TESTS = {"coordinates": SIGNLESS, "rotation": TOKEN_NEURONS, "matched units": MATCHED}
"""Name -> evidence of fingerprints. Matched units are exact for an initialization alone."""

EXACT_BETWEEN_TRAINED = ("coordinates", "rotation")
OWN, OTHER, TRAINED, HIDDEN = "own birth", "another birth", "trained apart", "own birth, hidden"


def run(context: Context) -> Entry:
    """Compute every pair's verdict, briefly, and agreement of matchings."""
    trained_run, settings = persistence.base_run(context), context.settings
    identity = [settings[name] for name in ("model", "changes", "seeds", "schedule", "others", "noise")]
    identity += [persistence.corpora(context)["base"]]
    pairs = context.cached(
        "birth_in_weights/pairs", identity, lambda _folder: _compare(trained_run, settings, context.quiet)
    )
    return {"facts": persistence.facts_of(trained_run), **pairs}


def _compare(trained_run: Path, settings: Entry, quiet: bool) -> Entry:
    seeds = settings["seeds"]
    cfg = ModelConfig.from_dict(persistence.facts_of(trained_run)["model"])
    initializations = [persistence.load(persistence.initialization(trained_run, seed)) for seed in seeds]
    lives = [persistence.load(persistence.last(trained_run, seed)) for seed in seeds]
    of_initializations = [sketch(Checkpoint.from_params(cfg, params)) for params in initializations]
    of_lives = [sketch(Checkpoint.from_params(cfg, params)) for params in lives]
    hidden = [
        sketch(Checkpoint.from_params(*hide(cfg, params, seed))) for seed, params in zip(seeds, lives, strict=True)
    ]
    noisy = [
        sketch(Checkpoint.from_params(*hide(cfg, params, seed, f"noise:{settings['noise']}")))
        for seed, params in zip(seeds, lives, strict=True)
    ]
    # Own initializations, hidden copies, other seeds, and all pairs of trained models.
    pairs = list(_pairs(len(seeds), settings["others"]))
    rows: list[Entry] = []
    agreements: dict[str, list[Any]] = {TRAINED: [], "hidden copy": [], "hidden copy with noise": []}
    for relation, base_index, suspect_index in each(pairs, "initialization in weights", "pairs", quiet):
        base = of_lives[base_index] if relation == TRAINED else of_initializations[base_index]
        suspect = hidden[suspect_index] if relation == HIDDEN else of_lives[suspect_index]
        names = EXACT_BETWEEN_TRAINED if relation == TRAINED else tuple(TESTS)
        options = Options(has_untrained=relation != TRAINED)
        for name in names:
            answer = single_verdict(base, suspect, TESTS[name], options)
            rows.append(_row(relation, name, seeds[base_index], seeds[suspect_index], answer))
        if relation == TRAINED:
            agreements[TRAINED].append(_agreement(base, suspect))
        if relation == OWN:
            agreements["hidden copy"].append(_agreement(of_lives[base_index], hidden[base_index]))
            agreements["hidden copy with noise"].append(_agreement(of_lives[base_index], noisy[base_index]))
    return {"rows": rows, "agreements": agreements}


def _pairs(count: int, num_others: int) -> Iterator[tuple[str, int, int]]:
    """Yield own initializations plain and hidden, each against ``num_others`` other models, all trained pairs."""
    for index in range(count):
        yield OWN, index, index
        yield HIDDEN, index, index
        for step in range(1, num_others + 1):
            yield OTHER, index, (index + step) % count
    for first, second in itertools.combinations(range(count), 2):
        yield TRAINED, first, second


def hide(cfg: ModelConfig, params: Params, seed: int, *changes: str) -> Model:
    """Keep the function, hide the weights: rotate the residual stream at random, reorder and rescale hidden units.

    What else is changed comes first.
    """
    return derived((cfg, params), *changes, "rotate:{seed}", "permute:{seed}", "rescale:{seed}", seed=seed)


def _row(relation: str, name: str, base: int, suspect: int, answer: Verdict) -> Entry:
    return {
        "relation": relation,
        "test": name,
        "base": base,
        "suspect": suspect,
        "verdict": answer.verdict,
        "z": answer.z,
        "log10_p": answer.log10_p,
        "log10_p_bound": answer.detail.get("log10_p_bound"),
        "by_module": answer.detail.get("by_module") if name == "coordinates" and relation == OWN else None,
    }


def _agreement(base: Fingerprint, suspect: Fingerprint) -> Entry:
    """Compute the fraction of hidden units that two independent matchings pair alike: mean over blocks, and each."""
    matching = matched(base, suspect)
    assert matching is not None
    return {"mean": matching.agreement, "blocks": list(matching.by_block.values())}


def _z(record: Record, relation: str, test: str) -> list[float]:
    rows = record["result"]["rows"]
    return [row["z"] for row in rows if (row["relation"], row["test"]) == (relation, test) and row["z"] is not None]


def tables(record: Record) -> Sequence[Table]:
    """Tabulate z and p by test and relation; where in the weights it lies; agreement of matchings."""
    result = record["result"]
    rows = []
    # A row for every relation and test.
    for relation, test in itertools.product((OWN, HIDDEN, OTHER, TRAINED), TESTS):
        test_rows = [row for row in result["rows"] if (row["relation"], row["test"]) == (relation, test)]
        values = _z(record, relation, test)
        if not test_rows or not values:
            continue
        bounds = [row["log10_p_bound"] for row in test_rows if row["log10_p_bound"] is not None]
        measured: Cells = {
            "pairs": (integer, len(test_rows)),
            "called same": (integer, sum(row["verdict"] == "same-lineage" for row in test_rows)),
            "z, smallest": (fixed(1), min(values)),
            "z": (fixed(2), (float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0)),
            "z, largest": (fixed(1), max(values)),
            "log₁₀ p proven, largest": (fixed(1), max(bounds) if bounds else None),
        }
        rows.append(([relation, test], measured))
    facts = result["facts"]
    note = (
        f"Models of {len(facts['seeds'])} seeds, trained on {facts['tokens']:,} tokens each of the same text in the "
        "same order, against initializations and against one another; called same: p at most 10⁻⁴. Hidden: the "
        "trained model rotated at random, its hidden units reordered and rescaled, which leaves its function "
        "unchanged. Coordinates are compared up to sign; rotation is neurons in token space, which no rotation of "
        "the stream changes; matched units have an exact p only against an initialization. Pairs share models. log₁₀ "
        "p proven: the largest bound of the pairs."
    )
    verdicts = tabulate("An initialization in the weights", ["pair", "test"], rows, note=note, first_screen=False)
    # z of own initializations by matrix.
    modules = [
        ([name], {"z, smallest": (fixed(1), min(values)), "z, mean": (fixed(1), float(np.mean(values)))})
        for name, values in _modules(record).items()
    ]
    where = tabulate(
        "Where the initialization is left",
        ["matrix"],
        modules,
        note="z of trained models against their own initialization, by coordinates, in each kind of matrix.",
    )
    # Agreement of two independent matchings of hidden units.
    agreed = [
        (
            [relation],
            {
                "pairs": (integer, len(matchings)),
                "agreement, smallest": (percent(1), min(row["mean"] for row in matchings)),
                "agreement, largest": (percent(1), max(row["mean"] for row in matchings)),
                "largest in a block": (percent(1), max(max(row["blocks"]) for row in matchings)),
            },
        )
        for relation, matchings in result["agreements"].items()
    ]
    agreement = tabulate(
        "Units that two independent matchings pair alike",
        ["pair"],
        agreed,
        note=(
            "Fraction of hidden units that two independent matchings pair alike, over the blocks of a pair, and in a "
            f"single block. With noise: of {record['settings']['noise']} standard deviations of each matrix. A "
            "verdict requires four times the largest agreement of unrelated models with as many units."
        ),
    )
    return [verdicts, where, agreement]


def _modules(record: Record) -> dict[str, list[float]]:
    z_by_module: dict[str, list[float]] = {}
    for row in record["result"]["rows"]:
        for module in row["by_module"] or ():
            if module["z"] is not None:
                z_by_module.setdefault(module["module"], []).append(module["z"])
    return z_by_module


def claims(record: Record) -> Sequence[Claim]:
    """State the least z of own initializations, largest of others, and the largest agreement of unrelated models."""
    unrelated = [
        abs(value)
        for relation, test in itertools.product((OTHER, TRAINED), TESTS)
        for value in _z(record, relation, test)
    ]
    agreement = max(row["mean"] for row in record["result"]["agreements"][TRAINED])
    return [
        Claim("Smallest z of a trained model's own initialization, coordinates", min(_z(record, OWN, "coordinates")),
              format=fixed(1)),
        Claim("The same by neurons in token space, which no rotation of the residual stream moves",
              min(_z(record, OWN, "rotation")), format=fixed(1)),
        Claim("Largest |z| of any unrelated pair, by any of the tests", max(unrelated), format=fixed(1)),
        Claim("Largest agreement of matchings between models trained apart", agreement, format=percent(1)),
    ]  # fmt: skip


EXPERIMENT = Experiment(
    name="birth_in_weights",
    title="The initialization is plain in the trained weights, matrix by matrix",
    description=(
        "LLaMA-style models of many seeds, trained on the same text in the same order, against their own "
        "initialization, other initializations and one another by the tests in the weights; then once more rotated, "
        "with hidden units reordered and rescaled."
    ),
    settings=changed(seeds=(..., list(range(100, 116)), ...), others=(1, 3, 3), noise=0.5),
    cost={"laptop": "see the record", "paper": "not measured: for a GPU"},
    precision=PRECISION,
    run=run,
    takes_data=SCALES,
    claims=claims,
    tables=tables,
)
