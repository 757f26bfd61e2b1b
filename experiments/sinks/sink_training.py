"""Models that differ in their attention alone, trained on the same data from the same seeds, and their sinks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.chunk_store import Chunk
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.evaluation.perplexity import cut
from bornbiased_jax.evaluation.rolling_cache import streaming_losses
from bornbiased_jax.evaluation.sink_report import cut_sequences
from bornbiased_jax.experiments._shared.training import held_out_rows, loss_of, train_with_snapshots
from bornbiased_jax.experiments.base import Context, Entry, cache_folder, chunked, source_name, split_data
from bornbiased_jax.experiments.sinks.settings import EPSILON, MITIGATIONS
from bornbiased_jax.model import apply
from bornbiased_jax.model.limits import check_sequences
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes.batching import batch_size_for, batches
from bornbiased_jax.probes.outliers import measure_outliers
from bornbiased_jax.probes.sinks import SinkOptions, measure_sinks
from bornbiased_jax.quantization import parse_scheme, prices
from bornbiased_jax.report.numbers import mean_std
from bornbiased_jax.text import read_documents, read_text
from bornbiased_jax.text.tokenizers import encode_documents
from bornbiased_jax.training import PretrainConfig, pretrain
from bornbiased_jax.training.data.windows import prepend_bos
from bornbiased_jax.training.metrics import read_metrics
from bornbiased_jax.training.setup import Data, load_data

BIN = 8
"""Positions whose streaming losses are averaged, to keep records small."""
ATTENTION_SITES = ("attention_input", "keys", "values", "attention_output")
MLP_SITES = ("mlp_input", "mlp_hidden")
_POWERS = ("first", "second", "third", "fourth")


def price(settings: Entry, cfg: ModelConfig, params: Params, tokens_NT: np.ndarray, long_NT: np.ndarray) -> Entry:
    """Measure everything that the table of prices shows of one model.

    Args:
        settings: ``schemes``, ``granularities``, ``keep_sinks`` of the rounding; ``window`` and ``streaming_keep`` of
            the rolling cache.
        cfg: the architecture.
        params: its weights.
        tokens_NT: sequences of the training context, for the rounding and the unevenness.
        long_NT: longer ones, for the rolling cache.

    Returns:
        ``quantisation`` (see :func:`bornbiased_jax.quantization.prices`), ``unevenness`` (see :func:`unevenness`) and
        ``streaming`` with losses averaged over ``BIN`` positions.
    """
    cells = prices(
        cfg,
        params,
        tokens_NT,
        [parse_scheme(name) for name in settings["schemes"]],
        granularities=settings["granularities"],
        keep=settings["keep_sinks"],
    )
    streamed = streaming_losses(cfg, params, long_NT, window=settings["window"], keep=settings["streaming_keep"])
    return {
        "quantisation": cells,
        "unevenness": unevenness(cfg, params, tokens_NT),
        "streaming": [{**entry, "loss_by_position": _binned(entry["loss_by_position"])} for entry in streamed],
    }


def sites(cfg: ModelConfig) -> tuple[str, ...]:
    """Name the sites of a model where rounding acts, and the residual stream last."""
    return (*ATTENTION_SITES * cfg.attention, *MLP_SITES * cfg.mlp, "residual")


def unevenness(cfg: ModelConfig, params: Params, tokens_NT: np.ndarray) -> dict[str, dict[str, float | None]]:
    """Measure how unevenly activations are spread at every site, which decides whether few bits can hold them.

    Returns:
        By site, the largest over blocks of ``largest``, max |x|; ``kurtosis``, E(x − μ)⁴/σ⁴ over all entries (3 for a
        Gaussian); ``dispersion``, the largest over the median norm of a sequence's positions, averaged over sequences.
        None where a block has no ratio, as with softpick, whose aggregated values are zero at most positions.
    """
    x = check_sequences(cfg, tokens_NT)
    parts = [jax.device_get(_batch_sums(cfg, params, batch)) for batch in batches(x, batch_size_for(cfg, x.shape[1]))]
    return {site: _statistics([part[site] for part in parts], len(x)) for site in sites(cfg)}


def _statistics(parts: list[dict[str, np.ndarray]], num_sequences: int) -> dict[str, float | None]:
    """Compute the statistics of one site from the sums of its batches, in float64."""
    total = {
        name: np.sum([np.sum(part[name], axis=1, dtype=np.float64) for part in parts], axis=0)
        for name in (*_POWERS, "dispersion")
    }
    mean = total["first"] / num_sequences
    raw2, raw3, raw4 = (total[name] / num_sequences for name in ("second", "third", "fourth"))
    variance = raw2 - mean**2
    fourth = raw4 - 4 * mean * raw3 + 6 * mean**2 * raw2 - 3 * mean**4
    with np.errstate(invalid="ignore", divide="ignore"):
        kurtosis_L = fourth / variance**2
    largest_L = np.max([part["largest"].max(axis=1) for part in parts], axis=0).astype(np.float64)
    return {
        "largest": _largest(largest_L),
        "kurtosis": _largest(kurtosis_L),
        "dispersion": _largest(total["dispersion"] / num_sequences),
    }


@functools.partial(jax.jit, static_argnames=("cfg",))
def _batch_sums(cfg: ModelConfig, params: Params, x: jax.Array) -> dict[str, dict[str, jax.Array]]:
    """Sum by site, of every block and sequence [L, B]: means of powers, largest value, dispersion."""

    def reduce(captured: dict[str, jax.Array]) -> dict[str, dict[str, jax.Array]]:
        return {site: _of_site(captured[site].astype(jnp.float32)) for site in sites(cfg)}

    sums: dict[str, dict[str, jax.Array]]
    sums = apply(cfg, params, x, logits=False, capture=sites(cfg), reduce=reduce).layers
    return sums


def _of_site(x: jax.Array) -> dict[str, jax.Array]:
    rows_BTC = x.reshape(*x.shape[:2], -1)
    norm_BT = jnp.sqrt(jnp.sum(rows_BTC**2, axis=-1))
    return {
        "largest": jnp.max(jnp.abs(rows_BTC), axis=(1, 2)),
        "dispersion": jnp.max(norm_BT, axis=1) / jnp.median(norm_BT, axis=1),
        **{name: jnp.mean(rows_BTC**power, axis=(1, 2)) for power, name in enumerate(_POWERS, 1)},
    }


def _largest(values_L: np.ndarray) -> float | None:
    return float(np.max(values_L)) if np.isfinite(values_L).all() else None


def _binned(losses: list[float | None]) -> list[float | None]:
    bins = [losses[start : start + BIN] for start in range(0, len(losses), BIN)]
    return [None if None in part else round(float(np.mean([v for v in part if v is not None])), 5) for part in bins]


SNAPSHOTS = 12
"""How many snapshots of a run are measured on its way."""


def run_mitigations(context: Context) -> Entry:
    """Train and measure every mitigation of the settings; what this output folder has is taken from there.

    The settings are ``model``, ``changes``, ``cures``, ``seeds``, ``data``, ``schedule`` (fields of
    :class:`PretrainConfig`), ``seeds_at_once`` (absent: all in one program), ``bos_token`` (absent: the pretraining
    run with its checkpoints; True or False: training in memory, with or without a BOS token in front), ``lengths``,
    ``num_sequences``, ``sink_text`` (None: the held-out part of the data) and ``texts`` (name -> source, None for the
    held-out part; ``--data 'FILE;NAME=FILE'`` adds some) with ``evaluation`` (sequences and context); ``price`` (may
    be absent: what rounding and a rolling cache cost is measured too, see :func:`price`). Each mitigation is a chunk of
    a store for each block of ``seeds_at_once`` seeds.

    Returns:
        {"cures": {name: {"by_seed": [...], "curve_steps", "curve_validation_loss", "seconds_per_step", …}}}.
    """
    # What does not change a trained model is not a part of its identity.
    settings = {key: value for key, value in context.settings.items() if key not in ("cures", "timing")}
    mitigations, names = context.settings["cures"], list(MITIGATIONS)
    count = len(settings["seeds"])
    at_once = settings.get("seeds_at_once", count)
    blocks = [(start, min(start + at_once, count)) for start in range(0, count, at_once)]
    sources = {"work": str(context.work.parent.resolve()), "scale": context.scale, "quiet": context.quiet}
    parts = context.parts(
        "sink_training/models",
        compute,
        {"settings": settings, "data": context.data},
        [Chunk(names.index(mitigation), *block) for mitigation in mitigations for block in blocks],
        sources=sources,
    )
    outcomes = iter(parts)
    return {"cures": {mitigation: _joined([next(outcomes) for _ in blocks]) for mitigation in mitigations}}


@chunked
def compute(request: Entry, locations: Entry, chunk: Chunk) -> Entry:
    """Train and measure some seeds of the mitigation whose place in :data:`MITIGATIONS` the chunk names."""
    mitigation = list(MITIGATIONS)[chunk.seed]
    settings = {**request["settings"], "seeds": request["settings"]["seeds"][chunk.start : chunk.stop]}
    place = Path(locations["work"]) / "sink_training" / mitigation.replace(" ", "-")
    context = Context(
        scale=locations["scale"],
        settings=settings,
        work=cache_folder(place, [settings, request["data"]], compute),
        data=request["data"],
        quiet=locations["quiet"],
    )
    return _trained(context, mitigation)


def _trained(context: Context, mitigation: str) -> Entry:
    config = run_config(context, mitigation, context.work / "run")
    data = load_data(config)
    durable = "bos_token" not in context.settings
    params_by_seed, trained = _pretrained(config) if durable else _small(context, config, data, mitigation)
    by_seed = [
        {"seed": seed, **_measure(context, config, data, params)}
        for seed, params in zip(config.seeds, params_by_seed, strict=True)
    ]
    return {
        "cure": mitigation,
        "by_seed": by_seed,
        "seeds": list(config.seeds),
        "data": source_name(config.data),
        "tokenizer": data.tokenizer.name,
        **trained,
    }


def _joined(blocks: Sequence[Entry]) -> Entry:
    """Join one mitigation's blocks of seeds as if they had been trained together."""
    first, *later_blocks = blocks
    if not later_blocks:
        return first
    # The steps that were looked at are the same of every seed; what was seen there has a value for each.
    curves = [name for name in first if name.startswith("curve_") and name != "curve_steps"]
    seconds = [block["seconds_per_step"] for block in blocks]
    return {
        **first,
        **{name: [seed for block in blocks for seed in block[name]] for name in ("by_seed", "seeds")},
        **{
            name: [sum(values, []) for values in zip(*(block[name] for block in blocks), strict=True)]
            for name in curves
        },
        "seconds_per_step": None if None in seconds else float(np.mean(seconds)),
    }


