"""The two families of Section 5 at each scale: what is trained, and what is asked of it."""

from __future__ import annotations

from typing import Any

from experiments.survival.persistence import STORIES

SEEDS = (42, 123, 1000, 2000)
PAPER_TOKENS = 10_000_000_000
"""Training tokens of the paper's models, "about 10B"."""

FAMILIES = {"llama": "LLaMA-style", "qwen": "Qwen-style"}
PRECISION = "float32 highest; bfloat16 training at paper scale"

_SMOKE: dict[str, Any] = dict(num_layers=2, d_model=32, num_heads=2, num_kv_heads=2, d_ff=64, vocab_size=256)
_LAPTOP: dict[str, Any] = dict(num_layers=4, d_model=96, num_heads=4, d_ff=256, vocab_size=256)


def settings(family: str) -> dict[str, dict[str, Any]]:
    """By scale; ``family`` is "llama" or "qwen"."""
    return {"smoke": _smoke(family), "laptop": _laptop(family), "paper": _paper(family)}


def _smoke(family: str) -> dict[str, Any]:
    schedule = dict(tokenizer="bytes", steps=8, batch_size=4, context=32, warmup=2, eval_sequences=8)
    return {
        "model": f"{family}-tiny",
        "changes": _SMOKE,
        "seeds": list(SEEDS[:3]),
        "corpora": {"base": "builtin:prose", "stories": STORIES, "code": "builtin:code"},
        "num_stories": 200,
        "schedule": schedule,
        "continued": {"seed": 1000, "distractor": 123, "schedule": {"steps": 4}},
        "probe": {"num_inputs": 60, "seq_len": 8, "sentences": 8},
    }


def _laptop(family: str) -> dict[str, Any]:
    schedule = dict(
        tokenizer="bytes", steps=320, batch_size=16, context=64, learning_rate=4e-3, min_learning_rate=4e-4,
        warmup=20, eval_sequences=200,
    )  # fmt: skip
    further = dict(steps=120, learning_rate=2e-3, min_learning_rate=2e-4)
    return {
        "model": f"{family}-tiny",
        "changes": _LAPTOP,
        "seeds": list(SEEDS),
        "corpora": {"base": "builtin:prose", "stories": STORIES, "code": "builtin:code"},
        "num_stories": 6_000,
        "schedule": schedule,
        "continued": {"seed": 1000, "distractor": 123, "schedule": further},
        "probe": {"num_inputs": 1_000, "seq_len": 32, "sentences": 200},
    }


def _paper(family: str) -> dict[str, Any]:
    # The SeedPrint authors' toy schedule, one epoch of OpenWebText.
    schedule = dict(
        tokenizer=None, steps=None, batch_size=32, accumulation=8, context=2048, learning_rate=3e-4,
        min_learning_rate=0.0, warmup=200, dtype="bfloat16", eval_sequences=200,
    )  # fmt: skip
    return {
        "model": f"{family}-nano",
        "changes": {},
        "seeds": list(SEEDS),
        # The Stack asks for a licence to be accepted: --data code=FILE names it, or another text.
        "corpora": {
            "base": "hf:Skylion007/openwebtext",
            "stories": "hf:roneneldan/TinyStories",
            "code": "builtin:code",
        },
        "num_stories": 0,
        "schedule": schedule,
        "continued": {"seed": 1000, "distractor": 123, "schedule": {}},
        "probe": {"num_inputs": 10_000, "seq_len": 1024, "sentences": 200},
    }


def cost() -> dict[str, str]:
    """Of the experiment that trains a family's models; the others find them trained."""
    return {
        "smoke": "seconds",
        "laptop": "2 min on two cores",
        "paper": "not measured: 9B tokens for each of four seeds, for a GPU",
    }


def shared_cost(family: str) -> dict[str, str]:
    """Of an experiment on models that another one trained."""
    trainer = {"llama": "table4b", "qwen": "table10"}[family]
    words = f"shares the models of {trainer}"
    return {"smoke": words, "laptop": f"less than a minute on two cores; {words}", "paper": words}


def continued_cost(family: str) -> dict[str, str]:
    """Of further training."""
    trainer = {"llama": "table4b", "qwen": "table10"}[family]
    return {
        "smoke": "seconds",
        "laptop": f"2 min on two cores; the base models are those of {trainer}",
        "paper": "not measured: for a GPU",
    }
