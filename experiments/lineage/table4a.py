"""Tables 4a and 9: different seeds have different fingerprints; Table 8's baselines on the same initializations.

Records with the paper's models and inputs have names of their own: at the shortest length one holds all pairs of a
family, at the others a single pair. Up to T = 64 none takes over an hour on two cores; the paper's T = 1,024 needs a
GPU, but for one pair with fewer inputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bornbiased_jax import progress
from bornbiased_jax.chunk_store import Chunk
from bornbiased_jax.config import preset
from bornbiased_jax.experiments._shared.baselines import reef_features
from bornbiased_jax.experiments._shared.lineage import BASELINES, baseline_scores, sentences, verdicts
from bornbiased_jax.experiments._shared.probing import of_sequence
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record, spans
from bornbiased_jax.experiments.lineage import settings
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage.baselines import THRESHOLD
from bornbiased_jax.lineage.outputs import OutputOptions, embedding_moments, last_outputs
from bornbiased_jax.probes.inputs import random_inputs
from bornbiased_jax.report.numbers import fixed, from_log10, mean_std
from bornbiased_jax.report.tables import Cells, Claim, Table, tabulate

PRINTED = {
    ("llama", 42, 2000): (0.357, 0.532),
    ("llama", 123, 42): (0.678, 0.565),
    ("llama", 1000, 123): (0.363, 0.335),
    ("llama", 2000, 1000): (0.434, 0.481),
    ("qwen", 123, 1000): (0.094, 0.074),
    ("qwen", 1000, 123): (0.125, 0.094),
    ("qwen", 42, 2000): (0.451, 0.529),
    ("qwen", 2000, 42): (0.130, 0.095),
}
"""Family, base and suspect -> p of the t-test and of the U-test (Table 4a, Table 9)."""
TESTS = ("paper", "permutation", "iclr")
PAPER_SIZES = (10_000, 1_024)
SPAN_TOKENS = 1 << 17
"""Tokens of inputs that are computed between two writes: some minutes of two cores for a nano model."""


def run(context: Context) -> Entry:
    """Run tests on vectors and on tokens for the paper's pairs, and baselines with an empirical null."""
    return {"groups": [_group(context, group) for group in context.settings["groups"]]}


def _group(context: Context, group: Entry) -> Entry:
    cfg = preset(group["model"], **group["changes"])
    null = [(seed, seed + 1) for seed in range(10_000, 10_000 + 2 * group["num_null"], 2)]
    text = sentences(cfg, group["reef"])

    def scores(seeds: Sequence[int]) -> dict[str, float | None]:
        advance()
        base, suspect = (init_seed(cfg, seed) for seed in seeds)
        features = reef_features(cfg, base, text), reef_features(cfg, suspect, text)
        return {name: score.value for name, score in baseline_scores(cfg, base, cfg, suspect, features).items()}

    rows = []
    total = len(group["pairs"]) + len(null)
    with progress.bar(total, f"table4a {group['model']}", unit="pairs", quiet=context.quiet) as advance:
        for pair in group["pairs"]:
            # Algorithm 1: vectors with the mean and the standard deviation of the base's embedding.
            moments = embedding_moments(init_seed(cfg, pair[0]))
            tests = {}
            for kind, vectors in (("gaussian", moments), ("tokens", None)):
                base_ND, suspect_ND = (initial_outputs(context, group, seed, kind, vectors) for seed in pair)
                tests[kind] = verdicts(base_ND, suspect_ND, TESTS)
            rows.append({"base": pair[0], "suspect": pair[1], "tests": tests, "baselines": scores(pair)})
        unrelated = [scores(pair) for pair in null]
    return {"group": group, "pairs": rows, "null": {name: [entry[name] for entry in unrelated] for name in BASELINES}}


