"""``--test auto``: what is identical first, then a fixed battery of tests in the weights, with Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Callable

from bornbiased_jax.checkpoints.reader import WeightsReader
from bornbiased_jax.seedprint.verdict import Decision, Verdict
from bornbiased_jax.seedprint.weights.bilinear import bilinear_test
from bornbiased_jax.seedprint.weights.compare import weights_test
from bornbiased_jax.seedprint.weights.identical import equal_tensors, same_up_to
from bornbiased_jax.seedprint.weights.outcome import ALPHA, SCOPE, WORD, check_level
from bornbiased_jax.stats.permutations import NUM_PERMUTATIONS

Run = Callable[..., Verdict]
BATTERY: tuple[tuple[str, Run, dict[str, str]], ...] = (
    ("coordinates", weights_test, dict(align="none", labels="coordinates")),
    ("rotation", weights_test, dict(align="rotation", labels="units")),
    ("matched units", weights_test, dict(align="units", labels="units")),
    ("bilinear", bilinear_test, {}),
)
"""In this order. Where neither model is a birth, matched units have no p and bilinear no verdict: two tests count."""


def auto_test(
    base: WeightsReader,
    suspect: WeightsReader,
    *,
    alpha: float = ALPHA,
    num_permutations: int = NUM_PERMUTATIONS,
    seed: int = 0,
) -> Verdict:
    """Say what is identical, then run the battery: nothing needs to be chosen.

    The p-value is the smallest that Holm's correction gives, over the number of tests that the pair admits (four with
    a birth, two without), fixed before any is run; undefined ones count. Without a p, agreement of two matchings
    gives "same-lineage" alone.

    Args:
        base, suspect: the models.
        alpha: the level asked for.
        num_permutations, seed: of each test.

    Raises:
        InputError: a bad level, or weights that are damaged.
    """
    check_level(alpha, num_permutations)
    births = base.is_birth or suspect.is_birth
    count = 4 if births else 2
    equal, total = equal_tensors(base, suspect)
    identity = "tensors" if equal == total > 0 else same_up_to(base, suspect)
    verdicts: dict[str, Verdict] = {}
    for name, run, options in BATTERY:
        if name != "bilinear" or births:
            draws = {"num_permutations": num_permutations, "seed": seed}
            verdicts[name] = run(base, suspect, alpha=alpha, **options, **draws)
    decided = {name: verdict for name, verdict in verdicts.items() if verdict.log10_p is not None}
    adjusted = _holm({name: verdict.log10_p or 0.0 for name, verdict in decided.items()}, count)
    best = min(decided, key=lambda name: (adjusted[name], -(decided[name].z or 0.0)), default=None)
    population = [name for name, verdict in verdicts.items() if verdict.detail["null"] == "population"]
    agreed = [name for name in population if verdicts[name].verdict == "same-lineage"]
    p_value = None if best is None else min(1.0, (decided[best].p_value or 0.0) * count)
    notes = [f"The battery: {', '.join(verdicts)}; p-values are Holm's over {count} tests.", WORD]
    if 0 < equal < total:
        notes.insert(0, f"{equal} of {total} tensors are identical, bit for bit.")
    decision: Decision = "same-lineage"
    if identity == "tensors":
        reason = "the two models have identical weights, tensor by tensor"
    elif identity is not None:
        reason = f"the same function, written {_otherwise(identity)}: an exact copy {identity}"
    elif best is not None and p_value is not None and p_value <= alpha:
        reason = f"{verdicts[best].reason} ({best}; Holm's p over {count} tests)"
    elif agreed:
        reason, best = verdicts[agreed[0]].reason, None
    elif best is None:
        decision = "undefined"
        reason = "; ".join(dict.fromkeys(verdict.reason for verdict in verdicts.values()))
    else:
        decision, reason = "unrelated", f"none of the tests finds a shared birth ({', '.join(verdicts)})"
        if equal:
            decision = "undefined"
            reason = f"{equal} of {total} tensors are identical, while the others agree no more than chance allows"
    found = verdicts[best].detail if best is not None else (verdicts[agreed[0]].detail if agreed else {})
    kept = ("null", "labels", "align", "permuted", "invariant_to", "evaded_by", "log10_p_bound", "log10_p_moments")
    detail = {key: found.get(key) for key in kept}
    detail |= {"by_module": verdicts["coordinates"].detail.get("by_module", []), "identity": identity}
    detail |= {"identical_tensors": equal, "num_tensors": total, "tests": _listed(verdicts, adjusted)}
    certain = best is not None
    return Verdict(
        decision,
        reason,
        p_value if certain else None,
        adjusted[best] if best is not None else None,
        verdicts[best].z if best is not None else None,
        "auto",
        None,
        alpha,
        {**detail, "notes": notes, "scope": SCOPE},
    )


def _holm(log10_p: dict[str, float], count: int) -> dict[str, float]:
    """Holm's adjusted p-values, base 10, of some of ``count`` tests; those without a p count as 1."""
    adjusted, highest = {}, -math.inf
    for place, name in enumerate(sorted(log10_p, key=lambda name: log10_p[name])):
        highest = max(highest, log10_p[name] + math.log10(count - place))
        adjusted[name] = min(0.0, highest)
    return adjusted


def _otherwise(identity: str) -> str:
    return {
        "up to signs": "with coordinates negated",
        "up to coordinate permutation": "with coordinates renumbered",
        "up to rotation": "with coordinates rotated",
    }.get(identity, "with other scales")


def _listed(verdicts: dict[str, Verdict], adjusted: dict[str, float]) -> list[dict[str, object]]:
    rows = []
    for name, verdict in verdicts.items():
        fields = {key: getattr(verdict, key) for key in ("verdict", "reason", "p_value", "log10_p", "z", "test")}
        chosen = {key: verdict.detail.get(key) for key in ("null", "labels", "align", "log10_p_bound", "agreement")}
        rows.append({"name": name, **fields, "log10_p_adjusted": adjusted.get(name), **chosen})
    return rows
