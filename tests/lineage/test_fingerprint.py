"""Fingerprints of weights: each sketch against its definition, its symmetries, and the file."""

import dataclasses
import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from bornbiased_jax.checkpoints import Checkpoint, open_checkpoint, tensor_digests
from bornbiased_jax.checkpoints.by_role import read_by_names
from bornbiased_jax.checkpoints.native_roles import NativeRoles
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.derive import symmetries
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage import Settings, battery, fingerprint, fingerprint_pass, same_model
from bornbiased_jax.lineage.fingerprint_file import payload_digest
from bornbiased_jax.lineage.fingerprint_pass import weights_digests
from bornbiased_jax.lineage.sketches import sign_rows
from bornbiased_jax.lineage.trace import trace
from bornbiased_jax.parameters import Params, flatten, unflatten
from tests.lineage.fingerprinted import CONFIGS, Labeled, Model, model, sketched
from tests.tiers import nightly_except

QWEN2_MOE = Path(__file__).resolve().parent.parent / "fixtures" / "hf" / "qwen2_moe"

# Signs.


def test_signs_are_the_bits_of_the_hash_lowest_first():
    digest = int.from_bytes(hashlib.blake2b(b"token: the", digest_size=64, key=b"k").digest(), "little")
    bits = [(digest >> position) & 1 for position in range(512)]
    np.testing.assert_allclose(
        sign_rows([b"token: the"], 512, b"k")[0] * np.sqrt(512), np.array(bits) * 2.0 - 1, rtol=1e-6
    )
    # By hand: `printf 'token: the' | b2sum` begins with the byte d9, which is 11011001 in binary.
    np.testing.assert_allclose(sign_rows([b"token: the"], 8)[0] * np.sqrt(8), [1, -1, -1, 1, 1, -1, 1, 1], rtol=1e-6)
    assert not np.array_equal(sign_rows([b"token: the"], 64)[0], sign_rows([b"token: the"], 64, b"k")[0])


# Definitions, in float64 and without a shortcut.


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def center(rows_nD: np.ndarray, cfg: ModelConfig) -> np.ndarray:
    return rows_nD - rows_nD.mean(axis=1, keepdims=True) if cfg.norm == "layernorm" else rows_nD


