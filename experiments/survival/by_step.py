"""Fingerprints of the weights along a training of the paper's architecture: own initializations and another seed's.

No paper's table. Stated before any number was seen: at every snapshot each model's fingerprint, of the published
settings, is compared with that of its own initialization and with that of the next seed's, by coordinates (signed) and
by neurons in token space. "The initialization is found all the way" is refuted by p above 10⁻⁶ for an own
initialization at any snapshot; "another seed's is not" by p below 0.01 over the number of such comparisons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.experiments._shared.training import watch
from bornbiased_jax.experiments.base import SCALES, Context, Entry, Experiment, Record, by_scale, source_name, variants
from bornbiased_jax.experiments.lineage.sketched import sketch
from bornbiased_jax.experiments.survival.persistence import moved
from bornbiased_jax.experiments.survival.settings import PRECISION, SEEDS
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage.battery import Options
from bornbiased_jax.lineage.evidence import COORDINATES, TOKEN_NEURONS
from bornbiased_jax.lineage.fingerprints import Fingerprint, Settings
from bornbiased_jax.lineage.weights_verdict import single_verdict
from bornbiased_jax.parameters import Params
from bornbiased_jax.report.numbers import fixed, from_log10, integer, value_range
from bornbiased_jax.report.tables import Cells, Claim, Table, tabulate

EVIDENCE = (COORDINATES, TOKEN_NEURONS)
OWN, OTHER = "own", "another seed's"
PUBLISHED = Settings(token_labels="ids")


def run(context: Context) -> Entry:
    """Train all seeds at once on the same data in the same order, in memory, and compare every snapshot."""
    settings = context.settings
    cfg = preset(settings["model"], **settings["changes"])
    initial = [init_seed(cfg, seed) for seed in settings["seeds"]]
    initial_prints = _fingerprints(cfg, initial)

    def compare(step: int, weights: list[Params]) -> Entry:
        prints = initial_prints if step == 0 else _fingerprints(cfg, weights)
        return {
            "moved": [moved(start, now) for start, now in zip(initial, weights, strict=True)],
            # An initialization is equal to itself: no chance enters at step 0.
            OWN: [] if step == 0 else _compared(initial_prints, prints),
            OTHER: _compared([*initial_prints[1:], initial_prints[0]], prints),
        }

    config, data, snapshots = watch(
        settings,
        cfg,
        context.data or settings["data"],
        compare,
        label="fingerprints by step",
        quiet=context.quiet,
        held_out_count=settings["held_out"],
        seeds_mode=settings["seeds_mode"],
    )
    counted = [{**snapshot, "tokens": snapshot["step"] * config.tokens_per_step} for snapshot in snapshots]
    return {"tokenizer": data.tokenizer.name, "data": source_name(config.data), "snapshots": counted}


def _fingerprints(cfg: ModelConfig, weights: Sequence[Params]) -> list[Fingerprint]:
    """Sketch the weights of every seed, seeds in threads of their own."""
    with ThreadPoolExecutor(len(weights)) as pool:
        return list(pool.map(lambda params: sketch(Checkpoint.from_params(cfg, params), PUBLISHED), weights))


def _compared(bases: Sequence[Fingerprint], suspects: Sequence[Fingerprint]) -> list[Entry]:
    """Compare pairs by every piece of evidence, each named beforehand; pairs in threads of their own."""
    options = Options(has_untrained=True, matches_neurons=False)

    def compared(base: Fingerprint, suspect: Fingerprint) -> Entry:
        answers = {name: single_verdict(base, suspect, name, options) for name in EVIDENCE}
        return {name: {"z": answer.z, "log10_p": answer.log10_p} for name, answer in answers.items()}

    with ThreadPoolExecutor(len(suspects)) as pool:
        return list(pool.map(compared, bases, suspects))


def _values(snapshot: Entry, owner: str, evidence: str, statistic: str) -> list[float]:
    return [row[evidence][statistic] for row in snapshot[owner]]


def tables(record: Record) -> Sequence[Table]:
    """Show z by step, piece of evidence and whose initialization, next to how far the weights moved."""
    rows = []
    for snapshot in record["result"]["snapshots"]:
        cells: Cells = {
            "‖W − W₀‖/‖W₀‖": (fixed(2), float(np.mean(snapshot["moved"]))),
            "held-out loss": (fixed(2), float(np.mean(snapshot["held_out_loss"]))),
        }
        for owner in (OWN, OTHER):
            for name in EVIDENCE:
                z = _values(snapshot, owner, name, "z")
                cells[f"{name}, {owner}"] = value_range(z) if z else "equal"
        rows.append(([snapshot["step"], f"{snapshot['tokens']:,}"], cells))
    settings = record["settings"]
    note = (
        f"Smallest and largest z of {len(settings['seeds'])} seeds of {settings['model']}, trained at once on the same "
        f"text ({record['result']['tokenizer']}); fingerprints of {PUBLISHED.dim} numbers a vector and "
        f"{PUBLISHED.neurons:,} neurons a block. Loss in nats per token."
    )
    return [tabulate("Fingerprints of the weights by step", ["step", "tokens"], rows, note)]


def claims(record: Record) -> Sequence[Claim]:
    """State the largest p of own initializations, and the smallest of other seeds', over all snapshots."""
    settings, snapshots = record["settings"], record["result"]["snapshots"]
    last = snapshots[-1]
    about = f"{settings['model']}, {len(settings['seeds'])} seeds, {last['tokens']:,} tokens each"
    results = []
    for name in EVIDENCE:
        related = [value for snapshot in snapshots for value in _values(snapshot, OWN, name, "log10_p")]
        unrelated = [value for snapshot in snapshots for value in _values(snapshot, OTHER, name, "log10_p")]
        results += [
            Claim(
                f"Largest p of an own initialization at any step by {name}, {about}", max(related), format=from_log10(2)
            ),
            Claim(
                f"Smallest of {len(unrelated)} p of another seed's initialization by {name}, {about}",
                min(unrelated),
                format=from_log10(2),
            ),
        ]
    return [*results, Claim(f"Steps of {about}", last["step"], format=integer)]


