"""The runs that the anatomy of a birth looks at: trained here, or a folder that ``--data`` names."""

from __future__ import annotations

import dataclasses
from typing import Any

from bornbiased_jax.errors import InputError
from experiments.base import Context
from experiments.survival import persistence, persistence_settings
from experiments.survival.run_folder import RunFolder, open_run

SEEDS = [42, 123, 1000]


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


def settings() -> dict[str, dict[str, Any]]:
    """Map scale and name to settings of a run, as :mod:`.persistence` takes them; the bytes are those of Table 4b."""
    of_bytes = persistence_settings.settings("llama")
    smoke = {**of_bytes["smoke"], "seeds": SEEDS[:2]}
    smoke["schedule"] = {**smoke["schedule"], "steps": 64, "learning_rate": 3e-3, "min_learning_rate": 3e-4}
    laptop = of_bytes["laptop"]
    pieces = {**laptop, "changes": {}, "seeds": SEEDS}
    pieces["schedule"] = dict(
        tokenizer="bpe:4096", steps=600, batch_size=8, context=64, learning_rate=1e-3, min_learning_rate=1e-4,
        warmup=60, eval_sequences=200,
    )  # fmt: skip
    return {
        "smoke": {"bytes": smoke},
        "laptop": {"bytes": laptop, "BPE": pieces},
        "paper": {"paper's sizes": of_bytes["paper"]},
    }
