"""``bornbiased completion``."""

from __future__ import annotations

import sys

import click
import click.shell_completion

from bornbiased_jax.cli import options

SHELLS = {
    "bash": 'eval "$(bornbiased completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(bornbiased completion zsh)" in ~/.zshrc',
    "fish": "bornbiased completion fish | source in ~/.config/fish/config.fish",
}
"""Shells that can be taught, and the line that does it."""
VARIABLE = "_BORNBIASED_COMPLETE"
"""What click asks the environment for when a shell wants completions."""


@click.command("completion")
@click.argument("shell", type=click.Choice(list(SHELLS)))
@options.result_options
def completion(shell: str, json_file: str | None) -> None:
    """Print a script that lets a shell complete commands and options.

    \b
    Example:
      eval "$(bornbiased completion bash)"
      bornbiased completion fish > ~/.config/fish/completions/bornbiased.fish
    """
    from bornbiased_jax.cli.main import cli

    options.prepare_json(json_file)
    found = click.shell_completion.get_completion_class(shell)
    assert found is not None, f"click does not know {shell}"
    script = found(cli, {}, "bornbiased", VARIABLE).source()
    value = {"shell": shell, "variable": VARIABLE, "script": script, "line": SHELLS[shell]}
    options.write_result(json_file, value)
    if json_file != "-":
        click.echo(script)
    # Where a shell reads the script there is nobody to tell.
    if sys.stdout.isatty() or json_file is not None:
        options.tell(value, to_stderr=True)
    else:
        options.more(to_stderr=True)
