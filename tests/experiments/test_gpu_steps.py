"""What a lent GPU is asked for, step by step: smallest sizes on a CPU, and what each must notice."""

import json
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import experiments
from bornbiased_jax import files, hardware
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.inputs import random_tokens
from bornbiased_jax.keys import stream_key
from bornbiased_jax.models import apply, init_seed, parameter_shapes
from bornbiased_jax.models.memory import weights_bytes
from bornbiased_jax.pretrain import setup
from bornbiased_jax.probes.observe import observe
from bornbiased_jax.record import jsonable
from experiments import docs, results
from experiments.gpu import __main__ as command
from experiments.gpu import drive, kept, life, products, self_test, tables, wheels
from experiments.gpu.step import Place
from experiments.gpu.steps import STEPS
from experiments.survival.anatomy import MAIN

FIELDS = {
    "config", "precision", "git", "versions", "device", "platform", "prng", "flags", "timestamp", "wall_time_s",
    "peak_memory_bytes",
}  # fmt: skip
ROOT = drive.ROOT


def place(tmp_path, scale="gpu"):
    return Place(scale, tmp_path / "record.json", tmp_path, tmp_path / "reproduce", 100.0)


def test_steps_are_commands_of_this_repository(tmp_path):
    names = [step.name for step in STEPS]
    assert len(set(names)) == len(names)
    for step in STEPS:
        for scale in ("smoke", "gpu"):
            words = step.command(place(tmp_path, scale))
            assert words[0] == "-m" and all(isinstance(word, str) for word in words)
            module = words[1].replace(".", "/")
            if module == "benchmarks":
                module = f"benchmarks/{words[2]}"
                taken = (ROOT / f"{module}.py").read_text()
                assert all(f'"{word}"' in taken for word in words if word.startswith("--")), words
            assert (ROOT / f"{module}.py").is_file() or (ROOT / module / "__main__.py").is_file(), words
            assert bool(step.experiments) != (str(tmp_path / "record.json") in words)
        assert set(step.experiments) <= set(words)
    asked = {name for step in STEPS for name in step.experiments}
    assert asked == {*experiments.SELECTIONS["table1_rows"], "finding2_nano"}


