"""One forward pass over batches, whether the weights lie in memory, on several devices or in their file.

A model larger than memory is read block by block, and each block is applied to all sequences. The residual stream of
all sequences lies in memory-mapped files meanwhile (:mod:`.scratch`), and the next block is read while one is applied.
The numbers are those of the model in memory for the same batches: a block is the same program.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import code, io, progress
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import parameter_shapes
from bornbiased_jax.model.interventions import as_edits
from bornbiased_jax.model.layers import STATIC
from bornbiased_jax.model.model import (
    PLAIN,
    BlockProgram,
    ForwardOptions,
    Positions,
    ReduceLayer,
    apply,
    enter,
    final_norm,
    head_path,
    logits_of,
)
from bornbiased_jax.model.scratch import NOTHING, Page, array_digest, describe
from bornbiased_jax.parallel import PyTree, on_host
from bornbiased_jax.parameters import Params, parameter_table, unflatten
from bornbiased_jax.record import computing_device

Batch = np.ndarray | Callable[[], Any]
"""One batch of sequences, or a function that makes it: ids [B, T], or vectors [B, T, D] in place of embeddings."""

LARGE = 1e3
"""No trained model has a weight of this size, and products of smaller ones stay within float32."""
_SEQUENCES, _LENGTH = 2, 4


class Overflow(InputError):
    """The forward pass of some weights leaves the range of their numbers: whatever comes of it says nothing."""


@dataclasses.dataclass(frozen=True, eq=False)
class StreamedWeights:
    """Weights that stay in their file; they stand where parameters do in whatever goes through :func:`forward_batches`.

    Attributes:
        cfg: the architecture.
        read: one parameter by path, of one block (from 0) where it lies in the blocks: float32, in C order.
        read_block: all parameters of one block, on the device.
        largest: the largest size of any weight.
        identity: what tells these weights from others, without reading them.
        scratch: the folder below which passes keep what they have.
        name: for the progress display.
        pages: of the passes so far, kept until :meth:`clear`.
    """

    cfg: ModelConfig
    read: Callable[[str, int | None], np.ndarray]
    read_block: Callable[[int], Params]
    largest: Callable[[], float]
    identity: str
    scratch: Path
    name: str
    pages: dict[str, Page] = dataclasses.field(default_factory=dict)

    def clear(self) -> None:
        """Remove the pages of the passes, once the work that they were for is complete."""
        for page in self.pages.values():
            page.remove()
        self.pages.clear()


Weights = Params | StreamedWeights
"""A model's parameters in memory, or in their file."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Reading:
    """The values that a pass reads of a model: activations of its blocks, or a function of the final norm's output.

    ``reduce`` and ``finish`` are functions of a module, or frozen dataclasses whose arrays and numbers are leaves of a
    pytree: their code and their numbers tell one pass from another.

    Attributes:
        capture, reduce, positions: as :func:`bornbiased_jax.model.apply` takes them.
        finish: makes what the pass gives of the configuration, the parameters outside the blocks, the output of the
            final norm and the batch. Without it, a pass gives what was captured of all blocks [L, …].
        needs: parameters outside the blocks that ``finish`` takes, besides the final norm's.
        inputs: makes the model's inputs of a batch, on the host, where they are not the batch itself.
    """

    capture: tuple[str, ...] = dataclasses.field(default=(), metadata=STATIC)
    reduce: ReduceLayer | None = None
    positions: Positions = dataclasses.field(default="all", metadata=STATIC)
    finish: Callable[[ModelConfig, Params, jax.Array, jax.Array], PyTree] | None = None
    needs: tuple[str, ...] = dataclasses.field(default=(), metadata=STATIC)
    inputs: Callable[[np.ndarray], np.ndarray] | None = dataclasses.field(default=None, metadata=STATIC)

    def inputs_of(self, batch: np.ndarray) -> np.ndarray:
        """Return what enters the model of a batch."""
        return batch if self.inputs is None else self.inputs(batch)


def forward_batches(
    cfg: ModelConfig,
    weights: Weights,
    batches: Sequence[Batch],
    reading: Reading,
    options: ForwardOptions = PLAIN,
    *,
    workers: int = 1,
) -> Iterator[PyTree]:
    """Run a forward pass for each batch and yield the results in order, on the host.

    Args:
        cfg: the architecture.
        weights: parameters, on one device or several, or where they lie.
        batches: of one length T.
        reading: what the pass gives.
        options: of the pass. Streamed weights compute in float32, one block after the other, and have no caches.
        workers: batches at once.

    Raises:
        InputError: the scratch folder is another's, or full; a cache of streamed weights.
    """
    options = dataclasses.replace(options, edit=as_edits(options.edit))
    if isinstance(weights, StreamedWeights):
        check_plain(weights, cache=options.cache, rolling=options.rolling)
        return _stream(weights, batches, reading, options, workers)
    return _in_memory(cfg, weights, batches, reading, options, workers)


