"""Seeds trained together for as long as there is time, and what became of them: losses, sinks, the anatomy of births.

A run that had to stop goes on in the next call, where its folder is still there; what it had become is measured in any
case.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.evaluation.sink_steps import sinks_by_step
from bornbiased_jax.pretrain import PretrainConfig, pretrain
from bornbiased_jax.pretrain.metrics import read_metrics
from experiments.gpu import measured
from experiments.survival.anatomy import anatomy
from experiments.survival.run_folder import RunFolder, open_run

SEEDS = [42, 123, 1000, 2000]
"""Those of the paper's trained models."""

SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": dict(
        seeds=SEEDS[:2],
        changes=dict(num_layers=2, d_model=32, num_heads=2, num_kv_heads=2, d_ff=48, vocab_size=256, max_seq_len=64),
        training=dict(
            tokenizer="bytes", steps=12, batch_size=4, accumulation=1, context=32, learning_rate=3e-3,
            min_learning_rate=3e-4, warmup=2, eval_sequences=16, dtype="float32",
        ),
        anatomy=dict(num_inputs=40, seq_len=8, num_checkpoints=2, num_fresh=2),
        sinks=dict(num_sequences=8, seq_len=32),
        measures_s=0.0,
    ),
    # 32,768 tokens a step and seed, as the memory of four seeds at once allows; 13 million tokens of each seed in all.
    "gpu": dict(
        seeds=SEEDS,
        changes={},
        training=dict(
            tokenizer="bpe:4096", steps=400, batch_size=16, accumulation=1, context=2048, learning_rate=6e-4,
            min_learning_rate=6e-5, warmup=40, eval_sequences=64, dtype="bfloat16",
        ),
        anatomy=dict(num_inputs=600, seq_len=32, num_checkpoints=2, num_fresh=19),
        sinks=dict(num_sequences=64, seq_len=512),
        measures_s=120.0,
    ),
}  # fmt: skip
"""``measures_s``: of the time that is given, what is left for measuring when training stops."""

RUN = "run"


def run(settings: Mapping[str, Any], folder: Path, seconds: float) -> dict[str, Any]:
    """Train, or go on, until the run is at its end or the time is up; then measure what it became."""
    begun = time.monotonic()
    place = folder / RUN
    config = configuration(settings, place)
    with stopping_after(seconds - settings["measures_s"]):
        summary = pretrain(config)
    if summary["step"] == 0:
        raise InputError("the time was up before the first step: give more minutes")
    trained_s = time.monotonic() - begun
    life = open_run(place)
    result = {
        "finished": summary["finished"],
        "step": summary["step"],
        "training": {
            **{name: summary[name] for name in ("loss", "validation_loss", "digests", "tokens", "mode")},
            "tokens_per_second": summary["tokens_per_second"],
            "peak_share": summary["peak_share"],
            "resumed_from": summary["resumed_from"],
            "wall_s": trained_s,
            "losses": [{"step": row["step"], "loss": row["loss"]} for row in read_metrics(place)],
        },
        "sinks": sinks(life, settings["sinks"]),
        "anatomy": anatomy(life, settings["anatomy"], quiet=True),
    }
    if summary["finished"]:
        # Gigabytes that nobody asks for again.
        shutil.rmtree(place)
    return result


def configuration(settings: Mapping[str, Any], place: Path) -> PretrainConfig:
    """The run of some settings, in a folder."""
    return PretrainConfig(
        model=preset(settings["model"], **settings["changes"]),
        data="builtin:prose",
        out=str(place),
        seeds=tuple(settings["seeds"]),
        quiet=True,
        tensorboard=False,
        **settings["training"],
    )


def sinks(life: RunFolder, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Sinks of every seed at birth and at each checkpoint, on held-out text."""
    opened = open_checkpoint(f"{life.folder}@seed={life.seeds[0]}")
    rows_NT = life.held_out_rows(settings["num_sequences"], settings["seq_len"])
    steps = sinks_by_step(opened, rows_NT, quiet=True)
    return {"num_sequences": len(rows_NT), "seq_len": int(rows_NT.shape[1]), "steps": steps}


@contextmanager
def stopping_after(seconds: float) -> Iterator[None]:
    """Within the block this process asks itself to stop, as SIGTERM does, when the time is up."""
    timer = threading.Timer(max(0.0, seconds), os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def main(arguments: list[str] | None = None) -> int:
    """Train, measure and write the record."""
    precision = "bfloat16 training, float32 highest probes"
    return measured.run(run, SETTINGS, arguments, precision=precision, model="llama-nano")


if __name__ == "__main__":
    sys.exit(main())
