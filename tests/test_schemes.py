"""Initialization schemes: each group's distribution, structures, and what a bad rule is told."""

import math

import jax
import numpy as np
import pytest
from scipy import stats

from bornbiased_jax import keys
from bornbiased_jax.config import ModelConfig, parse_setting, preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import distribution, draw, draw_unit, init_seed
from bornbiased_jax.lineage.audit.scheme import init_scheme, repeats_of
from bornbiased_jax.lineage.audit.summary import moments_of
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.parameters import flatten, parameter_table
from bornbiased_jax.schemes import SCHEMES, STD_RULES, Rule, parse_groups
from tests.fixtures.programs import run_python
from tests.tiers import nightly_except

D, F, V, L, LAYER = 96, 224, 700, 3, 2
CUT3 = stats.truncnorm(-3, 3).std()
# What the public sources say, written anew: of each group the standard deviation in the second of three layers, and
# the shape of the distribution.
GLOROT = lambda fan_in, fan_out: math.sqrt(2 / (fan_in + fan_out))  # noqa: E731
PUBLIC: dict[str, dict[str, tuple[float, str]]] = {
    "neox": {
        "embedding": (math.sqrt(0.4 / D), "normal"),
        "query": (math.sqrt(0.4 / D), "normal"),
        "up": (math.sqrt(0.4 / D), "normal"),
        "output": (2 / L / math.sqrt(D), "normal"),
        "down": (2 / L / math.sqrt(D), "normal"),
        "head": (math.sqrt(0.4 / D), "normal"),
    },
    "olmo-mitchell": {
        "embedding": (CUT3 / math.sqrt(D), "truncated"),
        "key": (CUT3 / math.sqrt(D), "truncated"),
        "gate": (CUT3 / math.sqrt(D), "truncated"),
        "output": (CUT3 / math.sqrt(2 * D * LAYER), "truncated"),
        "down": (CUT3 / math.sqrt(2 * F * LAYER), "truncated"),
        "head": (CUT3 / math.sqrt(D), "truncated"),
    },
    "torchtitan-llama3": {
        "embedding": (1.0, "normal"),
        "value": (0.02, "normal"),
        "gate": (0.02, "normal"),
        "up": (0.02 / math.sqrt(2 * LAYER), "normal"),
        "output": (0.02 / math.sqrt(2 * LAYER), "normal"),
        "down": (0.02 / math.sqrt(2 * LAYER), "normal"),
        "head": (CUT3 / math.sqrt(D), "truncated"),
    },
    "nanochat": {
        "embedding": (0.8, "normal"),
        "query": (D**-0.5, "uniform"),
        "up": (0.4 * D**-0.5, "uniform"),
        "output": (0.0, "zeros"),
        "down": (0.0, "zeros"),
        "head": (0.001, "normal"),
    },
    "modded-nanogpt": {
        "embedding": (1.0, "normal"),
        "query": (0.5 * D**-0.5, "uniform"),
        "up": (0.5 * D**-0.5, "uniform"),
        "output": (0.0, "zeros"),
        "down": (0.0, "zeros"),
        "head": (0.0, "zeros"),
    },
    "gemma-jax": {group: (0.01, "normal") for group in ("embedding", "query", "output", "up", "down", "head")},
    "t-fixup": {
        "embedding": (0.67 * L**-0.25 * D**-0.5, "normal"),
        "query": (GLOROT(D, D), "uniform"),
        "value": (0.67 * L**-0.25 * GLOROT(D, D), "uniform"),
        "output": (0.67 * L**-0.25 * GLOROT(D, D), "uniform"),
        "up": (0.67 * L**-0.25 * GLOROT(D, F), "uniform"),
        "down": (0.67 * L**-0.25 * GLOROT(F, D), "uniform"),
    },
    "rezero": {"query": (GLOROT(D, D), "uniform"), "output": (0.0, "zeros"), "down": (0.0, "zeros")},
    "xavier": {"query": (GLOROT(D, D), "uniform"), "up": (GLOROT(D, F), "uniform"), "head": (GLOROT(D, V), "uniform")},
    "kaiming": {"query": (math.sqrt(2 / D), "normal"), "down": (math.sqrt(2 / F), "normal")},
    "lecun": {"query": (math.sqrt(1 / D), "normal"), "down": (math.sqrt(1 / F), "normal")},
    "mup": {
        "embedding": (1.0, "normal"),
        "query": (D**-0.5, "normal"),
        "down": (F**-0.5, "normal"),
        "head": (1 / D, "normal"),
    },
}
KURTOSIS = {"normal": 3.0, "uniform": 1.8, "truncated": float(stats.truncnorm(-3, 3).stats(moments="k") + 3)}


