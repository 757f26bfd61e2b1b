"""Verdicts on two fingerprints: invariances and evasions, and what no seed decided is no evidence."""

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from bornbiased_jax import model as models
from bornbiased_jax.checkpoints import Checkpoint, export_hugging_face
from bornbiased_jax.checkpoints.native_roles import NativeRoles
from bornbiased_jax.config import preset
from bornbiased_jax.derive import symmetries
from bornbiased_jax.derive.changes import ChangeContext, parse_change
from bornbiased_jax.derive.derive import derive
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage import battery, weights_compare
from bornbiased_jax.lineage.battery import ALL, Options, compare_weights, screening_z
from bornbiased_jax.lineage.compared_model import ComparedModel
from bornbiased_jax.lineage.component_pair import ComponentPair, _have_one_sign
from bornbiased_jax.lineage.evidence import KINDS, MATCHED, RAW_NEURONS, SIGNLESS, TOKEN_NEURONS
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from bornbiased_jax.lineage.fingerprints import Settings
from bornbiased_jax.lineage.matching import _ALIKE, _MARGIN, UNRELATED_AGREEMENT, _match
from bornbiased_jax.lineage.scores import NeuronScores
from bornbiased_jax.lineage.trace import trace
from bornbiased_jax.lineage.weights_verdict import auto_verdict, single_verdict
from bornbiased_jax.stats.terms import Term
from bornbiased_jax.stats.terms import z_of as joint_z
from tests.tiers import NIGHTLY, nightly_except

SIZES = "num_layers=4,num_heads=4,d_model=64,d_ff=128,vocab_size=512"
QUICK = Options(num_permutations=999)


def reference(seed, family="llama"):
    return f"seed:{seed}@{family}-tiny,{SIZES}"


@functools.cache
def untrained(seed, family="llama"):
    return fingerprint(reference(seed, family))


def changed(seed, changes, family="llama"):
    derived = derive(reference(seed, family), [parse_change(text) for text in changes.split()], ChangeContext(0, None))
    return of_params(derived.cfg, derived.params)


def of_params(cfg, params, settings=None):
    return fingerprint(NativeRoles(Checkpoint.from_params(cfg, params)), settings)


def printed(cfg, arrays):
    """The fingerprint of weights by path."""
    return of_params(cfg, models.unflatten(arrays))


def quick(base, suspect):
    return auto_verdict(base, suspect, QUICK)


def drawn(seed, family="llama-tiny", **fields):
    """Random weights by path, to be given a structure."""
    sizes = dict(num_layers=4, num_heads=4, d_model=64, d_ff=128, vocab_size=512)
    cfg = preset(family, **{**sizes, **fields})
    draws = np.random.default_rng(seed)
    shapes = models.flatten(models.parameter_shapes(cfg))
    arrays = {path: 0.02 * draws.standard_normal(leaf.shape, np.float32) for path, leaf in shapes.items()}
    arrays |= {path: np.ones_like(leaf) for path, leaf in arrays.items() if path.endswith("scale")}
    return cfg, arrays


def unrelated_pair(change, *family, **fields):
    """Two models drawn apart, to both of which ``change(arrays, seed)`` does something."""
    pair = [drawn(seed, *family, **fields) for seed in (1, 2)]
    for seed, (_, arrays) in enumerate(pair, 1):
        change(arrays, seed)
    return pair


def tuned(cfg, arrays):
    """The fingerprint of a model with noise of half a standard deviation."""
    noise = np.random.default_rng(5)
    return printed(
        cfg, {path: leaf + 0.01 * noise.standard_normal(leaf.shape, np.float32) for path, leaf in arrays.items()}
    )


def hadamard(size):
    rows = np.arange(size)
    signs = [[(-1) ** bin(row & column).count("1") for column in rows] for row in rows]
    return (np.array(signs) / np.sqrt(size)).astype(np.float32)


def decided_by(verdict):
    """The evidence that the notes name."""
    (note,) = [note for note in verdict.notes if note.startswith("The smallest p-value is that of ")]
    return note.removeprefix("The smallest p-value is that of ").partition(".")[0]


def z_of(verdict, evidence):
    return next(row["z"] for row in verdict.detail["tests"] if row["name"] == evidence)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "evidence", "least"),
    [
        ("noise:1", TOKEN_NEURONS, 40),
        ("negate:7", SIGNLESS, 40),
        pytest.param(*("permute:7", SIGNLESS, 40), marks=NIGHTLY),
    ],
)
def test_descendants_are_found_and_unrelated_models_are_not(changes, evidence, least):
    related = quick(untrained(1), changed(1, changes))
    assert related.verdict == "same-lineage"
    assert z_of(related, evidence) > least
    assert related.detail["null"] == "exact"
    other = quick(untrained(3), changed(1, changes))
    assert other.verdict == "unrelated"
    assert abs(z_of(other, evidence)) < 4


# Half merged with another model, pruned, a block dropped and one inserted, rows of the vocabulary cut, then neurons
# rescaled, heads permuted, the residual stream rotated, and four bits.
EVERYTHING = f"merge:{reference(2)}:0.5 prune:0.3 drop-layers:2 resize-vocab:400 insert-layer:1 rescale:3 heads:9"
EVERYTHING += " rotate:7 round:4"


