"""What a document on two models says of each: files, sizes, digests, architecture, storage and dates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from bornbiased_jax import __version__, io, record
from bornbiased_jax.checkpoints.roles import component_title
from bornbiased_jax.config import FieldValue
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.compared_model import ComparedModel
from bornbiased_jax.lineage.fingerprints import Component
from bornbiased_jax.results.result import Listing

# Fields of a configuration that tell a reader what a model is, in the order in which they are read.
_FIELDS = {
    "num_layers": "{:,} blocks",
    "d_model": "width {:,}",
    "d_ff": "{:,} neurons in each MLP",
    "num_experts": "{:,} experts",
    "num_heads": "{:,} heads",
    "num_kv_heads": "{:,} key/value heads",
    "vocab_size": "{:,} tokens",
}


def facts_listing(
    base: ComparedModel,
    suspect: ComparedModel,
    configs: Mapping[str, Mapping[str, FieldValue] | None],
    verdict: Mapping[str, object],
) -> Listing:
    """List what is known of two compared models, a row for each fact, and below it what compared them.

    No weights are read: their configurations are given by "base" and "suspect", None of a model that this package does
    not run, and the verdict's JSON may have their digests.
    """
    facts = [_facts(base, configs["base"]), _facts(suspect, configs["suspect"])]
    rows = [[name, *(model[name] for model in facts)] for name in facts[0]]
    versions = ", ".join(f"{name} {version}" for name, version in record.library_versions().items())
    processor = record.cpu()
    # Digests stand below: two of them side by side are wider than a page.
    digests = []
    for word, model in (("base", base), ("suspect", suspect)):
        sketches = model.sketches
        digest = verdict.get(f"{word}_digest") if sketches is None else sketches.weights_digest
        if digest is not None:
            digests.append(f"Digest of the {word}'s weights: {digest}.")
    if digests:
        digests.append("It is SHA-256 over all tensors that were read, as float32: `bornbiased digest` prints it.")
    note = " ".join([*digests, ""]) + (
        "The page has no date of its own: the same files give the same page. "
        f"Compared by bornbiased-jax {__version__} ({versions}) on {processor['cores']} cores of {processor['cpu']}."
    )
    return Listing("The two models", ["", f"base: {base.name}", f"suspect: {suspect.name}"], rows, note, is_text=True)


def _facts(model: ComparedModel, config: Mapping[str, FieldValue] | None) -> dict[str, str | None]:
    """Write what identifies a model for a reader who was not there; None where a fact is not known."""
    sketches = model.sketches
    paths = _weight_files(model)
    stats = [path.stat() for path in paths]
    days = sorted(datetime.fromtimestamp(stat.st_mtime, UTC).date().isoformat() for stat in stats)
    changed = None if not days else days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    names = [path.name for path in paths]
    files = names[0] if len(names) == 1 else f"{len(names)} files, {names[0]} to {names[-1]}" if names else None
    # Storage types, and how many tensors have each.
    stored = [] if sketches is None else sketches.source.storage.items()
    parameters = None
    if sketches is not None:
        parameters = f"{sum(math.prod(tensor.array_shape) for tensor in sketches.tensors):,}"
    architecture = None
    if config is not None:
        sizes = [(words, config.get(name)) for name, words in _FIELDS.items()]
        architecture = ", ".join(words.format(value) for words, value in sizes if isinstance(value, int) and value)
    elif sketches is not None:
        architecture = "; ".join(_sizes(part) for part in sketches.components.values())
    return {
        "files of the weights": files,
        "bytes": f"{sum(stat.st_size for stat in stats):,}" if stats else None,
        "files last changed here (UTC)": changed,
        # What lies next to a stored fingerprint may be of another model.
        "model type": _model_type(paths) if model.stored is None else None,
        "architecture": architecture,
        "parameters": parameters,
        "stored as": ", ".join(f"{kind} ({count:,} tensors)" for kind, count in stored) or None,
    }


def _sizes(part: Component) -> str:
    """Write the sizes of a part of a model that names alone describe, as a fingerprint knows them."""
    sizes = [
        ("{:,} blocks", part.num_blocks),
        ("width {:,}", part.width),
        ("{:,} heads", part.shape.num_heads),
        ("{:,} key/value heads", part.shape.num_kv_heads),
        ("{:,} tokens", part.vocab_size),
    ]
    return ", ".join([component_title(part.name), *(words.format(value) for words, value in sizes if value)])


def _weight_files(model: ComparedModel) -> list[Path]:
    """Return the files that hold a model's weights, or its stored fingerprint."""
    if model.stored is None:
        return sorted(model.roles.files)
    return [io.user_path(model.source)] if isinstance(model.source, str | Path) else []


def _model_type(paths: list[Path]) -> str | None:
    """Return the model type in the configuration next to the weights; None where there is none."""
    path = paths[0].parent / "config.json" if paths else None
    if path is None or not path.is_file():
        return None
    try:
        content = io.read_json(path)
    except InputError:  # beside a GGUF file it may be anything
        return None
    value = content.get("model_type") if isinstance(content, dict) else None
    return value if isinstance(value, str) else None
