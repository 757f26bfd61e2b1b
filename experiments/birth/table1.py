"""Table 1: token preference by architecture, length and seed; and each printed row at the paper's size."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from bornbiased_jax.config import preset
from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.base import Experiment, Record
from bornbiased_jax.experiments.birth import seed_figures, settings
from bornbiased_jax.report.numbers import fixed, from_log10, identifier, percent, times
from bornbiased_jax.report.tables import Cells, Claim, Quantity, Table, tabulate

# (model, T, seed) -> (share, log10 p) as printed; None where the paper prints an underflow. Its token ids belong to
# its own weights and have no counterpart here.
PRINTED: dict[tuple[str, int, int], tuple[float, float | None]] = {
    ("gpt2-nano", 64, 42): (0.0260, -136.342),
    ("gpt2-nano", 256, 42): (0.0485, -284.181),
    ("gpt2-nano", 1024, 42): (0.0520, -308.171),
    ("gpt2-nano", 64, 43): (0.0300, -161.658),
    ("gpt2-nano", 256, 43): (0.0525, -311.616),
    ("gpt2-nano", 1024, 43): (0.0675, None),
    ("llama-nano", 64, 42): (0.0006, -1.500),
    ("llama-nano", 256, 42): (0.0006, -1.500),
    ("llama-nano", 1024, 42): (0.0007, -2.854),
    ("llama-nano", 64, 43): (0.0009, -5.721),
    ("llama-nano", 256, 43): (0.0006, -1.500),
    ("llama-nano", 1024, 43): (0.0007, -2.854),
    ("gpt2-1.2b", 64, 42): (0.0395, -223.590),
    ("gpt2-1.2b", 256, 42): (0.0620, None),
    ("gpt2-1.2b", 1024, 42): (0.0635, None),
    ("gpt2-1.2b", 64, 43): (0.0520, -308.171),
    ("gpt2-1.2b", 256, 43): (0.0745, None),
    ("gpt2-1.2b", 1024, 43): (0.1020, None),
}
LEVEL = 0.01
"""A p below this, over the number of rows, is more than chance in the headline."""
PAPER_INPUTS = {"gpt2-nano": 2_000, "llama-nano": 10_000, "gpt2-1.2b": 2_000}


def same_configuration(group: probing.ProbeGroup, seed: int) -> bool:
    """Check whether the paper printed a row for this model, length, seed, number and kind of inputs."""
    return (
        not group["changes"]
        and group["inputs"] == "tokens"
        and (group["model"], group["seq_len"], seed) in PRINTED
        and group["num_inputs"] == PAPER_INPUTS[group["model"]]
    )


def tables(record: Record) -> Sequence[Table]:
    """Show one row per model, length and seed."""
    rows, groups = [], probing.probed_groups(record)
    for probed, row in probing.each_seed(record):
        group, theory, preference = probed["group"], probed["theory"], row["preference"]
        measured = {
            "top-1": (identifier, preference["top1_id"]),
            "fraction": (percent(2), preference["top1_share"]),
            "× uniform": (times(1), preference["ratio_to_uniform"]),
            "p": (from_log10(3), preference["log10_p"]),
        }
        paper: Cells = {}
        # The paper's value, only where it measured the same configuration.
        if same_configuration(group, row["seed"]):
            fraction, log10_p = PRINTED[group["model"], group["seq_len"], row["seed"]]
            paper = {"fraction": fraction, "p": "0.00 (underflow)" if log10_p is None else log10_p}
        predicted = {"fraction": theory["top1_share_p50"], "p": theory["log10_p"]} if theory else {}
        labels = probing.labels(group, row["seed"])
        rows.append((labels, measured, paper, predicted))
    note = (
        "Each seed's model answers N sequences with the token whose logit is largest at the last position. Top-1: "
        "the token that it answers most often; fraction: of the sequences; × uniform: that count over the expected "
        "top count of N uniform draws. p: binomial tail of the count, corrected for the vocabulary (Appendix B.2), "
        "in log space. Theory: the median of the fraction over seeds, and ten to the mean of log₁₀ p, by mean-field "
        "theory, with nothing fitted or sampled; of gated MLPs it is an effect of finite width."
    )
    if any(paper for _, _, paper, _ in rows):
        note += " The paper's seeds stand for other random numbers, so that its rows are other draws."
    on_text = [probed["group"] for probed in groups if not probed["theory"]]
    if any(preset(group["model"], **group["changes"]).tie_embeddings for group in on_text):
        note += (
            " With tied embeddings a model answers some inputs with their own last token: on text the top-1 token is "
            "then often the most frequent last token, whatever the seed."
        )
    return [tabulate("The most predicted token", probing.HEADS, rows, note)]


def claims(record: Record) -> Sequence[Claim]:
    """Claim the share of the first GPT-2 group (or the first of all, where there is none), and that seeds differ."""
    groups = probing.probed_groups(record)
    probed = next((g for g in groups if g["group"]["model"].startswith("gpt2")), groups[0])
    group, theory = probed["group"], probed["theory"]
    fractions = probing.values(probed, "preference", "top1_share")
    top_tokens = set(probing.values(probed, "preference", "top1_id"))
    is_published = all(same_configuration(group, seed) for seed in group["seeds"])
    paper = [PRINTED[group["model"], group["seq_len"], seed][0] for seed in group["seeds"]] if is_published else []
    name = probing.name_of(group)
    # The distribution over seeds is skewed: its median and tenths say more than its mean.
    tenths = ""
    if theory:
        low, high = (percent(2)(theory[key]) for key in ("top1_share_p10", "top1_share_p90"))
        tenths = f" (theory: median over seeds; a tenth lies below {low}, a tenth above {high})"
    return [
        Claim(
            f"Fraction of the top-1 token, {name}, T = {group['seq_len']}, N = {group['num_inputs']:,}"
            f"{probing.mean_of(fractions)}{tenths}",
            sum(fractions) / len(fractions),
            paper=sum(paper) / len(paper) if is_published else None,
            theory=theory["top1_share_p50"] if theory else None,
            format=percent(2),
            key="of random inputs answered with one token",
        ),
        Claim(f"Different top-1 tokens among {len(fractions)} seeds of {name}", len(top_tokens), format=fixed(0)),
    ]


def headline(record: Record) -> str:
    """Name the first GPT-2 that shows a preference, and the models that show none."""
    on_tokens = [probed for probed in probing.probed_groups(record) if probed["group"]["inputs"] == "tokens"]
    # More than chance, of as many rows as there are.
    level = math.log10(LEVEL / sum(len(probed["records"]) for probed in on_tokens)) if on_tokens else 0.0
    significant_rows = [
        [row for row in probed["records"] if row["preference"]["log10_p"] < level] for probed in on_tokens
    ]
    speaking = [place for place, rows in enumerate(significant_rows) if rows]
    silent = [place for place, rows in enumerate(significant_rows) if not rows]
    models = [probing.name_of(probed["group"]) for probed in on_tokens]

    def name_at(place: int) -> str:
        # Lengths tell groups of one model apart.
        length = f" at T = {on_tokens[place]['group']['seq_len']:,}" if models.count(models[place]) > 1 else ""
        return models[place] + length

    names = " and ".join(map(name_at, silent))
    if not speaking:
        return f"At so many inputs no preference beyond chance shows in {names}." if names else ""
    best = min(speaking, key=lambda place: (not on_tokens[place]["group"]["model"].startswith("gpt2"), place))
    parts = [
        f"seed {row['seed']} answers {percent(1)(row['preference']['top1_share'])} of random inputs with token "
        f"{row['preference']['top1_id']}"
        for row in significant_rows[best]
    ]
    sentence = f"Initialized and never trained, {name_at(best)} of {', of '.join(parts)}."
    if silent:
        weakest = min(row["preference"]["log10_p"] for place in silent for row in on_tokens[place]["records"])
        p = f"p = {from_log10(3)(weakest)}" + " at least" * (weakest < 0)
        verb = "shows" if len(silent) == 1 else "show"
        sentence += f" {names} {verb} nothing beyond chance at so many inputs ({p})."
    return sentence


EXPERIMENT = Experiment(
    name="table1",
    title="Untrained transformers prefer some tokens",
    paper="Table 1",
    description=(
        "Each model is initialized from a seed and shown N sequences of T uniform random tokens; its prediction is the "
        "token with the largest logit at the last position. Without a preference every token would be predicted about "
        "as often as any other. Embeddings and head are shared between seeds, so that only the blocks differ.\n\n"
        "Token ids are those of this implementation's weights: the same seed means other numbers in another framework."
    ),
    settings=settings.TABLE1,
    cost={
        "laptop": "about 5 minutes on two cores",
        "paper": "needs a GPU: 1.9e16 floating-point operations, most of them in the 1.2B rows",
    },
    run=probing.run_groups,
    takes_data=("smoke", "laptop"),
    takes_precision=True,
    tables=tables,
    claims=claims,
    headline=headline,
)

PARTS = {"a": "gpt2-nano", "b": "llama-nano", "c": "gpt2-1.2b"}
"""The part of Table 1 -> its model."""

TENTHS = {"first tenth": "top1_share_p10", "median": "top1_share_p50", "last tenth": "top1_share_p90"}
"""A column of theory's -> its name in a record."""