def exported(changes, folder):
    derived = derive(reference(1), [parse_change(text) for text in changes.split()], ChangeContext(0, None))
    export_hugging_face(derived.cfg, derived.params, folder)
    return folder


@pytest.mark.slow
def test_all_changes_at_once_are_found_in_token_space_through_a_directory(tmp_path):
    folder = exported(EVERYTHING, tmp_path / "suspect")
    related = trace(reference(1), folder, num_permutations=999)
    assert (related.verdict, related.detail["null"]) == ("same-lineage", "exact")
    assert related.log10_p < -50
    assert decided_by(related) == TOKEN_NEURONS and z_of(related, TOKEN_NEURONS) > 20
    other = trace(reference(3), folder, num_permutations=999)
    assert other.verdict == "unrelated" and abs(z_of(other, TOKEN_NEURONS)) < 4


@pytest.mark.slow
def test_all_changes_and_permuted_neurons_are_found_by_matching_longer_sketches(tmp_path):
    """Of 16 numbers a vector the matching finds half a merge of 4 bits no more; of 64 it does."""
    folder = exported(EVERYTHING.replace("rotate", "permute:8 rotate"), tmp_path / "suspect")
    settings, options = Settings(dim=64, neurons=None), Options(num_permutations=999, has_untrained=True)
    base, other, suspect = (fingerprint(place, settings) for place in (reference(1), reference(3), folder))
    related = auto_verdict(base, suspect, options)
    assert related.verdict == "same-lineage" and related.log10_p < -50
    assert decided_by(related) == MATCHED
    assert abs(z_of(related, TOKEN_NEURONS)) < 4 and z_of(related, MATCHED) > 20
    assert auto_verdict(other, suspect, options).verdict == "unrelated"


@pytest.mark.slow
@pytest.mark.parametrize("family", nightly_except(["gpt2", "qwen3", "neox", "mixtral"], "neox"))
def test_rotated_copies_of_every_family_are_found(family):
    rotated = changed(1, "rotate:7 noise:0.1", family)
    assert quick(untrained(1, family), rotated).verdict == "same-lineage"
    assert quick(untrained(2, family), rotated).verdict == "unrelated"


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "least", "most"), [("noise:1", 60, 90), ("negate:3 noise:1", 10, 20)])
def test_neurons_are_matched_in_coordinates_that_both_models_have(changes, least, most):
    """Once coordinates are negated, token space is all that is left, and shows less through as much noise."""
    options = Options(num_permutations=99, has_untrained=True)
    assert least < single_verdict(untrained(1), changed(1, changes), MATCHED, options).z < most


@pytest.mark.slow
def test_coordinates_negated_at_random_are_not_taken_for_common_ones():
    """Of few coordinates more than half may keep their sign: z is beyond chance, and matching in them would fail."""
    draws = np.random.default_rng(0)

    def terms(num_labels, strength, negated):
        signs_n = np.where(draws.random(num_labels) < negated, -1.0, 1.0)
        scores_nn = draws.standard_normal((num_labels, num_labels))
        return [Term(scores_nn + np.diag(strength * signs_n))]

    # Half of 96 that all resemble their own, by seven standard deviations: with 55 to 41, z is 10.
    half = [terms(96, 7.0, 0.5) for _ in range(200)]
    assert sum(joint_z(each) > 4 for each in half) > 40 and not any(map(_have_one_sign, half))
    # A few negated, and many that resemble their own by less than chance moves one of them.
    for num_labels, strength, negated in ((96, 7.0, 0.1), (96, 1.0, 0.0), (1024, 0.3, 0.0), (96, 0.6, 0.0)):
        assert sum(_have_one_sign(terms(num_labels, strength, negated)) for _ in range(50)) >= 48


@pytest.mark.nightly
def test_p_of_matched_neurons_is_calibrated_where_tables_are_copied():
    """Tables choose where neurons are matched, and tell nothing of which neuron is which."""
    cfg = preset("llama-tiny", num_layers=1, num_heads=4, d_model=64, d_ff=64, vocab_size=256)
    log10_p = []
    for seed in range(200):
        arrays, others = (models.flatten(init_seed(cfg, first + seed)) for first in (0, 1_000))
        copied = {path: arrays[path] if path.startswith(("embed", "head")) else leaf for path, leaf in others.items()}
        base, suspect = (of_params(cfg, models.unflatten(leaves)) for leaves in (arrays, copied))
        options = Options(num_permutations=199, seed=seed, has_untrained=True)
        log10_p.append(single_verdict(base, suspect, MATCHED, options).log10_p)
    # At 5%, a binomial's 1 in 10⁴ points.
    low, high = scipy_stats.binom.ppf([1e-4, 1 - 1e-4], len(log10_p), 0.05)
    assert low <= np.sum(np.array(log10_p) <= np.log10(0.05)) <= high


