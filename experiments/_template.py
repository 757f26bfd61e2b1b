"""A template: copy it to ``experiments/CHAPTER/NAME.py`` and put the name into ``experiments/__init__.py``.

The call of ``by_scale`` moves to the chapter's ``settings.py``, as a constant in upper case.

It measures how often untrained models of several seeds answer random inputs with their most predicted token. The first
paragraph of a real module says which table or figure of which paper it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bornbiased_jax.config import preset
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record, by_scale
from bornbiased_jax.probes.inputs import random_tokens
from bornbiased_jax.probes.run import probe
from bornbiased_jax.probes.subject import untrained
from bornbiased_jax.report.numbers import percent
from bornbiased_jax.report.tables import Claim, Table, tabulate


def run(context: Context) -> Entry:
    """Compute numbers only: what is drawn from them is drawn from the record on disk.

    What takes long goes through ``context.cached``: named, keyed by everything that it depends on, computed again when
    its code has changed. ``compute`` is given a folder of its own for what lets a killed call resume.
    """
    settings = context.settings

    def compute(folder: Path) -> list[Entry]:
        cfg = preset(settings["model"], **settings["changes"])
        inputs = random_tokens(settings["num_inputs"], settings["seq_len"], cfg.vocab_size)
        rows = probe(
            untrained(cfg),
            settings["seeds"],
            inputs,
            mesh=context.mesh,
            resume=folder / "partial",
            engine=context.engine,
        )
        return [{"seed": row["seed"], "share": row["preference"]["top1_share"]} for row in rows]

    return {"seeds": context.cached("template/shares", dict(settings), compute)}


def tables(record: Record) -> Sequence[Table]:
    """Compare paper, measured and theory; a value of the paper only next to the paper's own configuration."""
    rows = [([row["seed"]], {"share": (percent(2), row["share"])}) for row in record["result"]["seeds"]]
    return [tabulate("The most predicted token", ["seed"], rows)]


def claims(record: Record) -> Sequence[Claim]:
    """Return the rows of the page's first screen."""
    largest = max(row["share"] for row in record["result"]["seeds"])
    return [Claim("Largest share of one token over seeds", largest, format=percent(2))]


EXPERIMENT = Experiment(
    name="_template",
    title="A template",
    description="What is done.\n\nWhat is to be seen, and where it differs from the paper.",
    settings=by_scale(
        model=("gpt2-tiny", "gpt2-tiny", "gpt2-nano"),
        changes=({"num_layers": 2, "vocab_size": 256}, {}, {}),
        seeds=([0, 1], list(range(8)), [42, 43]),
        num_inputs=(16, 1_000, 2_000),
        seq_len=(4, 32, 1024),
    ),
    cost={"smoke": "seconds", "laptop": "not measured", "paper": "not measured"},
    run=run,
    tables=tables,
    claims=claims,
)
