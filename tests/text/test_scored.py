"""Greedy joining by score, against a plain restatement of llama2.c's loop and against SentencePiece."""

import dataclasses
import struct
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from bornbiased_jax.errors import InputError
from bornbiased_jax.text import scored
from bornbiased_jax.text.scored import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED
from bornbiased_jax.text.tokenizers import load_tokenizer
from tests.fixtures.llama2c_files import SPECIAL, write
from tests.fixtures.llama2c_files import tokenizer_bytes as file_of
from tests.fixtures.sentence_pieces import sentence_piece_model


def llama2c_loop(tokenizer: scored.ScoredTokenizer, text: str) -> list[int]:
    """llama2.c's encode: characters (or bytes), then the best neighbours joined until none can be."""
    ids_of = {}
    for token, piece in enumerate(tokenizer.pieces):
        ids_of.setdefault(piece, token)
    ids = []
    for character in (" " + text) if text else "":
        spelled = [byte + 3 for byte in character.encode()]
        ids.extend([ids_of[character]] if character in ids_of else spelled)
    while True:
        best = None
        for i in range(len(ids) - 1):
            token = ids_of.get(tokenizer.pieces[ids[i]] + tokenizer.pieces[ids[i + 1]])
            if token is not None and (best is None or tokenizer.scores[token] > best[0]):
                best = (tokenizer.scores[token], i, token)
        if best is None:
            return ids
        ids[best[1] : best[1] + 2] = [best[2]]


@st.composite
def vocabularies(draw):
    """Tokenizers over three letters and spaces, with joined pieces of random scores, ties included."""
    joined = draw(st.lists(st.text("ab ", min_size=2, max_size=4), unique=True, max_size=14))
    scores = draw(st.lists(st.integers(-3, 3), min_size=len(joined), max_size=len(joined)))
    pieces = [*SPECIAL, *"ab ", *joined]
    return scored.from_llama2c(file_of(pieces, [0.0] * 259 + [-9.0] * 3 + list(map(float, scores))), "x")


@given(tokenizer=vocabularies(), text=st.text("ab é", max_size=24))
def test_joining_is_llama2cs(tokenizer, text):
    ids = tokenizer.encode(text).tolist()
    assert ids == llama2c_loop(tokenizer, text)
    assert tokenizer.decode(ids) == text


def library_ids(tokenizer: scored.ScoredTokenizer, text: str) -> list[int]:
    """Byte-fallback BPE by the library: pairs ranked by the score of the piece they make."""
    plain = {piece: token for token, piece in enumerate(tokenizer.pieces) if tokenizer.types[token] == NORMAL}
    halves = [
        (-tokenizer.scores[token], token, piece[:cut], piece[cut:])
        for piece, token in plain.items()
        for cut in range(1, len(piece))
        if piece[:cut] in plain and piece[cut:] in plain
    ]
    vocabulary = {f"<0x{value:02X}>": value + 3 for value in range(256)} | plain
    merges = [(left, right) for _, _, left, right in sorted(halves)]
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True))
    return library.encode(" " + text, add_special_tokens=False).ids if text else []


@given(tokenizer=vocabularies(), text=st.text("ab é\n<0x41>", max_size=40))
def test_joining_by_distinct_scores_is_the_librarys(tokenizer, text):
    distinct = tuple(score + 1e-3 * place for place, score in enumerate(tokenizer.scores))
    tokenizer = dataclasses.replace(tokenizer, scores=distinct, _words={})
    assert tokenizer.encode(text).tolist() == library_ids(tokenizer, text)


def test_joining_is_llama2cs_on_stories(shared):
    tokenizer = load_tokenizer(shared / "checkpoints" / "stories260K" / "tok512.bin")
    stories = (shared / "data" / "tinystories" / "tinystories_10k.txt").read_text()
    for text in (*stories[:12_000].split("\n"), "", " ", "  two", "“Curly”\té日🎉"):
        ids = tokenizer.encode(text).tolist()
        assert ids == llama2c_loop(tokenizer, text)
        assert tokenizer.decode(ids) == text
    # What llama2.c's readme run begins with.
    assert tokenizer.decode([1, *tokenizer.encode("Once upon a time"), 2]) == "Once upon a time"


def as_scored(theirs) -> scored.ScoredTokenizer:
    """Our tokenizer of a SentencePiece model's pieces, scores and kinds."""
    processor = theirs.processor
    types = [
        UNKNOWN
        if processor.is_unknown(token)
        else CONTROL
        if processor.is_control(token)
        else BYTE
        if processor.is_byte(token)
        else NORMAL
        for token in range(theirs.vocab_size)
    ]
    return scored.ScoredTokenizer(
        "ours",
        tuple(processor.id_to_piece(i).replace("\u2581", " ") for i in range(theirs.vocab_size)),
        tuple(processor.get_score(i) for i in range(theirs.vocab_size)),
        tuple(types),
        eos_id=2,
        bos_id=1,
        escaped=True,
    )


