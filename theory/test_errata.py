"""The numbers of ERRATA.md that no other test decides."""

from pathlib import Path

import numpy as np
import pytest
from scipy import special, stats

from bornbiased_jax.config import preset
from bornbiased_jax.experiments.survival.trained_pairs import pass_through
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage.outputs import OutputOptions, last_outputs
from bornbiased_jax.probes.inputs import gaussian
from bornbiased_jax.stats.kendall import tau_b
from bornbiased_jax.theory import attention, kernels, mlp, preference
from bornbiased_jax.theory.mean_field import Stack, profile
from bornbiased_jax.theory.predict import contraction, predict, scatter


def test_the_printed_decomposition_is_not_the_finite_size_correction():
    """ρ' + (1 − ρ')/T, with the right limit ρ', against the exact mean.

    0.011 too low at T = 16, one layer, and far too low in deep stacks.
    """
    for T, printed, exact in ((16, 0.6875, 0.6986), (512, 0.6673, 0.6679)):
        limit = attention.prop5_closed_form(1)
        assert round(limit + (1 - limit) / T, 4) == printed
        assert round(float(attention.prop5_exact(T, 1)[0]), 4) == exact
    limit = attention.prop5_closed_form(12)
    decomposed = limit + (1 - limit) / 512
    assert round(decomposed, 4) == 0.9886 and round(float(attention.prop5_exact(512, 12)[-1]), 4) == 0.9998


def test_where_the_printed_approximation_holds():
    layers = np.arange(1, 97)
    gaps = attention.prop5_exact_gap(512, 96)
    a_layer_later = 1 - attention.prop5_printed(512, layers + 1)
    # With L = n + 1 it is within 0.01 of the cosine from L = 3 on, as the proposition says …
    assert np.max(np.abs(gaps - a_layer_later)[1:]) < 0.01 < abs(gaps - a_layer_later)[0]
    # … with L = n only from 9 layers on, when both are near 1.
    same = np.abs(gaps - (1 - attention.prop5_printed(512, layers)))
    assert np.min(same[:8]) > 0.01 and np.max(same[9:]) < 0.01
    # What it misses is the rate: 36 times too large a gap at 12 layers, and ever more.
    assert a_layer_later[11] / gaps[11] == pytest.approx(36, abs=1)
    assert a_layer_later[23] / gaps[23] > 1e7


def test_gated_kernels_have_a_fixed_point_at_zero():
    """SwiGLU: slope κ(0)/κ(1) = 0.056 at pre-activation std 0.554.

    So a small cosine shrinks 18-fold a layer without a residual; the ungated activations lift 0 to the values listed.
    """
    small = kernels.gated_dual("silu", 1e-6, 0.554) / kernels.gated_dual("silu", 1.0, 0.554)
    assert small == pytest.approx(0.0564e-6, rel=1e-3)
    for name, lifted in (("relu", 0.3183), ("gelu", 0.1078), ("silu", 0.0564), ("tanh", 0.0)):
        assert round(float(mlp.activation_map(name, 0.0, 0.554)), 4) == lifted
    rho = np.linspace(0.01, 0.99, 99)
    gated = kernels.gated_dual("silu", rho, 0.554) / kernels.gated_dual("silu", 1.0, 0.554)
    assert np.all(gated < rho) and np.all(mlp.activation_map("relu", rho) > rho)


@pytest.mark.long
def test_llama_rows_of_table_1_come_from_uneven_scatter():
    """V = 32,000, N = 10,000: printed 0.06% to 0.09%; a common direction alone would give 0.054%."""
    changes = dict(norm="rmsnorm", activation="silu", gated_mlp=True, mlp_width=2048, mlp=True, vocabulary=32_000)
    for T, expected in ((64, 6.9e-4), (1024, 8.1e-4)):
        prediction = profile(gpt2_nano(**changes), T)
        rho = contraction(prediction, 10_000).mean[-1]
        fraction = preference.top1_distribution(rho, 32_000, 10_000, **scatter(prediction)._asdict())
        assert fraction.fraction_mean == pytest.approx(expected, abs=1e-5)
        assert preference.top1_distribution(rho, 32_000, 10_000, 768).fraction_mean < 6e-4


