"""JSON files of the project's own that show whether they were changed: the digest of all else stands in them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bornbiased_jax import files, schema
from bornbiased_jax.errors import InputError

DIGEST = "digest"
"""The field that holds it."""


def digest(content: Mapping[str, Any]) -> str:
    """Compute the SHA-256 of what an object holds besides its digest, hexadecimal.

    Example:
        >>> digest({"a": 1}) == digest({"a": 1, "digest": "anything"})
        True
    """
    rest = {name: value for name, value in content.items() if name != DIGEST}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def write(path: Path | str, content: Mapping[str, Any]) -> None:
    """Write an object with its digest, whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    files.write_json(path, {**content, DIGEST: digest(content)})


def read(kind: Any, path: Path | str, remedy: str) -> Any:
    """Read an object that :func:`write` wrote, check its type and its digest, and return it without the digest.

    What older versions wrote has none, and is checked by its type alone.

    Args:
        kind: the type, as :func:`.schema.check` takes it; the digest is not part of it.
        path: of the file.
        remedy: what the error advises.

    Raises:
        InputError: the file is missing, no JSON, does not fit, or was changed since it was written.
    """
    content = files.read_json(path)
    noted = content.pop(DIGEST, None) if isinstance(content, dict) else None
    schema.check(kind, content, str(path), remedy)
    if noted not in (None, digest(content)):
        raise InputError(f"{path} was changed since it was written: {remedy}")
    return content
