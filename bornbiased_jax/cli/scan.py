"""``bornbiased scan``."""

from __future__ import annotations

from typing import Any

import click

from bornbiased_jax.cli import options, outputs
from bornbiased_jax.cli.sections import CHECKPOINT, Command
from bornbiased_jax.errors import InputError
from bornbiased_jax.ranges import Count, Level


@click.command("scan", cls=Command)
@click.argument("suspect", metavar="C", help=CHECKPOINT)
@click.argument(
    "bases",
    metavar="STORE|BASE…",
    nargs=-1,
    required=True,
    help="Checkpoints, stored fingerprints, folders of them, or builtin.",
)
@click.option("--alpha", type=options.Ranged(Level), help="Level of all decisions together.  [default: 1e-4]")
@click.option("--num-permutations", type=options.Ranged(Count), help="Relabelings drawn for each base that is tested.")
@click.option(
    "--mixture", is_flag=True, help="Also fit the suspect as a mixture of the bases, which must be checkpoints."
)
@click.option(
    "--base", "mixture_base", metavar="B0", help="For --mixture: the checkpoint from which differences are taken."
)
@options.quiet_option
@outputs.output_options
def scan(
    suspect: str,
    bases: tuple[str, ...],
    alpha: float | None,
    num_permutations: int | None,
    mixture: bool,
    mixture_base: str | None,
    quiet: bool,
    **arguments: Any,
) -> None:
    """Find which of many models one model shares an initialization with.

    Bases are checkpoints, stored fingerprints, or folders of fingerprints; `builtin` is the store of public models that
    ships with the package. A quick screen rules out most bases; the others are tested as by `bornbiased seedprint`, and
    one correction covers all bases. With --mixture, coefficients say how far the suspect has moved from B0 toward each
    base, block by block; they never say which model descends from which.

    \b
    Example:
      bornbiased scan suspect store --json matches.json
      bornbiased scan suspect builtin
      bornbiased scan suspect.fingerprint base-a base-b.fingerprint \\
        --page scan.html
      bornbiased scan merged tuned-a tuned-b --mixture --base pretrained
    """
    from bornbiased_jax import results

    places = outputs.Outputs.take(arguments)
    options.start(quiet=quiet)
    if mixture != (mixture_base is not None):
        raise InputError("--mixture takes differences from the model of --base: give both options, or neither")
    result = results.scan(suspect, *bases, alpha=alpha, num_permutations=num_permutations, mixture_base=mixture_base)
    places.show(result, suspect)
