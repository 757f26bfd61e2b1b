"""Everything that is measured about the sinks of one checkpoint on one text, as a JSON-ready dict."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from bornbiased_jax import hardware, progress
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.evaluation.rolling_cache import Streamed, check_streaming, streaming_losses
from bornbiased_jax.evaluation.sink_steps import StepSinks, check_run, sinks_by_step
from bornbiased_jax.model.limits import check_length, check_sequences, warn_of_length
from bornbiased_jax.model.memory import check_forward
from bornbiased_jax.model.streaming import StreamedWeights, Weights, check_overflow, check_plain
from bornbiased_jax.probes.outliers import SuperNeuron, measure_outliers, super_neurons
from bornbiased_jax.probes.sinks import SinkOptions, SinkSettings, check_epsilon, measure_sinks
from bornbiased_jax.probes.variance import discrepancy, position_moments
from bornbiased_jax.quantization import Granularity, Price, Scheme, prices
from bornbiased_jax.quantization.price import check_prices
from bornbiased_jax.text import Tokenizer, read_text, text_digest

LENGTHS = (32, 64, 128, 256, 512)
DETAIL_LENGTH = 64
DETAIL_SEQUENCES = 32
_TOP_CHANNELS = 8


class Variance(TypedDict):
    """Variance of one quantity by layer and position, and the discrepancy of position 1 by layer."""

    pooled: list[list[float]]
    across: list[list[float]]
    discrepancy: list[float | None]
    discrepancy_across: list[float | None]


class VarianceByPosition(TypedDict):
    """Variances on random tokens."""

    length: int
    num_sequences: int
    attention_output: Variance
    residual: Variance


class ChannelMean(TypedDict):
    """Mean |value| of one channel at the first position and at the others."""

    channel: int
    first: float
    rest: float


class BlockOutliers(TypedDict):
    """The residual stream after one block: its largest entry, and how it is spread over channels."""

    block: int
    largest: float
    position: int
    channel: int
    share_of_sequences_massive: float
    dom_ratio_first: float | None
    dom_ratio_rest: float | None
    effective_rank: float | None
    top_channels: list[ChannelMean]


class OutlierReport(TypedDict):
    """Outliers of the residual stream, block by block."""

    length: int
    num_sequences: int
    effective_rank_states: int
    layers: list[BlockOutliers]


class SinkReport(SinkSettings):
    """The result of :func:`report_on_ids`, JSON-ready; keys that :func:`sinks_report` adds are not required."""

    sink_rate: dict[str, float]
    """By length, as ``threshold`` says."""
    sink_rate_std: dict[str, float | None]
    sink_rate_of_average: dict[str, float]
    score_by_layer_head: dict[str, list[list[float]]]
    row_mass_by_layer_head: list[list[float]]
    num_tokens: int
    seed: int
    beyond_max_seq_len: bool
    variance: NotRequired[VarianceByPosition | None]
    outliers: NotRequired[OutlierReport]
    super_neurons: NotRequired[list[SuperNeuron]]
    quantisation: NotRequired[list[Price]]
    streaming: NotRequired[list[Streamed]]
    by_step: NotRequired[list[StepSinks]]
    checkpoint: NotRequired[str]
    weights_digest: NotRequired[str]
    text: NotRequired[str]
    text_digest: NotRequired[str]
    tokenizer: NotRequired[str]
    tokenizer_digest: NotRequired[str]


def cut_sequences(ids: ArrayLike, length: int, num_sequences: int, *, seed: int = 0) -> np.ndarray:
    """Cut windows of a text at distinct random starts, [N, length] in the order of the text.

    N is ``num_sequences``, or the number of possible starts where that is smaller.

    Raises:
        InputError: the text is shorter than one window, or a size is below 1.

    Example:
        >>> cut_sequences(np.arange(6), 5, 100).tolist()
        [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]]
    """
    ids = np.asarray(ids)
    if length < 1 or num_sequences < 1:
        raise InputError(f"{num_sequences} sequences of length {length}: both must be at least 1")
    starts = len(ids) - length + 1
    if starts < 1:
        raise InputError(
            f"the text has {len(ids)} tokens, fewer than the length {length} asked for: "
            "give a longer text or ask for shorter lengths"
        )
    count = min(num_sequences, starts)
    hardware.check_memory(
        ids.itemsize * count * length, f"{count:,} sequences of {length:,} tokens", "ask for fewer", on_host=True
    )
    picks = np.random.default_rng(seed).choice(starts, count, replace=False)
    return np.stack([ids[start : start + length] for start in np.sort(picks)])


@dataclasses.dataclass(frozen=True)
class ReportOptions(SinkOptions):
    """The measurements of a report on sinks, besides the sinks themselves.

    Attributes:
        lengths: sequence lengths in tokens. The sequences of the longest are drawn; shorter ones are their prefixes.
        num_sequences: how many windows are drawn at random from the text.
        details: also variances, outliers and super neurons (of which a mixture of experts has none), on sequences of at
            most ``DETAIL_LENGTH`` tokens.
        schemes, granularities, keep_sinks: what is quantized, see :func:`bornbiased_jax.quantization.prices`; on
            ``DETAIL_SEQUENCES`` sequences of the longest length.
        streaming: latest tokens in a rolling cache, besides the ``keep_sinks`` first ones; see
            :func:`~bornbiased_jax.evaluation.rolling_cache.streaming_losses`, measured on the same sequences.
        seed: of the windows, and of the random tokens of the variances.
    """

    lengths: Sequence[int] = LENGTHS
    num_sequences: int = 100
    details: bool = True
    schemes: Sequence[Scheme] = ()
    granularities: Sequence[Granularity] = ("tensor", "token")
    keep_sinks: Sequence[int] = (0,)
    streaming: int | None = None
    seed: int = 0


DEFAULTS = ReportOptions()


def report_on_ids(
    cfg: ModelConfig,
    params: Weights,
    ids: ArrayLike,
    options: ReportOptions = DEFAULTS,
    *,
    advance: Callable[[int], None] | None = None,
) -> SinkReport:
    """Report on the sinks of a model on a text that is already token ids.

    Args:
        cfg: the architecture.
        params: its weights, in memory or streamed; streamed ones have no ``schemes`` and no ``streaming``.
        ids: the token ids of the text, one long row.
        options: what is measured.
        advance: called with the number of sequences done since the last call.

    Returns:
        ``sink_rate``, ``sink_rate_std`` (over sequences), ``sink_rate_of_average`` and
        ``score_by_layer_head``, each by length; the settings; with ``details`` also ``variance`` (by
        quantity: ``pooled``, ``across`` [L][T] on random tokens and the ``discrepancy`` of position 1 [L]),
        ``outliers`` and ``super_neurons``; with ``schemes`` the ``quantisation``, with ``streaming`` that.
        Blocks and positions count from 1,
        channels and neurons from 0.

    Raises:
        InputError: a text shorter than the greatest length, ids outside the vocabulary (another tokenizer),
            an epsilon outside (0, 1), lengths beyond learned positions, a model without attention.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> from bornbiased_jax.init import init_seed
        >>> cfg = preset("llama-tiny", num_layers=2, d_model=16, num_heads=2, d_ff=32, vocab_size=32)
        >>> options = ReportOptions(lengths=[32], num_sequences=1, details=False)
        >>> report_on_ids(cfg, init_seed(cfg, 0), np.arange(32), options)["sink_rate"]
        {'32': 0.0}
    """
    # Refuse what cannot be measured before anything is computed.
    check_plain(params, quantization=list(options.schemes) or None, streaming=options.streaming)
    lengths, seed, streaming = options.lengths, options.seed, options.streaming
    if not lengths:
        raise InputError("no length is asked for: give at least one, as in 64,128")
    longest = max(lengths)
    check_length(cfg, longest)
    x_NT = check_sequences(cfg, cut_sequences(ids, longest, options.num_sequences, seed=seed))
    if streaming is not None:
        check_streaming(cfg, x_NT[:1], streaming, options.keep_sinks)
    if options.schemes:
        check_prices(cfg, longest, options.schemes, options.keep_sinks)
    warn_of_length(cfg, "length", longest)
    sinks = measure_sinks(cfg, params, x_NT, options, advance=advance)
    by_length = {str(length): sinks["by_length"][length] for length in sorted(set(lengths))}
    report: SinkReport = {
        "sink_rate": {length: rates["sink_rate"] for length, rates in by_length.items()},
        "sink_rate_std": {length: rates["sink_rate_std"] for length, rates in by_length.items()},
        "sink_rate_of_average": {length: rates["sink_rate_of_average"] for length, rates in by_length.items()},
        "score_by_layer_head": {length: rates["score_LH"].tolist() for length, rates in by_length.items()},
        "row_mass_by_layer_head": sinks["row_mass_LH"].tolist(),
        "epsilon": sinks["epsilon"],
        "convention": sinks["convention"],
        "position": sinks["position"],
        "threshold": sinks["threshold"],
        "normalised_rows": sinks["normalised_rows"],
        "num_sequences": sinks["num_sequences"],
        "num_tokens": int(np.size(ids)),
        "seed": seed,
        "beyond_max_seq_len": longest > cfg.max_seq_len,
    }
    # Details are measured on fewer and shorter sequences.
    if options.details:
        x_DT = x_NT[:DETAIL_SEQUENCES, :DETAIL_LENGTH]
        report["variance"] = _variance(cfg, params, x_DT.shape, seed, advance)
        report["outliers"] = _outliers(cfg, params, x_DT, advance)
        # In a mixture of experts each token has neurons of its own.
        if cfg.mlp and cfg.num_experts is None and x_DT.shape[1] > 1:
            report["super_neurons"] = super_neurons(cfg, params, x_DT, advance=advance)
    few_NT = x_NT[:DETAIL_SEQUENCES]
    if options.schemes and not isinstance(params, StreamedWeights):
        report["quantisation"] = prices(
            cfg,
            params,
            few_NT,
            options.schemes,
            granularities=options.granularities,
            keep=options.keep_sinks,
            advance=advance,
        )
    if streaming is not None and not isinstance(params, StreamedWeights):
        report["streaming"] = streaming_losses(
            cfg, params, few_NT, window=streaming, keep=options.keep_sinks, advance=advance
        )
    return report


def sinks_report(
    opened: Checkpoint,
    text: str | Path,
    options: ReportOptions = DEFAULTS,
    *,
    tokenizer: Tokenizer | None = None,
    by_step: bool = False,
    quiet: bool = False,
) -> SinkReport:
    """Report on the sinks of an opened model on a text, as ``bornbiased sinks`` does.

    Args:
        opened: the model.
        text: a file, a folder, ``builtin:prose``, ``builtin:code`` or ``hf:NAME``, taken as one running text.
        options: what is measured. A GGUF file's weights are quantized already and are taken as they are stored, so
            that its ``schemes`` lose their bits for weights.
        tokenizer: in place of the checkpoint's own.
        by_step: of a pretraining run, also the sinks of every seed at initialization and at every checkpoint, at the
            greatest length.
        quiet: show no progress.

    Returns:
        What :func:`report_on_ids` returns, with the names and digests of the checkpoint, of the text that was read and
        of the tokenizer.

    Raises:
        InputError: as :func:`report_on_ids`; also a text or tokenizer that is missing or corrupted.
    """
    check_epsilon(options.epsilon)
    for length in options.lengths:
        check_length(opened.cfg, length)
    check_forward(opened.cfg, 1, max(options.lengths, default=1), all_weights=True)
    check_plain(opened.weights, quantization=list(options.schemes) or None, streaming=options.streaming)
    if by_step:
        check_run(opened)
    tokenizer = opened.require_tokenizer(tokenizer)
    check_overflow(opened.cfg, opened.weights)
    # A GGUF file's weights are quantized already.
    if opened.kind == "gguf":
        schemes = [_stored_weights(scheme) for scheme in options.schemes]
        if schemes != list(options.schemes):
            progress.warn(
                "the weights of a GGUF file are quantized already: bits for weights are left out of --quantise"
            )
        options = dataclasses.replace(options, schemes=schemes)
    # Draw the windows and measure, with one progress bar for all.
    source_text = read_text(text)
    ids = tokenizer.encode(source_text)
    with progress.bar(count_sequences(opened.cfg, options), "sinks", unit="sequences", quiet=quiet) as advance:
        report = report_on_ids(opened.cfg, opened.weights, ids, options, advance=advance)
    if by_step:
        x_NT = cut_sequences(ids, max(options.lengths), options.num_sequences, seed=report["seed"])
        report["by_step"] = sinks_by_step(opened, x_NT, options, quiet=quiet)
    return report | {
        "checkpoint": opened.description,
        "weights_digest": opened.digest(),
        "text": str(text),
        "text_digest": text_digest(source_text),
        "tokenizer": tokenizer.name,
        "tokenizer_digest": tokenizer.digest,
    }


def _stored_weights(scheme: Scheme) -> Scheme:
    without = scheme._replace(weights=None)
    if without == Scheme():
        raise InputError(
            f"{scheme} quantizes weights alone, which a GGUF file holds quantized already: quantize activations or "
            "the cache (a8, kv4), or open the model's Hugging Face directory"
        )
    return without


def largest_block(report: SinkReport) -> BlockOutliers | None:
    """Return the entry of the block with the largest residual stream after it; None for a report without details."""
    if "outliers" not in report:
        return None
    return max(report["outliers"]["layers"], key=lambda entry: entry["largest"])


def strongest_head(score_LH: Sequence[Sequence[float]]) -> tuple[float, int, int]:
    """Return the largest score of a map [L, H], with its block and head, both counted from 1.

    Example:
        >>> strongest_head([[0.1, 0.2], [0.7, 0.1]])
        (0.7, 2, 1)
    """
    return max((score, block, head) for block, row in enumerate(score_LH, 1) for head, score in enumerate(row, 1))


def count_sequences(cfg: ModelConfig, options: ReportOptions) -> int:
    """Estimate how many sequences :func:`report_on_ids` will report as done, for a progress display."""
    detailed = min(options.num_sequences, DETAIL_SEQUENCES)
    cells = len(options.schemes) * len(options.granularities) * len({0, *options.keep_sinks})
    if options.streaming is not None:
        cells += len(options.keep_sinks) + 1
    # A variance by position needs two.
    details = max(2, detailed) + (1 + (cfg.mlp and cfg.num_experts is None)) * detailed
    return options.num_sequences + options.details * details + cells * detailed


def _variance(
    cfg: ModelConfig, params: Weights, shape: tuple[int, ...], seed: int, advance: Callable[[int], None] | None
) -> VarianceByPosition | None:
    N, T = shape
    if T < 2:
        return None
    tokens_NT = np.random.default_rng(seed).integers(0, cfg.vocab_size, (max(2, N), T), dtype=np.int32)
    moments = position_moments(cfg, params, tokens_NT, advance=advance)
    variances: dict[str, Variance] = {
        name: {
            "pooled": moment.pooled_LT.tolist(),
            "across": moment.across_LT.tolist(),
            "discrepancy": _numbers(discrepancy(moment.pooled_LT)),
            "discrepancy_across": _numbers(discrepancy(moment.across_LT)),
        }
        for name, moment in moments.items()
    }
    attention, residual = variances["attention_output"], variances["residual"]
    return {"length": T, "num_sequences": len(tokens_NT), "attention_output": attention, "residual": residual}


def _outliers(
    cfg: ModelConfig, params: Weights, x_NT: np.ndarray, advance: Callable[[int], None] | None
) -> OutlierReport:
    measured = measure_outliers(cfg, params, x_NT, advance=advance)
    top_LC = np.argsort(-measured.first_LD, axis=-1)[:, :_TOP_CHANNELS]
    rest_L = measured.dom_ratio_LT[:, 1:].mean(axis=-1) if x_NT.shape[1] > 1 else np.full(cfg.num_layers, np.nan)
    layers: list[BlockOutliers] = [
        {
            "block": layer + 1,
            "largest": float(measured.largest_L[layer]),
            "position": int(measured.largest_at_L3[layer, 1]) + 1,
            "channel": int(measured.largest_at_L3[layer, 2]),
            "share_of_sequences_massive": float(measured.massive_L[layer]),
            "dom_ratio_first": _numbers(measured.dom_ratio_LT[:, 0])[layer],
            "dom_ratio_rest": _numbers(rest_L)[layer],
            "effective_rank": _numbers(measured.effective_rank_L)[layer],
            "top_channels": [
                {
                    "channel": int(channel),
                    "first": float(measured.first_LD[layer, channel]),
                    "rest": float(measured.rest_LD[layer, channel]),
                }
                for channel in top_LC[layer]
            ],
        }
        for layer in range(cfg.num_layers)
    ]
    N, T = x_NT.shape
    return {"length": T, "num_sequences": N, "effective_rank_states": measured.rank_rows, "layers": layers}


def _numbers(values: np.ndarray) -> list[float | None]:
    """Return floats, None where a ratio is undefined (zeros alone, or no other position): JSON has no NaN."""
    return [float(value) if np.isfinite(value) else None for value in values]
