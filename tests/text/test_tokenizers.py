"""Every tokenizer, of any kind: round trips, identity, saving, damage; and how the right one is found."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bornbiased_jax.errors import InputError
from bornbiased_jax.text import bpe, cache, corpora, tokenizers
from bornbiased_jax.text.byte_level import ByteTokenizer
from bornbiased_jax.text.tokenizers import default_tokenizer, encode_documents, load_tokenizer, tokenizer_for
from tests.fixtures.llama2c_files import SPECIAL, script, tokenizer_bytes
from tests.fixtures.sentence_pieces import sentence_piece_model

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
WORDS = st.text(st.sampled_from("  \n\tabcdeE 0123.,'éß日🎉\u00a0\u2581"), max_size=80)
CORPUS = [path.read_text() for path in sorted(Path(bpe.__file__).parent.glob("*.py"))]


def small_scored() -> bpe.LibraryTokenizer:
    """A converted llama2.c tokenizer with every byte and a few joined pieces."""
    joined = ["th", "the", " t", " th", " the", "ab", "bc", "abc", "  ", "    "]
    singles = [" ", *"abcdefghijklmnopqrstuvwxyz", "é"]
    scores = [0.0] * 259 + [-float(i) for i in range(len(joined))] + [-100.0] * len(singles)
    data = tokenizer_bytes([*SPECIAL, *joined, *singles], scores)
    return bpe.from_json(json.dumps(script().to_tokenizer(*script().read_pieces(data, "small"))), "small", "</s>")


MAKERS = {
    "bytes": ByteTokenizer,
    "bpe": lambda: bpe.train_bpe(CORPUS, 300),
    "scored": small_scored,
}


@pytest.fixture(scope="module", params=MAKERS)
def tokenizer(request):
    return MAKERS[request.param]()


@pytest.fixture(scope="module")
def by_hand():
    return {name: make() for name, make in MAKERS.items()}


@pytest.mark.parametrize("name", MAKERS)
@given(text=ANY_TEXT | WORDS)
@settings(max_examples=150)
def test_text_comes_back(by_hand, name, text):
    tokenizer = by_hand[name]
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32 and ids.ndim == 1
    assert tokenizer.decode(ids) == text
    assert not ids.size or 0 <= ids.min() <= ids.max() < tokenizer.vocab_size


def test_batches_are_single_texts(tokenizer):
    texts = ["the dog", "", " two  spaces", "日本語 é", "the dog"]
    batch = tokenizer.encode_batch(texts)
    assert [ids.tolist() for ids in batch] == [tokenizer.encode(text).tolist() for text in texts]
    assert tokenizer.encode_batch([]) == []


def test_the_bytes_of_tokens_make_up_the_text(tokenizer):
    pieces = tokenizer.token_bytes()
    assert len(pieces) == tokenizer.vocab_size
    text = "the  dog\njumps 123 日本語 é"
    joined = b"".join(pieces[token] for token in tokenizer.encode(text))
    assert joined.removeprefix(b" ").decode() == text


def test_saving_keeps_the_identity(tokenizer, tmp_path):
    path = tokenizer.save(tmp_path)
    text = "the dog jumps 123 é"
    for source in (path, tmp_path):
        loaded = load_tokenizer(source)
        assert type(loaded) is type(tokenizer)
        for fact in ("digest", "vocab_size", "eos_id", "bos_id"):
            assert getattr(loaded, fact) == getattr(tokenizer, fact), fact
        assert loaded.encode(text).tolist() == tokenizer.encode(text).tolist()


@pytest.mark.parametrize("wrong", [-1, 10**6])
def test_ids_outside_the_vocabulary_are_refused(tokenizer, wrong):
    with pytest.raises(InputError, match=f"token id {wrong} is outside"):
        tokenizer.decode([0, wrong])


def test_half_a_surrogate_pair_is_refused(tokenizer):
    for call in (tokenizer.encode, lambda text: tokenizer.encode_batch([text])):
        with pytest.raises(InputError, match="surrogate pair at character 2"):
            call("ab\ud800")


def test_half_a_character_decodes_to_its_sign():
    assert ByteTokenizer().decode([65, 0xC3]) == "A\ufffd"


def test_tokenizer_digests_differ():
    result = [make() for make in MAKERS.values()] + [bpe.train_bpe(CORPUS, 299)]
    assert len({tokenizer.digest for tokenizer in result}) == len(result)


def test_documents_end_with_the_end_of_document(tokenizer):
    texts = [f"the dog {i}" for i in range(70)]
    documents = list(encode_documents(tokenizer, texts))
    plain = [tokenizer.encode(text).tolist() for text in texts]
    assert [ids.tolist() for ids in documents] == [[*ids, tokenizer.eos_id] for ids in plain]
    assert [ids.tolist() for ids in encode_documents(tokenizer, texts, separate=False)] == plain


def test_encoding_is_lazy():
    def texts():
        yield "one"
        raise RuntimeError("read too far")

    assert next(encode_documents(ByteTokenizer(), texts(), batch=1)).tolist() == [*b"one", 0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none", None, "does not exist"),
        ("a.txt", b"plain text, which is no tokenizer", "no tokenizer of a known kind"),
        ("empty.json", b"", "no tokenizer of a known kind"),
        ("tokenizer.json", b'{"model": {"type": "BPE"', "not readable as JSON"),
        ("tokenizer.json", b'{"model": {"type": "Nothing"}}', "not a whole tokenizer.json"),
        ("config.json", b'{"architectures": ["Llama"]}', "JSON, but no tokenizer"),
        ("tokenizer.json", b'{"model": "\xff"}', "not readable as UTF-8"),
        ("encoder.json", b'{"a": 0}', "needs vocab.bpe in the same folder"),
        ("merges.txt", b"#version: 0.2\na b\n", "needs vocab.json in the same folder"),
        ("x.tiktoken", b"IQ== 0\nIg== 1\n", "holds 2 ranks"),
        ("x.tiktoken", b"IQ== 0\n!!!! x\n", "line 2 is not a token"),
        ("tokenizer.bin", b"\x07\0\0\0garbage", "convert_llama2c.py MODEL.bin DIR --tokenizer .*, and name DIR"),
        ("model.gguf", b"GGUF\x03\0\0\0", "is cut short"),
    ],
)
def test_invalid_tokenizer_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load_tokenizer(tmp_path / name)
    assert name in str(caught.value)


def test_model_weights_are_not_read_as_a_tokenizer(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizers, "_LARGEST", 100)
    (tmp_path / "model.bin").write_bytes(b"\1" * 101)
    with pytest.raises(InputError, match="more than the 100 that are read"):
        load_tokenizer(tmp_path / "model.bin")


def test_folders_hold_one_tokenizer(tmp_path):
    with pytest.raises(InputError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)
    for name in ("a.tiktoken", "b.tiktoken"):
        (tmp_path / name).write_bytes(b"IQ== 0\n")
    with pytest.raises(InputError, match="holds 2 tokenizers"):
        load_tokenizer(tmp_path)


def test_tokenizer_config_names_end_of_document(tmp_path):
    trained = bpe.train_bpe(CORPUS, 300)
    trained.save(tmp_path)
    for token in ("q", {"content": "q"}):
        (tmp_path / bpe.CONFIG_FILE).write_text(json.dumps({"eos_token": token}))
        loaded = load_tokenizer(tmp_path)
        assert loaded.eos_id == loaded.encode("q")[0] != trained.eos_id
    (tmp_path / bpe.CONFIG_FILE).write_text(json.dumps({"eos_token": "<none>"}))
    with pytest.raises(InputError, match="no token '<none>'"):
        load_tokenizer(tmp_path)
    (tmp_path / bpe.CONFIG_FILE).write_text("[]")
    with pytest.raises(InputError, match="valid dictionary"):
        load_tokenizer(tmp_path)


def test_two_files_of_another_model_are_refused(tmp_path):
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    (tmp_path / "merges.txt").write_text("")
    (tmp_path / bpe.CONFIG_FILE).write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    with pytest.raises(InputError, match="Qwen2Tokenizer"):
        load_tokenizer(tmp_path)


@pytest.fixture
def small_prose(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    result = corpora.Corpus("prose", tuple(CORPUS), corpora.documents_digest(tuple(CORPUS)))
    monkeypatch.setattr(corpora, "corpus", lambda name: result)
    default_tokenizer.cache_clear()
    yield tmp_path / "cache"
    default_tokenizer.cache_clear()


def test_the_default_is_trained_once_and_fits_the_vocabulary(small_prose, monkeypatch):
    trained = default_tokenizer(600)
    assert trained.name == "bpe-600" and trained.vocab_size == 600
    default_tokenizer.cache_clear()
    monkeypatch.setattr(bpe, "train_bpe", None)
    again = default_tokenizer(600)
    assert (again.digest, again.name, again.eos_id) == (trained.digest, trained.name, trained.eos_id)


def test_a_damaged_cached_tokenizer_is_trained_again(small_prose):
    trained = default_tokenizer(600)
    (path,) = (small_prose / "tokenizers").iterdir()
    path.write_bytes(path.read_bytes()[:-5])
    default_tokenizer.cache_clear()
    assert default_tokenizer(600).digest == trained.digest


def test_the_default_takes_what_the_corpus_supports(small_prose):
    trained = default_tokenizer(50_000)
    assert 512 < trained.vocab_size < 50_000
    assert trained.decode(trained.encode("the quick dog é")) == "the quick dog é"


def test_small_vocabularies_get_bytes():
    assert default_tokenizer(256) == default_tokenizer(511) == ByteTokenizer()
    with pytest.raises(InputError, match="no room for bytes"):
        default_tokenizer(255)


def test_names_of_tokenizers(small_prose, tmp_path):
    assert tokenizer_for("bytes", 4096) == tokenizer_for("byte", 4096) == ByteTokenizer()
    assert tokenizer_for(None, 600) is tokenizer_for("bpe", 600) is tokenizer_for("bpe:600", 4096)
    path = ByteTokenizer().save(tmp_path)
    assert tokenizer_for(path, 4096) == tokenizer_for(str(path), 4096) == ByteTokenizer()
    with pytest.raises(InputError, match="bpe:4096"):
        tokenizer_for("bpe:many", 4096)
    with pytest.raises(InputError, match="tokenizer 'gpt2' does not exist: name bytes, bpe, bpe:4096, a file or a fo"):
        tokenizer_for("gpt2", 4096)


def test_every_kind_of_file_is_found_and_known(tmp_path):
    """By what a file holds and is called; GPT-2's by either of its two."""
    content = json.loads(MAKERS["bpe"]().json_text)
    gpt2 = tmp_path / "gpt2"
    gpt2.mkdir()
    (gpt2 / "small_encoder.json").write_text(json.dumps(content["model"]["vocab"]))
    (gpt2 / "small_vocab.bpe").write_text("\n".join(["#version: 0.2", *map(" ".join, content["model"]["merges"])]))
    (tmp_path / "any.json").write_text(json.dumps(content))
    (tmp_path / "small.model").write_bytes(sentence_piece_model(["Hello world"] * 9, 270))
    existing = {
        gpt2 / "small_encoder.json": (300, 0, None),
        gpt2 / "small_vocab.bpe": (300, 0, None),
        tmp_path / "any.json": (300, 0, None),
        tmp_path / "small.model": (270, 2, 1),
    }
    text = "Hello world"
    ids = {}
    for path, facts in existing.items():
        loaded = load_tokenizer(path)
        assert (loaded.vocab_size, loaded.eos_id, loaded.bos_id) == facts, path.name
        ids[path.name] = loaded.encode(text).tolist()
        assert loaded.decode(ids[path.name]) == text
    assert ids["small_encoder.json"] == ids["small_vocab.bpe"] == ids["any.json"]


