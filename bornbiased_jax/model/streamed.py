"""A model larger than memory: its blocks are read one at a time, and each is applied to all sequences.

The residual stream of all sequences lies in memory-mapped files meanwhile (:mod:`.scratch`), and the next block is read
while one is applied. The numbers are those of the model in memory for the same batches: a block is the same program.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import code, io, progress
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.scratch import NOTHING, Page
from bornbiased_jax.model.transformer import ReduceLayer, through_block
from bornbiased_jax.model.vocabulary import enter, final_norm
from bornbiased_jax.parallel import on_host
from bornbiased_jax.parameters import Params, parameter_table, unflatten

Batch = np.ndarray | Callable[[], Any]
"""One batch of sequences, or a function that makes it: ids [B, T], or vectors [B, T, D] in place of embeddings."""


@dataclasses.dataclass(frozen=True, eq=False)
class StreamedWeights:
    """Weights that stay in their file; they stand where parameters do in whatever goes through :func:`over_batches`.

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


class Reading(NamedTuple):
    """What is read of a forward pass, as :func:`bornbiased_jax.model.apply` takes it."""

    capture: tuple[str, ...] = ()
    reduce: ReduceLayer | None = None
    positions: Literal["all", "last"] = "all"
    settings: tuple[Any, ...] = ()
    """Whatever else ``reduce`` and ``finish`` depend on, JSON-ready: another pass has other settings."""
    enter: Callable[[np.ndarray], np.ndarray] | None = None
    """From a batch to what enters the model, where that is not the batch itself."""
    needs: tuple[str, ...] = ()
    """Parameters outside the blocks that ``finish`` takes, beside the final norm's."""
    finish: Callable[[Params, jax.Array, jax.Array], Any] | None = None
    """From the parameters outside the blocks, the output of the final norm and the batch to what is kept of them. A
    pass gives that; without it, what was captured of all blocks [L, …]."""


def over_batches(
    weights: Weights,
    batches: Sequence[Batch],
    in_memory: Callable[[Params, Any], Any],
    reading: Reading,
    *,
    workers: int = 1,
) -> Iterator[Any]:
    """Run a forward pass for each batch and yield the results in order, on the host.

    Args:
        weights: parameters, or where they lie.
        batches: of one length T.
        in_memory: what is done with parameters that are in memory and a batch; it gives what ``reading`` says.
        reading: what streamed weights are to give.
        workers: batches at once.

    Raises:
        InputError: the scratch folder is another's, or full.
    """
    if not isinstance(weights, StreamedWeights):
        return _whole(weights, batches, in_memory, workers)
    return _stream(weights, batches, reading, workers)


def _whole(
    params: Params, batches: Sequence[Batch], in_memory: Callable[[Params, Any], Any], workers: int
) -> Iterator[Any]:
    def compute(batch: Batch) -> Any:
        return jax.device_get(in_memory(params, _made(batch)))

    if workers == 1:
        yield from map(compute, batches)
        return
    threads = ThreadPoolExecutor(workers)
    try:
        # The first alone, so that one thread compiles and not each.
        yield from itertools.chain([compute(batches[0])], threads.map(compute, batches[1:]))
    finally:
        threads.shutdown(cancel_futures=True)


def _made(batch: Batch) -> Any:
    return batch() if callable(batch) else batch


def check_plain(weights: Weights, **changes: Any) -> None:
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


def _stream(weights: StreamedWeights, batches: Sequence[Batch], reading: Reading, workers: int) -> Iterator[Any]:
    cfg = weights.cfg
    key, shapes = _identify(weights, batches, reading)
    page = weights.pages.get(key) or Page(weights.scratch / key, shapes)
    io.check_writable(page.path / "lock")
    with io.locked(page.path / "lock", wait=False) as held:
        if not held:
            raise InputError(
                f"another process is at the same work in {page.path}: wait for it, or choose another folder"
            )
        completed = page.resume()
        weights.pages[key] = page
        run = _Program(cfg, reading)
        if not page.finished:
            label = f"{weights.name}, block by block"
            with progress.bar(cfg.num_layers, label, "blocks", completed=max(0, completed)) as advance:
                if completed == NOTHING:
                    _embed(weights, batches, reading, page)
                _through_blocks(weights, batches, page, run, max(0, completed), workers, advance)
    structure = run.structure(shapes[0], _made(batches[0]))
    for index in range(len(batches)):
        if reading.finish is not None:
            yield jax.tree.unflatten(structure, page.found(index))
        else:
            rows = zip(*(page.block(block, index) for block in range(cfg.num_layers)), strict=True)
            yield jax.tree.unflatten(structure, [np.stack(leaves) for leaves in rows])