@pytest.mark.parametrize("model", ["llama-nano", "qwen-nano"])
def test_a_life_fits_a_gpu(model, monkeypatch):
    """Four seeds at once in what JAX takes of 80 GB: weights, gradients, the optimiser, a step's activations."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(hardware, "device_memory", lambda: int(0.9 * 80e9))
    config = life.configuration({**life.SETTINGS["gpu"], "model": model}, Path("/nowhere"))
    setup.check_memory(config)
    assert len(config.seeds) == 4 and config.context == config.model.max_seq_len == 2048
    # Two checkpoints, and a third while it is written, with the optimiser's means, on a disk of 64 GB.
    assert 3 * 4 * 3 * weights_bytes(config.model) < 40e9


def test_algorithms_that_may_be_kept_are_known_to_cuda():
    for name in kept.CANDIDATES:
        multiply = jax.jit(lambda a, b, name=name: jnp.matmul(a, b, precision=products.algorithms()[name]))
        sizes = [jax.ShapeDtypeStruct((8, 8), jnp.float32)] * 2
        lowered = jax.export.export(multiply, platforms=["cuda"])(*sizes)
        assert "dot_general" in str(lowered.mlir_module())


def test_the_most_valuable_come_first_and_what_takes_the_rest_last():
    rest = [step.rest for step in STEPS]
    assert rest == sorted(rest) and rest.count(True) == 2
    assert [step.name for step in STEPS][:3] == ["self_test", "products", "kept"]
    # A call of nine minutes has the first five at the least.
    assert sum(step.seconds for step in STEPS[:5]) <= 540 + 60


def test_the_chapters_page_names_every_module_and_every_step():
    folder = Path(command.__file__).parent
    text = (folder / "README.md").read_text()
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    named = {name for name in modules if f"`{name}`" in text or f"`{name}.py`" in text}
    assert modules - named == set()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \| (\d+) \|", text, re.MULTILINE)
    assert [(name, title, int(cost)) for name, title, cost in rows] == [
        (step.name, step.title, round(step.seconds)) for step in STEPS
    ]


def test_products_are_timed_and_refusals_are_results(tmp_path):
    path = tmp_path / "a.json"
    assert products.main(["--json", str(path), "--work", str(tmp_path / "work")]) == 0
    record = files.read_json(path)
    rows = record["algorithms"]
    assert set(rows) == {"HIGHEST", "HIGH", "DEFAULT", *(row.name for row in jax.lax.DotAlgorithmPreset)}
    assert rows["HIGHEST"]["tflops"] > 0 and rows["HIGHEST"]["error"] < 1e-6 < rows["F16_F16_F16"]["error"] < 1e-2
    assert "not supported" in rows["TF32_TF32_F32_X3"]["refused"]
    assert FIELDS <= set(record["provenance"]) and record["provenance"]["code"]


ROW = {"top1_id": 7, "top1_count": 50, "cosines": [0.1, 0.2], "answers": [1] * 2_000, "seconds": 2.0}


@pytest.mark.parametrize(
    ("change", "keeps"),
    [
        ({"seconds": 0.5}, True),
        ({"answers": [2] * 2 + [1] * 1_998}, True),
        ({"answers": [2] * 3 + [1] * 1_997}, False),
        ({"top1_count": 52}, True),
        ({"top1_count": 47}, False),
        ({"cosines": [0.1, 0.200009]}, True),
        ({"cosines": [0.10002, 0.2]}, False),
        ({"top1_id": 8}, False),
        ({"refused": "no"}, None),
    ],
)
def test_bounds_of_what_is_kept(change, keeps):
    row = {"refused": "no"} if "refused" in change else {**ROW, **change}
    found = kept.compared(ROW, row)
    assert found["keeps"] is keeps
    if "seconds" in change:
        assert found["speedup"] == 4.0


@pytest.mark.slow
def test_a_probe_by_another_algorithm_is_compared():
    """Half precision, the one algorithm that differs on a CPU, moves cosines as rounding to eleven bits does."""
    cfg = preset("gpt2-tiny", num_layers=1, d_model=32, d_ff=48, num_heads=2, vocab_size=64)
    inputs = random_tokens(20, 4, cfg.vocab_size)
    known = products.algorithms()
    exact, half = (kept.probed(cfg, 42, inputs, 8, known[way]) for way in ("HIGHEST", "F16_F16_F16"))
    moved = kept.compared(exact, half)
    assert 1e-6 < moved["cosine"] < 1e-2 and len(exact["answers"]) == 20 and len(exact["cosines"]) == 2
    # The answers are in the order of the inputs, and their counts those of the probe.
    assert exact["answers"].count(exact["top1_id"]) == exact["top1_count"]
    params = init_seed(cfg, 42, fixed_key=stream_key(0, "embedding"))
    logits_BV = apply(cfg, params, inputs.batch(0, 20)).logits_BTV[:, -1]
    assert exact["answers"] == np.argmax(logits_BV, -1).tolist()


def test_every_product_of_a_probe_is_of_the_algorithm():
    """Of the lowered program: those of the blocks, in a loop, and the head's."""
    cfg = preset("llama-tiny", num_layers=2, d_model=32, d_ff=48, num_heads=2, vocab_size=64)
    ids = jax.ShapeDtypeStruct((3, 8), jnp.int32)

    def program(precision):
        return jax.jit(lambda params, x: observe(cfg, params, x, precision=precision)).lower(parameter_shapes(cfg), ids)

    products_of = re.findall(r"dot_general.*", program(jax.lax.DotAlgorithmPreset.F16_F16_F16).as_text())
    assert len(products_of) > 8 and all("accumulation_type = f16" in line for line in products_of)
    assert all("HIGHEST" in line for line in re.findall(r"dot_general.*", program("highest").as_text()))


@pytest.mark.slow
def test_algorithms_that_a_device_refuses_keep_nothing(tmp_path):
    settings = {**kept.SETTINGS["smoke"], "candidates": ["F16_F16_F16", "TF32_TF32_F32_X3", "F32_F32_F32"]}
    found = kept.run(settings, tmp_path, 0.0)
    (model,) = found["models"].values()
    assert model["ways"][kept.CONTROL]["keeps"] and model["ways"][kept.CONTROL]["cosine"] < 1e-6
    assert "not supported" in model["ways"]["TF32_TF32_F32_X3"]["refused"]
    assert found["keeping"] == ["F32_F32_F32"]


