"""``--test auto``: what is identical first, then a fixed battery of tests in the weights, with Holm's correction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.lineage.verdict import WORD, Decision, Verdict, rests_on
from bornbiased_jax.lineage.weights.align import Aligned, Unaligned, align
from bornbiased_jax.lineage.weights.bilinear import bilinear_test
from bornbiased_jax.lineage.weights.compare import both_unit_tests, weights_test
from bornbiased_jax.lineage.weights.differences import kinds_of, settings_apart, with_differences
from bornbiased_jax.lineage.weights.identical import (
    FILES,
    Equal,
    Identity,
    Rewritten,
    equal_tensors,
    same_files,
    same_source,
    same_up_to,
)
from bornbiased_jax.lineage.weights.logits import same_logits
from bornbiased_jax.lineage.weights.outcome import ALPHA, SCOPE, check_level
from bornbiased_jax.lineage.weights.tokens import shared_tokens
from bornbiased_jax.stats.multiple import holm_log10
from bornbiased_jax.stats.permutations import NUM_PERMUTATIONS

# What the verdict says of the test that decides.
_KEPT = ("null", "labels", "align", "permuted", "invariant_to", "evaded_by", "log10_p_bound", "log10_p_moments")
_MATCHED_BY_STRINGS = "The tokenizers number their tokens differently: tokens were matched by their strings."
_TENSORS = "the two models have identical weights, tensor by tensor"
_MATRICES = "the two models have identical matrices"
_LOGITS = "the two models give the same logits on random tokens"
_SHARED_EMBEDDINGS = (
    "Shared embeddings: the token embedding and the head are the same numbers and no other matrix is; coordinates may "
    "agree because of them alone."
)
# These read the vocabulary, alone or beside the blocks.
_OF_THE_VOCABULARY = ("coordinates", "bilinear")


def auto_test(
    base: Checkpoint,
    suspect: Checkpoint,
    *,
    alpha: float = ALPHA,
    num_permutations: int = NUM_PERMUTATIONS,
    seed: int = 0,
    outputs: Callable[[], Verdict] | None = None,
) -> Verdict:
    """Name what is identical, then run the battery: nothing needs to be chosen.

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
    births = base.is_initial or suspect.is_initial
    draws: dict[str, Any] = {"alpha": alpha, "num_permutations": num_permutations, "seed": seed}
    # Identity first, then the battery of tests.
    aligned = _aligned(base, suspect)
    identity, equal, sentence = identify(base, suspect, aligned)
    verdicts = {"coordinates": weights_test(base, suspect, **draws)}
    by_units = both_unit_tests(base, suspect, aligned=aligned, **draws)
    verdicts |= dict(zip(("rotation", "matched units"), by_units, strict=True))
    if births:
        verdicts["bilinear"] = bilinear_test(base, suspect, **draws)
    # Where neither model is a birth matched units have no p and bilinear no verdict.
    count = 4 if births else 2
    if outputs is not None:
        verdicts["outputs"], count = outputs(), count + 1
    # Holm's correction over the tests that the pair admits.
    decided = {name: verdict.log10_p or 0.0 for name, verdict in verdicts.items() if _has_p(verdict)}
    adjusted = dict(zip(decided, holm_log10(list(decided.values()), count=count).tolist(), strict=True))
    best = min(adjusted, key=lambda name: (adjusted[name], -(verdicts[name].z or 0.0)), default=None)
    # Tests that are tied have the smallest p times the number of tests; from p itself, which log10 would round.
    smallest = min(decided, key=lambda name: decided[name], default=None)
    p_value = None if smallest is None else min(1.0, (verdicts[smallest].p_value or 0.0) * count)
    # The decision: identity, then the smallest p, then agreement of matchings.
    embeddings_alone = best in _OF_THE_VOCABULARY and not _in_the_blocks(verdicts)
    agreed = next((name for name, verdict in verdicts.items() if _agrees(verdict)), None)
    decision: Decision = "same-lineage"
    if identity is not None:
        reason = same_source(base, suspect) or sentence
    elif best is not None and p_value is not None and p_value <= alpha:
        agreement = verdicts[best].reason.removesuffix(f" (p ≤ {alpha:g})")
        reason = f"{agreement} (p ≤ {alpha:g} by {best}, after Holm's correction for {count} tests)"
        if embeddings_alone and best == "bilinear":
            reason += "; no test of the blocks agrees (shared embeddings)"
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
    # Evidence and notes of the test that decides.
    deciding = best or agreed
    evidence = verdicts[deciding].detail if deciding is not None else {}
    notes = [f"The battery: {', '.join(verdicts)}; p-values are Holm's over {count} tests."]
    if deciding is not None:
        notes.append(f"In {deciding}: {rests_on(evidence)}")
        notes += [note for note in evidence["notes"] if note not in (rests_on(evidence), WORD)]
    notes.append(WORD)
    if equal.vocabulary_alone and not equal.all:
        notes.insert(0, _SHARED_EMBEDDINGS)
    if 0 < len(equal.paths) < equal.total:
        notes.insert(0, f"{_counted(equal)} identical, bit for bit.")
    detail = {key: evidence.get(key) for key in (*_KEPT, "null_histogram")}
    if decision == "unrelated":
        detail["evaded_by"] = _evaded_by(verdicts)
    detail |= {"by_module": verdicts["coordinates"].detail.get("by_module", []), "identity": identity}
    detail |= {"identical_tensors": len(equal.paths), "num_tensors": equal.total}
    alone = equal.vocabulary_alone or (decision == "same-lineage" and identity is None and embeddings_alone)
    detail |= {"shared_embeddings": alone, "tests": _listed(verdicts, adjusted)}
    detail["by_part"] = verdicts["coordinates"].detail.get("by_part", [])
    detail["tokens_matched_by"] = verdicts["coordinates"].detail["tokens_matched_by"]
    if detail["tokens_matched_by"] == "strings":
        notes.insert(0, _MATCHED_BY_STRINGS)
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


