"""``bornbiased scan`` and ``whichseed``."""

from __future__ import annotations

from typing import Any

import click

from bornbiased_jax import progress, results
from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.cli import engines, options, outputs
from bornbiased_jax.cli.sections import CHECKPOINT, Command
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.seed_search import RANGE, SearchOptions
from bornbiased_jax.lineage.torch_seeds import num_searched, which_torch_seed
from bornbiased_jax.lineage.whichseed import which_seed
from bornbiased_jax.results.lineage_reports import WhichSeed
from bornbiased_jax.schema import Count, Entries, Level, shown


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
@click.option("--num-permutations", type=options.Ranged(Count), help="Relabelings drawn where bounds do not decide.")
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
    ships with the package. A quick screen rules out most bases; the others are tested as by `bornbiased seedprint`,
    except that neurons in another order are not matched, and one correction covers all bases. With --mixture,
    coefficients say how far the suspect has moved from B0 toward each base, block by block; they never say which model
    descends from which.

    \b
    Example:
      bornbiased scan suspect store --json matches.json
      bornbiased scan suspect builtin
      bornbiased scan suspect.fingerprint base-a base-b.fingerprint \\
        --page scan.html
      bornbiased scan merged tuned-a tuned-b --mixture --base pretrained
    """
    places = outputs.OutputFiles.take(arguments)
    options.start(quiet=quiet)
    if mixture != (mixture_base is not None):
        raise InputError("--mixture takes differences from the model of --base: give both options, or neither")
    result = results.scan(suspect, *bases, alpha=alpha, num_permutations=num_permutations, mixture_base=mixture_base)
    places.show(result, suspect)


def _seed_range(text: str) -> range:
    first, colon, last = text.partition(":")
    try:
        seeds = range(int(first), int(last)) if colon else range(int(first), int(first) + 1)
        # Beyond 2⁶³ a range has no length.
        len(seeds)
    except (ValueError, OverflowError) as error:
        raise InputError(f"--seeds {shown(text)} is not a range such as 0:1000000") from error
    return seeds


@click.command("whichseed", cls=Command)
@click.argument("suspect", metavar="C", help=CHECKPOINT)
@options.model_options
@click.option(
    "--seeds", required=True, metavar="A:B", help="Seeds to search, from A up to B − 1; B is at most 4294967296."
)
@click.option("--alpha", type=options.Ranged(Level), default=1e-4, help="Level over all 2^32 seeds.")
@click.option(
    "--entries", type=options.Ranged(Entries), default=256, help="How many weights to draw for each seed in the search."
)
@click.option(
    "--framework",
    type=click.Choice(["bornbiased", "torch"]),
    default="bornbiased",
    help="Whose seeds they are: torch draws models as transformers does, popular seeds first (extra [torch]).",
)
@engines.store_options("Seeds in one chunk of the store; a million unless given.")
@options.quiet_option
@outputs.result_options
def whichseed(
    suspect: str,
    model: str | None,
    settings: tuple[str, ...],
    seeds: str,
    alpha: float,
    entries: int,
    quiet: bool,
    json_file: str | None,
    **arguments: Any,
) -> None:
    """Find the seed of a model's initial weights: candidates are drawn again and compared with its weights.

    Candidates have the suspect's own architecture unless --model says otherwise. Seeds are those of this package, or
    with --framework torch those of models that transformers initialized on a CPU in float32.

    \b
    Example:
      bornbiased whichseed runs/a@seed=42,step=200 --model llama-tiny \\
        --seeds 0:100000
      bornbiased whichseed model --seeds 0:4294967296 --resume search \\
        --engine slurm --workers 64
      bornbiased whichseed model --framework torch --seeds 0:1000
    """
    framework = arguments.pop("framework")
    if framework == "torch" and any(map(options.is_given, ("resume", "range_size", "engine", "entries"))):
        raise InputError(
            "--framework torch draws whole models in this process: leave --resume, --range, --engine and --entries out"
        )
    store_settings = engines.store_settings(arguments)
    options.start(quiet=quiet)
    candidates = _seed_range(seeds)
    # The suspect, and the architecture whose initial weights are drawn.
    reader = open_checkpoint(suspect)
    if model is None and settings:
        raise InputError("--set changes the model of --model: name that too")
    cfg = reader.cfg if model is None else options.model_config(model, settings)
    if framework == "torch":
        with progress.bar(num_searched(candidates), "whichseed", unit="seeds") as advance:
            search = which_torch_seed(cfg, reader, candidates, alpha=alpha, advance=advance)
    else:
        with progress.bar(len(candidates), "whichseed", unit="seeds") as advance:
            sizes = SearchOptions(entries, store_settings.pop("range_size") or RANGE)
            search = which_seed(cfg, reader, candidates, sizes, alpha=alpha, advance=advance, **store_settings)
    outputs.OutputFiles(json_file).show(WhichSeed(reader.description, cfg.to_dict(), search))
