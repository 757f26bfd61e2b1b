"""Run pretraining durably: from the first step, or from where it was stopped, to the last."""

from __future__ import annotations

import functools
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import parallel, progress
from bornbiased_jax.checkpoints.digests import digest
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.adapters import merge
from bornbiased_jax.text.protocol import Tokenizer
from bornbiased_jax.training import setup
from bornbiased_jax.training.checkpoints import Checkpointer
from bornbiased_jax.training.cpu_shards import stacked
from bornbiased_jax.training.data.windows import batches, held_out
from bornbiased_jax.training.in_memory import train
from bornbiased_jax.training.metrics import MetricsWriter, first_bad, mend_metrics, read_metrics
from bornbiased_jax.training.optimiser import optimiser as make_optimiser
from bornbiased_jax.training.optimiser import schedule
from bornbiased_jax.training.settings import PretrainConfig
from bornbiased_jax.training.step import State, loss_of
from bornbiased_jax.training.stop import Stop
from bornbiased_jax.training.throughput import TrainingClock, flops_per_token, matmul_peak

NOTE_SECONDS = 30.0
# Numbers of each seed, by name.
Values = dict[str, list[float]]


def pretrain(
    config: PretrainConfig, initial: Sequence[setup.Initial] | None = None, tokenizer: Tokenizer | None = None
) -> dict[str, Any]:
    """Train every seed of a run on the same data in the same order; resume where the run was stopped.

    Args:
        config: the run. Its folder is made, or holds the same run.
        initial: models to begin with instead of untrained ones: (architecture, weights) for each seed; or the one that
            an adapter is trained beside. ``config.init_from`` says where they came from.
        tokenizer: theirs; used unless ``config.tokenizer`` names another.

    Returns:
        JSON-ready: ``out``, ``seeds``, ``steps``, ``step`` (reached), ``finished`` (False after SIGTERM, which saves a
        checkpoint and stops), ``resumed_from`` (None for a new run), ``loss`` (None before the first step) and
        ``validation_loss`` by seed, ``digests`` of the weights by seed, ``tokens`` (seen by each seed),
        ``tokens_per_second`` (of all seeds, over the time that steps took since this call: compilation, evaluation and
        saving are left out; None without a step), ``peak_share`` (that rate as a fraction of the matrix-product rate
        measured here, at most 1), ``mode`` ("vmap" or "map").

    Raises:
        InputError: bad settings or data, a folder of another run or one that another process trains in, a full disk,
            data that vanished, or a loss that is not finite. Everything saved before is intact.
        KeyboardInterrupt: Ctrl-C; once training has begun, after a checkpoint was saved.
        SystemExit: SIGTERM before training began.
    """
    start_params = setup.check_initial(config, list(initial) if initial is not None else None)
    if (start_params is None) != (config.init_from is None):
        raise InputError("init_from names where the given weights came from: set both or neither")
    stop = Stop()
    with stop.listening():
        # Refuse what cannot run before any work.
        setup.check_folder(config)
        mesh = parallel.build_mesh(parallel.parse_mesh(config.mesh))
        part = parallel.batch_part(mesh, config.micro_batch)
        setup.check_memory(config)
        # Tokenize, or reuse the tokens of an earlier call.
        data = setup.load_data(config, tokenizer)
        steps = setup.total_steps(config, data.train)
        # Train while no other process may use the folder.
        with setup.holding(setup.output_folder(config)):
            folder = setup.claim_folder(config, data, steps, start_params, mesh.size)
            summary = _train(config, steps, mesh, part, data, folder, start_params, stop)
    if stop.signal == signal.SIGINT:
        raise KeyboardInterrupt
    return summary


def _train(
    config: PretrainConfig,
    steps: int,
    mesh: jax.sharding.Mesh,
    part: tuple[int, int],
    data: setup.Data,
    folder: Path,
    start_params: Any,
    stop: Stop,
) -> dict[str, Any]:
    """Restore or begin, train, save; return the summary."""
    # Optimizer, abstract state and data iterator.
    laid_out = setup.schedule_steps(folder, steps)
    optimiser = make_optimiser(config, laid_out)
    abstract = setup.abstract_state(config, optimiser, mesh)
    iterator = batches(data.train, batch_size=config.batch_size, data_seed=config.data_seed, part=part)
    checkpointer = Checkpointer(folder, config, steps)
    if jax.process_index() == 0:
        mend_metrics(folder)
    writer = None
    try:
        with stop.held():
            resumed = checkpointer.restore(abstract)
        if resumed is None:
            _check_fresh(folder)
            first, state = 0, setup.first_state(config, optimiser, abstract, start_params)
        else:
            first, state = resumed.step, resumed.state
            iterator.set_state(resumed.iterator)
            going = "going on after" if first < steps else "already finished, at"
            progress.note(f"{folder}: {going} step {first} of {steps}")
        if jax.process_index() == 0 and first < steps:
            writer = MetricsWriter(folder, first, config.seeds, tensorboard=config.tensorboard)
        if resumed is None:
            with stop.held():
                checkpointer.save(0, state, iterator.get_state())
        run = _Run(config, steps, laid_out, mesh, part, data, checkpointer, writer, iterator, stop)
        if config.adapter is not None:
            run.frozen = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), start_params)
        if first < steps:
            beside = () if run.frozen is None else (run.frozen,)
            run.program, run.mode = setup.compiled_step(config, optimiser, abstract, mesh, *beside)
            run.peak = matmul_peak(config.model, config.micro_batch * config.context, config.dtype)
        # Initial weights are on disk before there is a line of metrics: metrics without a checkpoint mean a loss.
        checkpointer.wait()
        stop.phase = "training"
        state, reached = run.go(first, state)
        stop.phase = "saving"
        checkpointer.wait()
    finally:
        checkpointer.close()
        if writer is not None:
            writer.close()
    return {**run.summary(state, reached), "resumed_from": None if resumed is None else first}