def name_of(part: str, seq_len: int, seed: int) -> str:
    """Return a row's name on the command line."""
    return f"table1_{part}_{seq_len}_{seed}"


def operations(group: probing.ProbeGroup) -> float:
    """Count the operations of a row's forward passes, the head at the last position alone."""
    sequence = probing.of_sequence(preset(group["model"]), group["seq_len"], head=True)
    return len(group["seeds"]) * group["num_inputs"] * sequence


def row_tables(record: Record) -> Sequence[Table]:
    """Show the row with the printed one, its contraction, its dimensions, and its place among theory's seeds."""
    return [*tables_with_contraction(record), *seed_figures.figure10_tables(record), _among_seeds(record)]


def tables_with_contraction(record: Record) -> Sequence[Table]:
    """Show the rows and how far their states contract."""
    return [*tables(record), *seed_figures.figure2_tables(record)]


def _among_seeds(record: Record) -> Table:
    """Show the row's fraction and the printed one next to theory's tenths of seeds."""
    (row,) = tables(record)[0].rows
    theory = probing.probed_groups(record)[0]["theory"]
    measured, paper = (
        {name: value for name, value in values.items() if name == "fraction"} for values in (row.measured, row.paper)
    )
    tenths = {name: theory[key] for name, key in TENTHS.items()}
    return Table(
        "The fraction among theory's seeds",
        probing.HEADS,
        [Quantity("fraction", percent(2)), *(Quantity(name, percent(2)) for name in TENTHS)],
        [dataclasses.replace(row, measured=measured, paper=paper, theory=tenths)],
        note=(
            "By theory a tenth of all seeds have a fraction below the first tenth, half of them one below the "
            "median, and a tenth one above the last tenth. The paper's seeds are other draws than these."
        ),
    )