class _Program:
    """The compiled parts of one pass."""

    def __init__(self, cfg: ModelConfig, reading: Reading) -> None:
        self.cfg, self.reading = cfg, reading
        self.block = jax.jit(self._block, static_argnames="last_only")
        self.end = jax.jit(self._end)
        self.last = jax.jit(self._last)

    def _block(self, weights: Params, stream: jax.Array, index: jax.Array, *, last_only: bool) -> tuple[jax.Array, Any]:
        positions_T = jnp.arange(stream.shape[1], dtype=jnp.int32)
        options: dict[str, Any] = dict(capture=self.reading.capture, reduce=self.reading.reduce, last_only=last_only)
        last = self.reading.positions == "last"
        stream, captured, _ = through_block(self.cfg, weights, stream, positions_T, index, last=last, **options)
        return stream, captured

    def _end(self, outside: Params, stream: jax.Array, batch: jax.Array) -> Any:
        if self.reading.finish is None:
            return ()
        return self.reading.finish(outside, final_norm(self.cfg, outside, stream), batch)

    def _last(
        self, weights: Params, stream: jax.Array, index: jax.Array, outside: Params, batch: jax.Array
    ) -> tuple[Any, Any]:
        # The stream itself is not given: a compiler that must store it rounds what follows otherwise.
        stream, captured = self._block(weights, stream, index, last_only=True)
        return captured, self._end(outside, stream, batch)

    def structure(self, shape: tuple[int, int, int], batch: Any) -> Any:
        """Return the tree structure of a batch's result, without computing it."""
        table = parameter_table(self.cfg)

        def abstract(paths: Iterator[str]) -> Params:
            rows = {path: table[path] for path in paths}
            return unflatten(
                {
                    path.removeprefix("blocks/"): jax.ShapeDtypeStruct(row.block_shape, jnp.float32)
                    for path, row in rows.items()
                }
            )

        stream = jax.ShapeDtypeStruct(shape, jnp.float32)
        if self.reading.finish is None:
            block = abstract(path for path, row in table.items() if row.is_stacked)
            index = jax.ShapeDtypeStruct((), jnp.int32)
            result = jax.eval_shape(functools.partial(self._block, last_only=False), block, stream, index)[1]
        else:
            outside = abstract(iter(outside_paths(self.cfg, self.reading.needs)))
            result = jax.eval_shape(self._end, outside, stream, jnp.asarray(batch))
        return jax.tree.structure(result)


def outside_paths(cfg: ModelConfig, needs: Sequence[str]) -> list[str]:
    """Return the paths of the final norm's parameters, and of those in ``needs``."""
    return [path for path in parameter_table(cfg) if path.startswith("final_norm/") or path in needs]


def _identify(
    weights: StreamedWeights, batches: Sequence[Batch], reading: Reading
) -> tuple[str, list[tuple[int, int, int]]]:
    """Return the key of a pass, from all that its numbers depend on, and the shape of each batch's residual stream."""
    programs = [
        through_block,
        *(function for function in (reading.reduce, reading.finish, reading.enter) if function is not None),
    ]
    facts = [weights.identity, weights.cfg.to_dict(), reading.capture, reading.positions, reading.settings]
    facts += [
        reading.needs,
        [code.code_digest(function) for function in programs],
        jax.__version__,
        jax.default_backend(),
    ]
    hasher = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    shapes = []
    for batch in batches:
        x = np.ascontiguousarray(_made(batch))
        hasher.update(f"{x.dtype.str}{x.shape}".encode())
        hasher.update(x.view(np.uint8).data)
        entered = x if reading.enter is None else reading.enter(x)
        shapes.append((entered.shape[0], entered.shape[1], weights.cfg.d_model))
    return hasher.hexdigest()[:24], shapes


def _embed(weights: StreamedWeights, batches: Sequence[Batch], reading: Reading, page: Page) -> None:
    """Store each batch's residual stream before the first block: the same sums as in memory, which round once."""
    cfg = weights.cfg
    table_VD = weights.read("embed/embedding", None)
    places_TD = weights.read("positions/embedding", None) if cfg.positions == "learned" else None
    digests = []
    for index, batch in enumerate(batches):
        x = np.asarray(_made(batch))
        x = x if reading.enter is None else reading.enter(x)
        rows_BTD = table_VD[x] if x.ndim == 2 else x
        stream_BTD = enter(cfg, rows_BTD, None if places_TD is None else places_TD[: x.shape[1]])
        digests.append(page.write_stream(0, index, stream_BTD))
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
    # In memory the last block and what follows are one program where only the last position goes on, else not.
    joined = run.reading.positions == "last"
    with ThreadPoolExecutor(1) as ahead, ThreadPoolExecutor(workers) as threads:
        # A rerun begins after the last complete block.
        coming = ahead.submit(weights.read_block, completed) if completed <= last else None
        for block in range(completed, last + 1):
            assert coming is not None
            held = coming.result()
            # Read the next block while this one is applied.
            coming = ahead.submit(weights.read_block, block + 1) if block < last else None
            if joined and block == last:
                break

            def work(batch: int, block: int = block, held: Params = held) -> tuple[str, list[np.ndarray]]:
                stream = jnp.asarray(page.read_stream(block, batch))
                stream, captured = run.block(held, stream, np.int32(block), last_only=False)
                return page.write_stream(block + 1, batch, np.asarray(stream)), _leaves(captured)

            # The first alone, so that one thread compiles and not each.
            digests, captured = zip(work(0), *threads.map(work, range(1, len(batches))), strict=True)
            page.commit(block + 1, digests, captured)
            advance()
        # The end of the pass: final norm and outputs, with the last block where the two are joined.
        outside = _outside(weights, run.reading)

        def end(index: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
            stream, batch = (
                jnp.asarray(page.read_stream(last + (not joined), index)),
                jnp.asarray(_made(batches[index])),
            )
            if not joined:
                return [], _leaves(run.end(outside, stream, batch))
            captured, outputs = run.last(held, stream, np.int32(last), outside, batch)
            return _leaves(captured), _leaves(outputs)

        captured, outputs = zip(end(0), *threads.map(end, range(1, len(batches))), strict=True)
        page.finish(captured if joined else [], outputs, last + 1)
        if joined:
            advance()


def _outside(weights: StreamedWeights, reading: Reading) -> Params:
    """Return the parameters outside the blocks that the end of a pass takes."""
    if reading.finish is None:
        return {}
    paths = outside_paths(weights.cfg, reading.needs)
    return unflatten({path: jnp.asarray(weights.read(path, None)) for path in paths})


def _leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