@pytest.mark.slow
def test_permuted_neurons_of_a_rotated_copy_are_found_by_matching_alone():
    hidden = changed(1, "rotate:7 permute:8 heads:9 noise:0.05")
    verdict = quick(untrained(1), hidden)
    assert (verdict.verdict, verdict.p_value, verdict.detail["null"]) == ("same-lineage", None, "population")
    assert verdict.detail["agreement"] > 0.9
    # An untrained model against it, re-paired: a p.
    repaired = auto_verdict(untrained(1), hidden, Options(num_permutations=999, has_untrained=True))
    assert repaired.log10_p < -100
    assert auto_verdict(untrained(2), hidden, Options(num_permutations=999, has_untrained=True)).verdict == "unrelated"
    # Of stored subsets nothing is matched.
    subset = fingerprint(reference(1), Settings(neurons=64))
    undecided = quick(subset, hidden)
    assert undecided.verdict == "unrelated"
    assert any("64 of 128 neurons stored" in note for note in undecided.detail["notes"])


def test_the_first_neurons_of_a_fingerprint_are_those_of_one_made_with_so_many():
    few, part = fingerprint(reference(1), Settings(neurons=64)), untrained(1).first_neurons(64)
    assert part.components["language"].neurons[0].total == 128
    for made, cut in zip(few.components["language"].neurons, part.components["language"].neurons, strict=True):
        for name in ("gate", "up", "down"):
            np.testing.assert_array_equal(cut.token[name], made.token[name])
            np.testing.assert_array_equal(cut.coordinates[name], made.coordinates[name])


@pytest.mark.slow
def test_neurons_of_wide_mlps_are_matched_whole_where_tests_look_at_a_part(monkeypatch):
    """Permuted neurons of a copy, rotated as well, of which a part is stored."""
    monkeypatch.setattr(weights_compare, "NEURONS", 32)
    monkeypatch.setattr(battery, "_WIDE_BLOCKS", 2)

    def made(seed, changes):
        return derive(reference(seed), [parse_change(text) for text in changes.split()], ChangeContext(0, None))

    base, near, other = made(1, "noise:0.01"), made(1, "noise:0.05"), made(2, "noise:0.01")
    hidden = made(1, "noise:0.01 rotate:7 permute:8 heads:9 noise:0.05")

    def compared(suspect, **options):
        sources = [Checkpoint.from_params(model.cfg, model.params) for model in (base, suspect)]
        return weights_compare.auto(*map(ComparedModel, sources), **options)

    found = compared(hidden)
    assert (found.verdict, found.p_value) == ("same-lineage", None) and found.detail["agreement"] > 0.9
    assert len(found.detail["agreement_by_block"]) == 2
    assert any("matchings of the neurons in 2 of 4 blocks agree" in note for note in found.detail["notes"])
    unrelated = compared(other)
    assert unrelated.verdict == "unrelated" and unrelated.detail["agreement"] < 0.1
    # A number of neurons that the user gives is all that is read; above the limit none are matched by default.
    assert any("32 of 128 neurons stored" in note for note in compared(hidden, neurons=32).detail["notes"])
    monkeypatch.setattr(weights_compare, "_WIDEST_MATCHED", 100)
    assert any("32 of 128 neurons stored" in note for note in compared(hidden).detail["notes"])
    # Where other evidence decides, no time is spent on them.
    monkeypatch.setattr(weights_compare, "_WIDEST_MATCHED", 200)
    assert compared(near).detail["agreement"] is None


def test_components_name_the_blocks_that_agree():
    """Blocks 1 and 2 of one model, 3 and 4 of another."""
    cfg, base = drawn(1)
    _, suspect = drawn(2)
    for path, leaf in suspect.items():
        if path.startswith("blocks/"):
            leaf[:2] = base[path][:2] + 0.004 * np.random.default_rng(3).standard_normal(leaf[:2].shape)
    verdict = quick(printed(cfg, base), printed(cfg, suspect))
    rows = {row["component"]: row["verdict"] for row in verdict.detail["components"]}
    assert verdict.verdict == "same-lineage"
    assert [rows[f"blocks/{block}"] for block in (1, 2, 3, 4)] == ["same-lineage"] * 2 + ["unrelated"] * 2
    assert rows["embedding"] == "unrelated"
    assert any("blocks 1 to 2, and not in" in note or "blocks 1 to 2" in note for note in verdict.detail["notes"])


def test_equal_tensors_are_found_at_every_place():
    """Block 1 of the base stands as block 3 of the suspect."""
    cfg, base = drawn(1)
    _, suspect = drawn(2)
    for path, leaf in suspect.items():
        if path.startswith("blocks/"):
            leaf[2] = base[path][0]
    comparison = compare_weights(printed(cfg, base), printed(cfg, suspect), QUICK)
    matrices = [path for path in comparison.equal if path.endswith("kernel")]
    assert len(matrices) == 7
    assert all(path.startswith("language/blocks/1/") for path in matrices)
    assert not comparison.is_identical
    copy = quick(untrained(1), untrained(1))
    assert copy.detail["identity"] == "tensors"


def test_zero_padding_is_no_evidence():
    """MLPs filled up with zero rows, and streams with zero coordinates, at equal and at different places."""

    def pad(arrays, seed):
        for path in ("blocks/mlp/gate/kernel", "blocks/mlp/up/kernel"):
            arrays[path][:, :, 96:] = 0
        arrays["blocks/mlp/down/kernel"][:, 96:] = 0
        arrays["embed/embedding"][:, 56:] = 0
        arrays["head/kernel"][56:] = 0
        for path in ("attention/query", "attention/key", "attention/value", "mlp/gate", "mlp/up"):
            arrays[f"blocks/{path}/kernel"][:, 56:] = 0
        for path in ("attention/output", "mlp/down"):
            arrays[f"blocks/{path}/kernel"][..., 56:] = 0
        arrays["blocks/mlp/up/kernel"][:, :, 16 * seed : 16 * seed + 16] = 0

    verdict = quick(*(printed(*model) for model in unrelated_pair(pad)))
    assert verdict.verdict == "unrelated"
    assert max(abs(z_of(verdict, evidence) or 0) for evidence in list(KINDS)[:5]) < 4
    assert verdict.detail["agreement"] < 0.1


