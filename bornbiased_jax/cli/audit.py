"""``bornbiased audit``."""

from __future__ import annotations

import re
from typing import Any

import click

from bornbiased_jax import hub, io, progress
from bornbiased_jax.cli import options, outputs
from bornbiased_jax.cli.sections import Command
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.audit.audit import audit_folder
from bornbiased_jax.lineage.audit.labels import pattern_of, regular_expression
from bornbiased_jax.lineage.audit.listing import audit_listing
from bornbiased_jax.lineage.audit.suite import audit_suite
from bornbiased_jax.results.lineage_reports import Audit


@click.command("audit", cls=Command)
@click.argument(
    "place",
    metavar="DIR|LISTING.json|hf:OWNER/NAME*@REVISION*",
    help="A folder of checkpoints, a listing (.json), or a suite on the hub.",
)
@click.option(
    "--page", type=options.FILE, metavar="FILE", help="Draw the lineage graph and the findings as one HTML page here."
)
@click.option(
    "--report", type=options.FILE, metavar="FILE", help="Write the Markdown report here too; it is always printed."
)
@click.option("--strict", is_flag=True, help="Exit with code 3 when anything is found that is not mere information.")
@click.option(
    "--pattern",
    metavar="REGEX",
    help="What names claim: groups step and run, as in '(?P<run>seed\\d+)-step(?P<step>\\d+)'.  "
    "[default: step1000, seed1-step512, checkpoint-1000 …]",
)
@click.option("--weights", is_flag=True, help="Of a suite on the hub: fetch the weights too, and audit them.")
@click.option("--all-pairs", is_flag=True, help="Test every pair of checkpoints; with 24 or fewer that is the default.")
@click.option("--frozen", metavar="REGEX", help="Tensors declared frozen or shared: no evidence of a copy.")
@options.quiet_option
@outputs.result_options
def audit(
    place: str, json_file: str | None, page: str | None, report: str | None, pattern: str | None, **choices: Any
) -> int:
    """Check whether a folder of checkpoints is what its labels say.

    It finds duplicates (files, tensors; up to signed zeros or number format), steps missing from the grid, breaks in a
    trajectory, checkpoints that descend from another run's initialization, initializations shared by several runs, and
    initializations that contradict their configuration. Weights are read tensor by tensor; pickles are read as data
    and never unpickled. A listing {"revisions": {NAME: [entries of the hub's tree interface]}} is enough to find
    duplicates and gaps without any weights, and so are the listings of a suite on the hub; with --weights its
    safetensors are fetched and audited like those of a folder.

    \b
    Example:
      bornbiased audit runs --page audit.html
      bornbiased audit listing.json --strict --json audit.json
      bornbiased audit 'hf:EleutherAI/pythia-160m-seed*@step*' --json suite.json
    """
    for target in (page, report):
        if target is not None:
            io.check_writable(target)
    progress.set_quiet(choices["quiet"])
    # A suite on the hub, a listing of checkpoints, or a folder.
    names = None if pattern is None else pattern_of(pattern)
    weights, all_pairs, frozen = (choices[name] for name in ("weights", "all_pairs", "frozen"))
    if weights and not hub.is_named(place):
        raise InputError(f"--weights is for suites on the hub, and those of {place} are read anyway: leave it out")
    is_listing = not hub.is_named(place) and place.endswith(".json") and io.user_path(place).is_file()
    # Digests are compared in all pairs anyway.
    if frozen and (is_listing or (hub.is_named(place) and not weights)):
        raise InputError(f"--frozen is for weights, and of {place} only digests are read: leave it out")
    if hub.is_named(place):
        result = audit_suite(place, names, weights=weights, all_pairs=all_pairs, frozen=_regex(frozen))
    elif is_listing:
        result = audit_listing(place, names)
    else:
        result = audit_folder(place, names, all_pairs=all_pairs, frozen=_regex(frozen))
    # JSON, the page, and the report for people.
    findings = Audit(result)
    text = findings.markdown()
    outputs.OutputFiles(json_file, page=page).write(findings, result["source"])
    if report is not None:
        io.write_text(report, text)
    click.echo(text, err=json_file == "-")
    click.echo(" ".join(findings.summary()), err=json_file == "-")
    return 3 if choices["strict"] and not result["clean"] else 0


def _regex(text: str | None) -> re.Pattern[str] | None:
    return None if text is None else regular_expression(text, "--frozen")
