"""Stored fingerprints of 7B shape: screening, comparing and scanning them.

    python -m benchmarks stored_fingerprints --json benchmarks/results/stored_fingerprints.json

Sketches of 32 blocks are drawn at random, which is what fingerprints of unrelated models look like; a relative has the
sketches of the suspect plus noise. Timed are z as the screen estimates it, the whole comparison of a related and of an
unrelated pair, with permutations and bounds, and the scan of a store of which ten bases pass the screen.

With ``--peers`` (the programs of an environment of Python 3.12 that has ``cisco-ai-provenance-kit``) its ``compare`` is
timed as well, and ``seedprint`` on the same pair: the first two models of ``docs/guides/run_peers.py``, which share
nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import runpy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from benchmarks.recorded import Findings, command, timed
from benchmarks.streamed import SIZES
from benchmarks.tables import BenchmarkRecord, entries, facts
from bornbiased_jax import progress
from bornbiased_jax.lineage.battery import compare_weights, screening_z
from bornbiased_jax.lineage.fingerprint_file import save_fingerprint
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.lineage.fingerprints import Fingerprint
from bornbiased_jax.lineage.scan import find_bases, scan
from bornbiased_jax.lineage.sketches import quantize
from bornbiased_jax.report.tables import Table

LAYERS, BASES, RELATED = 32, 1000, 10
# The tables' rows leave nothing in a fingerprint.
FEW_TOKENS = {**SIZES, "vocab_size": 1000}
GUIDE = Path(__file__).resolve().parents[1] / "docs" / "guides" / "run_peers.py"
# Noise in a relative's sketches, in units of their own entries.
_NOISE = 2.0


def deepened(shallow: Fingerprint, layers: int) -> Fingerprint:
    """Repeat the only block of a fingerprint, so that it has the sizes of a deep model's."""
    model = shallow.components["language"]
    numbers = range(1, layers + 1)
    tables = {cell: rows_D2 for cell, rows_D2 in model.heat_map.items() if cell[0] is None}
    in_block = {kind: rows_D2 for (block, kind), rows_D2 in model.heat_map.items() if block is not None}
    deep = dataclasses.replace(
        model,
        num_blocks=layers,
        heat_map=tables | {(number, kind): in_block[kind] for number in numbers for kind in in_block},
        neurons=tuple(dataclasses.replace(model.neurons[0], block=number) for number in numbers),
        heads=tuple(dataclasses.replace(model.heads[0], block=number) for number in numbers),
    )
    return dataclasses.replace(shallow, components={model.name: deep})


def changed(base: Fingerprint, change: Callable[[np.ndarray], np.ndarray], digest: str) -> Fingerprint:
    """Change every sketch of a fingerprint, and its digests."""
    model = base.components["language"]

    def change_all(sketches: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: quantize(change(sketch)) for name, sketch in sketches.items()}

    component = dataclasses.replace(
        model,
        coordinates=change_all(model.coordinates),
        heat_map=change_all(model.heat_map),
        neurons=tuple(
            dataclasses.replace(neurons, token=change_all(neurons.token), coordinates=change_all(neurons.coordinates))
            for neurons in model.neurons
        ),
        heads=tuple(
            dataclasses.replace(
                heads,
                query_key=quantize(change(heads.query_key)),
                value_output=quantize(change(heads.value_output)),
            )
            for heads in model.heads
        ),
    )
    tensors = tuple(
        dataclasses.replace(record, digest=hashlib.sha256(f"{digest} {record.path}".encode()).hexdigest())
        for record in base.tensors
    )
    components, weights = {model.name: component}, hashlib.sha256(digest.encode()).hexdigest()
    return dataclasses.replace(base, components=components, tensors=tensors, weights_digest=weights)


def unrelated(model: Fingerprint, seed: int) -> Fingerprint:
    """Draw sketches of the same sizes at random."""
    rng = np.random.default_rng(seed)
    return changed(model, lambda sketch: rng.standard_normal(sketch.shape, np.float32), f"unrelated {seed}")


def relative(model: Fingerprint, seed: int) -> Fingerprint:
    """Add noise to every sketch."""
    rng = np.random.default_rng(seed)

    def noisy(sketch: np.ndarray) -> np.ndarray:
        noise = rng.standard_normal(sketch.shape, np.float32)
        return sketch + np.float32(_NOISE * sketch.astype(np.float32).std()) * noise

    return changed(model, noisy, f"relative {seed}")


