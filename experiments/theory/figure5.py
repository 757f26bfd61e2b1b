"""Figure 5: ReLU against tanh without norm and residual, and what footnote 5's drop is."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import model as models
from bornbiased_jax import progress
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record
from bornbiased_jax.experiments.theory import settings
from bornbiased_jax.experiments.theory.table3 import mlp0_theory
from bornbiased_jax.model.model import mlp0_config
from bornbiased_jax.prediction import stack_of
from bornbiased_jax.probes.inputs import gaussian
from bornbiased_jax.probes.observe import unit
from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import mean_std, significant
from bornbiased_jax.report.tables import Claim, Panel, Table, tabulate
from bornbiased_jax.theory.mean_field import profile
from bornbiased_jax.theory.mlp import prop2
from bornbiased_jax.theory.predict import contraction

RELU, TANH, BLOCK = "ReLU MLP₀", "tanh MLP₀", "ReLU MLP block"
EPSILON = 1e-8
"""Of ``torch.nn.functional.cosine_similarity``, by default."""


def configurations(num_layers: int, d_model: int) -> dict[str, ModelConfig]:
    """Return the three stacks. A weight depends on the seed and its name alone: all three share theirs (footnote 4)."""
    sizes: Entry = dict(num_layers=num_layers, d_model=d_model, d_ff=4 * d_model)
    return {
        RELU: mlp0_config(**sizes, activation="relu"),
        TANH: mlp0_config(**sizes, activation="tanh"),
        BLOCK: preset("gpt2-nano", **sizes, num_heads=1, attention=False, activation="relu", vocab_size=2),
    }


def norms(x: jax.Array) -> jax.Array:
    """Compute ‖x‖ over the last axis [...]; squares of tiny entries do not underflow."""
    largest = jnp.max(jnp.abs(x), axis=-1)
    scaled = x / jnp.where(largest > 0, largest, 1.0)[..., None]
    return largest * jnp.sqrt(jnp.sum(jnp.square(scaled), axis=-1))


def _mean_over_pairs(vectors_ND: jax.Array) -> jax.Array:
    """Compute the mean of x_i·x_j over i ≠ j."""
    n = vectors_ND.shape[0]
    total = jnp.sum(jnp.square(jnp.sum(vectors_ND, axis=0)))
    return (total - jnp.sum(jnp.square(vectors_ND))) / (n * (n - 1))


def mean_cosines(x_ND: jax.Array) -> dict[str, jax.Array]:
    """Compute the mean pairwise cosine of N vectors by three definitions, and their mean norm.

    Args:
        x_ND: the vectors, N at least 2.

    Returns:
        ``cosine``: x·y/(‖x‖‖y‖). ``each``: x·y/(max(‖x‖, ε) max(‖y‖, ε)), what PyTorch computes. ``product``:
        x·y/max(‖x‖‖y‖, ε), what its documentation said for long. ``norm``.
    """
    unit_ND, norm_N = unit(x_ND), norms(x_ND)
    cosine_NN = jnp.matmul(unit_ND, unit_ND.T, precision="highest")
    shrunk_NN = cosine_NN * jnp.minimum(norm_N[:, None] * norm_N[None, :] / EPSILON, 1.0)
    n = len(norm_N)
    return {
        "cosine": _mean_over_pairs(unit_ND),
        "each": _mean_over_pairs(unit_ND * jnp.minimum(norm_N / EPSILON, 1.0)[:, None]),
        "product": (jnp.sum(shrunk_NN) - jnp.trace(shrunk_NN)) / (n * (n - 1)),
        "norm": jnp.mean(norm_N),
    }


@functools.partial(jax.jit, static_argnames="cfg")
def measure(cfg: ModelConfig, seed: jax.Array, x_ND: jax.Array) -> dict[str, jax.Array]:
    """Compute :func:`mean_cosines` after each block [L] of the stack initialized from a seed."""
    params = models.init_seed(cfg, seed)

    def reduce(captured: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return mean_cosines(captured["residual"][:, 0])

    out = models.apply(cfg, params, x_ND[:, None], logits=False, capture=("residual",), reduce=reduce)
    layers: dict[str, jax.Array] = out.layers
    return layers


def run(context: Context) -> Entry:
    """Run all three stacks, each seed, with theory's cosine."""
    settings = context.settings
    variants = configurations(settings["num_layers"], settings["d_model"])
    inputs = gaussian(settings["num_inputs"], 1, settings["d_model"])
    stacks = []
    total = len(variants) * len(settings["seeds"])
    with progress.bar(total, "figure5", unit="stacks", quiet=context.quiet) as advance:
        for name, cfg in variants.items():
            x_ND = inputs.batch(0, inputs.num_inputs)[:, 0] * np.float32(cfg.embedding_std)
            cosines_by_seed = []
            for seed in settings["seeds"]:
                cosines_by_seed.append(jax.device_get(measure(cfg, np.uint32(seed), x_ND)))
                advance()
            if name == BLOCK:
                expected = contraction(profile(stack_of(cfg, tokens=False), 1), inputs.num_inputs)
                mean, std = expected.mean[1:], expected.std[1:]
            else:
                mean, std = mlp0_theory(cfg, inputs.num_inputs)
            stacks.append(
                {
                    "name": name,
                    **{f"{key}_by_seed": [cosines[key] for cosines in cosines_by_seed] for key in cosines_by_seed[0]},
                    "theory": mean,
                    "theory_std": std,
                }
            )
    return {"stacks": stacks, "prop2": prop2(settings["num_layers"]), "epsilon": EPSILON}


