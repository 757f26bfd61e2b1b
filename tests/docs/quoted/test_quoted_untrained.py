"""Pages on untrained models and their theory quote the committed records."""

import re

import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.config import preset
from bornbiased_jax.experiments import results
from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.theory import predicted
from bornbiased_jax.prediction import stack_of
from bornbiased_jax.report.numbers import fixed, p_value
from bornbiased_jax.theory.mean_field import profile
from bornbiased_jax.theory.predict import contraction
from tests.docs.quoted.records import COUNTS, ROOT, assert_quoted, result_of, seeds_and_tokens, span


def _measurements() -> list[str]:
    at_16, at_64 = seeds_and_tokens("finding2_nano"), seeds_and_tokens("finding2_64")
    tokens = {
        (seed, length): seeds_and_tokens(f"table1_a_{length}_{seed}")[seed]
        for seed in (42, 43)
        for length in (64, 256, 1_024)
    }
    assert tokens[42, 64] == tokens[42, 256] == at_64[42] and tokens[43, 256] == tokens[43, 1_024]
    same = sum(at_16[seed] == at_64[seed] for seed in at_16)
    assert len(set(at_16.values())) == len(at_16) - 1
    return [
        f"seed 42 of gpt2-nano has {at_16[42]:,} at T = 16, {tokens[42, 64]:,} at T = 64 and 256, and "
        f"{tokens[42, 1_024]:,} at T = 1,024, and seed 43 has {tokens[43, 64]:,} at T = 64 and {tokens[43, 256]:,} "
        "at T = 256 and 1,024;",
        f"two share a top-1 token, and {same} have the same one at T = 64",
    ]


def _theory() -> list[str]:
    unseen = results.committed("unseen_schemes", "laptop")
    cells = zip(unseen["settings"]["cells"], unseen["result"]["groups"], strict=False)
    outside = [(scheme, shape, seed) for (scheme, shape), group in cells for seed in _seeds_outside(group)]
    shapes, seeds = ({cell[place] for cell in outside} for place in (1, 2))
    assert [cell[0] for cell in outside] == ["kaiming", "kaiming, leaky ReLU, RMSNorm"] and len(shapes | seeds) == 2
    inside = unseen["result"]["coverage"]["inside"] - 48
    # The same test of fit, of a cosine that is 25% larger.
    fits = result_of("predicted")
    controls = [
        fit["control_p"]
        for group, fit in zip(fits["groups"], fits["fits"], strict=True)
        if fit is not None and np.mean(probing.cosines(group)) < 0.25
    ]
    kept = [p for p in controls if p >= predicted.SIGNIFICANCE]
    (post_norm,) = [group for group in fits["groups"] if group["group"]["model"] == "olmo2-tiny"]
    expected, cosine = post_norm["theory"]["inter_cosine_by_layer"][-1], np.mean(probing.cosines(post_norm))
    assert not _seeds_outside(post_norm) and len(post_norm["records"]) == 16
    (large,) = result_of("table1_c_256_n125")["groups"]
    low_L, high_L, theory_L = (
        np.array(large["theory"][f"inter_cosine_by_layer{end}"]) for end in ("_low", "_high", "")
    )
    first_L, second_L = (np.array(row["contraction"]["inter_cosine_by_layer"]) for row in large["records"])
    assert ((low_L <= first_L) & (first_L <= high_L)).all()
    z = (second_L[-1] - theory_L[-1]) / large["theory"]["inter_cosine_by_layer_std"][-1]
    below = int((second_L < low_L).sum())
    assert below == ((second_L < low_L) | (second_L > high_L)).sum()
    return [
        f"{_with_all_terms()} have all of them, `predicted` the first four",
        f"{_balanced_of_all_pairs('relu')} is predicted for ReLU and {_balanced_of_all_pairs('gelu')} for GELU",
        f"with 125 inputs, in {below} (z = {fixed(1)(z)}).",
        f"{expected:.3f} where {cosine:.3f} is measured (T = 12, 16 seeds). All 16 seeds lie",
        f"these two, {inside} of {inside + len(outside)} lie inside; the two outside are one seed",
        f"({seeds.pop()} at {shapes.pop().split(',')[0]})",
        f"in {COUNTS[len(kept)]} of the {COUNTS[len(controls)]} configurations with a cosine below 0.25",
        f"(p from {p_value(2)(min(kept))} to {p_value(2)(max(kept))})",
    ]


