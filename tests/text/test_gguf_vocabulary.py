"""Tokenizers inside GGUF files, written here with the format's own library."""

import json

import gguf
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.text import bpe, scored
from bornbiased_jax.text.tokenizers import load_tokenizer

CORPUS = [f"the quick brown fox {i} jumps over the lazy dogs and the dog jumps over foxes" for i in range(100)]
TEXT = "  the quick dog's 1234 foxes\n\n é日🎉"


def write(path, *, model="gpt2", pre="gpt-2", tokens=None, types=None, merges=None, scores=None, **values):
    writer = gguf.GGUFWriter(path, "llama")
    if model is not None:
        writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    for values_of, add in (
        (tokens, writer.add_token_list),
        (types, writer.add_token_types),
        (merges, writer.add_token_merges),
        (scores, writer.add_token_scores),
    ):
        if values_of is not None:
            add(values_of)
    for name, value in values.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def trained():
    return bpe.train_bpe(CORPUS, 300)


def parts(trained):
    content = json.loads(trained.json_text)["model"]
    tokens = sorted(content["vocab"], key=content["vocab"].__getitem__)
    return {
        "tokens": tokens,
        "types": [scored.CONTROL if token == bpe.END_OF_TEXT else scored.NORMAL for token in tokens],
        "merges": [" ".join(merge) for merge in content["merges"]],
    }


def test_byte_level_bpe(tmp_path, trained):
    loaded = load_tokenizer(write(tmp_path / "a.gguf", **parts(trained), eos_token_id=0))
    assert loaded.encode(TEXT).tolist() == trained.encode(TEXT).tolist()
    assert loaded.decode(loaded.encode(TEXT)) == TEXT
    assert (loaded.vocab_size, loaded.eos_id, loaded.bos_id) == (300, 0, None)
    assert loaded.encode("<|endoftext|>").tolist() == [0]
    saved = load_tokenizer(loaded.save(tmp_path))
    assert (saved.digest, saved.eos_id) == (loaded.digest, loaded.eos_id)


def test_words_are_cut_as_the_file_says(tmp_path, trained):
    found = {}
    for pre in ("gpt-2", "smollm", "llama-bpe", "qwen2"):
        loaded = load_tokenizer(write(tmp_path / f"{pre}.gguf", **parts(trained), pre=pre, eos_token_id=0))
        cut = loaded.backend.pre_tokenizer.pre_tokenize_str("a'S 12345!\n\nb")
        found[pre] = [word.replace("Ġ", " ").replace("Ċ", "\n") for word, _ in cut]
    assert found == {
        "gpt-2": ["a", "'", "S", " 12345", "!", "\n", "\n", "b"],
        "smollm": ["a", "'", "S", " ", "1", "2", "3", "4", "5", "!", "\n", "\n", "b"],
        "llama-bpe": ["a", "'S", " ", "123", "45", "!\n\n", "b"],
        "qwen2": ["a", "'S", " ", "1", "2", "3", "4", "5", "!\n\n", "b"],
    }


def test_the_beginning_of_a_text_is_where_the_file_adds_it(tmp_path, trained):
    common = {**parts(trained), "eos_token_id": 0, "bos_token_id": 0}
    assert load_tokenizer(write(tmp_path / "a.gguf", **common, add_bos_token=True)).bos_id == 0
    assert load_tokenizer(write(tmp_path / "b.gguf", **common, add_bos_token=False)).bos_id is None
    assert load_tokenizer(write(tmp_path / "c.gguf", **common)).bos_id is None
    # llama.cpp adds it for Llama-3 unless told otherwise.
    assert load_tokenizer(write(tmp_path / "d.gguf", **common, pre="llama-bpe")).bos_id == 0


def scored_parts():
    words = ["\u2581t", "he", "\u2581the", "\u2581"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *words, *"the", "<|user|>"]
    types = [2, 3, 3, *[6] * 256, *[1] * 7, 4]
    scores = [0.0] * 259 + [-1.0, -2.0, -3.0, *[-9.0] * 4, 0.0]
    return {"model": "llama", "pre": None, "tokens": tokens, "types": types, "scores": scores}


def test_scored_pieces(tmp_path):
    loaded = load_tokenizer(write(tmp_path / "a.gguf", **scored_parts()))
    tokens = scored_parts()["tokens"]
    the, user, space = tokens.index("\u2581the"), tokens.index("<|user|>"), tokens.index("\u2581")
    assert loaded.encode("the the<|user|>\n").tolist() == [the, the, user, 3 + 10]
    assert loaded.encode("\u2581the").tolist() == [space, the]
    assert loaded.decode(loaded.encode(" the é")) == " the é"
    assert (loaded.eos_id, loaded.bos_id, loaded.vocab_size) == (2, 1, len(tokens))
    assert load_tokenizer(loaded.save(tmp_path)).digest == loaded.digest
    bare = load_tokenizer(
        write(tmp_path / "b.gguf", **scored_parts(), add_bos_token=False, add_space_prefix=False, eos_token_id=1)
    )
    assert (bare.bos_id, bare.eos_id) == (None, 1)
    assert bare.encode("\u2581the").tolist() == [the]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "carries no tokenizer"),
        ({"tokens": None}, "carries no tokenizer"),
        ({"model": "bert"}, "of kind 'bert'"),
        ({"pre": "poro-chat"}, "the way 'poro-chat'"),
        ({"pre": None}, "the way None"),
        ({"merges": ["a b c"]}, "not two pieces"),
        ({"merges": ["zzz yyy"]}, "not a whole byte-pair encoding"),
        ({"types": [1, 1]}, "2 token types"),
        ({"model": "llama"}, "without scores"),
    ],
)
def test_other_tokenizers_are_refused(tmp_path, trained, change, message):
    path = write(tmp_path / "a.gguf", **{**parts(trained), **change})
    with pytest.raises(InputError, match=message):
        load_tokenizer(path)


def test_a_cut_file_is_refused(tmp_path, trained):
    path = write(tmp_path / "a.gguf", **parts(trained))
    whole = path.read_bytes()
    for size in (8, 40, len(whole) // 2):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match="not a whole GGUF file"):
            load_tokenizer(path)
