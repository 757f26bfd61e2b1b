"""What an audit reads and what it does not: pickles, corrupted files, adapters, links, caches of the hub."""

import itertools
import json
import pickle
import shutil
import zipfile

import numpy as np
import orbax.checkpoint as ocp
import pytest
from safetensors.numpy import load_file, save_file

from bornbiased_jax.cli.main import run
from bornbiased_jax.lineage.audit.audit import audit_folder
from bornbiased_jax.lineage.audit.labels import pattern_of
from bornbiased_jax.parameters import unflatten
from bornbiased_jax.results.lineage_reports import Audit
from tests.fixtures.suites import CFG, drifted, initialization, kinds, only, trajectory, write, write_suite

STEPS = (0, 100, 200, 300)


class Bomb:
    """A pickle that raises when it is opened."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was opened",))


def write_bomb(place, content):
    """Write an archive as ``torch.save`` does, whose pickle would raise; after it a content of its own."""
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps([Bomb(), content]))


def as_torch_file(place, name="pytorch_model.bin"):
    """Save the weights of a folder with ``torch.save`` in place of safetensors."""
    torch = pytest.importorskip("torch")
    tensors = load_file(place / "model.safetensors")
    torch.save({key: torch.from_numpy(array.copy()) for key, array in tensors.items()}, place / name)
    (place / "model.safetensors").unlink()


def test_pickles_that_would_run_code_are_listed_and_digested_and_the_others_audited(tmp_path):
    write(tmp_path, "step0", initialization(1))
    for step, content in ((100, "a"), (200, "b"), (300, "b")):
        place = tmp_path / f"step{step}"
        place.mkdir()
        (place / "config.json").write_text((tmp_path / "step0" / "config.json").read_text())
        write_bomb(place / "pytorch_model.bin", content)
    report = audit_folder(tmp_path)
    assert only(report, "duplicate")["subjects"] == ["step200", "step300"] and not report["clean"]
    unread = {row["subjects"][0]: row["text"] for row in report["findings"] if row["kind"] == "unreadable"}
    assert unread.keys() == {"step100", "step200", "step300"} and kinds(report) == {"duplicate", "unreadable"}
    assert all("could run code: it was not opened" in text and "digested alone" in text for text in unread.values())
    rows = {row["name"]: row for row in report["checkpoints"]}
    assert not rows["step100"]["opened"] and "never unpickled" in rows["step100"]["note"] and rows["step0"]["opened"]
    assert len(rows["step100"]["file_digest"]) == 64


@pytest.mark.slow
def test_torch_files_are_audited_as_safetensors_are(tmp_path):
    for folder in ("safetensors", "torch"):
        runs = write_suite(tmp_path / folder, (1,), steps=STEPS)
        write(tmp_path / folder, "seed1-step400", runs[1][200])
    names = itertools.cycle(["pytorch_model.bin", "weights.pt"])
    for place, name in zip(sorted((tmp_path / "torch").iterdir()), names, strict=False):
        as_torch_file(place, name)
    expected, report = (audit_folder(tmp_path / folder) for folder in ("safetensors", "torch"))
    assert report["findings"] == expected["findings"] and report["pairs"] == expected["pairs"]
    assert "duplicate" in kinds(report)
    for row, other in zip(report["checkpoints"], expected["checkpoints"], strict=True):
        assert row["opened"] and row["digests"] == other["digests"] and row["law"] == other["law"]


def test_torch_files_by_themselves_are_read_by_names(tmp_path):
    torch = pytest.importorskip("torch")
    runs = write_suite(tmp_path / "suite", (1,), steps=STEPS)
    write(tmp_path / "suite", "seed1-step400", drifted(runs[1][200], 7))
    (tmp_path / "files").mkdir()
    for place in sorted((tmp_path / "suite").iterdir()):
        tensors = {key: torch.from_numpy(array.copy()) for key, array in load_file(place / "model.safetensors").items()}
        if place.name == "seed1-step400":
            tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = float("inf")
        torch.save({"model": tensors, "step": 7}, tmp_path / "files" / f"{place.name}.pt")
    report = audit_folder(tmp_path / "files")
    assert only(report, "unreadable")["subjects"] == ["seed1-step400.pt"] and kinds(report) == {"unreadable"}
    assert len(report["pairs"]) == 6 and all(pair["tied"] for pair in report["pairs"])
    assert all("read by names" in row["note"] for row in report["checkpoints"])


def test_unreadable_checkpoint_reported_and_others_audited(tmp_path):
    runs = write_suite(tmp_path, (1,), steps=STEPS)
    write(tmp_path, "seed1-step300", runs[1][200])
    weights = tmp_path / "seed1-step100" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    (tmp_path / "seed1-step400.gguf").write_bytes(b"no model at all")
    (tmp_path / "notes.txt").write_text("no model either")
    (tmp_path / "README.md").write_text("beside checkpoints")
    (tmp_path / "seed1-step500").mkdir()
    report = audit_folder(tmp_path)
    unread = [finding for finding in report["findings"] if finding["kind"] == "unreadable"]
    assert {finding["subjects"][0] for finding in unread} == {
        "seed1-step100", "seed1-step400.gguf", "notes.txt", "seed1-step500"}  # fmt: skip
    assert only(report, "duplicate")["subjects"] == ["seed1-step200", "seed1-step300"]


@pytest.mark.slow
def test_a_checkpoint_of_other_shapes_is_named_and_the_rest_audited(tmp_path):
    runs = write_suite(tmp_path, (1,), steps=(*STEPS, 400))
    wider = CFG.replace(d_model=48)
    write(tmp_path, "seed1-step200", initialization(1, wider), wider)
    write(tmp_path, "seed1-step400", runs[1][300])
    write(tmp_path, "seed2-step0", initialization(2, wider), wider)
    report = audit_folder(tmp_path)
    broken = only(report, "break")
    assert broken["subjects"] == ["seed1-step200"] and "other shapes" in broken["text"] and "/" not in broken["text"]
    assert "is [96, 48] here and [96, 32] there" in broken["text"]
    assert only(report, "duplicate")["subjects"] == ["seed1-step300", "seed1-step400"]
    [pair] = [pair for pair in report["pairs"] if pair["checkpoints"] == ["seed1-step0", "seed2-step0"]]
    assert not pair["tied"] and "widths differ" in pair["reason"]


def write_adapter(place, seed, value=None):
    place.mkdir(parents=True, exist_ok=True)
    (place / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 4}')
    draws, module = np.random.default_rng(seed), "base_model.model.model.layers.0.self_attn.q_proj"
    factors = {"A": draws.standard_normal((2, 32)), "B": draws.standard_normal((32, 2))}
    factors = {name: factor.astype(np.float32) for name, factor in factors.items()}
    if value is not None:
        factors["B"][3, 1] = value
    save_file({f"{module}.lora_{name}.weight": factors[name] for name in "AB"}, place / "adapter_model.safetensors")


def test_adapters_are_digested_and_a_corrupted_one_is_named(tmp_path):
    write(tmp_path, "step0", initialization(1))
    for name in ("lora-a", "lora-b", "lora-c"):
        write_adapter(tmp_path / name, 4)
    cut = tmp_path / "lora-c" / "adapter_model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-40])
    report = audit_folder(tmp_path)
    assert only(report, "unreadable")["subjects"] == ["lora-c"] and "cut short" in only(report, "unreadable")["text"]
    assert only(report, "duplicate")["subjects"] == ["lora-a", "lora-b"] and len(report["checkpoints"]) == 3


@pytest.mark.parametrize("make", ["nothing", "a text", "an empty folder", "notes alone"])
def test_a_folder_without_checkpoints_is_refused_in_one_sentence(make, tmp_path, refused):
    place = tmp_path / "models"
    if make == "a text":
        place.write_text("no listing")
    elif make != "nothing":
        place.mkdir()
    if make == "notes alone":
        (place / "notes.txt").write_text("no model")
    said = refused(["audit", str(place)])
    assert said.count("\n") == 1 and ("holds no checkpoint" if place.is_dir() else "is no folder") in said


@pytest.mark.slow
def test_the_command_its_report_its_page_and_its_exit_codes(tmp_path, capsys):
    models = tmp_path / "models"
    runs = write_suite(models, (1,), steps=STEPS[:2])
    call = ["audit", str(models), "--quiet", "--json", str(tmp_path / "a.json"), "--strict"]
    assert run(call) == 0
    assert "models`: clean" in capsys.readouterr().out
    write(models, "seed1-step200", runs[1][100])
    assert run([*call, "--report", str(tmp_path / "a.md"), "--page", str(tmp_path / "a.html")]) == 3
    content = json.loads((tmp_path / "a.json").read_text())
    assert set(content) >= {"clean", "findings", "checkpoints", "pairs", "graph", "runs"}
    assert set(content["findings"][0]) == {"kind", "subjects", "text", "p_value"}
    report = (tmp_path / "a.md").read_text()
    assert "### Duplicates" in report and "seed1-step100 and seed1-step200" in report
    page = (tmp_path / "a.html").read_text()
    assert "<svg" in page and "seed1-step100 and seed1-step200" in page
    assert "1 finding<" in page and "3 checkpoints of 1 run: duplicates (1)." in page
    assert run(call[:-1]) == 0


def test_logs_are_named_as_what_they_are_and_make_no_noise(tmp_path, capsys, refused):
    logs = ("events.out.tfevents.1700000000.host", "slurm-17.out", "train.log.1", "train_log.txt", "trainer_state.json")
    place = tmp_path / "logs"
    place.mkdir()
    for name in logs:
        (place / name).write_text("{}")
        assert f"{name} is a log of training, no checkpoint" in refused(["digest", str(place / name)])
    assert run(["digest", str(place)]) == 2
    assert f"holds logs of training, as {logs[0]}, and no weights" in capsys.readouterr().err
    assert f"holds no checkpoint ({logs[0]} is a log of training)" in refused(["audit", str(place)])
    # Beside checkpoints they are no finding.
    write(place, "step0", initialization(1))
    shutil.copy(place / "slurm-17.out", place / "step0")
    assert audit_folder(place)["findings"] == []


def test_names_of_another_form(tmp_path, refused):
    runs = write_suite(tmp_path / "other", (1,), steps=STEPS)
    for step, flat in runs[1].items():
        write(tmp_path / "models", f"model_{step:04d}_it", flat)
    report = audit_folder(tmp_path / "models", pattern_of(r"(?P<run>model)_(?P<step>\d+)"))
    assert report["runs"][0]["name"] == "model" and report["runs"][0]["steps"] == list(STEPS)
    assert "is no regular expression" in refused(["audit", str(tmp_path / "models"), "--pattern", "(\\d+"])
    assert "has no group for the step" in refused(["audit", str(tmp_path / "models"), "--pattern", "\\d+"])
    assert "--frozen '(' is no regular expression" in refused(["audit", str(tmp_path / "models"), "--frozen", "("])


def test_many_checkpoints_are_compared_with_untrained_models_and_neighbors_alone(tmp_path):
    from bornbiased_jax.lineage.audit.ties import pairs_to_test

    class Row:
        def __init__(self, name):
            self.name = name

    runs = {f"seed{seed}": [Row(f"seed{seed}-step{step}") for step in range(10)] for seed in range(3)}
    pairs = pairs_to_test(runs, [], all_pairs=False)
    # 3 initializations with 29 others each, less 3 pairs of initializations counted twice; 8 further pairs of neighbors
    # a run.
    assert len(pairs) == 3 * 29 - 3 + 3 * 8 == len({frozenset(pair) for pair in pairs})
    assert len(pairs_to_test(runs, [], all_pairs=True)) == 30 * 29 // 2


def test_a_link_back_is_not_followed_for_ever(tmp_path):
    """Two links to the folder itself: each of them would double what lies below it, again and again."""
    write_suite(tmp_path / "suite", (1,), steps=STEPS)
    for name in ("again", "and again"):
        (tmp_path / "suite" / name).symlink_to(tmp_path / "suite", target_is_directory=True)
    (tmp_path / "linked").symlink_to(tmp_path / "suite", target_is_directory=True)
    report = audit_folder(tmp_path / "linked")
    assert report["clean"] and len(report["checkpoints"]) == len(STEPS)


def _write_trainer_folder(folder, *, last=300):
    """The layout of a trainer that has saved its final model above its checkpoints."""
    run_by_step = trajectory(1, steps=STEPS)
    place = write(folder, "trainer", run_by_step[last])
    for step in STEPS[1:]:
        write(place, f"checkpoint-{step}", run_by_step[step])
    (place / "runs").mkdir()
    (place / "runs" / "events.out.tfevents.1700000000.host").write_bytes(b"\x18\0\0")
    (place / "training_args.bin").write_bytes(pickle.dumps({}))
    return place


def test_checkpoints_below_the_final_model_of_a_trainer_are_read(tmp_path):
    place = _write_trainer_folder(tmp_path)
    report = audit_folder(place)
    assert report["clean"], report["findings"]
    assert [row["name"] for row in report["checkpoints"]] == ["trainer", *(f"checkpoint-{step}" for step in STEPS[1:])]


def test_adapters_below_the_final_adapter_of_a_trainer_are_read(tmp_path):
    place = tmp_path / "trainer"
    write_adapter(place, 4)
    for step in (100, 200, 300):
        write_adapter(place / f"checkpoint-{step}", 4 if step == 300 else step, np.nan if step == 200 else None)
    report = audit_folder(place)
    assert [row["name"] for row in report["checkpoints"]] == ["trainer", "checkpoint-100", "checkpoint-300"]
    unread = only(report, "unreadable")
    assert unread["subjects"] == ["checkpoint-200"] and "holds NaN or infinite values" in unread["text"]
    assert kinds(report) == {"unreadable"} and not report["clean"]


def test_one_checkpoint_is_written_in_the_singular(tmp_path):
    write(tmp_path, "checkpoint-100", initialization(1))
    report = audit_folder(tmp_path)
    assert "\n1 checkpoint of 1 run; " in Audit(report).markdown()


def test_a_final_model_that_cannot_be_read_hides_no_checkpoint_below(tmp_path):
    place = _write_trainer_folder(tmp_path)
    for damage in (lambda: (place / "model.safetensors").unlink(), lambda: (place / "config.json").write_text("{")):
        damage()
        report = audit_folder(tmp_path)
        assert only(report, "unreadable")["subjects"] == ["trainer"] and kinds(report) == {"unreadable"}
        assert [row["name"] for row in report["checkpoints"]] == [f"trainer/checkpoint-{step}" for step in STEPS[1:]]


def test_state_that_training_resumes_from_is_no_checkpoint(tmp_path):
    """DeepSpeed's below each checkpoint of a trainer, accelerate's beside the weights."""
    place = _write_trainer_folder(tmp_path)
    for step in STEPS[1:]:
        state = place / f"checkpoint-{step}" / f"global_step{step}"
        state.mkdir()
        for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"):
            write_bomb(state / name, "state")
    (tmp_path / "random_states_0.pkl").write_bytes(pickle.dumps({}))
    report = audit_folder(tmp_path)
    assert report["clean"] and len(report["checkpoints"]) == len(STEPS), report["findings"]


def test_a_configuration_that_names_no_architecture_leaves_the_names_of_tensors(tmp_path):
    write_suite(tmp_path, (1,), steps=STEPS)
    for place in tmp_path.iterdir():
        (place / "config.json").write_text('{"d_model": 32}')
    report = audit_folder(tmp_path)
    assert report["clean"] and len(report["checkpoints"]) == len(STEPS)
    assert all("read by names" in row["note"] for row in report["checkpoints"])


def test_a_final_model_that_is_an_earlier_checkpoint_contradicts_the_labels(tmp_path):
    report = audit_folder(_write_trainer_folder(tmp_path, last=200))
    assert only(report, "duplicate")["subjects"] == ["trainer", "checkpoint-200"]
    assert "not those of checkpoint-300" in only(report, "duplicate")["text"]


def test_git_lfs_pointer_named(tmp_path, refused):
    write(tmp_path / "models", "step0", initialization(1))
    place = write(tmp_path / "models", "step100", initialization(2))
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 134\n"
    (place / "model.safetensors").write_bytes(pointer)
    (tmp_path / "models" / "step200.gguf").write_bytes(pointer)
    texts = [finding["text"] for finding in audit_folder(tmp_path / "models")["findings"]]
    assert len(texts) == 2 and all("git lfs pull" in text for text in texts)
    assert "is a pointer of Git LFS" in refused(["digest", str(place)])


def test_a_cache_of_the_hub_is_read_by_its_snapshots(tmp_path):
    suite = write_suite(tmp_path / "suite", (1,), steps=STEPS[:2])
    repository = tmp_path / "hub" / "models--owner--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    (repository / "blobs").mkdir()
    (tmp_path / "hub" / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55")
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    for path in sorted((tmp_path / "suite" / "seed1-step100").iterdir()):
        blob = repository / "blobs" / path.name.replace(".", "")
        path.rename(blob)
        (snapshot / path.name).symlink_to(blob)
    report = audit_folder(tmp_path / "hub")
    assert report["clean"] and len(report["checkpoints"]) == 1 and suite


def test_steps_of_orbax_are_the_numbers_that_name_them(tmp_path):
    for step, flat in trajectory(1, steps=(0, 100, 200, 300, 500)).items():
        tree = unflatten({path.replace("blocks/", "layers/"): leaf for path, leaf in flat.items()})
        ocp.PyTreeCheckpointer().save(tmp_path / "run" / str(step) / "default", tree)
    report = audit_folder(tmp_path)
    assert [(row["name"], row["steps"]) for row in report["runs"]] == [("run", [0, 100, 200, 300, 500])]
    assert only(report, "gap")["subjects"] == ["run/400"] and kinds(report) == {"gap"}


def test_a_model_below_one_of_the_same_name_is_another_checkpoint(tmp_path):
    inner = write(tmp_path / "step5", "step5", initialization(1))
    for path in inner.iterdir():
        shutil.copy(path, tmp_path / "step5")
    report = audit_folder(tmp_path / "step5")
    assert [(row["name"], row["step"]) for row in report["checkpoints"]] == [("step5/.", 5), ("step5", 5)]
    assert only(report, "duplicate")["subjects"] == ["step5/.", "step5"]


@pytest.mark.parametrize("has_config", [False, True])
def test_files_of_several_steps_in_one_folder_are_read(has_config, tmp_path):
    (tmp_path / "seed1").mkdir()
    for step, flat in trajectory(1, steps=(0, 100, 200, 300, 500)).items():
        place = write(tmp_path / "whole", str(step), flat)
        shutil.move(place / "model.safetensors", tmp_path / "seed1" / f"step{step}.safetensors")
        if has_config:
            shutil.move(place / "config.json", tmp_path / "seed1" / "config.json")
    shutil.rmtree(tmp_path / "whole")
    report = audit_folder(tmp_path)
    assert [(row["name"], row["steps"]) for row in report["runs"]] == [("seed1", [0, 100, 200, 300, 500])]
    assert only(report, "gap")["subjects"] == ["seed1/step400.safetensors"] and kinds(report) == {"gap"}
    assert all(pair["tied"] for pair in report["pairs"]) and len(report["pairs"]) == 10
