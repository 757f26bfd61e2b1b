"""Mode, chunk and devices change nothing but time; a killed sweep resumes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax import keys
from bornbiased_jax.errors import InputError
from bornbiased_jax.sweep import Probe, SweepOptions, plan, sweep
from tests.fixtures.programs import run_python

BATCHES = [{"x": np.full((4, 8), float(i), np.float32)} for i in range(3)]


def draw(seed):
    return {"w": jax.random.normal(keys.init_key(seed), (8, 8))}


def product_probe() -> Probe:
    return Probe(
        init=lambda: {"sum": jnp.zeros((4, 8)), "count": jnp.zeros((), jnp.int32)},
        update=lambda state, params, batch: {
            "sum": state["sum"] + jnp.matmul(batch["x"], params["w"], precision="highest"),
            "count": state["count"] + 1,
        },
        finish=lambda state, params: {"total": state["sum"].sum(), "nested": {"count": state["count"]}},
    )


def totals(seeds, **options):
    return dict(sweep(product_probe(), draw, seeds, lambda: BATCHES, SweepOptions(**options)))


def planned(batch, num_seeds, **options):
    return plan(product_probe(), draw, batch, num_seeds, SweepOptions(**options))


@pytest.mark.parametrize("mode", ["vmap", "map", "auto"])
@pytest.mark.parametrize("chunk", [1, 2, 5, None])
def test_every_layout_agrees(mode, chunk):
    seeds = [7, 3, 99, 4_000_000_000, 5]
    expected = {}
    for seed in seeds:
        w = np.asarray(jax.random.normal(keys.init_key(seed), (8, 8)), np.float64)
        expected[seed] = sum((b["x"].astype(np.float64) @ w).sum() for b in BATCHES)
    sums = totals(seeds, mode=mode, chunk=chunk)
    assert list(sums) == seeds
    for seed in seeds:
        # 96 products of order 2 summed in float32.
        assert float(sums[seed]["total"]) == pytest.approx(expected[seed], abs=96 * 2 * 2.0**-22)
        assert int(sums[seed]["nested"]["count"]) == 3


ON_DEVICES = """
import jax
from tests.test_sweep import totals
mesh = jax.make_mesh((4,), ("seed",), axis_types=(jax.sharding.AxisType.Auto,))
for mode in ("vmap", "map"):
    sums = totals(range(6), mode=mode, mesh=mesh)
    print(mode, *[float(sums[s]["total"]) for s in range(6)])
