"""Ranges over unrelated models of the statistics that public disputes were argued with (no paper's table).

Untrained models, models trained apart on one text or on different ones, and models of two widths. The record's result
is what the package reads as ``bornbiased_jax/lineage/unrelated_models.json``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bornbiased_jax.checkpoints.native_roles import NativeRoles
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record, each
from bornbiased_jax.experiments.lineage import settings
from bornbiased_jax.experiments.lineage.descendants_readings import FamilyReading, Origin
from bornbiased_jax.experiments.lineage.unrelated_models import initializations, trained
from bornbiased_jax.lineage.blockwise import probe_ids
from bornbiased_jax.lineage.sheet import KINDS, QUANTILES, STATISTICS
from bornbiased_jax.lineage.sheet_reading import SheetReading, read_model, vocabulary
from bornbiased_jax.lineage.sheet_statistics import compare, token_statistics
from bornbiased_jax.report.numbers import fixed
from bornbiased_jax.report.tables import Claim, Table, tabulate
from bornbiased_jax.text import corpora
from bornbiased_jax.text.bpe import train_bpe

SheetModel = tuple[Origin, SheetReading]
_ENDS = ("least", "5%", "median", "95%", "largest")


def run(context: Context) -> Entry:
    """Train models apart, and take the quantiles of every statistic over pairs of each kind."""
    settings = context.settings
    models = [_read(model) for width in settings["widths"] for model in trained(context, width)]
    models += [_read(model) for width in settings["widths"] for model in initializations(settings, width)]
    rows: dict[str, list[Entry]] = {kind: [] for kind in KINDS}
    tokens: dict[str, list[Entry]] = {kind: [] for kind in KINDS}
    pairs = list(_pairs(models, settings["num_pairs"]))
    for kind, base, suspect in each(pairs, "evidence_sheet", "pairs", context.quiet):
        rows[kind].append(compare(base, suspect))
    for kind, token_values in _tokenizer_pairs(settings):
        tokens[kind].append(token_values)
    statistics: dict[str, dict[str, list[float]]] = {key: {} for key in STATISTICS}
    for key, kind in itertools.product(STATISTICS, KINDS):
        values = [row[key] for row in [*rows[kind], *tokens[kind]] if row.get(key) is not None]
        if values:
            statistics[key][kind] = [float(f"{value:.4g}") for value in np.quantile(values, QUANTILES)]
    num_pairs = {kind: len(of_kind) for kind, of_kind in rows.items()}
    # What a model must be for its pair to be compared with these ranges.
    models_of = {name: settings[name] for name in ("model", "changes", "widths")}
    return {
        "sizes": _sizes(settings, num_pairs),
        "models": models_of,
        "num_pairs": num_pairs,
        "statistics": statistics,
    }


def _read(model: FamilyReading) -> SheetModel:
    checkpoint = model.reader
    return model.origin, read_model(NativeRoles(checkpoint), checkpoint, probe_ids(checkpoint, checkpoint))


def _pairs(models: Sequence[SheetModel], num_pairs: int) -> Iterator[tuple[str, SheetReading, SheetReading]]:
    """Yield up to ``num_pairs`` pairs of each kind, drawn from all of them."""
    untrained, same_text, other_text, other_width = KINDS
    by_kind: dict[str, list[tuple[SheetReading, SheetReading]]] = {kind: [] for kind in KINDS}
    for (first, base), (second, suspect) in itertools.combinations(models, 2):
        if first.corpus is None and second.corpus is None:
            kind = untrained if first.width == second.width else None
        elif first.corpus is None or second.corpus is None:
            kind = None
        elif first.width != second.width:
            kind = other_width
        else:
            kind = same_text if first.corpus == second.corpus else other_text
        if kind is not None:
            by_kind[kind].append((base, suspect))
    draws = np.random.default_rng(0)
    for kind, pairs in by_kind.items():
        for index in draws.permutation(len(pairs))[:num_pairs]:
            yield kind, *pairs[index]


def _tokenizer_pairs(settings: Entry) -> Iterator[tuple[str, Entry]]:
    """Yield what tokenizers share that were trained apart: on both halves of one text, and on two texts."""
    _, same_text, other_text, _ = KINDS
    trained_on = []
    for name in settings["corpora"]:
        documents = list(corpora.corpus(name.removeprefix("builtin:")).documents)[: settings["num_documents"]]
        for half in (documents[::2], documents[1::2]):
            trained_on.append((name, vocabulary(train_bpe(half, settings["num_pieces"]))))
    for (first, base), (second, suspect) in itertools.combinations(trained_on, 2):
        yield same_text if first == second else other_text, token_statistics(base, suspect)


def _sizes(settings: Entry, num_pairs: Mapping[str, int]) -> str:
    """Describe the unrelated models in words."""
    changes, schedule = settings["changes"], settings["schedule"]
    widths = " and ".join(map(str, settings["widths"]))
    pairs = ", ".join(f"{count} {kind}" for kind, count in num_pairs.items())
    return (
        f"Unrelated models: {changes['num_layers']} blocks, widths {widths}, {changes['vocab_size']} tokens, trained "
        f"for {schedule['steps']} steps of {schedule['batch_size']} × {schedule['context']} bytes or "
        f"not at all; pairs: {pairs}. Tokenizers: byte-level BPE of {settings['num_pieces']:,} pieces, each of half of "
        "the documents of a text. Other sizes have other ranges."
    )


def tables(record: Record) -> Sequence[Table]:
    """Show the range and three quantiles of each statistic on each kind of pair."""
    rows = []
    for key, by_kind in record["result"]["statistics"].items():
        for kind, quantiles in by_kind.items():
            cells = {name: (fixed(3), value) for name, value in zip(_ENDS, quantiles, strict=True)}
            rows.append(([STATISTICS[key].title, kind], cells))
    return [tabulate("Statistics of unrelated models", ["statistic", "pair"], rows)]


def claims(record: Record) -> Sequence[Claim]:
    """Return the rows of the page's first screen."""
    least = min(row[0] for row in record["result"]["statistics"]["norm_cosine"].values())
    return [Claim("Least cosine of norm scales of unrelated models", least, format=fixed(3))]


EXPERIMENT = Experiment(
    name="evidence_sheet",
    title="What popular evidence is worth",
    description=(
        "Statistics cited in public disputes about the origin of a model, on pairs of unrelated models; the sheet at "
        "the end of a verdict's page shows these ranges next to the values of its pair."
    ),
    settings=settings.EVIDENCE_SHEET,
    cost={"laptop": "6 minutes on one core", "paper": "not measured: for a GPU"},
    run=run,
    tables=tables,
    claims=claims,
)
