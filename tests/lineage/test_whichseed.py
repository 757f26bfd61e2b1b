"""Initializations searched by seed: the prefix drawn is the initialization's own, how p is distributed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bornbiased_jax import keys
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.native_roles import NativeRoles
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments._shared.calibration import drifted
from bornbiased_jax.init import distribution, init
from bornbiased_jax.lineage import seed_search, whichseed
from bornbiased_jax.lineage.evidence import SIGNLESS
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.lineage.seed_search import SearchOptions
from bornbiased_jax.lineage.weights_verdict import single_verdict
from bornbiased_jax.parameters import flatten, parameter_table, unflatten
from tests.fixtures.engines import PicklingExecutor
from tests.tiers import nightly_except

SMALL = dict(num_layers=2, num_heads=2, d_model=32, d_ff=64, vocab_size=64)
CFG = preset("llama-tiny", **SMALL)


def which_seed(cfg, params, seeds, *options, suspect_cfg=CFG, **choices):
    return whichseed.which_seed(cfg, Checkpoint.from_params(suspect_cfg, params), seeds, *options, **choices)


def initialization(seed, cfg=CFG):
    return init(cfg, key=keys.init_key(seed))


@pytest.mark.parametrize(
    ("own", "searched", "path"),
    [
        ({}, {"positions": "learned"}, "positions/embedding"),
        ({"tie_embeddings": True}, {}, "head/kernel"),
        ({"attention": False}, {}, "blocks/attention/key/kernel"),
    ],
)
def test_matrices_that_the_suspect_lacks_are_refused(own, searched, path):
    suspect_cfg = CFG.replace(**own)
    with pytest.raises(InputError, match=f"the suspect has no {path}, which the initializations to be searched have"):
        which_seed(CFG.replace(**searched), initialization(1, suspect_cfg), range(4), suspect_cfg=suspect_cfg)


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly_except(["llama-tiny", "gpt2-tiny", "qwen-tiny"], "qwen-tiny"))
def test_drawn_entries_equal_initial_weights(name):
    cfg = preset(name, **SMALL)
    places = seed_search.decision_places(cfg)
    drawn = np.asarray(jax.jit(lambda seed: seed_search.draw_entries(places, seed))(np.uint32(31)))
    flat, start = flatten(initialization(31, cfg)), 0
    for path, layer, count, kind in places:
        assert kind == "normal"
        leaf = np.asarray(flat[path] if layer is None else flat[path][layer]).ravel()[:count]
        std = np.float32(distribution(cfg, parameter_table(cfg)[path]).std)
        assert np.array_equal(drawn[start : start + count] * std, leaf), (path, layer)
        start += count
    assert start == len(drawn)
    # Nothing drawn is left out, and nothing that is constant at initialization is taken.
    random = {path for path, initial in parameter_table(cfg).items() if distribution(cfg, initial).constant is None}
    assert {place.path for place in places} == random


@pytest.mark.slow
def test_seed_of_descendant_identified_with_runner_up():
    suspect = drifted(initialization(77), initialization(5_000), 0.9)
    result = which_seed(CFG, suspect, range(64, 96))
    assert result.seed == 77 and result.best.log10_p < -10
    assert result.confirmed.verdict == "same-lineage" and result.confirmed.log10_p < -4
    assert result.runner_up.seed != 77 and result.runner_up.log10_p == 0.0
    # r of a mixture √(1−s²)·W + s·W′ is √(1−s²), here 0.436, within five standard errors.
    n = result.num_entries[1]
    assert abs(result.best.correlation - np.sqrt(1 - 0.81)) < 5 / np.sqrt(n)


@pytest.mark.slow
def test_unrelated_models_are_not_found_and_changed_coordinates_are_said():
    assert which_seed(CFG, initialization(9_999), range(64, 96)).seed is None
    negated = jax.tree.map(lambda leaf: np.asarray(leaf) * (1 - 2 * (np.arange(leaf.shape[-1]) % 2)), initialization(7))
    result = which_seed(CFG, negated, range(0, 20))
    assert result.seed is None and "rotated or negated" in result.reason


@pytest.mark.slow
def test_unconfirmed_seed_reported():
    """The first numbers of every matrix from one initialization, all others from another: found, and contradicted."""
    actual, other = (flatten(initialization(seed)) for seed in (7, 8))
    spliced = {path: np.array(leaf) for path, leaf in other.items()}
    for place in seed_search.decision_places(CFG):
        target, source = (
            flat[place.path] if place.layer is None else flat[place.path][place.layer] for flat in (spliced, actual)
        )
        target.reshape(-1)[:80] = np.asarray(source).reshape(-1)[:80]
    result = which_seed(CFG, unflatten(spliced), range(0, 8))
    assert result.seed == 7 and result.best.log10_p < -4
    assert result.confirmed.verdict == "unrelated" and result.to_json()["confirmed"]["verdict"] == "unrelated"
    # Nothing found, nothing to confirm.
    assert which_seed(CFG, initialization(9_999), range(0, 8)).to_json()["confirmed"] is None


@pytest.mark.slow
def test_the_confirming_p_is_that_of_the_best_of_all_seeds():
    suspect = Checkpoint.from_params(CFG, drifted(initialization(77), initialization(5_000), 0.9))
    prints = [fingerprint(NativeRoles(model)) for model in (Checkpoint.from_seed(CFG, 77), suspect)]
    plain = single_verdict(*prints, SIGNLESS)
    verdict = whichseed.confirm(CFG, suspect, 77)
    assert verdict.log10_p == pytest.approx(plain.log10_p + 32 * np.log10(2))
    assert verdict.p_value == pytest.approx(10**verdict.log10_p)


@pytest.mark.slow
def test_the_p_of_one_seed_follows_the_t_distribution():
    """500 initializations against one fixed model: the p before the correction for 2³² is uniform."""
    suspect = drifted(initialization(1), initialization(2), 0.5)
    suspect = Checkpoint.from_params(CFG, suspect)
    decided = whichseed._decide(CFG, suspect, list(range(100, 600)))
    freedom = sum(place.entries for place in seed_search.decision_places(CFG)) - 2
    p = stats.t.sf([row.t for row in decided], freedom)
    assert stats.kstest(p, "uniform").pvalue > 1e-3
    # What is reported is that p times 2³², in log space.
    own = whichseed._decide(CFG, suspect, [1])[0]
    expected = np.log10(stats.norm.sf(5.0)) + 32 * np.log10(2)
    assert own.log10_p < expected


def test_a_suspect_that_is_not_the_page_s_is_refused(tmp_path):
    class Swapping(PicklingExecutor):
        """Replaces the suspect's numbers before the first task begins."""

        def submit(self, *arguments):
            for path in tmp_path.rglob("suspect.npy"):
                np.save(path, np.load(path)[::-1])
            return super().submit(*arguments)

    with pytest.raises(InputError, match="does not hold this search's numbers"):
        which_seed(CFG, initialization(3), range(0, 9), resume=tmp_path, engine=lambda folder, num_jobs: Swapping())


