"""Families of initializations, trained; and trained further: fine-tuned, with LoRA merged in, distilled.

All families see the same text in the same order, the hardest case for a test: unrelated models differ in their
initialization and in nothing else.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bornbiased_jax import model as models
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.derive import damage
from bornbiased_jax.derive.damage import Model
from bornbiased_jax.experiments._shared.lineage import derived
from bornbiased_jax.experiments._shared.training import in_memory, mean_loss
from bornbiased_jax.experiments.base import Context, Entry
from bornbiased_jax.experiments.lineage.unrelated_models import cached_run, packed, stacked, unpacked
from bornbiased_jax.parameters import Params
from bornbiased_jax.record import jsonable
from bornbiased_jax.training import load_data, train
from bornbiased_jax.training.data.windows import batches
from bornbiased_jax.training.step import over_seeds

TUNED, LORA, DISTILLED = "fine-tuned", "LoRA, merged", "distilled"
ALL_AT_ONCE = "rotated, units and heads renumbered"


class Recipe(NamedTuple):
    """One change at one strength.

    Attributes:
        kind: of change.
        strength: as it is written, "" where there is but one.
        size: the strength as a number, or None.
        make: families, a family's place -> the descendant.
        related: whether it is a descendant of the family's initialization.
        usual: whether it is the strength of its kind at which every pair of families is tried.
    """

    kind: str
    strength: str
    size: float | None
    make: Callable[[Families, int], Model]
    related: bool = True
    usual: bool = True

    @property
    def name(self) -> str:
        """Kind and strength."""
        return f"{self.kind} {self.strength}".strip()


def all_changes(settings: Entry) -> list[Recipe]:
    """List the changes in the order of the tables: training, damage, mixtures, blocks, free ones, distillation."""
    further, strengths = settings["further"], settings["strengths"]
    changes = [*_trained(TUNED, "tuned", further["tuned"]), *_trained(LORA, "adapted", further["tuned"])]
    # Damage and mixtures with a partner; the middle strength is the usual one.
    for kind in ("noise", "prune", "round", *_MIXES):
        values = strengths[kind]
        for value in values:
            make = functools.partial(_mixed if kind in _MIXES else _derived, kind, f"{value:g}")
            changes.append(Recipe(kind, f"{value:g}", value, make, usual=value == values[len(values) // 2]))
    # Blocks dropped and repeated, and changes that preserve the function; the first is the usual one.
    listed = {
        **{kind: strengths[kind] for kind in ("drop-layers", "repeat-layers")},
        **dict.fromkeys(
            ("insert-layer", "rotate", "renumber", "negate", "permute", "rescale", "heads", ALL_AT_ONCE), [""]
        ),
        "resize-vocab": strengths["resize-vocab"],
        "unused-rows": [1000],
    }
    for kind, values in listed.items():
        for value in values:
            make = functools.partial(_derived, kind, f"{value}")
            changes.append(Recipe(kind, f"{value}", None, make, usual=value == values[0]))
    return changes + _trained(DISTILLED, "students", further["distilled"], related=False)


def _trained(kind: str, stage: str, steps: list[int], *, related: bool = True) -> list[Recipe]:
    return [
        Recipe(kind, f"{step} steps", step, functools.partial(_model_at, stage, step), related, usual=step == steps[-1])
        for step in steps
    ]


def _model_at(stage: str, step: int, families: Families, place: int) -> Model:
    return families.cfg, getattr(families, stage)[step][place]


def _derived(kind: str, strength: str, families: Families, place: int) -> Model:
    """Run ``derive`` with draws of the family's own."""
    names = ("permute", "heads", "rescale", "rotate") if kind == ALL_AT_ONCE else (kind,)
    changes = [f"{name}:{strength or '{seed}'}" for name in names]
    return derived((families.cfg, families.bases[place]), *changes, seed=1_000 + place)


_MIXES = {"merge": damage.merge, "slerp": damage.slerp}


def _mixed(kind: str, weight: str, families: Families, place: int) -> Model:
    """Mix with a partner, which no family is, and which no other family has."""
    partner = families.partners[place % len(families.partners)]
    base = (families.cfg, families.bases[place])
    return families.cfg, _MIXES[kind](base, (families.cfg, partner), float(weight), "the partner")


Loss = Callable[[Any, Any, jax.Array], jax.Array]
"""(what is trained, what is not, tokens [B, T + 1]) -> the mean loss of one family."""

