"""Table 6: a base model and models said to descend from it, from directories that the user has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import progress
from bornbiased_jax.checkpoints import Checkpoint, open_checkpoint
from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments._shared.baselines import reef_features
from bornbiased_jax.experiments._shared.lineage import BASELINES, baseline_scores, compared
from bornbiased_jax.experiments.base import SCALES, Context, Entry, Experiment, Record, split_data, where_attempted
from bornbiased_jax.experiments.lineage import settings
from bornbiased_jax.lineage.output_fingerprint import OutputFingerprint, fingerprint_outputs
from bornbiased_jax.lineage.outputs import OutputOptions, embedding_moments
from bornbiased_jax.probes.inputs import parse_inputs, random_inputs
from bornbiased_jax.report.numbers import fixed, from_log10, significant
from bornbiased_jax.report.tables import Cells, Table, Value, tabulate

PRINTED: dict[str, Entry] = {
    "finance": {"tokens": "5M", "U-test": 1.34e-41, "intrinsic": 1.0, "reef": 0.9950, "pcs": 0.9979, "ics": 0.9952},
    "vicuna": {"tokens": "370M", "U-test": 1.49e-96, "intrinsic": 1.0, "reef": 0.9985, "pcs": 0.9985, "ics": 0.9949},
    "wizardmath": {"tokens": "1.8B", "U-test": 4.09e-100, "intrinsic": 1.0, "reef": 0.9979, "pcs": 1.0, "ics": 0.9994},
    "meditron": {"tokens": "48B", "U-test": 5.212e-4, "intrinsic": 0.9990, "reef": 0.9978, "pcs": 1.0, "ics": 0.9817},
    "codellama": {
        "tokens": "500B",
        "U-test": 2.008e-3,
        "intrinsic": 0.948,
        "reef": 0.9947,
        "pcs": 0.6863,
        "ics": 0.3369,
    },
}
"""The paper's rows, by the name that a suspect is given in ``--data``."""

FORM = (
    "give --data 'base=DIR;vicuna=DIR;…', each DIR a Hugging Face directory, a .gguf or any other checkpoint; suspects "
    "of the paper are called " + ", ".join(PRINTED) + ", others as you like"
)
ABSENT = f"Not attempted: no models were named; {FORM}."
WIDTH_7B = 4096


def named(data: str | None) -> dict[str, str]:
    """Map names to the checkpoints of ``--data``; empty without it.

    Raises:
        InputError: not of the form NAME=CHECKPOINT;…, a name twice, no base, or no suspect.
    """
    checkpoints: dict[str, str] = {}
    for name, where in split_data(data):
        if name is None or name in checkpoints:
            raise InputError(f"--data {where!r} is not NAME=CHECKPOINT with a name of its own: {FORM}")
        checkpoints[name] = where
    if checkpoints and ("base" not in checkpoints or len(checkpoints) < 2):
        raise InputError(f"--data must name a base and at least one suspect: {FORM}")
    return checkpoints


def run(context: Context) -> Entry:
    """Compute one row a suspect; the base stays in memory, suspects come one after the other."""
    where = named(context.data)
    if not where:
        return {"attempted": False, "reason": ABSENT, "suspects": []}
    settings = context.settings
    dtype = jnp.dtype(settings["dtype"])
    base = open_checkpoint(where["base"], dtype=dtype)
    suspects = [name for name in where if name != "base"]
    base_fingerprints: dict[Any, OutputFingerprint] = {}
    rows = []
    with progress.bar(len(suspects), "table6", unit="models", quiet=context.quiet) as advance:
        for name in suspects:
            suspect = open_checkpoint(where[name], dtype=dtype)
            rows.append({"name": name, **_compare(base, suspect, settings, base_fingerprints)})
            del suspect
            advance()
    return {"attempted": True, "base": _facts(base, where["base"]), "suspects": rows}


def _facts(model: Checkpoint, where: str) -> Entry:
    """Return what a record may say of a model: its file's name, never the way to it."""
    parameters = int(sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(model.params())))
    return {"file": Path(where).name, "width": model.cfg.d_model, "parameters": parameters}


