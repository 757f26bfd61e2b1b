"""A trainability diagram of an initialization, from theory alone: scale of the weights, depth, attention, residual."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.limits import check_length
from bornbiased_jax.prediction import biases_of, check_gradients, check_room, head_of, one_blas_thread, stack_of
from bornbiased_jax.theory import attention_weights, gradients, mean_field, sublayers
from bornbiased_jax.theory.mean_field import MeanFieldProfile
from bornbiased_jax.theory.stack import WRITERS, Stack

SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Of the standard deviations of all matrices of blocks, or of those that write to the residual stream."""
DEPTHS = (1, 2, 4, 8, 16)
LOGIT_STDS = (0.1, 0.3, 1.0, 3.0)
MOST_LAYERS = 4
"""Of the plane over attention, where concentrated weights take a second a block."""


class Plane(TypedDict):
    """Three statistics over two settings; rows are the second setting, and None has no theory."""

    x: str
    x_values: list[float]
    y: str
    y_values: list[float]
    num_layers: int | None
    contraction: list[list[float | None]]
    """Cosine between sequences after the last block."""
    gradient_ratio: list[list[float | None]]
    """Norm of the first block's gradient over that of the last block's."""
    entropy: list[list[float | None]]
    """Of the last query's weights in the last block, over the logarithm of its keys; None if they need not sum to 1."""


class Diagram(TypedDict):
    """Planes over (scale of weights, depth) and over (attention, residual branches)."""

    seq_len: int
    depth: Plane
    attention: Plane


GridPoint = tuple[float | None, float | None, float | None]


def diagram(cfg: ModelConfig, seq_len: int, num_inputs: int) -> Diagram:
    """Predict contraction, gradient ratio and attention entropy over two planes of settings around a configuration.

    Args:
        cfg: the architecture.
        seq_len: T.
        num_inputs: sequences of the batch whose gradient is meant.

    Raises:
        InputError: theory does not cover the configuration, or sequences are too long.
    """
    check_length(cfg, seq_len)
    if seq_len > gradients.LARGEST_LENGTH:
        raise InputError(
            f"a diagram follows all pairs of at most {gradients.LARGEST_LENGTH} positions, not {seq_len}: ask "
            "for shorter sequences"
        )
    check_room(cfg.replace(num_layers=max(DEPTHS)), seq_len, exact=True)
    num_layers = min(cfg.num_layers, MOST_LAYERS)
    of_depth = {depth: stack_of(cfg.replace(num_layers=depth)) for depth in DEPTHS}
    base = stack_of(cfg.replace(num_layers=num_layers))
    biases = biases_of(cfg)

    def ratio_of(forward: MeanFieldProfile) -> float | None:
        check_gradients(cfg)
        # The head's distribution may depend on the depth.
        head = head_of(cfg.replace(num_layers=forward.stack.num_layers))
        norms = gradients.gradients(forward, num_inputs, head, biases, cfg.norm_parameters).by_block
        return float(norms[0] / norms[-1]) if norms[-1] > 0 else None

    def cell(stack: Stack) -> GridPoint:
        return _cell(stack, seq_len, ratio_of)

    groups = dict(base.group_stds)
    logit_std = base.std("query", 0) * base.std("key", 0) * base.width * base.logit_scale
    # Without attention, or with queries or keys of zeros, no scale makes logits differ.
    logit_stds = LOGIT_STDS if base.attention and logit_std > 0 else (0.0,)

    def at_depth(scale: float, depth: float) -> Stack:
        return scaled(of_depth[int(depth)], dict.fromkeys(groups, scale))

    def at_attention(target: float, strength: float) -> Stack:
        if base.qk_norm:
            # Norms undo the scales of queries and keys, and leave logits the standard deviation of their own scale.
            return scaled(dataclasses.replace(base, logit_scale=target), dict.fromkeys(WRITERS, strength))
        scale = math.sqrt(target / logit_std) if logit_std else 1.0
        return scaled(base, {"query": scale, "key": scale, **dict.fromkeys(WRITERS, strength)})

    is_normed = base.qk_norm or (base.norm != "none" and base.norm_position == "pre")
    logits = "std of logits" if is_normed else "std of logits for inputs of unit variance"
    strength = "scale of the weights that write to the residual stream"
    with one_blas_thread():
        return {
            "seq_len": seq_len,
            "depth": _plane(cell, at_depth, ("scale of all weights", SCALES), ("blocks", DEPTHS), None),
            "attention": _plane(cell, at_attention, (logits, logit_stds), (strength, SCALES), num_layers),
        }


def scaled(stack: Stack, scales: Mapping[str, float]) -> Stack:
    """Multiply the standard deviations of groups of matrices; a value gate, in them the two it depends on, by both."""
    if stack.value_gate and "output_gate" in scales:
        scales = {**scales, "output_gate": scales["output_gate"] * scales.get("value", 1.0)}
    stds = tuple((group, tuple(std * scales.get(group, 1.0) for std in values)) for group, values in stack.group_stds)
    return dataclasses.replace(stack, group_stds=stds)


def _plane(
    cell: Callable[[Stack], GridPoint],
    stack_at: Callable[[float, float], Stack],
    x: tuple[str, Sequence[float]],
    y: tuple[str, Sequence[float]],
    num_layers: int | None,
) -> Plane:
    rows = [[cell(stack_at(column, row)) for column in x[1]] for row in y[1]]
    contraction, ratio, entropy = ([[values[part] for values in row] for row in rows] for part in range(3))
    return {
        "x": x[0],
        "x_values": [float(value) for value in x[1]],
        "y": y[0],
        "y_values": [float(value) for value in y[1]],
        "num_layers": num_layers,
        "contraction": contraction,
        "gradient_ratio": ratio,
        "entropy": entropy,
    }


def _cell(stack: Stack, seq_len: int, ratio_of: Callable[[MeanFieldProfile], float | None]) -> GridPoint:
    """Compute contraction, gradient ratio and entropy; None where theory refuses."""
    try:
        forward = mean_field.profile(stack, seq_len, exact=True)
    except ValueError:
        return None, None, None
    try:
        ratio = ratio_of(forward)
    except ValueError:
        ratio = None  # Attention or predictions far from uniform, or a part of the model without a theory of gradients.
    return float(forward.inter_cosine[-1]), ratio, _entropy(forward)


def _entropy(forward: MeanFieldProfile) -> float | None:
    """Return the entropy of the last query's weights in the last block; None where they need not sum to 1."""
    steps = [step for step in forward.sublayers if step.kind == "attention"]
    if not steps or forward.stack.attention_kernel != "softmax" or forward.stack.sink_logit:
        return None
    source = steps[-1].source.scaled(sublayers.input_scale(forward.stack, steps[-1].source))
    rho = sublayers.correlation(source.within_nn, source)
    return attention_weights.entropy(forward.stack, steps[-1].layer, source.variance_n, rho, forward.grid)
