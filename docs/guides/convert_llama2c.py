"""Convert a llama2.c model to a Hugging Face directory.

llama2.c (github.com/karpathy/llama2.c) keeps a model in one ``.bin``: seven integers, then float32 weights in a fixed
order (``legacy_export`` of its export.py, version 0). This script writes the same numbers as ``config.json`` and
``model.safetensors``, which bornbiased, transformers and others open::

    python docs/guides/convert_llama2c.py stories260K.bin stories260K --tokenizer tok512.bin
    bornbiased generate stories260K --prompt "Once upon a time"

It needs NumPy and safetensors (``pip install numpy safetensors``), and SentencePiece for a ``.model`` tokenizer
(``pip install sentencepiece``); it imports nothing else. What it does:

- **Queries and keys.** llama2.c rotates neighboring coordinates (Meta's layout of RoPE), Hugging Face's Llama
  coordinates that are half a head apart: the rows of both matrices are put into that order. The tables of RoPE in the
  file are left out: they follow from base 10,000.
- **Tied embeddings.** A positive vocabulary size in the header says that the output matrix is the embedding.
- **Tokenizer.** A ``tokenizer.bin`` becomes a ``tokenizer.json``: byte-pair encoding with bytes for characters without
  a piece, pairs ranked by the score of the piece that they make. Its ids are those of llama2.c where no two joined
  pieces share a score, as in vocabularies that SentencePiece trained, and each character of a joined piece is a piece:
  of equal scores llama2.c takes the leftmost in the text, the library ``tokenizers`` the one with the lower id.
  A SentencePiece ``.model`` is copied as ``tokenizer.model``.

Bad input ends with one sentence and exit code 2.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import struct
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

HEADER = struct.Struct("<7i")
MAGIC = 0x616B3432  # "ak42": versions 1 and 2 begin with it
BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")


class BadInputError(Exception):
    """A file that cannot be converted; the message is one sentence for the user."""


class Header(NamedTuple):
    """The seven integers of the header; ``vocab`` is negative where the output matrix is not the embedding."""

    width: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    length: int

    @property
    def is_tied(self) -> bool:
        """True if the output matrix is the embedding."""
        return self.vocab > 0

    @property
    def head_width(self) -> int:
        """Coordinates of one head."""
        return self.width // self.heads


def read_sizes(path: Path) -> Header:
    """Read and check the header of a ``.bin``."""
    with path.open("rb") as stream:
        head = stream.read(HEADER.size)
    wrong = BadInputError(f"{path} is not a llama2.c model: name a file written by its export.py with --version 0")
    if len(head) < HEADER.size:
        raise wrong
    sizes = Header(*HEADER.unpack(head))
    if sizes.width == MAGIC:
        raise BadInputError(f"{path} is a version {sizes.hidden} llama2.c file: export it again with --version 0")
    counts = (*sizes[:5], abs(sizes.vocab), sizes.length)
    if min(counts) < 1 or sizes.layers > 10_000 or sizes.width > 1 << 20:
        raise wrong
    if sizes.width % sizes.heads or sizes.head_width % 2 or sizes.heads % sizes.kv_heads:
        raise wrong
    return sizes


def array_shapes(sizes: Header) -> dict[str, tuple[int, ...]]:
    """Name and shape of each array of a ``.bin``, in its order; arrays of all layers lie together."""
    L, D, F = sizes.layers, sizes.width, sizes.hidden
    kv_width = sizes.kv_heads * sizes.head_width
    shapes = {
        "embedding": (abs(sizes.vocab), D),
        "attention_norm": (L, D),
        "query": (L, D, D),
        "key": (L, kv_width, D),
        "value": (L, kv_width, D),
        "output": (L, D, D),
        "mlp_norm": (L, D),
        "gate": (L, F, D),
        "down": (L, D, F),
        "up": (L, F, D),
        "final_norm": (D,),
        "rope": (2, sizes.length, sizes.head_width // 2),
    }
    return shapes if sizes.is_tied else shapes | {"head": (abs(sizes.vocab), D)}


def read_arrays(path: Path, sizes: Header) -> dict[str, np.ndarray]:
    """Map the arrays of a ``.bin``; its size must be what the header implies."""
    offsets, position = {}, HEADER.size
    shapes = array_shapes(sizes)
    for name, shape in shapes.items():
        offsets[name] = position
        position += 4 * int(np.prod(shape, dtype=object))
    size = path.stat().st_size
    if size != position:
        state = "cut short: fetch it again" if size < position else "in another format: name what llama2.c wrote"
        raise BadInputError(f"{path} is {state} (its header implies {position} bytes, it has {size})")
    arrays: dict[str, np.ndarray] = {
        name: np.memmap(path, "<f4", mode="r", offset=offsets[name], shape=shape) for name, shape in shapes.items()
    }
    for name, array in arrays.items():
        if name != "rope" and not np.all(np.isfinite(array)):
            raise BadInputError(f"{path} holds NaN or infinite values in its {name}: train or export it again")
    return arrays


def halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Put the rows of a query or key matrix from neighboring pairs into Hugging Face's order, [heads * K, D]."""
    pairs = rows.reshape(heads, -1, 2, rows.shape[-1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def to_tensors(arrays: dict[str, np.ndarray], sizes: Header) -> dict[str, np.ndarray]:
    """Name the weights as Hugging Face's Llama does."""
    tensors = {"model.embed_tokens.weight": arrays["embedding"], "model.norm.weight": arrays["final_norm"]}
    if not sizes.is_tied:
        tensors["lm_head.weight"] = arrays["head"]
    for layer in range(sizes.layers):
        prefix = f"model.layers.{layer}"
        tensors |= {
            f"{prefix}.input_layernorm.weight": arrays["attention_norm"][layer],
            f"{prefix}.self_attn.q_proj.weight": halves(arrays["query"][layer], sizes.heads),
            f"{prefix}.self_attn.k_proj.weight": halves(arrays["key"][layer], sizes.kv_heads),
            f"{prefix}.self_attn.v_proj.weight": arrays["value"][layer],
            f"{prefix}.self_attn.o_proj.weight": arrays["output"][layer],
            f"{prefix}.post_attention_layernorm.weight": arrays["mlp_norm"][layer],
            f"{prefix}.mlp.gate_proj.weight": arrays["gate"][layer],
            f"{prefix}.mlp.down_proj.weight": arrays["down"][layer],
            f"{prefix}.mlp.up_proj.weight": arrays["up"][layer],
        }
    return {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()}


def to_config(sizes: Header) -> dict[str, Any]:
    """Describe the architecture as a ``config.json`` of Hugging Face's Llama."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": sizes.width,
        "intermediate_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_width,
        "vocab_size": abs(sizes.vocab),
        "max_position_embeddings": sizes.length,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": sizes.is_tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }


def read_pieces(data: bytes, name: str) -> tuple[list[str], list[float]]:
    """Read a ``tokenizer.bin``: int32 longest piece, then float32 score, int32 length and bytes of each piece."""
    wrong = BadInputError(f"{name} is not a whole llama2.c tokenizer: name a file that llama2.c wrote")
    pieces: list[bytes] = []
    scores: list[float] = []
    try:
        (longest,) = struct.unpack_from("<i", data)
        offset = 4
        while offset < len(data):
            score, length = struct.unpack_from("<fi", data, offset)
            offset += 8
            if not 0 <= length <= longest or offset + length > len(data) or score != score:
                raise wrong
            pieces.append(data[offset : offset + length])
            scores.append(score)
            offset += length
        texts = [piece.decode() for piece in pieces]
    except (struct.error, UnicodeDecodeError) as error:
        raise wrong from error
    if len(pieces) < 4 or max(map(len, pieces)) != longest:
        raise wrong
    # llama2.c's tokenizer.py writes the two control pieces between line breaks.
    texts[:3] = ["<unk>", "<s>", "</s>"]
    if len(set(texts)) != len(texts):
        raise BadInputError(f"{name} gives one piece two ids, which a tokenizer.json cannot hold: name another")
    return texts, scores


def to_tokenizer(pieces: list[str], scores: list[float]) -> dict[str, Any]:
    """Describe llama2.c's tokenizer as a ``tokenizer.json``."""
    plain = {piece: token for token, piece in enumerate(pieces) if token > 2 and not BYTE_PIECE.fullmatch(piece)}
    splits = [
        (-scores[token], token, piece[:cut], piece[cut:])
        for piece, token in plain.items()
        for cut in range(1, len(piece))
        if piece[:cut] in plain and piece[cut:] in plain
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        # A space before the text, taken off again when decoding; spaces in pieces are spaces.
        "normalizer": {"type": "Prepend", "prepend": " "},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"Regex": r"\A</?s>\z"}, "content": ""},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {piece: token for token, piece in enumerate(pieces)},
            "merges": [[left, right] for *_, left, right in sorted(splits)],
        },
    }