@pytest.mark.long
def test_table_1b_cannot_show_finding_1_2():
    """Theory's top counts rise with T by less than they scatter: printed 6, 6, 7 and 9, 6, 7 of 10,000 inputs."""
    changes = dict(norm="rmsnorm", activation="silu", gated_mlp=True, mlp_width=2048, mlp=True, vocabulary=32_000)
    masses = []
    for T in (64, 256, 1024):
        fraction = predict(gpt2_nano(**changes), T, 32_000, num_inputs=10_000).top1
        assert 0.9e-4 < fraction.fraction_std < 1.5e-4
        masses.append(np.diff(np.interp(np.arange(60), fraction.counts, fraction.cdf), prepend=0))
    means = [mass @ np.arange(60) for mass in masses]
    assert means[0] < means[1] < means[2]
    below = [np.concatenate([[0.0], np.cumsum(mass)[:-1]]) for mass in masses]
    strictly = float(np.sum(masses[1] * below[0] * (1 - np.cumsum(masses[2]))))
    falling = float(masses[0] @ below[2])
    assert strictly == pytest.approx(0.18, abs=0.01) and falling == pytest.approx(0.13, abs=0.01)


def test_table_2_attention_only():
    """2,000 isotropic vectors, 768 dimensions: the mean of all pairwise cosines has std √(2/(768·2000·1999))."""
    std = np.sqrt(2 / (768 * 2000 * 1999))
    assert 1.11e-4 / std == pytest.approx(4.35, abs=0.005)
    assert 2 * stats.norm.sf(1.11e-4 / std) == pytest.approx(1.4e-5, rel=0.05)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 40, 16))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    means = (np.sum(np.sum(x, axis=1) ** 2, axis=-1) - 40) / (40 * 39)
    # Standard error of a standard deviation, allowing for the chi-square's kurtosis.
    assert np.std(means) == pytest.approx(np.sqrt(2 / (16 * 40 * 39)), rel=5 * np.sqrt(3 / 400))


def gpt2_nano(**changes):
    """Its 12 self-attention blocks alone, fed with Gaussian vectors."""
    sizes = dict(num_layers=12, width=768, query_width=768, value_width=768, mlp=False)
    return Stack(**{**sizes, "output_std": 0.02 / np.sqrt(24), **changes})


def test_table_2_p_value_is_that_of_pairs():
    """Attention alone at T = 1,024: pairs spread by 0.111, and 1.11e-4 over 2,000·1,999/2 of them is p = 0.16."""
    prediction = contraction(profile(gpt2_nano(), 1024), 2_000)
    assert prediction.mean[-1] == prediction.seed_std[-1] == 0
    pairs = 2_000 * 1_999 / 2
    std = prediction.sampling_std[-1] * np.sqrt(pairs)
    assert round(std, 3) == 0.111
    p = [2 * stats.norm.sf(1.11e-4 / s * np.sqrt(pairs)) for s in (std, 768**-0.5)]
    assert round(p[0], 2) == 0.16 and p[1] == pytest.approx(1.4e-5, rel=0.05)
    assert round(2 * stats.norm.sf(1.11e-4 / (1.05 * std) * np.sqrt(pairs)), 2) != 0.16