def _with_all_terms() -> str:
    """Records that the page on theory shows and that were made with all terms that it has, as that of ablation."""
    page = (ROOT / "docs" / "results" / "theory.md").read_text()
    shown = re.findall(r"<!-- record: (\w+)(?: scale=(\w+))? ", page)
    made = {name: results.committed(name, scale or "laptop")["provenance"]["timestamp"] for name, scale in shown}
    *names, last = sorted(f"`{name}`" for name, timestamp in made.items() if timestamp >= made["ablation"])
    return f"{', '.join(names)} and {last}"


def _balanced_of_all_pairs(activation: str) -> str:
    """Predict the cosine of all pairs, as other code measured it (theory/test_schemes.py)."""
    shape = dict(num_layers=6, d_model=256, d_ff=1024, activation=activation, init="normal-0.02-balanced")
    cfg = preset("gpt2-tiny", **shape)
    cosine = contraction(profile(stack_of(cfg), 32), 1_500).mean[-1]
    return fixed(4)(cosine + (1 - cosine) / cfg.vocab_size)


def _seeds_outside(group) -> list[int]:
    low, high = (group["theory"][f"inter_cosine_by_layer_{end}"][-1] for end in ("low", "high"))
    rows = zip(group["records"], probing.cosines(group), strict=True)
    return [row["seed"] for row, cosine in rows if not low <= cosine <= high]


def _schemes_guide() -> list[str]:
    unseen = results.committed("unseen_schemes", "laptop")
    balanced = [
        group["theory"]["inter_cosine_by_layer"][-1] / np.mean(probing.cosines(group))
        for (scheme, _), group in zip(unseen["settings"]["cells"], unseen["result"]["groups"], strict=False)
        if scheme == "kaiming-balanced"
    ]
    return [f"is predicted {span(balanced, 1)} times too high"]


def _errata() -> list[str]:
    attention = next(group for group in result_of("table2", "paper")["groups"] if "mlp" in group["group"]["changes"])
    stds = [row["contraction"]["inter_cosine_std_final"] for row in attention["records"]]
    pairs = attention["group"]["num_inputs"] * (attention["group"]["num_inputs"] - 1) / 2
    assert {fixed(2)(2 * stats.norm.sf(1.11e-4 / std * np.sqrt(pairs))) for std in stds} == {"0.16"}
    untrained, trained, pairs_without, own_without = [], [], [], []
    for name in ("trained_apart", "trained_apart_256_2m"):
        initial, mixed, later, _, related, _ = result_of(name)["shared"].values()
        untrained += [own for pair in initial for own in pair["own"]] + [pair["own"][0] for pair in mixed]
        trained += [own for pair in later for own in pair["own"]] + [pair["own"][1] for pair in mixed]
        pairs_without += [pair["paper_without"]["verdict"] for pair in (*initial, *mixed, *later)]
        own_without.append([pair["paper_without"]["verdict"] for pair in related])
        assert all(pair["paper"]["verdict"] == "same-lineage" for pair in related)
    return [
        f"deviations of {stds[0]:.4f} and {stds[1]:.4f}, and either gives 0.16",
        f"Untrained models have {min(untrained):.2f} to {max(untrained):.2f}, models trained here {min(trained):.2f} "
        f"to {max(trained):.2f}, and with the vector removed from the outputs Algorithm 1 calls "
        f"{pairs_without.count('same-lineage')} of {len(pairs_without)} such pairs",
        f"it then calls {own_without[1].count('same-lineage')} of {len(own_without[1])} pairs at 4 × 256 and "
        f"{own_without[0].count('same-lineage')} of {len(own_without[0])} at 4 × 96",
    ]


@pytest.mark.parametrize(
    "page, phrases",
    [
        ("docs/initializations.md", _schemes_guide),
        ("docs/results/measurements.md", _measurements),
        ("docs/results/theory.md", _theory),
        ("theory/ERRATA.md", _errata),
    ],
)
def test_pages_quote_their_records(page, phrases):
    assert_quoted(page, phrases())
