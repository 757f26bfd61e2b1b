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
    from bornbiased_jax import io, progress
    from bornbiased_jax.lineage.battery import ALPHA
    from bornbiased_jax.lineage.scan import find_bases
    from bornbiased_jax.lineage.scan import scan as scan_bases
    from bornbiased_jax.lineage.weight_tests import check_count, check_level
    from bornbiased_jax.report.scan_page import draw_scan
    from bornbiased_jax.results import Scan
    from bornbiased_jax.stats.permutations import NUM_PERMUTATIONS

    options.prepare_json(json_file)
    if page is not None:
        io.check_writable(page)
    options.start(quiet=quiet)
    found_bases = find_bases(bases)
    level = check_level(ALPHA if alpha is None else alpha)
    count = check_count(NUM_PERMUTATIONS if num_permutations is None else num_permutations)
    with progress.bar(len(found_bases), f"scan {suspect}", unit="bases") as advance:
        result = Scan(scan_bases(suspect, found_bases, alpha=level, num_permutations=count, advance=advance))
    if page is not None:
        io.write_text(page, draw_scan(result.to_json(), command=options.command_line("page", "json_file", "quiet")))
    options.print_result(result.to_json(), [result.table()], result.summary(), json_file)