def test_copies_of_a_neuron_are_matched_once():
    """Which of equal neurons an assignment pairs depends on their order alone, and two assignments do it alike."""

    def take(arrays, neurons):
        for name, axis in (("gate", 2), ("up", 2), ("down", 1)):
            path = f"blocks/mlp/{name}/kernel"
            arrays[path] = arrays[path].take(neurons, axis)

    pair = unrelated_pair(lambda arrays, seed: take(arrays, np.random.default_rng(seed).integers(0, 2, 128)))
    verdict = quick(*(printed(*model) for model in pair))
    assert verdict.verdict == "unrelated", verdict.reason
    assert "Neurons were not matched: 2 neurons of an MLP are too few to match." in verdict.notes
    # A model of doubled width in another order has every neuron of its base.
    (cfg, arrays), (_, doubled) = drawn(1), drawn(1)
    take(doubled, np.random.default_rng(0).permutation(np.tile(np.arange(128), 2)))
    doubled["blocks/mlp/down/kernel"] /= 2
    assert quick(printed(cfg, arrays), printed(cfg.replace(d_ff=256), doubled)).detail["agreement"] == 1.0


def _down_as_up(similarity):
    """Let down matrices begin as up matrices, with this cosine between the two of a neuron."""

    def tie(arrays, _seed):
        arrays["blocks/mlp/down/kernel"] *= np.sqrt(1 - similarity**2)
        arrays["blocks/mlp/down/kernel"] += similarity * arrays["blocks/mlp/up/kernel"].swapaxes(1, 2)

    return tie


def test_neurons_whose_matrices_resemble_each_other_are_not_matched():
    """Where down began as up, both matchings pair most unrelated neurons alike."""
    pair = unrelated_pair(_down_as_up(0.995), "gpt2-tiny")
    verdict = quick(*(printed(*model) for model in pair))
    assert verdict.verdict == "unrelated", verdict.reason
    reason = "the matrices of a neuron resemble each other in both models: nothing to match on twice"
    assert f"Neurons were not matched: {reason}." in verdict.notes
    # One such model alone leaves the matchings independent.
    assert quick(printed(*pair[0]), printed(*drawn(2, "gpt2-tiny"))).detail["agreement"] < 0.05


def test_neurons_whose_matrices_resemble_each_other_a_little_are_matched():
    """Scores of small trained models correlate, here by 0.4: a copy is found, an unrelated model not."""
    (cfg, arrays), other = unrelated_pair(_down_as_up(0.63), "gpt2-tiny")
    base = printed(cfg, arrays)
    order_LF = np.stack([np.random.default_rng(block).permutation(cfg.d_ff) for block in range(cfg.num_layers)])
    copy = of_params(*symmetries.permute_units(cfg, models.unflatten(arrays), order_LF))
    assert quick(base, copy).detail["agreement"] == 1.0
    verdict = quick(base, printed(*other))
    assert verdict.verdict == "unrelated" and verdict.detail["agreement"] < 0.12, verdict.detail["agreement"]


@pytest.mark.parametrize("neurons", sorted(UNRELATED_AGREEMENT))
def test_scores_that_correlate_as_allowed_agree_by_chance_below_every_threshold(neurons):
    draws = np.random.default_rng(neurons)
    live = np.ones(neurons, bool)
    agreement = []
    for _ in range(8):
        first, noise = draws.standard_normal((2, neurons, neurons))
        # Just below the limit, so that sampling does not cross it.
        second = (_ALIKE - 0.03) * first + math.sqrt(1 - (_ALIKE - 0.03) ** 2) * noise
        agreement.append(_match(NeuronScores(first, second, first, first, live, live), live, live)[0] / neurons)
    assert max(agreement) < _MARGIN * UNRELATED_AGREEMENT[neurons], agreement
    # The scores do correlate: two independent matchings agree on one neuron.
    assert max(agreement) > 2 / neurons


def test_a_mask_that_both_were_pruned_by_is_no_evidence():
    """As of lottery tickets: one sparse mask, two initializations; a descendant under the mask is found."""

    def mask(arrays, _seed):
        masks = np.random.default_rng(0)
        for leaf in arrays.values():
            if leaf.ndim == 3:
                leaf *= masks.random(leaf.shape[1:]) < 0.1

    pair = unrelated_pair(mask)
    prints = [printed(*model) for model in pair]
    verdict = quick(*prints)
    assert verdict.verdict == "unrelated", verdict.reason
    reasons = [row["reason"] for row in verdict.detail["tests"] if row["name"] == RAW_NEURONS]
    assert reasons == ["they agree in size and not in sign: a common pattern of zeros would do that"]
    cfg, arrays = pair[0]
    noise = np.random.default_rng(5)
    trained = {
        path: leaf + np.float32(0.02) * (leaf != 0) * noise.standard_normal(leaf.shape, np.float32)
        for path, leaf in arrays.items()
    }
    result = quick(prints[0], printed(cfg, trained))
    assert result.verdict == "same-lineage" and z_of(result, RAW_NEURONS) > 30


