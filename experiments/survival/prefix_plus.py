"""Prefix-Tuning+ and prefix tuning and LoRA, with the same number of trained parameters.

Initializations of several seeds are trained briefly on one text and then adapted to another, the backbone frozen.
Prefix tuning puts its keys and values into the softmax, where they share one unit of weight with the input;
Prefix-Tuning+ adds φ(q)ᵀ M outside of it (Wang et al., 2025, "Prefix-Tuning+").
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import parallel, progress
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.experiments._shared.training import held_out_rows, in_memory, mean_loss, token_batches
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record, by_scale
from bornbiased_jax.model import apply
from bornbiased_jax.model.adapters import (
    Adapter,
    adapted,
    attach,
    count_trained,
    lora,
    prefix,
    prefix_plus,
    within_budget,
)
from bornbiased_jax.parameters import Params
from bornbiased_jax.report.numbers import fixed, integer, mean_std, percent, significant
from bornbiased_jax.report.tables import Claim, Table, tabulate
from bornbiased_jax.training import PretrainConfig, State, begin, fit, make_loss, make_train_step
from bornbiased_jax.training.data.windows import Windows
from bornbiased_jax.training.optimizer import make_optimizer
from bornbiased_jax.training.program import abstract_state, first_state
from bornbiased_jax.training.setup import load_data

NEW, OLD, LORA = "prefix-plus", "prefix", "lora"
NAMES = {NEW: "Prefix-Tuning+", OLD: "prefix tuning", LORA: "LoRA"}


def run(context: Context) -> Entry:
    """Train the backbones, choose each method's learning rate on a seed that is not scored, adapt, and measure."""
    return dict(context.cached("prefix_plus", dict(context.settings), lambda _folder: _run(context)))


def _run(context: Context) -> Entry:
    settings = context.settings
    seeds = [settings["tuning_seed"], *settings["seeds"]]
    cfg = preset(settings["model"], **settings["changes"])
    budget = count_trained(cfg, prefix_plus())
    adapters = {
        NEW: prefix_plus(),
        OLD: within_budget(cfg, prefix(1), budget),
        LORA: within_budget(cfg, lora(1), budget),
    }
    # Backbones of all seeds [S, …], trained on the source text in the same order and then frozen.
    pretraining = in_memory(cfg, settings["source"], settings["pretraining"], seeds)
    source = load_data(pretraining)
    target = load_data(in_memory(cfg, settings["target"], settings["adapting"], seeds))
    state, step = begin(pretraining)
    frozen = fit(state, step, token_batches(pretraining, source.train))[0].params
    held_NT = held_out_rows(target.validation, settings["held_out"])
    first, rest = (jax.tree.map(lambda leaf, part=part: leaf[part], frozen) for part in (slice(0, 1), slice(1, None)))
    rates = settings["learning_rates"]
    jobs = len(adapters) * (len(rates) + 1) + len(settings["lengths"])
    with progress.bar(jobs, "adapters", unit="trainings", quiet=context.quiet) as advance:

        def adapt(adapter: Adapter, rate: float, models: Params, owners: list[int]) -> Entry:
            schedule = {**settings["adapting"], "learning_rate": rate}
            config = in_memory(cfg, settings["target"], schedule, owners, adapter=adapter)
            outcome = _adapt(config, models, target.train, held_NT, settings["every"])
            advance(1)
            return outcome

        result: dict[str, Any] = {
            "budget": budget,
            "before": _losses(cfg, None, rest, None, held_NT),
            "methods": {},
        }
        best: dict[str, float] = {}
        # The learning rate is chosen on the first seed, the others are scored.
        for name, adapter in adapters.items():
            tried = [adapt(adapter, rate, first, seeds[:1])["held_out"][-1][0] for rate in rates]
            best[name] = rates[int(np.argmin(tried))]
            outcome = adapt(adapter, best[name], rest, seeds[1:])
            row = {
                "adapter": adapter.to_dict(),
                "parameters": count_trained(cfg, adapter),
                "learning_rate": best[name],
                "tuning": [{"learning_rate": rate, "held_out": loss} for rate, loss in zip(rates, tried, strict=True)],
                "steps": outcome["steps"],
                "held_out": outcome["held_out"],
            }
            if name != LORA:
                row["shares"] = _parts(cfg, adapter, rest, outcome["trained"], held_NT)
            result["methods"][name] = row
        result["lengths"] = []
        # Prefixes of several lengths.
        for length in settings["lengths"]:
            adapter = prefix(length)
            outcome = adapt(adapter, best[OLD], rest, seeds[1:])
            parts = _parts(cfg, adapter, rest, outcome["trained"], held_NT)
            row = {"length": length, "held_out": outcome["held_out"][-1], "parameters": count_trained(cfg, adapter)}
            result["lengths"].append({**row, "shares": parts})
    return result


