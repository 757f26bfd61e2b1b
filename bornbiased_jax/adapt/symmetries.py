"""Changes of the weights that leave the function alone: what a copy can be hidden by for free.

Each takes a configuration and its parameters, and returns both anew, in NumPy and float32; what a change leaves alone
is not copied, so that a large model is in memory twice at most. Logits stay the same up to rounding. Those that mix
residual coordinates first fold the norms' scales into the matrices that read their output, and give a tied model a head
of its own.
"""

from __future__ import annotations

import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.parameters import Params, flatten, unflatten

Model = tuple[ModelConfig, Params]
Flat = dict[str, np.ndarray]

_READERS = {
    "blocks/attention_norm": ("query", "key", "value", "gate"),
    "blocks/mlp_norm": ("gate", "up"),
}
_WRITERS = ("blocks/attention/output", "blocks/mlp/down")


def fold_norms(cfg: ModelConfig, params: Params) -> Model:
    """Norm scales of one, the head untied: the scales (and LayerNorm's biases) go into the matrices that read them.

    Raises:
        InputError: the norm stands on the sublayers' outputs, or a norm's bias has no bias to go into.
    """
    flat = _flat(params)
    cfg = _fold(cfg, flat)
    return cfg, unflatten(flat)


def _fold(cfg: ModelConfig, flat: Flat) -> ModelConfig:
    """:func:`fold_norms` of a table of parameters whose entries are replaced one by one."""
    if cfg.norm_position != "pre":
        raise InputError(
            "norm scales on a sublayer's output cannot be folded into the next matrix: use a pre-norm model"
        )
    if cfg.tie_embeddings:
        flat["head/kernel"] = flat["embed/embedding"].T
    for norm, modules in _READERS.items():
        folder = "blocks/attention" if "attention" in norm else "blocks/mlp"
        for module in modules:
            kernel = f"{folder}/{module}/kernel"
            if kernel not in flat or f"{norm}/scale" not in flat:
                continue
            shift = flat.get(f"{norm}/bias")
            if shift is not None and shift.any():
                if f"{folder}/{module}/bias" not in flat:
                    raise InputError(f"{norm} has a bias, and {folder}/{module} none to take it: set bias=true")
                added = np.einsum("ld,ldn->ln", shift, flat[kernel])
                flat[f"{folder}/{module}/bias"] = flat[f"{folder}/{module}/bias"] + added
            flat[kernel] = flat[kernel] * flat[f"{norm}/scale"][:, :, None]
        for leaf, value in (("scale", 1.0), ("bias", 0.0)):
            if f"{norm}/{leaf}" in flat:
                flat[f"{norm}/{leaf}"] = np.full_like(flat[f"{norm}/{leaf}"], value)
    if "final_norm/scale" in flat:
        scale_D = flat["final_norm/scale"]
        if not scale_D.all():
            raise InputError("a final norm with a scale of zero cannot be folded into the head")
        flat["head/kernel"] = flat["head/kernel"] * scale_D[:, None]
        # The head has no bias to take that of the final norm, which stays, in the head's new units.
        if "final_norm/bias" in flat:
            flat["final_norm/bias"] = flat["final_norm/bias"] / scale_D
        flat["final_norm/scale"] = np.ones_like(scale_D)
    return cfg.replace(tie_embeddings=False)


def rotate(cfg: ModelConfig, params: Params, rotation_DD: np.ndarray) -> Model:
    """Turn the residual stream: x becomes x Q everywhere.

    Args:
        cfg, params: a pre-norm model.
        rotation_DD: orthogonal; with LayerNorm it must leave the vector of ones alone (:func:`random_rotation`).
    """
    flat = _flat(params)
    cfg = _fold(cfg, flat)
    _map(flat, rotation_DD.astype(np.float32))
    return cfg, unflatten(flat)


def negate(cfg: ModelConfig, params: Params, signs_D: np.ndarray) -> Model:
    """Change the sign of residual coordinates (with LayerNorm: of all or of none). Norm scales stay."""
    if cfg.norm == "layernorm" and len(np.unique(signs_D)) > 1:
        raise InputError("LayerNorm takes a mean over coordinates: negate all of them or none")
    flat = _flat(params)
    _map(flat, np.diag(signs_D.astype(np.float32)))
    return cfg, unflatten(flat)


