"""Settings of a pretraining run: one frozen record, and the schedules of the papers."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, cast

from bornbiased_jax import io, keys, schema
from bornbiased_jax.config import ModelConfig, check_config
from bornbiased_jax.errors import InputError, suggestion
from bornbiased_jax.model.adapters import Adapter, adapter_shapes
from bornbiased_jax.parallel import parse_mesh
from bornbiased_jax.schema import shown

Schedule = Literal["cosine", "linear", "constant", "wsd"]
Optimizer = Literal["adamw", "muon"]
SCHEDULES: dict[str, dict[str, object]] = {
    # Appendix B.4.2, Table 14: 128 sequences a step, 32 on each of two devices, twice.
    "paper": dict(
        steps=200_000, batch_size=128, accumulation=2, context=2048, learning_rate=6e-4, min_learning_rate=6e-5,
        warmup=2000, weight_decay=0.1, clip=1.0, dtype="bfloat16",
    ),
    # The toy schedule of the SeedPrint authors' code: 4 × 8 sequences a step, one epoch. It gives no
    # minimum rate; a cosine to zero is what its trainer does.
    "seedprint": dict(
        steps=None, batch_size=32, accumulation=8, context=2048, learning_rate=3e-4, min_learning_rate=0.0,
        warmup=200, weight_decay=0.1, clip=1.0, dtype="bfloat16",
    ),
    # Minutes on two cores.
    "tiny": dict(
        steps=1000, batch_size=16, accumulation=1, context=128, learning_rate=1e-3, min_learning_rate=1e-4,
        warmup=100, weight_decay=0.1, clip=1.0, dtype="float32",
    ),
    # Adapting a trained model. Decay would draw an adapter to nothing, and a fine-tuned model to zero.
    "adapt": dict(
        steps=None, batch_size=16, accumulation=1, context=128, learning_rate=1e-3, min_learning_rate=0.0,
        warmup=10, weight_decay=0.0, clip=1.0, dtype="float32",
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class PretrainConfig:
    """Settings of one run. The defaults are the recipe ``tiny``; :func:`from_schedule` starts from another.

    Sizes are counts; a step is one update of the optimizer on ``batch_size`` sequences of ``context``
    predicted tokens. The same data, in the same order, reach every seed.

    Raises:
        InputError: a value out of range, or two that contradict each other.
    """

    model: ModelConfig
    data: str
    out: str
    # What is learned, and from where.
    seeds: tuple[int, ...] = (42,)
    data_seed: schema.Seed = 0
    tokenizer: str | None = None
    context: schema.SeqLen = 128
    validation_fraction: schema.HeldOut = 0.05
    init_from: str | None = None
    adapter: Adapter | None = None
    """The adapter to train on the frozen weights of ``init_from``; None: the model itself. ``seeds`` are then those
    of the adapter's initialization, all on the same weights."""
    # Optimization.
    steps: schema.Steps | None = 1000
    """None: one epoch."""
    schedule_steps: schema.Steps | None = None
    """Steps that the learning rate is laid out for, up to which the run may be extended later; None: ``steps``."""
    batch_size: schema.BatchSize = 16
    accumulation: schema.BatchSize = 1
    learning_rate: schema.LearningRate = 1e-3
    min_learning_rate: schema.LearningRateOrNone = 1e-4
    warmup: schema.StepsOrNone = 100
    schedule: Schedule = "cosine"
    """Of the learning rate after the warm-up."""
    optimizer: Optimizer = "adamw"
    weight_decay: schema.LearningRateOrNone = 0.1
    clip: schema.Clip = 1.0
    beta1: schema.Decay = 0.9
    beta2: schema.Decay = 0.95
    epsilon: schema.LearningRate = 1e-8
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the computation; parameters and optimizer are float32 always."""
    # Layout: none of it changes what is computed beyond rounding.
    remat: bool = False
    seeds_mode: Literal["auto", "vmap", "map"] = "auto"
    mesh: str | None = None
    # What is written.
    checkpoint_every: schema.Steps | None = None
    """Steps between two checkpoints; None: the first and the last alone."""
    checkpoint_log_spaced: bool = False
    """Also after 1, 2, 4, 8, … steps; these are never deleted."""
    keep_latest: schema.Steps | None = None
    """Of the checkpoints at a fixed interval, how many; None keeps all."""
    eval_every: schema.Steps | None = None
    eval_sequences: schema.Count = 64
    log_every: schema.Steps = 1
    tensorboard: bool = True
    csv: bool = False
    wandb: bool = False
    """Also a run of Weights & Biases, offline unless ``WANDB_MODE`` says otherwise; needs the extra ``wandb``."""
    # How.
    token_cache: str | None = None
    """Folder of tokenized data; None: the user's cache."""
    processes: schema.Processes | None = None
    """Threads that tokenize; None: one for each core."""
    quiet: bool = False

    def __post_init__(self) -> None:
        check_config(self.model)
        if isinstance(self.seeds, str) or not isinstance(self.seeds, Iterable):
            raise InputError(f"seeds={self.seeds!r} is one value: give a list, as in seeds=({self.seeds},)")
        object.__setattr__(self, "out", str(self.out))
        object.__setattr__(self, "data", str(self.data))
        # Names of files may be paths.
        for name in ("tokenizer", "init_from", "token_cache"):
            value = getattr(self, name)
            if not isinstance(value, str | Path | None):
                raise InputError(f"{name}={shown(value)} is neither a text nor a path")
            object.__setattr__(self, name, None if value is None else str(value))
        object.__setattr__(self, "seeds", tuple(keys.check_seed(seed) for seed in self.seeds))
        # Seeds: at least one, each once.
        if not self.seeds:
            raise InputError("no seeds: give at least one, as in --seeds 42,123")
        if len(set(self.seeds)) != len(self.seeds):
            raise InputError(f"seeds {', '.join(map(str, self.seeds))} name one twice: name each once")
        # Words among their choices, numbers within their ranges.
        for name, kind in typing.get_type_hints(PretrainConfig, include_extras=True).items():
            value, choices = getattr(self, name), typing.get_args(kind)
            if typing.get_origin(kind) is Literal and value not in choices:
                raise InputError(f"{name}={value!r} is not one of {', '.join(choices)}")
            if kind is bool and not isinstance(value, bool):
                raise InputError(f"{name}={shown(value)} is not true or false")
            if schema.ends(kind) is not None and (value is not None or type(None) not in choices):
                object.__setattr__(self, name, schema.within(kind, value, name))
        # Learning rate and its schedule.
        if self.schedule != "constant" and self.min_learning_rate > self.learning_rate:
            raise InputError(
                f"min_learning_rate={self.min_learning_rate} is above learning_rate={self.learning_rate}: lower it"
            )
        if self.steps is not None and self.schedule_steps is not None and self.steps > self.schedule_steps:
            raise InputError(
                f"steps={self.steps} is beyond schedule_steps={self.schedule_steps}, where the rate ends: raise it"
            )
        if self.batch_size % self.accumulation:
            raise InputError(
                f"accumulation={self.accumulation} does not divide batch_size={self.batch_size}: choose a divisor"
            )
        if self.model.positions == "learned" and self.context > self.model.max_seq_len:
            raise InputError(
                f"context={self.context} is longer than the model's max_seq_len={self.model.max_seq_len}: shorten it "
                "or set max_seq_len"
            )
        # Adapters and the mesh.
        if not isinstance(self.adapter, Adapter | None):
            raise InputError(f"adapter={shown(self.adapter)} is none: make one by lora, prefix or prefix_plus")
        if not isinstance(self.mesh, str | None):
            raise InputError(f"mesh={shown(self.mesh)} is not a text such as data=2,fsdp=2")
        if self.adapter is not None:
            adapter_shapes(self.model, self.adapter)
            if self.optimizer == "muon":
                raise InputError("Muon is for the matrices of a model: train an adapter with optimizer=adamw")
            if self.mesh is not None:
                raise InputError("an adapter is trained on one device: leave the mesh out")
        sizes = parse_mesh(self.mesh)
        if len(self.seeds) % sizes["seed"]:
            raise InputError(f"{len(self.seeds)} seeds do not divide over the mesh axis seed={sizes['seed']}")

    @property
    def micro_batch(self) -> int:
        """Sequences that go through the model at once."""
        return self.batch_size // self.accumulation

    @property
    def tokens_per_step(self) -> int:
        """Predicted tokens a step, of one seed."""
        return self.batch_size * self.context

    def to_dict(self) -> dict[str, object]:
        """Return all fields as JSON-ready values."""
        adapter = None if self.adapter is None else self.adapter.to_dict()
        nested = {"model": self.model.to_dict(), "seeds": list(self.seeds), "adapter": adapter}
        return {**dataclasses.asdict(self), **nested}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PretrainConfig:
        """Invert :meth:`to_dict`; unknown fields are refused by name."""
        names = {field.name for field in dataclasses.fields(cls)}
        for name in values:
            if name not in names:
                raise InputError(f"unknown field {name!r} of a run: it was written by another version")
        model = ModelConfig.from_dict(values["model"])
        adapter = None if values.get("adapter") is None else Adapter.from_dict(values["adapter"])
        return cls(**{**values, "model": model, "seeds": tuple(values["seeds"]), "adapter": adapter})