def _adapt(config: PretrainConfig, frozen: Params, windows: Windows, held_NT: np.ndarray, interval: int) -> Entry:
    """Train adapters of all seeds, each on its own backbone, on the same batches; held-out losses on the way."""
    adapter, steps = config.adapter, config.steps
    assert adapter is not None and steps is not None
    rule = make_optimizer(config, steps)
    mesh = parallel.build_mesh(parallel.parse_mesh(None))
    state = first_state(config, rule, abstract_state(config, rule, mesh), None)
    train_step = make_train_step(make_loss(config.model, adapter, dtype=config.dtype), rule)

    @functools.partial(jax.jit, donate_argnums=0)
    def step(states: State, tokens: jax.Array) -> tuple[State, dict[str, jax.Array]]:
        return jax.lax.map(lambda pair: train_step(pair[0], tokens, pair[1]), (states, frozen))

    history: dict[str, list[Any]] = {
        "steps": [0],
        "held_out": [_losses(config.model, adapter, frozen, state.params, held_NT)],
    }

    def on_step(number: int, state: State, _metrics: object) -> None:
        if number % interval == 0 or number == steps:
            history["steps"].append(number)
            history["held_out"].append(_losses(config.model, adapter, frozen, state.params, held_NT))

    state, _ = fit(state, step, token_batches(config, windows), [on_step])
    return {**history, "trained": state.params}


def _model(
    cfg: ModelConfig, adapter: Adapter | None, frozen: Params, trained: Params | None
) -> tuple[ModelConfig, Params]:
    if adapter is None or trained is None:
        return cfg, frozen
    return adapted(cfg, adapter), attach(adapter, frozen, trained)


def _losses(
    cfg: ModelConfig, adapter: Adapter | None, frozen: Params, trained: Params | None, rows_NT: np.ndarray
) -> list[float]:
    """Compute the held-out loss of each seed in nats per token."""
    return np.asarray(_all_losses(cfg, adapter, frozen, trained, jnp.asarray(rows_NT)), np.float64).tolist()


@functools.partial(jax.jit, static_argnums=(0, 1))
def _all_losses(
    cfg: ModelConfig, adapter: Adapter | None, frozen: Params, trained: Params | None, rows_NT: jax.Array
) -> jax.Array:
    def loss(models: tuple[Params, Params | None]) -> jax.Array:
        return mean_loss(*_model(cfg, adapter, *models), rows_NT)

    return jax.lax.map(loss, (frozen, trained))


def _parts(
    cfg: ModelConfig, adapter: Adapter, frozen: Params, trained: Params, rows_NT: np.ndarray
) -> dict[str, list[list[float]]]:
    """Compute by seed and position the means over sequences, heads and blocks.

    ``weight``: the attention weight that falls on the input. ``prefix``: of the norms of the two parts that a head's
    output is the sum of, what the input gives and what the adapter gives, the adapter's fraction.
    """
    parts = jax.device_get(_all_parts(cfg, adapter, frozen, trained, jnp.asarray(rows_NT[:, :-1])))
    return {name: np.round(np.asarray(value, np.float64), 5).tolist() for name, value in parts.items()}


