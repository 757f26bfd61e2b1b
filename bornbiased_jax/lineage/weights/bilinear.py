"""``--test bilinear``: what the vocabulary says about itself, whatever basis it is written in.

M = E Uᵀ over token ids (E the embedding, U the head, the final norm's scale folded in, centred over the tokens) is
unchanged by any orthogonal map of the residual stream, by the order of hidden units and by heads. A birth's embedding
rows are exchangeable, so that permuting them is exact; two trained models both learned the same bigrams, so that
between them there is no verdict.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.lineage.verdict import WORD, Verdict
from bornbiased_jax.lineage.weights.outcome import ALPHA, Basis, check_level, unstated
from bornbiased_jax.lineage.weights.tokens import MIN_TOKENS, SharedTokens, ordinary, shared_tokens
from bornbiased_jax.lineage.weights.view import VOCABULARY, token_rows
from bornbiased_jax.stats.certified import certified_p
from bornbiased_jax.stats.permutations import NUM_PERMUTATIONS, TIE, histogram, permutations

MAX_TOKENS, MAX_TOKENS_TIED = 4096, 512
"""Token ids compared at most, drawn at random from more: scores take their square, a tied birth's permutations too."""

_INVARIANT = ("every orthogonal map of the residual stream", "the order of hidden units and heads",
              "scales of token rows and of norms", "a vector added to every column of the head")  # fmt: skip
_EVADED = (
    "renumbering a vocabulary whose tokenizer is not there; training until nothing of the birth's vocabulary is left"
)


def bilinear_test(
    base: Checkpoint,
    suspect: Checkpoint,
    *,
    ids: Iterable[int] | None = None,
    alpha: float = ALPHA,
    num_permutations: int = NUM_PERMUTATIONS,
    seed: int = 0,
) -> Verdict:
    """Correlate the bilinear forms of a birth's and another model's vocabulary; exact for a birth against any model.

    An untied birth has its embedding rows permuted alone: the statistic is the trace of C = M_birth M_suspectᵀ, with
    moments and a certified bound. A tied birth has rows and columns permuted together, the diagonal zeroed: the test
    is weak, and its p no smaller than the permutations allow.

    Args:
        base, suspect: the models, one of them a birth (a seed, or step 0 of a run).
        ids: tokens to look at (those of some text); all that both have by default. Padding is left out, as the
            suspect's rows alone show it, and at most 4,096 (512 for a tied birth) are kept.
        alpha: the level asked for; same lineage where p ≤ alpha.
        num_permutations: drawn.
        seed: of the permutations and of the choice of tokens.

    Returns:
        A verdict; undefined where neither model is a birth, or with too few tokens.

    Raises:
        InputError: a bad level or bad ids, or weights that are damaged.
    """
    check_level(alpha, num_permutations)
    birth, other = (base, suspect) if base.is_initial else (suspect, base)
    tied = birth.cfg.tie_embeddings
    permuted = "the birth's vocabulary, embedding and head together" if tied else "the birth's embedding rows"
    # Rows are chosen by the other model's alone: the birth's stay exchangeable.
    tokens = shared_tokens(base, suspect, ids)
    if birth is suspect:
        tokens = tokens.swapped()
    if birth.is_initial:
        tokens = tokens.kept(ordinary(other, tokens.suspect_I))
    # A random subset where there are too many.
    most = MAX_TOKENS_TIED if tied else MAX_TOKENS
    if len(tokens) > most:
        tokens = tokens.kept(np.sort(np.random.default_rng(seed).choice(len(tokens), most, replace=False)))
    facts = {"align": "none", "labels": "vocabulary", "num_tokens": len(tokens), "tokens_matched_by": tokens.matched_by}
    facts |= {"tied": tied}
    basis = Basis("bilinear", alpha, permuted, _INVARIANT, _EVADED, facts)
    if not birth.is_initial:
        return basis.undefined(
            "neither model is a birth: two trained models agree in what they learned, whatever they were born from; "
            "name a seed (seed:42@PRESET) or step 0 of a run"
        )
    if len(tokens) < MIN_TOKENS:
        return basis.undefined(
            f"the models have {len(tokens)} usable token ids in common, fewer than {MIN_TOKENS} to compare on"
        )
    reason = unstated("vocabulary", birth)
    if reason is not None:
        return basis.undefined(reason)
    if tied:
        return _tied(basis, birth, other, tokens, num_permutations, seed)
    # Untied: C = M_birth M_suspectᵀ by way of a [D, D] product, without either bilinear form.
    birth_E, birth_U = (_centred(birth, module, tokens.base_I) for module in VOCABULARY)
    other_E, other_U = (_centred(other, module, tokens.suspect_I) for module in VOCABULARY)
    scores_II = (birth_E @ (birth_U.T @ other_U)) @ other_E.T
    certified = certified_p(scores_II, num_permutations=num_permutations, seed=seed)
    norms = _norm(birth_E, birth_U) * _norm(other_E, other_U)
    correlation = certified.statistic / norms if norms > 0 else None
    return basis.decide(
        certified, base, suspect, where=": in the vocabulary, the only part that it reads", correlation=correlation
    )


def _centred(reader: Checkpoint, module: str, ids_I: np.ndarray) -> np.ndarray:
    rows_ID = token_rows(reader, module, ids_I).astype(np.float64)
    return rows_ID - rows_ID.mean(axis=0)


def _norm(embed_ID: np.ndarray, head_ID: np.ndarray) -> float:
    """Compute ‖E Uᵀ‖ from the two Grams."""
    return float(np.sqrt(max(0.0, float(((embed_ID.T @ embed_ID) * (head_ID.T @ head_ID)).sum()))))


def _tied(
    basis: Basis, birth: Checkpoint, other: Checkpoint, tokens: SharedTokens, num_permutations: int, seed: int
) -> Verdict:
    # Bilinear forms of both models without their diagonals.
    forms = []
    for reader, ids_I in ((birth, tokens.base_I), (other, tokens.suspect_I)):
        form_II = _centred(reader, "embed", ids_I) @ _centred(reader, "head", ids_I).T
        np.fill_diagonal(form_II, 0.0)
        forms.append(np.ascontiguousarray(form_II, np.float32))
    birth_II, other_II = forms
    observed = float((birth_II * other_II).sum(dtype=np.float64))
    # The statistic under permutations of rows and columns together.
    sums_P = np.array(
        [
            float(np.vdot(birth_II[order_I][:, order_I], other_II))
            for batch_PI in permutations(len(tokens), num_permutations, seed=seed)
            for order_I in batch_PI
        ]
    )
    mean, std = float(sums_P.mean()), float(sums_P.std())
    if not std > 0:
        return basis.undefined(f"every order of {basis.permuted} gives the same statistic")
    # float32 sums of n² terms: what differs by rounding only is a tie.
    ties = TIE * std + 1e-5 * float(np.linalg.norm(birth_II) * np.linalg.norm(other_II))
    p_value = (1 + int((sums_P >= observed - ties).sum())) / (1 + num_permutations)
    more = "more" if basis.same_at(p_value) else "no more"
    return basis.by_p(
        f"the vocabularies' bilinear forms agree {more} than chance allows",
        p_value,
        z=(observed - mean) / std,
        statistic=observed,
        null_mean=mean,
        null_std=std,
        num_permutations=num_permutations,
        null_histogram=histogram(sums_P, mean, std),
        correlation=observed / float(np.linalg.norm(birth_II) * np.linalg.norm(other_II)),
        notes=[WORD, "Of a tied birth rows and columns move together: this finds few descendants; see rank."],
    )
