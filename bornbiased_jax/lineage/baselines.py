"""Published fingerprints of weights, each one function of two models giving one score.

Of the similarity scores (methods, section 2) one above the published threshold of 0.8 reads as "same". At a fixed
threshold the comparison is unfair to them. φ_U and AWM (section 1b) bring a p, which is no better than its null: see
the calibration experiment.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import scipy

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.parameters import Params, flatten
from bornbiased_jax.stats import tails

THRESHOLD, LEVEL = 0.8, 0.01
"""The published decision: a score above the first or, where the method gives a p, a p below the second."""
AWM_MEAN, AWM_STD = 0.00375, 0.0028
"""Mean and standard deviation of AWM for unrelated pairs of published 7B models, as the published code fixes them."""
_TABLES = ("embed/", "positions/", "head/")
_PROJECTIONS = ("query", "key", "value", "output")
# ICS reads the largest ids (numbered by frequency or merge order the rarest tokens), and the last blocks.
_ICS_TOKENS, _ICS_BLOCKS = 4096, 2
_TINY = 1e-30


@dataclasses.dataclass(frozen=True)
class Score:
    """One baseline's score. ``value`` is None, with the ``reason``, where the method is not defined.

    ``log10_p`` is there for methods that give a p, and decides then.
    """

    method: str
    value: float | None
    reason: str = ""
    detail: dict[str, object] = dataclasses.field(default_factory=dict)
    log10_p: float | None = None

    @property
    def same(self) -> bool | None:
        """The decision: p < 0.01 where there is a p, else score > 0.8; None without a score."""
        if self.value is None:
            return None
        return self.value > THRESHOLD if self.log10_p is None else self.log10_p < math.log10(LEVEL)

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        above = None if self.value is None else self.value > THRESHOLD
        fixed = {"method": self.method, "score": self.value, "same_at_0.8": above, "reason": self.reason}
        by_p = {} if self.log10_p is None else {"log10_p": self.log10_p, "same_at_p_0.01": self.same}
        return {**fixed, **by_p, **self.detail}


def score(method: str, value: float, *, log10_p: float | None = None, **detail: object) -> Score:
    """Wrap a number as a score, undefined if it is NaN (never a number in its place)."""
    if math.isfinite(value):
        return Score(method, float(value), detail=detail, log10_p=log10_p)
    return Score(method, None, "the score is not a number: an input to it is constant", detail)


def weight_scores(base: Checkpoint, suspect: Checkpoint) -> list[Score]:
    """Compute intrinsic, PCS, ICS, φ_U and AWM of two models."""
    models = base.cfg, base.params(), suspect.cfg, suspect.params()
    weights = base.params(), suspect.params()
    return [intrinsic(*weights), pcs(*weights), ics(*models), phi_u(*models), awm(*models)]


def pearson(a: np.ndarray, b: np.ndarray) -> float:
    """Compute Pearson's correlation in float64; NaN if an argument is constant."""
    a, b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    a, b = a - a.mean(), b - b.mean()
    return _cosine(float(a @ b), float(a @ a), float(b @ b))


def _cosine(product: float, base_square: float, suspect_square: float) -> float:
    scale = math.sqrt(base_square) * math.sqrt(suspect_square)
    return float(product / scale) if scale > 0 else math.nan


def _unit_columns(matrix_nm: np.ndarray) -> np.ndarray:
    units_nm: np.ndarray = matrix_nm.astype(np.float64)
    units_nm /= np.maximum(np.linalg.norm(units_nm, axis=0), _TINY)
    return units_nm


# ---------------------------------------------------------------------------------------------------------------------
# Intrinsic fingerprint (Yoon et al., 2025) and HuRef (Zeng et al., 2024)


def intrinsic(base: Params, suspect: Params) -> Score:
    """Correlate the standard deviations of each layer's projections over layers; the mean over four kinds.

    The shorter of two profiles is stretched, linearly by index. With two layers every correlation is 1 or −1; with one
    layer there is none.
    """
    if any("attention" not in params.get("blocks", {}) for params in (base, suspect)):
        return Score("intrinsic", None, "a model without attention has no profile")
    # A profile of standard deviations over layers for each kind, both at one depth.
    correlations = {}
    for kind in _PROJECTIONS:
        profiles = []
        for params in (base, suspect):
            kernel_LIO = np.asarray(params["blocks"]["attention"][kind]["kernel"], np.float64)
            profiles.append(kernel_LIO.reshape(len(kernel_LIO), -1).std(axis=1, ddof=1))
        depth = max(map(len, profiles))
        profiles = [np.interp(np.linspace(0, len(x) - 1, depth), np.arange(len(x)), x) for x in profiles]
        correlations[kind] = pearson(*profiles)
    defined = {kind: value if np.isfinite(value) else None for kind, value in correlations.items()}
    return score("intrinsic", float(np.mean(list(correlations.values()))), correlations=defined)


