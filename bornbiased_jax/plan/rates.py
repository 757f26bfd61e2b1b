"""How fast this machine is at what a command does, measured now on a small part of it.

Forward passes and training are timed on one or two blocks of the model's own widths, by the functions that the command
itself calls and in as many threads; programs are compiled first, which is not counted.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import hardware
from bornbiased_jax.checkpoints.reader import birth_reader, params_reader
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.inputs import random_tokens
from bornbiased_jax.models import init_seed
from bornbiased_jax.models.memory import FLOAT, forward_bytes, weights_bytes
from bornbiased_jax.models.operations import needed_operations
from bornbiased_jax.plan.needs import Needs
from bornbiased_jax.pretrain.optimiser import optimiser
from bornbiased_jax.pretrain.settings import PretrainConfig
from bornbiased_jax.pretrain.step import State, mean_gradient, update
from bornbiased_jax.pretrain.throughput import flops_per_token
from bornbiased_jax.seedprint.outputs import MAX_SHARDS, last_outputs, program_bytes
from bornbiased_jax.seedprint.weights.coordinates import coordinate_scores
from bornbiased_jax.seedprint.weights.tokens import shared_tokens
from bornbiased_jax.stats.certified import certified_p

BLOCK = 30e6
"""Parameters of the largest block that is timed: a wider model is timed at a fraction of its widths."""
VOCABULARY = 8192
OPERATIONS = 4e10
"""Of one timed call, about: a fraction of a second."""
LAPS = 3


@dataclasses.dataclass(frozen=True)
class Measured:
    """Rates of this machine, and what a process has that does this work and holds nothing yet."""

    rates: dict[str, float]
    process_bytes: float
    widths: str
    """At what widths they were measured, for a reader."""
    passes_take: float = 1.0
    """What the program of a forward pass takes beside the weights as given, in the bytes of its arrays."""


def assumed(needs: Needs, on: str) -> dict[str, float]:
    """Rates of an accelerator: its data sheet's, times the fraction that a command is taken to reach.

    What is bound by memory and not by products (draws, updates) has none.
    """
    device = hardware.ACCELERATORS[on]
    rate = hardware.ASSUMED_FRACTION[needs.dtype] * getattr(device, needs.dtype)
    return {work.rate: rate for work in needs.work if work.operations}


def measure(needs: Needs) -> Measured:
    """Time a small part of each kind of work."""
    cfg = narrowed(needs.cfg)
    kinds = {work.rate for work in needs.work if work.amount}
    shards = min(MAX_SHARDS, hardware.cores()) if jax.default_backend() == "cpu" else 1
    rates: dict[str, float] = {}
    process_bytes, passes_take = 0, 1.0
    if kinds:
        birth = jax.jit(lambda seed: init_seed(cfg, seed)).lower(np.uint32(0)).compile()
        process_bytes = hardware.memory_in_use()
    if "forward passes" in kinds:
        params = jax.block_until_ready(birth(np.uint32(0)))
        # Before anything large was given back: what of it the process keeps hangs on the moment.
        last_outputs(cfg, params, random_tokens(1, needs.seq_len, cfg.vocab_size, 0))
        process_bytes = max(process_bytes, hardware.memory_in_use() - weights_bytes(cfg))
        if not needs.streamed:
            batch = needs.cfg, needs.batch, needs.seq_len
            passes_take = program_bytes(*batch) / forward_bytes(*batch) or 1.0
        rates["forward passes"] = _forward(cfg, needs, params, shards)
    if "draws" in kinds:
        rates["draws"] = weights_bytes(cfg) / FLOAT * shards / _seconds(lambda: _together(shards, birth))
    if kinds & {"training", "updates"}:
        found, process_bytes = _training(cfg, needs, birth(np.uint32(0)), process_bytes)
        rates |= found
    if "draws one by one" in kinds:
        rates["draws one by one"] = _one_by_one(cfg)
    if "products" in kinds:
        rates |= _weights(cfg)
    widths = f"{cfg.num_layers} of {needs.cfg.num_layers} blocks of width {cfg.d_model:,}"
    return Measured(rates, float(process_bytes), widths, passes_take)


def narrowed(cfg: ModelConfig) -> ModelConfig:
    """One or two blocks of the model, at a fraction of its widths where they are large, and of its vocabulary."""
    part = 1
    while weights_bytes(small := _fraction(cfg, part)) / FLOAT > BLOCK + VOCABULARY * 2 * small.d_model and part < 64:
        part *= 2
    two = small.replace(num_layers=min(2, cfg.num_layers))
    return two if weights_bytes(two) / FLOAT < BLOCK else small


def _fraction(cfg: ModelConfig, part: int) -> ModelConfig:
    heads = max(1, cfg.num_heads // part)
    shared = next(size for size in range(min(heads, max(1, cfg.kv_heads // part)), 0, -1) if heads % size == 0)
    sizes = {"num_heads": heads, "num_kv_heads": shared, "head_dim": cfg.key_dim, "d_ff": max(1, cfg.d_ff // part)}
    sizes["d_model"] = max(1, cfg.d_model * heads // cfg.num_heads)
    return cfg.replace(num_layers=1, vocab_size=min(cfg.vocab_size, VOCABULARY), **sizes)


def _forward(cfg: ModelConfig, needs: Needs, params: Any, shards: int) -> float:
    """Operations a second of forward passes up to the last position."""
    one = needed_operations(cfg, needs.seq_len) - 2.0 * cfg.d_model * cfg.vocab_size
    batch = max(1, min(needs.batch, int(OPERATIONS / one)))
    inputs = random_tokens(batch * shards * LAPS, needs.seq_len, cfg.vocab_size, 0)
    seconds = _seconds(lambda: last_outputs(cfg, params, inputs, batch_size=batch), laps=1)
    return one * inputs.num_inputs / seconds


def _training(cfg: ModelConfig, needs: Needs, params: Any, process_bytes: int) -> tuple[dict[str, float], int]:
    """Operations a second of gradients, and parameters a second of the optimiser."""
    import tensorboardX  # noqa: F401 -- a run has it in memory

    sequences, shards = needs.sequences
    most = max(1, int(OPERATIONS / (needs.seq_len * flops_per_token(cfg, needs.seq_len))))
    size = min(sequences, most)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, cfg.vocab_size, (1, size, needs.seq_len + 1), dtype=np.int32)
    mean = jax.jit(lambda params, tokens: mean_gradient(cfg, params, tokens, dtype=jnp.dtype(needs.dtype)))
    gradient = mean.lower(params, tokens).compile()
    rule = optimiser(PretrainConfig(model=cfg, data="none", out="none", context=1), 1000)
    state = State(params, rule.init(params))
    loss, grads = gradient(params, tokens)
    change = jax.jit(lambda state, loss, grads: update(rule, state, loss, grads)[0], donate_argnums=0)
    apply = change.lower(state, loss, grads).compile()
    process_bytes = max(process_bytes, hardware.memory_in_use() - 4 * weights_bytes(cfg))
    operations = shards * size * needs.seq_len * flops_per_token(cfg, needs.seq_len)
    training = operations / _seconds(lambda: _together(shards, lambda seed: gradient(params, tokens)))
    seconds = []
    for _ in range(LAPS):
        start = time.perf_counter()
        state = jax.block_until_ready(apply(state, loss, grads))
        seconds.append(time.perf_counter() - start)
    return {"training": training, "updates": weights_bytes(cfg) / FLOAT / min(seconds)}, process_bytes


def _weights(cfg: ModelConfig) -> dict[str, float]:
    """Operations a second of the weights test's products, all that goes with them included; entries permuted."""
    params = [jax.device_get(init_seed(cfg, seed)) for seed in (0, 1)]
    ours, theirs = (params_reader(cfg, given) for given in params)
    tokens = shared_tokens(ours, theirs)
    seconds = _seconds(lambda: coordinate_scores(ours, theirs, tokens), laps=1)
    scores_DD = np.square(np.random.default_rng(0).standard_normal((1024, 1024)))
    permuted = _seconds(lambda: certified_p(scores_DD), laps=1, warm=False)
    return {"products": coordinate_operations(cfg) / seconds, "permutations": scores_DD.size / permuted}


