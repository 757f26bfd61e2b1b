"""Pairs of models trained apart, of many shapes: what every piece of evidence and ``auto`` say of them.

The analysis, fixed before any number. Populations: seeds of one architecture trained on one text in one order; widths,
depths, vocabularies, texts, tied embeddings, norms and experts differ from one population to the next, and no seed
occurs twice. Pairs: all within a population; across populations every model of one with one of the other; and within a
population every model with the next one's after each of the changes: rounded to 4 bits, half of the neurons pruned,
merged with a third model (30%), upcycled to experts. By piece of evidence over the whole model, and for ``auto``: the
fraction of pairs with p ≤ 0.01, models resampled (95%); p ≤ 1e-4 as a count with Clopper and Pearson's upper limit;
Kolmogorov–Smirnov of the permutation p, before the bound, on pairs in which no model occurs twice.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.native_roles import NativeRoles
from bornbiased_jax.chunk_store import Chunk
from bornbiased_jax.config import preset
from bornbiased_jax.derive.damage import Model
from bornbiased_jax.experiments._shared.lineage import derived
from bornbiased_jax.experiments.base import Context, Entry, chunked, once_a_process
from bornbiased_jax.experiments.lineage.disputes_recipes import merged, pruned, upcycled
from bornbiased_jax.experiments.lineage.unrelated_models import cached_run
from bornbiased_jax.lineage.battery import ALPHA, Options
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.lineage.fingerprints import Fingerprint
from bornbiased_jax.lineage.weights_verdict import auto_verdict
from bornbiased_jax.report.numbers import integer, p_value, percent, rate_interval
from bornbiased_jax.report.tables import Cells, Claim, Table, tabulate
from bornbiased_jax.stats.intervals import binomial_interval, disjoint_pairs, model_interval

LEVEL = 0.01
VERDICT = "auto"
PLAIN, ACROSS = "one population", "two populations"
CHANGES: dict[str, Callable[[Model, Model, int], Model]] = {
    "rounded to 4 bits": lambda model, _, place: derived(model, "round:4", seed=place),
    "half of the neurons pruned": lambda model, _, place: pruned(model, place),
    "30% of a third model": lambda model, third, _: merged(model, third, 0.3),
    "upcycled to experts": lambda model, _, place: upcycled(4, model, place),
}
"""Changes of a suspect by name: functions of it, a third model and its number."""
_TEXT = "builtin:prose"
# Pairs that are computed between two looks at the disk.
_CHUNK = 25


class UnrelatedPair(NamedTuple):
    """Two unrelated models, each by population, seed and change ("" for none), and the kind of pair."""

    kind: str
    base: tuple[str, int, str]
    suspect: tuple[str, int, str]


def train_populations(context: Context) -> Callable[[tuple[str, int, str]], Fingerprint]:
    """Train all models; return their fingerprints by population, seed and change, each made when first asked for."""
    settings = context.settings
    models: dict[tuple[str, int], Model] = {}
    for number, (name, changes) in enumerate(settings["populations"].items()):
        fields = {key: value for key, value in changes.items() if key != "text"}
        cfg = preset(settings["model"], **{**settings["shape"], **fields})
        seeds = range(1_000 * number, 1_000 * number + settings["seeds"])
        trained = cached_run(context, "unrelated_pairs/models", cfg, changes.get("text", _TEXT), 0, seeds)
        models |= {(name, place): (cfg, params) for place, params in enumerate(trained)}

    @functools.cache
    def fingerprint_of(model: tuple[str, int, str]) -> Fingerprint:
        name, place, change = model
        changed = models[name, place]
        if change:
            # The third model of a merge is in no pair with this suspect.
            changed = CHANGES[change](changed, models[name, (place + 1) % settings["seeds"]], place)
        return fingerprint(NativeRoles(Checkpoint.from_params(*changed)))

    return fingerprint_of


_fingerprints = once_a_process(train_populations)


def pairs_of(settings: Entry) -> Iterator[UnrelatedPair]:
    """Yield the pairs of all populations, kind by kind."""
    names, places = list(settings["populations"]), range(settings["seeds"])
    for name, (first, second) in itertools.product(names, itertools.combinations(places, 2)):
        yield UnrelatedPair(PLAIN, (name, first, ""), (name, second, ""))
    for (name, partner), place in itertools.product(itertools.combinations(names, 2), places):
        yield UnrelatedPair(ACROSS, (name, place, ""), (partner, place, ""))
    for change, name, place in itertools.product(CHANGES, names, places):
        if change in _possible(settings["populations"][name]):
            yield UnrelatedPair(change, (name, place, ""), (name, (place + 1) % len(places), change))


def _possible(changes: Entry) -> Sequence[str]:
    """Return the changes that an architecture can have: experts are pruned and upcycled no further."""
    rounded, half, third, experts = CHANGES
    if "num_experts" in changes:
        return [rounded, third]
    return [rounded, third, experts, *([half] if changes.get("gated_mlp", True) else [])]


def calibrate(context: Context) -> Entry:
    """Compare all pairs, and summarize by piece of evidence and by kind of pair."""
    names = ("model", "shape", "populations", "seeds", "schedule", "num_permutations")
    settings = {name: context.settings[name] for name in names}
    train_populations(context)
    pairs = list(pairs_of(settings))
    rows = context.rows("unrelated_pairs/pairs", compute, settings, len(pairs), size=_CHUNK)
    tests = dict.fromkeys(name for row in rows for name in row["p"])
    return {
        "num_models": len(settings["populations"]) * settings["seeds"],
        "tests": [summarize(name, pairs, rows, settings["num_permutations"]) for name in tests],
        "kinds": [_by_kind(kind, pairs, rows) for kind in dict.fromkeys(pair.kind for pair in pairs)],
        "agreement": [_largest_agreement(name, pairs, rows) for name in settings["populations"]],
    }


@chunked
def compute(settings: Entry, sources: Entry, chunk: Chunk) -> Sequence[Entry]:
    """Compare some pairs by everything that two published fingerprints hold."""
    fingerprint_of, rows = _fingerprints(settings, sources), []
    for index, pair in enumerate(list(pairs_of(settings))[chunk.start : chunk.stop], chunk.start):
        base, suspect = fingerprint_of(pair.base), fingerprint_of(pair.suspect)
        options = Options(num_permutations=settings["num_permutations"], seed=index)
        verdict = auto_verdict(base, suspect, options)
        detail: Entry = verdict.detail
        p_values = {row["name"]: row["p_value"] for row in detail["tests"]}
        # Where the agreement of matchings decides there is no p.
        p_values[VERDICT] = verdict.p_value
        rows.append(
            {
                "p": {name: p for name, p in p_values.items() if p is not None},
                "is_same": verdict.verdict == "same-lineage",
                "agreement": detail["agreement"],
            }
        )
    return rows


def summarize(name: str, pairs: Sequence[UnrelatedPair], rows: Sequence[Entry], num_permutations: int) -> Entry:
    """Summarize one piece of evidence, or the verdict, over the pairs in which it has a p."""
    defined = [index for index, row in enumerate(rows) if name in row["p"]]
    p_values = np.array([rows[index]["p"][name] for index in defined])
    # A changed suspect is the model that it was made from.
    models = [(str(pairs[index].base[:2]), str(pairs[index].suspect[:2])) for index in defined]
    low, high = model_interval(p_values <= LEVEL, models)
    is_same = [rows[index]["is_same"] for index in defined] if name == VERDICT else p_values <= ALPHA
    count = int(np.sum(is_same))
    disjoint = disjoint_pairs(models)
    counted = np.maximum(p_values, 1 / (num_permutations + 1))[disjoint]
    return {
        "test": name,
        "num_pairs": len(defined),
        "rate": float((p_values <= LEVEL).mean()),
        "low": low,
        "high": high,
        "at_alpha": {"count": count, "upper": binomial_interval(count, len(defined))[1]},
        "ks_p": None if name == VERDICT else float(stats.kstest(counted, "uniform").pvalue),
        "ks_pairs": len(disjoint),
    }


def _by_kind(kind: str, pairs: Sequence[UnrelatedPair], rows: Sequence[Entry]) -> Entry:
    of_kind = [row for pair, row in zip(pairs, rows, strict=True) if pair.kind == kind]
    count = sum(row["is_same"] for row in of_kind)
    return {
        "kind": kind,
        "num_pairs": len(of_kind),
        "at_alpha": {"count": count, "upper": binomial_interval(count, len(of_kind))[1]},
    }


def _largest_agreement(name: str, pairs: Sequence[UnrelatedPair], rows: Sequence[Entry]) -> Entry:
    """Return the largest agreement of two matchings of neurons within a population; None where undefined."""
    values = [
        row["agreement"]
        for pair, row in zip(pairs, rows, strict=True)
        if pair.kind == PLAIN and pair.base[0] == name and row["agreement"] is not None
    ]
    return {"population": name, "largest": max(values, default=None)}


# ---------------------------------------------------------------------------------------------------------------------
# Display


def count_below(at_alpha: Mapping[str, float]) -> str:
    """Write a count of pairs, and the upper limit of their rate."""
    return f"{at_alpha['count']} (at most {percent(2)(at_alpha['upper'])})"


def tables(trained: Entry, settings: Entry) -> list[Table]:
    """Tabulate evidence, kinds of pairs, and agreements by population."""
    tests = []
    for test in trained["tests"]:
        measured: Cells = {
            "p ≤ 0.01": rate_interval(test),
            "p ≤ 10⁻⁴": count_below(test["at_alpha"]),
            "KS p": None if test["ks_p"] is None else (p_value(2), test["ks_p"]),
            "disjoint pairs": (integer, test["ks_pairs"]),
        }
        tests.append(([test["test"], test["num_pairs"]], measured))
    note = (
        f"{trained['num_models']} models, {settings['seeds']} seeds of each of {len(trained['agreement'])} "
        f"architectures and texts, trained for {settings['schedule']['steps']} steps and compared by fingerprints as "
        "they are published; counted are the pairs in which the evidence is defined. The 95% intervals of p ≤ 0.01 "
        "are resampled by model, since pairs share models; the limits in brackets take pairs for independent. KS "
        "compares the permutation p of pairs that share no model with uniform ones. auto: p after Holm's correction, "
        "and verdicts."
    )
    kinds = [
        ([kind["kind"], kind["num_pairs"]], {"called related": count_below(kind["at_alpha"])})
        for kind in trained["kinds"]
    ]
    agreements = [
        ([row["population"]], {"largest agreement": (percent(1), row["largest"])}) for row in trained["agreement"]
    ]
    return [
        tabulate("The tests in the weights on models trained apart", ["test", "pairs"], tests, note),
        tabulate(
            "Verdicts on models trained apart",
            ["suspect", "pairs"],
            kinds,
            "By what was done to the suspect; in the first two rows nothing, and two populations differ in "
            "architecture or text. The limits in brackets take pairs for independent.",
        ),
        tabulate(
            "Agreement of matchings of models trained apart",
            ["population"],
            agreements,
            "The largest fraction of hidden units that two independent matchings pair alike, over pairs of a "
            "population.",
        ),
    ]


def claims(trained: Entry) -> list[Claim]:
    """State how many pairs the verdict calls related."""
    total = sum(kind["num_pairs"] for kind in trained["kinds"])
    statement = f"Verdicts that call two models trained apart related, of {total:,} pairs"
    return [Claim(statement, float(_called_related(trained)), theory=0.0, format=integer)]


def headline(trained: Entry) -> str:
    """State how many pairs the verdict calls related."""
    total = sum(kind["num_pairs"] for kind in trained["kinds"])
    return f"The verdict calls {_called_related(trained)} of {total:,} pairs of models trained apart related."


def _called_related(trained: Entry) -> int:
    return sum(kind["at_alpha"]["count"] for kind in trained["kinds"])