def permute_coordinates(cfg: ModelConfig, params: Params, order_D: np.ndarray) -> Model:
    """Renumber residual coordinates: new coordinate i is the old ``order_D[i]``."""
    flat = _flat(params)
    _map(flat, np.eye(cfg.d_model, dtype=np.float32)[:, order_D])
    for norm in (*_READERS, "final_norm"):
        if f"{norm}/scale" in flat:
            flat[f"{norm}/scale"] = flat[f"{norm}/scale"][..., order_D]
    return cfg, unflatten(flat)


def permute_units(cfg: ModelConfig, params: Params, orders_LF: np.ndarray) -> Model:
    """Renumber hidden units of every MLP: new unit f of block l is the old ``orders_LF[l, f]``."""
    flat = _flat(params)
    for module in ("gate", "up"):
        for leaf in ("kernel", "bias"):
            _reorder_last(flat, f"blocks/mlp/{module}/{leaf}", orders_LF)
    flat["blocks/mlp/down/kernel"] = np.stack(
        [rows_FD[order_F] for rows_FD, order_F in zip(flat["blocks/mlp/down/kernel"], orders_LF, strict=True)]
    )
    return cfg, unflatten(flat)


def permute_heads(
    cfg: ModelConfig, params: Params, orders_LG: np.ndarray, within_LGR: np.ndarray | None = None
) -> Model:
    """Renumber key/value heads of every block, the query heads of each group with them.

    Args:
        cfg, params: the model.
        orders_LG: new key/value head g of block l is the old ``orders_LG[l, g]``.
        within_LGR: the order of the query heads within each (old) group; kept unless given.
    """
    flat = _flat(params)
    size, K = cfg.num_heads // cfg.kv_heads, cfg.key_dim
    if within_LGR is None:
        within_LGR = np.broadcast_to(np.arange(size), (*orders_LG.shape, size))
    within_LGR = np.take_along_axis(within_LGR, orders_LG[:, :, None], axis=1)
    orders_LH = (orders_LG[:, :, None] * size + within_LGR).reshape(len(orders_LG), -1)
    of_heads, of_groups = (
        (orders[:, :, None] * K + np.arange(K)).reshape(len(orders), -1) for orders in (orders_LH, orders_LG)
    )
    for module, channels in (("query", of_heads), ("key", of_groups), ("value", of_groups)):
        for leaf in ("kernel", "bias"):
            _reorder_last(flat, f"blocks/attention/{module}/{leaf}", channels)
        if cfg.qk_norm_scope == "projection":
            _reorder_last(flat, f"blocks/attention/{module}_norm/scale", channels)
    _reorder_last(flat, "blocks/attention/sink_logit", orders_LH)
    _reorder_last(flat, "blocks/attention/gate/kernel", orders_LH if cfg.output_gate == "headwise" else of_heads)
    flat["blocks/attention/output/kernel"] = np.stack(
        [rows_nD[order] for rows_nD, order in zip(flat["blocks/attention/output/kernel"], of_heads, strict=True)]
    )
    return cfg, unflatten(flat)


def _reorder_last(flat: Flat, path: str, orders_Ln: np.ndarray) -> None:
    """Another order of the last axis for each block, of a parameter that may not be there."""
    if path in flat:
        flat[path] = np.stack([leaf[..., order_n] for leaf, order_n in zip(flat[path], orders_Ln, strict=True)])


def rescale_units(cfg: ModelConfig, params: Params, factors_LF: np.ndarray) -> Model:
    """Move factors of either sign from down to up, unit by unit (the MLP must be gated)."""
    if not cfg.gated_mlp:
        raise InputError("without a gate the activation stands between up and down: rescale a gated model")
    flat = _flat(params)
    flat["blocks/mlp/up/kernel"] = flat["blocks/mlp/up/kernel"] * factors_LF[:, None, :]
    if "blocks/mlp/up/bias" in flat:
        flat["blocks/mlp/up/bias"] = flat["blocks/mlp/up/bias"] * factors_LF
    flat["blocks/mlp/down/kernel"] = flat["blocks/mlp/down/kernel"] / factors_LF[:, :, None]
    return cfg, unflatten(flat)


