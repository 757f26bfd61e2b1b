"""Tokenizers run by the library ``tokenizers``: tokenizer.json, GPT-2's files, tiktoken ranks, trained."""

from __future__ import annotations

import base64
import binascii
import contextlib
import dataclasses
import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from bornbiased_jax import io
from bornbiased_jax.errors import InputError
from bornbiased_jax.schema import TokenId, cut, ends, parse_json, shown
from bornbiased_jax.text.protocol import ESCAPED_SPACE, checked_ids, checked_text, named_byte

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
END_OF_TEXT = "<|endoftext|>"
_LARGEST_ID = (ends(TokenId) or (int, 0, 0))[2]
# Tried in this order when no other file of a tokenizer says which token ends a document.
_END_TOKENS = (END_OF_TEXT, "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>")

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s+(?!\S)|\s+"
GPT2_PATTERN = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|" + _SPACES
CL100K_PATTERN = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
QWEN_PATTERN = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
O200K_PATTERN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{_SPACES}"
)


def _byte_characters() -> dict[int, str]:
    """Return GPT-2's printable character for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    unprintable = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(unprintable)}


BYTE_CHARACTERS = _byte_characters()
CHARACTER_BYTES = {character: byte for byte, character in BYTE_CHARACTERS.items()}


_SILENCE = threading.Lock()


@contextlib.contextmanager
def _panics(name: str) -> Iterator[None]:
    """Refuse a file that fits the library's types but ends its code, past every ``except Exception``."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # it has no name to import
            raise
        raise InputError(
            f"{name} is not a whole tokenizer.json: {cut(str(error))}; put the model's own there"
        ) from error


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Silence descriptor 2, where the library reports a panic by itself, with its whole call stack.

    One thread at a time: a second one would save, and later restore, what the first one put there.
    """
    with _SILENCE:
        try:
            saved = os.dup(2)
        except OSError:  # it is closed
            yield
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, 2)
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            os.close(nowhere)


@dataclass(frozen=True, eq=False)
class LibraryTokenizer:
    """A tokenizer of the ``tokenizers`` library, given by the text of its ``tokenizer.json``."""

    name: str
    json_text: str
    eos_id: int | None

    @cached_property
    def backend(self) -> tokenizers.Tokenizer:
        """The library's object, without padding and truncation."""
        try:
            with _panics(self.name), _silent():
                backend = tokenizers.Tokenizer.from_str(self.json_text)
        except InputError:
            raise
        except Exception as error:  # the library raises bare exceptions
            raise InputError(f"{self.name} is not a whole tokenizer.json: {cut(str(error))}") from error
        backend.no_padding()
        backend.no_truncation()
        return backend

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the tokenizer.json."""
        return hashlib.sha256(self.json_text.encode()).hexdigest()

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id, added tokens included."""
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def bos_id(self) -> int | None:
        """The id that the file's post-processor puts before a text, if it does."""
        plain = self.backend.encode("a", add_special_tokens=False).ids
        full = self.backend.encode("a", add_special_tokens=True).ids
        return full[0] if len(full) > len(plain) and full[:1] != plain[:1] else None

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text, int32 [T]. Special tokens spelled out in the text become their ids."""
        with _panics(self.name):
            return np.asarray(self.backend.encode(checked_text(text), add_special_tokens=False).ids, np.int32)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each of several texts, in the library's threads."""
        with _panics(self.name):
            encodings = self.backend.encode_batch_fast([checked_text(text) for text in texts], add_special_tokens=False)
        return [np.asarray(encoding.ids, np.int32) for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, special tokens spelled out."""
        with _panics(self.name):
            return str(self.backend.decode(checked_ids(ids, self.vocab_size), skip_special_tokens=False))

    def token_bytes(self) -> list[bytes | None]:
        """Return the bytes of each token; added tokens as they are written."""
        by_bytes = "ByteLevel" in f"{self.backend.pre_tokenizer}{self.backend.decoder}"
        added = self.backend.get_added_tokens_decoder()
        piece_bytes: list[bytes | None] = [None] * self.vocab_size
        for piece, token in self.backend.get_vocab(with_added_tokens=True).items():
            if token in added:
                content = added[token].content
                # One that is looked for in normalized text stands for what that text was.
                piece_bytes[token] = (
                    content.replace(ESCAPED_SPACE, " ") if added[token].normalized else content
                ).encode()
            elif by_bytes and all(character in CHARACTER_BYTES for character in piece):
                piece_bytes[token] = bytes(CHARACTER_BYTES[character] for character in piece)
            else:
                piece_bytes[token] = named_byte(piece) or piece.replace(ESCAPED_SPACE, " ").encode()
        return piece_bytes

    def save(self, folder: str | Path) -> Path:
        """Write ``tokenizer.json``, and ``tokenizer_config.json`` that names beginning and end of a document."""
        ids = {"bos_token": self.bos_id, "eos_token": self.eos_id}
        tokens = {name: self.backend.id_to_token(token) for name, token in ids.items() if token is not None}
        # Without a class transformers takes that of the model's family, which cuts words its own way.
        io.write_json(Path(folder) / CONFIG_FILE, {"tokenizer_class": "PreTrainedTokenizerFast", **tokens})
        return io.write_text(Path(folder) / TOKENIZER_FILE, self.json_text)


def from_json(text: str, name: str, eos_token: str | None = None) -> LibraryTokenizer:
    """Read a ``tokenizer.json``; ``eos_token`` ends a document, else the first usual one that it has.

    Raises:
        InputError: the text is not a tokenizer, or lacks the token.
    """
    return _build(LibraryTokenizer(name, text, None).backend, name, eos_token, text)


def _build(backend: tokenizers.Tokenizer, name: str, eos_token: str | None, text: str = "") -> LibraryTokenizer:
    candidates = (eos_token,) if eos_token else _END_TOKENS
    ids = [backend.token_to_id(token) for token in candidates]
    eos_id = next((token for token in ids if token is not None), None)
    if eos_token and eos_id is None:
        raise InputError(
            f"{name} has no token {shown(eos_token)}, by which its {CONFIG_FILE} ends a document: correct that"
        )
    tokenizer = LibraryTokenizer(name, text or backend.to_str(), eos_id)
    # Large vocabularies take seconds to parse: keep the object that is already there.
    tokenizer.__dict__["backend"] = backend
    if tokenizer.vocab_size == 0:
        raise InputError(f"{name} has an empty vocabulary: name another tokenizer")
    return tokenizer


@dataclass(frozen=True)
class ByteLevel:
    """Choices of a byte-level BPE besides its vocabulary and merges.

    Attributes:
        patterns: regular expressions that cut the text into words, one after the other.
        special: special tokens and their ids.
        added: pieces of the vocabulary that are cut out of a text unsplit.
        eos_token: the special token that ends a document.
        bos_token: the special token that stands before a text.
        ignores_merges: a word that is in the vocabulary is one piece, merges or not.
        nfc: the text is normalized to NFC first.
    """

    patterns: Sequence[str] = (GPT2_PATTERN,)
    special: dict[str, int] = field(default_factory=dict)
    added: Sequence[str] = ()
    eos_token: str | None = None
    bos_token: str | None = None
    ignores_merges: bool = False
    nfc: bool = False


def from_byte_level(
    vocab: dict[str, int], merges: list[tuple[str, str]], name: str, scheme: ByteLevel
) -> LibraryTokenizer:
    """Build a byte-level BPE from its vocabulary (in GPT-2's printable spelling of bytes) and merges.

    Args:
        vocab: piece to id, without the special tokens that ``scheme.special`` has.
        merges: pairs, first joined first.
        name: what to call it.
        scheme: the other choices.

    Raises:
        InputError: a printable ASCII character has no piece, a merge is of unknown pieces,
            or an id is used twice.
    """
    # Real vocabularies lack some control characters and bytes that UTF-8 never uses, but no printable one.
    missing = [chr(byte) for byte in range(32, 127) if BYTE_CHARACTERS[byte] not in vocab]
    if missing:
        raise InputError(f"{name} has no piece for {missing[0]!r}: it is not a whole byte-level vocabulary")
    # Each id belongs to a single piece.
    ids = {**vocab, **scheme.special}
    if len(set(ids.values())) != len(ids) or min(ids.values()) < 0:
        raise InputError(f"{name} gives one id to two pieces: it is corrupted")
    try:
        backend = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=scheme.ignores_merges))
    except Exception as error:  # the library raises bare exceptions
        raise InputError(f"{name} is not a whole byte-pair encoding: {error}") from error
    # Cut the text into words, spell their bytes in printable characters.
    splits = [pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated") for pattern in scheme.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    backend.decoder = decoders.ByteLevel()
    if scheme.nfc:
        backend.normalizer = normalizers.NFC()
    # In the order of their ids: the library keeps the ids that the vocabulary already gives them.
    by_id = sorted(scheme.special, key=lambda token: ids[token])
    backend.add_special_tokens([tokenizers.AddedToken(token, normalized=False, special=True) for token in by_id])
    backend.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in scheme.added])
    bos = scheme.bos_token
    if bos is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=None, special_tokens=[(bos, ids[bos])]
        )
    return _build(backend, name, scheme.eos_token)


def from_gpt2(vocab_text: str, merges_text: str, name: str, eos_token: str | None = None) -> LibraryTokenizer:
    """Read GPT-2's ``encoder.json`` (or ``vocab.json``) and ``vocab.bpe`` (or ``merges.txt``).

    ``eos_token`` ends a document, else ``<|endoftext|>`` if the vocabulary has it.

    Raises:
        InputError: either is corrupted, or they do not belong together.
    """
    vocab = parse_json(vocab_text, name)
    if not is_vocabulary(vocab):
        raise InputError(f"{name} is not a map from pieces to ids: put the model's own there")
    merges = []
    for number, line in enumerate(merges_text.split("\n"), start=1):
        if line.strip() and not (number == 1 and line.startswith("#version")):
            left, _, right = line.rstrip("\r").partition(" ")
            if not left or not right or " " in right:
                raise InputError(f"{name}: line {number} of its merges is not two pieces: put the model's own there")
            merges.append((left, right))
    special = {token: vocab[token] for token in filter(None, (eos_token, END_OF_TEXT)) if token in vocab}
    pieces = {piece: token for piece, token in vocab.items() if piece not in special}
    merged = {left + right for left, right in merges}
    # Special tokens are no sums of others.
    plain = (piece for piece in pieces if not (piece.startswith("<") and piece.endswith(">")))
    unmade = [piece for piece in plain if len(piece) > 1 and piece not in merged]
    if unmade:
        raise InputError(
            f"{name} has {len(unmade)} pieces that no merge makes ({unmade[0]!r}): put the model's own there"
        )
    return from_byte_level(
        pieces, merges, name, ByteLevel(special=special, eos_token=eos_token or next(iter(special), None))
    )


def is_vocabulary(value: object) -> bool:
    """Return whether a JSON value is a non-empty map from pieces to ids."""
    # The library reserves memory for the largest id.
    return (
        isinstance(value, dict)
        and bool(value)
        and all(type(token) is int and 0 <= token <= _LARGEST_ID for token in value.values())
    )


def _llama3_special() -> dict[str, int]:
    reserved = "<|reserved_special_token_{}|>".format
    names = ["<|begin_of_text|>", "<|end_of_text|>", *map(reserved, range(4))]
    names += [
        "<|start_header_id|>",
        "<|end_header_id|>",
        reserved(4),
        "<|eot_id|>",
        *map(reserved, range(5, 251)),
    ]
    return {name: 128_000 + i for i, name in enumerate(names)}


def _qwen_special() -> dict[str, int]:
    names = [END_OF_TEXT, "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))]
    return {name: 151_643 + i for i, name in enumerate(names)}


# A rank file holds neither its word pattern nor its special tokens: it is known by its number of ranks.
TIKTOKEN_SCHEMES = {
    50_256: ByteLevel(patterns=[GPT2_PATTERN], special={END_OF_TEXT: 50_256}, eos_token=END_OF_TEXT),
    100_256: ByteLevel(
        patterns=[CL100K_PATTERN],
        special={
            END_OF_TEXT: 100_257,
            "<|fim_prefix|>": 100_258,
            "<|fim_middle|>": 100_259,
            "<|fim_suffix|>": 100_260,
            "<|endofprompt|>": 100_276,
        },
        eos_token=END_OF_TEXT,
    ),
    128_000: ByteLevel(
        patterns=[CL100K_PATTERN],
        special=_llama3_special(),
        eos_token="<|end_of_text|>",
        bos_token="<|begin_of_text|>",
    ),
    151_643: ByteLevel(patterns=[QWEN_PATTERN], special=_qwen_special(), eos_token=END_OF_TEXT, nfc=True),
    199_998: ByteLevel(
        patterns=[O200K_PATTERN],
        special={END_OF_TEXT: 199_999, "<|endofprompt|>": 200_018},
        eos_token=END_OF_TEXT,
    ),
}


def from_tiktoken(data: bytes, name: str) -> LibraryTokenizer:
    """Read a rank file of tiktoken: a line for each token, its bytes in base64 and its rank.

    The ranks of GPT-2 (r50k), cl100k, o200k, Llama-3 and Qwen are known.

    Raises:
        InputError: the file is corrupted, or of another vocabulary.
    """
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            encoded, rank = line.split()
            ranks[base64.b64decode(encoded, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise InputError(
                f"{name}: line {number} is not a token in base64 and a rank: put the model's own there"
            ) from error
    # The number of ranks tells the word pattern and the special tokens.
    scheme = TIKTOKEN_SCHEMES.get(len(ranks))
    if scheme is None or sorted(ranks.values()) != list(range(len(ranks))):
        sizes = ", ".join(f"{count:,}" for count in TIKTOKEN_SCHEMES)
        raise InputError(
            f"{name} holds {len(ranks):,} ranks, which is no known vocabulary ({sizes}): convert it to a tokenizer.json"
        )
    spelled = {token: "".join(BYTE_CHARACTERS[byte] for byte in token) for token in ranks}
    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        # tiktoken joins any neighbors whose sum is a token, lowest rank first: all ways to halve a token.
        for half in range(1, len(token)):
            left, right = spelled.get(token[:half]), spelled.get(token[half:])
            if left is not None and right is not None:
                merges.append((left, right))
    vocab = {spelled[token]: rank for token, rank in ranks.items()}
    return from_byte_level(vocab, merges, name, dataclasses.replace(scheme, ignores_merges=True))


def train_bpe(documents: Iterable[str], vocab_size: int) -> LibraryTokenizer:
    """Train a byte-level BPE on documents; the same documents give the same tokenizer.

    Words are cut as GPT-2 does; pairs seen once are not joined; id 0 is ``<|endoftext|>`` and ends documents.

    Args:
        documents: the texts.
        vocab_size: how many ids, at least 257; fewer come of a text that does not support so many.

    Raises:
        InputError: the size is too small.
    """
    if vocab_size < 257:
        raise InputError(f"vocab_size={vocab_size} is too small for a byte-level BPE: take at least 257, or bytes")
    # A byte-level model with GPT-2's words.
    backend = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(tokenizers.Regex(GPT2_PATTERN), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    backend.decoder = decoders.ByteLevel()
    # All bytes are pieces from the start.
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(BYTE_CHARACTERS.values()),
    )
    backend.train_from_iterator(map(checked_text, documents), trainer)
    return _build(backend, f"bpe-{backend.get_vocab_size()}", END_OF_TEXT)
