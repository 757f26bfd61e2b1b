"""The verdict of a lineage test: the decision, its p and reason, and the sentences that a reader needs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal, cast

import numpy as np

from bornbiased_jax.stats.certified import Certified
from bornbiased_jax.stats.ranks import matched

Decision = Literal["same-lineage", "unrelated", "undefined"]
Detail = dict[str, object]
"""JSON-ready keys and values that are particular to a test."""

# Comes with every verdict. A test of outputs sees coordinates, which models share by initialization as a rule.
SCOPE = (
    "The test finds shared coordinates, not intent and not theft: transplanted or fixed embeddings, "
    "distillation of hidden states, or a framework seed that both models used share coordinates too. "
    "'unrelated' means that no shared coordinates were found, not that there are none."
)

# Keys of every verdict's JSON, as they are where a test leaves them out.
_DEFAULTS: Mapping[str, object] = {"identity": None, "log10_p_bound": None, "log10_p_moments": None, "by_module": []}
_LEAST_LOG10 = -300.0
LEAST_P = 10.0**_LEAST_LOG10
"""The smallest p that is written as a number."""
# From here on a decimal fraction has more zeros than anybody counts.
_DECIMAL_LOG10 = -4.5
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# Outputs of fewer coordinates are not compared.
_MIN_COORDINATES = 3
# What unrelated models reach this rarely is not nothing, though a verdict may need more.
_WEAK_LOG10 = -2.0


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The outcome of one lineage test.

    Attributes:
        verdict, reason: the decision, and one sentence why.
        p_value, log10_p: of the decision, None when undefined; ``p_value`` is 1e-300 wherever ``log10_p`` (base 10,
            exact) is smaller.
        z: describes how far out the statistic lies; None where the test has none.
        test, alpha: the test's name and the level of its decision.
        num_inputs: N; None for a test that reads no outputs.
        detail: what is particular to the test (counts, the statistic, ``notes``, a ``scope`` of its own).

    Example:
        >>> verdict = decide("iclr", p_value=1e-6, log10_p=-6.0, z=4.8, num_inputs=500, alpha=0.01)
        >>> verdict.verdict, verdict.to_json()["p_value"]
        ('same-lineage', 1e-06)
        >>> print(verdict.text().splitlines()[0])
        same-lineage (iclr, N = 500, alpha = 0.01, p = 1e-06, log10 p = -6.00, z = 4.80)
    """

    verdict: Decision
    reason: str
    p_value: float | None
    log10_p: float | None
    z: float | None
    test: str
    num_inputs: int | None
    alpha: float
    detail: Detail = dataclasses.field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """The grounds of the verdict, point by point."""
        return list(cast(Sequence[str], self.detail.get("notes", ())))

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values: the fixed keys first, then the test's own. Never NaN: None instead."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "detail"]
        fixed = {name: getattr(self, name) for name in names}
        return {key: _plain(value) for key, value in {"scope": SCOPE, **fixed, **_DEFAULTS, **self.detail}.items()}

    def summary(self) -> str:
        """State the finding, how sure it is, and what may hide shared initial weights where none were found.

        Example:
            >>> detail = {"null": "exact", "evaded_by": "rotating the residual stream"}
            >>> reason = "the weights agree no more than chance allows"
            >>> print(Verdict("unrelated", reason, 0.4, -0.4, 0.3, "weights", None, 1e-4, detail).summary())
            The weights agree no more than chance allows. Unrelated models agree as much with probability 0.4: nothing \
speaks for a shared initialization, which is no proof that there is none. A shared initialization would stay hidden \
behind: rotating the residual stream.
        """
        sentences = [f"{self.reason[0].upper()}{self.reason[1:]}.", self._certainty()]
        evaded_by = self.detail.get("evaded_by")
        if evaded_by and self.verdict == "unrelated":
            sentences.append(f"A shared initialization would stay hidden behind: {evaded_by}.")
        return " ".join(sentences)

    @property
    def is_identity(self) -> bool:
        """True if the models are called one because numbers are equal: a fact, which has no probability."""
        return self.verdict == "same-lineage" and bool(self.detail.get("identity"))

    def _certainty(self) -> str:
        # Undefined verdicts, facts and populations have no probability.
        if self.verdict == "undefined":
            return "So nothing is decided: neither a shared initialization nor its absence is shown."
        if self.is_identity:
            return "That is a fact about the numbers, in which no chance enters."
        if self.log10_p is None:
            return "No p-value stands behind it: it rests on how far unrelated models were seen to agree."
        # What lies below the last probability that is written needs no "at most".
        is_bound = self.verdict != "unrelated" and self.log10_p >= _LEAST_LOG10
        chance = f"Unrelated models agree as much with probability {format_probability(self.log10_p)}"
        approximation = " by this test's approximation" if self.detail.get("null") == "approximate" else ""
        if self.verdict == "unrelated":
            meaning = "nothing speaks for a shared initialization, which is no proof that there is none"
            if self.log10_p < _WEAK_LOG10:
                meaning = (
                    "that is weak evidence for a shared initialization, short of the level of "
                    f"{format_probability(math.log10(self.alpha))}"
                )
            return f"{chance}{approximation}: {meaning}."
        return f"{chance}{' at most' if is_bound else ''}{approximation}."

    def text(self) -> str:
        """Format the verdict for a reader: the decision, three plain sentences, then the evidence, point by point."""
        # The first line: decision and numbers.
        facts = [self.test]
        if self.num_inputs is not None:
            facts.append(f"N = {self.num_inputs:,}")
        facts.append(f"alpha = {self.alpha:g}")
        if self.p_value is not None and self.log10_p is not None and not self.is_identity:
            # A smaller p is given by its logarithm alone.
            facts += [f"p = {self.p_value:.4g}"] if self.log10_p > _LEAST_LOG10 else []
            facts.append(f"log10 p = {self.log10_p:.2f}")
        if self.z is not None and not self.is_identity:
            facts.append(f"z = {self.z:.2f}")
        # Then the summary, and the points that the verdict rests on.
        points = [*self.notes, self.detail.get("scope", SCOPE)]
        return "\n".join(
            [f"{self.verdict} ({', '.join(facts)})", self.summary(), "", *(f"- {point}" for point in points)]
        )