def _check_fresh(folder: Path) -> None:
    """Refuse a folder that has metrics but no checkpoint.

    Raises:
        InputError: it has.
    """
    lines = read_metrics(folder)
    if lines:
        raise InputError(
            f"{folder} has metrics up to step {lines[-1]['step']} but no checkpoint: put its checkpoints back, or name "
            "another --out"
        )


class _Run:
    """The loop and what it needs at hand."""

    def __init__(
        self,
        config: PretrainConfig,
        steps: int,
        laid_out: int,
        mesh: jax.sharding.Mesh,
        part: tuple[int, int],
        data: setup.Data,
        checkpointer: Checkpointer,
        writer: MetricsWriter | None,
        iterator: Any,
        stop: Stop,
    ) -> None:
        self.config, self.steps, self.mesh, self.part, self.data = config, steps, mesh, part, data
        self.checkpointer, self.writer, self.iterator, self.stop = checkpointer, writer, iterator, stop
        self.program: Any = None
        # The weights beside an adapter.
        self.frozen: Any = None
        self.mode = "map"
        self.peak = 0.0
        self.clock = TrainingClock(config.tokens_per_step * len(config.seeds))
        self.loss: list[float] | None = None
        self._rate = schedule(config, laid_out)
        # Of the three products of a trained matrix a frozen one spares its own gradient.
        needed = 1.0 if config.adapter is None else 2 / 3
        self._needed = needed * flops_per_token(config.model, config.context)
        self._evaluate: Any = None
        self._noted = time.monotonic()
        # An accelerator must never wait for the host: there a step's numbers are read while the next step runs. A CPU
        # computes and reads in turn.
        self._reads_behind = jax.default_backend() != "cpu"
        # The last step whose numbers were not read yet, and those numbers.
        self._pending: tuple[int, Any] | None = None
        # The last step that no line was due for.
        self._unwritten: tuple[int, Values] | None = None
        self._advance: Callable[[], None] = lambda: None

    def go(self, first: int, state: State) -> tuple[State, int]:
        """Train; return the last state and its step."""
        config = self.config
        quiet = config.quiet or jax.process_index() > 0
        a_step = config.tokens_per_step * len(config.seeds)
        total, label = self.steps * a_step, _label(config)
        with progress.bar(total, label, unit="tokens", quiet=quiet, completed=first * a_step) as advance:
            self._advance = functools.partial(advance, a_step)
            self.clock.start()
            trained, step = train(state, self.program, self._batches(first), self._on_step, first=first)
            if self._pending is not None:
                self._write(*self._read())
            if self._unwritten is not None:
                self._write(*self._unwritten, last=True)
            state = stacked(trained)
            if first < step < self.steps and not self.checkpointer.wants(step):
                self.checkpointer.interrupted_at(step)
                self._save(step, state)
        return state, step

    def _batches(self, first: int) -> Iterator[jax.Array]:
        """Yield the batch of each step that is left, until a signal stops the run."""
        for step in range(first, self.steps):
            if self.stop.asked(step):
                return
            yield self._batch()

    def _on_step(self, step: int, state: Any, measured: Any) -> None:
        if self._pending is not None:
            self._write(*self._read())
        self._pending = (step, measured)
        saves, evaluates = self.checkpointer.wants(step), self._evaluates(step)
        if self._reads_behind and not saves and not evaluates:
            return
        line = self._read()
        if not saves and not evaluates:
            self._write(*line)
            return
        all_seeds = stacked(state)
        self._write(*line, extra=self._validation(all_seeds) if evaluates else {})
        if saves:
            self._save(step, all_seeds)
        self.clock.start()

    def _save(self, step: int, state: State) -> None:
        self.checkpointer.save(step, state, self.iterator.get_state())

    def _batch(self) -> jax.Array:
        config = self.config
        local = next(self.iterator)
        micro_batches = np.asarray(local, np.int32).reshape(config.accumulation, -1, config.context + 1)
        return parallel.place_batch(micro_batches, self.mesh, axis=1, rows=config.micro_batch)

    def _evaluates(self, step: int) -> bool:
        interval = self.config.eval_every
        return step == self.steps or (interval is not None and step % interval == 0)

    def _validation(self, state: State) -> Values:
        """Compute the held-out loss of every seed."""
        config = self.config
        if self._evaluate is None:
            sharding = setup.rows_sharding(self.mesh)

            def loss_by_seed(params: Any, tokens: jax.Array, frozen: Any) -> tuple[jax.Array, jax.Array]:
                def loss_of_seed(params: Any) -> tuple[jax.Array, jax.Array]:
                    settings: dict[str, Any] = dict(dtype=config.dtype, rows=sharding)
                    return loss_of(config.model, params, tokens, config.adapter, frozen, **settings)

                return jax.vmap(loss_of_seed)(params) if self.mode == "vmap" else jax.lax.map(loss_of_seed, params)

            self._evaluate = jax.jit(loss_by_seed, out_shardings=parallel.replicated(self.mesh))
        total, count = np.zeros(len(config.seeds)), 0
        index, parts = self.part
        for rows in held_out(self.data.validation, config.eval_sequences, config.micro_batch):
            batch = parallel.place_batch(rows[index::parts], self.mesh, axis=0, rows=config.micro_batch)
            nats_S, tokens_S = parallel.fetch(self._evaluate(state.params, batch, self.frozen))
            total, count = total + np.asarray(nats_S, np.float64), count + int(np.asarray(tokens_S)[0])
        return {"validation_loss": (total / count).tolist()}

    def _read(self) -> tuple[int, Values]:
        """Wait for the numbers of the pending step: return its number and, by name, a value for each seed."""
        assert self._pending is not None
        (step, measured), self._pending = self._pending, None
        values = {name: np.asarray(value, np.float64).tolist() for name, value in jax.device_get(measured).items()}
        self.clock.count_step()
        self._check_finite(step, values)
        self.loss = values["loss"]
        self._advance()
        return step, values

    def _check_finite(self, step: int, values: Values) -> None:
        bad = first_bad(values, self.config.seeds)
        if bad is not None:
            name, seed, value = bad
            raise InputError(
                f"the {name} of seed {seed} is {value} at step {step}: what was saved before is intact; lower the "
                "learning rate or raise the warm-up, with another --out"
            )

    def _write(self, step: int, values: Values, extra: Values | None = None, *, last: bool = False) -> None:
        """Write a line of metrics where one is due; ``extra`` is what was evaluated after the step."""
        config = self.config
        self._check_finite(step, extra or {})
        if step % config.log_every and not extra and step != self.steps and not last:
            self._unwritten = (step, values)
            return
        self._unwritten = None
        record: dict[str, Any] = {
            "step": step,
            "loss": values["loss"],
            "seeds": list(config.seeds),
            "grad_norm": values["grad_norm"],
            # The rate that made this step's update.
            "lr": float(self._rate(jnp.asarray(step - 1))),
            "tokens": step * config.tokens_per_step,
            "tokens_per_second": self.clock.lap(),
            **(extra or {}),
        }
        if self.writer is not None:
            self.writer.write(record)
        if time.monotonic() - self._noted > NOTE_SECONDS and not config.quiet and jax.process_index() == 0:
            self._noted = time.monotonic()
            progress.note(self.describe(step))

    @property
    def peak_share(self) -> float | None:
        """Needed operations a second over the measured rate of all devices, or None before the first step.

        At most 1: what training reaches, products reach too, and a lower rate was measured in a busy moment.
        """
        if self.clock.rate is None or not self.peak:
            return None
        return min(1.0, self.clock.rate * self._needed / (self.peak * self.mesh.size))

    def describe(self, step: int) -> str:
        """Describe the state in one line: step, loss, speed, fraction of the peak."""
        losses = " ".join(f"{value:.4f}" for value in self.loss or [])
        peak = "" if self.peak_share is None else f", {100 * self.peak_share:.0f}% of the matmul rate"
        return f"step {step:,} of {self.steps:,}: loss {losses}, {self.clock.rate or 0:,.0f} tokens/s{peak}"

    def summary(self, state: State, reached: int) -> dict[str, Any]:
        """Return the summary of :func:`pretrain`."""
        config, adapter = self.config, self.config.adapter
        from_disk = read_metrics(self.checkpointer.folder)
        last: dict[str, Any] = next((line for line in reversed(from_disk) if "validation_loss" in line), {})
        stacked_params = parallel.fetch(state.params)
        digests = {}
        for index, seed in enumerate(config.seeds):
            params = jax.tree.map(lambda leaf, index=index: leaf[index], stacked_params)
            digests[str(seed)] = digest(params if adapter is None else merge(adapter, self.frozen, params))
        return {
            "out": str(self.checkpointer.folder),
            "seeds": list(config.seeds),
            "steps": self.steps,
            "step": reached,
            "finished": reached == self.steps,
            "loss": from_disk[-1]["loss"] if from_disk else self.loss,
            "validation_loss": last.get("validation_loss"),
            "digests": digests,
            "tokens": reached * config.tokens_per_step,
            "tokens_per_second": self.clock.rate,
            "peak_share": self.peak_share,
            "mode": self.mode,
        }


def _label(config: PretrainConfig) -> str:
    count = len(config.seeds)
    return f"pretrain seed {config.seeds[0]}" if count == 1 else f"pretrain {count} seeds"
