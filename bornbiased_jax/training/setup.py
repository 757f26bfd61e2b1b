"""Prepare a run before its first step: tokenizer, data, run record, state and compiled step."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bornbiased_jax import hardware, io, parallel, progress, record
from bornbiased_jax.checkpoints.digests import digest
from bornbiased_jax.checkpoints.run import BASE, RUN_FILE, TOKENIZER, read_run, tokenizer_file, trained_shapes
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed, parameter_shapes
from bornbiased_jax.io import Folder
from bornbiased_jax.model.adapters import count_trained, init_adapter
from bornbiased_jax.model.loss import unrolled_blocks
from bornbiased_jax.model.memory import FLOAT, check_weights, forward_bytes, weights_bytes
from bornbiased_jax.parameters import Params, count_parameters, flatten
from bornbiased_jax.text.protocol import Tokenizer
from bornbiased_jax.text.tokenizers import load_tokenizer, tokenizer_for
from bornbiased_jax.training.checkpoints import save_frozen
from bornbiased_jax.training.cpu_shards import CpuShardsStep, cpu_shards_for
from bornbiased_jax.training.data.shards import Dataset, prepare
from bornbiased_jax.training.data.windows import Windows, split
from bornbiased_jax.training.settings import PretrainConfig, changed_field, output_folder, scheduled
from bornbiased_jax.training.step import Mode, State, make_train_step, over_seeds

Initial = tuple[ModelConfig, Params]
MEMORY_FRACTION = 0.9
LOCK = ".lock"
MAKER = "bornbiased pretrain"


class Data(NamedTuple):
    """The data of a run."""

    tokenizer: Tokenizer
    dataset: Dataset
    train: Windows
    validation: Windows
    validation_from: str


def check_folder(config: PretrainConfig) -> None:
    """Look at the run's folder before any work, without making it.

    Raises:
        InputError: it holds a run that differs (the sentence names the field) or something else, or cannot be written.
    """
    folder = output_folder(config)
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    if not existing.is_dir():
        raise InputError(f"cannot write {folder}: {existing} is a file; choose another place")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {folder}: {os.strerror(errno.EACCES)}; choose another place")
    if (folder / RUN_FILE).exists():
        before, now = read_run(folder)["config"], config.to_dict()
        field = changed_field(before, now)
        if field == "steps" and config.steps is not None and config.steps > (scheduled(before) or config.steps):
            raise InputError(
                f"{folder} holds a run whose learning rate was laid out for {scheduled(before)} steps and ends there: "
                f"one of {config.steps} is another run; name another --out (--schedule-steps leaves room)"
            )
        if field is not None:
            raise InputError(
                f"{folder} holds a run of {field}={_field(before, field)!r}, not {_field(now, field)!r}: name another "
                "--out, or give the same value to resume"
            )
        return
    # What a run killed before its first record left behind is marked, and no reason to refuse.
    Folder(folder, MAKER).check(ignore=lambda name: name == LOCK)


@contextlib.contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Keep other processes from training in a folder meanwhile.

    Raises:
        InputError: one does, or the folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        if jax.process_index() == 0:
            io.check_writable(folder / LOCK)
            if not stack.enter_context(io.locked(folder / LOCK, wait=False)):
                raise InputError(f"another process is training in {folder}: wait until it ends, or name another --out")
        yield


class MemoryNeeded(NamedTuple):
    """Bytes of a training step on one device: of weights, gradients and the optimiser's means, and of a micro-batch."""

    copies: float
    """How many times the weights are held, in all forms."""
    state: float
    activations: float


