"""Disputed releases: what is done to a model before somebody else publishes it, on small trained models.

Every recipe is applied to every base. A suspect and the base that it was made from are a guilty pair; the same suspect
and another base are an innocent one: same recipe, another initialization, trained on the same text in the same order.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import ml_dtypes
import numpy as np

from bornbiased_jax import model as models
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.native_roles import LANGUAGE, NativeRoles
from bornbiased_jax.checkpoints.roles import Role, RoleSource, RoleTensor, Shape
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.derive import damage
from bornbiased_jax.derive.damage import Model
from bornbiased_jax.experiments._shared.lineage import derived
from bornbiased_jax.experiments._shared.training import mean_loss
from bornbiased_jax.experiments.base import Context, Entry
from bornbiased_jax.experiments.lineage.descendants_families import (
    batches_of,
    cached_fit,
    first_factors,
    fit,
    fit_adapters,
    tuning_loss,
)
from bornbiased_jax.experiments.lineage.unrelated_models import cached_run, draw, stacked
from bornbiased_jax.lineage.blockwise import probe_ids
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.lineage.fingerprints import Fingerprint
from bornbiased_jax.lineage.sheet_reading import SheetReading, read_model
from bornbiased_jax.parameters import Params

TOWER = "vision"
KINDS = (
    "upcycled to experts, retrained",
    "blocks repeated, retrained",
    "half of the neurons pruned, healed",
    "new vocabulary, retrained",
    "noise of half a standard deviation",
    "LoRA, merged",
    "70% of a merge",
    "30% of a merge",
    "rounded to FP8",
    "rounded to 4 bits",
    "settings renamed, neurons and heads permuted, rescaled, rotated",
    "the same, retrained",
    "vision tower inherited, retrained",
)
"""Recipes, in the order of the tables."""
UPCYCLED, UPSCALED, PRUNED, VOCABULARY, NOISE, LORA, MOST, LESS, FP8, FOUR_BITS, WASHED, WASHED_TUNED, WITH_TOWER = (
    KINDS
)
# Seeds of what recipes add: tables, routers.
_ADDED = 300_000
# Largest number of float8_e4m3fn.
_LARGEST_FP8 = 448.0


@dataclasses.dataclass(frozen=True, eq=False)
class Release:
    """A published model, with what the tests read of it, each made when first asked for.

    Attributes:
        cfg, params: of the language model.
        tower: a model whose blocks are a second component without a vocabulary; None without one.
    """

    cfg: ModelConfig
    params: Params
    tower: Model | None = None

    @functools.cached_property
    def checkpoint(self) -> Checkpoint:
        """The language model, tensor by tensor."""
        return Checkpoint.from_params(self.cfg, self.params)

    @functools.cached_property
    def fingerprint(self) -> Fingerprint:
        """Of all components, with the settings of fingerprints that are published."""
        language = NativeRoles(self.checkpoint)
        if self.tower is None:
            return fingerprint(language)
        return fingerprint(TowerRoles(language, NativeRoles(Checkpoint.from_params(*self.tower))))

    @functools.cached_property
    def reading(self) -> SheetReading:
        """The numbers of the language model that public statistics need."""
        ids_ST = probe_ids(self.checkpoint, self.checkpoint)
        return read_model(NativeRoles(self.checkpoint), self.checkpoint, ids_ST)


class TowerRoles(RoleSource):
    """A language model with the blocks of another model as its vision tower.

    Args:
        language: all of its tensors are read.
        tower: its tables of the vocabulary are left out.
    """

    naming = "native"

    def __init__(self, language: NativeRoles, tower: NativeRoles) -> None:
        super().__init__(language.description, ())
        self._sources: dict[str, NativeRoles] = {LANGUAGE: language, TOWER: tower}
        self._roles: dict[Role, Role] = {}
        for component, source in self._sources.items():
            for role in source.roles:
                if component == LANGUAGE or role.group not in ("embedding", "head"):
                    renamed = dataclasses.replace(role, component=component)
                    self._parts[renamed] = RoleTensor(source.array_shape(role), functools.partial(source.read, role))
                    self._roles[renamed] = role

    def shape(self, component: str) -> Shape:
        """Return the sizes of a component."""
        return self._sources[component].shape(LANGUAGE)

    def norm_scale(self, role: Role) -> np.ndarray | None:
        """Read the scale of the norm between a matrix and its own model's residual stream."""
        return self._sources[role.component].norm_scale(self._roles[role])

    def stored_as(self, role: Role) -> str:
        """Return the storage type."""
        return self._sources[role.component].stored_as(self._roles[role])