def sign_table(labels: list[str], dim: int) -> np.ndarray:
    return np.asarray(sign_rows([label.encode() for label in labels], dim), np.float64)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_sketches_follow_their_definitions(name):
    cfg, params = model(name)
    flat = {path: np.array(leaf, np.float64) for path, leaf in flatten(params).items()}
    sketches = sketched((cfg, params), dim=8)
    D, V, H, G, K = cfg.d_model, cfg.vocab_size, cfg.num_heads, cfg.kv_heads, cfg.key_dim
    token_signs_V8 = sign_table([f"id:{i}" for i in range(V)], 8)
    # Token space.
    embedding_VD = flat["embed/embedding"]
    head_VD = embedding_VD if cfg.tie_embeddings else flat["head/kernel"].T
    head_VD = center(head_VD * flat["final_norm/scale"], cfg)
    read_8D = token_signs_V8.T @ unit(center(embedding_VD, cfg))
    write_8D = token_signs_V8.T @ unit(head_VD - head_VD.mean(axis=0))
    coordinate_8D = sign_table([f"residual:{i}" for i in range(D)], 8).T
    for space, read, write in (("token", read_8D, write_8D), ("coordinates", coordinate_8D, coordinate_8D)):
        stored = getattr(sketches.neurons[1], space)
        scale_D = flat["blocks/mlp_norm/scale"][1]
        for matrix in stored:
            kernel = flat[f"blocks/mlp/{matrix}/kernel"][1]
            rows_FD = center(kernel if matrix == "down" else kernel.T * scale_D, cfg)
            expected = 127 * unit(unit(rows_FD) @ (write if matrix == "down" else read).T)
            np.testing.assert_allclose(stored[matrix], expected, atol=0.51, err_msg=f"{space} {matrix}")
    # Heads, one query head with its group's key and value.
    attention = {part: flat[f"blocks/attention/{part}/kernel"][0] for part in ("query", "key", "value", "output")}
    scale_D = flat["blocks/attention_norm/scale"][0]
    for head in range(H):
        group = head // (H // G)
        query_DK = scale_D[:, None] * attention["query"][:, head * K : (head + 1) * K]
        key_DK, value_DK = (
            scale_D[:, None] * attention[part][:, group * K : (group + 1) * K] for part in ("key", "value")
        )
        if cfg.qk_norm:
            query_DK = query_DK * flat["blocks/attention/query_norm/scale"][0]
            key_DK = key_DK * flat["blocks/attention/key_norm/scale"][0]
        output_KD = attention["output"][head * K : (head + 1) * K]
        query_DK, key_DK, value_DK = (center(kernel.T, cfg).T for kernel in (query_DK, key_DK, value_DK))
        expected = read_8D @ query_DK @ key_DK.T @ read_8D.T
        np.testing.assert_allclose(sketches.heads[0].query_key[head], 127 * unit(expected.ravel()), atol=0.51)
        expected = read_8D @ value_DK @ center(output_KD, cfg) @ write_8D.T
        np.testing.assert_allclose(sketches.heads[0].value_output[head], 127 * unit(expected.ravel()), atol=0.51)
    assert sketches.heads[0].num_groups == G
    # Coordinates: the sum over the matrices of the blocks, and one of them.
    total_D8 = np.zeros((D, 8))
    for module in ("attention/query", "attention/key", "attention/value", "attention/output") + tuple(
        f"mlp/{matrix}" for matrix in sketches.neurons[0].token
    ):
        matrix = module.partition("/")[2]
        is_writer = matrix in ("output", "down")
        for block in (0, 1):
            kernel = flat[f"blocks/{module}/kernel"][block]
            rows_Dn = kernel.T if is_writer else kernel
            if cfg.norm == "layernorm":
                scale_D = 1 if is_writer else flat[f"blocks/{module.partition('/')[0]}_norm/scale"][block][:, None]
                rows_Dn = rows_Dn * scale_D
                rows_Dn = rows_Dn - rows_Dn.mean(axis=0)
            labels = [f"language/{matrix}/kernel:{i}" for i in range(rows_Dn.shape[1])]
            sketch_D8 = unit(rows_Dn) @ sign_table(labels, 8)
            total_D8 += sketch_D8
            np.testing.assert_allclose(sketches.heat_map[block + 1, matrix], 127 * unit(sketch_D8[:, :2]), atol=0.51)
    np.testing.assert_allclose(sketches.coordinates["blocks"], 127 * unit(total_D8), atol=0.51)
    # Of the embedding the other axis are tokens.
    rows_VD = embedding_VD - embedding_VD.mean(axis=1, keepdims=True) if cfg.norm == "layernorm" else embedding_VD
    np.testing.assert_allclose(
        sketches.coordinates["embedding"], 127 * unit(unit(rows_VD.T) @ token_signs_V8), atol=0.51
    )


# Symmetries.


def rotate(cfg: ModelConfig, params: Params) -> Model:
    return symmetries.rotate(cfg, params, symmetries.random_rotation(cfg, 5))


def insert(cfg: ModelConfig, params: Params) -> Model:
    return symmetries.insert_idle_block(cfg, params, 7)


def rescale(cfg: ModelConfig, params: Params) -> Model:
    draws = np.random.default_rng(3)
    factors = np.exp(draws.standard_normal((cfg.num_layers, cfg.d_ff))) * draws.choice([-1, 1], cfg.d_ff)
    return symmetries.rescale_units(cfg, params, factors)