def memory_needed(config: PretrainConfig) -> MemoryNeeded:
    """Estimate the least that a step holds on each device: all states, one seed's gradient, one micro-batch."""
    devices = parallel.parse_mesh(config.mesh)
    parts = devices["data"] * devices["fsdp"]
    copies = (3 * len(config.seeds) // devices["seed"] + 1) / devices["fsdp"]
    if config.adapter is not None:
        trained = len(config.seeds) * count_trained(config.model, config.adapter)
        copies = 1 + 3 * FLOAT * trained / weights_bytes(config.model)
    # One CPU takes a micro-batch in chunks, a sequence at the least.
    alone = jax.default_backend() == "cpu" and parts == 1
    half = 0.5 if config.dtype == "bfloat16" else 1.0
    sequences = 1 if alone else config.micro_batch // parts
    activations = half * forward_bytes(config.model, sequences, config.context, keep_activations=not config.remat)
    return MemoryNeeded(copies, copies * weights_bytes(config.model), activations)


def check_memory(config: PretrainConfig) -> None:
    """Refuse runs that do not fit: weights, gradients and the optimizer's two means of every seed, and a micro-batch.

    Raises:
        InputError: it does not.
    """
    needed = memory_needed(config)
    check_weights(config.model, copies=needed.copies)
    hardware.check_memory(
        needed.state + needed.activations,
        f"a step of {config.micro_batch:,} sequences of {config.context:,} tokens",
        "shorten the context, lower the batch size, raise the accumulation or recompute (remat)",
    )


def load_data(config: PretrainConfig, tokenizer: Tokenizer | None = None) -> Data:
    """Load tokenizer and tokens; an existing run keeps its tokenizer, and its tokens where their source is gone.

    Args:
        config: the run.
        tokenizer: that of the weights to begin with, used unless the run names one.

    Raises:
        InputError: the source or the tokenizer is missing or damaged, or does not fit the model.
    """
    folder = output_folder(config)
    # The run's own tokenizer, else the one named, else the one of the weights to begin with.
    stored = tokenizer_file(folder)
    if stored:
        tokenizer = load_tokenizer(stored)
    elif tokenizer is None or config.tokenizer is not None:
        named = tokenizer_for(config.tokenizer, config.model.vocab_size)
        if tokenizer is not None and tokenizer.digest != named.digest:
            progress.warn(
                f"the weights to begin with were trained with the tokenizer {tokenizer.name}, not {named.name}: its "
                "ids mean other things to them; leave --tokenizer out to use their own"
            )
        tokenizer = named
    if tokenizer.vocab_size > config.model.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} ids, the model only {config.model.vocab_size}: set "
            f"vocab_size={tokenizer.vocab_size} or more, or choose a smaller tokenizer"
        )
    # Tokens from the cache, or made now.
    dataset = prepare(
        config.data,
        tokenizer,
        folder=config.token_cache,
        validation_fraction=config.validation_fraction,
        processes=config.processes,
        tokens_digest=read_run(folder)["tokens_digest"] if (folder / RUN_FILE).exists() else None,
        quiet=config.quiet or jax.process_index() > 0,
    )
    parallel.agree(dataset.digest, "data")
    return Data(tokenizer, dataset, *split(dataset, config.context, config.validation_fraction))


def total_steps(config: PretrainConfig, train: Windows) -> int:
    """Return the number of updates: those set, or one epoch.

    Raises:
        InputError: one epoch is less than one step.
    """
    steps = config.steps if config.steps is not None else _epoch(config, train)
    if steps <= config.warmup and jax.process_index() == 0:
        reached = config.learning_rate * steps / config.warmup
        progress.note(
            f"the warm-up of {config.warmup} steps is not over after {steps}: the learning rate ends at {reached:.2g}"
        )
    return steps


def schedule_steps(folder: Path, steps: int) -> int:
    """Return how many updates the learning rate is laid out for, as the record of the run says."""
    return scheduled(read_run(folder)["config"]) or steps if (folder / RUN_FILE).exists() else steps


def _epoch(config: PretrainConfig, train: Windows) -> int:
    steps = len(train) // config.batch_size
    if steps < 1:
        raise InputError(
            f"{config.data} has {len(train)} windows of {config.context} tokens, less than one step of "
            f"{config.batch_size}: lower the batch size"
        )
    return steps


def claim_folder(config: PretrainConfig, data: Data, steps: int, initial: Params | None, devices: int = 1) -> Path:
    """Make the run's folder with its ``run.json``, or check that the one there is of the same run.

    Beside an adapter the weights that it belongs to are written too, before the record that speaks of them.

    Raises:
        InputError: as of :func:`check_folder`, or the run there is on other data or from other weights.
    """
    folder = output_folder(config)
    run: dict[str, Any] = {
        "config": config.to_dict(),
        "steps": steps,
        "tokens_digest": data.dataset.digest,
        "initial_digest": None if initial is None else digest(initial),
    }
    # Again, now that no other process can: it may have made a run here while the data were tokenised.
    check_folder(config)
    # An existing run must be on the same data and weights; it may only become longer.
    if (folder / RUN_FILE).exists():
        before: Mapping[str, Any] = read_run(folder)
        for name, field in (("tokens_digest", "data"), ("initial_digest", "init_from")):
            if before[name] != run[name]:
                raise InputError(
                    f"{folder} holds a run whose {field} had other content than {getattr(config, field)} has now: "
                    "restore it, or name another --out"
                )
        _compare_versions(folder, before)
        if before["steps"] < steps and jax.process_index() == 0:
            longer = {**before, "config": {**before["config"], "steps": steps}, "steps": steps}
            longer["config"]["schedule_steps"] = scheduled(before["config"])
            io.write_json(folder / RUN_FILE, longer)
        if config.adapter is not None and not (folder / BASE).exists():
            save_frozen(folder, initial)
        parallel.agree("ready", "folder")
        return folder
    if jax.process_index() == 0:
        io.check_writable(folder / RUN_FILE)
        Folder(folder, MAKER).claim()
        # A new run: tokenizer first, the record last, so that a record means a complete folder.
        data.tokenizer.save(folder / TOKENIZER)
        facts = {**data.dataset.facts, "validation_from": data.validation_from, "tokenizer": data.tokenizer.name}
        # What decides the order of sums, beside the versions.
        order: dict[str, Any] = {
            "unrolled_blocks": unrolled_blocks(config.model, config.remat),
            "lanes": cpu_shards_for(config.model, config.batch_size) if devices == 1 else 1,
        }
        made_of = record.provenance(precision=config.dtype, data=facts, **order)
        counts = {"parameters": count_parameters(parameter_shapes(config.model))}
        if config.adapter is not None:
            counts["trained_parameters"] = count_trained(config.model, config.adapter)
            save_frozen(folder, initial)
        io.write_json(folder / RUN_FILE, {**run, **counts, "provenance": made_of})
    parallel.agree("ready", "folder")
    return folder


