"""What fixes the labeling of a base: a digest of its weights, published before the suspect was seen.

Every exact test permutes labels of the base. Whoever may number its coordinates and hidden units after seeing the
suspect numbers them so that they agree with it, and wins. The digest of the weights includes their order.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Literal

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.verdict import Verdict

Commitment = Literal["weights", "payload"]
"""What a published digest is of: the weights, or the payload of a fingerprint of them."""
WORD = (
    "The verdict holds if the base's weights, and so the order of its coordinates and hidden units, were fixed before "
    "the suspect was seen: without a digest published before (--base-digest) that rests on the word of whoever names "
    "the base."
)
_NOTES: Mapping[Commitment | None, str] = {
    None: WORD,
    "weights": (
        "The base has the digest that was given: the verdict holds if that was published before the suspect was seen."
    ),
    "payload": (
        "The base's fingerprint has the payload digest that was given: the verdict holds if that was published before "
        "the suspect was seen."
    ),
}


def read_digest(text: str) -> str:
    """Read a digest as it was typed, in lower case.

    Raises:
        InputError: it is not one.
    """
    digest = text.strip().lower()
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise InputError(
            f"--base-digest {text} is not a digest of 64 hexadecimal digits: give what bornbiased digest printed"
        )
    return digest


def check_commitment(name: str, published: str, digest: str, payload: Callable[[], str | None]) -> Commitment:
    """Refuse a base other than the one that was committed to.

    Args:
        name: what the base is called.
        published: the digest to compare with (:func:`read_digest`).
        digest: of its weights.
        payload: gives the digest of its fingerprint's payload, None where it has none; asked for where the digest of
            the weights is another.

    Returns:
        What the published digest is of.

    Raises:
        InputError: neither is the published one.
    """
    if published == digest:
        return "weights"
    if published != payload():
        raise InputError(
            f"the base {name} has the digest {digest}, not {published}: name the model whose digest was published, or "
            "its fingerprint where that was made with settings of its own"
        )
    return "payload"


def with_commitment(
    verdict: Verdict, base_digest: str, suspect_digest: str, *, committed_as: Commitment | None
) -> Verdict:
    """Add both digests to a verdict, and a note whether its labeling rests on more than somebody's word."""
    detail = {
        "base_digest": base_digest,
        "suspect_digest": suspect_digest,
        "committed": committed_as is not None,
        "committed_as": committed_as,
        "notes": [*verdict.notes, _NOTES[committed_as]],
    }
    return dataclasses.replace(verdict, detail={**verdict.detail, **detail})
