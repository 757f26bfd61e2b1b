"""The record of a run: checks, schedules, and what may change when it is resumed."""

import dataclasses
import json

import pytest

from bornbiased_jax import io
from bornbiased_jax.cli.main import run
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.adapters import lora
from bornbiased_jax.training import setup
from bornbiased_jax.training.config import PretrainConfig, changed_field, from_schedule
from bornbiased_jax.training.initial import check_architecture, drawn_as, initial_references
from bornbiased_jax.training.setup import check_folder
from tests.training.small_run import make

CFG = preset("llama-tiny")


def config(**changes):
    return PretrainConfig(**{"model": CFG, "data": "builtin:prose", "out": "run", **changes})


def test_round_trip():
    run = config(seeds=[1, 2], steps=None, mesh="seed=2")
    assert PretrainConfig.from_dict(run.to_dict()) == run
    with pytest.raises(InputError, match="novelty"):
        PretrainConfig.from_dict({**run.to_dict(), "novelty": 1})


def test_paths_are_recorded_as_text(tmp_path):
    """As ``out`` and ``data`` are: the record of a run is JSON."""
    run = config(init_from=tmp_path / "base", tokenizer=tmp_path / "tokenizer.json", token_cache=tmp_path / "tokens")
    assert PretrainConfig.from_dict(json.loads(json.dumps(run.to_dict()))) == run
    assert run.token_cache == str(tmp_path / "tokens")


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"seeds": ()}, "no seeds"),
        ({"seeds": (1, 1)}, "twice"),
        ({"seeds": (-1,)}, "seed=-1"),
        ({"steps": 0}, "steps"),
        ({"batch_size": 8, "accumulation": 3}, "accumulation"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": 1e-4, "min_learning_rate": 1e-3}, "min_learning_rate"),
        ({"beta2": 1.0}, "beta2"),
        ({"dtype": "float16"}, "dtype"),
        ({"optimizer": "sgd"}, "optimizer='sgd' is not one of adamw, muon"),
        ({"optimizer": "muon", "adapter": lora(2)}, "Muon"),
        ({"seeds_mode": "both"}, "seeds_mode"),
        ({"validation_fraction": 0.0}, "validation_fraction"),
        ({"mesh": "seed=2", "seeds": (1, 2, 3)}, "divide"),
        ({"mesh": "rows=2"}, "rows"),
        ({"mesh": 2}, "mesh=2 is not a text"),
        ({"tokenizer": 5}, "tokenizer=5 is neither a text nor a path"),
        ({"token_cache": 5}, "token_cache=5 is neither"),
        ({"init_from": b"run"}, "init_from=b'run' is neither"),
        ({"seeds": None}, "seeds=None is one value"),
        ({"seeds": 1.5}, "seeds=1.5 is one value"),
        ({"adapter": "lora"}, "adapter='lora' is none"),
        ({"remat": "false"}, "remat='false' is not true or false"),
        ({"checkpoint_log_spaced": 1}, "checkpoint_log_spaced=1 is not true or false"),
        ({"model": preset("gpt2-small"), "context": 2048}, "max_seq_len"),
    ],
)
def test_refuses(changes, named):
    with pytest.raises(InputError, match=named):
        config(**changes)


def test_a_constant_rate_has_no_minimum_to_be_below():
    assert config(schedule="constant", learning_rate=1e-5).learning_rate == 1e-5


def test_schedules_hold_the_papers_numbers():
    # Table 14.
    paper = from_schedule("paper", model=CFG, data="x", out="run")
    assert (paper.learning_rate, paper.min_learning_rate, paper.warmup, paper.steps) == (6e-4, 6e-5, 2000, 200_000)
    assert (paper.batch_size, paper.micro_batch, paper.accumulation) == (128, 64, 2)
    assert (paper.weight_decay, paper.clip, paper.beta1, paper.beta2, paper.dtype) == (0.1, 1.0, 0.9, 0.95, "bfloat16")
    # 200,000 × 128 × 2,048 = 52B tokens.
    assert paper.steps * paper.tokens_per_step == 52_428_800_000
    toy = from_schedule("seedprint", model=CFG, data="x", out="run", warmup=7)
    assert (toy.micro_batch, toy.accumulation, toy.context, toy.learning_rate) == (4, 8, 2048, 3e-4)
    assert toy.warmup == 7 and toy.steps is None
    with pytest.raises(InputError, match="tiny"):
        from_schedule("none", model=CFG, data="x", out="run")


def test_changed_field():
    before = config().to_dict()
    assert changed_field(before, config(mesh="data=1", remat=True, quiet=True, keep_latest=3).to_dict()) is None
    assert changed_field(before, config(data_seed=1).to_dict()) == "data_seed"
    assert changed_field(before, config(model=CFG.replace(d_ff=96)).to_dict()) == "model.d_ff"


