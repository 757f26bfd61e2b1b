"""Sinks of a run step by step."""

import json
from pathlib import Path

import numpy as np
import pytest

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.cli.main import run
from bornbiased_jax.init import init_seed
from bornbiased_jax.probes.sinks import measure_sinks
from bornbiased_jax.training import pretrain
from tests.training.conftest import place  # noqa: F401
from tests.training.small_run import CFG, make


@pytest.mark.nightly
def test_sink_rate_by_step_from_initialization(place, tmp_path, capsys):  # noqa: F811
    pretrain(make(place, "followed", steps=4))
    folder, target = str(place / "followed"), tmp_path / "sinks.json"
    call = [
        "sinks",
        f"{folder}@seed=7",
        "--text",
        str(place / "story.txt"),
        "--lengths",
        "8,12",
        "--num-sequences",
        "3",
    ]
    assert run([*call, "--no-details", "--epsilon", "0.2", "--by-step", "--quiet", "--json", str(target)]) == 0
    report = json.loads(target.read_text())
    rows = report["by_step"]
    assert [row["step"] for row in rows] == sorted({0, 2, 4}) and all(row["seeds"] == [42, 7] for row in rows)
    assert "Sinks by step, seeds 42, 7" in capsys.readouterr().out
    # The last step of seed 7 is the checkpoint that was named; step 0 is its initialization.
    assert rows[-1]["largest_score"][1] == pytest.approx(np.max(report["score_by_layer_head"]["12"]), rel=1e-5)
    opened = open_checkpoint(f"{folder}@seed=7")
    text = np.asarray(opened.tokenizer.encode(Path(place / "story.txt").read_text()))
    starts = np.sort(np.random.default_rng(0).choice(len(text) - 11, 3, replace=False))
    initial = measure_sinks(CFG, init_seed(CFG, 7), np.stack([text[start : start + 12] for start in starts]))
    assert rows[0]["largest_score"][1] == pytest.approx(initial["score_LH"].max(), rel=1e-5)


def test_untrained_model_has_no_steps(capsys):
    assert run(["sinks", "seed:1@llama-tiny", "--text", "builtin:prose", "--tokenizer", "bytes", "--by-step"]) == 2
    assert "has no steps to follow" in capsys.readouterr().err
