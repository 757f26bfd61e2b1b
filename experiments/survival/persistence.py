"""Models trained from several seeds at once on the same text, and continued on other text: Section 5's material.

One family (an architecture with its settings) is trained once for all the tables and figures that look at it:
every seed on the base corpus, in one program and in the same order; a distractor, another seed in another
order; then one of the seeds and the distractor on two further corpora. All runs are those of
:mod:`bornbiased_jax.training`, below the output folder, and resume where they were stopped.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np

from bornbiased_jax import io
from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.checkpoints.formats.run import find_steps
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.evaluation.ngrams import baselines
from bornbiased_jax.experiments._shared.training import held_out_rows, loss_of
from bornbiased_jax.experiments.base import Context, Entry, cache_folder, cached, source_name, split_data
from bornbiased_jax.experiments.survival.stories import stories
from bornbiased_jax.lineage.outputs import OutputOptions, last_outputs
from bornbiased_jax.parameters import Params, flatten
from bornbiased_jax.probes.inputs import Inputs, from_tokens, random_inputs
from bornbiased_jax.training import PretrainConfig, pretrain
from bornbiased_jax.training.setup import load_data

STORIES = "stories of a grammar"
"""The name of the generated corpus among the settings' corpora."""

KINDS = ("tokens", "gaussian")
"""Inputs on which models are compared: random ids, and vectors that both models share."""

ModelLocation = Entry
"""Where a model lies: ``run`` (a folder), ``seed``, ``step``."""


def corpora(context: Context) -> dict[str, str]:
    """Map roles to sources, the ``--data`` option taken in: ``FILE`` (the base corpus) or ``ROLE=FILE;ROLE=FILE``.

    Raises:
        InputError: a role that does not exist.
    """
    sources = dict(context.settings["corpora"])
    for role, source in split_data(context.data):
        if role is None:
            sources["base"] = source
        elif role in sources:
            sources[role] = source
        else:
            raise InputError(f"--data names a corpus {role!r}: the corpora are {', '.join(sources)}")
    return sources


def model_config(settings: Entry) -> ModelConfig:
    """Return the architecture."""
    return preset(settings["model"], **settings["changes"])


def base_run(context: Context) -> Path:
    """Train every seed of the settings on the base corpus, in one program; log-spaced checkpoints."""
    return _train(context, "base", "base", context.settings["seeds"], data_seed=0)


def distractor_run(context: Context) -> Path:
    """Train the distractor: another seed on the base corpus in another order."""
    seed = context.settings["continued"]["distractor"]
    return _train(context, "distractor", "base", [seed], data_seed=1)


def continued_run(context: Context, role: str) -> Path:
    """Train the base model and the distractor on with the corpus of a role."""
    options = context.settings["continued"]
    parents = [last(base_run(context), options["seed"]), last(distractor_run(context), options["distractor"])]
    origin = "; ".join(f"{Path(parent['run']).name}@seed={parent['seed']},step={parent['step']}" for parent in parents)
    weights = [(model_config(context.settings), load(parent)) for parent in parents]
    seeds = [options["seed"], options["distractor"]]
    return _train(context, role, role, seeds, data_seed=2, initial=weights, origin=origin, **options["schedule"])


def _train(
    context: Context,
    name: str,
    role: str,
    seeds: Sequence[int],
    *,
    data_seed: int,
    initial: Sequence[tuple[ModelConfig, Params]] | None = None,
    origin: str | None = None,
    **changes: object,
) -> Path:
    settings = context.settings
    sources = corpora(context)
    shared = context.work.parent / "persistence"
    schedule = {**settings["schedule"], **changes}
    identity = [settings["model"], settings["changes"], list(seeds), data_seed, sources["base"], sources[role]]
    identity += [settings["num_stories"], schedule, settings["continued"] if initial else None]

    def compute(folder: Path) -> Entry:
        source = sources[role]
        if source == STORIES:
            source = str(io.write_text(shared / "stories.txt", stories(settings["num_stories"])))
        config = PretrainConfig(
            model=model_config(settings),
            data=source,
            out=str(folder),
            seeds=tuple(seeds),
            data_seed=data_seed,
            init_from=origin,
            checkpoint_log_spaced=True,
            tensorboard=False,
            quiet=context.quiet,
            **schedule,
        )
        summary = pretrain(config, initial)
        if not summary["finished"]:
            # Stopped by SIGTERM: its checkpoints are where the next call resumes, and nothing is cached.
            raise SystemExit(128 + signal.SIGTERM)
        return _facts(folder, config, summary, sources[role])

    place = shared / f"{settings['model']}-{name}"
    cached(place, identity, compute)
    return cache_folder(place, identity, compute)


