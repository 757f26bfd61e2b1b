"""A verdict in three plain sentences: what was found, how sure that is, and what would hide a birth from the test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def summary(verdict: Mapping[str, Any]) -> str:
    """State the finding, how sure it is, and what would hide shared initial weights; two sentences where nothing would.

    Args:
        verdict: what :meth:`.verdict.Verdict.to_json` gives.

    Example:
        >>> told = {"verdict": "unrelated", "reason": "the weights agree no more than chance allows"}
        >>> print(summary({**told, "log10_p": -0.4, "null": "exact", "evaded_by": "rotating the residual stream"}))
        The weights agree no more than chance allows. Unrelated models agree as much with probability 0.4: nothing \
speaks for a shared birth, which is no proof that there is none. A shared birth would stay hidden behind: rotating the \
residual stream.
    """
    reason = str(verdict["reason"])
    sentences = [f"{reason[0].upper()}{reason[1:]}.", _how_sure(verdict)]
    evaded_by = verdict.get("evaded_by")
    if evaded_by and verdict["verdict"] == "unrelated":
        sentences.append(f"A shared birth would stay hidden behind: {evaded_by}.")
    elif evaded_by and verdict["verdict"] == "same-lineage" and not verdict.get("identity"):
        sentences.append(f"The test that decides would miss a birth behind: {evaded_by}.")
    return " ".join(sentences)


def probability(log10_p: float) -> str:
    """Format a probability in digits that say something, however small.

    >>> probability(-0.4), probability(-7.3), probability(-2027.7)
    ('0.4', '5e-08', '10^-2027.7')
    """
    return f"10^{log10_p:.1f}" if log10_p < -300 else f"{10.0**log10_p:.2g}"


def _how_sure(verdict: Mapping[str, Any]) -> str:
    decision, log10_p, null = verdict["verdict"], verdict.get("log10_p"), verdict.get("null")
    if decision == "undefined":
        return "So nothing is decided: neither a shared birth nor its absence is shown."
    if decision == "same-lineage" and verdict.get("identity"):
        return "That is a fact about the numbers, in which no chance enters."
    if log10_p is None:
        return "No p-value stands behind it: it rests on how far unrelated models were seen to agree."
    p = probability(float(log10_p))
    about = " by this test's approximation" if null == "approximate" else ""
    if decision == "unrelated":
        return (
            f"Unrelated models agree as much with probability {p}{about}: nothing speaks for a shared birth, which is "
            "no proof that there is none."
        )
    return f"Unrelated models agree as much with probability {p} at most{about}."
