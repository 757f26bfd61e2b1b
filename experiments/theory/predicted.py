"""Theory against measurement: cosines of many architectures, and the favourite's share over many seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from bornbiased_jax.config import preset
from bornbiased_jax.predict import stack_of
from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import fixed, integer, percent, significant
from bornbiased_jax.report.tables import Claim, Panel, Quantity, Row, Table
from experiments._shared import ablations, births
from experiments.base import Context, Experiment, Record
from experiments.birth import findings1
from theory.logits import Scatter
from theory.mean_field import profile
from theory.predict import contraction, scatter
from theory.preference import Share, share_distribution

WRONG = 1.25
"""A negative control: the same test of fit, of theory with its cosine multiplied by this."""


def distribution_function(share: Share, counts: np.ndarray) -> np.ndarray:
    """P(top count ≤ counts) over seeds; between the tabulated counts it is interpolated, below 0 it is 0."""
    return np.where(counts < 0, 0.0, np.interp(counts, share.counts, share.cdf / share.cdf[-1]))


def ranks(share: Share, counts: np.ndarray) -> np.ndarray:
    """Probability integral transform of measured top counts [S]: uniform on (0, 1) if theory is right.

    A count stands for the interval between the values of the distribution function below and at it; where in
    the interval is drawn, always with the same generator, so that equal counts are spread as they should be.
    """
    counts = np.asarray(counts, float)
    low, high = distribution_function(share, counts - 1), distribution_function(share, counts)
    return low + (high - low) * np.random.default_rng(0).uniform(size=counts.shape)


def expected_share(group: births.Group, factor: float = 1.0, isotropic: bool = False) -> Share:
    """Theory's distribution of the top count over seeds, with the cosine multiplied by ``factor``.

    With ``isotropic``, inputs scatter evenly around their mean, which real ones do not. The group's inputs are
    Gaussian, so that no input's own last token is favoured by a tied head.
    """
    cfg = preset(group["model"], **group["changes"])
    found = profile(stack_of(cfg, tokens=False), group["seq_len"])
    cosine = contraction(found, group["num_inputs"])
    rho = float(np.clip(factor * cosine.mean[-1], 0.0, 1.0))
    spread = factor * float(cosine.seed_std[-1])
    scattered = Scatter(cfg.d_model) if isotropic else scatter(found)
    return share_distribution(rho, cfg.vocab_size, group["num_inputs"], rho_std=spread, **scattered._asdict())


def fit(group: births.Group, counts: Sequence[int]) -> dict[str, Any]:
    """Test of fit of the top counts over seeds: Kolmogorov and Smirnov's, of their ranks under theory.

    Controls are the same test of a theory whose cosine is ``WRONG`` times as large, and of one whose inputs scatter
    evenly. All seeds see the same inputs; what those have in common is small against the spread over seeds when the
    inputs are many.
    """
    expected = expected_share(group)
    seen = ranks(expected, np.asarray(counts))
    grid = np.linspace(0, 1.2 * max(counts), 200)
    controls = {
        "control_p": expected_share(group, WRONG),
        "isotropic_p": expected_share(group, isotropic=True),
    }
    return {
        "curve": {"share": grid / group["num_inputs"], "cdf": distribution_function(expected, grid)},
        "ranks": np.sort(seen),
        "p": float(stats.kstest(seen, "uniform").pvalue),
        "share_mean": expected.share_mean,
        "share_std": expected.share_std,
        "share_p10": expected.share_p10,
        "share_p90": expected.share_p90,
        **{
            name: float(stats.kstest(ranks(wrong, np.asarray(counts)), "uniform").pvalue)
            for name, wrong in controls.items()
        },
    }


def run(context: Context) -> dict[str, Any]:
    """All groups; those whose places ``fits`` lists are tested for fit."""
    done = births.run_groups(context)
    found: list[dict[str, Any] | None] = [None] * len(done["groups"])
    for place in context.settings["fits"]:
        group = done["groups"][place]
        found[place] = fit(group["group"], [one["preference"]["top1_count"] for one in group["records"]])
    return {**done, "fits": found}


def deviations(done: Mapping[str, Any]) -> np.ndarray:
    """(measured − predicted)/predicted std of each seed's cosine after the last block [S]."""
    theory = done["theory"]
    cosines = np.asarray([one["contraction"]["inter_cosine_by_layer"][-1] for one in done["records"]])
    return np.asarray((cosines - theory["inter_cosine_by_layer"][-1]) / theory["inter_cosine_by_layer_std"][-1])


