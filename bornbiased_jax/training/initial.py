"""Weights that a run begins with instead of untrained ones."""

from __future__ import annotations

from collections.abc import Sequence

from bornbiased_jax import io
from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.checkpoints.run import RUN_FILE, read_run
from bornbiased_jax.errors import InputError
from bornbiased_jax.text import Tokenizer
from bornbiased_jax.training.setup import Initial


def open_initial(reference: str, seeds: Sequence[int]) -> tuple[list[Initial], Tokenizer | None]:
    """Open the models that the seeds of a run begin with (``--init-from``).

    Args:
        reference: a checkpoint for one seed; or a run that has all the seeds, each of which goes on from its own.
        seeds: of the run that is to begin.

    Returns:
        (architecture, weights) for every seed, and their tokenizer.

    Raises:
        InputError: nothing there, or one model for several seeds, which would stay copies of one another.
    """
    opened = [open_checkpoint(seed_reference) for seed_reference in initial_references(reference, seeds)]
    return [(checkpoint.cfg, checkpoint.params) for checkpoint in opened], opened[0].tokenizer


def initial_references(reference: str, seeds: Sequence[int]) -> list[str]:
    """Name the checkpoint that each seed of a run begins with.

    Args:
        reference: as of :func:`open_initial`.
        seeds: of the run.

    Raises:
        InputError: one model for several seeds.
    """
    path, _, rest = reference.partition("@")
    run = io.user_path(path)
    references = [reference]
    if (run / RUN_FILE).is_file() and "seed=" not in rest and set(seeds) <= set(read_run(run)["config"]["seeds"]):
        references = [f"{path}@seed={seed}" + (f",{rest}" if rest else "") for seed in seeds]
    elif len(seeds) > 1:
        raise InputError(
            f"--init-from {reference} is one model for {len(seeds)} seeds, which would stay copies of each other: give "
            "one seed, or a run that has these seeds"
        )
    return references