# Seeds of families, of the models that are merged in, and of distilled students.
_FIRST, _PARTNERS, _STUDENTS = 0, 100_000, 200_000
_ORDER = 0


class Families(NamedTuple):
    """Models by family.

    Attributes:
        cfg: the architecture of all.
        seeds: of the families' initializations.
        bases: the trained models.
        partners: trained models of other initializations, one or more families each.
        tuned: by number of steps, the bases after fine-tuning on the other text.
        adapted: the same, of LoRA's factors alone, merged.
        students: by number of steps, models of other initializations that learned the bases' predictions.
        batch: of the first text, [B, T + 1].
    """

    cfg: ModelConfig
    seeds: list[int]
    bases: list[Params]
    partners: list[Params]
    tuned: dict[int, list[Params]]
    adapted: dict[int, list[Params]]
    students: dict[int, list[Params]]
    batch: np.ndarray


class _Fit(NamedTuple):
    trained: Any
    fixed: Any
    memory: Any


def make_families(context: Context) -> Families:
    """Train everything that has to be trained, stage by stage; a killed call resumes at its last stage."""
    settings = context.settings
    cfg = preset(settings["model"], **settings["changes"])
    count = settings["families"]
    seeds = list(range(_FIRST, _FIRST + count))
    first_text, other_text = settings["corpora"]
    further, rate = settings["further"], settings["further"]["learning_rate"]
    steps, taught = further["tuned"], further["distilled"]

    def stage(name: str, marks: list[int], make: Callable[[], Mapping[int, Params]]) -> dict[int, list[Params]]:
        sizes = {name: settings[name] for name in ("families", "partners", "schedule", "corpora", "further", "rank")}
        weights = cached_fit(context, "descendants/models", [name, sizes], cfg, make)
        return dict(zip(marks, weights, strict=True))

    def tokens(text: str, steps: int) -> Iterator[np.ndarray]:
        return batches_of(settings, cfg, text, steps)

    # Bases and partners, from their initial weights.
    partner_seeds = range(_PARTNERS, _PARTNERS + settings["partners"])
    trained = cached_run(context, "descendants/bases", cfg, first_text, _ORDER, [*seeds, *partner_seeds])
    bases, partners = trained[:count], trained[count:]
    params_S = stacked(bases)
    adapter = first_factors(cfg, settings["rank"], seeds)
    return Families(
        cfg,
        seeds,
        bases,
        partners,
        # Fine-tuning on the other text, all weights.
        stage(
            "tuned", steps, lambda: fit(tuning_loss(cfg), params_S, None, tokens(other_text, steps[-1]), rate, steps)
        ),
        # Low-rank adapters, folded into the weights.
        stage(
            "adapted", steps, lambda: fit_adapters(cfg, adapter, params_S, tokens(other_text, steps[-1]), rate, steps)
        ),
        # Students from other initial weights, taught by the bases.
        stage(
            "students",
            taught,
            lambda: fit(
                _distilling(cfg),
                initializations(cfg, count),
                params_S,
                tokens(first_text, taught[-1]),
                2 * rate,
                taught,
            ),
        ),
        next(tokens(first_text, 1)),
    )


def cached_fit(
    context: Context,
    place: str,
    identity: Sequence[object],
    cfg: ModelConfig,
    make: Callable[[], Mapping[int, Params]],
) -> list[list[Params]]:
    """Keep what :func:`fit` gives in a folder: the parameters by mark, then by family."""

    def compute(_folder: Path) -> np.ndarray:
        return np.stack([packed(params_S) for params_S in make().values()])

    weights_MSP = context.cached(place, jsonable([cfg.to_dict(), *identity]), compute)
    return [[unpacked(cfg, weights_P) for weights_P in weights_SP] for weights_SP in weights_MSP]


def batches_of(settings: Entry, cfg: ModelConfig, text: str, steps: int) -> Iterator[np.ndarray]:
    """Yield batches [B, T + 1] of a text, bytes as tokens."""
    run = in_memory(cfg, text, settings["schedule"])
    rows = batches(load_data(run).train, batch_size=run.batch_size, data_seed=_ORDER)
    return (np.asarray(row) for row in itertools.islice(rows, steps))


def initializations(cfg: ModelConfig, count: int) -> Params:
    """Draw initializations that students begin with, leaves [S, ...]."""
    return jax.vmap(lambda seed: models.init_seed(cfg, seed))(np.arange(_STUDENTS, _STUDENTS + count, dtype=np.uint32))