def test_figure_8_with_and_without_residual():
    """The rows of the table: with itself, a token has cosine 1."""
    rows = {
        (16, "bare"): [0.699, 0.921, 0.971, 0.989, 0.999, 1.000],
        (16, "norm"): [0.655, 0.879, 0.943, 0.974, 0.996, 1.000],
        (16, "both"): [0.395, 0.710, 0.805, 0.846, 0.886, 0.927],
        (512, "norm"): [0.611, 0.846, 0.892, 0.920, 0.960, 0.999],
        (512, "both"): [0.034, 0.352, 0.748, 0.836, 0.882, 0.915],
    }
    changes = {"bare": dict(norm="none", residual=False), "norm": dict(residual=False), "both": {}}
    depths = np.array([1, 2, 3, 4, 6, 12])
    for (T, name), row in rows.items():
        pairs = profile(gpt2_nano(**changes[name]), T).intra_cosine[depths]
        cosine = (pairs * (T - 1) + 1) / T
        assert np.round(cosine, 3) == pytest.approx(row, abs=1e-9)
    exact = attention.prop5_exact(16, 12)[depths - 1]
    assert np.max(np.abs(exact - rows[16, "bare"])) < 6e-4
    # The block with its residual contracts more slowly than Attn₀ at every depth, and not at the printed rate.
    assert np.all(exact - rows[16, "both"] > 0.05)
    assert 1 - rows[16, "both"][-1] > 10 * (1 - attention.prop5_printed(16, 13))


def test_figure_5_norms_pass_an_epsilon():
    """768 wide, 3,072 hidden, B.1's weights for 12 layers, inputs of std 0.02."""
    gains = dict(up_gain=768 * 0.02**2, down_gain=3072 * 0.02**2 / 24)
    norm = mlp.mlp0_stack("relu", 12, input_std=0.02, **gains).rms * np.sqrt(768)
    assert norm[7] > 1e-8 > norm[8] and norm[12] == pytest.approx(1.3e-13, rel=0.02)
    # The cosine itself does not see the norm; one with an epsilon does, as the table says.
    rho = mlp.mlp0_stack("relu", 12, input_std=0.02, **gains).rho
    assert np.all(np.diff(rho) > 0)
    depth = np.array([1, 4, 6, 7, 8, 9, 12])
    table = {
        0: [0.318, 0.681, 0.777, 0.809, 0.834, 0.855, 0.897],
        1: [0.318, 0.681, 0.777, 0.809, 0.0375, 3.02e-4, 1.54e-10],
        2: [0.318, 0.0800, 5.65e-6, 4.62e-8, 3.75e-10, 3.02e-12, 1.54e-18],
    }
    shrunk = {0: 1.0, 1: np.minimum(norm / 1e-8, 1) ** 2, 2: np.minimum(norm**2 / 1e-8, 1)}
    for kind, row in table.items():
        assert (rho * shrunk[kind])[depth] == pytest.approx(row, rel=2e-3)


def test_the_approach_of_proposition_2_to_its_rate():
    depth = np.array([1, 3, 5, 10, 20, 100, 1000])
    rows = {
        "exact": [0.6817, 0.3952, 0.2641, 0.1285, 0.05157, 3.577e-3, 4.313e-5],
        "rate": [44.41, 4.935, 1.777, 0.4441, 0.1110, 4.441e-3, 4.441e-5],
        "refined": [1.529, 0.5437, 0.3187, 0.1395, 0.05324, 3.585e-3, 4.313e-5],
    }
    gaps = {
        "exact": mlp.prop2_gap(1000)[depth - 1],
        "rate": mlp.prop2_rate(depth),
        "refined": mlp.prop2_rate_refined(depth),
    }
    for name, row in rows.items():
        assert gaps[name] == pytest.approx(row, rel=3e-4)


def test_sizes_of_the_intersection():
    assert 50**2 / 768 == pytest.approx(3.26, abs=0.005) and 400**2 / 768 == pytest.approx(208, abs=0.5)

    def smallest_log10_p(shared, null):
        """Of a one-sided Mann-Whitney test whose samples do not overlap, normal approximation."""
        return stats.norm.logsf(np.sqrt(3 * shared * null / (shared + null + 1))) / np.log(10)

    # m = 50: even if all 50 dimensions are shared, 7.8e-89 is out of reach; m = 400 shares 208 and reaches 2.0e-91.
    assert smallest_log10_p(50, 50**2 / 768) > -3 and smallest_log10_p(50, 50) > -18
    assert 10 ** smallest_log10_p(400, 208) == pytest.approx(2.0e-91, rel=0.02)
    assert smallest_log10_p(392, round(392**2 / 768)) > np.log10(7.77e-89) > smallest_log10_p(393, round(393**2 / 768))
    # The exact smallest p of 50 against 3, and of 50 against 50.
    assert 1 / special.binom(53, 3) == pytest.approx(4.3e-5, rel=0.01)
    assert 1 / special.binom(100, 50) == pytest.approx(1e-29, rel=0.01)