def insert_idle_block(cfg: ModelConfig, params: Params, at: int, seed: int) -> Model:
    """Put a random block that writes nothing before block ``at`` (from 0)."""
    draws = np.random.default_rng(seed)
    flat = _flat(params)
    for path, leaf in flat.items():
        if not path.startswith("blocks/"):
            continue
        new = draws.standard_normal(leaf.shape[1:]).astype(np.float32) * max(float(leaf.std()), 1e-3)
        if path.endswith("/scale"):
            new = np.ones_like(new)
        if path.rpartition("/")[0] in _WRITERS or (cfg.norm_position == "post" and "_norm/" in path):
            new = np.zeros_like(new)
        flat[path] = np.insert(leaf, at, new, axis=0)
    return cfg.replace(num_layers=cfg.num_layers + 1), unflatten(flat)


def shift_head(cfg: ModelConfig, params: Params, vector_D: np.ndarray) -> Model:
    """Add one vector to every column of an untied head: all logits of a position move alike, no probability does."""
    if cfg.tie_embeddings:
        raise InputError("the head of a tied model is its embedding: untie it first")
    flat = _flat(params)
    flat["head/kernel"] = flat["head/kernel"] + vector_D.astype(np.float32)[:, None]
    return cfg, unflatten(flat)


def widen(cfg: ModelConfig, params: Params, extra: int) -> Model:
    """Append residual coordinates that stay zero (RMSNorm models; norms are rescaled for the longer mean)."""
    if cfg.norm != "rmsnorm":
        raise InputError("idle coordinates change LayerNorm's mean: widen a model with RMSNorm")
    flat = _flat(params)
    cfg = _fold(cfg, flat)
    width = cfg.d_model
    _map(flat, np.eye(width, width + extra, dtype=np.float32))
    kept = width / (width + extra)
    for path in ("blocks/attention_norm/scale", "blocks/mlp_norm/scale", "final_norm/scale"):
        if path in flat:
            flat[path] = np.full((*flat[path].shape[:-1], width + extra), np.sqrt(kept), np.float32)
    sizes = dict(d_model=width + extra, head_dim=cfg.key_dim, num_kv_heads=cfg.kv_heads)
    return cfg.replace(**sizes, norm_eps=cfg.norm_eps * kept), unflatten(flat)


def random_rotation(cfg: ModelConfig, seed: int) -> np.ndarray:
    """A uniform orthogonal matrix [D, D]; with LayerNorm one that leaves the vector of ones alone."""
    width = cfg.d_model
    draws = np.random.default_rng(seed)
    if cfg.norm != "layernorm":
        return _uniform(width, draws)
    basis_DD = np.linalg.qr(np.column_stack([np.ones(width), draws.standard_normal((width, width - 1))]))[0]
    inner_DD = np.eye(width)
    inner_DD[1:, 1:] = _uniform(width - 1, draws)
    return basis_DD @ inner_DD @ basis_DD.T


def _uniform(width: int, draws: np.random.Generator) -> np.ndarray:
    q_DD, r_DD = np.linalg.qr(draws.standard_normal((width, width)))
    turned: np.ndarray = q_DD * np.sign(np.diag(r_DD))
    return turned


def _map(flat: Flat, map_DE: np.ndarray) -> None:
    """Put everything that touches the residual stream in the coordinates x @ map (an isometry). Norm scales stay."""
    for path, leaf in flat.items():
        module, _, name = path.rpartition("/")
        normed = name == "bias" and module in ("blocks/attention_norm", "blocks/mlp_norm", "final_norm")
        if name == "embedding" or normed or (module in _WRITERS and name in ("kernel", "bias")):
            flat[path] = leaf @ map_DE
        elif name == "kernel":
            flat[path] = map_DE.T @ leaf


def _flat(params: Params) -> Flat:
    """The parameters by path, not copied: whoever changes one puts another in its place."""
    return {path: np.asarray(leaf, np.float32) for path, leaf in flatten(params).items()}
