"""Tables 4a and 9: different seeds have different fingerprints; Table 8's baselines on the same initializations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bornbiased_jax import progress
from bornbiased_jax.config import preset
from bornbiased_jax.experiments._shared.baselines import reef_features
from bornbiased_jax.experiments._shared.lineage import BASELINES, baseline_scores, sentences, verdicts
from bornbiased_jax.experiments.base import Context, Experiment, Record
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage.baselines import THRESHOLD
from bornbiased_jax.lineage.outputs import embedding_moments, last_outputs
from bornbiased_jax.probes.inputs import random_inputs
from bornbiased_jax.report.numbers import fixed, from_log10
from bornbiased_jax.report.tables import Claim, Table, Value, tabulate

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


def run(context: Context) -> dict[str, Any]:
    """Run tests on vectors and on tokens for the paper's pairs, and baselines with an empirical null."""
    return {"groups": [_group(context, group) for group in context.settings["groups"]]}


def _group(context: Context, group: Mapping[str, Any]) -> dict[str, Any]:
    cfg = preset(group["model"], **group["changes"])
    pairs = [tuple(pair) for pair in group["pairs"]]
    null = [(seed, seed + 1) for seed in range(10_000, 10_000 + 2 * group["num_null"], 2)]
    text = sentences(cfg, group["reef"])
    rows, unrelated = [], []
    total = len(pairs) + len(null)
    with progress.bar(total, f"table4a {group['model']}", unit="pairs", quiet=context.quiet) as advance:
        for base_seed, suspect_seed in pairs:
            base, suspect = init_seed(cfg, base_seed), init_seed(cfg, suspect_seed)
            # Algorithm 1: vectors with the mean and the standard deviation of the base's embedding.
            moments = embedding_moments(base)
            tests = {}
            for kind in ("gaussian", "tokens"):
                fed = moments if kind == "gaussian" else None
                base_ND, suspect_ND = (_outputs(context, group, seed, kind, fed) for seed in (base_seed, suspect_seed))
                tests[kind] = verdicts(base_ND, suspect_ND, TESTS)
            pair = (reef_features(cfg, base, text), reef_features(cfg, suspect, text))
            scores = baseline_scores(cfg, base, cfg, suspect, pair)
            rows.append({"base": base_seed, "suspect": suspect_seed, "tests": tests, "baselines": scores})
            advance()
        for base_seed, suspect_seed in null:
            base, suspect = init_seed(cfg, base_seed), init_seed(cfg, suspect_seed)
            pair = (reef_features(cfg, base, text), reef_features(cfg, suspect, text))
            unrelated.append(baseline_scores(cfg, base, cfg, suspect, pair))
            advance()
    return {"group": group, "pairs": rows, "null": {name: [entry[name] for entry in unrelated] for name in BASELINES}}


def _outputs(
    context: Context, group: Mapping[str, Any], seed: int, kind: str, moments: tuple[float, float] | None
) -> np.ndarray:
    """Return an initialization's outputs, cached: a killed call resumes, and a seed's tokens serve its pairs."""
    identity = {name: group[name] for name in ("model", "changes", "num_inputs", "seq_len")}

    def compute(_folder: Path) -> np.ndarray:
        cfg = preset(group["model"], **group["changes"])
        inputs = random_inputs(kind, group["num_inputs"], group["seq_len"], cfg)
        mean, std = moments or (0.0, 1.0)
        return last_outputs(cfg, init_seed(cfg, seed), inputs, mean=mean, std=std)

    outputs = context.cached(
        "outputs_of_births", {**identity, "seed": seed, "inputs": kind, "moments": moments}, compute
    )
    return np.asarray(outputs)


def is_paper(group: Mapping[str, Any]) -> bool:
    """Return whether a group has the paper's model and sizes."""
    sizes = (group["num_inputs"], group["seq_len"])
    return group["model"].endswith("-nano") and not group["changes"] and sizes == PAPER_SIZES