@pytest.mark.parametrize(
    ("family", "fields", "kept"),
    [
        # Coordinates up to sign, and neurons of one expert whose gates agree more than those of unmasked ones do.
        ("llama-tiny", dict(d_model=128), 0.02),
        ("gpt2-tiny", dict(d_ff=64), 0.01),
        pytest.param("mixtral-tiny", dict(d_model=128, d_ff=64), 0.05, marks=pytest.mark.slow),
    ],
)
def test_no_evidence_takes_a_common_mask_for_a_common_initialization(family, fields, kept):
    """Zeros at the same places of tables too; under them a negated descendant is found up to sign."""

    def masked(arrays):
        masks = np.random.default_rng(5)
        return {
            path: leaf * (masks.random(leaf.shape) < kept) if path.endswith(("kernel", "embedding")) else leaf
            for path, leaf in arrays.items()
        }

    (cfg, arrays), (_, other) = (drawn(seed, family, num_layers=2, **fields) for seed in (3, 4))
    base, unrelated = (printed(cfg, masked(weights)) for weights in (arrays, other))
    verdict = quick(base, unrelated)
    assert verdict.verdict == "unrelated", verdict.reason
    if cfg.norm == "rmsnorm":
        noise = np.random.default_rng(3)
        trained = {path: leaf + 0.02 * noise.standard_normal(leaf.shape, np.float32) for path, leaf in arrays.items()}
        signs_D = noise.choice([-1.0, 1.0], cfg.d_model)
        related = quick(base, of_params(*symmetries.negate(cfg, models.unflatten(masked(trained)), signs_D)))
        assert related.verdict == "same-lineage" and z_of(related, SIGNLESS) > 20


def test_blocks_from_another_model_agree_up_to_sign_beside_matrices_that_do_not():
    """Two of four blocks are the base's: squares of scores are skewed, and their own signs say little."""
    (cfg, arrays), (_, other) = drawn(1), drawn(2)
    merged = {
        path: np.concatenate([arrays[path][:2], leaf[2:]]) if leaf.ndim == 3 else leaf for path, leaf in other.items()
    }
    verdict = quick(printed(cfg, arrays), printed(cfg, merged))
    assert verdict.verdict == "same-lineage" and z_of(verdict, SIGNLESS) > 6


def one_bit(arrays, flipped=0.0):
    """Signs of the matrices of blocks, of one size each, some of them flipped."""
    draws = np.random.default_rng(3)
    signs = {
        path: np.sign(leaf) * np.abs(leaf).mean(axis=(1, 2), keepdims=True)
        for path, leaf in arrays.items()
        if leaf.ndim == 3
    }
    return arrays | {
        path: leaf * np.where(draws.random(leaf.shape) < flipped, -1, 1).astype(np.float32)
        for path, leaf in signs.items()
    }


@pytest.mark.slow
def test_one_bit_weights_are_evidence():
    """Blocks of signs, tables of another model: every matrix of a block was decided by a seed."""
    (cfg, arrays), (_, other) = drawn(1), drawn(2)
    tables = {path: other[path] for path in ("embed/embedding", "head/kernel")}
    base, copy, flipped, unrelated = (
        printed(cfg, weights)
        for weights in (one_bit(arrays), one_bit(arrays) | tables, one_bit(arrays, 0.1) | tables, one_bit(other))
    )
    verdict = quick(base, copy)
    assert verdict.verdict == "same-lineage" and verdict.detail["identical_tensors"] == 28
    assert quick(base, flipped).verdict == "same-lineage"
    assert quick(base, unrelated).verdict == "unrelated"


@pytest.mark.parametrize("changes", ["rotate:7 drop-layers:1,3 heads:3", "rotate:7 repeat-layers:1-2 round:4"])
def test_rotated_models_without_mlps_are_found_whatever_blocks_they_lack(changes):
    sizes = SIZES.replace("num_heads=4", "num_heads=8") + ",mlp=false"
    base, suspects = fingerprint(f"seed:1@llama-tiny,{sizes}"), []
    for seed in (1, 2):
        made = derive(
            f"seed:{seed}@llama-tiny,{sizes}", [parse_change(text) for text in changes.split()], ChangeContext(0, None)
        )
        suspects.append(of_params(made.cfg, made.params))
    verdict = quick(base, suspects[0])
    if "heads" in changes:
        # Heads in another order are no labels that correspond; blocks do.
        assert verdict.detail["blocks"] == [[2, 1], [4, 2]]
        return
    assert verdict.verdict == "same-lineage", verdict.reason
    assert verdict.detail["blocks"] in ([[1, 1], [2, 2], [3, 5], [4, 6]], [[1, 3], [2, 4], [3, 5], [4, 6]])
    assert quick(base, suspects[1]).verdict == "unrelated"


