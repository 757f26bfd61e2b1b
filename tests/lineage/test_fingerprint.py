"""Fingerprints of weights: each sketch against its definition, its symmetries, and the file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.export import export_hugging_face
from bornbiased_jax.checkpoints.native_roles import NativeRoles, open_roles
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.derive import symmetries
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage import (
    Fingerprint,
    Settings,
    fingerprint,
    load_fingerprint,
    payload_digest,
    save_fingerprint,
)
from bornbiased_jax.lineage.fingerprint_file import encode, is_fingerprint
from bornbiased_jax.lineage.fingerprint_size import fitted, predicted_bytes
from bornbiased_jax.lineage.fingerprints import Component
from bornbiased_jax.lineage.sketches import equal_rows, moments, sign_rows
from bornbiased_jax.parameters import Params, flatten, unflatten

ROOT = Path(__file__).resolve().parents[2]
SIZES = dict(num_layers=2, d_model=32, d_ff=48, num_heads=4, vocab_size=96)
CONFIGS = {
    "llama": preset("llama-tiny", **SIZES, num_kv_heads=2, qk_norm=True),
    "gpt2": preset("gpt2-tiny", **SIZES),
    "experts": preset("qwen3moe-tiny", **SIZES, num_kv_heads=2, num_experts=4),
}
Model = tuple[ModelConfig, Params]
HEAD_NORMS = ("blocks/attention/query_norm", "blocks/attention/key_norm")


def model(name: str, seed: int = 1) -> Model:
    """Initial weights with norm scales and biases as training might leave them."""
    cfg = CONFIGS[name]
    draws = np.random.default_rng(seed)
    flat = {path: np.array(leaf) for path, leaf in flatten(init_seed(cfg, seed)).items()}
    for path, leaf in flat.items():
        if path.endswith(("scale", "bias")):
            flat[path] = (leaf + 0.3 * draws.standard_normal(leaf.shape)).astype(np.float32)
    return cfg, unflatten(flat)


def source(changed: Model) -> NativeRoles:
    return NativeRoles(Checkpoint.from_params(*changed))


def sketched(changed: Model, **settings: Any) -> Component:
    return fingerprint(source(changed), Settings(**settings)).components["language"]


class Labeled(NativeRoles):
    """A model whose tokens have strings."""

    def __init__(self, changed: Model, labels: Sequence[bytes | None]) -> None:
        super().__init__(Checkpoint.from_params(*changed))
        self._labels = tuple(labels)

    def token_labels(self) -> tuple[bytes | None, ...]:
        return self._labels


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
    found = sketched((cfg, params), dim=8)
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
        stored = getattr(found.neurons[1], space)
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
        np.testing.assert_allclose(found.heads[0].query_key[head], 127 * unit(expected.ravel()), atol=0.51)
        expected = read_8D @ value_DK @ center(output_KD, cfg) @ write_8D.T
        np.testing.assert_allclose(found.heads[0].value_output[head], 127 * unit(expected.ravel()), atol=0.51)
    assert found.heads[0].num_groups == G
    # Coordinates: the sum over the matrices of the blocks, and one of them.
    total_D8 = np.zeros((D, 8))
    for module in ("attention/query", "attention/key", "attention/value", "attention/output") + tuple(
        f"mlp/{matrix}" for matrix in found.neurons[0].token
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
            np.testing.assert_allclose(found.heat_map[block + 1, matrix], 127 * unit(sketch_D8[:, :2]), atol=0.51)
    np.testing.assert_allclose(found.coordinates["blocks"], 127 * unit(total_D8), atol=0.51)
    # Of the embedding the other axis are tokens.
    rows_VD = embedding_VD - embedding_VD.mean(axis=1, keepdims=True) if cfg.norm == "layernorm" else embedding_VD
    np.testing.assert_allclose(found.coordinates["embedding"], 127 * unit(unit(rows_VD.T) @ token_signs_V8), atol=0.51)


# Symmetries.


def rotate(cfg: ModelConfig, params: Params) -> Model:
    return symmetries.rotate(cfg, params, symmetries.random_rotation(cfg, 5))


def insert(cfg: ModelConfig, params: Params) -> Model:
    return symmetries.insert_idle_block(cfg, params, 0, 7)


def rescale(cfg: ModelConfig, params: Params) -> Model:
    draws = np.random.default_rng(3)
    factors = np.exp(draws.standard_normal((cfg.num_layers, cfg.d_ff))) * draws.choice([-1, 1], cfg.d_ff)
    return symmetries.rescale_units(cfg, params, factors)


def assert_near(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal up to one step of the rounding; an array of zeros is equal to nothing."""
    assert np.abs(expected).max() > 20
    np.testing.assert_allclose(found.astype(int), expected.astype(int), atol=1)


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


