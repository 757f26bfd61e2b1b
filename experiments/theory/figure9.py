"""Figure 9: the positional decay of the attention output at initialization, and that of every mitigation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bornbiased_jax import progress
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record
from bornbiased_jax.experiments.sinks.settings import MITIGATIONS
from bornbiased_jax.experiments.theory import settings
from bornbiased_jax.init import init_seed
from bornbiased_jax.prediction import stack_of
from bornbiased_jax.probes.inputs import gaussian
from bornbiased_jax.probes.variance import position_moments
from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import fixed, percent, significant
from bornbiased_jax.report.tables import Claim, Panel, Table, tabulate
from bornbiased_jax.theory.mean_field import profile
from bornbiased_jax.theory.variance import output_variance


def block(settings: Entry, changes: Entry) -> ModelConfig:
    """Configure one attention block as it stands in the model, behind its norm; T is its maximum length."""
    fields = dict(num_layers=1, mlp=False, max_seq_len=settings["seq_len"], vocab_size=2)
    return preset(settings["model"], **{**settings.get("changes", {}), **fields, **changes})


def uniform_theory(cfg: ModelConfig, seq_len: int) -> np.ndarray:
    """Predict the standard deviation [T] of uniform attention over independent values: Equation 2, each mitigation.

    Centered attention is what the logits differ by, whose variance enters there alone.
    """
    variance = cfg.d_model * 0.02**2
    std = output_variance(
        seq_len,
        variance,
        window=cfg.window,
        attention_kernel=cfg.attention_kernel,
        # A learned key is initialized with a logit near 0, and its value is small against the others.
        sink_logit="zero" if cfg.prefix_length == 1 else cfg.sink_logit,
        max_seq_len=cfg.max_seq_len,
        positional_scale=cfg.positional_scale,
        head_norm=cfg.head_norm,
        output_gate=cfg.output_gate,
        # A value's gate reads the value, which is small; the others read the normed stream.
        gate_std=0.02 * np.sqrt(cfg.key_dim * variance if cfg.output_gate == "value" else cfg.d_model),
        logit_variance=variance**2,
    )
    return np.sqrt(std)


def mean_field_theory(cfg: ModelConfig, seq_len: int) -> np.ndarray | None:
    """Predict the same with the variance of the logits and the norm's epsilon, from the theory of the whole block.

    None for the kernels that this theory does not have, and for a learned key.
    """
    if cfg.attention_kernel not in ("softmax", "sigmoid") or cfg.prefix_length is not None:
        return None
    prediction = profile(stack_of(cfg, tokens=False), seq_len)
    return np.sqrt(prediction.grid.interpolation_Tn @ prediction.sublayers[0].aggregated_n)


def std_by_seed(
    cfg: ModelConfig, seeds: Sequence[int], x_NTD: np.ndarray, advance: Callable[[int], None] | None = None
) -> list[np.ndarray]:
    """Measure the standard deviation [T] of the attention output of a block, seed by seed."""
    quantity = "attention_output"
    moments = (
        position_moments(cfg, init_seed(cfg, seed), x_NTD, quantities=(quantity,), advance=advance)[quantity]
        for seed in seeds
    )
    return [np.sqrt(of_seed.pooled_LT[0]) for of_seed in moments]


def run(context: Context) -> Entry:
    """Measure the standard deviation [T] of every mitigation and seed, with both theories."""
    settings = context.settings
    T, N = settings["seq_len"], settings["num_inputs"]
    mitigation_rows = []
    plain = block(settings, {})
    inputs = gaussian(N, T, plain.d_model)
    x_NTD = inputs.batch(0, N) * plain.embedding_std
    total = len(MITIGATIONS) * len(settings["seeds"]) * N
    with progress.bar(total, "positional variance", unit="sequences", quiet=context.quiet) as advance:
        for name, changes in MITIGATIONS.items():
            cfg = block(settings, changes)
            mitigation_rows.append(
                {
                    "cure": name,
                    "changes": changes,
                    "std_by_seed": std_by_seed(cfg, settings["seeds"], x_NTD, advance),
                    "uniform": uniform_theory(cfg, T),
                    "mean_field": mean_field_theory(cfg, T),
                }
            )
    return {"cures": mitigation_rows, "inputs": inputs.describe()}


def _mean(row: Entry) -> np.ndarray:
    return np.mean(row["std_by_seed"], axis=0)


def _error(row: Entry, theory: str) -> float | None:
    """Return the largest relative error over positions with any variance; None without such a theory."""
    if row[theory] is None:
        return None
    predicted = np.asarray(row[theory])
    has_variance = predicted > 0
    return float(np.max(np.abs(_mean(row)[has_variance] / predicted[has_variance] - 1)))


def _first_over_last(values_T: Sequence[float] | np.ndarray) -> float | None:
    """Return first over last; None where nothing is left at the last position, as under clipped softmax."""
    return float(values_T[0] / values_T[-1]) if values_T[-1] > 0 else None


def tables(record: Record) -> Sequence[Table]:
    """Show first position against last, and how far each theory is off at worst."""
    rows: list[tuple[Any, ...]] = []
    for row in record["result"]["cures"]:
        rows.append(
            (
                [row["cure"]],
                {
                    "position 1": (significant(3), _mean(row)[0]),
                    "last position": (significant(3), _mean(row)[-1]),
                    "ratio": (significant(3), _first_over_last(_mean(row))),
                    "off uniform": (percent(1), _error(row, "uniform")),
                    "off mean field": (percent(1), _error(row, "mean_field")),
                },
                {},
                {
                    "position 1": row["uniform"][0],
                    "last position": row["uniform"][-1],
                    "ratio": _first_over_last(row["uniform"]),
                },
            )
        )
    return [
        tabulate(
            "Standard deviation of the attention output at initialization",
            ["attention"],
            rows,
            note=(
                "Standard deviation of the attention output o_i, before W_O, over random Gaussian inputs; ratio: "
                "first position over last. The theory columns are those of uniform attention. Off uniform, off mean "
                "field: the largest relative error over positions of that theory, and of the mean-field theory, "
                "which takes the variance of the logits at this width into account; it has no values for softpick, "
                "clipped and centered attention and a learned key."
            ),
        )
    ]


def panels(record: Record) -> Sequence[Panel]:
    """Draw Figure 9: the baseline with both theories."""
    settings, mitigation_rows = record["settings"], record["result"]["cures"]
    T = settings["seq_len"]
    x = np.arange(1, T + 1)
    figure, ax = figures.new()
    # The baseline with both theories.
    base = mitigation_rows[0]
    low, high = np.min(base["std_by_seed"], axis=0), np.max(base["std_by_seed"], axis=0)
    figures.line(ax, x, _mean(base), (low, high), name="measured", markers=T <= 40)
    figures.line(ax, x, base["uniform"], name="σ/√i", color=figures.THEORY, dashed=True)
    figures.line(ax, x, base["mean_field"], name="mean field", color=figures.SERIES[2], dashed=True)
    figures.label(ax, "position i", "standard deviation of o_i")
    ax.legend(frameon=False)
    return [
        Panel(
            figure,
            f"Aggregated values of one untrained attention block ({settings['model']}) on "
            f"{settings['num_inputs']:,} sequences of {T} Gaussian vectors, against the decay of uniform "
            "attention.",
        )
    ]


def claims(record: Record) -> Sequence[Claim]:
    """Claim how exact σ/√i is."""
    base = record["result"]["cures"][0]
    return [
        Claim(
            "Standard deviation of the attention output at the first position over that at the last, "
            f"T = {record['settings']['seq_len']}",
            float(_mean(base)[0] / _mean(base)[-1]),
            theory=float(np.sqrt(record["settings"]["seq_len"])),
            format=fixed(2),
        )
    ]


EXPERIMENT = Experiment(
    name="figure9",
    title="The first position keeps its variance, and what each mitigation does to it",
    paper="Figure 9",
    description=(
        "The aggregated value of position i is nearly the mean of i independent values, so that the first position "
        "stands out. The paper draws this for the plain block; here stands the counterpart for every mitigation, each "
        "against its own closed form."
    ),
    settings=settings.FIGURE9,
    cost={"laptop": "half a minute on two cores", "paper": "minutes on two cores"},
    run=run,
    tables=tables,
    figures=panels,
    claims=claims,
)
