"""Theory against measurement: cosines of many architectures, and the top-1 token's fraction over many seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from bornbiased_jax.config import preset
from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record
from bornbiased_jax.experiments.theory import settings
from bornbiased_jax.prediction import stack_of
from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import fixed, integer, mean_std, p_value, percent, significant
from bornbiased_jax.report.tables import Claim, Panel, Table, tabulate
from bornbiased_jax.stats.intervals import binomial_interval
from bornbiased_jax.theory.logits import Scatter
from bornbiased_jax.theory.mean_field import profile
from bornbiased_jax.theory.predict import SECOND_ORDER, contraction, scatter
from bornbiased_jax.theory.preference import TopFraction, top1_distribution

RESAMPLES = 10_000
"""Of models, for the interval of how many measurements lie inside theirs."""
SIGNIFICANCE = 0.01
"""Below this p a fit counts as rejected."""
WRONG = 1.25
"""A negative control: the same test of fit, of theory with its cosine multiplied by this."""
# Words depend on it, and no number.
_CHANGED_FOR = settings.CHANGED_FOR


def distribution_function(fraction: TopFraction, counts: np.ndarray) -> np.ndarray:
    """Return P(top count ≤ counts) over seeds, interpolated between the tabulated counts, 0 below 0."""
    return np.where(counts < 0, 0.0, np.interp(counts, fraction.counts, fraction.cdf / fraction.cdf[-1]))


def ranks(fraction: TopFraction, counts: np.ndarray) -> np.ndarray:
    """Compute the probability integral transform of measured top counts [S]: uniform on (0, 1) if theory is right.

    A count stands for the interval between the values of the distribution function below and at it; where in
    the interval is drawn, always with the same generator, so that equal counts fall as they should.
    """
    counts = np.asarray(counts, float)
    low, high = distribution_function(fraction, counts - 1), distribution_function(fraction, counts)
    return low + (high - low) * np.random.default_rng(0).uniform(size=counts.shape)


def expected_fraction(group: probing.ProbeGroup, factor: float = 1.0, isotropic: bool = False) -> TopFraction:
    """Return theory's distribution of the top count over seeds, with the cosine multiplied by ``factor``.

    With ``isotropic``, inputs scatter evenly around their mean, which real ones do not. The group's inputs are
    Gaussian, so that no input's own last token is favored by a tied head.
    """
    cfg = preset(group["model"], **group["changes"])
    prediction = profile(stack_of(cfg, tokens=False), group["seq_len"])
    cosine = contraction(prediction, group["num_inputs"])
    rho = float(np.clip(factor * cosine.mean[-1], 0.0, 1.0))
    std = factor * float(cosine.seed_std[-1])
    scattered = Scatter(cfg.d_model) if isotropic else scatter(prediction)
    return top1_distribution(rho, cfg.vocab_size, group["num_inputs"], rho_std=std, **scattered._asdict())


def fit_of(group: probing.ProbeGroup, counts: Sequence[int]) -> Entry:
    """Test the fit of the top counts over seeds: Kolmogorov and Smirnov's, of their ranks under theory.

    Controls are the same test of a theory whose cosine is ``WRONG`` times as large, and of one whose inputs scatter
    evenly. All seeds see the same inputs; what those have in common is small against the standard
    deviation across seeds when the inputs are many.
    """
    expected = expected_fraction(group)
    rank_values = ranks(expected, np.asarray(counts))
    grid = np.linspace(0, 1.2 * max(counts), 200)
    controls = {
        "control_p": expected_fraction(group, WRONG),
        "isotropic_p": expected_fraction(group, isotropic=True),
    }
    return {
        "curve": {"share": grid / group["num_inputs"], "cdf": distribution_function(expected, grid)},
        "ranks": np.sort(rank_values),
        "p": float(stats.kstest(rank_values, "uniform").pvalue),
        "share_mean": expected.fraction_mean,
        "share_std": expected.fraction_std,
        "share_p10": expected.fraction_p10,
        "share_p90": expected.fraction_p90,
        **{
            name: float(stats.kstest(ranks(wrong, np.asarray(counts)), "uniform").pvalue)
            for name, wrong in controls.items()
        },
    }


def run(context: Context) -> Entry:
    """Run all groups; those whose places ``fits`` lists are tested for fit."""
    probed_groups = probing.run_groups(context)
    fits: list[Entry | None] = [None] * len(probed_groups["groups"])
    for place in context.settings["fits"]:
        group = probed_groups["groups"][place]
        fits[place] = fit_of(group["group"], probing.values(group, "preference", "top1_count"))
    return {**probed_groups, "fits": fits, "coverage": coverage(probed_groups["groups"])}


def deviations(outcome: probing.Probed) -> np.ndarray:
    """Return (measured − predicted)/predicted std of each seed's cosine after the last block [S]."""
    theory = outcome["theory"]
    return np.asarray(
        (np.asarray(probing.cosines(outcome)) - theory["inter_cosine_by_layer"][-1])
        / theory["inter_cosine_by_layer_std"][-1]
    )


