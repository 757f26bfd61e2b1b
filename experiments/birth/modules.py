"""Table 2 and Figure 3: the full model and each of its modules alone, on Gaussian inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from scipy import stats

from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.base import Entry, Experiment, Record
from bornbiased_jax.experiments.birth import settings
from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import from_log10, integer, percent, significant
from bornbiased_jax.report.tables import Cells, Claim, Panel, Quantity, Row, Table, tabulate
from bornbiased_jax.stats.tails import LN10, log10_chi2_tail

VARIANTS: dict[str, Entry] = {
    "full model": {},
    "self-attention only": {"mlp": False},
    "MLP only": {"attention": False},
}
"""Name -> fields of ``ModelConfig``."""

HEADS = ["mode", "model", "N", "T", "seed"]
"""Heads of the columns that name one seed of a variant."""


def variant(group: probing.ProbeGroup) -> str:
    """Return the name of a group's variant."""
    return next(
        name
        for name, fields in VARIANTS.items()
        if all(group["changes"].get(key, True) == fields.get(key, True) for key in ("attention", "mlp"))
    )


def by_variant(record: Record) -> dict[str, probing.Probed]:
    """Map each variant to its group of a record."""
    return {variant(probed["group"]): probed for probed in probing.probed_groups(record)}


def labels(group: probing.ProbeGroup, seed: int) -> list[Any]:
    """Return the cells that name one seed of a variant, under :data:`HEADS`."""
    # Without attention no length matters.
    length = "any" if variant(group) == "MLP only" else f"{group['seq_len']:,}"
    return [variant(group), probing.name_of(group), group["num_inputs"], length, seed]


def same_configuration(group: probing.ProbeGroup) -> bool:
    """Check whether Section 4.1 measured just this: 12 layers, 768 wide, 2,000 Gaussian inputs of 1,024 positions."""
    name = variant(group)
    return (
        group["model"] == "gpt2-nano"
        and group["changes"] == VARIANTS[name]
        and group["inputs"] == "gaussian"
        and group["num_inputs"] == 2_000
        and (name == "MLP only" or group["seq_len"] == 1024)
    )


COST = {
    "laptop": "1 min 20 s on two cores (3.1 GB); table2 and figures 3, 4 and 7 share it",
    "paper": "1 h 50 min on two cores (3.2 GB); table2 and figures 3, 4 and 7 share it",
}


# Variant -> (average similarity, p) as printed; None where the paper prints an underflow.
PRINTED: dict[str, tuple[float, float | None]] = {
    "full model": (0.46, None),
    "self-attention only": (1.11e-4, 0.16),
    "MLP only": (0.25, None),
}


def log10_pairs_p(mean: float, std: float, num_inputs: int) -> float:
    """Return log₁₀ p that the mean cosine over pairs is 0: two-sided normal test, N(N − 1)/2 pairs.

    Pairs that share a member are uncorrelated where the mean direction is zero, so the standard error is that
    of independent pairs whatever the covariance of the states.

    Args:
        mean: of the cosine over pairs.
        std: of the same.
        num_inputs: N, at least 2.
    """
    z = abs(mean) / std * math.sqrt(num_inputs * (num_inputs - 1) / 2)
    return min(0.0, float(stats.norm.logsf(z) + math.log(2.0)) / LN10)


def effective_dimension(mean: float, std: float) -> float:
    """Return 1/E[cos²] over pairs, tr(Σ)²/tr(Σ²): D for isotropic directions, fewer where some are favored."""
    return 1.0 / (mean**2 + std**2)


def log10_direction_p(mean: float, std: float, num_inputs: int) -> float:
    """Return log₁₀ p that the mean direction is zero, with any covariance: Rayleigh's test in the effective dimension.

    Under random signs of the states ‖Σĥ‖²/N has mean 1 and variance 2 E[cos²]; the χ² distribution with these two
    moments has 1/E[cos²] degrees of freedom (Satterthwaite).
    """
    dof = effective_dimension(mean, std)
    return log10_chi2_tail(max(0.0, dof * (1.0 + (num_inputs - 1) * mean)), dof)


def table2_tables(record: Record) -> Sequence[Table]:
    """Show one row per variant and seed."""
    rows = []
    for probed, row in probing.each_seed(record):
        group, theory, pulled = probed["group"], probed["theory"], row["contraction"]
        name, num_inputs, is_published = variant(group), group["num_inputs"], same_configuration(group)
        # Gaussian inputs share no tokens: all pairs count.
        mean, std = pulled["inter_cosine_final"], pulled["inter_cosine_std_final"]
        measured = {
            "cosine": (significant(3), mean),
            "std over pairs": (significant(3), std),
            "effective D": (integer, effective_dimension(mean, std)),
            "p, pairs": (from_log10(2), log10_pairs_p(mean, std, num_inputs)),
            "p, direction": (from_log10(2), log10_direction_p(mean, std, num_inputs)),
            "p, isotropy": (from_log10(2), pulled["log10_p"]),
        }
        paper: Cells = {}
        if is_published:
            cosine, p = PRINTED[name]
            paper = {"cosine": cosine, "p, pairs": "0.00 (underflow)" if p is None else math.log10(p)}
        predicted: Cells = {
            "cosine": (theory["inter_cosine_final"], theory["inter_cosine_final_std"]),
        }
        if name == "self-attention only":
            # Nothing but the sampling of pairs spreads a cosine whose mean is zero for every seed.
            std = theory["inter_cosine_final_std"] * math.sqrt(num_inputs * (num_inputs - 1) / 2)
            predicted |= {"std over pairs": std, "effective D": effective_dimension(0.0, std)}
        rows.append((labels(group, row["seed"]), measured, paper, predicted))
    return [
        tabulate(
            "Average cosine between last-token states after the final norm, by module",
            HEADS,
            rows,
            note=(
                "Cosine: of the final norm's outputs at the last position for different sequences of Gaussian "
                "vectors, mean over pairs; theory: mean ± standard deviation across seeds, for N inputs. Effective "
                "D: 1/E[cos²] over pairs, which is D where no plane is favored. Three tests of a mean cosine of "
                "zero. p, pairs: two-sided normal test of the mean over N(N−1)/2 pairs with their standard "
                "deviation. The paper states no protocol; this one gives its 0.16 for its 1.11 × 10⁻⁴, with the "
                "standard deviation of 0.111 that theory gives at T = 1,024. p, direction: Rayleigh's test in the "
                "effective dimension. p, isotropy: the same in D dimensions; where the effective dimension is "
                "smaller, as for attention alone, its p comes near 0 or 1 too often."
            ),
        )
    ]


