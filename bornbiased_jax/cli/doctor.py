"""``bornbiased doctor``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from bornbiased_jax.cli import options

if TYPE_CHECKING:
    from bornbiased_jax.results import Listing


@click.command("doctor")
@options.result_options
def doctor(json_file: str | None) -> None:
    """Say what this installation has: versions, devices, memory, the cache, and what each extra lacks.

    \b
    Example:
      bornbiased doctor
      bornbiased doctor --json -
    """
    from bornbiased_jax.doctor import diagnose
    from bornbiased_jax.results import sentences

    options.prepare_json(json_file)
    found = diagnose()
    options.print_result(found, _tables(found), sentences.doctor(found), json_file)


def _tables(found: Mapping[str, Any]) -> list[Listing]:
    from bornbiased_jax.results import Listing

    libraries = {name: version or "missing" for name, version in found["libraries"].items()}
    versions = {"bornbiased": found["version"], "Python": found["python"], **libraries}
    cache = found["cache"]
    machine = [
        ["device", f"{row['kind']} ({row['platform']}, {_size(row['memory_bytes'])})"] for row in found["devices"]
    ]
    machine += [["cores", found["cores"]], ["memory to be had", _size(found["memory_bytes"])]]
    machine += [["cache", f"{cache['folder']}: {_size(cache['bytes'])} in {cache['files']:,} files"]]
    extras = [
        [name, extra["for"], "complete" if extra["installed"] else f"missing: {', '.join(extra['missing'])}"]
        for name, extra in found["extras"].items()
    ]
    return [
        Listing("Versions", ["what", "version"], list(map(list, versions.items())), is_text=True),
        Listing("This machine", ["what", "found"], machine, is_text=True),
        Listing("Extras", ["extra", "needed for", "here"], extras, "\n".join(found["problems"]), is_text=True),
    ]


def _size(size: int | None) -> str:
    if size is None:
        return "memory not told"
    return f"{size / 2**30:,.1f} GiB" if size >= 2**29 else f"{size / 2**20:,.1f} MiB"