def measure(folder: Path, bases: int = BASES, peers: str | None = None) -> Findings:
    """Measure screening, comparing and scanning of stored fingerprints of 7B shape.

    Args:
        folder: For the store.
        bases: Fingerprints in the store, 6 megabytes each.
        peers: Folder with the program provenancekit, to be timed on a pair of small models.
    """
    load = os.getloadavg()[0]
    progress.note("drawing fingerprints")
    fields = ",".join(f"{name}={size}" for name, size in FEW_TOKENS.items())
    template = deepened(fingerprint(f"seed:0@llama-tiny,num_layers=1,{fields}"), LAYERS)
    suspect, second = unrelated(template, 0), unrelated(template, 1)
    child = relative(suspect, 1)
    store = folder / "store"
    store.mkdir()
    save_fingerprint(folder / "suspect.fingerprint", suspect)
    for number in range(bases):
        base = relative(suspect, number + 2) if number < RELATED else unrelated(template, number + 2)
        save_fingerprint(store / f"{number:04}.fingerprint", base)
    progress.note("comparing")
    work = {
        "screen": timed(lambda: screening_z(suspect, second)),
        "unrelated": timed(lambda: compare_weights(suspect, second)),
        "full": timed(lambda: compare_weights(suspect, child)),
    }
    progress.note("scanning")
    work["scan"] = timed(lambda: scan(str(folder / "suspect.fingerprint"), find_bases([str(store)])))
    scanned = work["scan"].result
    findings: Findings = {
        "layers": LAYERS,
        "sizes": FEW_TOKENS,
        "fingerprint_bytes": (folder / "suspect.fingerprint").stat().st_size,
        "bases": bases,
        "related": RELATED,
        "tested": scanned.num_tested,
        "found": sum(match.verdict == "same-lineage" for match in scanned.matches),
        "seconds": {name: {"wall_s": part.wall_s, "cpu_s": part.cpu_s} for name, part in work.items()},
        "load": [load, os.getloadavg()[0]],
    }
    return findings if peers is None else findings | {"small_pair": compare_peer(Path(peers), folder)}


def compare_peer(peers: Path, folder: Path) -> Findings:
    """Time ``provenancekit compare`` and ``seedprint``, each a process of its own, on one unrelated pair.

    Args:
        peers: folder of the peer's programs.
        folder: where the models are written.
    """
    guide = runpy.run_path(str(GUIDE))
    guide["write"](folder)
    pair = folder / "base", folder / "another seed"
    decisions: dict[str, str] = {}

    def peer() -> None:
        decisions["peer"] = guide["provenance_kit"](peers, *pair)

    def seedprint() -> None:
        path = folder / "verdict.json"
        guide["run"](sys.executable, "-m", "bornbiased_jax", "seedprint", *pair, "--quiet", "--json", path)
        decisions["seedprint"] = json.loads(path.read_text())["verdict"]

    return {
        "peer_s": timed(peer).wall_s,
        "seedprint_s": timed(seedprint).wall_s,
        "decisions": decisions,
    }


def tables(record: BenchmarkRecord) -> list[Table]:
    """Tabulate seconds of work with stored fingerprints, and those of the peer where it was timed."""
    work = entries(
        record,
        title="Stored fingerprints of {layers} blocks of 7B shape, {fingerprint_bytes:MB} each",
        each="seconds",
        columns={"work": "{name}", "seconds": "{wall_s:fixed:2}", "of processors": "{cpu_s:fixed:2}"},
        note="Screen: z of every piece of evidence, estimated. Unrelated, full: the whole comparison of an unrelated "
        "and of a related pair, with permutations and bounds. Scan: {bases:integer} stored fingerprints, of which "
        "{tested} passed the screen; {found} of {related} relatives were found. Processes that wanted a core: "
        "{load:fixed:1}.",
    )
    if "small_pair" not in record:
        return work
    peer = facts(
        record,
        title="Two unrelated models of 0.2 million parameters, compared by a process",
        rows={
            "`provenancekit compare`": "{small_pair[peer_s]:duration} ({small_pair[decisions][peer]})",
            "`seedprint`": "{small_pair[seedprint_s]:duration} ({small_pair[decisions][seedprint]})",
        },
    )
    return work + peer


main = functools.partial(command, measure, precision="float32")
