"""``--test auto``: what is identical first, then a fixed battery of tests in the weights, with Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Callable

from bornbiased_jax.checkpoints.reader import WeightsReader
from bornbiased_jax.seedprint.verdict import WORD, Decision, Verdict, rests_on
from bornbiased_jax.seedprint.weights.bilinear import bilinear_test
from bornbiased_jax.seedprint.weights.compare import weights_test
from bornbiased_jax.seedprint.weights.identical import (
    FILES,
    Equal,
    Identity,
    equal_tensors,
    same_files,
    same_source,
    same_up_to,
)
from bornbiased_jax.seedprint.weights.logits import same_logits
from bornbiased_jax.seedprint.weights.outcome import ALPHA, SCOPE, check_level
from bornbiased_jax.stats.permutations import NUM_PERMUTATIONS

Run = Callable[..., Verdict]
BATTERY: tuple[tuple[str, Run, dict[str, str]], ...] = (
    ("coordinates", weights_test, dict(align="none", labels="coordinates")),
    ("rotation", weights_test, dict(align="rotation", labels="units")),
    ("matched units", weights_test, dict(align="units", labels="units")),
    ("bilinear", bilinear_test, {}),
)
"""In this order. Where neither model is a birth, matched units have no p and bilinear no verdict: two tests count."""

# What the verdict says of the test that decides.
_KEPT = ("null", "labels", "align", "permuted", "invariant_to", "evaded_by", "log10_p_bound", "log10_p_moments")
_SAME = {
    "files": FILES,
    "tensors": "the two models have identical weights, tensor by tensor",
    "logits": "the two models give the same logits on random tokens: the same function, written otherwise",
}
_SHARED_EMBEDDINGS = (
    "Shared embeddings: the token embedding and the head are the same numbers and no other matrix is; coordinates may "
    "agree because of them alone."
)


def auto_test(
    base: WeightsReader,
    suspect: WeightsReader,
    *,
    alpha: float = ALPHA,
    num_permutations: int = NUM_PERMUTATIONS,
    seed: int = 0,
    outputs: Callable[[], Verdict] | None = None,
) -> Verdict:
    """Say what is identical, then run the battery: nothing needs to be chosen.

    The p-value is the smallest that Holm's correction gives, over the number of tests that the pair admits (four with
    a birth, two without, one more with ``outputs``), fixed before any is run; undefined ones count. Without a p,
    agreement of two matchings gives "same-lineage" alone.

    Args:
        base, suspect: the models.
        alpha: the level asked for.
        num_permutations, seed: of each test.
        outputs: runs the permutation test of the outputs, where that is to join the battery.

    Raises:
        InputError: a bad level, or weights that are damaged.
    """
    check_level(alpha, num_permutations)
    births = base.is_birth or suspect.is_birth
    draws = {"num_permutations": num_permutations, "seed": seed}
    identity, equal = identify(base, suspect)
    verdicts = {
        name: run(base, suspect, alpha=alpha, **options, **draws)
        for name, run, options in BATTERY
        if name != "bilinear" or births
    }
    count = 4 if births else 2
    if outputs is not None:
        verdicts["outputs"], count = outputs(), count + 1
    decided = {name: verdict.log10_p for name, verdict in verdicts.items() if _has_p(verdict)}
    adjusted = _holm({name: log10_p for name, log10_p in decided.items() if log10_p is not None}, count)
    best = min(adjusted, key=lambda name: (adjusted[name], -(verdicts[name].z or 0.0)), default=None)
    # Holm's factor for the smallest p is the number of tests; from p itself, which log10 would round.
    p_value = None if best is None else min(1.0, (verdicts[best].p_value or 0.0) * count)
    agreed = next((name for name, verdict in verdicts.items() if _agrees(verdict)), None)
    decision: Decision = "same-lineage"
    if identity is not None:
        reason = same_source(base, suspect) or _SAME.get(identity) or f"the same function, written {_written(identity)}"
    elif best is not None and p_value is not None and p_value <= alpha:
        reason = f"{verdicts[best].reason} ({best}; Holm's p over {count} tests)"
    elif agreed is not None:
        reason, best, p_value = verdicts[agreed].reason, None, None
    elif best is None:
        decision = "undefined"
        reason = "; ".join(dict.fromkeys(verdict.reason for verdict in verdicts.values()))
    elif equal.paths:
        decision = "undefined"
        reason = f"{_counted(equal)} identical, while the others agree no more than chance allows"
    else:
        decision, reason = "unrelated", f"none of the tests finds a shared birth ({', '.join(verdicts)})"
    deciding = best or agreed
    found = verdicts[deciding].detail if deciding is not None else {}
    notes = [f"The battery: {', '.join(verdicts)}; p-values are Holm's over {count} tests."]
    if deciding is not None:
        notes += [f"In {deciding}: {sentence}" for sentence in rests_on(found)]
    notes.append(WORD)
    if equal.vocabulary_alone and not equal.all:
        notes.insert(0, _SHARED_EMBEDDINGS)
    if 0 < len(equal.paths) < equal.total:
        notes.insert(0, f"{_counted(equal)} identical, bit for bit.")
    detail = {key: found.get(key) for key in (*_KEPT, "null_histogram")}
    detail |= {"by_module": verdicts["coordinates"].detail.get("by_module", []), "identity": identity}
    detail |= {"identical_tensors": len(equal.paths), "num_tensors": equal.total}
    detail |= {"shared_embeddings": equal.vocabulary_alone, "tests": _listed(verdicts, adjusted)}
    return Verdict(
        decision,
        reason,
        p_value,
        None if best is None else adjusted[best],
        None if best is None else verdicts[best].z,
        "auto",
        verdicts["outputs"].num_inputs if "outputs" in verdicts else None,
        alpha,
        {**detail, "notes": notes, "scope": SCOPE},
    )


def identify(base: WeightsReader, suspect: WeightsReader) -> tuple[Identity | None, Equal]:
    """In what way two models are one, if they are, and which of their tensors are equal bit for bit."""
    equal = equal_tensors(base, suspect)
    if same_files(base, suspect):
        return "files", equal
    if equal.all:
        return "tensors", equal
    otherwise = same_up_to(base, suspect)
    if otherwise is not None:
        return otherwise, equal
    return ("logits" if same_logits(base, suspect) else None), equal


def _has_p(verdict: Verdict) -> bool:
    """An undefined verdict counts as p = 1, whatever number it carries."""
    return verdict.verdict != "undefined" and verdict.log10_p is not None


def _agrees(verdict: Verdict) -> bool:
    return verdict.detail.get("null") == "population" and verdict.verdict == "same-lineage"


def _counted(equal: Equal) -> str:
    return f"{len(equal.paths)} of {equal.total} tensors are"


def _holm(log10_p: dict[str, float], count: int) -> dict[str, float]:
    """Holm's adjusted p-values, base 10, of some of ``count`` tests; those without a p count as 1."""
    adjusted, highest = {}, -math.inf
    for place, name in enumerate(sorted(log10_p, key=lambda name: log10_p[name])):
        highest = max(highest, log10_p[name] + math.log10(count - place))
        adjusted[name] = min(0.0, highest)
    return adjusted


def _written(identity: str) -> str:
    """How an exact copy is written."""
    how = {
        "up to signs": "with coordinates negated",
        "up to coordinate permutation": "with coordinates renumbered",
        "up to rotation": "with coordinates rotated",
    }.get(identity, "with other scales")
    return f"{how}: an exact copy {identity}"


def _listed(verdicts: dict[str, Verdict], adjusted: dict[str, float]) -> list[dict[str, object]]:
    rows = []
    for name, verdict in verdicts.items():
        fields = {key: getattr(verdict, key) for key in ("verdict", "reason", "p_value", "log10_p", "z", "test")}
        log10_p = adjusted.get(name)
        fields |= {"p_adjusted": None if log10_p is None else 10.0**log10_p, "log10_p_adjusted": log10_p}
        rows.append({"name": name, **fields, **{key: verdict.detail.get(key) for key in (*_KEPT, "agreement")}})
    return rows
