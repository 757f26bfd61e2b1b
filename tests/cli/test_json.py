"""Every command has --json: one object of what it did or found, in a file or alone on standard output."""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bornbiased_jax import results
from bornbiased_jax.cli.main import run
from bornbiased_jax.config import preset
from bornbiased_jax.experiments.runner import Outcome
from bornbiased_jax.lineage.fingerprint_pass import WeightsDigests
from bornbiased_jax.lineage.scan import ScanResult
from bornbiased_jax.lineage.verdict import undefined
from bornbiased_jax.results import initialization, lineage_reports, run_reports
from bornbiased_jax.training.scaling import Scaling
from tests.cli.commands import commands, locate
from tests.cli.option_rows import CALLS

SUMMARY = {"out": "runs/a", "steps": 3, "step": 3, "finished": True, "loss": [4.5], "validation_loss": None}
SUMMARY |= {"tokens": 96, "peak_share": None}
PRINT = SimpleNamespace(
    outputs_ND=np.zeros((4, 8)),
    source="a birth",
    layer=None,
    inputs={"kind": "tokens"},
    weights_digest="ab",
    storage="float32",
)
OUTCOME = Outcome(page=Path("out/index.html"), done=("table1",), kept=(), failed={}, at_fault=False)
SEARCHED = {"seed": None, "p_value": None, "num_seeds": 10, "reason": "none fits", "confirmed": None}
FOUND = SimpleNamespace(seed=None, to_json=lambda: SEARCHED)
PARITY = {"max_abs_error": 0.0, "logit_std": 1.0, "top1_agreement": 1.0, "num_tokens": 8, "transformers": "5"}
EVALUATED = {
    "perplexity": 9.0,
    "bits_per_byte": 2.0,
    "context": 8,
    "num_tokens": 28,
    "num_sequences": 4,
    "training_text": None,
}
CHECKPOINT = SimpleNamespace(
    cfg=preset("gpt2-tiny"), tokenizer=None, tokenizer_files=(), files=(), notes=(), reference="m", description="m"
)
CHECKPOINT.info, CHECKPOINT.digest, CHECKPOINT.tensor_digests = {}, lambda: "ab", dict
CHECKPOINT.close = CHECKPOINT.params = lambda: None
CHECKPOINT.config, CHECKPOINT.tensors = CHECKPOINT.cfg, list
CHECKPOINT.by_role = lambda: SimpleNamespace(config=None)
RECORD = {"seed": 0, "seq_len": 8, "num_inputs": 4, "preference": {"top1_id": 1, "top1_count": 2, "top1_share": 0.5}}
RECORD["preference"] |= {"ratio_to_uniform": 2.0, "log10_p": 0.0}
RECORD["contraction"] = {"inter_cosine_by_layer": [0.5], "intra_cosine_by_layer": [0.5], "inter_cosine_final": 0.5}
RECORD["contraction"] |= {"log10_p": -1.0}
VERDICT = undefined("permutation", "r", num_inputs=4, alpha=0.01)
SINKS = {
    "sink_rate": {"8": 0.5},
    "num_sequences": 4,
    "sink_rate_of_average": {"8": 0.0},
    "position": 1,
    "epsilon": 0.25,
}
SINKS["score_by_layer_head"] = {"8": [[0.125, 0.25], [0.375, 0.0]]}
SINKS["outliers"] = {"layers": [{"block": 1, "largest": 2.0}, {"block": 2, "largest": 7.0}]}
for entry in SINKS["outliers"]["layers"]:
    entry |= {"position": 3, "channel": 0, "dom_ratio_first": 1.0, "dom_ratio_rest": 1.0, "effective_rank": 2.0}