"""


@pytest.mark.slow
def test_four_devices_agree_with_one():
    lines = run_python(ON_DEVICES, JAX_NUM_CPU_DEVICES="4", JAX_PLATFORMS="cpu").splitlines()
    here = totals(range(6))
    for line in lines:
        _, *values = line.split()
        expected = [float(here[seed]["total"]) for seed in range(6)]
        np.testing.assert_allclose([float(v) for v in values], expected, atol=96 * 2 * 2.0**-22)
    assert len(lines) == 2


def equal(one, other):
    """The same seeds, the same bits."""
    assert list(one) == list(other)
    for seed, result in one.items():
        np.testing.assert_array_equal(result["total"], other[seed]["total"])
        np.testing.assert_array_equal(result["nested"]["count"], other[seed]["nested"]["count"])


@pytest.mark.parametrize("options", [dict(mode="map"), dict(mode="map", chunk=3), dict(mode="vmap")])
def test_a_steady_sweep_gives_a_seed_the_same_bits_alone_and_among_others(monkeypatch, options):
    monkeypatch.setattr("bornbiased_jax.hardware.cores", lambda: 2)
    together = totals(range(5), steady=True, **options)
    monkeypatch.setattr("bornbiased_jax.hardware.cores", lambda: 3)
    for seed in (3, 0):
        equal(totals([seed], steady=True, **options), {seed: together[seed]})


@pytest.mark.parametrize("steady", [False, True])
def test_so_many_seeds_run_side_by_side_as_memory_holds(monkeypatch, steady):
    """Two of a model that fills half of the memory ended the process, as each of them is drawn from random bits."""
    monkeypatch.setattr("bornbiased_jax.hardware.cores", lambda: 4)
    weights = planned(None, 4, steady=steady, mode="map").bytes_per_seed
    for copies, shards in ((100, 4), (3 * 2.5, 2), (2, 1)):
        monkeypatch.setattr("bornbiased_jax.hardware.available_memory", lambda copies=copies: int(copies * weights))
        assert planned(None, 4, steady=steady, mode="map").cpu_shards == shards


def test_steady_layout_depends_on_sizes_alone(monkeypatch):
    def at_once(**options):
        return planned(None, 100, steady=True, **options).at_once

    for cores, memory in ((1, 10**6), (64, 10**12)):
        monkeypatch.setattr("bornbiased_jax.hardware.cores", lambda cores=cores: cores)
        monkeypatch.setattr("bornbiased_jax.hardware.device_memory", lambda memory=memory: memory)
        assert (at_once(mode="map"), at_once(mode="map", chunk=7)) == (1, 1)
        assert (at_once(mode="vmap"), at_once(mode="vmap", chunk=3)) == (8, 3)


@pytest.mark.parametrize(
    ("options", "num_seeds"), [(dict(steady=True, chunk=4), 1), (dict(steady=True), 3), ({}, 3), (dict(chunk=4), 5)]
)
def test_no_seed_is_computed_twice(monkeypatch, options, num_seeds):
    """Shards that have no seed of their own stay idle; one that lacks a seed is padded."""
    monkeypatch.setattr("bornbiased_jax.hardware.cores", lambda: 2)
    computed = []

    def update(state, params, batch):
        jax.debug.callback(lambda first: computed.append(float(first)), params["w"][0, 0])
        return state + jnp.sum(batch["x"] @ params["w"])

    probe = Probe(lambda: jnp.zeros(()), update, lambda state, _params: {"total": state})
    list(sweep(probe, draw, range(num_seeds), lambda: BATCHES[:1], SweepOptions("map", **options)))
    jax.effects_barrier()
    # A steady program has one seed; others have two here, of which the last may lack one.
    most = num_seeds if "steady" in options else 2 * -(-num_seeds // 2)
    assert len(set(computed)) == num_seeds and len(computed) == most


def test_results_come_chunk_by_chunk():
    """Those of thousands of seeds, each as long as the vocabulary, were held until the last was there."""
    passes = []
    rows = sweep(
        product_probe(), draw, [5, 6, 7], lambda: passes.append(1) or BATCHES, SweepOptions(mode="map", chunk=1)
    )
    # One look at a batch for the plan, and one pass.
    assert next(rows)[0] == 5 and len(passes) == 2
    assert [seed for seed, _ in rows] == [6, 7] and len(passes) == 4


def test_chunks_have_about_one_size(monkeypatch):
    monkeypatch.setattr("bornbiased_jax.hardware.cores", lambda: 2)
    assert planned(BATCHES[0], 257, mode="map").chunk == 130
    assert planned(BATCHES[0], 256, mode="map").chunk == 256
    assert planned(BATCHES[0], 9, mode="map", chunk=8).chunk == 6


def test_chunks_are_bounded_by_memory(monkeypatch):
    batch = BATCHES[0]
    first = planned(batch, 1000, mode="map").bytes_per_seed
    assert first == 8 * 8 * 4 + 4 * 8 * 4 + 4
    monkeypatch.setattr("bornbiased_jax.sweep.CPU_BUDGET_BYTES", 10 * first)
    monkeypatch.setattr("bornbiased_jax.sweep.MAX_SHARDS", 1)
    assert planned(batch, 1000, mode="map").chunk == 10
    assert planned(batch, 3, mode="map").chunk == 3
    assert planned(batch, 1000, mode="vmap").bytes_per_seed >= first


@pytest.mark.parametrize("num_seeds", [1, 2, 5])
def test_cpu_shards_agree(monkeypatch, num_seeds):
    monkeypatch.setattr("bornbiased_jax.hardware.cores", lambda: 3)
    monkeypatch.setattr("bornbiased_jax.sweep.MAX_SHARDS", 1)
    alone = totals(range(num_seeds), mode="map")
    monkeypatch.setattr("bornbiased_jax.sweep.MAX_SHARDS", 4)
    layout = planned(BATCHES[0], num_seeds, mode="map")
    assert layout.cpu_shards == min(3, num_seeds) and layout.chunk % layout.cpu_shards == 0
    for seed, result in totals(range(num_seeds), mode="map").items():
        # Not bitwise: a loop of length one is compiled without the loop, and sums are then fused otherwise.
        np.testing.assert_allclose(result["total"], alone[seed]["total"], rtol=0, atol=96 * 2 * 2.0**-22)
        np.testing.assert_array_equal(result["nested"]["count"], alone[seed]["nested"]["count"])


@pytest.mark.parametrize(
    ("seeds", "options", "word"),
    [
        ([], {}, "no seeds"),
        ([-1], {}, "seed"),
        ([1], {"chunk": 0}, "chunk"),
        ([1], {"mode": "maps"}, "not one of auto"),
    ],
)
def test_bad_calls_are_refused(seeds, options, word):
    with pytest.raises(InputError, match=word):
        totals(seeds, **options)


def wide() -> Probe:
    """Each update needs a square of 256 × 256 between two products."""
    return Probe(
        init=lambda: jnp.zeros((256, 8)),
        update=lambda state, params, batch: state + jnp.matmul(jnp.matmul(batch["x"], params["w"]), batch["x"]),
        finish=lambda state, params: {"total": state.sum()},
    )


def draw_wide(seed):
    return {"w": jax.random.normal(keys.init_key(seed), (8, 256))}


def test_the_plan_counts_what_a_step_needs_between(monkeypatch):
    """On an accelerator 60% of its memory hold so many seeds: weights, state and scratch of each."""
    batch = {"x": np.ones((256, 8), np.float32)}
    held, square = 4 * (8 * 256 + 256 * 8), 4 * 256 * 256
    assert plan(wide(), draw_wide, batch, 100, SweepOptions(mode="map")).bytes_per_seed == held
    needed = plan(wide(), draw_wide, batch, 100, SweepOptions(mode="vmap")).bytes_per_seed
    assert held + square <= needed <= held + 2 * square
    monkeypatch.setattr("bornbiased_jax.sweep.jax.default_backend", lambda: "gpu")
    monkeypatch.setattr("bornbiased_jax.hardware.device_memory", lambda: 10 * needed)
    layout = plan(wide(), draw_wide, batch, 100)
    assert (layout.mode, layout.chunk, layout.cpu_shards) == ("vmap", 6, 1)
    assert plan(wide(), draw_wide, batch, 4).chunk == 4


def test_the_plan_of_equal_calls_is_compiled_once():
    from bornbiased_jax.sweep import _planned_bytes

    probe, batch = wide(), {"x": np.ones((256, 8), np.float32)}
    requests = [plan(probe, draw_wide, batch, 100, SweepOptions(mode="vmap")).bytes_per_seed for _ in range(3)]
    before = _planned_bytes.cache_info()
    assert plan(probe, draw_wide, batch, 7, SweepOptions(mode="vmap")).bytes_per_seed == requests[0] == requests[2]
    after = _planned_bytes.cache_info()
    assert (after.hits, after.misses) == (before.hits + 1, before.misses)
    # Other functions are another plan.
    plan(wide(), draw_wide, batch, 7, SweepOptions(mode="vmap"))
    assert _planned_bytes.cache_info().misses == after.misses + 1