def model(scheme: str, **changes: object) -> ModelConfig:
    sizes = dict(num_layers=L, d_model=D, d_ff=F, vocab_size=V, num_heads=4)
    return preset("llama-tiny", **{**sizes, "init": scheme, **changes})


def by_group(cfg: ModelConfig) -> dict[str, np.ndarray]:
    """Weights of one seed by group, of the second layer."""
    flat = flatten(init_seed(cfg, 5))
    table = parameter_table(cfg)
    return {row.group: np.asarray(flat[path])[LAYER - 1] if row.is_stacked else np.asarray(flat[path])
            for path, row in table.items() if row.group != "norm"}  # fmt: skip


def test_every_named_scheme_has_a_public_rule():
    assert set(PUBLIC) | {"gpt2-scaled", "normal-0.02"} == set(SCHEMES)


@pytest.mark.parametrize(
    "scheme", [pytest.param(scheme, marks=pytest.mark.slow if place % 4 else ()) for place, scheme in enumerate(PUBLIC)]
)
def test_groups_are_distributed_as_the_public_source_says(scheme):
    weights = by_group(model(scheme))
    for group, (std, shape) in PUBLIC[scheme].items():
        x = weights[group].astype(np.float64).ravel()
        if shape == "zeros":
            assert not x.any(), group
            continue
        # The kurtosis of n normals has standard error √(24/n), that of the others less; the second moment √((κ − 1)/n).
        assert abs(x.std() / std - 1) < 5 * math.sqrt((KURTOSIS[shape] - 1) / (4 * x.size)), group
        assert abs(stats.kurtosis(x, fisher=False) - KURTOSIS[shape]) < 5 * math.sqrt(24 / x.size), group


def test_an_overridden_group_changes_no_other_weight():
    plain, changed = by_group(model("neox")), by_group(model("neox", **{"init.down": "orthogonal:0.05"}))
    for group in plain:
        same = np.array_equal(plain[group], changed[group])
        assert same == (group != "down"), group


@pytest.mark.parametrize("setting", ["init.up=orthogonal:0.05", "init.down=orthogonal:0.05"])
def test_orthogonal_matrices_have_orthonormal_rows_or_columns(setting):
    group, _, _ = setting.removeprefix("init.").partition("=")
    w = by_group(model("normal-0.02", **dict([parse_setting(setting)])))[group].astype(np.float64)
    w = (w if w.shape[0] >= w.shape[1] else w.T) / (0.05 * math.sqrt(max(w.shape)))
    np.testing.assert_allclose(w.T @ w, np.eye(w.shape[1]), atol=1e-5)


