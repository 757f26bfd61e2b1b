"""``--test auto``: copies are named, births and descendants found, and nothing else."""

import dataclasses

import numpy as np
import pytest

from bornbiased_jax import hardware
from bornbiased_jax.adapt import symmetries
from bornbiased_jax.models import apply
from bornbiased_jax.parameters import flatten
from bornbiased_jax.seedprint.weights.align import align
from bornbiased_jax.seedprint.weights.auto import auto_test
from bornbiased_jax.seedprint.weights.compare import both_unit_tests, weights_test
from bornbiased_jax.seedprint.weights.identical import equal_tensors
from bornbiased_jax.seedprint.weights.logits import probe_logits, same_logits
from bornbiased_jax.seedprint.weights.tokens import shared_tokens
from tests.seedprint.weights.descendants import (
    born,
    config,
    descend,
    edited,
    everything,
    heads,
    negated,
    orders,
    reader,
    rescaled,
    rotated,
    shifted,
    shuffled,
)

CFG = config(num_layers=2, d_model=48, d_ff=64)


@pytest.fixture(scope="module")
def base():
    return descend(CFG, 42)


def noisy(cfg, params, part=0.1):
    draws = np.random.default_rng(1)

    def edit(path, leaf):
        noise = draws.standard_normal(leaf.shape).astype(np.float32) * np.float32(part * leaf.std())
        return leaf if path.endswith("/scale") else leaf + noise

    return edited(cfg, params, edit)


COPIES = {
    "tensors": lambda cfg, params: (cfg, params),
    "up to signs": lambda cfg, params: negated(cfg, params),
    "up to coordinate permutation": lambda cfg, p: symmetries.permute_coordinates(cfg, p, orders(1, 48)[0]),
    "up to rotation": lambda cfg, params: shuffled(*heads(*shifted(*rotated(*rescaled(cfg, params))))),
    "up to scaling and order of hidden units": lambda cfg, params: shuffled(*rescaled(cfg, params)),
}


SAID = {
    "tensors": [],
    "up to signs": ["coordinates negated: "],
    "up to coordinate permutation": ["coordinates renumbered: "],
    "up to rotation": ["coordinates rotated, ", "heads reordered", "hidden units reordered", "scales moved"],
    "up to scaling and order of hidden units": ["hidden units reordered, scales moved"],
}


@pytest.mark.parametrize("identity", COPIES)
def test_exact_copies_are_said_to_be_ones(base, identity):
    verdict = auto_test(reader(base), reader(COPIES[identity](*base)))
    assert (verdict.verdict, verdict.detail["identity"]) == ("same-lineage", identity)
    # What is nearly a copy is none.
    assert verdict.reason.startswith("the same function, ") == (identity != "tensors")
    for change in SAID[identity]:
        assert change in verdict.reason
    near = auto_test(reader(base), reader(noisy(*COPIES[identity](*base))))
    assert (near.verdict, near.detail["identity"]) == ("same-lineage", None)


def test_a_copy_with_other_norms_is_no_copy(base):
    def edit(path, leaf):
        return leaf * np.float32(1 + (path == "blocks/mlp/down/kernel"))

    verdict = auto_test(reader(base), reader(edited(*base, edit)))
    assert (verdict.verdict, verdict.detail["identity"]) == ("same-lineage", None)


def test_a_birth_behind_everything_and_noise(base):
    suspect = reader(noisy(*everything(*base)))
    found = auto_test(born(CFG, 42), suspect)
    assert found.verdict == "same-lineage" and found.p_value < 1e-4 and found.detail["null"] == "exact"
    assert [row["name"] for row in found.detail["tests"]] == ["coordinates", "rotation", "matched units", "bilinear"]
    least = min(row["log10_p"] for row in found.detail["tests"])
    assert found.log10_p == pytest.approx(least + np.log10(4))
    # The trained base itself: by agreement, without a p.
    trained = auto_test(reader(base), suspect)
    assert (trained.verdict, trained.p_value, trained.detail["null"]) == ("same-lineage", None, "population")


def test_the_tests_of_units_say_in_one_pass_what_each_says_alone(base):
    suspect = reader(noisy(*everything(*base)))
    for ours in (born(CFG, 42), reader(base)):
        aligned = align(ours, suspect, shared_tokens(ours, suspect), rotated=True)
        both = both_unit_tests(ours, suspect, aligned=aligned, num_permutations=199)
        for kind, verdict in zip(("rotation", "units"), both, strict=True):
            assert verdict.to_json() == weights_test(ours, suspect, align=kind, num_permutations=199).to_json()


def test_unrelated_models(base):
    for other in (born(CFG, 43), reader(descend(CFG, 44, change=45))):
        verdict = auto_test(other, reader(base))
        assert verdict.verdict == "unrelated" and verdict.p_value > 1e-4
        assert verdict.detail["identity"] is None and verdict.detail["shared_embeddings"] is False
        hidden_by = "rotating or renumbering the residual coordinates together with splitting, merging"
        assert f"A shared birth would stay hidden behind: {hidden_by}" in verdict.text()