def row_claims(record: Record) -> Sequence[Claim]:
    """Claim the fraction alone, with its seed: one seed says nothing of others."""
    fraction, *_ = claims(record)
    (seed,) = probing.probed_groups(record)[0]["group"]["seeds"]
    return [dataclasses.replace(fraction, statement=f"{fraction.statement}, seed {seed}")]


def _row(part: str, seq_len: int, seed: int) -> Experiment:
    model = PARTS[part]
    row_settings = settings.table1_row(model, seq_len, seed)
    (group,) = row_settings["paper"]["groups"]
    return Experiment(
        name=name_of(part, seq_len, seed),
        title=f"{model}, T = {seq_len:,}, seed {seed}",
        paper=f"Table 1({part})",
        description=(
            "One row of Table 1 with as many inputs as its p-values ask for, and what Figures 1, 2 and 10 draw of the "
            "same initialization. Token ids are those of this implementation's weights."
        ),
        settings=row_settings,
        cost={"paper": f"{operations(group):.1e} floating-point operations"},
        run=probing.run_groups,
        takes_precision=True,
        tables=row_tables,
        claims=row_claims,
    )


ROWS = {
    name_of(part, seq_len, seed): _row(part, seq_len, seed)
    for part in PARTS
    for seq_len in (64, 256, 1024)
    for seed in (42, 43)
}


_FEWER = dataclasses.replace(
    EXPERIMENT,
    name="table1_c_256_n125",
    title="gpt2-1.2b at T = 256 with 125 inputs",
    paper="Table 1(c)",
    description=(
        "Both seeds of Table 1(c) at T = 256 with a sixteenth of the paper's inputs, next to theory for as many. "
        "Stated before any number was seen: the fractions are to lie between theory's tenths, and above those of "
        "T = 64 on the mean over both seeds, where the length makes preferences more extreme."
    ),
    settings=settings.TABLE1_C_256_N125,
    cost={"laptop": "a quarter of an hour on two cores that did other work as well; resumes"},
    takes_data=(),
    tables=tables_with_contraction,
    claims=lambda record: claims(record)[:1],
)

EXPERIMENTS = {"table1": EXPERIMENT, _FEWER.name: _FEWER, **ROWS}
