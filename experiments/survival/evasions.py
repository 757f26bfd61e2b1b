"""What hides a trained model from which exact test: changes that leave its function alone, and one that copies nothing.

No paper's table. The models are those of Table 4b with more seeds. Stated before any number: each of a few trained
models is changed in every way below, which its logits confirm, and the copy is held against the unchanged model by
the fingerprints' evidence that is exact between trained models. As a control the copy is held against another seed's
trained model by the evidence that the change evades least, neurons in token space (form A, to which a rotation of the
stream is nothing): no more than chance may be left there. A test sees a change if it calls every copy the same
lineage at its own level. Blocks are paired before anything is tested, and an idle block may be paired in place of a
true one: its units then agree with nothing.

Sketches of public fingerprints take few directions, which everybody knows. Whoever gives a copy another model's
numbers in all of them evades such fingerprints, and not those made under a key that is drawn afterwards; stated before
any number, it costs the copy more than a nat on held-out text.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.native_roles import NativeRoles
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.derive import symmetries
from bornbiased_jax.derive.damage import Model
from bornbiased_jax.experiments._shared.lineage import derived
from bornbiased_jax.experiments._shared.training import loss_of
from bornbiased_jax.experiments.base import SCALES, Context, Entry, Experiment, Record, each
from bornbiased_jax.experiments.lineage.sketched import matched, sketch
from bornbiased_jax.experiments.survival import persistence
from bornbiased_jax.experiments.survival.settings import PRECISION, changed
from bornbiased_jax.lineage import sketches
from bornbiased_jax.lineage.battery import Options
from bornbiased_jax.lineage.evidence import COORDINATES, RAW_NEURONS, SIGNLESS, TOKEN_HEADS, TOKEN_NEURONS
from bornbiased_jax.lineage.fingerprint_size import residual_axis
from bornbiased_jax.lineage.fingerprints import Settings
from bornbiased_jax.lineage.weights_verdict import auto_verdict, single_verdict
from bornbiased_jax.model import apply
from bornbiased_jax.parameters import Params, flatten, unflatten
from bornbiased_jax.report.numbers import fixed, integer, significant
from bornbiased_jax.report.tables import Cells, Claim, Table, tabulate


def _draws(seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, 17])


class Original(NamedTuple):
    """A trained model that is copied, with the seed of what is drawn for it and the tokens that no text has."""

    cfg: ModelConfig
    params: Params
    seed: int
    unused: Sequence[int]


def derive(*changes: str) -> Callable[[Original], Model]:
    """Make changes of ``bornbiased derive``, drawn for each model by itself."""

    def changed(model: Original) -> Model:
        used_ids = np.setdiff1d(np.arange(model.cfg.vocab_size), model.unused)
        return derived((model.cfg, model.params), *changes, seed=model.seed, used_ids=used_ids)

    return changed


def turned_heads(model: Original) -> Model:
    """Rotate value and output maps of each head."""
    cfg, flat = model.cfg, {path: np.array(leaf) for path, leaf in flatten(model.params).items()}
    draws, K = _draws(model.seed), cfg.key_dim
    group = cfg.num_heads // cfg.kv_heads
    for block in range(cfg.num_layers):
        value, output = flat["blocks/attention/value/kernel"][block], flat["blocks/attention/output/kernel"][block]
        for head in range(cfg.kv_heads):
            turn_KK = np.linalg.qr(draws.standard_normal((K, K)))[0].astype(np.float32)
            value[:, head * K : (head + 1) * K] = value[:, head * K : (head + 1) * K] @ turn_KK
            for query in range(head * group, (head + 1) * group):
                output[query * K : (query + 1) * K] = turn_KK.T @ output[query * K : (query + 1) * K]
    return cfg, unflatten(flat)


def shifted_head(model: Original) -> Model:
    """Add one vector to the head's column of every token: each position's logits move by a constant."""
    flat = {path: np.array(leaf) for path, leaf in flatten(model.params).items()}
    flat["head/kernel"] += _draws(model.seed).normal(0, flat["head/kernel"].std(), (model.cfg.d_model, 1))
    return model.cfg, unflatten(flat)


def rolled(model: Original) -> Model:
    """Roll hidden units by one."""
    order_F = np.roll(np.arange(model.cfg.d_ff), 1)
    return symmetries.permute_units(model.cfg, model.params, np.tile(order_F, (model.cfg.num_layers, 1)))


def one_after_another(*changes: Callable[[Original], Model]) -> Callable[[Original], Model]:
    """Make several changes of one copy."""

    def changed(model: Original) -> Model:
        for change in changes:
            cfg, params = change(model)
            model = model._replace(cfg=cfg, params=params)
        return model.cfg, model.params

    return changed


CHANGES: dict[str, Callable[[Original], Model]] = {
    "none": derive(),
    "coordinates negated at random": derive("negate:{seed}"),
    "heads permuted, value and output maps turned": one_after_another(derive("heads:{seed}"), turned_heads),
    "up × c, down / c": derive("rescale:{seed}"),
    "a vector added to every head column": shifted_head,
    "rotated": derive("rotate:{seed}"),
    "up × c, down / c, rotated": derive("rescale:{seed}", "rotate:{seed}"),
    "unused embedding rows × 1,000, rotated": derive("unused-rows:1000", "rotate:{seed}"),
    "an idle block put in at the bottom, rotated": derive("insert-layer:{seed}", "rotate:{seed}"),
    "eight idle coordinates, rotated": one_after_another(
        lambda model: symmetries.widen(model.cfg, model.params, 8), derive("rotate:{seed}")
    ),
    "units rolled by one, rotated": one_after_another(rolled, derive("rotate:{seed}")),
    "all but the roll and the eight coordinates, units permuted, rotated": one_after_another(
        turned_heads,
        shifted_head,
        derive("unused-rows:1000", "heads:{seed}", "rescale:{seed}", "permute:{seed}", "insert-layer:{seed}"),
        derive("rotate:{seed}"),
    ),
}
"""Name -> a copy that computes the same on tokens that are used, but for a constant in each position's logits."""

