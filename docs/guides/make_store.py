"""Make a store of fingerprints for ``bornbiased scan``: a folder of small files with an index.

Each model is a file or a directory, with a name and a license as its publisher states them; no weight is stored::

    python docs/guides/make_store.py store SmolLM2-135M-Instruct=SmolLM2-135M-Instruct.Q4_1.gguf,Apache-2.0
    bornbiased scan suspect store

The index gives file, name, license, SHA-256 of the source (of a single file) and the payload's digest, which ``scan``
holds against the file. Models that the index already lists stay, so that a store grows. The store that ships with
``bornbiased_jax`` (``bornbiased scan suspect builtin``) was made by this script.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from bornbiased_jax import io
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import fingerprint, payload_digest, save_fingerprint
from bornbiased_jax.lineage.scan import INDEX

MAX_BYTES = 1_000_000


def add_model(store: Path, name: str, path: Path, license_name: str, max_bytes: int) -> None:
    """Fingerprint a model into a store, and list it in the index."""
    stored = fingerprint(path, max_bytes=max_bytes)
    # The name in place of where the file lay on this machine.
    stored = dataclasses.replace(stored, source=dataclasses.replace(stored.source, description=name))
    file = f"{name}.fingerprint"
    save_fingerprint(store / file, stored)
    row = {
        "file": file,
        "name": name,
        "license": license_name,
        "source": path.name,
        "source_sha256": io.sha256(path) if path.is_file() else None,
        "payload_digest": payload_digest(stored),
    }
    index = store / INDEX
    rows = io.read_json(index)["fingerprints"] if index.exists() else []
    rows = [*(other for other in rows if other["name"] != name), row]
    io.write_json(index, {"fingerprints": rows})


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("models", nargs="+", metavar="NAME=PATH,LICENSE")
    parser.add_argument("--max-bytes", type=int, default=MAX_BYTES, help="of each fingerprint")
    arguments = parser.parse_args()
    for text in arguments.models:
        name, _, place = text.partition("=")
        path, _, license_name = place.rpartition(",")
        if not (name and path and license_name):
            parser.error(f"{text} is no model: write NAME=PATH,LICENSE")
        try:
            add_model(arguments.store, name, Path(path), license_name, arguments.max_bytes)
        except InputError as error:
            parser.error(str(error))


if __name__ == "__main__":
    main()
