"""The demo's second pillar: two seeds trained on the same bytes, each traced to its initialization while it trains.

Before each comparison the residual stream of the trained model is rotated, which leaves its function as it is and hides
it from every comparison of coordinates. Stated before any number was seen: the evidence is that of neurons in token
space, which is invariant to rotations; the evidence of coordinates is shown as what a rotation evades.
"""

from __future__ import annotations

from collections.abc import Sequence

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import preset
from bornbiased_jax.derive.symmetries import random_rotation, rotate
from bornbiased_jax.experiments._shared.training import watch
from bornbiased_jax.experiments.base import SCALES, Context, Entry, Experiment, Record
from bornbiased_jax.experiments.demo import settings
from bornbiased_jax.experiments.lineage.sketched import sketch
from bornbiased_jax.lineage.battery import Options
from bornbiased_jax.lineage.evidence import COORDINATES, TOKEN_NEURONS
from bornbiased_jax.lineage.fingerprints import Fingerprint
from bornbiased_jax.lineage.weights_verdict import single_verdict as verdict
from bornbiased_jax.parameters import Params
from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import fixed, from_log10, integer
from bornbiased_jax.report.tables import Claim, Panel, Table, tabulate, write


def run(context: Context) -> Entry:
    """Train the seeds in one program and compare every snapshot, rotated, with both initializations.

    Returns:
        ``snapshots``, each with its ``step``, the ``pairs`` of an initialization (``base``) and a rotated model
        (``suspect``), and the ``held_out_loss`` of each seed, in nats a byte.
    """
    settings, seeds = context.settings, context.settings["seeds"]
    cfg = preset(settings["model"], **settings["changes"])
    rotation_DD = random_rotation(cfg, settings["rotation_seed"])
    options = Options(has_untrained=True, matches_neurons=False)
    initial: dict[int, Fingerprint] = {}

    def compare(step: int, weights: list[Params]) -> Entry:
        by_seed = dict(zip(seeds, weights, strict=True))
        if step == 0:
            initial.update({seed: sketch(Checkpoint.from_params(cfg, params)) for seed, params in by_seed.items()})
        pairs = []
        for suspect, params in by_seed.items():
            rotated = sketch(Checkpoint.from_params(*rotate(cfg, params, rotation_DD)))
            for base, fingerprint in initial.items():
                in_tokens = verdict(fingerprint, rotated, TOKEN_NEURONS, options)
                in_coordinates = verdict(fingerprint, rotated, COORDINATES, options)
                pairs.append(
                    {
                        "base": base,
                        "suspect": suspect,
                        "z": in_tokens.z,
                        "log10_p": in_tokens.log10_p,
                        "z_coordinates": in_coordinates.z,
                    }
                )
        return {"pairs": pairs}

    text, quiet = context.data or settings["data"], context.quiet
    return {"snapshots": watch(settings, cfg, text, compare, label="two seeds", quiet=quiet).snapshots}


def _pairs(snapshot: Entry, is_same: bool) -> list[Entry]:
    return [pair for pair in snapshot["pairs"] if (pair["base"] == pair["suspect"]) is is_same]


def tables(record: Record) -> Sequence[Table]:
    """Show z by step, of every model against its own initialization and against the other one."""
    rows = []
    for snapshot in record["result"]["snapshots"]:
        losses = dict(zip(record["settings"]["seeds"], snapshot["held_out_loss"], strict=True))
        unrelated = {pair["suspect"]: pair["z"] for pair in _pairs(snapshot, is_same=False)}
        for pair in _pairs(snapshot, is_same=True):
            measured = {
                "z, same initialization": (fixed(1), pair["z"]),
                "p": (from_log10(3), pair["log10_p"]),
                "z, other initialization": (fixed(1), unrelated[pair["suspect"]]),
                "z, coordinates": (fixed(1), pair["z_coordinates"]),
                "held-out loss": (fixed(2), losses[pair["suspect"]]),
            }
            rows.append(([integer(snapshot["step"]), pair["suspect"]], measured))
    return [
        tabulate(
            "Rotated models in training against the initializations",
            ["step", "seed"],
            rows,
            note=(
                "z and certified p of the evidence of neurons in token space, which is invariant to rotations of the "
                "residual stream; z of coordinates for the same pair: a rotation evades it. Loss in nats a byte."
            ),
        )
    ]


def panels(record: Record) -> Sequence[Panel]:
    """Draw z against steps."""
    snapshots = record["result"]["snapshots"]
    figure, ax = figures.new()
    steps = [snapshot["step"] for snapshot in snapshots]
    for is_same, name, color in (
        (True, "own initialization", figures.SERIES[0]),
        (False, "the other seed's", figures.SERIES[1]),
    ):
        for index in range(len(record["settings"]["seeds"])):
            z_values = [_pairs(snapshot, is_same)[index]["z"] for snapshot in snapshots]
            figures.line(ax, steps, z_values, name="" if index else name, color=color, markers=True)
    figures.label(ax, "step", "z, neurons in token space")
    figures.legend(ax)
    return [Panel(figure, "Each line is a rotated model in training against one initialization.")]


def claims(record: Record) -> Sequence[Claim]:
    """Claim the smallest z of the own initialization after training and the largest of the other one."""
    final = record["result"]["snapshots"][-1]
    return [
        Claim(
            f"z of a rotated model after {integer(final['step'])} steps against its own initialization, the smaller of "
            f"{len(record['settings']['seeds'])} seeds",
            min((pair["z"] for pair in _pairs(final, is_same=True) if pair["z"] is not None), default=None),
            format=fixed(1),
        ),
        Claim(
            "The same against the other seed's initialization, the larger",
            max((pair["z"] for pair in _pairs(final, is_same=False) if pair["z"] is not None), default=None),
            format=fixed(1),
        ),
    ]


def headline(record: Record) -> str:
    """State z of both seeds against their own initialization, and against each other's."""
    settings, final = record["settings"], record["result"]["snapshots"][-1]
    related, unrelated = (
        " and ".join(write(pair["z"], fixed(1)) for pair in _pairs(final, is_same)) for is_same in (True, False)
    )
    seeds = " and ".join(map(str, settings["seeds"]))
    changes, schedule = settings["changes"], settings["schedule"]
    return (
        f"Lineage: after {integer(final['step'])} training steps and a rotation of all their weights, models of seeds "
        f"{seeds} agree with their own initialization at z = {related} and with each other's at z = {unrelated}: z "
        f"counts standard deviations from what unrelated models have ({settings['model']} with "
        f"{changes['num_layers']} blocks of width {changes['d_model']}, {schedule['batch_size']} sequences of "
        f"{schedule['context']} bytes a step)."
    )


EXPERIMENT = Experiment(
    name="demo_traces",
    title="A trained model is traced to its seed, through a rotation",
    paper="Section 5",
    description=(
        "Two models that differ in their seed alone see the same bytes in the same order. On the way each is rotated, "
        "which leaves its function as it is, and its fingerprint is compared with those of both initializations."
    ),
    settings=settings.TRACES,
    cost={"laptop": "about a minute on two cores"},
    run=run,
    takes_data=SCALES,
    tables=tables,
    figures=panels,
    claims=claims,
    headline=headline,
)