def _in_memory(
    cfg: ModelConfig,
    params: Params,
    batches: Sequence[Batch],
    reading: Reading,
    options: ForwardOptions,
    workers: int,
) -> Iterator[PyTree]:
    # Functions go into the compiled program's structure, the numbers that they carry into its arguments.
    traceable = _traceable(reading)

    def compute(batch: Batch) -> PyTree:
        x = _generate(batch)
        # What several processes share is gathered.
        return jax.tree.map(on_host, _forward(cfg, params, reading.inputs_of(x), x, traceable, options))

    if workers == 1:
        yield from map(compute, batches)
        return
    threads = ThreadPoolExecutor(workers)
    try:
        # The first alone, so that one thread compiles and not each.
        yield from itertools.chain([compute(batches[0])], threads.map(compute, batches[1:]))
    finally:
        threads.shutdown(cancel_futures=True)


@functools.partial(jax.jit, static_argnames="cfg")
def _forward(
    cfg: ModelConfig, params: Params, x: jax.Array, batch: jax.Array, reading: Reading, options: ForwardOptions
) -> PyTree:
    out = apply(
        cfg,
        params,
        x,
        positions=reading.positions,
        logits=False,
        capture=reading.capture,
        reduce=reading.reduce,
        options=options,
    )
    return out.layers if reading.finish is None else reading.finish(cfg, params, out.final_BTD, batch)


def _traceable(reading: Reading) -> Reading:
    """Return a pytree: functions of a module have no leaves, others are pytrees themselves."""

    def wrapped(function: Callable[..., PyTree] | None) -> Callable[..., PyTree] | None:
        return jax.tree_util.Partial(function) if inspect.isfunction(function) else function

    return dataclasses.replace(reading, reduce=wrapped(reading.reduce), finish=wrapped(reading.finish))


def _generate(batch: Batch) -> np.ndarray:
    # Inputs that a seed determines are drawn when they are needed, and not held.
    return batch() if callable(batch) else batch


def check_plain(weights: Weights, **changes: object) -> None:
    """Refuse changes of a forward pass that a pass block by block does not make.

    Raises:
        InputError: the weights are streamed, and one of ``changes`` is not None.
    """
    for name, value in changes.items():
        if value is not None and isinstance(weights, StreamedWeights):
            raise InputError(f"{name} needs the weights in memory: open the model without streaming it")


def parameter(weights: Weights, path: str, layer: int | None = None) -> np.ndarray:
    """Return one parameter by path ("blocks/mlp/up/kernel"), of one block where it lies in the blocks; on the host."""
    if isinstance(weights, StreamedWeights):
        return weights.read(path, layer)
    leaf: Any = weights
    for name in path.split("/"):
        leaf = leaf[name]
    # The leaf first: a part of a device's array would be one copy more.
    return on_host(leaf) if layer is None else on_host(leaf)[layer]


def check_overflow(
    cfg: ModelConfig, weights: Weights, remedy: str = "check them, or train or export them again"
) -> None:
    """Refuse weights whose forward pass overflows float32 on a few ids; those without a large weight are not tried.

    Args:
        cfg: of the model.
        weights: in memory or streamed.
        remedy: what to do about it.

    Raises:
        Overflow: the stream, its squares or the logits are not finite.
    """
    if isinstance(weights, StreamedWeights):
        largest = weights.largest()
    else:
        # Not the largest of all sizes, which would be an array as large as the leaf.
        ends = [(float(jnp.max(leaf)), -float(jnp.min(leaf))) for leaf in jax.tree.leaves(weights)]
        # NaN in any leaf stays NaN here, which Python's max may pass over.
        largest = float(np.max(ends))
    if largest <= LARGE:
        return
    # A few ids of the vocabulary: an overflow shows whatever the text is.
    length = min(_LENGTH, cfg.max_seq_len)
    ids = np.arange(_SEQUENCES * length, dtype=np.int32).reshape(_SEQUENCES, length) % cfg.vocab_size
    in_float32 = ForwardOptions(dtype=jnp.float32)
    readings = [
        Reading(capture=("residual",), reduce=_largest_square),
        Reading(finish=_largest_outputs, needs=(head_path(cfg),)),
    ]
    # Squares of the residual stream are what norms sum up; logits are what follows the last of them.
    results = [list(forward_batches(cfg, weights, [ids], reading, in_float32)) for reading in readings]
    if not all(bool(np.isfinite(values).all()) for values in jax.tree.leaves(results)):
        raise Overflow(
            f"the forward pass of these weights overflows float32 (the largest of them is {largest:.3g}): {remedy}"
        )


