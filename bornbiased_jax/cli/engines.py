"""Options of commands whose work is cut into chunks: where these are kept, and who computes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from bornbiased_jax.chunk_store import Store
from bornbiased_jax.cli import options
from bornbiased_jax.errors import InputError
from bornbiased_jax.executors import DEFAULT, ENGINES, Engine, engine_named
from bornbiased_jax.schema import Count, Processes, shown
from bornbiased_jax.store import ONE_COMPUTATION

F = TypeVar("F", bound=Callable[..., Any])

# --engine and the options of each engine.
engine_options = options.together(
    click.option(
        "--engine",
        type=click.Choice(ENGINES),
        default=DEFAULT,
        help="Where missing chunks are computed: in this process, in others on this machine, in a Slurm array, or by "
        "Ray.",
    ),
    click.option("--workers", type=options.Ranged(Processes), metavar="N", help="Processes or tasks; 2 unless given."),
    click.option(
        "--submit",
        multiple=True,
        metavar="NAME=VALUE",
        help="For slurm, as submitit names it: timeout_min=60, gpus_per_node=1, slurm_partition=long.",
    ),
    click.option("--ray-address", metavar="HOST:PORT", help="A running Ray cluster; else one is started here."),
)


def store_options(range_help: str) -> Callable[[F], F]:
    """Add --resume, --range and ``engine_options``, all of which :func:`store_settings` takes out."""
    return options.together(
        engine_options,
        click.option(
            "--resume",
            metavar="DIR",
            help="A store: keep finished chunks here; a killed call resumes, and several calls share the work.",
        ),
        click.option("--range", "range_size", type=options.Ranged(Count), metavar="N", help=range_help),
    )


def engine(arguments: dict[str, Any]) -> Engine:
    """Take the engine out of a command's arguments.

    Raises:
        InputError: an option of another engine, a parameter without a value, or an extra that is missing.
    """
    name, workers, submit, address = (arguments.pop(key) for key in ("engine", "workers", "submit", "ray_address"))
    parameters: dict[str, Any] = {}
    for entry in submit:
        key, equals, value = entry.partition("=")
        if not (key and equals and value):
            raise InputError(f"--submit {shown(entry)} is not of the form NAME=VALUE")
        parameters[key] = int(value) if value.isdecimal() and len(value) < 20 else value
    return engine_named(name, workers=workers, submit=parameters, address=address)


def store_settings(arguments: dict[str, Any]) -> dict[str, Any]:
    """Take the store settings out of a command's arguments: ``resume``, ``engine``, ``range_size``.

    Raises:
        InputError: the folder holds other things, there is none for what needs one, the call is one of several
            processes of one computation, or as :func:`engine`.
    """
    resume, range_size = arguments.pop("resume"), arguments.pop("range_size")
    # Before the processes join: one that ended afterwards would take the others with it before they say why.
    if resume and (arguments.get("num_processes") or 1) > 1:
        raise InputError(ONE_COMPUTATION)
    if resume:
        Store(resume).check()
    elif options.is_given("engine") or range_size is not None:
        raise InputError("other processes and chunks of a range need a store to keep them in: give --resume DIR")
    return {"resume": Path(resume) if resume else None, "engine": engine(arguments), "range_size": range_size}