# What may differ between a run and its continuation: where things lie, how often something is kept, evaluated or
# shown. Everything else changes what is learned. Data are known by the digest of their tokens, not by their name.
FREE_FIELDS = frozenset(
    (
        "out", "data", "mesh", "seeds_mode", "remat", "quiet", "processes", "token_cache", "tensorboard", "csv",
        "wandb",
        "checkpoint_every", "checkpoint_log_spaced", "keep_latest", "eval_every", "eval_sequences", "log_every",
    )
)  # fmt: skip


def from_schedule(name: str, **changes: object) -> PretrainConfig:
    """Return a run by one of ``SCHEDULES`` ("paper", "seedprint", "tiny"), with every number overridable.

    Raises:
        InputError: no such schedule, or a bad value.

    >>> from bornbiased_jax.config import preset
    >>> run = from_schedule("paper", model=preset("llama-nano"), data="builtin:prose", out="run", warmup=100)
    >>> run.warmup, run.micro_batch, run.tokens_per_step
    (100, 64, 262144)
    """
    if name not in SCHEDULES:
        raise InputError(f"unknown schedule {name!r}: the schedules are {', '.join(SCHEDULES)}")
    fields = [field.name for field in dataclasses.fields(PretrainConfig)]
    for change in changes:
        if change not in fields:
            raise InputError(f"unknown field {change!r} of a run: {suggestion(change, fields, 'fields')}")
    missing = [field for field in ("model", "data", "out") if field not in changes]
    if missing:
        raise InputError(f"a run needs {' and '.join(missing)}: give them by name")
    # Each value is checked by __post_init__.
    return PretrainConfig(**cast("Mapping[str, Any]", {**SCHEDULES[name], **changes}))


