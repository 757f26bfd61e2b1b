"""Pages on pretraining and on what survives it quote the committed records."""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from bornbiased_jax.experiments import results
from bornbiased_jax.experiments.survival import decay, finding7
from bornbiased_jax.report.numbers import from_log10, percent
from tests.docs.quoted.records import ROOT, assert_quoted, is_own, p_of_preference, result_of, span


def _pretraining() -> list[str]:
    own = [seed["pcs"] for seed in result_of("table8")["own"]]
    pairs = [pair for name in ("table4c", "table11") for pair in result_of(name)["pairs"] if not is_own(pair)]
    assert not any(pair["paper_tokens"]["verdict"] == "same-lineage" for pair in pairs)
    called = sum(pair["paper"]["verdict"] == "same-lineage" for pair in pairs)
    timed = json.loads((ROOT / "benchmarks" / "results" / "pretrain_vs_torch.json").read_text())
    ratios = {name: size["speedup_median"] for name, size in timed.items() if name != "provenance"}
    narrow = [ratios[name] for name in ("laptop", "tiny", "vocabulary")]
    assert max(size["largest_loss_difference"] for name, size in timed.items() if name in ratios) < 8e-4
    return [
        f"scores of own pairs ({span((score['score'] for score in own), 3)}) lie far above those of pairs of two "
        f"seeds ({own[0]['null_mean']:.3f} with a standard deviation of {own[0]['null_std']:.3f})",
        f"calls {called} of {len(pairs)} pairs of different seeds one lineage, on tokens none",
        f"train {min(narrow):.1f} to {max(narrow):.1f} times as fast here; at 4 × 256 the two are about equal "
        f"({ratios['wide']:.2f}), and llama-nano is slower ({ratios['nano']:.2f})",
        *_pretraining_of_larger_models(),
    ]


def _pretraining_of_larger_models() -> list[str]:
    small, larger = (
        [f"{pair['permutation']['z']:.1f}" for pair in result_of(name)["pairs"] if is_own(pair)]
        for name in ("table4b", "table4b_256_2m")
    )
    own = result_of("table8_256_2m")["own"]
    others = [name for name in ("intrinsic", "reef", "ics") if any(row[name]["same_at_0.8"] for row in own)]
    pairs = result_of("table4c_256_2m")["pairs"]
    assert all(pair["progress"]["loss"] < pair["progress"]["bigram_loss"] for pair in pairs)
    assert not others and all(row["pcs"]["same_at_0.8"] for row in own)
    assert all(row["ics"]["z"] > 2_000 for row in own)
    assert all(pair["paper"]["verdict"] == "same-lineage" for pair in pairs)
    assert all((pair["paper_tokens"]["verdict"] == "same-lineage") == is_own(pair) for pair in pairs)
    taus = {kind: result_of("figure11_256_2m")["taus"][kind] for kind in ("tokens", "gaussian")}
    tokens, vectors = (f"{kind['own']['mean'][-1]:.3f} and {kind['other']['mean'][-1]:.3f}" for kind in taus.values())
    further = result_of("table5_256_2m")["pairs"]
    right = {
        name: [(pair[name].get("verdict", pair[name].get("same_at_0.8")) in ("same-lineage", True)) == pair["related"]
               for pair in further]
        for name in ("permutation", "paper", "paper_tokens", "intrinsic", "reef", "pcs", "ics")
    }  # fmt: skip
    always = {name for name, pairs in right.items() if all(pairs)}
    assert always == {"permutation", "paper_tokens", "pcs", "ics"}
    assert right["paper"] == right["intrinsic"] == [True, False, True, False] and sum(right["reef"]) == 3
    narrow, wide = (result_of(name)["pairs"] for name in ("trained_apart", "trained_apart_256_2m"))
    called = {
        test: [sum(pair[test]["verdict"] == "same-lineage" for pair in pairs) for pairs in (narrow, wide)]
        for test in ("paper", "paper_tokens", "permutation")
    }
    assert called["paper"][0] == called["paper_tokens"][0] == called["permutation"][0] == 0
    (exception,) = (pair["permutation"]["p"] for pair in wide if pair["permutation"]["verdict"] == "same-lineage")
    every, chance = len(narrow + wide), 1 - 0.99 ** len(narrow + wide)
    largest = from_log10(2)(max(pair["paper"]["log10_p"] for pair in wide)).replace("\u202f", " ")
    return [
        f"training of seed 1000, and of the distractor, on {further[0]['tokens']:,} tokens",
        *_shared_vectors(),
        f"on vectors calls all {called['paper'][1]} pairs one lineage (p at most {largest}), at 4 × 96 none",
        f"On tokens it calls {called['paper_tokens'][1]} of {len(wide)} pairs one lineage at 4 × 256",
        f"one of the {every} pairs one lineage, at p = {exception:.4f}: of {every} independent tests at 0.01 one or "
        f"more is so low with a chance of {chance:.0%}",
        f"by a z of {min(larger)} to {max(larger)}, where it is {min(small)} to {max(small)} in the models",
        f"({tokens} at the end on tokens, {vectors} on vectors)",
    ]


