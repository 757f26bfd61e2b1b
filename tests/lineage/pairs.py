"""Models of the right shapes, without the compilation that ``init`` costs for every architecture."""

import numpy as np

from bornbiased_jax import model as models


def initial(cfg, seed):
    """Gaussian weights of standard deviation 0.02, scales and biases too."""
    draws = np.random.default_rng(seed)
    shapes = models.flatten(models.parameter_shapes(cfg))
    return models.unflatten(
        {path: 0.02 * draws.standard_normal(leaf.shape, np.float32) for path, leaf in shapes.items()}
    )


def jittered(params, fraction, seed=0):
    """The weights with noise of a fraction of each parameter's standard deviation."""
    draws = np.random.default_rng(seed)
    return models.unflatten(
        {
            path: np.asarray(leaf) + np.float32(fraction * np.std(leaf)) * draws.standard_normal(leaf.shape, np.float32)
            for path, leaf in models.flatten(params).items()
        }
    )