SMALL = self_test.SETTINGS["smoke"]


@pytest.mark.parametrize("check", [self_test.key_bits, self_test.inputs, self_test.normals])
def test_draws_hold_on_this_device(check):
    assert check(SMALL)["passed"] is True


def test_other_draws_do_not_hold(monkeypatch):
    original = jax.random.bits
    monkeypatch.setattr(jax.random, "bits", lambda *given: original(*given) ^ jnp.uint32(1))
    assert self_test.key_bits(SMALL)["passed"] is False
    normal = jax.random.normal
    monkeypatch.setattr(jax.random, "normal", lambda *given: normal(*given) * jnp.float32(1 + 1e-5))
    assert self_test.normals(SMALL)["passed"] is False


@pytest.mark.slow
def test_attention_of_a_kernel_is_held_against_the_formula(monkeypatch):
    """JAX's plain version in place of the kernel; and one without its window."""
    assert self_test.attention(SMALL) == {
        "passed": None, "why": "no fused kernel takes these arrays here: the plain formula serves",
    }  # fmt: skip

    for windowed in (True, False):

        def kernel(q, k, v, window=None, windowed=windowed):
            left = None if window is None or not windowed else (window - 1, 0)
            return jax.nn.dot_product_attention(q, k, v, is_causal=True, local_window_size=left)

        monkeypatch.setattr(self_test, "fused_attention", kernel)
        found = self_test.attention(SMALL)
        assert found["passed"] is windowed
        assert [row["what"] for row in found["relative_errors"]] == ["output", "dq", "dk", "dv"]


def test_a_check_that_cannot_be_made_does_not_hold_and_the_others_go_on(monkeypatch, tmp_path):
    def broken(settings):
        raise RuntimeError("no such kernel\non this device")

    monkeypatch.setattr(self_test, "key_bits", broken)
    for name in ("births", "logits", "attention", "permutation_moments"):
        monkeypatch.setattr(self_test, name, lambda settings: {"passed": None})
    found = self_test.run(SMALL, tmp_path, 0.0)
    assert found["passed"] is False and found["checks"]["normals"]["passed"] is True
    assert found["checks"]["key bits"] == {"passed": False, "error": "RuntimeError: no such kernel"}
    assert found["environment"]["backend"] == "cpu" and found["environment"]["libraries"]["jax"]


@pytest.mark.slow
def test_births_logits_and_moments_hold_on_this_device():
    for check in (self_test.births, self_test.logits, self_test.permutation_moments):
        assert check(SMALL)["passed"] is True, check.__name__


PIN = re.compile(r"[a-z0-9-]+==[0-9][0-9a-z.]*")


def test_what_must_be_carried_is_pinned_for_python_312():
    lines = wheels.wheels()
    assert all(PIN.fullmatch(line) for line in lines) and "://" not in "".join(lines)
    names = dict(line.split("==") for line in lines)
    assert names["jax"] == names["jaxlib"] == names["jax-cuda13-plugin"] == names["jax-cuda13-pjrt"]
    assert names["jax"].startswith("0.11.") and names["numpy"] == wheels.pins()["numpy"]
    assert {"grain", "array-record", "pydantic-core", "orbax-checkpoint"} <= set(names)
    assert not {"pytest", "torch", "sphinx", "hatchling"} & set(names)
    there = ["numpy==1.0", "Typing_Extensions", "", "# a comment", *(f"{name}==0" for name in names if name < "g")]
    left = {line.split("==")[0] for line in wheels.wheels(there)}
    assert left == {name for name in names if name >= "g"} - {"numpy", "typing-extensions"}


def test_a_distribution_without_a_pin_is_named(monkeypatch):
    known = wheels.pins()
    monkeypatch.setattr(wheels, "pins", lambda: {name: known[name] for name in known if name != "grain"})
    with pytest.raises(InputError, match="^grain has no pin: add it to constraints.txt$"):
        wheels.wheels()


def said(capsys, *words):
    code = command.main(words)
    return code, capsys.readouterr()