def _shared_vectors() -> list[str]:
    shared = {name: result_of(name)["shared"] for name in ("trained_apart", "trained_apart_256_2m")}
    own, product = (
        {name: [np.mean([pair[key] for pair in pairs]) for pairs in kinds.values()] for name, kinds in shared.items()}
        for key in ("own", "correlation")
    )
    two_seeds = [list(kinds.values())[:3] for kinds in shared.values()]
    # Outputs are as alike as the vector makes them: within four standard errors of as many independent numbers.
    for kinds, error in zip(two_seeds, (1 / math.sqrt(1_000 * 96), 1 / math.sqrt(256_000)), strict=True):
        for pairs in kinds:
            assert all(abs(pair["correlation"] - pair["product"]) < 4 * error for pair in pairs)
    every_pair = [pair for kinds in two_seeds for pairs in kinds for pair in pairs]
    calls = [_num_called(every_pair, test) for test in ("paper", "paper_without")]
    least = min(pair["permutation_without"]["p"] for pair in every_pair)
    # Distractors, initializations and their own trained models, bases and their descendants.
    narrow, wide = (list(kinds.values())[3:] for kinds in shared.values())
    for test in ("paper_without", "permutation_without"):
        assert [_num_called(pairs, test) for pairs in narrow] == [0, 0, 2]
        assert [_num_called(pairs, test) for pairs in wide] == [0, 4, 2]
    assert _num_called(narrow[1], "paper") == 4
    alike, carried = (np.mean([pair[key] for pair in narrow[1]]) for key in ("correlation", "product"))
    return [
        f"output has a correlation of {own['trained_apart_256_2m'][2]:.2f} with the same coordinate of the last "
        f"vector, and so two models' outputs one of {product['trained_apart_256_2m'][2]:.2f}",
        f"training leaves {own['trained_apart'][2]:.2f}, whose square is too small to be found, and untrained models "
        f"have {own['trained_apart'][0]:.2f}",
        f"Algorithm 1 calls {calls[1]} of {len(every_pair)} pairs of two seeds' models one lineage, of which it called "
        f"{calls[0]}, and the permutation test has no p below {least:.3f}",
        "At 4 × 256 it came out so: 4 of 4, 2 of 2 and 0 of 2 by either test",
        f"have a correlation of {alike:.3f}, the product of each one's with the vector is {carried:.3f}",
    ]


def _num_called(pairs: Sequence[Any], test: str) -> int:
    return sum(pair[test]["verdict"] == "same-lineage" for pair in pairs)


def _survival() -> list[str]:
    seen, unseen = map(p_of_preference, (finding7.SEEN, finding7.UNSEEN))
    held = {}
    for name in ("decay", "decay_of_run"):
        for claim in decay.claims(results.committed(name, "laptop")):
            held[claim.statement.replace("matrices of 30 whose last decade ", "")] = claim.measured
    assert not held["bpe-4096: the form predicts, by tokens"] and not held["bytes: the form predicts, by tokens"]
    missed = [30 - held[f"{name}: the form predicts, by summed learning rate"] for name in ("bpe-4096", "bytes")]
    least = min(value for statement, value in held.items() if ": least z" in statement)
    hybrids = [run for name in ("anatomy", "anatomy_of_run") for run in result_of(name)["runs"].values()]
    z_RS = [{what: np.array(z) for what, z in run["z"]["uniform ids"].items()} for run in hybrids]
    left = [z["another's blocks"][:, -1].mean() / z["own birth"][:, -1].mean() for z in z_RS]
    return [
        f"(z of {max(z[EMBEDDING].max() for z in z_RS):.1f} at most on uniform ids)",
        f"({percent(0)(min(left))} to {percent(0)(max(left))} of that z after training)",
        *_gaps(),
        f"are ranked alike (p = {seen[0]:.2f} and {seen[1]:.2f})",
        f"none of it either (p = {unseen[0]:.2f} and {unseen[1]:.2f})",
        f"far above chance at the end (z of {int(least)} or more)",
        f"of {missed[0]} and {missed[1]} of them when it is counted in summed learning rate",
        f"it holds for {held['BPE: the form predicts, by tokens']:.0f} of 30, and carrying the last value forward for "
        f"{held['BPE: no change would predict']:.0f}",
    ]


EMBEDDING, BLOCKS, HEAD = (f"another's {part}" for part in ("embedding", "blocks", "head"))


def _gaps() -> list[str]:
    """Fractions of the preference's gap at initialization that are left under another seed's parts."""
    runs = result_of("finding7")["runs"]
    left = {
        name: [
            {part: base[0]["rank"]["gap"] / ids["bases"]["own initialization"][0]["rank"]["gap"]
             for part, base in ids["bases"].items()}
            for ids in run["vocabularies"].values()
        ]
        for name, run in runs.items()
    }  # fmt: skip
    llama, gpt2 = left["bytes"], left["GPT-2, bytes"]
    blocks = [gaps[BLOCKS] for gaps in llama]
    return [
        f"another seed's blocks leave {percent(0)(min(blocks))} to {percent(0)(max(blocks))} of the gap, another's "
        f"embedding or head at most {percent(0)(max(max(gaps[EMBEDDING], gaps[HEAD]) for gaps in llama))}",
        "another's table or blocks leave at most "
        f"{percent(0)(max(max(gaps[EMBEDDING], gaps[BLOCKS]) for gaps in gpt2))}",
    ]


@pytest.mark.parametrize(
    "page, phrases",
    [
        ("docs/results/pretraining.md", _pretraining),
        ("docs/results/survival.md", _survival),
    ],
)
def test_pages_quote_their_records(page, phrases):
    assert_quoted(page, phrases())
