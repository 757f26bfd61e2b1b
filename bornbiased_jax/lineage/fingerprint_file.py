"""Files of fingerprints: a versioned safetensors file, the same bytes for the same fingerprint.

The payload is everything but the section about the source; its digest is what may be published as a commitment. The
format is described in ``docs/fingerprint-format.md``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open

from bornbiased_jax import io, schema
from bornbiased_jax.checkpoints.roles import Shape
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import fingerprint_header as header
from bornbiased_jax.lineage import tensor_file
from bornbiased_jax.lineage.fingerprints import (
    Component,
    Fingerprint,
    FingerprintSource,
    HeadSketches,
    Neurons,
    Repeats,
    Router,
    Settings,
    TensorRecord,
)

FORMAT = "bornbiased-weights-fingerprint"
VERSION = 1
_REMEDY = "make it again with `bornbiased fingerprint`"
_Row = TypeVar("_Row")
# Of a tensor, as :attr:`bornbiased_jax.checkpoints.roles.Role.path` writes it.
_PATH = re.compile(r"[^/]+(/blocks/\d+)?(/experts/\d+)?/[^/]+/[^/]+")
_STATISTICS = ("mean", "std", "kurtosis", "minimum", "maximum", "diagonal_z")


def save_fingerprint(path: Path | str, fingerprint: Fingerprint) -> Path:
    """Write a fingerprint, completely or not at all.

    Raises:
        InputError: the file cannot be written, or not all MLPs have the same matrices.
    """
    return io.write_bytes(path, encode(fingerprint))


def encode(fingerprint: Fingerprint) -> bytes:
    """Return the bytes of the file of a fingerprint."""
    # The digest is of the payload and the arrays, not of the source.
    arrays = dict(_arrays(fingerprint))
    payload = _payload_text(fingerprint)
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "payload": payload,
        "payload_digest": _digest(payload, arrays),
        "source": _json(dataclasses.asdict(fingerprint.source)),
    }
    return tensor_file.encode(metadata, arrays)


def payload_digest(fingerprint: Fingerprint) -> str:
    """Return SHA-256 of everything but the section about the source.

    Equal tensors and tokenizers have equal payloads, whatever files they lie in.
    """
    return _digest(_payload_text(fingerprint), dict(_arrays(fingerprint)))


def _digest(payload: str, arrays: Mapping[str, np.ndarray]) -> str:
    hasher = hashlib.sha256(payload.encode())
    for name, array in arrays.items():
        hasher.update(f"\0{name} {tensor_file.TYPES[array.dtype]} {list(array.shape)}\0".encode())
        hasher.update(array.tobytes())
    return hasher.hexdigest()


def _json(value: Mapping[str, object]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _payload_text(fingerprint: Fingerprint) -> str:
    settings = dataclasses.asdict(fingerprint.settings) | {"sign_key": fingerprint.settings.sign_key.hex()}
    return _json(
        {
            "settings": settings,
            "components": {name: _component_facts(component) for name, component in fingerprint.components.items()},
            "tensors": _columns(header.TensorColumns, fingerprint.tensors),
            "repeats": [
                {name: getattr(repeats, name) for name in ("component", "labels", "num_labels", "num_equal")}
                | {"periods": list(repeats.z_by_period), "z": list(repeats.z_by_period.values())}
                for repeats in fingerprint.repeats
            ],
            "weights_digest": fingerprint.weights_digest,
            "tokenizer_digest": fingerprint.tokenizer_digest,
        }
    )


def _component_facts(component: Component) -> dict[str, object]:
    return {
        "shape": dataclasses.asdict(component.shape),
        "width": component.width,
        "num_blocks": component.num_blocks,
        "vocab_size": component.vocab_size,
        "token_labels": component.token_labels,
        "heat_map": {"block": [b for b, _ in component.heat_map], "matrix": [m for _, m in component.heat_map]},
        "neurons": _columns(header.NeuronSections, component.neurons),
        "heads": _columns(header.HeadSections, component.heads),
        "routers": _columns(header.RouterSections, component.routers),
        "vectors": {"path": list(component.vectors), "size": [len(vector) for vector in component.vectors.values()]},
    }


def _columns(kind: type, rows: Sequence[object]) -> dict[str, list[object]]:
    """Return the columns of a section of the header: one list for each field of its type."""
    return {name: [getattr(row, name) for row in rows] for name in kind.__annotations__}


def _arrays(fingerprint: Fingerprint) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of the file in order: those of the largest numbers first, so that all are aligned."""
    named: dict[str, np.ndarray] = {}
    for name, component in fingerprint.components.items():
        named |= {f"{name}/{path}": array for path, array in _component_arrays(component)}
    # A row of digest and statistics for each tensor.
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
        yield "heat_map", np.stack(list(component.heat_map.values()))
    # Neurons of all blocks lie in one array for each space and matrix.
    for space in ("token", "coordinates"):
        sections: list[Mapping[str, np.ndarray]] = [getattr(neurons, space) for neurons in component.neurons]
        if len({frozenset(section) for section in sections}) > 1:
            raise InputError(
                "some MLPs of this model have a gate and others none, which no file of a fingerprint holds: compare "
                "the checkpoint itself"
            )
        for matrix in sorted({matrix for section in sections for matrix in section}):
            yield f"neurons/{space}/{matrix}", np.concatenate([section[matrix] for section in sections])
    # Heads: query with key, value with output.
    if component.heads:
        yield "heads/query_key", np.concatenate([heads.query_key for heads in component.heads])
        yield "heads/value_output", np.concatenate([heads.value_output for heads in component.heads])
    # A router has a row for each expert.
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
        # In the order of the file, which the digest is of.
        arrays = dict(sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0])))
        if any(array.dtype not in tensor_file.TYPES for array in arrays.values()):
            raise InputError(f"{path} holds an array of a type that fingerprints have not: {_REMEDY}")
        if metadata["payload_digest"] != _digest(metadata["payload"], arrays):
            raise InputError(f"{path} is corrupted, its digest does not match its content: {_REMEDY}")
        # Numbers and header, each by itself; then both against one another.
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                raise InputError(f"{path} holds NaN or infinite values in {name}: {_REMEDY}")
        payload = schema.check(header.Payload, schema.parse_json(metadata["payload"], str(path)), str(path), _REMEDY)
        source = schema.check(header.SourceFacts, schema.parse_json(metadata["source"], str(path)), str(path), _REMEDY)
        return _decoded(payload, source, arrays)
    except InputError:
        raise
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is not a readable fingerprint ({schema.cut(str(error))}): {_REMEDY}") from error


