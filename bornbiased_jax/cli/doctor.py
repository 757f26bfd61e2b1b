"""``bornbiased doctor``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from bornbiased_jax.cli import options


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

    options.prepare_json(json_file)
    found = diagnose()
    options.write_result(json_file, found)
    _print(found, to_stderr=json_file == "-")
    options.tell(found, to_stderr=json_file == "-")


def _print(found: Mapping[str, Any], *, to_stderr: bool) -> None:
    versions = {"bornbiased": found["version"], "Python": found["python"], **found["libraries"]}
    rows = [[name, version or "missing"] for name, version in versions.items()]
    options.print_table("Versions", ["what", "version"], rows, to_stderr=to_stderr, words=True)
    cache = found["cache"]
    rows = [["device", f"{row['kind']} ({row['platform']}, {_size(row['memory_bytes'])})"] for row in found["devices"]]
    rows += [["cores", found["cores"]], ["memory to be had", _size(found["memory_bytes"])]]
    rows += [["cache", f"{cache['folder']}: {_size(cache['bytes'])} in {cache['files']:,} files"]]
    options.print_table("This machine", ["what", "found"], rows, to_stderr=to_stderr, words=True)
    rows = [
        [name, extra["for"], "complete" if extra["installed"] else f"missing: {', '.join(extra['missing'])}"]
        for name, extra in found["extras"].items()
    ]
    options.print_table("Extras", ["extra", "needed for", "here"], rows, to_stderr=to_stderr, words=True)
    for problem in found["problems"]:
        click.echo(problem, err=to_stderr)


def _size(size: int | None) -> str:
    if size is None:
        return "memory not told"
    return f"{size / 2**30:,.1f} GiB" if size >= 2**29 else f"{size / 2**20:,.1f} MiB"