def inside(done: Mapping[str, Any]) -> int:
    """How many seeds' cosines lie within theory's interval."""
    theory = done["theory"]
    low, high = theory["inter_cosine_by_layer_low"][-1], theory["inter_cosine_by_layer_high"][-1]
    return sum(low <= one["contraction"]["inter_cosine_by_layer"][-1] <= high for one in done["records"])


def half_width(done: Mapping[str, Any]) -> float:
    """Of theory's interval, in standard deviations of the measured cosine over seeds."""
    theory = done["theory"]
    cosines = [one["contraction"]["inter_cosine_by_layer"][-1] for one in done["records"]]
    width = theory["inter_cosine_by_layer_high"][-1] - theory["inter_cosine_by_layer_low"][-1]
    return float(width / 2 / np.std(cosines, ddof=1))


def coverage(record: Record) -> tuple[int, int, float, float]:
    """Seeds inside their interval, seeds, the stated rate, and the p of so few if the rate were true."""
    groups = record["result"]["groups"]
    hits, total = sum(inside(done) for done in groups), sum(len(done["records"]) for done in groups)
    rate = groups[0]["theory"]["coverage"]
    return hits, total, rate, float(stats.binom.cdf(hits, total, rate))


def panels(record: Record) -> Sequence[Panel]:
    """Every seed's cosine against theory; the share's distribution and ranks for the groups tested for fit."""
    groups, fits = record["result"]["groups"], record["result"]["fits"]
    series: dict[str, tuple[list[float], list[float]]] = {}
    for done in groups:
        x, y = series.setdefault(done["group"]["model"], ([], []))
        x += [done["theory"]["inter_cosine_by_layer"][-1]] * len(done["records"])
        y += [one["contraction"]["inter_cosine_by_layer"][-1] for one in done["records"]]
    figure, ax = figures.new(height=4.6)
    figures.predicted_against_measured(ax, series)
    figures.label(ax, "predicted cosine", "measured cosine")
    caption = (
        "Cosine between sequences after the last block, every configuration and seed below: predicted with "
        "nothing sampled or fitted, and measured."
    )
    drawn = [Panel(figure, caption)]
    for done, found in zip(groups, fits, strict=True):
        if found is None:
            continue
        figure, (left, right) = figures.new(columns=2, width=8.6)
        shares = np.sort([one["preference"]["top1_share"] for one in done["records"]])
        curve = found["curve"]
        name = f"{births.name_of(done['group'])}, T = {done['group']['seq_len']}"
        expected = 100 * np.asarray(curve["share"])
        figures.line(left, expected, curve["cdf"], name="theory", colour=figures.THEORY, dashed=True)
        left.step(100 * shares, np.arange(1, len(shares) + 1) / len(shares), where="post", color=figures.MEASURED)
        figures.label(left, "share of the favourite token, %", "fraction of seeds", "(a) distribution over seeds")
        figures.legend(left)
        uniform = (np.arange(len(shares)) + 0.5) / len(shares)
        figures.line(right, [0, 1], [0, 1], colour=figures.THEORY, dashed=True)
        figures.points(right, uniform, found["ranks"], colour=figures.MEASURED)
        figures.label(right, "uniform quantile", "rank of the measured share", "(b) ranks under theory")
        drawn.append(Panel(figure, f"{name}: {len(shares)} seeds, test of fit p = {found['p']:.2g}."))
    return drawn


