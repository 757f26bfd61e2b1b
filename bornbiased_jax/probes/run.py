"""Probe newborn models (or one given model) on one set of inputs: one forward pass serves every probe."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import hardware, keys, models
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.inputs import Inputs
from bornbiased_jax.models.memory import FLOAT, check_forward, check_weights, weights_bytes
from bornbiased_jax.models.overflow import check_overflow
from bornbiased_jax.models.parameters import Params
from bornbiased_jax.probes import contraction, preference
from bornbiased_jax.probes.observe import observe
from bornbiased_jax.sweep import Mode, Work, sweep

# What one layer makes of a batch should stay in a CPU's cache; an accelerator wants more rows.
BATCH_TOKENS_CPU = 2048
BATCH_TOKENS = 8192
EMBEDDING_SEED = 0


class ProbeRecord(TypedDict):
    """What :func:`probe` says of one seed, JSON-ready."""

    seed: int
    seq_len: int
    num_inputs: int
    inputs_digest: str
    preference: preference.PreferenceRecord
    contraction: contraction.ContractionRecord
    direction_token: int
    """The token that the contraction direction would predict (Finding 2.2)."""
    direction_matches_top1: bool


class Subject(NamedTuple):
    """What is probed: newborn models of a configuration, or one model with its weights."""

    cfg: ModelConfig
    fixed_embedding_seed: int | None
    weights: Params | None
    embedding_mean: float
    embedding_std: float
    description: dict[str, Any]


def newborn(cfg: ModelConfig, *, fixed_embedding_seed: int | None = EMBEDDING_SEED) -> Subject:
    """Models at birth. With ``fixed_embedding_seed`` all share embeddings and head (Appendix B.2).

    Example:
        >>> from bornbiased_jax.config import preset
        >>> newborn(preset("gpt2-tiny")).embedding_std
        0.02
    """
    about = {"model": cfg.to_dict(), "fixed_embedding_seed": fixed_embedding_seed}
    return Subject(cfg, fixed_embedding_seed, None, 0.0, cfg.embedding_std, about)


def given(cfg: ModelConfig, params: Params, digest: str) -> Subject:
    """One model with its weights; the seed is ignored."""
    table = np.asarray(params["embed"]["embedding"], np.float32)
    about = {"model": cfg.to_dict(), "weights": digest}
    return Subject(cfg, None, params, float(table.mean()), float(table.std()), about)


@functools.lru_cache(maxsize=16)
def _work(
    cfg: ModelConfig,
    born: bool,
    fixed_embedding_seed: int | None,
    scale: tuple[float, float] | None,
    intra: bool,
    second_moment: bool,
    dtype: Any,
) -> Work:
    """The sweep's functions for these settings: one object each, so that equal calls compile once."""

    def birth(seed: jax.Array) -> Params:
        fixed = None if fixed_embedding_seed is None else keys.stream_key(fixed_embedding_seed, "embedding")
        return models.init_seed(cfg, seed, fixed_key=fixed)

    def zero() -> Any:
        sums = contraction.zero(cfg, second_moment=second_moment)
        return {"preference": preference.zero(cfg), "contraction": sums}

    def step(params: Params, state: Any, batch: dict[str, jax.Array]) -> Any:
        x = batch["x"]
        if scale is not None:
            mean, std = scale
            x = x * jnp.float32(std) + jnp.float32(mean)
        seen = observe(cfg, params, x, intra=intra, dtype=dtype)
        return {
            "preference": preference.update(state["preference"], seen, batch["weight"]),
            "contraction": contraction.update(state["contraction"], seen, batch["weight"], batch["last"]),
        }

    def finish(params: Params, state: Any) -> dict[str, Any]:
        along_D = contraction.direction(state["contraction"])
        return {
            "preference": state["preference"]._asdict(),
            "contraction": contraction.reduce(state["contraction"])._asdict(),
            "direction_token": jnp.argmax(models.logits_of(cfg, params, along_D)),
        }

    return Work(birth if born else None, zero, step, finish)