def test_nothing_to_compare_is_undefined(base):
    plain = reader(descend(config(num_layers=2, d_model=64, d_ff=80, gated_mlp=False), 3))
    verdict = auto_test(reader(base), plain)
    assert verdict.verdict == "undefined"
    assert "the widths differ (48 and 64)" in verdict.reason and "MLP is gated" in verdict.reason


def test_the_same_function_is_told_by_its_logits(base, monkeypatch):
    """An inserted block that does nothing: no map of coordinates, units and heads makes the one of the other."""
    hidden = reader(everything(*base))
    verdict = auto_test(reader(base), hidden)
    assert (verdict.verdict, verdict.detail["identity"]) == ("same-lineage", "logits")
    assert "same logits" in verdict.reason
    assert same_logits(reader(base), reader(noisy(*everything(*base), 0.03))) is False
    # Nothing is said where logits do not depend on the ids, between births, and of what does not fit in memory.
    silent = edited(*base, lambda path, leaf: leaf * np.float32(path != "head/kernel"))
    assert same_logits(reader(silent), reader(silent)) is None
    assert same_logits(born(CFG, 1), born(CFG, 2)) is None
    monkeypatch.setattr(hardware, "available_memory", lambda: 1000)
    assert same_logits(reader(base), hidden) is None


BY_BLOCK = {
    "gpt2": config("gpt2-tiny", num_layers=3, d_model=48, d_ff=64, positions="learned"),
    "llama": config(num_layers=3, d_model=48, d_ff=64),
    # What differs from block to block, and what happens at the embedding and at the head.
    "local attention": config(num_layers=3, d_model=48, d_ff=64, window=2, attention_pattern="gl"),
    "scaled": config(num_layers=3, d_model=48, d_ff=64, embedding_scale=7.0, logit_softcap=0.5),
}


@pytest.mark.parametrize("name", BY_BLOCK)
def test_logits_block_by_block_are_those_of_the_whole_model(name):
    cfg, params = descend(BY_BLOCK[name], 5)
    ids_ST = np.arange(12, dtype=np.int32).reshape(2, 6)
    whole_PV = np.asarray(apply(cfg, params, ids_ST).logits_BTV).reshape(12, -1)
    whole_PV = whole_PV - whole_PV.mean(axis=1, keepdims=True)
    for kind in ("memory", "run"):
        streamed_PV = probe_logits(dataclasses.replace(reader((cfg, params)), kind=kind), ids_ST)
        np.testing.assert_allclose(streamed_PV, whole_PV, atol=1e-5 * whole_PV.std())


def test_shared_embeddings_are_no_identity(base):
    def edit(path, leaf):
        return np.array(flatten(base[1])[path]) if path in ("embed/embedding", "head/kernel") else leaf

    suspect = reader(edited(*descend(CFG, 46, change=47), edit))
    verdict = auto_test(reader(base), suspect)
    assert verdict.detail["identity"] is None and verdict.detail["shared_embeddings"] is True
    assert "alone, and not in the blocks (shared embeddings)" in verdict.reason
    # Of the birth too, whose embeddings are not those numbers.
    older = auto_test(born(CFG, 42), suspect)
    assert older.verdict == "same-lineage" and older.detail["shared_embeddings"] is True
    assert "(shared embeddings)" in older.reason
    assert any(note.startswith("Shared embeddings") for note in verdict.detail["notes"])
    copied = auto_test(reader(base), reader(base))
    assert not any(note.startswith("Shared embeddings") for note in copied.detail["notes"])


def test_tensors_with_one_first_row_alone_are_not_equal(base):
    def edit(path, leaf):
        if leaf.ndim > 2:
            leaf[:, 1:] += 1
        elif path.endswith(("/kernel", "/embedding")):
            leaf[1:] += 1
        return leaf

    equal = equal_tensors(reader(base), reader(edited(*base, edit)))
    assert equal.total == 21 and {path.split("/")[-2] for path in equal.paths if "blocks" in path} == {"scale"}
    assert all("scale" in path for path in equal.paths)

    # A first row of zeros (a padding token's) does not make a tensor one repeated number.
    def empty(path, leaf):
        if path == "embed/embedding":
            leaf[0] = 0
        return leaf

    padded = reader(edited(*base, empty))
    assert equal_tensors(padded, padded).all and equal_tensors(padded, padded).total == 21


def test_copied_tensors_are_counted(base):
    copied = base[1]["blocks"]["attention"]["key"]["kernel"]

    def edit(path, leaf):
        return np.array(copied) if path == "blocks/attention/key/kernel" else leaf

    verdict = auto_test(reader(edited(*descend(CFG, 46, change=47), edit)), reader(base))
    assert verdict.detail["identical_tensors"] == 2
    assert verdict.detail["notes"][0].startswith("2 of 21 tensors are identical")
