"""The steps, most valuable first: each is a command of this repository that writes one record, or several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from experiments.birth import table1_rows
from experiments.gpu.step import Place, Step

TORCH = ("torch", "transformers")


def _of_memory(fraction: float) -> dict[str, str]:
    """What part of the device's memory JAX takes; its older variable is an error beside the newer one."""
    return {"XLA_CLIENT_MEM_FRACTION": str(fraction), "XLA_PYTHON_CLIENT_MEM_FRACTION": ""}


# PyTorch wants memory of the same device; who trains wants all but what the libraries' own work takes.
BESIDE_TORCH, TRAINING = _of_memory(0.5), _of_memory(0.9)
_FLOPS = 3.5e13
"""Guessed: float32 operations a second of an H100 in such forward passes."""
_START = 30.0
"""Seconds of a process's start and of its compilations."""


def _own(module: str, **options: Any) -> Callable[[Place], list[str]]:
    def command(place: Place) -> list[str]:
        words = ["-m", f"experiments.gpu.{module}", "--scale", place.scale, "--json", str(place.record)]
        words += ["--work", str(place.work), "--seconds", f"{place.seconds:.0f}"]
        return words + [str(word) for name, value in options.items() for word in (f"--{name}", value)]

    return command


def _benchmark(name: str, smoke: Mapping[str, Any], gpu: Mapping[str, Any]) -> Callable[[Place], list[str]]:
    def command(place: Place) -> list[str]:
        options = smoke if place.scale == "smoke" else gpu
        words = [str(word) for option, value in options.items() for word in (f"--{option}", value)]
        return ["-m", "benchmarks", name, *words, "--json", str(place.record)]

    return command


def _reproduce(names: tuple[str, ...]) -> Callable[[Place], list[str]]:
    def command(place: Place) -> list[str]:
        scale = "smoke" if place.scale == "smoke" else "paper"

        return ["-m", "bornbiased_jax", "reproduce", *names, "--scale", scale, "--out", str(place.reproduce), "--quiet"]

    return command


def _row(part: str, length: int) -> Step:
    """Both seeds of a length of Table 1: they share their programs."""
    names = tuple(table1_rows.name_of(part, length, seed) for seed in table1_rows.SEEDS)
    operations = sum(
        table1_rows.operations(table1_rows.EXPERIMENTS[name].settings["paper"]["groups"][0]) for name in names
    )
    title = f"Table 1({part}), {table1_rows.PARTS[part]}, T = {length:,}"
    return Step(f"table1_{part}_{length}", title, _START + operations / _FLOPS, _reproduce(names), experiments=names)


_TINY_SWEEP = dict(model="llama-tiny", sequences=8, length=16, seeds=2, pairs=1, batches=4)
STEPS: tuple[Step, ...] = (
    Step("self_test", "Environment and self-test", 60, _own("self_test")),
    Step("products", "float32 products by algorithm", 90, _own("products")),
    Step("kept", "What the algorithms keep of a probe", 180, _own("kept")),
    Step(
        "sweep_tiny",
        "256 tiny seeds beside a PyTorch loop",
        120,
        _benchmark(
            "sweep_vs_torch",
            smoke=_TINY_SWEEP,
            gpu=dict(sequences=256, length=128, seeds=256, pairs=3, batches="32,64,128,256"),
        ),
        needs=TORCH,
        goal="5 times the loop",
        environment=BESIDE_TORCH,
    ),
    Step(
        "training_rate",
        "Training of llama-nano at 2,048 in bfloat16",
        90,
        _benchmark(
            "training_rate",
            smoke={"model": "llama-tiny", "context": 16, "batch-size": 2, "turns": 1, "steps": 1, "goal": 0.45},
            gpu={
                "model": "llama-nano",
                "context": 2048,
                "batch-size": 32,
                "dtype": "bfloat16",
                "turns": 5,
                "steps": 8,
                "goal": 0.45,
            },
        ),
        goal="45% of the rate of its own products",
        environment=TRAINING,
    ),
    Step(
        "training_rate_seeds",
        "Training of four seeds of llama-nano at once, 2,048, in bfloat16",
        120,
        _benchmark(
            "training_rate",
            smoke={"model": "llama-tiny", "context": 16, "batch-size": 2, "turns": 1, "steps": 1, "seeds": 2},
            gpu={
                "model": "llama-nano",
                "context": 2048,
                "batch-size": 8,
                "dtype": "bfloat16",
                "turns": 3,
                "steps": 8,
                "seeds": 4,
                "goal": 0.45,
            },
        ),
        goal="45% of the rate of its own products",
        environment=TRAINING,
    ),
    Step(
        "seeds_at_once",
        "Seeds at once beside runs of one seed",
        90,
        _benchmark(
            "seeds_at_once",
            smoke={"seeds": 2, "pairs": 1, "steps": 1, "batch-size": 2, "context": 16},
            gpu={"seeds": 8, "pairs": 5, "steps": 16},
        ),
    ),
    Step(
        "sweep_nano",
        "32 nano seeds beside a PyTorch loop",
        150,
        _benchmark(
            "sweep_vs_torch",
            smoke=_TINY_SWEEP,
            gpu=dict(model="llama-nano", sequences=256, length=128, seeds=32, pairs=2, batches="32,64,128"),
        ),
        needs=TORCH,
        goal="1.2 times the loop",
        environment=BESIDE_TORCH,
    ),
    _row("a", 64),
    _row("a", 256),
    _row("a", 1024),
    Step("finding2_nano", "Finding 2.2, a hundred seeds", 60, _reproduce(("finding2_nano",)), ("finding2_nano",)),
    _row("b", 64),
    _row("c", 64),
    _row("b", 256),
    _row("c", 256),
    _row("b", 1024),
    Step(
        "parity",
        "Logits of every family beside transformers",
        120,
        _benchmark("parity", smoke=dict(families="llama"), gpu={}),
        needs=TORCH,
        environment=BESIDE_TORCH,
    ),
    _row("c", 1024),
    Step(
        "life_llama", "llama-nano, four seeds", 240, _own("life", model="llama-nano"), rest=True, environment=TRAINING
    ),
    Step("life_qwen", "qwen-nano, four seeds", 240, _own("life", model="qwen-nano"), rest=True, environment=TRAINING),
)
"""In the order in which they are tried."""