# Fields that a stored configuration leaves out while they have their default.
@pytest.mark.parametrize(
    ("field", "value"),
    [("logit_softcap", 5.0), ("residual_scale", 0.5), ("attention_scale", 0.1), ("init_groups", "down=zeros")],
)
def test_a_field_that_returns_to_its_default_is_a_changed_one(field, value):
    plain, other = config().to_dict(), config(model=CFG.replace(**{field: value})).to_dict()
    assert changed_field(other, plain) == changed_field(plain, other) == f"model.{field}"


def test_weights_to_begin_with_have_the_architecture_of_the_run_in_every_field():
    capped = CFG.replace(logit_softcap=5.0)
    with pytest.raises(InputError, match="has logit_softcap=5.0, the run None: set logit_softcap=5.0"):
        check_architecture(config(), capped)
    with pytest.raises(InputError, match="has logit_softcap=None, the run 5.0"):
        check_architecture(config(model=capped), CFG)
    # How they were drawn and how long a context they are for is no part of it.
    check_architecture(config(), CFG.replace(init="mup", init_groups="down=zeros", max_seq_len=64))
    check_architecture(config(model=CFG.replace(init_groups="down=zeros")), CFG)
    clipped = CFG.replace(attention_kernel="clipped")
    with pytest.raises(InputError, match=f"has max_seq_len=64, the run {CFG.max_seq_len}: set max_seq_len=64"):
        check_architecture(config(model=clipped), clipped.replace(max_seq_len=64))


def test_given_weights_bring_the_scheme_that_drew_them():
    """Records of before have the run's own, which drew nothing: they resume."""
    other = config(model=CFG.replace(init="mup", init_groups="down=zeros", max_seq_len=64), init_from="a")
    drawn = drawn_as(other, [(CFG, {})])
    assert drawn.model == CFG.replace(max_seq_len=64) and drawn_as(other, None) == other
    assert changed_field(other.to_dict(), drawn.to_dict()) is None
    untrained = [dataclasses.replace(settings, init_from=None).to_dict() for settings in (other, drawn)]
    assert changed_field(*untrained) == "model.init"


def test_a_scheme_beside_given_weights_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("bornbiased_jax.cli.pretrain.open_initial", lambda *_: ([(CFG, {})], None))
    command = ["pretrain", "--model", "llama-tiny", "--data", "builtin:prose", "--out", str(tmp_path / "run")]
    assert run([*command, "--init-from", "other", "--set", "init.down=zeros"]) == 2
    assert "--set init.down=zeros draws no weights where --init-from gives them" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_run_of_an_older_version_has_the_defaults_of_newer_fields():
    before = {name: value for name, value in config().to_dict().items() if name not in ("schedule", "optimizer", "csv")}
    assert changed_field(before, config(csv=True).to_dict()) is None
    assert changed_field(before, config(optimizer="muon").to_dict()) == "optimizer"
    assert changed_field(before, config(schedule="wsd").to_dict()) == "schedule"


@pytest.mark.parametrize("step", ["", ",step=0"])
def test_a_run_whose_name_has_an_at_sign_hands_on_its_seeds(tmp_path, step):
    folder = tmp_path / "lr@1e-3"
    settings = config(out=str(folder), seeds=(42, 7)).to_dict()
    record = {"config": settings, "steps": 1, "tokens_digest": "", "initial_digest": None}
    io.write_json(folder / "run.json", record)
    reference = f"{folder}@{step[1:]}" if step else str(folder)
    assert initial_references(reference, (7, 42)) == [f"{folder}@seed={seed}{step}" for seed in (7, 42)]


def test_a_run_in_the_folder_of_its_text_is_refused(tmp_path):
    """Its metrics would be text when it resumes; those in hidden folders are none."""
    (tmp_path / "story.txt").write_text("the bird and the river")
    with pytest.raises(InputError, match="whose files are the text: name another --out"):
        check_folder(config(data=str(tmp_path), out=str(tmp_path / "runs" / "a")))
    for data, out in ((tmp_path, ".runs/a"), (tmp_path / "story.txt", "runs/a"), (tmp_path / "other", "runs/a")):
        check_folder(config(data=str(data), out=str(tmp_path / out)))


def test_a_resume_on_another_number_of_cores_is_told(place, monkeypatch, capsys):
    run = make(place, "cores")
    data = setup.load_data(run)
    for parts in (2, 2, 4):
        assert "resumes with" not in capsys.readouterr().err
        monkeypatch.setattr(setup, "cpu_shards_for", lambda *_sizes, parts=parts: parts)
        setup.claim_folder(run, data, 6, None)
    assert "resumes with a batch in 4 parts at once, one a core, instead of 2" in capsys.readouterr().err
