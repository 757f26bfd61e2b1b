"""Find the tokenizer: in a file or folder of any kind, by a short name, or trained on the built-in text."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import tokenizers
from typing_extensions import TypedDict

from bornbiased_jax import io, schema
from bornbiased_jax.errors import InputError
from bornbiased_jax.schema import Pieces, TokenId, shown, within
from bornbiased_jax.text import bpe, byte_level, cache, corpora, gguf_vocabulary, sentence_piece
from bornbiased_jax.text.byte_level import ByteTokenizer
from bornbiased_jax.text.protocol import Tokenizer, UnknownTokenizerError

# The library's trained format: raised when train_bpe changes, so that no old cached tokenizer is used.
_TRAINING = 1
_LARGEST = 256 * 2**20
MOST_PIECES = 1_000_000
# The file names that say what the other half of a two-file tokenizer is called.
_PAIRS = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))
_IN_FOLDER = (
    bpe.TOKENIZER_FILE,
    byte_level.BYTES_FILE,
    sentence_piece.MODEL_FILE,
    "*.tiktoken",
    "*encoder.json",
    "vocab.json",
    "*.model",
)


class _Model(TypedDict, total=False):
    # A list of pieces with scores for Unigram.
    vocab: dict[str, TokenId] | list[object]


class _Added(TypedDict):
    id: TokenId


class _Token(TypedDict):
    content: str


class ConfigFile(TypedDict, total=False):
    """Of ``tokenizer_config.json`` what is read."""

    eos_token: str | _Token | None
    tokenizer_class: str | None


class TokenizerFile(TypedDict, total=False):
    """Of ``tokenizer.json`` what must be within bounds before the library sees it."""

    model: _Model
    added_tokens: list[_Added] | None


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load a tokenizer from a file, or from a folder that holds one; the kind is told from the content.

    Known are: ``tokenizer.json`` (Hugging Face), GPT-2's ``encoder.json`` with ``vocab.bpe`` (either may be
    named), SentencePiece ``.model``, tiktoken rank files, GGUF files, and what :meth:`Tokenizer.save` writes.

    Raises:
        InputError: the file is missing, corrupted or of no known kind, or needs an extra that is not installed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = ByteTokenizer().save(folder)
    ...     load_tokenizer(file).name, load_tokenizer(folder).vocab_size
    ('bytes', 256)
    """
    path = io.user_path(path)
    if path.is_dir():
        path = _in_folder(path)
    try:
        with io.check_regular(path).open("rb") as stream:
            is_gguf = stream.read(4) == b"GGUF"
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    if is_gguf:
        return gguf_vocabulary.from_gguf(path)
    data = io.read_bytes(path, _LARGEST)
    name = path.name
    # The content tells the kind, except for GPT-2's merges, which their name tells.
    if data.lstrip()[:1] == b"{":
        return _from_json(path)
    if name.endswith(tuple(merges for _, merges in _PAIRS)):
        return _from_pair(path)
    if _is_rank_file(data):
        return bpe.from_tiktoken(data, name)
    if name.endswith(".bin"):
        raise InputError(
            f"{path} is not opened as it is: if it is a llama2.c tokenizer, convert it with its model, "
            f"`python docs/guides/convert_llama2c.py MODEL.bin DIR --tokenizer {path}`, and name DIR"
        )
    # A SentencePiece model is a protocol buffer whose first field, of bytes, is a piece.
    if data[:1] == b"\x0a":
        model = sentence_piece.SentencePieceTokenizer(name, data)
        if model.vocab_size:
            return model
    raise UnknownTokenizerError(
        f"{path} is no tokenizer of a known kind: name a tokenizer.json, encoder.json, .model, .tiktoken or .gguf"
    )


def _in_folder(folder: Path) -> Path:
    for pattern in _IN_FOLDER:
        matches = sorted(folder.glob(pattern))
        if len(matches) > 1:
            raise InputError(
                f"{folder} holds {len(matches)} tokenizers ({matches[0].name}, {matches[1].name}, …): name one"
            )
        if matches:
            return matches[0]
    raise InputError(f"{folder} holds no tokenizer: name a tokenizer file")


def _is_rank_file(data: bytes) -> bool:
    words = data[:4096].split(b"\n", 1)[0].split()
    return len(words) == 2 and words[1].isdigit() and data[:4096].isascii()


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not readable as UTF-8 text: put the model's own there") from error


def _from_json(path: Path) -> Tokenizer:
    content = schema.parse_json(_read_text(path), str(path))
    if content == byte_level.IDENTITY:
        return ByteTokenizer()
    if "model" in content and not bpe.is_vocabulary(content):
        # The library reserves memory for the largest id.
        schema.check(TokenizerFile, content, str(path))
        return bpe.from_json(_read_text(path), path.name, _eos_token(path.parent))
    return _from_pair(path)


def _config(folder: Path) -> ConfigFile:
    path = folder / bpe.CONFIG_FILE
    config: ConfigFile = schema.check(ConfigFile, io.read_json(path), str(path)) if path.is_file() else {}
    return config