SINKS["super_neurons"] = [{"super": True, "block": 2, "neuron": 0, "channel": 0, "write": 9.0, "channel_share": 0.5}]
SINKS["super_neurons"][0]["firing_ratio"] = None
INTERVENED = {"sink_rate": 0.25, "by_block": [0.5, 0.0], "loss": 3.0, "position": 1, "epsilon": 0.25}
INTERVENED |= {"before": {"sink_rate": 0.5, "by_block": [1.0, 0.0], "loss": 2.5}, "interventions": {}}
DERIVED = SimpleNamespace(cfg=preset("gpt2-tiny"), params=None, preserved=False, logit_difference=None)
DERIVED.base_digest, DERIVED.digest, DERIVED.tokenizer = "ab", "ab", None
AUDITED = {"source": "folder", "basis": "weights", "clean": True, "graph": {"nodes": [], "edges": []}}
AUDITED |= {name: [] for name in ("findings", "checkpoints", "pairs", "runs")}
LEDGER = {"folder": "folder", "done": 0, "asked": 0, "failed": 0, "pages": []}
# What stands in for the work: the place, and what it returns.
WORK = {
    "bornbiased_jax.checkpoints:open_checkpoint": CHECKPOINT,
    "bornbiased_jax.checkpoints.by_role:read_by_role": SimpleNamespace(description="m", config=None),
    "bornbiased_jax.lineage.fingerprint_pass:weights_digests": WeightsDigests({}, {}),
    "bornbiased_jax.lineage.compared_model:weights_digests": WeightsDigests({}, {}),
    "bornbiased_jax.lineage.fingerprint_pass:fingerprint": SimpleNamespace(repeats=()),
    "bornbiased_jax.probes.run:probe": [RECORD],
    "bornbiased_jax.evaluation.generation:generate_text": ([1, 2], "Once more"),
    "bornbiased_jax.evaluation.parity:parity": PARITY,
    "bornbiased_jax.evaluation.perplexity:evaluate_checkpoint": EVALUATED,
    "bornbiased_jax.evaluation.sink_report:sinks_report": SINKS,
    "bornbiased_jax.evaluation.intervention:intervene_checkpoint": INTERVENED,
    "bornbiased_jax.lineage.output_fingerprint:fingerprint_outputs": PRINT,
    "bornbiased_jax.lineage.output_fingerprint:save_outputs": None,
    "bornbiased_jax.lineage.compare:compare": VERDICT,
    "bornbiased_jax.lineage.scan:scan": ScanResult("model.gguf", "ab", 1e-4, (), 0),
    "bornbiased_jax.lineage.whichseed:which_seed": FOUND,
    "bornbiased_jax.lineage.torch_seeds:which_torch_seed": FOUND,
    "bornbiased_jax.training:pretrain": SUMMARY,
    "bornbiased_jax.training.scaling:scaling": Scaling((64, 128), 2, "adamw", ()),
    "bornbiased_jax.training:list_runs": [],
    "bornbiased_jax.training:plot_run": Path("runs/a/curves.png"),
    "bornbiased_jax.checkpoints:export_hugging_face": "gpt2",
    "bornbiased_jax.derive.derive:derive": DERIVED,
    "bornbiased_jax.derive.tune:adapt": SUMMARY,
    "bornbiased_jax.lineage.audit.audit:audit_folder": AUDITED,
    "bornbiased_jax.experiments.runner:reproduce": OUTCOME,
    "bornbiased_jax.store:status": LEDGER,
}
KEYS = {
    "models": {"models", "fields"},
    "probe preference": {"records", "provenance"},
    "probe contraction": {"records", "provenance"},
    "probe scaling": {"rows", "widths", "num_seeds", "optimizer", "base_width", "mup_holds", "model"},
    "predict": {"inter_cosine_by_layer", "top1_share_mean", "position_std"},
    "generate": {"ids", "text"},
    "parity": {"max_abs_error"},
    "evaluate": {"perplexity", "bits_per_byte"},
    "sinks": {"sink_rate"},
    "intervene": {"sink_rate", "by_block", "loss", "before", "interventions"},
    "fingerprint": {"out", "num_outputs", "width", "inputs", "weights_digest"},
    "seedprint": {"verdict", "reason", "p_value", "base_digest", "suspect_digest", "committed", "models"},
    "scan": {"suspect", "suspect_digest", "matches", "num_bases", "num_tested", "alpha"},
    "whichseed": {"suspect", "seed", "p_value"},
    "digest": {"digest", "checkpoint", "tensors"},
    "init-scheme": {"groups", "nearest_scheme", "runner_up", "fits", "repeats"},
    "pretrain": {"out", "step", "finished", "loss"},
    "runs": {"runs"},
    "plot": {"image"},
    "export": {"checkpoint", "directory", "family"},
    "adapt": {"out", "step", "finished", "loss"},
    "derive": {"checkpoint", "changes", "out", "function_preserved", "base_digest", "digest"},
    "audit": {"clean", "findings", "checkpoints", "pairs"},
    "doctor": {"version", "python", "libraries", "devices", "memory_bytes", "cache", "extras", "problems"},
    "reproduce": {"page", "scale", "done", "kept", "failed"},
    "status": {"done", "asked", "failed", "pages"},
}

