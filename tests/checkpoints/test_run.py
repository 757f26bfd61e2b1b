"""The run format read without a trainer: checksums and seeds of a checkpoint are held against its weights."""

import gc
import shutil
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from bornbiased_jax import io
from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.checkpoints.formats.run import (
    FOLDER,
    RUN_FILE,
    SavedTree,
    checksums,
    progress_tree,
)
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed
from bornbiased_jax.parameters import flatten

CFG = preset("llama-tiny", num_layers=2, d_model=8, d_ff=8, num_heads=2, vocab_size=16, max_seq_len=8)
SEEDS = (5, 3)


def save_run(folder, *, seeds=SEEDS, change=lambda sums: sums):
    """A run of one step, as a trainer leaves it."""
    many = [init_seed(CFG, seed) for seed in SEEDS]
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *many)
    optimizer = {"count": jnp.zeros(2, jnp.int32)}
    sums = change(np.asarray(checksums([params, optimizer])))
    content = {
        "params": params,
        "optimiser": optimizer,
        "progress": progress_tree(1, seeds, {"next_index": 0}, jnp.asarray(sums)),
    }
    (folder / FOLDER).mkdir(parents=True)
    ocp.save_checkpointables(folder / FOLDER / "1", content)
    config = {"data": "builtin:prose", "model": CFG.to_dict(), "seeds": list(SEEDS), "context": 8}
    run = {"config": config, "steps": 1, "tokens_digest": "", "initial_digest": ""}
    io.write_json(folder / RUN_FILE, run)
    return folder


@pytest.mark.slow
def test_loading_a_run_keeps_one_copy_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(SavedTree, "read", recorded(SavedTree.read, loaded := []))
    checkpoint = open_checkpoint(f"{save_run(tmp_path / 'run')}@seed=5")
    params = checkpoint.params()
    gc.collect()
    assert len(loaded) == len(flatten(params)) and not any(reference() is not None for reference in loaded)
    # Blocks of one parameter are read from one load of it.
    loaded.clear()
    for layer in range(CFG.num_layers):
        np.testing.assert_array_equal(
            checkpoint.read("blocks/mlp/up/kernel", layer), params["blocks"]["mlp"]["up"]["kernel"][layer]
        )
    assert len(loaded) == 1


def recorded(read, references):
    """The same method, remembering what it gave without keeping it alive."""

    def wrapped(self, name):
        tensor = read(self, name)
        references.append(weakref.ref(tensor))
        return tensor

    return wrapped


def swapped(sums):
    """The right checksums of the right leaves in another order."""
    sums = sums.copy()
    sums[[1, 2]] = sums[[2, 1]]
    return sums


@pytest.mark.parametrize("change", [lambda sums: sums + 1, swapped], ids=["other", "swapped"])
def test_weights_that_do_not_match_their_checksums_are_refused(tmp_path, change):
    run = save_run(tmp_path / "run", change=change)
    with pytest.raises(InputError, match="step 1 .* is corrupted .the checksum of .* does not match"):
        open_checkpoint(f"{run}@seed=5,step=1").params()


@pytest.mark.slow
def test_the_last_step_is_read_unless_one_is_named(tmp_path):
    run = save_run(tmp_path / "run")
    for step in ("4", "20"):
        shutil.copytree(run / FOLDER / "1", run / FOLDER / step)
    steps = [open_checkpoint(f"{run}@{choice}").info["step"] for choice in ("seed=5", "seed=5,step=4")]
    assert steps == [20, 4]
    with pytest.raises(InputError, match="no checkpoint of step 5: it has 1, 4, 20"):
        open_checkpoint(f"{run}@seed=5,step=5")
    shutil.rmtree(run / FOLDER / "20" / "params" / "d")
    with pytest.raises(InputError, match="step 20 in .* is corrupted .*: the newest whole one is .*@seed=5,step=4$"):
        open_checkpoint(f"{run}@seed=5").params()


@pytest.mark.parametrize("seeds", [(3, 5), (5, 4)])
def test_a_checkpoint_of_other_seeds_is_refused(tmp_path, seeds):
    """With the seeds in another order, one seed's weights would pass for the other's."""
    run = save_run(tmp_path / "run", seeds=seeds)
    with pytest.raises(InputError, match=rf"its seeds are \[{seeds[0]}, {seeds[1]}\], not \[5, 3\]"):
        open_checkpoint(f"{run}@seed=5,step=1").params()


def test_a_checksum_sees_values_places_and_leaves():
    leaf = jnp.arange(12, dtype=jnp.float32).reshape(3, 4)
    (plain,) = checksums([leaf])
    for other in (leaf.at[2, 3].set(11.5), leaf[:, ::-1], leaf[::-1], leaf.at[0, 0].set(-0.0)):
        assert checksums([other])[0] != plain
    np.testing.assert_array_equal(checksums([leaf + 1, leaf]), checksums([leaf, leaf + 1])[::-1])