@functools.partial(jax.jit, static_argnums=(0, 1))
def _all_parts(
    cfg: ModelConfig, adapter: Adapter, frozen: Params, trained: Params, ids_NT: jax.Array
) -> dict[str, jax.Array]:
    def of_layer(captured: dict[str, jax.Array]) -> dict[str, jax.Array]:
        weights_NHTS, values_NSGK = captured["attention_weights"], captured["values"]
        values_NSHK = jnp.repeat(values_NSGK, cfg.num_heads // cfg.kv_heads, axis=2)
        input_NTHK = jnp.einsum("nhts,nshk->nthk", weights_NHTS, values_NSHK, precision="highest")
        prefix_NTH, input_NTH = (
            jnp.linalg.norm(part, axis=-1) for part in (captured["attention_output"] - input_NTHK, input_NTHK)
        )
        fraction_NTH = prefix_NTH / (prefix_NTH + input_NTH)
        return {"prefix": fraction_NTH.mean(axis=(0, 2)), "weight": weights_NHTS.sum(axis=-1).mean(axis=(0, 1))}

    def of_model(models: tuple[Params, Params]) -> dict[str, jax.Array]:
        model = _model(cfg, adapter, *models)
        capture = ("attention_weights", "values", "attention_output")
        layers = apply(*model, ids_NT, logits=False, capture=capture, reduce=of_layer).layers
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), layers)

    return jax.lax.map(of_model, (frozen, trained))


# ---------------------------------------------------------------------------------------------------------------------
# Display


def wins_of(record: Record) -> tuple[int, int]:
    """Count the seeds in which Prefix-Tuning+ ends below prefix tuning, and all seeds."""
    new_losses, old_losses = (record["result"]["methods"][name]["held_out"][-1] for name in (NEW, OLD))
    return sum(a < b for a, b in zip(new_losses, old_losses, strict=True)), len(new_losses)