def _one_by_one(cfg: ModelConfig) -> float:
    """Parameters a second of a birth of which one tensor is drawn at a time, as tests of weights read it."""
    born = birth_reader(cfg, 0)

    def draw() -> None:
        for _, path, layer in born.places():
            born.read(path, layer)

    seconds = _seconds(draw, laps=1)
    return weights_bytes(cfg) / FLOAT / seconds


def coordinate_operations(cfg: ModelConfig) -> float:
    """Operations of the products of a coordinate test: every matrix's rows, D by D."""
    from bornbiased_jax.seedprint.weights.view import matrices

    query, shared = cfg.num_heads * cfg.key_dim, cfg.kv_heads * cfg.key_dim
    rows: Mapping[str, int] = {
        "embed": cfg.vocab_size, "head": cfg.vocab_size, "positions": cfg.max_seq_len,
        "query": query, "key": shared, "value": shared, "output": query,
    }  # fmt: skip
    names = (matrix.module.rpartition("/")[2] or matrix.module for matrix in matrices(cfg))
    return 2.0 * cfg.d_model**2 * sum(rows.get(name, cfg.d_ff) for name in names)


def _together(shards: int, work: Callable[[Any], Any]) -> None:
    """As many calls at once as there are parts of a batch."""
    with ThreadPoolExecutor(shards) as threads:
        list(threads.map(lambda index: jax.block_until_ready(work(np.uint32(index))), range(shards)))


def _seconds(call: Callable[[], Any], laps: int = LAPS, warm: bool = True) -> float:
    """Seconds of the median call, after one that is not counted."""
    if warm:
        jax.block_until_ready(call())
    times = []
    for _ in range(laps):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]
