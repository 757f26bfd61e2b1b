"""Two tools that can be installed, on the same pairs of disputed models as the experiment ``disputes``.

    python3.12 -m venv peers && peers/bin/pip install cisco-ai-provenance-kit==1.0.0 weightscope==0.4.3
    python -m benchmarks peers_in_disputes --peers peers/bin --json benchmarks/results/peers_in_disputes.json

The models of :mod:`experiments.lineage.disputes` are trained and written as Hugging Face directories: Qwen2's names
and biases; experts as Qwen2-MoE names them; the tensors of a vision tower under ``vision_tower.``; a tokenizer of bytes
next to each, with other ids where the suspect has another vocabulary. The tools read them offline, in their own
environment (:mod:`benchmarks.peer_scores`). Scores, ranks and levels are those of the experiment, fixed before any
number here was seen.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from benchmarks.recorded import Findings, command
from benchmarks.tables import BenchmarkRecord
from bornbiased_jax import io, progress
from bornbiased_jax.checkpoints import export_hugging_face
from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments.base import Context, Entry
from bornbiased_jax.experiments.lineage import disputes, disputes_tables
from bornbiased_jax.experiments.lineage.disputes_recipes import (
    KINDS,
    VOCABULARY,
    Release,
    make_disputes,
    vocabulary_order,
)
from bornbiased_jax.model import flatten, unflatten
from bornbiased_jax.record import jsonable
from bornbiased_jax.report.numbers import integer, significant
from bornbiased_jax.report.tables import Table, tabulate

CHILD = Path(__file__).with_name("peer_scores.py")
RELATED = {
    "Provenance Kit": ("Confirmed Match", "High-Confidence Match"),
    "Provenance Kit, weights alone": ("High-Confidence Match",),
    "weightscope (unchanged entries)": ("derived_from_base", "likely_descendant"),
}
"""Scores by name, with the tool's decisions that call two models related."""
OPTIONS = "--peers PEERS/bin "
_EXPERTS = "blocks/mlp/"


def write_release(folder: Path, release: Release, order_V: np.ndarray) -> Path:
    """Write a model as a Hugging Face directory: experts, a tower and its tokenizer with it.

    Args:
        folder: where it goes; made.
        release: the model.
        order_V: the id of each byte, and of what is not a byte.
    """
    flat = flatten(release.params)
    dense = release.cfg
    if dense.num_experts:
        # Written as the dense model with the first expert's MLP, which is then replaced by all of them.
        dense = dense.replace(num_experts=None)
        names = (name for name in flat if "router" not in name)
        first = {name: flat[name][:, 0] if name.startswith(_EXPERTS) else flat[name] for name in names}
        export_hugging_face(dense, unflatten(first), folder)
        _add_experts(folder, flat, release.cfg.num_experts)
    else:
        export_hugging_face(dense, release.params, folder)
    if release.tower is not None:
        with tempfile.TemporaryDirectory() as place:
            export_hugging_face(*release.tower, Path(place) / "tower")
            tower = load_file(Path(place) / "tower" / "model.safetensors")
        blocks = {f"vision_tower.{name}": tensor for name, tensor in tower.items() if ".layers." in name}
        _rewrite(folder, load_file(folder / "model.safetensors") | blocks)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: int(order_V[index]) for index, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


