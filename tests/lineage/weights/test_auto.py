"""``--test auto``: copies are named, births and descendants found, and nothing else."""

import dataclasses

import numpy as np
import pytest

from bornbiased_jax import hardware
from bornbiased_jax.derive import symmetries
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage.weights import auto
from bornbiased_jax.lineage.weights.align import align
from bornbiased_jax.lineage.weights.auto import auto_test
from bornbiased_jax.lineage.weights.compare import both_unit_tests, weights_test
from bornbiased_jax.lineage.weights.differences import settings_apart
from bornbiased_jax.lineage.weights.identical import equal_tensors, same_up_to
from bornbiased_jax.lineage.weights.logits import probe_logits, same_logits
from bornbiased_jax.lineage.weights.tokens import shared_tokens
from bornbiased_jax.model import apply
from bornbiased_jax.parameters import flatten
from tests.lineage.weights.descendants import (
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


def with_biases(cfg, params, seed=8):
    """Every bias drawn anew, and every per-head norm."""
    draws = np.random.default_rng(seed)

    def edit(path, leaf):
        if path.endswith(("query_norm/scale", "key_norm/scale")):
            return np.exp(0.5 * draws.standard_normal(leaf.shape)).astype(np.float32)
        return draws.standard_normal(leaf.shape).astype(np.float32) if path.endswith("/bias") else leaf

    return edited(cfg, params, edit)


SMALL = dict(num_layers=2, d_model=48, d_ff=64)
NO_COPIES = {
    "window": ("llama-tiny", lambda cfg, params: (cfg.replace(window=3), params), "settings differ: window"),
    "relu": ("llama-tiny", lambda cfg, params: (cfg.replace(activation="relu"), params), "settings differ: activation"),
    "no residual": (
        "llama-tiny", lambda cfg, params: (cfg.replace(residual=False), params), "settings differ: residual",
    ),
    "biases": ("gpt2-tiny", with_biases, "biases differ"),
    "norms of heads": ("qwen3-tiny", with_biases, "per-head norms differ"),
}  # fmt: skip


@pytest.mark.parametrize("is_shuffled", [False, True])
@pytest.mark.parametrize("case", NO_COPIES)
def test_same_matrices_with_another_function_are_no_exact_copy(case, is_shuffled):
    name, change, said = NO_COPIES[case]
    cfg = config(name, **SMALL)
    for model in (descend(cfg, 42), (cfg, init_seed(cfg, 42))):
        verdict = auto_test(reader(model), reader(change(*(shuffled(*model) if is_shuffled else model))))
        assert verdict.verdict == "same-lineage" and verdict.reason.endswith(f"; {said}")
        assert "function" not in verdict.reason and "copy" not in verdict.reason
        assert not is_shuffled or verdict.reason.startswith("the same matrices up to ")


def test_logits_tell_what_nothing_else_does(base):
    """The head alone is larger: cosines of its rows see no factor."""

    def edit(path, leaf):
        return leaf * np.float32(1 + (path == "head/kernel"))

    verdict = auto_test(reader(base), reader(edited(*shuffled(*base), edit)))
    assert "the same matrices up to" in verdict.reason and "; logits on random tokens differ by up to" in verdict.reason


def test_copies_that_are_not_compared_by_logits_are_not_called_exact(base, monkeypatch):
    monkeypatch.setattr(hardware, "available_memory", lambda: 1000)
    verdict = auto_test(reader(base), reader(shuffled(*base)))
    assert verdict.detail["identity"] == "up to scaling and order of hidden units"
    assert verdict.reason.endswith("; logits were not compared, for want of memory")


# Biases and norms of heads go with what they belong to.
EXACT = {
    "gpt2-tiny": lambda cfg, params: shuffled(*heads(*rotated(cfg, params))),
    "neox-tiny": lambda cfg, params: shuffled(*symmetries.permute_coordinates(cfg, params, orders(1, 48)[0])),
    "qwen-tiny": lambda cfg, params: shuffled(*heads(*rotated(*rescaled(cfg, params)))),
    "qwen3-tiny": lambda cfg, params: heads(*rotated(cfg, params)),
    "olmo2-tiny": lambda cfg, params: heads(*shuffled(*negated(cfg, params))),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_copies_with_biases_and_norms_of_heads(name):
    sizes = SMALL | (dict(num_heads=3, num_kv_heads=3) if name == "neox-tiny" else {})
    model = with_biases(*descend(config(name, **sizes), 42))
    copy = EXACT[name](*model)
    verdict = auto_test(reader(model), reader(copy))
    assert verdict.reason.startswith("the same function, ") and ": an exact copy up to" in verdict.reason
    # Any of them that is another one is seen.
    aligned = align(reader(model), reader(copy), shared_tokens(reader(model), reader(copy)), rotated=True)
    assert same_up_to(aligned).differences == ()
    draws = np.random.default_rng(9)
    noise = lambda leaf: draws.standard_normal(leaf.shape).astype(np.float32)  # noqa: E731
    for path in flatten(copy[1]):
        if path.endswith(("/bias", "query_norm/scale", "key_norm/scale")):
            other = edited(*copy, lambda p, leaf, path=path: leaf + np.float32(p == path) * noise(leaf))
            (difference,) = same_up_to(dataclasses.replace(aligned, suspect=reader(other))).differences
            assert difference == ("biases differ" if path.endswith("/bias") else "per-head norms differ")


def test_settings_that_compute_nothing_are_no_difference():
    cfg = config()
    for idle in (dict(init="normal-0.02"), dict(max_seq_len=64), dict(rope_scaling_factor=2.0)):
        assert settings_apart(cfg, cfg.replace(**idle)) == []
    # Single precision holds 1e-5 as another number.
    assert settings_apart(cfg.replace(norm_eps=float(np.float32(1e-5))), cfg) == []
    clipped = cfg.replace(attention_kernel="clipped")
    assert settings_apart(clipped, clipped.replace(max_seq_len=64)) == ["settings differ: max_seq_len"]
    wide = cfg.replace(num_heads=8, d_ff=64)
    assert settings_apart(cfg, wide) == ["settings differ: num_heads, num_kv_heads, head_dim, attention_scale"]


def test_a_head_of_its_own_is_no_identical_weight(base):
    """A tied model, and the same with another head, which the tied one's table of parameters does not have."""
    cfg, params = descend(config(**SMALL, tie_embeddings=True), 42)
    untied = cfg.replace(tie_embeddings=False), {**params, "head": init_seed(CFG, 3)["head"]}
    verdict = auto_test(reader((cfg, params)), reader(untied))
    assert verdict.detail["identity"] is None and "identical weights" not in verdict.reason


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


def test_p_and_its_logarithm_are_one_number_where_holm_ties(base, monkeypatch):
    """Of two tests that the correction ties the one with the larger z is named; its p is a third larger."""
    tied = {"coordinates": (1.0e-6, 5.0), "rotation": (1.3e-6, 6.0)}

    def with_p(name, verdict):
        p_value, z = tied[name]
        return dataclasses.replace(verdict, p_value=p_value, log10_p=np.log10(p_value), z=z, verdict="same-lineage")

    monkeypatch.setattr(auto, "weights_test", lambda *a, **k: with_p("coordinates", weights_test(*a, **k)))
    monkeypatch.setattr(
        auto,
        "both_unit_tests",
        lambda *a, **k: (with_p("rotation", (both := both_unit_tests(*a, **k))[0]), both[1]),
    )
    found = auto_test(born(CFG, 43), reader(base), num_permutations=199)
    assert "by rotation, after Holm's correction for 4 tests" in found.reason and found.z == 6.0
    assert found.p_value == pytest.approx(4e-6) and found.log10_p == pytest.approx(np.log10(found.p_value))


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