def is_fingerprint(path: Path | str) -> bool:
    """Return whether a file says that it is a fingerprint of weights (it may still be corrupted)."""
    return tensor_file.has_format(path, FORMAT)


def _decoded(payload: header.Payload, source: header.SourceFacts, arrays: dict[str, np.ndarray]) -> Fingerprint:
    """Build a fingerprint from the content of a file, taking each array once.

    Raises:
        KeyError, ValueError: an array is missing, left over, or of another size than the header says.
    """
    # Tables over all tensors first, then the arrays of each component.
    settings, tensors = payload["settings"], payload["tensors"]
    for path in tensors["path"]:
        if not _PATH.fullmatch(path):
            raise ValueError(f"{path} is no path of a tensor")
    digests_T32 = _take(arrays, "tensors/digests", (len(tensors["path"]), 32))
    statistics_TS = _take(arrays, "tensors/statistics", (len(tensors["path"]), len(_STATISTICS)))
    dim = settings["dim"]
    # Each component takes its own arrays.
    components = {name: _component(name, facts, arrays, dim) for name, facts in payload["components"].items()}
    # What nobody took has no business in the file.
    if arrays:
        raise ValueError(f"{next(iter(arrays))} is no array of a fingerprint")
    digests = [digest.tobytes().hex() for digest in digests_T32]
    shapes = map(tuple, tensors["array_shape"])
    statistics = (row.tolist() for row in statistics_TS.T)
    return Fingerprint(
        settings=Settings(dim, settings["neurons"], bytes.fromhex(settings["sign_key"]), settings["token_labels"]),
        components=components,
        tensors=_rows(TensorRecord, tensors["path"], shapes, digests, *statistics, tensors["is_evidence"]),
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
        source=FingerprintSource(source["description"], source["naming"], source["storage"], tuple(source["unread"])),
    )


