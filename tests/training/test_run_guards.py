"""What a run does when something around it is not as it should be: limits, other processes, other weights."""

import csv
import dataclasses
import errno
import json
import os
import shutil
import sys
import types
from pathlib import Path

import jax
import pytest

from bornbiased_jax import io
from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.cli.main import run as command
from bornbiased_jax.errors import InputError
from bornbiased_jax.parallel import build_mesh, parse_mesh
from bornbiased_jax.text.tokenizers import tokenizer_for
from bornbiased_jax.training import checkpoint, list_runs, plot_run, pretrain, setup, train
from bornbiased_jax.training.checkpoint import Checkpointer, find_steps
from bornbiased_jax.training.metrics import read_metrics
from bornbiased_jax.training.optimizer import make_optimizer
from bornbiased_jax.training.program import abstract_state
from tests.tiers import nightly_except
from tests.training.small_run import CFG, flip, make, words

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def calm(place):
    config = make(place, "calm")
    return config, pretrain(config)


def copied(calm, name):
    """A copy of the finished run."""
    config, _ = calm
    target = Path(config.out).with_name(name)
    shutil.copytree(config.out, target)
    return dataclasses.replace(config, out=str(target))


def content(folder):
    return {path: path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


# Checkpoints that cannot be read


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
        ValueError(f"NOT_FOUND: reading failed: {os.strerror(errno.ESTALE)}"),
        MemoryError(),
    ],
    ids=["too many open files", "stale handle in words", "memory"],
)
def test_a_limit_is_no_damage(calm, monkeypatch, error):
    """A refusal that may pass stops the run and moves nothing."""
    config = copied(calm, "limit")
    before = content(config.out)

    def fail(*arguments, **options):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.ocp, "load", fail)
        for call in (lambda: pretrain(config), open_checkpoint(f"{config.out}@seed=7").params):
            with pytest.raises(InputError, match="step 6 .* cannot be read now"):
                call()
    assert {path: data for path, data in content(config.out).items() if path.name != ".lock"} == {
        path: data for path, data in before.items() if path.name != ".lock"
    }
    assert pretrain(config)["resumed_from"] == 6
    shutil.rmtree(config.out)


def test_when_all_are_damaged_nothing_is_begun_anew(calm, capsys):
    config = copied(calm, "all-damaged")
    flip(Path(config.out) / "checkpoints")
    before = content(config.out)
    for _ in range(2):
        with pytest.raises(InputError, match="no checkpoint can be used|every checkpoint .* is corrupted"):
            pretrain(config)
    assert content(config.out) == before
    # Quiet silences progress, not this.
    assert "checkpoint of step 6" in capsys.readouterr().err


def test_metrics_without_a_checkpoint_are_kept(calm):
    config = copied(calm, "lost")
    shutil.rmtree(Path(config.out) / "checkpoints")
    with pytest.raises(InputError, match="metrics up to step 6 but no checkpoint"):
        pretrain(config)
    assert len(read_metrics(config.out)) == 6


def test_checkpoints_of_another_version_are_named(calm):
    config, _ = calm
    before = content(config.out)
    other = dataclasses.replace(config, model=CFG.replace(d_ff=32))
    rule = make_optimizer(other, 6)
    abstract = abstract_state(other, rule, build_mesh(parse_mesh(None)))
    checkpointer = Checkpointer(Path(config.out), other, 6)
    with pytest.raises(InputError, match="other params than this run: resume with the version that wrote it"):
        checkpointer.restore(abstract, other.seeds)
    checkpointer.close()
    assert content(config.out) == before


def test_changed_library_versions_reported(calm, capsys):
    config = copied(calm, "versions")
    path = Path(config.out) / "run.json"
    run = json.loads(path.read_text())
    run["provenance"]["versions"]["jax"] = "0.1.2"
    path.write_text(json.dumps(run))
    pretrain(config)
    assert f"jax {jax.__version__} instead of 0.1.2" in capsys.readouterr().err
    del run["tokens_digest"]
    path.write_text(json.dumps(run))
    with pytest.raises(InputError, match="has no field 'tokens_digest'"):
        pretrain(config)


# Other processes and folders


def test_one_process_trains_in_a_folder(calm):
    config = copied(calm, "held")
    with io.locked(Path(config.out) / ".lock") as held:
        assert held
        before = content(config.out)
        with pytest.raises(InputError, match="another process is training"):
            pretrain(config)
        assert content(config.out) == before
    assert pretrain(config)["resumed_from"] == 6