def initial_outputs(
    context: Context, group: Entry, seed: int, kind: str, moments: tuple[float, float] | None
) -> np.ndarray:
    """Return an initialization's outputs, cached in spans: a killed call resumes; a seed's tokens serve its pairs."""
    identity = {name: group[name] for name in ("model", "changes", "num_inputs", "seq_len")}
    identity["precision"] = context.precision

    def outputs(span: Chunk) -> np.ndarray:
        def compute(_folder: Path) -> np.ndarray:
            cfg = preset(group["model"], **group["changes"])
            inputs = random_inputs(kind, group["num_inputs"], group["seq_len"], cfg)
            options = OutputOptions(moments, precision=context.precision)
            return last_outputs(cfg, init_seed(cfg, seed), inputs, options, span=(span.start, span.stop))

        place = {"seed": seed, "inputs": kind, "moments": moments, "span": (span.start, span.stop)}
        return np.asarray(context.cached("outputs_of_births", {**identity, **place}, compute))

    # A span holds whole batches, so that the bits are those of one call.
    chunks = spans(group["num_inputs"], max(1, SPAN_TOKENS // group["seq_len"]))
    return np.concatenate([outputs(span) for span in chunks])


def is_paper(group: Entry) -> bool:
    """Return whether a group has the paper's model and sizes."""
    sizes = (group["num_inputs"], group["seq_len"])
    return group["model"].endswith("-nano") and not group["changes"] and sizes == PAPER_SIZES


def _printed(group: Entry, pair: Entry) -> dict[str, float]:
    """Return the paper's log10 p of a pair, by test."""
    if not is_paper(group):
        return {}
    values = PRINTED.get((group["model"].split("-")[0], pair["base"], pair["suspect"]), ())
    return {test: float(np.log10(p)) for test, p in zip(("t-test", "U-test"), values, strict=False)}


def tables(record: Record) -> Sequence[Table]:
    """Tabulate p of every test, then the baselines' scores alongside those of unrelated initializations, if any."""
    groups = record["result"]["groups"]
    # p of every test, a row a pair.
    rows: list[tuple[Any, ...]] = []
    for group, entry in ((outcome["group"], entry) for outcome in groups for entry in outcome["pairs"]):
        vectors, tokens = entry["tests"]["gaussian"], entry["tests"]["tokens"]
        log10_p = {
            "t-test": vectors["paper"].get("log10_p_t"),
            "U-test": vectors["paper"].get("log10_p_u"),
            "iclr": vectors["iclr"]["log10_p"],
            "tokens: t-test": tokens["paper"].get("log10_p_t"),
            "tokens: iclr": tokens["iclr"]["log10_p"],
            "tokens: permutation": _log(tokens["permutation"]["p_value"]),
        }
        head = [group["model"], entry["base"], entry["suspect"], group["num_inputs"], group["seq_len"]]
        cells = {name: (from_log10(3), value) for name, value in log10_p.items()}
        rows.append((head, cells, _printed(group, entry)))
    note = (
        "p of two untrained models of different seeds, which should not be small. t-test and U-test: Algorithm 1's, "
        "means over ten nulls; iclr: the SeedPrint authors' code. They read Gaussian vectors with the moments of the "
        "base's embedding, as published, or where it is said random tokens. With vectors the permutation test is not "
        "valid, and is left out."
    )
    heads = ["model", "base seed", "suspect seed", "N", "T"]
    tested = tabulate("Untrained models of different seeds, every test (Tables 4a and 9)", heads, rows, note)
    # Scores of the baselines against their null.
    scores = [
        ([outcome["group"]["model"], name, len(outcome["pairs"]), len(null)], _score_cells(values, null))
        for outcome in groups
        for name in BASELINES
        if (null := [value for value in outcome["null"][name] if value is not None])
        and (values := [entry["baselines"][name] for entry in outcome["pairs"] if entry["baselines"][name] is not None])
    ]
    reef = groups[0]["group"]["reef"]
    text = "English prose" if reef["text"] == "builtin:prose" else reef["text"]
    about = (
        "The least and the largest score over the same pairs, and how many are above 0.8, the threshold published "
        "for all four methods. Last column: mean ± standard deviation over other, disjoint pairs of initializations, "
        f"from which a threshold should come. REEF reads {reef['num_sentences']} passages of {text} at 9/16 of the "
        "depth."
    )
    scored = tabulate(
        "Table 8's baselines on initializations", ["model", "method", "pairs", "null pairs"], scores, about
    )
    return [tested, scored] if scores else [tested]


def _score_cells(values: Sequence[float], null: Sequence[float]) -> Cells:
    return {
        "least": (fixed(3), min(values)),
        "largest": (fixed(3), max(values)),
        f"above {THRESHOLD}": str(sum(value > THRESHOLD for value in values)),
        "unrelated initializations": (fixed(3), mean_std(null)),
    }


def _log(p: float | None) -> float | None:
    return None if p is None else float(np.log10(p))


def claims(record: Record) -> Sequence[Claim]:
    """State the smallest p of each group, on the published inputs and on tokens."""
    statements = []
    for outcome in record["result"]["groups"]:
        group, pairs = outcome["group"], outcome["pairs"]
        size = f"{group['model']}, N = {group['num_inputs']:,}, T = {group['seq_len']}, {len(pairs)} pairs"
        words = "Smallest p of untrained models of different seeds, "
        paper = min((_printed(group, entry)["t-test"] for entry in pairs if is_paper(group)), default=None)
        statements += _claims(pairs, f"{words}{{}} ({size})", paper)
    return statements


def claims_of_pair(record: Record) -> Sequence[Claim]:
    """State the p of one pair, on the published inputs and on tokens."""
    (outcome,) = record["result"]["groups"]
    group, (entry,) = outcome["group"], outcome["pairs"]
    sizes = f"{group['model']}, N = {group['num_inputs']:,}, T = {group['seq_len']}"
    words = f"p of the initializations of {entry['base']} and {entry['suspect']}, {{}} ({sizes})"
    return _claims([entry], words, _printed(group, entry).get("t-test"))


def _claims(pairs: Sequence[Entry], statement: str, paper: float | None) -> list[Claim]:
    """State the smallest p by Algorithm 1 on vectors, with what the paper printed, and by permutations on tokens."""
    by_test = {
        "paper test on gaussian": ([pair["tests"]["gaussian"]["paper"].get("log10_p_t") for pair in pairs], paper),
        "permutation test on tokens": (
            [_log(pair["tests"]["tokens"]["permutation"]["p_value"]) for pair in pairs],
            None,
        ),
    }
    return [
        Claim(statement.format(test), min(defined), printed, format=from_log10(2))
        for test, (values, printed) in by_test.items()
        if (defined := [value for value in values if value is not None])
    ]


EXPERIMENT = Experiment(
    name="table4a",
    title="Untrained models of different seeds under every test",
    paper="Tables 4a, 8 and 9",
    description=(
        "The paper's pairs of seeds, compared before any training, by Algorithm 1 as published (shared Gaussian "
        "vectors), and on random tokens by every test; and the four published baselines next to what unrelated "
        "initializations score. A large p is the right answer."
    ),
    settings=settings.TABLE4A,
    cost={
        "laptop": "two minutes on two cores of an x86-64 virtual machine that did other work as well",
        "paper": "not measured: about 6e16 floating-point operations, for a GPU",
    },
    run=run,
    takes_precision=True,
    claims=claims,
    tables=tables,
)


def operations(group: Entry) -> float:
    """Count what its forward passes need: tokens once for each seed, vectors for either side of each pair."""
    passes = len({seed for pair in group["pairs"] for seed in pair}) + 2 * len(group["pairs"])
    sequence = of_sequence(preset(group["model"], **group["changes"]), group["seq_len"], head=False)
    return passes * group["num_inputs"] * sequence


def _variant(family: str, seq_len: int, pair: list[int] | None = None, num_inputs: int = 10_000) -> Experiment:
    """Return a record of its own at the paper's sizes but for the length: one pair of a family, or all of them."""
    sizes = settings.table4a(family, seq_len, num_inputs, pair)
    name, title = f"table4a_{family}_{seq_len}", f"{family}-nano, T = {seq_len}"
    if pair is not None:
        name, title = f"{name}_{pair[0]}_{pair[1]}", f"{title}, seeds {pair[0]} and {pair[1]}"
    if num_inputs != PAPER_SIZES[0]:
        name, title = f"{name}_n{num_inputs}", f"{title}, N = {num_inputs:,}"
    length = ", and its length of sequences."
    if seq_len != PAPER_SIZES[1]:
        length = (
            "; sequences are shorter than the 1,024 tokens that the paper's table was made with, so that its numbers "
            "are no match for these."
        )
    return dataclasses.replace(
        EXPERIMENT,
        name=name,
        title=f"Models of different seeds at initialization: {title}",
        paper="Table 4a" if family == "llama" else "Table 9",
        description=f"As table4a, with the paper's model and pairs of seeds, and {num_inputs:,} inputs" + length,
        settings=sizes,
        cost={"paper": f"{sum(map(operations, sizes['paper']['groups'])):.1e} floating-point operations"},
        claims=claims if pair is None else claims_of_pair,
    )


# At the shortest length a record holds all pairs of a family, at the others a single one.
_VARIANTS = [
    *(_variant(family, 16) for family in settings.PAIRS),
    *(_variant(family, T, pair) for T in (64, 1_024) for family, pairs in settings.PAIRS.items() for pair in pairs),
    # With fewer inputs, as two cores can afford at the paper's length.
    *(_variant("llama", T, settings.PAIRS["llama"][0], num_inputs=2_000) for T in (16, 64, 1_024)),
]
EXPERIMENTS = {experiment.name: experiment for experiment in [EXPERIMENT, *_VARIANTS]}
