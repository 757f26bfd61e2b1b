"""Pretrain seeds, as a straight script: what is refused, the data, the state, the loop, the summary.

:func:`pretrain` is read from top to bottom. What happens besides the updates are hooks, a list of functions called with
(step, state, metrics) after every update: held-out losses, lines of metrics, checkpoints, progress, and a caller's own.
:func:`fit` is the loop alone, for training in memory.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import TypedDict

from bornbiased_jax import parallel, progress
from bornbiased_jax.checkpoints.digests import digest
from bornbiased_jax.checkpoints.formats.run import read_run
from bornbiased_jax.model.adapters import merge
from bornbiased_jax.parameters import Params
from bornbiased_jax.text.protocol import Tokenizer
from bornbiased_jax.training.checkpoint import NEXT_INDEX, Checkpointer
from bornbiased_jax.training.config import PretrainConfig, output_folder, scheduled
from bornbiased_jax.training.cpu_shards import stacked
from bornbiased_jax.training.data.windows import Windows, batches, held_out
from bornbiased_jax.training.initial import Initial, check_initial, drawn_as
from bornbiased_jax.training.memory import check_memory
from bornbiased_jax.training.metrics import (
    Logger,
    MetricsLog,
    read_metrics,
    repair_metrics,
    require_wandb,
    resumed_loggers,
    write_finished,
)
from bornbiased_jax.training.optimizer import learning_rate, make_optimizer
from bornbiased_jax.training.program import Program, abstract_state, compile_step, first_state, rows_sharding
from bornbiased_jax.training.setup import (
    check_folder,
    check_fresh,
    claim_folder,
    hold_folder,
    load_data,
    total_steps,
)
from bornbiased_jax.training.step import Metrics, Mode, State, make_loss
from bornbiased_jax.training.stop import Stop
from bornbiased_jax.training.throughput import TrainingClock, flops_per_token, matmul_peak

NOTE_SECONDS = 30.0
StateT = TypeVar("StateT")
BatchT = TypeVar("BatchT")

Hook = Callable[[int, StateT, Metrics], None]
"""Called after an update with the number of updates made, the new state and what the step measured, by seed.

