"""Figure 6: the standard deviation of what enters GELU with and without LayerNorm, and the contraction each causes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr

from bornbiased_jax import progress
from bornbiased_jax.config import preset
from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record
from bornbiased_jax.experiments.birth import settings
from bornbiased_jax.init import init_seed
from bornbiased_jax.probes.activation import preactivation
from bornbiased_jax.probes.inputs import gaussian
from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import fixed, near_one, percent, significant
from bornbiased_jax.report.tables import Claim, Panel, Table, tabulate

NORMS = {"layernorm": "with LayerNorm", "none": "without"}
# In standard deviations of the pre-activation, so that both histograms show their shape.
BINS = np.linspace(-4.0, 4.0, 81)


def expected_std(d_model: int, norm: str, embedding_std: float = 0.02) -> float:
    """Return 0.02·√D behind a norm, 0.02·√D times the inputs' standard deviation without one (first block)."""
    return 0.02 * float(np.sqrt(d_model)) * (1.0 if norm != "none" else embedding_std)


def run(context: Context) -> Entry:
    """Measure pre-activations of the MLP-only stack by layer, and its contraction with theory's prediction."""
    settings = context.settings
    N, T = settings["num_inputs"], settings["seq_len"]
    norm_rows = []
    with progress.bar(len(NORMS) * N, "pre-activations", unit="sequences", quiet=context.quiet) as advance:
        for norm in NORMS:
            changes = {**settings.get("changes", {}), "attention": False, "norm": norm}
            cfg = preset(settings["model"], **changes)
            params = init_seed(cfg, settings["seeds"][0])
            inputs = gaussian(N, T, cfg.d_model)
            # Scale the bins by the expected standard deviation.
            std = expected_std(cfg.d_model, norm, cfg.embedding_std)
            x_NTD = inputs.batch(0, N) * cfg.embedding_std
            measured = preactivation(cfg, params, x_NTD, edges=BINS * std, advance=advance)
            # Cosines of every seed; shared with the other experiments of the folder.
            pulled = probing.run_group(
                context,
                probing.group(settings["model"], settings["seeds"], T, N, inputs="gaussian", **changes),
            )
            norm_rows.append(
                {
                    "norm": norm,
                    "d_model": cfg.d_model,
                    "activation": cfg.activation,
                    "expected_std": std,
                    "std_by_layer": measured.std_L,
                    "histogram": measured.histogram_LE[0],
                    "edges": measured.edges,
                    "cosine_by_seed": probing.values(pulled, "contraction", "inter_cosine_by_layer"),
                    "cosine_theory": pulled["theory"]["inter_cosine_by_layer"],
                    "cosine_theory_low": pulled["theory"]["inter_cosine_by_layer_low"],
                    "cosine_theory_high": pulled["theory"]["inter_cosine_by_layer_high"],
                }
            )
    return {"norms": norm_rows}


def _linear_fraction(std: float) -> float:
    """Return the fraction of E[GELU(u)²] that its odd part u/2 carries, u ~ N(0, std²): 1 means no asymmetry."""
    u, w = np.polynomial.hermite_e.hermegauss(80)
    gelu = std * u * ndtr(std * u)
    return float(np.sum(w * (std * u / 2) ** 2) / np.sum(w * gelu**2))


def tables(record: Record) -> Sequence[Table]:
    """Show σ in the first block and the last, and the contraction at the end."""
    rows, seeds = [], record["settings"]["seeds"]
    for variant in record["result"]["norms"]:
        last = [cosine[-1] for cosine in variant["cosine_by_seed"]]
        is_paper_model = record["settings"]["model"] == "gpt2-nano"
        rows.append(
            (
                [NORMS[variant["norm"]]],
                {
                    "σ, block 1": (significant(3), variant["std_by_layer"][0]),
                    "σ, last block": (significant(3), variant["std_by_layer"][-1]),
                    "odd share": (near_one(percent(2)), _linear_fraction(variant["std_by_layer"][0])),
                    "cosine, last block": (significant(3), float(np.mean(last))),
                },
                {"σ, block 1": 0.55 if variant["norm"] != "none" else 0.011} if is_paper_model else {},
                {
                    "σ, block 1": variant["expected_std"],
                    "cosine, last block": variant["cosine_theory"][-1],
                },
            )
        )
    note = (
        "A stack of MLP blocks on Gaussian vectors, with and without LayerNorm before each MLP. σ: standard "
        f"deviation of the pre-activations that enter GELU, seed {seeds[0]}; the paper's are those of Section 4.2. "
        "Odd share: how much of the power of GELU's output its odd part carries, which contracts nothing. Cosine: "
        f"between different sequences{probing.mean_of(seeds)}."
    )
    return [tabulate("Pre-activations with and without LayerNorm", ["stack"], rows, note=note)]