def write_tokenizer(path: Path, folder: Path, vocab: int) -> None:
    """Write a tokenizer into the directory; it must have as many pieces as the model."""
    if path.suffix == ".model":
        count = count_pieces(path)
    else:
        pieces, scores = read_pieces(path.read_bytes(), str(path))
        count = len(pieces)
    if count != vocab:
        raise BadInputError(f"{path} has {count} pieces, the model {vocab}: name the model's own tokenizer")
    if path.suffix == ".model":
        shutil.copyfile(path, folder / "tokenizer.model")
        return
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **special})
    write_json(folder / "tokenizer.json", to_tokenizer(pieces, scores))


def count_pieces(path: Path) -> int:
    """Count the pieces of a SentencePiece model."""
    try:
        import sentencepiece
    except ImportError as error:
        raise BadInputError(f"{path} needs SentencePiece: pip install sentencepiece") from error
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(path.read_bytes())
        return int(processor.vocab_size())
    except RuntimeError as error:
        raise BadInputError(f"{path} is not a whole SentencePiece model: name another") from error


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def convert(model: Path, folder: Path, tokenizer: Path | None = None) -> None:
    """Convert a model, and its tokenizer if one is given, into a new or empty directory."""
    sizes = read_sizes(model)
    tensors = to_tensors(read_arrays(model, sizes), sizes)
    if folder.is_dir() and any(folder.iterdir()):
        raise BadInputError(f"{folder} is not empty: name another directory")
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer is not None:
        write_tokenizer(tokenizer, folder, abs(sizes.vocab))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", to_config(sizes))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit code."""
    parser = argparse.ArgumentParser(description="Convert a llama2.c model to a Hugging Face directory.")
    parser.add_argument("model", type=Path, metavar="MODEL.bin", help="written by llama2.c's export.py --version 0")
    parser.add_argument("folder", type=Path, metavar="DIR", help="a new or empty directory")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="a llama2.c tokenizer.bin, or a .model")
    options = parser.parse_args(arguments)
    try:
        convert(options.model, options.folder, options.tokenizer)
    except BadInputError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{error.filename or options.model} cannot be used: {error.strerror or error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
