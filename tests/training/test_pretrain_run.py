"""A run from end to end: what it writes, how it resumes, what it refuses."""

import csv
import dataclasses
import resource
import shutil
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax import io, progress
from bornbiased_jax.checkpoints import digest, open_checkpoint
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.training import list_runs, plot_run, pretrain
from bornbiased_jax.training.checkpoint import checkpoint_steps, find_steps
from bornbiased_jax.training.initial import check_initial
from bornbiased_jax.training.metrics import CSV_FILE, TensorBoardLogger, json_line, resumed_loggers
from bornbiased_jax.training.train import _progress
from tests.fixtures.programs import run_python
from tests.test_keys import SETTINGS
from tests.training import small_run
from tests.training.small_run import flip, losses

CFG = preset("llama-tiny", num_layers=1, num_heads=2, d_model=32, d_ff=48, vocab_size=256)


def make(place, name, **changes):
    """The small run with a larger model and twice the steps."""
    return small_run.make(place, name, **{"model": CFG, "steps": 12, "checkpoint_every": 5, **changes})


@pytest.fixture(scope="module")
def calm(place):
    """An uninterrupted run of two seeds."""
    config = make(place, "calm", tensorboard=True, eval_every=6, checkpoint_log_spaced=True)
    return config, pretrain(config)


@pytest.mark.slow
def test_no_setting_of_jax_moves_a_trained_weight(place):
    plain = pretrain(small_run.make(place, "plain"))
    program = f"""
from pathlib import Path
from bornbiased_jax.training import pretrain
from tests.training import small_run
print(pretrain(small_run.make(Path({str(place)!r}), "set"))["digests"])
"""
    assert run_python(program, **SETTINGS).split("\n")[-2] == str(plain["digests"])


def test_resumed_run_has_one_event_file_with_every_step_once(tmp_path):
    from tensorboardX.proto.event_pb2 import Event

    numbers = {"seeds": [1], "grad_norm": [1.0], "lr": 0.1, "tokens_per_second": 5.0}
    lines = [{"step": step, "loss": [1.0 / step], "tokens": step, **numbers} for step in (1, 2, 3, 4)]
    # Killed after four lines; the last checkpoint is that of step 2.
    for earlier, written in (([], lines), (lines[:2], lines[2:])):
        logger = TensorBoardLogger(tmp_path, earlier)
        for line in written:
            logger.write(line)
        logger.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    data, values = path.read_bytes(), []
    while data:
        size = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + size])
        data = data[16 + size :]
        values += [(event.step, value.simple_value) for value in event.summary.value if value.tag == "loss/seed1"]
    assert values == [(step, pytest.approx(1.0 / step)) for step in (1, 2, 3, 4)]


class Run:
    """A double of a run of Weights & Biases."""

    def __init__(self, starting_step=0):
        self.lines, self.is_finished, self.starting_step = [], False, starting_step

    def log(self, numbers, step):
        self.lines.append((step, numbers))

    def finish(self):
        self.is_finished = True


@pytest.mark.parametrize("mode", [None, "online"])
def test_wandb_is_offline_unless_the_user_says_otherwise(place, monkeypatch, mode):
    run, calls = Run(), []
    fake = SimpleNamespace(init=lambda **settings: calls.append(settings) or run)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("WANDB_MODE", mode)
    config = make(place, "logged", wandb=True)
    folder = place / "logged"
    folder.mkdir(exist_ok=True)
    *others, logger = resumed_loggers(folder, config, 0)
    logger.write({"step": 3, "seeds": [42, 7], "loss": [1.5, 2.5], "lr": 0.1})
    for opened in (*others, logger):
        opened.close()
    (settings,) = calls
    assert settings["mode"] == (mode or "offline") and settings["dir"] == str(folder) and settings["resume"] == "allow"
    assert settings["config"]["model"]["d_model"] == 32
    assert run.lines == [(3, {"loss/seed42": 1.5, "loss/seed7": 2.5, "lr": 0.1})] and run.is_finished


@pytest.mark.parametrize(("on_server", "logged"), [(0, [1, 2, 3]), (3, [3])], ids=["offline", "online"])
def test_a_resumed_run_of_wandb_has_each_step_once(place, monkeypatch, tmp_path, on_server, logged):
    """Of offline parts of one run, the server keeps the last; online it has what a killed run logged."""
    run, line = Run(on_server), {"seeds": [42, 7], "loss": [1.5, 2.5], "grad_norm": [1.0, 1.0], "lr": 0.1}
    line |= {"tokens": 64, "tokens_per_second": 10.0}
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **settings: run))
    io.write_text(tmp_path / "metrics.jsonl", "".join(json_line({**line, "step": step}) for step in (1, 2)))
    *others, logger = resumed_loggers(tmp_path, make(place, "unlogged", wandb=True), 1)
    for step in (2, 3):
        logger.write({**line, "step": step})
    for opened in (*others, logger):
        opened.close()
    assert [step for step, _ in run.lines] == logged