def _settings(family: str) -> Mapping[str, Entry]:
    return by_scale(
        ("smoke", "paper"),
        model=(f"{family}-tiny", f"{family}-nano"),
        # Ids that the text never has would speak for the initialization alone.
        changes={
            "num_layers": (2, ...),
            "d_model": (32, ...),
            "num_heads": (2, ...),
            "num_kv_heads": (2, ...),
            "d_ff": (64, ...),
            "vocab_size": (256, 8_192),
        },
        seeds=(list(SEEDS[:2]), list(SEEDS)),
        seeds_mode="auto",
        data="builtin:prose",
        schedule={
            "tokenizer": ("bytes", "bpe:8192"),
            "steps": (4, 256),
            "batch_size": (4, 16),
            "accumulation": (1, 4),
            "context": (32, 2_048),
            "learning_rate": 6e-4,
            "min_learning_rate": 6e-5,
            "warmup": (2, 26),
            "dtype": ("float32", "bfloat16"),
        },
        every=(2, 64),
        held_out=(8, 16),
    )


EXPERIMENT = Experiment(
    name="fingerprints_by_step",
    title="An initialization's fingerprint while the paper's architecture is trained: LLaMA-style",
    description=(
        "Four seeds of the paper's architecture are trained at once, with its learning rate, for a small part of its "
        "tokens, and compared with their own initialization and another seed's at every snapshot."
    ),
    settings=_settings("llama"),
    cost={"paper": "not measured: for a GPU"},
    precision=PRECISION,
    run=run,
    takes_data=SCALES,
    tables=tables,
    claims=claims,
)

EXPERIMENTS = variants(
    EXPERIMENT,
    fingerprints_by_step_qwen=dict(
        title="An initialization's fingerprint while the paper's architecture is trained: Qwen-style",
        settings=_settings("qwen"),
    ),
)
