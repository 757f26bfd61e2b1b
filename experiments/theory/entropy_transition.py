"""Attention through its entropy transition: the cosine of tokens, predicted at finite T and measured.

Stated before the numbers:

- **Encoders.** At every β and after every block the mean cosine over networks should lie within 0.02 of the predicted
  one, plus two standard errors of that mean (``LIMIT``). Post-norm encoders have the published depth of 50 blocks;
  those with pre-norm and with centered attention are of the same width and length, and of 20 blocks at scale laptop.
- **Decoders.** With logits of variance β² ln T as well, with one head and with four: at least 97% of the seeds, none of
  them measured while the theory was made, should lie inside the 99% interval of their cosine after the last block.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import keys, progress
from bornbiased_jax.chunk_store import Chunk
from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record, chunked, spans
from bornbiased_jax.experiments.theory import predicted, settings
from bornbiased_jax.model.layers import ACTIVATIONS
from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import fixed, significant
from bornbiased_jax.report.tables import Claim, Panel, Table, tabulate
from bornbiased_jax.theory import transition
from bornbiased_jax.theory.transition import Encoder

PREDICTIONS = {"T → ∞": transition.limit, "Y₁₁ alone": transition.own_alone, "Y₁₁ and Y₁₂": transition.finite}
EXACT = "Y₁₁ and Y₁₂"
LIMIT = 0.02
"""Largest error of a mean cosine, beyond two standard errors."""
NETWORKS_A_CHUNK = 4


@functools.partial(jax.jit, static_argnames=("encoder", "width", "num_layers"))
def network_cosines(
    seed: jax.Array, cosine: float, encoder: Encoder, width: int, num_layers: int
) -> tuple[jax.Array, jax.Array]:
    """Draw a network and its input, and compute mean cosine and entropy of the weights in each block.

    Returns:
        The mean cosine over pairs of different tokens, after the input and each block [L + 1]; the mean entropy of the
        weights over ln T in each block [L].
    """
    key = keys.init_key(seed)
    T, D = encoder.length, width
    input_key, layers_key = jax.random.split(key)
    common_key, own_key = jax.random.split(input_key)
    common_1D = jax.random.normal(common_key, (1, D))
    x_TD = jnp.sqrt(cosine) * common_1D + jnp.sqrt(1 - cosine) * jax.random.normal(own_key, (T, D))
    phi = {str(name): entry.function for name, entry in ACTIVATIONS.items()}[encoder.activation]
    is_pre = encoder.norm_position == "pre"

    def norm(stream_TD: jax.Array) -> jax.Array:
        return stream_TD * jax.lax.rsqrt(jnp.mean(jnp.square(stream_TD), axis=-1, keepdims=True))

    def mean_cosine(stream_TD: jax.Array) -> jax.Array:
        total = jnp.sum(jnp.square(jnp.sum(norm(stream_TD), axis=0))) / D
        return (total - T) / (T * (T - 1))

    def linear(key: jax.Array, inputs_TI: jax.Array, variance: float, bias: float) -> jax.Array:
        weight_key, bias_key = jax.random.split(key)
        kernel_ID = jax.random.normal(weight_key, (inputs_TI.shape[-1], D)) * math.sqrt(variance / inputs_TI.shape[-1])
        bias_D = jax.random.normal(bias_key, (D,)) * math.sqrt(bias)
        return jnp.matmul(inputs_TI, kernel_ID, precision="highest") + bias_D[None]

    def block(stream_TD: jax.Array, layer: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        query, key, value, up, down = jax.random.split(jax.random.fold_in(layers_key, layer), 5)
        # Attention: logits of variance β² ln T between unrelated tokens.
        y_TD = norm(stream_TD) if is_pre else stream_TD
        size = encoder.beta * math.sqrt(math.log(T))
        q_TD, k_TD = (linear(name, y_TD, size, 0.0) for name in (query, key))
        weights_TS = jax.nn.softmax(jnp.matmul(q_TD, k_TD.T, precision="highest") / math.sqrt(D), axis=-1)
        entropy = -jnp.mean(jnp.sum(weights_TS * jnp.log(jnp.maximum(weights_TS, 1e-38)), axis=-1)) / math.log(T)
        if encoder.centered:
            weights_TS = weights_TS - 1.0 / T
        mixed_TD = jnp.matmul(weights_TS, y_TD, precision="highest")
        update_TD = linear(value, mixed_TD, encoder.value_variance, encoder.bias_variance)
        stream_TD = encoder.attention_residual * stream_TD + update_TD
        stream_TD = stream_TD if is_pre else norm(stream_TD)
        # The MLP, as wide as the residual stream.
        hidden_TD = phi(linear(up, norm(stream_TD), encoder.mlp_variance, encoder.bias_variance))
        update_TD = linear(down, hidden_TD, encoder.mlp_variance, encoder.bias_variance)
        stream_TD = encoder.mlp_residual * stream_TD + update_TD
        stream_TD = stream_TD if is_pre else norm(stream_TD)
        return stream_TD, (mean_cosine(stream_TD), entropy)

    x_TD = x_TD if is_pre else norm(x_TD)
    _, (cosines_L, entropy_L) = jax.lax.scan(block, x_TD, jnp.arange(num_layers))
    return jnp.concatenate([mean_cosine(x_TD)[None], cosines_L]), entropy_L


@chunked
def compute(settings: Entry, _: object, chunk: Chunk) -> dict[str, np.ndarray]:
    """Compute cosines and entropies of some networks of one encoder."""
    encoder = Encoder(**settings["encoder"])
    rows = [
        network_cosines(np.uint32(seed), settings["cosine"], encoder, settings["width"], settings["num_layers"])
        for seed in range(chunk.start, chunk.stop)
    ]
    cosines, entropies = (np.asarray(part, np.float64) for part in zip(*rows, strict=True))
    return {"cosine": cosines, "entropy": entropies}


def run(context: Context) -> Entry:
    """Predict and measure every encoder and every decoder at every β."""
    settings = context.settings
    networks = settings["networks"]
    chunks = spans(networks, NETWORKS_A_CHUNK)
    cases = [(name, fields, beta) for name, fields in settings["variants"].items() for beta in settings["betas"]]
    rows = []
    with progress.bar(len(cases) * networks, "entropy_transition", unit="networks", quiet=context.quiet) as advance:
        for name, fields, beta in cases:
            num_layers = settings["num_layers"][name]
            request = {
                "encoder": {"length": settings["length"], "beta": beta, **fields},
                **{key: settings[key] for key in ("cosine", "width")},
                "num_layers": num_layers,
            }
            parts = context.parts("entropy_transition/networks", compute, request, chunks, advance=advance)
            cosines = np.concatenate([part["cosine"] for part in parts])
            entropies = np.concatenate([part["entropy"] for part in parts])
            encoder = Encoder(**request["encoder"])
            profiles = {
                label: transition.profile(encoder, num_layers, settings["cosine"], aggregate)
                for label, aggregate in PREDICTIONS.items()
            }
            rows.append(
                {
                    "variant": name,
                    "beta": beta,
                    "cosine_by_layer": cosines.mean(axis=0),
                    "cosine_se_by_layer": cosines.std(axis=0, ddof=1) / math.sqrt(networks),
                    "cosine_std_by_layer": cosines.std(axis=0, ddof=1),
                    "entropy_by_layer": entropies.mean(axis=0),
                    "predicted_cosine_by_layer": {label: row.cosine for label, row in profiles.items()},
                    "predicted_entropy_by_layer": profiles[EXACT].entropy[:-1],
                }
            )
    decoders = probing.run_groups(context)
    return {"rows": rows, **decoders, "coverage": predicted.coverage(decoders["groups"])}


def largest_error(row: Entry, label: str) -> float:
    """Return the largest distance of a prediction to the mean over networks, over layers."""
    return float(np.max(np.abs(np.subtract(row["predicted_cosine_by_layer"][label], row["cosine_by_layer"]))))


def excess(row: Entry) -> float:
    """Return by how much the exact prediction misses the mean cosine at worst, less two of its standard errors."""
    error = np.abs(np.subtract(row["predicted_cosine_by_layer"][EXACT], row["cosine_by_layer"]))
    return float(np.max(error - 2 * np.asarray(row["cosine_se_by_layer"])))


def tables(record: Record) -> Sequence[Table]:
    """Show the cosine at two fifths of the depth, the largest error of every prediction, and seeds of decoders."""
    settings, result = record["settings"], record["result"]
    cosines: list[tuple[Any, ...]] = []
    errors: list[tuple[Any, ...]] = []
    for row in result["rows"]:
        at = settings["num_layers"][row["variant"]] * 2 // 5
        by_label = {label: (fixed(3), values[at]) for label, values in row["predicted_cosine_by_layer"].items()}
        measured = {
            "networks": (fixed(3), row["cosine_by_layer"][at]),
            "se": (significant(3), row["cosine_se_by_layer"][at]),
        }
        cosines.append(([row["variant"], row["beta"], at], {**by_label, **measured}))
        largest = {label: (significant(3), largest_error(row, label)) for label in PREDICTIONS}
        errors.append(([row["variant"], row["beta"]], largest | {f"{EXACT}, less 2 se": (significant(3), excess(row))}))
    sizes = f"{settings['networks']} networks, T = {settings['length']}, D = {settings['width']}"
    meanings = (
        f"Means over {sizes}; the input's tokens have a cosine of {settings['cosine']}, and attention logits a "
        "variance of β² ln T. se: standard error over networks. Three predictions: the published recursion for T → "
        "∞; at finite T with Y₁₁ alone, by how few keys a query attends to; and with Y₁₂ too, by how far the weights "
        "of two queries overlap."
    )
    depths = ", ".join(f"{name} {depth}" for name, depth in settings["num_layers"].items())
    nearer = sum(largest_error(row, "Y₁₁ alone") < largest_error(row, EXACT) for row in result["rows"])
    criterion = (
        f"The largest distance of each prediction to the mean over {sizes}, over all blocks ({depths}). The last "
        f"column must be at most {LIMIT}, as was fixed beforehand. In {nearer} of {len(errors)} rows the prediction "
        "with Y₁₁ alone is nearer than that with both."
    )
    return [
        tabulate("Cosine of two tokens", ["encoder", "β", "after block"], cosines, meanings),
        tabulate(
            "Largest error of the mean cosine over blocks",
            ["encoder", "β"],
            errors,
            criterion,
        ),
        _decoder_table(record),
    ]


def _decoder_table(record: Record) -> Table:
    """Show predicted and measured cosines of every decoder, and how many seeds lie inside their interval."""
    groups, covered = record["result"]["groups"], record["result"]["coverage"]
    decoders = record["settings"]["decoders"]
    rows = [predicted.coverage_row(decoder, outcome) for decoder, outcome in zip(decoders, groups, strict=True)]
    group, changes = groups[0]["group"], groups[0]["group"]["changes"]
    note = (
        f"Mean ± standard deviation over seeds of the cosine after the last of {changes['num_layers']} blocks, D = "
        f"{changes['d_model']}, {group['num_inputs']} sequences of T = {group['seq_len']} random tokens. Inside: "
        f"seeds within theory's 99% interval, {covered['inside']} of {covered['measurements']} in all rows."
    )
    return tabulate("Cosine between sequences of decoders", ["β", "heads"], rows, note)


def claims(record: Record) -> Sequence[Claim]:
    """Claim the worst error of the finite-T prediction, less two standard errors, and the coverage of intervals."""
    worst = max(excess(row) for row in record["result"]["rows"])
    return [
        Claim(
            f"Largest error of the predicted mean cosine, less two standard errors (at most {LIMIT})",
            worst,
            format=significant(3),
        ),
        predicted.coverage_claim("seeds of decoders", record["result"]["coverage"]),
    ]


def panels(record: Record) -> Sequence[Panel]:
    """Draw the cosine by block, a panel for each encoder."""
    rows = record["result"]["rows"]
    names = list(record["settings"]["variants"])
    figure, axes = figures.new(columns=len(names), width=4.6 * len(names), height=3.8)
    for ax, name in zip(np.atleast_1d(axes), names, strict=True):
        for index, row in enumerate(row for row in rows if row["variant"] == name):
            mean, se = np.asarray(row["cosine_by_layer"]), 2 * np.asarray(row["cosine_se_by_layer"])
            depth, color = np.arange(mean.size), figures.SERIES[index % len(figures.SERIES)]
            figures.line(ax, depth, mean, (mean - se, mean + se), name=f"β = {row['beta']}", color=color)
            limit = row["predicted_cosine_by_layer"]["T → ∞"]
            figures.line(ax, depth, limit, name="", color=color, dashed=True)
            figures.points(ax, depth[::5], np.asarray(row["predicted_cosine_by_layer"][EXACT])[::5], color=color)
        figures.count_axis(ax)
        figures.label(ax, "after block", "cosine of two tokens", name)
    figures.legend(np.atleast_1d(axes)[-1])
    caption = "Lines: networks, with two standard errors; open circles: finite T; dashed: the recursion for T → ∞."
    return [Panel(figure, caption)]


EXPERIMENT = Experiment(
    name="entropy_transition",
    title="Attention that is not uniform",
    description=(
        "Encoders whose attention logits have variance β² ln T, at the settings of “Transformers in the entropy-"
        "transition regime” (arXiv 2505.24333): participation and overlap of two queries' weights at finite T, "
        "and the recursion for T → ∞, against networks; and decoders with such logits, seed by seed against intervals."
    ),
    settings=settings.ENTROPY_TRANSITION,
    cost={"laptop": "1 h 10 min on two cores that did other work as well", "paper": "not measured"},
    run=run,
    tables=tables,
    claims=claims,
    figures=panels,
)
