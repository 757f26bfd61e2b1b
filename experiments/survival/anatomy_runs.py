"""The runs that the anatomy of a birth looks at: trained here, or a folder that ``--data`` names."""

from __future__ import annotations

import dataclasses

from bornbiased_jax.errors import InputError
from experiments.base import Context
from experiments.survival import persistence
from experiments.survival.run_folder import RunFolder, open_run


def trained_here(context: Context) -> dict[str, RunFolder]:
    """Map names to the runs of the settings, on the built-in text or on that of ``--data``."""
    return {
        name: open_run(persistence.base_run(dataclasses.replace(context, settings={**context.settings, **settings})))
        for name, settings in context.settings["runs"].items()
    }


def given(context: Context) -> dict[str, RunFolder]:
    """Open the run that ``--data`` names.

    Raises:
        InputError: it names none.
    """
    if context.data is None:
        raise InputError("no run is named: give the folder of bornbiased pretrain --checkpoint-log-spaced as --data")
    run = open_run(context.data)
    return {run.content.get("provenance", {}).get("data", {}).get("tokenizer") or "run": run}
