"""The tokenizer that a GGUF file carries in its metadata."""

from __future__ import annotations

from pathlib import Path

import gguf
from typing_extensions import TypedDict

from bornbiased_jax import schema
from bornbiased_jax.errors import InputError, cut_short
from bornbiased_jax.text import bpe, scored_pieces
from bornbiased_jax.text.protocol import UnknownTokenizerError
from bornbiased_jax.text.scored_pieces import CONTROL, NORMAL, UNKNOWN, USER_DEFINED

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
    scores = [float(score) for score in metadata.get("scores", ())]
    if len(scores) != len(pieces):
        problem = f"{len(scores)} scores for {len(pieces)} pieces" if scores else "no scores"
        raise InputError(f"{name} has a tokenizer with {problem}: name a tokenizer file")
    # BOS in front of every text, where the file says so.
    bos_id, eos_id = int(metadata.get("bos_token_id", 1)), int(metadata.get("eos_token_id", 2))
    return scored_pieces.library_tokenizer(
        scored_pieces.ScoredPieces(
            pieces,
            scores,
            types,
            has_space_prefix=bool(metadata.get("add_space_prefix", True)),
            bos_id=bos_id if bos_id < len(pieces) and metadata.get("add_bos_token", True) else None,
            eos_id=eos_id if eos_id < len(pieces) else None,
        ),
        name,
    )


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
