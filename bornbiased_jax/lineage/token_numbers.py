"""Tell whether tokens of one number are one token in two models that name them by numbers alone.

Token space sees through rotations of the residual stream only where both models name their tokens alike. A vocabulary
in another order changes nothing that a model computes, and without tokenizers no string shows it. The norm of a token's
row in the embedding does, as no rotation changes it: in trained models it depends on how frequent the token was, so
that models trained apart on one vocabulary agree in it. Initial rows have no such norms, and say nothing.
"""

from __future__ import annotations

import numpy as np
import scipy

from bornbiased_jax.checkpoints.roles import RoleSource
from bornbiased_jax.lineage.token_space import TokenTable, used_tokens

LEVEL = 0.01
"""Level at which norms agree: of vocabularies in a random order so many pass as one."""
# Variance of log norms, over that of rows of independent normal numbers, from which on training decided most of it.
_TRAINED = 2.0
# Fewer tokens than these have too few norms to agree where random numbers decided nearly half of the variance.
_MIN_TOKENS = 200


def foreign_numbers(base: RoleSource, suspect: RoleSource) -> str:
    """Say that tokens of one number seem not to be one token, by the norms of their rows in the embeddings.

    Returns:
        A clause with what would be needed; "" where the norms agree, or where they do not show what tokens are: in
        initial weights, in small vocabularies, and without an embedding.
    """
    norms = [_log_norms(model) for model in (base, suspect)]
    count = min(len(log_norms_V) for log_norms_V, _ in norms)
    used_V = np.logical_and.reduce([np.isfinite(log_norms_V[:count]) for log_norms_V, _ in norms])
    if used_V.sum() < _MIN_TOKENS:
        return ""
    # Log norms that training decided vary more than those of random rows, whose variance is 1/(2D).
    columns = [log_norms_V[:count][used_V] for log_norms_V, _ in norms]
    if any(2 * width * column.var() < _TRAINED for column, (_, width) in zip(columns, norms, strict=True)):
        return ""
    correlation = scipy.stats.spearmanr(*columns, alternative="greater")
    if correlation.pvalue <= LEVEL:
        return ""
    return (
        f"but a token's number seems to mean another token in the other model (norms of {len(columns[0]):,} rows of "
        f"the embeddings have a rank correlation of {correlation.statistic:.2f}, while models trained apart on one "
        "vocabulary agree), so that a rotated copy would not be found: give both models with their tokenizers, which "
        "match tokens by strings"
    )


def _log_norms(model: RoleSource) -> tuple[np.ndarray, int]:
    """Return the log norm of each token's row of the embedding, NaN for padding, and the width; nothing without one."""
    role = next((role for role in model.roles if role.group == "embedding" and ("vocab",) in role.axes), None)
    if role is None:
        return np.zeros(0), 1
    table = TokenTable(model.read(role), None, model.shape(role.component).is_centered)
    is_used_V = used_tokens(table)
    return np.where(is_used_V, np.log(np.where(is_used_V, table.norms, 1.0)), np.nan), table.rows_VD.shape[1]
