"""How pairs of trained models are shown: the p-values of every test next to what training did to the suspect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bornbiased_jax.experiments._shared.lineage import BASELINES
from bornbiased_jax.experiments.base import Entry, Record
from bornbiased_jax.experiments.survival.settings import PAPER_TOKENS
from bornbiased_jax.report.numbers import fixed, from_log10, integer, mean_std, p_value
from bornbiased_jax.report.tables import Cells, Claim, Table, Value, tabulate
from bornbiased_jax.stats.intervals import binomial_interval

ALPHA = 0.01
MOVED, LOSS, ENTROPY = "‖W−W₀‖/‖W₀‖", "held-out loss", "unigram entropy"
EXACT, Z = "p, permutation", "z"
T_TEST, U_TEST, ICLR = "t-test p, vectors", "U-test p, vectors", "analytic p, vectors"
T_TOKENS, ICLR_TOKENS = "t-test p, tokens", "analytic p, tokens"
PCS_NOTE = (
    "PCS of unrelated models is not 0, because norm scales are 1 in every initialization; the smaller the model, the "
    "more they weigh."
)
NAMES = {"intrinsic": "Intrinsic", "reef": "REEF", "pcs": "PCS", "ics": "ICS"}

NOTE = (
    "p, permutation: the exact test on random tokens, each model with its own embedding; p is counted over "
    "permutations, and is a proven bound where none of them reaches the pair. t-test and U-test: Algorithm 1's; "
    "analytic: that of the SeedPrint authors' code; each on Gaussian vectors that both models share (vectors) and on "
    "random tokens (tokens). Losses are in nats a token; a model that has learned anything has one below the unigram "
    "entropy."
)


def is_paper(record: Record) -> bool:
    """Return whether the record is of the paper's own configuration."""
    return record["scale"] == "paper" and record["data"] is None


def trained_on(record: Record) -> str:
    """Describe what was trained, alongside the paper's numbers."""
    facts = record["result"]["facts"]
    return (
        f"Each seed was trained on {facts['tokens']:,} tokens of {facts['source']} ({facts['epochs']:.2g} epochs), "
        f"all in the same order; the paper's models on about {PAPER_TOKENS / 1e9:.0f}B of OpenWebText. Counts of "
        f"single tokens in the training text give a held-out loss of {fixed(3)(facts['unigram_loss'])}, counts of "
        f"pairs one of {fixed(3)(facts['bigram_loss'])}."
    )


def training_cells(progress: Entry) -> Cells:
    """Return what training did to a model: how far it moved, its loss, and the loss of counting tokens."""
    return {
        MOVED: (fixed(2), progress["moved"]),
        LOSS: (fixed(3), progress["loss"]),
        ENTROPY: (fixed(3), progress["unigram_entropy"]),
    }


def verdict_cells(pair: Entry) -> Cells:
    """Return the measured columns of one pair; a test without a verdict leaves its cell empty."""
    paper, log = pair["paper"], from_log10(2)
    return {
        **training_cells(pair["progress"]),
        EXACT: (p_value(2), pair["permutation"]["p"]),
        Z: (fixed(1), pair["permutation"]["z"]),
        T_TEST: (log, paper.get("log10_p_t")),
        U_TEST: (log, paper.get("log10_p_u")),
        ICLR: (log, pair["iclr"]["log10_p"]),
        T_TOKENS: (log, pair["paper_tokens"].get("log10_p_t")),
        ICLR_TOKENS: (log, pair["iclr_tokens"]["log10_p"]),
    }


def printed(values: tuple[float, float] | None, record: Record) -> dict[str, Value]:
    """Return the paper's t-test and U-test alongside its own configuration; (0, …) is an underflow."""
    if values is None or not is_paper(record):
        return {}
    return {
        name: math.log10(value) if value else "0 (underflow)"
        for name, value in zip((T_TEST, U_TEST), values, strict=True)
    }


def initialization_table(record: Record, title: str, numbers: Mapping[tuple[int, int], tuple[float, float]]) -> Table:
    """Tabulate initializations against trained models: the pairs that the paper printed, and their like here."""
    same_seed = all(a == b for a, b in numbers)
    rows: list[tuple[Any, ...]] = []
    for pair in record["result"]["pairs"]:
        seeds = (pair["base"]["seed"], pair["suspect"]["seed"])
        if (seeds[0] == seeds[1]) != same_seed:
            continue
        paper = printed(numbers.get(seeds), record)
        names = [f"s{seeds[0]} at initialization", f"s{seeds[1]} trained"]
        rows.append((names, verdict_cells(pair), paper))
    return tabulate(title, ["base", "suspect"], rows, f"{NOTE} {trained_on(record)}")


def called_related(pairs: Sequence[Entry], test: str) -> tuple[int, int]:
    """Count the pairs that a test calls the same lineage, and those for which it has a verdict."""
    decided = [pair[test]["verdict"] for pair in pairs if pair[test]["verdict"] != "undefined"]
    return decided.count("same-lineage"), len(decided)