# What no seed decided, and what repeats.


def edited(name: str, edit: Callable[[dict[str, np.ndarray]], None], **fields: Any) -> Model:
    cfg, params = model(name)
    flat = {path: np.array(leaf) for path, leaf in flatten(params).items()}
    edit(flat)
    return cfg.replace(**fields), unflatten(flat)


def test_padding_and_zero_rows_are_no_labels():
    def pad(flat: dict[str, np.ndarray]) -> None:
        flat["embed/embedding"][90:] = flat["embed/embedding"][:90].mean(axis=0)
        flat["head/kernel"][:, 80:82] = 0
        flat["embed/embedding"][5] *= 1000
        flat["blocks/mlp/up/kernel"][0][:, 3] = 0
        flat["blocks/mlp/down/kernel"][0] = 0.25
        for path in ("query", "key", "value"):
            flat[f"blocks/attention/{path}/kernel"][1][7] = 0

    found = sketched(edited("llama", pad))
    assert found.is_token_used_V is not None
    assert set(np.flatnonzero(~found.is_token_used_V)) == {5, 80, 81, *range(90, 96)}
    is_zero_F = ~found.neurons[0].token["up"].any(axis=1)
    assert np.flatnonzero(is_zero_F).tolist() == [3]
    assert not found.neurons[0].token["down"].any() and not found.neurons[0].coordinates["down"].any()
    assert found.neurons[1].token["down"].any(axis=1).all()
    cells = found.heat_map
    assert np.flatnonzero(~cells[2, "query"].any(axis=1)).tolist() == [7]
    assert not cells[1, "down"].any()
    # Tensors that no seed decided are marked.
    records = {record.path: record for record in fingerprint(source(edited("llama", pad))).tensors}
    assert not records["language/blocks/1/down/kernel"].is_evidence
    assert records["language/blocks/2/down/kernel"].is_evidence


def test_shards_of_one_draw_are_reported():
    def repeat(flat: dict[str, np.ndarray], noise: float) -> None:
        draws = np.random.default_rng(4)
        for matrix, axis in (("gate", 2), ("up", 2), ("down", 1)):
            kernel = flat[f"blocks/mlp/{matrix}/kernel"]
            shard = np.take(kernel, range(12), axis=axis)
            copies = np.concatenate([shard] * 4, axis=axis)
            flat[f"blocks/mlp/{matrix}/kernel"] = copies + noise * copies.std() * draws.standard_normal(copies.shape)

    def neurons(changed: Model) -> Any:
        repeats = fingerprint(source(changed)).repeats
        return next(row for row in repeats if row.labels == "neurons")

    clean = neurons(model("llama"))
    assert clean.num_equal == 0 and max(abs(z) for z in clean.z_by_period.values()) < 4
    exact = neurons(edited("llama", lambda flat: repeat(flat, 0.0)))
    assert (exact.num_labels, exact.num_equal) == (48, 2 * 36)
    assert exact.z_by_period[4] > 20
    noisy = neurons(edited("llama", lambda flat: repeat(flat, 0.5)))
    assert noisy.num_equal == 0 and noisy.z_by_period[4] > 10


def test_equal_rows_are_found_beyond_their_beginning():
    rows = np.random.default_rng(0).standard_normal((6, 200)).astype(np.float32)
    rows[4] = rows[1]
    rows[5, :100] = rows[0, :100]
    rows[2] = rows[3] = 0
    assert np.flatnonzero(equal_rows(rows)).tolist() == [4]


def test_moments_agree_with_direct_sums():
    draws = np.random.default_rng(0)
    for matrix in (draws.standard_normal((700, 900)) + 3, draws.standard_t(5, (1100, 512)), draws.random((40, 30))):
        found, x = moments(matrix.astype(np.float32)), matrix.astype(np.float32).astype(np.float64)
        centered = x - x.mean()
        expected = (x.mean(), x.std(), (centered**4).mean() / x.var() ** 2, x.min(), x.max())
        measured = (found.mean, found.std, found.kurtosis, found.minimum, found.maximum)
        np.testing.assert_allclose(measured, expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found.squares_row, (x**2).sum(axis=1), rtol=1e-5)
        np.testing.assert_allclose(found.squares_column, (x**2).sum(axis=0), rtol=1e-5)
        assert not found.is_two_valued
    assert moments(np.tile(np.float32([1, -1]), (50, 50))).is_two_valued


# Digests and layouts.


