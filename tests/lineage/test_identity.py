import dataclasses

import numpy as np
import pytest

from bornbiased_jax import model as models
from bornbiased_jax.checkpoints import Checkpoint, digests
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.lineage import output_fingerprint as fp
from bornbiased_jax.lineage.compare import compare, match_coordinates
from bornbiased_jax.lineage.outputs import OutputOptions
from bornbiased_jax.probes import inputs

CFG = ModelConfig(num_layers=2, num_heads=2, d_model=16, d_ff=32, vocab_size=64, max_seq_len=32)
TOKENS = inputs.random_tokens(100, 6, 64)


def initial(seed, change=lambda path, leaf: leaf, cfg=CFG):
    flat = models.flatten(models.init_seed(cfg, seed))
    params = models.unflatten({path: np.asarray(change(path, leaf)) for path, leaf in flat.items()})
    return fp.fingerprint_outputs(Checkpoint.from_params(cfg, params, reference=f"seed:{seed}"), TOKENS)


@pytest.fixture(scope="module")
def base():
    return initial(42)


def rearranged(path, leaf):
    """Matrices the other way round, as a file in another layout is read."""
    if path == "embed/embedding":
        return leaf[::-1]
    return np.swapaxes(leaf, -1, -2).reshape(leaf.shape) if leaf.ndim == 3 else leaf


def test_a_large_tensor_is_sorted_part_by_part_to_the_same_digest(monkeypatch):
    draws = np.random.default_rng(0)
    tensors = [draws.standard_normal((41, 7), np.float32), np.round(draws.standard_normal(200, np.float32))]
    tensors += [np.zeros(50, np.float32), np.append(np.zeros(99, np.float32), np.float32(1.0))]
    full = [digests.value_digest(tensor) for tensor in tensors]
    assert [digests.is_constant(tensor) for tensor in tensors] == [False, False, True, False]
    monkeypatch.setattr(digests, "_PART", 16)
    monkeypatch.setattr(digests, "_SAMPLE", 64)
    assert len(list(digests._sorted_parts(tensors[0].ravel().view(np.uint32)))) > 5
    assert [digests.value_digest(tensor) for tensor in tensors] == full
    assert [digests.is_constant(tensor) for tensor in tensors] == [False, False, True, False]


def test_value_digests_forget_the_order_alone():
    params = models.init_seed(CFG, 0)
    flipped = models.unflatten({path: leaf[..., ::-1] for path, leaf in models.flatten(params).items()})
    values, flipped_values = (Checkpoint.from_params(CFG, form).tensor_facts["values"] for form in (params, flipped))
    assert values == flipped_values
    nudged = models.unflatten(
        {path: np.nextafter(leaf, np.float32(9)) for path, leaf in models.flatten(params).items()}
    )
    assert not set(values.values()) & set(Checkpoint.from_params(CFG, nudged).tensor_facts["values"].values())


def test_rearranged_weights_are_the_same_lineage_though_the_outputs_say_nothing(base):
    suspect = initial(42, rearranged)
    verdict = compare(base, suspect)
    assert verdict.p_value > 1e-4  # the outputs alone show nothing overwhelming
    assert verdict.verdict == "same-lineage" and "another order" in verdict.reason
    assert verdict.detail["identical_tensors"] + verdict.detail["reordered_tensors"] == verdict.detail["num_tensors"]
    assert verdict.detail["relabelled_coordinates"] is None and "another function" in verdict.detail["notes"][0]
    # Without digests of values the test alone decides.
    stripped = dataclasses.replace(suspect, value_digests={})
    assert compare(base, stripped).detail["reordered_tensors"] is None


def test_some_tensors_in_common_forbid_unrelated(base):
    fresh = models.flatten(models.init_seed(CFG, 43))
    copied = initial(42, lambda path, leaf: leaf if path == "blocks/mlp/down/kernel" else fresh[path])
    verdict = compare(base, copied)
    assert verdict.p_value >= 0.01  # one matrix of each block leaves no trace in the outputs
    assert verdict.verdict == "undefined" and "2 of" in verdict.reason and "2 of" in verdict.notes[0]
    assert compare(base, initial(43)).verdict == "unrelated"


def relabel(order_D):
    """The same function with its residual coordinates in another order."""

    def change(path, leaf):
        if path == "embed/embedding" or path.endswith(("output/kernel", "down/kernel")) or "norm" in path:
            return leaf[..., order_D]
        return leaf[..., order_D, :]

    return change


def test_relabeled_coordinates_are_found_again(base):
    order_D = np.random.default_rng(0).permutation(16)
    verdict = compare(base, initial(42, relabel(order_D)))
    assert verdict.verdict == "same-lineage"
    assert verdict.detail["relabelled_coordinates"] == int((order_D != np.arange(16)).sum())
    # With weights changed a little as well no digest helps, and the outputs alone tell.
    rng = np.random.default_rng(1)
    noisy = initial(42, lambda path, leaf: relabel(order_D)(path, leaf + 1e-4 * rng.standard_normal(leaf.shape)))
    verdict = compare(base, noisy)
    assert verdict.verdict == "same-lineage" and "under another number" in verdict.reason
    assert verdict.detail["identical_tensors"] == verdict.detail["reordered_tensors"] == 0


