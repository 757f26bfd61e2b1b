"""An option that would change nothing beside the others is refused by name, before any work."""

import json

import pytest

from bornbiased_jax.cli.options import swept_configs

SMALL = "num_layers=1,num_heads=2,d_model=8,d_ff=8,vocab_size=300,max_seq_len=64"
INITIAL = f"seed:1@llama-tiny,{SMALL}"
MODEL = ["--model", "llama-tiny", *(word for setting in SMALL.split(",") for word in ("--set", setting))]
SIZES = ["--num-inputs", "4", "--seq-len", "4"]
PROBE = ["probe", "preference", *MODEL, *SIZES]
OF_CHECKPOINT = ["probe", "preference", "--checkpoint", INITIAL, *SIZES]
PREDICT = ["predict", *MODEL, "--seq-len", "4"]
PAIR = ["seedprint", INITIAL, INITIAL.replace("seed:1", "seed:2")]

ROWS = {
    "weights of a tied head": ([*PROBE, "--set", "tie_embeddings=true", "--set", "init.head=zeros"], "the embedding"),
    "weights of no gate": ([*PREDICT, "--set", "gated_mlp=false", "--sweep", "init.gate=zeros,ones"], "the group gate"),
    "weights of no prefix": ([*PREDICT, "--set", "init_groups=down=zeros;prefix=zeros"], "the group prefix"),
    "factor of no scaling": (
        [*PROBE, "--set", "rope_scaling_factor=8"],
        "where rope_scaling=none: set rope_scaling too",
    ),
    "window of no attention": ([*PROBE, "--set", "attention=false", "--set", "window=3"], "where attention=false"),
    "base of no rotation": ([*PREDICT, "--set", "positions=none", "--set", "rope_theta=5"], "where positions=none"),
    "scope of no norm": ([*PROBE, "--set", "qk_norm_scope=projection"], "where qk_norm=false"),
    "experts of no mixture": ([*PREDICT, "--sweep", "experts_per_token=1,2"], "where num_experts=null"),
    "tokenizer": ([*PROBE, "--tokenizer", "bytes"], "leave --tokenizer out"),
    "seed of a text": ([*PROBE, "--inputs", "text:text.txt", "--input-seed", "3"], "is read as it stands"),
    "tables of each seed": ([*PROBE, "--no-fix-embeddings", "--embedding-seed", "3"], "leave --no-fix-embeddings out"),
    "tables of a checkpoint": ([*OF_CHECKPOINT, "--embedding-seed", "3"], "a checkpoint has its embeddings"),
    "own tables of a checkpoint": ([*OF_CHECKPOINT, "--no-fix-embeddings"], "a checkpoint has its embeddings"),
    "seeds at once": ([*OF_CHECKPOINT, "--chunk", "2"], "a checkpoint is one model: leave --chunk out"),
    "seeds in turn": ([*OF_CHECKPOINT, "--mode", "map"], "a checkpoint is one model: leave --mode out"),
    "inputs cut for several seeds": ([*PROBE, "--seeds", "0:2", "--mesh", "data=2"], "so name seed=N"),
    "inputs cut for an experiment": (["reproduce", "demo", "--mesh", "fsdp=2", "--out", "o"], "so name seed=N"),
    "processes of an experiment": (
        ["reproduce", "demo", "--coordinator", "h:1", "--num-processes", "2", "--process-id", "0", "--out", "o"],
        "start each process on its own with the same --out",
    ),
    "seeds cut for one model": ([*OF_CHECKPOINT, "--mesh", "seed=2"], "so name data=N or fsdp=N"),
    "end of a constant rate": (
        [
            "pretrain",
            *MODEL,
            "--data",
            "text.txt",
            "--out",
            "run",
            "--schedule",
            "constant",
            "--min-learning-rate",
            "0.1",
        ],
        "--schedule constant keeps it",
    ),
    "roles without a folder": ([*PAIR, "--roles", "roles.json"], "is a folder of weights, which --roles is for"),
    "numbers on standard output": ([*PREDICT, "--csv", "-"], "only --json writes to: name a file"),
    "fingerprint on standard output": (["fingerprint", INITIAL, "--out", "-"], "only --json writes to: name a file"),
    "report on standard output": (["audit", ".", "--report", "-"], "only --json writes to: name a file"),
    "range of torch": (
        ["whichseed", INITIAL, "--framework", "torch", "--seeds", "0:2", "--range", "10"],
        "leave --resume, --range, --engine and --entries out",
    ),
    "gradients": ([*PREDICT, "--inputs", "gaussian", "--gradients"], "leave --inputs out"),
    "diagram": ([*PREDICT, "--inputs", "gaussian", "--diagram", "--page", "d.html"], "leave --inputs out"),
    "frozen": (["audit", "listing.json", "--frozen", "embed"], "only digests are read"),
    "frozen on the hub": (["audit", "hf:nobody/nothing*", "--frozen", "embed"], "only digests are read"),
    "inputs of weights": ([*PAIR, "--test", "weights", "--num-inputs", "50"], "--test weights computes no outputs"),
    "vocabulary of vectors": ([*PAIR, "--inputs", "gaussian", "--vocab-size", "9"], "gaussian inputs are vectors"),
    "vocabulary of stored vectors": (
        ["fingerprint", INITIAL, "--outputs", *SIZES, "--inputs", "gaussian", "--vocab-size", "9", "--out", "a"],
        "gaussian inputs are vectors",
    ),
}


@pytest.mark.parametrize(("call", "words"), ROWS.values(), ids=list(ROWS))
def test_an_option_that_changes_nothing_is_refused(call, words, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("the bird and the river under the sun\n" * 50)
    entry = {"path": "model.safetensors", "oid": "0" * 40}
    (tmp_path / "listing.json").write_text(json.dumps({"revisions": {"step0": [entry], "step1": [entry]}}))
    error = refused(call)
    assert words in error and error.count("\n") == 1, error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["listing.json", "text.txt"]


def test_a_setting_that_some_values_of_a_sweep_read_is_taken():
    configs = swept_configs("llama-tiny", ["rope_scaling_factor=8", "init_groups=null"], "rope_scaling=none,linear")
    assert [label for _, label in configs] == [{"rope_scaling": "none"}, {"rope_scaling": "linear"}]
