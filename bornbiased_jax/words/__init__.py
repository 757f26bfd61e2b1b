"""Results in words: what each command found and how sure it is, from the object that its ``--json`` writes.

:func:`sentences` gives two or three sentences, :func:`explain` the words of the field where they first stand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bornbiased_jax.words import birth, lineage, records, sinks, training
from bornbiased_jax.words.terms import explain

__all__ = ["explain", "sentences"]

_WRITERS: Mapping[str, Callable[[Mapping[str, Any]], list[str]]] = {
    "models": birth.models,
    "probe preference": birth.preference,
    "probe contraction": birth.contraction,
    "predict": birth.prediction,
    "seedprint": lineage.seedprint,
    "whichseed": lineage.whichseed,
    "audit": lineage.audit,
    "fingerprint": lineage.fingerprint,
    "digest": lineage.digest,
    "derive": lineage.derive,
    "pretrain": training.training,
    "adapt": training.training,
    "runs": training.runs,
    "plot": training.plot,
    "export": training.export,
    "evaluate": training.evaluate,
    "generate": training.generate,
    "parity": training.parity,
    "sinks": sinks.sinks,
    "intervene": sinks.intervene,
    "reproduce": records.reproduce,
    "status": records.status,
    "doctor": records.doctor,
}


def sentences(command: str, value: Mapping[str, Any]) -> list[str]:
    """What a command found, and how sure it is.

    Args:
        command: its words ("probe preference").
        value: what it writes with ``--json``.

    Example:
        >>> sentences("generate", {"ids": [1, 2], "text": ""})[1]
        'The same model and prompt give the same continuation: nothing is drawn.'
    """
    return _WRITERS[command](value)