def agree(theirs, *texts):
    ours = as_scored(theirs)
    for text in (*texts, "  é\u2581日本語🎉\t\n  x = 1234  \n", "<s> </s> <0x0A>"):
        assert ours.encode(text).tolist() == theirs.encode(text).tolist()
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))


def test_joining_is_sentencepieces(tmp_path):
    corpus = [line for line in Path(scored.__file__).read_text().splitlines() if line.strip()]
    (tmp_path / "tokenizer.model").write_bytes(sentence_piece_model(corpus, 500))
    agree(load_tokenizer(tmp_path), "\n".join(corpus))


@pytest.mark.parametrize("name", ["llama2_32k_sentencepiece.model", "mistral_v1_32k_sentencepiece.model"])
def test_joining_is_sentencepieces_with_real_models(shared, name):
    pytest.importorskip("sentencepiece", exc_type=ImportError)
    shakespeare = (shared / "data" / "tinyshakespeare" / "input.txt").read_text()
    agree(load_tokenizer(shared / "tokenizers" / name), shakespeare[:60_000])


def test_user_defined_pieces_are_cut_out_whole():
    pieces = ("<unk>", "a", "b", " ", "ab", "<|x|>", "<|x|>y", "<s>")
    types = (UNKNOWN, NORMAL, NORMAL, NORMAL, NORMAL, USER_DEFINED, USER_DEFINED, CONTROL)
    tokenizer = scored.ScoredTokenizer("x", pieces, (0.0,) * 8, types, None, None, space_prefix=False)
    assert tokenizer.encode("ab<|x|>yab<|x|>a").tolist() == [4, 6, 4, 5, 1]
    # A character without a piece or bytes is the unknown piece; control pieces are never made from text.
    assert tokenizer.encode("a<").tolist() == [1, 0]
    assert tokenizer.decode([7, 4, 5]) == "ab<|x|>"


def test_without_an_unknown_piece_the_text_is_refused():
    tokenizer = scored.ScoredTokenizer("x", ("a", " "), (0.0, 0.0), (NORMAL, NORMAL), None, None)
    assert tokenizer.encode("a a").tolist() == [1, 0, 1, 0]
    with pytest.raises(InputError, match="no piece for 'é'"):
        tokenizer.encode("é")


def test_long_words_are_joined_in_good_time():
    pieces = [*SPECIAL, "a", "aa", "aaaa", " "]
    tokenizer = scored.from_llama2c(file_of(pieces, [0.0] * 259 + [-3.0, -2.0, -1.0, -9.0]), "x")
    # A loop that looks for the best pair anew after each join would need 1e10 steps.
    ids = tokenizer.encode("a" * 200_001)
    assert ids.tolist() == [262, *[261] * 50_000, 259]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:3],
        lambda data: data[:-1],
        lambda data: data[:50],
        lambda data: struct.pack("<i", 999) + data[4:],
        lambda data: data[:8] + struct.pack("<i", -5) + data[12:],
        lambda data: data[:-1] + b"\xff",
        lambda data: data[:4] + struct.pack("<f", float("nan")) + data[8:],
    ],
)
def test_damaged_files_are_refused(damage):
    whole = file_of([*SPECIAL, "a", "b"], [0.0] * 261)
    assert scored.from_llama2c(whole, "x").vocab_size == 261
    with pytest.raises(InputError, match="not a whole llama2.c tokenizer"):
        scored.from_llama2c(damage(whole), "x")


def test_a_checkpoint_is_not_a_tokenizer(tmp_path):
    write(tmp_path / "model.bin", tied=True)
    with pytest.raises(InputError, match="not a whole llama2.c tokenizer"):
        load_tokenizer(tmp_path / "model.bin")


def test_lengths_and_ids_must_fit():
    with pytest.raises(InputError, match="2 pieces, 1 scores"):
        scored.ScoredTokenizer("x", ("a", "b"), (0.0,), (1, 1), None, None)
    with pytest.raises(InputError, match="token id 5 is outside"):
        scored.ScoredTokenizer("x", ("a", "b"), (0.0, 0.0), (1, 1), 5, None)


def test_llama2cs_first_ids_begin_and_end_a_text():
    tokenizer = scored.from_llama2c(file_of([*SPECIAL, "a", "b"], [0.0] * 261), "x")
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
    assert tokenizer.types[:4] == (UNKNOWN, CONTROL, CONTROL, BYTE)


@pytest.mark.parametrize(
    "change",
    [
        {"pieces": ("a", "c", "ab")},
        {"scores": (0.0, 0.0, 2.0)},
        {"types": (NORMAL, NORMAL, CONTROL)},
        {"eos_id": 1},
        {"bos_id": 1},
        {"space_prefix": False},
        {"escaped": True},
    ],
)
def test_whatever_changes_ids_changes_the_digest(change):
    fields = dict(pieces=("a", "b", "ab"), scores=(0.0, 0.0, 1.0), types=(NORMAL,) * 3, eos_id=None, bos_id=None)
    tokenizer = scored.ScoredTokenizer("x", **fields)
    assert scored.ScoredTokenizer("y", **fields).digest == tokenizer.digest
    assert scored.ScoredTokenizer("x", **{**fields, **change}).digest != tokenizer.digest
