"""Models that differ in their attention alone, trained on the same data from the same seeds, and their sinks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bornbiased_jax import files
from bornbiased_jax.config import preset
from bornbiased_jax.pretrain import PretrainConfig, pretrain, restore_params
from bornbiased_jax.pretrain.data import held_out
from bornbiased_jax.pretrain.evaluate import cut, evaluate_tokens
from bornbiased_jax.pretrain.metrics import read_metrics
from bornbiased_jax.pretrain.setup import Data, load_data
from bornbiased_jax.probes.outliers import measure_outliers
from bornbiased_jax.probes.sink_report import cut_sequences
from bornbiased_jax.probes.sinks import measure_sinks
from bornbiased_jax.record import jsonable, provenance
from bornbiased_jax.text import read_documents, read_text
from bornbiased_jax.text.tokenizers import encode_documents
from experiments.base import Context
from experiments.cures import CURES

HELD_OUT = "held out"
EPSILON = 0.25


def run_cures(context: Context) -> dict[str, Any]:
    """Train and measure every cure of the settings; what is done already in this output folder is taken from there.

    The settings are ``model``, ``changes``, ``cures``, ``seeds``, ``data``, ``schedule`` (fields of
    :class:`PretrainConfig`), ``lengths``, ``num_sequences``, ``sink_text`` (None: the held-out part of the data) and
    ``texts`` (name -> source, None for the held-out part) with ``evaluation`` (sequences and context).

    Returns:
        {"cures": {name: {"by_seed": [...], "loss", "steps", "seconds_per_step", …}}, "data": …}.
    """
    return {"cures": {name: _trained(context, name) for name in context.settings["cures"]}}


def _trained(context: Context, cure: str) -> dict[str, Any]:
    settings = {key: value for key, value in context.settings.items() if key != "cures"}
    identity = json.dumps([provenance()["version"], jsonable(settings), context.data, cure], sort_keys=True)
    name = f"{cure.replace(' ', '-')}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    folder = context.work.parent / "sink_training" / name
    path = folder / "measured.json"
    if path.exists():
        return files.read_json(path)
    config = run_config(context, cure, folder / "run")
    summary = pretrain(config)
    data = load_data(config)
    by_seed = [_measure(context, config, data, seed) for seed in config.seeds]
    lines = [line for line in read_metrics(config.out) if "validation_loss" in line]
    result = jsonable(
        {
            "cure": cure,
            "by_seed": by_seed,
            "seeds": list(config.seeds),
            "steps": summary["step"],
            "tokens": summary["tokens"],
            "curve_steps": [line["step"] for line in lines],
            "curve_validation_loss": [line["validation_loss"] for line in lines],
            "seconds_per_step": _seconds_per_step(config, summary),
            "data": config.data,
            "tokenizer": data.tokenizer.name,
        }
    )
    files.write_json(path, result)
    return result


def run_config(context: Context, cure: str, out: Path) -> PretrainConfig:
    """The pretraining run of one cure."""
    settings = context.settings
    schedule = settings["schedule"]
    changes = {**settings.get("changes", {}), "max_seq_len": schedule["context"], **CURES[cure]}
    return PretrainConfig(
        model=preset(settings["model"], **changes),
        data=context.data or settings["data"],
        out=str(out),
        seeds=tuple(settings["seeds"]),
        eval_every=max(1, schedule["steps"] // 10),
        tensorboard=False,
        quiet=context.quiet,
        **schedule,
    )


def _seconds_per_step(config: PretrainConfig, summary: Mapping[str, Any]) -> float | None:
    """Of one seed; None where a resumed run had no step left to time."""
    speed = summary["tokens_per_second"]
    return config.tokens_per_step / speed if speed else None


def _measure(context: Context, config: PretrainConfig, data: Data, seed: int) -> dict[str, Any]:
    settings = context.settings
    cfg, params, _ = restore_params(config.out, seed=seed)
    longest = max(settings["lengths"])
    tokens_NT = sink_sequences(context, data, longest)
    sinks = measure_sinks(cfg, params, tokens_NT, epsilon=EPSILON, lengths=settings["lengths"])
    # Kernels whose rows do not sum to 1 are compared by shares of their rows as well.
    shares = measure_sinks(cfg, params, tokens_NT, epsilon=EPSILON, normalise=True)
    outliers = measure_outliers(cfg, params, tokens_NT[: settings["num_sequences"] // 2 + 1])
    texts = {
        name: evaluate_tokens(cfg, params, _text_sequences(context, data, source), data.tokenizer, quiet=context.quiet)
        for name, source in settings["texts"].items()
    }
    return {
        "seed": seed,
        "sink_rate": {str(length): sinks["by_length"][length]["sink_rate"] for length in settings["lengths"]},
        "sink_rate_of_shares": shares["sink_rate"],
        "largest_score": float(sinks["score_LH"].max()),
        "score_LH": np.round(sinks["score_LH"], 4),
        "dom_ratio_first": outliers.dom_ratio_LT[:, 0],
        "dom_ratio_all": outliers.dom_ratio_LT.mean(axis=1),
        "effective_rank": outliers.effective_rank_L,
        "perplexity": {name: found["perplexity"] for name, found in texts.items()},
        "bits_per_byte": {name: found["bits_per_byte"] for name, found in texts.items()},
        "loss": {name: found["loss"] for name, found in texts.items()},
    }


def sink_sequences(context: Context, data: Data, length: int) -> np.ndarray:
    """Sequences of running text on which sinks are looked for."""
    settings = context.settings
    if settings.get("sink_text") is not None:
        ids = data.tokenizer.encode(read_text(settings["sink_text"]))
    else:
        ids = np.concatenate([data.validation[index][:-1] for index in range(len(data.validation))])
    return cut_sequences(ids, length, settings["num_sequences"])


def _text_sequences(context: Context, data: Data, source: str | None) -> np.ndarray:
    evaluation = context.settings["evaluation"]
    if source is None:
        count = evaluation["num_sequences"]
        rows = np.concatenate(list(held_out(data.validation, count, batch_size=count)))
        return rows[rows[:, 0] >= 0]
    documents = encode_documents(data.tokenizer, read_documents(source))
    return cut(documents, evaluation["num_sequences"], evaluation["context"])


def over_seeds(one: Mapping[str, Any], value: Any) -> tuple[float, float] | float:
    """Mean and standard deviation over seeds of ``value(by_seed entry)``; the number itself for one seed."""
    found = np.array([value(seed) for seed in one["by_seed"]], dtype=float)
    return (float(found.mean()), float(found.std(ddof=1))) if len(found) > 1 else float(found[0])


TINY = {"steps": 12, "batch_size": 4, "context": 32, "learning_rate": 1e-3, "warmup": 2}
"""Schedule of the smoke scale."""


def smoke(cures: Sequence[str]) -> dict[str, Any]:
    """Settings that run in seconds and show nothing but that everything works."""
    return {
        "model": "llama-tiny",
        "changes": {"num_layers": 2, "d_model": 32, "num_heads": 2, "d_ff": 64, "vocab_size": 256},
        "cures": list(cures),
        "seeds": [42, 123],
        "data": "builtin:prose",
        "schedule": {**TINY, "tokenizer": "byte"},
        "lengths": [16, 32],
        "num_sequences": 4,
        "sink_text": None,
        "texts": {HELD_OUT: None},
        "evaluation": {"num_sequences": 4, "context": 32},
    }


def laptop(cures: Sequence[str]) -> dict[str, Any]:
    """Minutes on two cores: enough to learn, not enough to grow sinks."""
    return {
        "model": "llama-tiny",
        "changes": {"d_model": 96, "num_heads": 4, "d_ff": 256, "vocab_size": 1024},
        "cures": list(cures),
        "seeds": [42, 123],
        "data": "builtin:prose",
        "schedule": {
            "tokenizer": "bpe:1024",
            "steps": 400,
            "batch_size": 16,
            "context": 128,
            "learning_rate": 3e-3,
            "min_learning_rate": 3e-4,
            "warmup": 40,
        },
        "lengths": [32, 64, 128],
        "num_sequences": 64,
        "sink_text": None,
        "texts": {HELD_OUT: None, "built-in code": "builtin:code"},
        "evaluation": {"num_sequences": 64, "context": 128},
    }


def paper(cures: Sequence[str], seeds: Sequence[int] = (42, 123, 1000)) -> dict[str, Any]:
    """Nano LLaMA-2 by Appendix B.4 on OpenWebText, sinks on WikiText-2, perplexity by Table 7's protocol."""
    return {
        "model": "llama-nano",
        "changes": {},
        "cures": list(cures),
        "seeds": list(seeds),
        "data": "hf:Skylion007/openwebtext",
        "schedule": {
            "tokenizer": None,
            "steps": 200_000,
            "batch_size": 128,
            "accumulation": 2,
            "context": 2048,
            "learning_rate": 6e-4,
            "min_learning_rate": 6e-5,
            "warmup": 2000,
            "weight_decay": 0.1,
            "dtype": "bfloat16",
        },
        "lengths": [32, 64, 128, 256, 512],
        "num_sequences": 100,
        "sink_text": "hf:Salesforce/wikitext,wikitext-2-raw-v1@test",
        "texts": {"WikiText-2": "hf:Salesforce/wikitext,wikitext-2-raw-v1@test", "C4": "hf:allenai/c4,en@validation"},
        "evaluation": {"num_sequences": 256, "context": 2048},
    }
