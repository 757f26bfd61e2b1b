"""A folder that ``bornbiased pretrain`` left, read as the life of its seeds: initializations, checkpoints, tokens, ids.

Initializations are drawn again from the seeds and the architecture in ``run.json``; where step 0 was kept it must be
them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import io
from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.checkpoints.digests import digest
from bornbiased_jax.checkpoints.formats.run import RunRecord, find_steps, read_run
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments.base import Context, Entry
from bornbiased_jax.experiments.survival import persistence
from bornbiased_jax.init import init_seed
from bornbiased_jax.parameters import Params
from bornbiased_jax.training import PretrainConfig
from bornbiased_jax.training.data.windows import held_out
from bornbiased_jax.training.optimizer import learning_rate
from bornbiased_jax.training.setup import Data, load_data


def runs_of(context: Context) -> dict[str, RunFolder]:
    """Map names to the runs of the settings, on the built-in text or that of ``--data``; without any, name one run.

    Raises:
        InputError: the settings have no runs, and ``--data`` names none.
    """
    if "runs" in context.settings:
        return {
            name: read_run_folder(
                persistence.base_run(dataclasses.replace(context, settings={**context.settings, **run}))
            )
            for name, run in context.settings["runs"].items()
        }
    if context.data is None:
        raise InputError("no run is named: give the folder of bornbiased pretrain --checkpoint-log-spaced as --data")
    run = read_run_folder(context.data)
    return {run.content.get("provenance", {}).get("data", {}).get("tokenizer") or "run": run}


def about(runs: Entry) -> str:
    """Describe the runs of a record in a sentence each: text, tokens, epochs."""
    sentences = []
    for name, facts in ((name, run["facts"]) for name, run in runs.items()):
        epochs = "" if facts["epochs"] is None else f" ({facts['epochs']:.2f} epochs)"
        sentences.append(
            f"{name}: {facts['data']['name']}, {facts['tokenizer']}, {len(facts['seeds'])} seeds, {facts['tokens']:,} "
            f"tokens each{epochs}, {facts['model']['num_layers']} × {facts['model']['d_model']}, learning rate "
            f"{facts['schedule']['learning_rate']:g}"
        )
    return "; ".join(sentences)


_CHUNK = 1 << 22


@dataclasses.dataclass(frozen=True, eq=False)
class RunFolder:
    """A run whose seeds began as initializations.

    Attributes:
        folder: where it lies.
        config: what was asked for.
        steps: of the checkpoints, ascending.
        content: ``run.json``.
    """

    folder: Path
    config: PretrainConfig
    steps: list[int]
    content: RunRecord

    @property
    def cfg(self) -> ModelConfig:
        """The architecture."""
        return self.config.model

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, in the order of the run."""
        return self.config.seeds

    @functools.cached_property
    def data(self) -> Data:
        """Tokenizer and tokenized text, from the cache where they are there."""
        return load_data(dataclasses.replace(self.config, out=str(self.folder), quiet=True))

    def some_steps(self, count: int) -> list[int]:
        """Keep at most ``count`` of the steps from 0, evenly in their order, the first and the last among them."""
        steps = [0, *(step for step in self.steps if step > 0)]
        places = np.unique(np.linspace(0, len(steps) - 1, min(count, len(steps))).astype(int))
        return [steps[place] for place in places]

    def tokens(self, step: int) -> int:
        """Count training tokens of a seed before a checkpoint."""
        return step * self.config.tokens_per_step

    def summed_rate(self, step: int) -> float:
        """Sum the learning rate over the updates before a checkpoint."""
        rate = learning_rate(self.config, self.content["steps"])
        return float(np.sum(np.asarray(jax.vmap(rate)(jnp.arange(step)), np.float64))) if step else 0.0

    def initialization(self, seed: int) -> Params:
        """Draw a seed's initial weights anew.

        Raises:
            InputError: step 0 was kept and is something else.
        """
        params = init_seed(self.cfg, seed)
        if 0 in self.steps and digest(self.at(seed, 0)) != digest(params):
            raise InputError(
                f"step 0 of seed {seed} in {self.folder} is not what this seed gives: it was initialized elsewhere"
            )
        return params

    def at(self, seed: int, step: int) -> Params:
        """Read a seed's weights at a checkpoint."""
        return open_checkpoint(f"{self.folder}@seed={seed},step={step}").params()

    def life(self, seed: int, initial: Params, steps: Sequence[int]) -> list[Params]:
        """Read a seed's weights at steps, its initialization at 0."""
        return [initial if step == 0 else self.at(seed, step) for step in steps]

    @functools.cached_property
    def seen_ids(self) -> np.ndarray:
        """The ids that occur in the text of training: [I], ascending."""
        train = self.data.dataset.train
        seen_V = np.zeros(self.cfg.vocab_size, bool)
        for start in range(0, len(train), _CHUNK):
            seen_V[np.unique(train.read(start, min(start + _CHUNK, len(train))))] = True
        return np.flatnonzero(seen_V)

    def held_out_rows(self, num_rows: int, seq_len: int) -> np.ndarray:
        """Cut held-out text into rows: int32 [at most num_rows, seq_len]."""
        config = self.config
        pieces = max(1, config.context // seq_len)
        windows = -(-num_rows // pieces)
        rows_NT = np.concatenate(list(held_out(self.data.validation, windows, windows)))
        rows_NT = rows_NT[rows_NT[:, 0] >= 0][:, : pieces * seq_len]
        return rows_NT.reshape(-1, min(seq_len, rows_NT.shape[1]))[:num_rows]

    def facts(self) -> Entry:
        """Return what a record says of the run: no folder is named."""
        config, provenance = self.config, self.content.get("provenance", {})
        data = provenance.get("data", {})
        tokens = self.tokens(self.steps[-1])
        data_names = ("source_digest", "tokens_digest", "documents", "text_bytes", "train_tokens", "validation_tokens")
        schedule_names = ("context", "batch_size", "accumulation", "learning_rate", "min_learning_rate", "warmup",
                 "weight_decay", "clip", "beta1", "beta2", "epsilon", "dtype", "data_seed")  # fmt: skip
        return {
            "model": config.model.to_dict(),
            "seeds": list(config.seeds),
            "schedule": {"steps": self.content["steps"], **{name: getattr(config, name) for name in schedule_names}},
            "checkpoints": self.steps,
            "tokens": tokens,
            "epochs": tokens / data["train_tokens"] if data.get("train_tokens") else None,
            "tokenizer": data.get("tokenizer"),
            "data": {"name": Path(config.data).name, **{name: data[name] for name in data_names if name in data}},
            "made": {
                name: provenance[name] for name in ("git", "versions", "platform", "precision") if name in provenance
            },
        }


def read_run_folder(folder: Path | str) -> RunFolder:
    """Read what a folder of ``bornbiased pretrain`` holds.

    Raises:
        InputError: it is none, holds no checkpoint after the first step, or continues from other weights than
            initializations.
    """
    folder = io.user_path(folder)
    content = read_run(folder)
    if content["initial_digest"] is not None:
        raise InputError(f"{folder} began with given weights: name a run that began with initializations")
    config = PretrainConfig.from_dict(content["config"])
    steps = find_steps(folder)
    if not steps or steps[-1] == 0:
        raise InputError(f"{folder} has no checkpoint after its first step: let it run first")
    return RunFolder(folder, config, steps, content)