EVADING = tuple(name for name in CHANGES if "units" in name)
"""Changes that hide a copy from every exact test: units have other numbers, and the stream is rotated."""

TESTS: dict[str, str] = {
    "coordinates, trace": COORDINATES,
    "coordinates, squares": SIGNLESS,
    "units": RAW_NEURONS,
    "rotation, form A": TOKEN_NEURONS,
    "heads": TOKEN_HEADS,
}
"""Name -> evidence that is exact between any two models."""

CONTROL, AGREEMENT = "another seed's, form A", "agreement of matchings"

KEYS = {"public signs": b"", "a key drawn afterwards": b"drawn afterwards"}
"""Name -> key of the signs that two models are sketched with."""


def replace_public_directions(cfg: ModelConfig, params: Params, others: Params, dim: int) -> Params:
    """Give every matrix the numbers of another model in the directions of public signs, along both of its axes."""
    changed, rest = ({path: np.array(leaf) for path, leaf in flatten(model).items()} for model in (params, others))
    residual_DK = _basis(sketches.axis_signs("residual", cfg.d_model, dim))
    for role in NativeRoles(Checkpoint.from_params(cfg, params)).roles:
        axis = residual_axis(role)
        if axis is None:
            continue
        path = role.name if role.block is None else role.name.rpartition("/")[0]
        place = ... if role.block is None else role.block - 1
        matrix, other = changed[path][place], rest[path][place]
        size = matrix.shape[1 - axis]
        is_table = ("vocab",) in role.axes
        signs_nK = (
            sketches.token_signs(None, size, dim) if is_table else sketches.axis_signs(role.matrix_name, size, dim)
        )
        other_nK = _basis(signs_nK)
        # What is left of the difference between the two models outside the directions of either axis.
        left_Dn = (matrix - other) if axis == 0 else (matrix - other).T
        left_Dn = left_Dn - residual_DK @ (residual_DK.T @ left_Dn)
        left_Dn = left_Dn - (left_Dn @ other_nK) @ other_nK.T
        matrix[...] = other + (left_Dn if axis == 0 else left_Dn.T)
    return unflatten(changed)


def _basis(signs_nK: np.ndarray) -> np.ndarray:
    basis_nK: np.ndarray = np.linalg.qr(signs_nK.astype(np.float64))[0]
    return basis_nK


def run(context: Context) -> Entry:
    """Compute z of every test under every change, seed by seed."""
    trained_run, settings = persistence.base_run(context), context.settings
    identity = [settings[name] for name in ("model", "changes", "seeds", "schedule", "copied")]
    identity += [persistence.corpora(context)["base"]]
    measured = context.cached("evasions/rows", identity, lambda _folder: _rows(trained_run, settings, context.quiet))
    return {"facts": persistence.facts_of(trained_run), **measured}