def _mean(stack: Entry, key: str) -> np.ndarray:
    return np.mean(stack[f"{key}_by_seed"], axis=0)


def _stacks(record: Record) -> Entry:
    return {stack["name"]: stack for stack in record["result"]["stacks"]}


def panels(record: Record) -> Sequence[Panel]:
    """Draw cosines of all three with theory."""
    stacks, settings = _stacks(record), record["settings"]
    depth = np.arange(1, settings["num_layers"] + 1)
    figure, ax = figures.new(height=3.8)
    for index, (name, stack) in enumerate(stacks.items()):
        color, mean, std = figures.SERIES[index], np.asarray(stack["theory"]), np.asarray(stack["theory_std"])
        figures.line(ax, depth, mean, (mean - std, np.minimum(mean + std, 1)), color=color, dashed=True)
        figures.line(ax, depth, _mean(stack, "cosine"), name=name, color=color, markers=True)
    figures.label(ax, "after block", "mean cosine between inputs")
    figures.legend(ax)
    sizes = f"D = {settings['d_model']}, N = {settings['num_inputs']:,}, {len(settings['seeds'])} seeds"
    caption = f"{sizes}. Dashed: theory, ± its standard deviation over seeds. All stacks have the same weights."
    return [Panel(figure, caption)]


def tables(record: Record) -> Sequence[Table]:
    """Show every block of the ReLU stack, and the last block of all three."""
    stacks, result = _stacks(record), record["result"]
    relu = stacks[RELU]
    names = {"cosine": "cosine", "each": "ε in each norm", "product": "ε in the product", "norm": "norm"}
    by_block: list[tuple[Any, ...]] = []
    # A row per block of the ReLU stack.
    limit = "limit of Proposition 2"
    for layer in range(len(relu["theory"])):
        measured = {title: (significant(3), float(_mean(relu, key)[layer])) for key, title in names.items()}
        predicted = {"cosine": relu["theory"][layer], limit: result["prop2"][layer]}
        by_block.append(([layer + 1], {**measured, limit: (significant(3), None)}, {}, predicted))
    note = (
        "Means over seeds. PyTorch's cosine similarity divides by ε = 10⁻⁸ at least: each norm (ε in each norm), or, "
        "as its documentation said for long, the product of both (ε in the product). Norm: mean length of the "
        "states, which shrinks by a constant factor a block. Theory: at this width; limit of Proposition 2: at "
        "infinite width."
    )
    # The last block of every stack.
    last: list[tuple[Any, ...]] = []
    for name, stack in stacks.items():
        cosine = mean_std(np.asarray(stack["cosine_by_seed"])[:, -1])
        expected = (stack["theory"][-1], stack["theory_std"][-1])
        last.append(([name], {"cosine": (significant(3), cosine)}, {}, {"cosine": expected}))
    about = (
        "Cosine between the states of different Gaussian inputs, mean ± standard deviation over seeds. MLP₀: no "
        "norm, no residual (Definition 1). The paper draws Figure 5 and prints no numbers."
    )
    return [
        tabulate("Cosine between inputs after the last block", ["stack"], last, about),
        tabulate("The ReLU MLP₀ stack by block", ["block"], by_block, note),
    ]


def claims(record: Record) -> Sequence[Claim]:
    """Claim the last block of ReLU and tanh, and the largest drop with and without an epsilon."""
    stacks, settings = _stacks(record), record["settings"]
    page_claims = [
        Claim(
            f"Cosine between inputs after {settings['num_layers']} {name} blocks, D = {settings['d_model']}",
            float(_mean(stacks[name], "cosine")[-1]),
            theory=stacks[name]["theory"][-1],
            format=significant(3),
        )
        for name in (RELU, TANH)
    ]
    for key, definition in (("cosine", "the cosine itself"), ("each", "a cosine with ε = 10⁻⁸ in each norm")):
        fall = float(np.max(-np.diff(stacks[RELU][f"{key}_by_seed"], axis=1)))
        page_claims.append(
            Claim(
                f"Largest fall from one ReLU MLP₀ block to the next, any seed, of {definition}",
                max(0.0, fall),
                theory=0.0 if key == "cosine" else None,
            )
        )
    return page_claims


EXPERIMENT = Experiment(
    name="figure5",
    title="Asymmetry contracts; an epsilon can make the drop in deep layers",
    paper="Figure 5, footnote 5, Proposition 2",
    description=(
        "Stacks of ReLU and of tanh layers without norm and residual, and the full block with ReLU, on the same "
        "weights and inputs. The drop that the paper sees in deep layers appears only where the cosine is divided by "
        "no less than some ε."
    ),
    settings=settings.FIGURE5,
    cost={
        "laptop": "half a minute on two cores, the paper's configuration",
        "paper": "minutes on two cores, more seeds of the same",
    },
    run=run,
    tables=tables,
    claims=claims,
    figures=panels,
)