class Batches(NamedTuple):
    """Inputs in the order of their last token, cut into equal batches."""

    order_N: np.ndarray
    last_N: np.ndarray
    size: int

    @property
    def num_batches(self) -> int:
        """Number of batches."""
        return -(-len(self.order_N) // self.size)


def batch_size_for(cfg: ModelConfig, inputs: Inputs, requested: int | None) -> int:
    """Sequences in a batch: about ``BATCH_TOKENS`` positions (fewer on a CPU) unless asked otherwise."""
    if requested is not None and requested < 1:
        raise InputError(f"batch size {requested} is not at least 1")
    tokens = BATCH_TOKENS_CPU if jax.default_backend() == "cpu" else BATCH_TOKENS
    size = requested or max(1, tokens // inputs.seq_len)
    return min(size, inputs.num_inputs)


def check_probe(cfg: ModelConfig, size: int, inputs: Inputs, *, born: bool, second_moment: bool) -> None:
    """Refuse what does not fit: one seed's weights, sums and forward pass, and the last tokens of all inputs.

    Raises:
        InputError: it does not.
    """
    if born:
        check_weights(cfg)
    sums = FLOAT * (cfg.num_layers + 1) * cfg.d_model * (cfg.d_model if second_moment else 2)
    check_forward(cfg, size, inputs.seq_len, logits=1, also=2.0 * sums + born * weights_bytes(cfg))
    # Last tokens, their order, and the same sorted.
    hardware.check_memory(16.0 * inputs.num_inputs, f"{inputs.num_inputs:,} inputs", "ask for fewer", on_host=True)


def order_inputs(inputs: Inputs, size: int) -> Batches:
    """Sort sequences by last token, so that runs of equal last tokens are adjacent (see ``contraction``)."""
    last_N = inputs.last_tokens()
    if last_N is None:
        last_N = np.arange(inputs.num_inputs)
    order_N = np.argsort(last_N, kind="stable")
    return Batches(order_N, np.asarray(last_N)[order_N], size)


def stream(inputs: Inputs, batches: Batches) -> Iterator[dict[str, Any]]:
    """Batches of equal shape; the last one is padded with sequences of weight 0."""
    n = len(batches.order_N)
    for start in range(0, n, batches.size):
        at = np.minimum(np.arange(start, start + batches.size), n - 1)
        yield {
            "x": inputs.generate(batches.order_N[at]),
            "weight": (np.arange(start, start + batches.size) < n).astype(np.float32),
            "last": batches.last_N[at].astype(np.int32),
        }


def probe(
    subject: Subject,
    seeds: Sequence[int],
    inputs: Inputs,
    *,
    intra: bool = False,
    second_moment: bool = True,
    dtype: Any = None,
    batch_size: int | None = None,
    mode: Mode = "auto",
    chunk: int | None = None,
    mesh: jax.sharding.Mesh | None = None,
    advance: Callable[[int], None] | None = None,
    resume: Path | None = None,
) -> Iterator[ProbeRecord]:
    """Preference and contraction of every seed on the same inputs, one record a seed, in order.

    Args:
        subject: :func:`newborn` or :func:`given`.
        seeds: the seeds to be born.
        inputs: N sequences of T tokens, or of T vectors as wide as the model.
        intra: also the cosines within sequences (computes every position of the last block).
        second_moment: also the standard deviation over pairs (D² numbers a layer).
        dtype: compute dtype, float32 unless given.
        batch_size, mode, chunk, mesh, resume: see :func:`bornbiased_jax.sweep.sweep`.
        advance: called with the number of sequences probed since the last call.

    Raises:
        InputError: inputs that do not fit the model.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> from bornbiased_jax.inputs import random_tokens
        >>> cfg = preset("gpt2-tiny", num_layers=1, d_model=16, num_heads=2, d_ff=32, vocab_size=32)
        >>> records = list(probe(newborn(cfg), [42, 43], random_tokens(8, 4, 32)))
        >>> [record["seed"] for record in records]
        [42, 43]
        >>> 1 <= records[0]["preference"]["top1_count"] <= 8
        True
    """
    cfg = subject.cfg
    inputs.check_fits(cfg)
    if subject.weights is not None:
        check_overflow(cfg, subject.weights)
    size = batch_size_for(cfg, inputs, batch_size)
    check_probe(cfg, size, inputs, born=subject.weights is None, second_moment=second_moment)
    batches = order_inputs(inputs, size)
    scale = inputs.moments(subject.embedding_mean, subject.embedding_std)
    born = subject.weights is None
    work = _work(cfg, born, subject.fixed_embedding_seed, scale, intra, second_moment, dtype)
    identity = {
        "subject": subject.description,
        "inputs": inputs.digest,
        "intra": intra,
        "second_moment": second_moment,
        "dtype": str(dtype),
    }
    seen_sequences = _Ticker(advance, batches)
    results = sweep(
        work,
        seeds,
        lambda: stream(inputs, batches),
        mode=mode,
        chunk=chunk,
        mesh=mesh,
        weights=subject.weights,
        advance=seen_sequences,
        resume=resume,
        identity=hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest(),
    )
    for seed, result in results:
        yield _record(cfg, seed, inputs, result, intra)


@dataclasses.dataclass
class _Ticker:
    """Turns "one more batch of so many seeds" into sequences, the last batch being shorter."""

    advance: Callable[[int], None] | None
    batches: Batches
    index: int = 0

    def __call__(self, num_seeds: int) -> None:
        start = (self.index % self.batches.num_batches) * self.batches.size
        self.index += 1
        if self.advance is not None:
            self.advance(num_seeds * min(self.batches.size, len(self.batches.order_N) - start))


def _record(cfg: ModelConfig, seed: int, inputs: Inputs, result: dict[str, Any], intra: bool) -> ProbeRecord:
    counts = preference.PreferenceState(**result["preference"])
    sums = contraction.ContractionSums(**result["contraction"])
    chosen = preference.summarise(counts, vocab_size=cfg.vocab_size)
    chance = inputs.equal_last_tokens_by_chance
    pulled = contraction.summarise(sums, d_model=cfg.d_model, intra=intra, remove_same_last=chance)
    along = int(result["direction_token"])
    return {
        "seed": seed,
        "seq_len": inputs.seq_len,
        "num_inputs": inputs.num_inputs,
        "inputs_digest": inputs.digest,
        "preference": chosen,
        "contraction": pulled,
        "direction_token": along,
        "direction_matches_top1": along == chosen["top1_id"],
    }