def _plain(value: object) -> object:
    """Convert to Python numbers, lists and dicts only; numbers that are not finite become None."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def rests_on(permuted: str, invariant_to: Sequence[str], evaded_by: str) -> str:
    """Say which labels a null permutes, what the statistic is invariant to, and what evades it."""
    unchanged = ", ".join(invariant_to) or "nothing"
    return (
        f"Chance is measured by permuting {permuted}. Nothing changes under: {unchanged}. What would hide a shared "
        f"initialization from it: {evaded_by}."
    )


def certified_keys(certified: Certified) -> Detail:
    """Return the JSON of a sum and its permutations, but for the p of the verdict."""
    return {
        "log10_p_bound": certified.log10_p_bound,
        "log10_p_moments": certified.log10_p_moments,
        "statistic": certified.statistic,
        "null_mean": certified.mean,
        "null_std": certified.std,
        "num_permutations": certified.num_permutations,
        "enumerated": certified.enumerated,
        "null_histogram": certified.histogram,
    }


def with_choices(verdict: Verdict, choices: Mapping[str, object]) -> Verdict:
    """Add to a verdict the options that are not the defaults, which whoever tried several must correct for."""
    words = [f"{name} = {value}" for name, value in choices.items()]
    notes = verdict.notes
    if words:
        notes.append(
            f"Exploratory: {', '.join(words)} was chosen. What was tried before on the same two models counts: "
            "multiply p by the number of tries."
        )
    return dataclasses.replace(verdict, detail={**verdict.detail, "exploratory": words, "notes": notes})


def undefined(test: str, reason: str, *, num_inputs: int | None, alpha: float, **detail: object) -> Verdict:
    """Return an undefined verdict with its reason."""
    return Verdict("undefined", reason, None, None, None, test, num_inputs, alpha, detail)


def decide(
    test: str,
    *,
    p_value: float,
    log10_p: float,
    z: float,
    num_inputs: int | None,
    alpha: float,
    **detail: object,
) -> Verdict:
    """Decide same lineage if p < alpha, else unrelated; a p that is not a number is undefined, never 1.

    ``log10_p`` is of the same p, also where that underflows; a z that is not finite is left out.
    """
    if not (math.isfinite(p_value) and math.isfinite(log10_p)):
        return undefined(test, "the p-value is not a number", num_inputs=num_inputs, alpha=alpha, **detail)
    # Strictly below the level.
    z_or_none = float(z) if math.isfinite(z) else None
    p_value = float(min(1.0, max(p_value, LEAST_P)))
    is_same = p_value < alpha
    how_much = f"more than chance allows (p < {alpha:g})" if is_same else f"no more than chance allows (p >= {alpha:g})"
    reason = f"the outputs agree coordinate by coordinate {how_much}"
    decision: Decision = "same-lineage" if is_same else "unrelated"
    return Verdict(decision, reason, p_value, min(0.0, float(log10_p)), z_or_none, test, num_inputs, alpha, detail)


def unfit(base_ND: np.ndarray, suspect_ND: np.ndarray, *, min_inputs: int) -> str | None:
    """Return why two matrices of outputs cannot be compared coordinate by coordinate, or None if they can.

    Raises:
        InputError: not two matrices over the same number of inputs, or numbers that are not finite.
    """
    base_ND, suspect_ND = matched(base_ND, suspect_ND)
    if base_ND.shape[1] != suspect_ND.shape[1]:
        return (
            f"the widths differ ({base_ND.shape[1]} and {suspect_ND.shape[1]}): "
            "no coordinate of one model corresponds to one of the other"
        )
    if base_ND.shape[1] < _MIN_COORDINATES:
        return f"{base_ND.shape[1]} coordinates are too few: this test needs at least {_MIN_COORDINATES}"
    if len(base_ND) < min_inputs:
        return f"{len(base_ND)} inputs are too few: this test needs at least {min_inputs}"
    # Constant outputs have no ranks.
    for name, outputs_ND in (("base", base_ND), ("suspect", suspect_ND)):
        if len(varying(outputs_ND)) < _MIN_COORDINATES:
            return f"the {name} gives constant outputs: fewer than {_MIN_COORDINATES} coordinates vary over the inputs"
    return None


def varying(outputs_ND: np.ndarray) -> np.ndarray:
    """Return the indices of the coordinates that are not the same for every input."""
    return np.flatnonzero((outputs_ND != outputs_ND[:1]).any(axis=0))


def probability(log10_p: float) -> float:
    """Return p as a number that any reader of JSON holds: at least 1e-300, below which the logarithm alone is exact.

    >>> probability(-2.0), probability(-2027.7)
    (0.01, 1e-300)
    """
    p_value: float = 10.0 ** max(log10_p, _LEAST_LOG10)
    return p_value


def format_probability(log10_p: float) -> str:
    """Format a probability in digits that say something; below 10⁻³⁰⁰ only that it is.

    >>> format_probability(-0.4), format_probability(-4.0), format_probability(-9.0), format_probability(-2027.7)
    ('0.4', '0.0001', '1.0 × 10⁻⁹', '< 10⁻³⁰⁰')
    """
    if log10_p < _LEAST_LOG10:
        return f"< 10{f'{_LEAST_LOG10:.0f}'.translate(_SUPERSCRIPT)}"
    if log10_p > _DECIMAL_LOG10:
        return f"{10.0**log10_p:.2g}"
    mantissa, exponent = f"{10.0**log10_p:.1e}".split("e")
    return f"{mantissa} × 10{str(int(exponent)).translate(_SUPERSCRIPT)}"


def format_p(log10_p: float) -> str:
    """Format a p-value for a bracket.

    >>> format_p(-0.4), format_p(-2027.7)
    ('p = 0.4', 'p < 10⁻³⁰⁰')
    """
    return f"p {'' if log10_p < _LEAST_LOG10 else '= '}{format_probability(log10_p)}"