def pcs(base: Params, suspect: Params) -> Score:
    """Compute HuRef's PCS, the cosine of all parameters as one vector; ``detail`` has that of the blocks alone."""
    # Both models as flat vectors: the same parameters in the same shapes.
    base_leaves, suspect_leaves = flatten(base), flatten(suspect)
    shapes = {path: np.shape(leaf) for path, leaf in base_leaves.items()}
    if shapes != {path: np.shape(leaf) for path, leaf in suspect_leaves.items()}:
        return Score("pcs", None, "the two models have parameters of different names or shapes")
    # Inner products with float64 sums, tensor by tensor: of all and of the blocks alone.
    sums = {"all": np.zeros(3), "blocks": np.zeros(3)}
    for path in sorted(base_leaves):
        a, b = np.asarray(base_leaves[path]).ravel(), np.asarray(suspect_leaves[path]).ravel()
        terms = np.array([np.einsum("n,n->", x, y, dtype=np.float64) for x, y in ((a, b), (a, a), (b, b))])
        sums["all"] += terms
        if not path.startswith(_TABLES):
            sums["blocks"] += terms
    without_embeddings = _cosine(*sums["blocks"])
    detail = {"without_embeddings": without_embeddings if math.isfinite(without_embeddings) else None}
    return score("pcs", _cosine(*sums["all"]), **detail)