def untrained_ids(initial: Params, life: Params) -> np.ndarray:
    """List tokens that no text had: their embedding rows still point where they were drawn, whatever decay did.

    Returns:
        The ids whose rows have a cosine above 0.9999 with the initialization's.
    """
    initial_VD, lived_VD = (np.asarray(params["embed"]["embedding"], np.float64) for params in (initial, life))
    norms_V = np.linalg.norm(initial_VD, axis=1) * np.linalg.norm(lived_VD, axis=1)
    return np.flatnonzero((initial_VD * lived_VD).sum(axis=1) > 0.9999 * norms_V)


def _rows(trained_run: Path, settings: Entry, quiet: bool) -> Entry:
    cfg = ModelConfig.from_dict(persistence.facts_of(trained_run)["model"])
    seeds = settings["seeds"][: settings["copied"] + 1]
    lives = {seed: persistence.load(persistence.last(trained_run, seed)) for seed in seeds}
    initializations = {seed: persistence.load(persistence.initialization(trained_run, seed)) for seed in seeds}
    bases = {seed: sketch(Checkpoint.from_params(cfg, lives[seed])) for seed in seeds}
    unused: list[int] = sorted(
        set.intersection(*(set(untrained_ids(initializations[seed], lives[seed])) for seed in seeds))
    )
    used = np.setdiff1d(np.arange(cfg.vocab_size), unused)
    probe_BT = np.random.default_rng(0).choice(used, (2, 16)).astype(np.int32)
    copies = list(itertools.product(CHANGES, itertools.pairwise(seeds)))
    rows = []
    for name, (seed, second) in each(copies, "evasions", "copies", quiet):
        copy = CHANGES[name](Original(cfg, lives[seed], seed, unused))
        suspect = sketch(Checkpoint.from_params(*copy))
        verdicts = {test: single_verdict(bases[seed], suspect, evidence) for test, evidence in TESTS.items()}
        verdicts[CONTROL] = single_verdict(bases[second], suspect, TOKEN_NEURONS)
        matching = matched(bases[seed], suspect)
        rows.append(
            {
                "change": name,
                "seed": seed,
                "logits": _largest_difference(cfg, lives[seed], copy, jnp.asarray(probe_BT)),
                "agreement": None if matching is None else matching.agreement,
                "tests": {
                    test: {"verdict": outcome.verdict, "z": outcome.z, "log10_p": outcome.log10_p}
                    for test, outcome in verdicts.items()
                },
            }
        )
    held_out_NT = np.load(trained_run / "held_out.npy")[: settings["probe"]["sentences"]]
    replaced = [_replaced(cfg, lives[seed], lives[other], held_out_NT) for seed, other in itertools.pairwise(seeds)]
    return {"unused": len(unused), "rows": rows, "replaced": replaced}


def _replaced(cfg: ModelConfig, params: Params, others: Params, held_out_NT: np.ndarray) -> Entry:
    """Replace a model's public directions: its loss before and after, in nats, and the verdicts on the copy by key."""
    published = Settings(token_labels="ids")
    copy = replace_public_directions(cfg, params, others, published.dim)
    verdicts = {}
    for name, key in KEYS.items():
        settings = dataclasses.replace(published, sign_key=key)
        base, suspect = (sketch(Checkpoint.from_params(cfg, model), settings) for model in (params, copy))
        outcome = auto_verdict(base, suspect, Options(num_permutations=999))
        detail: Entry = outcome.detail
        largest = max(row["z"] for row in detail["tests"] if row["z"] is not None)
        verdicts[name] = {"verdict": outcome.verdict, "log10_p": outcome.log10_p, "largest_z": largest}
    return {
        "loss": loss_of(cfg, params, held_out_NT),
        "loss_replaced": loss_of(cfg, copy, held_out_NT),
        "verdicts": verdicts,
    }


def _largest_difference(cfg: ModelConfig, params: Params, copy: Model, ids_BT: jax.Array) -> float:
    """Compute the largest difference of logits less each position's mean, relative to the largest."""
    logits = (np.asarray(apply(*model, ids_BT).logits_BTV) for model in ((cfg, params), copy))
    old, new = (logits_BTV - logits_BTV.mean(axis=-1, keepdims=True) for logits_BTV in logits)
    return float(np.abs(new - old).max() / np.abs(old).max())