def tables(record: Record) -> Sequence[Table]:
    """Cosines of every configuration; and the tests of fit of the share."""
    groups, fits = record["result"]["groups"], record["result"]["fits"]
    rows, tests = [], []
    for done, found in zip(groups, fits, strict=True):
        group, theory = done["group"], done["theory"]
        cosines = [one["contraction"]["inter_cosine_by_layer"][-1] for one in done["records"]]
        z = deviations(done)
        settings = [births.name_of(group), births.inputs_of(group), group["seq_len"], group["num_inputs"], len(cosines)]
        measured: dict[str, Any] = {
            "cosine": (float(np.mean(cosines)), float(np.std(cosines, ddof=1))),
            "deviation": (float(z.mean()), float(z.std(ddof=1))),
            "inside": f"{inside(done)} of {len(cosines)}",
            "half-width": half_width(done),
        }
        predicted = {"cosine": (theory["inter_cosine_by_layer"][-1], theory["inter_cosine_by_layer_std"][-1])}
        rows.append(Row(settings, measured, {}, predicted, "ours"))
        if found is None:
            continue
        shares = [one["preference"]["top1_share"] for one in done["records"]]
        measured_share = {
            "share": (float(np.mean(shares)), float(np.std(shares, ddof=1))),
            "p10": float(np.quantile(shares, 0.1)),
            "p90": float(np.quantile(shares, 0.9)),
            "p of fit": found["p"],
            "p, cosine": found["control_p"],
            "p, isotropic": found["isotropic_p"],
        }
        predicted_share = {
            "share": (found["share_mean"], found["share_std"]),
            "p10": found["share_p10"],
            "p90": found["share_p90"],
        }
        tests.append(Row(settings, measured_share, {}, predicted_share, "ours"))
    hits, total, rate, p = coverage(record)
    heads = ["model", "inputs", "T", "N", "seeds"]
    note = (
        "Mean ± standard deviation over seeds. Deviation: (measured − predicted)/predicted standard "
        f"deviation; {hits} of {total} seeds lie inside theory's interval, whose stated rate is "
        f"{100 * rate:g}% (p of so few or fewer: {p:.2g}). Half-width: of the interval, in measured standard "
        f"deviations, {stats.norm.ppf((1 + rate) / 2):.2f} for a normal law whose spread is predicted exactly. Seeds "
        "of a row with random tokens share their inputs and embeddings, unless it says otherwise."
    )
    quantities = [Quantity("cosine", fixed(4)), Quantity("deviation", fixed(2)), Quantity("inside")]
    quantities.append(Quantity("half-width", fixed(2)))
    made = [Table("Cosine between sequences after the last block", heads, quantities, rows, note)]
    if tests:
        share_note = (
            "The favourite token's share of N inputs, over seeds with embeddings of their own. p of fit: "
            "Kolmogorov and Smirnov's test of the seeds' ranks under theory's distribution. The last two are "
            f"controls, the same test of wrong theories: a cosine that is {100 * (WRONG - 1):.0f}% larger, and inputs "
            "that scatter evenly around their mean, so that every token's logit is about as noisy. Where the cosine is "
            "large the second makes little difference."
        )
        shares_of = [Quantity(name, percent(2)) for name in ("share", "p10", "p90")]
        tested = [*shares_of, *(Quantity(name, significant(2)) for name in ("p of fit", "p, cosine", "p, isotropic"))]
        made.append(Table("The favourite's share over seeds", heads, tested, tests, share_note))
    return made


def claims(record: Record) -> Sequence[Claim]:
    """The coverage, and each test of fit."""
    hits, total, rate, _ = coverage(record)
    made = [
        Claim(
            f"Share of {total} seeds, {len(record['result']['groups'])} configurations, whose cosine lies "
            f"inside theory's {100 * rate:g}% interval",
            hits / total,
            theory=rate,
            format=percent(1),
            configuration="ours",
            key="of cosines inside an interval that nothing was fitted for",
        )
    ]
    nano = [half_width(done) for done in record["result"]["groups"] if done["group"]["model"].endswith("-nano")]
    if nano:
        made.append(
            Claim(
                f"Half-width of that interval in measured standard deviations over seeds, the largest of {len(nano)} "
                "configurations 768 wide",
                max(nano),
                theory=float(stats.norm.ppf((1 + rate) / 2)),
                format=fixed(2),
                configuration="ours",
            )
        )
    for done, found in zip(record["result"]["groups"], record["result"]["fits"], strict=True):
        if found is None:
            continue
        shares = [one["preference"]["top1_share"] for one in done["records"]]
        made.append(
            Claim(
                f"Mean share of the favourite token over {len(shares)} seeds of "
                f"{births.name_of(done['group'])} (test of fit: p = {found['p']:.2g})",
                float(np.mean(shares)),
                theory=found["share_mean"],
                format=percent(2),
                configuration="ours",
            )
        )
    return made


def headline(record: Record) -> str:
    """The largest deviation that there is to find."""
    hits, total, rate, _ = coverage(record)
    count = integer(len(record["result"]["groups"]))
    return (
        f"Theory, with nothing fitted or sampled, places the contraction of {hits} of {total} newborn models "
        f"of {count} configurations inside its {100 * rate:g}% interval."
    )


