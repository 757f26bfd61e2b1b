"""Newborn models probed once for all the tables and figures that look at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bornbiased_jax import progress
from bornbiased_jax.config import preset
from bornbiased_jax.prediction import predict
from bornbiased_jax.probes.inputs import KINDS, parse_inputs
from bornbiased_jax.probes.run import ProbeOptions, probe
from bornbiased_jax.probes.subject import untrained
from bornbiased_jax.record import measure
from experiments.base import Context

Group = Mapping[str, Any]
"""What is probed: model, changes, seeds, seq_len, num_inputs, inputs ("tokens"), fix_embeddings, intra."""


def group(
    model: str,
    seeds: Sequence[int],
    seq_len: int,
    num_inputs: int,
    *,
    inputs: str = "tokens",
    fix_embeddings: bool = True,
    intra: bool = False,
    **changes: Any,
) -> dict[str, Any]:
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


def run_group(context: Context, group: Group) -> dict[str, Any]:
    """Compute records of the group's seeds, with theory's prediction, once per output folder.

    Returns:
        {"group", "records" (see :func:`bornbiased_jax.probes.run.probe`), "theory", "inputs", "wall_s",
        "peak_memory_bytes"}.
    """
    described = dict(group)
    if context.data is not None and described["inputs"].startswith("builtin:"):
        described["inputs"] = f"text:{context.data}"

    def compute(folder: Path) -> dict[str, Any]:
        return _probed(context, described, folder / "partial")

    return context.cached(f"births/{described['model']}", described, compute)


def _probed(context: Context, group: Group, resume: Path) -> dict[str, Any]:
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
                    ProbeOptions(intra=group["intra"]),
                    mesh=context.mesh,
                    advance=advance,
                    resume=resume,
                    engine=context.engine,
                )
            )
    theory = None
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


def run_groups(context: Context) -> dict[str, Any]:
    """Run all groups of an experiment's settings."""
    return {"groups": [run_group(context, group) for group in context.settings["groups"]]}


def name_of(group: Group) -> str:
    """Name the model with its changes, for a table."""
    changes = ", ".join(f"{key}={value}" for key, value in group["changes"].items())
    return group["model"] + (f" ({changes})" if changes else "")


def mean_of(values: Sequence[Any]) -> str:
    """Say of a number that it stands for several seeds, to follow its name."""
    return f", mean of {len(values)} seeds" if len(values) > 1 else ""


def inputs_of(group: Group) -> str:
    """Name the kind of inputs, for a table."""
    spec: str = group["inputs"]
    return KINDS[spec].title if spec in KINDS else spec


# The groups that several experiments share. Sizes of the paper: N = 2,000 for GPT-2 and 10,000 for LLaMA
# are those with which its printed p-values agree (theory/ERRATA.md).
SMOKE: dict[str, Any] = dict(num_layers=2, vocab_size=256)
GPT2_SMOKE = group("gpt2-tiny", [42, 43], 16, 64, **SMOKE)
LLAMA_SMOKE = group("llama-tiny", [42, 43], 16, 64, **SMOKE)
PROSE_SMOKE = group("gpt2-tiny", [42, 43], 16, 32, inputs="builtin:code", **SMOKE)
GPT2_LAPTOP = group("gpt2-nano", [42, 43], 64, 2_000)
LLAMA_LAPTOP = group("llama-nano", [42, 43], 64, 500)
PROSE_LAPTOP = group("gpt2-tiny", [42, 43], 64, 1_000, inputs="builtin:prose")
GPT2_PAPER = [group("gpt2-nano", [42, 43], length, 2_000) for length in (64, 256, 1024)]
LLAMA_PAPER = [group("llama-nano", [42, 43], length, 10_000) for length in (64, 256, 1024)]
LARGE_PAPER = [group("gpt2-1.2b", [42, 43], length, 2_000) for length in (64, 256, 1024)]
