"""What a command will need: by hand where that is possible, and refused as the command itself refuses."""

import json
import math

import pytest

from bornbiased_jax import hardware, plan
from bornbiased_jax.cli import plan as command
from bornbiased_jax.cli.main import run
from bornbiased_jax.config import preset
from bornbiased_jax.models.memory import forward_bytes, weights_bytes
from bornbiased_jax.models.operations import needed_operations
from bornbiased_jax.plan import rates
from bornbiased_jax.plan.needs import Part
from bornbiased_jax.pretrain.throughput import flops_per_token

BILLIONS = "llama-nano,num_layers=32,d_model=4096,num_heads=32,num_kv_heads=32,d_ff=11008"
LARGE = "llama-nano,num_layers=80,d_model=8192,num_heads=64,num_kv_heads=8,d_ff=28672"
PROBE = "probe preference --model gpt2-nano --seeds 0:10000 --seq-len 64 --num-inputs 2000"


def planned(words, capsys):
    assert run(["plan", *words.split(), "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def test_ten_thousand_seeds_on_an_accelerator(capsys):
    found = planned(f"--on h100 {PROBE}", capsys)
    cfg = preset("gpt2-nano")
    operations = 10_000 * 2_000 * needed_operations(cfg, 64)
    assert found["operations"] == pytest.approx(operations)
    assert found["seconds"] == pytest.approx(operations / (0.6 * 66.9e12))
    assert found["hours"] == pytest.approx(found["seconds"] / 3600)
    assert found["devices"] == 1 and found["fits"]
    assert weights_bytes(cfg) < found["memory_bytes"] < 10 * weights_bytes(cfg)
    assert found["assumed"] == {"fraction_of_peak": 0.6, "dtype": "float32"}


@pytest.mark.parametrize("model", [BILLIONS, LARGE])
def test_a_large_model_is_shared_by_as_few_devices_as_hold_it(model, capsys):
    found = planned(f"--on h100 fingerprint seed:0@{model} --num-inputs 2000 --out a", capsys)
    weights = next(row["bytes"] for row in found["memory"] if row["part"] == "weights")
    passes = next(row["bytes"] for row in found["memory"] if row["part"] == "forward passes")
    drawing = next(row["bytes"] for row in found["memory"] if row["part"] == "drawing them")
    whole, limit = weights * found["devices"], 0.9 * 80e9
    assert whole == pytest.approx(27e9 if model == BILLIONS else 276e9, rel=0.03)
    assert found["devices"] == math.ceil((weights + passes + drawing) * found["devices"] / limit)
    assert found["devices"] == (1 if model == BILLIONS else 7)
    assert found["memory_bytes"] <= limit
    assert found["seconds"] * found["devices"] == pytest.approx(found["operations"] / (0.6 * 66.9e12))
    # Each parameter is drawn where it will lie.
    assert found["host_memory_bytes"] < 1e9 < drawing


def test_a_billion_parameters_on_twenty_billion_tokens(capsys):
    words = "--model gpt2-1.2b --data none --out run --seeds 0:16 --steps 76294 --batch-size 128 --context 2048"
    found = planned(f"--on h100 pretrain {words} --dtype bfloat16", capsys)
    cfg = preset("gpt2-1.2b")
    assert found["operations"] == pytest.approx(16 * 76294 * 128 * 2048 * flops_per_token(cfg, 2048))
    assert found["device_hours"] == pytest.approx(found["operations"] / (0.4 * 989e12) / 3600)
    state = next(row["bytes"] for row in found["memory"] if row["part"].startswith("weights"))
    assert state * found["devices"] == pytest.approx((3 * 16 + 1) * weights_bytes(cfg))
    assert found["memory_bytes"] <= found["device_memory_bytes"]


def test_a_folder_with_a_configuration_alone_is_enough(tmp_path, capsys):
    """No weights are there to be read."""
    config = dict(model_type="llama", hidden_size=8192, num_hidden_layers=80, num_attention_heads=64,
                  num_key_value_heads=8, intermediate_size=28672, vocab_size=32000, rms_norm_eps=1e-5,
                  hidden_act="silu", max_position_embeddings=4096, tie_word_embeddings=False)  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = planned(f"--on h100 fingerprint {tmp_path} --out a", capsys)
    born = planned(f"--on h100 fingerprint seed:0@{LARGE} --out a", capsys)
    assert found["operations"] == born["operations"]
    # A file's tensors pass the host one by one; a birth's numbers take room where they are drawn.
    assert found["devices"] == 4 < born["devices"]
    assert 1e9 < found["host_memory_bytes"] < 5e9 and born["host_memory_bytes"] < 1e9
    assert "reading weights from disk" in found["left_out"] and "reading weights from disk" not in born["left_out"]


def test_bfloat16_and_streaming_hold_less(capsys):
    whole = planned(f"--on h100 fingerprint seed:0@{LARGE} --out a", capsys)
    streamed = planned(f"--on h100 fingerprint seed:0@{LARGE} --out a --stream", capsys)
    assert streamed["devices"] == 1 < whole["devices"]


def test_a_mesh_says_how_many_devices(capsys):
    found = planned(f"--on h100 fingerprint seed:0@{LARGE} --out a --mesh fsdp=8", capsys)
    assert found["devices"] == 8
    weights = next(row["bytes"] for row in found["memory"] if row["part"] == "weights")
    assert weights == pytest.approx(276e9 / 8, rel=0.03)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("probe preference --model gpt2-nano --seq-len 64", "Missing option '--num-inputs'"),
        ("probe preference --model gpt2-nano --seq-len 64 --num-inputs 9 --sedes 3", "No such option '--sedes'"),
        ("probe preference --model gpt3 --seq-len 64 --num-inputs 9", "gpt3"),
        ("probe preference --model gpt2-nano --seq-len 64 --num-inputs 9 --seeds 0..9", "is not of the form"),
        ("probe preference --model gpt2-nano --seq-len 64 --num-inputs 1", "at least 2"),
        ("fingerprint missing --out a", "does not exist"),
        ("fingerprint hf:owner/name --out a", "nothing is fetched"),
        ("sinks seed:1@llama-tiny --text a", "sinks cannot be planned"),
        ("seedprint seed:1@llama-tiny seed:2@llama-tiny --test rank", "cannot be planned"),
        ("pretrain --model llama-tiny --data a --out b --schedule seedprint", "give --steps"),
        ("doctor", "doctor cannot be planned"),
        ("nothing", "no command"),
        ("", "COMMAND"),
    ],
)
def test_what_the_command_would_refuse_is_refused(words, said, capsys):
    assert run(["plan", *words.split()]) == 2
    found = capsys.readouterr()
    assert said in found.err and len(found.err.strip().splitlines()) == 1 and not found.out