def tables(record: Record) -> Sequence[Table]:
    """Tabulate p of every test, then the baselines' scores alongside those of unrelated initializations, if any."""
    rows: list[tuple[Any, ...]] = []
    scores: list[tuple[Any, ...]] = []
    for outcome in record["result"]["groups"]:
        group = outcome["group"]
        family = group["model"].split("-")[0]
        configuration: Any = "paper" if is_paper(group) else "other"
        # p of every test, a row a pair.
        for entry in outcome["pairs"]:
            printed = PRINTED.get((family, entry["base"], entry["suspect"])) if is_paper(group) else None
            head = [group["model"], entry["base"], entry["suspect"], group["num_inputs"], group["seq_len"]]
            vectors, tokens = entry["tests"]["gaussian"], entry["tests"]["tokens"]
            log10_p = {
                "t-test": vectors["paper"].get("log10_p_t"),
                "U-test": vectors["paper"].get("log10_p_u"),
                "iclr": vectors["iclr"]["log10_p"],
                "tokens: t-test": tokens["paper"].get("log10_p_t"),
                "tokens: iclr": tokens["iclr"]["log10_p"],
                "tokens: permutation": _log(tokens["permutation"]["p_value"]),
            }
            measured: dict[str, Any] = {name: (from_log10(3), value) for name, value in log10_p.items()}
            paper: dict[str, Value] = {}
            if printed is not None:
                paper = {"t-test": float(np.log10(printed[0])), "U-test": float(np.log10(printed[1]))}
            rows.append((head, measured, paper, {}, configuration))
        # Scores of the baselines against their null.
        for name in BASELINES:
            values = [entry["baselines"][name] for entry in outcome["pairs"]]
            null = [value for value in outcome["null"][name] if value is not None]
            defined = [value for value in values if value is not None]
            if not defined or not null:
                continue
            of_null = (float(np.mean(null)), float(np.std(null, ddof=1)) if len(null) > 1 else 0.0)
            measured = {
                "least": (fixed(3), min(defined)),
                "largest": (fixed(3), max(defined)),
                f"above {THRESHOLD}": str(sum(value > THRESHOLD for value in defined)),
                "unrelated initializations": (fixed(3), of_null),
            }
            scores.append(([group["model"], name, len(values), len(null)], measured))
    note = (
        "p of two untrained models of different seeds, which should not be small. Without a word: Gaussian vectors "
        "with the moments of the base's embedding, as published. t-test and U-test: Algorithm 1, means over ten nulls. "
        "With these vectors the permutation test is not valid, and is left out."
    )
    heads = ["model", "base seed", "suspect seed", "N", "T"]
    about = (
        "Scores of the same pairs of seeds; the decision published for all four is score > 0.8. Last column: mean ± "
        "standard deviation over other disjoint pairs of initializations, the null that a threshold should come from. "
        "REEF reads 200 passages of English prose at 9/16 of the depth."
    )
    tested = tabulate("Untrained models of different seeds, every test (Tables 4a and 9)", heads, rows, note)
    scored = tabulate(
        "Table 8's baselines on initializations", ["model", "method", "pairs", "null pairs"], scores, about
    )
    return [tested, scored] if scores else [tested]


def _log(p: float | None) -> float | None:
    return None if p is None else float(np.log10(p))


def claims(record: Record) -> Sequence[Claim]:
    """State the smallest p of each group, on the published inputs and on tokens."""
    statements = []
    for outcome in record["result"]["groups"]:
        group = outcome["group"]
        size = f"{group['model']}, N = {group['num_inputs']:,}, T = {group['seq_len']}, {len(outcome['pairs'])} pairs"
        for kind, test, key in (("gaussian", "paper", "log10_p_t"), ("tokens", "permutation", "p_value")):
            values = [entry["tests"][kind][test].get(key) for entry in outcome["pairs"]]
            defined = [float(value) for value in values if value is not None]
            logs = np.log10(defined).tolist() if key == "p_value" else defined
            if not logs:
                continue
            same = is_paper(group) and test == "paper"
            family = group["model"].split("-")[0]
            pairs = [(family, entry["base"], entry["suspect"]) for entry in outcome["pairs"]]
            printed = min(PRINTED[pair][0] for pair in pairs) if same else None
            statements.append(
                Claim(
                    f"Smallest p of untrained models of different seeds, {test} test on {kind} ({size})",
                    min(logs),
                    None if printed is None else float(np.log10(printed)),
                    format=from_log10(2),
                    configuration="paper" if same else "other",
                )
            )
    return statements


PAIRS = {
    "llama": [[42, 2000], [123, 42], [1000, 123], [2000, 1000]],
    "qwen": [[123, 1000], [1000, 123], [42, 2000], [2000, 42]],
}
"""Family -> base and suspect of the paper's comparisons."""


def families(
    suffix: str, changes: Mapping[str, Any], only: Sequence[str] = tuple(PAIRS), **sizes: object
) -> dict[str, Any]:
    """Return settings with a group for each family, its model the preset with this suffix."""
    groups = [
        {"model": f"{family}-{suffix}", "changes": dict(changes), "pairs": PAIRS[family], **sizes} for family in only
    ]
    return {"seeds": [42, 123, 1000, 2000], "groups": groups}


def sentences_of(number: int, length: int, text: str = "builtin:prose") -> dict[str, Any]:
    """Return what REEF reads."""
    return {"text": text, "num_sentences": number, "sentence_len": length}


TINY = {"num_layers": 2, "num_heads": 2, "num_kv_heads": 2, "d_model": 32, "d_ff": 48, "vocab_size": 260}
EXPERIMENT = Experiment(
    name="table4a",
    title="Untrained models of different seeds under every test",
    paper="Tables 4a, 8 and 9",
    description=(
        "The paper's pairs of seeds, compared before any training, by Algorithm 1 as published (shared Gaussian "
        "vectors), and on random tokens by every test. Here a large p is the right answer.\n\n"
        "The four published baselines see the same initializations. Their published threshold of 0.8 stands next to "
        "what unrelated initializations score: a score far below 0.8 can still be enormous, and one of 0.9 be nothing."
    ),
    settings={
        "smoke": families("tiny", TINY, num_inputs=64, seq_len=4, num_null=2, reef=sentences_of(12, 8, "builtin:code")),
        "laptop": families("tiny", {}, num_inputs=2_000, seq_len=16, num_null=12, reef=sentences_of(200, 32)),
        "paper": families("nano", {}, num_inputs=10_000, seq_len=1_024, num_null=12, reef=sentences_of(200, 64)),
    },
    cost={
        "smoke": "seconds",
        "laptop": "three minutes on two cores of an x86-64 virtual machine that did other work as well",
        "paper": "not measured: about 6e16 floating-point operations, for a GPU",
    },
    run=run,
    claims=claims,
    tables=tables,
)