def _facts(folder: Path, config: PretrainConfig, summary: Entry, source: str) -> Entry:
    """Collect what was trained, and what it must be compared with; write the held-out sequences."""
    data = load_data(config)
    counted = baselines(data.dataset.train, data.dataset.validation, config.model.vocab_size)
    facts = {
        "model": config.model.to_dict(),
        "source": source_name(source),
        "seeds": summary["seeds"],
        "data_seed": config.data_seed,
        "steps": summary["steps"],
        "tokens": summary["tokens"],
        "epochs": summary["tokens"] / max(1, len(data.dataset.train)),
        "tokenizer": data.tokenizer.name,
        **counted,
    }
    stream = BytesIO()
    np.save(stream, held_out_rows(data.validation, config.eval_sequences))
    io.write_bytes(folder / "held_out.npy", stream.getvalue())
    return facts


def facts_of(run: Path) -> Entry:
    """Read what :func:`_train` wrote of a run."""
    return io.read_json(run / "value.json")["value"]


def initialization(run: Path, seed: int) -> ModelLocation:
    """Return the model of a seed before its first step."""
    return {"run": str(run), "seed": seed, "step": 0}


def last(run: Path, seed: int) -> ModelLocation:
    """Return the model of a seed after the last step."""
    return {"run": str(run), "seed": seed, "step": find_steps(run)[-1]}


def load(model: ModelLocation) -> Params:
    """Load a model's weights."""
    return open_checkpoint("{run}@seed={seed},step={step}".format(**model)).params()


def moved(before: Params, after: Params) -> float:
    """Compute ‖W − W₀‖/‖W₀‖ over all parameters."""
    old, new = flatten(before), flatten(after)
    difference = sum(float(np.square(np.asarray(new[path], np.float64) - old[path]).sum()) for path in old)
    size = sum(float(np.square(np.asarray(old[path], np.float64)).sum()) for path in old)
    return math.sqrt(difference / size)


def progress_of(model: ModelLocation) -> dict[str, float]:
    """Measure how far a model is from its initialization, how well it predicts held-out text, what counting reaches.

    Returns:
        ``moved`` (from the weights that its run began with), ``loss`` (nats a token on the run's held-out text),
        ``unigram_entropy`` and ``bigram_loss`` of that text.
    """
    run = Path(model["run"])

    def compute(_folder: Path) -> dict[str, float]:
        facts, params = facts_of(run), load(model)
        return {
            "moved": moved(load(initialization(run, model["seed"])), params),
            "loss": loss_of(ModelConfig.from_dict(facts["model"]), params, np.load(run / "held_out.npy")),
            "unigram_entropy": facts["unigram_entropy"],
            "bigram_loss": facts["bigram_loss"],
        }

    return cached(_measured(model, "progress"), None, compute)


def _measured(model: ModelLocation, measurement: str) -> Path:
    """Return where a measurement of a model is kept: next to its weights."""
    return Path(model["run"]) / "measured" / f"{measurement}-seed{model['seed']}-step{model['step']}"


def initial_moments(settings: Entry) -> tuple[float, float]:
    """Return the mean and standard deviation of an embedding at initialization."""
    return 0.0, model_config(settings).embedding_std


def outputs(settings: Entry, model: ModelLocation, kind: str, moments: tuple[float, float]) -> np.ndarray:
    """Compute outputs [N, D] at the last position on the settings' random inputs; once for each model.

    Args:
        settings: of the experiment.
        model: where the model lies.
        kind: one of :data:`KINDS`.
        moments: mean and standard deviation that shared vectors are given; not used for tokens.
    """
    probe = settings["probe"]
    inputs = random_inputs(kind, probe["num_inputs"], probe["seq_len"], model_config(settings))
    identity = [probe, kind, inputs.moments(*moments)]

    def compute(_folder: Path) -> np.ndarray:
        return np.asarray(last_outputs(model_config(settings), load(model), inputs, OutputOptions(moments)))

    return cached(_measured(model, "outputs"), identity, compute)


def sentences(run: Path, settings: Entry) -> Inputs:
    """Read running text for REEF: windows of the run's held-out text."""
    rows_NT = np.load(run / "held_out.npy")[: settings["probe"]["sentences"], :-1]
    return from_tokens(rows_NT, model_config(settings).vocab_size, source="held-out text of the run")