# The largest alone: of arrays that several processes share, each has it.
def _largest_square(captured: dict[str, jax.Array]) -> jax.Array:
    return jnp.max(jnp.square(captured["residual"]))


def _largest_outputs(
    cfg: ModelConfig, outside: Params, final_BTD: jax.Array, _ids: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return jnp.max(jnp.square(final_BTD)), jnp.max(jnp.abs(logits_of(cfg, outside, final_BTD)))


def _stream(
    weights: StreamedWeights, batches: Sequence[Batch], reading: Reading, options: ForwardOptions, workers: int
) -> Iterator[PyTree]:
    cfg = weights.cfg
    # Results are stored as flat lists of arrays: they have the structure of the same pass in memory, which is traced.
    batch = _generate(batches[0])
    in_memory = functools.partial(_forward, cfg)
    result = jax.eval_shape(
        in_memory, parameter_shapes(cfg), reading.inputs_of(batch), batch, _traceable(reading), options
    )
    structure = jax.tree.structure(result)
    # The same pass again finds its page, and resumes where it ended.
    key, shapes = _identify(weights, batches, reading, options)
    page = weights.pages.get(key) or Page(weights.scratch / key, shapes)
    io.check_writable(page.path / "lock")
    with io.locked(page.path / "lock", wait=False) as is_locked:
        if not is_locked:
            raise InputError(
                f"another process is at the same work in {page.path}: wait for it, or choose another folder"
            )
        completed = page.resume()
        weights.pages[key] = page
        run = _Program(cfg, reading, options)
        if not page.finished:
            label = f"{weights.name}, block by block"
            with progress.bar(cfg.num_layers, label, "blocks", completed=max(0, completed)) as advance:
                if completed == NOTHING:
                    _embed(weights, batches, reading, page)
                _through_blocks(weights, batches, page, run, max(0, completed), workers, advance)
    for index in range(len(batches)):
        if reading.finish is not None:
            yield jax.tree.unflatten(structure, page.output(index))
        else:
            rows = zip(*(page.block(block, index) for block in range(cfg.num_layers)), strict=True)
            yield jax.tree.unflatten(structure, [np.stack(leaves) for leaves in rows])


class _Program:
    """The compiled parts of one pass."""

    def __init__(self, cfg: ModelConfig, reading: Reading, options: ForwardOptions) -> None:
        self.cfg, self.reading = cfg, reading
        self._of_block = BlockProgram(cfg, reading.capture, reading.reduce, reading.positions, options)
        self.block = jax.jit(self._block, static_argnames="is_final")
        self.end = jax.jit(self._end)
        self.last = jax.jit(self._last)

    def _block(
        self, weights: Params, stream: jax.Array, index: jax.Array, *, is_final: bool
    ) -> tuple[jax.Array, PyTree]:
        positions_T = jnp.arange(stream.shape[1], dtype=jnp.int32)
        stream, captured, _ = self._of_block(weights, stream, positions_T, index, is_final=is_final)
        return stream, captured

    def _end(self, outside: Params, stream: jax.Array, batch: jax.Array) -> PyTree:
        if self.reading.finish is None:
            return ()
        return self.reading.finish(self.cfg, outside, final_norm(self.cfg, outside, stream), batch)

    def _last(
        self, weights: Params, stream: jax.Array, index: jax.Array, outside: Params, batch: jax.Array
    ) -> tuple[PyTree, PyTree]:
        # The stream itself is not given: a compiler that must store it rounds what follows otherwise.
        stream, captured = self._block(weights, stream, index, is_final=True)
        return captured, self._end(outside, stream, batch)


def _identify(
    weights: StreamedWeights, batches: Sequence[Batch], reading: Reading, options: ForwardOptions
) -> tuple[str, list[tuple[int, int, int]]]:
    """Return the key of a pass, from all that its numbers depend on, and the shape of each batch's residual stream."""
    # The model, what is read of it, and the code that computes it.
    edits = as_edits(options.edit)._asdict()
    facts: list[object] = [weights.identity, weights.cfg.to_dict(), reading.capture, reading.positions, reading.needs]
    facts += [describe(function) for function in (reading.reduce, reading.finish, reading.inputs)]
    facts += [{site: describe(edit) for site, edit in edits.items() if edit is not None}, str(options.precision)]
    # Compilers and devices round differently.
    facts += [code.code_digest(BlockProgram), jax.__version__, computing_device()]
    hasher = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    # The inputs themselves, batch by batch.
    shapes = []
    for batch in batches:
        x = np.ascontiguousarray(_generate(batch))
        hasher.update(array_digest(x).encode())
        entered = reading.inputs_of(x)
        shapes.append((entered.shape[0], entered.shape[1], weights.cfg.d_model))
    return hasher.hexdigest()[:24], shapes


def _embed(weights: StreamedWeights, batches: Sequence[Batch], reading: Reading, page: Page) -> None:
    """Store each batch's residual stream before the first block."""
    cfg = weights.cfg
    # Compiled as in memory, where a product and a sum may be rounded once.
    compiled = jax.jit(enter, static_argnums=0)
    table_VD = weights.read("embed/embedding", None)
    places_TD = weights.read("positions/embedding", None) if cfg.positions == "learned" else None
    digests = []
    for index, batch in enumerate(batches):
        x = reading.inputs_of(np.asarray(_generate(batch)))
        # Rows of the tables are taken on the host: the device need not hold them.
        rows_BTD = table_VD[x] if x.ndim == 2 else x
        stream_BTD = compiled(cfg, rows_BTD, None if places_TD is None else places_TD[: x.shape[1]])
        digests.append(page.write_stream(0, index, np.asarray(stream_BTD)))
    page.commit(0, digests, [])


def _through_blocks(
    weights: StreamedWeights,
    batches: Sequence[Batch],
    page: Page,
    run: _Program,
    completed: int,
    workers: int,
    advance: progress.Advance,
) -> None:
    """Apply the remaining blocks to all residual streams, and compute the outputs of the pass from these."""
    last = weights.cfg.num_layers - 1
    # In memory the last block and what follows are one program where only the last position continues, else not.
    is_joined = run.reading.positions == "last"
    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(workers) as threads:
        # A rerun begins after the last complete block.
        next_block = reader.submit(weights.read_block, completed) if completed <= last else None
        for block in range(completed, last + 1):
            assert next_block is not None
            block_weights = next_block.result()
            # Read the next block while this one is applied.
            next_block = reader.submit(weights.read_block, block + 1) if block < last else None
            if is_joined and block == last:
                break

            def work(
                batch: int, block: int = block, block_weights: Params = block_weights
            ) -> tuple[str, list[np.ndarray]]:
                stream = jnp.asarray(page.read_stream(block, batch))
                stream, captured = run.block(block_weights, stream, np.int32(block), is_final=False)
                return page.write_stream(block + 1, batch, np.asarray(stream)), _leaves(captured)

            # The first alone, so that one thread compiles and not each.
            digests, captured = zip(work(0), *threads.map(work, range(1, len(batches))), strict=True)
            page.commit(block + 1, digests, captured)
            advance()
        # The end of the pass: final norm and outputs, with the last block where the two are joined.
        outside = _outside(weights, run.reading)

        def end(index: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
            stream = jnp.asarray(page.read_stream(last + (not is_joined), index))
            batch = jnp.asarray(_generate(batches[index]))
            if not is_joined:
                return [], _leaves(run.end(outside, stream, batch))
            captured, outputs = run.last(block_weights, stream, np.int32(last), outside, batch)
            return _leaves(captured), _leaves(outputs)

        captured, outputs = zip(end(0), *threads.map(end, range(1, len(batches))), strict=True)
        page.finish(captured if is_joined else [], outputs, last + 1)
        if is_joined:
            advance()


def _outside(weights: StreamedWeights, reading: Reading) -> Params:
    """Return the parameters outside the blocks that the end of a pass takes."""
    if reading.finish is None:
        return {}
    table = parameter_table(weights.cfg)
    paths = [path for path in table if path.startswith("final_norm/") or path in reading.needs]
    return unflatten({path: jnp.asarray(weights.read(path, None)) for path in paths})


def _leaves(tree: PyTree) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
