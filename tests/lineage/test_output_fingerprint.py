import dataclasses
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from bornbiased_jax import model as models
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import output_fingerprint as fp
from bornbiased_jax.lineage.compare import compare
from bornbiased_jax.lineage.outputs import OutputOptions
from bornbiased_jax.lineage.untrained_outputs import final_outputs
from bornbiased_jax.probes import inputs

CFG = ModelConfig(num_layers=2, num_heads=2, d_model=16, d_ff=32, vocab_size=64, max_seq_len=32)
TOKENS = inputs.random_tokens(50, 6, 64)
VECTORS = inputs.gaussian(50, 6, 16)


def initial(seed, cfg=CFG):
    return Checkpoint.from_seed(cfg, seed)


def changed(checkpoint, change):
    flat = {path: change(path, leaf) for path, leaf in models.flatten(checkpoint.params()).items()}
    return Checkpoint.from_params(checkpoint.config, models.unflatten(flat), reference="changed")


@pytest.fixture(scope="module")
def base():
    return fp.fingerprint_outputs(initial(42), TOKENS)


@pytest.mark.slow
def test_outputs_are_the_models_last_position_whatever_the_batch(base):
    params = initial(42).params()
    x = TOKENS.batch(0, 50)
    direct = models.apply(CFG, params, x, logits=False, capture=("residual",))
    np.testing.assert_allclose(base.outputs_ND, direct.final_BTD[:, -1], rtol=0, atol=2e-5)
    batched = fp.fingerprint_outputs(initial(42), TOKENS, OutputOptions(batch_size=7))
    np.testing.assert_allclose(base.outputs_ND, batched.outputs_ND, rtol=0, atol=2e-5)
    layer = fp.fingerprint_outputs(initial(42), TOKENS, OutputOptions(layer=1))
    np.testing.assert_allclose(layer.outputs_ND, direct.layers["residual"][0][:, -1], rtol=0, atol=2e-5)
    (initial_ND,) = final_outputs(CFG, [42], TOKENS)
    np.testing.assert_allclose(base.outputs_ND, initial_ND, rtol=0, atol=2e-5)


@pytest.mark.slow
def test_vectors_take_the_embeddings_moments_or_the_given_ones():
    own = fp.fingerprint_outputs(initial(42), VECTORS)
    table = np.asarray(initial(42).params()["embed"]["embedding"], np.float64)
    assert own.inputs["std"] == pytest.approx(table.std(), rel=1e-6)
    assert own.inputs["mean"] == pytest.approx(table.mean(), abs=1e-8)
    other = fp.fingerprint_outputs(initial(43), VECTORS)
    with pytest.raises(InputError, match="mean"):
        compare(own, other)
    given = fp.fingerprint_outputs(initial(43), VECTORS, OutputOptions((own.inputs["mean"], own.inputs["std"])))
    # Shared vectors leak into both: the permutation test may not reject on them.
    verdict = compare(own, given)
    assert verdict.p_value < 0.01 and verdict.verdict == "undefined" and "token inputs" in verdict.reason


def test_round_trip(base, tmp_path):
    path = fp.save_outputs(tmp_path / "a.fingerprint", base)
    assert fp.is_output_fingerprint(path)
    back = fp.load_outputs(path)
    np.testing.assert_array_equal(back.outputs_ND, base.outputs_ND)
    for field in dataclasses.fields(base):
        if field.name != "outputs_ND":
            assert getattr(back, field.name) == getattr(base, field.name)
    assert back.inputs["digest"] == TOKENS.digest and back.weights_digest == initial(42).digest()
    # Only tensors that hold more than one number identify an initialization.
    assert not any("norm" in name for name in back.tensor_digests)


def test_damaged_and_foreign_files_are_refused(base, tmp_path):
    good = fp.save_outputs(tmp_path / "good", base).read_bytes()
    flipped = bytearray(good)
    flipped[-5] ^= 1
    renamed = good.replace(b"initialization of seed 42", b"initialization of seed 43")
    for name, data in {
        "truncated": good[:-100],
        "flipped": bytes(flipped),
        "renamed": renamed,
        "text": b"hello",
        "empty": b"",
    }.items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(InputError, match=name):
            fp.load_outputs(path)
    save_file({"outputs": np.zeros((2, 2), np.float32)}, tmp_path / "foreign")
    assert not fp.is_output_fingerprint(tmp_path / "foreign") and not fp.is_output_fingerprint(tmp_path / "text")
    with pytest.raises(InputError, match="not a fingerprint"):
        fp.load_outputs(tmp_path / "foreign")
    with pytest.raises(InputError, match="does not exist"):
        fp.load_outputs(tmp_path / "absent")


@pytest.mark.parametrize("forged", ["no kind", "another kind", "one axis"])
def test_files_that_somebody_else_wrote_are_refused_in_a_sentence(base, tmp_path, forged):
    facts = {name: value for name, value in base.inputs.items() if name != "kind"}
    changes = {
        "no kind": {"inputs": facts},
        "another kind": {"inputs": facts | {"kind": "smells"}},
        "one axis": {"outputs_ND": base.outputs_ND[0]},
    }
    place = fp.save_outputs(tmp_path / "forged.fingerprint", dataclasses.replace(base, **changes[forged]))
    with pytest.raises(InputError, match="make it again with `bornbiased fingerprint --outputs`"):
        fp.load_outputs(place)


