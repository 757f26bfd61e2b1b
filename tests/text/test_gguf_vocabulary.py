"""Tokenizers inside GGUF files, written here with the format's own library."""

import json
from pathlib import Path

import gguf
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.text import bpe
from bornbiased_jax.text.scored_pieces import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED
from bornbiased_jax.text.tokenizers import load_tokenizer
from tests.fixtures.sentence_pieces import sentence_piece_model
from tests.tiers import NIGHTLY

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
        "types": [CONTROL if token == bpe.END_OF_TEXT else NORMAL for token in tokens],
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
    pieces = {}
    for pre in ("gpt-2", "smollm", "llama-bpe", "qwen2"):
        loaded = load_tokenizer(write(tmp_path / f"{pre}.gguf", **parts(trained), pre=pre, eos_token_id=0))
        cut = loaded.backend.pre_tokenizer.pre_tokenize_str("a'S 12345!\n\nb")
        pieces[pre] = [word.replace("Ġ", " ").replace("Ċ", "\n") for word, _ in cut]
    assert pieces == {
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
    # llama.cpp adds it for Llama-3 unless told otherwise, and for others that cut words as Llama-3 does it does not.
    assert load_tokenizer(write(tmp_path / "d.gguf", **common, pre="llama-bpe")).bos_id == 0
    assert load_tokenizer(write(tmp_path / "e.gguf", **common, pre="smaug-bpe")).bos_id is None


def test_only_llama_3_takes_a_word_of_the_vocabulary_whole(tmp_path, trained):
    common = {**parts(trained), "eos_token_id": 0}
    word = {**common, "tokens": [*common["tokens"], "zqzq"], "types": [*common["types"], NORMAL]}
    sizes = {
        pre: len(load_tokenizer(write(tmp_path / f"{pre}.gguf", **word, pre=pre)).encode("zqzq"))
        for pre in ("llama-bpe", "dbrx", "smaug-bpe")
    }
    assert sizes == {"llama-bpe": 1, "dbrx": 4, "smaug-bpe": 4}


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
    saved = load_tokenizer(loaded.save(tmp_path))
    assert (saved.digest, saved.eos_id, saved.bos_id) == (loaded.digest, 2, 1)
    assert loaded.token_bytes()[user] == b"<|user|>" and loaded.token_bytes()[the] == b" the"
    bare = load_tokenizer(
        write(tmp_path / "b.gguf", **scored_parts(), add_bos_token=False, add_space_prefix=False, eos_token_id=1)
    )
    assert (bare.bos_id, bare.eos_id) == (None, 1)
    assert bare.encode("\u2581the").tolist() == [the]


def vocabulary_of(processor):
    """The metadata of a GGUF file with the vocabulary of a SentencePiece model."""
    kinds = {UNKNOWN: processor.is_unknown, CONTROL: processor.is_control, BYTE: processor.is_byte}
    ids = range(processor.vocab_size())
    return {
        "model": "llama",
        "pre": None,
        "tokens": [processor.id_to_piece(token) for token in ids],
        "types": [next((kind for kind, is_kind in kinds.items() if is_kind(token)), NORMAL) for token in ids],
        "scores": [processor.get_score(token) for token in ids],
    }


def assert_is_sentencepieces(folder, model, *texts):
    loaded = load_tokenizer(write(folder / "model.gguf", **vocabulary_of(model.processor)))
    odd = ["", " ", "  é\u2581日本語🎉\t\n  x = 1234  \n", "<s> </s> <0x0A>", "\n\n\n"]
    for text in (*texts, *odd):
        ids = model.encode(text).tolist()
        assert loaded.encode(text).tolist() == ids
        assert loaded.decode([1, *ids, 2]) == model.decode(ids)
    assert loaded.token_bytes() == model.token_bytes()


def test_scores_join_as_sentencepiece_does(tmp_path):
    corpus = [line for line in Path(bpe.__file__).read_text().splitlines() if line.strip()]
    (tmp_path / "tokenizer.model").write_bytes(sentence_piece_model(corpus, 500))
    assert_is_sentencepieces(tmp_path, load_tokenizer(tmp_path / "tokenizer.model"), "\n".join(corpus))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["mistral_v1_32k_sentencepiece.model", pytest.param("llama2_32k_sentencepiece.model", marks=NIGHTLY)]
)
@pytest.mark.parametrize(
    "text",
    [
        "tinystories/tinystories_10k.txt",
        pytest.param("tinyshakespeare/input.txt", marks=NIGHTLY),
        pytest.param("wikitext-2/test.txt", marks=NIGHTLY),
    ],
)
def test_scores_join_as_sentencepiece_does_with_real_models(shared, tmp_path, name, text):
    pytest.importorskip("sentencepiece", exc_type=ImportError)
    model = load_tokenizer(shared / "tokenizers" / name)
    assert_is_sentencepieces(tmp_path, model, (shared / "data" / text).read_text()[:60_000])