def test_the_folder_is_looked_at_before_the_data(calm, place, monkeypatch):
    monkeypatch.setattr(setup, "prepare", lambda *a, **k: pytest.fail("the data were tokenized first"))
    config, _ = calm
    with pytest.raises(InputError, match="a run of data_seed=0, not 5"):
        pretrain(dataclasses.replace(config, data_seed=5))
    with pytest.raises(InputError, match="is a file"):
        pretrain(make(place, "story.txt/run"))
    with pytest.raises(InputError, match="which `bornbiased pretrain` did not write"):
        pretrain(make(place, "."))


def test_a_run_made_meanwhile_is_not_taken_over(calm, monkeypatch):
    """Another process makes its run while this one tokenizes: the folder is looked at again under the lock."""
    config = dataclasses.replace(calm[0], out=str(Path(calm[0].out).with_name("meanwhile")), data_seed=5)
    real = train.load_data

    def load(*arguments):
        copied(calm, "meanwhile")
        return real(*arguments)

    monkeypatch.setattr(train, "load_data", load)
    with pytest.raises(InputError, match="a run of data_seed=0, not 5"):
        pretrain(config)
    assert find_steps(Path(config.out)) == find_steps(Path(calm[0].out))


def test_resume_with_changed_logging_settings(calm, place, monkeypatch):
    """The name of the data, how often things are kept and shown; and the source itself may be gone."""
    config = copied(calm, "free")
    shutil.rmtree(Path(config.out) / "checkpoints" / "6")
    moved = place / "moved.txt"
    shutil.copy(place / "story.txt", moved)
    other = dataclasses.replace(
        config, data=str(moved), checkpoint_every=3, eval_every=1, log_every=1, eval_sequences=2
    )
    assert pretrain(other)["digests"] == calm[1]["digests"]
    assert find_steps(Path(config.out)) == [0, 2, 4, 6]
    moved.unlink()
    assert pretrain(other)["resumed_from"] == 6
    with pytest.raises(InputError, match="does not exist"):
        pretrain(make(place, "new", data=str(moved)))
    assert not (place / "new").exists()
    with pytest.raises(InputError, match="data had other content"):
        pretrain(dataclasses.replace(other, data="builtin:code"))


DAMAGED_METRICS = {
    "bytes": lambda line: b"\xff\xfe\x00",
    "a word": lambda line: line.replace(b'"step": 3', b'"step": "3"'),
}


@pytest.mark.parametrize("damage", DAMAGED_METRICS)
def test_damaged_metrics_are_named_and_break_nothing_else(calm, tmp_path, capsys, damage):
    config, summary = calm
    for name in ("good", "bad"):
        shutil.copytree(config.out, tmp_path / name)
    path = tmp_path / "bad" / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[2] = DAMAGED_METRICS[damage](lines[2])
    path.write_bytes(b"\n".join(lines))
    assert [run["path"] for run in list_runs(tmp_path)] == [str(tmp_path / "good")]
    assert plot_run(tmp_path / "good").exists()
    assert f"left out: line 3 of {path}" in capsys.readouterr().err
    with pytest.raises(InputError, match=f"line 3 of {path}"):
        plot_run(tmp_path / "bad")
    again = pretrain(dataclasses.replace(config, out=str(tmp_path / "bad")))
    assert again["digests"] == summary["digests"]
    assert "set aside as metrics.jsonl.damaged; the 5 whole lines stay" in capsys.readouterr().err
    assert path.with_name("metrics.jsonl.damaged").read_bytes() == b"\n".join(lines)
    assert len(list_runs(tmp_path)) == 2


def test_a_finished_run_is_written_as_csv_when_that_is_asked_for(calm, tmp_path, monkeypatch, capsys):
    config, _ = calm
    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))
    shutil.copytree(config.out, tmp_path / "run")
    path = tmp_path / "run" / "metrics.csv"
    assert not path.exists()
    asked = dataclasses.replace(config, out=str(tmp_path / "run"), csv=True, tensorboard=True, wandb=True)
    assert pretrain(asked)["resumed_from"] == 6
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1
    assert "nothing more is logged to Weights & Biases" in capsys.readouterr().err
    rows = list(csv.DictReader(path.read_text().splitlines()))
    lines = read_metrics(tmp_path / "run")
    assert [int(row["step"]) for row in rows] == [line["step"] for line in lines]
    seed = config.seeds[0]
    assert [float(row[f"loss/seed{seed}"]) for row in rows] == [line["loss"][0] for line in lines]


# More steps


