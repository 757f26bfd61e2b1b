"""Mutated files of fingerprints: each is refused in one sentence, or reads back equal."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import Fingerprint, fingerprint, load_fingerprint
from bornbiased_jax.lineage.fingerprint_file import encode

VALUES = (None, True, -1, 0, 3, 1e300, 10**12, "", "x", "\x00\n", [], [1], [None], {}, {"a": 1})
NUM_BYTES, NUM_LEAVES, NUM_METADATA = 100, 150, 60


@pytest.fixture(scope="module")
def intact() -> Fingerprint:
    return fingerprint("seed:1@qwen3moe-tiny,num_layers=1,d_model=16,d_ff=8,num_heads=2,vocab_size=32,num_experts=2")


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def joined(header: dict[str, Any], body: bytes) -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def signed(header: dict[str, Any], payload: str, body: bytes) -> bytes:
    """A file whose digest fits what it holds, so that only its meaning can be wrong."""
    hasher = hashlib.sha256(payload.encode())
    arrays = {name: entry for name, entry in header.items() if name != "__metadata__"}
    for name, entry in sorted(arrays.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = entry["data_offsets"]
        hasher.update(f"\0{name} {entry['dtype']} {entry['shape']}\0".encode() + body[first:last])
    metadata = {**header["__metadata__"], "payload": payload, "payload_digest": hasher.hexdigest()}
    return joined({**header, "__metadata__": metadata}, body)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], leaf: Any) -> Any:
    if not path:
        return leaf
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], leaf)
    return copy


def changed_bytes(data: bytes, draws: random.Random) -> Iterator[bytes]:
    for _ in range(NUM_BYTES):
        place = draws.randrange(len(data))
        yield data[:place] + bytes([data[place] ^ 1 << draws.randrange(8)]) + data[place + 1 :]
        yield data[:place]
        yield data[:place] + data[draws.randrange(place, len(data)) :]


def changed_payloads(data: bytes, draws: random.Random) -> Iterator[bytes]:
    header, body = parts(data)
    payload = json.loads(header["__metadata__"]["payload"])
    places = list(paths(payload))
    for _ in range(NUM_LEAVES):
        text = json.dumps(replaced(payload, draws.choice(places), draws.choice(VALUES)))
        yield signed(header, text, body)
    for text in ("", "{}", "[]", "null", "NaN", "[" * 500, '{"settings": NaN}', '{"a": 1, "a": 2}'):
        yield signed(header, text, body)


def changed_headers(data: bytes, draws: random.Random) -> Iterator[bytes]:
    header, body = parts(data)
    payload = header["__metadata__"]["payload"]
    places = list(paths(header))
    for _ in range(NUM_METADATA):
        yield joined(replaced(header, draws.choice(places), draws.choice(VALUES)), body)
    for name in header["__metadata__"]:
        rest = {key: value for key, value in header["__metadata__"].items() if key != name}
        yield joined({**header, "__metadata__": rest}, body)
    for change in ({"version": "2"}, {"version": "01"}, {"format": "pt"}, {"source": "[]"}, {"source": "NaN"}):
        yield joined({**header, "__metadata__": {**header["__metadata__"], **change}}, body)
    # Arrays that are missing, too many, or of another shape or type, under a digest that fits.
    names = [name for name in header if name != "__metadata__"]
    for name in names:
        shape = header[name]["shape"]
        flat = {**header[name], "shape": [int(np.prod(shape)), 1]}
        yield signed({**header, name: flat}, payload, body)
        renamed = {f"{key}x" if key == name else key: value for key, value in header.items()}
        yield signed(renamed, payload, body)


def foreign_files() -> Iterator[bytes]:
    yield from (b"", b"\0" * 8, b"\xff" * 64, b"PK\x03\x04", json.dumps({"format": 1}).encode())
    yield save({"model.weight": np.zeros((2, 2), np.float32)})
    yield save({"a": np.zeros(3, np.int64)}, {"format": "bornbiased-weights-fingerprint", "version": "1"})


@pytest.mark.slow
def test_mutated_files_are_refused_in_one_sentence_or_read_back_equal(intact, tmp_path):
    data, draws = encode(intact), random.Random(0)
    mutated = [
        *changed_bytes(data, draws),
        *changed_payloads(data, draws),
        *changed_headers(data, draws),
        *foreign_files(),
    ]
    path = tmp_path / "a.fingerprint"
    num_read = 0
    for content in mutated:
        path.write_bytes(content)
        try:
            again = load_fingerprint(path)
        except InputError as error:
            message = str(error)
            assert "\n" not in message and message.startswith(str(path)), message
            continue
        # What is read can be written, and holds what the file held.
        num_read += 1
        path.write_bytes(encode(again))
        assert encode(load_fingerprint(path)) == encode(again)
    assert len(mutated) > 500 and num_read < len(mutated) / 4
