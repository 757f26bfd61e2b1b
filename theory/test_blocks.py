"""The whole stack against the real modules: many seeds under vmap, layer by layer, in every architecture.

Tolerances: four standard errors over seeds, plus the size that ``theory.predict`` states for the terms of second
order in 1/D. All measurements are shared by the tests of this file and of ``test_finite_width``.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bornbiased_jax import keys
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.init import init_seed
from bornbiased_jax.model import apply
from bornbiased_jax.prediction import stack_of
from bornbiased_jax.theory.finite_width import KernelMoments
from bornbiased_jax.theory.mean_field import profile
from bornbiased_jax.theory.predict import CosineProfile, contraction
from tests.compilation import THOROUGH

ERRORS = 4.0
NUM_INPUTS = 64
SEEDS = 24

_SMALL = dict(vocab_size=2, max_seq_len=16)  # vectors are fed in, so no vocabulary is needed
_GPT2 = dict(**_SMALL, num_heads=4, d_model=48, d_ff=192, bias=True)
_LLAMA = dict(**_SMALL, num_heads=4, d_model=64, d_ff=160, norm="rmsnorm", activation="silu", gated_mlp=True)
CASES: dict[str, tuple[ModelConfig, int]] = {
    "gpt2": (ModelConfig(num_layers=3, **_GPT2), 6),
    "gpt2, relu, 0.02 everywhere": (ModelConfig(num_layers=4, activation="relu", init="normal-0.02", **_GPT2), 8),
    "gpt2, learned positions": (ModelConfig(num_layers=2, positions="learned", activation="gelu_tanh", **_GPT2), 5),
    "llama, 0.02 everywhere": (ModelConfig(num_layers=4, init="normal-0.02", **_LLAMA), 10),
    "qwen3": (ModelConfig(num_layers=2, qk_norm=True, num_kv_heads=2, **_LLAMA), 8),
    "neox": (ModelConfig(num_layers=3, parallel_residual=True, activation="relu", **_GPT2), 7),
    "olmo2, relu": (
        ModelConfig(num_layers=2, norm="rmsnorm", norm_position="post", qk_norm=True, activation="relu", **_GPT2),
        4,
    ),
    "no residual": (ModelConfig(num_layers=2, residual=False, activation="relu", **_GPT2), 9),
    "mlp only, silu": (ModelConfig(num_layers=5, attention=False, activation="silu", **_GPT2), 1),
    "window, no norm": (ModelConfig(num_layers=2, window=3, norm="none", activation="relu", **_GPT2), 8),
}


@functools.lru_cache(maxsize=64)
def measure(
    cfg: ModelConfig, length: int, seeds: int = SEEDS, first: int = 0, num_inputs: int = NUM_INPUTS
) -> dict[str, np.ndarray]:
    """Over seeds [S, L]: inter- and intra-sequence cosines, the variance of pair cosines.

    And [S, L, T] the mean square and the inter-sequence cosine at every position.
    """

    def one(seed: jax.Array) -> dict[str, jax.Array]:
        params = init_seed(cfg, seed)
        shape = (num_inputs, length, cfg.d_model)
        x_BTD = cfg.embedding_std * jax.random.normal(keys.stream_key(seed, "inputs"), shape)

        def reduce(captured: dict[str, jax.Array]) -> dict[str, jax.Array]:
            x = captured["residual"]
            unit = x / jnp.linalg.norm(x, axis=-1, keepdims=True)
            last = unit[:, -1]
            gram = jnp.matmul(last, last.T, precision="highest") * (1.0 - jnp.eye(num_inputs))
            pairs = num_inputs * (num_inputs - 1)
            along = jnp.sum(jnp.square(jnp.sum(unit, axis=1)), axis=-1) - length
            return {
                "inter": jnp.sum(gram) / pairs,
                "pair_square": jnp.sum(jnp.square(gram)) / pairs,
                "intra": jnp.mean(along) / max(length * (length - 1), 1),
                "variance": jnp.mean(jnp.square(x), axis=(0, 2)),
                "inter_T": (jnp.sum(jnp.square(jnp.sum(unit, axis=0)), axis=-1) - num_inputs) / pairs,
            }

        return apply(cfg, params, x_BTD, logits=False, capture=("residual",), reduce=reduce).layers

    options = THOROUGH if seeds > SEEDS else None
    statistics = jax.jit(jax.vmap(one), compiler_options=options)(jnp.arange(first, first + seeds, dtype=jnp.uint32))
    return {name: np.asarray(value, np.float64) for name, value in statistics.items()}


def predicted(cfg: ModelConfig, length: int, num_inputs: int = NUM_INPUTS) -> CosineProfile:
    return contraction(profile(stack_of(cfg, tokens=False), length), num_inputs)


def excess(measured_SL: np.ndarray, theory: CosineProfile) -> np.ndarray:
    """|mean over seeds − theory| in units of the tolerance, per block: a value above 1 is a rejection."""
    se = measured_SL.std(axis=0, ddof=1) / np.sqrt(measured_SL.shape[0])
    return np.abs(measured_SL.mean(axis=0) - theory.mean[1:]) / (ERRORS * se + theory.theory_std[1:])


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_cosine_of_every_position(case: str) -> None:
    cfg, length = CASES[case]
    cosines_ST = measure(cfg, length)["inter_T"]
    for place in range(1, length + 1):
        assert np.all(excess(cosines_ST[:, :, place - 1], predicted(cfg, place)) < 1)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_variance_at_every_position(case: str) -> None:
    cfg, length = CASES[case]
    variances = measure(cfg, length)["variance"]
    theory = profile(stack_of(cfg, tokens=False), length).variance[1:]
    se = variances.std(axis=0, ddof=1) / np.sqrt(SEEDS)
    # Not corrected for finite width: the kernel's curvature in the norm's fluctuation, of order 1/D.
    assert np.all(np.abs(variances.mean(axis=0) - theory) < ERRORS * se + theory / cfg.d_model)


@pytest.mark.long
@pytest.mark.parametrize("case", [case for case in CASES if CASES[case][1] > 1])
def test_cosine_within_a_sequence(case: str) -> None:
    cfg, length = CASES[case]
    cosines_SL = measure(cfg, length)["intra"]
    theory = profile(stack_of(cfg, tokens=False), length).intra_cosine[1:]
    se = cosines_SL.std(axis=0, ddof=1) / np.sqrt(SEEDS)
    # A sample correlation in D dimensions is biased by at most ρ/(2D) per layer it was made of; take the depth's worth.
    bias = theory * (cfg.num_layers + 1) / (2 * cfg.d_model)
    assert np.all(np.abs(cosines_SL.mean(axis=0) - theory) < ERRORS * se + bias)


@pytest.mark.slow
@pytest.mark.nightly
@settings(max_examples=2)
@given(
    depth=st.integers(1, 4),
    heads=st.sampled_from([2, 4]),
    multiple=st.integers(8, 16),
    length=st.integers(1, 9),
    activation=st.sampled_from(["gelu", "gelu_tanh", "relu", "tanh", "silu"]),
    norm=st.sampled_from(["layernorm", "rmsnorm"]),
    gated=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_any_stack(
    depth: int, heads: int, multiple: int, length: int, activation: str, norm: str, gated: bool, seed: int
) -> None:
    width = 2 * heads * multiple
    cfg = ModelConfig(
        **_SMALL,
        num_layers=depth,
        num_heads=heads,
        d_model=width,
        d_ff=3 * width,
        activation=activation,
        norm=norm,
        gated_mlp=gated,
        init="normal-0.02",
    )
    cosines_SL, theory = measure(cfg, length, 20, seed)["inter"], predicted(cfg, length)
    assert np.all(excess(cosines_SL, theory) < 1)
    # The interval of each block covers seeds at its stated rate, here with an error of the first kind of 1e-3.
    outside = np.sum((cosines_SL < theory.low[1:]) | (cosines_SL > theory.high[1:]), axis=0)
    assert np.all(stats.binom.sf(outside - 1, len(cosines_SL), 1 - theory.coverage) > 1e-3 / depth)


# Control: what is wrong must be rejected by the same comparison.

CONTROL = ModelConfig(num_layers=2, num_heads=4, d_model=128, d_ff=512, activation="relu", attention=False, **_SMALL)


@functools.cache
def control() -> np.ndarray:
    return measure(CONTROL, 1, 512)["inter"]


@pytest.mark.long
@pytest.mark.parametrize("factor", [0.95, 1.0, 1.05])
def test_a_constant_that_is_five_percent_off_is_rejected(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    right = KernelMoments.expand
    monkeypatch.setattr(KernelMoments, "expand", lambda self, rho: tuple(factor * part for part in right(self, rho)))
    assert np.any(excess(control(), predicted(CONTROL, 1)) > 1) == (factor != 1)
