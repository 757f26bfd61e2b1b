"""Probe untrained models (or one given model) on one set of inputs: one forward pass serves every probe."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypedDict

import jax
import numpy as np

from bornbiased_jax import parallel, store
from bornbiased_jax.checkpoints.reference import portable_source
from bornbiased_jax.chunk_store import Chunk, Results, TaskSettings
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.executors import Engine, local
from bornbiased_jax.init import distribution, init_seed
from bornbiased_jax.keys import check_seed
from bornbiased_jax.model.layers import HIGHEST
from bornbiased_jax.model.streaming import LARGE, Overflow, check_overflow
from bornbiased_jax.parameters import parameter_table
from bornbiased_jax.probes import chunks, contraction, preference
from bornbiased_jax.probes.batching import batch_size_by_tokens
from bornbiased_jax.probes.inputs import Inputs
from bornbiased_jax.probes.inputs.facts import arrays_of
from bornbiased_jax.probes.measure import (
    check_number,
    check_probe,
    in_sequences,
    input_ranges,
    merge_ranges,
    order_inputs,
    stream,
)
from bornbiased_jax.probes.subject import ProbedModel
from bornbiased_jax.sweep import SweepMode, SweepOptions, plan, sweep

SMALLER = "draw smaller weights, or take fewer layers or a norm"


class ProbeRecord(TypedDict):
    """The measurements of one seed, JSON-ready."""

    seed: int
    seq_len: int
    num_inputs: int
    inputs_digest: str
    preference: preference.PreferenceRecord
    contraction: contraction.ContractionRecord
    direction_token: int
    """The token that the contraction direction would predict (Finding 2.2)."""
    direction_matches_top1: bool


@dataclasses.dataclass(frozen=True)
class ProbeOptions:
    """Choices of :func:`probe`.

    Attributes:
        intra: also the cosines within sequences (computes every position of the last block).
        precision: how float32 matrices are multiplied, by :data:`bornbiased_jax.model.layers.PRECISIONS`.
        batch_size: sequences in one forward pass; chosen by their length unless given.
        mode, chunk: as of :class:`bornbiased_jax.sweep.SweepOptions`.
        range_size: sequences in a chunk of the store; chosen by the sizes of the model and the inputs unless given.
    """

    intra: bool = False
    precision: str = HIGHEST
    batch_size: int | None = None
    mode: SweepMode = "auto"
    chunk: int | None = None
    range_size: int | None = None


def probe(
    subject: ProbedModel,
    seeds: Sequence[int],
    inputs: Inputs,
    options: ProbeOptions = ProbeOptions(),
    *,
    mesh: jax.sharding.Mesh | None = None,
    resume: Path | None = None,
    engine: Engine = local,
    advance: Callable[[int], None] | None = None,
) -> Iterator[ProbeRecord]:
    """Measure preference and contraction of every seed on the same inputs, one record a seed, in order.

    Args:
        subject: :func:`.subject.untrained` or :func:`.subject.from_weights`.
        seeds: the seeds of the initial weights.
        inputs: N sequences of T tokens, or of T vectors as wide as the model.
        options: what is measured, and in what layout.
        mesh: as of :class:`bornbiased_jax.sweep.SweepOptions`.
        resume: a store, in which finished seeds are kept, so that a killed probe resumes and a finished one can be
            extended by further seeds, bit for bit as if all had been requested at once. Several processes may share it.
        engine: makes the executors of what the store lacks (:mod:`bornbiased_jax.executors`).
        advance: called with the number of sequences probed since the last call.

    Raises:
        InputError: no seeds or a bad one, a single input, inputs that do not fit the model, a store that cannot be
            written, or another engine without one.
        Overflow: hidden states that are not finite.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> from bornbiased_jax.probes.inputs import random_tokens
        >>> from bornbiased_jax.probes.subject import untrained
        >>> cfg = preset("gpt2-tiny", num_layers=1, d_model=16, num_heads=2, d_ff=32, vocab_size=32)
        >>> records = list(probe(untrained(cfg), [42, 43], random_tokens(8, 4, 32)))
        >>> [record["seed"] for record in records]
        [42, 43]
        >>> 1 <= records[0]["preference"]["top1_count"] <= 8
        True
    """
    cfg = subject.cfg
    seeds = [check_seed(seed) for seed in seeds]
    if not seeds:
        raise InputError("no seeds: give at least one, as in --seeds 0:8 or --seeds 42,43")
    inputs.check_fits(cfg)
    check_number(inputs)
    if subject.weights is not None:
        check_overflow(cfg, subject.weights)
        if mesh is not None:
            subject = subject._replace(weights=parallel.place_params(cfg, subject.weights, mesh))
    elif _largest_std(cfg) > LARGE:
        # Logits are infinite, or norms give zeros, for one seed as for all: the first token would be preferred.
        check_overflow(cfg, init_seed(cfg, seeds[0]), SMALLER)
    # Batches that fit the devices and the memory.
    size = batch_size_by_tokens(inputs.seq_len, inputs.num_inputs, options.batch_size)
    shards = parallel.batch_axes(None if subject.weights is None else mesh)
    size = -(-size // math.prod(shards)) * math.prod(shards)
    check_probe(cfg, size, inputs, is_untrained=subject.weights is None)
    batches = order_inputs(inputs, size)
    probe_pass = chunks.Pass(subject, inputs, batches, options.intra, options.mode, 1, shards, options.precision)
    store.check(resume, engine)
    layout = SweepOptions(options.mode, options.chunk, mesh, steady=resume is not None)
    if resume is None:
        # Without a store: one sweep over all inputs.
        if options.range_size is not None:
            raise InputError("ranges of inputs need a store: name a folder to resume in")
        results = sweep(
            probe_pass.probe(),
            probe_pass.params,
            seeds,
            lambda: stream(inputs, batches),
            layout,
            advance=in_sequences(advance),
        )
    else:
        # With a store: programs whose results do not depend on how many seeds are computed together.
        steady = plan(probe_pass.probe(), probe_pass.params, None, len(seeds), layout)
        probe_pass = probe_pass._replace(mode=steady.mode, at_once=steady.at_once)
        spans = input_ranges(cfg, inputs.seq_len, batches, options.range_size)
        request = _request(probe_pass, seeds, spans, steady.chunk, engine, mesh, advance)
        parts = store.fulfill(request, resume, engine, advance)
        results = ((seed, _result_of_seed(probe_pass, seed, list(islice(parts, len(spans))))) for seed in seeds)
    for seed, result in results:
        yield _record(cfg, seed, inputs, result, options.intra)


def _largest_std(cfg: ModelConfig) -> float:
    """Return the largest standard deviation of an initial weight."""
    return max(max(distribution(cfg, parameter).stds) for parameter in parameter_table(cfg).values())


def _request(
    probe_pass: chunks.Pass,
    seeds: Sequence[int],
    spans: Sequence[tuple[int, int]],
    block: int,
    engine: Engine,
    mesh: jax.sharding.Mesh | None,
    advance: Callable[[int], None] | None,
) -> store.Request:
    """Request a chunk for each seed and range of inputs, the ranges of a seed one after the other."""
    is_local, reference = engine is local, probe_pass.subject.reference
    if not is_local and probe_pass.subject.weights is not None and reference is None:
        raise InputError("other processes cannot have weights that lie in this one alone: give their reference as well")
    if not is_local and mesh is not None:
        raise InputError("a mesh is of the devices of this process: leave --mesh or --engine out")

    def compute_here(_settings: TaskSettings, _sources: TaskSettings, group: list[Chunk]) -> Iterator[Results]:
        return chunks.compute_pass(probe_pass, group, mesh=mesh, advance=in_sequences(advance))

    return store.Request(
        chunks.FUNCTION,
        probe_pass.settings(),
        [Chunk(seed, *span) for seed in seeds for span in spans],
        compute_here,
        block,
        sources={} if reference is None else portable_source(reference),
        arrays=arrays_of(probe_pass.inputs),
    )


def _result_of_seed(probe_pass: chunks.Pass, seed: int, parts: Sequence[Results]) -> Results:
    """Return the result of the only range, or of the merged sums of several."""
    return parts[0] if len(parts) == 1 else merge_ranges(probe_pass.probe(), probe_pass.params, seed, parts)


def _record(cfg: ModelConfig, seed: int, inputs: Inputs, result: Results, intra: bool) -> ProbeRecord:
    counts = preference.PreferenceState(**result["preference"])
    sums = contraction.ContractionSums(**result["contraction"])
    is_finite_L = np.isfinite(sums.own_L)
    if not is_finite_L.all():
        # Of logits that are no numbers the first token's would be taken, for every input.
        block = min(int(np.argmin(is_finite_L)) + 1, cfg.num_layers)
        raise Overflow(f"hidden states overflow after block {block} of {cfg.num_layers}: {SMALLER}")
    preferred = preference.summarize(counts, vocab_size=cfg.vocab_size)
    chance = inputs.equal_last_tokens_by_chance
    contracted = contraction.summarize(sums, d_model=cfg.d_model, intra=intra, remove_same_last=chance)
    if intra and inputs.seq_len == 1:
        # A single position has no other to be compared with.
        contracted["intra_cosine_by_layer"] = contracted["intra_cosine_std_by_layer"] = [None] * cfg.num_layers
    direction_token = int(result["direction_token"])
    return {
        "seed": seed,
        "seq_len": inputs.seq_len,
        "num_inputs": inputs.num_inputs,
        "inputs_digest": inputs.digest,
        "preference": preferred,
        "contraction": contracted,
        "direction_token": direction_token,
        "direction_matches_top1": direction_token == preferred["top1_id"],
    }