def apart_table(record: Record) -> Table:
    """Tabulate trained models of two seeds against each other."""
    rows = [
        ([f"s{pair['base']['seed']} trained", f"s{pair['suspect']['seed']} trained"], verdict_cells(pair))
        for pair in record["result"]["pairs"]
    ]
    return tabulate("Two seeds' trained models", ["base", "suspect"], rows, f"{NOTE} {trained_on(record)}")


def shared_table(record: Record) -> Table:
    """Tabulate what shared vectors contribute to the agreement of models, unrelated ones and relatives."""
    rows: list[tuple[Any, ...]] = []
    for kind, pairs in record["result"]["shared"].items():
        calls = {
            test: sum(pair[test]["verdict"] == "same-lineage" for pair in pairs)
            for test in ("paper", "paper_without", "permutation_without")
        }
        cells: Cells = {
            "output and vector": (fixed(4), mean_std(value for pair in pairs for value in pair["own"])),
            "two outputs": (fixed(4), mean_std(pair["correlation"] for pair in pairs)),
            "product": (fixed(4), mean_std(pair["product"] for pair in pairs)),
            "called one lineage": f"{calls['paper']} of {len(pairs)}",
            "without the vector": f"{calls['paper_without']} of {len(pairs)}",
            "without it, permutation": f"{calls['permutation_without']} of {len(pairs)}",
            "least p": (p_value(2), min(pair["permutation_without"]["p"] for pair in pairs)),
        }
        rows.append(([kind], cells))
    note = (
        "On Gaussian vectors that both models share. Output and vector: correlation over the inputs of a coordinate of "
        "the output with that coordinate of the last vector; two outputs: of a coordinate in both models; product: of "
        "the two models' correlations with the vector, which the one before would be if nothing else made them alike. "
        "Means over coordinates, ± over models and pairs. Called one lineage: by Algorithm 1. Without the vector: from "
        "each coordinate its least-squares fit by that coordinate of the last vector is taken, as given and at unit "
        "norm; so for the permutation test, whose least p stands last. Only the pairs of the last two rows are related."
    )
    return tabulate("What shared vectors contribute", ["pairs"], rows, note)


def initialization_claims(record: Record, *, same_seed: bool) -> Sequence[Claim]:
    """State how many pairs of an initialization and a trained model each test calls the same lineage."""
    pairs = [p for p in record["result"]["pairs"] if (p["base"]["seed"] == p["suspect"]["seed"]) == same_seed]
    whose = "its own" if same_seed else "another seed's"
    return _called_claims(record, pairs, f"an initialization and {whose} trained model", is_related=same_seed)


def apart_claims(record: Record) -> Sequence[Claim]:
    """State how many pairs of two seeds' trained models each test calls the same lineage."""
    return _called_claims(record, record["result"]["pairs"], "two seeds' trained models", is_related=False)


def _called_claims(record: Record, pairs: Sequence[Entry], relation: str, *, is_related: bool) -> list[Claim]:
    """State how many of some pairs each test calls the same lineage; a rate has its limit where none should be."""
    facts = record["result"]["facts"]
    cfg = facts["model"]
    family = "Qwen-style" if cfg["qkv_bias"] else "LLaMA-style"
    name = f"{family}, {cfg['num_layers']} layers, {cfg['d_model']} wide, {facts['tokens']:,} tokens"
    models = len({pair[side]["seed"] for pair in pairs for side in ("base", "suspect")})
    statements = []
    for test, words in (
        ("permutation", "the permutation test, tokens"),
        ("paper", "Algorithm 1, shared vectors"),
        ("paper_tokens", "Algorithm 1, tokens"),
    ):
        count, num_decided = called_related(pairs, test)
        limit = ""
        if num_decided and not is_related:
            low, high = binomial_interval(count, num_decided)
            interval = f"{low:.0%} to {high:.0%}" if count else f"up to {high:.0%}"
            limit = f"; 95% interval {interval} if the pairs, which share {models} models, were independent"
        statements.append(
            Claim(f"Pairs of {relation} called one lineage by {words}; {name}{limit}", f"{count} of {num_decided}")
        )
    return statements


def survival_headline(record: Record) -> str:
    """State the exact test's verdicts, alongside the loss."""
    pairs = record["result"]["pairs"]
    own_pairs = [pair for pair in pairs if pair["base"]["seed"] == pair["suspect"]["seed"]]
    unrelated = [pair for pair in pairs if pair["base"]["seed"] != pair["suspect"]["seed"]]
    recognized, num_own = called_related(own_pairs, "permutation")
    wrong, num_other = called_related(unrelated, "permutation")
    progress = own_pairs[0]["progress"]
    models = len({pair["suspect"]["seed"] for pair in pairs})
    bound = binomial_interval(wrong, num_other)[1] if num_other else 1.0
    return (
        f"After training to a held-out loss of {progress['loss']:.2f} nats (unigram entropy "
        f"{progress['unigram_entropy']:.2f}), {recognized} of {num_own} models are recognized by their own "
        f"initialization, and {wrong} of {num_other} by another seed's (from {models} models, whose pairs are not "
        f"independent: even if they were, the false-positive rate could be {bound:.0%} by the exact 95% interval)."
    )


