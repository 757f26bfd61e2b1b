"""Held-out loss of a model on text: perplexity per token and bits per byte at a fixed context."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TypedDict

import jax
import numpy as np

from bornbiased_jax import io, progress
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.checkpoints.formats.run import read_run
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.limits import check_length, check_tokens, warn_of_length
from bornbiased_jax.model.loss import bits_per_byte, loss_of_final, unrolled_blocks
from bornbiased_jax.model.memory import check_forward
from bornbiased_jax.model.model import ForwardOptions, head_path
from bornbiased_jax.model.streaming import Reading, Weights, check_overflow, forward_batches
from bornbiased_jax.parameters import Params
from bornbiased_jax.text.documents import read_documents, source_digest
from bornbiased_jax.text.protocol import Tokenizer
from bornbiased_jax.text.tokenizers import encode_documents

LARGEST_CONTEXT = 2048
"""Table 7's context, used where neither the caller nor a training run names one and the model has as many positions."""
PIECE_TOKENS = 1 << 20
"""Tokens of a piece of text in memory, or those of a batch where they are more."""


class Scores(TypedDict):
    """Held-out loss of a model on a text, JSON-ready."""

    perplexity: float | None
    """e to the loss; None where no float is as large."""
    loss: float
    """Mean, in nats a predicted token."""
    bits_per_byte: float | None
    """Over the UTF-8 bytes of the predicted tokens, the ids that end documents counting none."""
    num_tokens: int
    """That are predicted."""
    num_bytes: int
    num_sequences: int
    context: int


class SeedAndStep(TypedDict, total=False):
    """Seed and step of a checkpoint of a run; empty for models of other origin."""

    seed: int
    step: int


class CheckpointScores(Scores, SeedAndStep):
    """The scores of a checkpoint."""

    checkpoint: str
    training_text: bool | None
    """As :func:`is_training_text` says."""