def table2_claims(record: Record) -> Sequence[Claim]:
    """Return one claim per variant, the mean across seeds."""
    page_claims = []
    for name, probed in by_variant(record).items():
        group, is_published = probed["group"], same_configuration(probed["group"])
        values = probing.values(probed, "contraction", "inter_cosine_final")
        where = f"N = {group['num_inputs']:,}" + (f", T = {group['seq_len']}" if name != "MLP only" else "")
        page_claims.append(
            Claim(
                f"Cosine between states of different sequences, {probing.name_of(group)}, {name}, {where}",
                sum(values) / len(values),
                PRINTED[name][0] if is_published else None,
                probed["theory"]["inter_cosine_final"],
            )
        )
    return page_claims


TABLE2 = Experiment(
    name="table2",
    title="The MLP contracts, attention alone does not",
    paper="Table 2, Findings 3.1 and 3.2",
    description=(
        "The full model, its self-attention alone and its MLPs alone see the same Gaussian vectors in place of "
        "embeddings. Without attention positions never meet, so that one position gives exactly what any length would."
    ),
    settings=settings.MODULES,
    cost=COST,
    run=probing.run_groups,
    tables=table2_tables,
    claims=table2_claims,
)


NUM_RANKED = 20


def figure3_panels(record: Record) -> Sequence[Panel]:
    """Draw the first seed's most predicted tokens, one panel a variant on one scale."""
    groups_by_variant = by_variant(record)
    figure, axes = figures.new(columns=len(groups_by_variant), width=3.3 * len(groups_by_variant), height=3.0)
    highest = 0.0
    for ax, (name, probed) in zip(axes, groups_by_variant.items(), strict=True):
        preference = probed["records"][0]["preference"]
        fractions = [100 * count / preference["num_inputs"] for count in preference["ranked_counts"][:NUM_RANKED]]
        level = 100 * preference["uniform_top_count"] / preference["num_inputs"]
        figures.ranked_bars(ax, fractions, preference["ranked_ids"][:NUM_RANKED], level, "largest fraction, uniform")
        figures.label(ax, "token id, by rank", "% of inputs", name)
        highest = max(highest, level, *fractions)
    for ax in axes:
        ax.set_ylim(0, 1.05 * highest)
    group = groups_by_variant["full model"]["group"]
    caption = (
        f"{probing.name_of(group)}, seed {group['seeds'][0]}, Gaussian inputs: how often each of the most "
        f"predicted tokens is predicted, by all modules (T = {group['seq_len']}) and by each alone. The "
        "dashed line is the fraction that the top-1 token of as many uniform draws would have."
    )
    return [Panel(figure, caption)]


def figure3_tables(record: Record) -> Sequence[Table]:
    """Show the top-1 fraction, every variant and seed."""
    rows = []
    for probed, row in probing.each_seed(record):
        theory, preference = probed["theory"], row["preference"]
        level = preference["uniform_top_count"] / preference["num_inputs"]
        measured = {"fraction": preference["top1_share"], "uniform": level, "p": preference["log10_p"]}
        predicted = {"fraction": theory["top1_share_p50"], "p": theory["log10_p"]}
        rows.append(Row(labels(probed["group"], row["seed"]), measured, {}, predicted))
    note = (
        "Fraction: of N sequences of T Gaussian vectors, those that the top-1 token answers; uniform: what it would "
        "be expected to be if answers were N uniform draws. p: binomial tail of the count, corrected for the "
        "vocabulary (Appendix B.2). Theory: the median of the fraction across seeds, and ten to the mean of log₁₀ p. "
        "The paper draws Figure 3 and prints no numbers."
    )
    quantities = [Quantity("fraction", percent(2)), Quantity("uniform", percent(2)), Quantity("p", from_log10(3))]
    return [Table("The top-1 token of each module", HEADS, quantities, rows, note)]


FIGURE3 = Experiment(
    name="figure3",
    title="The MLP prefers some tokens, attention alone hardly any",
    paper="Figure 3, Finding 3.1",
    description="The initializations of Table 2, asked for their next token.",
    settings=settings.MODULES,
    cost=COST,
    run=probing.run_groups,
    tables=figure3_tables,
    figures=figure3_panels,
)

EXPERIMENTS = {experiment.name: experiment for experiment in (TABLE2, FIGURE3)}
