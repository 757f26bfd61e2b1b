"""Fingerprints of weights: what no seed decided, digests, the file and its size."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.export import export_hugging_face
from bornbiased_jax.checkpoints.native_roles import NativeRoles
from bornbiased_jax.config import preset
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
from bornbiased_jax.lineage.battery import Options
from bornbiased_jax.lineage.fingerprint_file import encode, is_fingerprint
from bornbiased_jax.lineage.fingerprint_size import fitted, predicted_bytes
from bornbiased_jax.lineage.sketches import equal_rows, moments
from bornbiased_jax.lineage.weights_verdict import auto_verdict
from bornbiased_jax.parameters import flatten, unflatten
from tests.fixtures.gguf_files import convert
from tests.lineage.descendants import descend
from tests.lineage.fingerprinted import CONFIGS, HEAD_NORMS, Model, edited, model, sketched, source
from tests.tiers import nightly_except

ROOT = Path(__file__).resolve().parents[2]


# What no seed decided, and what repeats.


def test_padding_and_zero_rows_are_no_labels():
    def pad(flat: dict[str, np.ndarray]) -> None:
        flat["embed/embedding"][90:] = flat["embed/embedding"][:90].mean(axis=0)
        flat["head/kernel"][:, 80:82] = 0
        flat["embed/embedding"][5] *= 1000
        flat["blocks/mlp/up/kernel"][0][:, 3] = 0
        flat["blocks/mlp/down/kernel"][0] = 0.25
        for path in ("query", "key", "value"):
            flat[f"blocks/attention/{path}/kernel"][1][7] = 0

    sketches = sketched(edited("llama", pad))
    assert sketches.is_token_used_V is not None
    assert set(np.flatnonzero(~sketches.is_token_used_V)) == {5, 80, 81, *range(90, 96)}
    is_zero_F = ~sketches.neurons[0].token["up"].any(axis=1)
    assert np.flatnonzero(is_zero_F).tolist() == [3]
    assert not sketches.neurons[0].token["down"].any() and not sketches.neurons[0].coordinates["down"].any()
    assert sketches.neurons[1].token["down"].any(axis=1).all()
    cells = sketches.heat_map
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


def test_short_sketches_of_different_coordinates_are_not_counted_as_equal():
    """Of two numbers in 8 bits there are some hundred directions, which many of 128 coordinates share."""
    cfg = preset("llama-tiny", num_layers=1)
    for dim in (2, 16):
        made = fingerprint(source((cfg, init_seed(cfg, 1))), Settings(dim=dim))
        (coordinates,) = [repeats for repeats in made.repeats if repeats.labels == "coordinates"]
        assert coordinates.num_equal == 0


def test_equal_rows_are_found_beyond_their_beginning():
    rows = np.random.default_rng(0).standard_normal((6, 200)).astype(np.float32)
    rows[4] = rows[1]
    rows[5, :100] = rows[0, :100]
    rows[2] = rows[3] = 0
    assert np.flatnonzero(equal_rows(rows)).tolist() == [4]


def test_moments_agree_with_direct_sums():
    draws = np.random.default_rng(0)
    for matrix in (draws.standard_normal((700, 900)) + 3, draws.standard_t(5, (1100, 512)), draws.random((40, 30))):
        row, x = moments(matrix.astype(np.float32)), matrix.astype(np.float32).astype(np.float64)
        centered = x - x.mean()
        expected = (x.mean(), x.std(), (centered**4).mean() / x.var() ** 2, x.min(), x.max())
        measured = (row.mean, row.std, row.kurtosis, row.minimum, row.maximum)
        np.testing.assert_allclose(measured, expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(row.squares_row, (x**2).sum(axis=1), rtol=1e-5)
        np.testing.assert_allclose(row.squares_column, (x**2).sum(axis=0), rtol=1e-5)
        assert not row.is_two_valued
    assert moments(np.tile(np.float32([1, -1]), (50, 50))).is_two_valued


@pytest.mark.parametrize("shape", [(512, 64), (64, 512), (48, 32)])
def test_signs_are_evidence_unless_a_formula_gives_them(shape):
    numbers, places = np.arange(shape[0])[:, None], np.arange(shape[1])
    draws = np.random.default_rng(0)
    drawn = draws.standard_normal(shape)
    # One-bit weights as drawn, and with much in common as after training.
    for seeded in (drawn, drawn + 0.5 * np.outer(draws.standard_normal(shape[0]), draws.standard_normal(shape[1]))):
        assert not moments(np.where(seeded > 0, 0.3, -0.3).astype(np.float32)).is_two_valued
    bits = {count: (numbers >> places % count) & 1 for count in (6, 9, 12)}
    walsh = np.frompyfunc(int.bit_count, 1, 1)(numbers & places).astype(int) & 1
    for name, formula in {**bits, "Walsh": walsh, "checkers": (numbers + places) & 1}.items():
        assert moments(np.where(formula, 0.3, -0.3).astype(np.float32)).is_two_valued, name


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
    without_norms = {path: leaf for path, leaf in flatten(params).items() if path.rpartition("/")[0] not in HEAD_NORMS}
    params = unflatten(without_norms)
    export_hugging_face(cfg, params, tmp_path / "one")
    rewrite(tmp_path / "one", tmp_path / "shards", ml_dtypes.bfloat16, 3, is_reversed=True)
    rewrite(tmp_path / "one", tmp_path / "wide", np.float32, 2, is_reversed=False)
    result = [fingerprint(tmp_path / layout) for layout in ("one", "shards", "wide")]
    result += [fingerprint(source((cfg, params)))]
    assert len({payload_digest(single) for single in result}) == 1
    count = len(result[0].tensors)
    assert [single.source.storage for single in result[1:3]] == [{"bfloat16": count}, {"float32": count}]
    # Another number somewhere is another payload.
    flat = flatten(params)
    flat["blocks/mlp/up/kernel"] = flat["blocks/mlp/up/kernel"] * np.float32(1.5)
    assert payload_digest(fingerprint(source((cfg, unflatten(flat))))) != payload_digest(result[0])


@pytest.fixture(scope="module")
def float_model(tmp_path_factory) -> Path:
    """Rows of 256 numbers, which K-quants ask for."""
    cfg = preset("llama-tiny", num_layers=2, d_model=256, d_ff=256, num_heads=4, vocab_size=96)
    folder = tmp_path_factory.mktemp("float") / "model"
    export_hugging_face(*descend(cfg, 1, 0.3), folder)
    return folder


# By form of storage: the type that is named, and the largest difference of sketches of 16 numbers.
ROUNDED = {"shards of bfloat16": ("bfloat16", 0.012), "Q8_0": ("Q8_0", 0.025), "Q4_K_M": ("Q4_K", 0.2)}


@pytest.mark.slow
@pytest.mark.parametrize("form", nightly_except(["float32", *ROUNDED], "shards of bfloat16", "Q8_0"))
def test_fingerprints_of_one_model_in_several_types_differ_by_what_rounding_gives(float_model, tmp_path, form):
    base = fingerprint(float_model)
    if form == "float32":
        path = convert(tmp_path / "m.gguf", float_model)
    elif form == "shards of bfloat16":
        path = rewrite(float_model, tmp_path / "m", ml_dtypes.bfloat16, 3, is_reversed=False)
    else:
        path = convert(tmp_path / "m.gguf", float_model, kind=form)
    suspect = fingerprint(path)
    verdict = auto_verdict(base, suspect, Options(num_permutations=99))
    assert verdict.verdict == "same-lineage"
    difference, notes = verdict.detail["sketch_difference"], "\n".join(verdict.notes)
    if form == "float32":
        assert payload_digest(suspect) == payload_digest(base) and difference == 0
        assert "Equal at the sketch's resolution" not in notes
        return
    kind, largest = ROUNDED[form]
    assert 0 < difference < largest
    sentence = f"within what rounding to {kind} gives; a smaller fine-tune is not excluded."
    assert f"Equal at the sketch's resolution ({difference:.1%}): {sentence}" in notes
    # Of a float32 file the same difference is no rounding.
    as_float = dataclasses.replace(suspect, source=dataclasses.replace(suspect.source, storage={"float32": 21}))
    notes = "\n".join(auto_verdict(base, as_float, Options(num_permutations=99)).notes)
    assert ("Equal at the sketch's resolution" in notes) == (form == "shards of bfloat16") and sentence not in notes


# The file.


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> tuple[Path, Fingerprint]:
    result = fingerprint(source(model("experts")))
    return save_fingerprint(tmp_path_factory.mktemp("stored") / "a.fingerprint", result), result


def test_files_are_deterministic_and_read_back(stored):
    path, result = stored
    again = load_fingerprint(path)
    assert is_fingerprint(path)
    assert encode(again) == path.read_bytes() == encode(fingerprint(source(model("experts"))))
    assert again.tensors == result.tensors and again.repeats == result.repeats and again.source == result.source
    assert (again.settings, again.weights_digest) == (result.settings, result.weights_digest)
    old, new = result.components["language"], again.components["language"]
    np.testing.assert_array_equal(new.neurons[5].token["gate"], old.neurons[5].token["gate"])
    assert (new.neurons[5].block, new.neurons[5].expert, new.neurons[5].total) == (2, 2, 48)
    np.testing.assert_array_equal(new.is_token_used_V, old.is_token_used_V)
    # The section about the source is no part of the payload.
    renamed = dataclasses.replace(result, source=dataclasses.replace(result.source, description="elsewhere"))
    assert payload_digest(renamed) == payload_digest(result) and encode(renamed) != encode(result)


def replaced_metadata(data: bytes, **changes: str) -> bytes:
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] |= changes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def test_files_that_cannot_be_trusted_are_refused_in_one_sentence(stored, tmp_path):
    data = stored[0].read_bytes()
    result = load_fingerprint(stored[0])
    broken = dataclasses.replace(result.tensors[0], mean=float("nan"))
    cases = {
        "corrupted": (data[:-1] + bytes([data[-1] ^ 1]), "is corrupted"),
        "payload": (replaced_metadata(data, payload="{}"), "is corrupted"),
        "truncated": (data[:-100], "not a readable fingerprint"),
        "short": (data[:20], "not a readable fingerprint"),
        "empty": (b"", "not a readable fingerprint"),
        "foreign": (replaced_metadata(data, format="other"), "is not a fingerprint of weights"),
        "later": (replaced_metadata(data, version="2"), "version '2', and this program reads version 1"),
        "source": (replaced_metadata(data, source='{"naming": 3}'), "has no field|has naming"),
        "not a number": (encode(dataclasses.replace(result, tensors=(broken, *result.tensors[1:]))), "holds NaN"),
    }
    for name, (content, words) in cases.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(InputError, match=words) as raised:
            load_fingerprint(path)
        assert "make it again with `bornbiased fingerprint`" in str(raised.value)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("forged", ["groups of no heads", "a path without a matrix", "an axis without end"])
def test_files_that_somebody_else_wrote_hold_what_a_comparison_takes(stored, tmp_path, forged):
    _, result = stored
    first, *others = result.tensors
    component = result.components["language"]
    heads = tuple(dataclasses.replace(each, num_groups=3) for each in component.heads)
    changes = {
        "groups of no heads": {"components": {"language": dataclasses.replace(component, heads=heads)}},
        "a path without a matrix": {"tensors": (dataclasses.replace(first, path="embedding"), *others)},
        "an axis without end": {"tensors": (dataclasses.replace(first, array_shape=(10**12, 8)), *others)},
    }
    path = save_fingerprint(tmp_path / "forged", dataclasses.replace(result, **changes[forged]))
    with pytest.raises(InputError, match="make it again with `bornbiased fingerprint`"):
        load_fingerprint(path)


def test_reader_of_the_docs_reads_what_the_loader_reads(stored):
    page = (ROOT / "docs" / "fingerprint-format.md").read_text()
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    assert len(code.splitlines()) < 100 and "bornbiased_jax" not in code
    reader: dict[str, Any] = {}
    exec(code, reader)
    path, result = stored
    payload, arrays = reader["read"](path)
    assert payload["weights_digest"] == result.weights_digest
    component = result.components["language"]
    for space in ("token", "coordinates"):
        sections = reader["neurons"](payload, arrays, space)
        assert len(sections) == len(component.neurons)
        for neurons in component.neurons:
            read = sections[neurons.block, neurons.expert, neurons.is_shared]
            for matrix, rows_NK in getattr(neurons, space).items():
                lengths_N1 = np.linalg.norm(rows_NK.astype(float), axis=-1, keepdims=True)
                np.testing.assert_allclose(read[matrix], rows_NK / lengths_N1)
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


@pytest.mark.slow
def test_limit_of_bytes_lowers_the_neurons():
    opened = source((cfg := preset("llama-tiny", num_layers=2, d_ff=2048), init_seed(cfg, 1)))
    free = len(encode(fingerprint(opened)))
    limited = fingerprint(opened, max_bytes=free // 2)
    assert 8 < limited.settings.neurons < 1024
    # No larger number is predicted to fit.
    one_more = dataclasses.replace(limited.settings, neurons=limited.settings.neurons + 1)
    assert predicted_bytes(opened, limited.settings) <= free // 2 < predicted_bytes(opened, one_more)
    assert 0.8 * free // 2 < len(encode(limited)) <= free // 2
    assert limited.components["language"].neurons[0].stored == limited.settings.neurons
    with pytest.raises(InputError, match="raise --max-bytes"):
        fitted(opened, Settings(), 1000)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"dim": 600}, "dim=600 is not an integer from 2 to 512"),
        ({"dim": 0}, "dim=0 is not an integer from 2 to 512"),
        ({"neurons": 0}, "neurons=0 is not an integer from 1"),
        ({"neurons": -5}, "neurons=-5 is not an integer from 1"),
    ],
)
def test_settings_that_no_file_holds_are_refused(numbers, words):
    with pytest.raises(InputError, match=words):
        Settings(**numbers)


def test_sign_key_changes_every_sketch_and_no_digest():
    base, keyed = (fingerprint(source(model("llama")), Settings(sign_key=key)) for key in (b"", b"fresh"))
    assert base.weights_digest == keyed.weights_digest
    old, new = (result.components["language"].neurons[0] for result in (base, keyed))
    for space in ("token", "coordinates"):
        assert np.mean(getattr(old, space)["up"] == getattr(new, space)["up"]) < 0.1