def _compare_versions(folder: Path, run: Mapping[str, Any]) -> None:
    """Warn where a run resumes with other versions than it began with: the last digits may differ then."""
    if jax.process_index() > 0:
        return
    before, now = run.get("provenance", {}).get("versions", {}), record.library_versions()
    other = [name for name in ("jax", "jaxlib", "optax") if name in before and before[name] != now[name]]
    if other:
        changes = ", ".join(f"{name} {now[name]} instead of {before[name]}" for name in other)
        progress.warn(f"{folder} goes on with {changes}: losses may differ in their last digits")


def _field(config: Mapping[str, Any], name: str) -> Any:
    for part in name.split("."):
        config = config.get(part)  # type: ignore[assignment]
        if config is None:
            return None
    return config


def abstract_state(config: PretrainConfig, optimiser: optax.GradientTransformation, mesh: jax.sharding.Mesh) -> State:
    """Return shapes, types and shardings of the state of all seeds."""
    count = len(config.seeds)
    trained = trained_shapes(config.model, config.adapter)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), trained)
    inner = jax.eval_shape(jax.vmap(optimiser.init), shapes)
    state = State(shapes, inner)
    places = State(parallel.tree_shardings(shapes, mesh), parallel.tree_shardings(inner, mesh))
    return jax.tree.map(lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), state, places)


def first_state(
    config: PretrainConfig, optimiser: optax.GradientTransformation, abstract: State, initial: Params | None
) -> State:
    """Return every seed's initial weights (bitwise ``seed:N@MODEL``), or the ones passed in; or its adapter's start.

    Args:
        config: the run.
        optimiser: of one seed.
        abstract: where the state goes.
        initial: weights to begin with, of one seed [...] or of all [S, ...]; an adapter does not ask for them.
    """
    places = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    start = jax.jit(jax.vmap(optimiser.init), out_shardings=places.optimiser)
    adapter = config.adapter
    if initial is None or adapter is not None:
        begin = init_seed if adapter is None else lambda cfg, seed: init_adapter(cfg, adapter, seed)
        born = jax.vmap(lambda seed: begin(config.model, seed))
        params = jax.jit(born, out_shardings=places.params)(np.asarray(config.seeds, np.uint32))
        return State(params, start(params))

    def put(leaf: Any, target: jax.ShapeDtypeStruct) -> jax.Array:
        values = np.asarray(leaf, np.float32)
        if values.shape == target.shape[1:]:
            values = np.broadcast_to(values[None], target.shape)
        return jax.make_array_from_callback(target.shape, target.sharding, lambda index: values[index])

    params = jax.tree.map(put, initial, abstract.params)
    return State(params, start(params))


def check_initial(config: PretrainConfig, initial: list[Initial] | None) -> Params | None:
    """Check and stack the weights to begin with: for one seed or for each [S, ...]; for adapters one model [1, ...].

    Raises:
        InputError: their number or architecture does not fit.
    """
    if not initial and config.adapter is not None:
        raise InputError("an adapter needs the weights that it is trained beside: give them")
    if not initial:
        return None
    if config.adapter is not None and jax.process_count() > 1:
        raise InputError("an adapter is trained by one process: start one alone")
    if config.adapter is not None and len(initial) != 1:
        raise InputError(f"{len(initial)} models to train an adapter beside: give one")
    if config.adapter is None and len(initial) != len(config.seeds):
        raise InputError(
            f"{len(initial)} models to begin with for {len(config.seeds)} seeds: give one for each, or one seed"
        )
    shapes = flatten(parameter_shapes(config.model))
    for cfg, params in initial:
        check_architecture(config, cfg)
        for path, leaf in flatten(params).items():
            if path not in shapes or tuple(leaf.shape) != tuple(shapes[path].shape):
                raise InputError(f"the model to begin with has a {path} that the run's model has not")
    stacked = [params for _, params in initial]
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf, np.float32) for leaf in leaves]), *stacked)


