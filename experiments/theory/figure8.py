"""Figure 8: how alike the tokens of one sequence become under attention, simplified and real."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import model as models
from bornbiased_jax import progress
from bornbiased_jax.chunk_store import Chunk
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record, chunked, spans
from bornbiased_jax.experiments.theory import settings
from bornbiased_jax.model.model import attn0
from bornbiased_jax.prediction import stack_of
from bornbiased_jax.probes.inputs import gaussian
from bornbiased_jax.probes.observe import unit
from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import significant
from bornbiased_jax.report.tables import Claim, Panel, Table, tabulate
from bornbiased_jax.theory.attention import prop5_closed_form_gap, prop5_exact_gap, prop5_printed
from bornbiased_jax.theory.mean_field import profile

ATTN0 = "Attn₀"
REAL: dict[str, Entry] = {
    "attention, no norm, no residual": {"norm": "none", "residual": False},
    "attention, norm, no residual": {"residual": False},
    "attention, norm and residual": {},
}
"""Name -> fields of a self-attention-only model; the last one is the standard block."""
BATCH_POSITIONS = 4096
# Minutes of two cores at the paper's size: what a killed run loses at most.
BATCHES_A_CHUNK = 32


def gap(x_BTD: jax.Array) -> jax.Array:
    """Compute 1 − mean cosine over all T² ordered pairs of positions of each sequence [B].

    Computed as the variance of the unit vectors, mean ‖x̂ − mean x̂‖², so that it keeps its digits where tokens
    are nearly the same.
    """
    unit_BTD = unit(x_BTD)
    centered_BTD = unit_BTD - jnp.mean(unit_BTD, axis=-2, keepdims=True)
    return jnp.mean(jnp.sum(jnp.square(centered_BTD), axis=-1), axis=-1)


@functools.partial(jax.jit, static_argnames="num_layers")
def attn0_gaps(x_BTD: jax.Array, num_layers: int) -> jax.Array:
    """Compute :func:`gap` after each of so many Attn₀ blocks [L, B]."""

    def block(stream: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        averaged = attn0(stream)
        return averaged, gap(averaged)

    return jax.lax.scan(block, x_BTD, None, length=num_layers)[1]


@functools.partial(jax.jit, static_argnames="cfg")
def model_gaps(cfg: ModelConfig, params: models.Params, x_BTD: jax.Array) -> jax.Array:
    """Compute :func:`gap` after each block of a model [L, B]."""

    def reduce(captured: dict[str, jax.Array]) -> jax.Array:
        return gap(captured["residual"])

    gaps: jax.Array = models.apply(cfg, params, x_BTD, logits=False, capture=("residual",), reduce=reduce).layers
    return gaps


def configurations(settings: Entry) -> dict[str, ModelConfig]:
    """Return the real attention stacks; positions are RoPE's, as in the paper's models."""
    sizes = {key: settings[key] for key in ("num_layers", "num_heads", "d_model")}
    longest = max(settings["lengths"])
    base = preset("gpt2-nano", **sizes, mlp=False, vocab_size=2, max_seq_len=longest)
    return {name: base.replace(**fields) for name, fields in REAL.items()}


def run(context: Context) -> Entry:
    """Compute mean and standard deviation over sequences of the gap, by length, stack and layer."""
    settings = context.settings
    num_layers = settings["num_layers"]
    stacks: dict[str, ModelConfig | None] = {ATTN0: None, **configurations(settings)}
    curves = []
    total = len(stacks) * sum(settings["num_inputs"])
    with progress.bar(total, "figure8", unit="sequences", quiet=context.quiet) as advance:
        for length, num_inputs in zip(settings["lengths"], settings["num_inputs"], strict=True):
            chunks = spans(num_inputs, BATCHES_A_CHUNK * batch_size(length))
            for name, cfg in stacks.items():
                request = {**settings, "stack": name, "seq_len": length, "num_inputs": num_inputs}
                parts = context.parts("figure8/gaps", compute, request, chunks, advance=advance)
                gaps_LN = np.concatenate([np.asarray(part, np.float64) for part in parts], axis=1)
                curves.append(
                    {
                        "stack": name,
                        "seq_len": length,
                        "num_inputs": num_inputs,
                        "gap_by_layer": gaps_LN.mean(axis=1),
                        "gap_std_by_layer": gaps_LN.std(axis=1, ddof=1),
                        "theory_gap_by_layer": theory_gap(cfg, length, num_layers),
                    }
                )
    depth = np.arange(1, num_layers + 1)
    printed = {str(length): 1 - prop5_printed(length, depth) for length in settings["lengths"]}
    limit = [prop5_closed_form_gap(layers) for layers in depth.tolist()]
    return {"curves": curves, "printed_gap": printed, "closed_form_gap": limit}


def batch_size(length: int) -> int:
    """Return the number of sequences of one forward pass."""
    return max(1, BATCH_POSITIONS // length)


@chunked
def compute(settings: Entry, _sources: object, chunk: Chunk) -> np.ndarray:
    """Compute gaps of some sequences in one stack [L, N]."""
    length, num_layers = settings["seq_len"], settings["num_layers"]
    cfg = configurations(settings).get(settings["stack"])
    params = None if cfg is None else models.init_seed(cfg, settings["seeds"][0])
    inputs = gaussian(settings["num_inputs"], length, settings["d_model"])
    size = batch_size(length)
    parts = []
    for start in range(chunk.start, chunk.stop, size):
        x_BTD = inputs.batch(start, min(start + size, chunk.stop)) * np.float32(0.02)
        gaps = attn0_gaps(x_BTD, num_layers) if cfg is None else model_gaps(cfg, params, x_BTD)
        parts.append(np.asarray(gaps, np.float64))
    return np.concatenate(parts, axis=1)


def theory_gap(cfg: ModelConfig | None, length: int, num_layers: int) -> np.ndarray:
    """Predict 1 − cosine over all T² pairs after each block [L]: exact for Attn₀, mean-field theory for a model."""
    if cfg is None:
        return prop5_exact_gap(length, num_layers)
    different = profile(stack_of(cfg, tokens=False), length).intra_cosine[1:]
    return (1 - different) * (length - 1) / length


def _curves(record: Record, seq_len: int) -> Entry:
    return {curve["stack"]: curve for curve in record["result"]["curves"] if curve["seq_len"] == seq_len}


def panels(record: Record) -> Sequence[Panel]:
    """Draw the paper's figure: cosine within a sequence, a panel a length."""
    settings = record["settings"]
    depth = np.arange(1, settings["num_layers"] + 1)
    lengths = settings["lengths"]
    figure, axes = figures.new(columns=len(lengths), width=4.6 * len(lengths), height=3.8)
    for ax, length in zip(np.atleast_1d(axes), lengths, strict=True):
        for index, (name, curve) in enumerate(_curves(record, length).items()):
            mean, std = 1 - np.asarray(curve["gap_by_layer"]), np.asarray(curve["gap_std_by_layer"])
            color, low, high = figures.SERIES[index], mean - std, mean + std
            figures.line(ax, depth, mean, (low, high), name=name, color=color, dashed=name == ATTN0, markers=True)
            if name != ATTN0:
                figures.points(ax, depth, 1 - np.asarray(curve["theory_gap_by_layer"]), color=color)
        figures.label(ax, "after block", "mean cosine within a sequence", f"T = {length}")
    figures.legend(np.atleast_1d(axes)[-1])
    return [
        Panel(
            figure,
            f"D = {settings['d_model']}. Bands: standard deviation over sequences; open circles: mean-field theory.",
        )
    ]