def is_inside(outcome: probing.Probed) -> list[bool]:
    """Check seed by seed whether the cosine lies within theory's interval."""
    theory = outcome["theory"]
    low, high = theory["inter_cosine_by_layer_low"][-1], theory["inter_cosine_by_layer_high"][-1]
    return [low <= cosine <= high for cosine in probing.cosines(outcome)]


def half_width(outcome: probing.Probed) -> float:
    """Return half the width of theory's interval, in standard deviations of the measured cosine over seeds."""
    theory = outcome["theory"]
    width = theory["inter_cosine_by_layer_high"][-1] - theory["inter_cosine_by_layer_low"][-1]
    return float(width / 2 / np.std(probing.cosines(outcome), ddof=1))


def by_model(groups: Sequence[probing.Probed]) -> np.ndarray:
    """Count per untrained model its measurements inside their interval, and all its measurements [models, 2].

    A model is a configuration, with how its embeddings are drawn, and a seed: at three lengths it is measured three
    times, and the three are not independent.
    """
    models: dict[str, list[int]] = {}
    for outcome in groups:
        group = outcome["group"]
        for seed, hit in zip(group["seeds"], is_inside(outcome), strict=True):
            key = json.dumps([group["model"], group["changes"], group["fix_embeddings"], seed], sort_keys=True)
            counts = models.setdefault(key, [0, 0])
            counts[0] += hit
            counts[1] += 1
    return np.array(list(models.values()))


def coverage(groups: Sequence[probing.Probed]) -> Entry:
    """Count measurements inside their interval, with a 95% interval of that fraction, resampled by model.

    Percentiles of ``RESAMPLES`` draws of as many models as there are, each with all of its measurements. Where every
    measurement lies inside, resampling cannot move the fraction; the lower end is then Clopper and Pearson's, of as
    many models.
    """
    counts = by_model(groups)
    inside, total = (int(n) for n in counts.sum(axis=0))
    resamples = np.random.default_rng(0).integers(len(counts), size=(RESAMPLES, len(counts)))
    fractions = counts[resamples, 0].sum(axis=1) / counts[resamples, 1].sum(axis=1)
    low, high = (float(q) for q in np.quantile(fractions, [0.025, 0.975]))
    return {
        "inside": inside,
        "measurements": total,
        "models": len(counts),
        "models_inside": int(np.sum(counts[:, 0] == counts[:, 1])),
        "stated": float(groups[0]["theory"]["coverage"]),
        "fraction_low": low if inside < total else binomial_interval(len(counts), len(counts))[0],
        "fraction_high": high,
    }


def coverage_row(labels: Sequence[object], outcome: probing.Probed) -> tuple[Any, ...]:
    """Return a table's row: the cosine after the last block, measured and predicted, and the seeds inside."""
    measured = {
        "cosine": (significant(3), mean_std(probing.cosines(outcome))),
        "inside": f"{sum(is_inside(outcome))} of {len(outcome['records'])}",
    }
    return labels, measured, {}, {"cosine": probing.predicted_cosine(outcome)}


def coverage_claim(words: str, covered: Entry) -> Claim:
    """Claim how many of the measurements, described in words, lie inside their interval."""
    statement = f"Fraction of {covered['measurements']} {words} inside theory's 99% interval"
    fraction = covered["inside"] / covered["measurements"]
    return Claim(statement, fraction, theory=covered["stated"], format=percent(1))


def _in_words(fit: Entry) -> str:
    return (
        f"Inside: seeds within theory's {100 * fit['stated']:g}% interval; in all rows {fit['inside']} of "
        f"{fit['measurements']} measurements, {percent(1)(fit['inside'] / fit['measurements'])} (95% interval "
        f"{percent(1)(fit['fraction_low'])} to {percent(1)(fit['fraction_high'])}, resampled by model, because some "
        f"of the {fit['models']} models are measured at several lengths; {fit['models_inside']} lie inside at every "
        "length)"
    )


