"""Changes of the weights that leave the function alone: what a copy can be hidden by for free.

Each takes a configuration and its parameters, and returns both anew, in NumPy and float32; what a change leaves alone
is not copied, so that a large model is in memory twice at most. Logits stay the same up to rounding. Changes act on the
named axes of the parameter table: whatever has an axis of heads is reordered with the heads. Those that mix residual
coordinates first fold the norms' scales into the matrices that read their output, and give a tied model a head of its
own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bornbiased_jax.config import FieldValue, ModelConfig
from bornbiased_jax.derive.damage import Model
from bornbiased_jax.errors import InputError
from bornbiased_jax.parameters import Axis, Params, axis_sizes, flatten, parameter_table, unflatten

Flat = dict[str, np.ndarray]


def _fold(cfg: ModelConfig, flat: Flat) -> ModelConfig:
    """Fold norm scales (and LayerNorm's biases) into the matrices that read them; untie the head.

    Entries of ``flat`` are replaced one by one.

    Raises:
        InputError: the norm stands on the sublayers' outputs, or a norm's bias has no bias to go into.
    """
    if any(row.norm is not None and row.writes_residual for row in parameter_table(cfg).values()):
        raise InputError(
            "norm scales on a sublayer's output cannot be folded into the next matrix: use a pre-norm model"
        )
    if cfg.tie_embeddings:
        flat["head/kernel"] = flat["embed/embedding"].T
        cfg = cfg.replace(tie_embeddings=False)
    table = parameter_table(cfg)
    # Scales into the rows of every matrix that reads through the norm; shifts into that matrix's bias.
    for path, row in table.items():
        if not row.is_stacked or row.norm is None:
            continue
        shift_LD = flat.get(f"{row.norm}/bias")
        if shift_LD is not None and shift_LD.any():
            if f"{row.module}/bias" not in flat:
                raise InputError(f"{row.norm} has a bias, and {row.module} none to take it: set bias=true")
            added_LO = np.einsum("ld,ldn->ln", shift_LD, flat[path])
            flat[f"{row.module}/bias"] = flat[f"{row.module}/bias"] + added_LO
        if f"{row.norm}/scale" not in flat:
            continue
        scale_LD = flat[f"{row.norm}/scale"]
        ones = (1,) * (flat[path].ndim - 3)
        flat[path] = flat[path] * scale_LD.reshape(len(scale_LD), *ones, -1, 1)
    # A folded norm has unit scales and no shift.
    for norm in {row.norm for row in table.values() if row.is_stacked and row.norm is not None}:
        for leaf, value in (("scale", 1.0), ("bias", 0.0)):
            if f"{norm}/{leaf}" in flat:
                flat[f"{norm}/{leaf}"] = np.full_like(flat[f"{norm}/{leaf}"], value)
    # The final norm goes into the head.
    if "final_norm/scale" in flat:
        scale_D = flat["final_norm/scale"]
        if not scale_D.all():
            raise InputError("a final norm with a scale of zero cannot be folded into the head")
        flat["head/kernel"] = flat["head/kernel"] * scale_D[:, None]
        # The head has no bias to take that of the final norm, which stays, in the head's new units.
        if "final_norm/bias" in flat:
            flat["final_norm/bias"] = flat["final_norm/bias"] / scale_D
        flat["final_norm/scale"] = np.ones_like(scale_D)
    return cfg


def rotate(cfg: ModelConfig, params: Params, rotation_DD: np.ndarray) -> Model:
    """Rotate the residual stream: x becomes x Q everywhere.

    Args:
        cfg: the architecture, pre-norm.
        params: its weights.
        rotation_DD: orthogonal; with LayerNorm it must leave the vector of ones alone (:func:`random_rotation`).
    """
    flat = _flat(cfg, params)
    cfg = _fold(cfg, flat)
    _map_residual(cfg, flat, rotation_DD.astype(np.float32))
    return cfg, unflatten(flat)


def negate(cfg: ModelConfig, params: Params, signs_D: np.ndarray) -> Model:
    """Change the sign of residual coordinates (with LayerNorm: of all or of none). Norm scales stay."""
    if cfg.norm == "layernorm" and len(np.unique(signs_D)) > 1:
        raise InputError("LayerNorm takes a mean over coordinates: negate all of them or none, as negate:all does")
    flat = _flat(cfg, params)
    _map_residual(cfg, flat, np.diag(signs_D.astype(np.float32)))
    return cfg, unflatten(flat)


def permute_coordinates(cfg: ModelConfig, params: Params, order_D: np.ndarray) -> Model:
    """Permute residual coordinates: new coordinate i is the old ``order_D[i]``."""
    flat = _flat(cfg, params)
    for path, row in parameter_table(cfg).items():
        axis = row.position_of("residual")
        if axis is not None:
            flat[path] = np.take(flat[path], order_D, axis=axis)
    return cfg, unflatten(flat)


def permute_units(
    cfg: ModelConfig, params: Params, orders_LF: np.ndarray, shared_LF: np.ndarray | None = None
) -> Model:
    """Permute the hidden units of every MLP: new unit f of block l is the old ``orders_LF[l, f]``.

    Args:
        cfg: the architecture.
        params: its weights.
        orders_LF: in a mixture of experts it may be [L, E, F]: neurons are exchangeable within an expert.
        shared_LF: orders of the neurons of a shared expert; kept unless given.
    """
    flat = _flat(cfg, params)
    orders: dict[Axis, np.ndarray] = {"hidden": orders_LF}
    if shared_LF is not None:
        orders["shared_hidden"] = shared_LF
    _permute_by_block(cfg, flat, orders)
    return cfg, unflatten(flat)


def permute_heads(
    cfg: ModelConfig, params: Params, orders_LG: np.ndarray, within_LGR: np.ndarray | None = None
) -> Model:
    """Permute the key/value heads of every block, the query heads of each group with them.

    Args:
        cfg: the architecture.
        params: its weights.
        orders_LG: new key/value head g of block l is the old ``orders_LG[l, g]``.
        within_LGR: the order of the query heads within each (old) group; kept unless given.
    """
    flat = _flat(cfg, params)
    size = cfg.num_heads // cfg.kv_heads
    if within_LGR is None:
        within_LGR = np.broadcast_to(np.arange(size), (*orders_LG.shape, size))
    within_LGR = np.take_along_axis(within_LGR, orders_LG[:, :, None], axis=1)
    orders_LH = (orders_LG[:, :, None] * size + within_LGR).reshape(len(orders_LG), -1)
    _permute_by_block(cfg, flat, {"head": orders_LH, "kv_head": orders_LG})
    return cfg, unflatten(flat)


def _permute_by_block(cfg: ModelConfig, flat: Flat, orders: Mapping[Axis, np.ndarray]) -> None:
    """Reorder every parameter along named axes, each block in its own order [L, n]."""
    sizes = axis_sizes(cfg)
    for path, row in parameter_table(cfg).items():
        for index, names in enumerate(row.block_axes):
            for name in orders.keys() & set(names):
                # An axis of several names is taken apart, reordered along one of them, and put together again.
                split_axis = tuple(sizes[part] for part in names)
                shape = (*row.block_shape[:index], *split_axis, *row.block_shape[index + 1 :])
                axis = index + names.index(name)
                flat[path] = np.stack(
                    [
                        _reordered(block.reshape(shape), order, axis).reshape(row.block_shape)
                        for block, order in zip(flat[path], orders[name], strict=True)
                    ]
                )


def _reordered(block: np.ndarray, order: np.ndarray, axis: int) -> np.ndarray:
    """Reorder one axis, by one order [n] or by one for each entry of the first axis [E, n]."""
    if order.ndim == 1:
        return np.take(block, order, axis=axis)
    return np.stack([np.take(part, order_n, axis=axis - 1) for part, order_n in zip(block, order, strict=True)])


def permute_experts(cfg: ModelConfig, params: Params, orders_LE: np.ndarray) -> Model:
    """Permute the experts of every block as wholes, their router columns with them.

    Raises:
        InputError: the model has no experts.
    """
    if cfg.num_experts is None:
        raise InputError("the model has no experts: permute a mixture of experts")
    flat = _flat(cfg, params)
    _permute_by_block(cfg, flat, {"expert": orders_LE})
    return cfg, unflatten(flat)


def rescale_units(
    cfg: ModelConfig, params: Params, factors_LF: np.ndarray, shared_LF: np.ndarray | None = None
) -> Model:
    """Move factors of either sign from down to up, unit by unit (the MLP must be gated); of a shared expert its own."""
    if not cfg.gated_mlp:
        raise InputError("without a gate the activation stands between up and down: rescale a gated model")
    flat = _flat(cfg, params)
    for module, factors in (("blocks/mlp", factors_LF), ("blocks/mlp/shared_expert", shared_LF)):
        if factors is None:
            continue
        # The same factors in all experts of a block.
        up, down = f"{module}/up", f"{module}/down/kernel"
        between = (1,) * (flat[down].ndim - 3)
        L, F = factors.shape
        flat[f"{up}/kernel"] = flat[f"{up}/kernel"] * factors.reshape(L, *between, 1, F)
        if f"{up}/bias" in flat:
            flat[f"{up}/bias"] = flat[f"{up}/bias"] * factors
        flat[down] = flat[down] / factors.reshape(L, *between, F, 1)
    return cfg, unflatten(flat)


def insert_idle_block(cfg: ModelConfig, params: Params, seed: int) -> Model:
    """Insert a random block that writes nothing before the first.

    Raises:
        InputError: the model has no residual connections, so that such a block would erase the residual stream.
    """
    if not cfg.residual:
        raise InputError("without residual connections no block is idle: choose a model with residual=true")
    # Random weights of the size of the model's own, zero where they would write.
    draws = np.random.default_rng(seed)
    table = parameter_table(cfg)
    norms = {row.module for row in table.values() if row.group == "norm"}
    after = {row.norm for row in table.values() if row.writes_residual}
    flat = _flat(cfg, params)
    for path, row in table.items():
        if not row.is_stacked:
            continue
        leaf = flat[path]
        new = draws.standard_normal(leaf.shape[1:]).astype(np.float32) * max(float(leaf.std()), 1e-3)
        if row.leaf == "scale":
            new = np.ones_like(new)
        # Nothing is written: by the matrix, by its bias, or through a norm on the sublayer's output.
        if (row.writes_residual and row.module not in norms) or row.module in after:
            new = np.zeros_like(new)
        flat[path] = np.insert(leaf, 0, new, axis=0)
    changes: dict[str, FieldValue] = {"num_layers": cfg.num_layers + 1}
    # The others keep their kinds; what kind an idle block is changes nothing.
    changes |= cfg.of_layers([0, *range(cfg.num_layers)])
    return cfg.replace(**changes), unflatten(flat)


def widen(cfg: ModelConfig, params: Params, extra: int) -> Model:
    """Append residual coordinates that stay zero (RMSNorm models; norms are rescaled for the longer mean)."""
    if cfg.norm != "rmsnorm":
        raise InputError("idle coordinates change LayerNorm's mean: widen a model with RMSNorm")
    if cfg.norm_parameters == "none":
        raise InputError(
            "idle coordinates change the norms, which have no scale to make up for it: widen another model"
        )
    flat = _flat(cfg, params)
    cfg = _fold(cfg, flat)
    width = cfg.d_model
    _map_residual(cfg, flat, np.eye(width, width + extra, dtype=np.float32))
    fraction = width / (width + extra)
    for path, row in parameter_table(cfg).items():
        if row.group == "norm" and row.axes[-1] == ("residual",):
            flat[path] = np.full((*flat[path].shape[:-1], width + extra), np.sqrt(fraction), np.float32)
    sizes = dict(d_model=width + extra, head_dim=cfg.key_dim, num_kv_heads=cfg.kv_heads)
    return cfg.replace(**sizes, norm_eps=cfg.norm_eps * fraction), unflatten(flat)


def random_rotation(cfg: ModelConfig, seed: int) -> np.ndarray:
    """Draw a uniform orthogonal matrix [D, D]; with LayerNorm one that leaves the vector of ones alone."""
    width = cfg.d_model
    draws = np.random.default_rng(seed)
    if cfg.norm != "layernorm":
        return _uniform(width, draws)
    basis_DD = np.linalg.qr(np.column_stack([np.ones(width), draws.standard_normal((width, width - 1))]))[0]
    inner_DD = np.eye(width)
    inner_DD[1:, 1:] = _uniform(width - 1, draws)
    rotation_DD: np.ndarray = basis_DD @ inner_DD @ basis_DD.T
    return rotation_DD


def _uniform(width: int, draws: np.random.Generator) -> np.ndarray:
    q_DD, r_DD = np.linalg.qr(draws.standard_normal((width, width)))
    rotation_DD: np.ndarray = q_DD * np.sign(np.diag(r_DD))
    return rotation_DD


def _map_residual(cfg: ModelConfig, flat: Flat, map_DE: np.ndarray) -> None:
    """Express the residual stream in the coordinates x @ map (an isometry). Norm scales stay."""
    for path, row in parameter_table(cfg).items():
        if row.reads_residual:
            flat[path] = map_DE.T @ flat[path]
        elif row.writes_residual:
            flat[path] = flat[path] @ map_DE


def _flat(cfg: ModelConfig, params: Params) -> Flat:
    """Return the parameters by path, not copied: whoever changes one puts another in its place.

    Raises:
        LookupError: a parameter that the table does not have, which a change could not take along.
    """
    flat = {path: np.asarray(leaf, np.float32) for path, leaf in flatten(params).items()}
    if flat.keys() != parameter_table(cfg).keys():
        unknown = sorted(flat.keys() ^ parameter_table(cfg).keys())
        raise LookupError(f"parameter {unknown[0]} is not one of this configuration: declare it in parameters.py")
    return flat
