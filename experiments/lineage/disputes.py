"""Guilty and innocent suspects of thirteen kinds of dispute: what each test finds and calls related (no paper's table).

The analysis, fixed before any number. Bases are trained seeds of one architecture, on one text in one order. Each
recipe of :mod:`.disputes_recipes` makes a suspect from every base. Guilty pairs are a base and the suspect made from
it; innocent pairs are every base with every suspect made from another base: same recipe, other initialization. In a
vision-tower dispute the language models are unrelated in all pairs, and only the tower is inherited or not.

Scores, larger for pairs that are more alike: of this package the z of each piece of evidence over the whole component
(the largest of a pair's components), and the agreement of matchings, from two fingerprints as they are published (16
numbers a vector, public signs); of public statistics the sheet's values; of published baselines their scores (φ_U: its
−log₁₀ p; those that run both models are in the benchmark of descendants), and the spectra of GhostSpec and SELF, which
the sheet has as well. What is undefined ranks below everything. ROC: AUC by kind, ties counted half, intervals by
families resampled; the power of a score at 1% is the fraction of guilty pairs above all but 1% of the innocent pairs of
*all* kinds, for nobody knows beforehand what was done to a suspect. A kind is found if that power is at least 90%.

Verdicts: ``auto`` at 1e-4 with Holm's correction, the whole and by component. False positives, over all innocent
pairs: of the verdict; and of each piece of evidence with a p at 1% (interval by families resampled) and at 1e-4
(count). A pair's p of one piece of evidence is the least over its components times their number. A test keeps its
level if the interval's lower end is not above 1%.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bornbiased_jax.chunk_store import Chunk
from bornbiased_jax.experiments.base import Context, Entry, Experiment, chunked, once_a_process
from bornbiased_jax.experiments.lineage import disputes_tables, settings
from bornbiased_jax.experiments.lineage.descendants_summary import PairReadings, area, roc
from bornbiased_jax.experiments.lineage.disputes_recipes import KINDS, Release, make_disputes
from bornbiased_jax.lineage import spectra
from bornbiased_jax.lineage.baselines import weight_scores
from bornbiased_jax.lineage.battery import ALPHA, Options
from bornbiased_jax.lineage.evidence import COORDINATES, RAW_NEURONS, SIGNLESS, TOKEN_HEADS, TOKEN_NEURONS
from bornbiased_jax.lineage.sheet import STATISTICS
from bornbiased_jax.lineage.sheet_statistics import compare
from bornbiased_jax.lineage.weights_verdict import auto_verdict
from bornbiased_jax.stats.intervals import binomial_interval, model_interval

EVIDENCE = (COORDINATES, SIGNLESS, RAW_NEURONS, TOKEN_NEURONS, TOKEN_HEADS)
AGREEMENT_OF_MATCHINGS = "agreement of matchings"
BASELINES = ("Intrinsic", "HuRef (PCS)", "HuRef (ICS)", "φ_U", "AWM")
# Models here have no tokenizer file; spectra of products are scores of published methods; of both CKA one is enough.
_LEFT_OUT = ("tokenizer_overlap", "shared_merges", "id_shift", "ghostspec", "self", "cka_hidden")
_PUBLIC = {key: statistic.title for key, statistic in STATISTICS.items() if key not in _LEFT_OUT}
SPECTRA = {STATISTICS[key].title: key for key in spectra.SPECTRA}
"""Published scores that the sheet has as well: name -> its key there."""
SOURCES = {
    **dict.fromkeys((*EVIDENCE, AGREEMENT_OF_MATCHINGS), "this package"),
    **dict.fromkeys(_PUBLIC.values(), "public statistic"),
    **dict.fromkeys((*BASELINES, *SPECTRA), "published"),
}
"""Every score by name, and where it comes from."""
LEVEL = 0.01
# Pairs that are computed between two looks at the disk.
_CHUNK = 50


class DisputePair(NamedTuple):
    """Numbers of a base and of the base that the suspect was made from, and the kind of dispute."""

    kind: str
    base: int
    suspect: int


def run(context: Context) -> Entry:
    """Make every suspect, compare it with every base, and summarize by kind and test."""
    settings = context.settings
    _disputes(settings, context.sources)
    total = len(KINDS) * settings["models"] ** 2
    rows = context.rows("disputes/pairs", compute, settings, total, size=_CHUNK)
    return {
        "num_pairs": {
            "guilty": sum(row["base"] == row["suspect"] for row in rows),
            "innocent": sum(row["base"] != row["suspect"] for row in rows),
        },
        "verdicts": [verdicts_of(kind, [row for row in rows if row["kind"] == kind]) for kind in KINDS],
        "tests": [summarize(name, source, rows, settings["models"]) for name, source in SOURCES.items()],
        "false_positives": [rejections(name, rows) for name in EVIDENCE if any(row["p"][name] for row in rows)],
        "accused": called_related(rows),
        "agreement": [agreement_of(kind, rows) for kind in KINDS],
    }


def pairs_of(count: int) -> Iterator[DisputePair]:
    """Yield every base with every suspect, kind by kind."""
    for kind, base, suspect in itertools.product(KINDS, range(count), range(count)):
        yield DisputePair(kind, base, suspect)


@chunked
def compute(settings: Entry, sources: Entry, chunk: Chunk) -> Sequence[Entry]:
    """Examine some pairs in any process: models are read from where the first one kept them."""
    disputes, rows = _disputes(settings, sources), []
    for index, pair in enumerate(list(pairs_of(settings["models"]))[chunk.start : chunk.stop], chunk.start):
        options = Options(num_permutations=settings["num_permutations"], seed=index)
        dispute = disputes[pair.kind]
        rows.append({**pair._asdict(), **examine(dispute.bases[pair.base], dispute.suspects[pair.suspect], options)})
    return rows


_disputes = once_a_process(make_disputes)


def examine(base: Release, suspect: Release, options: Options) -> Entry:
    """Read every score of a pair, and decide by this package's verdict.

    Returns:
        ``scores`` by name of :data:`SOURCES`; ``p`` by evidence; ``verdict``; ``components`` with their verdicts. What
        is undefined is None.
    """
    verdict = auto_verdict(base.fingerprint, suspect.fingerprint, options)
    detail: Entry = verdict.detail
    scores: dict[str, float | None] = {}
    p_values: dict[str, float | None] = {}
    # One row a component of each piece of evidence.
    for name in EVIDENCE:
        defined = [row for row in detail["tests"] if row["name"] == name and row["log10_p"] is not None]
        scores[name] = max((row["z"] for row in defined if row["z"] is not None), default=None)
        p_values[name] = min((min(1.0, len(defined) * row["p_value"]) for row in defined), default=None)
    scores[AGREEMENT_OF_MATCHINGS] = detail["agreement"]
    # What anybody can compute, from the same two models.
    public = compare(base.reading, suspect.reading)
    scores |= {title: public[key] for key, title in _PUBLIC.items()}
    published = weight_scores(base.checkpoint, suspect.checkpoint)
    for name, score in zip(BASELINES, published, strict=True):
        scores[name] = score.value if name != "φ_U" or score.log10_p is None else -score.log10_p
    scores |= {title: public[key] for title, key in SPECTRA.items()}
    return {
        "scores": {name: None if value is None else float(f"{value:.6g}") for name, value in scores.items()},
        "p": p_values,
        "verdict": verdict.verdict,
        "components": {row["component"]: row["verdict"] for row in detail["components"]},
    }


# ---------------------------------------------------------------------------------------------------------------------
# Summaries

PairEntries = Sequence[Entry]


def _split(rows: PairEntries) -> tuple[PairEntries, PairEntries]:
    guilty = [row for row in rows if row["base"] == row["suspect"]]
    return guilty, [row for row in rows if row["base"] != row["suspect"]]


def _pairs(rows: PairEntries, name: str) -> PairReadings:
    scores = [row["scores"][name] for row in rows]
    return PairReadings(
        np.array([row["base"] for row in rows]),
        np.array([row["suspect"] for row in rows]),
        np.array([-np.inf if score is None else score for score in scores]),
        np.zeros(len(rows), bool),
    )


def summarize(name: str, source: str, rows: PairEntries, count: int) -> Entry:
    """Summarize one score: power and ROC over all kinds, then AUC and power by kind.

    Args:
        name: of the score.
        source: where the score comes from.
        rows: of all kinds.
        count: number of bases.
    """
    guilty, innocent = (_pairs(part, name) for part in _split(rows))
    # The threshold that 1% of all innocent pairs exceed at most.
    threshold = np.sort(innocent.scores_N)[::-1][int(LEVEL * len(innocent))]
    kinds = []
    for kind in KINDS:
        kind_guilty, kind_innocent = (
            _pairs(part, name) for part in _split([row for row in rows if row["kind"] == kind])
        )
        kinds.append(
            {
                "kind": kind,
                "auc": area(kind_guilty, kind_innocent, count),
                "power": float((kind_guilty.scores_N > threshold).mean()),
                "num_guilty": len(kind_guilty),
                "num_undefined": int((~np.isfinite(kind_guilty.scores_N)).sum()),
            }
        )
    return {
        "test": name,
        "source": source,
        "auc": area(guilty, innocent, count),
        "power": float((guilty.scores_N > threshold).mean()),
        "roc": roc(guilty, innocent),
        "kinds": kinds,
    }


def verdicts_of(kind: str, rows: PairEntries) -> Entry:
    """Count the verdicts of one kind: of the whole, and of each component as a fraction of its pairs."""
    guilty, innocent = _split(rows)
    components = dict.fromkeys(name for row in rows for name in row["components"])
    return {
        "kind": kind,
        "guilty": len(guilty),
        "found": sum(row["verdict"] == "same-lineage" for row in guilty),
        "innocent": len(innocent),
        "accused": sum(row["verdict"] == "same-lineage" for row in innocent),
        "components": [
            {
                "component": name,
                "guilty": _fraction(guilty, name),
                "innocent": _fraction(innocent, name),
            }
            for name in components
        ],
    }


def _fraction(rows: PairEntries, component: str) -> float | None:
    """Return how often a component is called the same, of the pairs in which it has evidence."""
    verdicts = [row["components"].get(component, "undefined") for row in rows]
    defined = [verdict for verdict in verdicts if verdict != "undefined"]
    return defined.count("same-lineage") / len(defined) if defined else None


def rejections(name: str, rows: PairEntries) -> Entry:
    """Count the innocent pairs that one piece of evidence rejects at 1% and at the verdicts' level."""
    innocent = [row for row in _split(rows)[1] if row["p"][name] is not None]
    hits = np.array([row["p"][name] <= LEVEL for row in innocent])
    low, high = model_interval(hits, [(row["base"], row["suspect"]) for row in innocent])
    return {
        "test": name,
        "num_pairs": len(innocent),
        "rate": float(hits.mean()),
        "low": low,
        "high": high,
        "below_alpha": sum(row["p"][name] <= ALPHA for row in innocent),
    }


