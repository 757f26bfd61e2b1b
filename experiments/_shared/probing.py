"""Untrained models probed once for all the tables and figures that look at them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from matplotlib.axes import Axes

from bornbiased_jax import progress
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.experiments.base import Context, Entry, Record
from bornbiased_jax.prediction import predict
from bornbiased_jax.probes.inputs import KINDS, parse_inputs
from bornbiased_jax.probes.run import ProbeOptions, probe
from bornbiased_jax.probes.subject import untrained
from bornbiased_jax.record import measure
from bornbiased_jax.report import figures
from bornbiased_jax.training.throughput import flops_per_token


def of_sequence(cfg: ModelConfig, seq_len: int, *, head: bool) -> float:
    """Count operations of one sequence through all blocks, and the head at its last position where asked."""
    of_head = 2.0 * cfg.d_model * cfg.vocab_size
    # A trained token needs three times its forward pass, with the head at every position.
    position = flops_per_token(cfg, seq_len) / 3 - of_head
    return seq_len * position + (of_head if head else 0.0)


HEADS = ["model", "inputs", "N", "T", "seed"]
"""Heads of the columns that name one seed of a group."""


class ProbeGroup(TypedDict):
    """The object of a probe, as settings and records have it; ``inputs`` is "tokens", "gaussian" or a text."""

    model: str
    changes: Entry
    seeds: list[int]
    seq_len: int
    num_inputs: int
    inputs: str
    fix_embeddings: bool
    intra: bool


class Probed(TypedDict):
    """A group with the records of its seeds (:func:`bornbiased_jax.probes.run.probe`) and theory's prediction."""

    group: ProbeGroup
    records: Sequence[Entry]
    theory: Entry
    inputs: Entry
    wall_s: float
    peak_memory_bytes: int


def group(
    model: str,
    seeds: Sequence[int],
    seq_len: int,
    num_inputs: int,
    *,
    inputs: str = "tokens",
    fix_embeddings: bool = True,
    intra: bool = False,
    **changes: object,
) -> ProbeGroup:
    """Build one group of initializations, as it stands in an experiment's settings."""
    return {
        "model": model,
        "changes": changes,
        "seeds": list(seeds),
        "seq_len": seq_len,
        "num_inputs": num_inputs,
        "inputs": inputs,
        "fix_embeddings": fix_embeddings,
        "intra": intra,
    }


def settings(**groups_by_scale: Sequence[ProbeGroup]) -> dict[str, Entry]:
    """Return settings of the scales: the groups of each, and the seeds of its first."""
    return {scale: {"seeds": groups[0]["seeds"], "groups": groups} for scale, groups in groups_by_scale.items()}


def run_group(context: Context, group: ProbeGroup) -> Probed:
    """Compute records of the group's seeds, with theory's prediction, once per output folder."""
    described = group.copy()
    if context.data is not None and described["inputs"].startswith("builtin:"):
        described["inputs"] = f"text:{context.data}"

    def compute(folder: Path) -> Probed:
        return _probed(context, described, folder / "partial")

    identity = {**described, "precision": context.precision}
    return context.cached(f"births/{described['model']}", identity, compute)


def _probed(context: Context, group: ProbeGroup, resume: Path) -> Probed:
    cfg = preset(group["model"], **group["changes"])
    spec = group["inputs"]
    inputs = parse_inputs(spec, num_inputs=group["num_inputs"], seq_len=group["seq_len"], cfg=cfg)
    # The untrained model.
    subject = untrained(cfg, fixed_embedding_seed=0 if group["fix_embeddings"] else None)
    label = f"{group['model']} T={group['seq_len']} {spec}"
    with measure() as measurement:
        total = len(group["seeds"]) * inputs.num_inputs
        with progress.bar(total, label, unit="sequences", quiet=context.quiet) as advance:
            # A record per seed, resumed from ``resume``.
            records = list(
                probe(
                    subject,
                    group["seeds"],
                    inputs,
                    ProbeOptions(intra=group["intra"], precision=context.precision),
                    mesh=context.mesh,
                    advance=advance,
                    resume=resume,
                    engine=context.engine,
                )
            )
    theory: Any = None
    # Theory, where the kind of inputs has one.
    if KINDS[inputs.kind].predicted:
        theory = predict(cfg, group["seq_len"], num_inputs=group["num_inputs"], tokens=not inputs.vectors)
        theory.pop("attention_std_by_layer")
        theory.pop("residual_std_by_layer")
    return {
        "group": group,
        "records": records,
        "theory": theory,
        "inputs": inputs.describe(),
        "wall_s": measurement.wall_time_s,
        "peak_memory_bytes": measurement.peak_memory_bytes,
    }


