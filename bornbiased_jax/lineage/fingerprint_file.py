"""Files of fingerprints: a versioned safetensors file, the same bytes for the same fingerprint.

The payload is everything but the section about the source; its digest is what may be published as a commitment. The
format is described in ``docs/fingerprint-format.md``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from typing_extensions import TypedDict

from bornbiased_jax import io, schema
from bornbiased_jax.checkpoints.roles import Shape
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.fingerprints import (
    Component,
    Fingerprint,
    Heads,
    MatrixSketch,
    Neurons,
    RepeatLabels,
    Repeats,
    Router,
    Settings,
    Source,
    TensorRecord,
    TokenLabels,
)
from bornbiased_jax.ranges import Count, CountOrNone, SketchDim

FORMAT = "bornbiased-weights-fingerprint"
VERSION = 1
_REMEDY = "make it again with `bornbiased fingerprint`"
_DTYPES = {"I8": np.int8, "U8": np.uint8, "F16": np.float16, "F32": np.float32}
_NAMES = {np.dtype(kind): name for name, kind in _DTYPES.items()}
_STATISTICS = ("mean", "std", "kurtosis", "minimum", "maximum", "diagonal_z")


class _ShapeFacts(TypedDict):
    num_heads: Count | None
    num_kv_heads: Count | None
    head_dim: Count | None
    is_centered: bool
    has_gate: bool
    has_odd_activation: bool
    is_tied: bool


class _Cells(TypedDict):
    block: list[Count | None]
    matrix: list[str]


class _NeuronSections(TypedDict):
    block: list[Count]
    expert: list[Count | None]
    is_shared: list[bool]
    stored: list[Count]
    total: list[Count]


class _HeadSections(TypedDict):
    block: list[Count]
    num_heads: list[Count]
    num_groups: list[Count]


class _RouterSections(TypedDict):
    block: list[Count]
    num_experts: list[Count]


class _Vectors(TypedDict):
    path: list[str]
    size: list[CountOrNone]


class _ComponentFacts(TypedDict):
    """What the header says of a component; columns of lists name the slices of its arrays in order."""

    shape: _ShapeFacts
    width: CountOrNone
    num_blocks: CountOrNone
    vocab_size: Count | None
    token_labels: TokenLabels | None
    heat_map: _Cells
    neurons: _NeuronSections
    heads: _HeadSections
    routers: _RouterSections
    vectors: _Vectors


class _SettingsFacts(TypedDict):
    dim: SketchDim
    neurons: Count | None
    sign_key: str
    token_labels: TokenLabels


class _RepeatsFacts(TypedDict):
    component: str
    labels: RepeatLabels
    num_labels: CountOrNone
    num_equal: CountOrNone
    periods: list[Count]
    z: list[float]


class _Tensors(TypedDict):
    path: list[str]
    array_shape: list[list[int]]
    is_evidence: list[bool]


class _Payload(TypedDict):
    """What the header says of the payload."""

    settings: _SettingsFacts
    components: dict[str, _ComponentFacts]
    tensors: _Tensors
    repeats: list[_RepeatsFacts]
    weights_digest: str
    tokenizer_digest: str | None


class _SourceFacts(TypedDict):
    description: str
    naming: str
    storage: dict[str, int]
    unread: list[str]


def save_fingerprint(path: Path | str, fingerprint: Fingerprint) -> Path:
    """Write a fingerprint, completely or not at all.

    Raises:
        InputError: the file cannot be written.
    """
    return io.write_bytes(path, encode(fingerprint))


def encode(fingerprint: Fingerprint) -> bytes:
    """Return the bytes of the file of a fingerprint."""
    arrays = dict(_arrays(fingerprint))
    payload = _payload_text(fingerprint)
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "payload": payload,
        "payload_digest": _digest(payload, arrays),
        "source": _json(dataclasses.asdict(fingerprint.source)),
    }
    # By hand, as the library's own writer has the metadata in another order each time. Source: the format's
    # specification (github.com/huggingface/safetensors).
    header: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for name, array in arrays.items():
        ends = [offset, offset + array.nbytes]
        header[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": ends}
        offset = ends[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array in arrays.values())


def payload_digest(fingerprint: Fingerprint) -> str:
    """Return SHA-256 of everything but the section about the source.

    Equal tensors and tokenizers have equal payloads, whatever files they lie in.
    """
    return _digest(_payload_text(fingerprint), dict(_arrays(fingerprint)))


def _digest(payload: str, arrays: Mapping[str, np.ndarray]) -> str:
    hasher = hashlib.sha256(payload.encode())
    for name, array in arrays.items():
        hasher.update(f"\0{name} {_NAMES[array.dtype]} {list(array.shape)}\0".encode())
        hasher.update(array.tobytes())
    return hasher.hexdigest()


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _payload_text(fingerprint: Fingerprint) -> str:
    settings = fingerprint.settings
    payload: _Payload = {
        "settings": {
            "dim": settings.dim,
            "neurons": settings.neurons,
            "sign_key": settings.sign_key.hex(),
            "token_labels": settings.token_labels,
        },
        "components": {name: _component_facts(component) for name, component in fingerprint.components.items()},
        "tensors": {
            "path": [record.path for record in fingerprint.tensors],
            "array_shape": [list(record.array_shape) for record in fingerprint.tensors],
            "is_evidence": [record.is_evidence for record in fingerprint.tensors],
        },
        "repeats": [
            {
                "component": repeats.component,
                "labels": repeats.labels,
                "num_labels": repeats.num_labels,
                "num_equal": repeats.num_equal,
                "periods": list(repeats.z_by_period),
                "z": list(repeats.z_by_period.values()),
            }
            for repeats in fingerprint.repeats
        ],
        "weights_digest": fingerprint.weights_digest,
        "tokenizer_digest": fingerprint.tokenizer_digest,
    }
    return _json(payload)


def _component_facts(component: Component) -> _ComponentFacts:
    shape = component.shape
    return {
        "shape": {
            "num_heads": shape.num_heads,
            "num_kv_heads": shape.num_kv_heads,
            "head_dim": shape.head_dim,
            "is_centered": shape.is_centered,
            "has_gate": shape.has_gate,
            "has_odd_activation": shape.has_odd_activation,
            "is_tied": shape.is_tied,
        },
        "width": component.width,
        "num_blocks": component.num_blocks,
        "vocab_size": component.vocab_size,
        "token_labels": component.token_labels,
        "heat_map": {
            "block": [cell.block for cell in component.heat_map],
            "matrix": [cell.matrix for cell in component.heat_map],
        },
        "neurons": {
            "block": [neurons.block for neurons in component.neurons],
            "expert": [neurons.expert for neurons in component.neurons],
            "is_shared": [neurons.is_shared for neurons in component.neurons],
            "stored": [neurons.stored for neurons in component.neurons],
            "total": [neurons.total for neurons in component.neurons],
        },
        "heads": {
            "block": [heads.block for heads in component.heads],
            "num_heads": [len(heads.query_key) for heads in component.heads],
            "num_groups": [heads.num_groups for heads in component.heads],
        },
        "routers": {
            "block": [router.block for router in component.routers],
            "num_experts": [len(router.coordinates) for router in component.routers],
        },
        "vectors": {
            "path": list(component.vectors),
            "size": [len(vector) for vector in component.vectors.values()],
        },
    }


def _arrays(fingerprint: Fingerprint) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of the file in order: those of the largest numbers first, so that all are aligned."""
    named: dict[str, np.ndarray] = {}
    for name, component in fingerprint.components.items():
        named |= {f"{name}/{path}": array for path, array in _component_arrays(component)}
    digests = b"".join(bytes.fromhex(record.digest) for record in fingerprint.tensors)
    named["tensors/digests"] = np.frombuffer(digests, np.uint8).reshape(-1, 32)
    rows = [[getattr(record, statistic) for statistic in _STATISTICS] for record in fingerprint.tensors]
    named["tensors/statistics"] = np.array(rows, "<f4").reshape(-1, len(_STATISTICS))
    yield from sorted(named.items(), key=lambda item: (-item[1].itemsize, item[0]))