def assert_near(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal up to one step of the rounding; an array of zeros is equal to nothing."""
    assert np.abs(expected).max() > 20
    np.testing.assert_allclose(actual.astype(int), expected.astype(int), atol=1)


@pytest.mark.parametrize("name", ["llama", "gpt2", "experts"])
@pytest.mark.parametrize("change", [rotate, insert], ids=["rotated", "block inserted"])
def test_token_space_ignores_the_basis_and_other_blocks(name, change):
    base, suspect = sketched(model(name)), sketched(change(*model(name)))
    last = {neurons.block for neurons in suspect.neurons}
    shift = max(last) - CONFIGS[name].num_layers
    sections = [neurons for neurons in suspect.neurons if neurons.block > shift]
    assert len(sections) == len(base.neurons)
    for before, after in zip(base.neurons, sections, strict=True):
        for matrix, rows_NK in before.token.items():
            assert_near(after.token[matrix], rows_NK)
    for before, after in zip(base.heads, suspect.heads[shift:], strict=True):
        assert_near(after.query_key, before.query_key)
        assert_near(after.value_output, before.value_output)
    for before, after in zip(base.routers, suspect.routers[shift:], strict=True):
        assert_near(after.token, before.token)
    if change is rotate:
        with pytest.raises(AssertionError):
            assert_near(suspect.neurons[0].coordinates["up"], base.neurons[0].coordinates["up"])


def test_scales_and_signs_of_neurons_leave_one_sign_free():
    base, suspect = sketched(model("llama")), sketched(rescale(*model("llama")))
    for before, after in zip(base.neurons, suspect.neurons, strict=True):
        for space in ("token", "coordinates"):
            old, new = getattr(before, space), getattr(after, space)
            assert_near(new["gate"], old["gate"])
            sign_F = np.sign(np.einsum("fk,fk->f", old["up"].astype(int), new["up"].astype(int)))
            assert set(sign_F) == {-1, 1}
            for matrix in ("up", "down"):
                assert_near(new[matrix] * sign_F[:, None], old[matrix])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("factor", [2.0**100, 2.0**40])
def test_weights_whose_squares_float32_does_not_hold_have_the_sketches_of_smaller_ones(name, factor, recwarn):
    cfg, params = model(name)
    large = unflatten({path: np.asarray(leaf) * np.float32(factor) for path, leaf in flatten(params).items()})
    before, after = (fingerprint(NativeRoles(Checkpoint.from_params(cfg, tree))) for tree in (params, large))
    assert not [str(warning.message) for warning in recwarn]
    one, two = (sketches.components["language"] for sketches in (before, after))
    assert one.coordinates.keys() == two.coordinates.keys() and one.neurons and one.heads
    for part, rows_DK in one.coordinates.items():
        np.testing.assert_array_equal(two.coordinates[part], rows_DK, err_msg=part)
    for block, other in zip(one.neurons, two.neurons, strict=True):
        for space in ("token", "coordinates"):
            for matrix, rows_FK in getattr(block, space).items():
                np.testing.assert_array_equal(getattr(other, space)[matrix], rows_FK, err_msg=f"{space} {matrix}")
    for head, other_head in zip(one.heads, two.heads, strict=True):
        np.testing.assert_array_equal(other_head.query_key, head.query_key)
        np.testing.assert_array_equal(other_head.value_output, head.value_output)
    for record, other_record in zip(before.tensors, after.tensors, strict=True):
        assert other_record.std == pytest.approx(record.std * factor, rel=1e-5)
        assert other_record.maximum == pytest.approx(record.maximum * factor, rel=1e-5)
        assert other_record.kurtosis == pytest.approx(record.kurtosis, rel=1e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("embed/embedding", "embedding/embedding"),
        ("blocks/mlp/up/kernel", "blocks/1/up/kernel"),
        # The head is measured with the scale of its norm.
        ("final_norm/scale", "the norm before language/head/kernel"),
    ],
)
def test_weights_that_are_not_finite_are_named_with_a_remedy(path, named, value):
    cfg, params = model("llama")
    flat = {name: np.array(leaf) for name, leaf in flatten(params).items()}
    flat[path].reshape(-1)[5] = value
    with pytest.raises(InputError, match=f"{named} of .* holds NaN or infinite values: train or export it again"):
        fingerprint(NativeRoles(Checkpoint.from_params(cfg, unflatten(flat))))


def test_permuted_heads_are_permuted_rows_and_neurons_stay():
    cfg, params = model("llama")
    orders_LG = np.array([[1, 0], [1, 0]])
    base, suspect = sketched((cfg, params)), sketched(symmetries.permute_heads(cfg, params, orders_LG))
    order_H = [2, 3, 0, 1]
    assert_near(suspect.heads[1].query_key, base.heads[1].query_key[order_H])
    assert_near(suspect.heads[1].value_output, base.heads[1].value_output[order_H])
    np.testing.assert_array_equal(suspect.neurons[0].token["up"], base.neurons[0].token["up"])


def test_permuted_coordinates_are_permuted_rows_and_token_space_stays():
    cfg, params = model("gpt2")
    order_D = np.random.default_rng(0).permutation(cfg.d_model)
    base, suspect = sketched((cfg, params)), sketched(symmetries.permute_coordinates(cfg, params, order_D))
    for part, rows_DK in base.coordinates.items():
        assert_near(suspect.coordinates[part], rows_DK[order_D])
    for cell, before_D2 in base.heat_map.items():
        assert_near(suspect.heat_map[cell], before_D2[order_D])
    assert_near(suspect.neurons[0].token["down"], base.neurons[0].token["down"])


def test_tokens_with_their_strings_may_have_any_number():
    cfg, params = model("llama")
    labels = [f"piece {i}".encode() for i in range(cfg.vocab_size)]
    order_V = np.random.default_rng(0).permutation(cfg.vocab_size)
    flat = flatten(params)
    flat["embed/embedding"] = flat["embed/embedding"][order_V]
    flat["head/kernel"] = flat["head/kernel"][:, order_V]
    permuted = (cfg, unflatten(flat))
    base = fingerprint(Labeled((cfg, params), labels))
    suspect = fingerprint(Labeled(permuted, [labels[i] for i in order_V]))
    for before, after in zip(base.components["language"].neurons, suspect.components["language"].neurons, strict=True):
        assert_near(after.token["up"], before.token["up"])
    assert base.tokenizer_digest != suspect.tokenizer_digest
    assert base.components["language"].token_labels == "strings"
    # By number they are other tokens.
    by_id = fingerprint(Labeled(permuted, labels), Settings(token_labels="ids")).components["language"]
    assert by_id.token_labels == "ids"
    with pytest.raises(AssertionError):
        assert_near(by_id.neurons[0].token["up"], base.components["language"].neurons[0].token["up"])


def test_shared_expert_has_one_fingerprint_read_by_the_table_or_by_names():
    """All but the digest of the files' tensors, of which names have one for each expert."""
    by_table, by_names = map(fingerprint, (NativeRoles(open_checkpoint(QWEN2_MOE)), read_by_names(QWEN2_MOE)))
    assert by_table.tensors == by_names.tensors and by_table.repeats == by_names.repeats
    pair = [dataclasses.asdict(sketches.components["language"]) for sketches in (by_table, by_names)]
    np.testing.assert_equal(*pair)
    neurons = by_table.components["language"].neurons
    assert [(mlp.expert, mlp.total) for mlp in neurons if mlp.is_shared] == [(None, 20)] * 2
    assert all((mlp.token["up"] != 0).any() for mlp in neurons)


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly_except(["llama-tiny", "qwen2moe-tiny"], "qwen2moe-tiny"))
def test_digests_by_role_are_those_of_the_parameters(name):
    checkpoint = open_checkpoint(f"seed:42@{name},num_layers=2,vocab_size=64")
    assert weights_digests(NativeRoles(checkpoint)).parameters == tensor_digests(checkpoint.params())


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly_except(["llama-tiny", "qwen2moe-tiny"], "qwen2moe-tiny"))
def test_known_digests_are_not_computed_again_and_the_payload_is_the_same(name, monkeypatch):
    source = NativeRoles(open_checkpoint(f"seed:42@{name},num_layers=2,vocab_size=64"))
    expected, digests = payload_digest(fingerprint(source)), weights_digests(source)
    monkeypatch.setattr(fingerprint_pass, "_digests", pytest.fail)
    assert payload_digest(fingerprint(source, digests=digests)) == expected
    # They are taken as they are, whoever computed them.
    first = next(iter(digests.tensors))
    digests.tensors[first] = "0" * 64
    assert payload_digest(fingerprint(source, digests=digests)) != expected