@dataclasses.dataclass(frozen=True)
class Dispute:
    """One recipe applied to every base: suspect i was made from base i."""

    bases: Sequence[Release]
    suspects: Sequence[Release]


def config(settings: Entry) -> ModelConfig:
    """Return the architecture of the bases."""
    return preset(settings["model"], **settings["changes"])


def make_disputes(context: Context) -> dict[str, Dispute]:
    """Train the bases, then apply every recipe to each; a killed call resumes at its last stage of training."""
    settings = context.settings
    cfg, count = config(settings), settings["models"]
    # Bases; their towers; a few more that are merged in, or stand around an inherited tower.
    seeds = range(2 * count + settings["others"])
    trained = [(cfg, params) for params in cached_run(context, "disputes/bases", cfg, settings["corpora"][0], 0, seeds)]
    bases, towers = trained[:count], trained[count : 2 * count]
    partners = [trained[2 * count + place % settings["others"]] for place in range(count)]
    washed = [_washed(model, place) for place, model in enumerate(bases)]
    suspects = {
        UPCYCLED: _retrained(context, UPCYCLED, _map_bases(bases, functools.partial(upcycled, settings["experts"]))),
        UPSCALED: _retrained(context, UPSCALED, _map_bases(bases, _upscaled)),
        PRUNED: _retrained(context, PRUNED, _map_bases(bases, pruned)),
        VOCABULARY: _retrained(context, VOCABULARY, bases, functools.partial(_with_new_vocabulary, settings)),
        NOISE: [derived(model, "noise:0.5", seed=1_000 + place) for place, model in enumerate(bases)],
        LORA: _retrained(context, LORA, bases, functools.partial(_adapted, settings)),
        MOST: [merged(model, partner, 0.3) for model, partner in zip(bases, partners, strict=True)],
        LESS: [merged(model, partner, 0.7) for model, partner in zip(bases, partners, strict=True)],
        FP8: _map_bases(bases, _rounded_to_fp8),
        FOUR_BITS: [derived(model, "round:4", seed=0) for model in bases],
        WASHED: washed,
        WASHED_TUNED: _retrained(context, WASHED_TUNED, washed),
    }
    plain = [Release(*model) for model in bases]
    disputes = {kind: Dispute(plain, [Release(*model) for model in models]) for kind, models in suspects.items()}
    # The suspect has the tower of the base, and a language model of its own.
    tuned_towers = _retrained(context, WITH_TOWER, towers)
    disputes[WITH_TOWER] = Dispute(
        [Release(cfg, params, tower) for (cfg, params), tower in zip(bases, towers, strict=True)],
        [Release(cfg, params, tower) for (cfg, params), tower in zip(partners, tuned_towers, strict=True)],
    )
    return {kind: disputes[kind] for kind in KINDS}


# ---------------------------------------------------------------------------------------------------------------------
# Recipes without training


def _map_bases(bases: Sequence[Model], recipe: Callable[[Model, int], Model]) -> list[Model]:
    return [recipe(model, place) for place, model in enumerate(bases)]


def upcycled(num_experts: int, model: Model, place: int) -> Model:
    """Copy the MLP of every block to each expert, with a new router: the same function until it is trained."""
    cfg = model[0].replace(num_experts=num_experts)
    flat = dict(models.flatten(draw(cfg, np.uint32(_ADDED + place))))
    for path, leaf in models.flatten(model[1]).items():
        is_expert = flat[path].ndim > leaf.ndim
        flat[path] = np.repeat(leaf[:, None], num_experts, axis=1) if is_expert else leaf
    return cfg, models.unflatten(flat)


def _upscaled(model: Model, _place: int) -> Model:
    cfg, params = model
    return damage.keep_blocks(cfg, params, [*range(1, cfg.num_layers + 1)] * 2)


