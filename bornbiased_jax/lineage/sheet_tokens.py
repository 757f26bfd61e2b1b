"""What two tokenizers share: tokens, merges, and numbers that differ by one constant."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from bornbiased_jax.text.bpe import LibraryTokenizer
from bornbiased_jax.text.protocol import Tokenizer

Labels = tuple[bytes | None, ...]
"""The bytes of every token by its number, None for one without any."""
Merges = frozenset[tuple[str, str]]
"""Pairs of pieces that a BPE joins."""


class TokenVocabulary(NamedTuple):
    """Of a tokenizer what is compared; merges are None where its file has none."""

    labels: Labels
    merges: Merges | None


def vocabulary(tokenizer: Tokenizer, vocab_size: int | None = None) -> TokenVocabulary:
    """Read tokens and merges of a tokenizer.

    Args:
        tokenizer: of any kind; merges are known of the ``tokenizers`` library's BPE alone.
        vocab_size: of the model; tokens beyond it are left out, rows without a token are None.
    """
    labels = tokenizer.token_bytes()
    count = len(labels) if vocab_size is None else vocab_size
    return TokenVocabulary(tuple([*labels, *[None] * (count - len(labels))][:count]), _merges(tokenizer))


def _merges(tokenizer: Tokenizer) -> Merges | None:
    if not isinstance(tokenizer, LibraryTokenizer):
        return None
    rows = json.loads(tokenizer.json_text)["model"].get("merges")
    # A merge is a list of two pieces, or in older files a text with a space between them.
    pairs = [row.split(" ") if isinstance(row, str) else row for row in rows or []]
    return frozenset((pair[0], pair[1]) for pair in pairs if len(pair) == 2) or None


def token_statistics(base: TokenVocabulary | None, suspect: TokenVocabulary | None) -> dict[str, float | None]:
    """Compare two tokenizers: shared tokens and merges as fractions of all, and tokens at one constant shift."""
    if base is None or suspect is None:
        return dict.fromkeys(("tokenizer_overlap", "shared_merges", "id_shift"))
    first, second = (set(model.labels) - {None} for model in (base, suspect))
    merges = None if base.merges is None or suspect.merges is None else _jaccard(base.merges, suspect.merges)
    return {
        "tokenizer_overlap": _jaccard(first, second),
        "shared_merges": merges,
        "id_shift": _commonest_shift(base.labels, suspect.labels),
    }


def _jaccard(first: set[bytes | None] | Merges, second: set[bytes | None] | Merges) -> float:
    return len(first & second) / max(1, len(first | second))


def _commonest_shift(base: Labels, suspect: Labels) -> float | None:
    """Return the fraction of shared tokens whose numbers differ by the commonest difference; None without any."""
    pairs = shared_numbers(base, suspect)
    shifts = Counter(second - first for first, second in pairs)
    return shifts.most_common(1)[0][1] / len(pairs) if pairs else None


def shared_numbers(base: Labels, suspect: Labels) -> Sequence[tuple[int, int]]:
    """Return the numbers of every token that both have, in both."""
    places = {label: number for number, label in enumerate(suspect) if label is not None}
    return [(number, places[label]) for number, label in enumerate(base) if label is not None and label in places]
