"""``--test rank``: the place of one birth among fresh births of the same law, by any score."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.verdict import Verdict
from bornbiased_jax.lineage.weights.align import Unaligned, match_layers, mlp_modules, rotation
from bornbiased_jax.lineage.weights.coordinates import column_norms, prepared_pairs
from bornbiased_jax.lineage.weights.outcome import Basis
from bornbiased_jax.lineage.weights.tokens import SharedTokens, shared_tokens
from bornbiased_jax.lineage.weights.view import Matrix, folded, unit_rows

ALPHA, NUM_BIRTHS = 0.01, 199
"""The level and the number of fresh births unless others are given."""
# Seeds far from those that people choose.
_FIRST_SEED = 3_500_000_000

Score = Callable[[Checkpoint, Checkpoint, SharedTokens], float]


def coordinate_score(birth: Checkpoint, suspect: Checkpoint, tokens: SharedTokens) -> float:
    """Sum over matrices and coordinates the cosine of a coordinate with its own: no D × D product."""
    total = 0.0
    for _, birth_nD, suspect_nD in prepared_pairs(birth, suspect, tokens):
        diagonal_D = np.einsum("nd,nd->d", birth_nD, suspect_nD)
        total += float((diagonal_D / (column_norms(birth_nD) * column_norms(suspect_nD))).sum(dtype=np.float64))
    return total


def rotation_score(birth: Checkpoint, suspect: Checkpoint, tokens: SharedTokens) -> float:
    """Compute the trace of form A after Procrustes on the vocabulary, layers summed: no F × F product.

    Of MLPs of two sizes the first units are compared.
    """
    size = min(birth.cfg.d_ff, suspect.cfg.d_ff)
    turn_DD = rotation(birth, suspect, tokens)
    total = 0.0
    for pair in match_layers(birth, suspect, turn_DD):
        cosines = {}
        for module in mlp_modules(birth):
            birth_FD = unit_rows(folded(birth, Matrix(module, pair[0]))[:size]) @ turn_DD
            suspect_FD = unit_rows(folded(suspect, Matrix(module, pair[1]))[:size])
            cosines[module] = np.einsum("fd,fd->f", birth_FD, suspect_FD, dtype=np.float64)
        written_F = cosines["mlp/up"] + cosines["mlp/down"]
        total += float((np.abs(written_F) + cosines["mlp/gate"] if "mlp/gate" in cosines else written_F).sum())
    return total


SCORES: dict[str, tuple[Score, tuple[str, ...], str]] = {
    "none": (coordinate_score, (), "negating, rotating or renumbering the residual coordinates; reordering units"),
    "rotation": (
        rotation_score,
        ("rotations, signs and permutations of the residual stream", "scales moved between matrices"),
        "reordering hidden units; renumbering a vocabulary whose tokenizer is not there",
    ),
}


def rank_test(
    base: Checkpoint,
    suspect: Checkpoint,
    *,
    align: str = "none",
    ids: Iterable[int] | None = None,
    alpha: float = ALPHA,
    num_births: int = NUM_BIRTHS,
) -> Verdict:
    """Rank initial weights named beforehand among fresh ones of the same scheme: p = (1 + #{S_k ≥ S})/(K + 1).

    Exact whatever the score: an unrelated suspect does not know which of K + 1 births was named. A base that is
    trained would outrank births for what it learned, and is refused.

    Args:
        base: a birth (a seed, or step 0 of a run), named before the suspect was looked at.
        suspect: any model of the same shape.
        align: the score: "none", cosines coordinate by coordinate; "rotation", form A after Procrustes.
        ids: tokens to compare vocabularies on; all that both have by default.
        alpha: the level asked for; same lineage where p ≤ alpha.
        num_births: K.

    Returns:
        A verdict; undefined where K is too small for alpha or the score does not exist.

    Raises:
        InputError: the base is no birth, or an unknown score or bad level.
    """
    if align not in SCORES:
        raise InputError(f"rank has no score with the alignment {align!r}: choose from {', '.join(SCORES)}")
    if not 0.0 < alpha < 1.0:
        raise InputError(f"alpha={alpha} is not between 0 and 1")
    if not base.is_initial or base.seed is None:
        raise InputError(
            f"rank places a birth among births, and {base.description} is not known to be one: name a seed "
            "(seed:42@PRESET) or step 0 of a run"
        )
    score, invariant_to, evaded_by = SCORES[align]
    facts = {"align": align, "labels": "births", "num_births": num_births}
    basis = Basis("rank", alpha, "the birth among births of other seeds", invariant_to, evaded_by, facts)
    if num_births + 1 < 1 / alpha:
        return basis.undefined(f"{num_births} births cannot give p ≤ {alpha:g}: ask for {math.ceil(1 / alpha) - 1}")
    # Undefined where the score does not exist.
    reason = _unfit(base, suspect, align)
    if reason is not None:
        return basis.undefined(reason)
    tokens = shared_tokens(base, suspect, ids)
    try:
        # The same score of the base and of fresh births.
        observed = score(base, suspect, tokens)
        scores_K = np.array([score(birth, suspect, tokens) for birth in _others(base, suspect, num_births)])
    except Unaligned as error:
        return basis.undefined(str(error))
    # Rank p; z only describes.
    exceedances = int((scores_K >= observed).sum())
    mean, std = float(scores_K.mean()), float(scores_K.std(ddof=1))
    return basis.by_p(
        f"of {num_births} other births {exceedances} score as high as the named one",
        (1 + exceedances) / (1 + num_births),
        z=(observed - mean) / std if std > 0 else None,
        statistic=observed,
        null_mean=mean,
        null_std=std,
        notes=[
            "A birth that was not named beforehand costs a factor of the seeds tried, 2³² if any might have been.",
        ],
    )


def _others(base: Checkpoint, suspect: Checkpoint, count: int) -> Iterator[Checkpoint]:
    """Draw fresh initial weights as the base's: neither the base's seed nor, where it is known, the suspect's."""
    taken = {base.seed, suspect.seed}
    seeds = (seed for seed in range(_FIRST_SEED, _FIRST_SEED + count + 2) if seed not in taken)
    return (Checkpoint.from_seed(base.cfg, next(seeds)) for _ in range(count))


def _unfit(base: Checkpoint, suspect: Checkpoint, align: str) -> str | None:
    if align == "none":
        if base.cfg.d_model != suspect.cfg.d_model:
            return f"the widths differ ({base.cfg.d_model} and {suspect.cfg.d_model}): align by rotation"
        return None
    if base.cfg.num_experts is not None or suspect.cfg.num_experts is not None:
        return "neurons of a mixture of experts lie in experts, which are not paired here"
    if not mlp_modules(base) or mlp_modules(base) != mlp_modules(suspect):
        return "the two models' MLPs have no hidden units that correspond"
    return None
