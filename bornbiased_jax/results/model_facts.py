"""What a document on two models says of each: files, sizes, digests, architecture, storage and dates."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from bornbiased_jax import __version__, io, record
from bornbiased_jax.checkpoints.roles import component_title
from bornbiased_jax.config import FieldValue
from bornbiased_jax.lineage.fingerprints import Component
from bornbiased_jax.lineage.trace import Side
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


@dataclasses.dataclass(frozen=True)
class ModelFacts:
    """One model as a reader who was not there identifies it; None where a fact is not known.

    Attributes:
        name: as it was given.
        files: how many files hold the weights, and their names.
        num_bytes: of those files.
        changed: UTC dates of the first and the last change of them.
        weights_digest: as ``bornbiased digest`` prints it.
        model_type: as the configuration next to the files names it.
        architecture: sizes, in words.
        num_parameters: numbers in all tensors that are understood.
        storage: storage types, and how many tensors have each.
    """

    name: str
    files: str | None
    num_bytes: int | None
    changed: str | None
    weights_digest: str | None
    model_type: str | None
    architecture: str | None
    num_parameters: int | None
    storage: str | None


def model_facts(side: Side, config: Mapping[str, FieldValue] | None, weights_digest: str | None) -> ModelFacts:
    """Collect what is known of a model after it was compared; no weights are read.

    Args:
        side: the model.
        config: its configuration, where this package runs it.
        weights_digest: where the verdict has it.
    """
    made = side.sketches or next(iter(side.made), None)
    paths = _weight_files(side)
    stats = [path.stat() for path in paths]
    days = sorted(datetime.fromtimestamp(stat.st_mtime, UTC).date().isoformat() for stat in stats)
    names = [path.name for path in paths]
    files = names[0] if len(names) == 1 else f"{len(names)} files, {names[0]} to {names[-1]}" if names else None
    stored = [] if made is None else made.source.storage.items()
    architecture = None
    if config is not None:
        sizes = [(words, config.get(name)) for name, words in _FIELDS.items()]
        architecture = ", ".join(words.format(value) for words, value in sizes if isinstance(value, int) and value)
    elif made is not None:
        architecture = "; ".join(_sizes(part) for part in made.components.values())
    return ModelFacts(
        name=side.name,
        files=files,
        num_bytes=sum(stat.st_size for stat in stats) if stats else None,
        changed=None if not days else days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}",
        weights_digest=weights_digest if made is None else made.weights_digest,
        model_type=_model_type(paths),
        architecture=architecture,
        num_parameters=None if made is None else sum(math.prod(tensor.array_shape) for tensor in made.tensors),
        storage=", ".join(f"{kind} ({count:,} tensors)" for kind, count in stored) or None,
    )


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


def facts_listing(base: ModelFacts, suspect: ModelFacts) -> Listing:
    """List what is known of two models, one row for each fact, and below it what compared them."""
    rows = [
        ["files of the weights", base.files, suspect.files],
        ["bytes", *(None if model.num_bytes is None else f"{model.num_bytes:,}" for model in (base, suspect))],
        ["files last changed here (UTC)", base.changed, suspect.changed],
        ["model type", base.model_type, suspect.model_type],
        ["architecture", base.architecture, suspect.architecture],
        [
            "parameters",
            *(None if model.num_parameters is None else f"{model.num_parameters:,}" for model in (base, suspect)),
        ],
        ["stored as", base.storage, suspect.storage],
    ]
    versions = ", ".join(f"{name} {version}" for name, version in record.library_versions().items())
    processor = record.cpu()
    # Digests stand below: two of them side by side are wider than a page.
    digests = [
        f"Digest of the {word}'s weights: {model.weights_digest}."
        for word, model in (("base", base), ("suspect", suspect))
        if model.weights_digest is not None
    ]
    if digests:
        digests.append("It is SHA-256 over all tensors that were read, as float32: `bornbiased digest` prints it.")
    note = " ".join([*digests, ""]) + (
        "The page has no date of its own: the same files give the same page. "
        f"Compared by bornbiased-jax {__version__} ({versions}) on {processor['cores']} cores of {processor['cpu']}."
    )
    return Listing("The two models", ["", f"base: {base.name}", f"suspect: {suspect.name}"], rows, note, is_text=True)


def _weight_files(side: Side) -> list[Path]:
    """Return the files that hold a model's weights, or its stored fingerprint."""
    if side.sketches is None and side.stored is None:
        return sorted(side.roles.files)
    return [io.user_path(side.source)] if isinstance(side.source, str | Path) else []


def _model_type(paths: list[Path]) -> str | None:
    """Return the model type in the configuration next to the weights; None where there is none."""
    path = paths[0].parent / "config.json" if paths else None
    if path is None or not path.is_file():
        return None
    value = io.read_json(path).get("model_type")
    return value if isinstance(value, str) else None
