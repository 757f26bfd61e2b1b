"""AWM (ICLR 2026): coordinates matched on the embeddings, then unbiased CKA of query and key projections."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import linear_sum_assignment

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.lineage.baselines.score import Score, score
from bornbiased_jax.parameters import Params
from bornbiased_jax.stats import tails

NULL_MEAN, NULL_STD = 0.00375, 0.0028
"""Mean and standard deviation of unrelated pairs of published 7B models, as the published code fixes them."""
_TINY = 1e-30


def match_coordinates(wide_VD: np.ndarray, narrow_VD: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Match each coordinate of the narrower embedding to one of the wider: partner and sign between them, [D] both.

    The assignment with the largest sum of |cosines| of embedding columns over shared tokens.
    """
    wide, narrow = (
        table / np.maximum(np.linalg.norm(table, axis=0), _TINY)
        for table in (wide_VD.astype(np.float64), narrow_VD.astype(np.float64))
    )
    cosines_DD = wide.T @ narrow
    rows, columns = linear_sum_assignment(np.abs(cosines_DD), maximize=True)
    partner_D = rows[np.argsort(columns)]
    return partner_D, np.sign(cosines_DD[partner_D, np.arange(narrow.shape[1])])


def unbiased_cka(first_nd: np.ndarray, second_nd: np.ndarray) -> float:
    """Compute linear CKA of two sets of features of the same n points, by the unbiased HSIC (diagonals left out).

    Returns:
        A number from −1 to 1, near 0 for unrelated features; NaN where features are constant or n < 4.
    """
    if len(first_nd) < 4:
        return math.nan
    first_nn, second_nn = _centred_gram(first_nd), _centred_gram(second_nd)
    scale = math.sqrt(float((first_nn * first_nn).sum()) * float((second_nn * second_nn).sum()))
    return float((first_nn * second_nn).sum()) / scale if scale > 0 else math.nan


def _centred_gram(features_nd: np.ndarray) -> np.ndarray:
    features_nd = features_nd.astype(np.float64)
    gram_nn = features_nd @ features_nd.T
    num = len(gram_nn)
    np.fill_diagonal(gram_nn, 0.0)
    means_n = gram_nn.sum(axis=0) / (num - 2)
    means_n -= means_n.sum() / (2 * (num - 1))
    gram_nn -= means_n[:, None] + means_n[None, :]
    np.fill_diagonal(gram_nn, 0.0)
    return gram_nn


def awm(base_cfg: ModelConfig, base: Params, suspect_cfg: ModelConfig, suspect: Params) -> Score:
    """Compute the mean unbiased CKA of W_q and W_k over blocks, residual coordinates being the points.

    Tokens are shared by their ids. Widths may differ (the narrower is matched into the wider) and depths too (blocks
    assigned so that the sum of CKA is largest). ``detail["z"]`` is the published z, against two constants that
    belong to other models; its two-sided normal tail is the p, of which the published code names no level.
    """
    if not (base_cfg.attention and suspect_cfg.attention):
        return Score("awm", None, "a model without attention has no query and key projections")
    models = [base, suspect] if base_cfg.d_model >= suspect_cfg.d_model else [suspect, base]
    smaller = min(base_cfg.vocab_size, suspect_cfg.vocab_size)
    tables = [np.asarray(params["embed"]["embedding"])[:smaller] for params in models]
    # Match residual coordinates on the embedding rows of shared tokens.
    partner_D, sign_D = match_coordinates(*tables)
    wide, narrow = (
        [np.asarray(params["blocks"]["attention"][kind]["kernel"]) for kind in ("query", "key")] for params in models
    )
    num_wide, num_narrow = len(wide[0]), len(narrow[0])
    # CKA of every pair of blocks, or of equal layers alone where the depths agree.
    cka_2LL = np.full((2, num_wide, num_narrow), math.nan)
    for kind in range(2):
        for wide_layer in range(num_wide):
            matched_Dk = wide[kind][wide_layer][partner_D] * sign_D[:, None]
            for narrow_layer in range(num_narrow) if num_wide != num_narrow else (wide_layer,):
                cka_2LL[kind, wide_layer, narrow_layer] = unbiased_cka(matched_Dk, narrow[kind][narrow_layer])
    if num_wide == num_narrow:
        pairs = (np.arange(num_wide), np.arange(num_wide))
    elif not np.isfinite(cka_2LL).all():
        return Score("awm", None, "a query or key projection is constant over the coordinates")
    else:
        pairs = linear_sum_assignment(cka_2LL.mean(axis=0), maximize=True)
    # Mean over the matched blocks, with the published z and its two-sided normal tail.
    value = float(cka_2LL[:, pairs[0], pairs[1]].mean())
    z = (value - NULL_MEAN) / NULL_STD
    log_p = min(0.0, math.log(2.0) + tails.log_normal_sf(abs(z))) if math.isfinite(z) else None
    return score(
        "awm", value, log10_p=None if log_p is None else log_p / tails.LN10, z=z if log_p is not None else None
    )
