"""``bornbiased scan``."""

from __future__ import annotations

import click

from bornbiased_jax.cli import options
from bornbiased_jax.ranges import Count, Level


@click.command("scan")
@click.argument("suspect", metavar="C")
@click.argument("bases", metavar="STORE|BASE…", nargs=-1, required=True)
@click.option("--alpha", type=options.Ranged(Level), help="Level of all decisions together.  [default: 1e-4]")
@click.option("--num-permutations", type=options.Ranged(Count), help="Relabellings drawn for each base that is tested.")
@click.option("--page", metavar="FILE", help="Write the bases that agree most as one HTML page here.")
@click.option("--quiet", is_flag=True, help="No progress display.")
@options.result_options
def scan(
    suspect: str,
    bases: tuple[str, ...],
    alpha: float | None,
    num_permutations: int | None,
    page: str | None,
    quiet: bool,
    json_file: str | None,
) -> None:
    """Find which of many models one model shares an initialization with.

    Bases are checkpoints, stored fingerprints, or folders of fingerprints. Most are done with by a screen; the others
    are tested as `bornbiased seedprint` does it, with one correction over all bases.

    \b
    Example:
      bornbiased scan suspect store --json matches.json
      bornbiased scan suspect.fingerprint base-a base-b.fingerprint --page scan.html
    """
    from bornbiased_jax import io, results
    from bornbiased_jax.report.scan_page import draw_scan

    options.prepare_json(json_file)
    if page is not None:
        io.check_writable(page)
    options.start(quiet=quiet)
    result = results.scan(suspect, *bases, alpha=alpha, num_permutations=num_permutations)
    if page is not None:
        io.write_text(page, draw_scan(result.to_json(), command=options.command_line("page", "json_file", "quiet")))
    options.print_result(result.to_json(), [result.table()], result.summary(), json_file)