@pytest.mark.slow
@pytest.mark.parametrize(
    "structure",
    nightly_except(["identity", "shifted", "reversed", "hadamard", "cosine"], "shifted", "hadamard", "cosine"),
)
def test_structure_that_a_formula_decided_is_left_out(structure):
    """Two unrelated models whose value and output matrices begin alike; a real relation is found beside it."""
    rows = np.arange(64)
    fixed = {
        "identity": np.eye(64),
        "shifted": np.roll(np.eye(64), 16, axis=1),
        "reversed": np.eye(64)[::-1],
        "hadamard": hadamard(64),
        "cosine": np.cos(np.pi * (rows[:, None] + 0.5) * rows / 64) / np.sqrt(32),
    }[structure]

    def add(arrays, _seed):
        for path in ("value", "output"):
            arrays[f"blocks/attention/{path}/kernel"] += (0.3 * fixed).astype(np.float32)

    pair = unrelated_pair(add)
    prints = [printed(*model) for model in pair]
    verdict = quick(*prints)
    assert verdict.verdict == "unrelated", verdict.reason
    assert verdict.detail["left_out"].keys() == {"value", "output"}
    names = {"shifted": "the identity", "hadamard": "a Hadamard matrix", "cosine": "a cosine basis"}
    names |= {"identity": "the identity", "reversed": "the reversed identity"}
    assert set(verdict.detail["left_out"].values()) == {names[structure]}
    assert quick(prints[0], tuned(*pair[0])).verdict == "same-lineage"


@pytest.mark.parametrize(
    "kinds", [("gate", "up", "down"), ("gate",), pytest.param(("up", "down"), marks=NIGHTLY), ("query", "key")]
)
def test_structure_in_neurons_and_heads_is_left_out_of_their_evidence(kinds):
    """Two unrelated models in which these matrices begin near the identity; a copy is found by what is left."""

    def add(arrays, _seed):
        for path, leaf in arrays.items():
            if any(f"/{kind}/" in path for kind in kinds):
                leaf += 0.3 * np.eye(*leaf.shape[1:], dtype=np.float32)

    pair = unrelated_pair(add)
    prints = [printed(*model) for model in pair]
    verdict = quick(*prints)
    assert verdict.verdict == "unrelated", verdict.reason
    assert verdict.detail["left_out"].keys() == set(kinds)
    assert max(abs(z_of(verdict, evidence) or 0) for evidence in list(KINDS)[:5]) < 5
    assert (verdict.detail["agreement"] or 0) < 0.1
    # The screen lets coordinates pass, which the test decides about.
    screened = screening_z(*prints)
    assert max(abs(z) for evidence, z in screened.items() if not evidence.startswith("coordinates")) < 5
    if "gate" in kinds and "up" in kinds:
        assert not {RAW_NEURONS, TOKEN_NEURONS} & screened.keys()
        reasons = [row["reason"] for row in verdict.detail["tests"] if row["name"] == TOKEN_NEURONS]
        assert reasons == ["no part of the MLPs has numbers that a seed decided in both models"]
    result = quick(prints[0], tuned(*pair[0]))
    assert result.verdict == "same-lineage"
    if kinds == ("gate",):
        assert z_of(result, RAW_NEURONS) > 30 and z_of(result, TOKEN_NEURONS) > 30


def test_matrices_that_were_left_out_are_not_said_to_disagree():
    """Of a model whose blocks all begin near the identity, tables are all that a copy has in common with it."""
    cfg, arrays = drawn(1)
    for path, leaf in arrays.items():
        if path.startswith("blocks/") and path.endswith("kernel"):
            leaf += 0.3 * np.eye(*leaf.shape[1:], dtype=np.float32)
    verdict = quick(printed(cfg, arrays), tuned(cfg, arrays))
    alone = "embedding and head alone, and in no other kind of matrix that is evidence"
    assert verdict.verdict == "undefined" and alone in verdict.reason
    assert f"Agreement shows in {alone}." in verdict.notes


ANGLES_VP = np.arange(512)[:, None] * 10_000.0 ** (-np.arange(32) / 32)
WAVES_VD = 0.02 * np.concatenate([np.sin(ANGLES_VP), np.cos(ANGLES_VP)], axis=1).astype(np.float32)
# Tables that begin as one formula of the token number, and were trained since; one random matrix.
ALONE = {
    "embedding": ("embed/embedding", WAVES_VD),
    "head": ("head/kernel", WAVES_VD.T),
    "value": ("blocks/attention/value/kernel", 0.05 * np.random.default_rng(0).standard_normal((64, 64), np.float32)),
}


@pytest.mark.parametrize("kind", ALONE)
def test_one_kind_of_matrix_that_alone_agrees_decides_nothing(kind):
    """Its structure has no name, so that agreement in it alone is said as that; with more in common it is found."""
    path, common = ALONE[kind]

    def add(arrays, _seed):
        arrays[path] += common

    pair = unrelated_pair(add)
    prints = [printed(*model) for model in pair]
    verdict = quick(*prints)
    assert verdict.verdict == "undefined"
    assert verdict.reason.startswith(f"the models agree in {kind} alone, and in no other kind of matrix")
    assert quick(prints[0], tuned(*pair[0])).verdict == "same-lineage"


POSITIONS = ("interleaved", "cosines first", "grid", "grid and class token", "unknown")


