"""The experiments that compare theory with measurement, each run once at its smallest scale."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bornbiased_jax import model as models
from bornbiased_jax.config import preset
from bornbiased_jax.experiments import runner
from bornbiased_jax.experiments.base import SCALES, Context
from bornbiased_jax.experiments.birth import modules
from bornbiased_jax.experiments.theory import ablation, figure5, figure8, predicted, table3
from bornbiased_jax.prediction import stack_of
from bornbiased_jax.theory.attention import prop5_correlations
from bornbiased_jax.theory.preference import top1_distribution
from tests.experiments.smoke import record_of
from tests.tiers import nightly_except

pytestmark = pytest.mark.slow

NAMES = (
    "table2",
    "table3",
    "figure3",
    "figure4",
    "figure5",
    "figure7",
    "figure8",
    "predicted",
    "ablation",
    "unseen_schemes",
    "entropy_transition",
    "gradient_norms",
)
# Their code is like another's, or theory's tests run it.
NIGHTLY_NAMES = ("figure3", "table2", "unseen_schemes", "entropy_transition", "gradient_norms")
SIGMAS = 4.0


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """Name -> its record at smoke scale; initializations are shared between experiments, as in one output folder."""
    out, made = tmp_path_factory.mktemp("out"), {}

    def make(name):
        if name not in made:
            made[name] = record_of(runner.load(name), out / "work")
        return made[name]

    return make


def cosines(group):
    """Cosines between inputs [S, L]."""
    return np.array([row["contraction"]["inter_cosine_by_layer"] for row in group["records"]])


def agree(measured, expected, std, sigmas=SIGMAS):
    """Means over seeds [S, …] within so many standard errors, by the spread that theory states for a seed."""
    measured = np.asarray(measured)
    error = np.abs(measured.mean(axis=0) - np.asarray(expected))
    return bool(np.all(error <= sigmas * np.asarray(std) / math.sqrt(len(measured))))


@pytest.mark.parametrize("name", nightly_except(NAMES, *(name for name in NAMES if name not in NIGHTLY_NAMES)))
def test_every_experiment_has_all_scales_and_shows_its_record(name, record):
    experiment = runner.load(name)
    assert experiment.name == name
    assert set(experiment.settings) == set(SCALES) and all(map(experiment.cost_at, SCALES))
    result = record(name)
    tables, claims = experiment.tables(result), experiment.claims(result)
    assert tables
    # No smoke configuration is the paper's, so no number of the paper may stand next to one.
    assert all(not row.paper for table in tables for row in table.rows)
    assert all(claim.paper is None for claim in claims)
    assert all(math.isfinite(claim.measured) for claim in claims)
    assert bool(experiment.figures(result)) == name.startswith(("figure", "predicted", "entropy"))


@pytest.mark.nightly
def test_the_ablations_agree_with_theory(record):
    variants = modules.by_variant(record("table2"))
    assert list(variants) == list(modules.VARIANTS)
    for name in ("full model", "MLP only"):
        done = variants[name]
        theory = done["theory"]
        assert agree(cosines(done), theory["inter_cosine_by_layer"], theory["inter_cosine_by_layer_std"])
    # The seeds of attention alone share what their inputs happen to have in common: one standard error, not √64.
    alone = variants["self-attention only"]
    std = np.array(alone["theory"]["inter_cosine_by_layer_std"])
    assert np.all(np.abs(cosines(alone).mean(axis=0)) < SIGMAS * std)
    # And that is a bound worth having: far below what a single MLP contracts.
    assert np.all(SIGMAS * std < 0.02 * cosines(variants["MLP only"]).mean(axis=0))


@pytest.mark.nightly
def test_agreement_can_fail(record):
    done = modules.by_variant(record("table2"))["MLP only"]
    expected, std = (np.array(done["theory"][key]) for key in ("inter_cosine_by_layer", "inter_cosine_by_layer_std"))
    assert not agree(cosines(done), 1.15 * expected, std)


@pytest.mark.nightly
def test_attention_alone_has_a_std_but_no_direction(record):
    done = modules.by_variant(record("table2"))["self-attention only"]
    N = done["group"]["num_inputs"]
    moments = [
        (row["contraction"]["inter_cosine_final"], row["contraction"]["inter_cosine_std_final"])
        for row in done["records"]
    ]
    # The state is an odd function of the inputs, so every seed's mean cosine is 0 up to the sampling of pairs.
    assert all(modules.log10_pairs_p(mean, std, N) > -6 for mean, std in moments)
    std = done["theory"]["inter_cosine_final_std"] * math.sqrt(N * (N - 1) / 2)
    measured = [std for _, std in moments]
    error = np.std(measured, ddof=1) / math.sqrt(len(measured))
    # Of order 1/D relative: what the theory of the spread neglects.
    assert abs(np.mean(measured) - std) < SIGMAS * error + 1.5 / 128 * std
    for name in ("full model", "MLP only"):
        for row in modules.by_variant(record("table2"))[name]["records"]:
            pulled = row["contraction"]
            assert modules.log10_direction_p(pulled["inter_cosine_final"], pulled["inter_cosine_std_final"], N) < -6


def test_the_printed_p_value_of_attention_alone_is_that_of_its_pairs():
    # The standard deviation over pairs at T = 1,024 is theory's; ±5% of it leave 0.16 to two digits no more.
    p = 10 ** modules.log10_pairs_p(1.11e-4, 0.1112, 2_000)
    assert round(p, 2) == 0.16
    assert round(10 ** modules.log10_pairs_p(1.11e-4, 0.95 * 0.1112, 2_000), 2) != 0.16
    # Isotropic states of D = 768 would be far out, as their standard deviation is 1/√D.
    assert modules.log10_pairs_p(1.11e-4, 768**-0.5, 2_000) < -4


def test_the_direction_test_is_calibrated_where_isotropy_is_not():
    from bornbiased_jax.stats.tails import log10_rayleigh_p

    rng, N, D, trials = np.random.default_rng(0), 200, 60, 400
    scale = np.exp(np.linspace(0, -2.0, D))
    direction, isotropy = [], []
    for _ in range(trials):
        x = rng.standard_normal((N, D)) * scale
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        gram = (x @ x.T)[~np.eye(N, dtype=bool)]
        direction.append(modules.log10_direction_p(gram.mean(), gram.std(), N))
        isotropy.append(log10_rayleigh_p(gram.mean(), N, D))
    refused = np.sum(np.array(direction) < math.log10(0.05))
    assert stats.binomtest(int(refused), trials, 0.05).pvalue > 1e-4
    refused = np.sum(np.array(isotropy) < math.log10(0.05))
    assert stats.binomtest(int(refused), trials, 0.05, alternative="greater").pvalue < 1e-6


@pytest.mark.nightly
def test_preferences_come_with_the_mlp(record):
    variants = modules.by_variant(record("figure3"))
    fractions = {
        name: np.mean([row["preference"]["top1_share"] for row in group["records"]]) for name, group in variants.items()
    }
    level = variants["full model"]["records"][0]["preference"]["uniform_top_count"] / 200
    assert fractions["MLP only"] > 3 * level and fractions["full model"] > 3 * level
    assert fractions["self-attention only"] < 1.5 * level


def test_attention_amplifies_after_the_first_block_only(record):
    variants = modules.by_variant(record("figure7"))
    # Weights of the MLPs and seeds are the same in both, so the difference is paired.
    gain = cosines(variants["full model"]) - cosines(variants["MLP only"])
    error = gain.std(axis=0, ddof=1) / math.sqrt(len(gain))
    first, last = gain.mean(axis=0)[[0, -1]] / error[[0, -1]]
    assert first < -SIGMAS and last > SIGMAS


def test_a_second_mlp_and_an_average_agree_with_propositions_2_and_4(record):
    (done,) = record("table3")["result"]["groups"]
    measured = np.array([row["cosine"] for row in done["records"]])
    assert agree(measured, done["theory"], done["theory_std"])
    assert np.all(np.diff(measured, axis=1) > 0)
    assert all(max(row["log10_p"]) < -20 for row in done["records"])


@pytest.mark.parametrize(("T", "N", "shown"), [(128, 2_000, (True, True, True)), (1, 2_000, (True, True, False))])
def test_paper_values_stand_next_to_the_papers_sizes_only(T, N, shown):
    group = dict(seeds=[0], d_model=768, d_ff=3072, num_inputs=N, seq_len=T)
    assert tuple(table3.same_configuration(group, index) for index in range(3)) == shown
    assert not any(table3.same_configuration({**group, "num_inputs": N - 1}, index) for index in range(3))
    assert not any(table3.same_configuration({**group, "d_model": 512}, index) for index in range(3))


def test_the_ablations_know_the_papers_configuration():
    published = {"paper": [True, True, True], "laptop": [False, False, True], "smoke": [False, False, False]}
    for scale, expected in published.items():
        groups = modules.TABLE2.settings[scale]["groups"]
        assert [modules.same_configuration(group) for group in groups] == expected


def test_all_stacks_of_figure_5_have_the_same_weights():
    chosen = figure5.configurations(2, 8)
    initial = {name: models.init_seed(cfg, 3)["blocks"]["mlp"] for name, cfg in chosen.items()}
    for name in (figure5.TANH, figure5.BLOCK):
        for matrix in ("up", "down"):
            expected = initial[figure5.RELU][matrix]["kernel"]
            np.testing.assert_array_equal(initial[name][matrix]["kernel"], expected)


def test_only_an_epsilon_makes_the_relu_stack_drop(record):
    result = record("figure5")
    stacks = {stack["name"]: stack for stack in result["result"]["stacks"]}
    relu, norm = stacks[figure5.RELU], np.array(stacks[figure5.RELU]["norm_by_seed"])
    cosine, each, product = (np.array(relu[f"{key}_by_seed"]) for key in ("cosine", "each", "product"))
    # The definitions agree until norms, or their products, come near epsilon; then theirs collapse.
    assert np.allclose(each[norm > 10 * figure5.EPSILON], cosine[norm > 10 * figure5.EPSILON], rtol=1e-5)
    assert np.all(each[norm < 0.01 * figure5.EPSILON] < 1e-3) and np.any(norm < 0.01 * figure5.EPSILON)
    assert np.all(product <= each + 1e-6)
    # The cosine itself never falls by more than a fraction of what a seed's value is uncertain by.
    assert np.max(-np.diff(cosine, axis=1)) < 0.25 * np.max(relu["theory_std"]) and np.all(cosine[:, -1] > 0.8)
    tanh = stacks[figure5.TANH]
    assert agree(tanh["cosine_by_seed"], np.zeros(len(tanh["theory"])), tanh["theory_std"])
    block = stacks[figure5.BLOCK]
    assert agree(block["cosine_by_seed"], block["theory"], block["theory_std"])
    assert agree(cosine, relu["theory"], relu["theory_std"])


def test_the_three_cosines_by_hand():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 7)) * np.array([1.0, 1e-3, 1e-6, 1e-9, 1e-12])[:, None]
    cosines = jax.device_get(figure5.mean_cosines(jnp.asarray(x, jnp.float32)))
    norm, dot = np.linalg.norm(x, axis=1), x @ x.T
    off = ~np.eye(5, dtype=bool)
    outer, clipped = np.outer(norm, norm), np.maximum(norm, 1e-8)
    expected = {
        "cosine": (dot / outer)[off].mean(),
        "each": (dot / np.outer(clipped, clipped))[off].mean(),
        "product": (dot / np.maximum(outer, 1e-8))[off].mean(),
        "norm": norm.mean(),
    }
    for key, value in expected.items():
        assert cosines[key] == pytest.approx(value, rel=1e-5, abs=1e-6), key


def test_the_gap_keeps_its_digits():
    rng = np.random.default_rng(0)
    rows = 1.0 + 1e-4 * rng.standard_normal((2, 6, 9))
    x = jnp.asarray(rows, jnp.float32)
    exact = np.asarray(x, np.float64)
    exact /= np.linalg.norm(exact, axis=-1, keepdims=True)
    expected = 1 - np.einsum("btd,bsd->b", exact, exact) / 36
    # float32 rounds each unit vector by 6e-8 of its length: (6e-8)² against 1e-8, and 6e-8/1e-4 in the cross term.
    np.testing.assert_allclose(figure8.gap(x), expected, rtol=4 * 6e-8 / 1e-4)


def test_attn0_follows_the_exact_form_and_not_the_printed_one(record):
    result = record("figure8")
    curves = {curve["stack"]: curve for curve in result["result"]["curves"]}
    attn0, T, D = curves[figure8.ATTN0], 16, result["settings"]["d_model"]
    mean, exact = np.array(attn0["gap_by_layer"]), np.array(attn0["theory_gap_by_layer"])
    error = SIGMAS * np.array(attn0["gap_std_by_layer"]) / math.sqrt(attn0["num_inputs"])
    # A pair's cosine is low by ρ(1 − ρ²)/(2D) at width D.
    rho = [prop5_correlations(T, n) for n in range(1, len(mean) + 1)]
    finite = np.array([np.mean(r * (1 - r**2)) / (2 * D) for r in rho])
    assert np.all(np.abs(mean - exact - finite) < error)
    assert np.all(np.abs(mean - np.array(result["result"]["printed_gap"]["16"]))[1:] > 4 * error[1:])
    # Real attention without norm and residual averages just so; the standard block keeps its tokens apart.
    bare = np.array(curves["attention, no norm, no residual"]["gap_by_layer"])
    block = curves["attention, norm and residual"]
    assert np.all(np.abs(1 - bare - (1 - mean)) < 0.1) and np.all(np.array(block["gap_by_layer"]) > 0.7)
    std = SIGMAS * np.array(block["gap_std_by_layer"]) / math.sqrt(block["num_inputs"])
    # One initialization only: its own deviation is of order 1/√D relative to the cosine.
    allowance = np.abs(1 - np.array(block["theory_gap_by_layer"])) * SIGMAS / math.sqrt(D)
    assert np.all(np.abs(np.subtract(block["gap_by_layer"], block["theory_gap_by_layer"])) < std + allowance)


def test_figure_8_resumes_killed(record, tmp_path, monkeypatch):
    result = record("figure8")
    context = Context(scale="smoke", settings=result["settings"], work=tmp_path / "work", quiet=True)
    # Four sequences a pass, and each pass a chunk.
    monkeypatch.setattr(figure8, "BATCH_POSITIONS", 64)
    monkeypatch.setattr(figure8, "BATCHES_A_CHUNK", 1)
    draw, computed = figure8.gaussian, []

    def dies(*sizes):
        computed.append(sizes)
        if len(computed) == 7:
            raise KeyboardInterrupt
        return draw(*sizes)

    monkeypatch.setattr(figure8, "gaussian", dies)
    with pytest.raises(KeyboardInterrupt):
        figure8.run(context)
    again = figure8.run(context)
    # Four stacks of four chunks; of the seven before, the last was lost.
    assert len(computed) == 16 + 1
    for full, cut in zip(result["result"]["curves"], again["curves"], strict=True):
        np.testing.assert_allclose(cut["gap_by_layer"], full["gap_by_layer"], rtol=1e-4)


def test_theory_covers_and_fits_and_its_control_does_not(record):
    result = record("predicted")
    covered = result["result"]["coverage"]
    assert (covered["measurements"], covered["stated"]) == (192, 0.99) and covered["models"] == 192
    # Initializations of one configuration are independent: the count inside is binomial.
    assert stats.binom.cdf(covered["inside"], 192, 0.99) > 1e-3
    assert covered["fraction_low"] <= covered["inside"] / 192 <= covered["fraction_high"]
    (theory_fit,) = [fit for fit in result["result"]["fits"] if fit is not None]
    assert theory_fit["p"] > 0.01 > theory_fit["control_p"]
    assert len(theory_fit["ranks"]) == 64 and 0 <= theory_fit["ranks"][0] and theory_fit["ranks"][-1] <= 1


def _measured_three_times(outside: dict[int, int], seeds: int = 40) -> list[dict]:
    """Groups of one configuration at three lengths; seed s lies outside its interval at ``outside[s]`` of them."""
    theory = {"inter_cosine_by_layer_low": [0.1], "inter_cosine_by_layer_high": [0.3], "coverage": 0.99}
    groups = []
    for place, length in enumerate((8, 32, 128)):
        group = {"model": "m", "changes": {}, "seeds": list(range(seeds)), "fix_embeddings": True, "seq_len": length}
        cosines = [0.9 if place < outside.get(seed, 0) else 0.2 for seed in range(seeds)]
        records = [{"contraction": {"inter_cosine_by_layer": [cosine]}} for cosine in cosines]
        groups.append({"group": group, "theory": theory, "records": records})
    return groups


def test_coverage_is_resampled_by_model():
    """Three misses of one model say less than three of three: the interval is wider, the fraction the same."""
    together = predicted.coverage(_measured_three_times({5: 3}))
    apart = predicted.coverage(_measured_three_times({5: 1, 6: 1, 7: 1}))
    for summary in (together, apart):
        assert (summary["inside"], summary["measurements"], summary["models"]) == (117, 120, 40)
    assert (together["models_inside"], apart["models_inside"]) == (39, 37)
    # Of 40 models with a rate of 1/40 each count is Poisson-like: the 97.5% point is 3 of them, 9 measurements.
    assert together["fraction_low"] == pytest.approx(1 - 9 / 120)
    assert apart["fraction_low"] > together["fraction_low"]
    none = predicted.coverage(_measured_three_times({}))
    assert none["fraction_low"] == pytest.approx(0.025 ** (1 / 40)) and none["fraction_high"] == 1
    # Another configuration's seed 5 is another model.
    other = _measured_three_times({5: 3})
    other[0]["group"]["changes"] = {"num_layers": 2}
    assert predicted.coverage(other)["models"] == 80


def test_ranks_of_draws_from_the_distribution_are_uniform():
    fraction = top1_distribution(0.3, 64, 50, 32)
    rng = np.random.default_rng(1)
    counts = fraction.counts[np.searchsorted(fraction.cdf / fraction.cdf[-1], rng.uniform(size=2_000))]
    assert stats.kstest(predicted.ranks(fraction, counts), "uniform").pvalue > 1e-3
    assert stats.kstest(predicted.ranks(fraction, counts + 1), "uniform").pvalue < 1e-6
    assert predicted.distribution_function(fraction, np.array([-1.0, 50.0])).tolist() == [0.0, 1.0]


def test_ablation_of_the_theory(record):
    """Parts are differences to the whole; without a width, a gated model contracts by its embedding alone."""
    result = record("ablation")
    plain, gated = (case["cosine"] for case in result["result"]["cases"])
    for terms in (plain, gated):
        assert set(terms) == set(ablation.ROWS)
        # What is left of the whole, corrections taken off one by one, is the limit, up to their products.
        parts = sum(terms[key] for key in ("attention", "epsilon", "first order"))
        products = 3 * max(abs(terms[key]) for key in ("attention", "epsilon", "first order")) * abs(parts)
        assert abs(terms["all"] - parts - terms["limit"]) < products / terms["all"] + 1e-9
    assert gated["first order"] > 0.5 * gated["all"] and abs(plain["first order"]) < 0.2 * plain["all"]
    stack = stack_of(preset("gpt2-tiny"))
    same = ablation.ablate(stack, 16)
    assert same == pytest.approx(plain)
    assert ablation.ablate(dataclasses.replace(stack, norm_eps=0.0), 16)["epsilon"] == 0