def panels(record: Record) -> Sequence[Panel]:
    """Draw every seed's cosine against theory; the fraction's distribution and ranks for the groups tested for fit."""
    groups, fits = record["result"]["groups"], record["result"]["fits"]
    series: dict[str, tuple[list[float], list[float]]] = {}
    for outcome in groups:
        x, y = series.setdefault(outcome["group"]["model"], ([], []))
        x += [outcome["theory"]["inter_cosine_by_layer"][-1]] * len(outcome["records"])
        y += probing.cosines(outcome)
    # All configurations: predicted against measured cosine.
    figure, ax = figures.new(height=4.6)
    figures.predicted_against_measured(ax, series)
    figures.label(ax, "predicted cosine", "measured cosine")
    caption = (
        "Cosine between sequences after the last block, every configuration and seed below: predicted with "
        "nothing sampled or fitted, and measured."
    )
    panels_of = [Panel(figure, caption)]
    for outcome, fit in zip(groups, fits, strict=True):
        if fit is None:
            continue
        figure, (left, right) = figures.new(columns=2, width=8.6)
        # Distribution of the fraction over seeds.
        fractions = np.sort(probing.values(outcome, "preference", "top1_share"))
        curve = fit["curve"]
        name = f"{probing.name_of(outcome['group'])}, T = {outcome['group']['seq_len']}"
        expected = 100 * np.asarray(curve["share"])
        figures.line(left, expected, curve["cdf"], name="theory", color=figures.THEORY, dashed=True)
        heights = np.arange(1, len(fractions) + 1) / len(fractions)
        left.step(100 * fractions, heights, where="post", color=figures.MEASURED, label="measured")
        figures.label(left, "fraction of the top-1 token, %", "fraction of seeds", "(a) distribution over seeds")
        figures.legend(left)
        # Ranks against uniform quantiles.
        uniform = (np.arange(len(fractions)) + 0.5) / len(fractions)
        figures.line(right, [0, 1], [0, 1], color=figures.THEORY, dashed=True)
        figures.points(right, uniform, fit["ranks"], color=figures.MEASURED)
        figures.label(right, "uniform quantile", "rank of the measured fraction", "(b) ranks under theory")
        panels_of.append(Panel(figure, f"{name}: {len(fractions)} seeds, test of fit p = {fit['p']:.2g}."))
    return panels_of


def _unseen(record: Record) -> str:
    """Describe the fits of configurations that nothing was looked at for, as a sentence; or nothing."""
    groups, fits = record["result"]["groups"], record["result"]["fits"]
    places = [place for place in record["settings"].get("unseen", []) if fits[place] is not None]
    if not places:
        return ""
    rejected = [probing.name_of(groups[place]["group"]) for place in places if fits[place]["p"] < SIGNIFICANCE]
    reasons = f": {'; '.join(rejected)}" if rejected else ""
    return (
        f" Of the last {len(places)} rows, which were added afterwards, {len(rejected)} "
        f"{'is' if len(rejected) == 1 else 'are'} rejected at {SIGNIFICANCE:g}{reasons}."
    )


def _changed(record: Record) -> str:
    """Name the row that the theory was changed for, as a sentence, where the record has it."""
    groups = [outcome["group"] for outcome in record["result"]["groups"]]
    if _CHANGED_FOR not in groups:
        return ""
    row = f"The row of {probing.name_of(_CHANGED_FOR)} is no test of the theory"
    return f" {row}: an earlier one, with even scatter, failed there and was changed for it."


