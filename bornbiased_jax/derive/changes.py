"""The changes that ``bornbiased derive`` makes, by name: how each is written, and what it does."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from bornbiased_jax import keys
from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.checkpoints.adapters import read_adapter
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.derive import damage, symmetries
from bornbiased_jax.derive.damage import Model
from bornbiased_jax.derive.peft import merge_adapter
from bornbiased_jax.errors import InputError
from bornbiased_jax.schema import whole


@dataclasses.dataclass(frozen=True)
class ChangeContext:
    """The inputs of a change besides the model and its argument.

    Attributes:
        seed: of what is drawn by changes that name no seed of their own (noise).
        used_ids: token ids that are in use, of the model that changes began with; None where nobody knows.
        repeats: how many changes of the same kind were made before, each of which draws anew.
    """

    seed: int = 0
    used_ids: np.ndarray | None = None
    repeats: int = 0

    def is_used(self, cfg: ModelConfig) -> np.ndarray:
        """Tell whether each token id is in use: [V]. Without knowledge the last tenth of the ids counts as unused."""
        used_V = np.zeros(cfg.vocab_size, bool)
        if self.used_ids is None:
            used_V[: cfg.vocab_size - max(1, cfg.vocab_size // 10)] = True
        else:
            used_V[self.used_ids[self.used_ids < cfg.vocab_size]] = True
        return used_V


@dataclasses.dataclass(frozen=True)
class ChangeKind:
    """One kind of change.

    Attributes:
        form: how it is written on the command line, whose help says what it does.
        preserves: whether the function stays: all logits, or those of the token ids that ``preserved_ids`` names.
        read: the text after the first colon to the argument; raises ValueError with what it should be.
        apply: the change.
        preserved_ids: whether each token id's logits stay, for changes of the vocabulary: [V], V before the change.
        source_of: of an argument, the model or the adapter that the change reads; None where it reads none.
    """

    form: str
    preserves: bool
    read: Callable[[str], Any]
    apply: Callable[[Model, Any, ChangeContext], Model]
    preserved_ids: Callable[[ModelConfig, Any, ChangeContext], np.ndarray] | None = None
    source_of: Callable[[Any], str] | None = None


@dataclasses.dataclass(frozen=True)
class Change:
    """A change as the user wrote it: ``text``, its kind, and the argument read."""

    text: str
    kind: ChangeKind
    argument: Any

    @property
    def source(self) -> str | None:
        """What the change reads besides the model, as the user named it."""
        return None if self.kind.source_of is None else self.kind.source_of(self.argument)

    def apply(self, model: Model, context: ChangeContext) -> Model:
        """Return the changed model.

        Raises:
            InputError: the model does not allow the change.
        """
        try:
            return self.kind.apply(model, self.argument, context)
        except InputError as error:
            raise InputError(f"{self.text}: {error}") from error

    def preserved_ids(self, cfg: ModelConfig, context: ChangeContext) -> np.ndarray:
        """Tell whether each token id's logits stay, of a change that preserves the function: [V]."""
        if self.kind.preserved_ids is None:
            return np.ones(cfg.vocab_size, bool)
        return self.kind.preserved_ids(cfg, self.argument, context)


def parse_change(text: str) -> Change:
    """Read a change from the command line: its kind ends at the first colon.

    Raises:
        InputError: an unknown kind, or an argument that it cannot have.

    >>> parse_change("merge:seed:42@llama-tiny:0.5").argument
    ('seed:42@llama-tiny', 0.5)
    """
    name, colon, argument = text.partition(":")
    if name not in KINDS:
        raise InputError(f"unknown change {text!r}: choose from {', '.join(kind.form for kind in KINDS.values())}")
    kind = KINDS[name]
    try:
        if not colon:
            raise ValueError("it has no strength")
        return Change(text, kind, kind.read(argument))
    except ValueError as error:
        raise InputError(f"cannot make the change {text!r}: {error}; write it as {kind.form}") from error