def _fit_group(model: str, num_seeds: int, seq_len: int, num_inputs: int, **changes: Any) -> dict[str, Any]:
    options: dict[str, Any] = dict(inputs="gaussian", fix_embeddings=False)
    return births.group(model, range(1000, 1000 + num_seeds), seq_len, num_inputs, **options, **changes)


def _width(width: int) -> dict[str, Any]:
    return {} if width == 128 else {"d_model": width}


_NANO: dict[str, Any] = dict(inputs="gaussian", fix_embeddings=False, vocab_size=1_024)
# Seeds and configurations that nothing here was looked at for. A few tokens are enough to see many seeds at full size.
_NANO_LAPTOP = [
    births.group("gpt2-nano", range(300, 316), 8, 64, **_NANO),
    births.group("llama-nano", range(300, 312), 4, 128, **_NANO),
]
_OWN: dict[str, Any] = dict(inputs="gaussian", fix_embeddings=False, init="normal-0.02")
_SCHEMES_LAPTOP = [
    births.group("gpt2-tiny", range(300, 316), 16, 200, norm="rmsnorm", activation="relu", **_OWN),
    births.group("llama-tiny", range(300, 316), 24, 200, norm="layernorm", num_layers=8, **_OWN),
    births.group("gpt2-tiny", range(300, 316), 48, 100, num_layers=9, d_model=96, d_ff=480, num_heads=3, **_OWN),
    births.group("olmo2-tiny", range(300, 316), 12, 200, **_OWN),
]
_WIDE: dict[str, Any] = dict(d_model=256, d_ff=1024, num_layers=6)
# What findings1 measures in any case, so that both together cost no more than one.
_LAPTOP_GRID: list[dict[str, Any]] = findings1.EXPERIMENT.settings["laptop"]["groups"]
_LAPTOP_FITS = [
    _fit_group("gpt2-tiny", 64, 1, 2_000, attention=False, activation="relu", **_WIDE),
    _fit_group("gpt2-tiny", 64, 4, 1_000, **_WIDE),
    _fit_group("gpt2-tiny", 64, 8, 500, norm="rmsnorm", activation="silu", num_layers=3, d_model=192, d_ff=768),
]
_PAPER_FITS = [
    _fit_group("gpt2-nano", 256, 1, 2_000, attention=False),
    _fit_group("gpt2-nano", 256, 64, 2_000),
    _fit_group("llama-nano", 256, 64, 2_000),
    _fit_group("gpt2-tiny", 256, 32, 2_000, norm="rmsnorm", activation="relu", **_WIDE),
]
_PAPER_GRID = _LAPTOP_GRID + [
    births.group(model, range(16), length, 2_000, num_layers=depth, **_width(width))
    for model in ("gpt2-tiny", "llama-tiny", "qwen3-tiny", "neox-tiny", "olmo2-tiny")
    for width, depth, length in ((128, 4, 64), (256, 4, 64), (128, 12, 64), (128, 4, 512))
]

EXPERIMENT = Experiment(
    name="predicted",
    title="Theory predicts birth, and is tested for it",
    paper="no paper's figure",
    description=(
        "Mean-field theory follows the variances and covariances of a newborn model through every sublayer "
        "and gives the cosine between its states for different sequences with an interval over seeds, and "
        "from it the distribution over seeds of the favourite token's share. Here both meet measurements: "
        "many architectures, depths, widths and lengths, and many seeds of a few."
    ),
    settings={
        "smoke": {
            "seeds": list(range(64)),
            "groups": ablations.SMOKE,
            "fits": [2],
        },
        "laptop": {
            "seeds": list(range(8)),
            "groups": [*_LAPTOP_GRID, *_LAPTOP_FITS, *_SCHEMES_LAPTOP, *_NANO_LAPTOP],
            "fits": list(range(len(_LAPTOP_GRID), len(_LAPTOP_GRID) + len(_LAPTOP_FITS))),
        },
        "paper": {
            "seeds": list(range(16)),
            "groups": [*_PAPER_GRID, *_PAPER_FITS],
            "fits": list(range(len(_PAPER_GRID), len(_PAPER_GRID) + len(_PAPER_FITS))),
        },
    },
    cost={
        "smoke": "seconds",
        "laptop": "about 5 minutes on two cores (4.5 GB), of it 3 for births that it shares with findings1",
        "paper": "needs a GPU: 1e16 floating-point operations",
    },
    run=run,
    tables=tables,
    claims=claims,
    figures=panels,
    headline=headline,
)