def pruned(model: Model, _place: int) -> Model:
    """Keep the half of each block's neurons whose three vectors have the largest product of norms."""
    cfg, params = model
    flat = dict(models.flatten(params))
    axes = {"blocks/mlp/gate/kernel": 2, "blocks/mlp/up/kernel": 2, "blocks/mlp/down/kernel": 1}
    norms_LF = np.prod([np.linalg.norm(flat[path], axis=3 - axis) for path, axis in axes.items()], axis=0)
    order_LF = np.sort(np.argsort(-norms_LF, axis=1)[:, : cfg.d_ff // 2], axis=1)
    for path, axis in axes.items():
        flat[path] = np.stack(
            [np.take(leaf, order_F, axis - 1) for leaf, order_F in zip(flat[path], order_LF, strict=True)]
        )
    return cfg.replace(d_ff=cfg.d_ff // 2), models.unflatten(flat)


def merged(model: Model, partner: Model, weight: float) -> Model:
    """Merge two models, the other one with a weight."""
    return model[0], damage.merge(model, partner, weight, "the other model")


def _rounded_to_fp8(model: Model, _place: int) -> Model:
    """Round every matrix to float8_e4m3fn with one scale, a block's matrices each with its own."""

    def rounded(path: str, leaf: np.ndarray) -> np.ndarray:
        if not path.endswith(("/kernel", "/embedding")):
            return leaf
        axes = tuple(range(1 if path.startswith("blocks/") else 0, leaf.ndim))
        scale = np.abs(leaf).max(axis=axes, keepdims=True) / np.float32(_LARGEST_FP8)
        return (leaf / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale

    cfg, params = model
    return cfg, models.unflatten({path: rounded(path, leaf) for path, leaf in models.flatten(params).items()})


def _washed(model: Model, place: int) -> Model:
    """Hide a copy at no cost: its function stays, its order of neurons and heads, its basis and its settings do not."""
    changes = ("permute:{seed}", "heads:{seed}", "rescale:{seed}", "rotate:{seed}")
    cfg, params = derived(model, *changes, seed=1_000 + place)
    return cfg.replace(max_seq_len=2 * cfg.max_seq_len), params


# ---------------------------------------------------------------------------------------------------------------------
# Recipes with training on the other text


TrainingFn = Callable[[ModelConfig, Params, float, list[int]], Mapping[int, Params]]
"""Architecture, parameters [S, ...], rate and numbers of steps -> parameters after each."""


def _retrained(context: Context, kind: str, suspects: Sequence[Model], train: TrainingFn | None = None) -> list[Model]:
    """Train all suspects of a kind, all of their parameters where nothing else is named."""
    settings, cfg = context.settings, suspects[0][0]
    steps, rate = settings["retraining"]["steps"], settings["retraining"]["learning_rate"]
    params_S = stacked([params for _, params in suspects])

    def make() -> Mapping[int, Params]:
        if train is not None:
            return train(cfg, params_S, rate, [steps])
        return fit(tuning_loss(cfg), params_S, None, _tokens(settings, cfg), rate, [steps])

    names = ("models", "schedule", "corpora", "retraining", "rank", "changes")
    identity = [kind, {name: settings[name] for name in names}]
    (models_S,) = cached_fit(context, "disputes/suspects", identity, cfg, make)
    return [(cfg, params) for params in models_S]


def _adapted(settings: Entry, cfg: ModelConfig, params_S: Params, rate: float, marks: list[int]) -> dict[int, Params]:
    """Train LoRA's factors on every matrix of the blocks, and merge them."""
    factors = first_factors(cfg, settings["rank"], range(settings["models"]))
    return fit_adapters(cfg, factors, params_S, _tokens(settings, cfg), rate, marks)


def _with_new_vocabulary(
    settings: Entry, cfg: ModelConfig, params_S: Params, rate: float, marks: list[int]
) -> dict[int, Params]:
    """Replace both tables and the meaning of every token, train the tables alone, then all parameters."""

    def tables_loss(tables: Params, blocks: Params, tokens_BT1: jax.Array) -> jax.Array:
        return mean_loss(cfg, {**blocks, **tables}, tokens_BT1)

    names = ("embed", "head")
    seeds = range(_ADDED, _ADDED + settings["models"])
    initial = [{name: leaf for name, leaf in draw(cfg, np.uint32(seed)).items() if name in names} for seed in seeds]
    blocks_S = {name: leaves for name, leaves in params_S.items() if name not in names}
    # New tables at the rate of a new model's, in a body that is fixed.
    first_rate = settings["schedule"]["learning_rate"]
    snapshots = fit(tables_loss, stacked(initial), blocks_S, _renamed_tokens(settings, cfg), first_rate, marks)
    params_S = {**blocks_S, **snapshots[marks[-1]]}
    return fit(tuning_loss(cfg), params_S, None, _renamed_tokens(settings, cfg), rate, marks)


def _tokens(settings: Entry, cfg: ModelConfig) -> Iterator[np.ndarray]:
    return batches_of(settings, cfg, settings["corpora"][1], settings["retraining"]["steps"])


def _renamed_tokens(settings: Entry, cfg: ModelConfig) -> Iterator[np.ndarray]:
    """Yield the same batches under a vocabulary in another order."""
    order_V = vocabulary_order(cfg.vocab_size)
    return (order_V[rows_BT1] for rows_BT1 in _tokens(settings, cfg))


def vocabulary_order(vocab_size: int) -> np.ndarray:
    """Return the new id of every token, int32 [V]."""
    return np.random.default_rng(0).permutation(vocab_size).astype(np.int32)