# A command's result from what it writes.
RESULTS = {
    "scan": lambda value: results.Scan(
        ScanResult(value["suspect"], value["suspect_digest"], value["alpha"], (), value["num_tested"])
    ),
    "probe preference": lambda value: results.Preference(value["records"], value["model"]),
    "probe contraction": lambda value: results.Contraction(value["records"]),
    "predict": lambda value: results.Prediction("gpt2-tiny", value["model"], [value]),
    "probe scaling": initialization.WidthCheck,
    "sinks": results.Sinks,
    "intervene": results.Intervention,
    "pretrain": results.Training,
    "adapt": results.Training,
    "seedprint": lambda value: results.Lineage("a", "b", VERDICT),
    "models": lineage_reports.Models,
    "fingerprint": lineage_reports.OutputFile,
    "init-scheme": lineage_reports.InitScheme,
    "whichseed": lineage_reports.WhichSeed,
    "digest": lineage_reports.Digest,
    "derive": lineage_reports.Descendant,
    "audit": lineage_reports.Audit,
    "generate": run_reports.Generation,
    "parity": run_reports.Parity,
    "evaluate": run_reports.Evaluation,
    "runs": run_reports.Runs,
    "plot": run_reports.Curves,
    "export": run_reports.Export,
    "reproduce": run_reports.Reproduction,
    "status": run_reports.StoreStatus,
    "doctor": run_reports.Diagnosis,
}
# Commands on one model, all of whose fields they write.
WITH_MODEL = {
    *("probe preference", "probe contraction", "predict", "generate", "parity", "evaluate", "sinks", "intervene"),
    *("fingerprint", "whichseed", "init-scheme", "pretrain", "adapt", "derive", "export"),
}


@pytest.mark.slow
@pytest.mark.parametrize("path", KEYS)
def test_every_command_writes_one_object(path, monkeypatch, tmp_path, capsys):
    assert set(KEYS) == set(commands())
    monkeypatch.chdir(tmp_path)
    for place, value in WORK.items():
        monkeypatch.setattr(*locate(place), lambda *unused, value=value, **ignored: value)
    call = CALLS[path].split()
    assert run([*call, "--json", "-"]) == 0
    spoken = json.loads(capsys.readouterr().out)
    assert KEYS[path] | {"command", "provenance"} <= set(spoken)
    assert sorted(shlex.split(spoken["command"])) == sorted(["bornbiased", *call])
    assert spoken["provenance"]["version"]
    if path in WITH_MODEL:
        assert spoken["model"]["d_model"] == 128
    assert run([*call, "--json", "kept.json"]) == 0
    written = json.loads((tmp_path / "kept.json").read_text())
    assert set(written) == set(spoken)
    told = capsys.readouterr()
    assert told.out
    # The sentences are those of what --json wrote.
    assert " ".join(RESULTS[path](written).summary()) in told.out + told.err
    assert run([*call, "--help"]) == 0
    assert "--json FILE" in capsys.readouterr().out


def test_the_list_is_of_the_experiments_that_are_named(capsys):
    assert run(["reproduce", "table1", "demo", "--list", "--json", "-"]) == 0
    listed = json.loads(capsys.readouterr().out)
    names = [row["name"] for row in listed["experiments"]]
    assert listed["scale"] == "laptop" and {"name", "paper", "title", "cost"} == set(listed["experiments"][0])
    assert names[0] == "table1" and len(names) == 5 and all(name.startswith("demo_") for name in names[1:])


def test_sink_json_numbers_blocks_from_one(monkeypatch, capsys):
    """The strongest head, the block where the stream is largest, and a super neuron's; neurons count from 0."""
    for place, value in WORK.items():
        monkeypatch.setattr(*locate(place), lambda *unused, value=value, **ignored: value)
    assert run(["sinks", "model.gguf", "--text", "wiki.txt", "--quiet"]) == 0
    lines = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    assert ["8", "0.5", "0", "0.375", "(block", "2,", "head", "1)"] in lines
    assert ["2", "3", "0", "7", "1", "1", "2"] in lines
    assert ["2", "0", "0", "9", "0.5", "only", "the", "first"] in lines


def test_runs_list_preset_loss_and_tokens(monkeypatch, capsys):
    told = {"path": "runs/a", "model": "4 layers", "preset": "gpt2-tiny", "data": "builtin:prose", "seeds": [1, 2]}
    told |= {"step": 2, "steps": 9, "loss": [4.25, 4.5], "tokens": 12_345, "checkpoints": [0], "finished": False}
    rows = [told, {**told, "preset": None, "loss": None}]
    monkeypatch.setattr(*locate("bornbiased_jax.training:list_runs"), lambda folder: rows)
    assert run(["runs", "runs"]) == 0
    first, second = (line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()[3:5])
    assert first == ["runs/a", "gpt2-tiny", "builtin:prose", "1,2", "2", "of", "9", "4.250,", "4.500", "12,345", "0"]
    assert second[1:3] == ["4", "layers"] and "–" in second