def _changes(record: Record) -> list[str]:
    return list(dict.fromkeys(row["change"] for row in record["result"]["rows"]))


def _values(record: Record, change: str, test: str) -> list[float]:
    rows = [row["tests"][test]["z"] for row in record["result"]["rows"] if row["change"] == change]
    return [z for z in rows if z is not None]


def tables(record: Record) -> Sequence[Table]:
    """Tabulate the smallest z over seeds by change and test; the control's largest."""
    rows = []
    for change in _changes(record):
        change_rows = [row for row in record["result"]["rows"] if row["change"] == change]
        measured: Cells = {"logits": (significant(2), max(row["logits"] for row in change_rows))}
        for test in TESTS:
            measured[test] = (fixed(1), min(_values(record, change, test), default=None))
        measured[CONTROL] = (fixed(1), max(map(abs, _values(record, change, CONTROL)), default=None))
        agreements = [row["agreement"] for row in change_rows if row["agreement"] is not None]
        measured[AGREEMENT] = (fixed(2), min(agreements, default=None))
        rows.append(([change], measured))
    copied = integer(record["settings"]["copied"])
    note = (
        f"Each of {copied} trained models is compared with a changed copy of itself: the smallest z of each test, "
        "empty where it is undefined. Another seed's: the same copies against another seed's trained model, as a "
        "control; the largest |z|. Logits: the largest change, relative to the largest logit, on tokens that the "
        "text has, each position's mean subtracted. Agreement: the smallest fraction of hidden units that two "
        "independent matchings pair alike."
    )
    return [tabulate("What hides a copy from which test", ["change"], rows, note), _table_of_replaced(record)]


def _table_of_replaced(record: Record) -> Table:
    replaced = record["result"]["replaced"]
    rows = []
    for name in KEYS:
        verdicts = [row["verdicts"][name] for row in replaced]
        measured: Cells = {
            "same-lineage": (integer, sum(verdict["verdict"] == "same-lineage" for verdict in verdicts)),
            "largest z": (fixed(1), max(verdict["largest_z"] for verdict in verdicts)),
            "smallest of the largest z": (fixed(1), min(verdict["largest_z"] for verdict in verdicts)),
        }
        rows.append(([name], measured))
    before, after = (np.mean([row[name] for row in replaced]) for name in ("loss", "loss_replaced"))
    note = (
        f"{len(replaced)} models, each against a copy that has another seed's numbers in the {Settings().dim} "
        "directions of public signs, along both axes of every matrix. Largest z: over all evidence, of a pair. The "
        f"replacement costs the copies {after - before:.2f} nats a token: held out, {before:.2f} before and "
        f"{after:.2f} after it."
    )
    return tabulate("A copy whose public directions were replaced", ["signs"], rows, note)


def claims(record: Record) -> Sequence[Claim]:
    """State form A under what it withstands and what evades it, the control, and what matchings see."""
    names = _changes(record)
    form_a = {change: _values(record, change, "rotation, form A") for change in names}
    withstood = min(min(form_a[change]) for change in names if change not in EVADING)
    control = max(max(map(abs, _values(record, change, CONTROL))) for change in names)
    evaded = max(abs(z) for change in names if change in EVADING for z in form_a[change])
    agreement = min(row["agreement"] for row in record["result"]["rows"] if row["agreement"] is not None)
    return [
        Claim("Smallest z of form A over every change but units in another order", withstood, format=fixed(1)),
        Claim("Largest |z| of form A once units are in another order and the stream turned", evaded, format=fixed(1)),
        Claim("Largest |z| of form A between a copy and another seed's model", control, format=fixed(1)),
        Claim("Least agreement of matchings over every change", agreement, format=fixed(2)),
    ]


EXPERIMENT = Experiment(
    name="evasions",
    title="What hides a copy from a test in the weights",
    description=(
        "Trained models are changed so that their function stays: coordinates negated, the residual stream turned, "
        "scales moved, heads and units permuted, idle parts put in. Each copy is held against its model by every exact "
        "test."
    ),
    settings=changed(seeds=(..., list(range(100, 116)), ...), copied=(2, 4, 2)),
    cost={"laptop": "see the record", "paper": "not measured: for a GPU"},
    precision=PRECISION,
    run=run,
    takes_data=SCALES,
    claims=claims,
    tables=tables,
)