def tables(record: Record) -> Sequence[Table]:
    """Show cosines of every configuration; and the tests of fit of the top-1 fraction."""
    groups, fits = record["result"]["groups"], record["result"]["fits"]
    covered = coverage(groups)
    rows: list[tuple[Any, ...]] = []
    tests: list[tuple[Any, ...]] = []
    for outcome, fit in zip(groups, fits, strict=True):
        group = outcome["group"]
        # The cosine of every configuration.
        cosines = probing.cosines(outcome)
        z = deviations(outcome)
        labels = [
            probing.name_of(group),
            probing.inputs_of(group),
            group["seq_len"],
            group["num_inputs"],
            len(cosines),
        ]
        measured = {
            "cosine": (significant(3), mean_std(cosines)),
            "deviation": (fixed(2), mean_std(z)),
            "inside": f"{sum(is_inside(outcome))} of {len(cosines)}",
            "half-width": (fixed(2), half_width(outcome)),
        }
        rows.append((labels, measured, {}, {"cosine": probing.predicted_cosine(outcome)}))
        if fit is None:
            continue
        # The fraction, only of configurations tested for fit.
        fractions = probing.values(outcome, "preference", "top1_share")
        measured_fraction = {
            "fraction": (percent(2), mean_std(fractions)),
            "p10": (percent(2), float(np.quantile(fractions, 0.1))),
            "p90": (percent(2), float(np.quantile(fractions, 0.9))),
            "p of fit": (p_value(2), fit["p"]),
            "p, cosine": (p_value(2), fit["control_p"]),
            "p, isotropic": (p_value(2), fit["isotropic_p"]),
        }
        predicted_fraction = {
            "fraction": (fit["share_mean"], fit["share_std"]),
            "p10": fit["share_p10"],
            "p90": fit["share_p90"],
        }
        tests.append((labels, measured_fraction, {}, predicted_fraction))
    heads = ["model", "inputs", "T", "N", "seeds"]
    note = (
        "Mean ± standard deviation across seeds. Deviation: (measured − predicted)/predicted standard deviation. "
        f"{_in_words(covered)}. Half-width: of the interval, in standard deviations of the measured cosine; "
        f"{stats.norm.ppf((1 + covered['stated']) / 2):.2f} for a normal distribution whose standard deviation is "
        "predicted exactly. The seeds of a row with random tokens share their inputs and embeddings."
    )
    page_tables = [tabulate("Cosine between sequences after the last block", heads, rows, note)]
    if tests:
        fraction_note = (
            "The fraction of N inputs that the top-1 token answers, over seeds with embeddings of their own: mean ± "
            "standard deviation, and what a tenth (p10) and nine tenths (p90) of the seeds lie below. p of fit: "
            "Kolmogorov and Smirnov's test of the seeds' ranks under theory's distribution. The last two columns are "
            f"controls, the same test of two wrong theories: of a cosine that is {100 * (WRONG - 1):.0f}% larger, "
            f"and of inputs that scatter evenly around their mean.{_changed(record)}{_unseen(record)}"
        )
        page_tables.append(tabulate("The top-1 token's fraction over seeds", heads, tests, fraction_note))
    return page_tables


def claims(record: Record) -> Sequence[Claim]:
    """Claim the coverage, and each test of fit."""
    covered = coverage(record["result"]["groups"])
    rate = covered["stated"]
    page_claims = [
        Claim(
            f"Fraction of {covered['measurements']} cosines, of {covered['models']} models in "
            f"{len(record['result']['groups'])} configurations and lengths, inside theory's {100 * rate:g}% interval "
            f"(resampled by model: {percent(1)(covered['fraction_low'])} to {percent(1)(covered['fraction_high'])})",
            covered["inside"] / covered["measurements"],
            theory=rate,
            format=percent(1),
            key="of cosines inside theory's interval",
        )
    ]
    # The width of the intervals, at the smallest models.
    nano = [
        half_width(outcome) for outcome in record["result"]["groups"] if outcome["group"]["model"].endswith("-nano")
    ]
    if nano:
        page_claims.append(
            Claim(
                f"Half-width of that interval in measured standard deviations over seeds, the largest of {len(nano)} "
                "configurations 768 wide",
                max(nano),
                theory=float(stats.norm.ppf((1 + rate) / 2)),
                format=fixed(2),
            )
        )
    # A claim per test of fit.
    for outcome, fit in zip(record["result"]["groups"], record["result"]["fits"], strict=True):
        if fit is None:
            continue
        fractions = probing.values(outcome, "preference", "top1_share")
        page_claims.append(
            Claim(
                f"Mean fraction of the top-1 token over {len(fractions)} seeds of "
                f"{probing.name_of(outcome['group'])} (test of fit: p = {fit['p']:.2g})",
                float(np.mean(fractions)),
                theory=fit["share_mean"],
                format=percent(2),
            )
        )
    return page_claims


def headline(record: Record) -> str:
    """State the largest deviation that there is to find."""
    covered = coverage(record["result"]["groups"])
    return (
        "Theory places "
        f"{covered['inside']} of {covered['measurements']} measured contractions, of {integer(covered['models'])} "
        f"untrained models, inside its {100 * covered['stated']:g}% interval, whose allowance for second order in 1/D "
        f"is a chosen constant ({SECOND_ORDER:g}); nothing is fitted or sampled."
    )


EXPERIMENT = Experiment(
    name="predicted",
    title="Theory predicts untrained models, and is tested for it",
    paper="no paper's figure",
    description=(
        "Mean-field theory follows the variances and covariances of an untrained model through every sublayer "
        "and gives the cosine between its states for different sequences with an interval over seeds, and "
        "from it the distribution over seeds of the top-1 token's fraction. Here both meet measurements: "
        "many architectures, depths, widths and lengths, and many seeds of a few."
    ),
    settings=settings.PREDICTED,
    cost={
        "laptop": "about 5 minutes on two cores (4.5 GB), of it 3 for initializations that it shares with findings1",
        "paper": "needs a GPU: 1e16 floating-point operations",
    },
    run=run,
    tables=tables,
    claims=claims,
    figures=panels,
    headline=headline,
)
