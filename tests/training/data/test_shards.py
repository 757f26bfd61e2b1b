"""Tokenized data on disk: the split, the cache, resumption, damage."""

import json

import numpy as np
import pytest

from bornbiased_jax import io
from bornbiased_jax.errors import InputError
from bornbiased_jax.text import encoding
from bornbiased_jax.text.bpe import train_bpe
from bornbiased_jax.text.byte_level import ByteTokenizer
from bornbiased_jax.text.encoding import in_validation
from bornbiased_jax.training.data import shards
from bornbiased_jax.training.data.shards import Tokens, prepare

BYTES = ByteTokenizer()


@pytest.fixture
def source(tmp_path):
    rng = np.random.default_rng(1)
    path = tmp_path / "texts.jsonl"
    texts = ["".join(rng.choice(list("abcdé \n"), rng.integers(50, 400))) for _ in range(400)]
    path.write_text("".join(json.dumps({"text": f"{i} {text}"}) + "\n" for i, text in enumerate(texts)))
    return path


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 2000)


def documents(source):
    return [json.loads(line)["text"].encode() for line in source.read_text().splitlines()]


def everything(tokens):
    return bytes(tokens.read(0, len(tokens)).astype(np.uint8))


def test_split_holds_every_document_once_and_in_order(source, tmp_path):
    result = prepare(str(source), BYTES, folder=tmp_path / "tokens", validation_fraction=0.2)
    held = [document for document in documents(source) if in_validation(document, 0.2)]
    existing = [document for document in documents(source) if not in_validation(document, 0.2)]
    assert everything(result.validation) == b"".join(document + b"\0" for document in held)
    assert everything(result.train) == b"".join(document + b"\0" for document in existing)
    # 400 draws at 0.2: within four standard errors of 80.
    assert abs(len(held) - 80) < 4 * np.sqrt(400 * 0.2 * 0.8)
    assert result.facts["documents"] == 400
    assert result.facts["text_bytes"] == sum(map(len, documents(source)))


@pytest.mark.slow
def test_parts_processes_and_the_cache_change_no_id(source, tmp_path, monkeypatch):
    full = prepare(str(source), BYTES, folder=tmp_path / "a")
    pieces = prepare(str(source), BYTES, folder=tmp_path / "b", part_tokens=5000, processes=2)
    assert everything(pieces.train) == everything(full.train)
    assert everything(pieces.validation) == everything(full.validation)
    assert len(list((tmp_path / "b").glob("*/train-*.bin"))) > 5
    # Windows across the border of two files.
    for start in range(0, len(full.train) - 700, 611):
        np.testing.assert_array_equal(pieces.train.read(start, start + 700), full.train.read(start, start + 700))
    monkeypatch.setattr(shards, "_tokenize", None)
    again = prepare(str(source), BYTES, folder=tmp_path / "b")
    assert again.digest == pieces.digest


@pytest.mark.slow
def test_a_killed_tokenization_goes_on(source, tmp_path, monkeypatch):
    full = prepare(str(source), BYTES, folder=tmp_path / "a", part_tokens=5000)
    real, written = shards._write_part, []

    def write(place, index, part):
        if len(written) == 4:
            raise KeyboardInterrupt
        written.append(len(index["parts"]))
        real(place, index, part)

    monkeypatch.setattr(shards, "_write_part", write)
    with pytest.raises(KeyboardInterrupt):
        prepare(str(source), BYTES, folder=tmp_path / "b", part_tokens=5000)
    monkeypatch.setattr(shards, "_write_part", real)
    encoded = []
    monkeypatch.setattr(encoding, "encode", lambda *args: encoded.append(1) or _encode(*args))
    again = prepare(str(source), BYTES, folder=tmp_path / "b", part_tokens=5000)
    assert again.digest == full.digest
    assert everything(again.train) == everything(full.train)
    # Not everything was done again.
    assert len(encoded) < 0.9 * full.facts["text_bytes"] / 2000


_encode = encoding.encode


@pytest.mark.slow
def test_corrupted_token_shards_rebuilt_and_missing_reported(source, tmp_path, capsys):
    result = prepare(str(source), BYTES, folder=tmp_path / "a")
    file = next((tmp_path / "a").glob("*/train-00000.bin"))
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(InputError, match="cut short"):
        result.train.read(0, 10)
    repaired = prepare(str(source), BYTES, folder=tmp_path / "a")
    assert "corrupted" in capsys.readouterr().err
    assert repaired.digest == result.digest and everything(repaired.train) == everything(result.train)
    file.unlink()
    with pytest.raises(InputError, match="vanished"):
        repaired.train.read(0, 10)


def test_missing_and_empty_sources(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        prepare(str(tmp_path / "none.txt"), BYTES, folder=tmp_path / "a")
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(InputError, match="no text"):
        prepare(str(tmp_path / "empty.txt"), BYTES, folder=tmp_path / "a")


def test_large_vocabularies_take_four_bytes(tmp_path):
    (tmp_path / "x.bin").write_bytes(np.asarray([70_000, 3, 5], "<u4").tobytes())
    tokens = Tokens([shards.Shard(tmp_path / "x.bin", 3)], "<u4")
    assert tokens.read(0, 2).tolist() == [70_000, 3]
    assert tokens.part(1, 3).read(0, 2).tolist() == [3, 5]
    with pytest.raises(IndexError):
        tokens.part(1, 2).read(0, 2)


def test_complete_tokens_are_read_where_nothing_can_be_written(tmp_path, monkeypatch):
    source = tmp_path / "a.txt"
    source.write_text("one document\n\nand another one\n\n" * 40)
    first = prepare(str(source), ByteTokenizer(), folder=tmp_path / "cache")

    def refuse(path):
        raise InputError(f"cannot write {path}: Read-only file system; choose another place")

    monkeypatch.setattr(io, "check_writable", refuse)
    assert prepare(str(source), ByteTokenizer(), folder=tmp_path / "cache").digest == first.digest
    source.write_text("another text\n\n" * 40)
    with pytest.raises(InputError, match="--token-cache names where"):
        prepare(str(source), ByteTokenizer(), folder=tmp_path / "cache")


def test_the_cache_knows_the_tokenizer_and_the_split(tmp_path):
    """The same text by another tokenizer, or split otherwise, is not what was kept."""
    source = tmp_path / "a.txt"
    source.write_text("one document\n\nand another one\n\n" * 40)
    other = train_bpe([source.read_text()], 270)
    assert prepare(str(source), BYTES, folder=tmp_path / "cache").train.read(0, 3).tolist() == list(b"one")
    by_pieces = prepare(str(source), other, folder=tmp_path / "cache")
    assert by_pieces.train.read(0, 2).tolist() == other.encode("one document").tolist()[:2] != list(b"on")
    texts = tmp_path / "b.jsonl"
    texts.write_text("".join(json.dumps({"text": str(number)}) + "\n" for number in range(100)))
    for fraction in (0.1, 0.5):
        validation = prepare(str(texts), BYTES, folder=tmp_path / "cache", validation_fraction=fraction).validation
        held = [b"%d\0" % number for number in range(100) if in_validation(b"%d" % number, fraction)]
        assert everything(validation) == b"".join(held)
