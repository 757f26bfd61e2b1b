"""Weights at initialization: their distributions, and that nothing but the seed decides them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax import keys
from bornbiased_jax.config import PRESETS, preset
from bornbiased_jax.init import distribution, init_seed
from bornbiased_jax.parameters import flatten, parameter_table
from tests.fixtures.programs import run_python

pytestmark = pytest.mark.as_users

MITIGATED = preset("gpt2-tiny", output_gate="elementwise", sink_logit="learned", head_norm=True, positions="learned")


@pytest.mark.parametrize("scheme", ["gpt2-scaled", "normal-0.02"])
@pytest.mark.parametrize("name", ["gpt2-tiny", "qwen3-tiny", "mixtral-tiny", "mitigated"])
def test_every_leaf_has_its_distribution(name, scheme):
    """Mean and standard deviation of every drawn leaf, layer by layer, within 5 standard errors."""
    cfg = (MITIGATED if name == "mitigated" else PRESETS[name]).replace(init=scheme, vocab_size=1000)
    params = flatten(init_seed(cfg, 11))
    scaled = 0.02 / math.sqrt(2 * cfg.num_layers) if scheme == "gpt2-scaled" else 0.02
    for path, leaf in params.items():
        leaf = np.asarray(leaf, np.float64)
        if path.endswith("scale"):
            assert np.all(leaf == 1.0), path
        elif path.endswith(("bias", "sink_logit")):
            assert np.all(leaf == 0.0), path
        else:
            std = scaled if "/output/" in path or "/down/" in path else 0.02
            for layer in leaf if path.startswith("blocks/") else [leaf]:
                n = layer.size
                assert abs(layer.mean()) < 5 * std / math.sqrt(n), path
                assert abs(layer.std() / std - 1) < 5 / math.sqrt(2 * n), path


BITS = """
import hashlib, jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from bornbiased_jax.config import preset
from bornbiased_jax.init import init_seed
from bornbiased_jax.parameters import flatten

def digest(params):
    hasher = hashlib.sha256()
    for path, leaf in flatten(params).items():
        hasher.update(path.encode()); hasher.update(np.ascontiguousarray(leaf).tobytes())
    return hasher.hexdigest()

gates = dict(output_gate="elementwise", sink_logit="learned", head_norm=True, qk_norm=True)
rules = {"init.query": "orthogonal:0.02", "init.down": "orthogonal:0.01"}
sizes = dict(vocab_size=256, num_layers=3, max_seq_len=33)
cfg = preset("llama-tiny", bias=True, positions="learned", **sizes, **gates, **rules)
mesh = jax.make_mesh((4,), ("seed",), axis_types=(jax.sharding.AxisType.Auto,))
over_seeds, split = NamedSharding(mesh, P("seed")), NamedSharding(mesh, P(None, "seed"))
initialization = lambda seed: init_seed(cfg, seed)
eager = initialization(42)
print("eager", digest(eager))
print("jit", digest(jax.jit(initialization)(np.uint32(42))))
seeds = np.arange(40, 48, dtype=np.uint32)
in_turn = jax.jit(lambda batch: jax.lax.map(initialization, batch))(seeds)
print("map", digest(jax.tree.map(lambda leaf: leaf[2], in_turn)))
many = jax.jit(jax.vmap(initialization))(jax.device_put(seeds, over_seeds))
assert len(jax.tree.leaves(many)[0].sharding.device_set) == 4
print("devices", digest(jax.tree.map(lambda leaf: leaf[2], many)))
for name in ("up", "down"):
    wide = jax.jit(lambda s: initialization(s)["blocks"]["mlp"][name]["kernel"], out_shardings=split)(np.uint32(42))
    np.testing.assert_array_equal(wide, eager["blocks"]["mlp"][name]["kernel"])
"""


@pytest.mark.slow
def test_bitwise_equal_under_eager_jit_map_and_vmap_on_four_devices():
    """Every kind of parameter, compiled as users compile and not as the tests do: bits are the compiler's as well.

    On one device tests/test_schemes.py has vmap.
    """
    printed = run_python(BITS, JAX_NUM_CPU_DEVICES="4", JAX_PLATFORMS="cpu", XLA_FLAGS="")
    digests = dict(line.split() for line in printed.splitlines())
    assert list(digests) == ["eager", "jit", "map", "devices"]
    assert len(set(digests.values())) == 1, digests


def test_fixed_key_fixes_embeddings_and_head_only():
    cfg = preset("llama-tiny", vocab_size=64, positions="learned")
    shared = keys.stream_key(0, "embedding")
    first = flatten(init_seed(cfg, 1, fixed_key=shared))
    two = flatten(init_seed(cfg, 2, fixed_key=shared))
    drawn = {path for path, row in parameter_table(cfg).items() if distribution(cfg, row).constant is None}
    same = {path for path in drawn if np.array_equal(first[path], two[path])}
    assert same == {"embed/embedding", "positions/embedding", "head/kernel"}


def test_a_weight_does_not_depend_on_its_neighbors():
    """Adding parameters (biases, a gate, untying the head) changes no other weight."""
    plain = flatten(init_seed(preset("gpt2-tiny", bias=False), 3))
    richer_cfg = preset("gpt2-tiny", bias=True, output_gate="headwise", tie_embeddings=False, qk_norm=True)
    richer = flatten(init_seed(richer_cfg, 3))
    for path, leaf in plain.items():
        np.testing.assert_array_equal(leaf, richer[path])


def test_golden_weights():
    """Drawn once on a CPU with jax 0.10.2: any backend and version stays within twice the stated bound."""
    leaf = init_seed(preset("gpt2-tiny"), 42)["blocks"]["attention"]["query"]["kernel"]
    expected = np.asarray(GOLDEN, np.float64)
    bound = 0.02 * 2 * keys.normal_error_bound(expected / 0.02) + np.spacing(np.float32(0.1))
    assert np.all(np.abs(np.asarray(leaf[1, 5, :4], np.float64) - expected) <= bound)


GOLDEN = [-0.020498814061284065, -0.025345755741000175, -0.033305663615465164, -0.009673954918980598]


def test_drawing_deep_models_takes_the_room_of_one_layer_besides_the_weights():
    """The random bits of all layers at once took more than the weights themselves."""
    cfg = preset("gpt2-tiny", num_layers=32, vocab_size=64, d_model=64, d_ff=256, num_heads=4)
    compiled = jax.jit(lambda seed: init_seed(cfg, seed)).lower(jax.ShapeDtypeStruct((), jnp.uint32)).compile()
    memory = compiled.memory_analysis()
    assert memory.temp_size_in_bytes < memory.output_size_in_bytes / 4
