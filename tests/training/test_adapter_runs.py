"""Runs that train an adapter: the model below it stays, they resume bit for bit, and they open as models."""

import hashlib
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from bornbiased_jax.checkpoints import digest, open_checkpoint
from bornbiased_jax.checkpoints.formats.run import frozen_tree, restore_adapter
from bornbiased_jax.checkpoints.native_roles import NativeRoles
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.audit.audit import audit_folder
from bornbiased_jax.model.adapters import lora, merge, prefix, prefix_plus
from bornbiased_jax.parameters import flatten
from bornbiased_jax.training import begin, pretrain, setup
from bornbiased_jax.training.initial import check_initial
from bornbiased_jax.training.metrics import read_metrics
from tests.tiers import nightly_except
from tests.training import small_run

pytestmark = pytest.mark.slow

REFERENCE = "seed:3@llama-tiny,num_layers=2,num_heads=2,d_model=32,d_ff=48,vocab_size=256"
CFG = preset("llama-tiny", num_layers=2, num_heads=2, d_model=32, d_ff=48, vocab_size=256)
ADAPTERS = {"lora": lora(4, matrices=("query", "up")), "prefix": prefix(3), "prefix-plus": prefix_plus()}
BASE = open_checkpoint(REFERENCE)


def make(place, name, method, **changes):
    """The small run of an adapter."""
    base = dict(model=CFG, seeds=(5, 6), steps=8, warmup=1, checkpoint_every=4, eval_sequences=6, init_from=REFERENCE)
    rates = dict(learning_rate=1e-2, min_learning_rate=0.0, weight_decay=0.0)
    return small_run.make(place, name, **{**base, **rates, "adapter": ADAPTERS[method], **changes})


def train(config):
    return pretrain(config, [(BASE.cfg, BASE.params())])