def test_ranges_of_a_search_are_not_too_many():
    with pytest.raises(InputError, match="too many ranges"):
        which_seed(CFG, initialization(3), range(0, 2**32), SearchOptions(range_size=9))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(seeds=range(0)), "no seeds"),
        (dict(seeds=range(-1, 4)), "not within 0 to 2"),
        (dict(seeds=range(2**32 - 1, 2**32 + 1)), "not within 0 to 2"),
        (dict(alpha=1.0), "alpha=1.0"),
        (dict(options=SearchOptions(entries=4)), "too few"),
        (dict(suspect_cfg=CFG.replace(d_ff=128)), "d_ff=128"),
    ],
)
def test_bad_calls_are_refused(change, words):
    with pytest.raises(InputError, match=words):
        which_seed(CFG, initialization(0), **{"seeds": range(0, 4), **change})


def test_weights_without_variation_are_refused():
    with pytest.raises(InputError, match="the same number everywhere"):
        which_seed(CFG, jax.tree.map(jnp.zeros_like, initialization(0)), range(0, 4))


@pytest.mark.parametrize("framework", ["bornbiased", "torch"])
def test_a_range_that_has_no_length_is_refused(refused, framework):
    call = ["whichseed", "seed:21@llama-tiny,num_layers=1", "--seeds", f"0:{10**20}", "--framework", framework]
    assert "is not a range such as 0:1000000" in refused(call)