def _component_arrays(component: Component) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of one component: sketches of one kind stand one after the other."""
    if component.is_token_used_V is not None:
        yield "tokens", np.packbits(component.is_token_used_V, bitorder="little")
    for part, rows_DK in component.coordinates.items():
        yield f"coordinates/{part}", rows_DK
    if component.heat_map:
        yield "heat_map", np.stack([cell.coordinates_D2 for cell in component.heat_map])
    for space in ("token", "coordinates"):
        sections: list[Mapping[str, np.ndarray]] = [getattr(neurons, space) for neurons in component.neurons]
        for matrix in sorted({matrix for section in sections for matrix in section}):
            yield f"neurons/{space}/{matrix}", np.concatenate([section[matrix] for section in sections])
    if component.heads:
        yield "heads/query_key", np.concatenate([heads.query_key for heads in component.heads])
        yield "heads/value_output", np.concatenate([heads.value_output for heads in component.heads])
    if component.routers:
        yield "routers/coordinates", np.concatenate([router.coordinates for router in component.routers])
        if component.token_labels is not None:
            tokens = [router.token for router in component.routers if router.token is not None]
            yield "routers/token", np.concatenate(tokens)
    if component.vectors:
        yield "vectors", np.concatenate(list(component.vectors.values())).astype("<f2")


def load_fingerprint(path: Path | str) -> Fingerprint:
    """Read a fingerprint. Nothing is unpickled.

    Raises:
        InputError: it is missing, corrupted, of a later version, or another kind of file.
    """
    path = io.check_regular(path)
    try:
        with safe_open(path, framework="numpy") as opened:
            metadata = opened.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise InputError(f"{path} is not a fingerprint of weights: {_REMEDY}")
            if metadata.get("version") != str(VERSION):
                raise InputError(
                    f"{path} is a fingerprint of version {schema.shown(metadata.get('version'))}, and this program "
                    f"reads version {VERSION}: update the program, or {_REMEDY}"
                )
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        arrays = dict(sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0])))
        if any(array.dtype not in _NAMES for array in arrays.values()):
            raise InputError(f"{path} holds an array of a type that fingerprints have not: {_REMEDY}")
        if metadata["payload_digest"] != _digest(metadata["payload"], arrays):
            raise InputError(f"{path} is corrupted, its digest does not match its content: {_REMEDY}")
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                raise InputError(f"{path} holds NaN or infinite values in {name}: {_REMEDY}")
        payload = schema.check(_Payload, schema.parse_json(metadata["payload"], str(path)), str(path), _REMEDY)
        source = schema.check(_SourceFacts, schema.parse_json(metadata["source"], str(path)), str(path), _REMEDY)
        return _decoded(payload, source, arrays)
    except InputError:
        raise
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is not a readable fingerprint ({schema.cut(str(error))}): {_REMEDY}") from error


def is_fingerprint(path: Path | str) -> bool:
    """Return whether a file says that it is a fingerprint of weights (it may still be corrupted)."""
    try:
        with safe_open(Path(path), framework="numpy") as opened:
            return (opened.metadata() or {}).get("format") == FORMAT
    except (SafetensorError, OSError):
        return False


def _decoded(payload: _Payload, source: _SourceFacts, arrays: dict[str, np.ndarray]) -> Fingerprint:
    """Build a fingerprint of what a file holds.

    Raises:
        KeyError, ValueError: an array is missing, left over, or of another size than the header says.
    """
    left = dict(arrays)
    digests_T32, statistics_TS = left.pop("tensors/digests"), left.pop("tensors/statistics")
    tensors = payload["tensors"]
    _check_shape("tensors/digests", digests_T32, (len(tensors["path"]), 32))
    _check_shape("tensors/statistics", statistics_TS, (len(tensors["path"]), len(_STATISTICS)))
    settings = payload["settings"]
    dim = settings["dim"]
    components = {name: _component(name, facts, left, dim) for name, facts in payload["components"].items()}
    if left:
        raise ValueError(f"{next(iter(left))} is no array of a fingerprint")
    columns = (tensors["path"], tensors["array_shape"], tensors["is_evidence"], digests_T32, statistics_TS.tolist())
    return Fingerprint(
        settings=Settings(dim, settings["neurons"], bytes.fromhex(settings["sign_key"]), settings["token_labels"]),
        components=components,
        tensors=tuple(
            TensorRecord(name, tuple(shape), digest.tobytes().hex(), *row, is_evidence)  # type: ignore[call-arg]
            for name, shape, is_evidence, digest, row in zip(*columns, strict=True)
        ),
        repeats=tuple(
            Repeats(
                component=repeats["component"],
                labels=repeats["labels"],
                num_labels=repeats["num_labels"],
                num_equal=repeats["num_equal"],
                z_by_period=dict(zip(repeats["periods"], repeats["z"], strict=True)),
            )
            for repeats in payload["repeats"]
        ),
        weights_digest=payload["weights_digest"],
        tokenizer_digest=payload["tokenizer_digest"],
        source=Source(source["description"], source["naming"], source["storage"], tuple(source["unread"])),
    )


def _component(name: str, facts: _ComponentFacts, left: dict[str, np.ndarray], dim: int) -> Component:
    """Build a component, taking its arrays from those left."""
    own = {path: left.pop(path) for path in list(left) if path.startswith(f"{name}/")}
    own = {path.removeprefix(f"{name}/"): array for path, array in own.items()}
    taken = _Taken(own)
    width = facts["width"]
    # Coordinates and heat map.
    coordinates = {
        path.removeprefix("coordinates/"): taken.take(path, (width, dim))
        for path in sorted(own)
        if path.startswith("coordinates/")
    }
    cells = facts["heat_map"]
    cells_MD2 = list(taken.take("heat_map", (len(cells["block"]), width, 2))) if cells["block"] else []
    # Sketches of neurons, heads and routers, cut where the header says.
    sections, heads, routers, vectors = facts["neurons"], facts["heads"], facts["routers"], facts["vectors"]
    spaces: dict[str, dict[str, list[np.ndarray]]] = {"token": {}, "coordinates": {}}
    for path in sorted(own):
        _, _, rest = path.partition("neurons/")
        space, _, matrix = rest.partition("/")
        if path.startswith("neurons/"):
            spaces[space][matrix] = taken.cut(path, sections["stored"], dim)
    query_key = taken.cut("heads/query_key", heads["num_heads"], dim * dim)
    value_output = taken.cut("heads/value_output", heads["num_heads"], dim * dim)
    has_vocabulary = facts["token_labels"] is not None
    expert_counts = routers["num_experts"]
    router_tokens = taken.cut("routers/token", expert_counts, dim) if has_vocabulary else [None] * len(expert_counts)
    router_rows = taken.cut("routers/coordinates", expert_counts, dim)
    # Vectors and the tokens that are used.
    vector_rows = taken.cut("vectors", vectors["size"], None)
    vocab_size = facts["vocab_size"]
    is_token_used_V = None
    if vocab_size is not None:
        packed = taken.take("tokens", (math.ceil(vocab_size / 8),))
        is_token_used_V = np.unpackbits(packed, count=vocab_size, bitorder="little").astype(bool)
    if taken.left:
        raise ValueError(f"{name}/{next(iter(taken.left))} is no array of a fingerprint")
    return Component(
        name=name,
        shape=Shape(**facts["shape"]),
        width=width,
        num_blocks=facts["num_blocks"],
        vocab_size=vocab_size,
        token_labels=facts["token_labels"],
        is_token_used_V=is_token_used_V,
        coordinates=coordinates,
        heat_map=tuple(map(MatrixSketch, *_columns(cells["block"], cells["matrix"], cells_MD2))),
        neurons=tuple(
            Neurons(block, expert, is_shared, total, _slices(spaces["token"], i), _slices(spaces["coordinates"], i))
            for i, (block, expert, is_shared, total) in enumerate(
                zip(sections["block"], sections["expert"], sections["is_shared"], sections["total"], strict=True)
            )
        ),
        heads=tuple(map(Heads, *_columns(heads["block"], heads["num_groups"], query_key, value_output))),
        routers=tuple(map(Router, *_columns(routers["block"], router_tokens, router_rows))),
        vectors=dict(zip(vectors["path"], vector_rows, strict=True)),
    )


def _columns(*columns: Sequence[Any]) -> tuple[Sequence[Any], ...]:
    """Return columns, if they are equally long.

    Raises:
        ValueError: they are not.
    """
    if len({len(column) for column in columns}) > 1:
        raise ValueError("columns of the header have different lengths")
    return columns


def _slices(matrices: Mapping[str, list[np.ndarray]], index: int) -> dict[str, np.ndarray]:
    return {matrix: rows[index] for matrix, rows in matrices.items()}


class _Taken:
    """Arrays of a component, each taken once, in the shape that the header says."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.left = dict(arrays)

    def take(self, path: str, shape: tuple[int, ...]) -> np.ndarray:
        """Take one array."""
        array = self.left.pop(path)
        _check_shape(path, array, shape)
        return array

    def cut(self, path: str, counts: list[int], width: int | None) -> list[np.ndarray]:
        """Take one array and cut it along its first axis; nothing where there is nothing to cut."""
        if not counts:
            return []
        rows = self.take(path, (sum(counts),) if width is None else (sum(counts), width))
        return np.split(rows, np.cumsum(counts)[:-1])


def _check_shape(path: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ValueError(f"{path} has shape {list(array.shape)} where the header says {list(shape)}")