def evaluate(
    cfg: ModelConfig,
    params: Weights,
    documents: Iterable[str],
    tokenizer: Tokenizer,
    *,
    num_sequences: int = 256,
    context: int = LARGEST_CONTEXT,
    batch_size: int = 8,
    quiet: bool = False,
) -> Scores:
    """Evaluate by Table 7's protocol: the first sequences of a text, each scored on its own.

    Documents are tokenized, ended with ``eos_id`` and joined; the result is cut into sequences of ``context`` tokens,
    each of which predicts all its tokens but the first (as ``transformers`` does for ``labels=input_ids``).

    Args:
        cfg: the architecture.
        params: its weights, in memory or streamed.
        documents: the text, as :func:`bornbiased_jax.text.documents.read_documents` yields it; no more is read than
            is needed.
        tokenizer: the model's own.
        num_sequences: how many sequences; fewer where the text ends before. No more than ``PIECE_TOKENS`` tokens are in
            memory.
        context: tokens a sequence.
        batch_size: sequences at a time; memory only.
        quiet: no progress display.

    Raises:
        InputError: the text is shorter than one sequence, or has ids that the model does not know.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> from bornbiased_jax.init import init_seed
        >>> from bornbiased_jax.text import ByteTokenizer
        >>> cfg = preset("gpt2-tiny", num_layers=1, d_model=16, num_heads=2, d_ff=32, vocab_size=260)
        >>> text = ["A text of some twenty bytes."]
        >>> scores = evaluate(cfg, init_seed(cfg, 0), text, ByteTokenizer(), num_sequences=2, context=8, quiet=True)
        >>> scores["num_tokens"], scores["perplexity"] > 200  # an untrained model knows nothing
        (14, True)
    """
    if context < 2:
        raise InputError(f"a context of {context} predicts nothing: use at least 2")
    check_length(cfg, context)
    check_forward(cfg, min(batch_size, num_sequences), context, logits=1)
    warn_of_length(cfg, "context", context)
    # Whole batches, so that every sum is that of the text in one piece.
    piece_size = max(1, PIECE_TOKENS // (batch_size * context)) * batch_size
    pieces = _pieces(encode_documents(tokenizer, documents), num_sequences, context, piece_size)
    first = next(pieces)
    total = None if len(first) == piece_size < num_sequences else len(first)
    size = min(batch_size, len(first))
    reading = Reading(finish=_score, needs=(head_path(cfg),), inputs=_inputs)
    options = ForwardOptions(dtype=np.float32, unroll=unrolled_blocks(cfg))
    # Not by decoding: where pieces begin with a space, decoders strip that of the first.
    size_V = np.array([len(piece or b"") for piece in tokenizer.token_bytes()])
    if tokenizer.eos_id is not None:
        size_V[tokenizer.eos_id] = 0
    nats, count, num_bytes, scored = 0.0, 0, 0, 0
    with progress.bar(total, "evaluating", unit="sequences", quiet=quiet) as advance:
        for piece_NT in chain([first], pieces):
            check_tokens(piece_NT, cfg.vocab_size)
            parts = list(_batches(piece_NT, size))
            computed = forward_batches(cfg, params, parts, reading, options)
            for rows, (part_nats, tokens) in zip(parts, computed, strict=True):
                nats, count = nats + float(part_nats), count + int(tokens)
                advance(int((rows[:, 0] >= 0).sum()))
            num_bytes += int(size_V[piece_NT[:, 1:]].sum())
            scored += len(piece_NT)
    loss = nats / count
    return {
        "perplexity": math.exp(loss) if loss < 700 else None,
        "loss": loss,
        "bits_per_byte": bits_per_byte(nats, num_bytes) if num_bytes else None,
        "num_tokens": count,
        "num_bytes": num_bytes,
        "num_sequences": scored,
        "context": context,
    }


def evaluate_checkpoint(
    checkpoint: Checkpoint,
    source: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    num_sequences: int = 256,
    context: int | None = None,
    batch_size: int = 8,
    quiet: bool = False,
) -> CheckpointScores:
    """Apply :func:`evaluate` to an opened model and a source of text.

    Args:
        checkpoint: the model.
        source: a file, a directory, ``builtin:prose``, ``builtin:code`` or ``hf:NAME``.
        tokenizer: in place of the checkpoint's own.
        num_sequences: how many sequences; fewer where the text ends before.
        context: tokens a sequence; unless given that of its training, which a run and its export know, else the
            model's positions, at most 2,048.
        batch_size: sequences at a time; memory only.
        quiet: no progress display.

    Raises:
        InputError: a size below 1, no tokenizer, or as :func:`evaluate`.
    """
    for name, value in (("num_sequences", num_sequences), ("context", context), ("batch_size", batch_size)):
        if value is not None and value < 1:
            raise InputError(f"{name}={value} is not at least 1")
    tokenizer = checkpoint.require_tokenizer(tokenizer)
    check_overflow(checkpoint.cfg, checkpoint.weights)
    scores = evaluate(
        checkpoint.cfg,
        checkpoint.weights,
        read_documents(source),
        tokenizer,
        num_sequences=num_sequences,
        context=context or checkpoint.info.get("context") or min(LARGEST_CONTEXT, checkpoint.cfg.max_seq_len),
        batch_size=batch_size,
        quiet=quiet,
    )
    info = checkpoint.info
    place: SeedAndStep = {"seed": info["seed"], "step": info["step"]} if "seed" in info else {}
    return {
        **scores,
        "checkpoint": checkpoint.reference,
        **place,
        "training_text": is_training_text(checkpoint, source),
    }


def is_training_text(checkpoint: Checkpoint, source: str | Path) -> bool | None:
    """Return whether a text is the one that a run was trained on; None where that is not known.

    Texts that come with the package differ by name, files by content; nothing is known of no run, and of a part of a
    text or another edition of it.
    """
    folder = checkpoint.info.get("run")
    if folder is None:
        return None
    record = read_run(folder)
    data = record["config"]["data"]
    if ":" in data or ":" in str(source):
        are_builtin = data.startswith("builtin:") and str(source).startswith("builtin:")
        return True if str(source) == data else False if are_builtin else None
    files = [io.user_path(place).resolve() for place in (data, source)]
    is_same = files[0] == files[1] or (all(file.is_file() for file in files) and len(set(map(io.sha256, files))) == 1)
    # In another folder, or later, another text may have the name.
    digest = record.get("provenance", {}).get("data", {}).get("source_digest")
    return True if is_same and (digest is None or source_digest(data) == digest) else None


def cut(ids: Iterable[np.ndarray], num_sequences: int, context: int) -> np.ndarray:
    """Return the first sequences [N, T] of a stream of ids, as many as there are up to ``num_sequences``.

    Raises:
        InputError: there is not one.

    Example:
        >>> cut([np.arange(5), np.arange(4)], num_sequences=9, context=4).tolist()
        [[0, 1, 2, 3], [4, 0, 1, 2]]
    """
    return next(_pieces(ids, num_sequences, context, num_sequences))


def _pieces(ids: Iterable[np.ndarray], num_sequences: int, context: int, piece_size: int) -> Iterator[np.ndarray]:
    """Yield the result of :func:`cut`, ``piece_size`` sequences at a time; no more ids are read than a piece needs."""
    iterator, rest, num_left = iter(ids), np.empty(0, np.int32), num_sequences
    while True:
        needed = min(num_left, piece_size) * context
        # Read documents until the piece is full.
        documents, have = [rest], len(rest)
        while have < needed and (document := next(iterator, None)) is not None:
            documents.append(document)
            have += len(document)
        count = min(num_left, piece_size, have // context)
        if count < 1:
            if num_left < num_sequences:
                return
            raise InputError(f"the text has {have} tokens, less than one sequence of {context}: shorten the context")
        joined = np.concatenate(documents)
        yield joined[: count * context].reshape(count, context)
        rest, num_left = joined[count * context :], num_left - count
        if not num_left:
            return


def _inputs(tokens_BT1: np.ndarray) -> np.ndarray:
    """Return the tokens of a batch that :func:`.loss.loss_sum` feeds the model."""
    return np.asarray(np.maximum(tokens_BT1[:, :-1], 0))


def _score(
    cfg: ModelConfig, params: Params, final_BTD: jax.Array, tokens_BT1: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return loss_of_final(cfg, params, final_BTD, tokens_BT1[:, 1:], precision="highest")


def _batches(sequences_NT: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yield batches of one shape; missing rows of the last are −1."""
    for start in range(0, len(sequences_NT), size):
        rows = sequences_NT[start : start + size]
        missing = np.full((size - len(rows), rows.shape[1]), -1, rows.dtype)
        yield np.concatenate([rows, missing])