def _number(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a number") from None
        if not low <= value <= high or not math.isfinite(value):
            most = "" if math.isinf(high) else f" and at most {high:g}"
            raise ValueError(f"the strength must be at least {low:g}{most}")
        return value

    return read


def _integer(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = whole(text)
        if value is None or not low <= value <= high:
            raise ValueError(f"{text!r} is not an integer from {low} to {high}")
        return value

    return read


def _model_and_strength(text: str) -> tuple[str, float]:
    name, colon, strength = text.rpartition(":")
    if not colon or not name:
        raise ValueError("it names no other model, or no strength after the last colon")
    return name, _number(0.0, 1.0)(strength)


def _first(argument: tuple[str, float]) -> str:
    return argument[0]


def _blocks(text: str) -> list[int]:
    blocks = [whole(part) or 0 for part in text.split(",")]
    if min(blocks) < 1 or len(set(blocks)) != len(blocks):
        raise ValueError(f"{text!r} is not a list of blocks, each named once and counted from 1")
    return blocks


def _span(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    low, high = whole(first), whole(last)
    if low is None or high is None or not 1 <= low <= high:
        raise ValueError(f"{text!r} is not a range of blocks, counted from 1")
    return low, high


def _folder(text: str) -> str:
    if not text:
        raise ValueError("it names no folder")
    return text


def _sign_seed(text: str) -> int | None:
    return None if text == "all" else _SEED(text)


_SEED = _integer(0, keys.MAX_SEED)


def _orders(seed: int, *shape: int) -> np.ndarray:
    """Draw random orders along the last axis."""
    return np.argsort(np.random.default_rng(seed).random(shape), axis=-1)


def _with_other(combine: Callable[[Model, Model, float, str], Any]) -> Callable[[Model, Any, ChangeContext], Model]:
    def apply(model: Model, argument: tuple[str, float], _context: ChangeContext) -> Model:
        second = open_checkpoint(argument[0])
        return model[0], combine(model, (second.cfg, second.params()), argument[1], argument[0])

    return apply


def _drop(model: Model, blocks: list[int], _context: ChangeContext) -> Model:
    cfg, params = model
    _check_blocks(cfg, max(blocks))
    remaining = [block for block in range(1, cfg.num_layers + 1) if block not in blocks]
    if not remaining:
        raise InputError(f"it would leave none of {cfg.num_layers} blocks: keep one")
    return damage.keep_blocks(cfg, params, remaining)


def _repeat(model: Model, span: tuple[int, int], _context: ChangeContext) -> Model:
    cfg, params = model
    first, last = span
    _check_blocks(cfg, last)
    order = [*range(1, last + 1), *range(first, last + 1), *range(last + 1, cfg.num_layers + 1)]
    return damage.keep_blocks(cfg, params, order)


def _check_blocks(cfg: ModelConfig, largest: int) -> None:
    if largest > cfg.num_layers:
        raise InputError(f"the model has no block {largest}: it has {cfg.num_layers}, counted from 1")


def _negate(model: Model, seed: int | None, _context: ChangeContext) -> Model:
    cfg, params = model
    if seed is None:
        return symmetries.negate(cfg, params, -np.ones(cfg.d_model))
    return symmetries.negate(cfg, params, np.random.default_rng(seed).choice([-1.0, 1.0], cfg.d_model))


def _rescale(model: Model, seed: int, _context: ChangeContext) -> Model:
    cfg, params = model
    _check_has(cfg, "mlp")
    draws = np.random.default_rng(seed)

    def factors(width: int) -> np.ndarray:
        shape = (cfg.num_layers, width)
        drawn_LF: np.ndarray = np.exp(draws.standard_normal(shape)) * draws.choice([-1.0, 1.0], shape)
        return drawn_LF.astype(np.float32)

    factors_LF = factors(cfg.d_ff)
    shared_LF = None if cfg.shared_expert_width is None else factors(cfg.shared_expert_width)
    return symmetries.rescale_units(cfg, params, factors_LF, shared_LF)


def _permute(model: Model, seed: int, _context: ChangeContext) -> Model:
    cfg, params = model
    _check_has(cfg, "mlp")
    experts = () if cfg.num_experts is None else (cfg.num_experts,)
    width = cfg.shared_expert_width
    shared_LF = None if width is None else _orders(seed + 1, cfg.num_layers, width)
    return symmetries.permute_units(cfg, params, _orders(seed, cfg.num_layers, *experts, cfg.d_ff), shared_LF)


def _experts(model: Model, seed: int, _context: ChangeContext) -> Model:
    cfg, params = model
    return symmetries.permute_experts(cfg, params, _orders(seed, cfg.num_layers, cfg.num_experts or 1))


def _heads(model: Model, seed: int, _context: ChangeContext) -> Model:
    cfg, params = model
    _check_has(cfg, "attention")
    groups, size = cfg.kv_heads, cfg.num_heads // cfg.kv_heads
    within_LGR = _orders(seed + 1, cfg.num_layers, groups, size)
    return symmetries.permute_heads(cfg, params, _orders(seed, cfg.num_layers, groups), within_LGR)


def _check_has(cfg: ModelConfig, sublayer: str) -> None:
    if not getattr(cfg, sublayer):
        raise InputError(f"the model has {sublayer}=false: there is nothing to change")


def _lora(model: Model, folder: str, _context: ChangeContext) -> Model:
    params = merge_adapter(*model, read_adapter(folder))
    return model[0].replace(tie_embeddings="head" not in params), params


def _scale_unused(model: Model, factor: float, context: ChangeContext) -> Model:
    unused_I = np.flatnonzero(~context.is_used(model[0]))
    if not len(unused_I):
        raise InputError("every token id is in use: name another text")
    return damage.scale_rows(*model, unused_I, factor)


KINDS: dict[str, ChangeKind] = {
    "noise": ChangeKind(
        "noise:0.1",
        False,
        _number(0.0, math.inf),
        lambda model, strength, context: (
            model[0],
            damage.add_noise(model[1], strength, seed=context.seed, repeats=context.repeats),
        ),
    ),
    "prune": ChangeKind(
        "prune:0.5",
        False,
        _number(0.0, 1.0),
        lambda model, fraction, _context: (model[0], damage.prune(model[1], fraction)),
    ),
    "round": ChangeKind(
        "round:8",
        False,
        _integer(2, 16),
        lambda model, bits, _context: (model[0], damage.round_weights(model[1], bits)),
    ),
    "merge": ChangeKind(
        "merge:OTHER:0.5",
        False,
        _model_and_strength,
        _with_other(damage.merge),
        source_of=_first,
    ),
    "slerp": ChangeKind(
        "slerp:OTHER:0.5",
        False,
        _model_and_strength,
        _with_other(damage.slerp),
        source_of=_first,
    ),
    "lora": ChangeKind(
        "lora:DIR",
        False,
        _folder,
        _lora,
        source_of=str,
    ),
    "drop-layers": ChangeKind("drop-layers:2,5", False, _blocks, _drop),
    "rotate": ChangeKind(
        "rotate:SEED",
        True,
        _SEED,
        lambda model, seed, _context: symmetries.rotate(*model, symmetries.random_rotation(model[0], seed)),
    ),
    "permute": ChangeKind("permute:SEED", True, _SEED, _permute),
    "negate": ChangeKind(
        "negate:SEED",
        True,
        _sign_seed,
        _negate,
    ),
    "rescale": ChangeKind("rescale:SEED", True, _SEED, _rescale),
    "renumber": ChangeKind(
        "renumber:SEED",
        True,
        _SEED,
        lambda model, seed, _context: symmetries.permute_coordinates(*model, _orders(seed, model[0].d_model)),
    ),
    "resize-vocab": ChangeKind(
        "resize-vocab:N",
        True,
        _integer(1, 1 << 24),
        lambda model, size, _context: damage.resize_vocabulary(*model, size),
        lambda cfg, size, _context: np.arange(cfg.vocab_size) < size,
    ),
    "repeat-layers": ChangeKind("repeat-layers:A-B", False, _span, _repeat),
    "insert-layer": ChangeKind(
        "insert-layer:SEED",
        True,
        _SEED,
        lambda model, seed, _context: symmetries.insert_idle_block(*model, seed),
    ),
    "heads": ChangeKind("heads:SEED", True, _SEED, _heads),
    "experts": ChangeKind("experts:SEED", True, _SEED, _experts),
    "unused-rows": ChangeKind(
        "unused-rows:SCALE",
        True,
        _number(0.0, math.inf),
        _scale_unused,
        lambda cfg, _scale, context: context.is_used(cfg),
    ),
}
"""Every change by name."""