def check_architecture(config: PretrainConfig, cfg: ModelConfig) -> None:
    """Refuse a model to begin with whose architecture is not that of the run.

    Raises:
        InputError: it is another; the sentence names the field.
    """
    # The vocabulary and width decide what fits; a longer context is a matter of the run, not of the weights.
    of_run = {**config.model.to_dict(), "init": None, "max_seq_len": None}
    of_model = {**cfg.to_dict(), "init": None, "max_seq_len": None}
    # What was asked for before what follows from it.
    first = ("d_model", "num_layers", "num_heads", "vocab_size")
    for name, value in sorted(of_run.items(), key=lambda item: item[0] not in first):
        if of_model[name] != value:
            raise InputError(
                f"the model to begin with has {name}={of_model[name]!r}, the run {value!r}: set {name}={of_model[name]}"
            )


def rows_sharding(mesh: jax.sharding.Mesh) -> jax.sharding.Sharding | None:
    """Return how the sequences [B, …] of a micro-batch lie on the mesh; None on one device."""
    return parallel.batch_sharding(mesh) if mesh.size > 1 else None


class _Beside:
    """A compiled step with the weights that no step changes."""

    def __init__(self, program: Any, frozen: Params) -> None:
        self._program, self._frozen = program, frozen
        self.memory_analysis = program.memory_analysis

    def __call__(self, state: Any, batch: Any) -> Any:
        return self._program(state, batch, self._frozen)


def compiled_step(
    config: PretrainConfig,
    optimiser: optax.GradientTransformation,
    abstract: State,
    mesh: jax.sharding.Mesh,
    frozen: Params | None = None,
) -> tuple[Any, Mode]:
    """Compile the step of all seeds, its state donated; also return whether seeds run at once or in turn.

    An adapter is trained beside ``frozen`` weights, one copy for all seeds.

    "auto" takes them in turn on a CPU, which one seed fills, and at once elsewhere, unless the compiler finds that
    this does not fit in 90% of the device's memory. On one CPU the batch is cut into chunks that fit its caches, a
    small model's into a part for each core; a mesh cuts the batch already.
    """
    model = config.model
    settings: dict[str, Any] = {"dtype": config.dtype, "remat": config.remat, "adapter": config.adapter}
    shape = (config.accumulation, config.micro_batch, config.context + 1)
    # Batch [A, B, T + 1], its sequences split over the mesh.
    batch = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=parallel.batch_sharding(mesh, axis=1))
    places = jax.tree.map(lambda leaf: leaf.sharding, abstract)

    def build(mode: Mode) -> Any:
        if mode == "map" and jax.default_backend() == "cpu" and mesh.size == 1:
            shards = cpu_shards_for(model, config.batch_size)
            return CpuShardsStep(model, optimiser, abstract, batch, shards=shards, frozen=frozen, **settings)
        step = make_train_step(model, optimiser, rows=rows_sharding(mesh), **settings)
        replicated = parallel.replicated(mesh)
        lifted = jax.jit(over_seeds(step, mode), donate_argnums=(0,), out_shardings=(places, replicated))
        if frozen is None:
            return lifted.lower(abstract, batch).compile()
        program = lifted.lower(abstract, batch, frozen).compile()
        return _Beside(program, frozen)

    if config.seeds_mode != "auto":
        return build(config.seeds_mode), config.seeds_mode
    if mesh.shape["seed"] > 1:
        return build("vmap"), "vmap"
    if jax.default_backend() == "cpu" or len(config.seeds) == 1:
        return build("map"), "map"
    # "auto" on an accelerator: all seeds at once if the compiled program fits in memory.
    limit = hardware.device_memory()
    try:
        program = build("vmap")
        plan = program.memory_analysis()
        needed = plan.temp_size_in_bytes + plan.argument_size_in_bytes if plan is not None else 0
        if not limit or needed <= MEMORY_FRACTION * limit:
            return program, "vmap"
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
    progress.note(f"{len(config.seeds)} seeds at once do not fit in memory: taking them one after the other")
    return build("map"), "map"
