"""Finding 1.3 under another embedding table: whether the seed of the blocks alone decides the preferred tokens.

Appendix B.2 gives all seeds one embedding table, which is the output head as well. Stated before any number was seen:
seeds of the blocks are probed under two such tables, on two independent sets of random tokens each. Measured are the
tokens that the K most predicted of two probes have in common: of one seed and one table on two input sets, of one seed
under two tables on one input set, and of two seeds under one table. "The seed of the blocks alone decides the tokens"
is refuted by one seed that has no more in common under two tables than two seeds have under one. Whether a table moves
the top-1 frequency is tested by the differences of the same seeds, all of whose signs are enumerated.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bornbiased_jax.config import preset
from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record
from bornbiased_jax.experiments.birth import settings
from bornbiased_jax.experiments.birth.top1_inputs import ranked_tokens
from bornbiased_jax.probes.inputs import random_tokens
from bornbiased_jax.probes.subject import untrained
from bornbiased_jax.report.numbers import fixed, percent
from bornbiased_jax.report.tables import Cells, Table, tabulate


def run(context: Context) -> Entry:
    """Compute the most predicted tokens of every seed under every table, on every input set."""
    values = context.settings
    probes = [
        {"table_seed": table_seed, "input_seed": input_seed, "seeds": _probe(context, table_seed, input_seed)}
        for table_seed, input_seed in itertools.product(values["table_seeds"], range(values["num_input_sets"]))
    ]
    return {"probes": probes}


def _probe(context: Context, table_seed: int, input_seed: int) -> list[Entry]:
    """Probe all seeds under one embedding table on one input set."""
    values = context.settings
    cfg = preset(values["model"], **values["changes"])

    def compute(folder: Path) -> list[Entry]:
        inputs = random_tokens(values["num_inputs"], values["seq_len"], cfg.vocab_size, seed=input_seed)
        subject = untrained(cfg, fixed_embedding_seed=table_seed)
        return ranked_tokens(context, subject, values["seeds"], inputs, folder)

    return context.cached(f"top1_tables/{values['model']}", [dict(values), table_seed, input_seed], compute)


def tokens_in_common(probes: Sequence[Entry], count: int) -> dict[str, float]:
    """Average how many of the ``count`` most predicted tokens two probes have in common, by what differs between them.

    Example:
        >>> one_seed = [{"table_seed": 0, "input_seed": i, "seeds": [{"seed": 42, "ids": [7, i]}]} for i in (0, 1)]
        >>> tokens_in_common(one_seed, 2)
        {'input set': 1.0}
    """
    overlaps: dict[str, list[int]] = {}
    runs = [(entry["table_seed"], entry["input_seed"], row) for entry in probes for row in entry["seeds"]]
    for (table_a, inputs_a, a), (table_b, inputs_b, b) in itertools.combinations(runs, 2):
        # Pairs of probes that differ in one thing.
        differs = {"table": table_a != table_b, "input set": inputs_a != inputs_b, "seed": a["seed"] != b["seed"]}
        if sum(differs.values()) == 1:
            (name,) = (name for name, is_other in differs.items() if is_other)
            overlaps.setdefault(name, []).append(len(set(a["ids"][:count]) & set(b["ids"][:count])))
    return {name: float(np.mean(values)) for name, values in overlaps.items()}


def sign_flip_p(differences: np.ndarray) -> float:
    """Return the two-sided p-value of a mean difference, by the signs of all differences, enumerated.

    Example:
        >>> sign_flip_p(np.array([1.0, 2.0, 3.0]))
        0.25
    """
    signs = np.array(list(itertools.product((1, -1), repeat=len(differences))))
    sums = np.abs(signs @ differences)
    # Equal sums may be rounded apart.
    return float(np.mean(sums >= np.abs(differences.sum()) * (1 - 1e-12)))


def _top_counts(record: Record) -> np.ndarray:
    """Return the counts of the top-1 tokens, [table, input set, seed]."""
    values = record["settings"]
    counts = np.array([[row["counts"][0] for row in entry["seeds"]] for entry in record["result"]["probes"]], float)
    return counts.reshape(len(values["table_seeds"]), values["num_input_sets"], len(values["seeds"]))


def tables(record: Record) -> Sequence[Table]:
    """Tabulate top-1 tokens by seed and table, tokens in common, and the frequencies under both tables."""
    values = record["settings"]
    model = probing.name_of(values)
    heads, place = ["model", "N", "T"], [model, values["num_inputs"], values["seq_len"]]
    by_seed = []
    for (index, seed), table_seed in itertools.product(enumerate(values["seeds"]), values["table_seeds"]):
        rows = {
            f"inputs {entry['input_seed']}": entry["seeds"][index]
            for entry in record["result"]["probes"]
            if entry["table_seed"] == table_seed
        }
        cells: Cells = {name: f"{row['ids'][0]} ({row['counts'][0]})" for name, row in rows.items()}
        by_seed.append(([seed, table_seed], cells))
    common = tokens_in_common(record["result"]["probes"], values["num_ranked"])
    cells = {f"another {differs}": (fixed(2), common[differs]) for differs in ("input set", "table", "seed")}
    top_counts = _top_counts(record)
    fractions = top_counts.mean(axis=1) / values["num_inputs"]
    frequencies: Cells = {
        f"median under table {seed}": (percent(2), float(np.median(row)))
        for seed, row in zip(values["table_seeds"], fractions, strict=True)
    }
    frequencies["p of the difference"] = (fixed(2), sign_flip_p(fractions[1] - fractions[0]))
    ranked = values["num_ranked"]
    return [
        tabulate(
            "Most predicted tokens that two probes have in common, where they differ in one thing",
            heads,
            [(place, cells)],
            note=f"Of the {ranked} most predicted tokens of one probe, those among the {ranked} of another, mean over "
            f"pairs; {len(values['seeds'])} seeds, {len(values['table_seeds'])} embedding tables, "
            f"{values['num_input_sets']} input sets. By chance a pair has {ranked}²/V in common.",
        ),
        tabulate(
            "Top-1 frequency of the same seeds under two embedding tables",
            heads,
            [(place, frequencies)],
            note="Medians over seeds of the mean over input sets. p: two-sided, by all signs of the "
            f"{len(values['seeds'])} differences of the means over input sets.",
        ),
        tabulate(
            f"The top-1 token of each seed, {model}, N = {values['num_inputs']:,}, T = {values['seq_len']}",
            ["seed", "table"],
            by_seed,
            note="Table: the seed of the embedding table, which is the output head as well. In parentheses: of the N "
            "sequences of the input set, those that the token answers.",
        ),
    ]


EXPERIMENT = Experiment(
    name="top1_tables",
    title="One seed's preferred tokens under another embedding table",
    paper="Finding 1.3",
    description=(
        "All seeds of the paper share one embedding table (Appendix B.2), which is the output head as well. The same "
        "seeds are probed under a second one: tokens that follow the seed of the blocks alone would stay."
    ),
    settings=settings.TOP1_TABLES,
    cost={"laptop": "35 minutes on two cores that did other work as well; resumes"},
    run=run,
    tables=tables,
)