def test_the_command_says_what_is_wrong_in_a_sentence(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "_backend", lambda: "cpu")
    monkeypatch.setattr(command, "git_revision", lambda: {"revision": "a" * 40, "dirty": False})
    out = ["--out", str(tmp_path / "out")]
    for words, expected in (
        ([*out], "JAX computes on cpu here, not on a GPU"),
        (["--minutes", "0", *out], "--minutes is not above 0"),
        (["--only", "self_tset", *out], "unknown steps self_tset: name some of self_test"),
        (["--again", *out], "name the steps"),
        (["--collect", str(tmp_path / "none")], "holds no finished record of a GPU"),
        (["--wheels", str(tmp_path / "none")], "No such file"),
    ):
        code, told = said(capsys, *words)
        assert code == 2 and expected in told.err and told.err.count("\n") == 1, words
    monkeypatch.setattr(command, "git_revision", lambda: None)
    code, told = said(capsys, "--scale", "smoke", *out)
    assert code == 2 and "has no git: give --revision" in told.err
    assert not (tmp_path / "out").exists()


def test_steps_and_wheels_are_printed(capsys, tmp_path):
    code, told = said(capsys, "--list")
    assert code == 0 and [line.split()[0] for line in told.out.splitlines()] == [step.name for step in STEPS]
    (tmp_path / "there").write_text("grain==0.2\n")
    code, told = said(capsys, "--wheels", str(tmp_path / "there"))
    assert code == 0 and "grain" not in told.out and "jax-cuda13-plugin==0.11" in told.out


def test_every_step_is_shown():
    """Those of the benchmarks by the benchmarks' tables, rows of Table 1 and Finding 2.2 by their own."""
    assert {*tables.TABLES, *tables.BENCHMARKS} == {step.name for step in STEPS if not step.experiments}
    for step in STEPS:
        if step.name in tables.BENCHMARKS:
            assert step.command(place(Path("/out")))[2] == tables.BENCHMARKS[step.name]


def committed(folder, name, result):
    record = {
        "step": name,
        "result": result,
        "provenance": {"seeds": [1, 2], "device": DEVICE, "versions": {"jax": "0"}},
    }
    files.write_json(folder / "gpu" / f"{name}.json", record)


DEVICE = {"platform": "gpu", "kind": "A GPU", "count": 1}


