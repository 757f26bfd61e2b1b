"""The commands that there are, and functions by name."""

import functools
import importlib
import pkgutil
import sys
from typing import Any

import click
import pytest

import bornbiased_jax
from bornbiased_jax.cli.main import cli


def commands(group: click.Group = cli, prefix: str = "") -> dict[str, click.Command]:
    """Every command by its words."""
    by_path: dict[str, click.Command] = {}
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        path = f"{prefix} {name}".strip()
        by_path |= commands(command, path) if isinstance(command, click.Group) else {path: command}
    return by_path


@functools.cache
def import_everything() -> None:
    """Every module of the library: one that is first imported while a name is replaced would keep the replacement."""
    for module in pkgutil.walk_packages(bornbiased_jax.__path__, "bornbiased_jax."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def locate(target: str) -> tuple[Any, str]:
    """The module and name of ``module:name``, once everything is imported."""
    import_everything()
    module, _, name = target.partition(":")
    return importlib.import_module(module), name


def replace(monkeypatch: pytest.MonkeyPatch, target: str, stub: Any) -> None:
    """Replace ``module:name`` there, and in the modules of commands that import it by name."""
    module, name = locate(target)
    original = getattr(module, name)
    monkeypatch.setattr(module, name, stub)
    for path, command_module in list(sys.modules.items()):
        if path.startswith("bornbiased_jax.cli."):
            for alias in [alias for alias, value in vars(command_module).items() if value is original]:
                monkeypatch.setattr(command_module, alias, stub)