def panels(record: Record) -> Sequence[Panel]:
    """Draw GELU over both distributions, and the contraction by layer."""
    norm_rows: list[Entry] = record["result"]["norms"]
    figure, axes = figures.new(columns=2, width=8.2)
    for ax, variant in zip(axes, norm_rows, strict=True):
        edges = np.asarray(variant["edges"])
        middle = (edges[1:] + edges[:-1]) / 2
        ax.fill_between(middle, variant["histogram"], color=figures.MEASURED, alpha=0.3, linewidth=0)
        figures.label(
            ax, "pre-activation u", "density", f"{NORMS[variant['norm']]}: σ = {variant['std_by_layer'][0]:.3g}"
        )
        # GELU and its odd part on an axis of their own.
        right = ax.twinx()
        right.plot(middle, middle * ndtr(middle), color=figures.THEORY, linewidth=1.6, label="GELU(u)")
        right.plot(middle, middle / 2, color=figures.MUTED, linewidth=1.0, linestyle="--", label="u/2")
        right.set_yticks([])
        right.grid(False)
        right.legend(frameon=False, loc="upper left")
    first = Panel(
        figure,
        "What enters GELU in the first block, over the function itself. Without the norm it acts as the "
        "straight line u/2, which is odd and contracts nothing.",
    )
    # Contraction of each variant by layer.
    figure, ax = figures.new()
    for index, variant in enumerate(norm_rows):
        color = figures.SERIES[index]
        depth = np.arange(1, len(variant["std_by_layer"]) + 1)
        figures.line(
            ax,
            depth,
            variant["cosine_theory"],
            (variant["cosine_theory_low"], variant["cosine_theory_high"]),
            name=f"{NORMS[variant['norm']]}, theory",
            color=color,
            dashed=True,
        )
        cosines = np.asarray(variant["cosine_by_seed"])
        figures.line(ax, depth, cosines.mean(0), name=f"{NORMS[variant['norm']]}, measured", color=color, markers=True)
    figures.label(ax, "after block", "mean cosine between sequences")
    ax.legend(frameon=False)
    return [
        first,
        Panel(figure, "The contraction that each causes in the MLP-only stack, with theory's 99% of seeds."),
    ]


def claims(record: Record) -> Sequence[Claim]:
    """Claim both spreads."""
    page_claims = []
    for variant in record["result"]["norms"]:
        is_paper = record["settings"]["model"] == "gpt2-nano"
        page_claims.append(
            Claim(
                f"Standard deviation of what enters GELU {NORMS[variant['norm']]}"
                + (" LayerNorm" if variant["norm"] == "none" else ""),
                variant["std_by_layer"][0],
                (0.55 if variant["norm"] != "none" else 0.011) if is_paper else None,
                variant["expected_std"],
                format=fixed(3),
            )
        )
    return page_claims


EXPERIMENT = Experiment(
    name="figure6",
    title="LayerNorm moves inputs to where GELU is asymmetric",
    paper="Figure 6, Finding 4.1",
    description=(
        "GELU is nearly the odd line u/2 near zero. Behind a LayerNorm its inputs have standard deviation 0.02·√D, "
        "wide enough to meet the bend; on bare embeddings they are fifty times narrower and contract almost nothing."
    ),
    settings=settings.FIGURE6,
    cost={"laptop": "half a minute on two cores", "paper": "minutes on two cores"},
    run=run,
    tables=tables,
    figures=panels,
    claims=claims,
)
