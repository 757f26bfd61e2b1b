"""What each command needs, from its arguments as the command line parsed them.

Nothing is run, and no weights are read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from bornbiased_jax import hardware, parallel
from bornbiased_jax.checkpoints.shape import Shape, read_shape
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.inputs import random_tokens
from bornbiased_jax.models.memory import (
    FLOAT,
    birth_bytes,
    forward_bytes,
    largest_tensor_bytes,
    streamed_bytes,
    weights_bytes,
)
from bornbiased_jax.models.operations import loop_operations, needed_operations
from bornbiased_jax.plan.needs import Needs, Part, Work
from bornbiased_jax.plan.rates import coordinate_operations
from bornbiased_jax.pretrain.cpu_shards import ROWS, ROWS_SHARD, cache_chunks, cpu_shards_for
from bornbiased_jax.pretrain.settings import PretrainConfig
from bornbiased_jax.pretrain.setup import memory_needed
from bornbiased_jax.pretrain.throughput import flops_per_token
from bornbiased_jax.probes.measure import BATCH_TOKENS, BATCH_TOKENS_CPU, work_of
from bornbiased_jax.seedprint.outputs import MAX_SHARDS
from bornbiased_jax.seedprint.trace import NUM_INPUTS, SEQ_LEN
from bornbiased_jax.sweep import plan as lay_out

BFLOAT16 = 2
"""Bytes of a number stored as bfloat16."""
_DISK = "reading weights from disk"
_COMPILING = "compiling (some seconds for each program)"


@dataclasses.dataclass(frozen=True)
class Planned:
    """A command line that was parsed and not run.

    Attributes:
        command: its words ("probe preference").
        arguments: by parameter.
        seeds, lengths: what --seeds and --seq-len mean, where the command has them.
        cfg: the model of --model and --set, where it was given.
        pretraining: the run that ``pretrain`` would make.
        on: the accelerator in question; None for this machine.
    """

    command: str
    arguments: Mapping[str, Any]
    seeds: Sequence[int] = ()
    lengths: Sequence[int] = ()
    cfg: ModelConfig | None = None
    pretraining: PretrainConfig | None = None
    on: str | None = None

    @property
    def on_cpu(self) -> bool:
        """Whether products are made by a CPU."""
        return self.on is None and jax.default_backend() == "cpu"

    @property
    def devices(self) -> int | None:
        """What the command's mesh says."""
        text = self.arguments.get("mesh")
        if not text:
            return None
        sizes = parallel.parse_mesh(text)
        return sizes["seed"] * sizes["data"] * sizes["fsdp"]

    @property
    def processes(self) -> int:
        """How many processes of this machine work at once."""
        elsewhere = self.arguments.get("engine", "local") == "processes"
        return (self.arguments.get("workers") or 2) if elsewhere and self.on is None else 1


def needs_of(planned: Planned) -> Needs:
    """What a command needs.

    Raises:
        InputError: it cannot be planned, or the command itself would refuse its arguments.
    """
    if planned.command not in PLANNED:
        raise InputError(
            f"{planned.command} cannot be planned, its needs hang on what it reads: plan {', '.join(PLANNED)}"
        )
    return PLANNED[planned.command](planned)


