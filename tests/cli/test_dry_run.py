"""``--dry-run``: operations and memory by the formulas, nothing run or written, bad input refused as without it."""

import json

import pytest

from bornbiased_jax import hardware, io
from bornbiased_jax.checkpoints.formats.run import FOLDER
from bornbiased_jax.cli import dry_run
from bornbiased_jax.cli.main import run
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import parameter_shapes
from bornbiased_jax.parameters import count_parameters
from bornbiased_jax.probes.inputs import random_tokens
from bornbiased_jax.probes.measure import check_probe
from bornbiased_jax.training import PretrainConfig
from bornbiased_jax.training.memory import check_memory

SIZES = {"num_layers": 3, "d_model": 24, "num_heads": 2, "num_kv_heads": 1, "d_ff": 40, "vocab_size": 301}
SET = " ".join(f"--set {name}={value}" for name, value in SIZES.items())
CFG = preset("llama-tiny", **SIZES)
MODEL = f"--model llama-tiny {SET}"
PROBE = f"{MODEL} --seeds 0:5,2 --seq-len 7,18 --num-inputs 11"
TRAIN = f"pretrain {MODEL} --data builtin:prose --out run --steps 6 --batch-size 4 --context 10 --seeds 3,4"


def dry(words, capsys):
    assert run([*words.split(), "--dry-run", "--json", "-"]) == 0
    needed = json.loads(capsys.readouterr().out)
    return {name: needed[name] for name in ("operations", "bytes", "parameters", "memory")}