def test_wandb_that_is_not_installed_is_named_before_any_work(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"pip install 'bornbiased-jax\[wandb\]'"):
        pretrain(make(place, "unlogged", wandb=True))
    assert not (place / "unlogged").exists()


def test_progress_says_loss_and_epoch(place, monkeypatch):
    config = make(place, "watched", quiet=False)
    words = []
    monkeypatch.setattr(progress.Bar, "say", lambda _bar, text: words.append(text))
    log, clock = SimpleNamespace(loss=[5.5, 5.25], step=3), SimpleNamespace(peak_fraction=None, rate=None)
    with _progress(config, log, clock, 0, 12, windows=24) as report:
        report(3, None, None)
    assert words == ["loss 5.250 to 5.500, epoch 0.50"]


def test_checkpoints_and_listing(calm):
    config, summary = calm
    assert find_steps(Path(config.out)) == checkpoint_steps(config, 12) == [0, 1, 2, 4, 5, 8, 10, 12]
    (run,) = list_runs(config.out)
    assert run["finished"] and run["step"] == 12 and run["seeds"] == [42, 7] and run["loss"] == summary["loss"]
    assert run["preset"] is None and run["tokens"] == 12 * config.tokens_per_step
    assert plot_run(config.out).stat().st_size > 10_000
    with pytest.raises(InputError, match="no pretraining run"):
        list_runs(Path(config.out) / "checkpoints" / "5")


@pytest.mark.slow
def test_step_zero_alone_is_initial_and_has_the_tokenizer(calm):
    config, _ = calm
    start, end = (open_checkpoint(f"{config.out}@seed=42{step}") for step in (",step=0", ""))
    assert start.is_initial and not end.is_initial and end.info["step"] == 12
    assert start.tokenizer.decode(start.tokenizer.encode("héllo")) == "héllo"


def test_missing_seed_or_step_named(calm, place):
    config, _ = calm
    with pytest.raises(InputError, match="seeds 42, 7"):
        open_checkpoint(config.out)
    with pytest.raises(InputError, match="no seed 1: it has 42, 7"):
        open_checkpoint(f"{config.out}@seed=1")
    with pytest.raises(InputError, match="step 3: it has 0, 1, 2, 4"):
        open_checkpoint(f"{config.out}@seed=7,step=3")


def test_a_run_in_a_thread_leaves_signals_alone(calm):
    config, _ = calm
    outcome = []
    worker = threading.Thread(target=lambda: outcome.append(pretrain(config)))
    worker.start()
    worker.join()
    assert outcome[0]["finished"]


def test_a_changed_field_is_refused_by_name(calm):
    config, _ = calm
    with pytest.raises(InputError, match="holds a run of model.residual_scale=1.0, not 0.5"):
        pretrain(dataclasses.replace(config, model=CFG.replace(residual_scale=0.5)))


def test_vocabulary_must_hold_the_tokenizer(place):
    with pytest.raises(InputError, match="vocab_size=256"):
        pretrain(make(place, "small", model=CFG.replace(vocab_size=200)))


@pytest.mark.slow
def test_damaged_newest_checkpoint_is_reported_and_the_one_before_taken(calm, place, capsys):
    config, summary = calm
    damaged = place / "damaged"
    shutil.copytree(config.out, damaged)
    flip(damaged / "checkpoints" / "12")
    # For probing it is refused, and the newest whole one is named: it can be typed as it stands.
    for reference in (f"{damaged}@seed=7", f"{damaged}@seed=7,step=12"):
        with pytest.raises(InputError, match="step 12 .* corrupted") as caught:
            open_checkpoint(reference).params()
    remedy = str(caught.value).rpartition(" is ")[2]
    assert remedy == f"{damaged}@seed=7,step=10"
    assert open_checkpoint(remedy).info["step"] == 10
    # So is one of which only the name is left.
    shutil.copytree(damaged, place / "hollow")
    shutil.rmtree(place / "hollow" / "checkpoints" / "12")
    (place / "hollow" / "checkpoints" / "12").mkdir()
    with pytest.raises(InputError, match=r"step 12 .* corrupted .*seed=7,step=10$"):
        open_checkpoint(place / "hollow@seed=7").digest()
    again = pretrain(dataclasses.replace(config, out=str(damaged)))
    assert "checkpoint of step 12" in capsys.readouterr().err
    assert again["resumed_from"] == 10 and again["digests"] == summary["digests"]
    assert losses(damaged) == losses(config.out)
    assert (damaged / "damaged" / "12").is_dir()
    assert find_steps(damaged) == find_steps(Path(config.out))