def test_gpt2s_two_files_in_a_folder(tmp_path):
    trained = MAKERS["bpe"]()
    model = json.loads(trained.json_text)["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, model["merges"])]))
    sample = " the<|endoftext|>\n\n"
    assert load_tokenizer(tmp_path).encode(sample).tolist() == trained.encode(sample).tolist()
    # The end of a document is that of the config next to them.
    end = {"</s>": len(model["vocab"])}
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"] | end))
    (tmp_path / bpe.CONFIG_FILE).write_text('{"tokenizer_class": "GPT2Tokenizer", "eos_token": "</s>"}')
    loaded = load_tokenizer(tmp_path)
    assert [loaded.eos_id] == list(end.values()) == loaded.encode("</s>").tolist()
    (tmp_path / bpe.CONFIG_FILE).write_text('{"eos_token": {"content": "<end>"}}')
    with pytest.raises(InputError, match="vocab.json has no token '<end>', by which its tokenizer_config.json ends"):
        load_tokenizer(tmp_path)


@pytest.mark.slow
def test_every_shared_tokenizer_is_found_and_known(shared):
    pytest.importorskip("sentencepiece", exc_type=ImportError)
    existing = {
        "tokenizers/gpt2_encoder.json": (50_257, 50_256, None, [15496, 995]),
        "tokenizers/gpt2_vocab.bpe": (50_257, 50_256, None, [15496, 995]),
        "tokenizers/llama2_32k_sentencepiece.model": (32_000, 2, 1, [15043, 3186]),
        "tokenizers/mistral_v1_32k_sentencepiece.model": (32_000, 2, 1, [22557, 1526]),
        "checkpoints/babyllama/tok105.model": (105, 2, 1, None),
    }
    text = "Hello world"
    for name, (vocab_size, eos_id, bos_id, ids) in existing.items():
        loaded = load_tokenizer(shared / name)
        assert (loaded.vocab_size, loaded.eos_id, loaded.bos_id) == (vocab_size, eos_id, bos_id), name
        assert loaded.decode(loaded.encode(text)) == text
        assert ids is None or loaded.encode(text).tolist() == ids
        pieces = loaded.token_bytes()
        assert b"".join(pieces[token] for token in loaded.encode(text)).strip() == text.encode()


def test_a_cached_default_is_of_the_size_and_text_asked_for(small_prose, monkeypatch):
    """A cached vocabulary or corpus is not taken for another."""
    assert [default_tokenizer(size).vocab_size for size in (600, 700)] == [600, 700]
    before = default_tokenizer(600).digest
    texts = tuple(text[::-1] for text in CORPUS)
    other = corpora.Corpus("prose", texts, corpora.documents_digest(texts))
    monkeypatch.setattr(corpora, "corpus", lambda name: other)
    default_tokenizer.cache_clear()
    assert default_tokenizer(600).digest != before