def test_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    planned(f"--on h100 {PROBE} --resume ledger", capsys)
    planned("--on h100 pretrain --model llama-tiny --data missing.txt --out run --steps 3", capsys)
    assert not list(tmp_path.iterdir())


def test_the_accelerators_are_the_tables():
    assert set(command.ACCELERATORS) == set(hardware.ACCELERATORS)


@pytest.mark.parametrize("model", ["gpt2-tiny", "gpt2-nano", "gpt2-1.2b", "qwen-nano"])
def test_what_is_timed_is_a_model_of_the_same_kind(model):
    cfg = preset(model)
    small = rates.narrowed(cfg)
    assert small.num_layers <= 2 and small.vocab_size <= rates.VOCABULARY
    assert small.num_heads % small.kv_heads == 0 and small.key_dim == cfg.key_dim
    blocks = weights_bytes(small) / 4 - 2 * small.vocab_size * small.d_model
    assert blocks <= 2 * rates.BLOCK
    assert small.d_ff / small.d_model == pytest.approx(cfg.d_ff / cfg.d_model, rel=0.2)


def test_tests_of_weights_stay_on_the_host(monkeypatch, capsys):
    known = rates.Measured({"products": 1e11, "permutations": 1e8, "draws one by one": 1e8}, 3e8, "two blocks")
    monkeypatch.setattr(rates, "measure", lambda needs: known)
    words = f"--on h100 seedprint seed:0@{LARGE} seed:1@{LARGE} --test"
    coordinates, battery = (planned(f"{words} {test}", capsys) for test in ("weights", "auto"))
    assert coordinates["on"] == "this machine" and coordinates["host_only"]
    # 80 blocks of 104,448 rows and two vocabularies of 32,000, each D by D.
    assert coordinates["operations"] == pytest.approx(2 * 8192**2 * (80 * 104_448 + 64_000))
    assert battery["operations"] > 2 * coordinates["operations"]
    assert battery["memory_bytes"] > coordinates["memory_bytes"]