def run_config(context: Context, mitigation: str, out: Path) -> PretrainConfig:
    """Configure the pretraining run of one mitigation."""
    settings = context.settings
    schedule = settings["schedule"]
    changes = {**settings.get("changes", {}), "max_seq_len": schedule["context"], **MITIGATIONS[mitigation]}
    return PretrainConfig(
        model=preset(settings["model"], **changes),
        data=next((source for role, source in split_data(context.data) if role is None), settings["data"]),
        out=str(out),
        seeds=tuple(settings["seeds"]),
        eval_every=max(1, schedule["steps"] // SNAPSHOTS),
        tensorboard=False,
        quiet=context.quiet,
        **schedule,
    )


def _pretrained(config: PretrainConfig) -> tuple[list[Params], Entry]:
    """Train with checkpoints: killed, it resumes where it was."""
    summary = pretrain(config)
    lines = [line for line in read_metrics(config.out) if "validation_loss" in line]
    speed = summary["tokens_per_second"]
    params_by_seed = [open_checkpoint(f"{config.out}@seed={seed}").params() for seed in config.seeds]
    return params_by_seed, {
        "steps": summary["step"],
        "tokens": summary["tokens"],
        "curve_steps": [line["step"] for line in lines],
        "curve_validation_loss": [line["validation_loss"] for line in lines],
        # None where a resumed run had no step left to time.
        "seconds_per_step": config.tokens_per_step / speed if speed else None,
    }


def _small(context: Context, config: PretrainConfig, data: Data, mitigation: str) -> tuple[list[Params], Entry]:
    """Train in memory, and measure the sinks as they grow."""
    settings = context.settings
    assert config.steps is not None
    bos_id = bos_of(settings, config, data)
    sinks_NT = sink_sequences(context, data, max(settings["lengths"]), bos_id)
    held_NT = _text_sequences(context, data, None, bos_id)
    curves: dict[str, list[Any]] = {"steps": [], "validation_loss": [], "largest_score": []}

    def on_snapshot(step: int, weights: list[Params]) -> None:
        measured = [measure_sinks(config.model, params, sinks_NT, SinkOptions(epsilon=EPSILON)) for params in weights]
        curves["steps"].append(step)
        curves["validation_loss"].append([loss_of(config.model, params, held_NT) for params in weights])
        curves["largest_score"].append([float(sinks["score_LH"].max()) for sinks in measured])

    interval, windows = max(1, config.steps // SNAPSHOTS), data.train.with_bos(bos_id)
    params, seconds = train_with_snapshots(
        config, windows, on_snapshot=on_snapshot, interval=interval, label=mitigation, quiet=context.quiet
    )
    return params, {
        "steps": config.steps,
        "tokens": config.steps * config.tokens_per_step,
        **{f"curve_{name}": values for name, values in curves.items()},
        "seconds_per_step": seconds,
    }


def bos_of(settings: Entry, config: PretrainConfig, data: Data) -> int | None:
    """Return the id in front of every sequence: the model's last one, which its tokenizer must not have.

    Raises:
        InputError: the tokenizer has it.
    """
    if not settings.get("bos_token"):
        return None
    if data.tokenizer.vocab_size >= config.model.vocab_size:
        raise InputError(
            f"no id is left for a BOS token: set vocab_size={data.tokenizer.vocab_size + 1} or choose a smaller "
            "tokenizer"
        )
    return config.model.vocab_size - 1


def _measure(context: Context, config: PretrainConfig, data: Data, params: Params) -> Entry:
    settings, cfg = context.settings, config.model
    bos_id = bos_of(settings, config, data)
    tokens_NT = sink_sequences(context, data, max(settings["lengths"]), bos_id)
    sinks = measure_sinks(cfg, params, tokens_NT, SinkOptions(epsilon=EPSILON, lengths=settings["lengths"]))
    # Kernels whose rows do not sum to 1 are compared by shares of their rows as well.
    averaged = measure_sinks(cfg, params, tokens_NT, SinkOptions(epsilon=EPSILON, normalize=True))
    outliers = measure_outliers(cfg, params, tokens_NT[: settings["num_sequences"] // 2 + 1])
    texts = settings["texts"] | {role: source for role, source in split_data(context.data) if role is not None}
    losses = {
        name: loss_of(cfg, params, _text_sequences(context, data, source, bos_id)) for name, source in texts.items()
    }
    measured_sinks = {
        "sink_rate": {str(length): sinks["by_length"][length]["sink_rate"] for length in settings["lengths"]},
        "sink_rate_of_shares": averaged["sink_rate"],
        "largest_score": float(sinks["score_LH"].max()),
        "score_LH": np.round(sinks["score_LH"], 4),
        "dom_ratio_first": outliers.dom_ratio_LT[:, 0],
        "effective_rank": outliers.effective_rank_L,
        "loss": losses,
        "perplexity": {name: float(np.exp(loss)) for name, loss in losses.items()},
    }
    if "price" in settings:
        options = settings["price"]
        short_NT = tokens_NT[: options["num_sequences"]]
        long_NT = sink_sequences(context, data, options["streaming_length"], bos_id)[: options["streaming_sequences"]]
        measured_sinks["price"] = price(options, cfg, params, short_NT, long_NT)
    return measured_sinks


def sink_sequences(context: Context, data: Data, length: int, bos_id: int | None = None) -> np.ndarray:
    """Return sequences of running text to look for sinks, with the BOS token in front where the model knows it."""
    settings = context.settings
    if settings.get("sink_text") is not None:
        ids = data.tokenizer.encode(read_text(settings["sink_text"]))
    else:
        ids = np.concatenate([data.validation[index][:-1] for index in range(len(data.validation))])
    rows = cut_sequences(ids, length, settings["num_sequences"])
    return rows if bos_id is None else prepend_bos(rows, bos_id)


def _text_sequences(context: Context, data: Data, source: str | None, bos_id: int | None) -> np.ndarray:
    evaluation = context.settings["evaluation"]
    count = evaluation["num_sequences"]
    if source is None:
        rows = held_out_rows(data.validation, count)
    else:
        documents = encode_documents(data.tokenizer, read_documents(source))
        rows = cut(documents, count, evaluation["context"])
    return rows if bos_id is None else prepend_bos(rows, bos_id)


def last_rate(seed: Entry) -> float:
    """Return the sink rate at the greatest length, of one entry of ``by_seed``."""
    return float(list(seed["sink_rate"].values())[-1])


def over_seeds(run: Entry, value: Callable[..., float]) -> tuple[float, float] | float:
    """Return mean and standard deviation across seeds of ``value(by_seed entry)``; the number itself for one seed."""
    return mean_std(value(seed) for seed in run["by_seed"])
