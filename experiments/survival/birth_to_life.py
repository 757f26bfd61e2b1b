"""Which tests still find the seed while it trains, and which cannot tell it from another seed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.experiments._shared.lineage import verdicts
from bornbiased_jax.experiments._shared.training import watch
from bornbiased_jax.experiments.base import SCALES, Context, Entry, Experiment, Record, by_scale
from bornbiased_jax.experiments.lineage.calibration import INPUTS
from bornbiased_jax.experiments.survival.persistence import moved
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage.outputs import OutputOptions, last_outputs
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes.inputs import Inputs, random_inputs
from bornbiased_jax.report.numbers import fixed, integer, value_range
from bornbiased_jax.report.tables import Cells, Claim, Table, tabulate

KINDS = ("tokens", "gaussian")


def run(context: Context) -> Entry:
    """Train all seeds on the same data in the same order, and compare every snapshot with every initialization."""
    settings, seeds = context.settings, context.settings["seeds"]
    cfg = preset(settings["model"], **settings["changes"])
    inputs = {kind: random_inputs(kind, settings["num_inputs"], settings["seq_len"], cfg) for kind in KINDS}
    initial = [init_seed(cfg, seed) for seed in seeds]
    initializations = {kind: [_outputs(cfg, params, inputs[kind]) for params in initial] for kind in KINDS}
    last: list[np.ndarray] = []

    def compare(step: int, weights: list[Params]) -> Entry | None:
        if step not in settings["snapshots"]:
            return None
        rows = []
        for kind in KINDS:
            now = [_outputs(cfg, params, inputs[kind]) for params in weights]
            if kind == "tokens":
                last[:] = now
            for (base, base_ND), (suspect, suspect_ND) in itertools.product(
                zip(seeds, initializations[kind], strict=True), zip(seeds, now, strict=True)
            ):
                tests = verdicts(base_ND, suspect_ND)
                rows.append({"inputs": kind, "base": base, "suspect": suspect, "tests": tests})
        return {"pairs": rows, "moved": [moved(start, end) for start, end in zip(initial, weights, strict=True)]}

    # Train once; the snapshots are compared on the way.
    text, quiet = context.data or settings["data"], context.quiet
    snapshots = watch(settings, cfg, text, compare, label="initialization to life", quiet=quiet).snapshots
    # The trained models against each other.
    trained = [
        {"base": seeds[a], "suspect": seeds[b], "tests": verdicts(last[a], last[b])}
        for a, b in itertools.combinations(range(len(seeds)), 2)
    ]
    return {"snapshots": snapshots, "trained": trained}


def _outputs(cfg: ModelConfig, params: Params, inputs: Inputs) -> np.ndarray:
    """Compute outputs; vectors have the moments of an embedding at initialization, the same for all models."""
    return last_outputs(cfg, params, inputs, OutputOptions((0.0, cfg.embedding_std)))


def _pick(snapshot: Entry, kind: str, test: str, is_related: bool) -> list[float]:
    return [
        pair["tests"][test]["z"]
        for pair in snapshot["pairs"]
        if pair["inputs"] == kind
        and (pair["base"] == pair["suspect"]) is is_related
        and pair["tests"][test]["z"] is not None
    ]


def tables(record: Record) -> Sequence[Table]:
    """Tabulate z of the same seed and of other seeds, snapshot by snapshot."""
    result, settings = record["result"], record["settings"]
    rows = []
    for snapshot in result["snapshots"]:
        for kind in KINDS:
            for test in ("permutation", "iclr", "paper"):
                measured: Cells = {
                    "same seed": value_range(_pick(snapshot, kind, test, True)),
                    "other seeds": value_range(_pick(snapshot, kind, test, False)),
                    "‖W − W₀‖/‖W₀‖": (fixed(2), float(np.mean(snapshot["moved"]))),
                    "held-out loss": (fixed(2), float(np.mean(snapshot["held_out_loss"]))),
                }
                rows.append(([snapshot["step"], INPUTS[kind], test], measured))
    trained = [pair["tests"]["permutation"]["z"] for pair in result["trained"]]
    note = (
        "Smallest and largest z of a model at a step against the initialization of its own seed, and against those "
        f"of the other seeds; seeds {', '.join(map(str, settings['seeds']))}, N = {settings['num_inputs']:,}, T = "
        f"{settings['seq_len']}. Of Algorithm 1 (paper) z is the normal quantile of its p; iclr is the SeedPrint "
        "authors' code. Loss in nats per byte. Trained models against one another at the end have z of "
        f"{value_range(trained)} by the permutation test on tokens."
    )
    return [tabulate("Initializations against models in training", ["step", "inputs", "test"], rows, note)]


def claims(record: Record) -> Sequence[Claim]:
    """State the smallest z of the same seed and the largest of another one, at the end."""
    snapshot = record["result"]["snapshots"][-1]
    statements = []
    for kind in KINDS:
        related, unrelated = (_pick(snapshot, kind, "permutation", flag) for flag in (True, False))
        statements.append(
            Claim(
                f"Permutation test on {INPUTS[kind]} after {integer(snapshot['step'])} steps: smallest z of the same "
                "seed less the largest of another seed (above 0 it tells the seed)",
                min(related) - max(unrelated),
                format=fixed(1),
            )
        )
    return statements


EXPERIMENT = Experiment(
    name="birth_to_life",
    title="Tokens and an exact null find the seed in a trained model; shared vectors do not tell it",
    paper="Tables 4b and 4c",
    description=(
        "Models that differ in their seed alone, trained on the same bytes in the same order, and compared with every "
        "initialization on the way, on random tokens and on shared Gaussian vectors, the published input."
    ),
    settings=by_scale(
        seeds=([42, 123], [42, 123, 1000], [42, 123, 1000, 2000]),
        model=("llama-tiny", "llama-tiny", "llama-nano"),
        changes={
            "num_layers": (2, 4, ...),
            "num_heads": (2, 4, ...),
            "d_model": (32, 64, ...),
            "d_ff": (48, 176, ...),
            "vocab_size": 260,
            "max_seq_len": (16, 64, 256),
        },
        data=("builtin:code", "builtin:prose", "builtin:prose"),
        schedule={
            "steps": (4, 600, 10_000),
            "batch_size": (4, 16, 64),
            "context": (16, 64, 256),
            "warmup": (1, ..., ...),
            "learning_rate": (..., 1e-3, 6e-4),
        },
        snapshots=([0, 4], [0, 100, 300, 600], [0, 100, 1_000, 10_000]),
        every=(2, 100, 100),
        num_inputs=(64, 1_000, 10_000),
        seq_len=(8, 32, 64),
    ),
    cost={"laptop": "a minute on two cores", "paper": "not measured: 3e17 floating-point operations, for a GPU"},
    run=run,
    takes_data=SCALES,
    claims=claims,
    tables=tables,
)