def _eos_token(folder: Path) -> str | None:
    """Return the end of a document that ``tokenizer_config.json`` names, if there is one."""
    token = _config(folder).get("eos_token")
    return token["content"] if isinstance(token, dict) else token


def _from_pair(path: Path) -> Tokenizer:
    """Read GPT-2's two files, whichever of them is named; they differ in name only after a common beginning."""
    for pair in _PAIRS:
        for ending, partner in (pair, pair[::-1]):
            if path.name.endswith(ending):
                stem = path.name.removesuffix(ending)
                vocab, merges = (path.with_name(stem + half) for half in pair)
                missing = path.with_name(stem + partner)
                if not missing.is_file():
                    raise InputError(f"{path} needs {missing.name} in the same folder: put it there")
                _refuse_other_classes(path.parent)
                return bpe.from_gpt2(_read_text(vocab), _read_text(merges), vocab.name, _eos_token(path.parent))
    raise InputError(f"{path} is JSON, but no tokenizer: name a tokenizer.json, or encoder.json next to vocab.bpe")


def _refuse_other_classes(folder: Path) -> None:
    """Refuse models that store their merges in the same two files but cut words differently."""
    kind = str(_config(folder).get("tokenizer_class") or "GPT2Tokenizer")
    if not kind.startswith("GPT2"):
        raise UnknownTokenizerError(
            f"{folder} has the two files of a {kind}, which cuts words its own way: give a tokenizer.json"
        )


@functools.lru_cache(maxsize=8)
def default_tokenizer(vocab_size: int) -> Tokenizer:
    """Return the tokenizer for a model that brings none: a BPE trained on ``builtin:prose``, and cached.

    It has ``vocab_size`` pieces or as many as the corpus supports. Below 512 it is bytes.

    Raises:
        InputError: the vocabulary is smaller than 256.
    """
    if vocab_size < 256:
        raise InputError(f"a vocabulary of {vocab_size} has no room for bytes: name a tokenizer file for text")
    if vocab_size < 512:
        return ByteTokenizer()
    # The corpus supports fewer pieces than that by far.
    vocab_size = min(vocab_size, MOST_PIECES)
    corpus = corpora.corpus("prose")
    identity = json.dumps([_TRAINING, corpus.digest, vocab_size, tokenizers.__version__])
    slot = f"tokenizers/bpe-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json.z"
    stored = cache.load(slot)
    if stored is not None:
        loaded = bpe.from_json(stored.decode(), "", bpe.END_OF_TEXT)
        return bpe.LibraryTokenizer(f"bpe-{loaded.vocab_size}", loaded.json_text, loaded.eos_id)
    trained = bpe.train_bpe(corpus.documents, vocab_size)
    cache.store(slot, trained.json_text.encode())
    return trained


def tokenizer_for(spec: str | Path | None, vocab_size: int) -> Tokenizer:
    """Return the tokenizer that a user names, for a model with this vocabulary.

    Args:
        spec: ``bytes``; ``bpe`` or None (:func:`default_tokenizer`); ``bpe:4096`` (the same of another size);
            or a path (:func:`load_tokenizer`).
        vocab_size: of the model.

    Raises:
        InputError: no such tokenizer, or a corrupted one.
    """
    name = "bpe" if spec is None else str(spec)
    if name in ("byte", "bytes"):
        return ByteTokenizer()
    if name == "bpe":
        return default_tokenizer(vocab_size)
    if name.startswith("bpe:"):
        size = name.removeprefix("bpe:")
        if not (size.isdecimal() and size.isascii() and len(size) < 10):
            raise InputError(f"tokenizer {shown(name)} has no number of pieces: write it as bpe:4096")
        return default_tokenizer(within(Pieces, int(size), "the pieces of bpe:N"))
    if not io.user_path(name).exists():
        raise InputError(f"tokenizer {shown(name)} does not exist: name bytes, bpe, bpe:4096, a file or a folder")
    return load_tokenizer(name)


def fits_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> bool:
    """Tell whether a model of this vocabulary has all of a tokenizer's ids, but for tokens added after training."""
    added = tokenizer.backend.get_added_tokens_decoder() if isinstance(tokenizer, bpe.LibraryTokenizer) else {}
    return all(token in added for token in range(vocab_size, tokenizer.vocab_size))


def encode_documents(
    tokenizer: Tokenizer, documents: Iterable[str], *, separate: bool = True, batch: int = 32
) -> Iterator[np.ndarray]:
    """Encode documents lazily, int32 [T] each.

    Args:
        tokenizer: turns text to ids.
        documents: the texts.
        separate: put ``eos_id``, if there is one, after each document.
        batch: how many documents are read and encoded together, in parallel where the tokenizer can.
    """
    iterator = iter(documents)
    end = np.asarray([tokenizer.eos_id] if separate and tokenizer.eos_id is not None else [], np.int32)
    while texts := list(islice(iterator, batch)):
        for ids in tokenizer.encode_batch(texts):
            yield np.concatenate([ids, end]) if end.size else ids