def fit(
    loss: Loss, trained: Params, fixed: Params | None, tokens: Iterator[np.ndarray], rate: float, marks: list[int]
) -> dict[int, Any]:
    """Run Adam with a warm-up over a tenth of the steps, all families in one program.

    Args:
        loss: of one family.
        trained: of all families, leaves [S, ...].
        fixed: the same, what is not trained.
        tokens: a batch a step, the same for all families.
        rate: the learning rate.
        marks: numbers of steps, ascending.

    Returns:
        What was trained after each number of steps.
    """
    rule = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adam(optax.linear_schedule(0.0, rate, max(1, marks[-1] // 10)))
    )

    def step(state: _Fit, batch: jax.Array) -> tuple[_Fit, dict[str, jax.Array]]:
        value, grads = jax.value_and_grad(loss)(state.trained, state.fixed, batch)
        updates, memory = rule.update(grads, state.memory)
        return _Fit(optax.apply_updates(state.trained, updates), state.fixed, memory), {"loss": value}

    mode: Any = "map" if jax.default_backend() == "cpu" else "vmap"
    # Parameters at each mark, by step.
    snapshots: dict[int, Any] = {}

    def look(number: int, state: _Fit, _measured: object) -> None:
        if number in marks:
            snapshots[number] = jax.tree.map(np.asarray, state.trained)

    state = _Fit(trained, fixed, jax.vmap(rule.init)(trained))
    train.fit(state, jax.jit(over_seeds(step, mode)), map(jnp.asarray, tokens), [look])
    return snapshots


def fit_adapters(
    cfg: ModelConfig, factors: Params, params_S: Params, tokens: Iterator[np.ndarray], rate: float, marks: list[int]
) -> dict[int, Params]:
    """Train LoRA's factors at five times the rate, and merge them at each mark."""
    snapshots = fit(adapter_loss(cfg), factors, params_S, tokens, 5 * rate, marks)
    return {mark: jax.vmap(add_factors)(params_S, trained) for mark, trained in snapshots.items()}


def tuning_loss(cfg: ModelConfig) -> Loss:
    """Return the mean loss of a model all of whose parameters are trained."""
    return lambda params, _fixed, tokens_BT1: mean_loss(cfg, params, tokens_BT1)


def adapter_loss(cfg: ModelConfig) -> Loss:
    """Return the mean loss of fixed parameters with LoRA's factors added, which alone are trained."""
    return lambda factors, params, tokens_BT1: mean_loss(cfg, add_factors(params, factors), tokens_BT1)


def _distilling(cfg: ModelConfig) -> Loss:
    """Return the teacher's cross-entropy with the student's predictions, at every position."""

    def loss(student: Params, teacher: Params, tokens_BT1: jax.Array) -> jax.Array:
        teacher_BTV, student_BTV = (
            jnp.asarray(models.apply(cfg, params, tokens_BT1[:, :-1]).logits_BTV) for params in (teacher, student)
        )
        return -jnp.mean(jnp.sum(jax.nn.softmax(teacher_BTV) * jax.nn.log_softmax(student_BTV), axis=-1))

    return loss


def first_factors(cfg: ModelConfig, rank: int, seeds: Sequence[int]) -> dict[str, dict[str, np.ndarray]]:
    """Draw LoRA's factors of every matrix of the blocks, by family: A [S, L, in, r] random, B [S, L, r, out] zero."""
    shapes = models.flatten(models.parameter_shapes(cfg))
    factors = {}
    for place, path in enumerate(sorted(shapes)):
        if path.startswith("blocks/") and path.endswith("/kernel"):
            layers, into, out = shapes[path].shape
            draws = np.random.default_rng([place, *seeds[:1]])
            a_SLIr = draws.standard_normal((len(seeds), layers, into, rank), np.float32) / np.float32(into) ** 0.5
            factors[path] = {"a": a_SLIr, "b": np.zeros((len(seeds), layers, rank, out), np.float32)}
    return factors


def add_factors(params: Params, factors: Mapping[str, Mapping[str, jax.Array]]) -> Params:
    """Add A B to W for every matrix that has factors; α is the rank."""
    flat = dict(models.flatten(params))
    for path, pair in factors.items():
        flat[path] = flat[path] + jnp.einsum("lir,lro->lio", pair["a"], pair["b"])
    return models.unflatten(flat)
