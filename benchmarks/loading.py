"""The most memory that each command takes which reads one checkpoint for inference, against that of its weights.

    python -m benchmarks loading --checkpoint FILE --text FILE --json benchmarks/results/loading.json

Each command runs in a process of its own. Wanted is at most 1.25 times the weights in float32 plus half a gigabyte.
Those that can read a model block by block run again with --stream.
"""

from __future__ import annotations

import functools
from pathlib import Path

from benchmarks.child import run_child
from benchmarks.recorded import Findings
from benchmarks.recorded import command as run_command
from benchmarks.tables import entries
from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.model.memory import weights_bytes

FACTOR, CONSTANT = 1.25, 0.5e9
LENGTH, SEQUENCES = 32, 4
STREAM = " --stream"
STREAMED = ("fingerprint", "evaluate", "sinks")


def calls(checkpoint: str, text: str, folder: Path) -> dict[str, list[str]]:
    """List the commands, on little text: what they take beyond the weights is not to come from the size of a batch."""
    cut = ["--num-sequences", str(SEQUENCES), "--quiet"]
    sizes = ["--num-inputs", str(SEQUENCES), "--seq-len", str(LENGTH), "--quiet"]
    commands = {
        "sinks": [checkpoint, "--text", text, "--lengths", str(LENGTH), *cut],
        "evaluate": [checkpoint, "--text", text, "--context", str(LENGTH), *cut],
        "fingerprint": [checkpoint, "--outputs", *sizes, "--out", str(folder / "a.fingerprint")],
        "probe preference": ["--checkpoint", checkpoint, *sizes],
        "probe contraction": ["--checkpoint", checkpoint, *sizes],
        "digest": [checkpoint],
        "generate": [checkpoint, "--prompt", "Once", "--max-new-tokens", "4"],
        "intervene": [checkpoint, "--text", text, "--silence", "blocks/1/mlp:0", "--length", str(LENGTH),
                      "--num-sequences", str(SEQUENCES), "--quiet"],
    }  # fmt: skip
    stream_options = ["--stream", "--scratch", str(folder / "scratch")]
    return commands | {f"{name}{STREAM}": [*commands[name], *stream_options] for name in STREAMED}


def measure(folder: Path, checkpoint: str, text: str, command: tuple[str, ...] = ()) -> Findings:
    """Measure the most memory of each command that reads a checkpoint for inference.

    Args:
        folder: For what commands write.
        checkpoint: The model.
        text: A text file, for commands that read one.
        command: Only these, separated by commas.
    """
    weights = weights_bytes(open_checkpoint(checkpoint).cfg)
    resources: Findings = {}
    for name, words in calls(checkpoint, text, folder).items():
        if not command or name in command:
            child = run_child("bornbiased_jax", [*name.removesuffix(STREAM).split(), *words])
            del child["result"]
            resources[name] = {**child, "over_weights": child["peak_bytes"] / weights}
    return {
        "model": Path(checkpoint).name,
        "weights_bytes": weights,
        "goal_bytes": FACTOR * weights + CONSTANT,
        "commands": resources,
    }


OPTIONS = "--checkpoint FILE --text FILE "
tables = functools.partial(
    entries,
    title="Memory of commands that read one checkpoint",
    each="commands",
    columns={"command": "{name}", "most memory": "{peak_bytes:GB}", "over its weights": "{over_weights:times:2}"},
    note="{model}: {weights_bytes:GB} of weights in float32. Wanted: at most {goal_bytes:GB}.",
)

main = functools.partial(run_command, measure)