def test_relabeling_needs_partners_that_nothing_else_equals():
    rng = np.random.default_rng(0)
    x_ND = rng.standard_normal((200, 12)).astype(np.float32)
    order_D = rng.permutation(12)
    for signs_D in (np.ones(12), rng.choice([-1.0, 1.0], 12)):
        partner_D, negated_D = match_coordinates(x_ND[:, order_D] * signs_D, x_ND)
        np.testing.assert_array_equal(partner_D, order_D)
        np.testing.assert_array_equal(negated_D, signs_D < 0)
    np.testing.assert_array_equal(match_coordinates(x_ND, x_ND)[0], np.arange(12))
    assert match_coordinates(x_ND, rng.standard_normal((200, 12))) is None
    # Among few inputs coordinates may look alike by chance.
    assert match_coordinates(x_ND[:49], x_ND[:49]) is None and match_coordinates(x_ND[:50], x_ND[:50]) is not None
    # Coordinates that all follow one number agree with everything.
    follow = x_ND[:, :1] + 1e-6 * x_ND
    assert match_coordinates(follow, follow[:, order_D]) is None
    assert match_coordinates(x_ND, x_ND[:, :11]) is None


def noisy_to(x_ND, correlation, rng):
    """Coordinates that agree with the given ones by about this much."""
    noise_ND = rng.standard_normal(x_ND.shape)
    return correlation * x_ND + np.sqrt(1 - correlation**2) * noise_ND


@pytest.mark.parametrize(("correlation", "is_found"), [(0.997, True), (0.98, False)])
def test_a_coordinate_is_found_again_above_the_threshold_alone(correlation, is_found):
    rng = np.random.default_rng(3)
    x_ND = rng.standard_normal((4000, 6))
    assert (match_coordinates(x_ND, noisy_to(x_ND, correlation, rng)) is not None) is is_found


@pytest.mark.parametrize(("correlation", "is_found"), [(0.85, True), (0.94, False)])
def test_a_coordinate_may_not_resemble_another_too_much(correlation, is_found):
    rng = np.random.default_rng(4)
    x_ND = rng.standard_normal((4000, 6))
    x_ND[:, 1] = noisy_to(x_ND[:, 0], correlation, rng)
    assert (match_coordinates(x_ND, x_ND) is not None) is is_found


def test_one_rearranged_tensor_of_many_decides_nothing(base):
    fresh = models.flatten(models.init_seed(CFG, 43))
    path = "blocks/mlp/up/kernel"
    verdict = compare(base, initial(42, lambda name, leaf: leaf[..., ::-1] if name == path else fresh[name]))
    assert verdict.detail["reordered_tensors"] == 2 and verdict.detail["identical_tensors"] == 0
    assert verdict.detail["num_tensors"] > 10 and verdict.p_value >= 0.01
    assert verdict.verdict == "undefined" and "2 hold the same numbers in another order" in verdict.reason


def negate(signs_D):
    """The same function of an RMSNorm model with some residual coordinates negated."""

    def change(path, leaf):
        if path == "embed/embedding" or path.endswith(("output/kernel", "down/kernel")):
            return np.asarray(leaf) * signs_D
        return leaf if "norm" in path else np.asarray(leaf) * signs_D[:, None]

    return change


def test_negated_coordinates_are_found_again():
    cfg = dataclasses.replace(CFG, norm="rmsnorm")
    base = initial(42, cfg=cfg)
    signs_D = np.where(np.arange(16) % 2, -1.0, 1.0).astype(np.float32)
    suspect = initial(42, negate(signs_D), cfg)
    np.testing.assert_allclose(suspect.outputs_ND * signs_D, base.outputs_ND, atol=1e-5)
    verdict = compare(base, suspect)
    assert verdict.p_value > 0.01  # eight for and eight against: the signed sum sees nothing
    assert compare(base, suspect, signs="free").p_value < 1e-6
    assert verdict.verdict == "same-lineage" and "8 of them with the other sign" in verdict.reason
    assert (verdict.detail["relabelled_coordinates"], verdict.detail["negated_coordinates"]) == (0, 8)
    both = initial(42, lambda path, leaf: relabel(np.arange(16)[::-1])(path, negate(signs_D)(path, leaf)), cfg)
    assert "relabeled and negated" in compare(base, both).reason


@pytest.mark.parametrize("kind", ["vectors", "constant"])
def test_equal_outputs_that_no_weights_made_are_no_identity(kind):
    """Initializations whose blocks write nothing, on vectors that both are given; and final norms of zeros."""
    given = inputs.gaussian(100, 6, 16) if kind == "vectors" else TOKENS
    pair = []
    for seed in (1, 2):
        flat = dict(models.flatten(models.init_seed(CFG, seed)))
        for path in ("blocks/attention/output/kernel", "blocks/mlp/down/kernel"):
            flat[path] = np.zeros_like(flat[path])
        if kind == "constant":
            flat["final_norm/scale"] = np.zeros(16, np.float32)
        params = models.unflatten(flat)
        reader = Checkpoint.from_params(CFG, params, reference=f"seed:{seed}")
        pair.append(fp.fingerprint_outputs(reader, given, OutputOptions((0.0, 1.0) if kind == "vectors" else None)))
    verdict = compare(*pair)
    assert verdict.detail["identical_outputs"] and verdict.detail["identity"] is None
    assert verdict.verdict == "undefined", verdict.reason