def block_operations(T):
    """Additions and multiplications of one block.

    Four projections (keys and values of one head), a gated MLP of three matrices, and a causal half of attention's
    square, for scores and for their mean of values.
    """
    matrices = 2 * 24 * 24 + 2 * 24 * 12 + 3 * 24 * 40
    return 2 * (T * matrices + T * (T + 1) // 2 * 2 * 24)


def last_position_operations(T):
    """The last block where one position is wanted: keys and values of all positions, everything else once."""
    return 2 * (T * 2 * 24 * 12 + 2 * 24 * 24 + 3 * 24 * 40 + T * 2 * 24)


@pytest.mark.parametrize("part", ["preference", "contraction"])
def test_probe_operations_are_the_formula_at_a_held_out_shape(part, capsys):
    """Five different seeds, eleven inputs of each of two lengths, and the head at one position."""
    plan = dry(f"probe {part} {PROBE}", capsys)
    last = last_position_operations if part == "preference" else block_operations
    by_hand = sum(5 * 11 * (2 * block_operations(T) + last(T) + 2 * 24 * 301) for T in (7, 18))
    assert plan["operations"] == by_hand
    assert plan["parameters"] == count_parameters(parameter_shapes(CFG))


def test_pretrain_operations_are_six_for_each_weight_and_token(capsys):
    plan = dry(TRAIN, capsys)
    matrices = 3 * (2 * 24 * 24 + 2 * 24 * 12 + 3 * 24 * 40) + 24 * 301
    attention = 12 * 3 * 24 * 11 / 2
    assert plan["operations"] == pytest.approx(2 * 6 * 4 * 10 * (6 * matrices + attention))


@pytest.mark.parametrize(("saved", "left"), [((0,), 6), ((0, 2, 4), 2), ((0, 6), 0), ((0, 8), 0)])
def test_operations_of_a_run_that_resumes_are_those_of_the_steps_left(saved, left, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    all_steps = dry(TRAIN, capsys)
    settings = []
    monkeypatch.setattr(dry_run, "check_folder", settings.append)
    assert dry(TRAIN, capsys) == all_steps
    record = {"config": settings[0].to_dict(), "steps": 6, "tokens_digest": "", "initial_digest": None}
    io.write_json("run/run.json", record)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    for step in saved:
        (tmp_path / "run" / FOLDER / str(step)).mkdir(parents=True)
    assert dry(TRAIN, capsys) == all_steps | {"operations": all_steps["operations"] * left / 6}


def refused_below(check, number, monkeypatch):
    """Return whether ``number`` bytes are where the command's own check begins to refuse."""
    monkeypatch.setattr(hardware, "device_memory", lambda: number)
    check()
    monkeypatch.setattr(hardware, "device_memory", lambda: number - 1)
    with pytest.raises(InputError, match="of memory"):
        check()


LARGE = "--model gpt2-tiny --set num_layers=2 --set d_model=512 --set d_ff=2048"


def test_probe_memory_is_what_the_probe_checks(monkeypatch, capsys):
    plan = dry(f"probe preference {LARGE} --seeds 0:9 --seq-len 64,512 --num-inputs 100 --batch-size 20", capsys)
    cfg = preset("gpt2-tiny", num_layers=2, d_model=512, d_ff=2048)
    assert plan["bytes"] == sum(plan["memory"].values()) and set(plan["memory"]) == {"weights", "state", "batch"}
    inputs = random_tokens(100, 512, cfg.vocab_size)
    refused_below(lambda: check_probe(cfg, 20, inputs, is_untrained=True), plan["bytes"], monkeypatch)


def test_pretrain_memory_is_what_the_run_checks(monkeypatch, capsys):
    plan = dry(f"pretrain {LARGE} --data builtin:prose --out run --steps 6 --context 512 --seeds 3,4", capsys)
    cfg = preset("gpt2-tiny", num_layers=2, d_model=512, d_ff=2048)
    config = PretrainConfig(cfg, "builtin:prose", "run", seeds=(3, 4), steps=6, context=512)
    refused_below(lambda: check_memory(config), plan["bytes"], monkeypatch)
    divided = dry(
        f"pretrain {LARGE} --data builtin:prose --out run --steps 6 --context 512 --seeds 3,4 --mesh fsdp=4", capsys
    )
    assert divided["memory"]["state"] == plan["memory"]["state"] / 4


def test_nothing_is_run_or_written(tmp_path, monkeypatch, capsys):
    """Not even the cache of texts and tokenizers; a model that no machine holds takes no memory either."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BORNBIASED_CACHE", str(tmp_path / "cache"))
    huge = "--model gpt2-1.2b --set num_layers=1000 --set d_model=16384 --set d_ff=65536"
    for words in (
        f"probe preference {huge} --seeds 0:100000 --seq-len 64 --num-inputs 2000 --resume kept --theory",
        f"probe contraction {MODEL} --seq-len 8 --num-inputs 4 --inputs builtin:prose --tokenizer bpe:300",
        "probe preference --checkpoint seed:0@llama-nano --seq-len 8 --num-inputs 4",
        f"pretrain {huge} --data builtin:prose --out run --steps 3 --mesh fsdp=64 --batch-size 64",
        f"{TRAIN} --coordinator h:1 --num-processes 2 --process-id 1",
    ):
        assert run([*words.split(), "--dry-run"]) == 0
        assert "memory in all" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_is_one_model_of_its_own_sizes(capsys):
    reference = "seed:0@llama-tiny," + ",".join(f"{name}={value}" for name, value in SIZES.items())
    first = dry(f"probe preference --checkpoint {reference} --seq-len 18 --num-inputs 11", capsys)
    assert first == dry(f"probe preference {MODEL} --seq-len 18 --num-inputs 11", capsys)


@pytest.mark.parametrize(
    "words",
    [
        f"probe preference {MODEL} --seq-len 8 --num-inputs 1",
        f"probe preference {MODEL} --seq-len 8 --num-inputs 4 --seeds 0..9",
        f"probe preference {MODEL} --seq-len 8,x --num-inputs 4",
        f"probe preference {MODEL} --seq-len 8 --num-inputs 4 --range 2",
        f"probe preference {MODEL} --seq-len 8 --num-inputs 4 --mesh x=2",
        f"probe preference {MODEL} --seq-len 8 --num-inputs 4 --coordinator h:1",
        f"probe preference {MODEL} --seq-len 8 --num-inputs 4 --coordinator h:1 --num-processes 2 --process-id 2",
        f"probe preference {MODEL} --seq-len 8 --num-inputs 4 --inputs words",
        f"probe preference {MODEL} --seq-len 8 --num-inputs 4 --inputs text:missing.txt",
        f"probe preference {MODEL} --seq-len 8 --num-inputs 4 --inputs builtin:verse",
        "probe preference --model gpt2-tiny --set positions=learned --seq-len 4096 --num-inputs 4",
        "probe contraction --model gpt3 --seq-len 8 --num-inputs 4",
        f"probe contraction --checkpoint seed:0@llama-tiny {MODEL} --seq-len 8 --num-inputs 4",
        "probe contraction --checkpoint missing --seq-len 8 --num-inputs 4",
        TRAIN.replace("builtin:prose", "missing.txt"),
        TRAIN.replace("builtin:prose", "builtin:verse"),
        f"{TRAIN} --accumulation 3",
        f"{TRAIN} --seeds 3,3",
        f"{TRAIN} --init-from seed:0@llama-tiny",
        f"{TRAIN} --seeds 3 --init-from seed:0@llama-tiny",
        TRAIN.replace("--out run", "--out file"),
    ],
)
def test_bad_input_is_refused_in_the_commands_own_words(words, tmp_path, monkeypatch, capsys, refused):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("in the way")
    dry_error = refused([*words.split(), "--dry-run"])
    assert run([*words.split(), "--quiet"]) == 2
    assert capsys.readouterr().err == dry_error and len(dry_error.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (TRAIN.replace("--steps 6", "--schedule seedprint --accumulation 2"), "give --steps"),
        ("probe preference --checkpoint hf:owner/name --seq-len 8 --num-inputs 4", "fetches nothing"),
        (f"{TRAIN} --mesh data=8", "4 sequences do not divide over data=8"),
    ],
)
def test_dry_run_refuses_unknown_sizes(words, sentence, refused):
    assert sentence in refused([*words.split(), "--dry-run"])
