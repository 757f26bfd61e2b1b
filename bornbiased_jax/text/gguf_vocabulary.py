"""The tokenizer that a GGUF file carries in its metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bornbiased_jax.errors import InputError
from bornbiased_jax.text import bpe, scored
from bornbiased_jax.text.protocol import ESCAPED_SPACE

_DIGITS = (r"\p{N}", bpe.GPT2_PATTERN)
# How llama.cpp cuts words for each value of tokenizer.ggml.pre (llama-vocab.cpp): patterns, whole words.
_PRE_TOKENIZERS: dict[str, tuple[tuple[str, ...], bool]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo"), ((bpe.GPT2_PATTERN,), False)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), (_DIGITS, False)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "dbrx", "smaug-bpe"), ((bpe.CL100K_PATTERN,), True)),
    **dict.fromkeys(("qwen2", "stablelm2"), ((bpe.QWEN_PATTERN,), False)),
}
_PREFIX = "tokenizer.ggml."


def from_gguf(path: str | Path) -> bpe.LibraryTokenizer | scored.ScoredTokenizer:
    """The tokenizer in a GGUF file: byte-level BPE ("gpt2") or scored pieces ("llama").

    Raises:
        InputError: the file is damaged, has no tokenizer, or one of another kind.
    """
    metadata = _metadata(Path(path))
    kind = metadata.get("model")
    if kind is None or "tokens" not in metadata:
        raise InputError(f"{path} carries no tokenizer: name one")
    pieces = metadata["tokens"]
    types = [int(value) for value in metadata.get("token_type") or [scored.NORMAL] * len(pieces)]
    if len(types) != len(pieces):
        raise InputError(f"{path} is damaged: {len(pieces)} tokens, {len(types)} token types; fetch it again")
    if kind == "llama":
        return _scored(metadata, pieces, types, str(path))
    if kind == "gpt2":
        return _byte_level(metadata, pieces, types, str(path))
    raise InputError(f"{path} has a tokenizer of kind {kind!r}; gpt2 and llama are known: name a tokenizer file")


def _metadata(path: Path) -> dict[str, Any]:
    import gguf

    if not path.is_file():
        raise InputError(f"{path} does not exist: check the path")
    try:
        reader = gguf.GGUFReader(path)
        fields = {key: field for key, field in reader.fields.items() if key.startswith(_PREFIX)}
        return {key.removeprefix(_PREFIX): field.contents() for key, field in fields.items()}
    except Exception as error:  # whatever a reader of memory maps meets in a damaged file
        raise InputError(f"{path} is not a whole GGUF file ({error}): fetch it again") from error


def _scored(metadata: dict[str, Any], pieces: list[str], types: list[int], name: str) -> scored.ScoredTokenizer:
    if "scores" not in metadata:
        raise InputError(f"{name} has a tokenizer without scores: name a tokenizer file")
    return scored.ScoredTokenizer(
        name=Path(name).name,
        pieces=tuple(piece.replace(ESCAPED_SPACE, " ") for piece in pieces),
        scores=tuple(float(score) for score in metadata["scores"]),
        types=tuple(types),
        eos_id=_known(metadata.get("eos_token_id", 2), pieces),
        bos_id=_known(metadata.get("bos_token_id", 1), pieces) if metadata.get("add_bos_token", True) else None,
        space_prefix=bool(metadata.get("add_space_prefix", True)),
        escaped=True,
    )


def _known(token: int, pieces: list[str]) -> int | None:
    return int(token) if token < len(pieces) else None


def _piece(token: int | None, pieces: list[str]) -> str | None:
    return pieces[token] if token is not None and token < len(pieces) else None


def _byte_level(metadata: dict[str, Any], pieces: list[str], types: list[int], name: str) -> bpe.LibraryTokenizer:
    pre = metadata.get("pre")
    if pre not in _PRE_TOKENIZERS:
        raise InputError(
            f"{name} cuts words the way {pre!r}, and only {', '.join(_PRE_TOKENIZERS)} are known: name a tokenizer file"
        )
    patterns, whole_words = _PRE_TOKENIZERS[pre]
    merges = [tuple(merge.split(" ")) for merge in metadata.get("merges", [])]
    if any(len(merge) != 2 for merge in merges):
        raise InputError(f"{name} has a merge that is not two pieces: fetch it again")
    special = {piece: i for i, piece in enumerate(pieces) if types[i] in (scored.CONTROL, scored.UNKNOWN)}
    eos, bos = metadata.get("eos_token_id"), metadata.get("bos_token_id")
    adds_bos = metadata.get("add_bos_token", whole_words)
    return bpe.from_byte_level(
        {piece: i for i, piece in enumerate(pieces) if piece not in special},
        merges,
        Path(name).name,
        patterns=patterns,
        special=special,
        added=[piece for i, piece in enumerate(pieces) if types[i] == scored.USER_DEFINED],
        eos_token=_piece(eos, pieces),
        bos_token=_piece(bos, pieces) if adds_bos else None,
        whole_words=whole_words,
    )
