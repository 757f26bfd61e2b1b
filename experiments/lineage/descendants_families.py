"""Families of initializations, trained; and trained further: fine-tuned, with LoRA merged in, distilled.

All families see the same text in the same order, the hardest case for a test: unrelated models differ in their
initialization and in nothing else. Everything is kept as one array a stage, parameters by their paths.
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
from bornbiased_jax.derive.changes import Context as Drawing
from bornbiased_jax.derive.changes import parse_change
from bornbiased_jax.derive.damage import Model
from bornbiased_jax.experiments._shared.training import in_memory
from bornbiased_jax.experiments.base import Context
from bornbiased_jax.experiments.lineage.unrelated_models import train_run, unpacked
from bornbiased_jax.model.loss import loss_sum
from bornbiased_jax.parameters import Params
from bornbiased_jax.record import jsonable
from bornbiased_jax.training import load_data, train
from bornbiased_jax.training.data.windows import batches
from bornbiased_jax.training.step import over_seeds

TUNED, LORA, DISTILLED = "fine-tuned", "LoRA, merged", "distilled"
ALL_AT_ONCE = "rotated, units and heads renumbered"
FREE = frozenset(
    ("insert-layer", "rotate", "renumber", "negate", "permute", "rescale", "heads", "resize-vocab", "unused-rows",
     ALL_AT_ONCE)
)  # fmt: skip
"""Kinds that leave the function alone."""


class Change(NamedTuple):
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


def all_changes(settings: Mapping[str, Any]) -> list[Change]:
    """List the changes in the order of the tables: training, damage, mixtures, blocks, free ones, distillation."""
    further, strengths = settings["further"], settings["strengths"]
    changes = [
        *_trained(TUNED, "tuned", further["tuned"]),
        *_trained(LORA, "adapted", further["tuned"]),
    ]
    # Damage, at several strengths.
    for kind in ("noise", "prune", "round"):
        values = strengths[kind]
        changes += [
            Change(kind, f"{value:g}", value, functools.partial(_derived, (f"{kind}:{value:g}",)), usual=value == usual)
            for value, usual in ((value, _middle(values)) for value in values)
        ]
    # Mixtures with a partner.
    for kind, mix in (("merge", damage.merge), ("slerp", damage.slerp)):
        values = strengths[kind]
        changes += [
            Change(kind, f"{value:g}", value, functools.partial(_mixed, mix, value), usual=value == _middle(values))
            for value in values
        ]
    # Blocks dropped and repeated.
    for kind in ("drop-layers", "repeat-layers"):
        changes += [
            Change(kind, blocks, None, functools.partial(_derived, (f"{kind}:{blocks}",)), usual=not place)
            for place, blocks in enumerate(strengths[kind])
        ]
    # Changes that preserve the function.
    for kind in ("insert-layer", "rotate", "renumber", "negate", "permute", "rescale", "heads"):
        changes.append(Change(kind, "", None, functools.partial(_derived, (kind + ":{seed}",))))
    free_changes = ("permute:{seed}", "heads:{seed}", "rescale:{seed}", "rotate:{seed}")
    changes.append(Change(ALL_AT_ONCE, "", None, functools.partial(_derived, free_changes)))
    changes += [
        Change("resize-vocab", f"{size}", None, functools.partial(_derived, (f"resize-vocab:{size}",)), usual=not place)
        for place, size in enumerate(strengths["resize-vocab"])
    ]
    changes.append(Change("unused-rows", "1000", None, functools.partial(_derived, ("unused-rows:1000",))))
    return changes + _trained(DISTILLED, "students", further["distilled"], related=False)


def _middle(values: list[float]) -> float:
    return values[len(values) // 2]


def _trained(kind: str, stage: str, steps: list[int], *, related: bool = True) -> list[Change]:
    return [
        Change(kind, f"{step} steps", step, functools.partial(_taken, stage, step), related, usual=step == steps[-1])
        for step in steps
    ]


def params_of(families: Families, place: int) -> Params:
    """Return a family's trained model."""
    return unpacked(families.cfg, families.bases[place])


def _taken(stage: str, step: int, families: Families, place: int) -> Model:
    return families.cfg, unpacked(families.cfg, getattr(families, stage)[step][place])


def _derived(texts: tuple[str, ...], families: Families, place: int) -> Model:
    """Run ``derive`` with draws of the family's own."""
    model: Model = (families.cfg, params_of(families, place))
    for text in texts:
        model = parse_change(text.format(seed=1_000 + place)).apply(model, Drawing(seed=1_000 + place))
    return model


def _mixed(mix: Callable[..., Params], weight: float, families: Families, place: int) -> Model:
    """Mix with a partner, which no family is, and which no other family has."""
    other = unpacked(families.cfg, families.partners[place % len(families.partners)])
    base = (families.cfg, params_of(families, place))
    return families.cfg, mix(base, (families.cfg, other), weight, "the partner")