def pieces(path, tokens, types, scores=None, **values):
    """A tokenizer of a few pieces."""
    scores = [0.0] * len(tokens) if scores is None else scores
    return load_tokenizer(write(path, model="llama", pre=None, tokens=tokens, types=types, scores=scores, **values))


def test_user_defined_pieces_are_cut_out_whole(tmp_path):
    tokens = ["<unk>", "a", "b", "\u2581", "ab", "<|x|>", "<|x|>y", "<s>", "\u2581\u2581"]
    types = [UNKNOWN, NORMAL, NORMAL, NORMAL, NORMAL, USER_DEFINED, USER_DEFINED, CONTROL, USER_DEFINED]
    bare = pieces(tmp_path / "a.gguf", tokens, types, add_space_prefix=False)
    assert bare.encode("ab<|x|>yab<|x|>a").tolist() == [4, 6, 4, 5, 1]
    assert bare.encode("  a b").tolist() == [8, 1, 3, 2]
    # A character without a piece or bytes is the unknown piece; control pieces are never made from text.
    assert bare.encode("a<").tolist() == [1, 0] and bare.encode("<s>").tolist() == [0, 0, 0]
    assert bare.decode([7, 4, 5]) == "ab<|x|>" and bare.token_bytes()[8] == b"  "
    prefixed = pieces(tmp_path / "b.gguf", tokens, types)
    assert prefixed.encode("a<|x|>b").tolist() == [3, 1, 5, 2]
    assert prefixed.encode(" a<|x|>").tolist() == [8, 1, 5]
    assert prefixed.encode("<|x|>b").tolist() == [3, 5, 2] and prefixed.encode("<|x|>").tolist() == [5]


def test_neither_bytes_nor_an_unknown_piece_is_refused(tmp_path):
    with pytest.raises(InputError, match="neither bytes nor an unknown piece"):
        pieces(tmp_path / "a.gguf", ["a", "\u2581"], [NORMAL, NORMAL])


def test_as_many_scores_as_pieces(tmp_path):
    with pytest.raises(InputError, match="1 scores for 2 pieces"):
        pieces(tmp_path / "a.gguf", ["a", "<unk>"], [NORMAL, UNKNOWN], [0.0])


def test_long_words_are_joined_in_good_time(tmp_path):
    tokens = ["<unk>", "a", "aa", "aaaa", "\u2581"]
    tokenizer = pieces(tmp_path / "a.gguf", tokens, [UNKNOWN, *[NORMAL] * 4], [0.0, -3.0, -2.0, -1.0, -9.0])
    # A loop that looks for the best pair anew after each join would need 1e10 steps.
    assert tokenizer.encode("a" * 200_001).tolist() == [4, *[3] * 50_000, 1]


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
        ({"model": "llama"}, "with no scores"),
    ],
)
def test_other_tokenizers_are_refused(tmp_path, trained, change, message):
    path = write(tmp_path / "a.gguf", **{**parts(trained), **change})
    with pytest.raises(InputError, match=message):
        load_tokenizer(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokens", [1, 2]),
        ("token_type", "ab"),
        ("merges", [1, 2]),
        ("eos_token_id", "x"),
        ("pre", ["gpt-2"]),
        ("scores", ["x", "y"]),
    ],
)
def test_fields_of_another_type_are_refused_by_name(tmp_path, name, value):
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    fields = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b"], "token_type": [NORMAL, NORMAL], name: value}
    for key, entry in fields.items():
        add = writer.add_array if isinstance(entry, list) else writer.add_string
        add(f"tokenizer.ggml.{key}", entry)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(InputError, match=rf"the tokenizer of {path} has {name}.*: name a tokenizer file"):
        load_tokenizer(path)


def test_a_cut_file_is_refused(tmp_path, trained):
    path = write(tmp_path / "a.gguf", **parts(trained))
    content = path.read_bytes()
    for size in (8, 40, len(content) // 2):
        path.write_bytes(content[:size])
        with pytest.raises(InputError, match="is cut short: fetch it again"):
            load_tokenizer(path)
