"""Evidence of two fingerprints: calibrated on unrelated sketches, bounds never below exact p, labels that leave."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats as scipy_stats

from bornbiased_jax import model as models
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.native_roles import LANGUAGE, NativeRoles
from bornbiased_jax.checkpoints.roles import Shape
from bornbiased_jax.config import preset
from bornbiased_jax.derive.changes import ChangeContext, parse_change
from bornbiased_jax.lineage import evidence, sketches
from bornbiased_jax.lineage.evidence import EvidenceError
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.lineage.fingerprints import HeadSketches, Neurons, Repeats, Settings
from bornbiased_jax.lineage.matching import match_neurons
from bornbiased_jax.lineage.pairing import NeuronPair, monotone_pairs, pair_blocks, unit_rows
from bornbiased_jax.lineage.scores import (
    SampledZ,
    coordinate_terms,
    head_terms,
    neuron_terms,
    permuted_labels,
    sampled_coordinates,
    sampled_neurons,
)
from bornbiased_jax.lineage.sketches import quantize
from bornbiased_jax.lineage.structure import repeated_parts, shared_repeats
from bornbiased_jax.stats import binomial_interval
from bornbiased_jax.stats.nested import log_order
from bornbiased_jax.stats.terms import Term, certified_sum, z_of
from tests.tiers import nightly_except

GATED = Shape(4, 4, 8, False, True, False, False)
GATELESS = Shape(4, 4, 8, True, False, False, False)


def vectors(draws, count, dim=16):
    rows = draws.standard_normal((count, dim)).astype(np.float32)
    return np.rint(127 * rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.int8)


def mlp(seed, count=48, gate=True, block=1, total=None):
    draws = np.random.default_rng(seed)
    names = ("gate", "up", "down") if gate else ("up", "down")
    token, coordinates = ({name: vectors(draws, count) for name in names} for _ in range(2))
    return Neurons(block, None, False, total or count, token, coordinates)


def reordered(neurons, order):
    spaces = ({name: rows[order] for name, rows in space.items()} for space in (neurons.token, neurons.coordinates))
    return Neurons(neurons.block, None, False, neurons.total, *spaces)


def noisy(neurons, scale, seed=0, negate=False):
    draws = np.random.default_rng(seed)

    def moved(rows):
        return np.rint(rows + scale * 127 / 4 * draws.standard_normal(rows.shape)).clip(-127, 127).astype(np.int8)

    sign = draws.choice([-1, 1], neurons.total)[:, None].astype(np.int8) if negate else np.int8(1)
    spaces = (
        {name: moved(rows) * (sign if name != "gate" else np.int8(1)) for name, rows in space.items()}
        for space in (neurons.token, neurons.coordinates)
    )
    return Neurons(neurons.block, None, False, neurons.total, *spaces)


def term(base, suspect, shape=GATED, period=None):
    (single,) = neuron_terms([NeuronPair(1, ((base, suspect),))], "token", shape, lambda _total: period)
    return single


@pytest.mark.slow
def test_p_of_unrelated_neurons_is_uniform():
    """KS of the counted p over 400 pairs, and 1% within its binomial interval."""
    p_values = []
    for seed in range(400):
        scores = [term(mlp((seed, layer, 1)), mlp((seed, layer, 2))) for layer in range(2)]
        p_values.append(certified_sum(scores, 199, seed).p_value)
    assert scipy_stats.kstest(p_values, "uniform").pvalue > 1e-3
    below = int(np.sum(np.array(p_values) <= 0.01))
    low, high = binomial_interval(below, len(p_values), confidence=0.999)
    assert low <= 0.01 <= high


@pytest.mark.parametrize(("shape", "gate"), [(GATED, True), (GATELESS, False)])
def test_related_neurons_are_found_through_noise_and_free_signs(shape, gate):
    base = mlp(1, gate=gate)
    result = certified_sum([term(base, noisy(base, 0.5, negate=gate), shape)], 999)
    assert result.z > 20
    assert result.log10_p < -20
    unrelated = certified_sum([term(base, mlp(2, gate=gate), shape)], 999)
    assert unrelated.p_value > 0.001


@pytest.mark.parametrize(("shape", "gate"), [(GATED, True), (GATELESS, False)])
def test_sampled_z_is_near_the_exact_one(shape, gate):
    """Of unrelated, related and padded neurons: the screen lets through what the test would find."""
    base, other = mlp(1, 256, gate=gate), mlp(2, 256, gate=gate)
    for suspect in (other, noisy(base, 0.5, negate=gate), noisy(base, 3.0)):
        exact = z_of([term(base, suspect, shape)])
        sampled = sampled_neurons([NeuronPair(1, ((base, suspect),))], "token", shape)
        assert sampled.z == pytest.approx(exact, rel=0.15, abs=1.0)
    # One group has all pairs of labels.
    scores_nn, sample = np.random.default_rng(0).standard_normal((8, 8)) + np.eye(8), SampledZ()
    sample.add(scores_nn[None], np.ones((1, 8), bool))
    np.testing.assert_allclose(sample.excess, np.trace(scores_nn) - scores_nn.sum() / 8)
    np.testing.assert_allclose(sample.variance, 64 * scores_nn.var() / 7)
    for neurons in (base, other):
        for rows in neurons.token.values():
            rows[64:] = 0
    assert abs(sampled_neurons([NeuronPair(1, ((base, other),))], "token", shape).z) < 4


def test_scores_of_experts_that_face_one_gated_mlp_are_summed():
    base, suspects = mlp(1, 6), [noisy(mlp(1, 6), 0.5), mlp(2, 6)]
    for rows in suspects[1].token.values():
        rows[2] = 0
    (single,) = neuron_terms([NeuronPair(1, tuple((base, suspect) for suspect in suspects))], "token", GATED)
    parts = [{name: scores(rows, suspect.token[name]) for name, rows in base.token.items()} for suspect in suspects]
    expected_nn = sum(part["gate"] + np.abs(part["up"] + part["down"]) for part in parts)
    live = [0, 1, 3, 4, 5]
    np.testing.assert_allclose(single.scores_nn, expected_nn[np.ix_(live, live)], atol=1e-6)


def test_zero_rows_leave_the_permutation():
    """Padding with zeros at the same places speaks for nothing (and would, were it permuted)."""
    base, suspect = mlp(1, 64), mlp(2, 64)
    for neurons in (base, suspect):
        for space in (neurons.token, neurons.coordinates):
            for rows in space.values():
                rows[48:] = 0
    assert len(term(base, suspect).scores_nn) == 48
    assert abs(z_of([term(base, suspect)])) < 4
    # Pruned at different places: what is left in both.
    for rows in (*suspect.token.values(), *suspect.coordinates.values()):
        rows[:8] = 0
    assert len(term(base, suspect).scores_nn) == 40
    padded = np.ones((64, 64))
    padded[:48, :48] = np.random.default_rng(0).standard_normal((48, 48))
    assert len(permuted_labels(padded, np.arange(64) < 2, None)) == 2
    with pytest.raises(EvidenceError, match="fewer than two labels"):
        permuted_labels(padded, np.arange(64) < 1, None)


def test_shards_repeated_in_both_are_permuted_jointly():
    """Faulty weights whose shards are one draw: as plain labels they are called related, jointly they are not."""
    plain, joint = [], []
    for seed in range(60):
        pair = [mlp((seed, side), 6) for side in (1, 2)]
        shards = np.tile(np.arange(6), 16)
        tiled = [reordered(Neurons(1, None, False, 96, m.token, m.coordinates), shards) for m in pair]
        plain.append(z_of([term(*tiled)]))
        joint.append(z_of([term(*tiled, period=6)]))
    assert np.std(plain) > 2.5
    assert np.std(joint) < 1.3
    assert np.abs(joint).max() < 4
    scores_nn = np.arange(144.0).reshape(12, 12)
    summed_nn = sum(scores_nn[start : start + 4, start : start + 4] for start in (0, 4, 8))
    np.testing.assert_array_equal(permuted_labels(scores_nn, np.ones(12, bool), 4), summed_nn)


def test_labels_that_all_resemble_the_next_one_are_told_from_labels_without_numbers():
    """As of smooth weights, which repeat at the period 1."""
    sketches = [vectors(np.random.default_rng(0), 24)]
    for permuted in (
        lambda: coordinate_terms(sketches, sketches, 1),
        lambda: neuron_terms([NeuronPair(1, ((mlp(1), mlp(2)),))], "token", GATED, lambda _total: 1),
    ):
        with pytest.raises(EvidenceError, match="every label resembles the next one"):
            permuted()


def test_matching_finds_permuted_neurons_and_not_unrelated_ones():
    base = mlp(1, 96)
    order = np.random.default_rng(0).permutation(96)
    pair = NeuronPair(1, ((base, noisy(reordered(base, order), 0.3)),))
    assert abs(z_of(neuron_terms([pair], "token", GATED))) < 4
    assert match_neurons([pair], "token", GATED).agreement > 0.9
    assert match_neurons([NeuronPair(1, ((base, mlp(2, 96)),))], "token", GATED).agreement < 0.1
    with pytest.raises(EvidenceError, match=r"96 of 11,008 neurons stored"):
        match_neurons([NeuronPair(1, ((base, mlp(2, 96, total=11_008)),))], "token", GATED)


def test_narrow_mlps_have_no_part_in_a_matching():
    """Of two neurons both matchings pair all alike in half of the cases: in 16 blocks that exceeded any threshold."""
    pairs = [NeuronPair(block, ((mlp(block, 2), mlp(100 + block, 2)),)) for block in range(1, 17)]
    with pytest.raises(EvidenceError, match="2 neurons of an MLP are too few to match"):
        match_neurons(pairs, "token", GATED)
    wide = NeuronPair(17, ((mlp(17, 48), mlp(18, 48)),))
    assert match_neurons([*pairs, wide], "token", GATED).by_block.keys() == {17}


def test_an_mlp_of_zeros_leaves_the_others_matched():
    """Pruning by blocks empties an MLP of both models; the other neurons were permuted."""
    order = np.random.default_rng(0).permutation(48)
    first, second = mlp(1), mlp(2)
    empty = dataclasses.replace(
        second,
        **{
            space: {name: np.zeros_like(rows) for name, rows in getattr(second, space).items()}
            for space in ("token", "coordinates")
        },
    )
    pairs = [NeuronPair(1, ((empty, empty),)), NeuronPair(2, ((first, reordered(first, order)),))]
    assert match_neurons(pairs, "token", GATED).agreement == 1.0


def test_blocks_pair_in_order():
    cost = np.random.default_rng(0).random((4, 7)) + 2
    for row, column in enumerate((0, 2, 3, 6)):
        cost[row, column] = 0
    assert monotone_pairs(cost) == [(0, 0), (1, 2), (2, 3), (3, 6)]
    assert monotone_pairs(cost.T) == [(0, 0), (2, 1), (3, 2), (6, 3)]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_blocks_pair_through_what_training_added_to_all_of_them(seed):
    cfg = preset("llama-tiny", d_model=64, d_ff=128, vocab_size=256)
    draws = np.random.default_rng(seed)

    def trained(growth_L):
        """Move every neuron in one direction, of each block by so many standard deviations of its matrix."""
        flat = dict(models.flatten(models.init_seed(cfg, seed)))
        step_LD1 = np.asarray(growth_L)[:, None, None] * draws.standard_normal((cfg.d_model, 1))
        for path in ("blocks/mlp/gate/kernel", "blocks/mlp/up/kernel"):
            kernel = np.asarray(flat[path])
            flat[path] = (kernel + kernel.std() * step_LD1).astype(np.float32)
        return cfg, models.unflatten(flat)

    base, suspect = trained([2.0, 2.7, 3.3, 4.0]), trained([4.0, 3.3, 2.7, 2.0])
    for change in ("repeat-layers:2-3", "rotate:9"):
        suspect = parse_change(change).apply(suspect, ChangeContext())
    components = [
        fingerprint(NativeRoles(Checkpoint.from_params(*model)), Settings(neurons=None, token_labels="ids")).components[
            LANGUAGE
        ]
        for model in (base, suspect)
    ]
    for first, second in (components, components[::-1]):
        pairs = [pair if first is components[0] else pair[::-1] for pair in map(tuple, pair_blocks(first, second))]
        assert [base for base, _ in pairs] == [(1, 2, 3, 2, 3, 4)[suspect - 1] for _, suspect in pairs]
        assert len(pairs) == cfg.num_layers


# ---------------------------------------------------------------------------------------------------------------------
# Heads


def test_heads_are_permuted_within_their_groups():
    draws = np.random.default_rng(3)
    base = HeadSketches(1, 4, vectors(draws, 8, 256), vectors(draws, 8, 256))
    (single,) = head_terms([(base, base)])
    assert single.num_groups == 4
    assert certified_sum([single], 999).log10_p_bound == pytest.approx(-log_order(4, 2) / math.log(10), abs=0.05)
    with pytest.raises(EvidenceError, match="key/value groups differ"):
        head_terms([(base, HeadSketches(1, 2, base.query_key, base.value_output))])
    pruned = HeadSketches(
        1, 4, np.where(np.arange(8)[:, None] == 5, 0, base.query_key).astype(np.int8), base.value_output
    )
    (left,) = head_terms([(base, pruned)])
    assert (left.num_groups, len(left.scores_nn)) == (3, 6)


def test_parts_with_a_structure_in_common_do_not_hide_the_others():
    """Two tables that one text gives a few directions weigh less than blocks in which coordinates correspond."""
    draws = np.random.default_rng(1)
    width, dim = 64, 64

    def units(rows):
        return rows / np.linalg.norm(rows, axis=-1, keepdims=True)

    # Tables of three directions in common, at other coordinates; of the blocks a part is the base's.
    tables_4DK = units(draws.standard_normal((4, width, 3)) @ draws.standard_normal((3, dim)))
    base_DK = units(draws.standard_normal((width, dim)))
    suspect_DK = units(0.5 * base_DK + units(draws.standard_normal((width, dim))))
    base = [quantize(rows_DK) for rows_DK in (tables_4DK[0], tables_4DK[1], base_DK)]
    suspect = [quantize(rows_DK) for rows_DK in (tables_4DK[2], tables_4DK[3], suspect_DK)]
    alone, alike = (z_of([Term(sum(map(scores, *parts)))]) for parts in ((base[2:], suspect[2:]), (base, suspect)))
    (weighted_term,) = coordinate_terms(base, suspect, None)
    weighted = z_of([weighted_term])
    assert weighted > 0.9 * alone > 2 * alike
    # Weights are those of any order of the labels, so that a permutation of them stays exact.
    order_D = draws.permutation(width)
    (permuted,) = coordinate_terms([rows_DK[order_D] for rows_DK in base], suspect, None)
    np.testing.assert_allclose(permuted.scores_nn, weighted_term.scores_nn[order_D], rtol=1e-5, atol=1e-5)


def pruned_parts(seed, width=32, num_tokens=96, dim=16):
    """Sketches of an embedding, of blocks and of a head, after pruning by size: most rows of the head are empty.

    All models share what a text gives them: one direction over the tokens, in which coordinates load by chance.
    """
    draws = np.random.default_rng(seed)
    shared, *signs = np.split(
        np.random.default_rng(0).standard_normal((num_tokens, 1 + 3 * dim)), [1, 1 + dim, 1 + 2 * dim], 1
    )
    loading_D = draws.standard_normal(width) ** 3
    matrices = [
        draws.standard_normal((width, num_tokens)) + scale * np.outer(loading_D, shared) for scale in (0.3, 0.0, 2.0)
    ]
    for matrix_DV, least in zip(matrices, (2.0, 2.0, 9.0), strict=True):
        matrix_DV[np.abs(matrix_DV) < least] = 0
    return [quantize(matrix_DV @ signs_VK) for matrix_DV, signs_VK in zip(matrices, signs, strict=True)]


def test_a_part_with_few_labels_takes_none_from_the_others():
    """A head that pruning left in some coordinates: these are permuted among themselves, and the others too."""
    draws = np.random.default_rng(1)
    width, few = 32, 6
    base = [vectors(draws, width) for _ in range(3)]
    suspect = [
        np.rint(rows / 2 + 30 * draws.standard_normal(rows.shape)).clip(-127, 127).astype(np.int8) for rows in base
    ]
    full = coordinate_terms(base, suspect, None)
    suspect[2][few:] = 0
    terms = coordinate_terms(base, suspect, None)
    assert [len(each.scores_nn) for each in terms] == [width - few, few]
    assert 0.7 * z_of(full) < z_of(terms)
    # Scores of the others are those of the parts that they have.
    signed, _ = sampled_coordinates(base, suspect)
    assert signed.z == pytest.approx(z_of(terms), rel=0.25)
    # Padding is no label, and neither is a coordinate without a part that has numbers in both models.
    for rows in suspect[:2]:
        rows[few : few + 4] = 0
    assert [len(each.scores_nn) for each in coordinate_terms(base, suspect, None)] == [width - few - 4, few]
    # Where shards repeat, a label has the parts of all its repeats.
    assert [len(each.scores_nn) for each in coordinate_terms(base, suspect, 16)] == [6, 6, 4]
    for places in ([3], [3, 4]):
        pruned = np.where(np.isin(np.arange(width), places)[:, None], base[0], 0)
        rest = np.where(np.isin(np.arange(width), places[1:])[:, None], 0, base[0])
        with pytest.raises(EvidenceError, match="fewer than two coordinates"):
            coordinate_terms([pruned], [rest], None)
    with pytest.raises(EvidenceError, match="fewer than two coordinates"):
        coordinate_terms([pruned], [base[0] - pruned], None)
    with pytest.raises(EvidenceError, match=r"the widths differ \(32 and 6\)"):
        coordinate_terms([base[0]], [base[0][:few]], None)


@pytest.mark.slow
def test_p_of_pruned_coordinates_is_uniform():
    """Of 600 unrelated pairs with one text in common.

    In 999 of 1,000 such checks 14 to 49 of them have p at or below 0.05, and 260 to 340 at or below 0.5.
    """
    p_values: dict[str, list[float]] = {"trace": [], "squares": []}
    for seed in range(600):
        terms = coordinate_terms(pruned_parts((seed, 1)), pruned_parts((seed, 2)), None)
        assert len(terms) > 1
        squares = [Term(np.square(each.scores_nn)) for each in terms]
        for form, form_terms in (("trace", terms), ("squares", squares)):
            p_values[form].append(certified_sum(form_terms, 99, seed).p_value)
    for values in p_values.values():
        assert 14 <= np.sum(np.array(values) <= 0.05) <= 49
        assert 260 <= np.sum(np.array(values) <= 0.5) <= 340


def scores(base_DK, suspect_DK):
    return unit_rows(base_DK) @ unit_rows(suspect_DK).T


@pytest.mark.slow
@pytest.mark.parametrize("num_heads", nightly_except([4, 6, 8], 4))
def test_a_few_heads_of_independent_numbers_seldom_repeat(num_heads):
    """Scores at other shifts are few: by their standard deviation one of fifty single blocks was called repeating."""
    draws, found = np.random.default_rng(num_heads), 0
    for _ in range(2000):
        counter = sketches.RepeatCounter()
        counter.add(num_heads, sketches.inner(sketches.unit(draws.standard_normal((num_heads, 512)))))
        report = Repeats("language", "heads", num_heads, 0, counter.z_by_period())
        found += repeated_parts(report) > 0
    assert found <= 8


def test_signs_are_asked_only_where_a_verdict_hangs_on_them():
    """Asked of every cell that chance makes large, they would hold its rate below the level."""
    terms = [Term(np.diag(np.resize([1.0, -1.0], 64)))]
    evidence.check_signs(3.9, terms)
    with pytest.raises(EvidenceError, match="not in sign"):
        evidence.check_signs(4.0, terms)
    evidence.check_signs(4.0, [Term(np.eye(64))])
    # Half of z is asked for, and 4 at most: of 64 labels 40 agree, or 42.
    forty, more = (Term(np.eye(64), signed_n=np.where(np.arange(64) < count, 1.0, -1.0)) for count in (40, 42))
    with pytest.raises(EvidenceError, match="not in sign"):
        evidence.check_signs(4.5, [forty])
    evidence.check_signs(4.5, [more])
    with pytest.raises(EvidenceError, match="not in sign"):
        evidence.check_signs(6.0, [more])
    # Trained models have a few labels whose scores are far larger than the others.
    own_n = np.where(np.arange(64) < 2, [-100.0, 100.0] * 32, 1.0)
    evidence.check_signs(40.0, [Term(np.diag(own_n))])


def test_labels_that_repeat_in_wider_blocks_alone_have_no_shared_period():
    # Sixteen equal heads of one block, and eight in the first.
    report = Repeats("language", "heads", 8, 0, {16: 100.0})
    models = [SimpleNamespace(repeats=(report,)) for _ in range(2)]
    shared = shared_repeats(*models, "language", "heads")
    assert shared.reason == "both models repeat their heads, at different periods" and not shared.parts
