"""The pairs of Tables 4a and 9 by the exact tests in the weights: no inputs, so no length and no number of them.

The analysis, fixed before the pairs were run together: every test with its defaults on every pair, each p uniform where
the initializations are independent; next to the smallest of a family the chance of one as small among as many uniform
draws, which takes them for independent although pairs share initializations. A pair and its reverse count once.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.chunk_store import Chunk
from bornbiased_jax.config import preset
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record, chunked
from bornbiased_jax.experiments.lineage import settings
from bornbiased_jax.experiments.lineage.sketched import sketch
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage.evidence import COORDINATES, RAW_NEURONS, SIGNLESS, TOKEN_NEURONS
from bornbiased_jax.lineage.fingerprints import Fingerprint
from bornbiased_jax.lineage.weights_verdict import single_verdict
from bornbiased_jax.report.numbers import fixed, significant
from bornbiased_jax.report.tables import Cells, Claim, Table, tabulate

TESTS: dict[str, str] = {
    "coordinates": SIGNLESS,
    "coordinates, signed": COORDINATES,
    "units": RAW_NEURONS,
    "rotation, units": TOKEN_NEURONS,
}
"""Name -> evidence of fingerprints."""
FORMER = "bilinear"
"""A test of records made before fingerprints."""


def run(context: Context) -> Entry:
    """Compute p, z and verdict of every test on every pair, family by family."""
    groups = context.settings["groups"]
    return {
        "groups": [
            {"group": group, "pairs": context.rows("table4a_weights/pairs", compute, group, len(group["pairs"]))}
            for group in groups
        ]
    }


@chunked
def compute(settings: Entry, _sources: object, chunk: Chunk) -> Sequence[Entry]:
    """Run every test on some of a family's pairs."""
    cfg = preset(settings["model"], **settings["changes"])

    def fingerprint(seed: int) -> Fingerprint:
        params = jax.tree.map(np.asarray, init_seed(cfg, seed))
        return sketch(Checkpoint.from_params(cfg, params, seed=seed, is_initial=True))

    rows = []
    for base, suspect in settings["pairs"][chunk.start : chunk.stop]:
        pair = fingerprint(base), fingerprint(suspect)
        verdicts = {name: single_verdict(*pair, evidence) for name, evidence in TESTS.items()}
        tests = {name: {"verdict": v.verdict, "p_value": v.p_value, "z": v.z} for name, v in verdicts.items()}
        rows.append({"base": base, "suspect": suspect, "tests": tests})
    return rows


def tables(record: Record) -> Sequence[Table]:
    """Tabulate p and z of every test, a row a pair."""
    rows = []
    is_former = any(FORMER in pair["tests"] for outcome in record["result"]["groups"] for pair in outcome["pairs"])
    last = ", of the embedding's rows" if is_former else ""
    for outcome in record["result"]["groups"]:
        for pair in outcome["pairs"]:
            measured: Cells = {}
            for name in (name for name in (*TESTS, FORMER) if name in pair["tests"]):
                measured[f"{name}: p"] = (significant(3), pair["tests"][name]["p_value"])
                measured[f"{name}: z"] = (fixed(2), pair["tests"][name]["z"])
            rows.append(([outcome["group"]["model"], pair["base"], pair["suspect"]], measured))
    note = (
        "p and z of untrained models of different seeds; p should not be small. Each p is exact and counted over "
        "9,999 permutations: of residual coordinates, of hidden units as they lie, of hidden units once a rotation "
        f"was undone{last}."
    )
    return [tabulate("The same pairs in the weights", ["model", "base seed", "suspect seed"], rows, note)]


def claims(record: Record) -> Sequence[Claim]:
    """State the smallest p of each family, and the chance of one as small."""
    statements = []
    for outcome in record["result"]["groups"]:
        # A pair and its reverse are one comparison.
        pairs = {frozenset((pair["base"], pair["suspect"])): pair for pair in outcome["pairs"]}.values()
        values = [test["p_value"] for pair in pairs for test in pair["tests"].values()]
        defined = [float(value) for value in values if value is not None]
        if not defined:
            continue
        smallest = min(defined)
        chance = 1 - (1 - smallest) ** len(defined)
        statements.append(
            Claim(
                f"Smallest of {len(defined)} p of untrained models of different seeds, exact tests in the weights "
                f"({outcome['group']['model']}; chance of one so small if they were independent: {chance:.0%})",
                smallest,
                format=significant(2),
            )
        )
    return statements


EXPERIMENT = Experiment(
    name="table4a_weights",
    title="Models of different seeds at initialization, in their weights",
    paper="Tables 4a and 9",
    description="The paper's models and pairs of seeds by the tests that read weights and no outputs.",
    settings=settings.TABLE4A_WEIGHTS,
    cost={"paper": "minutes on two cores"},
    run=run,
    tables=tables,
    claims=claims,
)
