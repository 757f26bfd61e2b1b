"""An audit of names and digests alone: a hub's listing of branches, no weights, no JAX."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from bornbiased_jax import io
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.audit.duplicates import Copies, find_copies
from bornbiased_jax.lineage.audit.finding import AuditResult, Finding, is_clean
from bornbiased_jax.lineage.audit.gaps import find_gaps, find_single_checkpoints
from bornbiased_jax.lineage.audit.labels import Label, by_run, is_alias, read_label

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".npz")
"""Ends of the names of files that hold weights; all others are no evidence of anything."""
# Files that end like weights and are none.
_OTHERS = re.compile(
    r"((training_args|optimizer|scheduler|scaler|sampler|rng_state|random_states)\w*|.*optim_states)\.(bin|pt|pth|pkl)",
    re.IGNORECASE,
)


def is_weights(name: str) -> bool:
    """Tell whether a file of this name holds a model's weights."""
    return name.lower().endswith(WEIGHTS) and not is_training_state(name)


def is_training_state(name: str) -> bool:
    """Tell whether a trainer wrote a file of this name next to the model: its optimizer, its arguments."""
    return _OTHERS.fullmatch(name.rpartition("/")[2]) is not None


def audit_listing(path: str | Path, pattern: re.Pattern[str] | None = None) -> AuditResult:
    """Find duplicates and gaps of a listing ``{"revisions": {NAME: [entries of the hub's tree interface]}}``.

    An entry has ``path``, and ``lfs.oid`` or ``oid``, a digest of the file's content; ``type`` other than "file" is
    passed over.

    Returns:
        JSON-ready: ``clean``, ``findings``, ``checkpoints``, ``pairs`` (none), ``runs``, ``graph``.

    Raises:
        InputError: the file is no such listing.
    """
    digests = {name: _weight_digests(name, entries, path) for name, entries in _revisions(path).items()}
    return audit_digests(digests, path, pattern)


def audit_digests(
    digests: Mapping[str, Mapping[str, str]], source: str | Path, pattern: re.Pattern[str] | None = None
) -> AuditResult:
    """Find duplicates and gaps among revisions by name, each with the digests of its files of weights by path.

    Returns:
        As :func:`audit_listing`.
    """
    labels: dict[str, Label] = {name: read_label(name, pattern) for name in digests}
    findings = [
        Finding("unreadable", (name,), f"{name} lists no file of weights.")
        for name, files in digests.items()
        if not files and not is_alias(name)
    ]
    # Copies by digest, then gaps in the grid of each run.
    aliases = [name for name, label in labels.items() if label.step is None and is_alias(name)]
    findings += find_copies(Copies(labels, digests, unit="weight files", aliases=aliases))
    runs = by_run(labels)
    findings += find_gaps(runs) + find_single_checkpoints(runs)
    return {
        "clean": is_clean(findings),
        "findings": [finding.to_dict() for finding in findings],
        "checkpoints": [
            {"name": name, "run": labels[name].run, "step": labels[name].step, "files": dict(files)}
            for name, files in digests.items()
        ],
        "pairs": [],
        "runs": [{"name": run, "steps": sorted(names), "data": "not known"} for run, names in runs.items()],
        "graph": {"nodes": list(digests), "edges": []},
        "source": str(source),
        "basis": "digests of files alone: no weights were read",
    }


def _revisions(path: str | Path) -> dict[str, list[object]]:
    content = io.read_json(path)
    revisions = content.get("revisions") if isinstance(content, dict) else None
    if not isinstance(revisions, dict) or not all(isinstance(entries, list) for entries in revisions.values()):
        raise InputError(
            f'{path} is no listing: it should be {{"revisions": {{NAME: [entries of the hub\'s tree interface]}}}}'
        )
    if not revisions:
        raise InputError(f"{path} lists no revision: there is nothing to audit")
    return revisions


def _weight_digests(name: str, entries: Sequence[object], path: str | Path) -> dict[str, str]:
    digests = {}
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            raise InputError(f"{path}: an entry of {name} has no path: it is not of the hub's tree interface")
        if entry.get("type", "file") != "file" or not is_weights(entry["path"]):
            continue
        # Large files have the digest of their content, others that of a git blob.
        large = entry.get("lfs")
        digest = (large.get("oid") or large.get("sha256")) if isinstance(large, dict) else entry.get("oid")
        if not isinstance(digest, str) or not digest:
            raise InputError(f"{path}: {entry['path']} of {name} has no digest (oid): list it again")
        digests[entry["path"]] = digest.lower()
    return digests