def rewrite(folder: Path, new: Path, dtype: Any, shards: int, *, is_reversed: bool) -> Path:
    """Write the tensors of a directory again: in another type, order and number of files."""
    new.mkdir()
    (new / "config.json").write_text((folder / "config.json").read_text())
    tensors = {name: np.ascontiguousarray(array) for name, array in load_file(folder / "model.safetensors").items()}
    names = sorted(tensors, reverse=is_reversed)
    weight_map = {}
    for index in range(shards):
        file = f"model-{index + 1:05}-of-{shards:05}.safetensors" if shards > 1 else "model.safetensors"
        save_file({name: tensors[name].astype(dtype) for name in names[index::shards]}, new / file)
        weight_map |= dict.fromkeys(names[index::shards], file)
    if shards > 1:
        (new / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return new


def rounded(changed: Model) -> Model:
    """Weights that bfloat16 can hold."""
    cfg, params = changed
    flat = {path: leaf.astype(ml_dtypes.bfloat16).astype(np.float32) for path, leaf in flatten(params).items()}
    return cfg, unflatten(flat)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_payload_is_the_same_from_every_layout_of_the_same_numbers(tmp_path, name):
    cfg, params = rounded(model(name))
    cfg = cfg.replace(qk_norm=False)
    kept = {path: leaf for path, leaf in flatten(params).items() if path.rpartition("/")[0] not in HEAD_NORMS}
    params = unflatten(kept)
    export_hugging_face(cfg, params, tmp_path / "one")
    rewrite(tmp_path / "one", tmp_path / "shards", ml_dtypes.bfloat16, 3, is_reversed=True)
    rewrite(tmp_path / "one", tmp_path / "wide", np.float32, 2, is_reversed=False)
    made = [fingerprint(tmp_path / layout) for layout in ("one", "shards", "wide")]
    made += [fingerprint(source((cfg, params)))]
    assert len({payload_digest(single) for single in made}) == 1
    count = len(made[0].tensors)
    assert [single.source.storage for single in made[1:3]] == [{"bfloat16": count}, {"float32": count}]
    # Another number somewhere is another payload.
    flat = flatten(params)
    flat["blocks/mlp/up/kernel"] = flat["blocks/mlp/up/kernel"] * np.float32(1.5)
    assert payload_digest(fingerprint(source((cfg, unflatten(flat))))) != payload_digest(made[0])


@pytest.mark.parametrize("name", CONFIGS)
def test_digest_of_the_weights_is_that_of_the_digest_command(name):
    reader = Checkpoint.from_params(*model(name))
    found = fingerprint(NativeRoles(reader))
    assert found.weights_digest == reader.digest()
    if name != "experts":
        assert sorted(record.digest for record in found.tensors) == sorted(reader.tensor_digests().values())


# The file.


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> tuple[Path, Fingerprint]:
    made = fingerprint(source(model("experts")))
    return save_fingerprint(tmp_path_factory.mktemp("stored") / "a.fingerprint", made), made


def test_files_are_deterministic_and_read_back(stored):
    path, made = stored
    again = load_fingerprint(path)
    assert is_fingerprint(path)
    assert encode(again) == path.read_bytes() == encode(fingerprint(source(model("experts"))))
    assert again.tensors == made.tensors and again.repeats == made.repeats and again.source == made.source
    assert (again.settings, again.weights_digest) == (made.settings, made.weights_digest)
    old, new = made.components["language"], again.components["language"]
    np.testing.assert_array_equal(new.neurons[5].token["gate"], old.neurons[5].token["gate"])
    assert (new.neurons[5].block, new.neurons[5].expert, new.neurons[5].total) == (2, 2, 48)
    np.testing.assert_array_equal(new.is_token_used_V, old.is_token_used_V)
    # The section about the source is no part of the payload.
    renamed = dataclasses.replace(made, source=dataclasses.replace(made.source, description="elsewhere"))
    assert payload_digest(renamed) == payload_digest(made) and encode(renamed) != encode(made)


def replaced_metadata(data: bytes, **changes: str) -> bytes:
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] |= changes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def test_files_that_cannot_be_trusted_are_refused_in_one_sentence(stored, tmp_path):
    data = stored[0].read_bytes()
    made = load_fingerprint(stored[0])
    broken = dataclasses.replace(made.tensors[0], mean=float("nan"))
    cases = {
        "corrupted": (data[:-1] + bytes([data[-1] ^ 1]), "is corrupted"),
        "payload": (replaced_metadata(data, payload="{}"), "is corrupted"),
        "truncated": (data[:-100], "not a readable fingerprint"),
        "short": (data[:20], "not a readable fingerprint"),
        "empty": (b"", "not a readable fingerprint"),
        "foreign": (replaced_metadata(data, format="other"), "is not a fingerprint of weights"),
        "later": (replaced_metadata(data, version="2"), "version '2', and this program reads version 1"),
        "source": (replaced_metadata(data, source='{"naming": 3}'), "has no field|has naming"),
        "not a number": (encode(dataclasses.replace(made, tensors=(broken, *made.tensors[1:]))), "holds NaN"),
    }
    for name, (content, words) in cases.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(InputError, match=words) as raised:
            load_fingerprint(path)
        assert "make it again with `bornbiased fingerprint`" in str(raised.value)
        assert "\n" not in str(raised.value)