def invariants(cfg: ModelConfig, params: Params, token_ids: np.ndarray) -> Iterator[np.ndarray]:
    """Yield M_a, M_b, M_f of the last two blocks, [X, X] each with X tokens, one at a time.

    M_a = X W_qᵀ W_k Xᵀ, M_b = X W_vᵀ W_oᵀ Xᵀ and M_f = X (W_gᵀ ∘ W_uᵀ) W_dᵀ Xᵀ (without a gate
    X W_uᵀ W_dᵀ Xᵀ) in [out, in] layout; X are the tokens' embeddings. Grouped key and value heads are
    repeated head by head for the queries of their group.
    """
    x_XD = np.asarray(params["embed"]["embedding"])[token_ids].astype(np.float32)

    def grouped(kernel_DO: np.ndarray) -> np.ndarray:
        heads_DGK = np.asarray(kernel_DO, np.float32).reshape(len(kernel_DO), cfg.kv_heads, cfg.key_dim)
        return heads_DGK.repeat(cfg.num_heads // cfg.kv_heads, axis=1).reshape(len(kernel_DO), -1)

    for layer in range(cfg.num_layers - _ICS_BLOCKS, cfg.num_layers):
        # Heads cancel in the products of queries with keys, and of values with outputs.
        if cfg.attention:
            attention = params["blocks"]["attention"]
            query = x_XD @ np.asarray(attention["query"]["kernel"][layer], np.float32)
            yield query @ (x_XD @ grouped(attention["key"]["kernel"][layer])).T
            value = x_XD @ grouped(attention["value"]["kernel"][layer])
            yield value @ np.asarray(attention["output"]["kernel"][layer], np.float32) @ x_XD.T
        # Hidden units cancel in the product of the way in with the way out.
        if cfg.mlp:
            mlp = params["blocks"]["mlp"]
            up_DF = np.asarray(mlp["up"]["kernel"][layer], np.float32)
            if cfg.gated_mlp:
                up_DF = up_DF * np.asarray(mlp["gate"]["kernel"][layer], np.float32)
            yield x_XD @ up_DF @ np.asarray(mlp["down"]["kernel"][layer], np.float32) @ x_XD.T


def ics(base_cfg: ModelConfig, base: Params, suspect_cfg: ModelConfig, suspect: Params) -> Score:
    """Compute HuRef's ICS, the cosine of stacked, z-scored products of weights that no rotation inside a model changes.

    Rows of the embedding are the 4,096 largest ids of the smaller vocabulary: the published list of the rarest tokens
    is not published. Each matrix being z-scored, the cosine of the stack is the mean of the matrices' correlations.
    """
    # Undefined where the invariants of the two models do not correspond.
    if (base_cfg.attention, base_cfg.mlp) != (suspect_cfg.attention, suspect_cfg.mlp):
        return Score("ics", None, "the two models have different kinds of sublayers")
    if base_cfg.num_experts is not None or suspect_cfg.num_experts is not None:
        return Score("ics", None, "a mixture of experts has no one product of up and down")
    if min(base_cfg.num_layers, suspect_cfg.num_layers) < _ICS_BLOCKS:
        return Score("ics", None, f"a model has fewer than {_ICS_BLOCKS} blocks")
    vocab_size = min(base_cfg.vocab_size, suspect_cfg.vocab_size)
    token_ids = np.arange(max(0, vocab_size - _ICS_TOKENS), vocab_size)
    matrices = (invariants(cfg, params, token_ids) for cfg, params in ((base_cfg, base), (suspect_cfg, suspect)))
    correlations = [pearson(*pair) for pair in zip(*matrices, strict=True)]
    return score("ics", float(np.mean(correlations)), num_tokens=len(token_ids), num_matrices=len(correlations))


# ---------------------------------------------------------------------------------------------------------------------
# Independence test (Zhu et al., 2025) and AWM (ICLR 2026)


def phi_u(base_cfg: ModelConfig, base: Params, suspect_cfg: ModelConfig, suspect: Params) -> Score:
    """Compute φ_U: up rows matched by cosine, block by block, and the matching's order against the identity.

    Undefined where blocks, widths or hidden units differ in number.
    """
    if not (base_cfg.mlp and suspect_cfg.mlp):
        return Score("phi_u", None, "a model without an MLP has no hidden units to match")
    if base_cfg.num_experts is not None or suspect_cfg.num_experts is not None:
        return Score("phi_u", None, "neurons of a mixture of experts lie in experts, which nothing pairs here")
    if base_cfg.d_model != suspect_cfg.d_model:
        return Score("phi_u", None, f"the widths differ: {base_cfg.d_model} and {suspect_cfg.d_model}")
    base_LDF, suspect_LDF = (np.asarray(params["blocks"]["mlp"]["up"]["kernel"]) for params in (base, suspect))
    return order_score("phi_u", base_LDF, suspect_LDF)


def order_score(method: str, base_LnF: np.ndarray, suspect_LnF: np.ndarray) -> Score:
    """Match columns by cosine in each block, and test the order of the matching against the identity."""
    reason = unequal_units(base_LnF, suspect_LnF)
    if reason is not None:
        return Score(method, None, reason)
    # Match columns in each block; the order is held against the identity.
    identity_F = np.arange(base_LnF.shape[-1])
    matchings = []
    for base_nF, suspect_nF in zip(base_LnF, suspect_LnF, strict=True):
        cosines_FF = _unit_columns(base_nF).T @ _unit_columns(suspect_nF)
        matchings.append((identity_F, scipy.optimize.linear_sum_assignment(cosines_FF, maximize=True)[1]))
    return spearman_score(method, matchings)


def spearman_score(method: str, pairs: list[tuple[np.ndarray, np.ndarray]], **detail: object) -> Score:
    """Test two orders of units in every block by Spearman's correlation, and combine the blocks' p by Fisher's method.

    Spearman's p is Student's t, as published: an approximation, two-sided.
    """
    log_ps = np.array([tails.log_spearman(first_F, second_F) for first_F, second_F in pairs])
    log_p = tails.log_fisher(log_ps)
    if not np.isfinite(log_p):
        return Score(method, None, "fewer than three hidden units have no order to test")
    correlations = [tails.spearman(first_F, second_F) for first_F, second_F in pairs]
    by_block = (log_ps / tails.LN10).tolist()
    return score(method, float(np.mean(correlations)), log10_p=log_p / tails.LN10, log10_p_by_block=by_block, **detail)


def unequal_units(base_LnF: np.ndarray, suspect_LnF: np.ndarray) -> str | None:
    """Return why units of two models cannot be matched block by block, or None if they can."""
    if len(base_LnF) != len(suspect_LnF):
        return f"the models have {len(base_LnF)} and {len(suspect_LnF)} blocks, which are paired by their numbers"
    if base_LnF.shape[1] != suspect_LnF.shape[1]:
        return f"activations on {base_LnF.shape[1]} and {suspect_LnF.shape[1]} tokens: use the same inputs"
    if base_LnF.shape[2] != suspect_LnF.shape[2]:
        return f"the MLPs have {base_LnF.shape[2]} and {suspect_LnF.shape[2]} hidden units"
    return None


def unbiased_cka(first_nd: np.ndarray, second_nd: np.ndarray) -> float:
    """Compute linear CKA of two sets of features of the same n points, by the unbiased HSIC (diagonals left out).

    Returns:
        A number from −1 to 1, near 0 for unrelated features; NaN where features are constant or n < 4.
    """
    if len(first_nd) < 4:
        return math.nan
    first_nn, second_nn = _centered_gram(first_nd), _centered_gram(second_nd)
    scale = math.sqrt(float((first_nn * first_nn).sum()) * float((second_nn * second_nn).sum()))
    return float((first_nn * second_nn).sum()) / scale if scale > 0 else math.nan


def _centered_gram(features_nd: np.ndarray) -> np.ndarray:
    features_nd = features_nd.astype(np.float64)
    # Gram without its diagonal, centered as the unbiased HSIC asks.
    gram_nn: np.ndarray = features_nd @ features_nd.T
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
    # Match each coordinate of the narrower embedding to one of the wider, up to sign, on rows of shared tokens.
    cosines_DD = _unit_columns(tables[0]).T @ _unit_columns(tables[1])
    narrow_D, partner_D = scipy.optimize.linear_sum_assignment(np.abs(cosines_DD.T), maximize=True)
    sign_D = np.sign(cosines_DD[partner_D, narrow_D])
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
        pairs = scipy.optimize.linear_sum_assignment(cka_2LL.mean(axis=0), maximize=True)
    # Mean over the matched blocks, with the published z and its two-sided normal tail.
    value = float(cka_2LL[:, pairs[0], pairs[1]].mean())
    z = (value - AWM_MEAN) / AWM_STD
    log_p = min(0.0, math.log(2.0) + tails.log_normal_sf(abs(z))) if math.isfinite(z) else None
    return score(
        "awm", value, log10_p=None if log_p is None else log_p / tails.LN10, z=z if log_p is not None else None
    )