def run_groups(context: Context) -> dict[str, list[Probed]]:
    """Run all groups of an experiment's settings."""
    return {"groups": [run_group(context, group) for group in context.settings["groups"]]}


def probed_groups(record: Record) -> list[Probed]:
    """Return the groups of a record."""
    groups: list[Probed] = record["result"]["groups"]
    return groups


def each_seed(record: Record) -> Iterator[tuple[Probed, Entry]]:
    """Yield the record of every seed of every group, the group with it."""
    return ((probed, row) for probed in probed_groups(record) for row in probed["records"])


def values(probed: Probed, probe: str, statistic: str) -> list[Any]:
    """Return one statistic of every seed: of its "preference" or its "contraction"."""
    return [row[probe][statistic] for row in probed["records"]]


def curves(probed: Probed) -> list[list[float]]:
    """Return the cosine between sequences after each block, seed by seed."""
    return values(probed, "contraction", "inter_cosine_by_layer")


def cosines(probed: Probed) -> list[float]:
    """Return the cosine between sequences after the last block, seed by seed."""
    return [by_layer[-1] for by_layer in curves(probed)]


def predicted_cosine(probed: Probed, layer: int = -1) -> tuple[float, float]:
    """Return theory's cosine after a block, and its standard deviation over seeds."""
    theory = probed["theory"]
    return theory["inter_cosine_by_layer"][layer], theory["inter_cosine_by_layer_std"][layer]


def blocks(probed: Probed) -> list[int]:
    """Count the blocks from 1, as figures do."""
    return list(range(1, len(curves(probed)[0]) + 1))


def draw_seeds(ax: Axes, probed: Probed, name: str, color: str = figures.MEASURED) -> None:
    """Draw the measured cosine by block, one line a seed."""
    for index, cosines in enumerate(curves(probed)):
        figures.line(ax, blocks(probed), cosines, name="" if index else name, color=color, markers=True)


def draw_pairs(ax: Axes, probed: Probed) -> None:
    """Draw the first seed's cosine by block with its standard deviation over pairs of inputs."""
    measured = probed["records"][0]["contraction"]
    mean, std = (np.asarray(measured[f"inter_cosine_{prefix}by_layer"]) for prefix in ("", "std_"))
    figures.line(ax, blocks(probed), mean, (mean - std, mean + std), name="measured, ± std over pairs", markers=True)


def draw_theory(ax: Axes, probed: Probed, name: str = "", color: str = figures.THEORY) -> None:
    """Draw theory's mean cosine by block with its band over seeds, dashed."""
    mean, low, high = (probed["theory"][f"inter_cosine_by_layer{end}"] for end in ("", "_low", "_high"))
    figures.line(ax, blocks(probed), mean, (low, high), name=name, color=color, dashed=True)


def labels(group: ProbeGroup, seed: int) -> list[Any]:
    """Return the cells that name one seed of a group, under :data:`HEADS`."""
    return [name_of(group), inputs_of(group), group["num_inputs"], group["seq_len"], seed]


def name_of(group: ProbeGroup) -> str:
    """Name the model with its changes, for a table."""
    changes = ", ".join(f"{key}={value}" for key, value in group["changes"].items())
    return group["model"] + (f" ({changes})" if changes else "")


def mean_of(values: Sequence[Any]) -> str:
    """Say of a number that it stands for several seeds, to follow its name."""
    return f", mean of {len(values)} seeds" if len(values) > 1 else ""


def inputs_of(group: ProbeGroup) -> str:
    """Name the kind of inputs, for a table."""
    spec: str = group["inputs"]
    return KINDS[spec].title if spec in KINDS else spec