@pytest.mark.parametrize("shape", [(96, 224), (512, 512), (900, 768)])
def test_orthogonal_draws_are_those_of_float64_within_a_millionth(shape):
    """LAPACK's QR of the same Gaussian numbers gives the difference that machines may have."""
    rows, columns = max(shape), min(shape)
    basis, triangle = np.linalg.qr(np.asarray(keys.normal(jax.random.key(3), (rows, columns), 1.0), np.float64))
    expected = basis * np.sign(np.diag(triangle)) * math.sqrt(rows)
    drawn = np.asarray(draw_unit(jax.random.key(3), shape, "orthogonal"))
    # Entries have a standard deviation of 1 here, of 0.02 in models: this is stricter than 1e-6 by a factor of 50.
    np.testing.assert_allclose(drawn if shape[0] >= shape[1] else drawn.T, expected, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_balanced_writers_have_no_mean_over_neurons():
    w = by_group(model("normal-0.02-balanced"))["down"].astype(np.float64)
    # The mean is taken out to 2⁻²⁰ of a standard deviation, and entries are rounded to float32.
    assert np.abs(w.mean(axis=0)).max() < 0.02 * 2.0**-20
    assert np.abs(by_group(model("normal-0.02"))["down"].mean(axis=0)).max() > 1e-4


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny"])
def test_mirrored_neurons_write_the_odd_part_of_the_activation(name):
    cfg = preset(name, num_layers=1, d_model=16, d_ff=32, num_heads=2, vocab_size=16, init="normal-0.02-mirrored")
    mlp = {k: np.asarray(v["kernel"][0]) for k, v in init_seed(cfg, 3)["blocks"]["mlp"].items()}
    x = np.random.default_rng(0).normal(size=(5, 16))

    def write(x):
        inner = x @ mlp["gate" if "gate" in mlp else "up"]
        hidden = inner * (inner > 0) * (x @ mlp["up"] if "gate" in mlp else 1.0)
        return hidden @ mlp["down"]

    # Of ReLU the odd part is u/2: without a gate the MLP is linear, with one it is a product of two linear maps.
    even = 1.0 if "gate" in mlp else -1.0
    np.testing.assert_allclose(write(-x), even * write(x), atol=1e-6)


@pytest.mark.slow
@pytest.mark.as_users
@pytest.mark.parametrize("scheme", nightly_except(["olmo-mitchell", "nanochat", "normal-0.02-balanced"], "nanochat"))
def test_draws_are_bitwise_equal_however_they_are_made(scheme):
    cfg = model(scheme, vocab_size=64, **{"init.gate": "orthogonal:0.02"})
    eager = flatten(init_seed(cfg, 9))
    vmapped = flatten(jax.jit(jax.vmap(lambda seed: init_seed(cfg, seed)))(np.arange(8, 11, dtype=np.uint32)))
    for path, row in parameter_table(cfg).items():
        np.testing.assert_array_equal(eager[path], vmapped[path][1], err_msg=path)
        drawn = distribution(cfg, row)
        alone = draw(keys.leaf_key(keys.init_key(9), path), row.block_shape, drawn, 2 if row.is_stacked else None)
        np.testing.assert_array_equal(alone, eager[path][2] if row.is_stacked else eager[path], err_msg=path)


@pytest.mark.nightly
def test_orthogonal_draws_of_several_seeds_end_with_two_threads():
    """A batch of QRs on a CPU waits for the threads that it occupies; in a process of its own, compiled as users do."""
    code = """
import jax, numpy as np
from bornbiased_jax.config import preset
from bornbiased_jax.init import init_seed
rules = {"init.up": "orthogonal:0.05", "init.down": "orthogonal:0.03"}
cfg = preset("gpt2-tiny", num_layers=6, d_model=128, d_ff=512, num_heads=4, vocab_size=256, **rules)
jax.block_until_ready(jax.jit(jax.vmap(lambda seed: init_seed(cfg, seed)))(np.arange(4, dtype=np.uint32)))
"""
    run_python(code, XLA_FLAGS="", NPROC="2")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_step_0_is_named(scheme):
    cfg = model(scheme)
    table = parameter_table(cfg)
    moments = {}
    for path, leaf in flatten(init_seed(cfg, 1)).items():
        rows = enumerate(np.asarray(leaf)) if table[path].is_stacked else [(None, np.asarray(leaf))]
        moments |= {path if layer is None else f"{path}/{layer}": moments_of(row) for layer, row in rows}
    named = init_scheme(cfg.replace(init="gpt2-scaled"), moments)
    assert named.nearest_scheme == scheme
    assert named.fits
    # One group of another scheme: the nearest stays, and is said not to fit.
    moments = {name: m._replace(rms=1.1 * m.rms) if "/query/" in name else m for name, m in moments.items()}
    assert not init_scheme(cfg, moments).fits


@pytest.mark.slow
def test_repeats_are_named_where_the_configuration_states_none():
    sketches = fingerprint("seed:1@llama-tiny,num_layers=1,init=neox-mirrored")
    cfg = preset("llama-tiny", num_layers=1, init="neox")
    assert repeats_of(sketches, cfg) == ["the neurons of each block in 2 parts that mirror each other"]
    assert repeats_of(sketches, cfg.replace(init="neox-mirrored")) == []
    assert repeats_of(fingerprint("seed:1@llama-tiny,num_layers=1"), cfg) == []


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("init.downs=zeros", "did you mean 'down'"),
        ("init.down=gaussian:1", "'gaussian' is no distribution"),
        ("init.down=normal:-1", "above 0"),
        ("init.down=normal:inf", "above 0"),
        ("init.down=normal:1e200", r"at most 1e\+38"),
        ("init.down=normal:1/sqrt(fan)", "neither a number nor a rule"),
        ("init.embedding=normal:1+balanced", "embedding cannot be balanced"),
        ("init.down=ones+balanced", r"ones stay ones and cannot be balanced: leave \+balanced out"),
        ("init.down=zeros:1", "takes no standard deviation"),
        ("init.norm=orthogonal", "orthogonal is a kind of matrices"),
        ("init=neoxx", "did you mean 'neox'"),
        ("init_groups=down=zeros;down=ones", "init.down has two rules: give it one"),
    ],
)
def test_bad_rules_are_refused_by_name(setting, message):
    with pytest.raises(InputError, match=message.replace("(", r"\(").replace(")", r"\)")):
        preset("gpt2-tiny", **dict([parse_setting(setting)]))