def called_related(rows: PairEntries) -> Entry:
    """Count the innocent pairs that the verdict calls the same, with the upper limit of their rate."""
    innocent = _split(rows)[1]
    count = sum(row["verdict"] == "same-lineage" for row in innocent)
    return {"count": count, "num_pairs": len(innocent), "upper": binomial_interval(count, len(innocent))[1]}


def agreement_of(kind: str, rows: PairEntries) -> Entry:
    """Return the largest agreement of two matchings over the innocent pairs of a kind; None where undefined."""
    innocent = _split([row for row in rows if row["kind"] == kind])[1]
    values = [row["scores"][AGREEMENT_OF_MATCHINGS] for row in innocent]
    return {"kind": kind, "largest": max((value for value in values if value is not None), default=None)}


EXPERIMENT = Experiment(
    name="disputes",
    title="Benchmark of disputes",
    description=(
        "Suspects of thirteen kinds, modeled on those of public disputes, each made from small trained models and held "
        "against the model that it was made from (guilty) and against all others (innocent), by scores of this "
        "package, the statistics that disputes were argued with, and published baselines."
    ),
    settings=settings.DISPUTES,
    cost={
        "smoke": "a minute, most of it compilation",
        "laptop": "three minutes to a quarter of an hour on two cores",
        "paper": "not measured: for a GPU",
    },
    run=run,
    tables=disputes_tables.tables,
    figures=disputes_tables.figures,
    headline=disputes_tables.headline,
)