def _probe(planned: Planned) -> Needs:
    """Births one after the other or side by side, or one checkpoint, on the same inputs."""
    given, intra = planned.arguments, planned.command == "probe contraction"
    checkpoint = None if given["checkpoint"] is None else read_shape(given["checkpoint"])
    cfg = planned.cfg if checkpoint is None else checkpoint.cfg
    assert cfg is not None
    count = len(set(planned.seeds)) if checkpoint is None else 1
    number, longest = given["num_inputs"], max(planned.lengths)
    if number < 2:
        raise InputError("num_inputs=1 leaves nothing to compare: give at least 2")
    batch = _batch(planned, number, longest)
    for length in planned.lengths:
        random_tokens(2, length, cfg.vocab_size).check_fits(cfg)
    weights = weights_bytes(cfg)
    if checkpoint is None:
        work = work_of(
            cfg, True, given["embedding_seed"] if given["fix_embeddings"] else None, None, intra, False, None
        )
        # What the sweep itself would do here; elsewhere at least one seed at a time, and more as memory allows.
        layout = None
        if planned.on_cpu:
            steady = given["resume"] is not None
            how = {"mode": given["mode"], "chunk": given["chunk"], "steady": steady}
            layout = lay_out(work, {}, count, **how) if given["mode"] != "vmap" else None
        held, shards = (layout.chunk, layout.cpu_shards) if layout else (given["chunk"] or 1, 1)
        drawn = birth_bytes(cfg, in_one_program=True) + (weights if layout and layout.at_once > 1 else 0)
        memory = [
            Part(f"weights of {held:,} of the seeds", held * weights),
            Part("drawing them", shards * drawn, turn="before"),
        ]
        draws = len(planned.lengths) * count * weights / FLOAT
    else:
        shards, draws = 1, _draws(checkpoint)
        memory = [Part("weights", weights, divided=True), _loading(checkpoint)]
    forward = shards * forward_bytes(cfg, batch, longest, logits=1)
    memory.append(Part(f"forward passes of {shards * batch:,} sequences", forward, turn="passes"))
    memory.append(Part("inputs", 16.0 * number))
    operations = 0.0
    for length in planned.lengths:
        every = loop_operations(cfg, length) if intra else needed_operations(cfg, length)
        operations += count * number * every
    what = _count(count, "birth") if checkpoint is None else "one checkpoint"
    lengths = ", ".join(map(str, planned.lengths))
    return Needs(
        what=f"{what} of {_size(cfg)} on {number:,} sequences of {lengths} tokens",
        cfg=cfg,
        seq_len=longest,
        batch=batch,
        dtype="float32",
        memory=tuple(memory),
        work=(Work("drawing births", draws, "draws"), Work("forward passes", operations, "forward passes", operations)),
        devices=planned.devices,
        processes=planned.processes,
        left_out=(_COMPILING,) + ((_DISK,) if checkpoint is not None else ()),
    )


def _fingerprint(planned: Planned) -> Needs:
    """The outputs of one model at the last position."""
    given, shape = planned.arguments, read_shape(planned.arguments["checkpoint"])
    passes = _outputs(planned, [shape], bool(given["stream"]))
    return passes._replace(what=f"a fingerprint of {_size(shape.cfg)} on {passes.what}")