def ends_of(parts: Entry, name: str) -> Entry:
    """Compute means over seeds and over the first and the last eighth of the positions."""
    by_position = np.mean(parts[name], axis=0)
    part = max(1, len(by_position) // 8)
    return {"first": float(by_position[:part].mean()), "last": float(by_position[-part:].mean())}


def tables(record: Record) -> Sequence[Table]:
    """Tabulate the methods at one budget; what the position and the prefix's length do to either part."""
    result = record["result"]
    losses: list[tuple[Any, ...]] = [(["none", 0, ""], {"held-out loss": (fixed(3), mean_std(result["before"]))})]
    rows = []
    for name, row in result["methods"].items():
        measured = {
            "held-out loss": (fixed(3), mean_std(row["held_out"][-1])),
            "learning rate": (significant(1), row["learning_rate"]),
        }
        losses.append(([NAMES[name], row["parameters"], _size(row["adapter"])], measured))
        if name in (NEW, OLD):
            rows.append(([NAMES[name], _size(row["adapter"])], _part_cells(row["shares"])))
    rows += [([NAMES[OLD], _keys(row["length"])], _part_cells(row["shares"])) for row in result["lengths"]]
    return [
        tabulate(
            "Adapters with one budget",
            ["method", "trained parameters", "size"],
            losses,
            note=(
                "Held-out loss in nats per byte of a text that the backbone never saw, mean ± standard deviation "
                "across seeds. Each method's learning rate is the best of those tried on a seed that is not among "
                "these."
            )
            + _edge(record),
        ),
        tabulate(
            "Prefix and input",
            ["method", "size"],
            rows,
            note=(
                "A head's output is the sum of what the input gives and of what the adapter gives. The adapter's "
                "part is its norm over the sum of both norms; the weight on the input is what the softmax leaves it. "
                "First and last: an eighth of the context each; means over seeds. All prefixes were trained at the "
                f"learning rate that was best for {_size(result['methods'][OLD]['adapter'])}."
            ),
        ),
    ]


def _part_cells(fractions: Entry) -> Entry:
    adapter, weight = ends_of(fractions, "prefix"), ends_of(fractions, "weight")
    return {
        "adapter's part, first positions": (percent(1), adapter["first"]),
        "last positions": (percent(1), adapter["last"]),
        "weight on the input, first": (percent(1), weight["first"]),
        "last": (percent(1), weight["last"]),
    }


def _edge(record: Record) -> str:
    """Name the methods that might gain from a larger learning rate than was tried."""
    largest = max(record["settings"]["learning_rates"])
    names = [NAMES[name] for name, row in record["result"]["methods"].items() if row["learning_rate"] == largest]
    return f" The best rate of {' and '.join(names)} is the largest that was tried." if names else ""


def _keys(length: int) -> str:
    return f"{length} key" if length == 1 else f"{length} keys"


def _size(adapter: Entry) -> str:
    if adapter["method"] == "prefix":
        return _keys(adapter["prefix_length"])
    return f"rank {adapter['rank']}" if adapter["method"] == "lora" else f"φ = {adapter['feature_map']}"


def claims(record: Record) -> Sequence[Claim]:
    """State who ends lower, and by how much."""
    methods = record["result"]["methods"]
    wins, count = wins_of(record)
    apart = [b - a for a, b in zip(*(methods[name]["held_out"][-1] for name in (NEW, OLD)), strict=True)]
    return [
        Claim(f"Seeds of {count} in which Prefix-Tuning+ ends below prefix tuning", wins, format=integer),
        Claim("By how much, nats per byte of held-out text", mean_std(apart), format=fixed(3)),
        *(
            Claim(f"{NAMES[name]}: adapter's part of a head's output, {end} positions", value, format=percent(1))
            for name in (OLD, NEW)
            for end, value in ends_of(methods[name]["shares"], "prefix").items()
        ),
    ]


def headline(record: Record) -> str:
    """State whether the new method goes below the old one here."""
    wins, count = wins_of(record)
    below = "goes below" if wins == count else "does not always go below" if wins else "does not go below"
    return f"With the same number of trained parameters Prefix-Tuning+ {below} prefix tuning ({wins} of {count} seeds)."


EXPERIMENT = Experiment(
    name="prefix_plus",
    title="Prefix-Tuning+ and prefix tuning",
    description=(
        "Small initializations are trained on prose and adapted to source code, the backbone frozen, with the same "
        "number of trained parameters: the loss against updates, and what the position and the prefix's length do to "
        "either part."
    ),
    settings=by_scale(
        model="llama-tiny",
        source="builtin:prose",
        target="builtin:code",
        changes={
            "num_layers": (2, 2, ...),
            "num_heads": (2, 4, ...),
            "d_model": (16, 64, ...),
            "d_ff": (24, 176, ...),
            "vocab_size": 256,
        },
        seeds=([0, 1], [0, 1, 2, 3, 4], list(range(8))),
        tuning_seed=100,
        pretraining={
            "steps": (4, 400, 20_000),
            "batch_size": (4, 16, 64),
            "context": (16, 64, 512),
            "learning_rate": 3e-3,
            "warmup": (1, 40, 40),
        },
        adapting={
            "steps": (4, 200, 5_000),
            "batch_size": (4, 16, 64),
            "context": (16, 64, 512),
            "min_learning_rate": 0.0,
            "warmup": (1, 10, 10),
            "weight_decay": 0.0,
        },
        learning_rates=([3e-2], [3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0], [3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0]),
        lengths=([1], [1, 4, 16, 64], [1, 4, 16, 64]),
        held_out=(4, 64, 64),
        every=(2, 20, 250),
    ),
    cost={"laptop": "16 min on two busy cores", "paper": "not measured"},
    run=run,
    tables=tables,
    claims=claims,
    headline=headline,
)