def test_weights_that_are_no_numbers_are_refused():
    with pytest.raises(InputError, match="blocks/1/up/kernel.*NaN"):
        fingerprint(source(edited("llama", lambda flat: flat["blocks/mlp/up/kernel"].fill(np.nan))))


def test_reader_of_the_docs_reads_what_the_loader_reads(stored):
    page = (ROOT / "docs" / "fingerprint-format.md").read_text()
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    assert len(code.splitlines()) < 100 and "bornbiased_jax" not in code
    reader: dict[str, Any] = {}
    exec(code, reader)
    path, made = stored
    payload, arrays = reader["read"](path)
    assert payload["weights_digest"] == made.weights_digest
    component = made.components["language"]
    for space in ("token", "coordinates"):
        sections = reader["neurons"](payload, arrays, space)
        assert len(sections) == len(component.neurons)
        for neurons in component.neurons:
            read = sections[neurons.block, neurons.expert, neurons.is_shared]
            for matrix, rows_NK in getattr(neurons, space).items():
                np.testing.assert_allclose(read[matrix], unit(rows_NK.astype(float)))
    np.testing.assert_array_equal(arrays["language/coordinates/blocks"], component.coordinates["blocks"])
    # A changed byte is noticed.
    corrupted = path.with_name("corrupted")
    corrupted.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(ValueError, match="corrupted"):
        reader["read"](corrupted)


# Sizes.

LLAMA = dict(num_layers=32, d_model=4096, d_ff=11_008, num_heads=32, num_kv_heads=32, vocab_size=32_000)
LARGE = dict(num_layers=80, d_model=8192, d_ff=28_672, num_heads=64, num_kv_heads=8, vocab_size=128_256)


@pytest.mark.parametrize(("sizes", "most"), [(LLAMA, 7e6), (LARGE, 24e6)], ids=["7B", "70B"])
def test_size_at_scale_stays_within_what_the_format_promises(sizes, most, monkeypatch):
    monkeypatch.setattr("bornbiased_jax.hardware.check_memory", lambda *unused: None)
    large = NativeRoles(Checkpoint.from_seed(preset("llama-tiny", **sizes), 0))
    predicted = predicted_bytes(large, Settings())
    assert 0.5 * most < predicted <= most


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("settings", [Settings(), Settings(dim=64, neurons=None), Settings(neurons=16)])
def test_predicted_size_is_that_of_the_file(name, settings):
    opened = source(model(name))
    size = len(encode(fingerprint(opened, settings)))
    assert predicted_bytes(opened, settings) == pytest.approx(size, rel=0.02, abs=3_000)


def test_limit_of_bytes_lowers_the_neurons():
    opened = source((cfg := preset("llama-tiny", num_layers=2, d_ff=2048), init_seed(cfg, 1)))
    free = len(encode(fingerprint(opened)))
    limited = fingerprint(opened, max_bytes=free // 2)
    assert 8 < limited.settings.neurons < 1024
    assert 0.8 * free // 2 < len(encode(limited)) <= free // 2
    assert limited.components["language"].neurons[0].stored == limited.settings.neurons
    with pytest.raises(InputError, match="raise --max-bytes"):
        fitted(opened, Settings(), 1000)


def test_sign_key_changes_every_sketch_and_no_digest():
    base, keyed = (fingerprint(source(model("llama")), Settings(sign_key=key)) for key in (b"", b"fresh"))
    assert base.weights_digest == keyed.weights_digest
    old, new = (made.components["language"].neurons[0] for made in (base, keyed))
    for space in ("token", "coordinates"):
        assert np.mean(getattr(old, space)["up"] == getattr(new, space)["up"]) < 0.1


def test_every_role_names_one_tensor():
    roles = open_roles("seed:1@qwen3moe-tiny").roles
    assert len({role.path for role in roles}) == len(roles)
    assert {role.path for role in roles} >= {
        "language/blocks/1/query_norm/scale",
        "language/blocks/4/experts/8/up/kernel",
    }