def _outputs(planned: Planned, shapes: list[Shape], streamed: bool) -> Needs:
    """The outputs of one or two models, both in memory until they are compared."""
    given, cfg = planned.arguments, shapes[0].cfg
    number = given["num_inputs"] or NUM_INPUTS
    length = given["seq_len"] or min(SEQ_LEN, *(shape.cfg.max_seq_len for shape in shapes), SEQ_LEN)
    random_tokens(1, length, cfg.vocab_size).check_fits(cfg)
    batch = _batch(planned, number, length)
    shards = min(MAX_SHARDS, hardware.cores()) if planned.on_cpu and planned.devices is None else 1
    # The first batch, which compiles, goes through alone.
    shards = max(1, min(shards, -(-number // batch) - 1))
    number_bytes = BFLOAT16 if given.get("storage") == "bfloat16" else FLOAT
    part = number_bytes / FLOAT
    forward = shards * max(forward_bytes(shape.cfg, batch, length) for shape in shapes)
    if streamed:
        memory = [Part("two blocks, or the vocabulary", part * max(streamed_bytes(shape.cfg) for shape in shapes))]
        memory.append(Part("forward passes", forward, turn="passes"))
        # A file's blocks are read while others are applied, which is in the account of two.
        drawn = max((3 * largest_tensor_bytes(shape.cfg) for shape in shapes if shape.kind == "birth"), default=0)
        memory.append(Part("drawing one of them", drawn, turn="before"))
    else:
        weights = sum(part * weights_bytes(shape.cfg) for shape in shapes)
        memory = [Part("weights", weights, divided=True), Part("forward passes", forward, divided=True, turn="passes")]
        loading = max(map(_loading, shapes), key=lambda needed: needed.bytes)
        memory.append(loading._replace(bytes=part * loading.bytes))
    memory.append(Part("outputs", 4.0 * number * sum(shape.cfg.d_model for shape in shapes), on_host=True))
    operations = sum(
        number * (needed_operations(shape.cfg, length) - 2.0 * shape.cfg.d_model * shape.cfg.vocab_size)
        for shape in shapes
    )
    work = [Work("forward passes", operations, "forward passes", operations)]
    work.append(Work("drawing births", sum(map(_draws, shapes)), "draws"))
    left_out = [_COMPILING]
    if any(shape.kind != "birth" for shape in shapes):
        left_out.append(_DISK)
    return Needs(
        what=f"{number:,} sequences of {length:,} tokens",
        cfg=cfg,
        seq_len=length,
        batch=batch,
        dtype="float32",
        memory=tuple(memory),
        work=tuple(work),
        devices=planned.devices,
        processes=planned.processes,
        streamed=streamed,
        left_out=tuple(left_out),
    )


def _seedprint(planned: Planned) -> Needs:
    """Two models compared in their weights, tensor by tensor, or in their outputs."""
    given = planned.arguments
    shapes = [read_shape(given[side]) for side in ("base", "suspect")]
    test = given["test"] or "auto"
    pair = f"{_size(shapes[0].cfg)} and {_size(shapes[1].cfg)}"
    if test in ("permutation", "paper", "iclr"):
        passes = _outputs(planned, shapes, bool(given["stream"]))
        return passes._replace(what=f"--test {test} of {pair} on {passes.what}")
    other = given["align"] not in (None, "none") or given["labels"] == "units"
    if test not in ("auto", "weights") or other:
        raise InputError(
            f"seedprint --test {test}{' on hidden units' if other else ''} cannot be planned: plan --test weights, "
            "auto, permutation, paper or iclr"
        )
    return _in_the_weights(shapes, test, pair)


def _in_the_weights(shapes: list[Shape], test: str, pair: str) -> Needs:
    base, suspect = (shape.cfg for shape in shapes)
    small = min((base, suspect), key=weights_bytes)
    D, F = min(base.d_model, suspect.d_model), min(base.d_ff, suspect.d_ff)
    largest = max(largest_tensor_bytes(cfg) for cfg in (base, suspect))
    births = any(shape.kind == "birth" for shape in shapes)
    # Both sides of a matrix as they are read and as they are compared; one more while a birth's is drawn.
    memory = [
        Part("a matrix of each model, read and prepared", (5 if births else 4) * largest),
        Part("scores of coordinates", 3 * 8.0 * D * D),
    ]
    products = coordinate_operations(small)
    permuted = float(D * D)
    left_out = [_COMPILING]
    if test == "auto":
        units = 2.0 * (3 if small.gated_mlp else 2) * F * F * D * small.num_layers
        # Rows of two vocabularies, and a decomposition that costs about 90 products of its size (weights_7b).
        turned = 2.0 * 4 * small.vocab_size * D * D + 90.0 * D**3
        products += units + turned
        permuted += F * F * small.num_layers
        memory.append(Part("scores of hidden units", 3 * 4.0 * F * F))
        left_out.append("matching hidden units, and comparing logits where models may be the same")
    if not births:
        left_out.append(_DISK)
    drawn = sum(map(_draws, shapes)) * (1 if test == "weights" else 2)
    return Needs(
        what=f"--test {test} of {pair}",
        cfg=small,
        seq_len=1,
        batch=1,
        dtype="float32",
        memory=tuple(memory),
        work=(
            Work("products of weights", products, "products", products),
            Work("permutations", permuted, "permutations"),
            Work("drawing births", drawn, "draws one by one"),
        ),
        host_only=True,
        left_out=tuple(left_out),
    )


def _pretrain(planned: Planned) -> Needs:
    """Updates of every seed, and the state that they change."""
    config = planned.pretraining
    assert config is not None
    if config.steps is None:
        raise InputError("how many steps an epoch has is known from the data alone, which is not read: give --steps")
    cfg, seeds = config.model, len(config.seeds)
    weights = weights_bytes(cfg)
    alone = dataclasses.replace(config, mesh=None)
    shards = cpu_shards_for(cfg, config.batch_size) if planned.on_cpu else 1
    per_shard = config.batch_size // shards if planned.on_cpu else config.micro_batch
    rows = ROWS if shards == 1 else ROWS_SHARD
    chunks = cache_chunks(per_shard, config.context, rows) if planned.on_cpu else 1
    sequences = per_shard // chunks
    half = 0.5 if config.dtype == "bfloat16" else 1.0
    logits = 3 * FLOAT * sequences * min(config.context, 1024) * cfg.vocab_size
    kept = half * forward_bytes(cfg, sequences, config.context, kept=not config.remat) + logits
    # One gradient is in the state's account. On a CPU each part has its own beside their sum.
    # Every seed's gradients wait for its update, and where a batch is cut one sum is under way.
    in_turn = planned.on_cpu and planned.devices in (None, 1)
    sums = shards * (seeds + int(chunks > 1)) if in_turn else int(config.accumulation > 1)
    memory = [
        Part("weights, the optimiser's means and a gradient", memory_needed(alone).state, divided=True),
        Part("gradients of parts", sums * weights, divided=True),
        # The axes that cut the weights cut the batch as well.
        Part(f"activations of {shards * sequences:,} sequences", shards * kept, divided=True),
        Part("a checkpoint being written", 3.0 * seeds * weights, on_host=True),
    ]
    if in_turn and seeds > 1:
        memory.append(Part("the state as one, to be written", 3.0 * seeds * weights))
    tokens = float(config.steps) * config.tokens_per_step * seeds
    operations = tokens * flops_per_token(cfg, config.context)
    left_out = [_COMPILING, "tokenising the data and writing checkpoints"]
    return Needs(
        what=f"{_count(seeds, 'seed')} of {_size(cfg)} on {tokens / seeds:,.0f} tokens each",
        cfg=cfg,
        seq_len=config.context,
        batch=sequences,
        dtype=config.dtype,
        memory=tuple(memory),
        work=(
            Work("forward and backward passes", operations, "training", operations),
            Work("updates", float(config.steps) * seeds * weights / FLOAT, "updates"),
        ),
        devices=planned.devices,
        left_out=tuple(left_out),
        sequences=(sequences, shards),
    )


PLANNED: Mapping[str, Callable[[Planned], Needs]] = {
    "probe preference": _probe,
    "probe contraction": _probe,
    "fingerprint": _fingerprint,
    "seedprint": _seedprint,
    "pretrain": _pretrain,
}


def _batch(planned: Planned, number: int, length: int) -> int:
    tokens = BATCH_TOKENS_CPU if planned.on_cpu else BATCH_TOKENS
    return int(min(planned.arguments["batch_size"] or max(1, tokens // length), number))


def _draws(shape: Shape) -> float:
    """Numbers that are drawn where a model is a birth."""
    return weights_bytes(shape.cfg) / FLOAT if shape.kind == "birth" else 0.0


def _loading(shape: Shape) -> Part:
    """What drawing or reading the weights takes beside them."""
    if shape.kind == "birth":
        return Part("drawing them", birth_bytes(shape.cfg, in_one_program=False), divided=True, turn="before")
    return Part("loading them", 2 * largest_tensor_bytes(shape.cfg), on_host=True, turn="before")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _size(cfg: ModelConfig) -> str:
    """A model's parameters in words: "124M parameters"."""
    number = weights_bytes(cfg) / FLOAT
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{name} parameters"
    return f"{number:,.0f} parameters"
