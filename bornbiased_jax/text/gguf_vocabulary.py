"""The tokenizer that a GGUF file carries in its metadata."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import tokenizers
from tokenizers import decoders, models, normalizers, processors
from typing_extensions import TypedDict

from bornbiased_jax import schema
from bornbiased_jax.errors import InputError, cut_short
from bornbiased_jax.text import bpe
from bornbiased_jax.text.protocol import ESCAPED_SPACE, UnknownTokenizerError

# Values of tokenizer.ggml.token_type; 5 is unused.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

_DIGITS = (r"\p{N}", bpe.GPT2_PATTERN)
# How llama.cpp cuts words for each value of tokenizer.ggml.pre (llama-vocab.cpp): patterns, and whether
# a word of the vocabulary is one piece.
_PRE_TOKENIZERS: dict[str, tuple[tuple[str, ...], bool]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo"), ((bpe.GPT2_PATTERN,), False)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), (_DIGITS, False)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), ((bpe.CL100K_PATTERN,), True)),
    **dict.fromkeys(("dbrx", "smaug-bpe"), ((bpe.CL100K_PATTERN,), False)),
    **dict.fromkeys(("qwen2", "stablelm2"), ((bpe.QWEN_PATTERN,), False)),
}
_PREFIX = "tokenizer.ggml."
HOW_TO_CONVERT = "convert the model again, with llama.cpp's convert_hf_to_gguf.py"


class Metadata(TypedDict, total=False):
    """Fields of a file about its tokenizer, with the types that llama.cpp writes."""

    model: str
    pre: str
    tokens: list[str]
    token_type: list[int]
    scores: list[float]
    merges: list[str]
    bos_token_id: int
    eos_token_id: int
    add_bos_token: bool
    add_space_prefix: bool


def from_gguf(path: str | Path) -> bpe.LibraryTokenizer:
    """Read the tokenizer in a GGUF file: byte-level BPE ("gpt2") or BPE by the scores of pieces ("llama").

    Raises:
        InputError: the file is corrupted, has no tokenizer, or one of another kind.
    """
    metadata = _metadata(Path(path))
    kind = metadata.get("model")
    if kind is None or "tokens" not in metadata:
        raise UnknownTokenizerError(f"{path} carries no tokenizer: name one")
    pieces = metadata["tokens"]
    types = [int(value) for value in metadata.get("token_type") or [NORMAL] * len(pieces)]
    if len(types) != len(pieces):
        raise InputError(f"{path} is corrupted: {len(pieces)} tokens, {len(types)} token types; name a tokenizer file")
    if kind == "llama":
        return _scored(metadata, pieces, types, str(path))
    if kind == "gpt2":
        return _byte_level(metadata, pieces, types, str(path))
    raise UnknownTokenizerError(
        f"{path} has a tokenizer of kind {kind!r}; gpt2 and llama are known: name a tokenizer file"
    )


def unreadable(path: Path) -> InputError:
    """Return the error of a file that the library's reader does not get through, for the caller to raise."""
    with path.open("rb") as stream:
        magic, version = stream.read(4), stream.read(4)
    # A file may be of the other byte order.
    numbers = {int.from_bytes(version, "little"), int.from_bytes(version, "big")}
    if magic != b"GGUF" or (len(version) == len(magic) and not numbers & {2, 3}):
        return InputError(f"{path} is no GGUF file of version 2 or 3: {HOW_TO_CONVERT}")
    return cut_short(f"{path}, a GGUF file whose {path.stat().st_size:,} bytes do not hold what they announce,")


def _metadata(path: Path) -> Metadata:
    if not path.is_file():
        raise InputError(f"{path} does not exist: check the path")
    try:
        reader = gguf.GGUFReader(path)
        fields = {key: field for key, field in reader.fields.items() if key.startswith(_PREFIX)}
        values = {key.removeprefix(_PREFIX): field.contents() for key, field in fields.items()}
    except Exception as error:  # whatever a reader of memory maps meets in a corrupted file
        raise unreadable(path) from error
    metadata: Metadata = schema.check(Metadata, values, f"the tokenizer of {path}", "name a tokenizer file")
    return metadata