def bytes_of(folder):
    return {
        path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module", params=nightly_except(ADAPTERS, "lora"))
def calm(place, request):
    """An uninterrupted run of two seeds of each method."""
    config = make(place, f"calm-{request.param}", request.param)
    return request.param, config, train(config)


def test_adapter_learns_and_base_stays_frozen(calm):
    method, config, summary = calm
    opened = open_checkpoint(f"{config.out}@seed=6")
    before, after = flatten(BASE.params()), flatten(opened.params())
    changed = {path for path in before if not np.array_equal(before[path], after[path])}
    expected = {"blocks/attention/query/kernel", "blocks/mlp/up/kernel"} if method == "lora" else set()
    assert changed == expected
    lines = read_metrics(config.out)
    assert lines[-1]["loss"][0] < lines[0]["loss"][0] and lines[-1]["loss"][1] < lines[0]["loss"][1]
    # Initializations of a memory are alike; of what is drawn, each has its seed's.
    assert (lines[-1]["loss"][0] == lines[-1]["loss"][1]) == (method == "prefix-plus")
    record = json.loads((Path(config.out) / "run.json").read_text())
    assert record["provenance"]["prng"] == "threefry2x32"
    assert record["config"]["seeds"] == [5, 6] and record["config"]["data_seed"] == 0
    assert 0 < record["trained_parameters"] < record["parameters"]
    # A checkpoint holds the adapter alone.
    place, trained = restore_adapter(config.out, 6)
    assert sum(leaf.size for leaf in flatten(trained).values()) == record["trained_parameters"]
    merged = merge(place.adapter, BASE.params(), trained)
    assert all(np.array_equal(flatten(merged)[path], after[path]) for path in after)
    assert summary["finished"] and opened.digest() == digest(opened.params()) == summary["digests"]["6"]
    assert not opened.is_initial
    assert opened.cfg.prefix_length == (3 if method == "prefix" else None)
    assert opened.cfg.prefix_memory == ("elu" if method == "prefix-plus" else "none")
    assert method != "lora" or open_checkpoint(f"{config.out}@seed=5,step=0").digest() == BASE.digest()


@pytest.mark.as_users
def test_stopped_adapter_run_resumes_bitwise(calm, place, signal_at):
    method, config, summary = calm
    other = make(place, f"stopped-{method}", method)
    signal_at(6)
    assert not train(other)["finished"]
    frozen = bytes_of(Path(other.out) / "base")
    again = train(other)
    assert 4 <= again["resumed_from"] < 8 and again["digests"] == summary["digests"]
    assert bytes_of(Path(other.out) / "base") == frozen
    losses = [[line["loss"] for line in read_metrics(run.out)] for run in (config, other)]
    assert losses[0] == losses[1]


def test_in_memory_and_with_seeds_at_once(calm, place):
    """The loss of the first step is that of the run, whatever the order of sums."""
    method, config, _ = calm
    frozen = jax.tree.map(jax.numpy.asarray, BASE.params())
    first = read_metrics(config.out)[0]["loss"]
    tokens = np.random.default_rng(0).integers(0, 256, (1, 4, 17)).astype(np.int32)
    measured = []
    for mode in ("map", "vmap"):
        state, step = begin(make(place, "unused", method, seeds_mode=mode), frozen)
        _, metrics = step(state, tokens)
        measured.append(np.asarray(metrics["loss"]))
    np.testing.assert_allclose(*measured, rtol=1e-6)
    assert abs(measured[0][0] - first[0]) < 0.1
    with pytest.raises(ValueError, match="go together"):
        begin(make(place, "unused", method))


def test_corrupted_or_mismatched_adapter_run_refused(place, calm):
    method, config, _ = calm
    broken = place / f"broken-{method}"
    shutil.copytree(config.out, broken)
    shutil.rmtree(broken / "checkpoints/8/params/d")
    with pytest.raises(InputError, match=r"step 8 in .* is corrupted .*: the newest whole one is .*step=4"):
        open_checkpoint(f"{broken}@seed=5").params()
    open_checkpoint(f"{broken}@seed=5,step=4").params()
    shutil.rmtree(broken / "base/params")
    with pytest.raises(InputError, match="the frozen model in .*base is corrupted or missing"):
        open_checkpoint(f"{broken}@seed=5,step=4").digest()
    record = json.loads((broken / "run.json").read_text())
    record["config"]["adapter"]["method"] = "magic"
    (broken / "run.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match="run.json describes no model that can be built"):
        open_checkpoint(f"{broken}@seed=5,step=4")
    with pytest.raises(InputError, match="another --out"):
        train(make(place, f"calm-{method}", "lora" if method == "prefix" else "prefix"))
    with pytest.raises(InputError, match="adapter needs the weights"):
        pretrain(make(place, "nothing", method, init_from=None))
    with pytest.raises(InputError, match="one device"):
        make(place, "mesh", method, mesh="data=2")


def test_what_a_killed_call_left_is_not_taken_for_this_runs(place):
    """Killed before its record was written: the model and the tokenizer that lie there may be another run's."""
    folder = place / "killed"
    for seed in (4, 3):
        config = make(place, "killed", "lora", init_from=REFERENCE.replace("seed:3", f"seed:{seed}"))
        base = open_checkpoint(config.init_from)
        setup.claim_folder(config, setup.load_data(config), 8, check_initial(config, [(base.cfg, base.params())]))
        assert digest(frozen_tree(folder).load_all()) == base.digest()
        assert [path.name for path in (folder / "tokenizer").iterdir()] == ["tokenizer.bytes.json"]
        (folder / "run.json").unlink()
        (folder / "tokenizer" / "tokenizer.json").write_text("{")


def test_an_audit_takes_no_frozen_tensor_for_a_copy(calm):
    """Two seeds, three checkpoints each on one model: all begin as that model, and none is a copy of another.

    But Prefix-Tuning+ begins at zero whatever the seed: there they are, and are told.
    """
    method, config, _ = calm
    report = audit_folder(config.out)
    assert len(report["checkpoints"]) == 6
    copies = {tuple(row["subjects"]) for row in report["findings"] if row["kind"] == "duplicate"}
    steps = (4, 8) if method == "prefix-plus" else ()
    assert copies == {(f"seed=5,step={step}", f"seed=6,step={step}") for step in steps}
    assert report["clean"] == (not copies), report["findings"]
    frozen = {role.path for role in NativeRoles(BASE).roles}
    for checkpoint in report["checkpoints"]:
        # At the beginning a LoRA's product is zero, and the model is its base.
        changed = checkpoint["digests"].keys() & frozen
        assert bool(changed) == (method == "lora" and checkpoint["step"] > 0)
