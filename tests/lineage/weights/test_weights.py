"""The exact tests in the weights: births found, unrelated models not, and what changes nothing."""

import re

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import linear_sum_assignment

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import preset
from bornbiased_jax.derive import damage, symmetries
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.weights import weights_test
from bornbiased_jax.lineage.weights.units import form_a, unit_scores
from bornbiased_jax.parameters import flatten
from tests.lineage.weights.descendants import (
    born,
    config,
    descend,
    edited,
    everything,
    heads,
    inserted,
    negated,
    reader,
    rescaled,
    rolled,
    rotated,
    shifted,
    shuffled,
    unused_rows,
)

TESTS = {
    "coordinates": dict(),
    "signed": dict(signed=True),
    "units": dict(labels="units"),
    "rotation": dict(align="rotation"),
    "matched": dict(align="units"),
}


@pytest.fixture(scope="module")
def trained_like():
    """A descendant of seed 42 that stands for a trained base."""
    return descend(config(), 42)


ARCHITECTURES = {
    "llama-tiny": {},
    "gpt2-tiny": {},
    "olmo2-tiny": {},
    "qwen-tiny": dict(tie_embeddings=True, num_kv_heads=2),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_birth_is_found_in_its_descendant_and_no_other(name):
    cfg = config(name, num_layers=2, d_model=48, d_ff=64, **ARCHITECTURES[name])
    suspect = reader(descend(cfg, 7))
    for test, options in TESTS.items():
        own = weights_test(Checkpoint.from_seed(cfg, 7), suspect, **options)
        assert (own.verdict, own.detail["null"]) == ("same-lineage", "exact"), test
        assert own.z > 8 and own.log10_p < -12 and own.log10_p <= own.detail["log10_p_bound"] + 1e-9
        other = weights_test(Checkpoint.from_seed(cfg, 8), suspect, **options)
        assert other.verdict == "unrelated" and other.p_value > 1e-4
        assert other.z < (4.5 if test == "matched" else 4)  # the best of four pairs
        written = own.to_json()
        for key in ("null", "labels", "align", "invariant_to", "log10_p_bound", "log10_p_moments", "by_module"):
            assert key in written
        assert written["num_inputs"] is None
        modules = {entry["module"] for entry in written["by_module"]}
        assert "blocks/2/mlp/up" in modules or test == "matched"
        assert not any("blocks/0" in module for module in modules)


# Which of the tests still see an exact copy.
CHANGES = {
    "none": (lambda cfg, params: (cfg, params), "coordinates signed units rotation matched"),
    "heads": (heads, "coordinates signed units rotation matched"),
    "negated": (negated, "coordinates rotation matched"),
    "rescaled": (rescaled, "coordinates signed units rotation matched"),
    "rescaled and rotated": (lambda cfg, params: rotated(*rescaled(cfg, params)), "rotation matched"),
    "unused rows and rotated": (lambda cfg, params: rotated(*unused_rows(cfg, params)), "rotation matched"),
    "inserted block, rotated": (inserted, "rotation matched"),
    "rolled and rotated": (rolled, "matched"),
    "wider and rotated": (lambda cfg, params: rotated(*symmetries.widen(cfg, params, 8)), "rotation matched"),
    "shifted head": (shifted, "coordinates signed units rotation matched"),
    "everything": (everything, "matched"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_copy_can_be_hidden_by(trained_like, change):
    make, seen = CHANGES[change]
    base, suspect = reader(trained_like), reader(make(*trained_like))
    for test, options in TESTS.items():
        verdict = weights_test(base, suspect, **options)
        if test in seen.split():
            assert verdict.verdict == "same-lineage", (change, test)
            if test == "matched":  # between trained models: by agreement, without a p
                assert (verdict.p_value, verdict.detail["null"]) == (None, "population")
                assert verdict.detail["agreement"] > 0.9
            else:
                assert verdict.z > 20, (change, test, verdict.z)
        elif "wider" in change:
            assert verdict.verdict == "undefined" and "widths differ (96 and 104)" in verdict.reason
        else:
            assert verdict.verdict == "unrelated", (change, test, verdict.z)


def test_the_birth_is_found_behind_everything(trained_like):
    suspect = reader(everything(*trained_like))
    for seed, verdict in ((42, "same-lineage"), (43, "unrelated")):
        birth = Checkpoint.from_seed(config(), seed)
        # Either model may be the birth.
        for pair in ((birth, suspect), (suspect, birth)):
            got = weights_test(*pair, align="units")
            assert (got.verdict, got.detail["null"], got.detail["num_pairs"]) == (verdict, "exact", 20)
            assert (got.detail["agreement"] > 0.2) == (seed == 42)


def test_the_rotation_score_does_not_move_under_free_changes(trained_like):
    base = reader(trained_like)
    plain = weights_test(base, base, align="rotation")
    for change in ("rescaled and rotated", "wider and rotated", "shifted head", "heads"):
        got = weights_test(base, reader(CHANGES[change][0](*trained_like)), align="rotation")
        assert got.z == pytest.approx(plain.z, rel=2e-3), change
    got = weights_test(base, reader(inserted(*trained_like)), align="rotation")
    assert got.detail["blocks"] == [[1, 2], [2, 3], [3, 4], [4, 5]]


def test_a_tied_base_and_its_untied_rotated_copy():
    model = descend(config("gpt2-tiny", num_layers=2), 3)
    copy = rotated(*model)
    assert model[0].tie_embeddings and not copy[0].tie_embeddings
    got = weights_test(reader(model), reader(copy), align="rotation")
    assert got.verdict == "same-lineage" and got.z > 100
    assert weights_test(reader(model), reader(copy)).verdict == "unrelated"


def test_negating_the_whole_stream_of_layernorm():
    model = descend(config("gpt2-tiny", num_layers=2), 3)
    copy = symmetries.negate(*model, -np.ones(96))
    assert weights_test(reader(model), reader(copy), signed=True).z < -5
    assert weights_test(reader(model), reader(copy)).z == pytest.approx(weights_test(reader(model), reader(model)).z)


def zeroed(part):
    cfg, params = descend(config(num_layers=2, d_model=32, d_ff=24), 5)
    return reader(edited(cfg, params, lambda path, leaf: leaf * (part not in path)))


SMALL = dict(num_layers=2, d_model=32, d_ff=24)


@pytest.mark.parametrize(
    "suspect, options, reason",
    [
        (dict(d_model=48), {}, "the widths differ (32 and 48)"),
        (dict(d_model=48), dict(labels="units"), "align by rotation"),
        (dict(gated_mlp=False), dict(align="rotation"), "MLP is gated"),
        (dict(mlp=False), dict(labels="units"), "the suspect has no MLP"),
        (dict(vocab_size=5), dict(align="rotation"), "5 usable token ids"),
        ("", {}, "no matrix of the two models"),
        ("embed", dict(align="rotation"), "0 usable token ids"),
        ("mlp/", dict(labels="units"), "every order of the hidden units"),
    ],
)
def test_undefined_with_a_reason(suspect, options, reason):
    other = zeroed(suspect) if isinstance(suspect, str) else Checkpoint.from_seed(config(**{**SMALL, **suspect}), 1)
    verdict = weights_test(Checkpoint.from_seed(config(**SMALL), 5), other, **options)
    assert (verdict.verdict, verdict.p_value) == ("undefined", None)
    assert reason in verdict.reason
    assert verdict.to_json()["labels"] in ("coordinates", "units")


UNEQUAL = dict(num_layers=2, num_heads=2, d_model=16, vocab_size=24)


def with_units(model, units):
    """The model with some of the hidden units of every MLP, in this order."""
    cfg, params = model

    def edit(path, leaf):
        if path in ("blocks/mlp/gate/kernel", "blocks/mlp/up/kernel"):
            return leaf[:, :, units]
        return leaf[:, units] if path == "blocks/mlp/down/kernel" else leaf

    return edited(cfg.replace(d_ff=len(units)), params, edit)


@pytest.mark.slow
def test_mlps_of_two_sizes(trained_like):
    """Units cut at the end leave the others in place; those cut elsewhere are found by matching."""
    base = reader(trained_like)
    for units, seen in ((np.arange(100), "rotation matched"), (np.arange(1, 101), "matched")):
        for suspect in (reader(rotated(*with_units(trained_like, units))), reader(with_units(trained_like, units))):
            for test, options in (("rotation", dict(align="rotation")), ("matched", dict(align="units"))):
                for pair in ((base, suspect), (suspect, base)):
                    verdict = weights_test(*pair, **options)
                    assert (verdict.verdict == "same-lineage") == (test in seen.split()), (test, verdict.reason)
                    assert any("128" in note and "100" in note for note in verdict.detail["notes"])
    born_so = weights_test(
        Checkpoint.from_seed(config(), 42), reader(with_units(trained_like, np.arange(1, 101))), align="units"
    )
    assert (born_so.verdict, born_so.detail["null"]) == ("same-lineage", "exact")
    assert weights_test(Checkpoint.from_seed(config(), 43), suspect, align="units").verdict == "unrelated"


@pytest.mark.slow
@pytest.mark.parametrize("test", ["units", "rotation", "matched"])
def test_unrelated_births_of_two_sizes_are_called_same_at_the_level(test):
    sizes = [preset("llama-tiny", **UNEQUAL, d_ff=d_ff) for d_ff in (12, 20)]
    p_values = []
    for pair in range(100):
        models = born(sizes[pair % 2], 2 * pair), born(sizes[1 - pair % 2], 2 * pair + 1)
        p_values.append(weights_test(*models, **TESTS[test], num_permutations=199).p_value)
    assert (np.array(p_values) <= 0.05).sum() <= stats.binom.ppf(0.9995, 100, 0.05)
    if test != "matched":
        assert stats.kstest(p_values, "uniform").pvalue > 1e-3


@pytest.mark.slow
def test_one_seed_at_two_widths_is_one_seed():
    """Matrices are drawn from their beginning: the wider birth holds numbers of the narrower, as the verdict says."""
    narrow, wide = (Checkpoint.from_seed(config(num_layers=2, d_model=size), 3) for size in (96, 112))
    verdict = weights_test(narrow, wide, align="rotation")
    assert verdict.verdict == "same-lineage"
    assert any("Births of one seed at two sizes share numbers" in note for note in verdict.detail["notes"])
    other = weights_test(narrow, Checkpoint.from_seed(wide.cfg, 4), align="rotation")
    assert other.verdict == "unrelated"


def transplanted(model, parts):
    """A descendant of another seed that holds some tensors of the model."""
    own = flatten(model[1])
    return edited(
        *descend(model[0], 46, change=47),
        lambda path, leaf: np.array(own[path]) if any(part in path for part in parts) else leaf,
    )


@pytest.mark.parametrize(
    "parts, said, shared",
    [
        (("embed", "head"), "in the embeddings and the head alone, and not in the blocks (shared embeddings)", True),
        (("blocks",), "in the blocks, and not in the embeddings", False),
        (("embed", "head", "blocks"), "in the embeddings and in the blocks", False),
    ],
)
def test_a_verdict_says_where_the_birth_is(trained_like, parts, said, shared):
    verdict = weights_test(reader(trained_like), reader(transplanted(trained_like, parts)))
    assert verdict.verdict == "same-lineage" and f": {said} (p ≤" in verdict.reason
    assert verdict.detail["shared_embeddings"] is shared
    by_part = {row["part"]: row["z"] for row in verdict.detail["by_part"]}
    assert (by_part["embeddings"] > 4) == ("embed" in parts) and (by_part["blocks"] > 4) == ("blocks" in parts)


def test_all_zero_tensors_are_dropped():
    verdict = weights_test(Checkpoint.from_seed(config(**SMALL), 5), zeroed("mlp/"))
    assert verdict.verdict == "same-lineage"
    assert not any("mlp" in entry["module"] for entry in verdict.detail["by_module"])


@pytest.mark.parametrize(
    "options, reason",
    [
        (dict(align="rotation", labels="coordinates"), "cannot be the labels"),
        (dict(align="sideways"), "unknown alignment 'sideways'"),
        (dict(labels="heads"), "unknown labels 'heads'"),
        (dict(alpha=1.5), "alpha=1.5"),
        (dict(num_permutations=3), "3 permutations are too few"),
        (dict(labels="units", signed=True), "goes with labels coordinates"),
        (dict(ids=[]), "token ids must be given"),
        (dict(ids=[3, 999]), "from 0 to 255"),
    ],
)
def test_bad_calls_are_refused(options, reason):
    base = Checkpoint.from_seed(config(), 1)
    with pytest.raises(InputError, match=re.escape(reason)):
        weights_test(base, base, **options)


def test_an_accuser_who_renumbers_their_own_model_after_the_fact_wins(trained_like):
    # Why a base's labelling must be published first, and why every verdict says so.
    accuser = descend(config(), 8, change=77)
    suspect = reader(trained_like)
    assert weights_test(reader(accuser), suspect, labels="units").verdict == "unrelated"
    scores = [form_a(unit_scores(reader(accuser), suspect, (layer, layer), None)) for layer in range(4)]
    renumbering = np.stack([np.argsort(linear_sum_assignment(-scores_FF)[1]) for scores_FF in scores])
    forged = reader(symmetries.permute_units(*accuser, renumbering))
    verdict = weights_test(forged, suspect, labels="units")
    assert verdict.verdict == "same-lineage" and verdict.z > 10
    assert any("rests on the word of whoever names the base" in note for note in verdict.detail["notes"])


def test_seen_ids_alone():
    cfg, params = descend(config(num_layers=2), 9)

    def edit(path, leaf):
        draws = np.random.default_rng(0)
        if path == "embed/embedding":
            leaf[100:] = 0.02 * draws.normal(size=(156, 96))
        if path == "head/kernel":
            leaf[:, 100:] = 0.02 * draws.normal(size=(96, 156))
        return leaf

    suspect = reader(rotated(*edited(cfg, params, edit)))
    every = weights_test(Checkpoint.from_seed(cfg, 9), suspect, align="rotation")
    seen = weights_test(Checkpoint.from_seed(cfg, 9), suspect, align="rotation", ids=range(100))
    assert (every.detail["num_tokens"], seen.detail["num_tokens"]) == (256, 100)
    assert seen.z > 1.2 * every.z


def test_no_more_than_a_few_tensors_are_held_at_a_time():
    model = descend(config(num_layers=2), 4)
    spied = Checkpoint.from_params(*model)
    asked, real = [], spied.read

    def read(path, layer=None, *, rows=None):
        asked.append((path, layer))
        return np.array(real(path, layer, rows=rows))

    spied.read = read
    weights_test(Checkpoint.from_seed(model[0], 4), spied)
    # Each matrix once, with the scale of its norm: nothing is read again, nothing in advance.
    kernels = [entry for entry in asked if not entry[0].endswith("/scale")]
    assert len(kernels) == len(set(kernels)) == 2 * 7 + 2


# Few units and coordinates, so that hundreds of pairs take seconds.
TINY = dict(num_layers=2, num_heads=2, d_model=16, d_ff=20, vocab_size=24)
PAIRS = 150


@pytest.mark.slow
@pytest.mark.parametrize("test", TESTS)
def test_unrelated_births_are_called_same_at_the_level(test):
    cfg = preset("llama-tiny", **TINY)
    p_values = []
    for pair in range(PAIRS):
        base, suspect = born(cfg, 2 * pair), born(cfg, 2 * pair + 1)
        p_values.append(weights_test(base, suspect, **TESTS[test], num_permutations=199).p_value)
    for level in (0.01, 0.05):
        # The smallest of four p times four may fall short of its level, never beyond it.
        least = 0 if test == "matched" else stats.binom.ppf(5e-4, PAIRS, level)
        assert least <= (np.array(p_values) <= level).sum() <= stats.binom.ppf(0.9995, PAIRS, level)
    if test != "matched":
        assert stats.kstest(p_values, "uniform").pvalue > 1e-3


def tuned(model, change, size=0.15):
    """What training on leaves: every matrix moved by a fraction of its standard deviation."""
    draws = np.random.default_rng(change)

    def edit(path, leaf):
        return leaf + np.float32(size * leaf.std()) * draws.standard_normal(leaf.shape).astype(np.float32)

    return edited(*model, edit)


def blend(ours, theirs, weight):
    return ours[0], damage.merge(ours, theirs, weight, "the other")


@pytest.mark.slow
def test_descendants_of_a_trained_base_are_found_whatever_became_of_them(trained_like):
    """Tuned, averaged with a sibling, half of it an unrelated model's; rotated as well, and units in another order."""
    base, unrelated = reader(trained_like), descend(config(), 77, change=4)
    third = reader(descend(config(), 5, change=3))
    children = {
        "tuned": tuned(trained_like, 1),
        "averaged with a sibling": blend(tuned(trained_like, 1), tuned(trained_like, 2), 0.5),
        "half unrelated": blend(tuned(trained_like, 1), unrelated, 0.5),
    }
    for name, child in children.items():
        for suspect, options in ((child, {}), (rotated(*child), dict(align="rotation"))):
            verdict = weights_test(base, reader(suspect), **options)
            assert (verdict.verdict, verdict.detail["null"]) == ("same-lineage", "exact"), name
            assert verdict.log10_p < -50, name
            assert weights_test(third, reader(suspect), **options).verdict == "unrelated", name
        # Its units in another order too: the agreement of two matchings, without a p.
        matched = weights_test(base, reader(shuffled(*rotated(*child))), align="units")
        assert (matched.verdict, matched.p_value) == ("same-lineage", None), name
    assert weights_test(base, reader(rotated(*unrelated)), align="rotation").verdict == "unrelated"
