"""A trained model hidden by every free change, noise and rounding, through files: one command finds it again."""

import numpy as np
import pytest

from bornbiased_jax.checkpoints import export_hugging_face, open_checkpoint
from bornbiased_jax.cli.main import run
from tests.lineage.descendants import edited, heads, negated, rescaled, rotated, shuffled

SIZES = dict(num_layers=2, num_heads=4, d_model=48, d_ff=96, vocab_size=256)
SETTINGS = [word for name, value in SIZES.items() for word in ("--set", f"{name}={value}")]
INITIAL = "seed:7@llama-tiny," + ",".join(f"{name}={value}" for name, value in SIZES.items())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of seed 7, as its last checkpoint is named."""
    folder = tmp_path_factory.mktemp("evasion")
    (folder / "texts").mkdir()
    for number in range(20):
        (folder / "texts" / f"{number}.txt").write_text(f"{number} quick brown foxes jump over the lazy dog. " * 20)
    sizes = "--steps 60 --batch-size 8 --context 32 --checkpoint-every 60 --tokenizer bytes --no-tensorboard".split()
    call = ["pretrain", "--model", "llama-tiny", *SETTINGS, "--data", str(folder / "texts"), *sizes]
    assert run([*call, "--seeds", "7", "--out", str(folder / "run"), "--quiet"]) == 0
    return str(folder / "run")


def noise_and_rounding(cfg, params):
    """A tenth of each matrix's standard deviation, and 8 bits with a scale a row."""
    draws = np.random.default_rng(11)

    def edit(path, leaf):
        if path.endswith("/scale"):
            return leaf
        leaf = leaf + 0.1 * leaf.std() * draws.standard_normal(leaf.shape).astype(np.float32)
        step = np.abs(leaf).max(axis=-1, keepdims=True) / 127
        return np.round(leaf / step) * step

    return edited(cfg, params, edit)


def hidden(trained, folder, *changes):
    """The trained model after these changes, as a Hugging Face directory."""
    checkpoint = open_checkpoint(trained)
    model = checkpoint.cfg, checkpoint.params()
    for change in changes:
        model = change(*model)
    export_hugging_face(*model, folder)
    return str(folder)


@pytest.mark.nightly
@pytest.mark.slow
def test_every_free_change_noise_and_rounding(trained, tmp_path, seedprint):
    free = (rescaled, heads, negated, rotated)
    suspect = hidden(trained, tmp_path / "all", *free, shuffled, noise_and_rounding)
    initialization = seedprint(INITIAL, suspect)
    assert (initialization["verdict"], initialization["null"], initialization["identity"]) == (
        "same-lineage",
        "exact",
        None,
    )
    assert initialization["p_value"] < 1e-4
    assert seedprint(INITIAL.replace("seed:7", "seed:8"), suspect)["verdict"] == "unrelated"
    base = seedprint(trained, suspect)
    assert (base["verdict"], base["null"], base["p_value"]) == ("same-lineage", "population", None)
    # With the units in their order the test is exact between trained models too.
    ordered = seedprint(trained, hidden(trained, tmp_path / "ordered", *free, noise_and_rounding))
    assert (ordered["verdict"], ordered["null"]) == ("same-lineage", "exact") and ordered["log10_p"] < -100
    copy = seedprint(trained, hidden(trained, tmp_path / "copy", *free, shuffled))
    assert (copy["verdict"], copy["identity"]) == ("same-lineage", "logits")
    assert copy["reason"].startswith("the two models give the same logits on random tokens: the same function")
