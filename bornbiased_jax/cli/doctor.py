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
    diagnosis = diagnose()
    options.print_result(diagnosis, _tables(diagnosis), sentences.doctor(diagnosis), json_file)


def _tables(diagnosis: Mapping[str, Any]) -> list[Listing]:
    from bornbiased_jax.results import Listing

    libraries = {name: version or "missing" for name, version in diagnosis["libraries"].items()}
    versions = {"bornbiased": diagnosis["version"], "Python": diagnosis["python"], **libraries}
    cache = diagnosis["cache"]
    machine = [
        ["device", f"{row['kind']} ({row['platform']}, {_size(row['memory_bytes'])})"] for row in diagnosis["devices"]
    ]
    machine += [["cores", diagnosis["cores"]], ["memory to be had", _size(diagnosis["memory_bytes"])]]
    machine += [["cache", f"{cache['folder']}: {_size(cache['bytes'])} in {cache['files']:,} files"]]
    extras = [
        [name, extra["for"], "complete" if extra["installed"] else f"missing: {', '.join(extra['missing'])}"]
        for name, extra in diagnosis["extras"].items()
    ]
    return [
        Listing("Versions", ["what", "version"], list(map(list, versions.items())), is_text=True),
        Listing("This machine", ["what", "found"], machine, is_text=True),
        Listing("Extras", ["extra", "needed for", "here"], extras, "\n".join(diagnosis["problems"]), is_text=True),
    ]


def _size(size: int | None) -> str:
    if size is None:
        return "memory not told"
    return f"{size / 2**30:,.1f} GiB" if size >= 2**29 else f"{size / 2**20:,.1f} MiB"
