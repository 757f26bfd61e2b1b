"""The top-1 token's fraction where inputs scatter unevenly around their mean: its model, and the real modules."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax import keys
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.init import init_seed
from bornbiased_jax.model import apply
from bornbiased_jax.prediction import stack_of
from bornbiased_jax.theory import preference
from bornbiased_jax.theory.given_head import largest_logit
from bornbiased_jax.theory.logits import Scatter
from bornbiased_jax.theory.mean_field import profile
from bornbiased_jax.theory.predict import contraction, scatter
from tests.compilation import THOROUGH
from tests.tiers import nightly_except
from theory.test_preference_theory import distribution_accepts

# The model, written out: unit vectors √ρ û + a part of their own, whose covariance is that of a product of Gaussian
# matrices; tokens are Gaussian rows.

RHO, VOCAB, INPUTS, WIDTH = 0.1, 300, 200, 128


@functools.lru_cache
def simulated(factors: int, lean: float, seeds: int = 300) -> tuple[np.ndarray, float]:
    """Top counts over seeds, and the mean of d tr Σ²/(tr Σ)² over them."""
    rng = np.random.default_rng(factors)
    counts, anisotropy = np.empty(seeds, int), 0.0
    for i in range(seeds):
        shape = functools.reduce(np.matmul, rng.normal(size=(factors, WIDTH, WIDTH)), np.eye(WIDTH))
        covariance = shape @ shape.T
        anisotropy += WIDTH * np.sum(covariance**2) / np.trace(covariance) ** 2 / seeds
        along = np.sqrt(RHO) + np.sqrt(lean) * rng.normal(size=INPUTS)
        own = rng.normal(size=(INPUTS, WIDTH)) @ shape.T
        own *= (np.sqrt(np.maximum(1 - along**2, 0)) / np.linalg.norm(own, axis=1))[:, None]
        logits = along[:, None] * rng.normal(size=VOCAB) + own @ rng.normal(size=(WIDTH, VOCAB))
        counts[i] = np.bincount(np.argmax(logits, axis=1)).max()
    return counts, anisotropy


def distribution(anisotropy: float, lean: float, rho: float = RHO) -> preference.TopFraction:
    return preference.top1_distribution(rho, VOCAB, INPUTS, WIDTH, anisotropy=anisotropy, lean=lean)


@pytest.mark.long
@pytest.mark.parametrize("factors", nightly_except([1, 2], 2))
def test_uneven_scatter_against_simulation(factors: int) -> None:
    counts, anisotropy = simulated(factors, 0.0)
    assert anisotropy == pytest.approx(factors + 1, rel=0.05)
    assert distribution_accepts(distribution(anisotropy, 0.0), counts)
    assert not distribution_accepts(distribution(1.0, 0.0), counts)


@pytest.mark.long
def test_inputs_that_lean_against_simulation() -> None:
    counts, anisotropy = simulated(1, 0.03)
    assert distribution_accepts(distribution(anisotropy, 0.03), counts)
    assert not distribution_accepts(distribution(anisotropy, 0.0), counts)


@pytest.mark.slow
@pytest.mark.nightly
def test_both_routes_to_the_top1_fraction_at_the_expansion_parameter_of_gpt2_nano() -> None:
    """(2 ln V)² anisotropy/d is 2.3 here, as at V = 50,304 and 768 dimensions: first order is not small."""
    rho, vocab, num_inputs, width, seeds = 0.336, 3_000, 500, 222, 300
    rng = np.random.default_rng(21)
    counts, given, anisotropy = np.empty(seeds, int), np.empty(seeds), 0.0
    for i in range(seeds):
        shape = rng.normal(size=(width, width))
        covariance = shape @ shape.T / np.trace(shape @ shape.T)
        anisotropy += width * np.sum(covariance**2) / seeds
        a_V, rows_VD = rng.normal(size=vocab), rng.standard_normal((vocab, width), np.float32)
        # Inputs of unit length, and the token that each predicts.
        own_ND = rng.normal(size=(num_inputs, width)) @ shape.T
        own_ND /= np.linalg.norm(own_ND, axis=1, keepdims=True)
        logits_NV = np.sqrt(rho) * a_V + np.sqrt(1 - rho) * (own_ND.astype(np.float32) @ rows_VD.T)
        counts[i] = np.bincount(np.argmax(logits_NV, axis=1)).max()
        # The route of given rows, on the rows of the seed.
        scale_V = np.einsum("vd,vd->v", rows_VD @ covariance.astype(np.float32), rows_VD)
        noise_V = np.sqrt((1 - rho) * scale_V)
        p_V = largest_logit(np.sqrt(rho) * a_V, noise_V, 1 / float(np.sum(covariance**2)))
        given[i] = rng.multinomial(num_inputs, p_V / p_V.sum(), size=8).max(axis=1).mean()
    assert (2 * np.log(vocab)) ** 2 * anisotropy / width == pytest.approx(2.3, abs=0.1)
    # Seed by seed the error of a mean is a third of that of the fraction.
    error = np.std(given - counts) / np.sqrt(seeds)
    assert abs(np.mean(given - counts)) < 3 * error < 0.04 * np.mean(counts)
    distribution = preference.top1_distribution(rho, vocab, num_inputs, width, anisotropy=anisotropy)
    assert distribution_accepts(distribution, counts)
    assert abs(distribution.fraction_mean * num_inputs - np.mean(given)) < 3 * np.std(given) / np.sqrt(seeds)
    wrong = preference.top1_distribution(1.2 * rho, vocab, num_inputs, width, anisotropy=anisotropy)
    assert not distribution_accepts(wrong, counts)


@pytest.mark.parametrize("anisotropy", [1.0, 2.0, 3.5])
def test_moments_of_the_scales(anisotropy: float) -> None:
    """Of w·Σw over rows: mean 1, variance 2r/(d − 1), third central moment 4r(3r − 1)/(d − 1)²."""
    scale, weight = Scatter(WIDTH, anisotropy).scales()

    def accepts(r: float) -> bool:
        df = WIDTH - 1
        moments = [np.sum(weight * (scale**2 - 1) ** k) for k in (1, 2, 3)]
        # Quantiles at Gauss-Hermite nodes are exact for polynomials in the normal score only: 1e-3 is their error.
        return moments == pytest.approx([0.0, 2 * r / df, 4 * r * (3 * r - 1) / df**2], rel=1e-3, abs=1e-5)

    assert accepts(anisotropy)
    assert not accepts(1.05 * anisotropy)
    assert Scatter(None).scales() == (np.ones(1), np.ones(1))


# The real modules.

GPT2 = ModelConfig(
    num_layers=3, num_heads=4, d_model=128, d_ff=512, max_seq_len=16, vocab_size=512, tie_embeddings=False, bias=True
)
SEEDS, SEEN, LENGTH = 100, 150, 2


@functools.lru_cache
def measured() -> np.ndarray:
    """Top counts of GPT-2 blocks, every seed with inputs of its own."""

    def one(seed: jax.Array) -> jax.Array:
        params = init_seed(GPT2, seed)
        x_BTD = GPT2.embedding_std * jax.random.normal(keys.stream_key(seed, "inputs"), (SEEN, LENGTH, GPT2.d_model))
        logits_BV = apply(GPT2, params, x_BTD, positions="last").logits_BTV[:, 0]
        return jnp.bincount(jnp.argmax(logits_BV, axis=-1), length=GPT2.vocab_size).max()

    numbers = jnp.arange(SEEDS, dtype=jnp.uint32)
    return np.asarray(jax.jit(lambda seeds: jax.lax.map(one, seeds, batch_size=10), compiler_options=THOROUGH)(numbers))


@pytest.mark.slow
@pytest.mark.nightly
def test_the_top1_fraction_of_real_blocks() -> None:
    prediction = profile(stack_of(GPT2, tokens=False), LENGTH)
    cosine = contraction(prediction)
    rho, std, right = float(cosine.mean[-1]), float(cosine.seed_std[-1]), scatter(prediction)

    def distribution(factor: float, **changes: float) -> preference.TopFraction:
        scattered = right._replace(**changes)._asdict()
        return preference.top1_distribution(factor * rho, GPT2.vocab_size, SEEN, rho_std=std, **scattered)

    assert distribution_accepts(distribution(1.0), measured())
    assert not distribution_accepts(distribution(1.0, anisotropy=1.0, lean=0.0), measured())
    assert not distribution_accepts(distribution(2.0), measured())


def test_scatter_of_no_blocks_is_even() -> None:
    stack = stack_of(GPT2, tokens=False)
    assert scatter(profile(dataclasses.replace(stack, num_layers=0), 1)) == (GPT2.d_model, pytest.approx(1.0), 0.0)
    # Every block squeezes what inputs have of their own into fewer dimensions.
    scatters = [scatter(profile(dataclasses.replace(stack, num_layers=n), 1)) for n in (1, 2, 3)]
    assert 1 < scatters[0].anisotropy < scatters[1].anisotropy < scatters[2].anisotropy
    # Attention alone leaves no mean to lean toward.
    alone = scatter(profile(dataclasses.replace(stack, mlp=False), 4))
    assert alone.lean == 0.0 and alone.anisotropy > 1


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: preference.top1_distribution(0.1, 10, 5, 8, anisotropy=0.9), "anisotropy"),
        (lambda: preference.top1_distribution(0.1, 10, 5, 8, lean=-0.1), "lean"),
        (lambda: preference.expected_overlap(0.1, 10, 5, 8, lean=np.nan), "lean"),
    ],
)
def test_bad_arguments_are_named(call: Callable[[], object], word: str) -> None:
    with pytest.raises(ValueError, match=rf"^{word}:"):
        call()