def tables(record: Record) -> Sequence[Table]:
    """Show 1 − cosine of Attn₀ against the forms of Proposition 5; and the cosine of every stack."""
    result, settings = record["result"], record["settings"]
    layers = [n for n in (1, 2, 3, 4, 6, 8, 12, 24) if n <= settings["num_layers"]]
    simple: list[tuple[Any, ...]] = []
    real: list[tuple[Any, ...]] = []
    for length in settings["lengths"]:
        curves = _curves(record, length)
        for n in layers:
            curve = curves[ATTN0]
            # Attn₀ against the forms of Proposition 5.
            forms = {
                "1 − cosine": curve["theory_gap_by_layer"][n - 1],
                "closed form": result["closed_form_gap"][n - 1],
                "as printed, L = n": result["printed_gap"][str(length)][n - 1],
                "as printed, L = n + 1": 1 - float(prop5_printed(length, n + 1)),
            }
            measured = {
                **dict.fromkeys(forms, (significant(3), None)),
                "1 − cosine": (significant(3), curve["gap_by_layer"][n - 1]),
            }
            simple.append(([length, n], measured, {}, forms))
            # Every stack at the same depth.
            cosine = {name: (significant(3), 1 - curve["gap_by_layer"][n - 1]) for name, curve in curves.items()}
            expected = {name: 1 - curve["theory_gap_by_layer"][n - 1] for name, curve in curves.items()}
            real.append(([length, n], cosine, {}, expected))
    note = (
        "1 − mean cosine over all T² pairs of positions of a sequence of independent Gaussian tokens, after n "
        "averaging layers. Theory: exact for this T. Closed form: Proposition 5's for T → ∞, at L = n + 1. As "
        "printed: its approximation 1 − (1 − 1/T)/L², for L = n and for L = n + 1, because its derivation counts the "
        "input as the first layer."
    )
    return [
        tabulate("The Attn₀ stack against Proposition 5", ["T", "n"], simple, note),
        tabulate(
            "Cosine within a sequence, simplified and real attention",
            ["T", "blocks"],
            real,
            "Mean cosine over sequences and all T² pairs of positions. Attn₀: running means, Definition 3. Theory: "
            "exact for Attn₀, mean-field for the others. The paper draws Figure 8 and prints no numbers.",
        ),
    ]


def claims(record: Record) -> Sequence[Claim]:
    """Claim how far each stack is from Attn₀, after the block where it is furthest; and the last gap."""
    page_claims = []
    for length in record["settings"]["lengths"]:
        curves = _curves(record, length)
        for name in REAL:
            apart = {
                key: np.subtract(curves[name][key], curves[ATTN0][key])
                for key in ("gap_by_layer", "theory_gap_by_layer")
            }
            at = int(np.argmax(np.abs(apart["gap_by_layer"])))
            page_claims.append(
                Claim(
                    f"Cosine within a sequence, {name} minus Attn₀, where they differ most (block "
                    f"{at + 1}), T = {length}",
                    -float(apart["gap_by_layer"][at]),
                    theory=-float(apart["theory_gap_by_layer"][at]),
                    format=significant(2),
                )
            )
    return page_claims


EXPERIMENT = Experiment(
    name="figure8",
    title="Attention makes the tokens of a sequence alike",
    paper="Figure 8, Finding 5, Proposition 5",
    description=(
        "Independent Gaussian tokens through a stack of running means (Attn₀), and through real attention without norm "
        "and residual, with the norm alone, and in the standard block."
    ),
    settings=settings.FIGURE8,
    cost={"laptop": "52 s on two cores", "paper": "about an hour and a half on two cores"},
    run=run,
    tables=tables,
    claims=claims,
    figures=panels,
)
