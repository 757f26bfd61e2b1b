"""Settings of the chapter: the two families of Section 5 at each scale, and the runs of the anatomy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from bornbiased_jax.experiments._shared.training import LARGER, SHORTER
from bornbiased_jax.experiments.base import Entry, Experiment, by_scale
from bornbiased_jax.experiments.survival.persistence import STORIES

SEEDS = (42, 123, 1000, 2000)
PAPER_TOKENS = 10_000_000_000
"""Training tokens of the paper's models, "about 10B"."""

FAMILIES = {"llama": "LLaMA-style", "qwen": "Qwen-style"}
QWEN = ("table10", "table11", "table12", "figure14")
"""The experiments on Qwen-style models; the others are on LLaMA-style ones."""
PRECISION = "float32 highest; bfloat16 training at paper scale"


def settings(family: str) -> Mapping[str, Entry]:
    """Return settings by scale; ``family`` is "llama" or "qwen".

    The paper's schedule is the SeedPrint authors' toy one, one epoch.
    """
    return by_scale(
        model=(f"{family}-tiny", f"{family}-tiny", f"{family}-nano"),
        changes={
            "num_layers": (2, 4, ...),
            "d_model": (32, 96, ...),
            "num_heads": (2, 4, ...),
            "num_kv_heads": (2, ..., ...),
            "d_ff": (64, 256, ...),
            "vocab_size": (256, 256, ...),
        },
        seeds=(list(SEEDS[:3]), list(SEEDS), list(SEEDS)),
        # The Stack asks for a license to be accepted: --data code=FILE names it, or another text.
        corpora={
            "base": ("builtin:prose", "builtin:prose", "hf:Skylion007/openwebtext"),
            "stories": (STORIES, STORIES, "hf:roneneldan/TinyStories"),
            "code": "builtin:code",
        },
        num_stories=(200, 6_000, 0),
        schedule={
            "tokenizer": ("bytes", "bytes", None),
            "steps": (8, 320, None),
            "batch_size": (4, 16, 32),
            "accumulation": (..., ..., 8),
            "context": (32, 64, 2048),
            "learning_rate": (..., 4e-3, 3e-4),
            "min_learning_rate": (..., 4e-4, 0.0),
            "warmup": (2, 20, 200),
            "dtype": (..., ..., "bfloat16"),
            "eval_sequences": (8, 200, 200),
        },
        continued={
            "seed": 1000,
            "distractor": 123,
            "schedule": ({"steps": 4}, {"steps": 120, "learning_rate": 2e-3, "min_learning_rate": 2e-4}, {}),
        },
        probe={"num_inputs": (60, 1_000, 10_000), "seq_len": (8, 32, 1024), "sentences": (8, 200, 200)},
    )


@dataclasses.dataclass(frozen=True)
class Length:
    """How long the models four blocks deep and 256 wide are trained.

    Attributes:
        suffix: of the experiments' names.
        words: how many tokens, as titles say it.
        base: what changes in the schedule of :data:`.LARGER`.
        continued_steps: of the training on further text, a quarter of the base's.
        cost: of the experiments.
    """

    suffix: str
    words: str
    base: Mapping[str, int]
    continued_steps: int
    cost: str


LENGTHS = (
    Length("_256", "17 million", {}, 520, "hours on two cores for the models that the family's records share"),
    Length(
        "_256_2m",
        "2 million",
        SHORTER,
        60,
        "an hour and a half on two cores for the models that the family's records share",
    ),
)


def at_length(experiment: Experiment, family: str, length: Length) -> Experiment:
    """Return an experiment of the chapter on the larger models, trained for a length."""
    laptop = settings(family)["laptop"]
    larger = {
        **laptop,
        "changes": LARGER["changes"],
        "schedule": {**laptop["schedule"], **LARGER["schedule"], **length.base},
        "continued": {
            **laptop["continued"],
            "schedule": {"steps": length.continued_steps, "learning_rate": 5e-4, "min_learning_rate": 5e-5},
        },
    }
    return dataclasses.replace(
        experiment,
        name=f"{experiment.name}{length.suffix}",
        title=f"{experiment.title}, 4 × 256, {length.words} tokens",
        settings={"smoke": settings(family)["smoke"], "laptop": larger},
        cost={"laptop": length.cost},
    )


def larger(experiments: Mapping[str, Experiment]) -> dict[str, Experiment]:
    """Return the chapter's experiments on the larger models, at both lengths."""
    made = [
        at_length(experiment, "qwen" if name in QWEN else "llama", length)
        for length in LENGTHS
        for name, experiment in experiments.items()
    ]
    return {experiment.name: experiment for experiment in made}


def changed(**changes: object) -> Mapping[str, Entry]:
    """Return the settings of LLaMA-style models with some in place of others, as :func:`.base.by_scale` takes them."""
    new = by_scale(**changes)
    return {scale: {**values, **new[scale]} for scale, values in settings("llama").items()}


def anatomy_runs() -> dict[str, Entry]:
    """Map scale and name to settings of a run, as :mod:`.persistence` takes them; the bytes are those of Table 4b."""
    of_bytes = settings("llama")
    smoke = {**of_bytes["smoke"], "seeds": list(SEEDS[:2])}
    smoke["schedule"] = {**smoke["schedule"], "steps": 64, "learning_rate": 3e-3, "min_learning_rate": 3e-4}
    laptop = of_bytes["laptop"]
    pieces = {**laptop, "changes": {}, "seeds": list(SEEDS[:3])}
    pieces["schedule"] = dict(
        tokenizer="bpe:4096", steps=600, batch_size=8, context=64, learning_rate=1e-3, min_learning_rate=1e-4,
        warmup=60, eval_sequences=200,
    )  # fmt: skip
    return {
        "smoke": {"bytes": smoke},
        "laptop": {"bytes": laptop, "BPE": pieces},
        "paper": {"paper's sizes": of_bytes["paper"]},
    }


COST = {"laptop": "2 min on two cores", "paper": "not measured: 9B tokens for each of four seeds, for a GPU"}
"""Of the experiment that trains a family's models; the others find them trained."""


def shared_cost(trainer: str) -> dict[str, str]:
    """Return the cost of an experiment on models that another one trained."""
    words = f"shares the models of {trainer}"
    return {"smoke": words, "laptop": f"less than a minute on two cores; {words}", "paper": words}