@pytest.mark.slow
def test_nan_stops_the_run_and_leaves_the_rest(place):
    config = make(place, "nan", checkpoint_every=2)

    def poison(step, state, metrics):
        metrics["loss"] *= jnp.asarray([1.0, jnp.nan if step == 6 else 1.0])

    with pytest.raises(InputError, match="loss of seed 7 is nan at step 6"):
        pretrain(config, hooks=[poison])
    assert find_steps(Path(config.out)) == [0, 2, 4]
    assert [step for step, _ in losses(config.out)] == [1, 2, 3, 4, 5]
    params = open_checkpoint(f"{config.out}@seed=7,step=4").params()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))


@pytest.mark.slow
def test_vanished_tokens_stop_the_run(place):
    config = make(place, "vanished", token_cache=str(place / "short-lived"), checkpoint_every=2)

    def vanish(step, state, metrics):
        if step == 3:
            wait_for(config.out, 2)
            shutil.rmtree(place / "short-lived")

    with pytest.raises(InputError, match="vanished"):
        pretrain(config, hooks=[vanish])
    assert find_steps(Path(config.out))[:2] == [0, 2]
    assert open_checkpoint(f"{config.out}@seed=42,step=2").params()


def wait_for(folder, step):
    """Wait until the checkpoint of a step is there."""
    while step not in find_steps(Path(folder)):
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("room", "file"), [(3000, "checkpoint"), (64, "metrics.jsonl")])
def test_a_full_disk_stops_the_run_and_leaves_the_rest(place, room, file, capfd):
    """Room for a line of metrics but for no checkpoint, and room for neither."""
    config = make(place, f"full{room}", log_every=100)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(step, state, metrics):
        if step == 7:
            wait_for(config.out, 5)
            # From here on no file can grow beyond so many bytes, as on a full disk.
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))

    try:
        with pytest.raises(InputError, match=f"^cannot .*{file}.* intact"):
            pretrain(config, hooks=[fill])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    # Nothing from the threads of libraries.
    error = capfd.readouterr().err
    assert "Traceback" not in error and "Exception" not in error, error
    assert find_steps(Path(config.out)) == [0, 5]
    assert open_checkpoint(f"{config.out}@seed=42").params()


@pytest.mark.slow
def test_continuing_another_model(calm, place):
    """--init-from: each seed begins with given weights; the same command again resumes, others are refused."""
    config, _ = calm
    opened = [open_checkpoint(f"{config.out}@seed={seed}") for seed in (42, 7)]
    source = [(checkpoint.config, checkpoint.params()) for checkpoint in opened]
    child = make(
        place, "child", init_from=config.out, data="builtin:code", token_cache=str(place / "tokens"),
        model=CFG.replace(init="mup", init_groups="down=zeros"),
    )  # fmt: skip
    summary = pretrain(child, source)
    assert summary["finished"]
    # The record says how the weights were drawn, not how the run would have drawn its own.
    assert open_checkpoint(f"{child.out}@seed=42,step=0").cfg == CFG
    for seed, (_, params) in zip((42, 7), source, strict=True):
        assert open_checkpoint(f"{child.out}@seed={seed},step=0").digest() == digest(params)
    assert pretrain(child, source)["resumed_from"] == 12
    with pytest.raises(InputError, match="init_from had other content"):
        pretrain(child, source[::-1])
    with pytest.raises(InputError, match="1 models to begin with for 2 seeds"):
        pretrain(child, source[:1])
    with pytest.raises(InputError, match="d_ff"):
        check_initial(child, [(CFG.replace(d_ff=49), source[0][1]), source[1]])
    with pytest.raises(InputError, match="set both or neither"):
        pretrain(child)


def test_metrics_continue_without_duplicates(place, tmp_path):
    """A resumed run cuts off what it does again, in lines and in rows."""
    config = make(place, "unused", csv=True, out=str(tmp_path))

    def log(first, *lines):
        loggers = resumed_loggers(tmp_path, config, first)
        for step, loss in lines:
            line = {"step": step, "seeds": [42, 7], "loss": [loss, 2.0], "grad_norm": [1.0, 1.0]}
            for logger in loggers:
                logger.write({**line, "lr": 0.1, "tokens": 64 * step, "tokens_per_second": 10.0})
        for logger in loggers:
            logger.close()

    log(0, *((step, 1.0 / step) for step in range(1, 6)))
    log(3, (4, 9.0))
    assert losses(tmp_path)[2:] == [(3, [1 / 3, 2.0]), (4, [9.0, 2.0])]
    with (tmp_path / CSV_FILE).open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["step"], row["loss/seed42"], row["validation_loss/seed7"]) for row in rows] == [
        ("1", "1.0", ""), ("2", "0.5", ""), ("3", str(1 / 3), ""), ("4", "9.0", "")
    ]  # fmt: skip