def _aligned(base: Checkpoint, suspect: Checkpoint) -> Aligned | Unaligned:
    """Align two models once, for identity and two of the tests."""
    try:
        return align(base, suspect, shared_tokens(base, suspect), rotated=True)
    except Unaligned as error:
        return error


def identify(base: Checkpoint, suspect: Checkpoint, aligned: Aligned | Unaligned) -> tuple[Identity | None, Equal, str]:
    """Name in what way the weights of two models are the same, if they are.

    Returns:
        The way; which tensors are equal bit for bit; one sentence that says what is the same and what differs.
    """
    equal = equal_tensors(base, suspect)
    settings = settings_apart(base.cfg, suspect.cfg)
    if same_files(base, suspect):
        return "files", equal, with_differences(FILES, settings)
    if equal.all:
        differences = kinds_of(base, suspect, equal.differing)
        return "tensors", equal, with_differences(_MATRICES if differences else _TENSORS, [*settings, *differences])
    rewritten = None if isinstance(aligned, Unaligned) else same_up_to(aligned)
    if rewritten is not None:
        return rewritten.identity, equal, _written(rewritten)
    if same_logits(base, suspect):
        return "logits", equal, with_differences(_LOGITS, settings)
    return None, equal, ""


def _in_the_blocks(verdicts: dict[str, Verdict]) -> bool:
    """Return whether any test finds shared initial weights in the blocks."""
    units = any(verdicts[name].verdict == "same-lineage" for name in ("rotation", "matched units"))
    coordinates = verdicts["coordinates"]
    return units or (coordinates.verdict == "same-lineage" and not coordinates.detail["shared_embeddings"])


def _evaded_by(verdicts: dict[str, Verdict]) -> str:
    """Describe what hides shared initial weights from all tests that gave a verdict, at once."""
    gave = {name for name, verdict in verdicts.items() if verdict.verdict != "undefined"}
    needed = ["rotating or renumbering the residual coordinates"] if gave & {"coordinates", "outputs"} else []
    evasions = ["splitting, merging or retraining hidden units"] if gave & {"rotation", "matched units"} else []
    evasions += ["training until nothing of the birth's vocabulary is left"] if "bilinear" in gave else []
    joined = " together with ".join([*needed, *evasions])
    vocabulary = "renumbering a vocabulary whose tokenizer is not there"
    return f"{joined}; or {' together with '.join([*needed, vocabulary])}" if evasions else joined


def _has_p(verdict: Verdict) -> bool:
    """Return whether a verdict has a p; an undefined one counts as p = 1, whatever number it carries."""
    return verdict.verdict != "undefined" and verdict.log10_p is not None


def _agrees(verdict: Verdict) -> bool:
    return verdict.detail.get("null") == "population" and verdict.verdict == "same-lineage"


def _counted(equal: Equal) -> str:
    return f"{len(equal.paths)} of {equal.total} tensors are"


def _written(rewritten: Rewritten) -> str:
    """Describe how a model is written whose matrices are another's, and whether it is an exact copy."""
    changes = ", ".join(rewritten.changes)
    if not rewritten.differences:
        rewriting = changes or "scales moved between norms and matrices"
        return f"the same function, {rewriting}: an exact copy {rewritten.identity}"
    sentence = f"the same matrices {rewritten.identity}" + (f" ({changes})" if changes else "")
    return with_differences(sentence, rewritten.differences)


def _listed(verdicts: dict[str, Verdict], adjusted: dict[str, float]) -> list[dict[str, object]]:
    rows = []
    for name, verdict in verdicts.items():
        fields = {key: getattr(verdict, key) for key in ("verdict", "reason", "p_value", "log10_p", "z", "test")}
        log10_p = adjusted.get(name)
        fields |= {"p_adjusted": None if log10_p is None else 10.0**log10_p, "log10_p_adjusted": log10_p}
        rows.append({"name": name, **fields, **{key: verdict.detail.get(key) for key in (*_KEPT, "agreement")}})
    return rows
