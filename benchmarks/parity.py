"""Logits of every family of models against those of transformers, in float32.

    python -m benchmarks parity --json benchmarks/results/parity.json

A small model of each family is initialized, written as a Hugging Face directory and opened by both; SmolLM2 is read
from its GGUF file and written so as well, where its package is installed. Errors are in standard deviations of the
logits, so that small weights do not flatter. Needs torch and transformers.
"""

from __future__ import annotations

import functools
import math
import tempfile
from pathlib import Path

from benchmarks.recorded import Findings, command
from benchmarks.tables import BenchmarkRecord
from bornbiased_jax.checkpoints import export_hugging_face, find_smollm2, open_checkpoint
from bornbiased_jax.checkpoints.families import FAMILIES
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.evaluation.parity import parity
from bornbiased_jax.init import init_seed
from bornbiased_jax.report.numbers import percent, significant
from bornbiased_jax.report.tables import Table, tabulate

MODELS: dict[str, tuple[str, Findings]] = {
    "gpt2": ("gpt2-small", dict(num_layers=4, num_heads=4, d_model=128, d_ff=512, vocab_size=4096)),
    "llama": ("llama-tiny", dict(num_kv_heads=2)),
    "mistral": ("llama-tiny", dict(num_kv_heads=2, window=16)),
    "qwen2": ("qwen-tiny", {}),
    "qwen3": ("qwen3-tiny", {}),
    "gpt_neox": ("neox-tiny", {}),
    "olmo2": ("olmo2-tiny", {}),
    "gemma3_text": ("gemma3-tiny", {}),
    "mixtral": ("mixtral-tiny", {}),
    "qwen3_moe": ("qwen3moe-tiny", {}),
    "qwen2_moe": ("qwen2moe-tiny", {}),
    "starcoder2": ("gpt2-tiny", dict(num_kv_heads=2, activation="gelu_tanh")),
    "phi3": ("llama-tiny", dict(num_kv_heads=2, rotary_fraction=0.75)),
    "glm4": ("llama-tiny", dict(num_kv_heads=2, norm_position="both", qkv_bias=True, rotary_fraction=0.5)),
    "granite": (
        "llama-tiny",
        dict(num_kv_heads=2, embedding_scale=12.0, attention_scale=1 / 32, residual_scale=0.22, logit_scale=1 / 16),
    ),
    "cohere": (
        "llama-tiny",
        dict(
            norm="layernorm",
            norm_parameters="scale",
            parallel_residual=True,
            shared_norm=True,
            logit_scale=0.0625,
            tie_embeddings=True,
        ),
    ),
    "olmo": ("llama-tiny", dict(norm="layernorm", norm_parameters="none")),
    "smollm3": ("llama-tiny", dict(num_kv_heads=2, rope_pattern="rrrn", tie_embeddings=True)),
    "gemma2": (
        "gemma3-tiny",
        dict(qk_norm=False, rope_local_theta=None, attention_pattern="lg", attention_softcap=50.0, logit_softcap=30.0),
    ),
    "gemma": ("llama-tiny", dict(num_kv_heads=2, activation="gelu_tanh", embedding_scale=math.sqrt(128))),
}
"""Family -> a preset and its changes that are written as this family."""


def compared(family: str, seed: int) -> Findings:
    """Compare initial weights.

    Raises:
        InputError: torch or transformers is not installed.
    """
    name, changes = MODELS[family]
    cfg = preset(name, **changes)
    with tempfile.TemporaryDirectory() as folder:
        export = export_hugging_face(cfg, init_seed(cfg, seed), Path(folder) / "model")
        if export != family:
            raise InputError(f"{name} is written as {export}, not as {family}: correct MODELS")
        comparison = parity(Path(folder) / "model", seed=seed)
    return {"family": family, "weights": f"seed {seed}", **comparison}


def compared_file(path: Path) -> Findings:
    """Compare a GGUF file's dequantized weights.

    Raises:
        InputError: as :func:`compared`.
    """
    opened = open_checkpoint(path)
    with tempfile.TemporaryDirectory() as folder:
        family = export_hugging_face(opened.cfg, opened.params(), Path(folder) / "model")
        return {"family": family, "weights": path.name, **parity(Path(folder) / "model", num_sequences=2)}


def measure(families: tuple[str, ...] = tuple(MODELS), seed: int = 0) -> Findings:
    """Compare logits of every family, and of SmolLM2 where it is installed, with those of transformers.

    Args:
        families: Separated by commas.
        seed: Of the initial weights.

    Raises:
        InputError: an unknown family.
    """
    if unknown := sorted(set(families) - set(MODELS)):
        raise InputError(f"unknown families {', '.join(unknown)}: choose some of {', '.join(MODELS)}")
    path = find_smollm2()
    rows = [compared(family, seed) for family in families]
    return {"rows": rows if path is None else [*rows, compared_file(path)]}


def tables(record: BenchmarkRecord) -> list[Table]:
    """Tabulate families in rows."""
    rows = [
        (
            [row["family"], FAMILIES[row["family"]].architecture, row["weights"]],
            {
                "largest error": (significant(2), row["max_abs_error"] / row["logit_std"]),
                "same top-1": (percent(1), row["top1_agreement"]),
                "GGUF": FAMILIES[row["family"]].gguf or "not read",
            },
        )
        for row in record["rows"]
    ]
    versions = record["rows"][0]
    note = (
        "Largest error of any logit, in standard deviations of the logits, random tokens. GGUF: what such files call "
        "the family, where they are read; quantized tensors are dequantized by the `gguf` library. Every other "
        "architecture is comparison only, without a forward pass: read by the names of its tensors for `seedprint`, "
        "`fingerprint`, `digest` and `audit`, as Qwen3-Next, DeepSeek V2 and V3, gpt-oss, Llama 4, Falcon, GPT-J, "
        "StableLM, Phi-1 and 2, GLM-4-MoE, Granite-MoE, InternLM2, MPT, BLOOM, LLaVA and Qwen2-VL are. "
        f"transformers {versions['transformers']}, torch {versions['torch']}."
    )
    return [tabulate("Logits versus transformers", ["family", "class", "weights"], rows, note)]


main = functools.partial(command, measure)
