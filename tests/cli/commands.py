"""The commands that there are, and functions by name."""

import importlib
from typing import Any

import click

from bornbiased_jax.cli.main import cli


def commands(group: click.Group = cli, prefix: str = "") -> dict[str, click.Command]:
    """Every command by its words."""
    found: dict[str, click.Command] = {}
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        path = f"{prefix} {name}".strip()
        found |= commands(command, path) if isinstance(command, click.Group) else {path: command}
    return found


def locate(target: str) -> tuple[Any, str]:
    """The module and name of ``module:name``."""
    module, _, name = target.partition(":")
    return importlib.import_module(module), name