def positions_of(layout):
    """A table of positions by formula, [positions, 64]."""
    angle = np.arange(128)[:, None] * 10_000.0 ** (-2 * np.arange(32) / 64)
    if layout == "interleaved":
        table = np.stack([np.sin(angle), np.cos(angle)], axis=2).reshape(128, 64)
    elif layout == "cosines first":
        table = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
    elif layout == "unknown":
        table = np.concatenate([np.sin(3 * angle), np.sin(angle**2)], axis=1)
    else:
        place = np.arange(8)[:, None] * 10_000.0 ** (-np.arange(16) / 16)
        waves = np.concatenate([np.sin(place), np.cos(place)], axis=1)
        table = np.concatenate([np.tile(waves, (8, 1)), np.repeat(waves, 8, axis=0)], axis=1)
        if layout != "grid":
            table = np.concatenate([np.zeros((1, 64)), table])
    return table.astype(np.float32)


def test_positions_that_alone_agree_decide_nothing_in_models_of_mlps():
    """Blocks without attention have two kinds of matrices: with the tables there are enough that do not agree."""

    def add(arrays, _seed):
        arrays["positions/embedding"] += positions_of("unknown")

    pair = unrelated_pair(add, "gpt2-tiny", max_seq_len=128, positions="learned", attention=False)
    verdict = quick(*(printed(*model) for model in pair))
    assert verdict.verdict == "undefined" and "agree in positions alone" in verdict.reason


@pytest.mark.parametrize("layout", POSITIONS)
def test_sinusoidal_positions_are_no_copied_tensor(layout):
    table = positions_of(layout)

    def place(arrays, _seed):
        arrays["positions/embedding"] = table.copy()

    pair = unrelated_pair(place, "gpt2-tiny", max_seq_len=len(table), positions="learned")
    verdict = quick(*(printed(*model) for model in pair))
    if layout == "unknown":
        assert verdict.verdict == "undefined" and "agree in positions alone" in verdict.reason
        return
    assert verdict.verdict == "unrelated", verdict.reason
    assert verdict.detail["left_out"] == {"positions": "sinusoids over a grid" if "grid" in layout else "sinusoids"}
    assert verdict.detail["identical_tensors"] == 0


def test_positions_that_alone_agree_in_a_tower_decide_nothing():
    """Towers of images with one table of positions by a formula without a name, frozen in both models."""
    pair = []
    for seed in (1, 2):
        cfg, arrays = drawn(seed + 10, "gpt2-tiny", max_seq_len=128, positions="learned")
        arrays["positions/embedding"] = positions_of("unknown")
        language, tower = untrained(seed), printed(cfg, arrays)
        renamed = [
            dataclasses.replace(record, path=record.path.replace("language/", "vision/")) for record in tower.tensors
        ]
        vision = dataclasses.replace(tower.components["language"], name="vision")
        components = {**language.components, "vision": vision}
        pair.append(dataclasses.replace(language, components=components, tensors=(*language.tensors, *renamed)))
    verdict = quick(*pair)
    assert verdict.verdict == "undefined" and "agree in positions of the vision tower alone" in verdict.reason


@pytest.mark.slow
@pytest.mark.parametrize("is_one_draw", nightly_except([True, False], True))
def test_untrained_models_whose_shards_repeat_are_never_called_related(is_one_draw):
    """Every rank of 32 of a faulty initializer draws the same shard, in every module of a shape or in each alone."""
    # 11 neurons in a shard.
    num_shards, d_ff = 32, 352
    prints = []
    for seed in range(8):
        cfg, arrays = drawn(seed, d_ff=d_ff)
        shared: dict[tuple[int, ...], np.ndarray] = {}
        for path, leaf in arrays.items():
            if leaf.ndim < 3 or not path.startswith("blocks/"):
                continue
            for layer in range(len(leaf)):
                axis = 0 if path.split("/")[-2] in ("output", "down") else 1
                size = leaf[layer].shape[axis] // num_shards
                shard = np.take(leaf[layer], range(size), axis=axis)
                if is_one_draw:
                    shard = shared.setdefault(shard.shape, shard)
                leaf[layer] = np.concatenate([shard] * num_shards, axis=axis)
        prints.append(printed(cfg, arrays))
    z_values = []
    for base, suspect in itertools.combinations(prints, 2):
        verdict = quick(base, suspect)
        assert verdict.verdict == "unrelated", verdict.reason
        z_values += [row["z"] for row in verdict.detail["tests"] if row["z"] is not None]
    assert np.std(z_values) < 1.4
    assert np.max(z_values) < 4.5
    # A repeating model against a sound one is exact as it is.
    assert quick(prints[1], printed(*drawn(0, d_ff=d_ff))).verdict == "unrelated"


@pytest.mark.parametrize("family", ["gpt2-tiny", "llama-tiny"])
def test_neurons_mirrored_in_both_models_are_permuted_in_pairs(family):
    """A pair gives one number twice to the sum: as independent draws they would raise its z by the root of two."""

    def mirrored(seed):
        cfg, arrays = drawn(seed, family, num_layers=1)
        for name, axis, sign in (("gate", 2, -1), ("up", 2, 1 if cfg.gated_mlp else -1), ("down", 1, -1)):
            if (path := f"blocks/mlp/{name}/kernel") in arrays:
                half = np.split(arrays[path], 2, axis=axis)[0]
                arrays[path] = np.concatenate([half, sign * half], axis=axis)
        return cfg, arrays

    base, suspect = printed(*mirrored(1)), printed(*mirrored(2))
    pair = ComponentPair(base, suspect, "language")
    assert pair.repeats["neurons"].period(128) == 64
    assert len(pair.terms(RAW_NEURONS)[0].scores_nn) == 64
    assert z_of(quick(base, tuned(*mirrored(1))), RAW_NEURONS) > 30