def test_uniform_baseline_of_section_3():
    """117 of 2,000 against 2: a top count of 3 or more has probability 0.40 under uniformity."""
    assert 117 / 2 == 58.5
    assert preference.uniform_top_count_tail(2, 2_000, 50_304) > 1 - 1e-9
    assert preference.uniform_top_count_tail(3, 2_000, 50_304) == pytest.approx(0.40, abs=0.005)
    assert preference.uniform_top_count_tail(4, 2_000, 50_304) == pytest.approx(0.005, abs=2e-4)


@pytest.mark.long
def test_overlap_with_the_scatter_of_gpt2():
    """The rows of the table at T = 1,024; the paper's 76 of 100 models is within one standard error."""
    stack = gpt2_nano(mlp=True, mlp_width=3072)
    scattered = scatter(profile(stack, 1024))
    assert round(scattered.anisotropy, 1) == 3.6
    overlaps = [preference.expected_overlap(0.446, 50_257, n, **scattered._asdict()) for n in (2_000, 10_000, None)]
    assert np.round(overlaps, 2).tolist() == [0.75, 0.79, 0.80]
    assert abs(overlaps[0] - 0.76) < np.sqrt(0.76 * 0.24 / 100)


def test_schedule_of_b4():
    assert 200_000 * 128 * 2_048 == pytest.approx(52.4e9, rel=1e-3)


def test_shared_vectors_correlate_the_outputs_of_unrelated_models():
    cfg = preset("llama-tiny", num_layers=2, d_model=128, num_heads=4, d_ff=352, vocab_size=64)
    inputs = gaussian(num_inputs=600, seq_len=4, d_model=cfg.d_model)
    vectors_ND = np.asarray(inputs.batch(0, 600))[:, -1]
    options = OutputOptions((0.0, cfg.embedding_std))
    outputs = [np.asarray(last_outputs(cfg, init_seed(cfg, seed), inputs, options)) for seed in (1, 2)]
    alike = pass_through(*outputs, vectors_ND)
    assert all(0.2 < own < 0.9 for own in alike["own"])
    assert alike["correlation"] == pytest.approx(alike["product"], abs=4 / np.sqrt(vectors_ND.size))
    taus_D = tau_b(*outputs)
    expected = 2 / np.pi * np.arcsin(alike["product"])
    assert taus_D.mean() == pytest.approx(expected, abs=4 * taus_D.std() / np.sqrt(cfg.d_model))
    assert alike["paper"]["verdict"] == "same-lineage" and alike["paper_without"]["verdict"] == "unrelated"
    # The least correlation with the vector that the paper's sizes reject: taus of the pair against as many of the null.
    num_inputs, shared = 10_000, round(400**2 / 768)
    tau_std = np.sqrt(2 * (2 * num_inputs + 5) / (9 * num_inputs * (num_inputs - 1)))
    least = stats.norm.isf(0.01) * tau_std * np.sqrt(2 / shared)
    assert (shared, round(least, 4), round(np.sqrt(np.sin(np.pi / 2 * least)), 2)) == (208, 0.0015, 0.05)


def test_every_test_named_in_the_errata_exists():
    folder = Path(__file__).parent
    text = (folder / "ERRATA.md").read_text()
    code = "".join(path.read_text() for path in folder.glob("test_*.py"))
    named = {word.strip("`,.;()") for word in text.split() if word.strip("`,.;()").startswith("test_")}
    named = {name for name in named if not name.endswith(".py")}
    assert len(named) > 15
    assert [name for name in sorted(named) if f"def {name}(" not in code] == []