Loss = Callable[[Any, Any, jax.Array], jax.Array]
"""(what is trained, what is not, tokens [B, T + 1]) -> the mean loss of one family."""

# Seeds of families, of the models that are merged in, and of distilled students.
_FIRST, _PARTNERS, _STUDENTS = 0, 100_000, 200_000
_ORDER = 0


class Families(NamedTuple):
    """Models by family, as arrays [S, P] of parameters.

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
    bases: np.ndarray
    partners: np.ndarray
    tuned: dict[int, np.ndarray]
    adapted: dict[int, np.ndarray]
    students: dict[int, np.ndarray]
    batch: np.ndarray


class _Fit(NamedTuple):
    trained: Any
    fixed: Any
    memory: Any


def make_families(context: Context) -> Families:
    """Train everything that has to be trained, stage by stage; a killed call resumes at its last stage."""
    settings = context.settings
    cfg = preset(settings["model"], **settings["changes"])
    count, schedule = settings["families"], settings["schedule"]
    seeds = list(range(_FIRST, _FIRST + count))
    first_text, other_text = settings["corpora"]

    def cached_stage(stage: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
        def computed(_folder: Path) -> np.ndarray:
            return compute()

        sizes = {name: settings[name] for name in ("families", "partners", "schedule", "corpora", "further", "rank")}
        weights: np.ndarray = context.cached("descendants/models", [stage, cfg.to_dict(), jsonable(sizes)], computed)
        return weights

    def tokens(text: str, steps: int) -> Iterator[np.ndarray]:
        return batches_of(settings, cfg, text, steps)

    # Bases and partners, from their initial weights.
    further, rate = settings["further"], settings["further"]["learning_rate"]
    partner_seeds = list(range(_PARTNERS, _PARTNERS + settings["partners"]))
    trained = cached_stage("trained", lambda: train_run(schedule, cfg, first_text, _ORDER, [*seeds, *partner_seeds]))
    bases, partners = trained[:count], trained[count:]
    params_S = stacked(cfg, bases)
    # Fine-tuning on the other text, all weights.
    steps = further["tuned"]
    tuned = cached_stage(
        "tuned", lambda: packed(fit(tuning_loss(cfg), params_S, None, tokens(other_text, steps[-1]), rate, steps))
    )
    # Low-rank adapters, folded into the weights.
    adapter = first_factors(cfg, settings["rank"], seeds)
    adapted = cached_stage(
        "adapted",
        lambda: packed(
            {
                step: jax.vmap(add_factors)(params_S, factors)
                for step, factors in fit(
                    adapter_loss(cfg), adapter, params_S, tokens(other_text, steps[-1]), 5 * rate, steps
                ).items()
            }
        ),
    )
    # Students from other initial weights, taught by the bases.
    taught = further["distilled"]
    students = cached_stage(
        "students",
        lambda: packed(
            fit(
                _distilling(cfg),
                initializations(cfg, count),
                params_S,
                tokens(first_text, taught[-1]),
                2 * rate,
                taught,
            )
        ),
    )
    return Families(
        cfg,
        seeds,
        bases,
        partners,
        dict(zip(steps, tuned, strict=True)),
        dict(zip(steps, adapted, strict=True)),
        dict(zip(taught, students, strict=True)),
        next(tokens(first_text, 1)),
    )


def batches_of(settings: Mapping[str, Any], cfg: ModelConfig, text: str, steps: int) -> Iterator[np.ndarray]:
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


def tuning_loss(cfg: ModelConfig) -> Loss:
    """Return the mean loss of a model all of whose parameters are trained."""

    def loss(params: Params, _fixed: None, tokens_BT1: jax.Array) -> jax.Array:
        total, number = loss_sum(cfg, params, tokens_BT1)
        return total / number

    return loss


def adapter_loss(cfg: ModelConfig) -> Loss:
    """Return the mean loss of fixed parameters with LoRA's factors added, which alone are trained."""

    def loss(factors: Params, params: Params, tokens_BT1: jax.Array) -> jax.Array:
        total, number = loss_sum(cfg, add_factors(params, factors), tokens_BT1)
        return total / number

    return loss


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


def stacked(cfg: ModelConfig, weights_SP: np.ndarray) -> Params:
    """Stack parameters with families first, leaves [S, ...]."""
    rows = [models.flatten(unpacked(cfg, weights_P)) for weights_P in weights_SP]
    return models.unflatten({path: np.stack([row[path] for row in rows]) for path in rows[0]})


def packed(by_step: Mapping[int, Params]) -> np.ndarray:
    """Pack the parameters of all families after each number of steps: [steps, S, P] float32, by their paths."""
    rows = []
    for params in by_step.values():
        flat = models.flatten(jax.tree.map(np.asarray, params))
        count = len(next(iter(flat.values())))
        rows.append(np.concatenate([flat[path].reshape(count, -1) for path in sorted(flat)], axis=1))
    return np.stack(rows).astype(np.float32)
