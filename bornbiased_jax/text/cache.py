"""The user's cache: things that can be made again, kept so that they need not be.

A corrupted, missing or unwritable cache is never an error: the thing is made again.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from pathlib import Path

import platformdirs

from bornbiased_jax import io
from bornbiased_jax.errors import InputError

CACHE_VARIABLE = "BORNBIASED_CACHE"


def cache_dir() -> Path:
    """Return the folder of cached files: ``$BORNBIASED_CACHE``, or the platform's folder for caches.

    That is ``$XDG_CACHE_HOME`` or ``~/.cache`` on Linux, ``~/Library/Caches`` on macOS and
    ``%LOCALAPPDATA%`` on Windows, each with ``bornbiased-jax`` below it.
    """
    override = os.environ.get(CACHE_VARIABLE)
    if override:
        return Path(override)
    return platformdirs.user_cache_path("bornbiased-jax", appauthor=False, opinion=False)


def load(name: str) -> bytes | None:
    """Return the bytes stored under a name, or None when there are none or they are corrupted.

    A stored file is the SHA-256 of the content, then the content compressed with zlib.
    """
    try:
        raw = (cache_dir() / name).read_bytes()
        data = zlib.decompress(raw[32:])
    except (OSError, zlib.error):
        return None
    return data if hashlib.sha256(data).digest() == raw[:32] else None


def store(name: str, data: bytes) -> None:
    """Keep bytes under a name, written atomically; a cache that cannot be written is left alone."""
    try:
        io.write_bytes(cache_dir() / name, hashlib.sha256(data).digest() + zlib.compress(data, 1))
    except InputError:
        return