def test_a_run_ends_where_its_schedule_does(calm, place):
    with pytest.raises(InputError, match="laid out for 6 steps and ends there.*--schedule-steps"):
        pretrain(make(place, "calm", steps=7))
    with pytest.raises(InputError, match="holds a run of steps=6, not 5"):
        pretrain(make(place, "calm", steps=5))
    with pytest.raises(InputError, match="holds a run of schedule_steps=None, not 8"):
        pretrain(make(place, "calm", steps=6, schedule_steps=8))
    with pytest.raises(InputError, match="steps=7 is beyond schedule_steps=6"):
        make(place, "calm", steps=7, schedule_steps=6)


@pytest.mark.as_users
@pytest.mark.parametrize("keep_latest", nightly_except([None, 1], 1))
def test_an_interrupted_run_keeps_what_an_undisturbed_one_keeps(calm, place, signal_at, monkeypatch, keep_latest):
    name = f"stopped-{keep_latest}"
    config = make(place, name, keep_latest=keep_latest)
    for step in (1, 3, 2):
        with monkeypatch.context():
            signal_at(step)
            pretrain(config)
        monkeypatch.undo()
    summary = pretrain(config)
    assert summary["finished"] and summary["digests"] == calm[1]["digests"]
    undisturbed = [0, 2, 4, 6] if keep_latest is None else [0, 6]
    assert find_steps(Path(config.out)) == undisturbed
    assert not (Path(config.out) / ".interrupted.json").exists()


@pytest.mark.parametrize("is_spaced", nightly_except([False, True], True))
def test_the_latest_of_the_regular_checkpoints_are_beside_those_kept_forever(place, is_spaced):
    """The last step and the log-spaced ones are no multiples of the interval, and crowd none of these out."""
    config = make(
        place, f"latest-{is_spaced}", steps=7, checkpoint_every=3, keep_latest=1, checkpoint_log_spaced=is_spaced
    )
    pretrain(config)
    assert find_steps(Path(config.out)) == ([0, 1, 2, 4, 6, 7] if is_spaced else [0, 6, 7])


# Weights to begin with


def test_weights_keep_their_tokenizer(calm, place, capsys):
    """--init-from takes the tokenizer along; another one is named."""
    parent = f"{calm[0].out}@seed=7"
    assert command(words(place, "heir", "--init-from", parent)) == 0
    run = json.loads((place / "heir" / "run.json").read_text())
    assert run["provenance"]["data"]["tokenizer"] == "bytes"
    assert "nats per token" in capsys.readouterr().out
    larger = make(place, "other-vocabulary", model=CFG.replace(vocab_size=512))
    assert setup.load_data(larger, tokenizer_for("bpe:512", 512)).tokenizer.name == "bytes"
    assert "its ids mean other things" in capsys.readouterr().err
    named = dataclasses.replace(larger, tokenizer=None)
    assert setup.load_data(named, tokenizer_for("bytes", 512)).tokenizer.name == "bytes"
    assert setup.load_data(named).tokenizer.name != "bytes"
    assert not capsys.readouterr().err


def test_a_run_hands_each_seed_its_own_weights(calm, place, capsys):
    config, _ = calm
    assert command(words(place, "both", "--init-from", f"{config.out}@step=4", "--seeds", "7,42")) == 0
    for seed in (7, 42):
        begun, parent = f"{place}/both@seed={seed},step=0", f"{config.out}@seed={seed},step=4"
        assert open_checkpoint(begun).digest() == open_checkpoint(parent).digest()
    assert command(words(place, "copies", "--init-from", f"{config.out}@seed=7", "--seeds", "1,2")) == 2
    assert "copies of each other" in capsys.readouterr().err
    assert not (place / "copies").exists()


def test_epoch_beyond_the_schedule_refused(place):
    config = make(place, "epoch", steps=None)
    data = setup.load_data(config)
    steps = setup.total_steps(config, data.train)
    assert steps > 2
    planned = [dataclasses.replace(config, schedule_steps=count) for count in (steps, steps - 1)]
    assert setup.total_steps(planned[0], data.train) == steps
    with pytest.raises(InputError, match=f"is {steps} steps, beyond schedule_steps={steps - 1}"):
        setup.total_steps(planned[1], data.train)


def test_two_recipes_refused(place, capsys):
    assert command(words(place, "recipes", "--recipe", "seedprint", "--schedule", "paper")) == 2
    assert "--recipe seedprint and --schedule paper are two recipes" in capsys.readouterr().err
    assert not (place / "recipes").exists()


def test_warmup_longer_than_run_reported(place, capsys):
    config = make(place, "short", warmup=10, learning_rate=1e-3)
    data = setup.load_data(config)
    assert setup.total_steps(config, data.train) == 6
    assert "ends at 0.0006" in capsys.readouterr().err
    setup.total_steps(dataclasses.replace(config, warmup=5), data.train)
    assert not capsys.readouterr().err