def _component(name: str, facts: header.ComponentFacts, arrays: dict[str, np.ndarray], dim: int) -> Component:
    """Build a component, taking its arrays from those that are left."""
    cells, sections, heads, routers = facts["heat_map"], facts["neurons"], facts["heads"], facts["routers"]
    width, vocab_size, has_vocabulary = facts["width"], facts["vocab_size"], facts["token_labels"] is not None

    def paths(prefix: str) -> list[str]:
        return sorted(path for path in arrays if path.startswith(f"{name}/{prefix}"))

    def take(path: str, *shape: int) -> np.ndarray:
        return _take(arrays, f"{name}/{path}", shape)

    def cut(path: str, counts: Sequence[int], *width: int) -> list[np.ndarray]:
        # Cut along the first axis; nothing where there is nothing to cut.
        return np.split(take(path, sum(counts), *width), np.cumsum(counts)[:-1]) if counts else []

    # Coordinates and heat map.
    coordinates = {
        path.removeprefix(f"{name}/coordinates/"): _take(arrays, path, (width, dim)) for path in paths("coordinates/")
    }
    cells_MD2 = list(take("heat_map", len(cells["block"]), width, 2)) if cells["block"] else []
    # Sketches of neurons, by space and matrix; a gate is not in all models.
    stored = sections["stored"]
    neurons: dict[str, list[dict[str, np.ndarray]]] = {"token": [{} for _ in stored]}
    for space in ("token", "coordinates") if has_vocabulary else ("coordinates",):
        matrices = ["down", *(["gate"] if paths(f"neurons/{space}/gate") else []), "up"]
        rows = {matrix: cut(f"neurons/{space}/{matrix}", stored, dim) for matrix in matrices}
        neurons[space] = [{matrix: parts[i] for matrix, parts in rows.items()} for i in range(len(stored))]
    # Tokens in the token space, a bit each.
    is_token_used_V = None
    if vocab_size is not None:
        packed = take("tokens", math.ceil(vocab_size / 8))
        is_token_used_V = np.unpackbits(packed, count=vocab_size, bitorder="little").astype(bool)
    # Routers and heads are cut by the counts in the header.
    expert_counts, head_counts = routers["num_experts"], heads["num_heads"]
    if any(count % num_groups for count, num_groups in zip(head_counts, heads["num_groups"], strict=True)):
        raise ValueError(f"the heads of a block of {name} do not come in groups of one size")
    router_tokens = cut("routers/token", expert_counts, dim) if has_vocabulary else [None] * len(expert_counts)
    router_rows = cut("routers/coordinates", expert_counts, dim)
    query_key, value_output = (cut(f"heads/{part}", head_counts, dim * dim) for part in ("query_key", "value_output"))
    vectors = zip(facts["vectors"]["path"], cut("vectors", facts["vectors"]["size"]), strict=True)
    # Put the sections together, one row for each MLP, head block and router.
    neuron_columns = (sections["block"], sections["expert"], sections["is_shared"], sections["total"])
    return Component(
        name=name,
        shape=Shape(**facts["shape"]),
        width=width,
        num_blocks=facts["num_blocks"],
        vocab_size=vocab_size,
        token_labels=facts["token_labels"],
        is_token_used_V=is_token_used_V,
        coordinates=coordinates,
        heat_map=dict(zip(zip(cells["block"], cells["matrix"], strict=True), cells_MD2, strict=True)),
        neurons=_rows(Neurons, *neuron_columns, neurons["token"], neurons["coordinates"]),
        heads=_rows(HeadSketches, heads["block"], heads["num_groups"], query_key, value_output),
        routers=_rows(Router, routers["block"], router_tokens, router_rows),
        vectors=dict(vectors),
    )


def _rows(kind: Callable[..., _Row], *columns: Iterable[object]) -> tuple[_Row, ...]:
    """Build a row of each section from its columns.

    Raises:
        ValueError: columns of different lengths.
    """
    return tuple(kind(*fields) for fields in zip(*columns, strict=True))


def _take(arrays: dict[str, np.ndarray], path: str, shape: tuple[int, ...]) -> np.ndarray:
    """Take an array out of those that are left, if it has the shape that the header says.

    Raises:
        KeyError, ValueError: it is missing, or of another shape.
    """
    array = arrays.pop(path)
    if array.shape != shape:
        raise ValueError(f"{path} has shape {list(array.shape)} where the header says {list(shape)}")
    return array