def test_a_standard_deviation_is_any_number_that_python_writes():
    for text, std in (("1e+2", 100.0), ("1e-2", 0.01), ("1e16", 1e16)):
        cfg = preset("gpt2-tiny", **dict([parse_setting(f"init.down=normal:{text}+balanced")]))
        assert parse_groups(cfg.init_groups)["down"] == Rule("normal", std, "balanced")


@pytest.mark.parametrize("structure", ["none", "balanced"])
def test_every_named_standard_deviation_can_be_set(structure):
    """Xavier's has a plus before a letter, which was taken for the start of a structure."""
    for std in STD_RULES:
        rule = Rule("uniform", std, structure)
        cfg = preset("gpt2-tiny", **dict([parse_setting(f"init.down={rule}")]))
        assert parse_groups(cfg.init_groups) == {"down": rule}


def test_mirrored_with_odd_width_is_refused():
    with pytest.raises(InputError, match="d_ff=33 is odd"):
        init_seed(model("normal-0.02-mirrored", d_ff=33), 0)


def test_shared_expert_has_mirrored_neurons_of_an_even_width():
    sizes = dict(num_layers=1, d_model=16, d_ff=8, num_heads=2, vocab_size=16, init="normal-0.02-mirrored")
    cfg = preset("qwen2moe-tiny", **sizes, num_kv_heads=1, num_experts=2, shared_expert_width=12)
    for name, structure, axis in (("gate", "mirrored", -1), ("up", "repeated", -1), ("down", "mirrored", -2)):
        drawn = distribution(cfg, parameter_table(cfg)[f"blocks/mlp/shared_expert/{name}/kernel"])
        assert (drawn.structure, drawn.neuron_axis) == (structure, axis)
    odd = cfg.replace(shared_expert_width=13)
    with pytest.raises(InputError, match="shared_expert_width=13 is odd"):
        distribution(odd, parameter_table(odd)["blocks/mlp/shared_expert/up/kernel"])


def test_distance_between_two_initializations_follows_from_shapes_alone():
    """Pairwise relative distance of PolyPythias-160M at step 0, reported as 1.2475: √(2x/(x + y)).

    x is the expected squared norm of the matrices, y the number of norm scales, which are 1 in every model.
    """
    sizes = dict(num_layers=12, d_model=768, d_ff=3072, num_heads=12, vocab_size=50_304)
    expected = {"neox": 1.2475, "normal-0.02": 1.2423, "gpt2-scaled": 1.2064}
    for scheme, distance in expected.items():
        cfg = preset("neox-tiny", **sizes, init=scheme)
        x = y = 0.0
        for row in parameter_table(cfg).values():
            drawn = distribution(cfg, row)
            size = math.prod(row.shape)
            x += 0.0 if drawn.constant is not None else size * drawn.measured_std() ** 2
            y += size if drawn.constant == 1.0 else 0.0
        assert round(math.sqrt(2 * x / (x + y)), 4) == distance, scheme