def baseline_text(row: Entry, related: bool) -> str:
    """Format a score with a mark: right or wrong at the published threshold."""
    if row["score"] is None:
        return "undefined"
    mark = "✓" if row["same_at_0.8"] == related else "✗"
    return f"{fixed(3)(row['score'])}{mark}"


def table_8(record: Record, numbers: Mapping[int, tuple[float, ...]]) -> Table:
    """Tabulate baselines on initializations and their trained models, alongside scores between different seeds."""
    result = record["result"]
    rows: list[tuple[Any, ...]] = []
    for row in result["own"]:
        paper: dict[str, Value] = {}
        if is_paper(record) and row["seed"] in numbers:
            paper = {NAMES[name]: fixed(3)(value) for name, value in zip(BASELINES, numbers[row["seed"]], strict=True)}
        measured = training_cells(row["progress"])
        for name in BASELINES:
            measured[NAMES[name]] = (fixed(3), baseline_text(row[name], True))
            measured[f"z of {NAMES[name]}"] = (fixed(1), row[name]["z"])
        names = [f"s{row['seed']} at initialization", f"s{row['seed']} trained"]
        rows.append((names, measured, paper))
    other_scores = {
        NAMES[name]: (fixed(3), mean_std(result["other"][name])) for name in BASELINES if len(result["other"][name]) > 1
    }
    rows.append((["any seed at initialization", "another seed trained"], other_scores))
    note = (
        "✓ and ✗: right or wrong at the published threshold of 0.8. Last row: mean ± standard deviation of the "
        f"scores of {len(result['other']['pcs'])} pairs of an initialization and another seed's trained model. z: "
        "how many of these standard deviations a score lies above that mean; a score below 0.8 can still tell a "
        f"seed. Intrinsic correlates profiles over {result['facts']['model']['num_layers']} layers. {PCS_NOTE} "
        f"{trained_on(record)}"
    )
    return tabulate("Baselines on an initialization and its trained model", ["base", "suspect"], rows, note)


def continued_table(record: Record, numbers: Mapping[tuple[str, bool], tuple[float, ...]]) -> Table:
    """Tabulate Table 5 and Table 12: after further training on another corpus."""
    rows: list[tuple[Any, ...]] = []
    for pair in record["result"]["pairs"]:
        paper: dict[str, Value] = {}
        if is_paper(record) and pair["role"] == "stories":
            values = numbers[pair["role"], pair["related"]]
            paper = printed((values[0], values[1]), record)
            paper |= {NAMES[name]: fixed(3)(value) for name, value in zip(BASELINES, values[2:], strict=True)}
        measured = verdict_cells(pair)
        measured |= {NAMES[name]: (fixed(3), baseline_text(pair[name], pair["related"])) for name in BASELINES}
        kind = "descendant" if pair["related"] else "distractor"
        names = [f"{pair['role']} ({pair['source']})", f"s{pair['suspect']['seed']}, {kind}", integer(pair["tokens"])]
        rows.append((names, measured, paper))
    base = record["result"]["pairs"][0]["base"]
    note = (
        f"The base is seed {base['seed']} after {base['step']:,} steps. The distractor is another seed, trained on "
        "the base's text in another order and then, as the descendant, on the second text, in the same order as it. "
        f"{MOVED} is measured from the model with which this further training began; the loss is on held-out text of "
        f"the second corpus. ✓ and ✗: right or wrong at the published threshold of 0.8. {PCS_NOTE} {NOTE} The base: "
        f"{trained_on(record)}"
    )
    return tabulate("After further training on another corpus", ["corpus", "suspect", "tokens"], rows, note)


def continued_claims(record: Record) -> Sequence[Claim]:
    """State how many descendants and distractors are told apart, by test and by baseline."""
    pairs = record["result"]["pairs"]
    statements = []
    for test, words in (("permutation", "the permutation test, tokens"), ("paper", "Algorithm 1, shared vectors")):
        right = sum((pair[test]["verdict"] == "same-lineage") == pair["related"] for pair in pairs)
        statements.append(Claim(f"Descendants and distractors judged correctly by {words}", f"{right} of {len(pairs)}"))
    for name in BASELINES:
        right = sum(pair[name]["same_at_0.8"] == pair["related"] for pair in pairs)
        statements.append(
            Claim(f"Descendants and distractors judged correctly by {NAMES[name]} at 0.8", f"{right} of {len(pairs)}")
        )
    return statements