def test_unrelated_untrained_models_and_a_noisy_descendant(base):
    other = compare(base, fp.fingerprint_outputs(initial(43), TOKENS))
    assert other.verdict == "unrelated" and other.detail["identical_tensors"] == 0
    keys_by_path = {path: index for index, path in enumerate(models.flatten(initial(42).params()))}

    def noisy(path, leaf):
        if "norm" in path:
            return leaf
        key = jax.random.fold_in(jax.random.key(0), keys_by_path[path])
        return leaf + 0.3 * leaf.std() * jax.random.normal(key, leaf.shape)

    verdict = compare(base, fp.fingerprint_outputs(changed(initial(42), noisy), TOKENS))
    assert verdict.verdict == "same-lineage" and verdict.detail["identical_weights"] is False
    json.dumps(verdict.to_json(), allow_nan=False)


def test_identity_comes_first(base):
    same = compare(base, fp.fingerprint_outputs(initial(42), TOKENS))
    assert same.verdict == "same-lineage" and "identical weights" in same.reason
    # Embedding rows that no input uses may differ without a trace in the outputs of an untied model.
    cfg = CFG.replace(tie_embeddings=False)
    few = inputs.random_tokens(50, 6, 32)
    original = initial(1, cfg)
    relabeled = changed(original, lambda path, leaf: leaf.at[63].set(1.0) if path == "embed/embedding" else leaf)
    verdict = compare(fp.fingerprint_outputs(original, few), fp.fingerprint_outputs(relabeled, few))
    assert verdict.verdict == "same-lineage" and "outputs are identical" in verdict.reason
    assert verdict.detail["identical_weights"] is False


def test_outputs_of_few_different_inputs_are_no_identity(base):
    """A model with one coordinate gives little but a sign, which two unrelated ones may have in common or opposed."""
    sign_N1 = np.where(np.arange(60) % 2, 1.0, -1.0).astype(np.float32)[:, None]
    draws = np.random.default_rng(0)
    three_N2 = draws.standard_normal((3, 2)).astype(np.float32)[np.arange(60) % 3]
    for outputs_ND, others in ((sign_N1, (sign_N1, -sign_N1)), (three_N2, (three_N2[:, ::-1], -three_N2))):
        first = dataclasses.replace(base, outputs_ND=outputs_ND)
        for other_ND in others:
            second = dataclasses.replace(base, outputs_ND=other_ND, weights_digest="", tensor_digests={})
            verdict = compare(first, dataclasses.replace(second, value_digests={}))
            assert verdict.verdict == "undefined", verdict.reason
    # As many different outputs in two coordinates are found in another order.
    many_N2 = draws.standard_normal((60, 2)).astype(np.float32)
    found = compare(
        dataclasses.replace(base, outputs_ND=many_N2),
        dataclasses.replace(base, outputs_ND=many_N2[:, ::-1], weights_digest="", tensor_digests={}, value_digests={}),
    )
    assert found.verdict == "same-lineage" and "relabeled" in found.reason


@pytest.mark.slow
def test_other_inputs_and_layers_are_refused(base):
    with pytest.raises(InputError, match="different inputs"):
        compare(base, fp.fingerprint_outputs(initial(42), inputs.random_tokens(50, 6, 64, seed=1)))
    with pytest.raises(InputError, match="num_inputs"):
        compare(base, fp.fingerprint_outputs(initial(42), inputs.random_tokens(49, 6, 64)))
    with pytest.raises(InputError, match="different layers"):
        compare(base, fp.fingerprint_outputs(initial(42), TOKENS, OutputOptions(layer=2)))
    with pytest.raises(InputError, match="unknown test"):
        compare(base, base, test="vibes")
    with pytest.raises(InputError, match="needs references"):
        compare(base, base, test="population")


@pytest.mark.parametrize(
    ("test", "option"),
    [("paper", {"num_permutations": 999}), ("iclr", {"signs": "free"}), ("permutation", {"references": []})],
)
def test_options_of_another_test_are_refused(base, test, option):
    with pytest.raises(InputError, match=f"the test '{test}' has no option {next(iter(option))}"):
        compare(base, base, test=test, **option)


@pytest.mark.slow
def test_other_widths_are_undefined(base):
    verdict = compare(base, fp.fingerprint_outputs(initial(0, CFG.replace(d_model=24)), TOKENS))
    assert verdict.verdict == "undefined" and "widths differ" in verdict.reason


@pytest.mark.slow
def test_unusable_models_and_options_are_refused():
    broken = changed(initial(42), lambda path, leaf: leaf.at[..., 0].set(np.nan))
    with pytest.raises(InputError, match="overflows float32"):
        fp.fingerprint_outputs(broken, TOKENS)
    with pytest.raises(InputError, match="layer 3"):
        fp.fingerprint_outputs(initial(42), TOKENS, OutputOptions(layer=3))
    with pytest.raises(InputError, match="batch size"):
        fp.fingerprint_outputs(initial(42), TOKENS, OutputOptions(batch_size=0))
    with pytest.raises(InputError, match="vocabulary"):
        fp.fingerprint_outputs(initial(42), inputs.random_tokens(5, 5, 100))