def test_records_are_shown_in_the_documentation(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    block = docs.parse("gpu/products show=tables")
    assert "Not measured yet: `python -m experiments.gpu --only products`" in docs.content(block)
    shape = {"shape": [2, 3, 4], "tflops": 1.25, "error": 1e-7}
    algorithms = {"HIGHEST": {"products": [shape], "error": 1e-7}, "HIGH": {"refused": "no"}}
    committed(tmp_path, "products", {"algorithms": algorithms})
    text = docs.content(block).replace("\u202f", " ")
    assert "| HIGHEST | 1.2 | 1.0 × 10⁻⁷ |" in text and "Refused: HIGH." in text and "1 × A GPU" in text
    row = {"changed": 0.001, "count": 0.0, "cosine": 2e-6, "speedup": 3.0, "keeps": True}
    found = {"ways": {"HIGH": row, "DEFAULT": {"refused": "no", "keeps": None}}}
    committed(tmp_path, "kept", {"bounds": {"changed": 1e-3, "count": 1e-3, "cosine": 1e-5}, "models": {"m": found}})
    text = docs.content(docs.parse("gpu/kept show=tables")).replace("\u202f", " ")
    assert (
        "| m | HIGH | 0.10% | 0.00% | 2.0 × 10⁻⁶ | 3.00× | yes |" in text
        and "| m | DEFAULT |  |  |  |  | refused |" in text
    )
    checks = {"a": {"passed": True, "largest": 0.25}, "b": {"passed": False, "error": "gone"}}
    environment = {"devices": [{"kind": "A GPU"}]}
    committed(tmp_path, "self_test", {"checks": checks, "environment": environment})
    text = docs.content(docs.parse("gpu/self_test show=tables"))
    assert "| a | holds | largest 0.250 |" in text and "| b | does not hold | gone |" in text
    with pytest.raises(InputError, match="names no step that is shown: choose one of self_test"):
        docs.parse("gpu/table1_a_64 show=tables")


def test_what_the_command_did_is_its_exit_code(capsys, tmp_path, monkeypatch):
    for status, expected in (("complete", 0), ("no time", 0), ("skipped", 0), ("failed", 1)):
        monkeypatch.setattr(command, "git_revision", lambda: {"revision": "a" * 40, "dirty": False})

        def pretend(steps, out, *, target, status=status, **options):
            (tmp_path / "a.tar.gz").write_bytes(b"xy")
            row = {"status": status, "seconds": 1.0, "reason": None}
            return drive.Call(out, tmp_path / "a.tar.gz", "smoke", 0.0, rows={"self_test": row})

        monkeypatch.setattr(drive, "run", pretend)
        code, told = said(capsys, "--scale", "smoke", "--only", "self_test")
        assert code == expected and f"self_test            {status}" in told.out and "2 bytes" in told.out


def test_the_documented_command_fits_a_lent_machine():
    """Its options are there, it writes the archive to $OUT, and it is as short as such machines want it."""
    text = (ROOT / "docs" / "measurements.md").read_text()
    (line,) = [block for block in re.findall(r"^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE) if "$OUT" in block]
    assert len(line) < 2_000
    words = shlex.split(line.replace("\\\n", " "))
    options = words[words.index("experiments.gpu") + 1 :]
    parsed = command._parser().parse_args(options)
    assert str(parsed.archive) == "$OUT/gpu.tar.gz" and parsed.minutes < 10 and parsed.revision
    assert parsed.scale == "gpu" and not parsed.only


@pytest.mark.slow
def test_a_life_stops_in_time_is_measured_and_goes_on(tmp_path):
    smoke = life.SETTINGS["smoke"]
    training = {**smoke["training"], "steps": 100_000, "warmup": 10}
    settings = {**smoke, "model": "llama-nano", "training": training}
    first = life.run(settings, tmp_path, 20.0)
    assert not first["finished"] and 0 < first["step"] < 100_000 and (tmp_path / "run").is_dir()
    steps = first["sinks"]["steps"]
    assert [row["step"] for row in steps] == [0, first["step"]] and len(steps[0]["sink_rate"]) == 2
    assert set(MAIN) <= set(first["anatomy"]["z"]["uniform ids"]) and len(first["training"]["losses"]) == first["step"]
    second = life.run(settings, tmp_path, 20.0)
    assert second["training"]["resumed_from"] == first["step"] < second["step"]


@pytest.mark.slow
def test_a_finished_life_leaves_its_record_alone(tmp_path):
    settings = {**life.SETTINGS["smoke"], "model": "qwen-nano"}
    found = life.run(settings, tmp_path, 300.0)
    (table,) = tables.life(json.loads(json.dumps(jsonable({**found, "provenance": {"seeds": [1, 2]}}))))
    assert len(table.rows) == 2 and len(table.rows[1].measured) == 4 and "2 seeds" in table.note
    assert found["finished"] and found["step"] == 12 and not (tmp_path / "run").exists()
    assert found["training"]["losses"][-1]["loss"][0] < found["training"]["losses"][0]["loss"][0]


# One step for each module: a row of Table 1 runs at its smallest as the others do, and so does a model's life.
@pytest.mark.slow
@pytest.mark.parametrize("names", [
    "self_test,products,kept,life_llama", "training_rate,seeds_at_once", "sweep_tiny,parity", "table1_a_64",
])  # fmt: skip
def test_every_kind_of_step_makes_its_record(tmp_path, names):
    out = tmp_path / "out"
    words = ["--scale", "smoke", "--minutes", "20", "--out", str(out), "--only", names]
    words += ["--archive", str(tmp_path / "home.tar.gz")]
    done = subprocess.run(
        [sys.executable, "-m", "experiments.gpu", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for step in (step for step in STEPS if step.name in names.split(",")):
        record = files.read_json(out / "records" / f"{step.name}.json")
        if record["status"] == "skipped":
            assert "not installed" in record["reason"]
            continue
        assert record["status"] == "complete", record
        expected = FIELDS if step.name != "parity" else FIELDS - {"config", "precision"}
        assert expected <= set(record["provenance"]), step.name
        assert record["provenance"]["device"]["platform"] == "cpu" and record["result"]
    with tarfile.open(tmp_path / "home.tar.gz") as packed:
        assert {f"records/{name}.json" for name in names.split(",")} <= set(packed.getnames())
        assert json.load(packed.extractfile("summary.json"))["scale"] == "smoke"
    if "table1_a_64" in names:
        again = subprocess.run(
            [sys.executable, "-m", "experiments.gpu", *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert again.returncode == 0 and again.stdout.count(" there ") == len(names.split(","))
