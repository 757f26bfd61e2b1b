"""Small models for these tests: descendants made without training, and copies hidden by free changes."""

import numpy as np

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import preset
from bornbiased_jax.derive import symmetries
from bornbiased_jax.init import init_seed
from bornbiased_jax.parameters import flatten, unflatten

SIZES = dict(num_layers=4, num_heads=4, d_model=96, d_ff=128, vocab_size=256)


def config(name="llama-tiny", **changes):
    return preset(name, **{**SIZES, **changes})


def edited(cfg, params, edit):
    """A copy with every parameter replaced by ``edit(path, array)``."""
    return cfg, unflatten({path: edit(path, np.array(leaf)) for path, leaf in flatten(params).items()})


def descend(cfg, seed, drift=0.6, *, change=99):
    """Weights that kept a fraction of their initialization's variance, √(1 − s²) W + s W′, with moved norm scales."""
    draws = np.random.default_rng(change)
    others = flatten(init_seed(cfg, 10_000 + change))

    def edit(path, leaf):
        if path.endswith("/scale"):
            return np.exp(0.3 * draws.standard_normal(leaf.shape)).astype(np.float32)
        return np.float32(np.sqrt(1 - drift**2)) * leaf + np.float32(drift) * np.asarray(others[path])

    return edited(cfg, init_seed(cfg, seed), edit)


def reader(model):
    return Checkpoint.from_params(*model)


def orders(count, size, seed=2):
    draws = np.random.default_rng(seed)
    return np.stack([draws.permutation(size) for _ in range(count)])


def rescaled(cfg, params):
    draws = np.random.default_rng(5)
    shape = (cfg.num_layers, cfg.d_ff)
    factors = draws.choice([-1, 1], shape) * np.exp(draws.normal(size=shape))
    return symmetries.rescale_units(cfg, params, factors.astype(np.float32))


def rotated(cfg, params):
    return symmetries.rotate(cfg, params, symmetries.random_rotation(cfg, 4))


def shifted(cfg, params):
    """Add one vector to every column of the head: all logits of a position move alike, no probability does."""
    vector_D = 2 * np.random.default_rng(6).normal(size=cfg.d_model).astype(np.float32)

    def edit(path, leaf):
        return leaf + vector_D[:, None] if path == "head/kernel" else leaf

    return edited(cfg, params, edit)


def negated(cfg, params):
    return symmetries.negate(cfg, params, np.random.default_rng(3).choice([-1.0, 1.0], cfg.d_model))


def heads(cfg, params):
    return symmetries.permute_heads(cfg, params, orders(cfg.num_layers, cfg.kv_heads))


def shuffled(cfg, params):
    return symmetries.permute_units(cfg, params, orders(cfg.num_layers, cfg.d_ff))


def inserted(cfg, params):
    return rotated(*symmetries.insert_idle_block(cfg, params, 8))


def everything(cfg, params):
    return shuffled(*heads(*shifted(*inserted(*rescaled(cfg, params)))))