def _compare(base: Checkpoint, suspect: Checkpoint, settings: Entry, base_fingerprints: dict[Any, Any]) -> Entry:
    facts = _facts(suspect, suspect.reference)
    if base.cfg.d_model != suspect.cfg.d_model:
        reason = f"widths {base.cfg.d_model} and {suspect.cfg.d_model}: no coordinate corresponds to another"
        return {**facts, "undefined": reason}
    size = (settings["num_inputs"], settings["seq_len"])
    narrow = base.cfg if base.cfg.vocab_size <= suspect.cfg.vocab_size else suspect.cfg
    moments = embedding_moments(base.params())
    tests = {}
    for kind in ("tokens", "gaussian"):
        inputs = random_inputs(kind, *size, narrow)
        vectors = moments if kind == "gaussian" else None
        key = (kind, narrow.vocab_size)
        if key not in base_fingerprints:
            base_fingerprints[key] = fingerprint_outputs(base, inputs, OutputOptions(vectors))
        tests[kind] = compared(base_fingerprints[key], fingerprint_outputs(suspect, inputs, OutputOptions(vectors)))
    scores = baseline_scores(
        base.cfg, base.params(), suspect.cfg, suspect.params(), (_reef(base, settings), _reef(suspect, settings))
    )
    return {**facts, "tests": tests, "baselines": {name: score.value for name, score in scores.items()}}


def _reef(model: Checkpoint, settings: Entry) -> np.ndarray:
    """Compute features of the sentences in the model's own tokens."""
    reef = settings["reef"]
    inputs = parse_inputs(
        reef["text"],
        num_inputs=reef["num_sentences"],
        seq_len=reef["sentence_len"],
        cfg=model.cfg,
        tokenizer=model.tokenizer,
    )
    return reef_features(model.cfg, model.params(), inputs)


@where_attempted
def tables(record: Record) -> Sequence[Table]:
    """Tabulate p and scores alongside what the paper printed, for its suspects at its sizes."""
    result, settings = record["result"], record["settings"]
    full = result["base"]["width"] == WIDTH_7B and record["scale"] == "paper"
    rows = []
    # A row a suspect; printed numbers only at the paper's sizes.
    for entry in result["suspects"]:
        printed = PRINTED.get(entry["name"], {}) if full else {}
        paper: dict[str, Value] = {name: printed[name] for name in BASELINES if name in printed}
        if printed:
            paper["U-test"] = float(np.log10(printed["U-test"]))
        measured: Cells = {"note": entry.get("undefined", "")}
        if "tests" in entry:
            vectors, tokens = entry["tests"]["gaussian"], entry["tests"]["tokens"]["permutation"]
            measured = {
                "verdict": tokens["verdict"],
                "permutation log10 p": (fixed(1), tokens["log10_p"]),
                "U-test": (from_log10(3), vectors["paper"].get("log10_p_u")),
                **{name: (significant(3), score) for name, score in entry["baselines"].items()},
                "note": tokens["reason"],
            }
        rows.append(([entry["name"], entry["parameters"]], measured, paper))
    note = (
        f"N = {settings['num_inputs']:,}, T = {settings['seq_len']}. Verdict: what is identical bit for bit, then the "
        "permutation test on random tokens; its p is counted over permutations and, below their reach, a certified "
        "bound. U-test: Algorithm 1 on Gaussian vectors with the moments of the base's embedding, as published. "
        f"Weights were held as {settings['dtype']}."
    )
    title = f"Suspects against {result['base']['file']}"
    return [tabulate(title, ["suspect", "parameters"], rows, note)]


EXPERIMENT = Experiment(
    name="table6",
    title="Descendants of a large model",
    paper="Table 6",
    description=(
        "A base model and suspects from directories on this machine; at most the base and one suspect are in memory. "
        "The paper's are LLaMA-2-7B and five models made from it, which have licenses of their own and are not fetched."
    ),
    settings=settings.TABLE6,
    cost={
        "smoke": "seconds for small models; nothing without --data",
        "laptop": "minutes for models below a billion parameters; nothing without --data",
        "paper": "not measured: 3e16 floating-point operations for each 7B model and input type, and 30 GB of memory",
    },
    run=run,
    takes_data=SCALES,
    tables=tables,
    precision="float32 highest; weights as the settings say",
)
