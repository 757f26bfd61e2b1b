"""What models, probe and predict found, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bornbiased_jax.words.phrases import LEVEL, chance, count, percent, span


def models(value: Mapping[str, Any]) -> list[str]:
    """The presets in two sentences."""
    sizes = {name: preset["num_parameters"] for name, preset in value["models"].items()}
    small, large = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
    return [
        f"{count(len(sizes), 'preset')}, from {small} ({sizes[small]:,} parameters) to {large} ({sizes[large]:,}).",
        f"A preset is an architecture without weights: a seed gives it those, and --set changes any of its "
        f"{len(value['fields'])} fields.",
    ]


def _who(record: Mapping[str, Any]) -> str:
    return "The model" if record["seed"] is None else f"Seed {record['seed']}"


def _at(records: Sequence[Mapping[str, Any]], record: Mapping[str, Any]) -> str:
    """The length of a record's sequences, where there are several lengths."""
    several = len({row["seq_len"] for row in records}) > 1
    return f" at T = {record['seq_len']}" if several else ""


def preference(value: Mapping[str, Any]) -> list[str]:
    """Which token is preferred, how much more than by chance, and how many seeds do so."""
    records = value["records"]
    best = min(records, key=lambda record: (record["log10_p"], -record["top1_share"]))
    level = LEVEL / len(records)
    preferring = [record for record in records if 10.0 ** record["log10_p"] < level]
    of = f"{best['top1_count']:,} of {best['num_inputs']:,} inputs"
    if not preferring:
        p = chance(best["log10_p"])
        return [
            f"No token is preferred more than chance allows: the most frequent one has {of}, and among "
            f"{best['vocab_size']:,} equally likely tokens the luckiest would do as well with probability {p}.",
            "That is no proof of indifference: more inputs, a wider model or larger weights (--set init=normal-0.02) "
            "show smaller preferences.",
            *beside_theory(value),
        ]
    uniform = best["top1_share"] * best["vocab_size"]
    found = [
        f"{_who(best)} prefers token {best['top1_id']:,}{_at(records, best)}: {percent(best['top1_share'])} of "
        f"{best['num_inputs']:,} inputs, {uniform:,.0f} times the uniform fraction; by chance "
        f"{chance(best['log10_p'])}."
    ]
    if len(records) > 1:
        tokens = {record["top1_id"] for record in preferring}
        found.append(
            f"{len(preferring)} of {count(len(records), 'result')} show more than chance allows (p < {LEVEL:g}, "
            f"corrected for the vocabulary and for all of them), with {count(len(tokens), 'different token')}."
        )
    told = beside_theory(value)
    about = (
        "The p-value is about these weights and inputs: it says that the preference is real, and whether another seed "
        "has one only that seed's row can say."
    )
    return found + (told or [about])


def contraction(value: Mapping[str, Any]) -> list[str]:
    """How alike unrelated inputs become, from the first block to the last."""
    records = value["records"]
    longest = max(record["seq_len"] for record in records)
    rows = [record for record in records if record["seq_len"] == longest]
    first, last = ([record["inter_cosine_by_layer"][place] for record in rows] for place in (0, -1))
    blocks = len(rows[0]["inter_cosine_by_layer"])
    of = f"of {count(len(rows), 'seed')}" if rows[0]["seed"] is not None else "of the model"
    weakest = max(record["log10_p"] for record in records)
    shows = 10.0**weakest < LEVEL / len(records)
    found = [
        f"The cosine between last-position states of unrelated inputs {of} goes from {span(first, 3)} after the first "
        f"block to {span(last, 3)} after block {blocks} (T = {longest}): 0 is none of it shared, 1 one direction for "
        "all."
    ]
    if shows:
        found.append(
            f"Independent directions would agree as much with probability {chance(weakest)} at most, in every row: the "
            "shared direction is real."
        )
    else:
        found.append(
            f"In some row independent directions would agree as much with probability {chance(weakest)}: there no "
            "shared direction is shown."
        )
    return found + beside_theory(value)


def beside_theory(value: Mapping[str, Any]) -> list[str]:
    """How many measurements lie inside theory's interval, one sentence; none without a theory."""
    told = [record["theory"] for record in value["records"] if "theory" in record]
    if not told:
        return []
    inside = sum(row["inside"] for row in told)
    about = (
        "given the one table that all seeds share"
        if told[0].get("given_table")
        else "over seeds, with fresh embeddings"
    )
    return [
        f"{inside} of {len(told)} measurements lie inside theory's {100 * told[0]['coverage']:.0f}% interval, {about}; "
        "nothing in it is fitted."
    ]


def prediction(value: Mapping[str, Any]) -> list[str]:
    """Theory's cosine and top-1 fraction, and for whom its band holds."""
    cosine, std = value["inter_cosine_by_layer"][-1], value["inter_cosine_by_layer_std"][-1]
    return [
        f"Theory expects unrelated inputs to end at a cosine of {cosine:.3f} after the last block, give or take "
        f"{std:.3f} from seed to seed.",
        f"It expects {percent(value['top1_share_mean'])} of the inputs to get one and the same token; of seeds with "
        f"fresh embeddings 80% lie between {percent(value['top1_share_p10'])} and {percent(value['top1_share_p90'])}.",
        "Nothing was built, sampled or fitted; `probe … --theory` sets a measurement beside it, and conditions on the "
        "one embedding table that `probe` holds fixed.",
    ]
