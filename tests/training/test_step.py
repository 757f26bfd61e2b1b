"""One update: what it measures, and the checkpoint that keeps it."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.checkpoints.formats.run import checksums
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.loss import loss_sum
from bornbiased_jax.parallel import build_mesh, parse_mesh
from bornbiased_jax.training import PretrainConfig, begin, checkpoint, fit
from bornbiased_jax.training.checkpoint import Checkpointer
from bornbiased_jax.training.optimizer import make_optimizer
from bornbiased_jax.training.program import abstract_state

CFG = preset("llama-tiny", num_layers=1, num_heads=2, d_model=16, d_ff=24, vocab_size=32)


@pytest.fixture
def config(tmp_path):
    # A clip far below the norm of any gradient here.
    return PretrainConfig(
        model=CFG, data="none", out=str(tmp_path), seeds=(3, 4), context=8, batch_size=4, steps=4, warmup=1, clip=1e-3
    )


@pytest.mark.slow
def test_training_step_metrics(config):
    """Loss and norm of the whole gradient are those of the batch before the update, unclipped, for each seed."""
    state, step = begin(config)
    initial = jax.tree.map(np.array, state.params)
    tokens_BT1 = np.random.default_rng(0).integers(0, 32, (4, 9), np.int32)
    observed = []
    after, count = fit(state, step, [jnp.asarray(tokens_BT1)[None]], [lambda *arguments: observed.append(arguments)])
    ((number, last, measured),) = observed
    assert number == count == 1 and last is after

    def mean_loss(params):
        total, tokens = loss_sum(CFG, params, tokens_BT1)
        return total / tokens

    gradient = jax.jit(jax.value_and_grad(mean_loss))
    for index in range(2):
        params = jax.tree.map(lambda leaf, index=index: leaf[index], initial)
        loss, grads = gradient(params)
        norm = np.sqrt(sum(np.square(np.asarray(leaf, np.float64)).sum() for leaf in jax.tree.leaves(grads)))
        assert norm > 100 * config.clip
        assert float(measured["grad_norm"][index]) == pytest.approx(norm, rel=1e-4)
        assert float(measured["loss"][index]) == pytest.approx(float(loss), rel=1e-5)


def test_a_run_in_memory_has_its_number_of_steps(config):
    assert fit("state", None, [], first=3) == ("state", 3)
    with pytest.raises(ValueError, match="number of steps"):
        begin(PretrainConfig(**{**config.__dict__, "steps": None}))


@pytest.fixture
def saved(config):
    """``saved(config)``: the run's checkpointer and where its state goes, for the folder of the run."""
    opened = []

    def arrange(run):
        abstract = abstract_state(run, make_optimizer(run, 4), build_mesh(parse_mesh(None)))
        opened.append(Checkpointer(Path(config.out), run, 4))
        return opened[-1], abstract

    yield arrange
    for checkpointer in opened:
        checkpointer.close()


@pytest.mark.slow
def test_checksums_are_verified_on_resume(config, saved, monkeypatch, capsys):
    """Arrays that storage reads without complaint, and that are not the ones saved, are damage."""
    checkpointer, abstract = saved(config)
    state, _ = begin(config)
    checkpointer.save(state)
    checkpointer.wait()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "checksums", lambda tree: checksums(tree).at[5].add(1))
        checkpointer.save(state._replace(step=state.step + 2))
        checkpointer.wait()
    resumed = checkpointer.restore(abstract, config.seeds)
    assert resumed.step.tolist() == [0, 0] and resumed.seed.tolist() == [3, 4]
    assert "step 2" in capsys.readouterr().err
    assert (Path(config.out) / "damaged" / "2").is_dir()
    jax.tree.map(np.testing.assert_array_equal, resumed, state)


@pytest.mark.slow
def test_a_checkpoint_of_other_seeds_is_refused(config, saved):
    checkpointer, _ = saved(config)
    checkpointer.save(begin(config)[0])
    checkpointer.wait()
    other, abstract = saved(config)
    with pytest.raises(InputError, match=r"are of seeds \[3, 4\], not \[4, 3\]"):
        other.restore(abstract, (4, 3))