def _rewrite(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _add_experts(folder: Path, flat: dict[str, np.ndarray], num_experts: int) -> None:
    """Replace the MLP of a written directory by experts and routers, in its tensors and its configuration."""
    tensors = {name: tensor for name, tensor in load_file(folder / "model.safetensors").items() if ".mlp." not in name}
    for path, leaf in flat.items():
        if not path.startswith(_EXPERTS):
            continue
        part = path.split("/")[2]
        for block, weights in enumerate(np.asarray(leaf)):
            place = f"model.layers.{block}.mlp"
            if part == "router":
                tensors[f"{place}.gate.weight"] = np.ascontiguousarray(weights.T)
                continue
            for expert, matrix in enumerate(weights):
                tensors[f"{place}.experts.{expert}.{part}_proj.weight"] = np.ascontiguousarray(matrix.T)
    _rewrite(folder, tensors)
    config = io.read_json(folder / "config.json")
    config |= {
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "num_experts": num_experts,
        "moe_intermediate_size": config["intermediate_size"],
    }
    (folder / "config.json").write_text(json.dumps(config))


def write_disputes(settings: Entry, folder: Path) -> list[tuple[disputes.DisputePair, Path, Path]]:
    """Train and write every model once; list the pairs with their directories, bases first."""
    by_kind = make_disputes(Context(scale="", settings=settings, work=folder / "training"))
    same_V = np.arange(settings["changes"]["vocab_size"])
    paths: dict[Release, Path] = {}
    for kind in KINDS:
        suspects = by_kind[kind].suspects
        for release in (*by_kind[kind].bases, *suspects):
            if release not in paths:
                is_renamed = kind == VOCABULARY and release in suspects
                order_V = vocabulary_order(same_V.size) if is_renamed else same_V
                paths[release] = write_release(folder / "models" / str(len(paths)), release, order_V)
    return [
        (pair, paths[by_kind[pair.kind].bases[pair.base]], paths[by_kind[pair.kind].suspects[pair.suspect]])
        for pair in disputes.pairs_of(settings["models"])
    ]


def score(peers: Path, pairs: Sequence[tuple[Path, Path]], folder: Path) -> Entry:
    """Have both tools score pairs of directories, offline and in their own environment.

    Returns:
        What :mod:`benchmarks.peer_scores` writes: ``versions`` of the tools, ``rows`` in the order of the pairs.

    Raises:
        InputError: that environment cannot run them; its last line is told.
    """
    pairs_file, scores_file = folder / "pairs.json", folder / "scores.json"
    io.write_json(pairs_file, [[str(path) for path in pair] for pair in pairs])
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    offline.pop("PYTHONPATH", None)
    words = [str(peers / "python"), str(CHILD), str(pairs_file), str(scores_file)]
    run = subprocess.run(words, env=offline, capture_output=True, text=True)
    if run.returncode != 0:
        raise InputError(f"{peers}/python {CHILD.name} failed: {(run.stderr.strip().splitlines() or [''])[-1]}")
    scored: Entry = io.read_json(scores_file)
    return scored


def measure(folder: Path, peers: str, scale: str = "laptop") -> Findings:
    """Score the pairs of the experiment ``disputes`` with Provenance Kit and weightscope, summarized as there.

    Args:
        folder: For the models.
        peers: Folder of the programs of an environment in which both tools are installed.
        scale: Of the experiment's settings.
    """
    settings = disputes.EXPERIMENT.settings[scale]
    pairs = write_disputes(settings, folder)
    progress.note(f"scoring {len(pairs):,} pairs")
    scored = score(Path(peers), [(base, suspect) for _, base, suspect in pairs], folder)
    rows: list[Entry] = [
        {**pair._asdict(), "scores": {name: entry["score"] for name, entry in row.items()}, "decisions": row}
        for (pair, _, _), row in zip(pairs, scored["rows"], strict=True)
    ]
    tests = [disputes.summarize(name, "installed tool", rows, settings["models"]) for name in RELATED]
    findings: Findings = {
        "settings": settings,
        "versions": scored["versions"],
        "tests": [
            test | _ends(test["test"], rows) | {"decisions": _called_related(test["test"], rows)} for test in tests
        ],
    }
    return jsonable(findings)


def _ends(name: str, rows: Sequence[Entry]) -> Findings:
    """Return the least score of a guilty pair and the largest of an innocent one; None without any score."""
    scored = [(row["base"] == row["suspect"], row["scores"][name]) for row in rows if row["scores"][name] is not None]
    return {
        "least_guilty": min((score for is_guilty, score in scored if is_guilty), default=None),
        "largest_innocent": max((score for is_guilty, score in scored if not is_guilty), default=None),
    }


def _called_related(name: str, rows: Sequence[Entry]) -> list[Findings]:
    """Count the pairs of each kind that the tool's own decision calls related."""

    def count(kind: str, is_guilty: bool) -> int:
        of_kind = (row for row in rows if row["kind"] == kind and (row["base"] == row["suspect"]) is is_guilty)
        return sum(row["decisions"][name]["decision"] in RELATED[name] for row in of_kind)

    return [{"kind": kind, "guilty": count(kind, True), "innocent": count(kind, False)} for kind in KINDS]


def tables(record: BenchmarkRecord) -> list[Table]:
    """Tabulate the scores of installed tools, what they decide, and the area under the curve by kind."""
    tests, settings = record["tests"], record["settings"]
    kinds, count = len(tests[0]["kinds"]), settings["models"]
    guilty, innocent = kinds * count, kinds * count * (count - 1)
    decisions = [
        (
            [test["test"]],
            {
                f"of {guilty} guilty pairs": (integer, sum(kind["guilty"] for kind in test["decisions"])),
                f"of {innocent:,} innocent pairs": (integer, sum(kind["innocent"] for kind in test["decisions"])),
                "least score of a guilty pair": (significant(2), test["least_guilty"]),
                "largest of an innocent pair": (significant(2), test["largest_innocent"]),
            },
        )
        for test in tests
    ]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    note = (
        f"{versions}. Called “Confirmed Match” or “High-Confidence Match” (weights alone: the second, by the "
        "tool's own limit of 0.75); “derived_from_base” or “likely_descendant” by `weightscope lineage`."
    )
    called = tabulate("Pairs that installed tools call related", ["score"], decisions, note)
    return [disputes_tables.scores(tests), called, disputes_tables.areas(tests)]


main = functools.partial(command, measure, precision="float32")
