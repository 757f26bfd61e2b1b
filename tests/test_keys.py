"""The seed → weight map is pinned: same seed, same bits, however it is run."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.errors import KeyReuseError

from bornbiased_jax import keys
from bornbiased_jax import model as models
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.probes.inputs import gaussian, random_tokens
from tests.fixtures.programs import run_python


def test_stable_hash_is_pinned():
    assert keys.stable_hash("init") == int.from_bytes(hashlib.sha256(b"init").digest()[:4], "big")
    assert keys.stable_hash("blocks/attention/query/kernel") == 0xDE74882C


DRAWS = """
import hashlib, numpy as np
from bornbiased_jax import keys
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import preset
from bornbiased_jax.init import init_seed
from bornbiased_jax.probes.inputs import gaussian, random_tokens
from bornbiased_jax.parameters import flatten

cfg = preset("gpt2-tiny", num_layers=2, d_model=16, num_heads=2, d_ff=24, vocab_size=60)
arrays = [*flatten(init_seed(cfg, 42)).values(), Checkpoint.from_seed(cfg, 42).read("blocks/mlp/up/kernel", 1)]
arrays += [random_tokens(8, 5, 60, seed=3).batch(0, 8), gaussian(4, 5, 16, seed=3).batch(0, 4)]
arrays += [keys.bits(keys.init_key(7), (5,)), keys.integers(keys.init_key(8), (5,), 1000)]
arrays += [keys.truncated_normal(keys.init_key(9), (64, 96), 2.0)]
print(hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest())
"""
# Settings that move what jax.random draws by itself, or the types that it computes with.
SETTINGS = {
    "JAX_THREEFRY_PARTITIONABLE": "0",
    "JAX_RANDOM_SEED_OFFSET": "5",
    "JAX_DEFAULT_PRNG_IMPL": "rbg",
    "JAX_ENABLE_X64": "1",
    "JAX_DISABLE_JIT": "1",
}


@pytest.mark.slow
@pytest.mark.as_users
def test_no_setting_of_jax_moves_a_weight_or_an_input(capsys):
    """The environment of a user, or a configuration made by another library, is not part of a seed."""
    exec(DRAWS, {})
    assert run_python(DRAWS, **SETTINGS).split()[-1] == capsys.readouterr().out.split()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt2-tiny", "llama-tiny"])
def test_a_key_is_used_once(model):
    """Two draws from one key would be the same numbers: of weights, of inputs, of one tensor drawn by itself."""
    cfg = preset(model, num_layers=2, d_model=16, num_heads=2, d_ff=24, vocab_size=60)
    with jax.debug_key_reuse(True):
        key = jax.random.key(0)
        jax.random.normal(key)
        with pytest.raises(KeyReuseError):
            jax.random.normal(key)
        models.init_seed(cfg, 7)
        random_tokens(8, 4, 60).generate(np.arange(8))
        gaussian(8, 4, 16).generate(np.arange(8))
        Checkpoint.from_seed(cfg, 7).read("blocks/mlp/up/kernel", 1)


def test_streams_and_paths_are_independent():
    observed = set()
    for seed in (0, 1):
        for stream in ("init", "inputs", "data", "dropout"):
            for path in ("a", "b"):
                key = keys.leaf_key(keys.stream_key(seed, stream), path)
                observed.add(tuple(np.asarray(jax.random.key_data(key)).tolist()))
    assert len(observed) == 16


def test_small_and_large_matrices_are_drawn_alike(monkeypatch):
    shape = (24, 33)
    small = keys.normal(keys.init_key(9), shape, 0.02)
    monkeypatch.setattr(keys, "SMALL", 0)
    np.testing.assert_array_equal(keys.normal(keys.init_key(9), shape, 0.02), small)


def test_a_traced_seed_gives_the_same_key_as_a_python_one():
    traced = jax.jit(lambda seed: jax.random.key_data(keys.init_key(seed)))(np.uint32(4_000_000_000))
    np.testing.assert_array_equal(traced, jax.random.key_data(keys.init_key(4_000_000_000)))


def test_a_seed_in_an_array_gives_the_same_key_as_a_python_one():
    expected = jax.random.key_data(keys.init_key(7))
    for seed in (np.int64(7), np.asarray(7), jnp.asarray(7), 7.0):
        np.testing.assert_array_equal(jax.random.key_data(keys.init_key(seed)), expected)


@pytest.mark.parametrize(
    "seed",
    [-1, 2**32, 1.5, True, float("nan"), float("inf"), 10**5000, np.complex64(1), "1", None]
    + [np.asarray(-1), jnp.asarray(-1), np.asarray(1.5), np.arange(2)],
    ids=lambda seed: type(seed).__name__,
)
def test_bad_seeds_are_refused(seed):
    for function in (keys.check_seed, keys.init_key):
        with pytest.raises(InputError, match="seed"):
            function(seed)
