"""Damage to files: cut, flipped and inserted bytes; in JSON extreme values, and names that are missing or double."""

import json
import random
import struct
from typing import Any

# As text, so that what no JSON value can say is among them.
EXTREMES = (
    "0", "-1", "1", "0.5", "-0.0", "2147483648", "4294967296", "9223372036854775808", "1e308", "1e999", "-1e-320",
    "NaN", "Infinity", "-Infinity", "null", "true", "false", '""', '"x"', '"\\ud800"', '"\\u0000"', "[]", "{}",
    "[null]", '{"": 1}', "1" + "0" * 30, "9" * 5000, "[" * 150 + "]" * 150, "[" * 60000, '"' + "x" * 5000 + '"',
    "[[1], [2]]",
)  # fmt: skip
_WORDS = tuple(
    struct.pack(form, value)
    for form, value in (
        ("<i", -1), ("<i", 2**31 - 1), ("<i", -(2**31)), ("<q", 2**63 - 1), ("<q", -1), ("<Q", 2**40), ("<i", 0),
        ("<f", float("nan")), ("<f", float("inf")), ("<d", 1e308), ("<I", 10**9), ("<i", 65536),
    )
)  # fmt: skip
_MARK = "\x01mark\x01"


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return a corrupted copy, by one to three strokes."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        strokes = [_flipped, *[_spliced] * 6]
        if data[:1] in (b"{", b"["):
            strokes += [_json_value] * 12
        elif b"{" in data[:512]:
            strokes += [_header] * 4
        data = rng.choice(strokes)(data, rng)
    return data


def _place(data: bytes, rng: random.Random) -> int:
    # Headers come first, and tell most.
    return rng.randrange(min(len(data), rng.choice((16, 256, 4096, 1 << 30)))) if data else 0


def _flipped(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 4, 32))):
        if changed:
            changed[_place(data, rng)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _spliced(data: bytes, rng: random.Random) -> bytes:
    """Replace one stretch of bytes by another."""
    at, size, word = _place(data, rng), rng.choice((1, 4, 8, 64, 100, 1000, 4096)), rng.choice(_WORDS)
    stretch = data[at : at + size]
    start, num_removed, inserted = rng.choice(
        (
            (at, len(data), b""),  # cut off
            (at & ~3, len(word), word),  # a number overwritten by an extreme one
            (at, 0, rng.randbytes(size)),  # noise inserted
            (at, size, b""),  # left out
            (at, 0, stretch),  # repeated
            (at, size, bytes(len(stretch))),  # zeroed
        )
    )
    return data[:start] + inserted + data[start + num_removed :]


def _json_value(data: bytes, rng: random.Random) -> bytes:
    """One value of a JSON text replaced by an extreme one, or one name left out, or given twice, or changed."""
    first, newline, rest = data.partition(b"\n")
    for text, after in ((data, b""), (first, newline + rest)):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        return _with_stroke(value, rng).encode(errors="surrogatepass") + after
    return data[:-1]


def _with_stroke(value: Any, rng: random.Random) -> str:
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, below in list(inner)[:200]:
            places.append((node, key))
            walk(below)

    walk(value)
    if not places:
        return rng.choice(EXTREMES)
    node, key = rng.choice(places)
    stroke = rng.randrange(10)
    if stroke == 0:
        del node[key]
    elif stroke == 1 and isinstance(node, dict):
        node["unknown field"] = node.pop(key)
    elif stroke == 2 and isinstance(node, dict):
        return json.dumps(value).replace(json.dumps(key) + ":", f"{json.dumps(key)}: 1, {json.dumps(key)}:", 1)
    else:
        node[key] = _MARK
        return json.dumps(value).replace(json.dumps(_MARK), rng.choice(EXTREMES))
    return json.dumps(value)


def _header(data: bytes, rng: random.Random) -> bytes:
    """The JSON header of a safetensors file, its length put right."""
    size = int.from_bytes(data[:8], "little")
    if not 2 <= size <= len(data) - 8:
        return _flipped(data, rng)
    try:
        header = _with_stroke(json.loads(data[8 : 8 + size]), rng).encode(errors="surrogatepass")
    except (ValueError, RecursionError):
        return _flipped(data, rng)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]