def _scored(metadata: Metadata, pieces: list[str], types: list[int], name: str) -> bpe.LibraryTokenizer:
    """Build SentencePiece's BPE: pairs ranked by the score of the piece they make, bytes for unknown characters.

    The ids are SentencePiece's where no two joined pieces share a score (of equals it takes the leftmost in the text,
    the library the lower id) and each character of a piece is a piece itself, as in vocabularies that it trained. A
    text that is exactly one user-defined piece gets no space before it.
    """
    scores = [float(score) for score in metadata.get("scores", ())]
    if len(scores) != len(pieces):
        problem = f"{len(scores)} scores for {len(pieces)} pieces" if scores else "no scores"
        raise InputError(f"{name} has a tokenizer with {problem}: name a tokenizer file")
    # Of equal pieces the first counts.
    ids = {piece: token for token, piece in reversed(list(enumerate(pieces)))}
    unknown = next((piece for piece, kind in zip(pieces, types, strict=True) if kind == UNKNOWN), None)
    if unknown is None and any(f"<0x{byte:02X}>" not in ids for byte in range(256)):
        raise InputError(f"{name} has a tokenizer with neither bytes nor an unknown piece: name a tokenizer file")
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=ids, merges=_merges(ids, scores, types), byte_fallback=True, unk_token=unknown)
    )
    # Normalizer: spaces become the escaped space, with one in front of the text.
    user_defined = [piece for piece, token in ids.items() if types[token] == USER_DEFINED]
    control = [piece for piece, token in ids.items() if types[token] == CONTROL]
    space_prefix = bool(metadata.get("add_space_prefix", True))
    # A space goes before the text, but not into user-defined pieces, which the library looks for as normalized.
    prefix = [normalizers.Replace(tokenizers.Regex(rf"\A(?!(?:{_alternatives(user_defined)})\z)(?=[\s\S])"), " ")]
    spaces = normalizers.Replace(" ", ESCAPED_SPACE)
    backend.normalizer = normalizers.Sequence([*(prefix if space_prefix else []), spaces])
    backend.add_tokens([tokenizers.AddedToken(piece, normalized=True) for piece in user_defined])
    # Decoder: the inverse, without control pieces.
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace(tokenizers.Regex(rf"\A(?:{_alternatives(control)})\z"), ""),
            decoders.Replace(ESCAPED_SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(" ", 1, 0)] if space_prefix else []),
        ]
    )
    # BOS in front of every text, where the file says so.
    bos_id, eos_id = int(metadata.get("bos_token_id", 1)), int(metadata.get("eos_token_id", 2))
    if bos_id < len(pieces) and metadata.get("add_bos_token", True):
        backend.post_processor = processors.TemplateProcessing(
            single=["BOS", "$A"], pair=None, special_tokens=[{"id": "BOS", "ids": [bos_id], "tokens": [pieces[bos_id]]}]
        )
    return bpe.LibraryTokenizer(Path(name).name, backend.to_str(), eos_id if eos_id < len(pieces) else None)


def _merges(ids: dict[str, int], scores: list[float], types: list[int]) -> list[tuple[str, str]]:
    """Return all ways to halve a normal piece into two, the piece of the highest score first."""
    normal = {piece: token for piece, token in ids.items() if types[token] == NORMAL}
    halves = [
        (-scores[token], token, piece[:cut], piece[cut:])
        for piece, token in normal.items()
        for cut in range(1, len(piece))
        if piece[:cut] in normal and piece[cut:] in normal
    ]
    return [(left, right) for *_, left, right in sorted(halves)]


def _alternatives(pieces: list[str]) -> str:
    """Return a regular expression for any of several pieces, and for nothing if there is none."""
    return "|".join(map(re.escape, pieces)) or "(?!)"


def _piece(token: int | None, pieces: list[str]) -> str | None:
    return pieces[token] if token is not None and token < len(pieces) else None


def _byte_level(metadata: Metadata, pieces: list[str], types: list[int], name: str) -> bpe.LibraryTokenizer:
    pre = metadata.get("pre")
    if pre not in _PRE_TOKENIZERS:
        raise InputError(
            f"{name} cuts words the way {pre!r}, and only {', '.join(_PRE_TOKENIZERS)} are known: name a tokenizer file"
        )
    patterns, ignores_merges = _PRE_TOKENIZERS[pre]
    merges = metadata.get("merges", [])
    if any(merge.count(" ") != 1 for merge in merges):
        raise InputError(f"{name} has a merge that is not two pieces: name a tokenizer file")
    special = {piece: i for i, piece in enumerate(pieces) if types[i] in (CONTROL, UNKNOWN)}
    eos, bos = metadata.get("eos_token_id"), metadata.get("bos_token_id")
    adds_bos = metadata.get("add_bos_token", ignores_merges)
    return bpe.from_byte_level(
        {piece: i for i, piece in enumerate(pieces) if piece not in special},
        [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)],
        Path(name).name,
        bpe.ByteLevel(
            patterns=patterns,
            special=special,
            added=[piece for i, piece in enumerate(pieces) if types[i] == USER_DEFINED],
            eos_token=_piece(eos, pieces),
            bos_token=_piece(bos, pieces) if adds_bos else None,
            ignores_merges=ignores_merges,
        ),
    )
