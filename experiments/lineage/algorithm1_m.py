"""Algorithm 1's m: how many coordinates it takes from each model, on the paper's pairs of untrained models.

Section 5 of the paper takes 50 coordinates of 768, its Tables 4a and 9 need about 400, and Section 6.1 says none. The
analysis, fixed before any number: whatever m is, p of different seeds should be large; m explains the refutation of
Table 4a if some m gives p above 0.01 for every pair on the published vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

from bornbiased_jax.config import preset
from bornbiased_jax.experiments._shared.lineage import row
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record, each
from bornbiased_jax.experiments.lineage import settings
from bornbiased_jax.experiments.lineage.table4a import initial_outputs
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage.outputs import embedding_moments
from bornbiased_jax.lineage.paper import paper_test
from bornbiased_jax.report.numbers import from_log10, integer
from bornbiased_jax.report.tables import Claim, Table, tabulate

LEVEL_LOG10 = -2.0


def run(context: Context) -> Entry:
    """Run Algorithm 1 with every m on vectors with the base's moments, as published, and on tokens."""
    settings = context.settings
    cfg = preset(settings["model"], **settings["changes"])
    rows = []
    for base, suspect in each(settings["pairs"], "algorithm1_m", "pairs", context.quiet):
        moments = embedding_moments(init_seed(cfg, base))
        for kind, vectors in (("gaussian", moments), ("tokens", None)):
            outputs = [initial_outputs(context, settings, seed, kind, vectors) for seed in (base, suspect)]
            rows += [
                {"base": base, "suspect": suspect, "inputs": kind, "m": m, **row(paper_test(*outputs, num_dims=m))}
                for m in settings["m"]
            ]
    return {"rows": rows}


def tables(record: Record) -> Sequence[Table]:
    """Tabulate both p of Algorithm 1 by pair, inputs and m."""
    settings = record["settings"]
    rows = [
        (
            [f"{entry['base']}, {entry['suspect']}", entry["inputs"], entry["m"]],
            {
                "coordinates of both": (integer, entry["num_dims"]),
                "p of the t-test": (from_log10(3), entry.get("log10_p_t")),
                "p of the U-test": (from_log10(3), entry.get("log10_p_u")),
            },
        )
        for entry in record["result"]["rows"]
    ]
    note = (
        f"p of untrained models of different seeds, which should not be small: {settings['model']}, N = "
        f"{settings['num_inputs']:,}, T = {settings['seq_len']}; means over ten nulls, as published. Coordinates of "
        "both: how many of one model's m coordinates are among the other's. Where these are fewer than three, of the "
        "models or of the two Gaussian matrices of a null, there is no p."
    )
    return [tabulate("Algorithm 1 by its number of coordinates", ["seeds", "inputs", "m"], rows, note)]


def claims(record: Record) -> Sequence[Claim]:
    """State for each m how many pairs Algorithm 1 rejects on the published vectors."""
    settings, rows = record["settings"], record["result"]["rows"]
    statements = []
    for m in settings["m"]:
        p = [entry.get("log10_p_t") for entry in rows if entry["inputs"] == "gaussian" and entry["m"] == m]
        rejected = sum(value is not None and value < LEVEL_LOG10 for value in p)
        statement = (
            f"Pairs of different seeds that Algorithm 1 on vectors rejects at 0.01 with m = {m} "
            f"({settings['model']}, N = {settings['num_inputs']:,}, T = {settings['seq_len']})"
        )
        statements.append(Claim(statement, f"{rejected} of {len(p)}"))
    return statements


EXPERIMENT = Experiment(
    name="algorithm1_m",
    title="Algorithm 1 by the number of coordinates that it takes",
    paper="Algorithm 1, Table 4a",
    description=(
        "The paper states m, the number of coordinates that Algorithm 1 takes from each model, twice and differently. "
        "Its p for pairs of initializations that share nothing, by m; a large p is the right answer."
    ),
    settings=settings.ALGORITHM1_M,
    cost={"laptop": "53 minutes on two busy cores", "paper": "a GPU, as table4a"},
    run=run,
    claims=claims,
    tables=tables,
)