def test_neurons_of_an_mlp_narrower_than_the_first_are_permuted_by_a_period_of_their_own():
    """Two halves of one draw in each block; the second block is cut to 64 of 128 neurons, 32 of either half."""
    prints = []
    for seed in (1, 2):
        cfg, arrays = drawn(seed, num_layers=2)
        for name, axis in (("gate", 2), ("up", 2), ("down", 1)):
            half = np.split(arrays[f"blocks/mlp/{name}/kernel"], 2, axis=axis)[0]
            arrays[f"blocks/mlp/{name}/kernel"] = np.concatenate([half, half], axis=axis)
        model = printed(cfg, arrays)
        component = model.components["language"]
        first, second = component.neurons
        halves = np.r_[0:32, 64:96]
        token, coordinates = (
            {name: rows[halves] for name, rows in space.items()} for space in (second.token, second.coordinates)
        )
        narrow = dataclasses.replace(second, total=64, token=token, coordinates=coordinates)
        components = {"language": dataclasses.replace(component, neurons=(first, narrow))}
        prints.append(dataclasses.replace(model, components=components))
    terms = ComponentPair(*prints, "language").terms(RAW_NEURONS)
    assert [len(term.scores_nn) for term in terms] == [64, 32]


@pytest.mark.parametrize("repeated", ["experts", "some experts", "far blocks", ""])
def test_mlps_that_repeat_in_both_models_are_permuted_jointly(repeated):
    """Experts that began as one MLP, each model's own, and blocks that come again behind others, in no period."""
    pair = []
    for seed in (3, 4):
        sizes = dict(num_layers=6) if repeated == "far blocks" else dict(num_layers=2, num_experts=8, d_ff=64)
        cfg, arrays = drawn(seed, "llama-tiny" if repeated == "far blocks" else "qwen3moe-tiny", **sizes)
        for path, leaf in arrays.items():
            if repeated == "far blocks" and path.startswith("blocks/"):
                leaf[4:] = leaf[1:3]
            if repeated and path.split("/")[-2] in ("gate", "up", "down") and leaf.ndim == 4:
                copies = [1, 3, 4, 6] if repeated == "some experts" else slice(None)
                leaf[:, copies] = leaf[:, 1:2]
        pair.append(printed(cfg, arrays))
    assert ComponentPair(*pair, "language").is_joint == bool(repeated)
    verdict = quick(*pair)
    assert verdict.verdict == "unrelated", verdict.reason
    assert max(abs(row["z"]) for row in verdict.detail["tests"] if row["z"] is not None) < 4


def test_blocks_with_a_gate_and_blocks_without_one_are_paired():
    def without_gate(model):
        component = model.components["language"]
        neurons = [
            dataclasses.replace(
                mlp, token=dict(list(mlp.token.items())[1:]), coordinates=dict(list(mlp.coordinates.items())[1:])
            )
            if mlp.block in (2, 3)
            else mlp
            for mlp in component.neurons
        ]
        assert set(neurons[1].token) == set(neurons[1].coordinates) == {"up", "down"}
        return dataclasses.replace(
            model, components={"language": dataclasses.replace(component, neurons=tuple(neurons))}
        )

    base, copy = without_gate(untrained(1)), without_gate(changed(1, "noise:0.5"))
    verdict = quick(base, copy)
    assert verdict.verdict == "same-lineage" and z_of(verdict, TOKEN_NEURONS) > 20
    assert verdict.detail["blocks"] == [[number, number] for number in (1, 2, 3, 4)]
    assert quick(base, untrained(2)).verdict == "unrelated"


def test_single_evidence_is_that_cell_alone():
    related = single_verdict(untrained(1), changed(1, "noise:0.5"), SIGNLESS, QUICK)
    assert (related.verdict, related.detail["labels"]) == ("same-lineage", "coordinates")
    assert single_verdict(untrained(1), untrained(2), TOKEN_NEURONS, QUICK).verdict == "unrelated"


def test_fingerprints_of_two_sign_keys_are_refused():
    keyed = fingerprint(reference(1), Settings(sign_key=b"fresh"))
    with pytest.raises(InputError, match="different sign keys"):
        compare_weights(untrained(1), keyed)
    wide = fingerprint(reference(1), Settings(dim=8))
    with pytest.raises(InputError, match="make both with one --dim"):
        compare_weights(untrained(1), wide)


def test_widths_that_differ_leave_token_space():
    verdict = quick(printed(*drawn(1)), printed(*drawn(9, d_model=96)))
    assert verdict.verdict == "unrelated"
    reasons = {row["test"]: row["reason"] for row in verdict.detail["evidence"]}
    assert "widths differ" in reasons["coordinates"]
    assert reasons[TOKEN_NEURONS] == ""
    assert ALL in {row["component"] for row in verdict.detail["components"]}