def test_births_are_drawn_for_a_test_of_weights_as_it_draws_them(monkeypatch, capsys):
    """One tensor at a time, where a forward pass has all of a birth drawn in one program."""
    drawn = []
    monkeypatch.setattr(rates, "_one_by_one", lambda cfg: drawn.append(cfg) or 1e3)
    words = "seedprint seed:0@llama-tiny seed:1@llama-tiny --test".split()
    found = {
        test: rates.measure(plan.needs_of(command.parsed((*words, test), None))).rates
        for test in ("weights", "permutation")
    }
    assert len(drawn) == 1 and found["weights"]["draws one by one"] == 1e3 < found["permutation"]["draws"]
    assert "draws" not in found["weights"] and "draws one by one" not in found["permutation"]


def test_processes_of_one_machine_have_their_memory_between_them(monkeypatch, capsys):
    known = rates.Measured({"forward passes": 1e11, "draws": 1e8}, 3e8, "two blocks")
    monkeypatch.setattr(rates, "measure", lambda needs: known)
    words = "probe preference --model gpt2-tiny --seq-len 8 --num-inputs 64 --seeds 0:4 --resume ledger"
    alone = planned(words, capsys)
    four = planned(f"{words} --engine processes --workers 4", capsys)
    assert four["memory_bytes"] == pytest.approx(4 * alone["memory_bytes"])
    assert {row["part"] for row in alone["times"]} == {"drawing births", "forward passes"}


def test_more_than_there_is_does_not_fit(monkeypatch, capsys):
    needs = plan.needs_of(command.parsed(("fingerprint", f"seed:0@{LARGE}", "--out", "a"), None))
    monkeypatch.setattr(hardware, "device_memory", lambda: None)
    monkeypatch.setattr(hardware, "available_memory", lambda: 2**33)
    found = plan.estimate(needs, {"forward passes": 1e11, "draws": 1e8}, process_bytes=3e8)
    assert found["fits"] is False and found["devices"] == 1 and found["devices_at_least"] > 276e9 / 2**33
    monkeypatch.setattr(hardware, "available_memory", lambda: 2**28)  # less than a process takes
    found = plan.estimate(needs, {"forward passes": 1e11, "draws": 1e8}, process_bytes=3e8)
    assert found["fits"] is False and found["devices_at_least"] is None


def test_memory_of_forward_passes_is_what_their_program_takes(monkeypatch):
    """A block of a stack is copied where it is applied: at one sequence there is hardly anything else."""
    shape = "seed:0@llama-tiny,num_layers=3,d_model=256,num_heads=4,num_kv_heads=4,d_ff=2048,vocab_size=512"
    words = ("fingerprint", shape, "--num-inputs", "2", "--batch-size", "1", "--seq-len", "8", "--out", "a")
    needs = plan.needs_of(command.parsed(words, None))
    block = 4 * (4 * 256**2 + 3 * 256 * 2048)
    (passes,) = (part.bytes for part in needs.memory if part.turn == "passes")
    taken = passes * rates.measure(needs).passes_take
    assert block <= taken <= 2 * block + 4 * passes and passes < block / 10
    # Streamed, the block is there alone.
    streamed = plan.needs_of(command.parsed((*words, "--stream"), None))
    assert streamed.streamed and rates.measure(streamed).passes_take == 1


def test_what_is_freed_before_the_passes_is_counted_where_they_do_not_fill_it():
    needs = plan.needs_of(command.parsed(("fingerprint", "seed:0@llama-tiny", "--out", "a"), None))
    memory = (
        Part("weights", 100.0),
        Part("drawing them", 50.0, turn="before"),
        Part("forward passes", 20.0, turn="passes"),
    )
    needs = needs._replace(memory=memory, devices=1)
    known = {"forward passes": 1e9, "draws": 1e9}
    found = [plan.estimate(needs, known, passes_take=factor)["memory_bytes"] for factor in (1.0, 2.0, 3.0)]
    assert found == [150.0, 150.0, 160.0]


@pytest.mark.parametrize(("number", "at_once"), [(8, 1), (16, 1), (24, 2), (80, 4)])
def test_the_first_batch_goes_through_alone(number, at_once, monkeypatch):
    monkeypatch.setattr(hardware, "cores", lambda: 64)
    words = f"fingerprint seed:0@llama-tiny --num-inputs {number} --batch-size 8 --seq-len 8 --out a"
    needs = plan.needs_of(command.parsed(tuple(words.split()), None))
    (passes,) = (part.bytes for part in needs.memory if part.turn == "passes")
    assert passes == at_once * forward_bytes(preset("llama-tiny"), 8, 8)