def test_products_are_rounded_alike_on_any_number_of_cores():
    """OpenBLAS splits the sums of a large product among its threads, so how many there are would move entries."""
    threads = set()

    def look(_count: int) -> None:
        threads.update(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")

    with threadpool_limits(2, user_api="blas"):
        fingerprint("seed:42@llama-tiny,num_layers=1,vocab_size=64", advance=look)
    assert threads == {1}


@pytest.mark.slow
def test_work_on_large_models_shows_how_far_it_is(monkeypatch, capsys):
    models = [f"seed:{seed}@llama-tiny,num_layers=1,vocab_size=64" for seed in (1, 2)]
    trace(*models)
    assert "tensors" not in capsys.readouterr().err
    for module in (fingerprint_pass, battery, same_model):
        monkeypatch.setattr(module, "LARGE", 1)
    trace(*models)
    lines = capsys.readouterr().err
    assert lines.count("digest of") == 2 and lines.count("fingerprint of") == 2 and "12 of 12 tensors" in lines
    (line,) = re.findall(r"comparing the language models: (\d+) of (\d+) comparisons", lines)
    assert line[0] == line[1]
    # Logits are compared of models that are no initializations.
    cfg = preset("llama-tiny", num_layers=2, d_model=32, vocab_size=64)
    trained = [Checkpoint.from_params(cfg, init_seed(cfg, seed)) for seed in (1, 2)]
    assert same_model.same_logits(*trained) is False
    assert "logits of both models: 4 of 4 blocks" in capsys.readouterr().err
