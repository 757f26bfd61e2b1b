"""Finding 1.3: whether one initialization prefers the same token on other inputs and at other lengths.

The paper's finding ties the preference to the seed; its own Table 1(a) has three top-1 tokens for seed 42, one for each
length. Stated before any number was seen: every seed is probed on several independent sets of random tokens at each
length. Measured are the different top-1 tokens of one seed over input sets, and how many of the K most predicted tokens
two sets share, for sets of one seed and for sets of two seeds. "The seed decides one token" is refuted by a seed with
several top-1 tokens at one length; "the seed decides a set of tokens" by sets of one seed that share no more than sets
of two.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bornbiased_jax.config import preset
from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record, variants
from bornbiased_jax.experiments.birth import settings
from bornbiased_jax.probes.inputs import Inputs, random_tokens
from bornbiased_jax.probes.run import probe
from bornbiased_jax.probes.subject import ProbedModel, untrained
from bornbiased_jax.report.numbers import fixed, identifier, integer
from bornbiased_jax.report.tables import Cells, Claim, Table, tabulate


def run(context: Context) -> Entry:
    """Compute the most predicted tokens of every model, length, input set and seed."""
    groups = []
    for group, seq_len in itertools.product(context.settings["groups"], context.settings["lengths"]):
        if seq_len <= group["longest"]:
            groups.append({"group": group, "seq_len": seq_len, "sets": _input_sets(context, group, seq_len)})
    return {"groups": groups}


def _input_sets(context: Context, group: Entry, seq_len: int) -> list[list[Entry]]:
    """Probe every seed on every input set: [input set][seed]."""
    cfg = preset(group["model"], **group["changes"])
    by_set = []
    for input_seed in range(context.settings["num_input_sets"]):

        def compute(folder: Path, input_seed: int = input_seed) -> list[Entry]:
            inputs = random_tokens(group["num_inputs"], seq_len, cfg.vocab_size, seed=input_seed)
            # All seeds share the embedding table of seed 0 (Appendix B.2).
            return ranked_tokens(context, untrained(cfg), group["seeds"], inputs, folder)

        identity = [dict(group), seq_len, input_seed]
        by_set.append(context.cached(f"top1_inputs/{group['model']}", identity, compute))
    return by_set


def ranked_tokens(
    context: Context, subject: ProbedModel, seeds: Sequence[int], inputs: Inputs, folder: Path
) -> list[Entry]:
    """Probe seeds on one set of inputs, resumed from a folder: the most predicted tokens of each, and their counts."""
    records = probe(subject, seeds, inputs, resume=folder / "partial", mesh=context.mesh, engine=context.engine)
    return [
        {
            "seed": record["seed"],
            "ids": record["preference"]["ranked_ids"],
            "counts": record["preference"]["ranked_counts"],
        }
        for record in records
    ]


def shared_tokens(sets: Sequence[Sequence[Entry]], count: int) -> tuple[float, float]:
    """Average how many of the ``count`` most predicted tokens two input sets share: of one seed, and of two seeds.

    Example:
        >>> first, second = [{"ids": [1, 2]}, {"ids": [7, 8]}], [{"ids": [2, 3]}, {"ids": [8, 7]}]
        >>> shared_tokens([first, second], 2)
        (1.5, 0.0)
    """
    within: list[int] = []
    between: list[int] = []
    for first, second in itertools.combinations(sets, 2):
        for (place, a), (other_place, b) in itertools.product(enumerate(first), enumerate(second)):
            overlap = len(set(a["ids"][:count]) & set(b["ids"][:count]))
            (within if place == other_place else between).append(overlap)
    return float(np.mean(within)), float(np.mean(between))


def tables(record: Record) -> Sequence[Table]:
    """Tabulate top-1 tokens of each seed over input sets; and what sets share."""
    settings = record["settings"]
    by_seed, by_group = [], []
    for entry in record["result"]["groups"]:
        group = entry["group"]
        name = probing.name_of(group)
        for place, seed in enumerate(group["seeds"]):
            top = Counter(records[place]["ids"][0] for records in entry["sets"])
            counts = [records[place]["counts"][0] for records in entry["sets"]]
            measured: Cells = {
                "different top-1 tokens": (integer, len(top)),
                "the most frequent": (identifier, top.most_common(1)[0][0]),
                "in input sets": f"{top.most_common(1)[0][1]} of {len(entry['sets'])}",
                "top counts": f"{min(counts)} to {max(counts)}",
            }
            by_seed.append(([name, group["num_inputs"], entry["seq_len"], seed], measured))
        within, between = shared_tokens(entry["sets"], settings["num_ranked"])
        values = {"one seed": (fixed(2), within), "two seeds": (fixed(2), between)}
        by_group.append(([name, group["num_inputs"], entry["seq_len"]], values))
    sets = (
        f"Each seed is probed on {settings['num_input_sets']} independent sets of N random sequences of each length. "
        "Different top-1 tokens: over these sets; the most frequent: the top-1 token of most sets, and of how many; "
        "top counts: of the N sequences, those that a set's top-1 token answers."
    )
    shared = (
        f"Of the {settings['num_ranked']} most predicted tokens on one input set, those among the "
        f"{settings['num_ranked']} of another set, mean over pairs of sets: both sets probed on one seed, or each on "
        "another seed."
    )
    return [
        tabulate("The top-1 token of one seed on other inputs", ["model", "N", "T", "seed"], by_seed, note=sets),
        tabulate("Most predicted tokens that input sets share", ["model", "N", "T"], by_group, note=shared),
    ]


def claims(record: Record) -> Sequence[Claim]:
    """State the most top-1 tokens of one seed at one length, and what sets share."""
    num_ranked, num_sets = record["settings"]["num_ranked"], record["settings"]["num_input_sets"]
    statements = []
    for entry in record["result"]["groups"]:
        group = entry["group"]
        where = f"{probing.name_of(group)}, N = {group['num_inputs']:,}, T = {entry['seq_len']}"
        most = max(len({records[place]["ids"][0] for records in entry["sets"]}) for place in range(len(group["seeds"])))
        within, between = shared_tokens(entry["sets"], num_ranked)
        statements += [
            Claim(f"Most top-1 tokens of one seed on {num_sets} input sets, {where}, {len(group['seeds'])} seeds", most,
                  format=integer),
            Claim(f"Of {num_ranked} most predicted tokens, shared by two input sets of one seed, {where}", within,
                  format=fixed(2)),
            Claim(f"Of {num_ranked} most predicted tokens, shared by input sets of two seeds, {where}", between,
                  format=fixed(2)),
        ]  # fmt: skip
    return statements


EXPERIMENT = Experiment(
    name="top1_inputs",
    title="One seed's top-1 token changes with inputs and length",
    paper="Finding 1.3",
    description=(
        "Each initialization is probed on several independent sets of random tokens at several lengths. If the seed "
        "decided one token, all would name it."
    ),
    settings=settings.TOP1_INPUTS,
    cost={
        "laptop": "11 minutes on two cores",
        "paper": "not measured: 2e16 operations, for a GPU",
    },
    run=run,
    tables=tables,
    claims=claims,
)

EXPERIMENTS = variants(
    EXPERIMENT,
    top1_inputs_nano=dict(
        title="Top-1 tokens of the paper's model on other inputs",
        settings=settings.TOP1_INPUTS_NANO,
        cost={"laptop": "up to 53 minutes on two cores that did other work as well; resumes"},
    ),
    top1_inputs_256=dict(
        title="Top-1 tokens of the paper's model on other inputs at T = 256",
        settings=settings.TOP1_INPUTS_256,
        cost={"laptop": "up to an hour on two cores that did other work as well; resumes"},
    ),
)