def changed_field(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return the name of the first field (``model.d_ff``, ``data_seed``) in which two runs differ, free ones aside.

    A run may be extended, up to the steps that its learning rate was laid out for.
    """
    before, laid_out = with_defaults(before), scheduled(before)
    for name in now:
        if name in FREE_FIELDS:
            continue
        steps_known = name == "steps" and None not in (before.get(name), now[name], laid_out)
        if steps_known and before[name] <= now[name] <= laid_out:
            continue
        if name == "schedule_steps" and now[name] in (None, laid_out):
            continue
        if name == "model":
            # What is stored leaves some fields out while they have their default: compare all of them.
            old, new = (vars(ModelConfig.from_dict(run.get("model", {}))) for run in (before, now))
            # Before weights to begin with brought their scheme along, a record said the one that drew nothing.
            ignored = ("init", "init_groups") if now.get("init_from") is not None else ()
            for field, value in new.items():
                if old[field] != value and field not in ignored:
                    return f"model.{field}"
        # Weights to begin with are known by their digest as well, once there are any.
        elif before.get(name) != now[name] and (name != "init_from" or None in (before.get(name), now[name])):
            return name
    return None


def scheduled(config: Mapping[str, Any]) -> int | None:
    """Return the steps that a run's learning rate is laid out for; None for one epoch."""
    return config.get("schedule_steps") or config.get("steps")


def output_folder(config: PretrainConfig) -> Path:
    """Return the run's folder, absolute."""
    return io.user_path(config.out).resolve()


def with_defaults(before: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings in a run's record; a field that a later version added has its default in an older run."""
    fields = dataclasses.fields(PretrainConfig)
    return {**{field.name: field.default for field in fields if field.default is not dataclasses.MISSING}, **before}