Neither is waited for, so that the next step can follow at once; the next step may overwrite the state, of which
:func:`.cpu_shards.stacked` makes one :class:`.step.State` of all seeds.
"""


class TrainingSummary(TypedDict):
    """The state that a run reached; JSON-ready, lists in the order of the seeds.

    Attributes:
        out: the run's folder.
        seeds: of the run.
        steps: planned.
        step: reached.
        finished: False after SIGTERM, which saves a checkpoint and stops.
        resumed_from: the step that this call began at; None of a new run.
        loss: the last logged, by seed; None before the first step.
        validation_loss: the last made, by seed, or None.
        digests: of the weights, by seed.
        tokens: that each seed has seen.
        tokens_per_second: of all seeds, over the time that steps took since this call: compilation, evaluation and
            saving are left out; None without a step.
        peak_share: that rate as a fraction of the matrix-product rate measured here, at most 1.
        mode: "vmap" or "map".
    """

    out: str
    seeds: list[int]
    steps: int
    step: int
    finished: bool
    resumed_from: int | None
    loss: list[float] | None
    validation_loss: list[float] | None
    digests: dict[str, str]
    tokens: int
    tokens_per_second: float | None
    peak_share: float | None
    mode: Mode


def fit(
    state: StateT,
    step: Callable[[StateT, BatchT], tuple[StateT, Metrics]],
    batches: Iterable[BatchT],
    hooks: Sequence[Hook[StateT]] = (),
    *,
    first: int = 0,
) -> tuple[StateT, int]:
    """Update a state with one batch after the other, until there are no more.

    Args:
        state: where to begin. A step that donates its state gives these arrays up.
        step: ``step(state, batch) -> state, metrics``, as :func:`.program.begin` makes it.
        batches: what the step takes; the loop ends with them. The next one is asked for after the hooks.
        hooks: called in turn after every update.
        first: updates made before.

    Returns:
        The last state, and the number of updates made.

    >>> fit(0.0, lambda state, batch: (state + batch, {}), [1.0, 2.0, 4.0])
    (7.0, 3)
    """
    number = first
    for batch in batches:
        state, metrics = step(state, batch)
        number += 1
        for hook in hooks:
            hook(number, state, metrics)
    return state, number


def pretrain(
    config: PretrainConfig,
    initial: Sequence[Initial] | None = None,
    tokenizer: Tokenizer | None = None,
    *,
    hooks: Sequence[Hook[State | list[State]]] = (),
    loggers: Sequence[Logger] = (),
) -> TrainingSummary:
    """Train every seed of a run on the same data in the same order; resume where the run was stopped.

    Args:
        config: the run. Its folder is made, or holds the same run.
        initial: models to begin with instead of untrained ones: (architecture, weights) for each seed; or the one that
            an adapter is trained on. ``config.init_from`` says where they came from; how they were drawn replaces
            ``init`` and ``init_groups`` of ``config.model``.
        tokenizer: that of the initial models; used unless ``config.tokenizer`` names another.
        hooks: called after every update, before the run's own.
        loggers: also given every line of metrics, besides those of the run; closed at the end.

    Raises:
        InputError: bad settings or data, a folder of another run or one that another process trains in, a full disk,
            data that vanished, or a loss that is not finite. Everything saved before is intact.
        KeyboardInterrupt: Ctrl-C; once training has begun, after a checkpoint was saved.
        SystemExit: SIGTERM before training began.
    """
    weights = check_initial(config, initial)
    config = drawn_as(config, initial)
    stop = Stop()
    # Compiled, in 32 bits, whatever jax is set to: in 64 bits, schedules round to other learning rates.
    with stop.listening(), jax.enable_x64(False), jax.disable_jit(False), contextlib.ExitStack() as resources:
        # Refuse what cannot run before any work.
        check_folder(config)
        if config.wandb:
            require_wandb()
        mesh = parallel.build_mesh(parallel.parse_mesh(config.mesh))
        part = parallel.batch_part(mesh, config.micro_batch)
        check_memory(config)

        # Tokenize, or reuse the tokens of an earlier call.
        data = load_data(config, tokenizer)
        steps = total_steps(config, data.train)

        # From here on no other process may use the folder.
        folder = output_folder(config)
        resources.enter_context(hold_folder(folder))
        claim_folder(config, data, steps, weights, mesh.size)
        is_first_process = jax.process_index() == 0
        if is_first_process:
            repair_metrics(folder)

        # The optimizer, shapes and places of the state, the order of the data.
        planned_steps = scheduled(read_run(folder)["config"]) or steps
        optimizer = make_optimizer(config, planned_steps)
        abstract = abstract_state(config, optimizer, mesh)
        iterator = batches(data.train, batch_size=config.batch_size, data_seed=config.data_seed, part=part)

        # The state: that of the newest intact checkpoint, or the initial one.
        checkpointer = resources.enter_context(contextlib.closing(Checkpointer(folder, config, steps)))
        with stop.held():
            restored = checkpointer.restore(abstract, config.seeds)
        is_new = restored is None
        if is_new:
            check_fresh(folder)
        state = first_state(config, optimizer, abstract, weights) if restored is None else restored
        first = int(parallel.fetch(state.step)[0])
        if not is_new:
            iterator.set_state({NEXT_INDEX: first})
            going = "resuming after" if first < steps else "already finished, at"
            progress.note(f"{folder}: {going} step {first} of {steps}")

        # One process writes metrics. Initial weights are saved before there is a line of them.
        run_loggers = list(loggers)
        if is_first_process and first < steps:
            run_loggers += resumed_loggers(folder, config, first)
        elif is_first_process:
            write_finished(folder, config)
        for logger in run_loggers:
            resources.callback(_close_quietly, logger)
        if is_new:
            with stop.held():
                checkpointer.save(state)

        # Compile the step, and measure what the machine can do.
        frozen = None if config.adapter is None else jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), weights)
        program: Program | None = None
        mode: Mode = "map"
        peak = 0.0
        if first < steps:
            program, mode = compile_step(config, optimizer, abstract, mesh, frozen)
            peak = matmul_peak(config.model, config.micro_batch * config.context, config.dtype)
        # Of the three products of a trained matrix a frozen one spares its own gradient.
        needed = (1.0 if config.adapter is None else 2 / 3) * flops_per_token(config.model, config.context)
        clock = TrainingClock(config.tokens_per_step * len(config.seeds), needed, peak * mesh.size)

        # Hooks: what is done after an update.
        log = MetricsLog(config, learning_rate(config, planned_steps), clock, run_loggers)
        validation_loss = _validation(config, data.validation, mesh, part, mode)

        def evaluate(step: int, state: State | list[State], metrics: Metrics) -> None:
            """Add the held-out loss of every seed to the metrics, at the end and where it is due."""
            if step == steps or (config.eval_every is not None and step % config.eval_every == 0):
                log.flush()
                jax.block_until_ready(metrics)
                with clock.paused():
                    metrics["validation_loss"] = validation_loss(stacked(state).params, frozen)

        def save(step: int, state: State | list[State], _: Metrics) -> None:
            """Save a checkpoint where one is due, after the line of its step."""
            if checkpointer.wants(step):
                log.flush()
                with clock.paused():
                    checkpointer.save(stacked(state))

        def remaining() -> Iterator[jax.Array]:
            """Yield the batch [A, B, T + 1] of each step that is left, until a signal stops the run."""
            for step in range(first, steps):
                if stop.asked(step):
                    return
                rows = np.asarray(next(iterator), np.int32).reshape(config.accumulation, -1, config.context + 1)
                yield parallel.place_batch(rows, mesh, axis=1, rows=config.micro_batch)

        def update(state: State | list[State], batch: jax.Array) -> tuple[State | list[State], Metrics]:
            """Update all seeds with one batch."""
            # Compiled where a step is left.
            assert program is not None
            state, metrics = program(state, batch, frozen)
            return state, metrics

        # The loop, until the last step or a signal.
        checkpointer.wait()
        stop.phase = "training"
        with _progress(config, log, clock, first, steps, len(data.train)) as report:
            clock.start()
            trained: State | list[State] = state
            trained, reached = fit(
                trained,
                update,
                remaining(),
                [*hooks, evaluate, log, save, report],
                first=first,
            )
            log.close()

        # A run that a signal stopped resumes from here.
        state = stacked(trained)
        if first < reached < steps and not checkpointer.wants(reached):
            checkpointer.interrupted_at(reached)
            checkpointer.save(state)
        stop.phase = "saving"
        checkpointer.wait()

        # The summary: what is on disk, and the digests of the weights.
        lines = read_metrics(folder)
        validated = [line["validation_loss"] for line in lines if "validation_loss" in line]
        summary: TrainingSummary = {
            "out": str(folder),
            "seeds": list(config.seeds),
            "steps": steps,
            "step": reached,
            "finished": reached == steps,
            "loss": lines[-1]["loss"] if lines else log.loss,
            "validation_loss": validated[-1] if validated else None,
            "digests": _digests(config, state.params, frozen),
            "tokens": reached * config.tokens_per_step,
            "tokens_per_second": clock.rate,
            "peak_share": clock.peak_fraction,
            "mode": mode,
            "resumed_from": None if is_new else first,
        }
    if stop.signal == signal.SIGINT:
        raise KeyboardInterrupt
    return summary


def _validation(
    config: PretrainConfig, windows: Windows, mesh: jax.sharding.Mesh, part: tuple[int, int], mode: Mode
) -> Callable[[Params, Params | None], np.ndarray]:
    """Return a function from the parameters of all seeds to their held-out losses [S], in nats per token."""
    loss_fn = make_loss(config.model, config.adapter, dtype=config.dtype, rows=rows_sharding(mesh))

    def loss_by_seed(params: Params, tokens_BT1: jax.Array, frozen: Params | None) -> tuple[jax.Array, jax.Array]:
        def loss_of_seed(params: Params) -> tuple[jax.Array, jax.Array]:
            return loss_fn(params, tokens_BT1, frozen)

        return jax.vmap(loss_of_seed)(params) if mode == "vmap" else jax.lax.map(loss_of_seed, params)

    program = jax.jit(loss_by_seed, out_shardings=parallel.replicated(mesh))
    index, parts = part

    def validation_loss(params: Params, frozen: Params | None) -> np.ndarray:
        total_S, count = np.zeros(len(config.seeds)), 0
        for rows in held_out(windows, config.eval_sequences, config.micro_batch):
            batch = parallel.place_batch(rows[index::parts], mesh, axis=0, rows=config.micro_batch)
            nats_S, tokens_S = parallel.fetch(program(params, batch, frozen))
            total_S, count = total_S + np.asarray(nats_S, np.float64), count + int(np.asarray(tokens_S)[0])
        return np.asarray(total_S / count)

    return validation_loss


@contextlib.contextmanager
def _progress(
    config: PretrainConfig, log: MetricsLog, clock: TrainingClock, first: int, steps: int, windows: int
) -> Iterator[Hook[object]]:
    """Show a bar meanwhile, and give the hook that advances it and every half minute says where the run is."""
    count = len(config.seeds)
    label = f"pretrain seed {config.seeds[0]}" if count == 1 else f"pretrain {count} seeds"
    quiet = config.quiet or jax.process_index() > 0
    step_tokens = config.tokens_per_step * count
    with progress.bar(steps * step_tokens, label, unit="tokens", quiet=quiet, completed=first * step_tokens) as advance:
        noted = time.monotonic()

        def report(_step: int, _state: object, _metrics: Metrics) -> None:
            nonlocal noted
            if log.loss is not None:
                low, high = (f"{end(log.loss):.3f}" for end in (min, max))
                epoch = log.step * config.batch_size / windows
                advance.say(f"loss {low if count == 1 else f'{low} to {high}'}, epoch {epoch:.2f}")
            advance(step_tokens)
            if not quiet and log.loss is not None and time.monotonic() - noted > NOTE_SECONDS:
                noted = time.monotonic()
                losses = " ".join(f"{loss:.4f}" for loss in log.loss)
                peak = "" if clock.peak_fraction is None else f", {100 * clock.peak_fraction:.0f}% of the matmul rate"
                rate = clock.rate or 0
                progress.note(f"step {log.step:,} of {steps:,}: loss {losses}, {rate:,.0f} tokens/s{peak}")

        yield report


def _digests(config: PretrainConfig, params: Params, frozen: Params | None) -> dict[str, str]:
    """Return the digest of the weights of each seed; of an adapted model, with its adapter."""
    on_host = parallel.fetch(params)
    digests = {}
    for index, seed in enumerate(config.seeds):
        trained = jax.tree.map(lambda leaf, index=index: leaf[index], on_host)
        weights = trained if config.adapter is None or frozen is None else merge(config.adapter, frozen, trained)
        digests[str(seed)] = digest(weights)
    return digests


def _close_quietly(logger: Logger) -> None:
    """Close a logger; a full disk was reported when it was written to."""
    with contextlib.suppress(OSError):
        logger.close()
